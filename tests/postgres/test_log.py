"""A log that is trimmed while others still need it."""

from functools import partial
from uuid import uuid4

import pytest

import tupelo
from tests.kinds import space_url
from tupelo.errors import LogTrimmed
from tupelo.space.dual_api import run_sync


@pytest.fixture
def url():
    return space_url(f"log {uuid4()}")


def test_a_subscription_whose_changes_were_trimmed_says_so_and_leaves_none_out(url):
    with tupelo.connect(url) as space, tupelo.connect(url) as other:
        late = space.subscribe(("a", int))
        for i in range(3):
            other.write(("a", i))
        other.trim(before=3)
        with pytest.raises(LogTrimmed, match="begins at position 3"):
            late.get(wait=0)
        assert not late.active and isinstance(late.error, LogTrimmed)
        fresh = space.subscribe(("a", int))
        other.write(("a", 3))
        notice = fresh.get()
        assert notice is not None and notice.entry == ("a", 3) and notice.sequence == 1
        with pytest.raises(LogTrimmed):
            other.changes(since=1)
        assert [change.entry for change in other.changes(since=2)] == [("a", 2), ("a", 3)]


def test_a_trimmed_log_still_tells_what_became_of_an_operation(url):
    """Otherwise one that lost its connection would be done twice."""
    with tupelo.connect(url) as space, tupelo.connect(url) as other:
        space.write(("a", 1))
        other.trim(before=100)
        assert other.changes(since=1) == []
        done = run_sync(partial(space._done, None, 1))  # type: ignore[attr-defined]
        assert len(done) == 1
