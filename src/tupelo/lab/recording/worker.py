"""A worker of a recording: a process with a few clients at every host, which call random
operations.

Its argument encodes its `RecordingTask`. When it gets a line, or its input is closed, its clients
finish their operations; then it prints a report."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import msgspec

import tupelo
from tupelo import aio
from tupelo.errors import TupeloError
from tupelo.lab.recording.member import SPACES

JOBS, MAIL = SPACES
KEYS = ("red", "green", "blue")
NEWS = "news"
"""Entries of this class are only read, in sessions, and expire: nobody takes them."""

VERBS = {
    "write": 3,
    "write many": 10,
    "take": 3,
    "take many": 12,
    "take in haste": 3,
    "read": 3,
    "read many": 1,
    "lease": 3,
    "news": 2,
    "session": 3,
    "deal": 4,
    "deal of two hosts": 4,
    "mail": 3,
    "fetch": 3,
}
PATIENCE_SECONDS = 10.0
"""How long a client tries an operation; a host may be down."""
RECONNECT_SECONDS = 3_600.0
AGAIN_SECONDS = 0.05
SESSION_READS_MAX = 30
FEW = 8

RecordedFields = tuple[str, str, int, str]


class RecordingTask(msgspec.Struct):
    """The name of the worker, the addresses of the hosts, how many clients it has at each, and how
    many entries one of them writes at once at most."""

    seed: int
    number: int
    addresses: list[str]
    clients: int
    batch: int


class RecordedAnswer(msgspec.Struct):
    """The report of a worker: how often each operation was done, and how often it failed or is in
    doubt. `written` and `taken` are the entries of which that is sure, by writer and number.
    """

    done: dict[str, int] = {}
    failed: dict[str, int] = {}
    written: dict[str, list[int]] = {}
    taken: dict[str, list[int]] = {}

    def add(self, other: RecordedAnswer) -> None:
        self.done = Counter(self.done) + Counter(other.done)
        self.failed = Counter(self.failed) + Counter(other.failed)
        for mine, its in ((self.written, other.written), (self.taken, other.taken)):
            for writer, numbers in its.items():
                mine.setdefault(writer, []).extend(numbers)


class RecordingClient:
    """A client of one host, which also uses a second host."""

    def __init__(self, task: RecordingTask, number: int) -> None:
        place = number % len(task.addresses)
        self.name = f"w{task.number}.{number}"
        self._done: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self.told = RecordedAnswer(self._done, self._failed)
        self._rng = Random(f"{task.seed} {self.name}")
        self._batch = task.batch
        self._address = task.addresses[place]
        self._address_there = task.addresses[(place + 1) % len(task.addresses)]
        self._numbers = 0
        self._session: Any = None

    async def run(self, stop: asyncio.Event) -> None:
        spaces = [
            await self._reach(self._address, JOBS, stop),
            await self._reach(self._address, MAIL, stop),
            await self._reach(self._address_there, JOBS, stop),
        ]
        if None not in spaces:
            self._here, self._mail, self._there = spaces
            await self._work(stop)
        for space in spaces:
            if space is not None:
                with suppress(TupeloError, TimeoutError):
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await space.count(
                            (NEWS,)
                        )  # The confirmations of deliveries go with the next request.
                await space.close()

    async def _reach(self, address: str, space: str, stop: asyncio.Event) -> Any:
        """The space, as soon as its host can be reached; None if the worker is stopped before."""
        while not stop.is_set():
            with suppress(TupeloError):
                url = f"tupelo://{address}/{space}"
                return await aio.connect(url, name=self.name, reconnect=RECONNECT_SECONDS)
            await asyncio.sleep(AGAIN_SECONDS)
        return None

    async def _work(self, stop: asyncio.Event) -> None:
        verbs, weights = list(VERBS), list(VERBS.values())
        while not stop.is_set():
            (verb,) = self._rng.choices(verbs, weights)
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._do(verb)
                self._done[verb] += 1
            except (TupeloError, TimeoutError):
                self._failed[verb] += 1
                await asyncio.sleep(AGAIN_SECONDS)

    async def _do(self, verb: str) -> None:
        rng, space = self._rng, self._here
        key = rng.choice(KEYS)
        template = (key, str, int, str)
        scope = rng.choice((None, None, tupelo.HERE))
        match verb:
            case "write":
                await self._write(space, self._some(key, 1))
            case "write many":
                await self._write(space, self._some(key, self._batch))
            case "take":
                wait = rng.choice((0, 0.05, 0.3))
                self._took([await space.take(template, wait=wait, scope=scope)])
            case "take many":
                limit = rng.randint(1, 2 * self._batch)
                self._took(await space.take_all(template, limit=limit, scope=scope))
            case "take in haste":
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.uniform(0.0, 0.01)):
                        self._took(await space.take_all(template, limit=FEW))
            case "read":
                await space.read(template, wait=0, scope=scope)
            case "read many":
                await space.read_all(template, limit=FEW, scope=scope)
            case "lease":
                await self._lease(key)
            case "news":
                await self._write(space, self._some(NEWS, FEW), lease=rng.uniform(1.0, 10.0))
            case "session":
                await self._read_on()
            case "deal":
                txn = await space.transaction(lease=PATIENCE_SECONDS)
                await self._deal(txn, template, space)
            case "deal of two hosts":
                txn = tupelo.transaction(space, self._there, lease=PATIENCE_SECONDS)
                await self._deal(txn, template, self._there)
            case "mail":
                await self._write(self._mail, self._some(key, FEW), to=self._there.agent)
            case "fetch":
                self._took(await self._mail.take_all(template, limit=2 * FEW, scope=tupelo.HERE))

    async def _write(self, space: Any, entries: list[RecordedFields], **options: Any) -> list[Any]:
        leases: list[Any] = await space.write_all(entries, **options)
        self._wrote(entries)
        return leases

    async def _lease(self, key: str) -> None:
        """Write an entry with a short lease, and perhaps renew or cancel the lease."""
        rng = self._rng
        seconds = rng.choice((0.02, 0.2, 1.0))
        leases = await self._write(self._here, self._some(key, FEW), lease=seconds)
        chosen = rng.choice(leases)
        chance = rng.random()
        with suppress(tupelo.errors.LeaseLost):  # It has ended, or was taken.
            if chance < 0.3:
                await chosen.renew(rng.uniform(0.1, 2.0))
            elif chance < 0.6:
                await chosen.cancel()

    async def _read_on(self) -> None:
        """Read some news that this session has not seen."""
        if self._session is None or self._rng.random() < 1 / SESSION_READS_MAX:
            self._session = await self._here.session(lease=60.0)
        try:
            await self._session.read((NEWS, str, int, str), wait=0)
        except BaseException:
            self._session = None  # The session may be over.
            raise

    async def _deal(self, txn: Any, template: Any, there: Any) -> None:
        """Take entries here and write entries there, in a transaction that may be aborted."""
        try:
            taken = await self._here.take_all(template, limit=FEW, txn=txn)
            written = self._some(template[0], FEW)
            await there.write_all(written, txn=txn)
            if self._rng.random() < 0.75:
                await txn.commit()
                self._took(taken)
                self._wrote(written)
            else:
                await txn.abort()
        except BaseException:
            with suppress(TupeloError):
                await txn.abort()
            raise

    def _some(self, key: str, most: int) -> list[RecordedFields]:
        """New entries, so many at most."""
        first = self._numbers + 1
        self._numbers += self._rng.randint(1, most)
        return [(key, self.name, number, "text") for number in range(first, self._numbers + 1)]

    def _wrote(self, entries: list[RecordedFields]) -> None:
        for _, writer, number, _ in entries:
            self.told.written.setdefault(writer, []).append(number)

    def _took(self, entries: list[RecordedFields | None]) -> None:
        for entry in entries:
            if entry is not None:
                self.told.taken.setdefault(entry[1], []).append(entry[2])


async def work(task: RecordingTask) -> RecordedAnswer:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        sys.stdin.readline()
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=listen, daemon=True).start()
    clients = [
        RecordingClient(task, number) for number in range(task.clients * len(task.addresses))
    ]
    await asyncio.gather(*(client.run(stop) for client in clients))
    told = RecordedAnswer()
    for client in clients:
        told.add(client.told)
    return told


def main() -> None:
    logging.getLogger("tupelo").setLevel(logging.ERROR)
    told = asyncio.run(work(msgspec.json.decode(sys.argv[1], type=RecordingTask)))
    os.write(1, msgspec.json.encode(told) + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main()
