"""Waiting by LISTEN/NOTIFY: one listening connection for all spaces of this program.

A notification only says that it is worth to look again, and for which shape. It wakes the waiting
operations one after another, in the order of their arrival, readers before takers. After a lost
connection all of them look again, so that a missed notification costs a look and never an entry.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from tupelo.errors import CannotReach, SpaceClosed, TupeloError

logger = logging.getLogger("tupelo")

CLOSE_SECONDS = 1.0
"""So long `close` waits for the listener, which may be connecting to a server that is gone."""
READ_ONLY = "25006"
"""The state of the error of a standby, which may become the primary."""


def channel_of(space: int) -> str:
    """The name of the channel of a space."""
    return f"tupelo_{space}"


class WaitingOperation:
    """A waiting operation. `shapes` are the numbers of the shapes that it waits for among the first
    `known`, None for all; `asleep` while it has looked in vain; `due` the number of the call of
    `tell` since which it is to look, or 0. It is told after `reconnect` seconds without a
    connection, which began at `lost`."""

    def __init__(self, event: Any, wake: Callable[[], object] | None = None) -> None:
        self.event = event
        self.reconnect = 30.0
        self.lost: float | None = None
        self.shapes: frozenset[int] | None = None
        self.known = 0
        self.takes = False
        self.search: Any = None
        self.writes = False
        self.asleep = False
        self.due = 0
        self.error: TupeloError | None = None
        self._set = wake or event.set

    def wants(self, shape: int | None) -> bool:
        """Whether to look when an entry of this shape, or any, has come."""
        if shape is None or self.shapes is None or shape > self.known:
            return True
        return shape in self.shapes

    def wake(self) -> None:
        with suppress(RuntimeError):  # Its loop is closed.
            self._set()


class _Channel:
    """The waiting operations of one space; `active` are the write and the other one that were told
    to look. (A write may have to wait for writers of other programs.)"""

    def __init__(self) -> None:
        self.waiters: list[WaitingOperation] = []
        self.active: dict[bool, WaitingOperation] = {}
        self.is_listening = False
        self.told = 1

    def tell(self, shape: int | None) -> None:
        self.told += 1
        for waiter in self.waiters:
            if waiter.wants(shape):
                waiter.due = waiter.due or self.told
        self.next()

    def next(self) -> None:
        """Wake the first that is to look, unless another does: the first reader of those that were
        told first. Whoever is told again while it looks comes behind them."""
        for writes in {False, True}.difference(self.active):
            due = [waiter for waiter in self.waiters if waiter.due and waiter.writes is writes]
            if due:
                first = self.active[writes] = min(due, key=lambda one: (one.due, one.takes))
                first.due = 0
                first.wake()

    def looked(self, waiter: WaitingOperation) -> None:
        """The waiter has looked, in vain, or is gone: the next one may."""
        if self.active.get(waiter.writes) is waiter:
            del self.active[waiter.writes]
            self.next()


class NotificationListener:
    """The listening connection, on a thread of its own that starts when first needed."""

    def __init__(self, conninfo: str, where: str) -> None:
        self._conninfo = conninfo
        self._where = where
        self._lock = threading.Lock()
        self._channels: dict[int, _Channel] = {}
        self._thread: threading.Thread | None = None
        self._poke: socket.socket | None = None  # wakes the thread
        self._poked: socket.socket | None = None
        self._closed = False
        self._ended: list[int] = []

    def waiting(self, space: int) -> list[WaitingOperation]:
        """The operations that wait at this space."""
        channel = self._channels.get(space)
        return [] if channel is None else list(channel.waiters)

    def join(self, space: int, waiter: WaitingOperation) -> bool:
        """Wait for notifications. False if the waiter is woken as soon as there can be any, and
        has to look only then."""
        with self._lock:
            channel = self._channels.setdefault(space, _Channel())
            channel.waiters.append(waiter)
            if channel.is_listening:
                return True
            if self._thread is None:
                self._poke, self._poked = socket.socketpair()
                self._poke.setblocking(False)
                self._thread = threading.Thread(target=self._run, name="tupelo-listen", daemon=True)
                self._thread.start()
        self._wake_thread()
        return False

    def looked(self, space: int, waiter: WaitingOperation) -> None:
        """The waiter has looked, in vain: the next one may."""
        with self._lock:
            self._channels[space].looked(waiter)

    def prefer(self, space: int, waiter: WaitingOperation, after: WaitingOperation | None) -> None:
        """Let one waiter look, and another one after it."""
        with self._lock:
            channel = self._channels.get(space)
            if channel is not None:
                both = [waiter] if after is None else [waiter, after]
                since = min([one.due for one in both if one.due], default=channel.told)
                for one in both:
                    one.due = since
                channel.next()

    def let_look(self, space: int, waiter: WaitingOperation) -> None:
        """Let one waiter look without being told; before a writer, those that wait for longer."""
        with self._lock:
            channel = self._channels.get(space)
            if channel is None or waiter not in channel.waiters:
                return
            for other in channel.waiters[: channel.waiters.index(waiter) + 1]:
                if other is waiter or (waiter.writes and other.writes):
                    other.due = other.due or channel.told
            channel.next()

    def leave(self, space: int, waiter: WaitingOperation) -> None:
        with self._lock:
            channel = self._channels.get(space)
            if channel is not None and waiter in channel.waiters:
                channel.waiters.remove(waiter)
                channel.looked(waiter)

    def tell(self, space: int) -> None:
        """All that wait here look again."""
        with self._lock:
            channel = self._channels.get(space)
            if channel is not None:
                channel.tell(None)

    def forget(self, space: int) -> None:
        """No more notifications for this space, unless somebody still waits."""
        with self._lock:
            channel = self._channels.get(space)
            if channel is not None and not channel.waiters:
                del self._channels[space]
                self._ended.append(space)
        self._wake_thread()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread = self._thread
        self._wake_thread()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def _wake_thread(self) -> None:
        if self._poke is not None:
            with suppress(BlockingIOError, OSError):
                self._poke.send(b"!")

    # The thread

    def _run(self) -> None:
        while not self._closed:
            try:
                with psycopg.connect(self._conninfo, autocommit=True) as link:
                    self._listen(link)
            except (psycopg.Error, OSError) as error:
                is_refused = (
                    isinstance(error, psycopg.Error)
                    and not isinstance(error, psycopg.OperationalError)
                    and error.sqlstate != READ_ONLY
                )
                self._lost(CannotReach(self._where, str(error).strip()), is_refused)
                self._pause(0.2)
        assert self._poke is not None and self._poked is not None
        self._poke.close()
        self._poked.close()

    def _pause(self, seconds: float) -> None:
        assert self._poked is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._poked, selectors.EVENT_READ)
            if selector.select(seconds):
                self._poked.recv(4096)

    def _lost(self, error: TupeloError, is_refused: bool) -> None:
        """There is no connection: tell those who wait, if they have waited for one long enough or
        there will be none."""
        now = time.monotonic()
        with self._lock:
            for channel in self._channels.values():
                channel.is_listening = False
                for waiter in channel.waiters:
                    waiter.lost = waiter.lost or now
                    if is_refused or now - waiter.lost >= waiter.reconnect:
                        waiter.error = error
                        waiter.wake()

    def _listen(self, link: psycopg.Connection[Any]) -> None:
        assert self._poked is not None
        heard: set[int] = set()
        # Those that come with the answer to a LISTEN go to the handler, the others are fetched.
        link.add_notify_handler(lambda notice: self._heard(notice.channel, notice.payload))
        with selectors.DefaultSelector() as selector:
            selector.register(self._poked, selectors.EVENT_READ)
            selector.register(link.fileno(), selectors.EVENT_READ)
            while not self._closed:
                self._follow(link, heard)
                link.pgconn.consume_input()
                while (notice := link.pgconn.notifies()) is not None:
                    self._heard(notice.relname.decode(), notice.extra.decode(errors="replace"))
                if self._poked.fileno() in {key.fd for key, _ in selector.select()}:
                    self._poked.recv(4096)

    def _follow(self, link: psycopg.Connection[Any], heard: set[int]) -> None:
        """Listen to the channels of all spaces that somebody waits at."""
        with self._lock:
            ended, self._ended = self._ended, []
            heard.difference_update(ended)  # Somebody may wait there again.
            wanted = [space for space in self._channels if space not in heard]
        for space in ended:
            link.execute(f"UNLISTEN {channel_of(int(space))}".encode())
        for space in wanted:
            link.execute(f"LISTEN {channel_of(int(space))}".encode())
            heard.add(space)
            with self._lock:
                channel = self._channels.get(space)
                if channel is not None:
                    channel.is_listening = True
                    for waiter in channel.waiters:
                        waiter.lost = None
                        waiter.wake()

    def _heard(self, channel: str, payload: str) -> None:
        with self._lock:
            found = self._channels.get(int(channel.rpartition("_")[2]))
            if found is not None:
                try:
                    found.tell(int(payload))
                except ValueError:  # no shape: it may be any
                    found.tell(None)


def closed(name: str) -> SpaceClosed:
    return SpaceClosed(f"the space {name!r} was closed here")
