"""How messages reached each host in the runs of a sweep, computed by Spark from their records."""

from __future__ import annotations

import csv
import re
from functools import reduce
from itertools import product
from math import isclose, isnan
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse
from urllib.request import url2pathname

from tupelo.errors import PipelineError
from tupelo.lab.experiment import label
from tupelo.lab.summary import summarize
from tupelo.lab.world import Row, save_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECEPTION_FILE = "reception"
"""`reception.csv` and `reception.parquet`: a row for each run and host."""


def reception_of(folder: Path, about: Row, *, spark: bool | None) -> Row | None:
    """The result of the job `reception` for a sweep, of which `about` is the description, and its
    comparison with the figures of the experiment. None if the records are not about messages, or
    Spark is not asked for (False) or not there (None). Writes a table into the folder of the sweep.

    Raises PipelineError or NoJava if Spark is asked for (True) and not there.
    """
    files = {} if spark is False else _records_of(folder, about)
    if not files:
        return None
    from tupelo.pipeline import session

    try:
        started = session(None, **{"spark.sql.shuffle.partitions": 2})
    except PipelineError:
        if spark:
            raise
        return None
    from pyarrow import parquet

    from tupelo.pipeline.jobs.records import FIGURES

    by_run, by_host = receptions(started, files)
    save_rows(by_host, folder / RECEPTION_FILE)
    over = list(about["over"])
    shown = [{key: row[key] for key in (*over, "seed", "host", *FIGURES)} for row in by_host]
    figures = parquet.read_table(folder / "figures.parquet").to_pylist()
    differing = {
        name: sum(not _is_same(a[name], b[name]) for a, b in zip(by_run, figures, strict=True))
        for name in FIGURES
        if name in figures[0]
    }
    table = summarize(shown, [*over, "host"])
    return {"runs": len(by_run), "differing": differing, "table": table}


def _records_of(folder: Path, about: Row) -> dict[Path, Row]:
    """The records of each run as Parquet, with its settings and seed; empty if the first run has no
    records that `reception` needs."""
    files = {}
    for values in product(*about["over"].values()):
        point = dict(zip(about["over"], values, strict=True))
        for seed in about["seeds"]:
            file = folder / "runs" / label(point, seed) / "records.parquet"
            files[file.resolve()] = point | {"seed": seed}
    if not all(file.is_file() for file in files):
        return {}
    with next(iter(files)).with_suffix(".csv").open(newline="") as first:
        return files if any(row["name"] == "joined" for row in csv.DictReader(first)) else {}


def _is_same(one: float | None, other: float | None) -> bool:
    """Whether they differ by rounding only. No value is null or not a number."""
    if one is None or other is None or isnan(other):
        return one is None and (other is None or isnan(other))
    return isclose(one, other, rel_tol=1e-9)


def receptions(spark: SparkSession, files: dict[Path, Row]) -> tuple[list[Row], list[Row]]:
    """The figures of each run, and of each host in each run, beside the settings and the seed of
    the run, which are the values of `files`."""
    from tupelo.pipeline.jobs.records import reception
    from tupelo.pipeline.spark import complaints

    runs = list(files.values())
    with complaints():
        table = records_in(spark, list(files)).persist()
        try:
            by_run = reception(table).orderBy("run").toArrow().to_pylist()
            by_host = reception(table, by_host=True).orderBy("run", "host").toArrow().to_pylist()
        finally:
            table.unpersist()
    return (
        [runs[row.pop("run")] | row for row in by_run],
        [runs[row.pop("run")] | row for row in by_host],
    )


def records_in(spark: SparkSession, files: list[Path]) -> DataFrame:
    """The records in these Parquet files, with the number of the file as `run`, and of the row as
    `place`; only the columns that `reception` needs."""
    from pyarrow import parquet
    from pyspark.sql import functions as f

    from tupelo.pipeline.jobs.records import RECORDS

    # The type of a column differs between runs: where a run has no values, it has none.
    same: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for file in files:
        typed = tuple((field.name, str(field.type)) for field in parquet.read_schema(file))
        pattern = re.sub(r"([\\{}\[\]*?])", r"\\\1", str(file))
        same.setdefault(typed, []).append(pattern)
    metadata = [
        f.col("_metadata.file_path").alias("uri"),
        f.col("_metadata.row_index").alias("place"),
    ]
    tables = []
    for typed, patterns in same.items():
        there = {name for name, type in typed if type != "null"}
        values = [
            (f.col(name) if name in there else f.lit(None)).cast(type).alias(name)
            for name, type in RECORDS.items()
        ]
        tables.append(spark.read.parquet(*patterns).select(*metadata, *values))
    table = reduce(lambda one, other: one.unionByName(other), tables)
    uris = [row["uri"] for row in table.select("uri").distinct().collect()]
    numbers = {file: number for number, file in enumerate(files)}
    known = [(uri, numbers[Path(url2pathname(urlparse(uri).path))]) for uri in uris]
    runs = spark.createDataFrame(known, "uri string, run long")
    return table.join(f.broadcast(runs), "uri").drop("uri")
