"""The format of a journal's file: its tables, and how files of older formats are taken over."""

from __future__ import annotations

import sqlite3

from tupelo.store.header import FORMAT_VERSION

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE change (
    position INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind INTEGER NOT NULL,
    arrival INTEGER,  -- the position at which its entry was written; NULL: not about an entry
    agent TEXT,       -- who acted; NULL: this space's own agent
    txn TEXT,
    waited REAL,
    expires REAL,     -- the lease after this change; of an entry that was written before the log
                      -- begins, as it was when it begins
    ended INTEGER,    -- of a written entry, the position at which it ended; NULL while it lives
    origin TEXT,      -- of a written entry; NULL: this space's own agent
    n INTEGER,        -- of a written entry
    payload BLOB,     -- of a written entry
    dest TEXT,        -- the agent that a written entry is for; since format 2
    session TEXT,     -- in which the agent acted; since format 3
    lease REAL        -- of a written entry, when it ends, as it is now; since format 4
);
CREATE TABLE promise (txn TEXT PRIMARY KEY, payload BLOB NOT NULL) WITHOUT ROWID;
"""


def take_over(db: sqlite3.Connection, form: int) -> None:
    """A file of an older format gets the columns that have come since, and has ours."""
    for since, column in ((2, "dest TEXT"), (3, "session TEXT"), (4, "lease REAL")):
        if form < since:
            db.execute(f"ALTER TABLE change ADD COLUMN {column}")
    if form < 4:  # Till then `expires` of a written entry was its lease as it is now.
        db.execute("UPDATE change SET lease = expires WHERE payload IS NOT NULL AND ended IS NULL")
    db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
