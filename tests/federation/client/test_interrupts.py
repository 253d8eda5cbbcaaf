"""Ctrl-C and forks: what a program does to itself costs no entry, and nobody else anything."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

import tupelo
from tests.conftest import waiting_at
from tupelo.federation.client.blocking_channel import BlockingChannel
from tupelo.federation.links import wire
from tupelo.space.dual_api import dual_api

INTERRUPTED = object()


# Interrupts


@pytest.mark.parametrize("held", [False, True])
def test_an_interrupted_take_takes_nothing(host, until, held):
    space = tupelo.connect(host.url)
    txn = space.transaction() if held else None
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: waiting_at(host.space) == 1)
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        space.take(("a",))
    interrupter.join()
    until(lambda: waiting_at(host.space) == 0)
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
    call = later(space.count)
    line, _ = peer.line("second")
    assert line.received == []  # It is not claimed after a loss either.
    line.answer(wire.CountRequest, 1)
    assert call.result() == 1
    closing = later(space.close)
    assert type(line.hear()) is wire.Goodbye
    line.close()
    closing.result()


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

    @dual_api
    async def add(self, *, one: int = 1) -> int:
        return await self._sum(one, one)

    async def _sum(self, a: int, b: int) -> int:
        return a + b


@pytest.fixture
def interrupting():
    """`interrupting(function, seconds)`: its answer, or `INTERRUPTED` if that came first."""
    begun = False

    def interrupt(number: int, frame: Any) -> None:
        if begun:
            raise KeyboardInterrupt

    def call(function: Callable[[], Any], seconds: float) -> Any:
        nonlocal begun
        try:
            begun = True
            signal.setitimer(signal.ITIMER_REAL, seconds)
            answer = function()
            begun = False
        except KeyboardInterrupt:
            begun = False
            return INTERRUPTED
        return answer

    before = signal.signal(signal.SIGALRM, interrupt)
    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_leaves_no_coroutine_behind(interrupting):
    counter = Counter()
    for i in range(3_000):
        interrupting(lambda: [counter.add(one=1) for _ in range(20)], 0.000_001 * (1 + i % 30))


def test_no_interrupt_costs_an_entry(host, interrupting):
    host.space.write_all([("n", i) for i in range(500)])
    taken = []
    with tupelo.connect(host.url) as space:
        for i in count():
            entry = interrupting(
                lambda: space.take(("n", int), wait=0), 0.000_001 * (1 + 7 * i % 900)
            )
            if entry is None:
                break
            if entry is not INTERRUPTED:
                taken.append(entry[1])
    assert sorted(taken) == list(range(500))


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
