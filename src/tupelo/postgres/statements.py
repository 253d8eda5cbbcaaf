"""The SQL of a space. Values are parameters; the only text that varies is the place of a key, an
integer, and the expression for the time."""

from __future__ import annotations

from typing import NamedTuple

from tupelo.postgres.matching import ShapeGroup
from tupelo.values.change import ENDINGS

HELD, NUMBERING, ROOM, DECIDING = 0x7470_0001, 0x7470_0002, 0x7470_0003, 0x7470_0004
"""Classes of advisory locks, each with the number of a space: held shared by transactions with
entries in hand; held while changes are numbered; held by writers while there is a capacity. The
last, with the hash of a transaction over several spaces, is held while that may be decided."""

LOCK_DECISION = f"SELECT pg_advisory_xact_lock_shared({DECIDING}, hashtext(%(txn)s))"
IS_DECIDED = f"SELECT pg_try_advisory_xact_lock({DECIDING}, hashtext(%(txn)s))"
# A decision must outlive the server, since others carry it out.
RECORD_DECISION = """
    WITH durable AS (
        SELECT set_config('synchronous_commit', 'on', true)
        WHERE current_setting('synchronous_commit') = 'off'
    )
    INSERT INTO tupelo.decisions (txn, participant)
    SELECT * FROM unnest(%(txns)s::text[], %(participants)s::text[])
    WHERE (SELECT count(*) FROM durable) >= 0
"""
WAS_COMMITTED = """
    SELECT EXISTS (SELECT FROM tupelo.changes WHERE txn = ANY(%(txns)s::text[]))
        OR EXISTS (SELECT FROM tupelo.decisions WHERE txn = ANY(%(txns)s::text[]))
"""
HAS_DECISION = "SELECT EXISTS (SELECT FROM tupelo.decisions WHERE txn = %(txn)s)"
FORGET_DECISION = (
    "DELETE FROM tupelo.decisions WHERE txn = %(txn)s AND participant = %(participant)s"
)
_PREPARED = (
    "pg_prepared_xacts WHERE database = current_database() AND gid ~ '^tupelo:[0-9]+([+][0-9]+)*:'"
)
ALL_PREPARED = f"""
    SELECT gid, extract(epoch FROM prepared)::float8, owner::text FROM {_PREPARED} ORDER BY prepared
"""
# With the whole id of the transaction, of which the view has the lower half.
PREPARED = f"""
    SELECT gid, (
        here + ((transaction::text::bigint - here & 4294967295) # 2147483648) - 2147483648
    )::text
    FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS here) AS now, {_PREPARED}
    AND %(space)s::text = ANY(string_to_array(split_part(gid, ':', 2), '+'))
    ORDER BY prepared, gid
"""

UNCOMMITTED = 1 << 62
"""Added to the arrival of an entry until its transaction commits: it comes behind all others."""

TOKEN_SECONDS = 60
"""So long the log tells what became of an operation, even if it is trimmed."""

ARRIVAL_IN_KEYS = "(arrival + 0)"
"""The arrival, as the indexes of keys have it."""

Indexed = frozenset[int]
"""The places whose keys have an index."""

COLUMNS = "id, shape, arrival, body, origin, n, expires, visible, deliveries, addressee, lease"
LOGGED = "entry, 0, 0, body, origin, n, expires, visible, deliveries, addressee"
"""The same of an entry in the log, as far as they are known there; without the lease."""

SERVER_TIME = "date_part('epoch', statement_timestamp())"
GIVEN_TIME = "%(now)s::float8"

_CHANGE = (
    "space, time, kind, entry, origin, n, agent, agent_name, txn, waited, expires, body, "
    "deliveries, visible, session, addressee, token"
)
_KEPT = ", ".join(
    f"{'latest' if name in ('expires', 'deliveries') else 'changes'}.{name}"
    for name in _CHANGE.split(", ")
)
_ENDINGS = "ARRAY[" + ", ".join(f"'{kind}'" for kind in ENDINGS) + "]"


class Statements:
    """The statements of spaces on one clock: the server's, or a given one."""

    def __init__(self, is_given: bool) -> None:
        now = self.now = GIVEN_TIME if is_given else SERVER_TIME
        # Nobody else holds the lock, even shared, if it can be had; it is freed at once. Who tries
        # at the same moment believes that somebody holds it, and looks closer.
        held = (
            f"(SELECT CASE WHEN pg_try_advisory_lock({HELD}, %(space)s) "
            f"THEN NOT pg_advisory_unlock({HELD}, %(space)s) ELSE true END)"
        )
        due = "coalesce(visible, expires)"
        # The first by the index. For EXISTS the server would read all entries, because it expects
        # that many are due.
        late = (
            f"coalesce((SELECT {due} FROM tupelo.entries WHERE space = %(space)s "
            f"AND {due} IS NOT NULL ORDER BY {due} LIMIT 1) <= {now}, false)"
        )
        shapes = "(SELECT shapes FROM tupelo.spaces WHERE id = %(space)s)"
        self._takes: dict[tuple[tuple[int, ...], Indexed, bool], str] = {}
        self._is_there = f"visible IS NULL AND (expires IS NULL OR expires > {now})"
        self._state = f"{shapes}, {late}, {held}"
        self._fresh = f"{shapes} = %(known)s AND NOT {late}"
        self._removals = "(SELECT removals FROM tupelo.spaces WHERE id = %(space)s)"
        logged = self._log("%(kind)s", "%(txn)s::text", "%(waited)s::float8", "%(session)s::text")
        self._tell_removal = (
            "(SELECT pg_notify(%(channel)s, '') FROM tupelo.spaces "
            "WHERE id = %(space)s AND removals)"
        )

        # Without a doubt, but this looks at all locks of the server.
        self.is_held = f"""
            SELECT EXISTS (
                SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'
                AND classid = {HELD}::oid AND objid = %(space)s::int::oid
                AND NOT coalesce(pid = ANY(%(ours)s::int[]), false)
            )
        """
        self.state = f"""
            SELECT {self._state}, (
                SELECT {due} - {now} FROM tupelo.entries
                WHERE space = %(space)s AND {due} IS NOT NULL AND {due} > {now}
                ORDER BY {due} LIMIT 1
            )
        """
        # Few parameters: each costs about as much as a column.
        one = (
            "%(shape)s::int, %(keys)s::bytea[], %(body)s::bytea, %(n)s::bigint, %(lease)s::float8",
            "nextval('tupelo.arrivals') AS id",
        )
        many = (
            "shape, keys::bytea[], body, n, lease",
            """(
                SELECT nextval('tupelo.arrivals') AS id, *
                FROM unnest(%(shapes)s::int[], %(keys)s::text[], %(bodies)s::bytea[],
                    %(ns)s::bigint[], %(leases)s::float8[]) AS row (shape, keys, body, n, lease)
            ) AS given""",
        )
        tell_many = """
            (SELECT count(pg_notify(%(channel)s, shape::text))
            FROM (SELECT DISTINCT unnest(%(shapes)s::int[])) AS told (shape))
        """
        self.write = self._write(*one, "pg_notify(%(channel)s, %(shape)s::text)")
        self.write_later = f"{self._insert(*one, UNCOMMITTED)} RETURNING {COLUMNS}"
        self.write_many = self._write(*many, tell_many)
        self.write_many_later = f"{self._insert(*many, UNCOMMITTED)} RETURNING {COLUMNS}"
        those = "SELECT id FROM tupelo.entries WHERE id = ANY(%(ids)s::bigint[])"
        self.free = f"{those} FOR NO KEY UPDATE SKIP LOCKED"
        self.hold = f"{those} FOR SHARE SKIP LOCKED"
        self.glance = f"{those} FOR KEY SHARE SKIP LOCKED"
        self.delete = f"""
            WITH found AS ({self.free}), gone AS (
                DELETE FROM tupelo.entries USING found WHERE entries.id = found.id
                RETURNING entries.*
            ), logged AS ({logged} FROM gone WHERE %(logs)s ORDER BY arrival)
            SELECT id, pg_current_xact_id()::text,
                CASE WHEN %(tells)s THEN {self._tell_removal} END
            FROM gone
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
                SELECT id, nextval('tupelo.arrivals') AS arrival
                FROM unnest(%(ids)s::bigint[]) AS id
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
        self.commit_takes = f"""
            WITH unclaimed AS (DELETE FROM tupelo.claims WHERE entry = ANY(%(ids)s::bigint[]))
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
                UPDATE tupelo.entries SET deliveries = least(deliveries::bigint + 1 + coalesce(
                    (SELECT losses FROM tupelo.claims WHERE entry = id AND claims.txn = %(txn)s), 0
                ), 2147483647)
                WHERE id = ANY(SELECT id FROM tupelo.entries
                    WHERE id = ANY(%(ids)s::bigint[]) FOR UPDATE SKIP LOCKED)
                RETURNING *
            ), unclaimed AS (
                DELETE FROM tupelo.claims WHERE entry = ANY(SELECT id FROM back)
            ), logged AS ({logged} FROM back ORDER BY arrival)
            SELECT count(*), pg_notify(%(channel)s, '') FROM back
        """
        # Whoever finds the claim of another has locked the entry, so that the other one is gone.
        # Claims need not outlive a crash of the server, which ends all transactions.
        self.claim = f"""
            WITH soon AS (SELECT set_config('synchronous_commit', 'off', true))
            INSERT INTO tupelo.claims AS claim (entry, space, txn, agent, agent_name, since)
            SELECT id, %(space)s, %(txn)s, %(agent)s, %(agent_name)s, {now}
            FROM unnest(%(ids)s::bigint[]) AS id, soon
            ON CONFLICT (entry) DO UPDATE SET txn = excluded.txn, agent = excluded.agent,
                agent_name = excluded.agent_name, since = excluded.since,
                losses = least(claim.losses::bigint
                    + (claim.txn NOT IN ('', excluded.txn))::int, 2147483647)
            RETURNING entry, losses
        """
        self.unclaim = """
            UPDATE tupelo.claims SET txn = '' WHERE entry = ANY(%(ids)s::bigint[])
            AND txn = %(txn)s
        """
        self.claimed = f"""
            SELECT {", ".join(f"entries.{name}" for name in COLUMNS.split(", "))},
                txn, agent, agent_name
            FROM tupelo.claims JOIN tupelo.entries ON entry = id
            WHERE claims.space = %(space)s AND txn <> '' ORDER BY since, entry
        """
        self.done = f"""
            SELECT {LOGGED}, NULL
            FROM tupelo.changes
            WHERE space = %(space)s AND agent = %(agent)s AND token = %(token)s ORDER BY seq
        """
        # Without an arrival: an entry that arrived with a commit or after a delay has its former
        # place by the order of the changes that told it.
        self.put_back = f"""
            WITH back AS (
                INSERT INTO tupelo.entries (id, space, shape, arrival, keys, body, origin, n,
                    expires, deliveries, addressee)
                VALUES (%(id)s, %(space)s, %(shape)s,
                    coalesce(nullif(%(arrival)s::bigint, 0), (
                        SELECT max(seq) FROM tupelo.changes AS told WHERE told.space = %(space)s
                        AND told.entry = %(id)s AND told.kind = 'written'
                    ), %(id)s),
                    %(keys)s::bytea[], %(body)s, %(origin)s, %(n)s, %(expires)s::float8,
                    least(%(deliveries)s::bigint + 1, 2147483647), %(to)s::text)
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
        self.length = """
            SELECT position - trimmed + (
                SELECT count(*) FROM tupelo.changes WHERE space = %(space)s AND position IS NULL
            ) FROM tupelo.spaces WHERE id = %(space)s
        """
        # What a program may still have to ask for stays a while, unseen. Of an entry that
        # is there when the log begins, the change that wrote it is kept, with its present lease.
        # LIMIT 1 makes the server look up each of many entries. Otherwise it may compare all with
        # all, because it does not know how many there are.
        self.trim = f"""
            WITH latest AS MATERIALIZED (
                SELECT DISTINCT ON (entry) entry, kind, expires, deliveries,
                    max(position) FILTER (WHERE kind IN ('written', 'delayed'))
                        OVER (PARTITION BY entry) AS begun
                FROM tupelo.changes WHERE space = %(space)s AND position < %(before)s
                    AND position > (SELECT trimmed FROM tupelo.spaces WHERE id = %(space)s)
                ORDER BY entry, position DESC
            ), over AS (
                SELECT array_agg(entry) AS entries FROM latest WHERE kind = ANY({_ENDINGS})
            ), ended AS (
                DELETE FROM tupelo.arrived WHERE space = %(space)s
                    AND entry = ANY((SELECT entries FROM over)::bigint[])
            ), unclaimed AS (
                DELETE FROM tupelo.claims WHERE entry = ANY((SELECT entries FROM over)::bigint[])
            ), renewed AS (
                UPDATE tupelo.arrived SET expires = latest.expires, deliveries = latest.deliveries
                FROM latest CROSS JOIN LATERAL (
                    SELECT ctid AS row FROM tupelo.arrived
                    WHERE space = %(space)s AND entry = latest.entry LIMIT 1
                ) AS found
                WHERE arrived.ctid = row AND latest.kind <> ALL({_ENDINGS}) AND begun IS NULL
            ), kept AS (
                INSERT INTO tupelo.arrived (position, seq, xid, {_CHANGE})
                SELECT changes.position, seq, xid, {_KEPT}
                FROM latest CROSS JOIN LATERAL (
                    SELECT * FROM tupelo.changes
                    WHERE space = %(space)s AND position = begun LIMIT 1
                ) AS changes
                WHERE latest.kind <> ALL({_ENDINGS})
                ON CONFLICT (space, entry) DO UPDATE SET position = excluded.position,
                    time = excluded.time, kind = excluded.kind, agent = excluded.agent,
                    agent_name = excluded.agent_name, txn = excluded.txn,
                    expires = excluded.expires, deliveries = excluded.deliveries,
                    visible = excluded.visible
            ), gone AS (
                DELETE FROM tupelo.changes WHERE space = %(space)s AND position < %(before)s
                AND ((token IS NULL AND txn IS NULL) OR time < {now} - {TOKEN_SECONDS})
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

    def _insert(self, row: str, source: str, later: int) -> str:
        """Insert entries: their shape, keys, body, n and lease, and where these and the id are."""
        shape, keys, body, n, lease = row.split(", ")
        return f"""
            INSERT INTO tupelo.entries (id, space, shape, arrival, keys, body, origin, n,
                expires, visible, lease, addressee)
            SELECT id, %(space)s, {shape}, id + {later}, {keys}, {body}, %(agent)s, {n},
                {self.now} + coalesce(%(delay)s::float8, 0) + {lease},
                {self.now} + %(delay)s::float8, {lease}, %(to)s::text
            FROM {source}
        """

    def _write(self, row: str, source: str, tell: str) -> str:
        kind = "CASE WHEN visible IS NULL THEN 'written' ELSE 'delayed' END"
        return f"""
            WITH new AS (
                {self._insert(row, source, 0)}
                RETURNING id, origin, n, expires, body, deliveries, visible, addressee
            ) {self._log(kind, seq="id")} FROM new
            RETURNING entry, 0, 0, NULL, NULL, n, expires, {tell}
        """

    def _log(
        self,
        kind: str,
        txn: str = "NULL",
        waited: str = "0",
        session: str = "NULL",
        seq: str = "nextval('tupelo.arrivals')",
    ) -> str:
        """Log a change of entries; a FROM follows."""
        return f"""
            INSERT INTO tupelo.changes (seq, {_CHANGE})
            SELECT {seq}, %(space)s, {self.now}, {kind}, id, origin, n, %(agent)s, %(agent_name)s,
                {txn}, {waited}, expires, body, deliveries, visible, {session}, addressee,
                %(token)s::bigint
        """

    def candidates(
        self, groups: tuple[ShapeGroup, ...], backwards: bool, indexed: Indexed, whole: bool = False
    ) -> str:
        """The first entries of these groups between two arrivals, each with the state; or all."""
        way = "DESC" if backwards else "ASC"
        limit = "" if whole else "LIMIT %(batch)s"
        parts = []
        for i, group in enumerate(groups):
            place = _place(group.positions, indexed)
            bounds = "" if whole else f"AND {place} > %(after)s AND {place} < %(until)s"
            parts.append(f"""
                SELECT {COLUMNS} FROM unnest(%(shapes{i})s::int[]) AS asked (number)
                CROSS JOIN LATERAL (
                    SELECT {COLUMNS} FROM tupelo.entries
                    WHERE space = %(space)s AND shape = asked.number {bounds}
                        AND {self._is_there}{_keys(group.positions, i)}
                    ORDER BY {place} {way} {limit}
                ) AS found
            """)
        return (
            f"SELECT {COLUMNS}, {self._state} FROM ({' UNION ALL '.join(parts)}) AS matches "
            f"ORDER BY arrival {way} {limit}"
        )

    def ranked(
        self, groups: tuple[ShapeGroup, ...], ranks: tuple[Rank, ...], batch: int, first: bool
    ) -> str:
        """The first entries of these groups by the numbers at the place of each, each with the
        state and its rank; or those after a rank and an arrival. One whose number has no rank comes
        before all others."""
        parts = []
        for i, (group, rank) in enumerate(zip(groups, ranks, strict=True)):
            after = "" if first else "AND (rank, arrival) > (%(rank)s::text::numeric, %(after)s)"
            # The limit is no parameter: the server would expect to read a tenth of all entries.
            parts.append(f"""
                SELECT {COLUMNS}, rank FROM unnest(%(shapes{i})s::int[]) AS asked (number)
                CROSS JOIN LATERAL (
                    SELECT {COLUMNS}, rank FROM (
                        SELECT *, {rank_of(rank)} AS rank FROM tupelo.entries
                    ) AS entries
                    WHERE space = %(space)s AND shape = asked.number {after}
                        AND {self._is_there}{_keys(group.positions, i)}
                    ORDER BY rank NULLS FIRST, arrival LIMIT {int(batch)}
                ) AS found
            """)
        return (
            f"SELECT {COLUMNS}, {self._state}, rank::text "
            f"FROM ({' UNION ALL '.join(parts)}) AS matches "
            f"ORDER BY matches.rank NULLS FIRST, arrival LIMIT {int(batch)}"
        )

    def take(self, group: ShapeGroup, indexed: Indexed, tells: bool) -> str:
        """Take the oldest entry of one shape with these keys, if all shapes are known, and whether
        those who wait must be told of removals."""
        found = self._takes.get((group.positions, indexed, tells))
        if found is None:
            found = self._takes[group.positions, indexed, tells] = self._take(group, indexed, tells)
        return found

    def _take(self, group: ShapeGroup, indexed: Indexed, tells: bool) -> str:
        place = _place(group.positions, indexed)
        asked = "removals" if tells else "NOT removals"
        return f"""
            WITH gone AS (
                DELETE FROM tupelo.entries WHERE id = (
                    SELECT id {self._matches(group)} AND (
                        SELECT shapes FROM tupelo.spaces WHERE id = %(space)s AND {asked}
                    ) = %(known)s
                    ORDER BY {place} LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
                ) RETURNING id, origin, n, expires, body, deliveries, visible, addressee
            ) {self._log("'taken'", waited="%(waited)s::float8")} FROM gone
            RETURNING {LOGGED}, {"pg_notify(%(channel)s, '')" if tells else "NULL"}
        """

    def take_many(self, group: ShapeGroup, indexed: Indexed) -> str:
        """Take the oldest entries of one shape with these keys, if all shapes are known and nothing
        has to expire or appear before."""
        place = _place(group.positions, indexed)
        return f"""
            WITH found AS (
                SELECT id {self._matches(group)} AND {self._fresh}
                ORDER BY {place} LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
            ), gone AS (
                DELETE FROM tupelo.entries USING found WHERE entries.id = found.id
                RETURNING entries.*
            ), logged AS ({self.logged} FROM gone ORDER BY arrival)
            SELECT {COLUMNS}, {self._tell_removal} FROM gone ORDER BY arrival
        """

    def missed(self, group: ShapeGroup) -> str:
        """After a take without entries: whether all about the space is known and nothing has to
        expire or appear, and whether there are matches, which others have in hand."""
        return (
            f"SELECT {self._fresh} AND {self._removals} = %(tells)s, "
            f"EXISTS (SELECT {self._matches(group)})"
        )

    def _matches(self, group: ShapeGroup) -> str:
        return (
            "FROM tupelo.entries WHERE space = %(space)s AND shape = %(shape)s "
            f"AND {self._is_there}{_keys(group.positions, 0)}"
        )

    def count(self, groups: tuple[ShapeGroup, ...]) -> str:
        """Count the matches of templates that SQL can say."""
        wheres = " OR ".join(
            f"(shape = ANY(%(shapes{i})s::int[]){_keys(group.positions, i)})"
            for i, group in enumerate(groups)
        )
        return (
            f"SELECT {self._state}, (SELECT count(*) FROM tupelo.entries "
            f"WHERE space = %(space)s AND ({wheres or 'false'}) AND {self._is_there})"
        )


class Rank(NamedTuple):
    """The order by the numbers at a place, the smallest or the largest first."""

    position: int
    reverse: bool


def rank_of(rank: Rank) -> str:
    """The rank of an entry: the number behind a key, as `matching.key_of` writes it. NULL for
    other values, and for integers of more than 64 bits, infinities and NaN."""
    text = f"encode(substr(keys[{int(rank.position) + 1}], 2), 'escape')"
    number = r"^-?[0-9]{1,20}([.][0-9]+)?(e[-+][0-9]+)?$"
    sign = "-" if rank.reverse else ""
    return f"(CASE WHEN {text} ~ '{number}' THEN {sign}({text}::numeric) END)"


def values_of(groups: tuple[ShapeGroup, ...]) -> dict[str, object]:
    """The parameters of the groups."""
    values: dict[str, object] = {}
    for i, group in enumerate(groups):
        values[f"shapes{i}"] = list(group.shapes)
        values.update({f"key{i}_{j}": key for j, key in enumerate(group.keys)})
    return values


def _keys(positions: tuple[int, ...], i: int) -> str:
    return "".join(f" AND keys[{int(p) + 1}] = %(key{i}_{j})s" for j, p in enumerate(positions))


def _place(positions: tuple[int, ...], indexed: Indexed) -> str:
    """The order of arrival. Where there is an index of a key it is written so that only such an
    index has it: the planner might prefer to look through all entries by their arrival."""
    return ARRIVAL_IN_KEYS if indexed.intersection(positions) else "arrival"
