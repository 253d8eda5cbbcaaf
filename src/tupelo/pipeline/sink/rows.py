"""Rows as entries: columns become the fields of tuples, or of a declared dataclass."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from itertools import repeat
from typing import Any, get_type_hints
from uuid import UUID

import pyarrow as pa
from pyspark.sql import types as spark

from tupelo.errors import CannotSink
from tupelo.pipeline.declared import imported, plain_type
from tupelo.values.entry import SCALARS, Shape, shape_of, types_of
from tupelo.values.kind import Kind, kind_of

Item = tuple[Shape, tuple[Any, ...]]
"""An entry as a space keeps it."""

_SCALARS: dict[type[spark.DataType], type] = {
    spark.StringType: str,
    spark.ByteType: int,
    spark.ShortType: int,
    spark.IntegerType: int,
    spark.LongType: int,
    spark.FloatType: float,
    spark.DoubleType: float,
    spark.BooleanType: bool,
    spark.BinaryType: bytes,
    spark.TimestampType: datetime,
    spark.TimestampNTZType: datetime,
    spark.DecimalType: Decimal,
}


class Encoding:
    """How the rows of one schema become entries: of the dataclass that is named so, or tuples; of
    these columns, those at some places being texts of UUIDs, and those at others never null."""

    def __init__(
        self, name: str | None, columns: list[str], uuids: list[int], never_null: list[int]
    ) -> None:
        self._name = name
        self._columns = columns
        self._uuids = uuids
        self._never_null = never_null

    def entries(self, batch: pa.RecordBatch) -> list[Item]:
        """The entries of some rows. CannotSink if one of them does not fit."""
        for place in self._never_null:
            name = self._columns[place]
            if batch.column(name).null_count:
                raise CannotSink(
                    f"the column {name} is null in some row, and in {self._name} it is never None"
                )
        columns = [batch.column(name).to_pylist() for name in self._columns]
        for place in self._uuids:
            columns[place] = [self._uuid(place, text) for text in columns[place]]
        kind = None if self._name is None else kind_of(imported(self._name))
        rows = zip(*columns, strict=True)
        if batch.num_rows and not any(batch.column(name).null_count for name in self._columns):
            # The values of a column are of one type then, and the entries of one shape.
            one = shape_of(kind, tuple([type(column[0]) for column in columns]))
            return list(zip(repeat(one, batch.num_rows), rows, strict=True))
        shapes: dict[tuple[type, ...], Shape] = {}
        items = []
        for fields in rows:
            types = types_of(fields)
            shape = shapes.get(types)
            if shape is None:
                shape = shapes[types] = shape_of(kind, types)
            items.append((shape, fields))
        return items

    def _uuid(self, place: int, text: str | None) -> UUID | None:
        try:
            return None if text is None else UUID(text)
        except ValueError:
            raise CannotSink(
                f"the column {self._columns[place]} is {text!r} in some row, which is no UUID"
            ) from None


def encoding_of(schema: spark.StructType, entry: str | None) -> Encoding:
    """How such rows become entries. CannotSink if they cannot."""
    kinds = {field.name: _python_type(field.name, field.dataType) for field in schema.fields}
    if len(kinds) != len(schema.fields):
        raise CannotSink("two columns have the same name")
    if not kinds:
        raise CannotSink("rows without columns are no entries")
    if entry is None:
        return Encoding(None, list(kinds), [], [])
    hints = _declared(entry, kinds)
    columns = list(hints)
    uuids = [
        place
        for place, name in enumerate(columns)
        if kinds[name] is str and plain_type(hints[name]) is UUID
    ]
    never_null = [place for place, name in enumerate(columns) if hints[name] in SCALARS]
    return Encoding(entry, columns, uuids, never_null)


def _declared(entry: str, kinds: dict[str, type]) -> dict[str, Any]:
    """The fields of a dataclass in their order, and what it says of their types."""
    cls = imported(entry)
    kind: Kind = kind_of(cls)
    hints = get_type_hints(cls)
    missing = [name for name in kind.names if name not in kinds]
    extra = [name for name in kinds if name not in kind.names]
    if missing or extra:
        raise CannotSink(
            f"the columns do not fit {entry}: "
            + "; ".join(
                [f"there is no column {', '.join(missing)}"] * bool(missing)
                + [f"it has no field {', '.join(extra)}"] * bool(extra)
            )
        )
    for name in kind.names:
        hint = plain_type(hints[name])
        if hint in SCALARS and not _fits(kinds[name], hint):
            raise CannotSink(
                f"the column {name} does not fit {entry}: it is {kinds[name].__name__}, and the"
                f" field is {hint.__name__}"
            )
    return {name: hints[name] for name in kind.names}


def _fits(found: type, wanted: type) -> bool:
    return found is wanted or (found is str and wanted is UUID)


def _python_type(name: str, kind: spark.DataType) -> type:
    """What a value of this column is in an entry."""
    found = _SCALARS.get(type(kind))
    if found is not None:
        return found
    if isinstance(kind, spark.ArrayType):
        _python_type(f"{name}[]", kind.elementType)
        return list
    if isinstance(kind, spark.StructType):
        for field in kind.fields:
            _python_type(f"{name}.{field.name}", field.dataType)
        return dict
    raise CannotSink(
        f"the column {name} is {kind.simpleString()}, which no entry can hold: cast it to string,"
        " a number, binary or timestamp"
    )
