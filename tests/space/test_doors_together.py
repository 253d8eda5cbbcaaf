"""Threads and tasks in one space: one implementation, two doors."""

import asyncio
from typing import Any

import pytest

import tupelo
from tupelo import aio
from tupelo.errors import SpaceClosed


def test_a_thread_writes_and_a_task_takes(run, later):
    space = tupelo.Space()

    async def take():
        return [await aio.Space(space).take(("n", int)) for _ in range(20)]

    writer = later(lambda: [space.write(("n", i)) for i in range(20)])
    assert run(take) == [("n", i) for i in range(20)]
    writer.result()


def test_a_task_writes_and_a_thread_takes(run, later):
    space = tupelo.Space()
    taker = later(lambda: [space.take(("n", int)) for _ in range(20)])

    async def write():
        door = aio.Space(space)
        for i in range(20):
            await door.write(("n", i))

    run(write)
    assert taker.result() == [("n", i) for i in range(20)]


def test_threads_and_tasks_are_served_in_one_order_of_arrival(run, park):
    space = tupelo.Space()
    door = aio.Space(space)

    async def main():
        order: list[Any] = []
        for i in range(6):
            if i % 2:
                order.append(asyncio.create_task(door.take(("n", int))))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            else:
                order.append(await asyncio.to_thread(park, space, space.take, ("n", int)))
        for i in range(6):
            await door.write(("n", i))
        return [
            await waiter
            if isinstance(waiter, asyncio.Task)
            else await asyncio.to_thread(waiter.result)
            for waiter in order
        ]

    assert run(main) == [("n", i) for i in range(6)]


def test_a_transaction_of_one_door_may_be_used_at_the_other(run):
    space = tupelo.Space()
    door = aio.Space(space)
    txn: Any = space.transaction()

    async def write():
        await door.write(("a",), txn=txn)
        assert await door.count() == 0
        return await door.count(txn=txn)

    assert run(write) == 1
    txn.commit()
    assert space.read_all() == [("a",)]


def test_closing_at_one_door_closes_the_space(run):
    space = tupelo.Space()
    door = aio.Space(space)

    async def main():
        waiter = asyncio.create_task(door.take(("a",)))
        await asyncio.sleep(0)
        space.close()
        with pytest.raises(SpaceClosed):
            await waiter
        with pytest.raises(SpaceClosed):
            await door.count()

    run(main)


def test_a_hundred_tasks_wait_at_once(run):
    async def main():
        space = aio.Space()
        tasks = [asyncio.create_task(space.take(("n", i))) for i in range(100)]
        await asyncio.sleep(0)
        await space.write_all([("n", i) for i in reversed(range(100))])
        return [await task for task in tasks]

    assert run(main) == [("n", i) for i in range(100)]


def test_a_space_in_a_with_block(run):
    async def main():
        async with aio.Space("block") as space:
            async with space.session() as session, space.subscribe(("a",)) as notices:
                await space.write(("a",))
                assert await session.read() == ("a",)
                async for notice in notices:
                    assert notice.entry == ("a",)
                    break
            async with space.transaction() as txn:
                await space.take(("a",), txn=txn)
        with pytest.raises(SpaceClosed):
            await space.count()

    run(main)


def test_an_async_callback_is_awaited(run):
    async def main():
        space = aio.Space()
        heard = asyncio.Queue[Any]()

        async def hear(notice):
            await asyncio.sleep(0)
            await heard.put(notice.entry)

        async with space.subscribe(("n", int), hear):
            for i in range(3):
                await space.write(("n", i))
            return [await heard.get() for _ in range(3)]

    assert run(main) == [("n", 0), ("n", 1), ("n", 2)]


def test_a_durable_space_shares_commits_between_tasks(run, path):
    async def main():
        async with aio.Space("shared", path=path) as space:
            await asyncio.gather(*(space.write(("n", i)) for i in range(100)))
            taken = await asyncio.gather(*(space.take(("n", int)) for _ in range(40)))
            assert set(taken) == {("n", i) for i in range(40)}

    run(main)
    with tupelo.Space(path=path) as space:
        assert sorted(entry[1] for entry in space.read_all()) == list(range(40, 100))
