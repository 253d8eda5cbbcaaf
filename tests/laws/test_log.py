"""The log: everything that happens is a change, and can be read again from any position."""

from typing import Any

import pytest

from tests.laws.kinds import Job
from tests.laws.talk import alike
from tupelo import Capacity
from tupelo.errors import BadArgument, LogTrimmed

LOGS = ("memory+log", "full", "process", "none")
pytestmark = pytest.mark.parametrize(
    "place",
    [
        (door, store)
        for door in ("blocking", "async")
        for store in ("memory+log", "full", "process", "none", "full remote")
    ],
    indirect=True,
    ids="-".join,
)


def kinds(space: Any, **options: Any) -> list[str]:
    return [change.kind for change in space.changes(**options)]


def test_everything_that_happens_is_a_change(space, clock):
    lease = space.write(("a", 1))
    space.write(("b",), lease=5)
    lease.renew(50)
    space.take(("a", 1), wait=0)
    space.write(("c",)).cancel()
    clock.advance(5)
    told = [(change.kind, change.entry) for change in space.changes()]
    assert told == [
        ("written", ("a", 1)),
        ("written", ("b",)),
        ("renewed", ("a", 1)),
        ("taken", ("a", 1)),
        ("written", ("c",)),
        ("cancelled", ("c",)),
        ("expired", ("b",)),
    ]


def test_positions_count_without_gaps(space):
    space.write_all([("n", i) for i in range(5)])
    space.take_all(("n", int), limit=2)
    assert [change.position for change in space.changes()] == [1, 2, 3, 4, 5, 6, 7]


def test_a_change_tells_who_what_and_when(make_space, clock):
    space = make_space(agent="me")
    space.write(("a", 1), lease=10)
    clock.advance(2)
    with space.transaction() as txn:
        space.take(("a", 1), wait=0, txn=txn)
        space.write(Job("x"), txn=txn)
    written, taken, job = space.changes()
    assert written.time == clock.now() - 2 and written.expires == written.time + 10
    assert (written.origin, written.agent, written.txn) == ("me", "me", None)
    assert taken.time == clock.now() and taken.txn == job.txn == txn.id
    assert (taken.arrival, taken.origin, taken.n) == (written.arrival, "me", written.n)
    assert job.entry == Job("x") and job.arrival != written.arrival


def test_an_expired_change_carries_the_time_at_which_it_expired(space, clock):
    space.write(("a",), lease=5)
    expires = clock.now() + 5
    clock.advance(60)
    assert space.changes()[-1].time == expires


def test_a_change_tells_how_long_its_taker_had_waited(space, park, clock):
    waiter = park(space, space.take, ("a",), wait=10)
    clock.advance(3)
    space.write(("a",))
    waiter.result()
    assert space.changes()[-1].kind == "taken" and space.changes()[-1].waited == 3


def test_the_log_is_read_from_any_position(space):
    space.write_all([("n", i) for i in range(6)])
    assert [c.position for c in space.changes(since=4)] == [5, 6]
    assert [c.entry for c in space.changes(since=1, limit=2)] == [("n", 1), ("n", 2)]
    assert space.changes(since=6) == [] and space.changes(since=100) == []


def test_a_reader_of_the_log_follows_it_in_pages(space):
    space.write_all([("n", i) for i in range(25)])
    since, read = 0, []
    while page := space.changes(since=since, limit=10):
        read += [change.entry[1] for change in page]
        since = page[-1].position
    assert read == list(range(25))


def test_values_come_out_of_the_log_as_they_went_in(space):
    entries = [(1, 1.0, True), ((1,), [1], {"a": (1,)}), Job("x", 2**70), (), (None, b"")]
    space.write_all(entries)
    assert alike([change.entry for change in space.changes()], entries)


def test_a_trimmed_log_begins_later(space):
    space.write_all([("n", i) for i in range(6)])
    space.trim(before=4)
    with pytest.raises(LogTrimmed, match="4") as trimmed:
        space.changes()
    assert trimmed.value.first == 4
    assert [c.position for c in space.changes(since=3)] == [4, 5, 6]
    assert space.count() == 6


def test_trimming_everything_leaves_the_numbering(space):
    space.write_all([("n", i) for i in range(3)])
    space.trim(before=1_000)
    assert space.changes(since=3) == []
    with pytest.raises(LogTrimmed) as trimmed:
        space.changes(since=2)
    assert trimmed.value.first == 4
    space.write(("n", 3))
    (change,) = space.changes(since=3)
    assert change.position == 4 and change.entry == ("n", 3)


def test_trimming_what_is_trimmed_does_nothing(space):
    space.write_all([("n", i) for i in range(6)])
    space.trim(before=4)
    space.trim(before=2)
    space.trim(before=0)
    assert [c.position for c in space.changes(since=3)] == [4, 5, 6]


def test_what_lives_is_found_in_later_changes_after_a_trim(space):
    lease = space.write(("lives",))
    space.write(("dies",))
    space.take(("dies",), wait=0)
    space.trim(before=4)
    lease.renew(100)
    assert [(c.kind, c.entry) for c in space.changes(since=3)] == [("renewed", ("lives",))]
    assert space.read_all() == [("lives",)]


def test_the_log_keeps_the_newest(make_space):
    space = make_space(log_keep=10)
    for i in range(40):
        space.write(("n", i))
    space.compact()
    with pytest.raises(LogTrimmed) as trimmed:
        space.changes()
    first = trimmed.value.first
    assert first == 31
    assert [c.entry[1] for c in space.changes(since=first - 1)] == list(range(30, 40))
    assert space.count() == 40


def test_reads_are_logged_where_that_is_asked_for(make_space, park):
    space = make_space(log_reads=True)
    waiter = park(space, space.read, ("a",))
    space.write(("a",))
    waiter.result()
    space.read(("a",), wait=0)
    space.read_all()
    space.session().read(wait=0)
    assert kinds(space) == ["written", "read", "read", "read", "read"]


def test_what_a_transaction_reads_of_its_own_is_not_logged(make_space):
    space = make_space(log_reads=True)
    space.write(("own", 1))
    txn = space.transaction()
    space.write(("own", 2), txn=txn)
    assert space.read(("own", 2), wait=0, txn=txn) == ("own", 2)
    assert space.read(("own", 1), wait=0, txn=txn) == ("own", 1)
    txn.commit()
    assert [(c.kind, c.entry) for c in space.changes()] == [
        ("written", ("own", 1)),
        ("read", ("own", 1)),
        ("written", ("own", 2)),
    ]


def test_reads_are_not_logged_otherwise(space):
    space.write(("a",))
    space.read(wait=0)
    assert kinds(space) == ["written"]


def test_a_transaction_is_logged_when_it_commits(space):
    space.write(("old",))
    txn = space.transaction()
    space.take(("old",), wait=0, txn=txn)
    space.write(("new",), txn=txn)
    assert kinds(space, since=1) == []
    txn.commit()
    assert kinds(space, since=1) == ["taken", "written"]


def test_a_transaction_that_is_called_off_only_releases_what_it_took(space):
    space.write(("old",))
    txn = space.transaction()
    space.take(("old",), wait=0, txn=txn)
    space.write(("new",), txn=txn)
    txn.abort()
    (change,) = space.changes(since=1)
    assert (change.kind, change.entry, change.txn) == ("released", ("old",), txn.id)
    assert change.deliveries == 1


def test_promises_and_decisions_are_changes(space):
    for decision in ("commit", "abort"):
        txn = space.transaction()
        space.write((decision,), txn=txn)
        txn.prepare()
        getattr(txn, decision)()
    assert kinds(space) == ["prepared", "written", "committed", "prepared", "aborted"]
    assert all(change.txn for change in space.changes())


def test_evictions_are_changes_like_any_other(make_space):
    space = make_space(capacity=Capacity(entries=1, evict="fifo"))
    space.write(("n", 0))
    space.write(("n", 1))
    told = {(change.kind, change.entry) for change in space.changes(since=1)}
    assert told == {("evicted", ("n", 0)), ("written", ("n", 1))}


def test_a_failed_step_leaves_no_change(space):
    def refuse(entry, step):
        raise ValueError

    space.react(("no",), refuse)
    with pytest.raises(Exception, match="refuse"):
        space.write(("no",))
    space.write(("yes",))
    assert [(c.position, c.entry) for c in space.changes()] == [(1, ("yes",))]


def test_a_change_cannot_be_changed(space):
    space.write(("list", [1]))
    space.changes()[0].entry[1].append(2)
    assert space.changes()[0].entry == ("list", [1])
    with pytest.raises(AttributeError):
        space.changes()[0].position = 7


def test_a_position_that_makes_no_sense_is_refused(space):
    for since in ("1", 1.5, True, -1):
        with pytest.raises(BadArgument, match="since="):
            space.changes(since=since)
    for limit in (0, -1, "1", True, 2.0):
        with pytest.raises(BadArgument, match="limit="):
            space.changes(limit=limit)


def test_a_trim_that_makes_no_sense_is_refused(space):
    space.write(("a",))
    for before in ("1", 1.5, True, None):
        with pytest.raises(BadArgument, match="before="):
            space.trim(before=before)
    assert len(space.changes()) == 1


def test_a_log_can_be_compacted_and_goes_on(space):
    space.write_all([("n", i) for i in range(50)])
    space.take_all(limit=40)
    space.trim(before=91)
    space.compact()
    space.write(("after",))
    assert space.changes(since=90)[0].entry == ("after",)
    assert space.count() == 11
