"""A host that answers garbage, or says only that it is there: no call waits for ever, and no host
is asked without pause and end."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

import tupelo
import tupelo.aio
from tests.federation.client.peer import Line
from tupelo.errors import CannotReach, LinkError, PeerLost
from tupelo.federation.client import channel
from tupelo.federation.links import wire

HEARTBEAT_SECONDS = 0.02
SLOW_HEARTBEAT_SECONDS = 0.5
RECONNECT_SECONDS = 0.4
QUESTIONS_MAX = 20
"""With pauses that grow from some hundredths of a second, no more are asked within the time."""
GARBAGE = b"\xc1\xc1\xc1"
JOBS = ("job", int)


class BadHost:
    """Listens, welcomes everyone, and answers calls of some kinds badly."""

    def __init__(self, manner: str, good: tuple[type, ...], heartbeat: float) -> None:
        self._manner = manner
        self._good = good
        self._heartbeat = heartbeat
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._closed = threading.Event()
        self.questions = 0
        self.signs = 0
        self.url = f"tupelo://127.0.0.1:{self._listening.getsockname()[1]}/jobs"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listening.accept()
                self._sockets.append(sock)
                threading.Thread(target=self._serve, args=(Line(sock),), daemon=True).start()

    def _serve(self, line: Line) -> None:
        with suppress(OSError, AssertionError):
            line.preamble()
            line.hear()
            line.say(wire.Welcome(wire.VERSION, "h", "host", "i", "s", self._heartbeat))
            threading.Thread(target=self._beat, args=(line,), daemon=True).start()
            while True:
                message = line.hear()
                if type(message) in self._good:
                    self.signs += type(message) is wire.DescribeHost
                    line.say(wire.Answer(message.call, [False, "id", "me", "h", 1_000.0]))
                    continue
                self.questions += 1
                if self._manner == "garbage":
                    line.send(wire.frame(GARBAGE))

    def _beat(self, line: Line) -> None:
        with suppress(OSError):
            while not self._closed.wait(self._heartbeat / 4):
                line.say(wire.Ping())

    def close(self) -> None:
        self._closed.set()
        for sock in (self._listening, *self._sockets):
            with suppress(OSError):  # It wakes the threads that wait for something on it.
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@pytest.fixture
def bad_host():
    made: list[BadHost] = []

    def make(manner: str, *good: type, heartbeat: float = HEARTBEAT_SECONDS) -> BadHost:
        made.append(BadHost(manner, good, heartbeat))
        return made[-1]

    yield make
    for host in made:
        host.close()


def ask(door: str, url: str, wait: float | None, verb: str = "take") -> Any:
    """Connect, and read or take one."""
    if door == "blocking":
        with tupelo.connect(url, reconnect=RECONNECT_SECONDS) as space:
            return getattr(space, verb)(JOBS, wait=wait)

    async def story() -> Any:
        async with await tupelo.aio.connect(url, reconnect=RECONNECT_SECONDS) as space:
            return await getattr(space, verb)(JOBS, wait=wait)

    return asyncio.run(story())


@pytest.mark.parametrize("door", ["blocking", "async"])
@pytest.mark.parametrize("wait", [0, None])
@pytest.mark.parametrize("manner", ["garbage", "pings only"])
def test_a_call_that_is_never_answered_ends(bad_host, door, wait, manner):
    host = bad_host(manner, wire.Open)
    with pytest.raises(PeerLost) as caught:
        ask(door, host.url, wait)
    assert not caught.value.in_doubt
    assert 2 <= host.questions <= QUESTIONS_MAX


@pytest.mark.parametrize("door", ["blocking", "async"])
def test_a_write_that_is_never_answered_is_in_doubt(bad_host, door):
    host = bad_host("pings only", wire.Open)

    def write() -> None:
        with tupelo.connect(host.url, reconnect=RECONNECT_SECONDS) as space:
            space.write(("job", 1))

    async def story() -> None:
        async with await tupelo.aio.connect(host.url, reconnect=RECONNECT_SECONDS) as space:
            await space.write(("job", 1))

    with pytest.raises(PeerLost) as caught:
        write() if door == "blocking" else asyncio.run(story())
    assert caught.value.in_doubt
    assert host.questions <= 2  # the write, and whether it answers at all


@pytest.mark.parametrize("door", ["blocking", "async"])
@pytest.mark.parametrize("manner", ["garbage", "pings only"])
def test_a_space_that_is_never_opened_is_given_up(bad_host, door, manner):
    host = bad_host(manner)
    with pytest.raises((PeerLost, CannotReach, LinkError)):
        ask(door, host.url, 0)
    assert host.questions <= QUESTIONS_MAX


@pytest.mark.parametrize("door", ["blocking", "async"])
def test_a_host_that_answers_calls_is_waited_for(bad_host, door, monkeypatch, until):
    """A take may wait long: the host is only asked for a sign."""
    monkeypatch.setattr(channel, "UNANSWERED_HEARTBEATS", 1)
    host = bad_host("pings only", wire.Open, wire.DescribeHost, heartbeat=SLOW_HEARTBEAT_SECONDS)
    ended = threading.Event()
    errors: list[Exception] = []

    def waits() -> None:
        try:
            ask(door, host.url, None)
        except Exception as error:
            errors.append(error)
        ended.set()

    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    until(lambda: host.signs >= 3, "it has given signs for longer than it may be mute")
    assert not ended.is_set()
    assert host.questions == 1
    host.close()
    assert ended.wait(60.0)
    assert isinstance(errors[0], PeerLost)
