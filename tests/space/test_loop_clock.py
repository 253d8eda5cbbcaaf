"""The clock of an event loop: virtual, of asyncio, and of uvloop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import tupelo
from tupelo import aio
from tupelo.lab.loop import VirtualLoop
from tupelo.space.clock import LoopClock

PATIENCE_SECONDS = 60.0


def new_uvloop() -> asyncio.AbstractEventLoop:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is missing")
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@pytest.fixture(params=[asyncio.new_event_loop, new_uvloop], ids=["asyncio", "uvloop"])
def real(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop: asyncio.AbstractEventLoop = request.param()
    yield loop
    loop.close()


def wall_clock(loop: asyncio.AbstractEventLoop) -> LoopClock:
    return LoopClock(loop, time.time() - loop.time())


def test_it_tells_the_epoch_plus_the_time_of_the_loop():
    loop = VirtualLoop(1)
    clock = LoopClock(loop, 500.0)
    assert clock.now() == 500.0
    loop.run_until_complete(asyncio.sleep(2.5))
    assert clock.now() == 502.5
    loop.close()


def test_nobody_is_called_early_however_large_the_epoch():
    loop = VirtualLoop(1)
    clock = LoopClock(loop, 1.7e9)
    early: list[float] = []

    def look(when: float) -> None:
        if clock.now() < when:
            early.append(when - clock.now())

    for _ in range(1_000):
        when = clock.now() + loop.rng.random() * 100
        clock.call_at(when, lambda when=when: look(when))  # type: ignore[misc]
    loop.run_until_complete(asyncio.sleep(200))
    loop.close()
    assert not early


def test_a_cancelled_call_does_not_come():
    loop = VirtualLoop(1)
    clock = LoopClock(loop)
    calls: list[str] = []
    clock.call_at(clock.now() + 1, lambda: calls.append("cancelled"))()
    clock.call_at(clock.now() + 1, lambda: calls.append("kept"))
    loop.run_until_complete(asyncio.sleep(2))
    loop.close()
    assert calls == ["kept"]


def test_no_thread_may_block_on_it_and_nothing_is_left_behind():
    loop = VirtualLoop(1)
    space = tupelo.Space("jobs", clock=LoopClock(loop))
    with pytest.raises(RuntimeError, match=r"tupelo\.aio"):
        space.take(("job",), wait=1)
    space.write(("job",))
    assert space.take(("job",), wait=0) == ("job",)
    space.close()
    loop.close()


def test_on_a_real_loop_it_calls_back_there_and_not_early(real):
    clock = wall_clock(real)

    async def main() -> None:
        called: asyncio.Future[tuple[int, float]] = real.create_future()
        when = clock.now() + 0.0125
        clock.call_at(when, lambda: called.set_result((threading.get_ident(), clock.now())))
        thread, moment = await asyncio.wait_for(called, PATIENCE_SECONDS)
        assert thread == threading.get_ident()
        assert moment >= when

    real.run_until_complete(main())


def test_threads_may_set_and_cancel_alarms_on_a_real_loop(real):
    clock = wall_clock(real)
    calls: list[tuple[str, int]] = []

    def note(name: str) -> None:
        calls.append((name, threading.get_ident()))

    async def main() -> None:
        last = asyncio.Event()

        def elsewhere() -> None:
            now = clock.now()
            clock.call_at(now + 0.01, lambda: note("cancelled"))()
            clock.call_at(now + 0.01, lambda: note("kept"))
            clock.call_at(now + 0.02, last.set)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.wait_for(last.wait(), PATIENCE_SECONDS)
        thread.join()

    real.run_until_complete(main())
    assert calls == [("kept", threading.get_ident())]


def test_a_lease_ends_at_its_time_on_a_real_loop(real):
    async def main() -> None:
        space = aio.Space("jobs", clock=wall_clock(real))
        await space.write(("brief",), lease=0.01)
        assert await space.take(("other",), wait=0.02) is None
        assert await space.count() == 0
        await space.close()

    real.run_until_complete(main())


def test_when_the_loop_is_closed_nobody_is_called_and_nothing_breaks(real):
    clock = wall_clock(real)
    real.run_until_complete(asyncio.sleep(0))
    cancel = clock.call_at(clock.now(), lambda: None)
    real.close()
    cancel()
    clock.call_at(clock.now(), lambda: None)()
