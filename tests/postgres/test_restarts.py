"""A server that stops at once, as after a crash, and comes back."""

import threading
from functools import partial

import psycopg
import pytest

import tupelo
from tests.conftest import Call, until_true
from tests.postgres.servers import Server
from tupelo.postgres.connect import open_space
from tupelo.space.dual_api import run_sync


def url_of(server: Server, space: str) -> str:
    return server.url(space=space)


def test_nothing_is_lost_or_doubled_when_the_server_stops_at_once(server):
    """Half of the threads move numbers with transactions, half with single operations."""
    with tupelo.connect(url_of(server, "restarts")) as space:
        space.write_all([("from", i) for i in range(2_000)])
        moved: list[int] = []
        errors: list[BaseException] = []
        is_over = threading.Event()

        def move(in_transaction: bool) -> None:
            while not is_over.is_set():
                try:
                    if in_transaction:
                        with space.transaction() as txn:
                            found = space.take(("from", int), wait=0, txn=txn)
                            assert found is not None
                            space.write(("to", found[1]), txn=txn)
                    else:
                        found = space.take(("from", int), wait=0)
                        assert found is not None
                        space.write(("to", found[1]))
                    moved.append(found[1])
                except tupelo.errors.PeerLost as lost:
                    if lost.in_doubt or not in_transaction:
                        errors.append(lost)
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=move, args=(i % 2 == 0,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            before = len(moved)
            until_true(lambda before=before: len(moved) > before + 10 or errors)  # type: ignore[misc]
            server.restart()
        before = len(moved)
        until_true(lambda: len(moved) > before + 10 or errors)
        is_over.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert sorted(moved) == sorted(n for _, n in space.read_all(("to", int)))
        everything = [n for _, n in space.read_all((str, int))]
        assert sorted(everything) == list(range(2_000))


def test_who_waits_waits_on_when_the_server_comes_back(server):
    with tupelo.connect(url_of(server, "waits")) as space:
        taker = Call(space.take, ("a", int))
        until_true(lambda: any(w.asleep for w in space.database.listener.waiting(space.id)))  # type: ignore[attr-defined]
        server.restart()
        space.write(("a", 1))
        assert taker.result() == ("a", 1)


def test_a_statement_that_the_server_gives_up_says_so_and_is_not_in_doubt(server):
    url = f"{url_of(server, 'slow')}&options=-c%20statement_timeout%3D100ms"
    with (
        psycopg.connect(server.url()) as link,
        tupelo.connect(url, reconnect=300) as space,
    ):
        space.write(("a", 1))
        link.execute("LOCK TABLE tupelo.entries IN ACCESS EXCLUSIVE MODE")
        for operation in (space.write, space.take, space.read):
            with pytest.raises(tupelo.errors.JournalError, match="statement timeout"):
                operation(("a", 2))
        link.rollback()
        assert space.take(("a", int)) == ("a", 1)


def test_a_commit_that_the_server_refuses_leaves_nothing_in_hand(server):
    url = url_of(server, "refused")
    with (
        psycopg.connect(server.url(), autocommit=True) as link,
        tupelo.connect(url) as space,
        tupelo.connect(url) as other,
    ):
        other.write(("a", 1))
        table = "ALTER TABLE tupelo.changes"
        link.execute(f"{table} ADD CONSTRAINT no CHECK (txn IS NULL) NOT VALID".encode())
        try:
            txn = space.transaction()
            assert space.take(("a", int), txn=txn) == ("a", 1)
            with pytest.raises(tupelo.errors.JournalError, match="violates"):
                txn.commit()
            assert txn.state == "aborted"
            assert other.take(("a", int)) == ("a", 1)
        finally:
            link.execute(f"{table} DROP CONSTRAINT no".encode())


def test_what_exceeds_a_limit_of_the_server_is_refused_and_not_repeated(server):
    """The driver counts such an error among those of connections."""
    with (
        psycopg.connect(server.url(), autocommit=True) as link,
        tupelo.connect(url_of(server, "limits"), reconnect=300) as space,
    ):
        link.execute(
            "CREATE FUNCTION tupelo.refuse(n bigint) RETURNS boolean AS $$ BEGIN "
            "RAISE EXCEPTION 'too large' USING ERRCODE = 'program_limit_exceeded'; "
            "END $$ LANGUAGE plpgsql"
        )
        table = "ALTER TABLE tupelo.entries"
        link.execute(f"{table} ADD CONSTRAINT no CHECK (tupelo.refuse(n)) NOT VALID".encode())
        try:
            with pytest.raises(tupelo.errors.JournalError, match="too large"):
                space.write(("a", 1))
        finally:
            link.execute(f"{table} DROP CONSTRAINT no".encode())
            link.execute("DROP FUNCTION tupelo.refuse")


def test_a_write_is_answered_although_the_log_is_not_trimmed(server):
    url = f"{url_of(server, 'untrimmed')}&options=-c%20lock_timeout%3D100ms"
    with (
        psycopg.connect(server.url()) as link,
        run_sync(partial(open_space, url, is_async=False, log_keep=0)) as space,
    ):
        space.write(("a", 0))
        link.execute("SELECT FROM tupelo.spaces FOR UPDATE")
        space.write_all([("a", i) for i in range(1, 1_000)])
        link.rollback()
        assert space.count() == 1_000


def test_the_isolation_that_the_database_prefers_does_not_matter(server):
    url = f"{url_of(server, 'isolated')}&options=-c%20default_transaction_isolation%3Dserializable"
    with tupelo.connect(url) as space, space.transaction() as txn:
        assert space.take(("a", int), wait=0, txn=txn) is None
        taker = Call(space.take, ("a", int), txn=txn)
        space.write(("a", 1))
        assert taker.result() == ("a", 1)
