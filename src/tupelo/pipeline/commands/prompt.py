"""Common part of the commands: options, the engine and output of rows."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tupelo.errors import BadArgument, PipelineError
from tupelo.pipeline.sql.engines import ROWS_MAX, EngineName

if TYPE_CHECKING:
    import pyarrow as pa


LogsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="LOG...",
        help="The file of a durable space, the folder or the address of a host, the URL of a"
        " database, or the folder of an archive.",
    ),
]
ArchiveOption = Annotated[
    str | None, typer.Option(metavar="DIR", help="Archive with the sealed part of these logs.")
]
FederationOption = Annotated[
    bool, typer.Option("--federation", help="Also read all hosts that this host is connected to.")
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Master of Spark, or sc://... for Spark Connect. Default: this machine.",
    ),
]
EngineOption = Annotated[
    EngineName,
    typer.Option(
        help=f"Engine of the query; auto is DuckDB up to {ROWS_MAX:,} changes, and Spark above or"
        " with --master."
    ),
]
PasswordOption = Annotated[
    str | None,
    typer.Option(
        metavar="WORD", envvar="TUPELO_PASSWORD", help="Password of the spaces at a host."
    ),
]
TlsOption = Annotated[bool | None, typer.Option(help="Connect to hosts with or without TLS.")]


def reading(
    archive: str | None = None,
    federation: bool = False,
    password: str | None = None,
    tls: bool | None = None,
    **others: str | None,
) -> dict[str, str]:
    """The given options, without those that are None."""
    given: Mapping[str, str | None] = {
        "archive": archive,
        "federation": "true" if federation else None,
        "password": password,
        "tls": None if tls is None else str(tls).lower(),
        **others,
    }
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def packages() -> Iterator[None]:
    """Reports a package that is not installed, with the command to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise PipelineError(
            f'the pipeline needs the package {error.name}: pip install "tupelo[pipeline]"'
        ) from error


WIDTH_MAX = 100_000
"""The width of a table that is written to a file or pipe."""


class Format(Enum):
    """Output formats of rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def show(rows: pa.Table, how: Format) -> None:
    if not rows.num_columns:
        return  # a statement without a result
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
    """The rows as Python values."""
    for batch in rows.to_batches():
        columns = [column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns]
        yield from zip(*columns, strict=True)


def text_of(value: object) -> str:
    """A value as text; null is empty."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)  # also for infinity and NaN, which JSON lacks
    return msgspec.json.encode(value).decode().strip('"')


def _show_table(rows: pa.Table) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for field in rows.schema:
        is_number = str(field.type).startswith(("int", "double", "float", "decimal"))
        table.add_column(Text(field.name), justify="right" if is_number else "left")
    for row in values(rows):
        table.add_row(*(Text(_printable(text_of(value))) for value in row))
    console = Console()
    width = console.measure(table, options=console.options.update(max_width=WIDTH_MAX))
    if not console.is_terminal:  # no line width to respect
        console.width = width.maximum
    if rows.num_rows and width.minimum > console.width:
        _show_records(rows, console)
    else:
        console.print(table)


def _show_records(rows: pa.Table, console: Console) -> None:
    """Rows with too many columns for the terminal: a line for each value that is not null."""
    width = max(map(len, rows.column_names))
    for row in values(rows):
        for name, value in zip(rows.column_names, row, strict=True):
            if value is not None:
                line = f"{name:{width}}  {_printable(text_of(value))}"
                console.print(Text(line), soft_wrap=True)
        console.print()


def _printable(text: str) -> str:
    """Escape control characters."""
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
