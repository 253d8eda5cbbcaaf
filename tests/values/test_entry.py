"""Freezing and thawing: checked, copied, and of the same types all the way down."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given

from tests.values.strategies import Branch, Leaf, entries
from tupelo.errors import BadEntry
from tupelo.values.entry import DEPTH_MAX, freeze, same, thaw


@given(entries)
def test_what_is_frozen_thaws_to_the_same(entry):
    assert repr(thaw(*freeze(entry))) == repr(entry)


@given(entries)
def test_equal_shapes_are_one_object(entry):
    assert freeze(entry)[0] is freeze(thaw(*freeze(entry)))[0]


def mutables_in(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        inner = list(value)
    elif isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, Leaf):
        inner = list(vars(value).values())
    else:
        return []
    own = [] if isinstance(value, tuple) else [value]
    return own + [mutable for one in inner for mutable in mutables_in(one)]


@given(entries)
def test_nothing_that_could_change_is_shared(entry):
    frozen = freeze(entry)
    ours = {id(mutable) for mutable in mutables_in(entry)}
    one, other = thaw(*frozen), thaw(*frozen)
    assert ours.isdisjoint(id(mutable) for mutable in mutables_in(one))
    assert {id(m) for m in mutables_in(one)}.isdisjoint(id(m) for m in mutables_in(other))


@pytest.mark.parametrize(
    ("entry", "where", "found"),
    [
        (({1},), "field 0", set),
        ((1, [2, (3, {"a": {4}})]), "field 1[1][1]['a']", set),
        (Leaf({1}), "field 'value'", set),
        ((Branch(1, 2, [object()]),), "field 0.right[0]", object),
        ((range(3),), "field 0", range),
        ((1.5, memoryview(b"x")), "field 1", memoryview),
        ((print,), "field 0", type(print)),
        (({"k": frozenset()},), "field 0['k']", frozenset),
        (({frozenset(): 1},), "field 0", frozenset),
    ],
)
def test_the_error_names_the_place_and_the_type(entry, where, found):
    with pytest.raises(BadEntry) as refused:
        freeze(entry)
    assert refused.value.where == where and refused.value.found is found
    assert where in str(refused.value) and getattr(found, "__name__", "?") in str(refused.value)


@dataclass
class Unset:
    first: int
    second: Any = None

    def __post_init__(self) -> None:
        del self.first


def test_a_field_without_a_value_is_named():
    with pytest.raises(BadEntry, match="first"):
        freeze(Unset(1))
    with pytest.raises(BadEntry, match="first"):
        freeze((1, [Unset(1)]))


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_too_deep_is_refused(kind):
    deep: Any = 1
    for _ in range(DEPTH_MAX + 5):
        deep = {"k": deep} if kind is dict else kind([deep])
    with pytest.raises(BadEntry, match=f"deeper than {DEPTH_MAX}"):
        freeze((deep,))


def test_a_key_too_deep_is_refused():
    key: Any = 1
    for _ in range(5_000):
        key = (key,)
    with pytest.raises(BadEntry):
        freeze(({key: 1},))


def test_an_endless_entry_is_refused():
    endless: dict[str, Any] = {}
    endless["self"] = [endless]
    with pytest.raises(BadEntry, match="deeper"):
        freeze((endless,))


@given(entries)
def test_only_the_same_is_the_same(entry):
    fields = freeze(entry)[1]
    has_nan = "nan" in repr(entry).lower()
    assert has_nan or same(fields, freeze(thaw(*freeze(entry)))[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ([1], [1.0]),
        ((1,), [1]),
        ({"a": 1}, {"a": True}),
        ({1: "a"}, {1.0: "a"}),
        ({1: "a"}, {True: "a"}),
        ([float("nan")], [float("nan")]),
        (0, None),
        ("", b""),
    ],
)
def test_what_differs_in_type_differs(one, other):
    assert not same(one, other) and not same(other, one)
