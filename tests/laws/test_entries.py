"""Entries: what is written comes back, and nothing else gets in."""

import math
from collections import namedtuple
from collections.abc import Hashable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from uuid import UUID

import pytest

from tests.laws.kinds import (
    Basket,
    Empty,
    Job,
    Loud,
    Point,
    Poster,
    PrintJob,
    Renamed,
    Unfinished,
)
from tests.laws.talk import alike
from tupelo import ANY
from tupelo.errors import BadEntry

SCALARS = [
    *(None, True, False, 0, 1, -1, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**50),
    *(0.0, -0.0, 1.0, 1.5, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan),
    *("", "text", "ünï 漢字 😀", "\x00", "a" * 70_000, b"", b"\x00\xff", b"a" * 70_000),
    *(datetime(2024, 2, 29), datetime(2024, 2, 29, 12, 30, 59, 999_999)),
    *(datetime.min, datetime.max, datetime(1969, 7, 20, 20, 17, tzinfo=UTC)),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    datetime(2024, 1, 1, tzinfo=timezone(-timedelta(hours=3, minutes=7, seconds=11))),
    *(UUID(int=0), UUID("12345678-1234-5678-1234-567812345678")),
    *(Decimal("1.10"), Decimal("-0"), Decimal("1E+400"), Decimal("Infinity"), Decimal("NaN")),
]
CONTAINERS = [
    *((), (1,), (1, (2.0, (True, ((), "deep")))), [], [1, [2, [None]]], [(1,), [1]]),
    *({}, {"a": 1, "b": {"c": [1, (2,)]}}, {1: "one", "1": "text", None: 0, (1, "x"): [1]}),
    *({2.5: b"", UUID(int=3): Decimal(1), datetime(2024, 1, 1): {}}, {b"k": ({"x": (1,)},)}),
]
TYPED = [
    *(Job("resize", 7), Job(), PrintJob("p", 1, 2), Poster("p", None, 2, True), Loud("l", 1)),
    *(Point(1, 1.0), Point((1, [2]), {"a": Point()}), Empty(), Renamed([1]), Renamed(Renamed())),
    Basket([Point(1, 2), Job("in")], {"deep": (Point(),)}, Point(0, 0)),
]


@pytest.mark.parametrize(
    "values", [SCALARS, CONTAINERS, TYPED], ids=["scalar", "container", "typed"]
)
def test_every_value_comes_back_equal_and_of_the_same_type(space, values):
    space.write_all([("value", i, value) for i, value in enumerate(values)])
    for i, value in enumerate(values):
        assert alike(space.read(("value", i, ANY), wait=0), ("value", i, value))
        assert alike(space.take(("value", i, ANY), wait=0), ("value", i, value))


def test_an_entry_may_have_any_length(space):
    for length in (0, 1, 2, 3, 16, 300):
        entry = tuple(range(length))
        space.write(entry)
        space.write((*entry, "longer"))
        assert space.take(entry, wait=0) == entry
        assert space.take(wait=0) == (*entry, "longer")


def test_typed_entries_come_back_as_instances_of_their_class(space):
    space.write_all(TYPED)
    assert alike(space.read_all(), TYPED)
    assert [type(entry) for entry in space.take_all()] == [type(entry) for entry in TYPED]


def test_changing_an_object_after_the_write_changes_nothing_in_the_space(space):
    items, inner = [1, 2], {"a": [1]}
    job = Basket(items, inner)
    space.write(("plain", items, inner, (items,)))
    space.write(job)
    items.append(3)
    inner["a"].append(2)
    job.at = Point(1, 1)
    assert space.read(tuple, wait=0) == ("plain", [1, 2], {"a": [1]}, ([1, 2],))
    assert space.read(Basket, wait=0) == Basket([1, 2], {"a": [1]})


def test_changing_what_was_read_changes_nothing_in_the_space(space):
    space.write(("list", [1]))
    space.write(Basket([1]))
    space.read(("list", list), wait=0)[1].append(2)
    space.read_all(("list", list))[0][1].append(2)
    space.read(Basket, wait=0).items.append(2)
    assert space.read(("list", list), wait=0) == ("list", [1])
    assert space.read(Basket, wait=0) == Basket([1])


def test_every_reader_gets_a_copy_of_its_own(space):
    space.write(("list", [1]))
    one, other = space.read(wait=0), space.read(wait=0)
    one[1].append(2)
    assert other == ("list", [1])


class Colour(IntEnum):
    RED = 1


Pair = namedtuple("Pair", "a b")


NO_VALUES = [
    ((1, {1, 2}), "field 1", set),
    ((object(),), "field 0", object),
    ((1, 2, 3 + 4j), "field 2", complex),
    ((Colour.RED,), "field 0", Colour),
    ((bytearray(b"x"),), "field 0", bytearray),
    ((1, (2, [3, {4}])), "field 1[1][1]", set),
    (({"a": {"b": {1}}},), "field 0['a']['b']", set),
    ((Pair(1, 2),), "field 0", Pair),
    ((int,), "field 0", type),
    ((ANY,), "field 0", type(ANY)),
    (Job("x", {1}), "field 'size'", set),  # type: ignore[arg-type]
    ((Point(Point(0, {1}), 0),), "field 0.x.y", set),
]


def test_what_is_no_value_is_refused_with_its_place_and_type(space):
    for entry, where, found in NO_VALUES:
        with pytest.raises(BadEntry) as refused:
            space.write(entry)
        assert refused.value.where == where
        assert refused.value.found is found
        assert where in str(refused.value) and found.__name__ in str(refused.value)
    assert space.count() == 0


def test_a_key_that_is_no_value_is_refused(space):
    keys: list[Hashable] = [frozenset({1}), Colour.RED, (1, (frozenset(),))]
    for key in keys:
        with pytest.raises(BadEntry, match="field 1"):
            space.write(("dict", {key: 1}))
    assert space.count() == 0


def test_what_is_no_entry_is_refused(space):
    for entry in (None, 1, "text", b"x", [1], {"a": 1}, {1}, object(), int, Job, Pair(1, 2), ANY):
        with pytest.raises(BadEntry, match="an entry is a tuple or an instance of a dataclass"):
            space.write(entry)
    assert space.count() == 0


def test_an_entry_that_holds_itself_is_refused(space):
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(BadEntry, match="deeper"):
        space.write(("loop", loop))
    assert space.count() == 0


def test_a_typed_entry_without_one_of_its_fields_is_refused(space):
    with pytest.raises(BadEntry, match="later"):
        space.write(Unfinished(1))
    assert space.count() == 0


def test_a_text_that_is_no_unicode_comes_back_or_is_refused(space):
    """A store that encodes its entries cannot encode it; one that does not has no reason to
    look."""
    entry = ("half a pair", "\ud83d")
    try:
        space.write(entry)
    except BadEntry:
        assert space.count() == 0
    else:
        assert space.take(entry, wait=0) == entry
