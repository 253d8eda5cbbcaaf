"""A TCP proxy on the loopback interface, which simulates the faults of real links."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from tupelo.federation.links.address import Address

CHUNK_BYTES = 2**16
TRICKLE_BYTES = 7
TRICKLE_SECONDS = 0.002

LinkFaultKind = Literal["cut", "hold", "swallow", "delay", "trickle", "truncate", "reset"]
Direction = Literal["there", "back"]

LINK_FAULTS: tuple[LinkFaultKind, ...] = (
    "cut",
    "hold",
    "swallow",
    "delay",
    "trickle",
    "truncate",
    "reset",
)


@dataclass(frozen=True)
class LinkFault:
    """A fault of a link.

    | kind | meaning |
    | --- | --- |
    | cut | connections are reset, and new ones refused by a reset |
    | hold | nothing arrives at either end until the link heals; then all of it does |
    | swallow | a half-open link: what is sent in one direction is accepted and never arrives |
    | delay | every chunk is late by `seconds` |
    | trickle | a few bytes arrive at a time |
    | truncate | the next chunk in one direction arrives in part, and then the connection is reset |
    | reset | the present connections are reset; new ones work |
    """

    kind: LinkFaultKind
    direction: Direction = "there"
    seconds: float = 0.1


class Proxy:
    """Listens at its own address and forwards bytes to `target`, as far as its fault allows.

    Use it only on the event loop on which it was started.
    """

    def __init__(self) -> None:
        self.address = ""
        self._target: Address | None = None
        self._fault: LinkFault | None = None
        self._healed = asyncio.Event()
        self._server: asyncio.Server
        self._writers: set[asyncio.StreamWriter] = set()
        self._spoiled: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def lead_to(self, address: str) -> None:
        """Forward connections to this address from now on, also those that wait already."""
        first = self._target is None
        self._target = Address.parse(address)
        if first and self._fault is None:
            self._healed.set()

    def fail(self, fault: LinkFault) -> None:
        """Begin a fault, which lasts until `heal`."""
        self.heal()
        if fault.kind == "reset":
            self._reset(self._writers)
            return
        self._fault = fault
        self._healed.clear()
        if fault.kind == "cut":
            self._reset(self._writers)

    def heal(self) -> None:
        """End the fault. Connections that have lost bytes are reset, as their ends would do."""
        self._fault = None
        self._reset(self._spoiled)
        if self._target is not None:
            self._healed.set()

    async def close(self) -> None:
        self._server.close()
        self._reset(self._writers)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _reset(self, writers: set[asyncio.StreamWriter]) -> None:
        for writer in list(writers):
            _reset(writer)
        writers.clear()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward in both directions, until one end has closed."""
        ends = [writer]
        self._writers.add(writer)
        try:
            if self._fault is not None and self._fault.kind == "cut":
                _reset(writer)
                return
            if self._target is None or (self._fault is not None and self._fault.kind == "hold"):
                await self._healed.wait()
            assert self._target is not None
            answers, back = await asyncio.open_connection(self._target.host, self._target.port)
            ends.append(back)
            self._writers.add(back)
            ways = [
                asyncio.ensure_future(self._pass_on(reader, back, writer, "there")),
                asyncio.ensure_future(self._pass_on(answers, writer, back, "back")),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass  # The target does not listen.
        finally:
            for end in ends:
                self._writers.discard(end)
                self._spoiled.discard(end)
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                fault = self._fault
                if fault is None:
                    pass
                elif fault.kind == "hold":
                    await self._healed.wait()
                elif fault.kind == "swallow" and fault.direction == direction:
                    self._spoiled |= {writer, other}
                    continue
                elif fault.kind == "delay":
                    await asyncio.sleep(fault.seconds)
                elif fault.kind == "trickle":
                    data = await self._trickle(fault, data, writer)
                elif fault.kind == "truncate" and fault.direction == direction:
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    # The half that arrived must be read as half a frame, not lost with a reset.
                    other.close()
                    return
                writer.write(data)
                await writer.drain()
        while self._fault is not None and self._fault.kind in ("hold", "swallow"):
            await self._healed.wait()  # The end of a connection is not forwarded either.

    async def _trickle(self, fault: LinkFault, data: bytes, writer: asyncio.StreamWriter) -> bytes:
        """Send a few bytes at a time, and the rest when the link has healed."""
        while data and self._fault is fault:
            writer.write(data[:TRICKLE_BYTES])
            await writer.drain()
            data = data[TRICKLE_BYTES:]
            await asyncio.sleep(TRICKLE_SECONDS)
        return data


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset (RST): the other end notices at once, in the middle of a frame."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
