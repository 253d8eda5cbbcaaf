"""The command `tupelo sql "select kind, count(*) from jobs group by kind"`, and its prompt."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tupelo.apps.hosting import LISTEN
from tupelo.apps.shell import clear_errors, complain, in_words
from tupelo.errors import BadArgument, CannotReach, PipelineError, TupeloError
from tupelo.pipeline.commands.prompt import (
    ArchiveOption,
    EngineOption,
    FederationOption,
    Format,
    MasterOption,
    PasswordOption,
    TlsOption,
    packages,
    reading,
    show,
)
from tupelo.pipeline.sql.engines import EngineName, chosen, keep_pandas_out, started
from tupelo.pipeline.sql.statements import (
    asks_for_tables,
    described_table,
    is_complete,
    is_question,
    on_one_line,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tupelo.pipeline.sql import tables as sql_tables

SHOWN_MAX = 1_000
"""The default number of rows shown as a table."""
HISTORY_MAX = 1_000

_HELP = """\
A statement ends with a semicolon, and may have several lines.
.tables          list the tables
.schema [TABLE]  list the columns of a table, or of all tables
.help            print this help
.quit            end the prompt, as Ctrl-D does; Ctrl-C clears the line
"""


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="STATEMENT",
            help="A SQL statement; each space is a table with its name. Default: a prompt.",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOG",
            help="The file of a durable space, the folder or the address of a host, the URL of a"
            " database, or the folder of an archive;"
            f" repeatable. Default: the host at {LISTEN}.",
        ),
    ] = None,
    archive: ArchiveOption = None,
    federation: FederationOption = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="Query the entries at this position or time, not the changes."
        ),
    ] = None,
    entry: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE",
            help='Field types such as "name string, size long"; adds columns such as f.name.',
        ),
    ] = None,
    engine: EngineOption = EngineName.AUTO,
    master: MasterOption = None,
    how: Annotated[
        Format, typer.Option("--format", help="Output format of the rows.")
    ] = Format.TABLE,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help=f"At most N rows; the default for a table is {SHOWN_MAX}."
        ),
    ] = None,
    password: PasswordOption = None,
    tls: TlsOption = None,
) -> None:
    """Query changes and present entries in SQL, at a host or in an archive."""
    with clear_errors(), packages():
        if engine is not EngineName.SPARK:
            keep_pandas_out()
        options = reading(archive, federation, password, tls, asOf=as_of, entry=entry)
        if limit is None and how is Format.TABLE:
            limit = SHOWN_MAX
        with SqlSession(on, options, engine, master, limit, how) as session:
            if statement is None:
                SqlPrompt(session).run()
            else:
                session.answer(statement)


INTERRUPT_SECONDS = 0.25


@contextmanager
def _plain_interrupts() -> Iterator[None]:
    """Ctrl-C is KeyboardInterrupt, and not the handler of Spark, which would wait for its JVM.

    Python's `input` overlooks a Ctrl-C between its prompt and its wait for a key. The timer
    interrupts that wait, and then `input` sees the Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return
    wanted = {signal.SIGALRM: lambda *_: None, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    signal.setitimer(signal.ITIMER_REAL, INTERRUPT_SECONDS, INTERRUPT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


class SqlSession:
    """Answers statements on the logs at some locations. The engine starts with the first statement
    that needs it."""

    def __init__(
        self,
        on: Sequence[str] | None,
        options: Mapping[str, str],
        engine: EngineName,
        master: str | None,
        limit: int | None,
        how: Format,
    ) -> None:
        self._on = on
        self._options = options
        self._wanted = engine
        self._master = master
        self._limit = limit
        self._how = how
        self._engine: sql_tables.SqlEngine | None = None
        self._open = ExitStack()

    def __enter__(self) -> SqlSession:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def tables(self) -> sql_tables.Tables:
        """The tables, as they are now."""
        from tupelo.pipeline.sql.tables import Tables

        try:
            return Tables(self._on or [f"tupelo://{LISTEN}/"], self._options)
        except CannotReach as error:
            if self._on is not None:
                raise
            raise PipelineError(f"{error}; say with --on where the logs are") from error

    def answer(self, statement: str) -> None:
        """Show the result of a statement."""
        if not is_question(statement):
            expected = "a question: select, with, values, show, describe or explain"
            raise BadArgument("STATEMENT", expected, statement)
        tables = self.tables()
        if asks_for_tables(statement):
            self.show(tables.listed())
        elif (parts := described_table(statement)) is not None:
            self.show(tables.described(tables.named(parts)))
        else:
            engine = self.engine(tables)
            with Console(stderr=True).status(f"Asking {engine.name}"):
                more = None if self._limit is None else self._limit + 1
                rows = engine.ask(statement, tables, more)
            self.show(rows)

    def engine(self, tables: sql_tables.Tables) -> sql_tables.SqlEngine:
        if self._engine is None:
            name = chosen(self._wanted, self._master, tables.rows)
            with Console(stderr=True).status(f"Starting {name.value}"):
                self._engine = self._open.enter_context(started(name, self._master))
        return self._engine

    def show(self, rows: pa.Table) -> None:
        show(rows.slice(0, self._limit), self._how)
        if self._limit is not None and rows.num_rows > self._limit:
            complain(f"there are more than these {self._limit} rows; see --limit")


class SqlPrompt:
    """Reads statements from a terminal or a pipe. In a pipe the first error ends it."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self._typed = sys.stdin.isatty()
        self._begun = ""

    def run(self) -> None:
        """Answer statements until the input ends."""
        if self._typed:
            tables = self._session.tables()
            engine = self._session.engine(tables)
            print(f"{len(tables.names)} tables, {tables.rows:,} changes, by {engine.name}.")
            print("A statement ends with a semicolon; .help tells the commands.")
        with history() if self._typed else nullcontext():
            while (line := self._read()) is not None:
                if not self._begun and line.strip().startswith("."):
                    if line.split()[0] in (".quit", ".exit"):
                        return
                    self._try(line.strip())
                    continue
                self._begun += line + "\n"
                if is_complete(self._begun) or not self._begun.strip():
                    self._end()
            self._end()

    def _read(self) -> str | None:
        """The next line; None at the end."""
        while True:
            try:
                with _plain_interrupts():
                    return input(("...> " if self._begun else "sql> ") if self._typed else "")
            except EOFError:
                return None
            except KeyboardInterrupt:
                print()
                self._begun = ""

    def _end(self) -> None:
        statement, self._begun = self._begun.strip(), ""
        if statement:
            self._try(statement)

    def _try(self, text: str) -> None:
        if not self._typed:
            self._answer(text)
            return
        import readline

        readline.add_history(on_one_line(text))
        try:
            self._answer(text)
        except TupeloError as error:
            complain(in_words(error))
        except KeyboardInterrupt:
            complain("stopped")

    def _answer(self, text: str) -> None:
        command, *names = text.split(maxsplit=1)
        if not command.startswith("."):
            self._session.answer(text)
        elif command == ".help":
            print(_HELP, end="")
        elif command == ".tables":
            self._session.show(self._session.tables().listed())
        elif command == ".schema":
            tables = self._session.tables()
            for name in [tables.named([names[0].strip("`")])] if names else tables.names:
                print(name)
                self._session.show(tables.described(name))
        else:
            raise BadArgument("command", ".tables, .schema, .help or .quit", command)


@contextmanager
def history() -> Iterator[None]:
    """Make lines editable, with the history of earlier prompts."""
    import readline

    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path.home() / ".local" / "state"
    file = state / "tupelo" / "sql_history"
    readline.set_auto_history(False)
    with suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_history_length(HISTORY_MAX)
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(file)
