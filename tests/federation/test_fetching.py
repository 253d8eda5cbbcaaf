"""A host is killed while it fetches an entry from another, for a program of its own or a client:
the entry is with the one who asked, or at its owner, and never lost.

`TUPELO_HOST_KILLS=500` kills that often, from a new seed.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

import tupelo
from tests.federation.company import PATIENCE_SECONDS, await_host, await_space, port_number
from tests.federation.raw import Raw, encoded
from tupelo.errors import TupeloError
from tupelo.federation.links import wire
from tupelo.federation.spaces.hosted import Doubt
from tupelo.values.holder import ClientCall

KILLS = int(os.environ.get("TUPELO_HOST_KILLS", "0"))
SEED = random.randrange(10**9) if KILLS else 7
JOBS = ("job", int)
GLIMPSE = 0.05

if KILLS:
    pytestmark = pytest.mark.timeout(0)


@pytest.fixture
def clients():
    """`clients(child)` is the space "jobs" of that host, which is dialled until it is back."""
    made: list[Any] = []

    def client(child: Any) -> Any:
        space = tupelo.connect(f"tupelo://{child.address}/jobs", reconnect=PATIENCE_SECONDS)
        made.append(space)
        return space

    yield client
    for space in made:
        space.close()


@pytest.mark.parametrize("durable", [True, False])
def test_a_client_gets_what_its_host_had_fetched_when_it_was_killed(
    threads, clients, later, until, tmp_path, durable
):
    owner = threads.host("owner", path=tmp_path / "owner" if durable else None)
    owner.space("jobs").write(("job", 1))
    options: Any = {"path": str(tmp_path / "fetching"), "peers": [owner.address]}
    child = threads.child("fetching", "taker has it", **options)
    await_space(owner, child.id)
    call = later(clients(child).take, JOBS)
    child.hear("paused")
    child.kill()
    await_host(owner, child.id, "departed")
    assert owner.space("jobs").here.count() == 0  # The client may have it.
    threads.child("fetching", listen=port_number(child.address), **options)
    assert call.result() == ("job", 1)
    until(lambda: not owner.core.doubts.owners(), "it is settled")
    assert owner.space("jobs").here.count() == 0


@pytest.mark.parametrize("durable", [True, False])
def test_what_a_client_has_is_taken_though_its_host_was_killed_before_it_said_so(
    threads, clients, until, tmp_path, durable
):
    owner = threads.host("owner", path=tmp_path / "owner" if durable else None)
    owner.space("jobs").write(("job", 1))
    options: Any = {"path": str(tmp_path / "fetching"), "peers": [owner.address]}
    child = threads.child("fetching", "client has it", **options)
    await_space(owner, child.id)
    client = clients(child)
    assert client.take(JOBS) == ("job", 1)
    child.hear("paused")
    child.kill()
    await_host(owner, child.id, "departed")
    assert owner.core.doubts.owners()
    threads.child("fetching", listen=port_number(child.address), **options)
    until(lambda: not owner.core.doubts.owners(), "the client is back and has said so")
    assert owner.space("jobs").here.count() == 0
    assert client.count(JOBS) == 0


def test_an_owner_that_was_killed_too_still_waits_for_the_client(threads, clients, until, tmp_path):
    """Its journal says for which call of which client the entry is in doubt."""
    first: Any = {"path": str(tmp_path / "owner"), "doubt": 600.0}
    owner = threads.child("owner", **first)
    owner.do("write", ["job", 1])
    second: Any = {"path": str(tmp_path / "fetching"), "peers": [owner.address]}
    child = threads.child("fetching", "client has it", **second)
    until(lambda: child.do("engaged") == ["owner"], "they meet")
    client = clients(child)
    assert client.take(JOBS) == ("job", 1)
    child.hear("paused")
    child.kill()
    owner.kill()
    owner = threads.child("owner", listen=port_number(owner.address), **first)
    assert owner.do("in_doubt") == 1
    threads.child("fetching", listen=port_number(child.address), **second)
    until(lambda: owner.do("in_doubt") == 0, "the client is back and has said so")
    assert owner.do("here", "job") == []


@pytest.mark.parametrize("then", ["return", "forget"])
def test_what_was_for_a_client_that_never_comes_back_is_decided_by_the_doubt(
    threads, until, tmp_path, then
):
    owner = threads.host("owner", doubt=Doubt(GLIMPSE, then), path=tmp_path / "owner")
    owner.space("jobs").write(("job", 1))
    child = threads.child("fetching", "taker has it", peers=[owner.address])
    await_space(owner, child.id)
    client = Raw.met(child.address)
    client.say(wire.Get(1, "jobs", encoded(*JOBS), True))
    child.hear("paused")
    child.kill()
    until(lambda: not owner.core.peers and not owner.core.doubts.owners(), "it is decided")
    assert owner.space("jobs").here.count() == (then == "return")
    client.close()


def test_a_host_says_nothing_for_clients_of_another(threads, until):
    """Only the host of a client says what the client has received."""
    owner = threads.host("owner", doubt=Doubt(600.0))
    owner.space("jobs").write(("job", 1))
    honest, liar = Raw.met(owner.address, "host"), Raw.met(owner.address, "host")
    agent = f"client@{honest.id}"
    taken = honest.call(
        wire.Ask, "jobs", encoded(*JOBS), "take", client=ClientCall(agent, "session", 4)
    )
    assert taken.value
    honest.close()
    until(lambda: owner.core.doubts.owners(), "it is in doubt")
    liar.say(wire.Returned([(agent, "session", [])]))
    assert liar.call(wire.CountRequest, "jobs", encoded(*JOBS)).value == 0
    assert owner.core.doubts.owners()
    again = Raw.met(owner.address, "host", id=honest.id)  # a new life
    again.say(wire.Returned([(agent, "session", [])]))
    assert again.call(wire.CountRequest, "jobs", encoded(*JOBS)).value == 1
    assert not owner.core.doubts.owners()
    for raw in (liar, again):
        raw.close()


# At random moments


def test_no_kill_of_its_host_loses_or_doubles_what_a_client_takes(
    threads, clients, until, tmp_path
):
    rng = random.Random(f"{SEED} client")
    print(f"the seed is {SEED}")
    owner = threads.host("owner", path=tmp_path / "owner")
    space = owner.space("jobs")
    options: Any = {"path": str(tmp_path / "fetching"), "peers": [owner.address]}
    child = threads.child("fetching", **options)
    client = clients(child)
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended = threading.Event()

    def take() -> None:
        while not ended.is_set():
            with suppress(TupeloError):  # NotAllAnswered: the hosts have yet to meet.
                got = client.take(JOBS, wait=0.2)
                if got is not None:
                    told.put(got[1])

    threads_of_client = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads_of_client:
        thread.start()
    written = 0
    for _ in range(KILLS or 8):
        until(lambda child=child: child.do("engaged") == ["owner"], "they meet")
        until(lambda: not client._channel.awaits_link, "the client is back")
        # If the host is killed again before it has told what the client received, Doubt decides.
        until(lambda: not owner.core.doubts.owners(), "the owner knows what the client received")
        for _ in range(4):
            space.write(("job", written))
            written += 1
        time.sleep(rng.uniform(0, 0.012))  # Any moment is as good as another.
        child.kill()
        child = threads.child("fetching", listen=port_number(child.address), **options)
    until(lambda: not owner.core.doubts.owners() and not space.here.count(), "all is taken")
    until(lambda: told.qsize() >= written, "all are told")
    ended.set()
    for thread in threads_of_client:
        thread.join()
    assert sorted(told.get() for _ in range(told.qsize())) == list(range(written))


def test_no_kill_of_a_host_loses_what_its_program_takes(threads, until, tmp_path):
    """What the program had got last may return, if it was killed before the owner could hear of
    it: a job is rather done twice than lost."""
    rng = random.Random(f"{SEED} program")
    print(f"the seed is {SEED}")
    owner = threads.host("owner", path=tmp_path / "owner")
    space = owner.space("jobs")
    told: list[int] = []
    last: set[int] = set()
    written = 0

    def hear_all(child: Any) -> bool:
        while child.has_said("took"):
            told.append(child.hear("took")[1])
        return set(told) == set(range(written))

    for _ in range(KILLS or 8):
        child = start_taking(threads, owner, tmp_path)
        for _ in range(4):
            space.write(("job", written))
            written += 1
        time.sleep(rng.uniform(0, 0.012))  # Any moment is as good as another.
        child.kill()
        until(lambda: not owner.core.peers, "the owner knows that it is gone")
        before = len(told)
        hear_all(child)
        last.update(told[before:][-1:])
    child = start_taking(threads, owner, tmp_path)
    until(lambda: hear_all(child), "all that was written is told")
    assert {number for number in told if told.count(number) > 1} <= last


def start_taking(threads: Any, owner: Any, folder: Any) -> Any:
    """A host whose program takes what the owner has."""
    child = threads.child(
        "fetching",
        program="taking_child.py",
        path=str(folder / "fetching"),
        peers=[owner.address],
    )
    await_space(owner, child.id)
    return child
