"""Ctrl-C and forks: what a program does to itself costs no entry, and nobody else anything."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

import tupelo
from tests.federation.client.hosting import Hosting
from tupelo.federation.client.blocking_channel import BlockingChannel
from tupelo.federation.client.doors import either
from tupelo.federation.links import wire


def parked(host: Hosting) -> int:
    core = host.space._operations.core
    with host.space._operations.engine.lock:
        return len(list(core.waiting))


# Interrupts


@pytest.mark.parametrize("held", [False, True])
def test_an_interrupted_take_takes_nothing(host, until, held):
    space = tupelo.connect(host.url)
    txn = space.transaction() if held else None
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: parked(host) == 1)
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        space.take(("a",))
    interrupter.join()
    until(lambda: parked(host) == 0)
    space.write(("a",))
    assert space.take(("a",), wait=0) == ("a",)
    if txn is not None:
        txn.commit()  # It has lost nothing.
    space.close()


@pytest.fixture
def late(monkeypatch):
    """An interrupt that comes when a take has just been confirmed."""
    confirm = BlockingChannel.confirm

    def interrupted(channel: BlockingChannel, asked: Any) -> bool:
        monkeypatch.undo()
        confirm(channel, asked)
        raise KeyboardInterrupt

    monkeypatch.setattr(BlockingChannel, "confirm", interrupted)


@pytest.mark.usefixtures("late")
def test_a_take_that_is_interrupted_at_the_last_moment_is_undone(peer, later):
    call = later(tupelo.connect, peer.url)
    line, _ = peer.line()
    space = call.result()
    call = later(space.take)
    taken = line.answer(wire.Get, [["job", 1]])
    with pytest.raises(KeyboardInterrupt):
        call.result()
    assert line.hear() == wire.Confirm([taken.call])
    assert line.hear() == wire.Cancel([taken.call])
    line.close()
    _, hello = peer.line("second")
    assert hello.received == []  # It is not claimed after a loss either.
    space.close()


@pytest.mark.usefixtures("late")
def test_what_an_interrupt_kept_from_its_taker_is_there_again(host):
    host.space.write(("a",))
    with tupelo.connect(host.url) as space:
        with pytest.raises(KeyboardInterrupt):
            space.take(("a",))
        assert space.take(("a",), wait=0) == ("a",)
        assert space.take(("a",), wait=0) is None


class Counter:
    is_async = False

    @either
    async def add(self, *, one: int = 1) -> int:
        return await self._sum(one, one)

    async def _sum(self, a: int, b: int) -> int:
        return a + b


def test_an_interrupt_leaves_no_coroutine_behind():
    counter, begun = Counter(), False

    def interrupt(number: int, frame: Any) -> None:
        if begun:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(3_000):
            try:
                begun = True
                signal.setitimer(signal.ITIMER_REAL, 0.000_001 * (1 + i % 30))
                for _ in range(20):
                    assert counter.add(one=1) == 2
                begun = False
            except KeyboardInterrupt:
                begun = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Forks

FORKING = """
import os, sys, tupelo
space = tupelo.connect(sys.argv[1])
with space.subscribe() as listener:
    space.write(("before",))
    child = os.fork()
    if not child:
        for attempt in (space.take, space.count, listener.get, space.transaction):
            try:
                attempt()
            except tupelo.errors.LinkError as error:
                print(error)
        space.close()
        with tupelo.connect(sys.argv[1]) as again:
            assert again.agent != space.agent
            print(again.take(("before",)))
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert listener.get().entry == ("before",)
    print(space.count(), space.take(wait=0))
space.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_child_is_told_to_connect_again_and_its_parent_goes_on(host):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, host.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    told = "this connection was made before a fork; connect again in the child"
    assert done.stdout.splitlines() == [told] * 4 + ["('before',)", "0 None"], done.stderr
