"""Rows on the screen: as a table for people, as CSV, or as JSON."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tupelo.errors import BadArgument

if TYPE_CHECKING:
    import pyarrow as pa

WIDTH_MAX = 100_000
"""A line in a file is broken after so many characters."""


class Format(Enum):
    """How rows are shown."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def show(rows: pa.Table, how: Format) -> None:
    if not rows.num_columns:
        return  # The statement did something, and has no answer.
    match how:
        case Format.TABLE:
            _show_table(rows)
        case Format.CSV:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(rows.column_names)
            writer.writerows([text_of(value) for value in row] for row in values(rows))
        case Format.JSON:
            _show_json(rows)


def values(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows, as Python has them."""
    for batch in rows.to_batches():
        columns = [column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns]
        yield from zip(*columns, strict=True)


def text_of(value: object) -> str:
    """A value in a cell; nothing is null."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)  # also what is not finite, which JSON cannot say
    return msgspec.json.encode(value).decode().strip('"')


def _show_table(rows: pa.Table) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for field in rows.schema:
        is_number = str(field.type).startswith(("int", "double", "float", "decimal"))
        table.add_column(Text(field.name), justify="right" if is_number else "left")
    for row in values(rows):
        table.add_row(*(Text(_printable(text_of(value))) for value in row))
    console = Console()
    if not console.is_terminal:  # There is no edge at which to break.
        wide = console.options.update(max_width=WIDTH_MAX)
        console.width = console.measure(table, options=wide).maximum
    console.print(table)


def _printable(text: str) -> str:
    """An entry may hold what would move the cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _show_json(rows: pa.Table) -> None:
    names = rows.column_names
    if len(set(names)) < len(names):
        raise BadArgument("format", "table or csv: two columns have one name", "json")
    lines = (
        msgspec.json.encode(dict(zip(names, row, strict=True))).decode() for row in values(rows)
    )
    print("[" + ",\n".join(lines) + "]")
