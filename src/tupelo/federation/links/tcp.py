"""Links over TCP: plain on one machine, with TLS beyond it.

The program that dials sends a preamble of eight bytes: the protocol, its version, and whether TLS
is wanted. The other program sends eight bytes back. After a TLS handshake, if any, frames follow.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from tupelo.errors import BadFrame, CannotReach, TupeloError
from tupelo.federation.links.address import Address, is_loopback
from tupelo.federation.links.encoding import encode_error, read_error
from tupelo.federation.links.link import Answering, FrameReceiver
from tupelo.federation.links.wire import (
    FRAME_MAX,
    HELLO_MAX,
    MESSAGE_MAX,
    PIECE_BYTES,
    VERSION,
    Frames,
    Refusal,
    decode_first,
    encode,
    frame,
    pieces,
)

logger = logging.getLogger("tupelo")

PREAMBLE = b"TUPELO" + bytes([VERSION])
PLAIN, TLS, REFUSED = b"P", b"T", b"X"
HANDSHAKE_SECONDS = 10.0
"""The time for the preamble, the TLS handshake and the Hello."""
HANDSHAKES_MAX = 256
"""The most links whose handshake is not complete, at a time."""
PARTIAL_BYTES_MAX = 256 * 2**20
"""The most bytes of incomplete frames and messages, of all links together."""
LINGER_SECONDS = 1.0
_LOOK_SECONDS = 0.01
_HIGH_BYTES = 256 * 1024
_FIRST_MAX = 8 + 4 + HELLO_MAX + _HIGH_BYTES
"""Bytes: the preamble, the first frame, and what one read may bring in addition."""


class OpenLinks(dict["TcpLink", None]):
    """The links of a network, and how many bytes of incomplete frames and messages they hold."""

    def __init__(self, partial_bytes_max: int) -> None:
        super().__init__()
        self.partial_bytes = 0
        self._partial_bytes_max = partial_bytes_max

    def hold(self, more: int) -> None:
        """Count so many bytes more, or fewer. If there are too many, the link that holds most of
        them is cut: links that hold few are not affected by others."""
        self.partial_bytes += more
        while self.partial_bytes > self._partial_bytes_max:
            largest = max(self, key=lambda link: link.partial_bytes, default=None)
            if largest is None or not largest.partial_bytes:
                return
            largest.cut(
                f"frames that are not whole have {self.partial_bytes:,} bytes together; "
                f"{self._partial_bytes_max:,} may be"
            )


class TcpLink(asyncio.Protocol):
    """A link over TCP, after the preamble and the TLS handshake."""

    def __init__(self, label: str, here: bool, open_links: OpenLinks, accepted_max: int) -> None:
        self.label = label
        self.here = here
        self.identity: str | None = None
        self.message_max = FRAME_MAX
        self.partial_bytes = 0
        """Bytes of the incomplete frame and message that are held."""
        self._receiver: FrameReceiver | None = None
        self._loop = asyncio.get_running_loop()
        self.known: asyncio.Future[None] = self._loop.create_future()
        """Done when the other end was admitted, or the link is lost."""
        self._admitted = False
        self._frames = Frames(HELLO_MAX, one_at_a_time=True)
        self._transport: Any = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._queue: deque[tuple[bytes, bool]] = deque()
        """Long messages that go in pieces, and the messages that must not overtake them; each with
        whether it may be overtaken."""
        self._queued_bytes = 0
        self._ordered = 0  # how many messages in the queue may not be overtaken
        self._head: Iterator[bytes] | None = None  # the pieces of the first message that are left
        self.in_pieces = 0
        self._pumping = False
        self._accepted_max = accepted_max
        self._flushing = False
        self._hearing = False
        self._gone: str | None = None
        self._early = b""
        self._greeted = False
        self._open_links = open_links

    def begin(self, transport: asyncio.BaseTransport, answer: Answering) -> None:
        """The connection is ready: `answer` returns the owner, which receives the messages."""
        self._transport = transport
        self._open_links[self] = None
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES, low=_HIGH_BYTES // 4)
        self._receiver = answer(self)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)
        if self._gone is not None:
            self._receiver.lost(self._gone)

    def admit(self, message_max: int) -> None:
        if self._admitted:
            return
        self._admitted = True
        self.message_max = message_max
        self._frames.admit(self._accepted_max)
        self._settle()
        self.resume()
        self._loop.call_soon(self.data_received, b"")  # for bytes that came with the first frame

    def _settle(self) -> None:
        if not self.known.done():
            self.known.set_result(None)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None or (self._greeted and not self._admitted):
            # Frames may come with the last bytes of a TLS handshake; and after the first frame,
            # reading has stopped until the program is identified.
            self._early += data
            return
        if self._gone is not None:
            return
        if self._early:
            data, self._early = self._early + data, b""
        try:
            contents = self._frames.feed(data)
        except BadFrame as error:
            self.cut(f"garbage: {error}")
            return
        if self._frames.held != self.partial_bytes:
            more, self.partial_bytes = self._frames.held - self.partial_bytes, self._frames.held
            self._open_links.hold(more)
            if self._gone is not None:
                return
        if not self._admitted and contents:
            self._greeted = True
            self.pause()
        self._hearing = True
        try:
            receiver.heard(contents)
        finally:
            self._hearing = False
            if self._unsent:
                self._flush()

    def resume_writing(self) -> None:
        self._pump()
        self._ease()

    def eof_received(self) -> None:
        self._lose("closed by the other end")  # before the owner sends more

    def connection_lost(self, error: Exception | None) -> None:
        self._open_links.pop(self, None)
        self._release()
        self._lose("the connection broke" if error else "closed by the other end")

    def cut(self, reason: str) -> None:
        """Close the link at once, because the other end sends garbage or uses too much memory."""
        logger.warning("%s: %s", self.label, reason)
        self._lose(reason)
        self.abort()

    def _release(self) -> None:
        """Nothing more is read or sent: let go of the bytes that were kept for it."""
        self._early = b""
        self._frames = Frames(0)
        self._queue.clear()
        self._head = None
        self._queued_bytes = self._ordered = self.in_pieces = 0
        self._open_links.hold(-self.partial_bytes)
        self.partial_bytes = 0

    def _lose(self, reason: str) -> None:
        self._settle()
        if self._gone is None:
            self._gone = reason
            if self._receiver is not None:
                self._receiver.lost(reason)

    # Link

    def send(self, content: bytes, *, overtake: bool = False) -> None:
        is_long = len(content) > PIECE_BYTES and self.message_max > FRAME_MAX
        if is_long or (self._queue and not (overtake and not self._ordered)):
            self._queue.append((content, overtake))
            self._queued_bytes += len(content)
            self._ordered += not overtake
            self._count_in_pieces()
            self._pump_soon()
            return
        self._unsent.append(len(content).to_bytes(4, "big"))
        self._unsent.append(content)
        self._unsent_bytes += len(content)
        if not (self._hearing or self._flushing):
            self._flush()  # The first message at once; those that follow it together.
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        unsent, self._unsent = self._unsent, []
        many, self._unsent_bytes = self._unsent_bytes > _HIGH_BYTES, 0
        if unsent and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))
            if many:
                self._loop.call_soon(self._ease)  # Perhaps it was taken at once.

    def _pump_soon(self) -> None:
        if self._queue and not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send one frame of the queue, unless the other end does not take what was sent before:
        then `resume_writing` calls this again. The loop runs between two frames, and others may
        send."""
        self._pumping = False
        if self._queue and self._transport.get_write_buffer_size() <= _HIGH_BYTES:
            self._flush()
            self._transport.write(self._next_queued())
            self._pump_soon()

    def _next_queued(self) -> bytes:
        """The next frame of the queue."""
        content, overtake = self._queue[0]
        if not self.in_pieces:
            size, found = len(content), frame(content)
        else:
            self._head = self._head or pieces(content)
            size, found = min(PIECE_BYTES, self.in_pieces), next(self._head)
            self.in_pieces -= size
        self._queued_bytes -= size
        if not self.in_pieces:
            self._queue.popleft()
            self._ordered -= not overtake
            self._head = None
            self._count_in_pieces()
            self._loop.call_soon(self._ease)
        return found

    def _count_in_pieces(self) -> None:
        """If a long message is now the first in the queue, it is sent in pieces from now on."""
        if self._head is None and self._queue:
            size = len(self._queue[0][0])
            self.in_pieces = size if size > PIECE_BYTES else 0

    def _ease(self) -> None:
        if self._receiver is not None and self.waiting - self.in_pieces <= _HIGH_BYTES:
            self._receiver.eased()

    @property
    def waiting(self) -> int:
        size: int = self._transport.get_write_buffer_size()
        return size + self._unsent_bytes + self._queued_bytes

    def pause(self) -> None:
        with suppress(RuntimeError):
            self._transport.pause_reading()

    def resume(self) -> None:
        with suppress(RuntimeError):
            self._transport.resume_reading()

    def close(self) -> None:
        self._flush()
        while self._queue and not self._transport.is_closing():
            self._transport.write(self._next_queued())
        self._gone = self._gone or "we left"
        self._transport.close()
        # The other end may not take what is left.
        self._loop.call_later(LINGER_SECONDS, self.abort)

    def abort(self) -> None:
        self._gone = self._gone or "we hung up"
        self._settle()
        self._release()
        if self._transport is not None:
            self._transport.abort()


class _Preamble(asyncio.Protocol):
    """Reads the preamble of the other end, and the frame that follows a refusal."""

    def __init__(self, made: Callable[[_Preamble], None] | None = None) -> None:
        self._made = made
        self._data = bytearray()
        self._closed = False
        self._came = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._came.set()
        if len(self._data) > _FIRST_MAX:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._came.set()

    async def next(self, count: int) -> bytes:
        """The next `count` bytes. Raises ConnectionResetError if the connection is closed
        before."""
        while len(self._data) < count:
            if self._closed:
                raise ConnectionResetError("the line was closed")
            self._came.clear()
            await self._came.wait()
        taken = bytes(self._data[:count])
        del self._data[:count]
        return taken

    @property
    def rest(self) -> bytes:
        """The bytes that were received after those that `next` has returned."""
        return bytes(self._data)


class LinkSecurity:
    """The TLS contexts of the links of a program. With `require_tls` links on this machine use TLS
    too. `key_of` returns the key of the other end, given the SSL object."""

    def __init__(
        self,
        server: ssl.SSLContext | None = None,
        client: ssl.SSLContext | None = None,
        *,
        require_tls: bool = False,
        key_of: Callable[[Any], str] | None = None,
    ) -> None:
        self.server = server
        self.client = client
        self.require_tls = require_tls
        self.key_of = key_of


class TcpListening:
    """An address at which this host accepts links."""

    def __init__(self, server: asyncio.Server, address: str, handshakes: dict[Any, str]) -> None:
        self.address = address
        self.closed = False
        self._server = server
        self._handshakes = handshakes

    def close(self) -> None:
        self.closed = True
        self._server.close()
        for task in list(self._handshakes):
            task.cancel()


class TcpNetwork:
    """Makes links over TCP. At most `handshakes_max` handshakes are open at a time; incomplete
    frames and messages of all links have at most `partial_bytes_max` bytes together. Messages of
    up to `message_max` bytes are accepted in pieces."""

    def __init__(
        self,
        security: LinkSecurity | None = None,
        *,
        handshakes_max: int = HANDSHAKES_MAX,
        partial_bytes_max: int = PARTIAL_BYTES_MAX,
        message_max: int = MESSAGE_MAX,
    ) -> None:
        self._message_max = message_max
        self._security = security or LinkSecurity()
        self._links = OpenLinks(partial_bytes_max)
        self._handshakes_max = handshakes_max

    async def close(self) -> None:
        """Wait, for LINGER_SECONDS at most, until everything was sent and the links have ended."""
        for _ in range(round(LINGER_SECONDS / _LOOK_SECONDS)):
            if not self._links:
                return
            await asyncio.sleep(_LOOK_SECONDS)
        for link in list(self._links):
            link.abort()
        await asyncio.sleep(_LOOK_SECONDS)

    # Answering

    async def listen(self, address: str, answer: Answering) -> TcpListening:
        place = Address.parse(address)
        handshakes: dict[asyncio.Task[None], str] = {}

        def over(preamble: _Preamble, task: asyncio.Task[None]) -> None:
            handshakes.pop(task, None)
            if task.cancelled():  # perhaps before it began
                preamble.transport.abort()

        def made(preamble: _Preamble) -> None:
            if listening is not None and listening.closed:  # It was accepted just before.
                preamble.transport.abort()
                return
            if len(handshakes) >= self._handshakes_max:
                _drop_one(handshakes)
            task = asyncio.ensure_future(self._receive(preamble, answer))
            handshakes[task] = (preamble.transport.get_extra_info("peername") or ("?",))[0]
            task.add_done_callback(partial(over, preamble))

        listening: TcpListening | None = None
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: _Preamble(made), place.host, place.port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotReach(str(place), f"it cannot be listened at: {reason}") from error
        port = server.sockets[0].getsockname()[1]
        listening = TcpListening(server, str(Address(place.host, port)), handshakes)
        return listening

    async def _receive(self, preamble: _Preamble, answer: Answering) -> None:
        transport = preamble.transport
        peer = transport.get_extra_info("peername") or ("?", 0)
        label = f"{peer[0]}:{peer[1]}"
        link = TcpLink(label, is_loopback(peer[0]), self._links, self._message_max)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                if await self._receive_as(preamble, link, answer):
                    await link.known
        except (OSError, ssl.SSLError, TimeoutError, TupeloError) as error:
            logger.warning("%s was not let in: %r", label, error)
            link.abort()
            transport.abort()
        except BaseException:
            link.abort()
            transport.abort()
            raise

    async def _receive_as(self, preamble: _Preamble, link: TcpLink, answer: Answering) -> bool:
        """Answer the preamble and begin the link; False if it was refused."""
        transport = preamble.transport
        first = await preamble.next(8)
        if first[:7] != PREAMBLE or first[7:] not in (PLAIN, TLS):
            raise BadFrame("it does not speak Tupelo, or another version of it")
        _set_no_delay(transport)
        if first[7:] == TLS:
            if self._security.server is None:
                _refuse(transport, CannotReach("this host", "it has no identity to prove"))
                return False
            transport.write(PREAMBLE + TLS)
            loop = asyncio.get_running_loop()
            transport = await loop.start_tls(
                transport, link, self._security.server, server_side=True
            )
            assert transport is not None
            assert self._security.key_of is not None
            link.identity = self._security.key_of(transport.get_extra_info("ssl_object"))
        elif self._security.require_tls and not link.here:
            _refuse(transport, CannotReach("this host", "it wants TLS: connect with tls=True"))
            return False
        else:
            transport.write(PREAMBLE + PLAIN)
            transport.set_protocol(link)
        link.begin(transport, answer)
        if preamble.rest:
            link.data_received(preamble.rest)
        return True

    # Dialling

    async def dial(self, address: str, answer: Answering) -> TcpLink:
        place = Address.parse(address)
        here = is_loopback(place.host)
        secure = self._security.client is not None and (self._security.require_tls or not here)
        if not (here or secure):
            raise CannotReach(str(place), "it is beyond this machine, and we have no identity")
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                link = TcpLink(str(place), here, self._links, self._message_max)
                return await self._dial(place, link, secure, answer)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise CannotReach(str(place), reason) from error

    async def _dial(
        self, place: Address, link: TcpLink, secure: bool, answer: Answering
    ) -> TcpLink:
        loop = asyncio.get_running_loop()
        transport, preamble = await loop.create_connection(_Preamble, place.host, place.port)
        try:
            _set_no_delay(transport)
            transport.write(PREAMBLE + (TLS if secure else PLAIN))
            first = await preamble.next(8)
            if first[:7] != PREAMBLE:
                raise CannotReach(str(place), "it does not speak Tupelo, or another version of it")
            if first[7:] == REFUSED:
                length = int.from_bytes(await preamble.next(4), "big")
                if length > HELLO_MAX:
                    raise CannotReach(str(place), "it does not speak Tupelo")
                refusal = decode_first(await preamble.next(length))
                if isinstance(refusal, Refusal):
                    raise read_error(refusal.kind, refusal.message, refusal.data)
                raise CannotReach(str(place), "it does not speak Tupelo")
            if secure:
                assert self._security.client is not None and self._security.key_of is not None
                upgraded = await loop.start_tls(transport, link, self._security.client)
                assert upgraded is not None
                transport = upgraded
                link.identity = self._security.key_of(transport.get_extra_info("ssl_object"))
            else:
                transport.set_protocol(link)
            link.begin(transport, answer)
            if preamble.rest:
                link.data_received(preamble.rest)
        except BaseException:
            transport.abort()
            raise
        return link


def _drop_one(handshakes: dict[asyncio.Task[None], str]) -> None:
    """Cancel the oldest handshake of the address that has most of them, so that one address cannot
    keep others out."""
    counts = Counter(handshakes.values())
    busiest = counts.most_common(1)[0][0]
    oldest = next(task for task, address in handshakes.items() if address == busiest)
    del handshakes[oldest]  # now, so that the next call cancels another one
    oldest.cancel()


def _set_no_delay(transport: asyncio.BaseTransport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _refuse(transport: Any, error: TupeloError) -> None:
    """Send the reason, and close the connection."""
    kind, message, data = encode_error(error)
    transport.write(PREAMBLE + REFUSED + frame(encode(Refusal(kind, message, data))))
    transport.close()
