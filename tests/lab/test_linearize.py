"""The judge of histories: it accepts what a correct space did, and refuses every planted fault."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tupelo
from tupelo import aio
from tupelo.lab.linearize import Kind, TimedOperation, check
from tupelo.lab.loop import VirtualLoop, run
from tupelo.space.clock import LoopClock

KINDS: tuple[Kind, ...] = ("write", "read", "take")


def said(history: Sequence[TimedOperation]) -> str:
    return check(history).answer


def write(call: float, ret: float, entry: object) -> TimedOperation:
    return TimedOperation(call, ret, "write", "jobs", entry, "w")


def read(call: float, ret: float, entry: object) -> TimedOperation:
    return TimedOperation(call, ret, "read", "jobs", entry, "r")


def take(call: float, ret: float, entry: object) -> TimedOperation:
    return TimedOperation(call, ret, "take", "jobs", entry, "t")


# By hand


def test_nothing_happened():
    assert said([]) == "yes"


def test_one_after_the_other():
    history = [write(0, 1, 7), read(2, 3, 7), take(4, 5, 7), take(6, 7, None)]
    assert said(history) == "yes"


def test_operations_that_overlap_may_have_come_in_either_order():
    assert said([write(0, 10, 7), take(1, 2, 7), read(3, 4, None)]) == "yes"
    assert said([write(0, 10, 7), read(1, 2, None), read(3, 4, 7)]) == "yes"
    assert said([write(0, 1, 7), take(2, 9, 7), read(3, 4, 7), read(5, 6, None)]) == "yes"


def test_equal_moments_count_as_overlapping():
    assert said([write(0, 1, 7), take(1, 2, 7), read(1, 1, None)]) == "yes"


def test_an_entry_that_was_never_written():
    verdict = check([write(0, 1, 7), take(2, 3, 8)])
    assert verdict.answer == "no"
    assert "never written" in verdict.why


def test_an_entry_that_is_taken_twice():
    verdict = check([write(0, 1, 7), take(2, 3, 7), take(2, 4, 7)])
    assert verdict.answer == "no"
    assert "t: take 7, 2 to 4 (it was taken before, by t: take 7, 2 to 3)" in verdict.why


def test_an_entry_that_is_lost():
    verdict = check([write(0, 1, 7), read(2, 3, None)])
    assert verdict.answer == "no"
    assert "1 of 2 operations can be placed; then there is 7" in verdict.why
    assert "r: read no match, 2 to 3 (something is there)" in verdict.why


def test_a_stale_read():
    assert said([write(0, 1, 7), take(2, 3, 7), read(4, 5, 7)]) == "no"


def test_a_read_from_the_future():
    verdict = check([read(0, 1, 7), write(2, 3, 7)])
    assert verdict.answer == "no"
    assert "written later, by w: write 7, 2 to 3" in verdict.why


def test_two_entries_that_are_alike_may_be_taken_twice_but_not_thrice():
    history = [write(0, 1, 7), write(0, 1, 7), take(2, 3, 7), take(2, 4, 7)]
    assert said(history) == "yes"
    assert said([*history, take(5, 6, 7)]) == "no"


def test_a_class_does_not_see_the_entries_of_another():
    history = [write(0, 1, 7), TimedOperation(2, 3, "read", "other", None)]
    assert said(history) == "yes"
    verdict = check([*history, TimedOperation(4, 5, "take", "other", 7)])
    assert verdict.answer == "no"
    assert verdict.why.startswith("class 'other'")


# Outcomes that nobody knows


def test_an_unknown_write_may_have_happened_at_any_later_time_or_never():
    unknown = write(5, inf, 7)
    assert said([unknown, take(6, 7, None)]) == "yes"
    assert said([unknown, take(6, 7, None), take(8, 9, 7)]) == "yes"
    assert said([unknown, take(6, 7, 7), take(8, 9, None)]) == "yes"
    assert said([unknown, take(6, 7, 7), take(8, 9, 7)]) == "no"
    assert said([unknown, take(1, 2, 7)]) == "no"


def test_an_unknown_take_may_have_taken_anything_or_nothing():
    unknown = take(5, inf, None)
    for left in ((7, 8), (7, None), (8, None)):
        history = [write(0, 1, 7), write(0, 1, 8), unknown]
        history += [take(10 + 2 * i, 11 + 2 * i, entry) for i, entry in enumerate(left)]
        assert said(history) == "yes", left
    assert said([write(0, 1, 7), write(0, 1, 8), unknown, take(6, 7, None)]) == "no"
    assert said([write(0, 1, 7), unknown, take(2, 3, None)]) == "no"
    assert said([write(0, 1, 7), unknown, read(6, 7, None), read(8, 9, 7)]) == "no"


def test_an_unknown_read_says_nothing():
    assert said([read(0, inf, None), write(1, 2, 7), take(3, 4, 7)]) == "yes"


# The budget


def labyrinth() -> list[TimedOperation]:
    """One entry stands in the way of someone who found nothing, among very many orders."""
    many = range(1, 15)
    return [
        write(0, 1, 0),
        *(write(2, 100, entry) for entry in many),
        *(take(2, 100, entry) for entry in many),
        read(2, 100, None),
    ]


def test_when_the_budget_ends_it_says_so():
    verdict = check(labyrinth(), budget=1_000)
    assert verdict.answer == "undecided"
    assert "1000" in verdict.why


def test_a_fault_is_found_though_another_class_is_too_much_for_the_budget():
    fault = TimedOperation(0, 1, "take", "other", 1)
    assert check([*labyrinth(), fault], budget=1_000).answer == "no"


def test_what_needs_no_search_is_judged_without_a_budget():
    history = [write(0, 1, 7), read(2, 3, 7), take(4, 5, 7), take(6, 7, None)]
    assert check(history, budget=0).answer == "yes"


# Histories of a model

Plan = list[tuple[int, Kind, int, int, int, int, bool]]

plans = st.lists(
    st.tuples(
        st.integers(0, 3),  # process
        st.sampled_from(KINDS),
        st.integers(0, 1),  # class
        st.integers(0, 3),  # idle before the call
        st.integers(0, 3),  # from the call to the moment when it happens
        st.integers(0, 3),  # from there to the return
        st.booleans(),  # of several entries, the first or the last
    ),
    max_size=40,
)


def happen(plan: Plan, *, alike: bool = False) -> list[TimedOperation]:
    """What a correct space answers if each operation happens at its moment."""
    now = [0, 0, 0, 0]
    moments: list[tuple[int, int, int, int, Kind, int, int, bool]] = []
    for number, (process, kind, key, idle, before, after, first) in enumerate(plan):
        call = now[process] + idle + 1
        now[process] = call + before + after
        moment = (call + before, number, call, now[process], kind, key, process, first)
        moments.append(moment)
    there: dict[int, list[int]] = {0: [], 1: []}
    history = []
    for _, number, call, ret, kind, key, process, first in sorted(moments):
        entry: int | None = None
        if kind == "write":
            entry = 0 if alike else number
            there[key].append(entry)
        elif there[key]:
            entry = there[key][0 if first else -1]
            if kind == "take":
                there[key].remove(entry)
        history.append(TimedOperation(call, ret, kind, key, entry, f"p{process}"))
    return history


@given(plans, st.booleans(), st.randoms(use_true_random=False))
def test_what_a_correct_space_did_is_accepted_in_whatever_order_it_is_told(plan, alike, rng):
    history = happen(plan, alike=alike)
    rng.shuffle(history)
    assert said(history) == "yes"


@given(plans, st.data())
def test_forgetting_how_some_operations_ended_accuses_nobody(plan, data):
    history = happen(plan)
    for index, operation in enumerate(history):
        if data.draw(st.integers(0, 4)) == 0:
            entry = operation.entry if operation.kind == "write" else None
            history[index] = operation._replace(ret=inf, entry=entry)
    assert said(history) == "yes"


def some(history: list[TimedOperation], data: st.DataObject, *kinds: Kind) -> int:
    """One of the operations of these kinds that have an entry."""
    found = [i for i, o in enumerate(history) if o.kind in kinds and o.entry is not None]
    assume(found)
    return data.draw(st.sampled_from(found))


@given(plans, st.data())
def test_a_planted_second_take_is_found(plan, data):
    history = happen(plan)
    taken = history[some(history, data, "take")]
    call = data.draw(st.integers(0, 200))
    history.append(taken._replace(call=call, ret=call + data.draw(st.integers(0, 20))))
    assert said(history) == "no"


@given(plans, st.data())
def test_a_planted_loss_is_found(plan, data):
    history = happen(plan)
    written = history[some(history, data, "write")]
    history = [
        o for o in history if o.entry is not None and (o.entry != written.entry or o is written)
    ]
    end = max(o.ret for o in history)
    taken = {o.entry for o in history if o.kind == "take"}
    history += [  # At the end everything else is taken.
        TimedOperation(end + 1, end + 2, "take", o.key, o.entry)
        for o in history
        if o.kind == "write" and o is not written and o.entry not in taken
    ]
    assert said(history) == "yes"
    history.append(TimedOperation(end + 3, end + 4, "read", written.key, None))
    assert said(history) == "no"


@given(plans, st.data())
def test_a_planted_stale_read_is_found(plan, data):
    history = happen(plan)
    taken = history[some(history, data, "take")]
    call = taken.ret + data.draw(st.integers(1, 20))
    history.append(
        TimedOperation(call, call + data.draw(st.integers(0, 20)), "read", taken.key, taken.entry)
    )
    assert said(history) == "no"


# Against the definition


def by_definition(history: list[TimedOperation]) -> bool:
    """Try every order."""
    known = frozenset(i for i, o in enumerate(history) if o.ret != inf)
    seen = set()

    def possible(left: frozenset[int], there: tuple[int, ...]) -> bool:
        if not left & known:
            return True
        if (left, there) in seen:
            return False
        seen.add((left, there))
        first_return = min(history[i].ret for i in left)
        return any(
            possible(left - {i}, after)
            for i in left
            if history[i].call <= first_return
            for after in outcomes(history[i], there)
        )

    return possible(frozenset(range(len(history))), ())


def outcomes(operation: TimedOperation, there: tuple[int, ...]) -> list[tuple[int, ...]]:
    entry = operation.entry
    if operation.kind == "write":
        assert isinstance(entry, int)
        return [tuple(sorted((*there, entry)))]
    if operation.kind == "take" and operation.ret == inf:
        return [without(there, one) for one in set(there)]
    if operation.ret == inf:
        return []
    if entry is None:
        return [] if there else [there]
    if entry not in there:
        return []
    return [without(there, entry) if operation.kind == "take" else there]


def without(there: tuple[int, ...], entry: object) -> tuple[int, ...]:
    index = there.index(entry)
    return there[:index] + there[index + 1 :]


@st.composite
def small_histories(draw: st.DrawFn) -> list[TimedOperation]:
    """Right and wrong ones, with entries that are alike and outcomes that nobody knows."""
    history = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(KINDS))
        call = draw(st.integers(0, 8))
        ret = draw(st.one_of(st.integers(call, call + 5), st.just(inf)))
        entry = draw(st.integers(0, 2) if kind == "write" else st.sampled_from([None, 0, 1, 2]))
        if ret == inf and kind != "write":
            entry = None
        history.append(TimedOperation(call, ret, kind, "jobs", entry))
    return history


@settings(max_examples=500)
@given(small_histories())
def test_it_judges_as_the_definition_does(history):
    assert said(history) == ("yes" if by_definition(history) else "no")


# A real space


@pytest.mark.parametrize("seed", range(5))
def test_a_local_space_is_linearizable(seed):
    async def main(loop: VirtualLoop) -> list[TimedOperation]:
        local = tupelo.Space("jobs", clock=LoopClock(loop))
        space = aio.Space(local)
        history: list[TimedOperation] = []
        event = count()  # Moments of virtual time may be equal; events are not.

        async def work(name: str) -> None:
            for number in range(50):
                await asyncio.sleep(loop.rng.random())
                kind, key = loop.rng.choice(KINDS), loop.rng.randrange(3)
                wait = loop.rng.choice([0, 0.5])
                call = next(event)
                if kind == "write":
                    entry: tuple[int, str] | None = (key, f"{name}{number}")
                    await space.write(entry)
                elif kind == "read":
                    entry = await space.read((key, str), wait=wait)
                else:
                    entry = await space.take((key, str), wait=wait)
                history.append(TimedOperation(call, next(event), kind, key, entry, name))

        async with asyncio.TaskGroup() as group:
            for name in "abcdef":
                group.create_task(work(name))
        local.close()
        return history

    history = run(main, seed)
    assert len(history) == 300
    verdict = check(history)
    assert verdict.answer == "yes", verdict.why
