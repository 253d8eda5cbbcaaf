"""The console and its HTTP API, against the native client: both at one host, in a process of its
own that also serves the console."""

from __future__ import annotations

import json
import multiprocessing
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import tupelo
from benchmarks.measure import Line, Settings, Target, compare, require

PAIRS = 100
STORED = 1_000_000
AT_ONCE = 10_000
PAGES = 20
PAGE_SIZES = (100, 1_000)
CONSOLES = 20
WRITES = 3_000
ENTRY = ("job", 7, "x" * 40)


class Web:
    """A program that speaks HTTP, with one connection that it keeps.

    It is no more than the API needs: `http.client`, which sends a request in two packets and parses
    the headers as e-mail, takes almost half of the time of a write and take.
    """

    def __init__(self, page: str) -> None:
        self.address, token = page.removeprefix("http://").split("/#token=")
        host, _, port = self.address.rpartition(":")
        self._head = f"Host: {self.address}\r\nAuthorization: Bearer {token}\r\n"
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self.socket.makefile("rb")

    def send(self, method: str, path: str, body: Any = None) -> int:
        """Send a request, and read the head of its answer. Returns the length of the answer; 0 for
        a stream."""
        data = "" if body is None else json.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(data)}\r\n\r\n"
        self.socket.sendall(f"{head}{data}".encode())
        status, length = int(self._answers.readline().split()[1]), 0
        while (line := self._answers.readline()) != b"\r\n":
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        require(status < 300, f"the API has answered {status} to {path}")
        return length

    def post(self, path: str, body: Any) -> Any:
        return json.loads(self._answers.read(self.send("POST", path, body)))

    def look(self) -> None:
        """The page of spaces, as the console asks for it every two seconds."""
        self._answers.read(self.send("GET", "/api/spaces"))


@contextmanager
def host_with_console(*options: str) -> Iterator[tuple[str, str]]:
    """The URL of a host in another process, and the address of its console."""
    command = [sys.executable, "-m", "tupelo.apps.cli", "host", "kitchen", *options]
    command += ["--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        url = host.stdout.readline().split()[-1].removesuffix("SPACE")
        yield url, host.stdout.readline().split()[-1]
        host.terminate()


def run(settings: Settings) -> list[Line]:
    with host_with_console() as (url, page):
        with tupelo.connect(f"{url}jobs") as space:
            pairs = _pairs(settings, space, Web(page))
        with tupelo.connect(f"{url}many") as space:
            pages = _pages(settings, space, Web(page))
    with TemporaryDirectory() as folder, host_with_console("--path", folder) as (url, page):
        watched = [_watched(settings, url, page, operation) for operation in ("watch", "subscribe")]
    return [pairs, *pages, *watched]


def _pairs(settings: Settings, space: tupelo.SpaceLike, web: Web) -> Line:
    count = settings.size(PAIRS)

    def over_http() -> float:
        start = perf_counter()
        for i in range(count):
            web.post("/api/spaces/jobs/write", {"entry": ["job", i]})
            found = web.post("/api/spaces/jobs/take", {"template": ["job", i]})
            require(found["entry"] == ["job", i], "another entry was taken")
        return count / (perf_counter() - start)

    def native() -> float:
        start = perf_counter()
        for i in range(count):
            space.write(("job", i))
            require(space.take(("job", i)) == ("job", i), "another entry was taken")
        return count / (perf_counter() - start)

    return compare(
        *("HTTP write and take, in pairs", "native client", "/s", Target("≥", 0.3)),
        *(over_http, native, settings.rounds),
    )


def _pages(settings: Settings, space: tupelo.SpaceLike, web: Web) -> list[Line]:
    """Pages of a large space; also the pages after the first."""
    stored = settings.size(STORED)
    for start in range(0, stored, AT_ONCE):
        space.write_all([("job", i) for i in range(start, min(stored, start + AT_ONCE))])
    return [_pages_of(size, stored, settings, space, web) for size in PAGE_SIZES]


def _pages_of(
    size: int, stored: int, settings: Settings, space: tupelo.SpaceLike, web: Web
) -> Line:
    size = min(size, stored)
    count = min(PAGES, stored // size)

    def page() -> float:
        times, cursor = [], None
        for _ in range(count):
            start = perf_counter()
            said = web.post("/api/spaces/many/entries", {"limit": size, "cursor": cursor})
            times.append(perf_counter() - start)
            require(len(said["entries"]) == size, "a page is not full")
            cursor = said["cursor"]
        return median(times) * 1e6

    def read_all() -> float:
        times = []
        for _ in range(count):
            start = perf_counter()
            found = space.read_all(limit=size)
            times.append(perf_counter() - start)
            require(len(found) == size, "there are fewer")
        return median(times) * 1e6

    what = f"a page of {size:,} of {stored:,} entries"
    against, target = "read_all with that limit", Target("≤", 2)
    return compare(what, against, "µs", target, page, read_all, settings.rounds)


def _watched(settings: Settings, url: str, page: str, operation: str) -> Line:
    """A program that writes while consoles show the live changes of the space, and their spaces; or
    while programs have subscribed to it over HTTP."""
    writes = settings.size(WRITES)
    space = tupelo.connect(f"{url}live")
    space.write(ENTRY)

    def write() -> float:
        start = perf_counter()
        for _ in range(writes):
            space.write(ENTRY)
        return writes / (perf_counter() - start)

    def watched() -> float:
        context = multiprocessing.get_context("spawn")
        ready = context.Event()
        consoles = context.Process(target=_consoles, args=[page, operation, ready], daemon=True)
        consoles.start()
        try:
            require(ready.wait(60), "the consoles are not open")
            return write()
        finally:
            consoles.kill()
            consoles.join()

    readers = "consoles watch" if operation == "watch" else "HTTP clients have subscribed"
    with space:
        return compare(
            *(f"writes while {CONSOLES} {readers}", "with none", "/s", Target("≥", 0.8)),
            *(watched, write, settings.rounds),
        )


def _consoles(page: str, operation: str, ready: Any) -> None:
    """Open consoles: each watches the changes, or the entries that are written, and asks for the
    spaces every two seconds."""
    webs = [Web(page) for _ in range(CONSOLES)]
    asking = Web(page)
    with selectors.DefaultSelector() as selector:
        for web in webs:
            web.send("POST", f"/api/spaces/live/{operation}", {})
            web.socket.setblocking(False)
            selector.register(web.socket, selectors.EVENT_READ, web.socket)
        ready.set()
        next_look = perf_counter()
        while True:
            for found, _ in selector.select(0.05):
                with suppress(BlockingIOError):
                    found.data.recv(1 << 20)
            if perf_counter() > next_look:
                next_look += 2 / CONSOLES
                asking.look()
