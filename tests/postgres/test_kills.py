"""Programs, connections and the server are killed at random moments while programs write, take and
move entries: nothing that was acknowledged is lost, nothing is taken twice.

A seed is ten faults; `TUPELO_SEEDS=30` makes 300."""

import os
import random
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import tupelo
from tests.conftest import Call, seeds, until_true
from tests.laws.doors import LoopThread
from tests.postgres.servers import Server
from tupelo.errors import CannotReach, PeerLost, SpaceClosed
from tupelo.lab.torture.proxy import LinkFault, Proxy
from tupelo.postgres.driver import BlockingDatabase

pytestmark = [pytest.mark.timeout(0)] if "TUPELO_SEEDS" in os.environ else []

ACCOUNTS, PROGRAMS = 6, 2
FAULTS = (
    *("program", "program", "server killed", "server stopped", "terminated"),
    *("reset", "reset", "answer lost", "answer lost", "request lost"),
)


class Town:
    """Programs at work, connected by a proxy, and what they have noted."""

    def __init__(self, server: Server, folder: Path, loop: LoopThread, seed: int) -> None:
        self.rng = random.Random(f"kills {seed}")
        self.folder = folder
        self.server = server
        self.loop = loop
        self.proxy = Proxy()
        loop.call(self.proxy.start)
        self.proxy.lead_to(server.address)
        self.space = f"town {seed} {uuid4()}"
        self.programs: list[subprocess.Popen[bytes]] = []
        self.files: list[Path] = []
        self.read: Counter[Path] = Counter()
        self.counts: Counter[str] = Counter()
        with tupelo.connect(server.url(space=self.space)) as space:
            space.write_all([("account", i, 100) for i in range(ACCOUNTS)])
        for i in range(PROGRAMS):
            self.start(i)

    def start(self, place: int) -> None:
        name = f"p{len(self.files)}"
        self.files.append(self.folder / name)
        program = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.postgres.busy_program"),
                *(self.server.url(self.proxy.address, space=self.space), name, self.files[-1]),
            ],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
        )
        self.programs[place:] = [program, *self.programs[place + 1 :]]
        until_true(lambda: self.count("connected") == len(self.files), "it is connected")

    def notes(self) -> list[list[str]]:
        texts = [file.read_text() for file in self.files if file.exists()]
        return [line.split(" ") for text in texts for line in text.splitlines()]

    def wait_for_work(self) -> None:
        """Until each kind of work has gone on, and then for a random while."""
        for word in ("wrote", "took", "moved", "transferred"):
            until_true(partial(self.has, word, self.count(word) + 1), word)
        until_true(partial(self.has, "wrote", self.count("wrote") + self.rng.randrange(20)))

    def has(self, word: str, count: int) -> bool:
        return self.count(word) >= count or self.count("error") > 0

    def count(self, word: str) -> int:
        """How often a word was noted so far."""
        for file in self.files:
            if file.exists():
                with file.open() as lines:
                    lines.seek(self.read[file])
                    fresh = lines.read()
                whole = fresh[: fresh.rfind("\n") + 1]
                self.read[file] += len(whole)
                self.counts.update(line.partition(" ")[0] for line in whole.splitlines())
        return self.counts[word]

    def fail(self, fault: str) -> None:
        if fault == "program":
            place = self.rng.randrange(PROGRAMS)
            self.programs[place].kill()
            self.programs[place].communicate()
            self.start(place)
        elif fault == "server killed":
            self.server.kill()
            self.server.start()
        elif fault == "server stopped":
            self.server.stop("immediate")
            self.server.start()
        elif fault == "terminated":
            with psycopg.connect(self.server.url(), autocommit=True) as link:
                link.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                )
        elif fault == "reset":
            self.loop.call(self.proxy.fail, LinkFault("reset"))
        else:
            way = LinkFault("truncate", "back" if fault == "answer lost" else "there")
            before = self.loop.call(self.proxy._writers.copy)  # All may be lost at once.
            self.loop.call(self.proxy.fail, way)
            until_true(lambda: not before <= self.proxy._writers, "a connection is lost")
            self.loop.call(self.proxy.heal)

    def end(self) -> None:
        for program in self.programs:
            program.communicate()
        self.loop.call(self.proxy.close)

    def check(self) -> None:
        notes = self.notes()
        assert [note for note in notes if note[0] == "error"] == []
        assert all(program.returncode == 0 for program in self.programs)
        begun = {tuple(note[1:]) for note in notes if note[0] == "write"}
        written = {tuple(note[1:]) for note in notes if note[0] == "wrote"}
        taken = [tuple(note[3:]) for note in notes if note[0] == "took" and note[2] == "job"]
        moved = [tuple(note[1:]) for note in notes if note[0] == "moved"]
        # Programs that were killed when they had taken something did not note it.
        unknown = sum(note[0] == "take" for note in notes) - sum(n[0] == "took" for n in notes)
        with tupelo.connect(self.server.url(space=self.space)) as space:
            accounts = space.read_all(("account", int, int))
            there = Counter((who, str(n)) for _, who, n in space.read_all(("job", str, int)))
            kept = Counter((who, str(n)) for _, who, n in space.read_all(("moved", str, int)))
            extra = Counter((who, n // 10) for _, who, n in space.read_all(("extra", str, int)))
        assert sorted(number for _, number, _ in accounts) == list(range(ACCOUNTS))
        assert sum(balance for _, _, balance in accounts) == 100 * ACCOUNTS
        found = Counter(taken) + there + kept
        assert max(found.values()) == 1, "something is there twice"
        assert set(moved) <= set(kept), "a commit that was acknowledged is lost"
        assert set(found) <= begun
        lost = written - set(found)
        assert len(lost) <= unknown, f"{len(lost)} lost, of {unknown} that may be: {lost}"
        assert all(n == 8 for n in extra.values()), "some of a write_all"
        assert {(who, n) for who, n in written if int(n) % 5 == 0} <= {
            (who, str(n)) for who, n in extra
        }


@pytest.mark.parametrize("seed", seeds(1))
def test_nothing_acknowledged_is_lost_and_nothing_is_taken_twice(
    server, tmp_path, loop_thread, seed
):
    town = Town(server, tmp_path, loop_thread, seed)
    try:
        faults = list(FAULTS)
        town.rng.shuffle(faults)
        for fault in faults:
            town.wait_for_work()
            town.fail(fault)
        town.wait_for_work()
    finally:
        town.end()
    town.check()


@pytest.mark.parametrize("in_transaction", [False, True])
def test_an_operation_whose_number_another_one_got_is_not_taken_for_done(
    server, monkeypatch, in_transaction
):
    """A server that crashes forgets the ids of transactions that it did not commit."""
    run = BlockingDatabase.run
    crashes: list[int] = []

    async def crashing(self: Any, link: Any, statement: str, *rest: Any, **options: Any) -> Any:
        if statement.endswith("COMMIT") and not crashes:
            server.kill()
            server.start()
            with psycopg.connect(server.url(), autocommit=True) as other:
                for _ in range(200):
                    other.execute("SELECT pg_current_xact_id()")
            crashes.append(1)
        return await run(self, link, statement, *rest, **options)

    with tupelo.connect(server.url(space=f"number {in_transaction}")) as space:
        space.write(("a", 0))  # Its shape is known from now on.
        monkeypatch.setattr(BlockingDatabase, "run", crashing)
        if in_transaction:
            txn = space.transaction()
            space.write(("a", 1), txn=txn)
            with pytest.raises(PeerLost):
                txn.commit()
            assert space.count(("a", 1)) == 0
        else:
            assert space.take(("a", tupelo.Between(0, 9))) == ("a", 0)
            assert space.count(("a", int)) == 0
        assert crashes


@pytest.fixture
def proxy(server, loop_thread):
    proxy = Proxy()
    loop_thread.call(proxy.start)
    proxy.lead_to(server.address)
    yield proxy
    loop_thread.call(proxy.close)


def waits(space: Any) -> bool:
    return any(waiter.asleep for waiter in space.database.listener.waiting(space.id))


def test_each_waits_as_long_as_it_may_without_a_connection(server, proxy, loop_thread):
    url = server.url(proxy.address, space="away")
    with tupelo.connect(url, reconnect=0.3) as space, tupelo.connect(url, reconnect=60) as other:
        impatient, patient = (Call(one.take, ("a", int)) for one in (space, other))
        until_true(partial(waits, space))
        until_true(partial(waits, other))
        loop_thread.call(proxy.fail, LinkFault("cut"))
        with pytest.raises(CannotReach):
            impatient.result()
        assert patient.waits
        loop_thread.call(proxy.heal)
        other.write(("a", 1))
        assert patient.result() == ("a", 1)


def test_a_space_is_closed_while_its_listener_tries_to_connect(
    server, proxy, loop_thread, monkeypatch
):
    monkeypatch.setattr("tupelo.postgres.listening.CLOSE_SECONDS", 0.01)
    space: Any = tupelo.connect(server.url(proxy.address, space="held"))
    taker = Call(space.take, ("a", int))
    until_true(partial(waits, space))
    thread = space.database.listener._thread
    loop_thread.call(proxy.fail, LinkFault("hold"))
    loop_thread.call(proxy._reset, proxy._writers)
    (waiter,) = space.database.listener.waiting(space.id)
    until_true(lambda: waiter.lost is not None)
    until_true(lambda: proxy._writers, "the listener connects again")
    space.close()
    with pytest.raises(SpaceClosed):
        taker.result()
    assert thread.is_alive()
    loop_thread.call(proxy.heal)
    until_true(lambda: not thread.is_alive())
