"""Regular expressions and hosts that have no engine for them: such a host refuses, and goes on."""

import pytest

import tupelo
from tests.federation.company import await_space
from tupelo import Prefix, Regex
from tupelo.errors import BadTemplate, NotAllAnswered

PATTERN = (Regex("[a-z]+"), int)


@pytest.fixture
def child(threads):
    child = threads.child("plain", without=["re2"])
    child.do("write", ["job", 1])
    return child


def test_a_client_is_told_what_its_host_lacks(child):
    with tupelo.connect(f"tupelo://{child.address}/jobs", reconnect=0) as space:
        for verb in ("read", "take", "read_all", "count", "subscribe", "match_set"):
            with pytest.raises(BadTemplate, match=r"tupelo\[patterns\]"):
                getattr(space, verb)(PATTERN)
        assert space.take((Prefix("j"), int), wait=0) == ("job", 1), "the link has ended"


def test_a_host_that_cannot_match_is_named_among_those_that_did_not_answer(threads, child):
    host = threads.host("able", peers=[child.address])
    await_space(host, child.id)
    space = host.space("jobs")
    with pytest.raises(NotAllAnswered) as refused:
        space.read(PATTERN, wait=0)
    assert refused.value.missing == ["plain"]
    space.write(("own", 2))
    assert space.take(PATTERN, wait=0) == ("own", 2)
    assert space.take((Prefix("j"), int), wait=0) == ("job", 1), "the hosts have parted"
