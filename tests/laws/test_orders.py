"""Orders: of several matches, which comes first."""

import random
from typing import Any

import pytest

from tests.laws.kinds import Job, Point
from tests.laws.talk import state_of
from tupelo import ANY, Fifo, Key, Lifo, Random, Vector
from tupelo.errors import BadArgument, BadInput


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


def test_a_stack_is_a_space_whose_order_is_lifo(make_space):
    stack = make_space(order=Lifo())
    for i in range(3):
        stack.write(("n", i))
    assert stack.take(wait=0) == ("n", 2)
    stack.write(("n", 3))
    assert [stack.take(wait=0)[1] for _ in range(3)] == [3, 1, 0]


def test_random_is_decided_by_the_generator_that_is_handed_in(five):
    one = numbers(five, order=Random(random.Random(7)))
    same = numbers(five, order=Random(random.Random(7)))
    assert one == same and sorted(one) == [0, 1, 2, 3, 4]
    assert len({tuple(numbers(five, order=Random(random.Random(i)))) for i in range(20)}) > 5


def test_random_takes_each_entry_once(make_space):
    space = make_space(order=Random(random.Random(1)))
    space.write_all([("n", i) for i in range(30)])
    taken = [space.take(("n", int), wait=0)[1] for _ in range(30)]
    assert sorted(taken) == list(range(30)) and taken != list(range(30))


def test_key_gives_the_smallest_first(five):
    assert numbers(five, order=Key(1)) == [0, 1, 2, 3, 4]
    assert numbers(five, order=Key(1, reverse=True)) == [4, 3, 2, 1, 0]
    assert numbers(five, order=Key(lambda entry: -entry[1])) == [4, 3, 2, 1, 0]
    assert five.take(("n", int), wait=0, order=Key(1)) == ("n", 0)


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
        space.take(("n", int), wait=0, order=Key(lambda entry: 1 / entry[1]))
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


def test_a_waiter_at_a_stack_gets_the_newest_of_many(make_space, park):
    stack = make_space(order=Lifo())
    waiter = park(stack, stack.take, ("n", int))
    stack.write_all([("n", 1), ("n", 2), ("n", 3)])
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
