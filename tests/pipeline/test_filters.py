"""Filters that Spark pushes down mean here what they mean there, also of nulls."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from tupelo.pipeline.schema import CHANGES
from tupelo.pipeline.source.filters import RowFilter

VALUES: dict[str, list[Any]] = {"session": ["", "a", "ab", "b", None], "n": [-1, 0, 1, 2, None]}
MEANT: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, other: value == other,
    GreaterThan: lambda value, other: value > other,
    GreaterThanOrEqual: lambda value, other: value >= other,
    LessThan: lambda value, other: value < other,
    LessThanOrEqual: lambda value, other: value <= other,
    In: lambda value, others: value in others,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: lambda value, other: other in value,
}


def meant(wish: Any, value: Any) -> bool | None:
    """Whether a filter is true of a value, as SQL has it; None: unknown."""
    if isinstance(wish, IsNull | IsNotNull):
        return (value is None) is isinstance(wish, IsNull)
    if isinstance(wish, Not):
        inner = meant(wish.child, value)
        return None if inner is None else not inner
    return None if value is None else MEANT[type(wish)](value, wish.value)


def plain_filters(column: str) -> list[Any]:
    known = [value for value in VALUES[column] if value is not None]
    made: list[Any] = [IsNull((column,)), IsNotNull((column,))]
    for kind in MEANT:
        if kind is In:
            made += [In((column,), tuple(known[:2])), In((column,), tuple(known[1:]))]
        elif column == "session" or not kind.__name__.startswith("String"):
            made += [kind((column,), value) for value in known]  # type: ignore[call-arg]
    return made


def left_by(wanted: RowFilter, column: str) -> list[Any]:
    batch = pa.record_batch({column: pa.array(VALUES[column], CHANGES.field(column).type)})
    expression = wanted.expression()
    found: list[Any] = batch.filter(expression).column(column).to_pylist()
    return found


@pytest.mark.parametrize("column", VALUES)
def test_every_filter_and_its_negations_choose_what_sql_chooses(column):
    plain = plain_filters(column)
    for wish in [*plain, *map(Not, plain), *(Not(Not(wish)) for wish in plain)]:
        wanted = RowFilter()
        assert wanted.add(wish)
        expected = [value for value in VALUES[column] if meant(wish, value)]
        assert left_by(wanted, column) == expected, wish


def test_two_filters_on_a_column_hold_together():
    plain = plain_filters("session")
    for one, other in product([*plain, *map(Not, plain)], repeat=2):
        wanted = RowFilter()
        assert wanted.add(one) and wanted.add(other)
        expected = [v for v in VALUES["session"] if meant(one, v) and meant(other, v)]
        assert left_by(wanted, "session") == expected, (one, other)


def test_what_was_wanted_before_is_wanted_beside_any_filter():
    for wish in (plain := plain_filters("session")) + list(map(Not, plain)):
        wanted = RowFilter()
        wanted.only("session", ["a", "b"])
        assert wanted.add(wish)
        assert left_by(wanted, "session") == [v for v in ("a", "b") if meant(wish, v)], wish
