"""Delays: an entry that is written with a delay is there, and nobody sees it before its time."""

from functools import partial
from typing import Any

import pytest

from tests.laws.kinds import Job
from tests.laws.talk import drained, entries_of, refused
from tupelo import HERE, Capacity, Delayed, Queue, Vector
from tupelo.errors import BadArgument, LeaseLost, SpaceFull


def test_an_entry_becomes_visible_exactly_at_its_time(space, clock):
    space.write(("a",), delay=10)
    clock.advance(9.75)
    assert space.read(wait=0) is None and space.take(("a",), wait=0) is None
    assert space.read_all() == [] and space.count() == 0 and space.match_set().next() is None
    clock.advance(0.25)
    assert space.count() == 1 and space.read(("a",), wait=0) == ("a",)
    assert space.take(("a",), wait=0) == ("a",) and space.count() == 0


def test_entries_that_are_written_together_become_visible_together(space, clock):
    space.write_all([("n", 1), Job("b", 2), ("n", [3])], delay=5)
    assert space.count() == 0
    clock.advance(5)
    assert space.read_all() == [("n", 1), Job("b", 2), ("n", [3])]


def test_no_delay_is_none(space):
    space.write(("a",), delay=0)
    space.write(("b",), delay=None)
    assert space.count() == 2


def test_an_entry_comes_behind_those_that_were_visible_before_it(space, clock):
    space.write(("n", "late"), delay=5)
    space.write(("n", "later"), delay=6)
    space.write(("n", "at once"))
    clock.advance(5.5)
    space.write(("n", "last but one"))
    clock.advance(5)
    texts = ["at once", "late", "last but one", "later"]
    assert [entry[1] for entry in space.read_all()] == texts
    assert [space.take(wait=0)[1] for _ in range(4)] == texts


@pytest.mark.parametrize("verb", ["read", "take"])
def test_an_operation_that_waits_gets_it(space, clock, park, verb):
    space.write(("a", 1), delay=5)
    call = park(space, getattr(space, verb), ("a", int))
    clock.advance(5)
    assert call.result() == ("a", 1)


def test_a_subscription_is_notified_at_its_time(space, clock):
    subscription = space.subscribe(("a", int), scope=HERE)
    space.write(("a", 1), delay=5)
    space.write(("a", 2))
    clock.advance(4)
    assert entries_of(drained(subscription)) == [("a", 2)]
    clock.advance(1)
    notices = drained(subscription)
    assert entries_of(notices) == [("a", 1)] and notices[0].sequence == 2


def test_a_reaction_runs_at_its_time(space, clock, until):
    seen: list[Any] = []
    space.react(("a", int), lambda entry, step: seen.append(entry), scope=HERE)
    space.write(("a", 1), delay=5)
    clock.advance(4)
    assert space.count() == 0 and not seen
    clock.advance(1)
    assert space.count() == 1
    until(lambda: seen == [("a", 1)])


def test_a_session_sees_it_once(space, clock):
    with space.session() as session:
        space.write(("a", 1), delay=5)
        space.write(("a", 2))
        assert session.read_all() == [("a", 2)]
        clock.advance(5)
        assert session.read_all() == [("a", 1)] and session.read_all() == []


def test_its_lease_begins_when_it_becomes_visible(space, clock):
    lease = space.write(("a",), delay=5, lease=10)
    assert lease.expires == clock.now() + 15
    clock.advance(14.5)
    assert space.count() == 1
    clock.advance(0.5)
    assert space.count() == 0


def test_a_lease_is_renewed_before_and_after(space, clock):
    lease = space.write(("a",), delay=5, lease=1)
    lease.renew(10)
    assert lease.expires == clock.now() + 15
    clock.advance(5)
    assert space.count() == 1
    lease.renew(20)
    clock.advance(19)
    assert space.count() == 1
    clock.advance(1)
    assert space.count() == 0
    refused(LeaseLost, "gone", lambda: lease.renew(1), lease.cancel)


def test_a_cancelled_entry_never_becomes_visible(space, clock):
    first, second = space.write_all([("a", 1), ("a", 2)], delay=5)
    first.cancel()
    refused(LeaseLost, "gone", first.cancel, lambda: first.renew(1))
    clock.advance(5)
    assert space.read_all() == [("a", 2)]
    second.cancel()
    assert space.count() == 0


def test_within_a_transaction_it_is_written_when_that_commits(space, clock):
    for end, count in (("abort", 0), ("commit", 1)):
        txn = space.transaction()
        space.write(("a", end), delay=5, txn=txn)
        clock.advance(4)
        assert space.read(txn=txn, wait=0) is None
        getattr(txn, end)()
        assert space.count() == 0
        clock.advance(1)
        assert space.count() == count


def test_a_commit_after_its_time_makes_it_visible(space, clock):
    txn = space.transaction()
    space.write(("a",), delay=5, txn=txn)
    space.write(("b",), delay=5, lease=1, txn=txn)
    clock.advance(10)
    assert space.read_all(txn=txn) == [] and space.read_all() == []
    txn.commit()
    assert space.read_all() == [("a",)]


def test_a_lease_of_an_entry_in_a_transaction_is_cancelled(space, clock):
    txn = space.transaction()
    kept, dropped = space.write_all([("a", 1), ("a", 2)], delay=5, txn=txn)
    dropped.cancel()
    txn.commit()
    kept.renew(100)
    clock.advance(5)
    assert space.read_all() == [("a", 1)]


def test_a_nested_transaction_passes_it_to_its_parent(space, clock):
    txn = space.transaction()
    with txn.transaction() as inner:
        space.write(("a",), delay=5, txn=inner)
    txn.commit()
    clock.advance(5)
    assert space.read_all() == [("a",)]


def test_it_counts_in_the_capacity_and_is_not_evicted(make_space, clock):
    for evict in (None, "fifo", "lru"):
        space = make_space(capacity=Capacity(entries=2, evict=evict))
        lease = space.write(("hidden",), delay=5)
        space.write(("a",))
        if evict is None:
            refused(SpaceFull, "2 entries", partial(space.write, ("b",)))
        else:
            space.write(("b",))
            assert space.read_all() == [("b",)]
        clock.advance(5)
        assert space.count(("hidden",)) == 1 and space.count() == 2
        lease.cancel()
        assert space.count() == 1


def test_a_full_space_has_room_when_it_is_cancelled(make_space, park):
    space = make_space(capacity=Capacity(entries=1))
    lease = space.write(("hidden",), delay=5)
    call = park(space, space.write, ("b",), wait=None)
    lease.cancel()
    call.result()
    assert space.read_all() == [("b",)]


def test_a_queue_has_it_when_it_is_visible(make_space, clock):
    space = make_space(order=Queue())
    space.write(("late",), delay=5)
    space.write(("a",))
    assert space.take(wait=0) == ("a",) and space.take(wait=0) is None
    clock.advance(5)
    assert space.take(wait=0) == ("late",)


def test_a_vector_has_it_at_its_place(make_space, clock):
    space = make_space(order=Vector())
    space.write_all([("n", 0), ("n", 1)])
    space.write(("n", "between"), at=1, delay=5)
    assert space.read_all() == [("n", 0), ("n", 1)]
    space.write(("n", 2), at=2)
    clock.advance(5)
    assert space.read_all() == [("n", 0), ("n", "between"), ("n", 1), ("n", 2)]


def test_the_log_has_the_time_and_then_the_entry(space, clock, has_log):
    if not has_log:
        return
    lease = space.write(("a",), delay=5, lease=7)
    space.write(("b",), delay=9).cancel()
    written = clock.now()
    clock.advance(6)
    lease.renew(20)
    changes = space.changes()
    kinds = [(change.kind, change.entry) for change in changes]
    assert kinds == [
        ("delayed", ("a",)),
        ("delayed", ("b",)),
        ("cancelled", ("b",)),
        ("written", ("a",)),
        ("renewed", ("a",)),
    ]
    first, _, _, then, renewed = changes
    assert (first.time, first.visible, first.expires) == (written, written + 5, written + 12)
    assert (then.time, then.visible, then.delayed) == (written + 5, None, first.position)
    assert (first.origin, first.n, first.agent) == (then.origin, then.n, then.agent)
    assert first.arrival == first.position and then.arrival == then.position == renewed.arrival


def test_bad_delays_are_refused(space):
    for delay in (-1, "5", True, float("nan"), float("inf")):
        refused(
            BadArgument,
            "delay=",
            partial(space.write, ("a",), delay=delay),
            partial(space.write_all, [("a",)], delay=delay),
        )
    refused(BadArgument, "delay=", lambda: space.write(("a",), delay=1, to="someone"))
    assert space.count() == 0


def test_what_waits_for_its_time_is_listed(space, clock):
    assert space.delayed() == Delayed(0, [])
    space.write(("n", 1), delay=9)
    space.write_all([("n", 2), Job("b", 2)], delay=5)
    space.write(("n", 3))
    txn = space.transaction()
    space.write(("n", 4), delay=1, txn=txn)
    began = clock.now()
    first, second, third = (began + 5, ("n", 2)), (began + 5, Job("b", 2)), (began + 9, ("n", 1))
    assert space.delayed() == Delayed(3, [first, second, third])
    assert space.delayed(limit=1) == Delayed(3, [first])
    assert space.delayed(("n", int)) == Delayed(2, [first, third])
    assert space.delayed(Job()) == Delayed(1, [second])
    clock.advance(5)
    assert space.delayed() == Delayed(1, [third])
    txn.abort()
    clock.advance(4)
    assert space.delayed() == Delayed(0, []) and space.count() == 4


def test_what_waits_for_its_time_is_cancelled_by_a_template(space, clock):
    space.write_all([("n", 1), ("n", 2), ("n", 3), Job("b", 2)], delay=5)
    assert space.delayed(("n", int), limit=2, cancel=True) == Delayed(2, [])
    assert space.delayed(("n", 1), cancel=True) == Delayed(0, [])
    clock.advance(5)
    assert space.read_all() == [("n", 3), Job("b", 2)]
    assert space.delayed(cancel=True) == Delayed(0, []) and space.count() == 2


def test_a_bad_limit_of_delayed_entries_is_refused(space):
    refused(BadArgument, "limit=", lambda: space.delayed(limit=0))
