"""The SQL of a space. Values are parameters; the only text that varies is the place of a key, an
integer, and the expression for the time."""

from __future__ import annotations

from functools import lru_cache

from tupelo.postgres.matching import Group

HELD, NUMBERING, ROOM = 0x7470_0001, 0x7470_0002, 0x7470_0003
"""Classes of advisory locks, each with the number of a space: held shared by transactions with
entries in hand; held while changes are numbered; held by writers while there is a capacity."""

UNCOMMITTED = 1 << 62
"""Added to the arrival of an entry until its transaction commits: it comes behind all others."""

TOKEN_SECONDS = 60
"""So long the log tells what became of an operation, even if it is trimmed."""

COLUMNS = "id, shape, arrival, body, origin, n, expires, visible, deliveries, addressee, lease"

SERVER_TIME = "extract(epoch FROM statement_timestamp())::float8"
GIVEN_TIME = "%(now)s::float8"

_CHANGE = (
    "space, time, kind, entry, origin, n, agent, agent_name, txn, waited, expires, body, "
    "deliveries, visible, session, addressee, token"
)


class Statements:
    """The statements of spaces on one clock: the server's, or a given one."""

    def __init__(self, is_given: bool) -> None:
        now = self.now = GIVEN_TIME if is_given else SERVER_TIME
        held = (
            f"EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = {HELD}::oid "
            "AND objid = %(space)s::int::oid AND pid IS DISTINCT FROM pg_backend_pid())"
        )
        due = "coalesce(visible, expires)"
        # The first by the index. For EXISTS the server would read all entries, because it expects
        # that many are due.
        late = (
            f"coalesce((SELECT {due} FROM tupelo.entries WHERE space = %(space)s "
            f"AND {due} IS NOT NULL ORDER BY {due} LIMIT 1) <= {now}, false)"
        )
        shapes = "(SELECT shapes FROM tupelo.spaces WHERE id = %(space)s)"
        self._is_there = f"visible IS NULL AND (expires IS NULL OR expires > {now})"
        self._state = f"{shapes}, {late}, {held}"
        self._fresh = f"{shapes} = %(known)s AND NOT {late}"
        logged = f"""
            INSERT INTO tupelo.changes ({_CHANGE})
            SELECT %(space)s, {now}, %(kind)s, id, origin, n, %(agent)s, %(agent_name)s,
                %(txn)s::text, %(waited)s::float8, expires, body, deliveries, visible,
                %(session)s::text, addressee, %(token)s::bigint
        """
        self._tell_removal = (
            "(SELECT pg_notify(%(channel)s, '') FROM tupelo.spaces "
            "WHERE id = %(space)s AND removals)"
        )

        self.state = f"""
            SELECT {self._state}, (
                SELECT {due} - {now} FROM tupelo.entries
                WHERE space = %(space)s AND {due} IS NOT NULL AND {due} > {now}
                ORDER BY {due} LIMIT 1
            )
        """
        self.write = f"""
            WITH new AS (
                INSERT INTO tupelo.entries (id, space, shape, arrival, keys, body, origin, n,
                    expires, visible, lease, addressee)
                SELECT id, %(space)s, %(shape)s, id + %(later)s, %(keys)s::bytea[], %(body)s,
                    %(origin)s, %(n)s, {now} + coalesce(%(delay)s::float8, 0) + %(lease)s::float8,
                    {now} + %(delay)s::float8, %(lease)s::float8, %(to)s::text
                FROM (SELECT nextval('tupelo.arrivals') AS id) AS numbered
                RETURNING {COLUMNS}
            ), logged AS ({logged} FROM new WHERE %(later)s = 0)
            SELECT {COLUMNS}, CASE WHEN %(later)s = 0 THEN
                pg_notify(%(channel)s, %(shape)s::text) END
            FROM new
        """
        self.numbers = f"""
            SELECT array_agg(id), {now} FROM (
                SELECT nextval('tupelo.arrivals') AS id FROM generate_series(1, %(count)s)
            ) AS numbered
        """
        self.delete = f"""
            WITH found AS (
                SELECT id FROM tupelo.entries WHERE id = ANY(%(ids)s::bigint[])
                FOR NO KEY UPDATE SKIP LOCKED
            ), gone AS (
                DELETE FROM tupelo.entries USING found WHERE entries.id = found.id
                RETURNING entries.*
            ), logged AS ({logged} FROM gone WHERE %(logs)s ORDER BY arrival)
            SELECT id, pg_current_xact_id()::text, {self._tell_removal} FROM gone
        """
        self.hold = """
            SELECT id FROM tupelo.entries WHERE id = ANY(%(ids)s::bigint[]) FOR SHARE SKIP LOCKED
        """
        self.free = """
            SELECT id FROM tupelo.entries WHERE id = ANY(%(ids)s::bigint[])
            FOR NO KEY UPDATE SKIP LOCKED
        """
        self.glance = """
            SELECT id FROM tupelo.entries WHERE id = ANY(%(ids)s::bigint[])
            FOR KEY SHARE SKIP LOCKED
        """
        self.expire = f"""
            WITH found AS (
                SELECT id FROM tupelo.entries
                WHERE space = %(space)s AND {due} <= {now} AND visible IS NULL
                LIMIT 1000 FOR UPDATE SKIP LOCKED
            ), gone AS (
                DELETE FROM tupelo.entries USING found WHERE entries.id = found.id
                RETURNING entries.*
            ), logged AS ({logged} FROM gone ORDER BY expires, arrival)
            SELECT count(*), CASE WHEN count(*) > 0 THEN {self._tell_removal} END FROM gone
        """
        self.reveal = f"""
            WITH found AS (
                SELECT id FROM tupelo.entries
                WHERE space = %(space)s AND {due} <= {now} AND visible IS NOT NULL
                ORDER BY visible, arrival LIMIT 1000 FOR UPDATE SKIP LOCKED
            ), numbered AS (
                SELECT id, nextval('tupelo.arrivals') AS arrival FROM found
            ), shown AS (
                UPDATE tupelo.entries SET visible = NULL, arrival = numbered.arrival
                FROM numbered WHERE entries.id = numbered.id RETURNING entries.*
            ), logged AS ({logged} FROM shown ORDER BY arrival)
            SELECT count(*), max(pg_notify(%(channel)s, shape::text)::text) FROM shown
        """
        self.delayed = f"""
            SELECT {COLUMNS} FROM tupelo.entries
            WHERE space = %(space)s AND {due} IS NOT NULL AND visible IS NOT NULL
            ORDER BY visible, arrival
        """
        self.renew = f"""
            WITH found AS (
                SELECT id FROM tupelo.entries WHERE id = %(id)s
                AND (visible IS NOT NULL OR expires IS NULL OR expires > {now})
                FOR NO KEY UPDATE SKIP LOCKED
            ), renewed AS (
                UPDATE tupelo.entries SET lease = %(lease)s::float8,
                    expires = coalesce(visible, {now}) + %(lease)s::float8
                FROM found WHERE entries.id = found.id RETURNING entries.*
            ), logged AS ({logged} FROM renewed WHERE %(logs)s)
            SELECT id, expires FROM renewed
        """
        self.commit_writes = f"""
            WITH numbered AS (
                SELECT * FROM unnest(%(ids)s::bigint[], %(arrivals)s::bigint[]) AS a (id, arrival)
            ), shown AS (
                UPDATE tupelo.entries SET arrival = numbered.arrival
                FROM numbered WHERE entries.id = numbered.id RETURNING entries.*
            )
            INSERT INTO tupelo.changes ({_CHANGE})
            SELECT %(space)s, {now}, CASE WHEN visible IS NULL THEN 'written' ELSE 'delayed' END,
                id, origin, n, %(agent)s, %(agent_name)s, %(txn)s::text, 0, expires, body,
                deliveries, visible, NULL, addressee, NULL
            FROM shown ORDER BY arrival
        """
        self.log_entries = f"""
            INSERT INTO tupelo.changes ({_CHANGE})
            SELECT %(space)s, {now}, %(kind)s, id, origin, n, %(agent)s, %(agent_name)s,
                %(txn)s::text, 0, expires, body, deliveries, NULL, NULL, addressee, NULL
            FROM unnest(%(ids)s::bigint[], %(origins)s::text[], %(ns)s::bigint[],
                %(ends)s::float8[], %(bodies)s::bytea[], %(counts)s::int[], %(tos)s::text[])
                WITH ORDINALITY
                AS gone (id, origin, n, expires, body, deliveries, addressee, place)
            ORDER BY place
        """
        self.released = f"""
            WITH back AS (
                UPDATE tupelo.entries SET deliveries = least(deliveries::bigint + 1, 2147483647)
                WHERE id = ANY(SELECT id FROM tupelo.entries
                    WHERE id = ANY(%(ids)s::bigint[]) FOR UPDATE SKIP LOCKED)
                RETURNING *
            ), logged AS ({logged} FROM back ORDER BY arrival)
            SELECT count(*), pg_notify(%(channel)s, '') FROM back
        """
        self.done = """
            SELECT entry, 0, 0, body, origin, n, expires, visible, deliveries, addressee, NULL
            FROM tupelo.changes
            WHERE space = %(space)s AND agent = %(agent)s AND token = %(token)s ORDER BY seq
        """
        # An entry that arrived with a commit or after a delay has its former place by the order of
        # the changes that told it.
        self.give_back = f"""
            WITH back AS (
                INSERT INTO tupelo.entries (id, space, shape, arrival, keys, body, origin, n,
                    expires, deliveries, addressee)
                SELECT entry, space, %(shape)s, coalesce((
                        SELECT max(seq) FROM tupelo.changes AS told WHERE told.space = %(space)s
                        AND told.entry = %(id)s AND told.kind = 'written'
                    ), entry), %(keys)s::bytea[], body, origin, n, expires,
                    least(deliveries::bigint + 1, 2147483647), addressee
                FROM tupelo.changes WHERE space = %(space)s AND agent = %(agent)s
                    AND token = %(token)s AND entry = %(id)s AND kind = 'taken'
                RETURNING *
            ), logged AS ({logged} FROM back)
            SELECT pg_notify(%(channel)s, shape::text) FROM back
        """
        self.has_unnumbered = """
            SELECT EXISTS (
                SELECT FROM tupelo.changes WHERE space = %(space)s AND position IS NULL
            ), position, trimmed FROM tupelo.spaces WHERE id = %(space)s
        """
        self.number = """
            WITH fresh AS (
                SELECT ctid AS row, seq, max(seq) OVER (PARTITION BY xid) AS until
                FROM tupelo.changes WHERE space = %(space)s AND position IS NULL
            ), ordered AS (
                SELECT row, row_number() OVER (ORDER BY until, seq) AS place FROM fresh
            ), ahead AS (
                UPDATE tupelo.spaces SET position = position + (SELECT count(*) FROM fresh)
                WHERE id = %(space)s RETURNING position - (SELECT count(*) FROM fresh) AS base
            )
            UPDATE tupelo.changes SET position = base + place FROM ordered, ahead
            WHERE changes.ctid = ordered.row
        """
        self.changes = """
            SELECT position, time, kind, entry, origin, n, agent, agent_name, txn, waited,
                expires, body, deliveries, visible, session, addressee
            FROM tupelo.changes WHERE space = %(space)s AND position > greatest(%(since)s,
                (SELECT trimmed FROM tupelo.spaces WHERE id = %(space)s))
            ORDER BY position LIMIT %(limit)s
        """
        # What a program may still have to ask for by its token stays a while, unseen.
        self.trim = f"""
            WITH gone AS (
                DELETE FROM tupelo.changes WHERE space = %(space)s AND position < %(before)s
                AND (token IS NULL OR time < {now} - {TOKEN_SECONDS})
            )
            UPDATE tupelo.spaces SET trimmed = greatest(trimmed, least(%(before)s - 1, position))
            WHERE id = %(space)s
        """
        self.room = """
            SELECT count(*), coalesce(sum(length(body)), 0) FROM tupelo.entries
            WHERE space = %(space)s
        """
        self.oldest = """
            SELECT id, length(body) FROM tupelo.entries
            WHERE space = %(space)s AND visible IS NULL AND arrival < 4611686018427387904
            ORDER BY arrival FOR NO KEY UPDATE SKIP LOCKED
        """
        self.logged = logged

    def candidates(self, groups: tuple[Group, ...], backwards: bool) -> str:
        return _candidates(self._state, self._is_there, groups, backwards)

    def take(self, group: Group) -> str:
        """Take the oldest entries of one shape with these keys, if all shapes are known and nothing
        has to expire or appear before. Without entries there is a row of nulls, whose last columns
        say whether that was so, and whether others have matches in hand."""
        return _take(self._fresh, self._is_there, self.logged, self._tell_removal, group.positions)

    def count(self, groups: tuple[Group, ...]) -> str:
        """Count the matches of templates that SQL can say."""
        wheres = " OR ".join(
            f"(shape = ANY(%(shapes{i})s::int[]){_keys(group.positions, i)})"
            for i, group in enumerate(groups)
        )
        return (
            f"SELECT {self._state}, (SELECT count(*) FROM tupelo.entries "
            f"WHERE space = %(space)s AND ({wheres or 'false'}) AND {self._is_there})"
        )


def values_of(groups: tuple[Group, ...]) -> dict[str, object]:
    """The parameters of the groups."""
    values: dict[str, object] = {}
    for i, group in enumerate(groups):
        values[f"shapes{i}"] = list(group.shapes)
        values.update({f"key{i}_{j}": key for j, key in enumerate(group.keys)})
    return values


def _keys(positions: tuple[int, ...], i: int) -> str:
    return "".join(f" AND keys[{int(p) + 1}] = %(key{i}_{j})s" for j, p in enumerate(positions))


def _candidates(state: str, is_there: str, groups: tuple[Group, ...], backwards: bool) -> str:
    way = "DESC" if backwards else "ASC"
    parts = [
        f"""
        SELECT {COLUMNS} FROM unnest(%(shapes{i})s::int[]) AS asked (number)
        CROSS JOIN LATERAL (
            SELECT {COLUMNS} FROM tupelo.entries
            WHERE space = %(space)s AND shape = asked.number AND arrival > %(after)s
                AND arrival < %(until)s AND {is_there}{_keys(group.positions, i)}
            ORDER BY arrival {way} LIMIT %(batch)s
        ) AS found
        """
        for i, group in enumerate(groups)
    ]
    return (
        f"SELECT {COLUMNS}, {state} FROM ({' UNION ALL '.join(parts)}) AS matches "
        f"ORDER BY arrival {way} LIMIT %(batch)s"
    )


@lru_cache(1024)
def _take(fresh: str, is_there: str, logged: str, tell: str, positions: tuple[int, ...]) -> str:
    matches = (
        "FROM tupelo.entries WHERE space = %(space)s AND shape = %(shape)s "
        f"AND {is_there}{_keys(positions, 0)}"
    )
    return f"""
        WITH state AS MATERIALIZED (SELECT {fresh} AS is_fresh),
        found AS (
            SELECT id {matches} AND (SELECT is_fresh FROM state)
            ORDER BY arrival LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM tupelo.entries USING found WHERE entries.id = found.id
            RETURNING entries.*
        ), logged AS ({logged} FROM gone ORDER BY arrival)
        SELECT {COLUMNS}, CASE WHEN id IS NOT NULL THEN {tell} END, is_fresh,
            id IS NULL AND EXISTS (SELECT {matches})
        FROM state LEFT JOIN gone ON true ORDER BY arrival
    """
