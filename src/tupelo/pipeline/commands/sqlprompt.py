"""The command `tupelo sql "select kind, count(*) from jobs group by kind"`.

Every space with a log is a table by its name, and `changes` has all of them. A table is created
when Spark does not find it, so that only the spaces in the statement are read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tupelo.apps.hosting import LISTEN
from tupelo.apps.shell import clear_errors, complain
from tupelo.errors import BadArgument, CannotReach, PipelineError, UnknownTable
from tupelo.pipeline.commands.prompt import (
    Archive,
    Federation,
    Format,
    Master,
    Password,
    Tls,
    complaints,
    packages,
    reading,
    show,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ALL = "changes"
"""The table of all logs, including a space of this name."""
SHOWN_MAX = 1_000
"""The default number of rows shown as a table."""

_QUESTION = re.compile(
    r"[\s(]*(select|with|from|values|table|show|describe|desc|explain)\b", re.IGNORECASE
)
_QUOTED = re.compile(
    r"\br'[^']*' | \br\"[^\"]*\" | '(?:[^'\\]|\\.)*' | \"(?:[^\"\\]|\\.)*\" | `[^`]*`"
    r" | --[^\r\n]* | /\*.*?\*/",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
"""Strings, quoted names and comments, as Spark reads them."""
_WRITING = re.compile(r"\b(insert|update|delete|merge|reflect|try_reflect|java_method)\b", re.I)
"""Words that write within a query, or call something other than SQL."""
_MISSING = "TABLE_OR_VIEW_NOT_FOUND"
_NOT_A_FILE = "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"
"""Spark's error for tupelo.presence, which it reads like parquet.`a/file`."""
_PART = re.compile(r"`((?:[^`]|``)*)`")
_SAYS_IT_ALL = "SQLQueryContextLogger"
"""Spark's logger that prints every failing statement with its stack."""


def sql(
    statement: Annotated[
        str, typer.Argument(metavar="STATEMENT", help="SQL; each space is a table by its name.")
    ],
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOG",
            help="The file of a durable space, the folder or the address of a host, or an archive;"
            f" repeatable. If not given, the host at {LISTEN}.",
        ),
    ] = None,
    archive: Archive = None,
    federation: Federation = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="The entries at this position or time, instead of changes."
        ),
    ] = None,
    entry: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE", help='Entries such as "name string, size long" have columns f.name.'
        ),
    ] = None,
    master: Master = None,
    how: Annotated[Format, typer.Option("--format", help="How rows are shown.")] = Format.TABLE,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help=f"At most N rows; of a table {SHOWN_MAX} if not given."
        ),
    ] = None,
    password: Password = None,
    tls: Tls = None,
) -> None:
    """Ask in SQL what has happened, at a host or in an archive."""
    with clear_errors(), packages():
        from tupelo.pipeline import session

        if not is_question(statement):
            expected = "a question: select, with, values, show, describe or explain"
            raise BadArgument("STATEMENT", expected, statement)
        locations = on or [f"tupelo://{LISTEN}/"]
        options = reading(archive, federation, password, tls, asOf=as_of, entry=entry)
        try:
            known = places(locations, options)
        except CannotReach as error:
            if on is not None:
                raise
            raise PipelineError(f"{error}; say with --on where the logs are") from error
        if limit is None and how is Format.TABLE:
            limit = SHOWN_MAX
        with Console(stderr=True).status("Asking Spark"), complaints():
            more = None if limit is None else limit + 1
            rows = ask(session(master), statement, known, options, more)
        show(rows.slice(0, limit), how)
        if limit is not None and rows.num_rows > limit:
            complain(f"there are more than these {limit} rows; see --limit")


def is_question(statement: str) -> bool:
    """Whether the statement only reads. Statements that write are refused here."""
    plain = _QUOTED.sub(" ", statement)
    return _QUESTION.match(statement) is not None and _WRITING.search(plain) is None


def places(locations: Sequence[str], options: Mapping[str, str]) -> dict[str, list[str]]:
    """The locations of the logs of each space, and of `changes`."""
    from tupelo.pipeline.source.locations import resolve
    from tupelo.pipeline.source.options import ReadOptions

    found: dict[str, list[str]] = {}
    for location in locations:
        logs = resolve(ReadOptions.read({**options, "path": location}))
        for space in sorted({log.space for log in logs}):
            found.setdefault(space, []).append(location)
    return {**found, ALL: list(locations)}


def ask(
    spark: SparkSession,
    statement: str,
    known: Mapping[str, Sequence[str]],
    options: Mapping[str, str],
    limit: int | None = None,
) -> pa.Table:
    """The result of the statement. Raises UnknownTable for a table without a log."""
    from pyspark.errors import AnalysisException
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger(_SAYS_IT_ALL).setLevel(logging.CRITICAL)
    made: list[str] = []
    wanted = list(known) if statement.lower().split()[:1] == ["show"] else []
    try:
        while True:
            for name in wanted:
                _make(spark, name, known[name], options)
                made.append(name)
            try:
                answer = spark.sql(statement)
                return (answer if limit is None else answer.limit(limit)).toArrow()
            except AnalysisException as error:
                parameters = error.getMessageParameters() or {}
                if error.getCondition() == _NOT_A_FILE and "tupelo" in parameters.values():
                    raise PipelineError(
                        "a name with a dot in it is quoted: `tupelo.presence`"
                    ) from error
                if error.getCondition() != _MISSING:
                    raise
                wanted = [_table(_PART.findall(parameters.get("relationName", "")), known)]
                if wanted[0] in made:  # It was created, but is not what Spark looks for.
                    raise
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def _table(parts: Sequence[str], known: Mapping[str, Sequence[str]]) -> str:
    """The table of this name, ignoring case, as Spark does."""
    table = ".".join(part.replace("``", "`") for part in parts)
    alike = [name for name in known if name.casefold() == table.casefold()]
    if ALL in alike:
        alike = [ALL]
    if not alike or len(parts) > 1:
        raise UnknownTable(table, sorted(known), quote=bool(alike))
    if len(alike) > 1:
        raise PipelineError(
            f"SQL cannot tell the spaces {', '.join(sorted(alike))} from each other:"
            f" ask {ALL} where space = '{table}'"
        )
    return alike[0]


def _make(
    spark: SparkSession, name: str, locations: Sequence[str], options: Mapping[str, str]
) -> None:
    from tupelo.pipeline import changes

    table_options = dict(options)
    all_logs = name == ALL
    listed = name == name.strip() and "," not in name  # otherwise the option could not express it
    if not all_logs and listed:
        table_options["space"] = name
    table = changes(spark, *locations, **table_options)
    if not all_logs and not listed:
        table = table.where(table["space"] == name)
    quoted = name.replace("`", "``")
    table.createOrReplaceTempView(f"`{quoted}`")
