"""The processes of a round: it starts, pauses and kills them, and no others.

Hosts run as commands. Workers are forked from one process, the nursery, which has imported all
models: a round kills many workers, and the imports take longer than most faults.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import signal
import socket
import sys
from abc import ABC, abstractmethod
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
ANSWER_SECONDS = 120.0
"""A process that prints nothing for so long is stuck."""
LINE_BYTES_MAX = 2**28
REQUEST_BYTES_MAX = 2**16
PR_SET_PDEATHSIG = 1
HOST_COMMAND = (sys.executable, "-m", "tupelo.apps.cli")


class TortureFailed(Exception):
    """A round or recording cannot go on: a process does not start, or does not answer."""


class RoundProcess(ABC):
    """A child process that reads and prints lines."""

    def __init__(
        self, name: str, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name = name
        self.pid = pid
        self._reader = reader
        self._writer = writer
        self._paused = False
        self._ended = False
        self._spoken: asyncio.Task[None] | None = None

    async def line(self) -> str:
        """The next line of the process. TortureFailed if it has ended, or prints nothing."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                line = await self._reader.readline()
        except TimeoutError:
            raise TortureFailed(f"{self.name} says nothing for {ANSWER_SECONDS:.0f} s") from None
        except ConnectionError:
            line = b""
        if not line:
            raise TortureFailed(f"{self.name} has ended: its log, or its standard error, says why")
        return line.decode().rstrip("\n")

    async def hear(self, kind: type[T]) -> T:
        return msgspec.json.decode(await self.line(), type=kind)

    async def tell(self, order: str) -> None:
        with suppress(ConnectionError):
            self._writer.write(order.encode() + b"\n")
            await self._writer.drain()

    def discard_output(self) -> None:
        """Ignore its output from now on: a full pipe must not stop it."""
        self._spoken = asyncio.ensure_future(self._discard())

    async def _discard(self) -> None:
        with suppress(ConnectionError):
            while await self._reader.readline():
                pass

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    async def kill(self) -> None:
        """Kill the process, also a paused one, and wait until it is gone."""
        if self._ended:
            return
        self._signal(signal.SIGKILL)
        await self._gone()
        self._ended = True
        self._writer.close()
        if self._spoken is not None:
            await self._spoken

    @abstractmethod
    async def _gone(self) -> None:
        """Wait until the process has ended and its process id is free."""

    def _signal(self, number: int) -> None:
        """Send a signal. An ended process keeps its id until `_gone` has returned."""
        if not self._ended:
            os.kill(self.pid, number)


def end_with_parent() -> None:
    """In the new process: be killed when the parent ends, also if the parent is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Command(RoundProcess):
    """A process that runs a command. Its standard error goes to its log in `folder`, if that is
    given."""

    _process: asyncio.subprocess.Process

    @classmethod
    async def start(
        cls,
        name: str,
        command: list[str],
        folder: Path | None = None,
        home: Path | None = None,
        files: tuple[int, ...] = (),
    ) -> Command:
        environment = os.environ | {"NO_COLOR": "1"}
        if home is not None:
            environment["TUPELO_HOME"] = str(home)
        with nullcontext() if folder is None else (folder / f"{name}.log").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                pass_fds=files,
                preexec_fn=end_with_parent,
                limit=LINE_BYTES_MAX,
            )
        assert process.stdin is not None and process.stdout is not None
        made = cls(name, process.pid, process.stdout, process.stdin)
        made._process = process
        return made

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def _gone(self) -> None:
        await self._process.wait()

    def _signal(self, number: int) -> None:
        if self.running:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


class Nursery:
    """The process from which workers are forked."""

    def __init__(self, module: str, folder: Path) -> None:
        self._module = module
        self._folder = folder
        self._command: Command
        self._socket: socket.socket
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", __name__, str(number), self._module]
            self._command = await Command.start(
                "nursery", command, self._folder, self._folder, (number,)
            )

    async def fork(self, name: str, argument: str) -> RoundProcess:
        """Start a worker with this argument."""
        ours, theirs = socket.socketpair()
        with theirs, (self._folder / f"{name}.log").open("ab") as log:
            pid = int(await self._ask(argument, [theirs.fileno(), log.fileno()]))
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES_MAX)
        worker = WorkerProcess(name, pid, reader, writer)
        worker._nursery = self
        return worker

    async def reap(self, pid: int) -> None:
        """Wait until a killed worker is gone. Until then its process id is not reused."""
        await self._ask(f"reap {pid}", [])

    async def _ask(self, request: str, files: list[int]) -> str:
        loop = asyncio.get_running_loop()
        async with self._turn, asyncio.timeout(ANSWER_SECONDS):
            socket.send_fds(self._socket, [request.encode()], files)
            answer = await loop.sock_recv(self._socket, REQUEST_BYTES_MAX)
        if not answer:
            raise TortureFailed("the nursery has ended: see nursery.log")
        return answer.decode()

    async def close(self) -> None:
        self._socket.close()
        await self._command.kill()


class WorkerProcess(RoundProcess):
    """A process that was forked in the nursery."""

    _nursery: Nursery

    async def _gone(self) -> None:
        await self._nursery.reap(self.pid)


def serve(number: int, module: str) -> None:
    """Run as the nursery: fork a worker for each line, until the input is closed."""
    main = importlib.import_module(module).main
    asked = socket.socket(fileno=number)
    while True:
        request, files, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 2)
        if not request:
            return
        if request.startswith(b"reap "):
            os.waitpid(int(request[5:]), 0)
            asked.send(request)
            continue
        pid = os.fork()
        if pid == 0:
            end_with_parent()
            asked.close()
            for number in (0, 1):
                os.dup2(files[0], number)
            os.dup2(files[1], 2)
            for file in files:
                os.close(file)
            try:
                main(request.decode())
            finally:
                os._exit(1)
        for file in files:
            os.close(file)
        asked.send(str(pid).encode())


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
