"""Filters that Spark pushes down: which rows are wanted, and which parts of a log can be skipped.

A filter with exactly the same meaning in Arrow is applied here; the rest is left to Spark. So are
numbers that may be NaN, which Spark compares differently.

Up to 4.3, Spark keeps the filters of one use of a Python data source with the source, and its other
uses then miss rows (decision 0065). `is_right` lets a later version show that it does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from tupelo.pipeline.schema import CHANGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMPARED = {
    datasource.EqualTo: pc.equal,
    datasource.GreaterThan: pc.greater,
    datasource.GreaterThanOrEqual: pc.greater_equal,
    datasource.LessThan: pc.less,
    datasource.LessThanOrEqual: pc.less_equal,
}
_FOUND_IN = {
    datasource.StringStartsWith: pc.starts_with,
    datasource.StringEndsWith: pc.ends_with,
    datasource.StringContains: pc.match_substring,
}
_TYPES = {name: CHANGES.field(name).type for name in CHANGES.names}
_LEFT = {"waited", "payload"}  # left to Spark


@dataclass
class RowFilter:
    """The wanted rows: those that satisfy `among` and `filters`. `among` lists the allowed values
    of columns, and `between` the range that the filters allow: smallest and largest (None: any)."""

    among: dict[str, frozenset[str]] = field(default_factory=dict)
    between: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    filters: list[datasource.Filter] = field(default_factory=list)

    def add(self, pushed: datasource.Filter) -> bool:
        """Add a filter. False if it cannot be applied here."""
        if _expression(pushed) is None:
            return False
        column = _column(pushed)
        value: Any = getattr(pushed, "value", None)
        match pushed:
            case datasource.EqualTo() if isinstance(value, str):
                self.only(column, [value])
                return True
            case datasource.In() if all(isinstance(one, str) for one in value):
                self.only(column, value)
                return True
            case datasource.EqualTo():
                self._narrow(column, value, value)
            case datasource.In():
                self._narrow(column, min(value), max(value))
            case datasource.GreaterThan() | datasource.GreaterThanOrEqual() if not isinstance(
                value, str
            ):
                self._narrow(column, value, None)
            case datasource.LessThan() | datasource.LessThanOrEqual() if not isinstance(value, str):
                self._narrow(column, None, value)
        self.filters.append(pushed)
        return True

    def only(self, column: str, values: Iterable[str]) -> None:
        """Allow only these values in a column."""
        before = self.among.get(column)
        now = frozenset(values)
        self.among[column] = now if before is None else before & now

    def _narrow(self, column: str, low: Any, high: Any) -> None:
        if isinstance(low or high, datetime):
            low, high = _aware(low), _aware(high)
        least, greatest = self.between.get(column, (None, None))
        if least is not None:
            low = least if low is None else max(low, least)
        if greatest is not None:
            high = greatest if high is None else min(high, greatest)
        self.between[column] = low, high

    def may_be(self, column: str, value: str) -> bool:
        return column not in self.among or value in self.among[column]

    def expression(self) -> pc.Expression | None:
        """The filter of every row; None if there is none."""
        expressions = [e for f in self.filters if (e := _expression(f)) is not None]
        expressions += [_is_in(column, sorted(values)) for column, values in self.among.items()]
        return reduce(and_, expressions) if expressions else None

    @property
    def columns(self) -> set[str]:
        """The columns that the filter needs."""
        return {_column(pushed) for pushed in self.filters} | set(self.among)


def _column(pushed: datasource.Filter) -> str:
    if isinstance(pushed, datasource.Not):
        return _column(pushed.child)
    path: tuple[str, ...] = pushed.attribute  # type: ignore[attr-defined]
    return path[0] if len(path) == 1 else ""


def _expression(pushed: datasource.Filter) -> pc.Expression | None:
    """The filter as an Arrow expression; None if its meaning would differ."""
    column = _column(pushed)
    kind = _TYPES.get(column)
    if kind is None or column in _LEFT:
        return None
    if isinstance(pushed, datasource.Not):
        inner = _expression(pushed.child)
        return None if inner is None else ~inner
    if isinstance(pushed, datasource.IsNull):
        return pc.field(column).is_null()
    if isinstance(pushed, datasource.IsNotNull):
        return pc.field(column).is_valid()
    if isinstance(pushed, datasource.In):
        values = [_scalar(value, kind) for value in pushed.value]
        if not values or None in values:
            return None
        return _is_in(column, [v.as_py() for v in values if v])
    value = _scalar(getattr(pushed, "value", None), kind)
    if value is None:
        return None
    if type(pushed) in _FOUND_IN and pa.types.is_string(kind):
        return _FOUND_IN[type(pushed)](pc.field(column), value.as_py())
    compare = _COMPARED.get(type(pushed))
    return None if compare is None else compare(pc.field(column), value)


def _is_in(column: str, values: list[Any]) -> pc.Expression:
    """For null the result is null, as in Spark, and so is its negation."""
    found = pc.field(column).isin(pa.array(values, _TYPES[column]))
    return pc.if_else(pc.field(column).is_valid(), found, pa.scalar(None, pa.bool_()))


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """The value converted to the type of this column; None if that is impossible."""
    if isinstance(value, datetime):
        return pa.scalar(_aware(value), kind) if pa.types.is_timestamp(kind) else None
    fits = str if pa.types.is_string(kind) else int if pa.types.is_integer(kind) else None
    if fits is None or type(value) is not fits:
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return None


def _aware(value: datetime | None) -> Any:
    """With a time zone: UTC, the session's, if there is none."""
    if value is None or value.tzinfo is not None:
        return value
    from datetime import UTC

    return value.replace(tzinfo=UTC)


# Whether Spark keeps filters apart


FAULTY = (4, 3)
"""The last version of Spark that is known to mix up filters; it is not asked."""

_NUMBERS = range(3)


class NumbersSource(datasource.DataSource):
    """The smallest source with push-down: the rows 0, 1, 2, or those that a filter wants."""

    @classmethod
    def name(cls) -> str:
        return "tupelo_numbers"

    def schema(self) -> str:
        return "n long"

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        return _NumbersReader()


class _NumbersReader(datasource.DataSourceReader):
    def __init__(self) -> None:
        self._wanted = [*_NUMBERS]

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterator[datasource.Filter]:  # noqa: N802
        for pushed in filters:
            if isinstance(pushed, datasource.EqualTo):
                self._wanted = [n for n in self._wanted if n == pushed.value]
            else:
                yield pushed

    def read(self, partition: datasource.InputPartition) -> Iterator[tuple[Any, ...]]:
        return ((n,) for n in self._wanted)


def is_right(spark: SparkSession) -> bool:
    """Whether each use of a table has its own filters in this Spark."""
    return is_later(spark.version) and keeps_filters_apart(spark)


def is_later(version: str) -> bool:
    """Whether this is a later version than those with the fault."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) > FAULTY


def keeps_filters_apart(spark: SparkSession) -> bool:
    """Try it: three uses of one table, with different filters."""
    spark.dataSource.register(NumbersSource)
    table = spark.read.format(NumbersSource.name()).load()
    one, two = table.where("n = 1"), table.where("n = 2")
    try:
        rows = one.unionAll(two).unionAll(table).collect()
    except PySparkException:  # push-down is switched off
        return False
    return sorted(row.n for row in rows) == sorted([1, 2, *_NUMBERS])
