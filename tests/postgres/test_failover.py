"""A standby takes over while programs are at work. With synchronous commits nothing that was
acknowledged is lost, and nothing is taken twice. Who waits, waits on, also if its address leads to
the standby before that may be written to."""

import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import psycopg
import pytest

import tupelo
from tests.conftest import Call, until_true
from tests.postgres.servers import Server
from tupelo.lab.torture.proxy import Proxy


@pytest.fixture
def pair():
    """A primary, and a standby that each commit waits for."""
    primary = Server()
    standby = Server(primary)
    with psycopg.connect(primary.url(), autocommit=True) as link:
        link.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        link.execute("SELECT pg_reload_conf()")
        state = "SELECT FROM pg_stat_replication WHERE sync_state = 'sync'"
        until_true(lambda: link.execute(state).rowcount == 1, "the standby follows")
    yield primary, standby
    standby.close()
    primary.close()


@pytest.fixture
def proxy(pair, loop_thread):
    """The address of the database: of the primary, until it leads elsewhere."""
    proxy = Proxy()
    loop_thread.call(proxy.start)
    proxy.lead_to(pair[0].address)
    yield proxy
    loop_thread.call(proxy.close)


def test_a_standby_takes_over_and_nothing_acknowledged_is_lost(pair, proxy, tmp_path):
    primary, standby = pair
    hosts = f"{primary.address},{standby.address}"
    query = {"target_session_attrs": "read-write", "space": "failover"}
    url = f"postgresql://postgres@{hosts}/postgres?{urlencode(query)}"
    waits = standby.url(proxy.address, space="waits")
    with tupelo.connect(url) as space, tupelo.connect(waits, reconnect=300) as waiting:
        taker = Call(waiting.take, ("a", int))
        listener = waiting.database.listener  # type: ignore[attr-defined]
        until_true(lambda: any(waiter.asleep for waiter in listener.waiting(waiting.id)))  # type: ignore[attr-defined]
        space.write_all([("account", i, 100) for i in range(6)])
        file = tmp_path / "notes"
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.postgres.busy_program", url, "p", file],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
        )

        def noted(word: str) -> list[tuple[str, ...]]:
            lines = file.read_text().splitlines() if file.exists() else []
            return [tuple(one.split()[1:]) for one in lines if one.split()[0] == word]

        def has_more(word: str, count: int) -> bool:
            return len(noted(word)) > count or bool(noted("error"))

        def wait_for_work() -> None:
            for word in ("wrote", "took", "moved", "transferred"):
                until_true(partial(has_more, word, len(noted(word)) + 3), word)

        wait_for_work()
        primary.kill()
        proxy.lead_to(standby.address)
        log = standby.folder / "log"
        until_true(lambda: "cannot execute LISTEN" in log.read_text(), "the standby refuses it")
        standby.promote()
        waiting.write(("a", 1))
        assert taker.result() == ("a", 1)
        wait_for_work()
        program.communicate()
        assert noted("error") == [] and program.returncode == 0
        taken = [one[2:] for one in noted("took") if one[1] == "job"]
        there = [(who, str(n)) for _, who, n in space.read_all(("job", str, int))]
        moved = [(who, str(n)) for _, who, n in space.read_all(("moved", str, int))]
        found = Counter([*taken, *there, *moved])
        assert max(found.values()) == 1
        assert set(noted("wrote")) <= set(found) <= set(noted("write"))
        assert set(noted("moved")) <= set(moved)
        accounts = space.read_all(("account", int, int))
        assert sorted(number for _, number, _ in accounts) == list(range(6))
        assert sum(balance for _, _, balance in accounts) == 600
