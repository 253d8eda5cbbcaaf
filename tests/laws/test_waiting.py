"""Waiting: served in order of arrival, all readers before the first taker; nothing is lost."""

import pytest

from tests.laws.kinds import Job, PrintJob
from tests.laws.talk import alike
from tupelo import ANY, HERE, Between, Template, Where


def test_a_probe_does_not_wait(space):
    assert space.read(("a",), wait=0) is None
    assert space.take(("a",), wait=0) is None
    assert space.read_all(("a",)) == []
    assert space.take_all(("a",)) == []
    assert space.read_all(("a",), wait=0) == []


def test_what_is_there_is_had_without_waiting(space):
    space.write(("a",))
    assert space.read(("a",)) == ("a",)
    assert space.read(("a",), wait=5) == ("a",)
    assert space.read_all(("a",), wait=None) == [("a",)]
    assert space.take(("a",), wait=None) == ("a",)


@pytest.mark.parametrize("verb", ["read", "take"])
def test_a_waiter_gets_what_comes(space, park, verb):
    waiter = park(space, getattr(space, verb), ("a", int))
    space.write(("b", 1))
    space.write(("a", "x"))
    assert waiter.waits
    space.write(("a", 1))
    assert waiter.result() == ("a", 1)
    assert space.count(("a", int)) == (1 if verb == "read" else 0)
    assert space.count() == (3 if verb == "read" else 2)


@pytest.mark.parametrize("verb", ["read_all", "take_all"])
def test_a_bulk_waiter_waits_for_the_first(space, park, verb):
    waiter = park(space, getattr(space, verb), ("a", int), wait=None, limit=2)
    space.write_all([("a", 1), ("b", 1), ("a", 2), ("a", 3)])
    assert waiter.result() == [("a", 1), ("a", 2)]
    assert space.count() == (4 if verb == "read_all" else 2)


@pytest.mark.parametrize(
    ("template", "no", "yes"),
    [
        ((1,), (1.0,), (1,)),
        ((True,), (1,), (True,)),
        (("a", Between(1, 5)), ("a", 6), ("a", 5)),
        (("a", [1]), ("a", [2]), ("a", [1])),
        (("a", 1, "x"), ("a", 1, "y"), ("a", 1, "x")),
        (("a", ("b", int)), ("a", ("b", 1.5)), ("a", ("b", 1))),
        (Job("x"), Job("y"), PrintJob("x", 1, 2)),
        (Template(("a",)) | ("b", ANY), ("c",), ("b", 1)),
        (ANY, None, ()),
    ],
)
def test_a_waiter_gets_only_what_its_template_matches(space, park, template, no, yes):
    waiter = park(space, space.take, template)
    if no is not None:
        space.write(no)
        assert waiter.waits
    space.write(yes)
    assert alike(waiter.result(), yes)
    assert space.count() == (0 if no is None else 1)


def test_a_waiter_may_ask_by_a_function(space, park):
    waiter = park(space, space.take, Where(lambda e: len(e) == 3), scope=HERE)
    space.write((1, 2))
    assert waiter.waits
    space.write((1, 2, 3))
    assert waiter.result() == (1, 2, 3) and space.count() == 1


def test_takers_are_served_in_order_of_arrival(space, park):
    takers = [park(space, space.take, ("a", int)) for _ in range(4)]
    for i in range(4):
        space.write(("a", i))
    assert [taker.result() for taker in takers] == [("a", i) for i in range(4)]


def test_takers_with_different_templates_are_served_in_order_of_arrival(space, park):
    by_type = park(space, space.take, ("a", int))
    by_value = park(space, space.take, ("a", 1))
    by_any = park(space, space.take, ANY)
    space.write(("a", 1))
    assert by_type.result() == ("a", 1)
    assert by_value.waits and by_any.waits
    space.write(("a", 1))
    assert by_value.result() == ("a", 1)
    space.write(("a", 1))
    assert by_any.result() == ("a", 1)


def test_a_write_of_many_serves_many_takers_in_order(space, park):
    takers = [park(space, space.take, ("a", int)) for _ in range(3)]
    space.write_all([("a", i) for i in range(4)])
    assert [taker.result()[1] for taker in takers] == [0, 1, 2]
    assert space.read_all() == [("a", 3)]


def test_all_readers_come_before_the_first_taker(space, park):
    taker = park(space, space.take, ("a", int))
    readers = [park(space, space.read, ("a", t)) for t in (int, 1, ANY)]
    space.write(("a", 1))
    assert [reader.result() for reader in readers] == [("a", 1)] * 3
    assert taker.result() == ("a", 1)
    assert space.count() == 0


def test_one_entry_is_given_to_one_taker(space, park):
    takers = [park(space, space.take, ("a",)) for _ in range(3)]
    space.write(("a",))
    assert takers[0].result() == ("a",)
    assert takers[1].waits and takers[2].waits
    assert space.count() == 0


@pytest.mark.parametrize(
    ("verb", "nothing"), [("read", None), ("take", None), ("read_all", []), ("take_all", [])]
)
def test_patience_ends_at_its_time(space, park, clock, verb, nothing):
    waiter = park(space, getattr(space, verb), ("a",), wait=2.0)
    clock.advance(1.5)
    assert waiter.waits
    clock.advance(0.5)
    assert waiter.result() == nothing


def test_one_whose_patience_ended_gets_nothing_more(space, park, clock):
    impatient = park(space, space.take, ("a",), wait=1)
    patient = park(space, space.take, ("a",), wait=10)
    clock.advance(1)
    assert impatient.result() is None
    space.write(("a",))
    assert patient.result() == ("a",)


def test_an_entry_in_time_ends_the_wait(space, park, clock):
    waiter = park(space, space.take, ("a",), wait=2)
    clock.advance(1)
    space.write(("a",))
    assert waiter.result() == ("a",)
    clock.advance(5)
    assert space.count() == 0


def test_many_waiters_of_many_kinds_get_what_each_wants(space, park):
    waiters = {i: park(space, space.take, ("key", i)) for i in range(30)}
    for i in reversed(range(30)):
        space.write(("key", i))
    assert {i: waiter.result()[1] for i, waiter in waiters.items()} == {i: i for i in range(30)}
    assert space.count() == 0


def test_a_waiter_is_woken_by_what_a_transaction_commits(space, park):
    waiter = park(space, space.take, ("a",))
    with space.transaction() as txn:
        space.write(("a",), txn=txn)
        assert waiter.waits
    assert waiter.result() == ("a",)


def test_a_waiter_is_woken_by_what_a_transaction_gives_back(space, park):
    space.write(("a",))
    txn = space.transaction()
    assert space.take(("a",), wait=0, txn=txn) == ("a",)
    waiter = park(space, space.take, ("a",))
    txn.abort()
    assert waiter.result() == ("a",)


def test_a_waiter_is_woken_by_what_a_reaction_writes(space, park):
    space.react(("in", int), lambda entry, step: step.write(("out", entry[1] + 1)))
    waiter = park(space, space.take, ("out", int))
    space.write(("in", 1))
    assert waiter.result() == ("out", 2)


def test_producers_and_consumers_meet(space, later):
    consumers = [later(lambda: [space.take(("job", int))[1] for _ in range(25)]) for _ in range(4)]
    producers = [
        later(lambda k=k: [space.write(("job", k * 25 + i)) for i in range(25)]) for k in range(4)
    ]
    for producer in producers:
        producer.result()
    taken = [n for consumer in consumers for n in consumer.result()]
    assert sorted(taken) == list(range(100))
    assert space.count() == 0
