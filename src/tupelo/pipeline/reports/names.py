"""Names instead of ids, in the tables and plots of a report."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

_WHO = ("host", "peer", "writer", "reader", "worker", "origin")
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

    def of(self, id: str) -> str:
        """The name; without one, the id with its parts named or shortened."""
        known = self._known.get(id)
        return known or _ID.sub(lambda part: self._known.get(part[0]) or _short(part[0]), id)

    def put(self, table: pa.Table) -> pa.Table:
        """The table with names in the columns that have ids, and without columns of names."""
        for column in (name for name in _WHO if name in table.column_names):
            ids = table.column(column).combine_chunks().dictionary_encode()
            named = pa.array([self.of(id) for id in ids.dictionary.to_pylist()], pa.string())
            shown = named.take(ids.indices)
            if (own := f"{column}_name") in table.column_names:
                shown = pc.coalesce(table.column(own), shown)
                table = table.drop_columns([own])
            table = table.set_column(table.column_names.index(column), column, shown)
        return table


def _short(id: str) -> str:
    return _ID.sub(lambda part: part[0][:_SHOWN] + "…", id)
