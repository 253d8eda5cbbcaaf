"""Spaces that look like an executor, a queue of asyncio or a dict."""

import asyncio
import threading
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from typing import Any, cast

import pytest

import tupelo
from tupelo.errors import BadArgument
from tupelo.queue import AsyncQueue, JobFailed, JobQueue, QueueExecutor, SpaceDict

PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Place:
    x: int | None = None
    y: int | None = None


@dataclass(frozen=True)
class Corner(Place):
    pass


@pytest.fixture
def queue(space):
    queue = JobQueue(space)
    queue.task(name="upper")(str.upper)
    queue.task(name="int", retries=0)(int)
    return queue


@pytest.fixture
def working(queue):
    worker = threading.Thread(target=queue.work)
    worker.start()
    yield
    queue.stop()
    worker.join(PATIENCE_SECONDS)


def test_an_executor_gives_futures(queue, working):
    with QueueExecutor(queue) as executor:
        good = [executor.submit(str.upper, letter) for letter in "abc"]
        bad = executor.submit(int, "x")
        futures: list[Future[Any]] = [*good, bad]
        assert not wait(futures, PATIENCE_SECONDS).not_done
    assert [future.result() for future in good] == ["A", "B", "C"]
    with pytest.raises(JobFailed, match="invalid literal"):
        bad.result()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(str.upper, "a")


def test_an_executor_maps(queue, working):
    with QueueExecutor(queue) as executor:
        assert list(executor.map(str.upper, "abc")) == ["A", "B", "C"]


def test_a_future_is_cancelled_while_nobody_has_begun_it(queue):
    executor = QueueExecutor(queue)
    first, second = executor.submit(str.upper, "a"), executor.submit(str.upper, "b")
    assert first.cancel() and first.cancelled()
    executor.shutdown(cancel_futures=True)
    with pytest.raises(CancelledError):
        second.result(PATIENCE_SECONDS)
    assert len(queue) == 0


def test_a_cancelled_future_does_not_keep_the_executor(queue, working):
    with QueueExecutor(queue) as executor:
        late = executor.submit(str.upper, "a", delay=3600)
        assert late.cancel()
        assert wait([late], PATIENCE_SECONDS).done == {late}
        assert executor.submit(str.upper, "b").result(PATIENCE_SECONDS) == "B"


def in_loop(program: Any) -> Any:
    return asyncio.run(asyncio.wait_for(program, PATIENCE_SECONDS))


async def use_queue(space: tupelo.aio.SpaceLike) -> list[int]:
    queue = AsyncQueue[int](space)
    for item in (1, 2, 3):
        await queue.put(item)
    assert (await queue.qsize(), await queue.empty()) == (3, False)
    got = [await queue.get(), await queue.get_nowait(), await queue.get()]
    with pytest.raises(asyncio.QueueEmpty):
        await queue.get_nowait()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await queue.put(4)
    with pytest.raises(BadArgument, match="item"):
        await queue.put(cast(Any, None))
    return [*got, await queue.get()]


def test_an_async_queue_is_first_in_first_out():
    async def program() -> Any:
        async with tupelo.aio.Space() as space:
            return await use_queue(space)

    assert in_loop(program()) == [1, 2, 3, 4]


def test_an_async_queue_at_a_host():
    async def program() -> Any:
        async with (
            tupelo.aio.Host("office", listen=0) as host,
            await tupelo.aio.connect(f"{host.url}queue") as space,
        ):
            return await use_queue(space)

    assert in_loop(program()) == [1, 2, 3, 4]


def test_put_waits_while_the_space_is_full():
    async def program() -> Any:
        async with tupelo.aio.Space(capacity=tupelo.Capacity(1)) as space:
            queue = AsyncQueue[str](space)
            await queue.put("a")
            second = asyncio.create_task(queue.put("b"))
            done, _ = await asyncio.wait([second], timeout=0.05)
            got = await queue.get()
            await second
            return done, got, await queue.get()

    assert in_loop(program()) == (set(), "a", "b")


def test_a_dict(space):
    shared, other = SpaceDict[str, int](space), SpaceDict[str, int](space, "other")
    shared.update(a=1, b=2)
    shared["a"] = 3
    assert dict(shared) == {"a": 3, "b": 2} and len(shared) == 2
    assert (shared.get("c"), "c" in shared, "a" in shared) == (None, False, True)
    assert shared.setdefault("c", 7) == 7
    assert shared.pop("c") == 7 and shared.pop("c", None) is None
    del shared["b"]
    for missing in (lambda: shared["b"], lambda: shared.pop("b"), lambda: shared.__delitem__("b")):
        with pytest.raises(KeyError):
            missing()
    assert shared.popitem() == ("a", 3)
    with pytest.raises(KeyError):
        shared.popitem()
    assert not shared and not other
    untyped: Any = shared
    with pytest.raises(TypeError, match="unhashable"):
        untyped[["a"]] = 1
    for bad in (None, str, tupelo.ANY, ("a", int)):
        for use in (lambda key: untyped.__setitem__(key, 1), untyped.pop, untyped.__getitem__):
            with pytest.raises(BadArgument, match="key"):
                use(bad)
    with pytest.raises(BadArgument, match="value"):
        untyped["a"] = None


def test_a_key_is_found_by_its_value_and_not_as_a_template(space):
    shared = SpaceDict[Any, int](space)
    keys = [Place(1, 2), Place(1, None), Corner(1, 2), ("a", 1), ("a", None), ("a", Place(1, 2))]
    for number, key in enumerate(keys, 1):
        shared[key] = number
    assert [shared[key] for key in keys] == [1, 2, 3, 4, 5, 6]
    assert shared.pop(Place(1, None)) == 2 and shared.pop(("a", None)) == 5
    assert Place(None, None) not in shared and ("a", Place(1, None)) not in shared
    assert sorted(shared.values()) == [1, 3, 4, 6]


def test_of_many_poppers_one_gets_the_value(space):
    shared = SpaceDict[str, int](space)
    shared["a"] = 1
    got = []
    threads = [threading.Thread(target=lambda: got.append(shared.pop("a", None))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert sorted(got, key=str) == [1, *[None] * 7]


def test_the_last_write_wins_and_a_key_is_there_once(space):
    shared = SpaceDict[str, int](space)

    def write(n):
        for _ in range(20):
            shared["a"] = n

    threads = [threading.Thread(target=write, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert len(shared) == 1 and shared["a"] in range(4)
    shared["a"] = 9
    assert shared["a"] == 9 and list(shared) == ["a"]
