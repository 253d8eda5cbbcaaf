"""What was written is read from copies, when its host is out of reach."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.models.melon.world import MelonWorld, play
from tupelo.errors import UnknownType
from tupelo.models.melon import Bound, Collected, Copies, reading
from tupelo.values.entry import Entry, require_known

ROW = ("ba", "cb")

MESH = ("ba", "ca", "da", "cb", "db", "dc")


def holders(world: MelonWorld, source: str, among: str) -> str:
    """Those of these hosts that have something a host has written."""
    return "".join(
        name
        for name in among
        if (feed := world[name].message_store.feed) is not None
        for name_of_stream, stream in feed.exchange.streams.items()
        if name_of_stream.startswith(f"{source}/") and stream.items
    )


async def held(world: MelonWorld, at: str, source: str, count: int) -> None:
    """Wait until so many of a host's messages are at another."""

    def are_there() -> bool:
        feed = world[at].message_store.feed
        assert feed is not None
        return any(
            one.source.startswith(f"{source}/") and len(one.items) == count
            for one in feed.exchange.streams.values()
        )

    await world.until(are_there, f"{count} of {source} at {at}")


def test_a_message_crosses_a_partition_with_a_third_host():
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await world.parted("ab", "c")
        await a.write(*(("n", number) for number in range(5)))
        await held(world, "b", "a", 5)
        await world.parted("a", "bc")
        await world.met("bc")
        assert await c.read(("n", int), 10) == ("n", 0)
        assert await c.read(("n", int)) == ("n", 1)
        assert await c.read_all(("n", int)) == [("n", 2), ("n", 3), ("n", 4)]
        assert await c.read_all((str, int)) == []
        assert await b.read_all(("n", int)) == [("n", number) for number in range(5)]
        # The carrier goes away as well; what was read stays read when its host is met.
        await world.parted("ac", "b")
        await a.write(("n", 5))
        world.network.heal()
        await world.met("ba", "cb")
        assert await c.read_all(("n", int), 10) == [("n", 5)]
        assert await c.read_all((str, int)) == []

    play(scene, *ROW, copies=Copies(hosts=1))


@pytest.mark.parametrize("carrier_leaves", [True, False], ids=["leaves", "crashes"])
def test_a_second_carrier_needs_no_reader(carrier_leaves: bool) -> None:
    """c has never met a, and nobody reads there until a and b are gone."""

    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        messages = [("n", number) for number in range(50)]
        await world.parted("ab", "c")
        await a.write(*messages)
        await held(world, "b", "a", 50)
        await a.leave()
        await world.parted("a", "bc")
        await world.met("cb")
        if carrier_leaves:
            await b.leave()
        else:
            await held(world, "c", "a", 50)
            await b.crash()
        assert await c.read_all(("n", int)) == messages
        assert await c.read_all(("n", int)) == []

    play(scene, *ROW, copies=Copies(hosts=1))


def test_a_carrier_gets_what_is_new_while_it_is_written() -> None:
    """In a row, c is never engaged with a."""

    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await a.write(("n", 0))
        await held(world, "c", "a", 1)
        await a.write(*(("n", number) for number in range(1, 20)))
        await held(world, "c", "a", 20)
        await a.crash()
        await b.crash()
        assert await c.read_all(("n", int)) == [("n", number) for number in range(20)]

    play(scene, *ROW, copies=Copies(hosts=1))


def test_when_its_host_is_back_it_is_held_by_so_many_as_that_wants() -> None:
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        await a.write(("n", 1), ("n", 2))
        await world.until(lambda: len(holders(world, "a", "bcd")) == 1, "at one host")
        await world.parted("a", "bcd")
        await world.until(lambda: holders(world, "a", "bcd") == "bcd", "at all of them")
        world.network.heal()
        await world.met(*MESH)
        await world.until(lambda: len(holders(world, "a", "bcd")) == 1, "at one host again")

    play(scene, *MESH, copies=Copies(hosts=1))


def test_what_is_carried_unasked_gives_way_to_what_was_asked_for() -> None:
    """c holds what d has written, and has no room for the rest."""

    async def scene(world: MelonWorld) -> None:
        a, c, d = (world[name] for name in "acd")
        await world.parted("ab", "cd")
        await a.write(*(("n", number) for number in range(6)))
        await d.write(*(("d", number) for number in range(6)))
        await held(world, "b", "a", 6)
        await held(world, "c", "d", 6)
        await world.parted("a", "bcd")
        await world.until(lambda: c.melon.collected.count == 6, "dropped")
        assert holders(world, "d", "c") == "c"
        assert [(await c.do(c.melon.collected.get())).message[0] for _ in range(6)] == ["n"] * 6
        # Who reads there copies it all the same.
        assert await c.read_all(("n", int), 10) == [("n", number) for number in range(6)]

    own = {"c": {"copies": Copies(hosts=0, room=Bound(count=8))}}
    play(scene, "ba", "cb", "dc", copies=Copies(hosts=1), own=own)


def test_who_has_no_room_carries_nothing_for_others() -> None:
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        await a.write(("n", 1))
        await held(world, "b", "a", 1)
        await asyncio.sleep(5)
        assert holders(world, "a", "bc") == "b"

    play(scene, *ROW, copies=Copies(hosts=1), own={"c": {"copies": Copies(hosts=1, room=0)}})


def test_who_waits_is_woken_by_a_copy():
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        await world.parted("ab", "c")
        waiting = [c.read(("n", int), 100), c.do((await c.another()).read_all(("n", int), None))]
        await a.write(("n", 1), ("n", 2))
        await held(world, "b", "a", 2)
        await world.parted("a", "bc")
        assert await asyncio.gather(*waiting) == [("n", 1), [("n", 1), ("n", 2)]]
        assert await c.read(("n", int)) == ("n", 2)

    play(scene, *ROW, copies=Copies(hosts=1))


def test_messages_are_read_through_a_host_in_the_middle():
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]  # which never meet
        waiting = c.read(("n", int), 100)
        await a.write(*(("n", number) for number in range(20)))
        got = [await waiting]
        while len(got) < 20:
            got += await c.read_all(("n", int), 100)
        assert got == [("n", number) for number in range(20)]

    play(scene, *ROW, copies=Copies(hosts=1))


def test_a_reader_that_gives_up_on_copies_loses_none():
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        for number in range(10):
            waiting = c.read(("n", int), 100)
            await asyncio.sleep(0.001 * number)
            await a.write(("n", number))
            await asyncio.sleep(0.0007 * number)
            waiting.cancel()
            got = (await asyncio.gather(waiting, return_exceptions=True))[0]
            if isinstance(got, BaseException):
                got = await c.read(("n", int), 10)
            assert got == ("n", number)

    play(scene, *ROW, copies=Copies(hosts=1))


@pytest.mark.parametrize("turns", range(8))
def test_who_gives_up_on_all_copies_reads_them_all_the_next_time(turns):
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        await a.write(*(("n", number) for number in range(5)))
        await held(world, "b", "a", 5)
        assert await c.read(("n", int), 10) == ("n", 0)
        reading = c.read_all(("n", int), 100)
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        got: Any = (await asyncio.gather(reading, return_exceptions=True))[0]
        if isinstance(got, BaseException):
            got = await c.read_all(("n", int), 10)
        assert got == [("n", number) for number in range(1, 5)]

    play(scene, *ROW, copies=Copies(hosts=1))


def test_what_is_read_from_copies_is_more_than_there_is_room_for_others():
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        await a.write(*(("n", number) for number in range(20)))
        await held(world, "b", "a", 20)
        got = await c.read_all(("n", int), 10)
        while len(got) < 20:
            got += await c.read_all(("n", int), 10)
        assert got == [("n", number) for number in range(20)]
        frames = world.network.sent["b", "c"].frames
        await asyncio.sleep(10)
        assert world.network.sent["b", "c"].frames - frames < 100  # and nobody asks for ever

    tight = {"c": {"copies": Copies(hosts=1, room=Bound(count=8))}}
    play(scene, *ROW, copies=Copies(hosts=1), own=tight)


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
@pytest.mark.parametrize("bound", [Bound(count=5), Bound(count=5, order="lru")], ids=str)
def test_the_newest_copies_are_kept_and_the_others_are_told(
    bound: Bound, durable: bool, tmp_path: Path
) -> None:
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        told = b.melon.collected
        await a.write(*(("n", number) for number in range(12)))
        await world.until(lambda: told.count == 7, "told")
        gone = [await b.do(told.get()) for _ in range(7)]
        assert gone == [Collected(("n", number), "copy") for number in range(7)]
        assert a.melon.collected.count == 0
        await a.crash()
        if durable:
            await b.crash()
            await b.start()
        assert await b.read_all(("n", int), 10) == [("n", number) for number in range(7, 12)]

    folder = tmp_path if durable else None
    own = {"b": {"copies": Copies(hosts=0, room=bound)}}
    play(scene, "ba", copies=Copies(hosts=1), own=own, folder=folder)


def test_what_is_carried_to_another_gives_way_as_a_whole_and_is_told() -> None:
    """Without its beginning the addressee could not get it in order."""

    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await world.parted("ab", "c")
        await a.store(*(("n", number) for number in range(6)), to=c.key)
        told = b.melon.collected
        await world.until(lambda: told.count == 6, "told")
        assert [await b.do(told.get()) for _ in range(6)] == [Collected(c.key, "copy")] * 6
        world.network.heal()
        assert await c.take(("n", int), 20) == ("n", 0)

    own = {"b": {"copies": Copies(room=Bound(count=5))}}
    play(scene, *ROW, "ca", own=own, identities=True)


@pytest.mark.parametrize("many", [False, True], ids=["read", "read-all"])
def test_what_had_given_way_where_newer_was_read_is_not_read_later(many: bool) -> None:
    """Each host's messages are read in its order, wherever."""

    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await world.parted("ab", "c")
        await a.write(*(("n", number) for number in range(12)))
        await held(world, "b", "a", 5)
        await world.parted("a", "bc")
        got = [await c.read(("n", int), 10)]
        if many:
            got += await c.read_all(("n", int), 10)
        world.network.heal()
        await world.met("ca")
        await a.write(("n", 12))
        while (one := await c.read(("n", int), 5)) is not None:
            got.append(one)
        assert got == [("n", number) for number in range(7, 13)]
        # Another question, and another process, has missed nothing.
        everything = [("n", number) for number in range(13)]
        assert await c.do((await c.another()).read_all(("n", int), 10)) == everything
        assert await b.read_all(("n", int), 10) == everything

    own = {"b": {"copies": Copies(hosts=1, room=Bound(count=5))}}
    play(scene, *ROW, "ca", copies=Copies(hosts=1), own=own)


def test_what_was_collected_at_its_host_is_not_read_again_from_a_copy():
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        await a.write(("n", 0), ("n", 1))
        await held(world, "b", "a", 2)
        await world.parted("a", "b", "c")
        world.network.partition("ac", "b")
        await world.met("ac")
        assert await c.read_all(("n", int)) == [("n", 0), ("n", 1)]
        await a.write(*(("n", number) for number in range(2, 2000)))
        assert [n for _, n in await c.read_all(("n", int))] == [1997, 1998, 1999]
        assert await c.read_all((str, int)) == []
        # Now b, which has not heard that they were collected, is the only one near.
        await world.parted("a", "bc")
        await world.met("cb")
        await asyncio.sleep(5)
        assert await c.read_all(("n", int)) == []
        assert await c.read_all((str, int)) == []

    reads_only = {"c": {"copies": Copies(hosts=0, room=0)}}
    play(scene, *ROW, "ca", copies=Copies(hosts=1), bound=Bound(count=3), own=reads_only)


@pytest.mark.parametrize("room", [None, 0], ids=["holds", "reads-only"])
def test_what_was_copied_to_be_read_goes_when_its_host_is_near(
    room: Literal[0] | None,
) -> None:
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        await world.parted("ab", "c")
        await a.write(("n", 1), ("n", 2))
        await held(world, "b", "a", 2)
        await world.parted("a", "bc")
        assert await c.read(("n", int), 10) == ("n", 1)
        await held(world, "c", "a", 2)
        world.network.heal()
        await world.met("ba", "ca")

        await world.until(lambda: len(holders(world, "a", "bc")) == 1, "at one host, as a wants it")
        if room == 0:
            await world.until(lambda: holders(world, "a", "bc") == "b", "at b")
        await a.write(("n", 3))
        assert await c.read_all(("n", int), 10) == [("n", 2), ("n", 3)]
        await asyncio.sleep(5)
        assert len(holders(world, "a", "bc")) == 1

    own = {"c": {"copies": Copies(hosts=1, room=room)}}
    play(scene, *ROW, "ca", copies=Copies(hosts=1), own=own)


def test_take_only_messages_are_not_copied():
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        await a.store(("job", 1))
        await a.write(("news", 1))
        assert await c.read(("news", int), 10) == ("news", 1)
        assert await c.take(("job", int), 5) is None
        assert await a.take(("job", int)) == ("job", 1)

    play(scene, *ROW, copies=Copies(hosts=1))


def test_a_host_that_holds_nothing_for_others_still_reads_copies():
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        await a.write(("n", 1))
        assert await c.read(("n", int), 5) is None  # b has no room for it
        assert await world["b"].read(("n", int)) == ("n", 1)

    play(scene, *ROW, copies=Copies(hosts=1, room=0))


def test_copies_and_what_was_read_of_them_outlive_a_host(tmp_path):
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await a.write(("n", 1), ("n", 2))
        await held(world, "b", "a", 2)
        await a.crash()
        await b.crash()
        await b.start()
        await world.met("cb")
        assert await c.read_all(("n", int), 10) == [("n", 1), ("n", 2)]
        await a.start()
        await world.met("ba")
        await a.write(("n", 3))
        assert await c.read_all(("n", int), 10) == [("n", 3)]

    play(scene, *ROW, copies=Copies(hosts=1), folder=tmp_path)


def test_what_cannot_be_read_here_leaves_the_rest_unread(monkeypatch):
    """A copy of an unknown kind: nothing was handed out, so nothing counts as read."""

    def strict(entry: Entry) -> None:
        if entry.fields[0] == "strange":
            raise UnknownType("strange")
        require_known(entry)

    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await a.write(("n", 1), ("n", 2), ("strange", 3), ("n", 4))
        await held(world, "b", "a", 4)
        await world.parted("a", "b")
        with monkeypatch.context() as patch:
            patch.setattr(reading, "require_known", strict)
            with pytest.raises(UnknownType):
                await b.read_all((str, int))
        assert await b.read_all((str, int)) == [("n", 1), ("n", 2), ("strange", 3), ("n", 4)]

    play(scene, "ab", copies=Copies(hosts=1))


def test_what_came_late_from_a_transaction_is_read_in_copies():
    """It is older by its number, and younger by its place."""

    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        door = a.kept("written")

        async def begin() -> Any:
            txn = door.transaction()
            await door.write(("n", "late"), txn=txn)
            return txn

        txn = await a.do(begin())
        await a.write(("n", "plain"))
        assert await b.read(("n", str), 10) == ("n", "plain")
        await a.do(txn.commit())
        await held(world, "b", "a", 2)
        await world.parted("a", "b")
        assert await b.read(("n", str)) == ("n", "late")

    play(scene, "ab", copies=Copies(hosts=1))


@pytest.mark.parametrize("apart", [False, True], ids=["near", "apart"])
def test_who_was_interrupted_when_all_was_read_reads_it_all_again(apart):
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        messages = [("n", number) for number in range(4)]
        await a.write(*messages)
        await held(world, "b", "a", 4)
        if apart:
            await world.parted("a", "b")
        door: Any = b.melon._door
        reader = door.served.reader
        assert b.life is not None
        found = await b.do(reader.read(("n", int), 10, True))
        b.life.call(lambda: reader.undo(found))
        await world.parted("a", "b")
        assert await b.read_all(("n", int)) == messages
        assert await b.read_all(("n", int)) == []

    play(scene, "ab", copies=Copies(hosts=1))


def test_who_waits_for_all_gets_all_that_is_held_next_door():
    """It comes in many windows, of which the first wakes the one who waits."""

    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        await world.parted("ab", "c")
        await a.write(*(("n", number, "x" * 1_000) for number in range(2_000)))
        await held(world, "b", "a", 2_000)
        waiting = c.read_all(("n", int, str), 100)
        await world.parted("a", "bc")
        assert [message[1] for message in await waiting] == list(range(2_000))
        assert await c.read_all(("n", int, str)) == []

    play(scene, *ROW, copies=Copies(hosts=1))
