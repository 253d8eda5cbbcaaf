"""The change log on Spark, against Spark's own ways on the same machine.

Everything runs in one session on two cores. What is sealed is read with all its columns into
Spark's "noop" sink, and with a few of them into an aggregation. Spark does not tell a source that
is written in Python which columns are used: there the option `columns` says it, as the
documentation advises, while `tupelo.pipeline.changes` needs no such word.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

import tupelo
from benchmarks.elsewhere import Elsewhere, run_store
from benchmarks.measure import Line, Settings, Target, compare, require
from benchmarks.report import OUT
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.logs.segments import MANIFEST, Archive, compact, seal
from tupelo.pipeline.schema import COLUMNS, TIME, build

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEALED = 1_000_000
SEGMENTS = 1_000
TAIL, PIECE = 1_000_000, 1_000
TAIL_RATE = 250_000
SUNK = 400_000
HOSTS, EACH = 50, 20_000
BATCH_ROWS, BATCHES, WARM_BATCHES = 10, 40, 10
PATIENCE_SECONDS = 300.0
IDLE_SECONDS = 10.0

FEW = ("kind", "agent", "bytes", "waited")

Read = Callable[[], "DataFrame"]


def run(settings: Settings) -> list[Line]:
    with _session() as (spark, directory):
        return [
            _started(settings),
            *_sealed(settings, spark, directory),
            _one_of_many(settings, spark, directory / "many"),
        ]


def tail(settings: Settings) -> list[Line]:
    """What is read from a host, and written there."""
    with _session() as (spark, directory):
        return _beside_a_host(settings, spark, directory)


@contextmanager
def _session() -> Iterator[tuple[SparkSession, Path]]:
    from tupelo.pipeline import session

    OUT.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=OUT) as name:
        spark = session("local[2]")
        spark.sparkContext.setLogLevel("OFF")  # A stream that is stopped says so as an error.
        try:
            yield spark, Path(name)
        finally:
            spark.stop()


# Starting Spark

_OURS = "from tupelo.pipeline import session; spark = session('local[2]')"
_THEIRS = (
    "from pyspark.sql import SparkSession;"
    " spark = SparkSession.builder.master('local[2]')"
    ".config('spark.ui.enabled', False).getOrCreate()"
)


def _started(settings: Settings) -> Line:
    """Each in a process of its own, from its first import to its first answer."""
    from tupelo.pipeline.spark import java_home

    environment = {**os.environ, "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}

    def seconds(begin: str) -> float:
        start = perf_counter()
        program = f"{begin}; assert spark.range(3).count() == 3"
        subprocess.run(
            [sys.executable, "-c", program], check=True, env=environment, capture_output=True
        )
        return perf_counter() - start

    return compare(
        "pipeline.session() and a trivial query, in a new process",
        "a SparkSession of pyspark and the same query",
        "s",
        Target("≤", 1.2),
        partial(seconds, _OURS),
        partial(seconds, _THEIRS),
        settings.rounds,
    )


# What is sealed


def _sealed(settings: Settings, spark: SparkSession, directory: Path) -> list[Line]:
    count = settings.size(SEALED)
    archive = directory / "sealed"
    seal(MadeLog("host-1", count), archive)
    return [
        *_against_parquet(settings, spark, archive, count),
        *(
            _pushed(settings, spark, f"{count:,} sealed changes, {said}", str(archive), wanted)
            for said, wanted in (
                ("one agent of 40", "agent = 'host-1/w-1'"),
                ("the last tenth", f"position > {count * 9 // 10}"),
            )
        ),
        _compacted(settings, spark, directory),
    ]


def _against_parquet(
    settings: Settings, spark: SparkSession, archive: Path, count: int
) -> list[Line]:
    from tupelo.pipeline import changes

    files = [str(file) for file in sorted(archive.rglob("*.parquet"))]

    def own() -> DataFrame:
        return spark.read.parquet(*files)

    def through_format(**options: str) -> DataFrame:
        return spark.read.format("tupelo").options(**options).load(str(archive))

    def through_changes() -> DataFrame:
        return changes(spark, str(archive))

    few = partial(through_format, columns=",".join(FEW))
    lines = []
    for said, work, read in (
        ('all columns through format("tupelo")', drain, through_format),
        ("all columns through pipeline.changes", drain, through_changes),
        (f'{len(FEW)} columns aggregated, format("tupelo")', _aggregate, few),
        (f"{len(FEW)} columns aggregated, pipeline.changes", _aggregate, through_changes),
    ):
        lines.append(
            compare(
                f"{count:,} sealed changes, {said}",
                "spark.read.parquet of the same files",
                "/s",
                Target("≥", 0.9),
                partial(_rate, work, read, count),
                partial(_rate, work, own, count),
                settings.rounds,
            )
        )
    return lines


def _rate(work: Callable[[DataFrame, int], None], read: Read, count: int) -> float:
    start = perf_counter()
    work(read(), count)
    return count / (perf_counter() - start)


def drain(table: DataFrame, _: int = 0) -> None:
    table.write.format("noop").mode("overwrite").save()


def _aggregate(table: DataFrame, count: int) -> None:
    from pyspark.sql import functions as f

    few = f.count("*").alias("rows"), f.sum("bytes"), f.max("waited"), f.max("agent")
    rows = table.groupBy("kind").agg(*few).collect()
    require(sum(row["rows"] for row in rows) == count, "every change should be counted")


def _pushed(settings: Settings, spark: SparkSession, said: str, path: str, wanted: str) -> Line:
    """A query with a filter, all columns. Each table is used once, as push-down asks for."""

    def seconds(pushdown: bool) -> float:
        start = perf_counter()
        drain(spark.read.format("tupelo").option("pushdown", pushdown).load(path).where(wanted))
        return perf_counter() - start

    return compare(
        f"{said}, all columns, with pushdown",
        "without",
        "s",
        Target("≤", 1),
        partial(seconds, True),
        partial(seconds, False),
        settings.rounds,
    )


def _compacted(settings: Settings, spark: SparkSession, directory: Path) -> Line:
    """Many small segments after their compaction, and the same changes sealed at once."""
    from tupelo.pipeline import changes

    count, pieces = settings.size(SEALED), SEGMENTS
    archives = [directory / "compacted", directory / "at-once"]
    log = MadeLog("host-1", count)
    seal(log, archives[0], rows_max=max(1, count // pieces))
    for sealed in Archive(archives[0]).logs():
        compact(sealed)
    seal(log, archives[1])
    read = [partial(changes, spark, str(archive)) for archive in archives]
    return compare(
        f"{count:,} changes in {pieces:,} segments after compaction, 4 columns aggregated",
        "the same changes sealed at once",
        "s",
        Target("≤", 1.3),
        lambda: count / _rate(_aggregate, read[0], count),
        lambda: count / _rate(_aggregate, read[1], count),
        settings.rounds,
    )


# One host of many


def _one_of_many(settings: Settings, spark: SparkSession, archive: Path) -> Line:
    """A query of one host must not need the files of the others, so these are removed. Every byte
    of the remaining files, and of all manifests, is counted as read."""
    each = settings.size(EACH)
    for number in range(HOSTS):
        seal(MadeLog(f"host-{number}", each), archive)
    manifests = _bytes(archive, MANIFEST)
    everything = manifests + _bytes(archive, "*.parquet")
    for file in archive.rglob("*.parquet"):
        if "host=host-7" not in file.parts:
            file.unlink()
    pushing = spark.read.format("tupelo").option("pushdown", True)
    table = pushing.load(str(archive)).where("host = 'host-7'")
    require(table.count() == each, "all changes of this host, and of no other")
    read = manifests + _bytes(archive, "*.parquet")
    return Line(
        f"bytes read for 1 host out of {HOSTS}, its name being pushed down",
        "all bytes of the archive",
        "kB",
        Target("≤", 0.05),
        [read / 1e3],
        [everything / 1e3],
    )


def _bytes(archive: Path, files: str) -> int:
    return sum(file.stat().st_size for file in archive.rglob(files))


# A host: its log, and a place to write to


def _beside_a_host(settings: Settings, spark: SparkSession, directory: Path) -> list[Line]:
    folder = directory / "host"
    with Elsewhere(run_store, str(folder)) as host:
        address = f"tupelo://{host.said()}/"
        _fill(address + SPACE, settings.size(TAIL))
        (file,) = folder.glob(f"{SPACE}*.tupelo")
        count = _settled(JournalLog(file))
        return [
            *_tail(settings, spark, "a space's file, its host at work", str(file), count),
            *_tail(settings, spark, "a host's address", address + SPACE, count),
            *(
                _pushed(
                    settings, spark, f"{count:,} changes at a host, {said}", address + SPACE, wanted
                )
                for said, wanted in (
                    ("the takes", "kind = 'taken'"),
                    ("the last tenth", f"position > {count * 9 // 10}"),
                )
            ),
            _micro_batches(settings, spark, directory, "a space's file", str(file)),
            _micro_batches(settings, spark, directory, "a host's address", address + SPACE),
            _idle(settings, spark, directory, "a space's file", str(file)),
            _idle(settings, spark, directory, "a host's address", address + SPACE),
            _sink(settings, spark, host, address + "sunk"),
        ]


def _fill(url: str, count: int) -> None:
    """A client writes and takes: then the log says who, and in which session."""
    with closing(tupelo.connect(url)) as space:
        for start in range(0, count // 2, PIECE):
            space.write_all([fields(i) for i in range(start, start + PIECE)])
            space.take_all(TYPES, limit=PIECE)


def _settled(log: JournalLog) -> int:
    """The number of changes once no more are added: takes are confirmed with a delay."""
    seen, last = 0, log.bounds()[1]
    while seen < last:
        sleep(1.0)
        seen, last = last, log.bounds()[1]
    return last


def _tail(settings: Settings, spark: SparkSession, where: str, path: str, count: int) -> list[Line]:
    """The rate, and the processor time of Spark, its Python workers and the host: where other
    programs are at work, it says what two cores could do without them."""
    used: list[float] = []

    def read() -> DataFrame:
        return spark.read.format("tupelo").option("partitions", 2).load(path)

    def rate() -> float:
        before = processor_seconds()
        found = _rate(drain, read, count)
        after = processor_seconds()
        used.append(sum(now - before.get(pid, 0.0) for pid, now in after.items()) / count * 1e6)
        return found

    require(read().count() == count, "every change should be there")
    what = f"live tail in 2 partitions, all columns: {where}"
    target = Target("≥", TAIL_RATE, of="ours")
    line = compare(what, "nothing", "/s", target, rate, None, settings.rounds)
    enough = Target("≤", 2 / TAIL_RATE * 1e6, of="ours")
    return [
        line,
        Line(f"processor time of a change: {what}", "nothing", "µs", enough, used[1:], []),
    ]


def _micro_batches(
    settings: Settings, spark: SparkSession, directory: Path, where: str, path: str
) -> Line:
    ours = spark.readStream.format("tupelo").option("maxRows", BATCH_ROWS).load(path)
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS)
    rate = rate.option("numPartitions", 1)
    return compare(
        f"one micro-batch of {BATCH_ROWS} rows: {where}",
        "Spark's rate source, by micro-batch",
        "ms",
        Target("≤", 2),
        lambda: _batch_ms(ours, directory),
        lambda: _batch_ms(rate.load(), directory),
        settings.rounds,
    )


def _batch_ms(stream: DataFrame, directory: Path) -> float:
    """The median milliseconds of a micro-batch, from its planning to its checkpoint."""
    with TemporaryDirectory(dir=directory) as checkpoint:
        writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.start()
        until = perf_counter() + PATIENCE_SECONDS
        try:
            while len(found := _full_batches(query)) < WARM_BATCHES + BATCHES:
                require(perf_counter() < until and query.isActive, "batches should come")
                sleep(0.2)
        finally:
            query.stop()
    return median(found[WARM_BATCHES:])


def _full_batches(query: Any) -> list[float]:
    return [
        progress["durationMs"]["triggerExecution"]
        for progress in query.recentProgress
        if progress["numInputRows"] == BATCH_ROWS
    ]


def _idle(settings: Settings, spark: SparkSession, directory: Path, where: str, path: str) -> Line:
    stream = spark.readStream.format("tupelo").option("startFrom", "latest").load(path)
    nothing = directory / "nothing"
    nothing.mkdir(exist_ok=True)
    files = spark.readStream.schema("line string").text(str(nothing))
    return compare(
        f"processor time in a minute of a stream with nothing to read: {where}",
        "Spark's source of text files, in an empty folder",
        "s",
        Target("≤", 1),
        lambda: _idle_seconds(stream, directory),
        lambda: _idle_seconds(files, directory),
        settings.rounds,
    )


def _idle_seconds(stream: DataFrame, directory: Path) -> float:
    """Of this process and all below it: Spark, its Python workers, and the host."""
    with TemporaryDirectory(dir=directory) as checkpoint:
        writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            sleep(IDLE_SECONDS / 2)  # for the workers to start
            before, begun = processor_seconds(), perf_counter()
            sleep(IDLE_SECONDS)
            after, passed = processor_seconds(), perf_counter() - begun
            used = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
            require(query.isActive, "the stream should go on")
        finally:
            query.stop()
    return used / passed * 60


def processor_seconds() -> dict[int, float]:
    """The processor time of this process and each of its descendants that run now."""
    found: dict[int, tuple[int, int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            found[int(file.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    own, more = {os.getpid()}, True
    while more:
        below = {pid for pid, (parent, _) in found.items() if parent in own and pid not in own}
        own |= below
        more = bool(below)
    ticks = os.sysconf("SC_CLK_TCK")
    return {pid: found[pid][1] / ticks for pid in own if pid in found}


def _sink(settings: Settings, spark: SparkSession, host: Elsewhere, url: str) -> Line:
    """Both write into the same durable space; it is emptied after each round."""
    count = settings.size(SUNK)
    rows = spark.range(count, numPartitions=2).selectExpr(
        "'resize' as what", "id as n", "id / 7 as size", "concat('image-', id, '.png') as file"
    )

    def ours() -> float:
        start = perf_counter()
        rows.write.format("tupelo").mode("append").save(url)
        seconds = perf_counter() - start
        require(host.ask(("empty", count)) == count, "every row should be an entry")
        return count / seconds

    return compare(
        f"sink of {count:,} rows into a durable space of a host, 2 tasks",
        "write_all of as many, in the host's process",
        "/s",
        Target("≥", 0.5),
        ours,
        lambda: count / host.ask(("write", count)),
        settings.rounds,
    )


# Logs to measure with, generated as fast as the pipeline can write them

SPACE = "jobs"
Fields = tuple[str, int, float, str]
TYPES = (str, int, float, str)

_WHAT = ("resize", "rotate", "crop", "sharpen", "print", "send", "keep", "forget")
AGENTS = 20
_ROWS = 65_536
LAG = 1_000
"""How many entries are written before the first is taken."""
BEGIN = 1_794_800_000.0  # in November 2026
A_SECOND = 500


def fields(i: int) -> Fields:
    """An entry with fields that repeat, and fields that never do."""
    return _WHAT[i % len(_WHAT)], i, i * 2_654_435_761 % 2**32 / 7, f"image-{i}.png"


class MadeLog(Log):
    """A generated log: entries are written, and taken a little later in the same order. It is
    sealed like any other log."""

    space = SPACE

    def __init__(self, host: str, count: int) -> None:
        self.host = host
        self.id = f"made for {host}"
        self._count = count

    def bounds(self) -> tuple[int, int]:
        return 1, self._count

    def _read(
        self, first: int, last: int, columns: Sequence[str], entry: object
    ) -> Iterator[pa.RecordBatch]:
        for start in range(first, last + 1, _ROWS):
            yield self._batch(np.arange(start, min(last, start + _ROWS - 1) + 1))

    def _batch(self, position: Any) -> pa.RecordBatch:
        # After the first of them, writes are at odd positions and takes at even ones.
        taken = (position % 2 == 0) & (position > 2 * LAG)
        arrival = np.where(taken, position - 2 * LAG + 1, position)
        encode = msgspec.msgpack.Encoder().encode
        return self._built(
            position,
            arrival=pa.array(arrival, pa.int64()),
            time=BEGIN + position / A_SECOND,
            kind=pa.array(["written", "taken"]).take(pa.array(taken.astype(np.int8))),
            agent=self._agents().take(pa.array(taken * AGENTS + position % AGENTS)),
            waited=pa.array(np.where(taken, position % 100 / 1e3, 0.0)),
            payload=[encode(fields(i)) for i in arrival.tolist()],
        )

    def _agents(self) -> Any:
        """AGENTS writers, and then as many takers."""
        return pa.array([f"{self.host}/{side}-{n}" for side in "wt" for n in range(AGENTS)])

    def _built(self, position: Any, **raw: Any) -> pa.RecordBatch:
        """A batch of these columns; an entry that is not said to be another's is of this host."""
        count = len(position)
        nothing = pa.nulls(count, pa.string())
        others = {
            "position": pa.array(position, pa.int64()),
            "origin": pa.repeat(self.host, count),
            "n": raw["arrival"],
            "agent_name": nothing,
            "session": nothing,
            "txn": nothing,
            "to": nothing,
            "expires": pa.nulls(count, TIME),
            "deliveries": pa.array(np.zeros(count, dtype=np.int64)),
            "delayed": pa.nulls(count, pa.int64()),
        }
        return build(self.host, self.space, count, others | raw, COLUMNS)
