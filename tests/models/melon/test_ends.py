"""Operations that wait, fail or are refused, at both doors and over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

import tupelo
from tupelo import Identity, Trust, aio
from tupelo.errors import BadArgument, BadEntry, BadTemplate, HostClosed, SpaceFull
from tupelo.models.melon import Bound, Copies, Melon

PATIENCE_SECONDS = 30.0
ADA, BEN = Identity.new(), Identity.new()
TRUST = Trust.known([ADA.key, BEN.key])

Wait = Callable[[Melon], Any]
WAITS: dict[str, Wait] = {
    "read": lambda melon: melon.read(("n", int)),
    "read_all": lambda melon: melon.read_all(("n", int)),
    "take": lambda melon: melon.take(("n", int)),
    "take_all": lambda melon: melon.take_all(("n", int)),
    "take from": lambda melon: melon.take(("n", int), sender=ADA.key),
    "take_all from": lambda melon: melon.take_all(("n", int), sender=ADA.key),
}
TIMED: dict[str, Callable[[Melon, float], Any]] = {
    "read": lambda melon, wait: melon.read(("n", int), wait),
    "read_all": lambda melon, wait: melon.read_all(("n", int), wait),
    "take": lambda melon, wait: melon.take(("n", int), wait),
    "take_all": lambda melon, wait: melon.take_all(("n", int), wait),
    "take from": lambda melon, wait: melon.take(("n", int), wait, sender=ADA.key),
    "collected": lambda melon, wait: melon.collected.get(wait),
}
ADDS: dict[str, Wait] = {
    "store": lambda melon: melon.store(("n", 1)),
    "store to": lambda melon: melon.store(("n", 1), to=ADA.key),
    "write": lambda melon: melon.write(("n", 1), pin=True),
    "unpin": lambda melon: melon.unpin(("n", int)),
}
COPIES = [None, Copies()]


@contextmanager
def hosts(**options: Any) -> Iterator[tuple[tupelo.Host, Melon, Melon]]:
    """The second host, and the Melons of both."""
    with (
        tupelo.Host("one", listen=0, identity=ADA, trust=TRUST) as one,
        tupelo.Host("two", listen=0, identity=BEN, trust=TRUST, peers=[one.address]) as two,
    ):
        yield two, Melon(one, **options), Melon(two, **options)


@asynccontextmanager
async def async_hosts(**options: Any) -> AsyncIterator[tuple[aio.Host, Melon, Melon]]:
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        aio.Host("one", listen=0, identity=ADA, trust=TRUST) as one,
        aio.Host("two", listen=0, identity=BEN, trust=TRUST, peers=[one.address]) as two,
    ):
        yield two, Melon(one, **options), Melon(two, **options)


def run(scene: Callable[[], Any]) -> None:
    asyncio.run(scene())


async def begun(*works: Any) -> list[asyncio.Task[Any]]:
    """These, waiting."""
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.wait(tasks, timeout=0.1)
    return tasks


# Time is up


@pytest.mark.parametrize("copies", COPIES, ids=["plain", "copies"])
def test_nothing_in_time_is_none_for_threads(copies: Copies | None) -> None:
    with hosts(copies=copies) as (_, _, melon):
        for wait in (0, 0.05):
            for verb in TIMED.values():
                assert not verb(melon, wait)


@pytest.mark.parametrize("copies", COPIES, ids=["plain", "copies"])
def test_nothing_in_time_is_none_for_coroutines(copies: Copies | None) -> None:
    async def scene() -> None:
        async with async_hosts(copies=copies) as (_, _, melon):
            for wait in (0, 0.05):
                for verb in TIMED.values():
                    assert not await verb(melon, wait)

    run(scene)


# The Melon is closed


@pytest.mark.parametrize("copies", COPIES, ids=["plain", "copies"])
def test_threads_that_wait_are_told_when_their_melon_is_closed(
    copies: Copies | None, later: Any
) -> None:
    with hosts(copies=copies) as (two, other, melon):
        calls = [later(wait, melon) for wait in WAITS.values()]
        told = later(list, melon.collected)
        reader = Melon(two)
        reading = later(reader.read, ("n", int))
        until_waiting(melon, len(WAITS))
        melon.close()
        for call in calls:
            with pytest.raises(HostClosed, match="this Melon was closed"):
                call.result()
        assert told.result() == []
        # The others at the same host go on, and nothing was lost.
        other.write(("n", 1))
        assert reading.result() == ("n", 1)
        other.store(("n", 2))
        assert reader.take(("n", int), PATIENCE_SECONDS) == ("n", 2)


def until_waiting(melon: Melon, count: int) -> None:
    door: Any = melon._door

    async def look() -> None:
        while len(door._scopes) < count:
            await asyncio.sleep(0.01)

    door.host.now(look())


@pytest.mark.parametrize("copies", COPIES, ids=["plain", "copies"])
def test_coroutines_that_wait_are_told_when_their_melon_is_closed(copies: Copies | None) -> None:
    async def scene() -> None:
        async with async_hosts(copies=copies) as (_, other, melon):
            tasks = await begun(*(wait(melon) for wait in WAITS.values()))
            await melon.close()
            for task in tasks:
                with pytest.raises(HostClosed, match="this Melon was closed"):
                    await task
            await other.write(("n", 1))
            assert await other.read(("n", int)) == ("n", 1)

    run(scene)


def test_a_closed_melon_refuses_everything() -> None:
    with hosts() as (_, _, melon):
        melon.close()
        melon.close()
        for use in (*WAITS.values(), *ADDS.values()):
            with pytest.raises(HostClosed):
                use(melon)
        assert melon.collected.get() is None


# The host is closed


@pytest.mark.parametrize("copies", COPIES, ids=["plain", "copies"])
def test_threads_that_wait_are_told_when_their_host_is_closed(
    copies: Copies | None, later: Any
) -> None:
    with hosts(copies=copies) as (two, _, melon):
        calls = [later(wait, melon) for wait in WAITS.values()]
        until_waiting(melon, len(WAITS))
        two.close()
        for call in calls:
            with pytest.raises(HostClosed):
                call.result()
        for use in (*WAITS.values(), ADDS["store to"]):
            with pytest.raises(HostClosed):
                use(melon)


def test_coroutines_that_wait_are_told_when_their_host_is_closed() -> None:
    async def scene() -> None:
        async with async_hosts(copies=Copies()) as (two, _, melon):
            tasks = await begun(*(wait(melon) for wait in WAITS.values()))
            await two.close()
            for task in tasks:
                with pytest.raises(HostClosed):
                    await task

    run(scene)


def test_a_host_that_leaves_does_not_disturb_who_waits(later: Any) -> None:
    with hosts(copies=Copies()) as (two, first, second):
        calls = [later(first.read, ("n", int)), later(first.take, ("n", int))]
        second.write(("m", 1))
        assert first.read(("m", int), PATIENCE_SECONDS) == ("m", 1)
        two.close()
        first.write(("n", 1))
        first.store(("n", 2))
        assert [call.result() for call in calls] == [("n", 1), ("n", 2)]


# Who gives up


@pytest.mark.parametrize("copies", COPIES, ids=["plain", "copies"])
def test_who_is_cancelled_loses_nothing(copies: Copies | None) -> None:
    async def scene() -> None:
        async with async_hosts(copies=copies) as (_, other, melon):
            tasks = await begun(*(wait(melon) for wait in WAITS.values()))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in tasks)
            await other.write(("n", 1))
            await other.store(("n", 2))
            await other.store(("n", 3), to=BEN.key)
            assert await melon.read(("n", int)) == ("n", 1)
            assert [await melon.take(("n", int)) for _ in range(2)] == [("n", 2), ("n", 3)]

    run(scene)


# What is refused


def test_what_has_no_room_is_refused() -> None:
    with hosts(bound=Bound(count=1)) as (_, _, melon):
        melon.write(("n", 1), pin=True)
        melon.store(("n", 1), pin=True)
        melon.store(("n", 1), to=ADA.key, pin=True)
        for add in ("store", "store to", "write"):
            with pytest.raises(SpaceFull):
                ADDS[add](melon)
        assert melon.unpin(("n", int)) == 2
        melon.write(("n", 2))
        assert melon.read_all(("n", int), wait=0) == [("n", 2)]


WRONG: dict[str, tuple[type[Exception], str, Callable[[Any], Any]]] = {
    "wait of read": (BadArgument, "wait", lambda melon: melon.read(("n", 1), -1)),
    "wait of read_all": (BadArgument, "wait", lambda melon: melon.read_all(("n", 1), "1")),
    "wait of take": (BadArgument, "wait", lambda melon: melon.take(("n", 1), True)),
    "wait of take_all": (BadArgument, "wait", lambda melon: melon.take_all(("n", 1), -0.5)),
    "wait of collected": (BadArgument, "wait", lambda melon: melon.collected.get(-1)),
    "sender": (BadArgument, "sender", lambda melon: melon.take(("n", 1), sender="ada")),
    "sender of all": (BadArgument, "sender", lambda melon: melon.take_all(("n", 1), sender=7)),
    "to": (BadArgument, "to", lambda melon: melon.store(("n", 1), to="ada")),
    "to nobody": (BadArgument, "to", lambda melon: melon.store(("n", 1), to="")),
    "pin of store": (BadArgument, "pin", lambda melon: melon.store(("n", 1), pin="yes")),
    "pin of write": (BadArgument, "pin", lambda melon: melon.write(("n", 1), pin=1)),
    "message of store": (BadEntry, ".", lambda melon: melon.store(7)),
    "message to": (BadEntry, ".", lambda melon: melon.store(7, to=ADA.key)),
    "message of write": (BadEntry, ".", lambda melon: melon.write(("n", object()))),
    "pinned message": (BadEntry, ".", lambda melon: melon.write(7, pin=True)),
    "template of read": (BadTemplate, ".", lambda melon: melon.read(7)),
    "template of read_all": (BadTemplate, ".", lambda melon: melon.read_all(7, 0)),
    "template of take": (BadTemplate, ".", lambda melon: melon.take(7)),
    "template of take_all": (BadTemplate, ".", lambda melon: melon.take_all(7, 0)),
    "template of a sender": (BadTemplate, ".", lambda melon: melon.take(7, sender=ADA.key)),
    "template of unpin": (BadTemplate, ".", lambda melon: melon.unpin(7)),
}


@pytest.mark.parametrize("copies", COPIES, ids=["plain", "copies"])
def test_what_is_wrong_is_said_to_threads(copies: Copies | None) -> None:
    with hosts(copies=copies) as (_, _, melon):
        for error, named, use in WRONG.values():
            with pytest.raises(error, match=named):
                use(melon)
        assert melon.take_all(tupelo.ANY, wait=0) == []


def test_what_is_wrong_is_said_to_coroutines() -> None:
    async def scene() -> None:
        async with async_hosts() as (_, _, melon):
            for error, named, use in WRONG.values():
                with pytest.raises(error, match=named):
                    await use(melon)

    run(scene)
