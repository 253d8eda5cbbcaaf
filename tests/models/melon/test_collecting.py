"""Bounds: what gives way, what never does, and that it is said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from tests.models.melon.world import MelonHost, MelonWorld, play
from tupelo.errors import BadArgument, DiskFull, SpaceFull
from tupelo.models.melon import Bound, Collected, Copies, Melon
from tupelo.models.melon.private import Pinned


async def all_written(member: MelonHost) -> list[int]:
    return [n for _, n in await member.do((await member.another()).read_all(("n", int), 0))]


def test_the_oldest_give_way_and_that_is_said():
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        await a.write(*(("n", number) for number in range(6)))
        await a.store(*(("n", number) for number in range(6)))
        assert await all_written(a) == [2, 3, 4, 5]
        assert await a.take_all(("n", int)) == [("n", number) for number in (2, 3, 4, 5)]
        told = [await a.do(a.melon.collected.get(5)) for _ in range(4)]
        assert told == [
            Collected(("n", 0), "written"),
            Collected(("n", 1), "written"),
            Collected(("n", 0), "stored"),
            Collected(("n", 1), "stored"),
        ]
        assert a.melon.collected.count == 4
        assert await a.do(a.melon.collected.get(0)) is None

    play(scene, names="a", bound=Bound(count=4))


def test_what_was_read_lately_stays():
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        await a.write(("n", 0), ("n", 1), ("n", 2))
        assert await a.read(("n", 0)) == ("n", 0)
        await a.write(("n", 3), ("n", 4))
        assert await all_written(a) == [0, 3, 4]

    play(scene, names="a", bound=Bound(count=3, order="lru"))


@pytest.mark.parametrize("order", ["fifo", "lru"])
def test_what_is_pinned_never_gives_way(order):
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        await a.write(("n", 0), ("n", 1), pin=True)
        await a.write(*(("n", number) for number in range(2, 9)))
        assert await all_written(a) == [0, 1, 8]
        await a.write(("n", 9), pin=True)
        assert await all_written(a) == [0, 1, 9]
        with pytest.raises(SpaceFull):
            await a.write(("n", 10))
        await a.store(("n", 0), pin=True)
        await a.store(*(("n", number) for number in range(1, 6)))
        assert await a.take(("n", int)) == ("n", 0)  # though it is pinned
        await a.store(*(("n", number) for number in range(6, 9)))
        assert await a.take_all(("n", int)) == [("n", 6), ("n", 7), ("n", 8)]

    play(scene, names="a", bound=Bound(count=3, order=order))


@pytest.mark.parametrize("turns", range(12))
def test_what_is_pinned_stays_so_when_who_took_it_gives_up(turns):
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        waiting = a.take(("n", int), 100)
        await asyncio.sleep(1)
        storing = a.do(a.melon.store(("n", 0), pin=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await storing
        got: Any = (await asyncio.gather(waiting, return_exceptions=True))[0]
        await asyncio.sleep(1)
        await a.store(*(("n", number) for number in range(1, 9)))
        left = [n for _, n in await a.take_all(("n", int))]
        assert left == ([6, 7, 8] if got == ("n", 0) else [0, 7, 8])

    play(scene, names="a", bound=Bound(count=3))


def test_bounds_are_of_bytes_too():
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        for number in range(20):
            await a.write(("n", number, "x" * 1_000))
        left = await a.read_all(("n", int, str))
        assert [n for _, n, _ in left] == [16, 17, 18, 19]

    play(scene, names="a", bound=Bound(bytes=5_000))


def test_pins_outlive_a_crash(tmp_path):
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        await a.write(("n", 0), pin=True)
        await a.write(("n", 1), ("n", 2))
        await a.crash()
        await a.start()
        await a.write(*(("n", number) for number in range(3, 6)))
        assert await all_written(a) == [0, 4, 5]
        log = a.core.spaces["tupelo.written.melon"].space.changes()
        assert [change.kind for change in log].count("evicted") == 3

    play(scene, names="a", bound=Bound(count=3), folder=tmp_path)


def pins(member: MelonHost) -> list[Pinned]:
    """What is kept on disk of them."""
    return [record for record, _ in member.message_store._private.all(Pinned)]


@pytest.mark.parametrize("bound", [Bound(count=3), None], ids=["bound", "boundless"])
def test_nothing_is_kept_of_pins_whose_messages_were_taken(
    bound: Bound | None, tmp_path: Path
) -> None:
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        waiting = b.take(("n", int), 100)
        await asyncio.sleep(1)
        await a.store(("n", 0), ("n", 1), ("n", 2), pin=True)
        assert await waiting == ("n", 0)
        await world.until(lambda: len(pins(a)) == 2, "two pins")
        assert await b.take(("n", int)) == ("n", 1)
        await world.until(lambda: len(pins(a)) == 1, "one pin")
        assert await a.take(("n", int)) == ("n", 2)
        await world.until(lambda: not pins(a), "no pins")

    play(scene, "ab", bound=bound, folder=tmp_path)


def test_what_was_pinned_may_go(tmp_path: Path) -> None:
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        await a.write(("n", 0), ("n", 1), ("m", 2), pin=True)
        with pytest.raises(SpaceFull):
            await a.write(("n", 3))
        assert await a.do(a.melon.unpin(("n", 9))) == 0
        assert await a.do(a.melon.unpin(("n", 0))) == 1
        await a.write(("n", 3))
        assert await all_written(a) == [1, 3]
        assert await a.do(a.melon.unpin((str, int))) == 2
        assert await a.do(a.melon.unpin((str, int))) == 0
        assert pins(a) == []
        await a.crash()
        await a.start()
        await a.write(*(("n", number) for number in range(4, 8)))
        assert await all_written(a) == [5, 6, 7]
        await a.store(("n", 0), pin=True)
        assert await a.do(a.melon.unpin(("n", int))) == 1
        await a.store(*(("n", number) for number in range(1, 5)))
        assert await a.take_all(("n", int)) == [("n", 2), ("n", 3), ("n", 4)]

    play(scene, names="a", bound=Bound(count=3), folder=tmp_path)


def test_a_record_shrinks_as_what_was_read_is_collected_elsewhere() -> None:
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        door: Any = b.melon._door
        record = door.served.reader._memory
        await a.write(*(("n", number) for number in range(2_000)))
        assert len(await b.read_all(("n", int))) == 2_000
        assert len(record) == 2_000
        first = BitMap64(record.bits["a"])
        # They give way to 5,000 others, of which b reads only the last, and hears of it then.
        await a.write(*(("m", number) for number in range(5_000)))
        assert await b.read(("m", 4_999)) == ("m", 4_999)
        assert await b.read(("m", 4_998)) == ("m", 4_998)
        assert len(record) < 1_000
        assert len(record.bits["a"] & first) < 1_000
        assert len(await b.read_all(("n", int))) == 0
        assert len(await b.read_all(("m", int))) == 1_998

    play(scene, "ab", bound=Bound(count=2_000))


def test_readers_forget_what_was_collected():
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        for number in range(3_000):
            await a.write(("n", number))
            if number % 10 == 9:
                assert len(await b.read_all(("n", int))) == 10
        await asyncio.sleep(1)
        assert await b.read_all(("n", int)) == []
        # Not all 3,000: what is gone for good is told in batches.
        door: Any = b.melon._door
        assert len(door.served.reader._memory) < 1_500

    play(scene, "ab", bound=Bound(count=10))


def test_copies_have_a_bound_of_their_own():
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await a.write(*(("n", number) for number in range(20)))
        await asyncio.sleep(5)
        feed = b.message_store.feed
        assert feed is not None
        assert sum(len(one.items) for one in feed.exchange.streams.values()) <= 10
        assert len(await b.read_all(("n", int))) == 20

    play(scene, "ab", copies=Copies(hosts=1, room=Bound(count=10)))


@pytest.mark.parametrize("wrong", [{"count": 0}, {"bytes": True}, {"order": "lifo"}])
def test_a_bound_is_checked(wrong):
    with pytest.raises(BadArgument, match=next(iter(wrong))):
        Bound(**wrong)


def test_a_melon_says_what_is_wrong_with_it():
    async def scene(world: MelonWorld) -> None:
        a = world["a"]

        async def wrong(**options: Any) -> None:
            Melon(a.host, **options)

        with pytest.raises(BadArgument, match="name"):
            await a.do(wrong(name="tupelo.melon"))
        for options in (
            {"name": ""},
            {"name": "x" * 99},
            {"name": "tupelo.written.melon"},
            {"bound": 7},
            {"copies": 2},
            {"bound": Bound(count=9)},
        ):
            with pytest.raises(BadArgument, match=next(iter(options))):
                await a.do(wrong(**options))
        with pytest.raises(BadArgument, match="hosts"):
            Copies(hosts=-1)
        with pytest.raises(BadArgument, match="room"):
            Copies(room=3)  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="wait"):
            await a.read(("n", int), -1)

    play(scene, names="a", bound=Bound(count=3))
    with pytest.raises(BadArgument, match="host"):
        Melon("here")  # type: ignore[arg-type]


def test_what_was_collected_in_memory_only_is_reported_when_it_is_on_disk(tmp_path: Path) -> None:
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        await a.write(("n", 1), ("n", 2))
        a.fill_disk()
        with pytest.raises(DiskFull):
            await a.write(("n", 3))
        assert await a.do(a.melon.collected.get(3)) is None
        a.disk.full = False
        one = await a.do(a.melon.collected.get(10))
        assert (one.kind, one.message) == ("written", ("n", 1))

    play(scene, names="a", folder=tmp_path, bound=Bound(count=2))
