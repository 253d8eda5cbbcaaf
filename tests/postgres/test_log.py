"""A log that is trimmed while others still need it."""

from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import pytest

import tupelo
from tests.conftest import until_true
from tests.kinds import space_url
from tupelo.errors import LogTrimmed, MatchSetInvalid
from tupelo.postgres.connect import open_space
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
        done = run_sync(partial(space.changed_by, 1, None))  # type: ignore[attr-defined]
        assert len(done) == 1


@dataclass
class Reading:
    sensor: str | None = None
    value: float | None = None


def test_equal_templates_ask_for_the_same_event(url):
    with tupelo.connect(url) as space:
        templates = [Reading("a"), tupelo.Template(("a", int)) | ("b", int), ("a", 1), ("a", 1.0)]
        twins = [Reading("a"), tupelo.Template(("a", int)) | ("b", int), ("a", 1), ("a", 1.0)]
        ids = [space.subscribe(template).event_id for template in templates]
        assert ids == [space.subscribe(template).event_id for template in twins] == [1, 2, 3, 4]


def test_a_match_set_says_that_its_lease_was_cancelled(url):
    with tupelo.connect(url) as space:
        space.write(("a", 1))
        matches = space.match_set(("a", int), lease=60)
        matches.lease.cancel()
        with pytest.raises(MatchSetInvalid, match="cancelled"):
            matches.next()


def test_changes_that_nobody_has_read_are_trimmed_in_their_order(url):
    with run_sync(partial(open_space, url, is_async=False, log_keep=4)) as space:
        space.write_all([("a", i) for i in range(6)])
        space.write(("b", 0))
        space.write(("b", 1))
        space.compact()
        with pytest.raises(LogTrimmed, match="begins at position 5"):
            space.changes(since=3)
        kept = [(change.position, change.entry) for change in space.changes(since=4)]
        assert kept == [(5, ("a", 4)), (6, ("a", 5)), (7, ("b", 0)), (8, ("b", 1))]
        space.write_all([("c", i) for i in range(3)])  # 4 are numbered, 3 are not
        space.compact()
        kept = [(change.position, change.entry) for change in space.changes(since=7)]
        assert kept == [(8, ("b", 1)), (9, ("c", 0)), (10, ("c", 1)), (11, ("c", 2))]
        assert len(run_sync(partial(space.changed_by, 1, None))) == 6


def test_programs_that_write_little_trim_the_log_too(url, monkeypatch):
    monkeypatch.setattr("tupelo.postgres.space.TRIM_MIN", 8)
    for n in range(12):
        with run_sync(partial(open_space, url, is_async=False, log_keep=4)) as space:
            space.write_all([("a", n)] * 3)
            first, last = run_sync(space.log.bounds)
    assert last == 36
    assert last - first < 4 + 8 + 3


def test_a_reaction_that_falls_behind_misses_nothing(monkeypatch):
    """Notices beyond its backlog are dropped: it looks at the entries that are there."""
    monkeypatch.setattr("tupelo.postgres.log.REACTION_BACKLOG_MAX", 3)
    reacted: list[int] = []
    with tupelo.connect(space_url(f"behind {uuid4()}")) as space:
        space.react(("a", int), lambda entry, step: reacted.append(entry[1]))
        space.write_all([("a", n) for n in range(20)])
        until_true(lambda: len(reacted) >= 20)
        assert sorted(reacted) == list(range(20))
