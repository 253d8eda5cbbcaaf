"""The commands of `tupelo pipeline`, found by their entry point. Their dependencies are loaded when
a command runs."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from tupelo.apps.shell import clear_errors, complain
from tupelo.errors import AuditFailed, BadArgument
from tupelo.pipeline import TITLES
from tupelo.pipeline.commands.prompt import (
    Archive,
    Engine,
    Federation,
    Format,
    Logs,
    Master,
    Password,
    Tls,
    packages,
    reading,
    show,
)
from tupelo.pipeline.sql.engines import EngineName, chosen, keep_pandas_out

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tupelo.pipeline.source.locations import LogLike
    from tupelo.pipeline.source.options import ReadOptions


def report(
    logs: Logs,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where the report shall be.")],
    skew: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="So much may the hosts' clocks differ."),
    ] = 0.0,
    archive: Archive = None,
    federation: Federation = False,
    master: Master = None,
    password: Password = None,
    tls: Tls = None,
) -> None:
    """Write what all jobs answer: Parquet tables, and one page with plots.

    Ends with code 1 if the audit finds a fault; the report is written all the same.
    """
    with clear_errors(), packages():
        from tupelo.pipeline import session
        from tupelo.pipeline.reports.report import PAGE, STEPS, place_for, write_report
        from tupelo.pipeline.source.locations import resolve
        from tupelo.pipeline.source.options import ReadOptions
        from tupelo.pipeline.spark import complaints

        options = reading(archive, federation, password, tls)
        found = resolve(ReadOptions.read({**options, "paths": json.dumps(logs)}))
        console = Console(highlight=False, soft_wrap=True)
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        with place_for(to, found) as folder, progress, complaints():
            bar = progress.add_task("starting Spark", total=STEPS + 1)

            def begun(step: str) -> None:
                progress.update(bar, description=step, advance=1)

            faults = write_report(
                session(master), logs, options, folder, datetime.now(UTC), skew, begun
            )
        console.print(f"{to / PAGE}", markup=False)
        if faults:
            raise AuditFailed(faults)


SHOWN_MAX = 100
"""The default number of rows shown."""

To = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Write all rows there, as NAME.parquet, and show none."),
]
Space = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only the logs of this space; several with commas between."),
]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="Show at most so many rows.")]
How = Annotated[Format, typer.Option("--format", help="How rows are shown.")]

app = typer.Typer(no_args_is_help=True, help="The log of what happened, as tables.")


@app.command()
def archive(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="The file of a durable space, the folder of a host, or the address of one.",
        ),
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="The archive.")],
    space: Space = None,
    federation: Federation = False,
    password: Password = None,
    tls: Tls = None,
) -> None:
    """Seal logs into an archive of Parquet files; their spaces may be in use meanwhile."""
    with clear_errors(), packages():
        from tupelo.pipeline.logs.segments import ArchivedLog, Segment, seal, sealed_upto
        from tupelo.pipeline.source.locations import resolve
        from tupelo.pipeline.source.options import ReadOptions

        options = reading(None, federation, password, tls, space=space)
        found = resolve(ReadOptions.read({**options, "paths": json.dumps(logs)}))
        if any(isinstance(log, ArchivedLog) for log in found):
            raise BadArgument("LOG", "a log that lives (what an archive has is sealed)", logs)
        console = Console(highlight=False, soft_wrap=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            for log in found:
                before = sealed_upto(log, to)
                bar = progress.add_task(f"{log.space!r}", total=max(0, log.bounds()[1] - before))

                def completed(segment: Segment, bar: int = bar) -> None:
                    progress.advance(bar, segment.rows)  # type: ignore[arg-type]

                segments = seal(log, to, completed=completed)
                rows = sum(segment.rows for segment in segments)
                upto = segments[-1].last if segments else before
                progress.print(
                    f"{log.space!r} of {log.host}: {rows} changes in {len(segments)} segments,"
                    f" sealed up to {upto}",
                    markup=False,
                )


app.command()(report)


class PipelineCommand:
    """The logs that a command names, and where the result goes."""

    def __init__(
        self,
        logs: list[str],
        options: dict[str, str],
        master: str | None,
        to: Path | None,
        limit: int,
        how: Format,
    ) -> None:
        self._logs = logs
        self._options = options
        self._master = master
        self._to = to
        self._limit = limit
        self._how = how

    def answer(self, name: str, run: Callable[[DataFrame], DataFrame]) -> None:
        """Run a job on Spark, and show its result or write it."""
        from tupelo.pipeline import changes, session
        from tupelo.pipeline.jobs import JOBS
        from tupelo.pipeline.spark import complaints

        file = self._file(name)
        self.logs()
        spark = session(self._master)
        with spark_progress(spark, JOBS[name].title), complaints():
            # Read once: a log that grows would have a different end at each use.
            read = changes(spark, *self._logs, **self._options).drop("payload").persist()
            table = run(read)
            if file is not None:
                table.write.parquet(str(file.resolve()))
                return
            rows: pa.Table = table.orderBy(*JOBS[name].order).limit(self._limit + 1).toArrow()
        self._show(rows)

    def give(self, name: str, rows: pa.Table) -> None:
        """Show a result, or write it."""
        import pyarrow.parquet as pq

        file = self._file(name)
        if file is None:
            self._show(rows)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, file)

    def logs(self) -> tuple[list[LogLike], ReadOptions]:
        """The logs. Raises BadArgument for a space without a log here: its empty result would look
        fine."""
        from tupelo.pipeline.source.locations import resolve
        from tupelo.pipeline.source.options import ReadOptions

        parsed = ReadOptions.read({**self._options, "paths": json.dumps(self._logs)})
        found = resolve(parsed)
        if parsed.spaces is not None:
            existing = {log.space for log in found}
            missing = [repr(name) for name in parsed.spaces if name not in existing]
            if missing or not existing:
                expected = "spaces of which there is a log here"
                raise BadArgument("space", expected, ", ".join(missing) or None)
        return found, parsed

    def _file(self, name: str) -> Path | None:
        file = None if self._to is None else self._to / f"{name}.parquet"
        if file is not None and file.exists():
            raise BadArgument("to", f"a folder without {file.name}", str(self._to))
        return file

    def _show(self, rows: pa.Table) -> None:
        show(rows.slice(0, self._limit), self._how)
        if rows.num_rows > self._limit:
            complain(f"there are more than these {self._limit} rows; see --limit and --to")


@app.command(help=f"{TITLES['audit']}. Ends with code 1 if there is a fault.")
def audit(
    logs: Logs,
    drained: Annotated[
        bool, typer.Option("--drained", help="Nothing should be left: what is there is a fault.")
    ] = False,
    skew: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="So much may the hosts' clocks differ."),
    ] = 0.0,
    space: Space = None,
    archive: Archive = None,
    federation: Federation = False,
    to: To = None,
    limit: Limit = SHOWN_MAX,
    how: How = Format.TABLE,
    engine: Engine = EngineName.AUTO,
    master: Master = None,
    password: Password = None,
    tls: Tls = None,
) -> None:
    with clear_errors(), packages():
        if engine is not EngineName.SPARK:
            keep_pandas_out()
        options = reading(archive, federation, password, tls, space=space)
        command = PipelineCommand(logs, options, master, to, limit, how)
        found, parsed = command.logs()
        rows = sum(last - first + 1 for first, last in (log.bounds() for log in found))
        if chosen(engine, master, rows) is EngineName.DUCKDB:
            from tupelo.pipeline.sql.audit import FAULTS, audited
            from tupelo.pipeline.sql.duck import LogTable

            read = LogTable(found, parsed)
            table, seen = audited(read, drained=drained, skew_seconds=skew)
            command.give("audit", table)
            counts = Counter(table.column("fault").to_pylist())
            faults = {name: counts[name] for name in FAULTS if counts[name]}
        else:
            seen, faults = _audit_on_spark(command, drained, skew)
        console = Console(highlight=False, soft_wrap=True, stderr=how is not Format.TABLE)
        console.print(
            f"{seen['entries']} entries: {seen['living']} are there still, and"
            f" {seen['in_doubt']} are in doubt",
            markup=False,
        )
        if faults:
            raise AuditFailed(faults)
        console.print("no fault was found", markup=False)


def _audit_on_spark(
    command: PipelineCommand, drained: bool, skew: float
) -> tuple[dict[str, Any], dict[str, int]]:
    """How many entries there are, and how many faults of each kind."""
    from pyspark.sql import Observation

    from tupelo.pipeline import jobs

    entries, faults = Observation("entries"), Observation("faults")

    def run(changes: DataFrame) -> DataFrame:
        found = jobs.audit(changes, drained=drained, skew_seconds=skew, observed=entries)
        return found.observe(faults, *jobs.tally())

    command.answer("audit", run)
    return entries.get, {name: count for name, count in faults.get.items() if count}


@app.command(help=f"{TITLES['throughput']}.")
def throughput(
    logs: Logs,
    every: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="Count what is in so many seconds.")
    ] = 1,
    space: Space = None,
    archive: Archive = None,
    federation: Federation = False,
    to: To = None,
    limit: Limit = SHOWN_MAX,
    how: How = Format.TABLE,
    master: Master = None,
    password: Password = None,
    tls: Tls = None,
) -> None:
    with clear_errors(), packages():
        from tupelo.pipeline import jobs

        options = reading(archive, federation, password, tls, space=space)
        PipelineCommand(logs, options, master, to, limit, how).answer(
            "throughput", lambda changes: jobs.throughput(changes, seconds=every)
        )


def _add(name: str, title: str) -> None:
    """Add the command of a job without options of its own."""

    def command(
        logs: Logs,
        space: Space = None,
        archive: Archive = None,
        federation: Federation = False,
        to: To = None,
        limit: Limit = SHOWN_MAX,
        how: How = Format.TABLE,
        master: Master = None,
        password: Password = None,
        tls: Tls = None,
    ) -> None:
        with clear_errors(), packages():
            from tupelo.pipeline.jobs import JOBS

            options = reading(archive, federation, password, tls, space=space)
            PipelineCommand(logs, options, master, to, limit, how).answer(name, JOBS[name].run)

    app.command(name, help=f"{title}.")(command)


for _name, _title in TITLES.items():
    if _name not in ("audit", "throughput"):
        _add(_name, _title)


LOOK_SECONDS = 0.2


@contextmanager
def spark_progress(spark: SparkSession, what: str) -> Iterator[None]:
    """Shows a progress bar on a terminal while Spark works. With Spark Connect the progress is not
    known."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(what, total=None)
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(spark, progress, bar, over), daemon=True)
        if console.is_terminal and hasattr(spark, "_jsc"):
            watch.start()
        try:
            yield
        finally:
            over.set()
            if watch.ident is not None:
                watch.join()


def _watch(spark: SparkSession, progress: Progress, bar: TaskID, over: threading.Event) -> None:
    tracker: Any = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}  # by stage: completed tasks, all tasks
    while not over.wait(LOOK_SECONDS):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = info.numCompletedTasks, info.numTasks
        active = set(tracker.getActiveStageIds())
        done = sum(all_ if stage not in active else some for stage, (some, all_) in seen.items())
        total = sum(all_ for _, all_ in seen.values())
        progress.update(bar, completed=done, total=total or None)
