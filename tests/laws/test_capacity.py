"""Capacity: by count and by bytes; refuse, or let something give way."""

from typing import Any

import pytest

from tests.laws.kinds import Job
from tests.laws.talk import drained, entries_of, refused, state_of
from tupelo import Capacity
from tupelo.errors import BadArgument, LeaseLost, SpaceFull


def numbers(space: Any) -> list[int]:
    return [entry[1] for entry in space.read_all(("n", int))]


def test_a_full_space_refuses(make_space):
    space = make_space(capacity=Capacity(entries=2))
    space.write_all([("n", 0), ("n", 1)])
    before = state_of(space)
    refused(
        SpaceFull,
        "2 entries",
        lambda: space.write(("n", 2)),
        lambda: space.write_all([("n", 2), ("n", 3)]),
        lambda: space.write(("n", 2), txn=space.transaction()),
    )
    assert state_of(space) == before
    space.take(("n", 0), wait=0)
    space.write(("n", 2))
    assert numbers(space) == [1, 2]


def test_a_write_of_many_fits_or_does_not(make_space):
    space = make_space(capacity=Capacity(entries=3))
    space.write(("n", 0))
    with pytest.raises(SpaceFull):
        space.write_all([("n", 1), ("n", 2), ("n", 3)])
    assert numbers(space) == [0]
    space.write_all([("n", 1), ("n", 2)])
    assert numbers(space) == [0, 1, 2]


def test_what_expires_or_is_cancelled_makes_room(make_space, clock):
    space = make_space(capacity=Capacity(entries=2))
    space.write(("n", 0), lease=5)
    lease = space.write(("n", 1))
    clock.advance(5)
    space.write(("n", 2))
    lease.cancel()
    space.write(("n", 3))
    assert numbers(space) == [2, 3]


def test_the_oldest_gives_way(make_space, has_log):
    space = make_space(capacity=Capacity(entries=3, evict="fifo"))
    space.write_all([("n", i) for i in range(3)])
    space.read(("n", 0), wait=0)
    space.write(("n", 3))
    assert numbers(space) == [1, 2, 3]
    space.write_all([("n", 4), ("n", 5)])
    assert numbers(space) == [3, 4, 5]
    if has_log:
        evicted = [c.entry for c in space.changes() if c.kind == "evicted"]
        assert evicted == [("n", 0), ("n", 1), ("n", 2)]


def test_the_one_read_longest_ago_gives_way(make_space):
    space = make_space(capacity=Capacity(entries=3, evict="lru"))
    space.write_all([("n", i) for i in range(3)])
    space.read(("n", 0), wait=0)
    space.write(("n", 3))
    assert numbers(space) == [0, 2, 3]  # which reads all of them, in this order
    space.read_all(("n", 0))
    space.write(("n", 4))
    assert sorted(numbers(space)) == [0, 3, 4]


def test_a_session_and_a_waiter_read_too(make_space, park):
    space = make_space(capacity=Capacity(entries=2, evict="lru"))
    space.write_all([("n", 0), ("n", 1)])
    space.session().read(("n", 0), wait=0)
    space.write(("n", 2))
    assert space.count(("n", 0)) == 1 and space.count(("n", 1)) == 0
    waiter = park(space, space.read, ("n", 3))
    space.write(("n", 3))  # 0 was read before 2 was written
    waiter.result()
    assert space.count(("n", 0)) == 0


def test_what_must_give_way_is_gone_for_everyone(make_space):
    space = make_space(capacity=Capacity(entries=1, evict="fifo"))
    lease = space.write(("n", 0))
    listener = space.subscribe()
    space.write(("n", 1))
    assert entries_of(drained(listener)) == [("n", 1)]
    assert space.take(("n", 0), wait=0) is None
    with pytest.raises(LeaseLost):
        lease.renew(5)


def test_a_write_of_more_than_the_space_can_hold_is_refused(make_space):
    space = make_space(capacity=Capacity(entries=2, evict="fifo"))
    space.write(("n", 0))
    before = state_of(space)
    with pytest.raises(SpaceFull):
        space.write_all([("n", i) for i in range(3)])
    assert state_of(space) == before


def test_what_a_transaction_holds_stays(make_space):
    space = make_space(capacity=Capacity(entries=3, evict="fifo"))
    space.write_all([("n", 0), ("n", 1), ("n", 2)])
    txn = space.transaction()
    space.read(("n", 0), wait=0, txn=txn)
    space.take(("n", 1), wait=0, txn=txn)
    space.write(("n", 3))
    assert numbers(space) == [0, 3]
    txn.abort()
    assert numbers(space) == [0, 1, 3]


def test_when_all_is_held_the_space_is_full(make_space):
    space = make_space(capacity=Capacity(entries=1, evict="lru"))
    space.write(("n", 0))
    txn = space.transaction()
    space.read(("n", 0), wait=0, txn=txn)
    with pytest.raises(SpaceFull):
        space.write(("n", 1))
    txn.commit()
    space.write(("n", 1))
    assert numbers(space) == [1]


def test_a_transaction_that_is_called_off_evicts_nobody(make_space):
    space = make_space(capacity=Capacity(entries=2, evict="fifo"))
    space.write_all([("n", 0), ("n", 1)])
    before = state_of(space)
    txn = space.transaction()
    space.write(("n", 2), txn=txn)
    txn.abort()
    assert state_of(space) == before


def test_a_transaction_that_commits_makes_room_for_what_it_wrote(make_space):
    space = make_space(capacity=Capacity(entries=2, evict="fifo"))
    space.write_all([("n", 0), ("n", 1)])
    with space.transaction() as txn:
        space.write(("n", 2), txn=txn)
    assert numbers(space) == [1, 2]


def test_a_transaction_that_takes_makes_room_when_it_commits(make_space):
    space = make_space(capacity=Capacity(entries=1))
    space.write(("n", 0))
    with space.transaction() as txn:
        space.take(("n", 0), wait=0, txn=txn)
        with pytest.raises(SpaceFull):
            space.write(("n", 1))
    space.write(("n", 1))
    assert numbers(space) == [1]


def test_a_space_may_be_bounded_by_bytes(make_space):
    space = make_space(capacity=Capacity(size_bytes=1_000))
    space.write(("blob", b"x" * 900))
    before = state_of(space)
    with pytest.raises(SpaceFull, match="1000 bytes"):
        space.write(("blob", b"y" * 200))
    assert state_of(space) == before
    space.write(("small",))
    space.take(("blob", bytes), wait=0)
    space.write(("blob", b"y" * 900))
    assert space.count() == 2


def test_as_many_as_needed_give_way_to_a_big_one(make_space):
    space = make_space(capacity=Capacity(size_bytes=1_000, evict="fifo"))
    for i in range(5):
        space.write(("n", i, b"x" * 150))
    space.write(("big", 0, b"y" * 500))
    assert space.count(("big", int, bytes)) == 1
    assert [e[1] for e in space.read_all(("n", int, bytes))] == [2, 3, 4]
    with pytest.raises(SpaceFull):
        space.write(("huge", 0, b"z" * 2_000))
    assert space.count(("big", int, bytes)) == 1


def test_both_bounds_hold(make_space):
    space = make_space(capacity=Capacity(entries=3, size_bytes=500, evict="fifo"))
    for i in range(10):
        space.write(("n", i))
    assert numbers(space) == [7, 8, 9]
    space.write(("big", b"x" * 490))
    assert numbers(space) == [] and space.count() == 1


def test_every_kind_of_entry_has_a_size(make_space):
    space = make_space(capacity=Capacity(size_bytes=400))
    space.write(Job("x", 1))
    space.write(("nested", [1, (2, {"a": 2**100})]))
    with pytest.raises(SpaceFull):
        space.write(Job("x" * 500, 1))
    assert space.count() == 2


def test_a_waiting_taker_makes_no_room_before_the_write(make_space, park):
    space = make_space(capacity=Capacity(entries=1))
    waiter = park(space, space.take, ("m",))
    space.write(("n", 0))
    with pytest.raises(SpaceFull):
        space.write(("m",))
    space.take(("n", 0), wait=0)
    space.write(("m",))
    assert waiter.result() == ("m",) and space.count() == 0


@pytest.mark.parametrize(
    "options",
    [{"entries": 0}, {"entries": -1}, {"entries": 1.5}, {"entries": True}, {"size_bytes": "1k"}],
)
def test_a_bound_that_makes_no_sense_is_refused(options):
    with pytest.raises(BadArgument, match=f"{next(iter(options))}="):
        Capacity(**options)
    with pytest.raises(BadArgument, match="evict="):
        Capacity(entries=1, evict="newest")  # type: ignore[arg-type]
