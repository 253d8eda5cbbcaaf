"""The console and its HTTP API, against the native client: both at one host, in a process of its
own that also serves the console."""

from __future__ import annotations

import json
import multiprocessing
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
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
PAGE = 100
CONSOLES = 20
WRITES = 3_000
ENTRY = ("job", 7, "x" * 40)


class Web:
    """One browser, or any program that speaks HTTP, with one connection that it keeps."""

    def __init__(self, page: str) -> None:
        self.address, token = page.removeprefix("http://").split("/#token=")
        self._headers = {"Authorization": f"Bearer {token}"}
        self.connection = HTTPConnection(self.address, timeout=60)
        self.socket: Any = None

    def send(self, path: str, body: Any) -> Any:
        self.connection.request("POST", path, json.dumps(body), self._headers)
        self.socket = self.connection.sock  # A response that is read to its end forgets it.
        return self.connection.getresponse()

    def post(self, path: str, body: Any) -> Any:
        answer = self.send(path, body)
        said = json.loads(answer.read())
        require(answer.status < 300, f"the API has answered {said}")
        return said

    def look(self) -> None:
        """The page of spaces, as the console asks for it every two seconds."""
        self.connection.request("GET", "/api/spaces", headers=self._headers)
        self.connection.getresponse().read()


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
    return [pairs, pages, *watched]


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


def _pages(settings: Settings, space: tupelo.SpaceLike, web: Web) -> Line:
    """A page of a large space; also the pages after it."""
    stored = settings.size(STORED)
    for start in range(0, stored, AT_ONCE):
        space.write_all([("job", i) for i in range(start, min(stored, start + AT_ONCE))])

    def page() -> float:
        times, cursor = [], None
        for _ in range(PAGES):
            start = perf_counter()
            said = web.post("/api/spaces/many/entries", {"limit": PAGE, "cursor": cursor})
            times.append(perf_counter() - start)
            require(len(said["entries"]) == PAGE, "a page is not full")
            cursor = said["cursor"]
        return median(times) * 1e6

    def read_all() -> float:
        times = []
        for _ in range(PAGES):
            start = perf_counter()
            found = space.read_all(limit=PAGE)
            times.append(perf_counter() - start)
            require(len(found) == PAGE, "there are fewer")
        return median(times) * 1e6

    what = f"a page of {PAGE} of {stored:,} entries"
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
            web.send(f"/api/spaces/live/{operation}", {})
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
