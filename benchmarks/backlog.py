"""MELON against Redis: `read` of a backlog, one message at a time, and from write to receipt.

Every reader is a process with a blocking API. A reader of MELON is a host, engaged with the host of
the writer. A reader of Redis calls redis-py's XREAD for one message at a time, so that every reader
gets every message once, as with MELON; each message is one msgpack value, which the reader unpacks.
From write to receipt, MELON is compared with publish-subscribe of Redis, which stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter, sleep
from typing import Any

import msgspec
from redis import Redis

import tupelo
from benchmarks.elsewhere import NO_REDIS, Elsewhere, redis_server
from benchmarks.measure import Line, Settings, Target, compare, require
from tupelo.models.melon import Melon

MESSAGES = 2_000
PAYLOAD = bytes(1_000)
PACED, PACE_SECONDS = 100, 0.010
TARGETS = {1: Target("≥", 1.0), 6: Target("≥", 0.7)}
"""By the number of readers."""

TEMPLATE = (int, float, bytes)
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(tuple[int, float, bytes]).decode


def run(settings: Settings) -> list[Line]:
    count = settings.size(MESSAGES)
    with redis_server() as port:
        lines = []
        for readers, target in TARGETS.items():
            with _members(readers, port) as members:
                lines.append(
                    compare(
                        f"MELON read of {count:,} stored messages of 1 KB, by {readers} at a time",
                        "Redis, XREAD of one",
                        "/s",
                        target,
                        partial(_read_backlog, members, "melon", count),
                        None if port is None else partial(_read_backlog, members, "redis", count),
                        settings.rounds,
                        absent=NO_REDIS,
                    )
                )
        with _members(1, port) as members:
            lines.append(
                compare(
                    "MELON, from write to receipt by a waiting read, p50",
                    "Redis, publish-subscribe",
                    "µs",
                    Target("≤", 1.5),
                    partial(_receive, members, "melon"),
                    None if port is None else partial(_receive, members, "redis"),
                    settings.rounds,
                    absent=NO_REDIS,
                )
            )
        return lines


@contextmanager
def _members(readers: int, port: int | None) -> Iterator[list[Elsewhere]]:
    """The writer and its readers, each in a process."""
    with ExitStack() as stack:
        writer = stack.enter_context(Elsewhere(run_member, port, []))
        peers = [writer.said()]
        others = [stack.enter_context(Elsewhere(run_member, port, peers)) for _ in range(readers)]
        for reader in others:
            reader.said()
        yield [writer, *others]


def _read_backlog(members: list[Elsewhere], way: str, count: int) -> float:
    """Messages per second, of the average reader."""
    writer, *readers = members
    name = writer.ask(("begin", way))
    for reader in readers:
        reader.ask(("open", way, name))
    writer.ask(("write", count, 0.0))
    start = perf_counter()
    for reader in readers:
        reader.tell(("read", count))
    ends: list[float] = [reader.answered()[0] for reader in readers]
    return sum(count / (end - start) for end in ends) / len(readers)


def _receive(members: list[Elsewhere], way: str) -> float:
    """The median of the microseconds from the call of write to the return of read."""
    writer, reader = members
    way = "redis pubsub" if way == "redis" else way
    reader.ask(("open", way, writer.ask(("begin", way))))
    reader.tell(("read", PACED))
    writer.ask(("write", PACED, PACE_SECONDS))
    ages: list[float] = reader.answered()[1]
    return median(ages) * 1e6


# A process that writes or reads


def run_member(pipe: Connection, port: int | None, peers: list[str]) -> None:
    """A host and a client of Redis. It sends its address when it is engaged with its peers, and
    then one answer to each command."""
    with ExitStack() as stack:
        host = stack.enter_context(
            tupelo.Host(f"host-{id(pipe)}", listen="127.0.0.1:0", peers=peers)
        )
        redis = None if port is None else stack.enter_context(Redis(port=port))
        while len(host.engaged) < len(peers):
            sleep(0.01)
        pipe.send(host.address)
        member = Member(host, redis)
        while (command := pipe.recv()) is not None:
            verb, *arguments = command
            pipe.send(getattr(member, verb)(*arguments))


class Member:
    def __init__(self, host: tupelo.Host, redis: Redis | None) -> None:
        self._host = host
        self._redis: Any = redis
        self._write: Callable[[Any], object] = lambda message: None
        self._read: Callable[[], Any] = lambda: None
        self._names = 0

    def begin(self, way: str) -> str:
        """Be the writer of a new backlog; its name."""
        self._names += 1
        name = f"{way} {self._names}"
        if way == "melon":
            self._write = Melon(self._host, name).write
        elif way == "redis":
            self._write = lambda message: self._redis.xadd(name, {"m": pack(message)})
        else:
            self._write = lambda message: self._redis.publish(name, pack(message))
        return name

    def open(self, way: str, name: str) -> None:
        """Be a reader of it."""
        if way == "melon":
            self._read = partial(Melon(self._host, name).read, TEMPLATE)
        elif way == "redis":
            self._read = self._xread(name)
        else:
            self._read = self._subscribe(name)

    def _xread(self, name: str) -> Callable[[], Any]:
        last = "0"

        def read() -> Any:
            nonlocal last
            [[_, [[last, fields]]]] = self._redis.xread({name: last}, count=1)
            return unpack(fields[b"m"])

        return read

    def _subscribe(self, name: str) -> Callable[[], Any]:
        subscription = self._redis.pubsub(ignore_subscribe_messages=True)
        subscription.subscribe(name)
        subscription.get_message(timeout=None)  # the answer to it
        messages = subscription.listen()
        return lambda: unpack(next(messages)["data"])

    def write(self, count: int, pace: float) -> None:
        for i in range(count):
            sleep(pace)
            self._write((i, perf_counter(), PAYLOAD))

    def read(self, count: int) -> tuple[float, list[float]]:
        """The moment of the last receipt, and the seconds from the write to each."""
        ages: list[float] = []
        for place in range(count):
            i, written, payload = self._read()
            ages.append(perf_counter() - written)
            require(i == place and payload == PAYLOAD, "every message should come once, in order")
        return perf_counter(), ages
