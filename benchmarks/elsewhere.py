"""Processes that benchmarks start: a Redis server, hosts, and clients that wait."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Concatenate, ParamSpec, Self

import uvloop
from redis import Redis
from redis.exceptions import RedisError

import tupelo
from tupelo import aio
from tupelo.models.xvsm import INFINITE, AsyncCapi, LindaCoordinator

P = ParamSpec("P")

SPACE = "jobs"
NO_REDIS = "there is no redis-server here to compare with"
PATIENCE_SECONDS = 60.0

STORE_AT_ONCE = 10_000

Job = tuple[str, int, str]
TEXT = "x" * 100
JOBS = (str, int, str)
"""The template that every job matches, by its types alone."""


def job(i: int) -> Job:
    """An entry with a key of its own and a text of a hundred bytes."""
    return (f"job-{i}", i, TEXT)


# Redis


@contextmanager
def redis_server() -> Iterator[int | None]:
    """The port of a Redis server that keeps nothing on disk; None if none is installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    port = _free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        _await_redis(port, server)
        yield port
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _await_redis(port: int, server: subprocess.Popen[bytes]) -> None:
    with Redis(port=port) as client:
        for _ in range(int(PATIENCE_SECONDS * 100)):
            with suppress(RedisError):
                client.ping()
                return
            if server.poll() is not None:
                break
            sleep(0.01)
    raise RuntimeError("the Redis server does not answer")


# Processes of our own


class Elsewhere:
    """A process that runs a module's function with one end of a pipe. The function sends a value
    when it is ready, answers commands if it has any, and returns when it receives None."""

    def __init__(
        self, function: Callable[Concatenate[Connection, P], None], *args: P.args, **kw: P.kwargs
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=function, args=(theirs, *args), kwargs=kw)
        self._process.start()
        theirs.close()

    def said(self) -> Any:
        """The value that the process sends when it is ready."""
        if not self._pipe.poll(PATIENCE_SECONDS):
            raise RuntimeError("a process of the benchmark does not get ready")
        return self._pipe.recv()

    def ask(self, question: Any) -> Any:
        """Send a command, and wait for the answer."""
        self.tell(question)
        return self._pipe.recv()

    def answered(self) -> Any:
        """Wait for the answer to a command that was sent by `tell`, however long it takes."""
        return self._pipe.recv()

    def tell(self, question: Any) -> None:
        """Send a command without waiting for the answer."""
        self._pipe.send(question)

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    @property
    def cpu_seconds(self) -> float:
        """The processor time that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def leave(self) -> None:
        """Tell the function to return."""
        self._pipe.send(None)

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        """Send SIGSTOP: to others it looks as if the connection had been cut."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *more: object) -> None:
        if error is None:
            with suppress(OSError):
                self.leave()
            self._process.join(5.0)
        self._process.kill()  # which also ends a stopped process
        self._process.join()
        self._pipe.close()


def run_hosts(pipe: Connection, names: list[str], jobs: int = 0) -> None:
    """Hosts on one loop, each engaged with all others; the jobs are distributed among them. Sends
    their addresses."""
    uvloop.run(_run_hosts(pipe, names, jobs))


async def _run_hosts(pipe: Connection, names: list[str], jobs: int) -> None:
    async with AsyncExitStack() as stack:
        addresses: list[str] = []
        spaces: list[aio.SpaceLike] = []
        hosts: list[aio.Host] = []
        for name in names:
            host = aio.Host(name, listen="127.0.0.1:0", peers=addresses)
            await stack.enter_async_context(host)
            hosts.append(host)
            spaces.append(host.space(SPACE))
            addresses.append(host.address)
        for i in range(jobs):
            await spaces[i % len(spaces)].write(job(i))
        while any(len(host.engaged) < len(hosts) - 1 for host in hosts):
            await asyncio.sleep(0.01)
        pipe.send(addresses)
        await asyncio.to_thread(pipe.recv)


def run_site(pipe: Connection) -> None:
    """A host with a space and a container, both in memory. Sends its address."""
    uvloop.run(_run_site(pipe))


async def _run_site(pipe: Connection) -> None:
    async with aio.Host("site", listen="127.0.0.1:0") as host, AsyncCapi() as capi:
        host.space(SPACE)
        await capi.create_container(None, None, SPACE, INFINITE, LindaCoordinator())
        await capi.offer(host)
        pipe.send(host.address)
        await asyncio.to_thread(pipe.recv)


def run_waiters(pipe: Connection, url: str, clients: int, each: int) -> None:
    """Clients of which each waits for jobs that nobody writes. Sends their number when all wait."""
    uvloop.run(_run_waiters(pipe, url, clients, each))


async def _run_waiters(pipe: Connection, url: str, clients: int, each: int) -> None:
    async with AsyncExitStack() as stack:
        waiting = []
        for client in range(clients):
            space = await aio.connect(url)
            stack.push_async_callback(space.close)
            waiting += [
                asyncio.create_task(space.take((f"never-{client}-{i}", int, str)))
                for i in range(each)
            ]
            await asyncio.sleep(0)
            await space.count()  # Calls are served in turn, so the takes are waiting by now.
        pipe.send(len([task for task in waiting if not task.done()]))
        await asyncio.to_thread(pipe.recv)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def run_store(pipe: Connection, folder: str) -> None:
    """A host with durable spaces. Sends its address. The command ("write", count) writes entries
    into the space "sunk" and is answered with the seconds; ("take", count) removes entries."""
    with tupelo.Host("store", listen="127.0.0.1:0", path=folder) as host:
        host.space(SPACE, log_keep="all")
        space = host.space("sunk")
        pipe.send(host.address)
        while (question := pipe.recv()) is not None:
            verb, count = question
            if verb == "write":
                entries = [("resize", i, i / 7, f"image-{i}.png") for i in range(count)]
                start = perf_counter()
                for first in range(0, count, STORE_AT_ONCE):
                    space.write_all(entries[first : first + STORE_AT_ONCE])
                seconds = perf_counter() - start
                del entries
                space.take_all((str, int, float, str))
                pipe.send(seconds)
            else:
                pipe.send(len(space.take_all((str, int, float, str), limit=count)))
