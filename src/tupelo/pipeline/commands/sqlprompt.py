"""SQL at the prompt: `tupelo sql "select kind, count(*) from jobs group by kind"`.

Every space whose log is there is a table by its name, and `changes` is all of them. A table is made
when Spark misses it, so that only the spaces that the statement names are read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tupelo.apps.hosting import LISTEN
from tupelo.apps.spaces import clear_errors, complain
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
"""The table of all the logs. A space of this name is in it, as any other."""
SHOWN_MAX = 1_000
"""So many rows are shown as a table, if nobody says otherwise."""

_QUESTION = re.compile(
    r"[\s(]*(select|with|from|values|table|show|describe|desc|explain)\b", re.IGNORECASE
)
_QUOTED = re.compile(
    r"\br'[^']*' | \br\"[^\"]*\" | '(?:[^'\\]|\\.)*' | \"(?:[^\"\\]|\\.)*\" | `[^`]*`"
    r" | --[^\r\n]* | /\*.*?\*/",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
"""Texts, quoted names and comments, as Spark reads them."""
_WRITING = re.compile(r"\b(insert|update|delete|merge|reflect|try_reflect|java_method)\b", re.I)
"""What writes in a statement that begins as a question, or calls what is not SQL."""
_MISSING = "TABLE_OR_VIEW_NOT_FOUND"
_NOT_A_FILE = "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"
"""So Spark takes tupelo.presence, as it would take parquet.`a/file`."""
_PART = re.compile(r"`((?:[^`]|``)*)`")
_SAYS_IT_ALL = "SQLQueryContextLogger"
"""By this name Spark writes every statement that fails to the screen, with all of its stack."""


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
    """Does it only ask? What would write has no place at this prompt, and goes through Spark."""
    plain = _QUOTED.sub(" ", statement)
    return _QUESTION.match(statement) is not None and _WRITING.search(plain) is None


def places(locations: Sequence[str], options: Mapping[str, str]) -> dict[str, list[str]]:
    """Where there are logs of which spaces. `changes` is everywhere."""
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
    """What the statement asks for. UnknownTable if it names one that is not there."""
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
                if wanted[0] in made:  # It is there, but is not what Spark looks for.
                    raise
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def _table(parts: Sequence[str], known: Mapping[str, Sequence[str]]) -> str:
    """Which of the tables this is. Spark does not tell great letters from small ones."""
    said = ".".join(part.replace("``", "`") for part in parts)
    alike = [name for name in known if name.casefold() == said.casefold()]
    if ALL in alike:
        alike = [ALL]
    if not alike or len(parts) > 1:
        raise UnknownTable(said, sorted(known), quote=bool(alike))
    if len(alike) > 1:
        raise PipelineError(
            f"SQL cannot tell the spaces {', '.join(sorted(alike))} from each other:"
            f" ask {ALL} where space = '{said}'"
        )
    return alike[0]


def _make(
    spark: SparkSession, name: str, locations: Sequence[str], options: Mapping[str, str]
) -> None:
    from tupelo.pipeline import changes

    asked = dict(options)
    whole = name == ALL
    listed = name == name.strip() and "," not in name  # else the option would not say it
    if not whole and listed:
        asked["space"] = name
    table = changes(spark, *locations, **asked)
    if not whole and not listed:
        table = table.where(table["space"] == name)
    quoted = name.replace("`", "``")
    table.createOrReplaceTempView(f"`{quoted}`")
