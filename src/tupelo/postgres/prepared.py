"""Statements that the server parses and plans once for each connection.

This goes below the cursors of psycopg, which cost more than the statements of a space: only their
conversion of values is used.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.generators import execute

Row = tuple[Any, ...]

PREPARED_MAX = 200
"""So many statements a connection keeps; templates of more kinds are planned each time."""

_COMMAND_OK, _TUPLES_OK = psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK
_BINARY = psycopg.pq.Format.BINARY


class PreparedStatements:
    """The prepared statements of one connection."""

    def __init__(self, link: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._pgconn = link.pgconn
        self._converter = Transformer(link)
        self._names: dict[tuple[str, Any], bytes] = {}
        self._numbers = itertools.count(1)

    def execute(self, statement: str, values: dict[str, Any]) -> Any:
        """A generator for `wait` of the connection, which returns the rows. Without values the
        statement is not prepared."""
        link, converter = self._pgconn, self._converter
        if values:
            text, names, formats = _numbered(statement)
            given = converter.dump_sequence([values[name] for name in names], formats)
            key = (statement, converter.types)
            prepared = self._names.get(key)
            if prepared is None:
                prepared = b"" if len(self._names) >= PREPARED_MAX else b"%d" % next(self._numbers)
                link.send_prepare(prepared, text, converter.types)
                self._result((yield from execute(link)))
                if prepared:
                    self._names[key] = prepared
            link.send_query_prepared(prepared, given, converter.formats, _BINARY)
        else:
            link.send_query(statement.encode())
        result = self._result((yield from execute(link)))
        converter.set_pgresult(result)
        return converter.load_rows(0, result.ntuples, tuple)

    def _result(self, results: list[Any]) -> Any:
        """The last of these, if all are good."""
        for result in results:
            if result.status not in (_COMMAND_OK, _TUPLES_OK):
                raise error_from_result(result)
        return results[-1]


@lru_cache(1024)
def _numbered(statement: str) -> tuple[bytes, tuple[str, ...], list[PyFormat]]:
    """A statement with numbers for its parameters, and their names."""
    names: dict[str, int] = {}
    text = re.sub(
        r"%\((\w+)\)s",
        lambda found: f"${names.setdefault(found[1], len(names) + 1)}",
        statement,
    )
    return text.encode(), tuple(names), [PyFormat.AUTO] * len(names)


Backend = tuple[int, float]
"""A process of the server for one connection: its id, and when it began. After a crash or at a
standby another process may have the same id."""


class BlockingLink(psycopg.Connection[Row]):
    backend: Backend

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared = PreparedStatements(self)


class AsyncLink(psycopg.AsyncConnection[Row]):
    backend: Backend

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared = PreparedStatements(self)
