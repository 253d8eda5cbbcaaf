"""Names instead of ids, or beside them, in the tables of jobs and in reports. The audit by DuckDB
uses this too, so Spark is imported only in the functions that need it."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tupelo.federation.names import PRESENCE
from tupelo.pipeline.source.locations import bounds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tupelo.pipeline.logs.log import Log

WHO = ("host", "peer", "writer", "reader", "worker", "origin", "who")
"""Columns of ids."""
_ID = re.compile(r"[0-9a-f]{32}")
_SHOWN = 8
"""So many digits of an id are shown."""
_NAMES = 2
"""So many names of one agent are shown."""


class Names:
    """The names of hosts and agents: pairs of ids and names."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        names: dict[str, set[str]] = defaultdict(set)
        for id, name in pairs:
            names[id].add(name)
        times = Counter(name for some in names.values() for name in some)
        self._known: dict[str, str] = {}
        for id, some in names.items():
            shown = [
                name if times[name] == 1 else f"{name} ({_short(id)})" for name in sorted(some)
            ]
            self._known[id] = ", ".join(shown[:_NAMES]) + ("…" if len(shown) > _NAMES else "")

    @property
    def known(self) -> dict[str, str]:
        """The names by id."""
        return self._known

    def of(self, id: str) -> str:
        """The name; without one, the id with its parts named or shortened."""
        known = self._known.get(id)
        return known or _ID.sub(lambda part: self._known.get(part[0]) or _short(part[0]), id)

    def of_job(self, job: str) -> str:
        """An entry (its origin and number) by the name of its writer; the id of a job as it is."""
        origin, is_entry, n = job.rpartition(" ")
        return f"{self.of(origin)} {n}" if is_entry else job

    def beside(self, table: pa.Table) -> pa.Table:
        """The table with a column of names behind each column of ids that has none."""
        for column in without_names(table.column_names):
            named = pa.array(map(self._known.get, table.column(column).to_pylist()), pa.string())
            place = table.column_names.index(column) + 1
            table = table.add_column(place, f"{column}_name", named)
        return table

    def put(self, table: pa.Table) -> pa.Table:
        """The table with names in the columns that have ids, and without columns of names."""
        for column in (name for name in (*WHO, "members", "job") if name in table.column_names):
            ids = table.column(column).combine_chunks().dictionary_encode()
            name_of = self.of_job if column == "job" else self.of
            named = pa.array([name_of(id) for id in ids.dictionary.to_pylist()], pa.string())
            shown = named.take(ids.indices)
            if (own := f"{column}_name") in table.column_names:
                shown = pc.coalesce(table.column(own), shown)
                table = table.drop_columns([own])
            table = table.set_column(table.column_names.index(column), column, shown)
        return table


def without_names(columns: Sequence[str]) -> list[str]:
    """Those of these columns that have ids, without a column of their names."""
    return [name for name in WHO if name in columns and f"{name}_name" not in columns]


def names_of(logs: Iterable[Log]) -> Names:
    """The names that agents gave themselves, and those of hosts that were met."""
    pairs: set[tuple[Any, Any]] = set()
    for log in logs:
        met = log.space == PRESENCE
        columns = ["agent", "agent_name", *(["fields"] if met else [])]
        for batch in log.batches(*bounds_of(log), columns):
            rows = pa.Table.from_batches([batch]).group_by(columns).aggregate([]).to_pylist()
            pairs.update((row["agent"], row["agent_name"]) for row in rows)
            about = [json.loads(row["fields"] or "{}") for row in rows if met]
            pairs.update((one.get("id"), one.get("name")) for one in about if isinstance(one, dict))
    return Names((id, name) for id, name in pairs if id and name)


def hosts_in(logs: Iterable[Log]) -> Names:
    """The names of the hosts, from the logs of their presence."""
    return names_of(log for log in logs if log.space == PRESENCE)


def names_in(changes: DataFrame) -> Names:
    """The names that agents gave themselves, and those of hosts that were met."""
    from pyspark.sql import functions as f

    of_hosts = changes.where(
        (f.col("space") == PRESENCE) & f.col("kind").isin("engaged", "written")
    )
    met = of_hosts.select(*(f.get_json_object("fields", f"$.{part}") for part in ("id", "name")))
    named = changes.select("agent", "agent_name").union(met).toDF("id", "name")
    found = named.where("id is not null and name != ''").distinct().collect()
    return Names((str(id), str(name)) for id, name in found)


def with_names(answer: DataFrame, names: Names) -> DataFrame:
    """The table with a column of names behind each column of ids that has none."""
    from pyspark.sql import functions as f

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


def _short(id: str) -> str:
    return _ID.sub(lambda part: part[0][:_SHOWN] + "…", id)
