"""The processes of a round: started, told, paused and killed; only those that it has started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
ANSWER_SECONDS = 120.0
"""A process that says nothing for so long is stuck."""
LINE_BYTES_MAX = 2**24
HOST_COMMAND = (sys.executable, "-m", "tupelo.apps.cli")


class TortureFailed(Exception):
    """The round cannot go on: a process does not start, or does not answer."""


class Process:
    """A process of ours. What it says on its standard error is kept beside its history."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._paused = False
        self._spoken: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, name: str, command: list[str], folder: Path, home: Path) -> Process:
        environment = os.environ | {"TUPELO_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200"}
        with (folder / f"{name}.log").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                limit=LINE_BYTES_MAX,
            )
        return cls(name, process)

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def line(self) -> str:
        """What it says next. TortureFailed if it has ended, or says nothing."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise TortureFailed(f"{self.name} says nothing for {ANSWER_SECONDS:.0f} s") from None
        if not line:
            raise TortureFailed(f"{self.name} has ended: see {self.name}.log")
        return line.decode().rstrip("\n")

    async def hear(self, kind: type[T]) -> T:
        return msgspec.json.decode(await self.line(), type=kind)

    async def tell(self, order: str) -> None:
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(order.encode() + b"\n")
            await self._process.stdin.drain()

    def discard_output(self) -> None:
        """Nobody is interested in what it says from now on; a full pipe must not stop it."""
        self._spoken = asyncio.ensure_future(self._discard())

    async def _discard(self) -> None:
        assert self._process.stdout is not None
        while await self._process.stdout.readline():
            pass

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    async def kill(self) -> None:
        """SIGKILL, which also ends a paused process."""
        self._signal(signal.SIGKILL)
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._spoken is not None:
            await self._spoken

    def _signal(self, number: int) -> None:
        if self.running:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
