"""Rows as entries: columns become the fields of tuples, or of a declared dataclass."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
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


class Spelling:
    """How the rows of one schema become entries: of the dataclass that is named so, or tuples; of
    these columns, those at some places being texts of UUIDs."""

    def __init__(self, name: str | None, columns: list[str], uuids: list[int]) -> None:
        self._name = name
        self._columns = columns
        self._uuids = uuids

    def entries(self, batch: pa.RecordBatch) -> list[Item]:
        columns = [batch.column(name).to_pylist() for name in self._columns]
        for place in self._uuids:
            columns[place] = [None if text is None else UUID(text) for text in columns[place]]
        kind = None if self._name is None else kind_of(imported(self._name))
        shapes: dict[tuple[type, ...], Shape] = {}
        items = []
        for fields in zip(*columns, strict=True):
            types = types_of(fields)
            shape = shapes.get(types)
            if shape is None:
                shape = shapes[types] = shape_of(kind, types)
            items.append((shape, fields))
        return items


def spelling_of(schema: spark.StructType, entry: str | None) -> Spelling:
    """How such rows become entries. CannotSink if they cannot."""
    kinds = {field.name: _python_type(field.name, field.dataType) for field in schema.fields}
    if len(kinds) != len(schema.fields):
        raise CannotSink("two columns have the same name")
    if not kinds:
        raise CannotSink("rows without columns are no entries")
    if entry is None:
        columns, wanted = list(kinds), dict.fromkeys(kinds, None)
    else:
        columns, wanted = _declared(entry, kinds)
    uuids = [
        place for place, name in enumerate(columns) if kinds[name] is str and wanted[name] is UUID
    ]
    return Spelling(entry, columns, uuids)


def _declared(entry: str, kinds: dict[str, type]) -> tuple[list[str], dict[str, type | None]]:
    """The fields of a dataclass in their order, and their types where they say a simple one."""
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
    wanted = {name: plain_type(hints[name]) for name in kind.names}
    for name, hint in wanted.items():
        if hint in SCALARS and not _fits(kinds[name], hint):
            raise CannotSink(
                f"the column {name} does not fit {entry}: it is {kinds[name].__name__}, and the"
                f" field is {hint.__name__}"
            )
    return list(kind.names), wanted


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
