"""Orders: of several matches, which comes first."""

import random
from typing import Any

import pytest

from tests.laws.kinds import Job, Point
from tests.laws.talk import state_of
from tupelo import (
    ANY,
    HERE,
    Between,
    Capacity,
    Fifo,
    Key,
    Lifo,
    Order,
    Queue,
    Random,
    Stack,
    Vector,
)
from tupelo.errors import BadArgument, BadInput
from tupelo.store.index import Store


def numbers(space: Any, **options: Any) -> list[Any]:
    return [entry[1] for entry in space.read_all(("n", ANY), **options)]


@pytest.fixture
def five(space):
    space.write_all([("n", i) for i in (3, 1, 4, 0, 2)])
    return space


def test_fifo_is_the_default(five):
    assert numbers(five) == numbers(five, order=Fifo()) == [3, 1, 4, 0, 2]


def test_lifo_gives_the_newest_first(five):
    assert numbers(five, order=Lifo()) == [2, 0, 4, 1, 3]
    assert five.take(("n", int), wait=0, order=Lifo()) == ("n", 2)
    assert five.take_all(("n", int), limit=2, order=Lifo()) == [("n", 0), ("n", 4)]
    assert numbers(five) == [3, 1]


def test_lifo_goes_across_shapes(space):
    space.write_all([("n", 1), ("n", "2"), ("n", 3.0), ("n", None)])
    assert numbers(space, order=Lifo()) == [None, 3.0, "2", 1]


def test_lifo_finds_what_the_index_finds(space):
    space.write_all([("n", i % 10, i) for i in range(200)])
    for _ in range(3):
        found = space.read_all(("n", 3, ANY), order=Lifo())
        assert [entry[2] for entry in found] == list(range(193, 0, -10))
        assert space.read(("n", 3, ANY), wait=0, order=Lifo()) == ("n", 3, 193)


def test_a_pile_is_a_space_whose_order_is_lifo(make_space):
    pile = make_space(order=Lifo())
    for i in range(3):
        pile.write(("n", i))
    assert pile.take(wait=0) == ("n", 2)
    pile.write(("n", 3))
    assert [pile.take(wait=0)[1] for _ in range(3)] == [3, 1, 0]


def test_random_is_decided_by_the_generator_that_is_handed_in(five):
    def drawn(seed: int) -> list[int]:
        return numbers(five, order=Random(random.Random(seed)), scope=HERE)

    assert drawn(7) == drawn(7) and sorted(drawn(7)) == [0, 1, 2, 3, 4]
    assert len({tuple(drawn(seed)) for seed in range(20)}) > 5


def test_random_takes_each_entry_once(make_space):
    space = make_space(order=Random(random.Random(1)))
    space.write_all([("n", i) for i in range(30)])
    taken = [space.take(("n", int), wait=0)[1] for _ in range(30)]
    assert sorted(taken) == list(range(30)) and taken != list(range(30))


def test_key_gives_the_smallest_first(five):
    assert numbers(five, order=Key(1)) == [0, 1, 2, 3, 4]
    assert numbers(five, order=Key(1, reverse=True)) == [4, 3, 2, 1, 0]
    assert five.take(("n", int), wait=0, order=Key(1)) == ("n", 0)


def test_key_may_be_a_function(five):
    by_value = Key(lambda entry: -entry[1])
    assert numbers(five, order=by_value, scope=HERE) == [4, 3, 2, 1, 0]
    assert five.take(("n", int), wait=0, order=by_value, scope=HERE) == ("n", 4)


def test_key_may_be_a_named_field(space):
    space.write_all([Job("b", 2), Job("a", 3), Point(0, 0), Job("c", 1)])
    assert [job.name for job in space.read_all(Job, order=Key("name"))] == ["a", "b", "c"]
    assert [job.name for job in space.read_all(Job, order=Key("size"))] == ["c", "b", "a"]


def test_entries_without_the_key_come_last_in_order_of_arrival(space):
    space.write_all([("x",), ("n", 2), (), ("n", 1), Job("z", 5)])
    assert space.read_all(order=Key(1)) == [("n", 1), ("n", 2), Job("z", 5), ("x",), ()]
    assert space.read_all(order=Key("name")) == [Job("z", 5), ("x",), ("n", 2), (), ("n", 1)]


def test_equal_keys_come_in_order_of_arrival(space):
    space.write_all([("n", i // 2, i) for i in (5, 0, 4, 1)])
    assert [e[2] for e in space.read_all(order=Key(1))] == [0, 1, 5, 4]


def test_the_first_of_many_by_a_key_are_the_first_of_all(space):
    space.write_all([("n", i * 37 % 50, "abc"[i % 3]) for i in range(150)])
    for order in (Key(1), Key(1, reverse=True), Key(-2)):
        for template in (("n", int, str), ("n", int, "b"), ("n", Between(20, 30), ANY)):
            everything = space.read_all(template, order=order)
            assert space.read_all(template, order=order, limit=7) == everything[:7]
            assert space.take(template, order=order, wait=0) == everything[0]
            assert space.take_all(template, order=order, limit=3) == everything[1:4]


def test_keys_that_cannot_be_compared_are_refused_and_nothing_is_taken(space):
    space.write_all([("n", 1), ("n", "a")])
    before = state_of(space)
    with pytest.raises(BadArgument, match="order="):
        space.take(("n", ANY), wait=0, order=Key(1))
    assert state_of(space) == before


def test_a_key_function_that_raises_takes_nothing(space):
    space.write(("n", 0))
    before = state_of(space)
    with pytest.raises(BadInput, match="ZeroDivisionError"):
        space.take(("n", int), wait=0, order=Key(lambda entry: 1 / entry[1]), scope=HERE)
    assert state_of(space) == before


def test_a_priority_queue_is_a_space_whose_order_is_a_key(make_space):
    space = make_space(order=Key(1))
    for priority in (5, 1, 3):
        space.write(("job", priority))
    assert space.take(wait=0) == ("job", 1)
    space.write(("job", 2))
    assert [space.take(wait=0)[1] for _ in range(3)] == [2, 3, 5]


def test_an_operations_order_goes_before_the_spaces(make_space):
    space = make_space(order=Lifo())
    space.write_all([("n", i) for i in (1, 2, 3)])
    assert numbers(space, order=Fifo()) == [1, 2, 3]
    assert numbers(space, order=Key(1, reverse=True)) == [3, 2, 1]


def test_a_waiter_is_served_in_the_order_it_asked_for(space, park):
    waiter = park(space, space.take_all, ("n", int), wait=None, limit=2, order=Key(1))
    space.write_all([("n", 3), ("n", 1), ("n", 2)])
    assert waiter.result() == [("n", 1), ("n", 2)]
    assert space.read_all() == [("n", 3)]


def test_a_waiter_gets_what_one_who_asks_after_the_step_would_get(space, park):
    waiter = park(space, space.take, ("n", int), order=Key(1))
    space.write_all([("n", 3), ("n", 1), ("n", 2)])
    assert waiter.result() == ("n", 1)


def test_a_waiter_at_a_pile_gets_the_newest_of_many(make_space, park):
    pile = make_space(order=Lifo())
    waiter = park(pile, pile.take, ("n", int))
    pile.write_all([("n", 1), ("n", 2), ("n", 3)])
    assert waiter.result() == ("n", 3)


# Vector: a list with places


@pytest.fixture
def vector(make_space):
    return make_space(order=Vector())


def test_a_vector_inserts_at_a_place(vector):
    vector.write(("a",), at=0)
    vector.write(("c",))
    vector.write(("b",), at=1)
    vector.write(("z",), at=0)
    vector.write(("end",), at=4)
    assert vector.read_all() == [("z",), ("a",), ("b",), ("c",), ("end",)]
    assert vector.take(wait=0) == ("z",)
    vector.write(("y",), at=1)
    assert vector.take_all() == [("a",), ("y",), ("b",), ("c",), ("end",)]


def test_what_is_taken_from_a_vector_leaves_no_gap(vector):
    vector.write_all([("n", i) for i in range(4)])
    vector.take(("n", 1), wait=0)
    vector.write(("n", 9), at=1)
    assert numbers(vector) == [0, 9, 2, 3]


def test_the_first_of_a_vector_is_found_without_looking_at_the_others(make_space, monkeypatch):
    """So is the first of few that match, wherever they stand."""
    looked = []

    def is_match(store, question, entry):
        looked.append(entry)
        return original(store, question, entry)

    original = Store.is_match
    monkeypatch.setattr(Store, "is_match", is_match)
    costs = []
    for many in (100, 1_000):
        vector = make_space(order=Vector())
        vector.write_all([("n", i) for i in range(many)])
        vector.write(("rare", 1))
        vector.write(("rare", 2), at=many)
        looked.clear()
        assert vector.read(("n", int), wait=0) == ("n", 0)
        assert vector.read_all(("n", int), limit=3) == [("n", i) for i in range(3)]
        assert vector.take(("rare", int), wait=0) == ("rare", 2)
        with vector.transaction() as txn:
            vector.write(("n", -1), at=0, txn=txn)
            assert vector.take(("n", int), wait=0, txn=txn) == ("n", -1)
            assert vector.take(wait=0, txn=txn) == ("n", 0)
            assert vector.read(wait=0) == ("n", 1)
            assert vector.read(("n", 0), wait=0) is None
        costs.append(len(looked))
    assert costs[0] == costs[1] < 20


@pytest.mark.parametrize("at", [-1, 3, 1.0, "1", True, [1]])
def test_a_place_that_does_not_exist_is_refused(vector, at):
    vector.write_all([("a",), ("b",)])
    before = state_of(vector)
    with pytest.raises(BadArgument, match="at="):
        vector.write(("c",), at=at)
    assert state_of(vector) == before


@pytest.mark.parametrize("at", [0, 1])
def test_only_a_vector_has_places(space, at):
    with pytest.raises(BadArgument, match="at="):
        space.write(("a",), at=at)
    assert space.count() == 0


def test_a_vector_belongs_to_a_space_not_to_an_operation(five):
    with pytest.raises(BadArgument, match="order="):
        five.read(wait=0, order=Vector())


def test_a_vector_keeps_its_places_through_a_transaction_that_is_aborted(vector):
    vector.write_all([("n", i) for i in range(3)])
    txn = vector.transaction()
    vector.write(("n", 9), at=1, txn=txn)
    vector.take(("n", 0), wait=0, txn=txn)
    assert numbers(vector) == [1, 2]
    txn.abort()
    assert numbers(vector) == [0, 1, 2]


def test_a_vector_shows_a_committed_write_at_its_place(vector):
    vector.write_all([("n", i) for i in range(3)])
    with vector.transaction() as txn:
        vector.write(("n", 9), at=1, txn=txn)
        assert numbers(vector, txn=txn) == [0, 9, 1, 2]
    assert numbers(vector) == [0, 9, 1, 2]


def test_a_vector_forgets_what_expired(vector, clock):
    vector.write(("n", 0), lease=5)
    vector.write(("n", 1))
    clock.advance(5)
    vector.write(("n", 2), at=1)
    assert numbers(vector) == [1, 2]


# Head-only: one entry of the space can be had, whatever the template


class Line(Order):
    """A queue that keeps its own books, and heeds nothing but them."""

    keeps_books = True

    def __init__(self) -> None:
        self._line: list[Any] = []

    def admit(self, entry, at):
        self._line.append(entry)

    def forget(self, entry):
        self._line.remove(entry)

    def arrange(self, found):
        return [entry for entry in found if entry is self._line[0]]


class VisibleLine(Line):
    """One that passes over what is taken, or not yet committed."""

    def arrange(self, found):
        seen = (entry for entry in self._line if not entry.gone and entry.txn is None)
        head = next(seen, None)
        return [entry for entry in found if entry is head]


class HastyLine(VisibleLine):
    """One that says that the first match is enough for it."""

    def needs(self, limit):
        return limit


class SmallestOnly(Key):
    """The entry with the smallest first field of the space, and no other."""

    head_only = True


QUEUES = [Queue, Line, VisibleLine, HastyLine, lambda: SmallestOnly(0)]
QUEUE_NAMES = ["Queue", "Line", "VisibleLine", "HastyLine", "SmallestOnly"]


@pytest.fixture(params=QUEUES, ids=QUEUE_NAMES)
def make_queue(request, make_space):
    """`make_queue(**options)`: a new space that shows only its oldest entry."""
    return lambda **options: make_space(order=request.param(), **options)


def test_only_the_oldest_entry_of_a_queue_can_be_had(make_queue):
    queue = make_queue()
    queue.write_all([("a",), ("b", 1), ("c",)])
    assert queue.read(("b", int), wait=0) is queue.take(("c",), wait=0) is None
    assert queue.take_all(("b", int)) == queue.read_all(("c",)) == []
    assert queue.read(wait=0) == queue.take(("a",), wait=0) == ("a",)
    assert queue.take(("a",), wait=0) is queue.take(("c",), wait=0) is None
    assert queue.take(("b", 1), wait=0) == ("b", 1)
    assert queue.take(wait=0) == ("c",)
    assert queue.take(wait=0) is None


def test_only_the_newest_entry_of_a_stack_can_be_had(make_space):
    stack = make_space(order=Stack())
    stack.write_all([("a",), ("b", 1), ("c",)])
    assert stack.read(("a",), wait=0) is stack.take(("b", int), wait=0) is None
    assert stack.take(("c",), wait=0) == ("c",)
    stack.write(("d",))
    assert [stack.take(wait=0) for _ in range(4)] == [("d",), ("b", 1), ("a",), None]


@pytest.mark.parametrize(("order", "head"), [(Queue, 0), (Stack, 2)])
def test_a_bulk_operation_gets_the_head_and_no_more(make_space, order, head):
    space = make_space(order=order())
    space.write_all([("n", i) for i in range(3)])
    assert space.read_all() == space.read_all(limit=2) == [("n", head)]
    assert space.take_all(limit=2) == [("n", head)]
    assert space.count() == 2
    assert numbers(space, order=Fifo()) == [i for i in range(3) if i != head]


def test_a_head_only_order_may_be_an_operations(space, park):
    space.write_all([("a",), ("b",), ("c",)])
    assert space.read(("b",), wait=0, order=Queue()) is None
    assert space.read(("b",), wait=0, order=Stack()) is None
    assert space.read(("b",), wait=0) == ("b",)
    second = park(space, space.take, ("b",), order=Queue())
    third = park(space, space.take, ("c",), order=Queue())
    assert space.take(("a",), wait=0, order=Queue()) == ("a",)
    assert second.result() == ("b",) and third.result() == ("c",)


def leave(space: Any, clock: Any, how: str, head: Any) -> None:
    """Let the head leave, which has a lease."""
    if how == "take":
        assert space.take(("a",), wait=0) == ("a",)
    elif how == "commit":
        with space.transaction() as txn:
            assert space.take(("a",), wait=0, txn=txn) == ("a",)
    elif how == "expiry":
        clock.advance(60)
    elif how == "cancel":
        head.cancel()
    else:
        assert how == "eviction"
        space.write(("z",))


@pytest.mark.parametrize("verb", ["read", "take"])
@pytest.mark.parametrize("how", ["take", "commit", "expiry", "cancel", "eviction"])
def test_who_waits_for_the_next_head_is_woken_when_the_head_leaves(
    make_queue, park, clock, verb, how
):
    queue = make_queue(capacity=Capacity(entries=2, evict="fifo") if how == "eviction" else None)
    head = queue.write(("a",), lease=60)
    queue.write(("b",))
    waiter = park(queue, getattr(queue, verb), ("b",))
    leave(queue, clock, how, head)
    assert waiter.result() == ("b",)


@pytest.mark.parametrize("verb", ["read", "take"])
@pytest.mark.parametrize("how", ["take", "commit", "expiry", "cancel"])
def test_who_waits_for_the_entry_below_is_woken_when_the_top_of_a_stack_leaves(
    make_space, park, clock, verb, how
):
    stack = make_space(order=Stack())
    stack.write(("b",))
    top = stack.write(("a",), lease=60)
    waiter = park(stack, getattr(stack, verb), ("b",))
    leave(stack, clock, how, top)
    assert waiter.result() == ("b",)


@pytest.mark.parametrize("verb", ["read", "take"])
def test_who_waits_for_a_head_is_woken_when_an_abort_gives_it_back_in_front(make_queue, park, verb):
    queue = make_queue()
    queue.write_all([("a",), ("b",)])
    txn = queue.transaction()
    assert queue.take(("a",), wait=0, txn=txn) == ("a",)
    waiter = park(queue, getattr(queue, verb), ("a",))
    txn.abort()
    assert waiter.result() == ("a",)
    assert queue.take(("b",), wait=0) == (None if verb == "read" else ("b",))


def test_takers_of_heads_are_served_in_the_order_of_the_queue_not_of_their_coming(make_queue, park):
    queue = make_queue()
    takers = [park(queue, queue.take, (name,)) for name in "dcb"]
    reader = park(queue, queue.read, ("c",))
    queue.write_all([(name,) for name in "abcd"])
    assert all(call.waits for call in [*takers, reader])
    assert queue.take(("a",), wait=0) == ("a",)
    assert [taker.result() for taker in takers] == [("d",), ("c",), ("b",)]
    assert reader.result() == ("c",)  # before its taker, as ever


def test_a_reader_of_a_head_is_served_before_its_taker_when_both_come_in_one_step(make_queue, park):
    queue = make_queue()
    first, second = park(queue, queue.take, ("a",)), park(queue, queue.take, ("b",))
    reader = park(queue, queue.read, ("b",))
    queue.write_all([("a",), ("b",)])
    assert first.result() == ("a",) and second.result() == ("b",)
    assert reader.result() == ("b",)


def test_of_many_takers_of_any_head_each_gets_the_next(make_queue, park):
    queue = make_queue()
    takers = [park(queue, queue.take, ANY) for _ in range(4)]
    queue.write_all([(i,) for i in range(4)])
    assert [taker.result() for taker in takers] == [(0,), (1,), (2,), (3,)]


def test_a_head_that_a_transaction_has_read_is_not_passed_over(make_space, park):
    queue = make_space(order=Queue())
    queue.write_all([("a",), ("b",)])
    txn = queue.transaction()
    assert queue.read(("a",), wait=0, txn=txn) == ("a",)
    assert queue.take(wait=0) is None
    taker = park(queue, queue.take, ANY)
    txn.commit()
    assert taker.result() == ("a",)


def test_a_transaction_sees_its_own_entries_behind_those_of_the_space(make_space):
    for order, first, second in ((Queue(), ("a",), ("b",)), (Stack(), ("b",), ("a",))):
        space = make_space(order=order)
        space.write(("a",))
        with space.transaction() as txn:
            space.write(("b",), txn=txn)
            assert space.read(second, wait=0, txn=txn) is None
            assert space.take(first, wait=0, txn=txn) == first
            assert space.take(second, wait=0, txn=txn) == second
        assert space.count() == 0


def test_a_session_that_has_seen_the_head_waits_for_the_next(make_queue, park):
    queue = make_queue()
    queue.write_all([("a",), ("b",)])
    session = queue.session()
    assert session.read(wait=0) == ("a",)
    assert session.read(wait=0) is None
    reader = park(queue, session.read, ANY)
    assert queue.take(wait=0) == ("a",)
    assert reader.result() == ("b",)


def test_if_exists_waits_for_the_head_only_while_a_transaction_may_reveal_it(make_queue, park):
    queue = make_queue()
    queue.write(("a",))
    assert queue.take(("b",), wait=None, if_exists=True) is None
    txn = queue.transaction()
    queue.take(("a",), wait=0, txn=txn)
    queue.write(("b",), txn=txn)
    waiter = park(queue, queue.take, ("b",), wait=None, if_exists=True)
    txn.commit()
    assert waiter.result() == ("b",)


def test_the_next_head_is_shown_when_one_who_wanted_all_there_is_has_taken_the_head(
    make_space, park
):
    queue = make_space(order=Queue())
    queue.write_all([("a", 1), ("b",)])
    txn = queue.transaction()
    queue.write(("a", 2), txn=txn)
    everything = park(queue, queue.take_all, ("a", int), wait=None, if_exists=True)
    second = park(queue, queue.take, ("b",))
    txn.commit()
    assert everything.result() == [("a", 1)]
    assert second.result() == ("b",)


# What an order may do, and may not


class Gate(Order):
    """Nothing can be had before the books hold an ("open",)."""

    keeps_books = True

    def __init__(self) -> None:
        self._open = 0

    def admit(self, entry, at):
        self._open += entry.fields == ("open",)

    def forget(self, entry):
        self._open -= entry.fields == ("open",)

    def arrange(self, found):
        return found if self._open else []


@pytest.mark.parametrize("verb", ["read", "take"])
def test_with_books_an_entry_that_comes_may_reveal_others(make_space, park, verb):
    space = make_space(order=Gate())
    space.write(("job",))
    waiter = park(space, getattr(space, verb), ("job",))
    space.write(("no",))
    assert waiter.waits
    space.write(("open",))
    assert waiter.result() == ("job",)


def test_a_subclass_with_an_arrange_of_its_own_chooses(make_space, park):
    class Few(Fifo):
        """At most one match is enough; two are too many."""

        def needs(self, limit):
            return None

        def arrange(self, found):
            return found if len(found) < 2 else []

    space = make_space(order=Few())
    first = space.write(("n", 1))
    space.write(("n", 2))
    waiter = park(space, space.take, ("n", int))
    first.cancel()
    assert waiter.result() == ("n", 2)


def raising(found):
    yield from found
    raise ZeroDivisionError


BAD_ARRANGES = {
    "raises": lambda found: 1 / 0,
    "raises late": raising,
    "is nothing": lambda found: None,
    "is no list": lambda found: 7,
    "is twice": lambda found: [*found, *found],
    "is not the space's": lambda found: [("n", 7)],
}


@pytest.mark.parametrize("arrange", BAD_ARRANGES.values(), ids=BAD_ARRANGES)
def test_an_order_that_fails_is_told_to_the_one_who_asked(make_space, park, arrange):
    class Bad(Order):
        def arrange(self, found):
            return arrange(found) if found else []

    space = make_space(order=Bad())
    waiter = park(space, space.take_all, ("n", int), wait=None)
    space.write(("n", 1))  # The writer is not told.
    with pytest.raises(BadArgument, match="order="):
        waiter.result()
    with pytest.raises(BadArgument, match="order="):
        space.take_all(("n", int))
    assert space.read_all(order=Fifo()) == [("n", 1)]


@pytest.mark.parametrize("needs", [0, -1, 1.5, "all", True])
def test_an_order_that_needs_no_number_is_refused(make_space, needs):
    class Bad(Fifo):
        def needs(self, limit):
            return needs

    space = make_space(order=Bad())
    space.write(("n", 1))
    with pytest.raises(BadArgument, match="order="):
        space.take(wait=0)
    assert space.count() == 1
