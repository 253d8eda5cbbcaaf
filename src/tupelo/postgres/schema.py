"""The tables of the spaces in a database, and their versions."""

from __future__ import annotations

VERSION = 1

TABLES = """
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
"""Each statement is one that may be repeated, so that two programs may begin at once."""

INIT_LOCK = 0x7475706C
"""The advisory lock that is held while the tables are made."""
