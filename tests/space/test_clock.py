"""Clocks: the one that is moved by hand, and the one that runs by itself."""

import asyncio
import threading
import time

import pytest

import tupelo
from tupelo import ManualClock
from tupelo.errors import BadArgument
from tupelo.space.clock import SystemClock

# By hand


def test_time_stands_still_until_it_is_moved():
    clock = ManualClock(100.0)
    assert clock.now() == clock.now() == 100.0
    clock.advance(2.5)
    assert clock.now() == 102.5
    clock.advance(0)
    assert clock.now() == 102.5


def test_everyone_is_called_at_their_moment_and_in_order():
    clock = ManualClock(0.0)
    calls: list[tuple[str, float]] = []
    for name, when in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("later", 9.0), ("also a", 1.0)):
        clock.call_at(when, lambda name=name: calls.append((name, clock.now())))  # type: ignore[misc]
    clock.advance(5)
    assert calls == [("a", 1.0), ("also a", 1.0), ("b", 2.0), ("c", 3.0)]
    assert clock.now() == 5.0


def test_a_moment_that_has_passed_comes_with_the_next_move():
    clock = ManualClock(10.0)
    calls: list[float] = []
    clock.call_at(5.0, lambda: calls.append(clock.now()))
    clock.advance(0)
    assert calls == [10.0]


def test_what_is_called_may_ask_to_be_called_again():
    clock = ManualClock(0.0)
    calls: list[float] = []

    def again() -> None:
        calls.append(clock.now())
        clock.call_at(clock.now() + 1, again)

    clock.call_at(1.0, again)
    clock.advance(3.5)
    assert calls == [1.0, 2.0, 3.0]


def test_a_call_can_be_cancelled():
    clock = ManualClock(0.0)
    calls: list[int] = []
    cancel = clock.call_at(1.0, lambda: calls.append(1))
    cancel()
    cancel()
    clock.advance(5)
    assert calls == []


def test_a_lock_is_waited_for_until_it_is_released_or_the_time_is_over(later, until, clock):
    lock = threading.Lock()
    lock.acquire()
    waiter = later(clock.acquire, lock, 5)
    until(lambda: clock.sleepers == 1)
    clock.advance(5)
    assert waiter.result() is False
    lock = threading.Lock()
    lock.acquire()
    waiter = later(clock.acquire, lock, 5)
    until(lambda: clock.sleepers == 2)
    lock.release()
    assert waiter.result() is True
    clock.advance(100)  # The alarm was called off.


@pytest.mark.parametrize("seconds", [-1, "1", None, float("nan"), True])
def test_time_does_not_go_back_nor_anywhere_else(seconds):
    clock = ManualClock(5.0)
    with pytest.raises(BadArgument, match="seconds="):
        clock.advance(seconds)
    assert clock.now() == 5.0


# By itself


def test_it_tells_the_time_and_never_goes_back():
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 60
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)


def test_it_calls_back_in_order_and_not_what_was_cancelled():
    clock = SystemClock()
    called: list[str] = []
    done = threading.Event()
    now = clock.now()
    clock.call_at(now + 0.02, lambda: called.append("last"))
    clock.call_at(now + 0.025, done.set)
    clock.call_at(now + 0.01, lambda: called.append("first"))
    clock.call_at(now + 0.015, lambda: called.append("cancelled"))()
    clock.call_at(now - 5, lambda: called.append("at once"))
    assert done.wait(10)
    assert called == ["at once", "first", "last"]


def test_leases_end_by_themselves():
    space = tupelo.Space()
    space.write(("a",))
    txn = space.transaction(lease=60.0)
    space.take(("a",), wait=0, txn=txn)
    txn.lease.renew(0.02)
    assert space.take(("a",)) == ("a",)  # It waits for the lease to end.
    assert list(space.subscribe(("x",), lease=0.02)) == []


def test_patience_ends_by_itself(run):
    space = tupelo.Space()
    assert space.take(("a",), wait=0.01) is None
    assert space.read_all(("a",), wait=0.01) == []
    assert space.subscribe(("a",)).get(wait=0.01) is None
    door = tupelo.aio.Space(space)

    async def wait():
        listening = await door.subscribe(("a",))
        return await door.take(("a",), wait=0.01), await listening.get(wait=0.01)

    assert run(wait) == (None, None)


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 1e12, 10**15])
def test_a_lease_of_a_million_years_is_a_lease(seconds, park, later):
    space = tupelo.Space()
    txn = space.transaction(lease=seconds)
    space.write(("held",), lease=seconds, txn=txn)
    waiter = park(space, space.take, ("held",))
    soon = space.subscribe(("x",), lease=0.02)
    assert later(list, soon).result() == []  # The far alarm does not stop the near one.
    txn.commit()
    assert waiter.result() == ("held",)


def test_patience_of_thirty_years_is_patience(park, run):
    space = tupelo.Space()
    waiter = park(space, space.take, ("a",), wait=1e9)
    space.write(("a",))
    assert waiter.result() == ("a",)
    door = tupelo.aio.Space(space)

    async def meet():
        task = asyncio.create_task(door.take(("b",), wait=1e9))
        await asyncio.sleep(0)
        await door.write(("b",))
        return await task

    assert run(meet) == ("b",)


def test_what_ended_long_before_its_deadline_is_not_kept_for_it(clock):
    space = tupelo.Space(clock=clock)
    space.write_all([("a", number) for number in range(20_000)], lease=1e9)
    assert len(space._port._core.deadlines.heap) == 20_000
    assert len(space.take_all(("a", int), limit=19_000)) == 19_000
    assert len(space._port._core.deadlines.heap) < 3_000
    assert space.count() == 1_000
    clock.advance(1e9)
    assert space.count() == 0


def test_deadlines_that_are_renewed_for_ever_do_not_pile_up(clock):
    space = tupelo.Space(clock=clock)
    lease = space.write(("a",), lease=1)
    for _ in range(20_000):
        clock.advance(0.001)
        lease.renew(2)
    assert len(space._port._core.deadlines.heap) < 5_000
    clock.advance(1)
    assert space.count() == 1
    clock.advance(1)
    assert space.count() == 0
