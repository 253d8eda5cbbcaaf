"""A stream on a cluster, from the log of one host into a space of another; it may be killed.

Its one argument is a JSON object: `master`, `source` and `sink` (addresses of spaces), `rows` (that
a micro-batch has at most) and `checkpoint`. When it has written all that there is, it says
"drained", and goes on.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.pipeline.cluster_child import OPTIONS
from tupelo.pipeline import session


def main(asked: dict[str, Any]) -> None:
    spark = session(asked["master"], **OPTIONS)
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
