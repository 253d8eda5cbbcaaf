"""A channel for threads, on a blocking socket. Who waits for an answer reads it.

A lone caller sends, and receives, by itself: no other thread has a part in it. If several wait,
one of them reads for all, and hands the reading on when its own answer is there. A keeper in the
background says that we are still here, notices when the host is not, and dials it again.
"""

from __future__ import annotations

import logging
import random
import select
import socket
import ssl
import threading
import time
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
from tupelo.federation.links import wire
from tupelo.federation.links.tcp import PLAIN, PREAMBLE, REFUSED, TLS
from tupelo.federation.links.wire import encode
from tupelo.space.dual_api import run_sync

_CHUNK = 64 * 1024
"""So much is received at a time. For 128 KiB and more the C library asks the system for new pages
at every call, which takes longer than all else that a short answer needs."""


def _readable(sock: socket.socket, seconds: float | None) -> bool:
    """Can something be received within so many seconds? None waits for ever."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([sock], [], [], seconds)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1_000))


class BlockingLine:
    """One link: a connected socket, perhaps with TLS on it, and the frames that come over it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.frames = wire.Frames(wire.HELLO_MAX, one_at_a_time=True)
        self._seal: Callable[[bytes], bytes] | None = None
        self.receive: Callable[[int], bytes] = sock.recv
        self.reason = ""
        """Why it was shut, by whoever was first."""
        self.torn = False
        """Has only a part of a frame been sent? Then no other can follow."""

    def secure(self, config: ConnectionConfig) -> None:
        """Go on with TLS, having recognised who answers."""
        assert config.context is not None
        secured = _TlsSocket(self._socket, config.context)
        self._seal, self.receive = secured.seal, secured.receive
        from tupelo.federation.identity.tls import key_of

        config.recognise(key_of(secured.tls))

    def send(self, content: bytes) -> None:
        data = len(content).to_bytes(4, "big") + content
        if self._seal is not None:
            self.torn = True
            data = self._seal(data)
        # An interrupt is noticed after a call, but not in a loop's head: so it is known what was
        # sent, whenever one comes.
        for sent in map(self._socket.send, (data,)):
            if sent == len(data):
                self.torn = False
                return
            self.torn = True
            self._socket.sendall(memoryview(data)[sent:])
        self.torn = False

    def ready(self, seconds: float | None) -> bool:
        """Is there something to receive? Wait for it so long; None for ever."""
        return _readable(self._socket, seconds)

    def next(self) -> list[bytes]:
        """The frames that are there. LinkError or OSError if there will be none."""
        data = self.receive(_CHUNK)
        if not data:
            raise LinkError("it hung up")
        return self.frames.feed(data)

    def first_word(self, end: float) -> wire.Message:
        """What the host says first, before that moment of the monotonic clock; else TimeoutError.
        All that follows may be as long as any frame."""
        contents = self.frames.feed(b"") or self._next_before(end)
        self.frames.frame_max, self.frames.one_at_a_time = wire.FRAME_MAX, False
        return wire.decode_first(contents[0])

    def words(self, end: float) -> list[wire.Message]:
        """The next messages, before that moment of the monotonic clock; else TimeoutError."""
        return [wire.decode(content) for content in self._next_before(end)]

    def _next_before(self, end: float) -> list[bytes]:
        contents: list[bytes] = []
        while not contents:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("it does not answer in time")
            self._socket.settimeout(left)
            contents = self.next()
        return contents

    def shut(self) -> None:
        """Wake whoever sends or receives."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class _TlsSocket:
    """TLS over a socket that one thread reads while another one writes, which Python's own sockets
    with TLS cannot bear."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out)
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                data = sock.recv(_CHUNK)
                if not data:
                    raise ConnectionResetError("it hung up") from None
                self._in.write(data)
        self._flush()

    def seal(self, data: bytes) -> bytes:
        """What is to be sent instead, next."""
        with self._lock:
            self.tls.write(data)
            return self._out.read()

    def receive(self, size: int) -> bytes:
        while True:
            with self._lock:
                found = self._decrypted(size)
            if found:
                return found
            data = self._socket.recv(size)
            if not data:
                return b""
            with self._lock:
                self._in.write(data)

    def _decrypted(self, size: int) -> bytes:
        found = b""
        with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while part := self.tls.read(size):
                found += part
        return found

    def _flush(self) -> None:
        if self._out.pending:
            self._socket.sendall(self._out.read())


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
            with self._lock:
                self._post(asked)
            self._await(asked)
        except BaseException:  # KeyboardInterrupt, or whatever else ends this thread
            if asked.error is None:
                self.cancel(asked)
                self._hand_on()
            raise
        if asked.error is not None:
            raise asked.error

    def confirm(self, asked: OutstandingCall) -> bool:
        with self._lock:
            answer = self.settle(asked)
            if answer:
                try:
                    self._send(encode(wire.Confirm([asked.number])))
                except BaseException:  # The caller is interrupted, and gets nothing.
                    self.unsettle(asked)
                    raise
            return answer is not False

    def cancel(self, asked: OutstandingCall) -> None:
        with self._lock:
            if self.withdraw(asked):
                self._send(encode(wire.Cancel([asked.number])))
            asked.number = 0

    def tell(self, message: Any, within: int | None = None) -> None:
        with self._lock:
            super().tell(message, within)

    async def leave(self, owner: ChannelUser, goodbyes: list[Any]) -> None:
        with self._lock:  # Who waits is told why before the host can say what became of it.
            calls = self.closing(owner)
            if calls:
                self._send(encode(wire.Cancel(calls)))
            for message, within in goodbyes:
                super().tell(message, within)
            last = not self._opened and not self.closed
            if last:
                self._send(encode(wire.Goodbye("the last space was closed")))
                self.closed = True
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

    def _send(self, content: bytes) -> None:
        line = self._line
        if line is None:
            return
        self._sent += 1
        try:
            line.send(content)
        except OSError as error:
            self._lose(line, str(error))
        except BaseException:
            if line.torn:
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
