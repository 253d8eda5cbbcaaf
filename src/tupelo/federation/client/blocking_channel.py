"""A channel for threads, on a blocking socket. Who waits for an answer reads it.

A lone caller sends, and receives, by itself: no other thread has a part in it. If several wait,
one of them reads for all, and hands the reading on when its own answer is there. A keeper in the
background says that we are still here, notices when the host is not, and dials it again.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import get_ident
from typing import Any

from tupelo.errors import CannotReach, LimitReached, LinkError, TupeloError
from tupelo.federation.client.channel import (
    DIAL_SECONDS,
    PARTING_SECONDS,
    SILENT_HEARTBEATS,
    TICKS,
    Channel,
    ChannelUser,
    ConnectionConfig,
    OutstandingCall,
)
from tupelo.federation.client.line import BlockingLine
from tupelo.federation.links import wire
from tupelo.federation.links.tcp import PLAIN, PREAMBLE, REFUSED, TLS
from tupelo.federation.links.wire import encode
from tupelo.space.dual_api import run_sync

logger = logging.getLogger("tupelo")

_MAIN = threading.main_thread().ident


class BlockingOutstandingCall(OutstandingCall):
    """A call that a thread waits for; its signal is a lock."""

    __slots__ = ()

    def wake(self) -> None:
        _ring(self.signal)


class BlockingChannel(Channel):
    """A conversation of many threads with one host."""

    is_async = False

    def __init__(self, config: ConnectionConfig, chance: random.Random) -> None:
        super().__init__(config, chance)
        self._lock = threading.Lock()  # for what is sent, and for the books
        self._turn = threading.Lock()  # taken before the lock, by those who send whole messages
        self._long: deque[tuple[BlockingLine, bytes]] = deque()
        """Long messages that go in pieces, and the messages that must not overtake them."""
        self._sending_long = threading.Lock()
        self._reading = threading.RLock()  # held by the one who reads for all
        self._led = False
        self._alarm = _alarm()  # wakes the keeper
        self._line: BlockingLine | None = None
        self._dead: list[BlockingLine] = []
        self._line, welcome = self._dial(DIAL_SECONDS)
        self.begin(welcome)
        self._keeper = threading.Thread(target=self._keep, name="tupelo-channel", daemon=True)
        self._keeper.start()

    @property
    def awaits_link(self) -> bool:
        return self._line is None

    # What a space uses

    def asking(
        self, message: Any, owner: ChannelUser, within: int | None = None
    ) -> OutstandingCall:
        asked = BlockingOutstandingCall(message, owner, within, _alarm())
        if asked.wait:
            asked.since = time.monotonic()
        return asked

    async def run(self, asked: OutstandingCall) -> None:
        if asked.done:
            asked.ask_again(time.monotonic())
        try:
            with self._turn, self._lock:
                self._post(asked)
            if self._long:
                self._send_long()
            self._await(asked)
        except BaseException:  # KeyboardInterrupt, or whatever else ends this thread
            if asked.error is None:
                self.cancel(asked)
                self._hand_on()
            raise
        if asked.error is not None:
            raise asked.error

    def confirm(self, asked: OutstandingCall) -> bool:
        with self._turn, self._lock:
            answer = self.settle(asked)
            if answer:
                try:
                    self._send(encode(wire.Confirm([asked.number])))
                except BaseException:  # The caller is interrupted, and gets nothing.
                    self.unsettle(asked)
                    raise
            return answer is not False

    def cancel(self, asked: OutstandingCall) -> None:
        with self._turn, self._lock:
            if self.withdraw(asked):
                self._send(encode(wire.Cancel([asked.number])), ordered=True)
            asked.number = 0
        self._send_long()

    def tell(self, message: Any, within: int | None = None) -> None:
        with self._turn, self._lock:
            super().tell(message, within)

    async def leave(self, owner: ChannelUser, goodbyes: list[Any]) -> None:
        # Who waits is told why before the host can say what became of it.
        with self._turn, self._lock:
            calls = self.closing(owner)
            if calls:
                self._send(encode(wire.Cancel(calls)), ordered=True)
            for message, within in goodbyes:
                super().tell(message, within)
            last = not self._opened and not self.closed
            if last:
                self._send(encode(wire.Goodbye("the last space was closed")), ordered=True)
                self.closed = True
        self._send_long()
        if last:
            self._close()
        elif calls:  # One of them may be the one who reads: the answer to this frees it.
            self.tell(wire.DescribeHost(0))

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        threading.Thread(target=lambda: run_sync(work), name=name, daemon=True).start()

    def time(self) -> float:
        return time.monotonic()

    def let_go(self) -> None:
        super().let_go()
        lines, self._line, self._dead = [self._line, *self._dead], None, []
        for line in lines:
            if line is not None:
                line.close()
        self._led = False  # Threads that are not here may have held what follows.
        self._lock, self._reading = threading.Lock(), threading.RLock()
        self._turn, self._sending_long = threading.Lock(), threading.Lock()
        self._long.clear()
        self._alarm = _alarm()
        self._asked.clear()
        self._unsent.clear()

    # Sending, with the lock held

    def _post(self, asked: OutstandingCall) -> None:
        self.require_link_of(asked)
        if self._line is None:
            self.queue(asked)
            _ring(self._alarm)
        else:
            self._send(self.number(asked))

    def _send(self, content: bytes, *, ordered: bool = False) -> None:
        line = self._line
        if line is None:
            return
        is_long = len(content) > wire.PIECE_BYTES and self.message_max > wire.FRAME_MAX
        if is_long or (ordered and self._long):
            self._long.append((line, content))  # for _send_long
        else:
            self._send_frame(line, wire.frame(content))

    def _send_frame(self, line: BlockingLine, data: bytes) -> None:
        self._sent += 1
        try:
            line.send_frame(data)
        except OSError as error:
            self._lose(line, str(error))
        except BaseException:
            if line.torn:
                self._lose(line, "a sender was interrupted")
            raise

    def _send_long(self) -> None:
        """Send the messages that go in pieces, and what must come after them. The lock is free
        between two pieces: other threads send whole messages meanwhile."""
        while self._long:
            with self._sending_long:
                self._send_first_long()

    def _send_first_long(self) -> None:
        if not self._long:
            return  # Another thread has sent it.
        line, content = self._long[0]
        is_long = len(content) > wire.PIECE_BYTES
        try:
            for data in wire.pieces(content) if is_long else [wire.frame(content)]:
                with self._turn:
                    pass  # Who waits to send goes first.
                with self._lock:
                    if self._line is not line:
                        break
                    self._send_frame(line, data)
            with self._lock:
                if self._long and self._long[0][0] is line:
                    self._long.popleft()
        except BaseException:  # The rest of the message is not sent.
            with self._lock:
                self._lose(line, "a sender was interrupted")
            raise

    # Receiving

    def _await(self, asked: OutstandingCall) -> None:
        """Return when the answer is there: read until it is, or let another one read."""
        reading = self._reading
        if reading._is_owned():  # type: ignore[attr-defined]  # Two interrupts came at once.
            self._read_no_more()
        try:
            while not asked.done:
                if reading.acquire(blocking=False):
                    self._led = True
                    self._read_until(asked)
                    self._led = False
                    reading.release()
                if not asked.done:
                    asked.signal.acquire()
        finally:
            if reading._is_owned():  # type: ignore[attr-defined]  # KeyboardInterrupt came.
                self._read_no_more()
            if self._asked:
                self._hand_on()

    def _read_no_more(self) -> None:
        self._led = False
        while self._reading._is_owned():  # type: ignore[attr-defined]
            self._reading.release()

    def _read_until(self, asked: OutstandingCall) -> None:
        careful = asked.patient and get_ident() == _MAIN and (len(self._asked) > 1 or self.carries)
        while not asked.done and (line := self._line) is not None:
            if careful:
                # KeyboardInterrupt comes to the main thread. If it comes while something is
                # received, a part of a frame may be lost and with it the link, and what that
                # carries; so it should come before.
                line.ready(None)
            self._read(line)

    def _read(self, line: BlockingLine) -> None:
        try:
            contents = line.next()
            if not contents:  # a part of a frame
                self._progress += 1
            for content in contents:
                self.hear(content)
            self._heard += 1
        except (OSError, LinkError) as error:
            self._lost(line, str(error))
        except BaseException:
            self._lost(line, "a reader was interrupted")
            raise

    def _hand_on(self) -> None:
        """Wake one who waits, to read, unless somebody does."""
        while not self._led:
            try:
                next(iter(self._asked.values())).wake()
                return
            except StopIteration:
                return
            except RuntimeError:  # Another thread asked something meanwhile.
                continue

    # Losing and dialling

    def _lost(self, line: BlockingLine, reason: str) -> None:
        line.reason = (
            line.reason or reason
        )  # The reader only sees that it is shut, and may be first.
        line.shut()  # A thread may hold the lock because its sending is stuck.
        with self._lock:
            self._lose(line, reason)

    def _lose(self, line: BlockingLine, reason: str) -> None:
        if self._line is not line:
            return
        line.shut()
        self._line = None
        self._long.clear()
        self._dead.append(line)
        reason = line.reason or reason
        self.lose(reason, time.monotonic())
        if not self.config.reconnect or self.closed:
            self.give_up(None, reason)
        _ring(self._alarm)

    def _keep(self) -> None:
        """The keeper's work: heartbeats, and dialling again."""
        sent = heard = silence = 0
        while not self.closed:
            self._alarm.acquire(timeout=self.heartbeat / TICKS)
            if self.closed:
                return
            line = self._line
            if line is None:
                self._bury()
                if self.config.reconnect and (self.given_up is None or self._unsent):
                    self._dial_again()
                silence = 0
                continue
            self._read_alone(line)
            silence = silence + 1 if heard == self._heard else 0
            heard = self._heard
            if silence >= SILENT_HEARTBEATS * TICKS:
                self._lost(line, "it is silent")
            elif not self.answers():
                self._lost(line, "it answers no calls")
            elif sent == self._sent and self._lock.acquire(blocking=False):
                try:  # Whoever else holds the lock sends something.
                    self._send(encode(wire.Ping()))
                finally:
                    self._lock.release()
            sent = self._sent

    def _ask_for_a_sign(self) -> None:
        if self._lock.acquire(blocking=False):  # Else its holder may be stuck in sending.
            try:
                super().tell(wire.DescribeHost(0, brief=True))
            finally:
                self._lock.release()

    def _read_alone(self, line: BlockingLine) -> None:
        """Read what is there, if nobody does."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            while line.ready(0) and self._line is line:
                self._read(line)
        finally:
            self._reading.release()
            self._hand_on()

    def _dial_again(self) -> None:
        end = time.monotonic() + self.config.reconnect
        pause = self._next_pause
        reason, error = "", None
        self._pause(self.first_pause())
        while not self.closed and (left := end - time.monotonic()) > 0:
            try:
                line, welcome = self._dial(min(left, DIAL_SECONDS))
            except (CannotReach, LimitReached) as refusal:  # It may be less busy soon.
                reason = str(refusal)
            except TupeloError as refusal:
                error = refusal
                break
            else:
                self._go_on(line, welcome)
                return
            self._pause(min(pause(), max(0.0, end - time.monotonic())))
        with self._lock:
            self.give_up(error, reason)

    def _pause(self, seconds: float) -> None:
        """So long, or until the channel is closed; though calls ring the alarm."""
        end = time.monotonic() + seconds
        while not self.closed and (left := end - time.monotonic()) > 0:
            self._alarm.acquire(timeout=left)

    def _go_on(self, line: BlockingLine, welcome: wire.Welcome) -> None:
        """A new link stands: what waits for it is sent."""
        with self._lock:
            if self.closed:
                line.close()
                return
            self.begin(welcome)
            self._line = line
            self._post_unsent()
        self._send_long()
        self._hand_on()

    def _dial(self, seconds: float) -> tuple[BlockingLine, wire.Welcome]:
        """A link to the host, on which the spaces are open. CannotReach, or why it refuses us."""
        address = self.config.address
        end = time.monotonic() + seconds
        try:
            sock = socket.create_connection((address.host, address.port), seconds)
        except OSError as error:
            raise CannotReach(self.peer, error.strerror or str(error)) from error
        line = BlockingLine(sock)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._meet(line, sock, end)
            with self._lock:
                greeting = self.greeting()
            for content in greeting:
                line.send(content)
            welcome = self.welcomed(line.first_word(end))
            self._reopen(line, end)
            sock.settimeout(None)
            return line, welcome
        except (OSError, LinkError) as error:
            line.close()
            if isinstance(error, CannotReach):
                raise
            raise CannotReach(self.peer, str(error) or "it hung up") from error
        except BaseException:
            line.close()
            raise

    def _meet(self, line: BlockingLine, sock: socket.socket, end: float) -> None:
        """The first eight bytes, and TLS if it is wanted."""
        wanted = PLAIN if self.config.context is None else TLS
        sock.sendall(PREAMBLE + wanted)
        first = b""
        while len(first) < 8 and (part := sock.recv(8 - len(first))):
            first += part
        if first == PREAMBLE + REFUSED:
            self.welcomed(line.first_word(end))
        if first != PREAMBLE + wanted:
            raise CannotReach(self.peer, "it does not speak Tupelo, or another version of it")
        if wanted == TLS:
            line.secure(self.config)

    def _reopen(self, line: BlockingLine, end: float) -> None:
        heard: list[wire.Message] = []
        with self._lock:
            opening = self.reopening()
        for _, content in opening.values():
            line.send(content)
        while opening:
            with self._lock:
                self.reopened(opening, heard)
            heard = line.words(end) if opening else []

    def _close(self) -> None:
        """Wait until the host has heard our last word and hangs up; then until the keeper goes."""
        line = self._line
        end = time.monotonic() + PARTING_SECONDS
        while self._line is line is not None and (left := end - time.monotonic()) > 0:
            if self._reading.acquire(timeout=left):
                try:
                    if self._line is line and line.ready(left):
                        self._read(line)
                finally:
                    self._reading.release()
        _ring(self._alarm)
        if line is not None:
            self._lost(line, "the channel was closed")
            if threading.current_thread() is not self._keeper:
                self._keeper.join(DIAL_SECONDS)
        self._bury()

    def _bury(self) -> None:
        """Close the lost lines, of which nobody is receiving any more."""
        with self._reading:
            while self._dead:
                self._dead.pop().close()


def _alarm() -> threading.Lock:
    """Who acquires this waits until it is rung. An Event would not survive an interrupt: it is
    written in Python, and may keep its inner lock for ever."""
    alarm = threading.Lock()
    alarm.acquire()
    return alarm


def _ring(alarm: threading.Lock) -> None:
    with suppress(RuntimeError):  # It was rung already.
        alarm.release()
