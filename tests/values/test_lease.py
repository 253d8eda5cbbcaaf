"""Lease policies."""

import pytest

from tupelo import longest
from tupelo.errors import BadArgument


def test_longest_grants_what_is_asked_for_up_to_a_limit():
    policy = longest(10)
    assert policy("entry", 3) == 3 and policy("entry", 30) == 10 and policy("session", None) == 10


@pytest.mark.parametrize("seconds", [None, 0, -1, "5", True, float("nan")])
def test_a_limit_that_makes_no_sense_is_refused(seconds):
    with pytest.raises(BadArgument, match="seconds="):
        longest(seconds)
