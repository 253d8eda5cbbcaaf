"""Many browsers at one space: one subscription at the host, the same bytes for all, and a slow one
that only harms itself."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import until_true
from tupelo.apps.console import Console
from tupelo.apps.console.gateway import Gateway
from tupelo.values.template import as_template

JOBS = "/api/spaces/jobs"
AT_ONCE = 250
TEXT = "x" * 20_000
ROUNDS = 8  # enough to fill the buffers of the system, and then the 1,000 of the console


def test_readers_of_one_template_share_a_subscription(http, host):
    with ExitStack() as stack:
        opened = [
            stack.enter_context(http.events(f"{JOBS}/subscribe", {"template": '("job", int)'}))
            for _ in range(5)
        ]
        other = stack.enter_context(http.events(f"{JOBS}/subscribe", {"template": '("x",)'}))
        for events in (*opened, other):
            assert next(events) == ("ready", {})
        assert http.ok(JOBS)["subscriptions"] == 2
        host.space("jobs").write_all([("x",), ("job", 1), ("job", 2)])
        for events in opened:
            assert [next(events)[1] for _ in range(2)] == [
                {"entry": ["job", 1], "missed": 0},
                {"entry": ["job", 2], "missed": 0},
            ]
        assert next(other)[1] == {"entry": ["x"], "missed": 0}
    until_true(lambda: http.ok(JOBS)["subscriptions"] == 0, "all have ended")


def test_a_reader_that_comes_later_is_told_only_what_is_written_from_then_on(http, host):
    space = host.space("jobs")
    with http.events(f"{JOBS}/subscribe", {}) as first:
        assert next(first) == ("ready", {})
        for number in range(20):
            space.write(("job", number))
            with http.events(f"{JOBS}/subscribe", {}) as later:
                assert next(later) == ("ready", {})
                space.write(("later", number))
                assert next(later)[1] == {"entry": ["later", number], "missed": 0}
        told = [next(first)[1]["entry"] for _ in range(40)]
    assert told == [[word, number] for number in range(20) for word in ("job", "later")]


def test_watchers_with_equal_filters_get_the_same_bytes(host):
    async def watched() -> None:
        gateway = await Gateway.connect(host.url)
        space = await gateway.space("jobs")
        await space.write(("job", 0))
        template = as_template(("job", int))
        changes, notices = gateway.changes("jobs"), gateway.notices("jobs", b"", template)
        streams = [
            *(changes.events(key="all") for _ in range(2)),
            changes.events(key="none", is_wanted=lambda item: False),
            *(notices.events() for _ in range(2)),
        ]
        for stream in streams:
            assert (await anext(stream)).startswith(b"event: ready")
        await space.write(("job", 1))
        first, second, none, told, told_too = [await anext(stream) for stream in streams]
        assert first is second
        assert told is told_too
        assert b'["job",1]' in first
        assert b'["job",1]' in told
        assert b'"changes":[]' in none
        for stream in streams:
            await stream.aclose()
        await gateway.close()

    asyncio.run(watched())


@pytest.mark.parametrize("operation", ["subscribe", "watch"])
def test_a_reader_that_does_not_read_misses_some_and_slows_nobody(http, host, console, operation):
    space = host.space("jobs")
    space.write(("first",))
    with (
        http.events(f"{JOBS}/{operation}", {}) as fast,
        _not_reading(console, f"{JOBS}/{operation}") as slow,
    ):
        assert next(fast)[0] == "ready"
        events = _events(slow)
        assert next(events)[0] == "ready"
        seen = 0
        for number in range(ROUNDS):
            space.write_all([("job", number, TEXT)] * AT_ONCE)
            while seen < (number + 1) * AT_ONCE:
                got, missed = _told(next(fast)[1])
                assert missed == 0
                seen += got
        space.write(("last",))
        got = missed = 0
        for _, said in events:
            more, lost = _told(said)
            got, missed = got + more, missed + lost
            if '"last"' in json.dumps(said):
                break
    assert missed > 0
    assert got + missed == ROUNDS * AT_ONCE + 1


def _told(said: dict[str, Any]) -> tuple[int, int]:
    """How many entries an event tells, and how many were missed before it."""
    return (1, said["missed"]) if "entry" in said else (len(said["changes"]), said["skipped"])


def _not_reading(console: Console, path: str) -> socket.socket:
    """A reader with little room between it and the console."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    line.settimeout(60)
    name, _, port = console.address.rpartition(":")
    line.connect((name, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: {console.address}\r\nContent-Length: 2\r\n"
    line.sendall(f"{head}Authorization: Bearer {console.token}\r\n\r\n{{}}".encode())
    return line


def _events(line: socket.socket) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a chunked answer."""
    with line.makefile("rb") as file:
        while file.readline().strip():
            pass
        text = b""
        while size := int(file.readline(), 16):
            text += file.read(size)
            file.readline()
            *blocks, text = text.split(b"\n\n")
            for block in blocks:
                name, _, data = block.partition(b"\ndata: ")
                if data:
                    yield name.decode().removeprefix("event: "), json.loads(data)
