"""The first matches by a field, found by a sorted index: the same as if all matches were sorted."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tupelo import ANY, Between, Key, OneOf, Space, Where
from tupelo.errors import BadArgument
from tupelo.space.port import port_of
from tupelo.space.query import Query
from tupelo.values.template import as_template

NAN = float("nan")
MANY = 10_000


@dataclass
class Task:
    priority: Any = None
    name: str | None = None


class Counted:
    """A condition that counts how many entries it was asked about."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, value: object) -> bool:
        self.calls += 1
        return True


numbers = st.sampled_from([0, 1, 2, 3, 0.0, -0.0, 1.5, NAN, True])
entries = st.one_of(
    st.tuples(st.just("job"), numbers),
    st.tuples(st.just("job"), numbers, st.sampled_from("abc")),
    st.builds(Task, numbers, st.sampled_from("abc")),
    st.tuples(st.just("alone")),
)
templates = st.sampled_from(
    [
        ANY,
        ("job", int),
        ("job", float),
        ("job", ANY),
        ("job", ANY, "a"),
        ("job", Between(1, 2), ANY),
        ("job", ANY, OneOf("b", "c")),
        Task,
        Task(name="b"),
        ("nobody", int),
    ]
)
orders = st.builds(Key, st.sampled_from([1, 0, -1, "priority"]), reverse=st.booleans())
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), entries, st.sampled_from([1, 2, 40, 70])),
        st.tuples(st.just("take"), templates, orders, st.sampled_from([1, 2, 35])),
        st.tuples(st.just("read"), templates, orders, st.sampled_from([1, 2, 35])),
        st.tuples(st.just("begin")),
        st.tuples(st.sampled_from(["commit", "abort"])),
    ),
    max_size=30,
)


def ordered(space: Space, template: Any, order: Key, **how: Any) -> list[str] | None:
    """What is found, as text, since NaN equals nothing; None for keys that cannot be compared."""
    try:
        return list(map(repr, space.read_all(template, order=order, **how)))
    except BadArgument:
        return None


@settings(max_examples=300)
@given(steps, st.booleans())
def test_the_first_matches_are_those_of_all(steps: list[Any], in_slices: bool) -> None:
    with Space(log_keep="all") as space:
        txn = None
        for verb, *rest in steps:
            if verb == "write":
                space.write_all([rest[0]] * rest[1], txn=txn)
            elif verb == "begin":
                txn = txn or space.transaction()
            elif verb in ("commit", "abort") and txn is not None:
                getattr(txn, verb)()
                txn = None
            elif verb in ("take", "read"):
                template, order, limit = rest
                everything = ordered(space, template, order, txn=txn)
                first = ordered(space, template, order, txn=txn, limit=limit)
                if everything is None:
                    assert first is None
                    continue
                assert first == everything[:limit]
                if in_slices:
                    state = None if txn is None else txn.core_state
                    query = Query(
                        as_template(template), many=True, limit=limit, order=order, txn=state
                    ).replace(in_slices=True)
                    found = asyncio.run(port_of(space).fetch(query))
                    assert [repr(entry.value) for entry in found] == first
                if verb == "take":
                    taken = space.take_all(template, order=order, txn=txn, limit=limit)
                    assert list(map(repr, taken)) == first


def test_a_take_by_priority_does_not_look_at_all_entries():
    counted = Counted()
    with Space() as space:
        space.write_all([("job", i * 7919 % 1000, i) for i in range(MANY)])
        for order in (Key(1), Key(1, reverse=True), Key(-2)):
            space.read((str, int, int), order=order)
            for _ in range(5):
                space.take(("job", int, Where(counted)), order=order, wait=0)
    assert counted.calls <= 30


def test_a_space_whose_order_is_a_key_does_not_look_at_all_entries():
    class Urgent(Key):
        head_only = True

    for order in (Key(1), Urgent(1)):
        counted = Counted()
        with Space(order=order) as space:
            space.write_all([("job", MANY - i) for i in range(MANY)])
            assert [space.take(("job", Where(counted)))[1] for _ in range(5)] == [1, 2, 3, 4, 5]
        assert counted.calls <= 20


def test_a_request_in_slices_finds_the_first_at_once_when_the_index_is_sorted():
    counted = Counted()
    with Space() as space:
        port = port_of(space)
        space.write_all([("job", i * 7919 % MANY) for i in range(MANY)])
        query = Query(("job", int), take=True, order=Key(1), in_slices=True)
        assert port.is_long(query.replace(template=as_template(("job", int))))

        async def run() -> None:
            task = asyncio.ensure_future(port.fetch(query))
            await asyncio.sleep(0)
            assert not task.done()  # The index is sorted in slices.
            space.write(("job", -1))
            space.take(("job", 0))
            assert (await task)[0].fields == ("job", -1)
            template = as_template(("job", Where(counted)))
            found = await port.fetch(query.replace(template=template))
            assert found[0].fields == ("job", 1)

        asyncio.run(run())
    assert counted.calls <= 3


def test_a_request_in_slices_for_few_of_many_looks_at_all_in_slices():
    with Space() as space:
        port = port_of(space)
        space.write_all([("job", i) for i in range(MANY)])
        space.write(("job", MANY))
        template = as_template(("job", Where(lambda n: n >= MANY - 1)))
        query = Query(template, take=True, order=Key(1), in_slices=True)

        async def run() -> int:
            task = asyncio.ensure_future(port.fetch(query))
            turns = 0
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            assert (await task)[0].fields == ("job", MANY - 1)
            return turns

        assert asyncio.run(run()) > 3


def test_few_matches_among_many_entries_are_found_by_content():
    counted = Counted()
    with Space() as space:
        space.write_all([("job", i, "many") for i in range(MANY)])
        space.write_all([("job", MANY + i, "few") for i in range(50, 0, -1)])
        template = ("job", Where(counted), "few")
        space.read(template, order=Key(1))  # builds the index of the names
        counted.calls = 0
        assert space.read(template, order=Key(1)) == ("job", MANY + 1, "few")
    assert counted.calls <= 60


def test_datetimes_with_and_without_a_zone_are_refused_as_before():
    zoned, naive = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1)
    with Space() as space:
        space.write_all([("at", zoned)] * 50)
        assert space.read(("at", datetime), order=Key(1)) == ("at", zoned)
        space.write(("at", naive))
        with pytest.raises(BadArgument, match="order="):
            space.read(("at", datetime), order=Key(1))
        assert space.take(("at", naive)) == ("at", naive)
        assert space.take(("at", datetime), order=Key(1)) == ("at", zoned)


def test_keys_of_other_types_are_sorted_without_an_index():
    with Space() as space:
        space.write_all([("cost", Decimal(i)) for i in range(50, 0, -1)])
        space.write_all([("path", [i, 0]) for i in range(50, 0, -1)])
        assert space.read(("cost", Decimal), order=Key(1)) == ("cost", Decimal(1))
        assert space.read(("path", list), order=Key(1, reverse=True)) == ("path", [50, 0])


def test_an_entry_that_ends_or_returns_is_sorted_in_and_out(clock):
    with Space(clock=clock) as space:
        space.write_all([("job", i) for i in range(100)])
        space.write(("job", -1), lease=5)
        assert space.read(("job", int), order=Key(1)) == ("job", -1)
        clock.advance(6)
        assert space.read(("job", int), order=Key(1)) == ("job", 0)
        txn = space.transaction()
        space.write(("job", -2), txn=txn)
        assert space.take(("job", int), order=Key(1), txn=txn) == ("job", -2)
        assert space.take(("job", int), order=Key(1), txn=txn) == ("job", 0)
        assert space.take(("job", int), order=Key(1)) == ("job", 1)
        txn.abort()
        assert space.take(("job", int), order=Key(1)) == ("job", 0)
