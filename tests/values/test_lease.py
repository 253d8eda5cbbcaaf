"""Lease policies."""

import pytest

import tupelo
from tupelo import longest
from tupelo.errors import BadArgument


def test_longest_grants_what_is_asked_for_up_to_a_limit():
    policy = longest(10)
    assert policy("entry", 3) == 3 and policy("entry", 30) == 10 and policy("session", None) == 10


@pytest.mark.parametrize("seconds", [None, 0, -1, "5", True, float("nan")])
def test_a_limit_that_makes_no_sense_is_refused(seconds):
    with pytest.raises(BadArgument, match="seconds="):
        longest(seconds)


def test_leases_and_notices_show_what_they_are_of():
    with tupelo.Space("jobs", clock=tupelo.ManualClock()) as space:
        with space.subscribe(("job", int)) as notices:
            assert (
                repr(space.write(("job", 7), lease=30))
                == "<Lease of <entry ('job', 7)>, expires=1000030.0>"
            )
            assert repr(next(iter(notices))) == "<Notice 1: visible <entry ('job', 7)>>"
        assert repr(space.write(("job", 8))).endswith("expires=None>")
