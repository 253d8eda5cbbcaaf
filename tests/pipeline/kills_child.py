"""A stream on a cluster, from the log of one host into a space of another; it may be killed.

Its one argument is a JSON object: `master`, `source` and `sink` (addresses of spaces), `rows` (that
a micro-batch has at most) and `checkpoint`. With a `table` (an address), it prints before that one
line, "answer: " and a JSON object: what packages the workers have, the number of tasks of the
table, and the order of its changes. When the stream has written all that there is, it says
"drained", and goes on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions

from tupelo.pipeline import session

OPTIONS: dict[str, str | int | bool] = {
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.adaptive.enabled": False,
    # To compile a query takes longer than to run it on a few rows.
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def packages(spark: SparkSession) -> list[list[Any]]:
    """The folder of each executor, where it has found this package, its Python, and whether that
    has a package of the extras; they have a core, and so a task, each."""

    def found(rows: Any) -> Any:
        import sys
        from importlib.util import find_spec

        import tupelo.pipeline.source.datasource

        list(rows)
        file = Path(tupelo.pipeline.source.datasource.__file__).absolute()
        has_extras = any(find_spec(name) for name in ("typer", "cryptography", "duckdb"))
        yield [str(Path.cwd()), str(file), sys.executable, has_extras]

    return spark.sparkContext.parallelize(range(2), 2).mapPartitions(found).collect()


def order(table: DataFrame) -> dict[str, list[list[int]]]:
    """[position, arrival, number] of every change by host: thrown about, and brought into order by
    what is written on them."""
    about = functions.struct("position", "arrival", "f.n")
    ordered = (
        table.repartition(3, functions.rand(6))
        .groupBy("host")
        .agg(functions.array_sort(functions.collect_list(about)).alias("changes"))
    )
    return {row.host: [list(change) for change in row.changes] for row in ordered.collect()}


def answer(spark: SparkSession, location: str) -> dict[str, Any]:
    source = spark.read.format("tupelo").option("federation", "true").option("partitions", 4)
    table = source.option("entry", "what string, n long").load(location)
    return {
        "packages": packages(spark),
        "tasks": table.rdd.getNumPartitions(),
        "order": order(table),
    }


def main(asked: dict[str, Any]) -> None:
    spark = session(asked["master"], **OPTIONS)
    if asked.get("table"):
        print("answer:", json.dumps(answer(spark, asked["table"])), flush=True)
    changes = spark.readStream.format("tupelo").option("entry", "what string, n long")
    changes = changes.option("maxRows", asked["rows"]).option("rowsPerTask", asked["rows"] // 4)
    query = (
        changes.option("columns", "position,f")
        .option("reconnect", 30)
        .load(asked["source"])
        .selectExpr("f.what", "f.n", "position")
        .writeStream.format("tupelo")
        .option("checkpointLocation", asked["checkpoint"])
        .option("reconnect", 30)
        .start(asked["sink"])
    )
    query.processAllAvailable()
    print("drained", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
