"""A driver in a process of its own, which may be killed at any moment.

It streams the log of a file into a space at a host: its arguments are the file, the URL of the
space, the folder of the checkpoint, and how many changes a batch has.
"""

from __future__ import annotations

import sys

from tupelo.pipeline import session


def main(path: str, url: str, checkpoint: str, rows: str) -> None:
    options: dict[str, str | int | bool] = {
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.adaptive.enabled": False,
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    spark = session("local[2]", **options)
    changes = (
        spark.readStream.format("tupelo")
        .option("maxRows", rows)
        .option("rowsPerTask", int(rows) // 2)
        .option("entry", "what string, n long")
        .option("columns", "position,f")
        .load(path)
    )
    query = (
        changes.select("f.what", "f.n")
        .writeStream.format("tupelo")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(url)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
