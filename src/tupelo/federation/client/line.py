"""A link of the blocking door: a connected socket, perhaps with TLS on it, and its frames."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tupelo.errors import LinkError
from tupelo.federation.client.channel import ConnectionConfig
from tupelo.federation.links import wire

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
        """Send a whole message."""
        self.send_frame(len(content).to_bytes(4, "big") + content)

    def send_frame(self, data: bytes) -> None:
        """Send a frame, or a piece, with its length."""
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
        All that follows may be as long as any message."""
        contents = self.frames.feed(b"") or self._next_before(end)
        self.frames.admit(wire.MESSAGE_MAX)
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
