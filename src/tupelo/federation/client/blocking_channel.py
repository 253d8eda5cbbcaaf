"""The channel of the blocking client, on a blocking socket: a caller reads its own answer.

A single caller sends and receives by itself; no other thread takes part. If several callers wait,
one of them reads for all, and wakes the next reader when it has its own answer. A keeper thread
sends heartbeats, notices a silent host, and reconnects.
"""

from __future__ import annotations

import random
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import get_ident
from typing import Any

from tupelo.errors import CannotReach, LinkError
from tupelo.federation.client.channel import (
    DIAL_SECONDS,
    PARTING_SECONDS,
    TICKS,
    Channel,
    ConnectionConfig,
    OutstandingCall,
)
from tupelo.federation.links import wire
from tupelo.federation.links.reception import check_welcome
from tupelo.federation.links.tcp import PLAIN, PREAMBLE, REFUSED, TLS
from tupelo.space.dual_api import run_sync

_CHUNK = 64 * 1024
"""How many bytes are received at a time. For 128 KiB and more the C library gets new pages from the
system at every call, which takes longer than everything else that a short answer needs."""

_MAIN = threading.main_thread().ident


class BlockingLine:
    """One link: a connected socket, with or without TLS, and the frames that come over it."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._socket = sock
        self._deadline = deadline
        self._frames = wire.Frames(wire.HELLO_MAX, one_at_a_time=True)
        self._encrypt: Callable[[bytes], bytes] | None = None
        self._receive: Callable[[int], bytes] = sock.recv
        self.reason = ""
        """Why the link was shut, as the first thread to do so gave it."""
        self.torn = False
        """Whether only a part of a frame was sent, so that no other frame can follow."""

    def secure(self, config: ConnectionConfig) -> None:
        """Start TLS, and check the identity of the host."""
        assert config.context is not None
        secured = _TlsSocket(self._socket, config.context)
        self._encrypt, self._receive = secured.encrypt, secured.receive
        from tupelo.federation.identity.tls import key_of

        config.recognise(key_of(secured.tls))

    def send(self, content: bytes) -> None:
        """Send a whole message."""
        self.send_frame(wire.frame(content))

    def send_frame(self, data: bytes) -> None:
        """Send a frame, or a piece of a message, with its length."""
        if self._encrypt is not None:
            self.torn = True
            data = self._encrypt(data)
        # Python checks for an interrupt after a call, but not at the head of a loop: so whenever
        # it comes, the number of bytes sent is known.
        for sent in map(self._socket.send, (data,)):
            if sent == len(data):
                self.torn = False
                return
            self.torn = True
            self._socket.sendall(memoryview(data)[sent:])
        self.torn = False

    def ready(self, seconds: float | None) -> bool:
        """Whether there is something to receive within so many seconds (None: for ever)."""
        if not hasattr(select, "poll"):  # Windows
            return bool(select.select([self._socket], [], [], seconds)[0])
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1_000))

    def next(self) -> list[bytes]:
        """Receive once, and return the complete frames. LinkError or OSError at the end."""
        data = self._receive(_CHUNK)
        if not data:
            raise LinkError("it hung up")
        return self._frames.feed(data)

    # While the link is opened, until the deadline; then TimeoutError

    async def first_message(self) -> wire.Message:
        contents = self._frames.feed(b"") or self._next_in_time()
        self._frames.admit(wire.MESSAGE_MAX)
        return wire.decode_first(contents[0])

    async def messages(self) -> list[wire.Message]:
        return [wire.decode(content) for content in self._next_in_time()]

    def _next_in_time(self) -> list[bytes]:
        contents: list[bytes] = []
        while not contents:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("it does not answer in time")
            self._socket.settimeout(left)
            contents = self.next()
        return contents

    def shut(self) -> None:
        """Wake the threads that send or receive."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class _TlsSocket:
    """TLS over a socket that one thread reads while another one writes, which the TLS sockets of
    the standard library do not support."""

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

    def encrypt(self, data: bytes) -> bytes:
        """The bytes to send for this data, before those of any later call."""
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


class BlockingOutstandingCall(OutstandingCall):
    """A call that a thread waits for; its signal is a lock."""

    __slots__ = ()

    def wake(self) -> None:
        _set(self.signal)


class BlockingChannel(Channel):
    """A conversation of many threads with one host."""

    is_async = False
    _call_type = BlockingOutstandingCall
    _lock: threading.Lock
    _turn: threading.Lock
    _line: BlockingLine | None

    def __init__(self, config: ConnectionConfig, chance: random.Random) -> None:
        super().__init__(config, chance)
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._long: deque[tuple[BlockingLine, bytes]] = deque()
        """Messages that go in pieces, and the messages that must not overtake them."""
        self._sending_long = threading.Lock()  # held by the thread that sends the first of them
        self._reading = threading.RLock()  # held by the thread that reads for all
        self._has_reader = False
        self._wake_keeper = _new_signal()
        self._lost_lines: list[BlockingLine] = []
        self._line, welcome = run_sync(self._dial_first)
        self._begin_link(welcome)
        self._keeper = threading.Thread(target=self._keep, name="tupelo-channel", daemon=True)
        self._keeper.start()

    # Calls

    async def run(self, call: OutstandingCall) -> None:
        if call.done:
            call.reset(time.monotonic())
        call.signal = _new_signal()
        try:
            with self._turn, self._lock:
                others = len(self._long)
                self._post(call)
                is_long = len(self._long) > others
            # An interrupted thread may have left messages that nobody sends.
            if is_long or (self._long and not self._sending_long.locked()):
                self._send_long()
            self._await(call)
        except BaseException:  # KeyboardInterrupt, or another exception that ends this thread
            if call.error is None:
                self.cancel(call)
                self._wake_reader()
            raise
        if call.error is not None:
            raise call.error

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        threading.Thread(target=lambda: run_sync(work), name=name, daemon=True).start()

    def time(self) -> float:
        return time.monotonic()

    def detach(self) -> None:
        super().detach()
        lines, self._line, self._lost_lines = [self._line, *self._lost_lines], None, []
        for line in lines:
            if line is not None:
                line.close()
        # Threads of the parent may have held these.
        self._has_reader = False
        self._lock, self._reading = threading.Lock(), threading.RLock()
        self._turn, self._sending_long = threading.Lock(), threading.Lock()
        self._long.clear()
        self._wake_keeper = _new_signal()
        self._outstanding.clear()
        self._unsent.clear()

    # Sending

    def _send(self, content: bytes, *, ordered: bool = False) -> None:
        line = self._line
        if line is None:
            return
        is_long = len(content) > wire.PIECE_BYTES and self.message_max > wire.FRAME_MAX
        if is_long or (ordered and self._long):
            self._long.append((line, content))  # for _send_long
        else:
            self._send_frame(line, len(content).to_bytes(4, "big") + content)

    def _send_frame(self, line: BlockingLine, data: bytes) -> None:
        """With the lock held: send a frame, or a piece of a message."""
        self._sent += 1
        try:
            line.send_frame(data)
        except OSError as error:
            self._drop_locked(line, str(error))
        except BaseException:
            if line.torn:
                self._drop_locked(line, "a sender was interrupted")
            raise

    def _send_long(self) -> None:
        """Send the messages that go in pieces, and those that must follow them. The lock is free
        between two pieces: other threads send whole messages meanwhile."""
        while self._long:
            with self._sending_long:
                self._send_first_long()

    def _send_first_long(self) -> None:
        with self._lock:
            if not self._long:
                return  # Another thread has sent it, or the link was lost.
            line, content = self._long[0]
        is_long = len(content) > wire.PIECE_BYTES
        try:
            for data in wire.pieces(content) if is_long else [wire.frame(content)]:
                with self._turn:
                    pass  # Threads that wait to send go first.
                with self._lock:
                    if self._line is not line:
                        break
                    self._send_frame(line, data)
            with self._lock:
                if self._long and self._long[0][0] is line:
                    self._long.popleft()
        except BaseException:  # The rest of the message is not sent.
            with self._lock:
                self._drop_locked(line, "a sender was interrupted")
            raise

    def _send_confirmation(self, number: int) -> None:
        self._send(wire.encode(wire.Confirm([number])))

    # Receiving

    def _await(self, call: OutstandingCall) -> None:
        """Return when the call is answered: read until it is, or let another thread read."""
        reading = self._reading
        if reading._is_owned():  # type: ignore[attr-defined]  # after two interrupts at once
            self._stop_reading()
        try:
            while not call.done:
                if reading.acquire(blocking=False):
                    self._has_reader = True
                    self._read_until(call)
                    self._has_reader = False
                    reading.release()
                if not call.done:
                    call.signal.acquire()
        finally:
            if reading._is_owned():  # type: ignore[attr-defined]  # after KeyboardInterrupt
                self._stop_reading()
            if self._outstanding:
                self._wake_reader()

    def _stop_reading(self) -> None:
        self._has_reader = False
        while self._reading._is_owned():  # type: ignore[attr-defined]
            self._reading.release()

    def _read_until(self, call: OutstandingCall) -> None:
        # KeyboardInterrupt comes to the main thread. During a receive it may cost a part of a
        # frame, and so the link with its handles and other calls: wait without receiving.
        is_careful = (
            call.wait != 0
            and get_ident() == _MAIN
            and (len(self._outstanding) > 1 or self._has_handles)
        )
        while not call.done and (line := self._line) is not None:
            if is_careful:
                line.ready(None)
            self._read(line)

    def _read(self, line: BlockingLine) -> None:
        try:
            contents = line.next()
            if not contents:  # a part of a frame
                self._progress += 1
            for content in contents:
                self._receive(content)
            self._received += 1
        except (OSError, LinkError) as error:
            self._drop(line, str(error))
        except BaseException:
            self._drop(line, "a reader was interrupted")
            raise

    def _wake_reader(self) -> None:
        """Wake one waiting caller to read, unless a thread reads already."""
        while not self._has_reader:
            try:
                next(iter(self._outstanding.values())).wake()
                return
            except StopIteration:
                return
            except RuntimeError:  # Another thread has added a call.
                continue

    def _free_reader(self) -> None:
        self.tell(wire.DescribeHost(0))  # The reader may be an ended call: the answer frees it.

    # Losing and dialling

    def _drop(self, line: BlockingLine, reason: str) -> None:
        # The reader only sees that the socket is shut, and may be the first to take the lock.
        line.reason = line.reason or reason
        line.shut()  # before the lock, which a thread that is stuck in sending may hold
        with self._lock:
            self._drop_locked(line, reason)

    def _drop_locked(self, line: BlockingLine, reason: str) -> None:
        if self._line is not line:
            return
        line.shut()
        self._line = None
        self._long.clear()
        self._lost_lines.append(line)
        reason = line.reason or reason
        self._lose_link(reason)
        if not self.config.reconnect or self.closed:
            self._give_up(None, reason)
        self._dial_soon()

    def _dial_soon(self) -> None:
        _set(self._wake_keeper)

    def _keep(self) -> None:
        """Run the keeper thread: heartbeats and reconnecting."""
        while not self.closed:
            self._wake_keeper.acquire(timeout=self.heartbeat / TICKS)
            if self.closed:
                return
            line = self._line
            if line is None:
                self._close_lost_lines()
                if self.config.reconnect and (self.given_up is None or self._unsent):
                    run_sync(self._dial_again)
                continue
            self._read_available(line)
            reason = self._tick()
            if reason:
                self._drop(line, reason)

    def _unless_locked(self, send: Callable[[], None]) -> None:
        if self._lock.acquire(blocking=False):
            try:
                send()
            finally:
                self._lock.release()

    def _read_available(self, line: BlockingLine) -> None:
        """Read the frames that are there, unless another thread reads."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            while line.ready(0) and self._line is line:
                self._read(line)
        finally:
            self._reading.release()
            self._wake_reader()

    async def _pause(self, seconds: float) -> None:
        """Pause, until the channel is closed at most; new calls wake the keeper too."""
        end = time.monotonic() + seconds
        while not self.closed and (left := end - time.monotonic()) > 0:
            self._wake_keeper.acquire(timeout=left)

    def _use_line(self, line: BlockingLine, welcome: wire.Welcome) -> None:
        with self._lock:
            if self.closed:
                line.close()
                return
            self._begin_link(welcome)
            self._line = line
            self._post_unsent()
        self._send_long()
        self._wake_reader()

    async def _dial(self, seconds: float) -> tuple[BlockingLine, wire.Welcome]:
        address = self.config.address
        deadline = time.monotonic() + seconds
        try:
            sock = socket.create_connection((address.host, address.port), seconds)
        except OSError as error:
            raise CannotReach(self.peer, error.strerror or str(error)) from error
        line = BlockingLine(sock, deadline)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._exchange_preambles(line, sock)
            welcome = await self._shake_hands(line)
            sock.settimeout(None)
            return line, welcome
        except BaseException as error:
            line.close()
            if isinstance(error, CannotReach) or not isinstance(error, (OSError, LinkError)):
                raise
            raise CannotReach(self.peer, str(error) or "it hung up") from error

    async def _exchange_preambles(self, line: BlockingLine, sock: socket.socket) -> None:
        """Exchange the first eight bytes, and start TLS if the config has it."""
        wanted = PLAIN if self.config.context is None else TLS
        sock.sendall(PREAMBLE + wanted)
        first = b""
        while len(first) < 8 and (part := sock.recv(8 - len(first))):
            first += part
        if first == PREAMBLE + REFUSED:
            check_welcome(await line.first_message(), self.peer)
        if first != PREAMBLE + wanted:
            raise CannotReach(self.peer, "it does not speak Tupelo, or another version of it")
        if wanted == TLS:
            line.secure(self.config)

    async def _close(self) -> None:
        line = self._line
        end = time.monotonic() + PARTING_SECONDS
        while self._line is line is not None and (left := end - time.monotonic()) > 0:
            if self._reading.acquire(timeout=left):
                try:
                    if self._line is line and line.ready(left):
                        self._read(line)
                finally:
                    self._reading.release()
        _set(self._wake_keeper)
        if line is not None:
            self._drop(line, "the channel was closed")
            if threading.current_thread() is not self._keeper:
                self._keeper.join(DIAL_SECONDS)
        self._close_lost_lines()

    def _close_lost_lines(self) -> None:
        """Close the lost links, once no thread receives from them any more."""
        with self._reading:
            while self._lost_lines:
                self._lost_lines.pop().close()


def _new_signal() -> threading.Lock:
    """A lock as a signal: `acquire` waits until `_set` is called. A threading.Event does not
    survive an interrupt: it is written in Python and may keep its inner lock for ever."""
    signal = threading.Lock()
    signal.acquire()
    return signal


def _set(signal: threading.Lock) -> None:
    try:  # noqa: SIM105 (three times as fast)
        signal.release()
    except RuntimeError:  # It was set already.
        pass
