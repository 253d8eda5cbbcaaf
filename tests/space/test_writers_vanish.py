"""One who waits to write and vanishes has written everything or nothing, and is in nobody's way."""

import asyncio
from typing import Any

import pytest

import tupelo
from tests.conftest import waiting_at
from tests.space.test_cancellation import cancelled, parked
from tests.space.test_interrupts import interrupt
from tupelo import Capacity, aio


def full(space_class: Any = tupelo.Space) -> Any:
    return space_class(capacity=Capacity(entries=1))


def test_a_cancelled_writer_writes_nothing(run):
    async def main() -> None:
        space = full(aio.Space)
        await space.write(("n", 0))
        first, second = await parked(
            space.write(("n", 1), wait=None), space.write_all([("n", 2)], wait=None)
        )
        first.cancel()
        assert await cancelled(first)
        await space.take(("n", 0))
        await second
        assert await space.read_all() == [("n", 2)] and waiting_at(space) == 0

    run(main)


def test_what_was_written_when_the_writer_was_cancelled_stays_written(run):
    async def main() -> None:
        space = full(aio.Space)
        await space.write(("n", 0))
        (task,) = await parked(space.write(("n", 1), wait=None))
        await space.take(("n", 0))  # It is written now, but the task has not run yet.
        task.cancel()
        assert await cancelled(task)
        assert await space.read_all() == [("n", 1)] and waiting_at(space) == 0

    run(main)


def test_a_writer_whose_loop_is_closed_is_in_nobodys_way(park):
    space = full()
    space.write(("n", 0))
    loop = asyncio.new_event_loop()

    async def begin() -> Any:
        return (await parked(aio.Space(space).write(("n", 1), wait=None)))[0]

    task = loop.run_until_complete(begin())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    space.take(("n", 0))
    space.write(("n", 2))
    assert space.read_all() == [("n", 2)]


def test_an_interrupted_writer_is_in_nobodys_way(park):
    space = full()
    space.write(("n", 0))
    call = park(space, space.write, ("n", 1), wait=None)
    interrupt(call)
    space.take(("n", 0))
    with pytest.raises(KeyboardInterrupt):
        call.result()
    assert space.read_all() in ([("n", 1)], []) and waiting_at(space) == 0


def test_a_durable_write_that_waited_is_on_disk_when_it_returns(tmp_path, park):
    path = tmp_path / "w.tupelo"
    space = tupelo.Space("w", path=path, capacity=Capacity(entries=1))
    space.write(("n", 0))
    call = park(space, space.write, ("n", 1), wait=None)
    space.take(("n", 0))
    lease = call.result()
    assert space._port._engine.journal.durable >= lease.thing.arrival  # type: ignore[union-attr]
    space.close()
    with tupelo.Space("w", path=path) as again:
        assert again.read_all() == [("n", 1)]
