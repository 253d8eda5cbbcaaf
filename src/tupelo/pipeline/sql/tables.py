"""The tables of `tupelo sql`: one for each space with a log, by its name; `changes` has the changes
of all of them, and `entries` the entries that are there now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from tupelo.errors import PipelineError, UnknownTable
from tupelo.pipeline.declared import fields_of
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.reports.names import hosts_in
from tupelo.pipeline.schema import MEANINGS, ddl_type, schema_of
from tupelo.pipeline.source.living import living
from tupelo.pipeline.source.locations import bounds_of, resolve
from tupelo.pipeline.source.options import ReadOptions

CHANGES, ENTRIES = "changes", "entries"


class Tables:
    """The tables at some locations, as they are now. The options are those of the format."""

    def __init__(self, locations: Sequence[str], options: Mapping[str, str]) -> None:
        self._options = options
        self._places: dict[str, list[str]] = {}
        self._rows: list[tuple[Log, int]] = []
        for location in locations:
            for log in resolve(ReadOptions.read({**options, "path": location})):
                places = self._places.setdefault(log.space, [])
                if location not in places:
                    places.append(location)
                first, last = bounds_of(log)
                self._rows.append((log, last - first + 1))
        # Spaces of these names are in the tables of all spaces.
        self._places |= {CHANGES: list(locations), ENTRIES: list(locations)}

    @property
    def rows(self) -> int:
        """The number of changes in all logs."""
        return sum(rows for _, rows in self._rows)

    @property
    def names(self) -> list[str]:
        return sorted(self._places)

    def named(self, parts: Sequence[str]) -> str:
        """The table of this name, ignoring case, as SQL does. Raises UnknownTable."""
        table = ".".join(parts)
        alike = [name for name in self._places if name.casefold() == table.casefold()]
        alike = [name for name in alike if name in (CHANGES, ENTRIES)] or alike
        if not alike or len(parts) > 1:
            raise UnknownTable(table, self.names, quote=bool(alike))
        if len(alike) > 1:
            raise PipelineError(
                f"SQL cannot tell the spaces {', '.join(sorted(alike))} from each other:"
                f" ask {CHANGES} where space = '{table}'"
            )
        return alike[0]

    def options_of(self, name: str) -> dict[str, str]:
        """The options of a reader of this table. A name with a comma cannot be the option `space`:
        then the table has rows of other spaces, too."""
        options = {**self._options, "paths": json.dumps(self._places[name])}
        if name == ENTRIES:
            options.setdefault("asOf", "now")
            if "entry" not in options and (fields := self._fields(options)):
                options["entry"] = f"any({fields})"
        elif name != CHANGES and name == name.strip() and "," not in name:
            options["space"] = name
        return options

    def logs_of(self, name: str, options: ReadOptions) -> list[Log]:
        """The logs of this table."""
        logs = resolve(options)
        return [log for log in logs if name in (CHANGES, ENTRIES, log.space)]

    def schema_of(self, name: str) -> pa.Schema:
        options = ReadOptions.read(self.options_of(name))
        return schema_of(options.columns, options.entry)

    def _fields(self, options: Mapping[str, str]) -> str:
        """The fields of the entries that are there, with their types."""
        parsed = ReadOptions.read(options)
        assert parsed.as_of is not None
        shapes: set[str] = set()
        for log in resolve(parsed):
            for batch in living(log, parsed.as_of, ["shape"], None):
                shapes.update(batch.column("shape").unique().to_pylist())
        return ", ".join(f"{name} {kind}" for name, kind in fields_of(shapes))

    def listed(self) -> pa.Table:
        """The tables: how many changes they have, of which hosts, and where the logs are."""
        names = hosts_in(log for log, _ in self._rows)
        rows = []
        for table in self.names:
            logs = [one for one in self._rows if table in (CHANGES, ENTRIES, one[0].space)]
            hosts = dict.fromkeys(names.of(log.host) for log, _ in logs)
            changes = None if table == ENTRIES else sum(rows for _, rows in logs)
            places = ", ".join(self._places[table])
            rows.append((table, changes, ", ".join(hosts), places))
        columns = zip(*rows, strict=True)
        return pa.table(dict(zip(("table", "changes", "hosts", "logs"), columns, strict=True)))

    def described(self, name: str) -> pa.Table:
        """The columns of a table: names, types and meanings."""
        columns, types, meanings = zip(*_described("", self.schema_of(name)), strict=True)
        return pa.table({"column": columns, "type": types, "meaning": meanings})


def _described(prefix: str, fields: pa.Schema | pa.DataType) -> Iterator[tuple[str, str, str]]:
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _described(f"{prefix}{field.name}.", field.type)
        else:
            meaning = "of the entry" if prefix else MEANINGS[field.name]
            yield prefix + field.name, ddl_type(field.type), meaning


class SqlEngine(Protocol):
    """Answers statements."""

    name: str

    def ask(self, statement: str, tables: Tables, limit: int | None = None) -> pa.Table:
        """The result, of at most so many rows. Raises UnknownTable for a table without a log, and
        PipelineError, in one line, for a statement that cannot be answered."""

    def close(self) -> None: ...
