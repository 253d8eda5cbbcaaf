"""Cancelled coroutines and closed loops lose nothing, not even at the moment of delivery."""

import asyncio
import gc
import random
import threading
from typing import Any

import pytest

import tupelo
from tupelo import aio
from tupelo.errors import LogTrimmed


async def parked(*coroutines: Any) -> list[Any]:
    """Tasks that have begun to wait, in this order."""
    tasks = []
    for coroutine in coroutines:
        tasks.append(asyncio.create_task(coroutine))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return tasks


async def cancelled(task: Any) -> bool:
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


def test_a_cancelled_taker_takes_nothing(run):
    async def main() -> Any:
        space = aio.Space()
        (task,) = await parked(space.take(("a",)))
        task.cancel()
        assert await cancelled(task)
        await space.write(("a",))
        assert await space.count() == 1

    run(main)


@pytest.mark.parametrize("verb", ["take", "take_all"])
def test_a_taker_cancelled_at_the_moment_of_delivery_gives_it_back(run, verb):
    async def main() -> Any:
        space = aio.Space()
        (task,) = await parked(getattr(space, verb)(("a", int), wait=None))
        await space.write_all([("a", 1), ("a", 2)])  # Delivered, but the task has not run yet.
        task.cancel()
        assert await cancelled(task)
        assert await space.read_all() == [("a", 1), ("a", 2)]

    run(main)


def test_what_is_given_back_goes_to_the_next_in_line(run):
    async def main() -> Any:
        space = aio.Space()
        first, second, reader = await parked(
            space.take(("a",)), space.take(("a",)), space.read(("b",))
        )
        await space.write(("a",))
        first.cancel()
        assert await cancelled(first)
        assert await second == ("a",)
        assert await space.count() == 0 and not reader.done()
        reader.cancel()
        assert await cancelled(reader)

    run(main)


def test_what_is_given_back_goes_to_a_blocked_thread_too(run, park):
    space = tupelo.Space()
    door = aio.Space(space)
    threads = []

    async def main() -> Any:
        (task,) = await parked(door.take(("a",)))
        threads.append(await asyncio.to_thread(park, space, space.take, ("a",)))
        await door.write(("a",))
        task.cancel()
        assert await cancelled(task)

    run(main)
    assert threads[0].result() == ("a",)


def test_what_is_given_back_is_in_its_place(run):
    async def main() -> Any:
        space = aio.Space(log_keep=100)
        (task,) = await parked(space.take(("n", int)))
        for i in range(3):
            await space.write(("n", i))
        task.cancel()
        assert await cancelled(task)
        assert await space.read_all() == [("n", 0), ("n", 1), ("n", 2)]
        kinds = [change.kind for change in await space.changes()]
        assert kinds == ["written", "taken", "written", "written", "returned"]

    run(main)


def test_a_thread_that_delivers_to_a_cancelled_task_loses_nothing(run):
    space = tupelo.Space()
    door = aio.Space(space)

    async def main() -> Any:
        (task,) = await parked(door.take(("a",)))
        writer = threading.Thread(target=space.write, args=(("a",),))
        writer.start()
        writer.join()  # The loop stands still: the task is answered and does not know it.
        task.cancel()
        assert await cancelled(task)
        assert space.count() == 1

    run(main)


def test_a_session_has_not_seen_what_a_cancelled_reader_did_not_get(run):
    async def main() -> Any:
        space = aio.Space()
        session = space.session()
        (task,) = await parked(session.read(("a",)))
        await space.write(("a",))
        task.cancel()
        assert await cancelled(task)
        assert session.seen == 0
        assert await session.read(("a",), wait=0) == ("a",)

    run(main)


def test_what_a_cancelled_reader_did_not_get_goes_to_the_next_of_its_session(run):
    async def main() -> Any:
        space = aio.Space()
        session = space.session()
        first, second = await parked(session.read(("a",)), session.read(("a",)))
        await space.write(("a",))
        first.cancel()
        assert await cancelled(first)
        assert await asyncio.wait_for(second, 10) == ("a",)

    run(main)


def test_a_transaction_has_not_taken_what_its_cancelled_taker_did_not_get(run):
    async def main() -> Any:
        space = aio.Space()
        txn = space.transaction()
        (task,) = await parked(space.take(("a",), txn=txn))
        await space.write(("a",))
        task.cancel()
        assert await cancelled(task)
        assert await space.read_all() == [("a",)]
        await txn.commit()
        assert await space.read_all() == [("a",)]

    run(main)


def test_an_error_in_a_block_aborts_when_cancelled(run):
    async def main() -> Any:
        space = aio.Space()
        await space.write(("a",))

        async def work() -> Any:
            async with space.transaction() as txn:
                await space.take(("a",), txn=txn)
                await space.take(("never",), txn=txn)

        (task,) = await parked(work())
        assert await space.count() == 0
        task.cancel()
        assert await cancelled(task)
        assert await space.read_all() == [("a",)]

    run(main)


def test_a_notice_that_a_cancelled_listener_did_not_get_is_the_next_ones(run):
    async def main() -> Any:
        space = aio.Space()
        subscription = await space.subscribe(("a", int))
        first, second = await parked(subscription.get(), subscription.get())
        await space.write(("a", 1))
        first.cancel()
        assert await cancelled(first)
        assert (await asyncio.wait_for(second, 10)).entry == ("a", 1)
        (third,) = await parked(subscription.get())
        await space.write(("a", 2))
        third.cancel()
        assert await cancelled(third)
        notice = await subscription.get(wait=0)
        assert notice is not None and notice.entry == ("a", 2)

    run(main)


def test_a_timeout_of_asyncio_loses_nothing(run):
    async def main() -> Any:
        space = aio.Space()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(space.take(("a",)), 0.005)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.005):
                await space.take(("a",), wait=100)
        await space.write(("a",))
        assert await space.take(("a",), wait=0) == ("a",)

    run(main)


def test_many_takers_cancelled_at_random_lose_nothing_and_get_nothing_twice(run):
    async def main() -> Any:
        space = aio.Space()
        chance = random.Random(7)
        received: list[int] = []

        async def take() -> Any:
            entry = await space.take(("n", int))
            assert entry is not None
            received.append(entry[1])

        tasks: list[asyncio.Task[None]] = []
        for i in range(300):
            tasks.append(asyncio.create_task(take()))
            if chance.random() < 0.5:
                await asyncio.sleep(0)
            await space.write(("n", i))
            if chance.random() < 0.5:
                tasks[chance.randrange(len(tasks))].cancel()
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = [entry[1] for entry in await space.read_all()]
        assert sorted(received + left) == list(range(300))
        assert left == sorted(left)

    run(main)


# While the disk is slow


def until_flushing(space: aio.Space) -> bool:
    return bool(space._port._core.log.position > space._port._engine.journal.durable)  # type: ignore[union-attr]


async def flushing(space: aio.Space, *coroutines: Any) -> list[Any]:
    """Tasks that have done their step and wait for the disk."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    while not until_flushing(space):
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in tasks)
    return tasks


def letting_go(disk: Any) -> threading.Timer:
    """Whoever blocks the loop on a held-up disk is freed soon, and found out later."""
    timer = threading.Timer(0.05, disk.let_go)
    timer.start()
    return timer


@pytest.mark.parametrize("verb", ["take", "take_all"])
def test_a_taker_cancelled_while_it_waits_for_the_disk_gives_it_back(
    run, durable, disk, verb, path
):
    durable.write(("a",))
    slow = disk()

    async def main() -> Any:
        space = aio.Space(durable)
        slow.hold()
        (task,) = await flushing(space, getattr(space, verb)(("a",)))
        timer = letting_go(slow)
        task.cancel()
        assert await cancelled(task)
        timer.join()
        assert await space.take(("a",), wait=0, txn=space.transaction()) == ("a",)

    run(main)
    durable.close()
    with tupelo.Space(path=path) as found:
        assert found.read_all() == [("a",)]


def test_a_parked_taker_cancelled_while_it_waits_for_the_disk_gives_it_back(
    run, durable, disk, path
):
    slow = disk()

    async def main() -> Any:
        space = aio.Space(durable)
        (taker,) = await parked(space.take(("a",)))
        slow.hold()
        (writer,) = await flushing(space, space.write(("a",)))
        timer = letting_go(slow)
        taker.cancel()
        assert await cancelled(taker)
        await writer
        timer.join()
        assert await space.count() == 1

    run(main)
    durable.close()
    with tupelo.Space(path=path) as found:
        assert found.read_all() == [("a",)]


def kept(space: tupelo.Space) -> list[tupelo.Change]:
    """The changes of a trimmed log."""
    with pytest.raises(LogTrimmed) as trimmed:
        space.changes()
    return space.changes(since=trimmed.value.first - 1)


def test_what_is_given_back_when_the_log_no_longer_has_it_is_in_the_file(run, path):
    durable = tupelo.Space("jobs", path=path, log_keep=4)

    async def main() -> None:
        (taker,) = await parked(aio.Space(durable).take(("a", int), wait=None))
        durable.write(("a", 1), lease=1_000)
        for number in range(20):
            durable.write(("b", number))
            durable.take(("b", number))
        assert kept(durable)[0].position > 20
        taker.cancel()
        assert await cancelled(taker)

    run(main)
    durable.close()
    for _ in range(2):
        with tupelo.Space(path=path) as found:
            assert found.read_all() == [("a", 1)]
            assert ("a", 1) in [c.entry for c in kept(found) if c.kind == "returned"]
    with tupelo.Space(path=path) as found:
        about: list[tupelo.About] = []
        assert found.take(("a", 1), wait=0, about=about) == ("a", 1)
        assert about[0].deliveries == 1


def test_what_is_given_back_several_times_in_one_commit_is_in_the_file(run, path):
    durable = tupelo.Space("jobs", path=path, log_keep=4, durability="none")

    async def main() -> None:
        door = aio.Space(durable)
        takers = await parked(*(door.take(("a", int), wait=None) for _ in range(3)))
        durable.write(("a", 1))
        for number in range(20):
            durable.write(("b", number))
            durable.take(("b", number))
        durable.compact()
        assert kept(durable)[0].position > 20
        for taker in takers:
            taker.cancel()
        assert all([await cancelled(taker) for taker in takers])

    run(main)
    durable.close()
    for _ in range(2):
        with tupelo.Space(path=path) as found:
            assert found.read_all() == [("a", 1)]


def test_a_session_reader_cancelled_while_it_waits_for_the_disk_has_not_seen_it(run, durable, disk):
    slow = disk()

    async def main() -> Any:
        space = aio.Space(durable)
        session = space.session()
        slow.hold()
        (writer,) = await flushing(space, space.write(("a",)))
        reader = asyncio.create_task(session.read(("a",)))
        await asyncio.sleep(0.01)
        assert not reader.done()  # What is not on disk is not shown.
        timer = letting_go(slow)
        reader.cancel()
        assert await cancelled(reader)
        await writer
        timer.join()
        assert await session.read(("a",), wait=0) == ("a",)
        assert await session.read(("a",), wait=0) is None

    run(main)


def test_a_session_never_sees_twice_what_a_cancelled_taker_gave_back(run, durable, disk):
    """Also when the taken entry was the one that made the sessions forget what is gone."""
    slow = disk()
    durable.write_all([("n", i) for i in range(1_024)])

    async def main() -> Any:
        space = aio.Space(durable)
        session = space.session()
        assert len(await session.read_all()) == 1_024
        assert len(await space.take_all(limit=1_023)) == 1_023
        slow.hold()
        (task,) = await flushing(space, space.take(("n", 1_023)))
        timer = letting_go(slow)
        task.cancel()
        assert await cancelled(task)
        timer.join()
        assert await space.count() == 1
        assert await session.read(wait=0) is None

    run(main)


def test_a_writer_cancelled_while_it_waits_for_the_disk_has_written(run, durable, disk, path):
    slow = disk()

    async def main() -> Any:
        space = aio.Space(durable)
        slow.hold()
        tasks = await flushing(space, space.write(("a",)), space.write_all([("b",), ("c",)]))
        for task in tasks:
            task.cancel()
            assert await cancelled(task)
        slow.let_go()
        assert await space.count() == 3

    run(main)
    durable.close()
    with tupelo.Space(path=path) as found:
        assert found.read_all() == [("a",), ("b",), ("c",)]


def test_a_commit_cancelled_while_it_waits_for_the_disk_is_a_commit(run, durable, disk, path):
    slow = disk()

    async def main() -> Any:
        space = aio.Space(durable)
        txn = space.transaction()
        await space.write(("a",), txn=txn)
        slow.hold()
        (task,) = await flushing(space, txn.commit())
        task.cancel()
        assert await cancelled(task)
        assert txn.state == "committed"
        slow.let_go()

    run(main)
    durable.close()
    with tupelo.Space(path=path) as found:
        assert found.read_all() == [("a",)]


def test_the_loop_goes_on_while_the_disk_is_slow(run, durable, disk):
    slow = disk()
    durable.write(("there",))

    async def main() -> Any:
        space = aio.Space(durable)
        slow.hold()
        (writer,) = await flushing(space, space.write(("a",)))
        assert await space.read(("there",), wait=0) == ("there",)  # It is on disk already.
        assert await space.count() == 2
        slow.let_go()
        await writer

    run(main)


# Loops that end


def abandoned(space: Any, start: Any, loop: asyncio.AbstractEventLoop) -> None:
    """A loop that is closed while a task is still under way in it."""

    async def begin() -> Any:
        task = loop.create_task(start(aio.Space(space)))
        await asyncio.sleep(0.02)
        assert not task.done()

    loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed", as it was.
    loop.run_until_complete(begin())
    loop.close()


def test_a_loop_closed_with_a_parked_taker_loses_nothing(park):
    space = tupelo.Space()
    abandoned(space, lambda door: door.take(("a",)), asyncio.new_event_loop())
    space.write(("a",))
    assert space.read_all() == [("a",)]
    assert space.take(("a",), wait=0) == ("a",)


def test_a_loop_closed_in_another_thread_with_a_parked_taker_loses_nothing(later):
    space = tupelo.Space()
    later(abandoned, space, lambda door: door.take(("a",)), asyncio.new_event_loop()).result()
    space.write(("a",))
    assert space.read_all() == [("a",)]


def test_what_a_dead_taker_would_have_got_goes_to_the_next_in_line(park):
    space = tupelo.Space()
    abandoned(space, lambda door: door.take(("a",)), asyncio.new_event_loop())
    waiter = park(space, space.take, ("a",))
    space.write(("a",))
    assert waiter.result() == ("a",) and space.count() == 0


def test_a_loop_closed_with_a_parked_listener_loses_nothing():
    space = tupelo.Space()
    subscription = space.subscribe(("a",))

    async def start(door):
        own = door.subscribe(("a",))
        await own.get()

    abandoned(space, start, asyncio.new_event_loop())
    space.write(("a",))
    notice = subscription.get(wait=0)
    assert notice is not None and notice.entry == ("a",)


def test_a_loop_closed_while_a_taker_waits_for_the_disk_loses_nothing(durable, disk, path, until):
    durable.write(("a",))
    slow = disk()
    slow.hold()
    abandoned(durable, lambda door: door.take(("a",)), asyncio.new_event_loop())
    slow.let_go()

    def is_back() -> bool:
        gc.collect()  # The coroutine ends when nobody refers to it any more.
        return bool(durable.count() == 1)

    until(is_back, "the entry is back")
    durable.close()
    with tupelo.Space(path=path) as found:
        assert found.read_all() == [("a",)]


def test_a_loop_closed_before_its_commit_has_begun_leaves_the_door_usable(durable, later):
    door = aio.Space(durable)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    task = loop.create_task(door.write(("a",)))
    loop.call_soon(loop.stop)  # It stops when the task has done its step and asked for the disk.
    loop.run_forever()
    assert not task.done()
    loop.close()
    later(lambda: asyncio.run(door.write(("b",)))).result()
    assert durable.read_all() == [("a",), ("b",)]


def test_one_space_may_be_used_by_one_loop_after_another(run, durable):
    door = aio.Space(durable)

    async def main() -> Any:
        await door.write(("a",))
        return await door.take(("a",))

    assert run(main) == ("a",)
    assert asyncio.run(main()) == ("a",)


def test_tasks_of_two_loops_meet(later):
    space = tupelo.Space()

    async def take() -> Any:
        return await aio.Space(space).take(("a",))

    taker = later(lambda: asyncio.run(take()))
    asyncio.run(aio.Space(space).write(("a",)))
    assert taker.result() == ("a",)
