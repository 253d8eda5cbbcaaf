"""Linda's words, on every kind of space and at both doors."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

import tupelo
from tests.kinds import DOORS, KINDS, MODEL_PLACES
from tests.laws.doors import Door
from tupelo import ANY, Space, TupeloError, Where, aio
from tupelo.errors import BadArgument, BadEntry, EvalFailed, SpaceFull
from tupelo.models.linda import EvalError, LiveTuple, TupleSpace, live
from tupelo.space.capacity import Capacity

EXCHANGES = [one for one in MODEL_PLACES if KINDS[one[1]].where not in ("spanning", "database")]
at_one_place = pytest.mark.parametrize("place", EXCHANGES, ids="-".join, indirect=True)
"""Tuples are exchanged at one place: docs/DOORS.md."""
in_memory = pytest.mark.parametrize(
    "place", [(door, "memory") for door in DOORS], ids="-".join, indirect=True
)


class LindaDoor(Door):
    """A TupleSpace of the async door, or a live tuple of it, that is called like a blocking one."""

    def _wrapped(self, answer: Any) -> Any:
        return LindaDoor(answer, self._loop) if isinstance(answer, LiveTuple) else answer

    def collect(self, destination: Any, template: object) -> Any:
        return self._loop.call(self._inner.collect, _inner(destination), template)

    def copy_collect(self, destination: Any, template: object) -> Any:
        return self._loop.call(self._inner.copy_collect, _inner(destination), template)


def _inner(door: Any) -> Any:
    return getattr(door, "_inner", door)


@pytest.fixture(params=MODEL_PLACES, ids="-".join)
def place(request):
    """A door and a kind of space."""
    return request.param


@pytest.fixture
def open_door(place, loop_thread):
    """`open_door(space)`: the door to a space of the door of this place."""
    opened: list[Any] = []

    def open_door(space: Any) -> Any:
        if place[0] == "async":
            door: Any = LindaDoor(loop_thread.call(TupleSpace, space), loop_thread)
        else:
            door = TupleSpace(space)
        opened.append(door)
        return door

    yield open_door
    for door in opened:
        door.close()


@pytest.fixture
def ts(place, neighbourhood, open_door):
    return open_door(neighbourhood.space(place))


@pytest.fixture
def other(place, open_door):
    """Another space of the same door."""
    return open_door((aio if place[0] == "async" else tupelo).Space("other"))


def in_thread(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Call it on a thread; the answer waits for its result."""
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(function(*args)), daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(timeout=20)
        assert not thread.is_alive(), "it still waits"
        return box[0]

    return result


def test_out_adds_a_copy_and_rd_leaves_it(ts):
    ts.out(("a", [1]))
    found = ts.rd(("a", list))
    found[1].append(2)
    assert ts.rd(("a", list)) == ("a", [1])


def test_in_removes_what_it_gets(ts):
    ts.out(("a", 1))
    assert ts.in_(("a", int)) == ("a", 1)
    assert ts.rdp(("a", int)) is None


def test_equal_tuples_are_several_tuples(ts):
    ts.out(("a",))
    ts.out(("a",))
    assert ts.in_(("a",)) == ts.in_(("a",)) == ("a",)
    assert ts.inp(("a",)) is None


@pytest.mark.parametrize("verb", ["in_", "rd"])
def test_in_and_rd_wait_for_a_match(ts, verb):
    result = in_thread(getattr(ts, verb), ("late", int))
    ts.out(("early", 1))
    ts.out(("late", 2))
    assert result() == ("late", 2)


def test_probes_do_not_wait(ts):
    assert ts.inp(("a",)) is None and ts.rdp(("a",)) is None


def test_group_operations_get_all_in_one_step(ts):
    for i in range(5):
        ts.out(("n", i))
    ts.out(("other",))
    assert ts.rdg(("n", int)) == [("n", i) for i in range(5)]
    assert ts.ing(("n", int)) == [("n", i) for i in range(5)]
    assert ts.ing(("n", int)) == []
    assert ts.count(ANY) == 1


TABLE_2_1: list[tuple[Any, bool, bool]] = [
    (("Apple", 42), True, False),
    (("Orange", 42, 3.1415), False, True),
    (("Orange", int, 3.1415), False, True),
    ((str, 42, 3.1415), False, True),
    ((str, int, 3.14), False, False),
    ((str, int), True, False),
    ((str, int, float), False, True),
]


def test_template_matching_as_in_table_2_1(ts):
    ts.out(("Apple", 42))
    ts.out(("Orange", 42, 3.1415))
    for template, first, second in TABLE_2_1:
        found = ts.rdg(template)
        assert (("Apple", 42) in found) is first, template
        assert (("Orange", 42, 3.1415) in found) is second, template


def test_collect_moves_and_counts(ts, other):
    ts.out(("keep",))
    for i in range(3):
        ts.out(("move", i))
    assert ts.collect(other, ("move", int)) == 3
    assert ts.rdg(ANY) == [("keep",)]
    assert other.rdg(ANY) == [("move", i) for i in range(3)]
    assert ts.collect(other, ("move", int)) == 0


def test_copy_collect_copies_and_counts(ts, other):
    ts.out(("copy", 1))
    assert ts.copy_collect(other, ("copy", int)) == 1
    assert ts.rdg(ANY) == other.rdg(ANY) == [("copy", 1)]


def test_collect_into_the_same_space_keeps_everything(ts):
    ts.out(("a", 1))
    assert ts.collect(ts, ("a", int)) == 1
    assert ts.rdg(ANY) == [("a", 1)]


def test_collect_leaves_what_the_destination_refuses(ts, place, open_door):
    make = aio.Space if place[0] == "async" else Space
    small = open_door(make("small", capacity=Capacity(entries=1)))
    ts.out(("a", 1))
    ts.out(("a", 2))
    with pytest.raises(SpaceFull):
        ts.collect(small, ("a", int))
    assert ts.rdg(ANY) == [("a", 1), ("a", 2)] and small.rdg(ANY) == []


@in_memory
def test_collect_needs_a_tuple_space(ts):
    with pytest.raises(BadArgument, match="destination="):
        ts.collect("other", ANY)


def test_delete_says_whether_there_was_one(ts):
    ts.out(("a",))
    assert ts.delete(("a",)) is True
    assert ts.delete(("a",)) is False


def test_eval_becomes_an_ordinary_tuple(ts):
    made = ts.eval(("sum", live(operator.add, 2, 3), "of", 2, 3))
    assert ts.in_(("sum", int, "of", 2, 3)) == ("sum", 5, "of", 2, 3)
    assert made.result(wait=20) == ("sum", 5, "of", 2, 3)
    assert made.done


def test_nobody_sees_a_live_tuple_before_it_is_done(ts):
    ready = threading.Event()
    made = ts.eval(("slow", live(ready.wait, 20)))
    assert ts.rdp(("slow", ANY)) is None
    with pytest.raises(TimeoutError):
        made.result(wait=0)
    ready.set()
    assert ts.in_(("slow", bool)) == ("slow", True)


def test_live_tuples_can_wait_for_each_other(ts):
    def follow(i):
        return ts.in_(("link", i - 1, int))[2] + 1

    made = [ts.eval(("link", i, live(follow, i))) for i in range(50, 0, -1)]
    ts.out(("link", 0, 0))
    assert ts.in_(("link", 50, int)) == ("link", 50, 50)
    assert all(m.result(wait=20) for m in made)


def test_live_fields_of_one_tuple_are_computed_side_by_side(ts):
    meet = threading.Barrier(2)
    ts.eval(("both", live(meet.wait, 20), live(meet.wait, 20)))
    assert sorted(ts.in_(("both", int, int))[1:]) == [0, 1]


def test_a_live_tuple_that_fails_is_described(ts):
    made = ts.eval(("ratio", live(operator.truediv, 1, 0)))
    with pytest.raises(EvalFailed, match=r"ratio.*truediv.*ZeroDivisionError: division by zero"):
        made.result(wait=20)
    left = ts.in_(EvalError())
    assert left.error == "ZeroDivisionError: division by zero"
    assert "truediv" in left.tuple and "Traceback" in left.detail
    assert ts.rdp(("ratio", ANY)) is None


def test_a_live_tuple_whose_value_is_none_of_ours_is_described(ts):
    made = ts.eval(("object", live(object)))
    with pytest.raises(EvalFailed, match="field 1"):
        made.result(wait=20)
    assert isinstance(made._outcome.exception().__cause__, BadEntry)
    assert ts.rd(EvalError()).error.startswith("BadEntry")


def test_a_live_tuple_that_outlives_its_space_is_told():
    door, ready = TupleSpace(), threading.Event()
    made = door.eval(("late", live(ready.wait, 20)))
    door.close()
    ready.set()
    with pytest.raises(EvalFailed, match="closed"):
        made.result(wait=20)


def test_eval_on_processes():
    with TupleSpace(eval_on="processes") as door:
        made = door.eval(("pid", live(os.getpid), live(pow, 2, 10)))
        _, pid, power = made.result(wait=60)
        assert power == 1024 and pid != os.getpid()
        failed = door.eval(("int", live(int, "x")))
        with pytest.raises(EvalFailed, match="ValueError"):
            failed.result(wait=60)
        unknown = door.eval(("lambda", live(lambda: 1)))  # cannot be sent to a process
        with pytest.raises(EvalFailed, match="lambda"):
            unknown.result(wait=60)


@in_memory
@pytest.mark.parametrize("fields", [["a", 1], "a", None])
def test_eval_and_exchange_take_tuples(ts, fields):
    with pytest.raises(BadArgument, match="fields="):
        ts.eval(fields)
    with pytest.raises(BadArgument, match="fields="):
        ts.exchange(fields)


def test_live_takes_a_function():
    with pytest.raises(BadArgument, match="function="):
        live(cast(Any, 3))


@at_one_place
def test_exchange_swaps_two_tuples_of_the_same_types(ts):
    other = in_thread(ts.exchange, ("from other", 2))
    assert ts.exchange(("from me", 1)) == ("from other", 2)
    assert other() == ("from me", 1)


@at_one_place
def test_exchange_does_not_meet_other_types(ts):
    other = in_thread(ts.exchange, ("text", "two"))
    assert ts.exchange(("number", 1), wait=0.02) is None
    assert ts.exchange(("text", "one")) == ("text", "two")
    assert other() == ("text", "one")


@at_one_place
def test_an_offer_that_met_nobody_is_withdrawn(ts):
    assert ts.exchange(("a", 1), wait=0) is None
    assert ts.exchange(("b", 2), wait=0) is None
    assert ts.count(ANY) == 0


@at_one_place
def test_everyone_who_exchanges_meets_someone(ts):
    results = [in_thread(ts.exchange, ("n", i)) for i in range(20)]
    got = [result()[1] for result in results]
    assert sorted(got) == list(range(20))
    assert all(got[got[i]] == i and got[i] != i for i in range(20))


@pytest.mark.parametrize(
    "place", [one for one in MODEL_PLACES if one not in EXCHANGES], ids="-".join, indirect=True
)
def test_elsewhere_exchange_says_where_it_can_be(ts):
    with pytest.raises(BadArgument, match=r"space= must be (at one place|in this program)"):
        ts.exchange(("a", 1), wait=0)


def test_doors_to_one_space_share_it():
    with Space("shared") as space:
        one, two = TupleSpace(space), TupleSpace(space)
        one.out(("a", 1))
        assert two.in_(("a", int)) == ("a", 1)
        other = in_thread(one.exchange, ("x", 1))
        assert two.exchange(("y", 2)) == ("x", 1)
        assert other() == ("y", 2)
        space.write(("b", 1))
        assert one.rd(("b", Where(lambda n: n > 0))) == ("b", 1)


@pytest.mark.parametrize("arguments", [{"space": 3}, {"eval_on": "clouds"}])
def test_a_tuple_space_needs_good_arguments(arguments):
    with pytest.raises(BadArgument, match=f"{next(iter(arguments))}="):
        TupleSpace(**arguments)


def test_bad_tuples_and_templates_are_refused(ts):
    with pytest.raises(TupeloError):
        ts.out(["a"])
    with pytest.raises(TupeloError):
        ts.inp(3)
    assert ts.count(ANY) == 0
