"""What a client of Spark Connect does, in a process of its own: beside a driver it is refused.

Its one argument is a JSON object: `server`, `file` (of a space), `archive` (with a part of its
log), `sink` (the address of a space) and `checkpoint`. It prints one line, "answer: " and a JSON
object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tupelo import pipeline
from tupelo.errors import PipelineError
from tupelo.pipeline.spark import complaints


def main(asked: dict[str, Any]) -> None:
    spark = pipeline.session(asked["server"])
    file, sink = asked["file"], asked["sink"]
    table = spark.read.format("tupelo").option("entry", "what string, n long").load(file)
    typed = table.where("kind = 'written'").agg({"f.n": "sum"}).first()
    changes = pipeline.changes(spark, file, archive=asked["archive"])
    answer = {
        "modules": [type(spark).__module__, type(table).__module__],
        "typed": None if typed is None else typed[0],
        "changes": sorted(row.position for row in changes.select("position").collect()),
    }
    rows = spark.range(5).selectExpr("'batch' as what", "id as n")
    rows.write.format("tupelo").mode("append").save(sink)
    stream = spark.readStream.format("tupelo").option("entry", "what string, n long").load(file)
    query = (
        stream.where("kind = 'written'")
        .selectExpr("'stream' as what", "f.n")
        .writeStream.format("tupelo")
        .option("checkpointLocation", asked["checkpoint"])
    )
    query.trigger(availableNow=True).start(sink).awaitTermination()
    try:
        with complaints():
            spark.read.format("tupelo").load(file + " is not there").count()
    except PipelineError as error:
        answer["error"] = str(error)
    print("answer:", json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
