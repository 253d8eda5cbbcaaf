"""The tables of the spaces in a database, and their versions."""

from __future__ import annotations

FIRST = """
CREATE SCHEMA IF NOT EXISTS tupelo;
CREATE TABLE IF NOT EXISTS tupelo.version (version int NOT NULL);
CREATE TABLE IF NOT EXISTS tupelo.spaces (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    options jsonb NOT NULL,
    shapes int NOT NULL DEFAULT 0,
    removals boolean NOT NULL DEFAULT false,
    position bigint NOT NULL DEFAULT 0,
    trimmed bigint NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS tupelo.shapes (
    space int NOT NULL REFERENCES tupelo.spaces ON DELETE CASCADE,
    number int NOT NULL,
    signature bytea NOT NULL,
    PRIMARY KEY (space, number),
    UNIQUE (space, signature)
);
CREATE SEQUENCE IF NOT EXISTS tupelo.arrivals CACHE 1;
CREATE TABLE IF NOT EXISTS tupelo.entries (
    id bigint PRIMARY KEY,
    space int NOT NULL,
    shape int NOT NULL,
    arrival bigint NOT NULL,
    keys bytea[] NOT NULL,
    body bytea NOT NULL,
    origin text NOT NULL,
    n bigint NOT NULL,
    expires double precision,
    visible double precision,
    lease double precision,
    deliveries int NOT NULL DEFAULT 0,
    addressee text
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS entries_by_arrival ON tupelo.entries (space, shape, arrival);
CREATE INDEX IF NOT EXISTS entries_due ON tupelo.entries (space, (coalesce(visible, expires)))
    WHERE coalesce(visible, expires) IS NOT NULL;
CREATE TABLE IF NOT EXISTS tupelo.changes (
    seq bigint NOT NULL DEFAULT nextval('tupelo.arrivals'),
    space int NOT NULL,
    position bigint,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    time double precision NOT NULL,
    kind text NOT NULL,
    entry bigint NOT NULL,
    origin text NOT NULL,
    n bigint NOT NULL,
    agent text NOT NULL,
    agent_name text NOT NULL,
    txn text,
    waited double precision NOT NULL DEFAULT 0,
    expires double precision,
    body bytea,
    deliveries int NOT NULL DEFAULT 0,
    visible double precision,
    session text,
    addressee text,
    token bigint
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX IF NOT EXISTS changes_by_position ON tupelo.changes (space, position)
    WHERE position IS NOT NULL;
CREATE INDEX IF NOT EXISTS changes_unnumbered ON tupelo.changes (space, seq)
    WHERE position IS NULL;
"""

VOTES_AND_ARRIVALS = """
ALTER TABLE tupelo.version ADD COLUMN IF NOT EXISTS id uuid NOT NULL DEFAULT gen_random_uuid();
ALTER TABLE tupelo.spaces ADD COLUMN IF NOT EXISTS log uuid NOT NULL DEFAULT gen_random_uuid();
CREATE TABLE IF NOT EXISTS tupelo.decisions (
    txn text NOT NULL,
    participant text NOT NULL,
    PRIMARY KEY (txn, participant)
);
CREATE INDEX IF NOT EXISTS changes_by_entry ON tupelo.changes (space, entry)
    WHERE position IS NOT NULL AND kind IN ('written', 'delayed');
CREATE TABLE IF NOT EXISTS tupelo.arrived (
    LIKE tupelo.changes,
    PRIMARY KEY (space, entry)
);
"""
"""`arrived` has the changes that wrote the entries which were there when the log begins, as it is
trimmed now; `decisions` which branches of transactions over several spaces are to commit."""

CLAIMS_AND_GRANTS = """
CREATE TABLE IF NOT EXISTS tupelo.claims (
    entry bigint PRIMARY KEY,
    space int NOT NULL,
    txn text NOT NULL,
    agent text NOT NULL,
    agent_name text NOT NULL,
    since double precision NOT NULL,
    losses int NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE IF NOT EXISTS tupelo.grants (
    role text NOT NULL,
    space int NOT NULL,
    PRIMARY KEY (role, space)
);
"""
"""`claims` tells who has an entry in a transaction; `grants` has the roles of `tupelo store init
--role`, each with a space that it may use, or 0 for all."""

LONG_SHAPES = """
ALTER TABLE tupelo.shapes DROP CONSTRAINT IF EXISTS shapes_space_signature_key;
CREATE UNIQUE INDEX IF NOT EXISTS shapes_by_signature ON tupelo.shapes (space, sha256(signature));
"""
"""An index takes no more than 2,704 bytes: too few for shapes of many fields."""

ONE_INDEX_OF_POSITIONS = """
CREATE UNIQUE INDEX IF NOT EXISTS changes_by_place ON tupelo.changes (space, position);
DROP INDEX IF EXISTS tupelo.changes_by_position, tupelo.changes_unnumbered;
"""
"""Each index costs every operation something, also one without an entry for the change."""

MIGRATIONS = (FIRST, VOTES_AND_ARRIVALS, CLAIMS_AND_GRANTS, LONG_SHAPES, ONE_INDEX_OF_POSITIONS)
"""The statements that make each version from the one before it; the first makes the tables. They
run in one transaction, under a lock, and each may be repeated."""

VERSION = len(MIGRATIONS)

PRIVILEGES = {
    "version": "SELECT",
    "grants": "SELECT",
    "decisions": "SELECT, INSERT, DELETE",
    "spaces": "SELECT, INSERT, UPDATE",
    "shapes": "SELECT, INSERT, UPDATE",
    "entries": "SELECT, INSERT, UPDATE, DELETE",
    "changes": "SELECT, INSERT, UPDATE, DELETE",
    "claims": "SELECT, INSERT, UPDATE, DELETE",
    "arrived": "SELECT, INSERT, UPDATE, DELETE",
}
"""What a program needs of each table."""

SPACE_COLUMNS = {
    "spaces": "id",
    "shapes": "space",
    "entries": "space",
    "changes": "space",
    "claims": "space",
    "arrived": "space",
}
"""The tables with rows of several spaces, and where these name their space."""

INIT_LOCK = 0x7475706C
"""The advisory lock that is held while the tables are made."""
