"""Every error of the server and the driver is one of ours, with the reason."""

from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

import tupelo
from tests.kinds import database_url, space_url
from tests.postgres.test_administration import as_role, quoted
from tupelo.errors import (
    CannotReach,
    Deadlock,
    DiskFull,
    JournalError,
    JournalFailed,
    NotAllowed,
    PeerLost,
    UnknownSpace,
)
from tupelo.postgres.driver import BlockingDatabase
from tupelo.space.dual_api import run_coroutine

STATES = {
    "08006": (PeerLost, "was lost"),  # connection failure
    "23505": (JournalFailed, "refused"),  # unique violation
    "25006": (CannotReach, "target_session_attrs"),  # read-only server, such as a replica
    "25P03": (PeerLost, "was lost"),  # idle in a transaction for too long
    "3F000": (JournalError, "tupelo store init"),  # no schema
    "40001": (PeerLost, "was lost"),  # serialization failure, undone by the server
    "40P01": (Deadlock, "wait for each other"),  # it names processes instead of a reason
    "42501": (NotAllowed, "not allowed"),  # no privilege
    "42703": (JournalError, "tupelo store init"),  # no such column
    "42P01": (JournalError, "tupelo store init"),  # no such table
    "53100": (DiskFull, "PostgreSQL at"),  # disk full
    "53200": (JournalFailed, "refused"),  # out of memory
    "53300": (JournalFailed, "refused"),  # too many connections, for a statement
    "55P03": (JournalFailed, "gave up"),  # lock timeout
    "57014": (JournalFailed, "gave up"),  # statement timeout, or cancelled
    "57P01": (PeerLost, "was lost"),  # shut down by the administrator
    "57P03": (PeerLost, "was lost"),  # starting up
    "58030": (JournalFailed, "refused"),  # I/O error
    "XX001": (JournalFailed, "refused"),  # data corrupted
}


@pytest.fixture
def database():
    made = BlockingDatabase(database_url(), None)
    link = run_coroutine(made.open())
    yield made, link
    link.close()


@pytest.mark.parametrize("state", STATES)
def test_each_state_of_an_error_is_one_of_ours(database, state):
    made, link = database
    kind, said = STATES[state]
    raising = f"DO $$ BEGIN RAISE EXCEPTION 'the reason' USING ERRCODE = '{state}'; END $$"
    with pytest.raises(kind, match=said) as caught:
        run_coroutine(made.run(link, raising))
    assert type(caught.value) is kind
    assert "the reason" in str(caught.value) or kind is Deadlock
    assert not getattr(caught.value, "in_doubt", False)


def test_a_database_that_is_not_there_cannot_be_reached():
    url = urlunsplit(urlsplit(database_url())._replace(path="/no_such_database"))
    with pytest.raises(CannotReach, match="no_such_database"):
        tupelo.connect(f"{url}{'&' if '?' in url else '?'}space=jobs")


def test_a_user_that_the_server_refuses_cannot_reach_it():
    with pytest.raises(CannotReach, match="nobody-known"):
        tupelo.connect(as_role(database_url(), "nobody-known", "jobs"))


def test_too_many_connections_are_said(database):
    role = f"crowd {uuid4()}"
    _, link = database
    link.execute(sql.SQL("CREATE ROLE {} LOGIN CONNECTION LIMIT 0").format(sql.Identifier(role)))
    try:
        with pytest.raises(CannotReach, match="too many connections"):
            tupelo.connect(as_role(database_url(), quoted(role), "jobs"))
    finally:
        link.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_statement_that_takes_too_long_is_given_up():
    name = f"slow {uuid4()}"
    with tupelo.connect(space_url(name)) as space, psycopg.connect(database_url()) as holder:
        space.write(("job", 1))
        impatient = space_url(name) + "&options=-c%20statement_timeout%3D100ms"
        with tupelo.connect(impatient) as other:
            holder.execute("SELECT FROM tupelo.spaces WHERE name = %s FOR UPDATE", (name,))
            with pytest.raises(JournalFailed, match=r"gave up .*statement timeout"):
                other.write(("job", "of a new shape"))
            holder.rollback()
        assert space.count() == 1


def test_a_table_that_was_dropped_says_what_to_run():
    name = f"store_{uuid4().hex}"
    with psycopg.connect(database_url(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        url = urlunsplit(urlsplit(database_url())._replace(path=f"/{name}"))
        try:
            with tupelo.connect(f"{url}{'&' if '?' in url else '?'}space=jobs") as space:
                with psycopg.connect(url, autocommit=True) as link:
                    link.execute("DROP TABLE tupelo.entries")
                with pytest.raises(JournalError, match="tupelo store init"):
                    space.write(("job", 1))
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_a_space_that_is_gone_is_unknown():
    """An administrator has removed it, or its role may not see it any more."""
    with tupelo.connect(space_url(f"gone {uuid4()}")) as space:
        space.write(("a", 1))
        with psycopg.connect(database_url()) as link:
            link.execute("DELETE FROM tupelo.spaces WHERE id = %s", (space.id,))  # type: ignore[attr-defined]
        operations: list[Any] = [
            lambda: space.take(("a", int), wait=0),
            lambda: space.take(("a", tupelo.Between(0, 1)), wait=0),
            lambda: space.read(("a", int)),
            lambda: space.read_all(("b", int)),
            space.count,
        ]
        for operation in operations:
            with pytest.raises(UnknownSpace, match="gone"):
                operation()
