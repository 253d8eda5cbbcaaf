"""Programs that share a space in a database, and what is left when they or their links are lost."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import tupelo
from tests.conftest import Call, until_true
from tests.kinds import database_url, space_url
from tupelo.errors import BadArgument, CannotReach, CannotSend, PeerLost, UnknownSpace
from tupelo.postgres.driver import BlockingDatabase


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


def test_two_programs_do_each_job_once(url, program):
    jobs = 300
    with tupelo.connect(url) as space:
        workers = [
            program(
                """
                from threading import Thread
                def work():
                    while (job := space.take(("job", int)))[1] >= 0:
                        space.write(("done", job[1]))
                threads = [Thread(target=work) for _ in range(4)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
                """
            )
            for _ in range(2)
        ]
        space.write_all([("job", i) for i in range(jobs)])
        until_true(lambda: space.count(("done", int)) == jobs, "all jobs are done")
        space.write_all([("job", -1)] * 8)
        assert [worker.wait() for worker in workers] == [0, 0]
        assert sorted(space.take_all(("done", int))) == [("done", i) for i in range(jobs)]


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
        if statement == "COMMIT" and not lost:
            lost.append(link)
            link.close()
            refused(5)
            raise PeerLost("PostgreSQL", "an operation", "it restarts")
        return rows

    with tupelo.connect(url) as space:
        space.write(("job", 0))  # Its shape is known from now on.
        monkeypatch.setattr(BlockingDatabase, "run", losing)
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
