"""Threads and tasks together on one space: every entry is taken exactly once, or is still there."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tupelo import Space, aio
from tupelo.errors import TransactionEnded

PRODUCERS = 3
EACH = 400
JOB = ("job", int, int)


class Ledger:
    """What was written, and what takers say that they have got."""

    def __init__(self) -> None:
        self.written: list[tuple[Any, ...]] = []
        self.got: list[tuple[Any, ...]] = []
        self.producing = 2 * PRODUCERS
        self._lock = threading.Lock()

    def wrote(self, *entries: tuple[Any, ...]) -> None:
        with self._lock:
            self.written.extend(entries)

    def took(self, *entries: tuple[Any, ...]) -> None:
        with self._lock:
            self.got.extend(entries)

    def produced(self) -> None:
        with self._lock:
            self.producing -= 1


def produce(space: Space, ledger: Ledger, who: int) -> None:
    for i in range(0, EACH, 4):
        space.write(("job", who, i))
        space.write_all([("job", who, i + 1), ("job", who, i + 2)])
        with space.transaction() as txn:
            space.write(("job", who, i + 3), txn=txn)
        ledger.wrote(*(("job", who, i + k) for k in range(4)))
    ledger.produced()


async def produce_async(door: aio.Space, ledger: Ledger, who: int) -> None:
    for i in range(0, EACH, 2):
        await asyncio.gather(door.write(("job", who, i)), door.write(("job", who, i + 1)))
        ledger.wrote(("job", who, i), ("job", who, i + 1))
    ledger.produced()


def consume(space: Space, ledger: Ledger, dice: random.Random) -> None:
    while True:
        producing = ledger.producing
        if dice.random() < 0.2:
            found = space.take_all(JOB, limit=3, wait=dice.random() / 100)
        else:
            entry = space.take(JOB, wait=dice.random() / 100)
            found = [] if entry is None else [entry]
        ledger.took(*found)
        if not found and not producing:
            return


def consume_in_transactions(space: Space, ledger: Ledger, dice: random.Random) -> None:
    """Some commit, some abort, and some are forgotten until their lease runs out."""
    while True:
        producing = ledger.producing
        txn = space.transaction(lease=0.05)
        try:
            found = [space.take(JOB, wait=0.01, txn=txn) for _ in range(dice.randint(1, 3))]
            fate = dice.random()
            if fate < 0.6:
                txn.commit()
                ledger.took(*(entry for entry in found if entry is not None))
            elif fate < 0.9:
                txn.abort()
        except TransactionEnded:
            continue  # Its lease ran out, and what it held is back.
        if not any(found) and not producing:
            return


async def consume_async(door: aio.Space, ledger: Ledger, dice: random.Random) -> None:
    while True:
        producing = ledger.producing
        task = asyncio.create_task(door.take(JOB, wait=dice.random() / 100))
        if dice.random() < 0.4:  # Vanish, perhaps just when the entry comes.
            await asyncio.sleep(dice.choice((0, 0, 0.001)))
            task.cancel()
        try:
            found = await task
        except asyncio.CancelledError:
            continue
        if found is not None:
            ledger.took(found)
        elif not producing:
            return


def on_a_loop(tasks: list[partial[Coroutine[Any, Any, None]]]) -> None:
    async def main() -> None:
        await asyncio.gather(*(task() for task in tasks))

    asyncio.run(main())


@pytest.mark.parametrize("store", ["memory", "durable"])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_entry_is_taken_exactly_once(store: str, seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    options: dict[str, Any] = {}
    if store == "durable":
        options = {"path": tmp_path / "stress.tupelo", "durability": "process"}
    ledger = Ledger()
    with Space("stress", **options) as space:
        works: list[Callable[[], None]] = [
            partial(produce, space, ledger, who) for who in range(PRODUCERS)
        ]
        works += [
            partial(consumer, space, ledger, random.Random(dice.random()))
            for consumer in (consume, consume_in_transactions) * 2
        ]
        for loop in range(2):
            door = aio.Space(space)
            tasks = [
                partial(consume_async, door, ledger, random.Random(dice.random())) for _ in range(3)
            ]
            producers = range(PRODUCERS + loop, 2 * PRODUCERS, 2)
            tasks += [partial(produce_async, door, ledger, who) for who in producers]
            works.append(partial(on_a_loop, tasks))
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
            assert not thread.is_alive(), "someone still waits"
        txn = space.transaction(lease=0.001)  # the last that were forgotten end as well
        left = space.take_all(JOB, wait=0.2)
        left += space.take_all(JOB, wait=0.2)
        assert txn.id
    taken = Counter(ledger.got) + Counter(left)
    assert [entry for entry, times in taken.items() if times > 1] == []
    assert sorted(taken) == sorted(ledger.written)
    assert len(ledger.written) == 2 * PRODUCERS * EACH
