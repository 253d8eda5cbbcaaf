"""Programs that share a space in a database, and what is left when they or their links are lost."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import tupelo
from tests.conftest import Call, until_true
from tests.kinds import database_url, space_url
from tupelo.errors import (
    BadArgument,
    CannotCommit,
    CannotReach,
    CannotSend,
    Deadlock,
    LeaseLost,
    PeerLost,
    SpaceFull,
    TransactionError,
    TupeloError,
    UnknownSpace,
)
from tupelo.postgres.connect import open_space
from tupelo.postgres.driver import BlockingDatabase
from tupelo.postgres.searching import PostgresSearch
from tupelo.postgres.statements import HELD, ROOM
from tupelo.queue import JobQueue
from tupelo.space.dual_api import run_sync


@pytest.fixture
def url():
    return space_url(f"shared {uuid4()}")


@pytest.fixture
def program(url):
    """`program(text)` runs Python with `space` connected, in a process of its own."""
    started = []

    def run(text: str) -> subprocess.Popen[str]:
        head = f"import sys, tupelo\nspace = tupelo.connect({url!r})\n"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-c", head + textwrap.dedent(text)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_what_one_program_writes_another_takes_and_wakes_who_waits(url, program):
    with tupelo.connect(url) as space:
        echo = program("print(space.take(('ask', int))); space.write(('answer', 42))")
        taker = Call(space.take, ("answer", int))
        space.write(("ask", 7))
        assert taker.result() == ("answer", 42)
        assert echo.communicate()[0] == "('ask', 7)\n"
        assert space.count() == 0


def test_a_killed_taker_gives_back_and_who_waits_gets_it(url, program):
    with tupelo.connect(url) as space:
        space.write(("job", 1))
        holder = program(
            """
            txn = space.transaction()
            print(space.take(("job", int), txn=txn), flush=True)
            sys.stdin.read()
            """
        )
        assert holder.stdout is not None and holder.stdout.readline() == "('job', 1)\n"
        assert space.take(("job", int), wait=0) is None and space.count() == 0
        taker = Call(space.take, ("job", int))
        holder.send_signal(signal.SIGKILL)
        assert taker.result() == ("job", 1)


def test_the_takers_that_were_lost_with_an_entry_are_counted(url, program):
    take = """
        txn = space.transaction()
        about = []
        space.take(("job", int), txn=txn, about=about)
        print(about[0].deliveries, flush=True)
        sys.stdin.read()
        """
    with tupelo.connect(url) as space:
        space.write(("job", 1))
        for lost in range(3):
            holder = program(take)
            assert holder.stdout is not None and holder.stdout.readline() == f"{lost}\n"
            assert [held.entries for held in space.in_hand(("job", int))] == [1]
            assert space.in_hand(("other", int)) == []
            holder.kill()
            until_true(lambda: space.count() == 1)
            assert space.in_hand() == []
        about: list[tupelo.About] = []
        with pytest.raises(ValueError), space.transaction() as txn:
            with pytest.raises(KeyError), txn.transaction() as nested:
                space.take(("job", int), txn=nested)
                raise KeyError
            space.take(("job", int), txn=txn, about=about)
            raise ValueError
        assert about[0].deliveries == 3
        space.read(("job", int), about=about)
        assert about[1].deliveries == 4
        with space.transaction() as txn:
            space.take(("job", int), txn=txn)
        with psycopg.connect(database_url()) as link:
            claims = "SELECT FROM tupelo.claims WHERE space = %s"
            assert link.execute(claims, (space.id,)).fetchall() == []  # type: ignore[attr-defined]


def test_a_job_that_kills_its_workers_becomes_a_dead_letter(url, program):
    work = """
        import os, signal
        from tupelo.queue import JobQueue
        queue = JobQueue(space, losses_max=1)
        @queue.task(name="kill")
        def kill():
            os.kill(os.getpid(), signal.SIGKILL)
        queue.work(until_empty=True)
        """
    with tupelo.connect(url) as space:
        queue = JobQueue(space)
        queue.submit("kill")
        assert [program(work).wait() for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
        status = queue.status()
        assert (status.ready, status.dead, status.in_hand) == (0, 1, [])


def test_two_programs_with_16_takers_each_do_each_job_once(url, program):
    """`TUPELO_JOBS=200000` makes so many jobs."""
    jobs = int(os.environ.get("TUPELO_JOBS", "2000"))
    workers = [
        program(
            """
            from threading import Thread
            got = []
            def work():
                while (job := space.take(("job", int)))[1] >= 0:
                    got.append(job[1])
            threads = [Thread(target=work) for _ in range(16)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            print(*got)
            """
        )
        for _ in range(2)
    ]
    with tupelo.connect(url) as space:
        for first in range(0, jobs, 1_000):
            space.write_all([("job", i) for i in range(first, min(first + 1_000, jobs))])
        space.write_all([("job", -1)] * 32)
        got = [int(n) for worker in workers for n in worker.communicate()[0].split()]
        assert [worker.returncode for worker in workers] == [0, 0]
        assert sorted(got) == list(range(jobs))
        assert space.count() == 0


def test_one_taker_gets_the_entries_of_each_source_in_order(url, program):
    with tupelo.connect(url) as space:
        sources = [
            program(
                f"""
                for n in range(100):
                    if n % 10:
                        space.write(({name!r}, n))
                    else:
                        with space.transaction() as txn:
                            space.write(({name!r}, n), txn=txn)
                """
            )
            for name in "abc"
        ]
        got: list[Any] = [space.take((str, int)) for _ in range(300)]
        assert [source.wait() for source in sources] == [0, 0, 0]
        for name in "abc":
            assert [n for source, n in got if source == name] == list(range(100))


def cut_links(url: str, link: psycopg.Connection[tuple[int]]) -> int:
    """End all other connections to the database, and count them."""
    rows = link.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND application_name = %s",
        (url[-12:],),
    ).fetchall()
    return len(rows)


def test_connections_that_are_cut_lose_nothing_and_double_nothing(url):
    """Four threads move numbers from one kind to the other while their connections are cut."""
    named = f"{url}&application_name={url[-12:]}"
    numbers = 200
    moved: Counter[int] = Counter()
    with psycopg.connect(database_url(), autocommit=True) as link, tupelo.connect(named) as space:
        space.write_all([("from", i) for i in range(numbers)])
        in_doubt: list[int] = []

        def move() -> None:
            while True:
                try:
                    with space.transaction() as txn:
                        found = space.take(("from", int), wait=0, txn=txn)
                        if found is None:
                            return
                        space.write(("to", found[1]), txn=txn)
                except PeerLost as lost:
                    if lost.in_doubt:
                        in_doubt.append(1)
                else:
                    moved[found[1]] += 1

        threads = [threading.Thread(target=move) for _ in range(4)]
        for thread in threads:
            thread.start()

        def has_moved(count: int) -> bool:
            return moved.total() >= count or not any(thread.is_alive() for thread in threads)

        cuts = 0
        for step in range(1, 11):
            until_true(partial(has_moved, step * 15))
            cuts += cut_links(url, link)
        for thread in threads:
            thread.join()
        assert cuts and not in_doubt
        assert sorted(space.read_all(("to", int))) == [("to", i) for i in range(numbers)]
        assert space.count(("from", int)) == 0
        assert max(moved.values()) == 1


def test_a_waiting_taker_outlives_a_cut_connection(url):
    named = f"{url}&application_name={url[-12:]}"
    with (
        psycopg.connect(database_url(), autocommit=True) as link,
        tupelo.connect(named) as space,
        tupelo.connect(url) as other,
    ):
        taker = Call(space.take, ("a", int))
        until_true(lambda: any(w.asleep for w in space.database.listener.waiting(space.id)))  # type: ignore[attr-defined]
        assert cut_links(url, link)
        other.write(("a", 1))
        assert taker.result() == ("a", 1)


def test_positions_have_no_gaps_and_none_appears_below_one_that_was_read(url):
    """Transactions that overlap, and a reader that follows the log."""
    with tupelo.connect(url) as space:
        read: list[tupelo.Change] = []

        def write(source: int) -> None:
            for i in range(20):
                with space.transaction() as txn:
                    space.write((source, i, "first"), txn=txn)
                    space.write((source, i, "second"), txn=txn)

        threads = [threading.Thread(target=write, args=(source,)) for source in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or len(read) < 160:
            read += space.changes(since=read[-1].position if read else 0)
        assert [change.position for change in read] == list(range(1, 161))
        assert space.changes() and [c.entry for c in space.changes()] == [c.entry for c in read]
        for first, second in zip(read[::2], read[1::2], strict=True):
            assert first.txn == second.txn and first.entry[:2] == second.entry[:2]
        for source in range(4):
            own = [change.entry[1] for change in read if change.entry[0] == source]
            assert own == sorted(own)


@pytest.mark.parametrize(
    "text", ["'; DROP TABLE tupelo.entries; --", "%(space)s", "%s", "\\", "$1", '"', "a\0b", "é\n"]
)
def test_nothing_reaches_sql_as_text(text):
    if "\0" in text:
        with pytest.raises(BadArgument, match="name"):
            tupelo.connect(space_url(f"{text} {uuid4()}"))
        name = "plain"
    else:
        name = text
    with tupelo.connect(space_url(f"{name} {uuid4()}")) as space:
        space.write((text, text.encode(), [text], {text: text}))
        space.write(("other", b"", [], {}))
        assert space.take((text, bytes, list, dict), wait=0) == (
            text,
            text.encode(),
            [text],
            {text: text},
        )
        assert space.take((text, tupelo.ANY, tupelo.ANY, tupelo.ANY), wait=0) is None
        assert space.count() == 1


def test_what_cannot_be_opened_says_why():
    with pytest.raises(BadArgument, match="names a space"):
        tupelo.connect(database_url())
    with pytest.raises(UnknownSpace):
        tupelo.connect(space_url(f"no {uuid4()}"), create=False)
    with pytest.raises(BadArgument, match="password"):
        tupelo.connect(space_url("a"), password="secret")
    with pytest.raises(CannotReach, match="nowhere"):
        tupelo.connect("postgresql:///nowhere?host=/nowhere&space=a")
    with pytest.raises(CannotSend, match="head"), tupelo.connect(space_url("a")) as space:
        space.read(order=tupelo.Queue(), wait=0)


def test_without_the_driver_it_says_what_to_install():
    text = """
        import sys
        sys.modules["psycopg"] = None
        import tupelo
        try:
            tupelo.connect("postgresql://localhost/db?space=a")
        except tupelo.errors.BadArgument as error:
            print(error)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert 'pip install "tupelo[postgres]"' in said


@pytest.fixture
def refused(monkeypatch):
    """`refused(n)`: the server, which restarts, refuses the next n connections."""
    left, connect = [0], psycopg.connect

    def refuse(*arguments: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise psycopg.OperationalError("the database system is starting up")
        return connect(*arguments, **options)

    monkeypatch.setattr(psycopg, "connect", refuse)

    def set_(count: int) -> None:
        left[0] = count

    return set_


OPERATIONS = [
    lambda space: space.write(("job", 2)),
    lambda space: space.write_all([("job", 2), ("job", 3)]),
    lambda space: space.count(),
    lambda space: space.read(("job", int)),
    lambda space: space.take(("job", int)),
    lambda space: space.delayed(),
    lambda space: space.changes(since=0),
    lambda space: space.transaction().abort(),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_outlasts_a_restart_of_the_server(url, refused, operation):
    named = f"{url}&application_name={url[-12:]}"
    with psycopg.connect(database_url(), autocommit=True) as link, tupelo.connect(named) as space:
        space.write(("job", 1))
        refused(5)
        assert cut_links(url, link)
        operation(space)
        impatient: Any = space
        impatient.reconnect = 0
        refused(5)
        assert cut_links(url, link)
        with pytest.raises((CannotReach, PeerLost)):
            operation(space)


def test_a_commit_whose_answer_is_lost_in_a_restart_is_not_repeated(url, refused, monkeypatch):
    lost: list[Any] = []
    run = BlockingDatabase.run

    async def losing(self: Any, link: Any, statement: str, *rest: Any, **options: Any) -> Any:
        rows = await run(self, link, statement, *rest, **options)
        if statement.endswith("COMMIT") and not lost:
            lost.append(link)
            link.close()
            refused(5)
            raise PeerLost("PostgreSQL", "an operation", "it restarts")
        return rows

    with tupelo.connect(url) as space:
        space.write(("job", 0))  # Its shape is known from now on.
        monkeypatch.setattr(BlockingDatabase, "run", losing)
        # So that it takes two statements.
        monkeypatch.setattr(
            "tupelo.postgres.writing.WRITE_MAX", 2
        )  # so that it takes two statements
        space.write_all([("job", n) for n in range(1, 5)])
        assert lost
        assert space.read_all(("job", int)) == [("job", n) for n in range(5)]


def test_threads_that_learn_new_shapes_together_number_them_alike(url):
    """One object registers shapes in four threads, while four threads of another learn them."""
    with tupelo.connect(url) as space, tupelo.connect(url) as other:
        entries = [[(i, *range(10 * i + j)) for j in range(5)] for i in range(4)]

        def write(own: list[tuple[int, ...]]) -> None:
            for entry in own:
                other.write(entry)

        def look() -> None:
            for _ in range(15):
                assert space.read(("none",), wait=0) is None

        threads = [threading.Thread(target=write, args=(own,)) for own in entries]
        threads += [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for entry in [entry for own in entries for entry in own]:
            assert space.read(entry, wait=0) == other.take(entry, wait=0) == entry


def test_what_a_transaction_takes_after_a_failure_is_in_hand_for_other_programs(url, program):
    writer = program(
        """
        from dataclasses import dataclass
        @dataclass
        class OnlyThere:
            x: int
        space.write(OnlyThere(1))
        space.write(("a", 1))
        """
    )
    assert writer.wait() == 0
    taker = program(  # A process of its own: here a command may have made classes up.
        """
        txn = space.transaction()
        try:
            space.take(tupelo.Named(x=1), wait=0, txn=txn)
        except tupelo.errors.UnknownType:
            print(space.take(("a", int), txn=txn), flush=True)
        sys.stdin.read()
        """
    )
    with tupelo.connect(url) as other:
        assert taker.stdout is not None and taker.stdout.readline() == "('a', 1)\n"
        assert other.count(("a", int)) == 0
        taker.communicate()
        until_true(lambda: other.count() == 2, "the taker gave back")


def test_a_forked_process_leaves_the_connections_of_its_parent_alone(url, program):
    """It connects again, and what it inherited says so."""
    parent = program(
        f"""
        import os
        from tupelo.errors import SpaceClosed
        space.write(("a", 1))
        txn = space.transaction()
        space.take(("a", int), txn=txn)
        child = os.fork()
        if child == 0:
            for operation in (space.count, txn.abort, lambda: space.write(("b", 1))):
                try:
                    operation()
                except SpaceClosed as error:
                    assert "connect again" in str(error)
                else:
                    os._exit(2)
            space.close()
            with tupelo.connect({url!r}) as own:
                for i in range(50):
                    own.write(("child", i))
                    own.take(("child", i), wait=0)
            os._exit(0)
        for i in range(50):
            space.write(("parent", i))
            assert space.take(("parent", i), wait=0) == ("parent", i)
        status = os.waitpid(child, 0)[1]
        txn.commit()
        print(status, space.count())
        """
    )
    assert parent.communicate()[0] == "0 0\n"


def in_a_bounded_space(name: str, capacity: tupelo.Capacity) -> Any:
    return run_sync(partial(open_space, space_url(name), is_async=False, capacity=capacity))


def test_concurrent_transactions_do_not_exceed_the_capacity():
    name = f"bounded {uuid4()}"
    with (
        in_a_bounded_space(name, tupelo.Capacity(3)) as space,
        tupelo.connect(space_url(name)) as other,
    ):
        space.write(("a", 0))
        one, two = space.transaction(), other.transaction()
        space.write_all([("a", 1), ("a", 2)], txn=one)
        other.write_all([("a", 3), ("a", 4)], txn=two)  # Each sees room for its own.
        one.commit()
        with pytest.raises(CannotCommit, match="at most 3 entries, and the 2 entries do not fit"):
            two.commit()
        assert (two.state, space.count()) == ("aborted", 3)
        writer = Call(other.write, ("a", 5), wait=None)
        with space.transaction() as txn:
            space.take(("a", 0), txn=txn)
        writer.result()
        assert space.count() == 3


def test_a_commit_evicts_for_what_others_have_written():
    name = f"bounded {uuid4()}"
    with in_a_bounded_space(name, tupelo.Capacity(3, evict="fifo")) as space:
        space.write(("a", 0))
        one, two = space.transaction(), space.transaction()
        space.write_all([("a", 1), ("a", 2)], txn=one)
        space.write_all([("a", 3), ("a", 4)], txn=two)
        one.commit()
        two.commit()
        assert space.read_all() == [("a", 2), ("a", 3), ("a", 4)]


def test_many_writers_with_transactions_fill_a_space_and_no_more():
    name = f"bounded {uuid4()}"
    with in_a_bounded_space(name, tupelo.Capacity(10)) as space:
        most = 0

        def write() -> None:
            nonlocal most
            for i in range(10):
                with suppress(CannotCommit, SpaceFull), space.transaction() as txn:
                    space.write(("a", i), txn=txn)
                most = max(most, space.count())

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (most, space.count()) == (10, 10)


def test_a_deadlock_in_the_server_is_a_deadlock_here():
    """The other one waits first, for what the transaction has; then the server finds the circle
    when the transaction waits, and gives that one up."""
    name = f"bounded {uuid4()}"
    with (
        in_a_bounded_space(name, tupelo.Capacity(3)) as space,
        psycopg.connect(database_url()) as link,
        psycopg.connect(database_url(), autocommit=True) as watcher,
    ):
        txn = space.transaction()
        space.write(("a", 1), txn=txn)
        link.execute("SET deadlock_timeout = '1h'")
        link.execute("SELECT pg_advisory_xact_lock(%s, %s)", (ROOM, space.id))
        waits = Call(link.execute, "SELECT pg_advisory_xact_lock(%s, %s)", (HELD, space.id))
        asked = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
        pid = link.info.backend_pid
        until_true(lambda: watcher.execute(asked, (pid,)).fetchall() != [])
        with pytest.raises(CannotCommit, match="abort one of them") as raised:
            txn.commit()
        deadlock = raised.value.__cause__
        assert isinstance(deadlock, Deadlock)
        assert (deadlock.txn_id, txn.state) == (txn.id, "aborted")
        assert f"server process {pid}" in deadlock.waits_for
        waits.result()
        link.rollback()
        assert space.count() == 0


def test_an_operation_in_a_deadlock_is_undone_and_its_transaction_goes_on(url):
    name = f"other {uuid4()}"
    with (
        tupelo.connect(url) as space,
        tupelo.connect(space_url(name)) as other,
        psycopg.connect(database_url()) as link,
        psycopg.connect(database_url(), autocommit=True) as watcher,
    ):
        txn = tupelo.transaction(space, other)
        space.write(("a", 1), txn=txn)
        link.execute("SET deadlock_timeout = '1h'")
        link.execute("SELECT pg_advisory_xact_lock(%s, %s)", (HELD, other.id))  # type: ignore[attr-defined]
        lock = "SELECT pg_advisory_xact_lock(%s, %s)"
        waits = Call(link.execute, lock, (HELD, space.id))  # type: ignore[attr-defined]
        asked = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
        until_true(lambda: watcher.execute(asked, (link.info.backend_pid,)).fetchall() != [])
        with pytest.raises(Deadlock):
            other.write(("b", 1), txn=txn)
        link.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            waits.result()
        link.rollback()
        other.write(("b", 2), txn=txn)
        txn.commit()
        assert (space.read_all(), other.read_all()) == ([("a", 1)], [("b", 2)])


@pytest.mark.parametrize("template", [(int, str), (int, tupelo.Where(lambda side: side != ""))])
def test_a_read_of_many_entries_is_one_snapshot(url, template):
    """Pairs of an early and a late entry are taken by one statement each."""
    count = 3_000
    with tupelo.connect(url) as space, tupelo.connect(url) as other:
        pairs = [(n, side) for side in ("early", "late") for n in range(count)]
        space.write_all(pairs)
        taken: list[int] = []

        def take_pairs() -> None:
            for n in range(count):
                if is_over.is_set():
                    return
                assert len(other.take_all((n, str))) == 2
                taken.append(n)

        is_over = threading.Event()
        taker = Call(take_pairs)
        try:
            for i in range(5):
                until_true(lambda i=i: len(taken) > i or not taker.is_alive())  # type: ignore[misc]
                found = Counter(n for n, _ in space.read_all(template))
                assert set(found.values()) <= {2}
                assert space.count(template) % 2 == 0
        finally:
            is_over.set()
            taker.result()


def test_operations_wait_for_a_connection_and_transactions_have_their_own(url, monkeypatch):
    opened: list[Any] = []
    open_ = BlockingDatabase.open

    async def counted(self: Any) -> Any:
        opened.append(None)
        return await open_(self)

    monkeypatch.setattr(BlockingDatabase, "open", counted)
    with tupelo.connect(f"{url}&connections=2") as space:
        calls = [Call(space.write_all, [("a", i)] * 20) for i in range(8)]
        calls += [Call(space.read_all, ("a", int)) for _ in range(8)]
        for call in calls:
            call.result()
        assert space.count() == 160
        assert len(opened) <= 2
        with space.transaction() as one, space.transaction() as two:
            assert space.take(("a", 0), txn=one) is not None
            assert space.take(("a", 1), txn=two) is not None
            assert space.count() == 158


@pytest.mark.parametrize("count", ["0", "-1", "x", ""])
def test_a_number_of_connections_that_is_none_is_refused(url, count):
    with pytest.raises(BadArgument, match="connections= and a number from 1"):
        tupelo.connect(f"{url}&connections={count}")


def test_a_server_that_is_gone_is_noticed_unless_the_url_says_otherwise(url):
    with tupelo.connect(f"{url}&keepalives_idle=7") as space:
        with psycopg.connect(space.database.settings) as link:  # type: ignore[attr-defined]
            settings = link.info.get_parameters()
        assert (settings["keepalives_idle"], settings["keepalives_count"]) == ("7", "3")


def test_indexes_for_several_fields_are_made_one_after_another(url, caplog):
    """The server would give up one of two that are made at the same time."""
    with tupelo.connect(url) as space:
        space.write_all([(0,) * 10 + (i, i, i) for i in range(1_000)])
        template = (int,) * 10 + (7, 7, 7)

        def is_indexed() -> bool:
            assert space.read(template, wait=0) is not None
            return bool(space.database.indexed >= {10, 11, 12})  # type: ignore[attr-defined]

        until_true(is_indexed)
        assert not caplog.records
        assert space.take(template) == (0,) * 10 + (7, 7, 7)
        assert space.take(template, wait=0) is None


def test_a_value_that_most_entries_have_gets_no_index(url):
    """The first entries are found without one, and each index costs every write something."""
    with tupelo.connect(url) as space:
        space.write_all([(0,) * 13 + ("job", i) for i in range(1_000)])

        def is_indexed() -> bool:
            assert space.read((int,) * 13 + ("job", 999), wait=0) is not None
            return 14 in space.database.indexed  # type: ignore[attr-defined]

        until_true(is_indexed)
        assert 13 not in space.database.indexed  # type: ignore[attr-defined]


def test_a_commit_needs_no_connection_of_those_who_wait_for_it():
    """A writer has the only connection for operations, and waits for the end of the commit."""
    url = space_url(f"bounded {uuid4()}") + "&connections=1"
    opened = partial(open_space, url, is_async=False, capacity=tupelo.Capacity(3))
    with (
        run_sync(opened) as space,
        psycopg.connect(database_url()) as link,
        psycopg.connect(database_url(), autocommit=True) as watcher,
    ):
        space.write(("a", 0))
        asked = "SELECT FROM pg_locks WHERE classid = %s AND objid = %s AND NOT granted"

        def are_waiting(count: int) -> bool:
            return len(watcher.execute(asked, (ROOM, space.id)).fetchall()) == count

        for end in ("commit", "prepare"):
            txn = space.transaction()
            space.write(("a", end), txn=txn)
            link.execute("SELECT pg_advisory_xact_lock(%s, %s)", (ROOM, space.id))
            ending = Call(getattr(txn, end))
            until_true(partial(are_waiting, 1), "the transaction waits for the others")
            writer = Call(space.write, ("b", end))
            until_true(partial(are_waiting, 2), "the writer waits for the transaction")
            link.rollback()
            ending.result()
            if end == "prepare":
                txn.abort()
            writer.result()
            assert space.take(("b", end)) == ("b", end)


def test_the_lease_of_an_entry_of_a_nested_transaction_is_one_of_the_outer_one(url):
    with tupelo.connect(url) as space, space.transaction() as txn:
        with txn.transaction() as nested:
            kept = space.write(("a", 1), lease=100, txn=nested)
            gone = space.write(("a", 2), lease=100, txn=nested)
        kept.renew(1_000)
        gone.cancel()
        assert space.read_all(txn=txn) == [("a", 1)]
        over = space.write(("a", 3), lease=0.001, txn=txn)
        until_true(lambda: space.count(txn=txn) == 1)
        with pytest.raises(LeaseLost):
            over.renew(100)


def test_nested_transactions_that_would_undo_each_other_are_refused(url):
    with tupelo.connect(url) as space, space.transaction() as txn:
        one = txn.transaction()
        with pytest.raises(TransactionError, match="end it first"):
            txn.transaction()
        space.write(("a", 1), txn=one)
        one.commit()
        with txn.transaction() as two:
            space.write(("a", 2), txn=two)
        assert space.count(txn=txn) == 2


def test_an_alarm_of_one_space_does_not_hold_up_those_of_others(url):
    """The lease of a transaction ends while it waits for the writers of its space to commit."""
    name = f"bounded {uuid4()}"
    with (
        in_a_bounded_space(name, tupelo.Capacity(3)) as space,
        tupelo.connect(url) as other,
        psycopg.connect(database_url()) as link,
        psycopg.connect(database_url(), autocommit=True) as watcher,
    ):
        link.execute("SELECT pg_advisory_xact_lock(%s, %s)", (ROOM, space.id))
        txn = space.transaction(lease=60.0)
        space.write(("a", 1), txn=txn)
        txn.lease.renew(0.1)
        ending = Call(txn.commit)
        asked = "SELECT FROM pg_locks WHERE classid = %s AND objid = %s AND NOT granted"
        until_true(lambda: watcher.execute(asked, (ROOM, space.id)).fetchall())
        until_true(lambda: txn.ran_out)
        assert other.take(("a", int), wait=0.1) is None
        link.rollback()
        with suppress(TupeloError):
            ending.result()


def test_a_session_of_a_host_misses_nothing_because_another_entry_was_taken(url, monkeypatch):
    """Between its look and the check that what it has seen is still there."""

    async def go() -> None:
        async with await tupelo.aio.connect(url) as space, space.session() as session:
            await space.write_all([("a", 1), ("a", 2), ("a", 3)])
            check = PostgresSearch._are_there

            async def check_late(self: Any, entries: list[Any]) -> bool:
                await space.take(("a", 2), wait=0)
                return await check(self, entries)

            monkeypatch.setattr(PostgresSearch, "_are_there", check_late)
            fetch: Any = space.fetch  # type: ignore[attr-defined]
            asked = (("a", int), False, 0, True, None, None, None, False, session)
            assert [one.fields for one in await fetch(*asked)] == [("a", 1), ("a", 3)]
            assert await fetch(*asked) == []

            async def cancelled(self: Any, entries: list[Any]) -> bool:
                raise asyncio.CancelledError

            await space.write(("a", 4))
            monkeypatch.setattr(PostgresSearch, "_are_there", cancelled)
            with pytest.raises(asyncio.CancelledError):
                await fetch(*asked)
            monkeypatch.undo()
            assert [one.fields for one in await fetch(*asked)] == [("a", 4)]

    asyncio.run(go())


def test_a_writer_that_waits_for_others_does_not_hold_up_who_waits_for_an_entry():
    name = f"bounded {uuid4()}"
    with (
        in_a_bounded_space(name, tupelo.Capacity(1)) as space,
        psycopg.connect(database_url()) as link,
        psycopg.connect(database_url(), autocommit=True) as watcher,
    ):
        space.write(("a", 1))
        txn = space.transaction()
        space.take(("a", 1), txn=txn)
        writer = Call(space.write, ("b", 1), wait=None)
        reader = Call(space.read, ("a", int))

        def are_asleep() -> bool:
            return [one.asleep for one in space.database.listener.waiting(space.id)] == [True] * 2

        until_true(are_asleep)
        link.execute("SELECT pg_advisory_xact_lock(%s, %s)", (ROOM, space.id))
        watcher.execute("SELECT pg_notify(%s, '')", (f"tupelo_{space.id}",))
        asked = "SELECT FROM pg_locks WHERE classid = %s AND objid = %s AND NOT granted"
        until_true(lambda: watcher.execute(asked, (ROOM, space.id)).fetchall())
        txn.abort()
        assert reader.result() == ("a", 1)
        link.rollback()
        assert space.take(("a", int)) == ("a", 1)
        writer.result()
