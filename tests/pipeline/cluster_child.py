"""What the tests do on a cluster, in a process of its own: a JVM has one driver only.

Its one argument is a JSON object: `master`, `source` and `sink` (addresses of spaces), `rows` (that
a micro-batch has at most) and `checkpoint`. It prints one line, "answer: " and a JSON object.
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
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def packages(spark: SparkSession) -> list[list[str]]:
    """The folder of each executor, and where it has found this package; they have a core, and so a
    task, each."""

    def found(rows: Any) -> Any:
        import tupelo.pipeline.source.datasource

        list(rows)
        yield [str(Path.cwd()), str(Path(tupelo.pipeline.source.datasource.__file__).absolute())]

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


def stream(spark: SparkSession, asked: dict[str, Any]) -> None:
    """All that there is now goes from one space into the other."""
    changes = spark.readStream.format("tupelo").option("entry", "what string, n long")
    changes = changes.option("maxRows", asked["rows"]).option("rowsPerTask", asked["rows"] // 2)
    query = (
        changes.load(asked["source"])
        .selectExpr("'sunk' as what", "f.n", "position")
        .writeStream.format("tupelo")
        .option("checkpointLocation", asked["checkpoint"])
        .trigger(availableNow=True)
        .start(asked["sink"])
    )
    query.awaitTermination()


def forget_last_commit(checkpoint: str) -> None:
    """As if the driver had died after the tasks were done, and before Spark had noted it."""
    commits = Path(checkpoint, "commits")
    last = max(int(file.name) for file in commits.glob("[0-9]*"))
    for file in commits.glob(f"*{last}*"):
        file.unlink()


def main(asked: dict[str, Any]) -> None:
    spark = session(asked["master"], **OPTIONS)
    source = spark.read.format("tupelo").option("federation", "true").option("partitions", 4)
    table = source.option("entry", "what string, n long").load(asked["source"])
    answer = {"packages": packages(spark), "tasks": table.rdd.getNumPartitions()}
    answer["order"] = order(table)
    stream(spark, asked)
    forget_last_commit(asked["checkpoint"])
    stream(spark, asked)
    print("answer:", json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
