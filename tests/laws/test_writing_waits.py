"""Writes that wait: while the space is full, or its order refuses the entry."""

from typing import Any

import pytest

from tests.laws.talk import state_of
from tupelo import ANY, HERE, Capacity, Fifo, Order, Vector
from tupelo.errors import (
    BadArgument,
    DuplicateKey,
    ReactionFailed,
    Refused,
    SpaceClosed,
    SpaceFull,
    TransactionEnded,
)


class Unique(Fifo):
    """The first field may be there once only."""

    keeps_books = True

    def __init__(self) -> None:
        self.held: list[Any] = []

    def admit(self, entry: Any, at: Any) -> None:
        if entry.fields[0] in self.held:
            raise DuplicateKey(entry.fields[0])
        self.held.append(entry.fields[0])

    def forget(self, entry: Any) -> None:
        self.held.remove(entry.fields[0])


def numbers(space: Any) -> list[int]:
    return [entry[1] for entry in space.read_all(("n", int))]


@pytest.fixture
def narrow(make_space):
    """A space that has room for one, which is in it."""
    space = make_space(capacity=Capacity(entries=1))
    space.write(("n", 0))
    return space


def test_a_write_waits_until_something_leaves(narrow, park):
    writer = park(narrow, narrow.write, ("n", 1), wait=None)
    narrow.read(("n", 0), wait=0)
    assert writer.waits
    assert narrow.take(("n", int), wait=0) == ("n", 0)
    assert writer.result().expires is None
    assert numbers(narrow) == [1]


def test_without_a_wait_it_is_refused_at_once(narrow):
    with pytest.raises(SpaceFull):
        narrow.write(("n", 1))
    with pytest.raises(SpaceFull):
        narrow.write_all([("n", 1)], wait=0)


def test_at_the_end_of_its_patience_it_is_refused(narrow, park, clock):
    writer = park(narrow, narrow.write, ("n", 1), wait=5)
    clock.advance(4.9)
    assert writer.waits
    clock.advance(0.1)
    with pytest.raises(SpaceFull, match="1 entries"):
        writer.result()
    narrow.take(wait=0)
    assert narrow.count() == 0


def test_what_can_never_fit_is_refused_at_once(narrow):
    with pytest.raises(SpaceFull) as refused:
        narrow.write_all([("n", 1), ("n", 2)], wait=None)
    assert refused.value.hopeless


@pytest.mark.parametrize("wait", [-1, "1", True, float("nan")])
def test_a_wait_that_makes_no_sense_is_refused(space, wait):
    with pytest.raises(BadArgument, match="wait="):
        space.write(("n", 1), wait=wait, lease=1)
    with pytest.raises(BadArgument, match="wait="):
        space.write_all([("n", 1)], wait=wait)


def test_a_plain_space_never_makes_one_wait(space):
    space.write(("n", 1), wait=None)
    space.write_all([("n", 2)], wait=5)
    assert numbers(space) == [1, 2]


def test_a_write_of_many_waits_for_room_for_all(make_space, park):
    space = make_space(capacity=Capacity(entries=2))
    space.write_all([("n", 0), ("n", 1)])
    writer = park(space, space.write_all, [("n", 2), ("n", 3)], wait=None)
    space.take(("n", 0), wait=0)
    assert writer.waits
    space.take(("n", 1), wait=0)
    assert len(writer.result()) == 2
    assert numbers(space) == [2, 3]


def test_writers_for_the_same_room_go_in_order(narrow, park):
    writers = [park(narrow, narrow.write, ("n", i), wait=None) for i in (1, 2, 3)]
    for i in range(3):
        assert narrow.take(("n", int), wait=0) == ("n", i)
        writers[i].result()
        assert numbers(narrow) == [i + 1]


def test_one_who_cannot_go_does_not_hold_up_the_others(make_space, park):
    space = make_space(capacity=Capacity(entries=2))
    space.write_all([("n", 0), ("n", 1)])
    many = park(space, space.write_all, [("n", 2), ("n", 3)], wait=None)
    one = park(space, space.write, ("n", 4), wait=None)
    space.take(("n", 0), wait=0)
    one.result()
    assert many.waits and numbers(space) == [1, 4]
    space.take_all()
    many.result()
    assert numbers(space) == [2, 3]


def test_what_a_writer_brings_goes_to_those_who_wait(narrow, park):
    taker = park(narrow, narrow.take, ("m", int))
    writer = park(narrow, narrow.write, ("m", 1), wait=None)
    second = park(narrow, narrow.write, ("n", 2), wait=None)
    narrow.take(("n", 0), wait=0)
    writer.result()
    assert taker.result() == ("m", 1)
    second.result()  # for the taker has made room again, in the same step
    assert numbers(narrow) == [2]


def test_takers_are_served_before_writers(narrow, park):
    writer = park(narrow, narrow.write, ("n", 1), wait=None)
    taker = park(narrow, narrow.take, ("n", 1))
    narrow.take(("n", 0), wait=0)
    writer.result()
    assert taker.result() == ("n", 1) and narrow.count() == 0


def test_what_expires_or_is_cancelled_makes_room(make_space, park, clock):
    space = make_space(capacity=Capacity(entries=1))
    space.write(("n", 0), lease=5)
    writer = park(space, space.write, ("n", 1), wait=None, lease=7)
    clock.advance(5)
    lease = writer.result()
    assert lease.remaining == 7  # from when it was written
    second = park(space, space.write, ("n", 2), wait=None)
    lease.cancel()
    second.result()
    assert numbers(space) == [2]


def test_a_commit_that_takes_makes_room_and_an_abort_that_wrote(narrow, park):
    txn = narrow.transaction()
    narrow.take(("n", 0), wait=0, txn=txn)
    writer = park(narrow, narrow.write, ("n", 1), wait=None)
    txn.commit()
    writer.result()
    narrow.take(wait=0)
    txn = narrow.transaction()
    narrow.write(("n", 2), txn=txn)
    writer = park(narrow, narrow.write, ("n", 3), wait=None)
    txn.abort()
    writer.result()
    assert numbers(narrow) == [3]


def test_what_a_transaction_took_makes_room_for_what_it_writes(narrow):
    with narrow.transaction() as txn:
        narrow.take(("n", 0), wait=0, txn=txn)
        narrow.write(("n", 1), txn=txn)
        with pytest.raises(SpaceFull):
            narrow.write(("n", 2), txn=txn)
        with pytest.raises(SpaceFull):
            narrow.write(("n", 3))
    assert numbers(narrow) == [1]
    txn = narrow.transaction()
    narrow.take(("n", 1), wait=0, txn=txn)
    narrow.write(("n", 4), txn=txn)
    txn.abort()
    assert numbers(narrow) == [1]


def test_a_writer_in_a_transaction_writes_in_it(narrow, park):
    txn = narrow.transaction()
    writer = park(narrow, narrow.write, ("n", 1), wait=None, txn=txn)
    narrow.take(("n", 0), wait=0)
    writer.result()
    assert narrow.read_all(txn=txn) == [("n", 1)] and narrow.count() == 0
    txn.commit()
    assert numbers(narrow) == [1]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_writer_ends_with_its_transaction(narrow, park, end):
    txn = narrow.transaction()
    writer = park(narrow, narrow.write, ("n", 1), wait=None, txn=txn)
    getattr(txn, end)()
    with pytest.raises(TransactionEnded):
        writer.result()
    narrow.take(wait=0)
    assert narrow.count() == 0


def test_a_writer_ends_when_the_space_is_closed(make_space, park):
    space = make_space(capacity=Capacity(entries=1))
    space.write(("n", 0))
    writer = park(space, space.write, ("n", 1), wait=None)
    space.close()
    with pytest.raises(SpaceClosed):
        writer.result()


def test_an_order_may_refuse(make_space, park):
    space = make_space(order=Unique())
    space.write(("a", 1))
    before = state_of(space)
    for attempt in ([("a", 2)], [("b", 1), ("a", 2)], [("c", 1), ("c", 2)]):
        with pytest.raises(DuplicateKey) as refused:
            space.write_all(attempt)
        assert isinstance(refused.value, Refused)
    assert state_of(space) == before
    space.write_all([("b", 1), ("c", 1)])  # for nothing of what was refused is remembered
    writer = park(space, space.write, ("a", 2), wait=None)
    other = park(space, space.write, ("b", 2), wait=None)
    space.take(("b", ANY), wait=0)
    other.result()
    assert writer.waits
    space.take(("a", ANY), wait=0)
    writer.result()
    assert space.read_all() == [("c", 1), ("b", 2), ("a", 2)]


def test_any_other_error_is_the_writers_own(make_space, park):
    space = make_space(capacity=Capacity(entries=1), order=Vector())
    space.write(("n", 0))
    writer = park(space, space.write, ("n", 1), wait=None, at=1)
    space.take(wait=0)
    with pytest.raises(BadArgument, match="at="):
        writer.result()
    assert space.count() == 0


def test_a_reaction_that_fails_is_told_to_the_writer(narrow, park):
    def refuse(entry: Any, step: Any) -> None:
        raise ValueError("no")

    narrow.react(("n", 1), refuse, scope=HERE)
    writer = park(narrow, narrow.write, ("n", 1), wait=None)
    assert narrow.take(("n", 0), wait=0) == ("n", 0)
    with pytest.raises(ReactionFailed):
        writer.result()
    assert narrow.count() == 0


def test_places_are_given_for_each_entry(make_space):
    vector = make_space(order=Vector())
    vector.write_all([("n", 0), ("n", 1), ("n", 2)], at=[0, 0, None])
    assert numbers(vector) == [1, 0, 2]
    for at in ([0], 0, "ab"):
        with pytest.raises(BadArgument, match="at="):
            vector.write_all([("n", 3)] * 2, at=at)
    with pytest.raises(BadArgument, match="at="):
        vector.write_all([("n", 3), ("n", 4)], at=[0, 9])
    assert numbers(vector) == [1, 0, 2]


# Orders that choose


class Pairs(Order):
    """Two, or none."""

    def arrange(self, found: list[Any]) -> list[Any]:
        return found[:2] if len(found) > 1 else []


def test_an_order_may_leave_matches_out(space, park):
    space.write(("n", 0))
    assert space.read_all(("n", int), order=Pairs(), scope=HERE) == []
    assert space.take(("n", int), wait=0, order=Pairs(), scope=HERE) is None
    waiter = park(space, space.take_all, ("n", int), wait=None, order=Pairs(), scope=HERE)
    space.write(("m",))
    assert waiter.waits
    space.write(("n", 1))
    assert waiter.result() == [("n", 0), ("n", 1)] and space.count() == 1


def test_one_whose_order_finds_too_little_does_not_hold_up_the_next(space, park):
    picky = park(space, space.take_all, ("n", int), wait=None, order=Pairs(), scope=HERE)
    easy = park(space, space.take, ("n", int))
    space.write(("n", 0))
    assert easy.result() == ("n", 0) and picky.waits
    space.write_all([("n", 1), ("n", 2)])
    assert picky.result() == [("n", 1), ("n", 2)]


# Bulk operations that wait while a transaction may reveal or release a match


@pytest.mark.parametrize("verb", ["read_all", "take_all"])
def test_bulk_if_exists_waits_for_transactions_and_then_answers_with_all(space, park, verb):
    get = getattr(space, verb)
    assert get(("n", int), wait=None, if_exists=True) == []
    space.write(("n", 0))
    assert space.read_all(("n", int), wait=None, if_exists=True) == [("n", 0)]
    txn = space.transaction()
    space.write(("n", 1), txn=txn)
    waiter = park(space, get, ("n", int), wait=None, if_exists=True)
    space.write(("n", 2))
    assert waiter.waits
    txn.commit()
    assert sorted(waiter.result()) == [("n", 0), ("n", 1), ("n", 2)]
    assert space.count() == (0 if verb == "take_all" else 3)


def test_bulk_if_exists_may_answer_with_nothing(space, park):
    txn = space.transaction()
    space.write(("n", 1), txn=txn)
    assert space.read_all(("n", int), wait=0, if_exists=True) == []
    waiter = park(space, space.take_all, ("n", int), wait=None, if_exists=True)
    txn.abort()
    assert waiter.result() == []


def test_bulk_if_exists_waits_for_what_is_held_by_reading_only_to_take(space, park):
    space.write_all([("n", 0), ("n", 1)])
    txn = space.transaction()
    space.read(("n", 0), wait=0, txn=txn)
    assert len(space.read_all(("n", int), wait=None, if_exists=True)) == 2
    waiter = park(space, space.take_all, ("n", int), wait=None, if_exists=True, limit=5)
    txn.commit()
    assert waiter.result() == [("n", 0), ("n", 1)]


def test_bulk_if_exists_answers_with_what_there_is_when_its_time_is_up(space, park, clock):
    space.write(("n", 0))
    txn = space.transaction()
    space.write(("n", 1), txn=txn)
    waiter = park(space, space.take_all, ("n", int), wait=5, if_exists=True)
    clock.advance(5)
    assert waiter.result() == [("n", 0)]
    txn.commit()
    assert numbers(space) == [1]
