"""The commands of `tupelo pipeline`, found by their entry point. Their dependencies are loaded when
a command runs."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from importlib.util import find_spec
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
from tupelo.errors import AuditFailed, BadArgument, PipelineError
from tupelo.pipeline import TITLES
from tupelo.pipeline.commands.prompt import (
    ArchiveOption,
    EngineOption,
    FederationOption,
    Format,
    LogsArgument,
    MasterOption,
    PasswordOption,
    TlsOption,
    packages,
    reading,
    show,
)
from tupelo.pipeline.sql.engines import EngineName, chosen, keep_pandas_out

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tupelo.pipeline.logs.log import Log
    from tupelo.pipeline.source.options import ReadOptions


app = typer.Typer(no_args_is_help=True, help="Archive and analyse the log of changes.")

SkewOption = Annotated[
    float,
    typer.Option(
        min=0.0, metavar="SECONDS", help="Largest difference between the clocks of the hosts."
    ),
]
SHOWN_MAX = 100
"""The default number of rows shown."""

ToOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Write all rows to FOLDER/NAME.parquet, and print none."),
]
SpaceOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only the logs of this space; separate several by commas."),
]
LimitOption = Annotated[int, typer.Option(min=1, metavar="N", help="Print at most N rows.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Output format of the rows.")]


class PipelineCommand:
    """The logs that a command names, and where its result goes. The parameters are the options that
    several commands have."""

    def __init__(
        self,
        logs: LogsArgument,
        space: SpaceOption = None,
        archive: ArchiveOption = None,
        federation: FederationOption = False,
        to: ToOption = None,
        limit: LimitOption = SHOWN_MAX,
        how: FormatOption = Format.TABLE,
        master: MasterOption = None,
        password: PasswordOption = None,
        tls: TlsOption = None,
    ) -> None:
        self.locations = logs
        self.options = reading(archive, federation, password, tls, space=space)
        self.how = how
        self.master = master
        self._to = to
        self._limit = limit

    def answer(self, name: str, run: Callable[[DataFrame], DataFrame]) -> None:
        """Run a job on Spark, and show its result or write it."""
        from tupelo.pipeline import changes
        from tupelo.pipeline.jobs import JOBS
        from tupelo.pipeline.reports.names import names_in, with_names, without_names
        from tupelo.pipeline.spark import complaints

        file = self._file(name)
        found, _ = self.logs()
        spark = self.session(found)
        with spark_progress(spark, JOBS[name].title), complaints():
            # Read once: a log that grows would have a different end at each use.
            read = changes(spark, *self.locations, **self.options).drop("payload").persist()
            table = run(read)
            if without_names(table.columns):
                table = with_names(table, names_in(read))
            if file is not None:
                table.write.parquet(str(file.resolve()))
                return
            rows: pa.Table = table.orderBy(*JOBS[name].order).limit(self._limit + 1).toArrow()
        self._show(rows)

    def session(self, logs: Sequence[Log]) -> SparkSession:
        """Start Spark for a program that looks at these logs. Raises CorruptSegment before, if a
        segment is missing or cut off."""
        from tupelo.pipeline import session
        from tupelo.pipeline.source.datasource import sealed_part
        from tupelo.pipeline.spark import CHANGES_FEW, FOR_FEW_CHANGES

        for log in logs:
            if (sealed := sealed_part(log)) is not None:
                sealed.files()
        few = self.master is None and changes_in(logs) <= CHANGES_FEW
        return session(self.master, **(FOR_FEW_CHANGES if few else {}))

    def give(self, name: str, rows: pa.Table) -> None:
        """Show a result, or write it."""
        import pyarrow.parquet as pq

        file = self._file(name)
        if file is None:
            self._show(rows)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, file)

    def logs(self, locations: Sequence[str] = ()) -> tuple[list[Log], ReadOptions]:
        """The logs there, or at the locations of the command. Raises BadArgument for a named space
        without a log, because its empty result would look correct."""
        from tupelo.pipeline.source.locations import resolve
        from tupelo.pipeline.source.options import ReadOptions

        parsed = ReadOptions.read(
            {**self.options, "paths": json.dumps(locations or self.locations)}
        )
        found = resolve(parsed)
        if parsed.spaces is not None:
            existing = {log.space for log in found}
            missing = [name for name in parsed.spaces if name not in existing]
            if missing or not existing:
                expected = (
                    f"spaces with a log here: {', '.join(sorted(existing)) or 'there is none'}"
                )
                raise BadArgument("space", expected, ",".join(missing or parsed.spaces))
        return found, parsed

    def say(self, text: str) -> None:
        """Print a line about the result, apart from rows for another program."""
        wide = Console(highlight=False, soft_wrap=True, stderr=self.how is not Format.TABLE)
        wide.print(text, markup=False)

    def conclude(self, faults: dict[str, int], sound: str) -> None:
        """Raise AuditFailed if there are faults; otherwise say that there are none."""
        if any(faults.values()):
            raise AuditFailed({name: count for name, count in faults.items() if count})
        self.say(sound)

    def _file(self, name: str) -> Path | None:
        file = None if self._to is None else self._to / f"{name}.parquet"
        if file is not None and file.exists():
            raise BadArgument("to", f"a folder without {file.name}", str(self._to))
        return file

    def _show(self, rows: pa.Table) -> None:
        show(rows.slice(0, self._limit), self.how)
        if rows.num_rows > self._limit:
            complain(f"there are more than these {self._limit} rows; see --limit and --to")


def changes_in(logs: Sequence[Log]) -> int:
    """The number of changes in these logs."""
    from tupelo.pipeline.source.locations import bounds_of

    return sum(last - first + 1 for first, last in map(bounds_of, logs))


_COMMON = inspect.signature(PipelineCommand, eval_str=True).parameters
_LOGS = ("logs", "space", "archive", "federation", "password", "tls")


def _command(
    *common: str, name: str | None = None, help: str | None = None, short_help: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the command of `function(command, **options)`: the options are those of the function, and
    the `common` ones make the PipelineCommand."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        own = [*inspect.signature(function, eval_str=True).parameters.values()][1:]
        logs = [_COMMON[each] for each in common if each == "logs"]
        parameters = [*logs, *own, *(_COMMON[each] for each in common if each != "logs")]

        def run(**given: Any) -> None:
            with clear_errors(), packages():
                options = {"logs": [], **{each: given.pop(each) for each in common}}
                command = PipelineCommand(**options)
                function(command, **given)

        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        text = help or inspect.getdoc(function)
        app.command(name or function.__name__, help=text, short_help=short_help)(run)
        return function

    return add


@_command("logs", "space", "federation", "password", "tls")
def archive(
    command: PipelineCommand,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The archive.")],
) -> None:
    """Seal logs (copy them to an archive of Parquet files). Their spaces may be in use."""
    from tupelo.pipeline.logs.segments import ArchivedLog, Segment, seal, sealed_upto
    from tupelo.pipeline.reports.names import hosts_in

    found, _ = command.logs()
    if any(isinstance(log, ArchivedLog) for log in found):
        raise BadArgument("LOG", "a log that lives (what an archive has is sealed)")
    names = hosts_in(found).known
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
                f"{log.space!r} of {names.get(log.host, log.host)}: {rows} changes in"
                f" {len(segments)} segments, sealed up to {upto}",
                markup=False,
            )


@app.command()
def compact(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="A folder of sealed logs.")],
) -> None:
    """Join small segments of an archive. Other programs may seal and read at the same time."""
    with clear_errors(), packages():
        from tupelo.pipeline.logs import segments
        from tupelo.pipeline.reports.names import hosts_in

        console = Console(highlight=False, soft_wrap=True)
        logs = segments.Archive(archive).logs()
        if not logs:
            raise BadArgument("ARCHIVE", "a folder of sealed logs", str(archive))
        names = hosts_in(logs).known
        for log in logs:
            before = len(log.segments)
            made = segments.compact(log)
            after = len(segments.ArchivedLog(log.folder).segments)
            told = f"{before} segments, now {after}" if made else f"{before} segments, as before"
            host = names.get(log.host, log.host)
            console.print(f"{log.space!r} of {host}: {told}", markup=False)


class ExportFormat(Enum):
    """Formats of a copy."""

    DELTA = "delta"


@_command(*_LOGS)
def export(
    command: PipelineCommand,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The table.")],
    how: Annotated[
        ExportFormat, typer.Option("--format", help="The format of the table.")
    ] = ExportFormat.DELTA,
) -> None:
    """Copy logs to a table for other engines, or add the new changes to the table."""
    if find_spec("deltalake") is None:
        raise PipelineError('this needs deltalake: pip install "tupelo[delta]"')
    from tupelo.pipeline.logs import delta
    from tupelo.pipeline.reports.names import hosts_in

    found, _ = command.logs()
    names = hosts_in(found).known
    console = Console(highlight=False, soft_wrap=True)
    for log in found:
        host, added = names.get(log.host, log.host), delta.export(log, to)
        console.print(f"{log.space!r} of {host}: {added} changes added", markup=False)


@_command(*_LOGS, "master")
def watch(
    command: PipelineCommand,
    to: Annotated[
        str,
        typer.Option(metavar="URL", help="Space to write the anomalies to: tupelo://host/space."),
    ],
    checkpoint: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder for the state; use the same folder when you start again."
        ),
    ],
    every: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Length of a window.")] = 60,
    grows: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Report a backlog that grows by N entries in a window."
        ),
    ] = 1_000,
    quiet: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="SECONDS", help="Report a worker without a take for this time."
        ),
    ] = 300,
    slow: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="SECONDS", help="Report if one of ten entries waits this long."
        ),
    ] = None,
    lease: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECONDS", help="Lease of the anomalies.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Check the present changes, and end.")
    ] = False,
) -> None:
    """Write an entry (an anomaly) to a space when a backlog grows, a worker takes nothing, or
    latency is high."""
    from tupelo.pipeline import anomalies, session
    from tupelo.pipeline.spark import complaints

    command.logs()  # Raises errors before Spark is started.
    options = command.options
    limits = anomalies.Limits(seconds=every, grows=grows, quiet=quiet, slow=slow)
    spark = session(command.master, **{"spark.sql.shuffle.partitions": 2})
    with complaints():
        stream = spark.readStream.format("tupelo").options(
            **options, paths=json.dumps(command.locations)
        )
        place = str(checkpoint.resolve())
        of_sink: dict[str, str] = {
            name: options[name] for name in ("password", "tls") if name in options
        }
        if lease is not None:
            of_sink["lease"] = str(lease)
        query = anomalies.watch(stream.load(), to, place, limits, once=once, **of_sink)
        query.awaitTermination()


@_command("logs", "archive", "federation", "master", "password", "tls")
def report(
    command: PipelineCommand,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the report.")],
    skew: SkewOption = 0.0,
    notebook: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write the code of the report as a notebook (.ipynb)."
        ),
    ] = None,
) -> None:
    """Run all jobs, and write Parquet tables and one page with plots.

    If the audit finds a fault, the exit code is 1, and the report is still written.
    """
    from tupelo.pipeline.reports.notebook import notebook_of
    from tupelo.pipeline.reports.report import PAGE, STEPS, place_for, write_report
    from tupelo.pipeline.spark import complaints

    if notebook is not None and notebook.exists():  # It may have been changed.
        raise BadArgument("notebook", "a file that does not exist yet", str(notebook))
    found, _ = command.logs()
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
            command.session(found),
            command.locations,
            command.options,
            folder,
            datetime.now(UTC),
            skew,
            begun,
        )
    console.print(f"{to / PAGE}", markup=False)
    if notebook is not None:
        notebook.write_text(
            notebook_of(command.locations, command.options, command.master, skew), encoding="utf-8"
        )
        console.print(f"{notebook}", markup=False)
    if faults:
        raise AuditFailed(faults)


def audit(
    command: PipelineCommand,
    drained: Annotated[
        bool, typer.Option("--drained", help="Report every entry that is left as a fault.")
    ] = False,
    skew: SkewOption = 0.0,
    engine: EngineOption = EngineName.AUTO,
) -> None:
    if engine is not EngineName.SPARK:
        keep_pandas_out()
    found, parsed = command.logs()
    if chosen(engine, command.master, changes_in(found)) is EngineName.DUCKDB:
        from tupelo.pipeline.reports.names import names_of
        from tupelo.pipeline.sql.audit import FAULTS, audited
        from tupelo.pipeline.sql.duck import LogTable

        read = LogTable(found, parsed)
        table, seen = audited(read, drained=drained, skew_seconds=skew)
        names = names_of(found if table.num_rows else [])
        command.give("audit", names.beside(table))
        counts = Counter(table.column("fault").to_pylist())
        faults = {name: counts[name] for name in FAULTS}
    else:
        seen, faults = _audit_on_spark(command, drained, skew)
    command.say(
        f"{seen['entries']} entries: {seen['living']} are there still, and"
        f" {seen['in_doubt']} are in doubt"
    )
    command.conclude(faults, "no fault was found")


def _audit_on_spark(
    command: PipelineCommand, drained: bool, skew: float
) -> tuple[dict[str, Any], dict[str, int]]:
    """The number of entries, and the number of each fault."""
    from pyspark.sql import Observation

    from tupelo.pipeline import jobs

    entries, faults = Observation("entries"), Observation("faults")

    def run(changes: DataFrame) -> DataFrame:
        found = jobs.audit(changes, drained=drained, skew_seconds=skew, observed=entries)
        return found.observe(faults, *jobs.tally())

    command.answer("audit", run)
    return entries.get, faults.get


def throughput(
    command: PipelineCommand,
    every: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="Length of an interval.")
    ] = 1,
) -> None:
    from tupelo.pipeline import jobs

    command.answer("throughput", lambda changes: jobs.throughput(changes, seconds=every))


def conformance(
    command: PipelineCommand,
    law: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAW",
            help="Check this law; repeatable. Laws: isolation, once per session, atomic engagement"
            " (the default is these three), fifo per source, total order.",
        ),
    ] = None,
    skew: SkewOption = 1.0,
) -> None:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    from tupelo.pipeline import jobs

    broken = Observation("broken")
    if law and not {*law} <= jobs.LAWS.keys():  # before Spark is started
        raise BadArgument("law", f"some of {', '.join(jobs.LAWS)}", ", ".join(law))

    def run(changes: DataFrame) -> DataFrame:
        found = jobs.conformance(changes, laws=law or None, skew_seconds=skew)
        tally = [f.count(f.when(f.col("law") == name, 1)).alias(name) for name in jobs.LAWS]
        return found.observe(broken, *tally)

    command.answer("conformance", run)
    command.conclude(broken.get, "no violation was found")


@_command("space", "to", "limit", "how", "master")
def seeds(
    command: PipelineCommand,
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="contacts, delivery, latency, order, overhead, partitions, spread or waiting.",
        ),
    ],
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="The logs of each run: an archive, or a folder of hosts' folders. Its name has the"
            " setting and the seed (`loss=0.1 seed=3`); else runs are numbered.",
        ),
    ],
) -> None:
    """Figures of a job over runs with several seeds: means with confidence intervals (95 %)."""
    from tupelo.pipeline import changes
    from tupelo.pipeline.jobs.seeds import FIGURES, Run, over_seeds
    from tupelo.pipeline.spark import complaints

    if job not in FIGURES:  # before Spark is started
        raise BadArgument("job", f"one of {', '.join(FIGURES)}", job)
    places = {run: _logs_of_run(Path(run)) for run in runs}
    spark = command.session([log for logs in places.values() for log in command.logs(logs)[0]])

    def each() -> Iterator[Run]:
        for number, (run, logs) in enumerate(places.items(), 1):
            name = Path(run).resolve().name
            seed = _SEED.search(name)
            setting = "" if seed is None else _SEED.sub("", name).strip()
            read = changes(spark, *logs, **command.options).drop("payload").persist()
            yield Run(setting, number if seed is None else int(seed[1]), read)
            read.unpersist()

    with spark_progress(spark, f"{job} of {len(places)} runs"), complaints():
        table = over_seeds(job, each())
    command.give(f"{job}-seeds", table)


_SEED = re.compile(r"[ ,_]*seed=(\d+)")


def _logs_of_run(run: Path) -> list[str]:
    """The folders of hosts in this one; without any, the folder itself."""
    from tupelo.federation.hosts.folder import SPACE_FILE

    hosts = sorted(file.parent for file in run.glob(f"*/*{SPACE_FILE}"))
    return [str(host) for host in dict.fromkeys(hosts)] or [str(run)]


def _run(name: str, command: PipelineCommand) -> None:
    from tupelo.pipeline.jobs import JOBS

    command.answer(name, JOBS[name].run)


_OWN: dict[str, tuple[Callable[..., None], str]] = {
    "audit": (audit, " The exit code is 1 if there is a fault."),
    "throughput": (throughput, ""),
    "conformance": (conformance, " The exit code is 1 if a law is broken."),
}
for _name, _title in TITLES.items():
    _function, _more = _OWN.get(_name, (partial(_run, _name), ""))
    _short = _title.partition(": ")[2]  # The list of commands has the name beside it.
    _short = f"{_short[0].upper()}{_short[1:]}."
    _command(*_COMMON, name=_name, help=f"{_title}.{_more}", short_help=_short)(_function)


LOOK_SECONDS = 0.2


@contextmanager
def spark_progress(spark: SparkSession, what: str) -> Iterator[None]:
    """Shows a progress bar on a terminal while Spark works. Spark Connect does not report its
    progress."""
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
