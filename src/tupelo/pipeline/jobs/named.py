"""Names beside ids in the tables of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.federation.names import PRESENCE
from tupelo.pipeline.reports.names import Names, without_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def names_in(changes: DataFrame) -> Names:
    """The names that agents gave themselves, and those of hosts that were met."""
    of_hosts = changes.where(
        (f.col("space") == PRESENCE) & f.col("kind").isin("engaged", "written")
    )
    met = of_hosts.select(*(f.get_json_object("fields", f"$.{part}") for part in ("id", "name")))
    named = changes.select("agent", "agent_name").union(met).toDF("id", "name")
    found = named.where("id is not null and name != ''").distinct().collect()
    return Names((str(id), str(name)) for id, name in found)


def with_names(answer: DataFrame, names: Names) -> DataFrame:
    """The table with a column of names behind each column of ids that has none."""
    columns = answer.columns
    missing = without_names(columns)
    for column in missing:
        pairs = answer.sparkSession.createDataFrame(
            list(names.known.items()), f"`{column}` string, `{column}_name` string"
        )
        answer = answer.join(f.broadcast(pairs), column, "left")
    order = [
        each for name in columns for each in ([name, f"{name}_name"] if name in missing else [name])
    ]
    return answer.select(order)
