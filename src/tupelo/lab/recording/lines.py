"""Lines that can be cut: what goes over one of them is passed on, until it is not."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tupelo.federation.links.address import Address

CHUNK = 2**16


class Line:
    """Listens at an address of its own and passes on what comes, once it is known where to.

    While it is cut nothing arrives at either end, not even that the other is gone. What was said
    arrives when it is mended, as over a network that sends again; after a hard cut it never does.
    """

    def __init__(self) -> None:
        self.address = ""
        self._target: Address | None = None
        self._server: asyncio.Server
        self._whole = asyncio.Event()
        self._hard = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._come, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def lead_to(self, address: str) -> None:
        if self._target is None:
            self._whole.set()
        self._target = Address.parse(address)

    def cut(self, *, hard: bool) -> None:
        self._whole.clear()
        self._hard = hard
        if hard:
            for writer in self._writers:
                writer.transport.abort()

    def mend(self) -> None:
        self._hard = False
        self._whole.set()

    async def close(self) -> None:
        self._server.close()
        self.cut(hard=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both ways, until one end has hung up."""
        self._writers.add(writer)
        back: asyncio.StreamWriter | None = None
        try:
            if self._hard:
                return
            await self._whole.wait()
            assert self._target is not None
            answers, back = await asyncio.open_connection(self._target.host, self._target.port)
            self._writers.add(back)
            ways = [self._pass_on(reader, back), self._pass_on(answers, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass  # There is nobody at the other end.
        finally:
            for end in (writer, back):
                if end is not None:
                    self._writers.discard(end)
                    end.close()
                    with suppress(OSError):
                        await end.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        await self._whole.wait()  # That one has hung up is not heard over a cut either.
