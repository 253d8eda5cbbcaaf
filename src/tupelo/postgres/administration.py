"""For the administrator of a database: make and migrate the tables, grant privileges, look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from psycopg import sql

from tupelo.errors import BadArgument
from tupelo.postgres import schema
from tupelo.postgres.connect import split_url
from tupelo.postgres.driver import BlockingDatabase, Database
from tupelo.postgres.options import SpaceOptions, check_name
from tupelo.space.dual_api import run_coroutine

POLICY = sql.SQL("""
    CREATE POLICY tupelo_spaces ON {table} USING (ARRAY[0, {column}] && ARRAY(
        SELECT grants.space FROM tupelo.grants JOIN pg_roles ON rolname = grants.role
        WHERE pg_has_role(pg_roles.oid, 'USAGE')
    ))
""")
"""Rows of the spaces that are granted to this role, or to one of which it is a member."""


class TableStatus(msgspec.Struct):
    """A table: its size with its indexes, rows by the statistics of the server, and when it was
    vacuumed, by autovacuum or by hand."""

    table: str
    size_bytes: int
    rows: int
    dead_rows: int
    vacuumed: float | None


class SpaceStatus(msgspec.Struct):
    """A space: its entries, the changes in its log, and those of them without a position yet."""

    space: str
    entries: int
    log: int
    unnumbered: int


class StoreStatus(msgspec.Struct):
    """The state of the tables, and of the server as far as it matters to them."""

    where: str
    server: str
    version: int
    known_version: int
    spaces: list[SpaceStatus]
    tables: list[TableStatus]
    roles: dict[str, list[str]]
    """The roles of `init --role` with their spaces; none for all."""
    prepared_transactions: int
    connections: int
    connections_max: int


def init_store(url: str, roles: Iterable[str] = (), spaces: Iterable[str] = ()) -> tuple[int, int]:
    """Make the tables, if they are missing, and grant these roles what programs need: for all
    spaces, or for `spaces` only, which are made if they are missing. Returns the versions before
    and now. Raises BadArgument if there is no such role."""
    names = [check_name(name) for name in spaces]
    with _opened(url) as (database, link):
        versions: tuple[int, int] = run_coroutine(database.migrate(link))
        with database.translated("granting privileges"), link.transaction():
            for role in roles:
                _grant(link, role, names)
        return versions


def migrate_store(url: str) -> tuple[int, int]:
    """Make the tables of an older version new. Returns the versions before and now. Raises
    BadArgument if there are none."""
    with _opened(url) as (database, link):
        if run_coroutine(database.version(link)) == 0:
            raise BadArgument("url", "that of a database with tables of Tupelo", database.where)
        return run_coroutine(database.migrate(link))


def store_status(url: str) -> StoreStatus:
    """Look at the tables. The entries are counted, which takes a while if there are many."""
    with _opened(url) as (database, link), database.translated("looking at the tables"):
        version = run_coroutine(database.version(link))
        (server,) = _row(link, "SHOW server_version")
        prepared, connections, most = _row(
            link,
            "SELECT (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()), "
            "(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()), "
            "current_setting('max_connections')::int",
        )
        spaces: list[SpaceStatus] = []
        roles: dict[str, list[str]] = {}
        if version:
            spaces = [SpaceStatus(*row) for row in link.execute(_SPACES)]
        if version >= GRANTS_SINCE:
            for role, name in link.execute(_ROLES):
                roles.setdefault(role, []).extend([] if name is None else [name])
        return StoreStatus(
            database.where,
            server,
            version,
            schema.VERSION,
            spaces,
            [TableStatus(*row) for row in link.execute(_TABLES)],
            roles,
            prepared,
            connections,
            most,
        )


GRANTS_SINCE = 1 + schema.MIGRATIONS.index(schema.CLAIMS_AND_GRANTS)

_SPACES = """
    SELECT name, coalesce(entries, 0), position - trimmed + coalesce(fresh, 0), coalesce(fresh, 0)
    FROM tupelo.spaces
    LEFT JOIN (SELECT space, count(*) AS entries FROM tupelo.entries GROUP BY space) AS counted
        ON counted.space = id
    LEFT JOIN (
        SELECT space, count(*) AS fresh FROM tupelo.changes WHERE position IS NULL GROUP BY space
    ) AS unnumbered ON unnumbered.space = id
    ORDER BY name
"""
_ROLES = """
    SELECT role, name FROM tupelo.grants LEFT JOIN tupelo.spaces ON id = space ORDER BY role, name
"""
_TABLES = """
    SELECT relname, pg_total_relation_size(relid), n_live_tup, n_dead_tup,
        extract(epoch FROM greatest(last_vacuum, last_autovacuum))::float8
    FROM pg_stat_user_tables WHERE schemaname = 'tupelo' ORDER BY relname
"""


@contextmanager
def _opened(url: str) -> Iterator[tuple[Database, Any]]:
    """A connection to the database of a URL, without a look at its tables."""
    conninfo, _ = split_url(url)
    database = BlockingDatabase(conninfo, None)
    with database.translated("connecting", opening=True):
        link: Any = run_coroutine(database.open())
    try:
        yield database, link
    finally:
        link.close()


def _row(link: Any, statement: str) -> Any:
    return link.execute(statement).fetchone()


def _grant(link: Any, role: str, spaces: list[str]) -> None:
    """Let a role use these spaces, or all; not more than programs need."""
    if not link.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchall():
        raise BadArgument("roles", "a role of the database: CREATE ROLE makes one", role)
    to = sql.Identifier(role)
    link.execute(sql.SQL("GRANT USAGE ON SCHEMA tupelo TO {}").format(to))
    link.execute(sql.SQL("GRANT USAGE ON SEQUENCE tupelo.arrivals TO {}").format(to))
    for table, privileges in schema.PRIVILEGES.items():
        link.execute(
            sql.SQL("GRANT {} ON {} TO {}").format(
                sql.SQL(privileges), sql.Identifier("tupelo", table), to
            )
        )
    if spaces:
        _separate(link)
        link.execute("DELETE FROM tupelo.grants WHERE role = %s AND space = 0", (role,))
    for name in spaces:
        link.execute(
            "INSERT INTO tupelo.spaces (name, options) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            (name, msgspec.json.encode(SpaceOptions()).decode()),
        )
    link.execute(
        "INSERT INTO tupelo.grants SELECT %(role)s, id FROM tupelo.spaces"
        " WHERE name = ANY(%(names)s) UNION SELECT %(role)s, 0 WHERE %(names)s = '{}'"
        " ON CONFLICT DO NOTHING",
        {"role": role, "names": spaces},
    )


def _separate(link: Any) -> None:
    """From now on every role sees only the rows of its spaces; those that saw all go on to do so.
    The owner of the tables and superusers see all."""
    if _row(link, "SELECT relrowsecurity FROM pg_class WHERE oid = 'tupelo.entries'::regclass")[0]:
        return
    link.execute(
        "INSERT INTO tupelo.grants SELECT DISTINCT grantee, 0 FROM"
        " information_schema.role_table_grants WHERE table_schema = 'tupelo'"
        " AND table_name = 'entries' AND privilege_type = 'SELECT'"
        " AND grantee NOT IN (SELECT role FROM tupelo.grants) AND grantee NOT IN ('PUBLIC',"
        " (SELECT tableowner FROM pg_tables WHERE schemaname = 'tupelo' AND tablename = 'entries'))"
    )
    for table, column in schema.SPACE_COLUMNS.items():
        name = sql.Identifier("tupelo", table)
        link.execute(POLICY.format(table=name, column=sql.Identifier(column)))
        link.execute(sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(name))
