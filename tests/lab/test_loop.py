"""Virtual time: a seed decides everything, and nothing real takes part."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tupelo
from tests.lab.town import live
from tupelo import aio
from tupelo.lab.loop import LabError, LeftOver, Stuck, VirtualLoop, run
from tupelo.space.clock import LoopClock

# Time


def test_a_year_passes_at_once():
    async def main(loop: VirtualLoop) -> float:
        await asyncio.sleep(365 * 86_400)
        return loop.time()

    assert run(main, 1) == 365 * 86_400


def test_timers_of_one_moment_come_in_the_order_in_which_they_were_set():
    async def main(loop: VirtualLoop) -> list[int]:
        came: list[int] = []
        for number in range(100):
            loop.call_at(1.0, came.append, number)
        await asyncio.sleep(2)
        return came

    assert run(main, 1) == list(range(100))


def test_a_cancelled_timer_does_not_move_the_time():
    async def main(loop: VirtualLoop) -> float:
        woken = loop.create_future()
        loop.call_later(50, woken.set_result, None).cancel()
        loop.call_later(3, woken.set_result, None)
        await woken
        return loop.time()

    assert run(main, 1) == 3.0


def test_thousands_of_cancelled_timers_leave_the_others_alone():
    async def main(loop: VirtualLoop) -> list[int]:
        came: list[int] = []
        for number in range(5_000):
            timer = loop.call_later(10 + number, came.append, number)
            if number % 1_000:
                timer.cancel()
        await asyncio.sleep(6_000)
        return came

    assert run(main, 1) == [0, 1_000, 2_000, 3_000, 4_000]


def test_timeouts_and_groups_work_as_on_any_loop():
    async def main(loop: VirtualLoop) -> tuple[float, list[str]]:
        came: list[str] = []

        async def say(word: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            came.append(word)

        async with asyncio.TaskGroup() as group:
            group.create_task(say("second", 2))
            group.create_task(say("first", 1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await loop.create_future()
        return loop.time(), came

    assert run(main, 1) == (7.0, ["first", "second"])


def test_a_space_lives_in_virtual_time():
    async def main(loop: VirtualLoop) -> None:
        local = tupelo.Space("jobs", clock=LoopClock(loop))
        space = aio.Space(local)
        await space.write(("old",), lease=3_600)
        assert await space.take(("new",), wait=3_599) is None
        assert await space.read(("old",), wait=0) == ("old",)
        assert await space.take(("new",), wait=1) is None
        assert await space.read(("old",), wait=0) is None
        assert loop.time() == 3_600
        local.close()

    run(main, 1)


# Replays


def town_digest_elsewhere(seed: int, hash_seed: str) -> str:
    program = Path(__file__).with_name("town.py")
    answer = subprocess.run(
        [sys.executable, str(program), str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return answer.stdout.strip()


def test_the_same_seed_plays_the_same_run():
    first, second = run(live, 7), run(live, 7)
    assert first.trace == second.trace
    assert first.digest == second.digest
    assert len(first.trace) > 100


def test_the_same_seed_plays_the_same_run_in_other_processes():
    digest = run(live, 7).digest
    assert town_digest_elsewhere(7, "1") == digest
    assert town_digest_elsewhere(7, "2") == digest


def test_other_seeds_play_other_runs():
    assert len({run(live, seed).digest for seed in range(5)}) == 5


def test_sets_of_tasks_have_the_same_order_in_every_run():
    async def main(loop: VirtualLoop) -> list[list[str]]:
        async def nothing() -> None:
            await asyncio.sleep(1)

        tasks = {asyncio.create_task(nothing(), name=str(number)) for number in range(50)}
        futures = [loop.create_future() for _ in range(50)]
        for future in futures:
            future.set_result(None)
        done, _ = await asyncio.wait(tasks)
        ready, _ = await asyncio.wait(futures)
        return [
            [task.get_name() for task in done],
            [str(futures.index(future)) for future in ready],
        ]

    assert run(main, 1) == run(main, 1) == run(main, 2)


# What goes wrong


def test_when_nothing_can_happen_any_more_it_says_who_waits():
    async def wait_for_nobody(event: asyncio.Event) -> None:
        await event.wait()

    async def main(loop: VirtualLoop) -> None:
        await asyncio.create_task(wait_for_nobody(asyncio.Event()), name="the lonely one")

    with pytest.raises(Stuck, match=r"the lonely one: .*wait_for_nobody at test_loop\.py:\d+"):
        run(main, 1)


def test_tasks_that_are_left_over_are_named_and_ended():
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            ended.append("linger")

    async def main(loop: VirtualLoop) -> asyncio.Task[None]:
        task = asyncio.create_task(linger(), name="the last guest")
        await asyncio.sleep(1)
        return task

    with pytest.raises(LeftOver, match="the last guest"):
        run(main, 1)
    assert ended == ["linger"]


def test_what_fails_where_nobody_looks_is_raised_at_the_end():
    async def main(loop: VirtualLoop) -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(BaseExceptionGroup, match="nobody has retrieved") as caught:
        run(main, 1)
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


def test_what_main_raises_comes_out_and_its_tasks_are_ended():
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            ended.append("linger")

    async def main(loop: VirtualLoop) -> None:
        task = asyncio.create_task(linger())
        await asyncio.sleep(1)
        raise KeyError(task.get_name())

    with pytest.raises(KeyError):
        run(main, 1)
    assert ended == ["linger"]


def test_other_threads_are_refused():
    async def main(loop: VirtualLoop) -> list[Exception]:
        errors: list[Exception] = []

        def call_in() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=call_in)
        thread.start()
        thread.join()
        return errors

    [error] = run(main, 1)
    assert isinstance(error, LabError)


def test_what_is_for_a_thread_is_done_in_place():
    async def main(loop: VirtualLoop) -> tuple[int, int]:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        return await asyncio.to_thread(threading.get_ident), threading.get_ident()

    there, here = run(main, 1)
    assert there == here


def test_its_own_thread_may_use_the_threadsafe_way():
    async def main(loop: VirtualLoop) -> None:
        woken = loop.create_future()
        loop.call_soon_threadsafe(woken.set_result, None)
        await woken

    run(main, 1)
