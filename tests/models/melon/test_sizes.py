"""Messages that are too large to be sent, or cannot be for another reason."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import tupelo
from tests.models.melon.kinds import play_on_kind
from tests.models.melon.test_copies import held
from tests.models.melon.world import PATIENCE_SECONDS, MelonWorld, play
from tupelo import ANY, Identity, Trust, aio
from tupelo.errors import BadEntry, CannotSend
from tupelo.federation.links import encoding, wire
from tupelo.federation.replication.feeds import ITEM_BYTES_MAX
from tupelo.models.melon import Copies, Melon

LARGE = "x" * 20_000
UNSENDABLE = {"large": (LARGE, False), "on disk": (LARGE, True), "no Unicode": ("\ud800", False)}


@pytest.fixture
def small_frames(monkeypatch):
    monkeypatch.setattr(encoding, "ENTRIES_BYTES_MAX", 10_000)


@pytest.fixture(params=["alone", "copies"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {} if request.param == "alone" else {"copies": Copies()}


@pytest.mark.parametrize("pin", [False, True], ids=["plain", "pinned"])
def test_what_can_never_be_sent_is_refused(pin):
    large = ("n", bytes(wire.MESSAGE_MAX))

    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        for message in (large, ("n", "\ud800")):
            with pytest.raises(CannotSend, match="message="):
                await a.store(message, pin=pin)
            with pytest.raises(CannotSend, match="message="):
                await a.write(message, pin=pin)
        with pytest.raises(BadEntry):
            await a.store(7, pin=pin)
        assert await a.take_all(ANY) == []
        assert await a.read_all(ANY) == []

    play(scene, names="a")


def test_what_is_directed_and_cannot_be_carried_is_refused():
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        with pytest.raises(CannotSend, match="message="):
            await a.store(("n", bytes(ITEM_BYTES_MAX)), to=b.key)
        with pytest.raises(BadEntry):
            await a.store(("n", "\ud800"), to=b.key)
        fits = ("n", bytes(ITEM_BYTES_MAX - 5_000))
        await a.store(fits, to=b.key)
        assert await b.take(("n", bytes), 10) == fits

    play(scene, "ab", identities=True)


@pytest.mark.parametrize("pin", [False, True], ids=["plain", "pinned"])
def test_what_is_to_be_copied_and_cannot_be_is_refused(pin):
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        with pytest.raises(CannotSend, match=r"message=.* 33,550,336 can be copied"):
            await a.write(("n", bytes(ITEM_BYTES_MAX)), pin=pin)
        fits = ("n", bytes(ITEM_BYTES_MAX - 5_000))
        await a.write(fits, pin=pin)
        assert await b.read(("n", bytes), 10) == fits
        await held(world, "b", "a", 1)
        await a.store(("n", bytes(ITEM_BYTES_MAX)))  # It is never copied.

    play(scene, "ab", copies=Copies())


@pytest.mark.parametrize("unsendable", UNSENDABLE)
@pytest.mark.parametrize("wait", [0, 5])
def test_what_cannot_be_sent_is_passed_over(
    small_frames, caplog, tmp_path, wait, options, unsendable
):
    """It came through another door. Its own host gives it; elsewhere is had what is behind it."""
    text, on_disk = UNSENDABLE[unsendable]

    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        strange = ("n", text)
        for name in ("melon", "tupelo.written.melon"):
            door = a.core.spaces[name].door
            for entry in (strange, ("n", "1"), strange, ("n", "2"), ("n", "3")):
                await a.do(door.write(entry))
        assert await b.read(("n", str), wait) == ("n", "1")
        assert await b.read_all(("n", str), wait) == [("n", "2"), ("n", "3")]
        assert await b.read(("n", str), wait) is None
        other = await b.another()
        assert await b.do(other.read_all(("n", str), wait)) == [("n", str(i)) for i in (1, 2, 3)]
        assert await b.take(("n", str), wait) == ("n", "1")
        assert await b.take_all(("n", str), wait) == [("n", "2"), ("n", "3")]
        assert await b.take_all(("n", str), wait) == []
        assert await b.take(("n", str), wait) is None
        assert await a.take_all(("n", str)) == [strange, strange]
        assert await a.read_all(ANY) == [strange, *(("n", "1"), strange, ("n", "2"), ("n", "3"))]

    with caplog.at_level(logging.WARNING, "tupelo"):
        play(scene, "ab", folder=tmp_path if on_disk else None, **options)
    told = [one for one in caplog.records if "do not get" in one.getMessage()]
    assert len(told) == 4


def test_who_waits_is_woken_by_what_can_be_sent(small_frames):
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        reading, taking = b.read(("n", str), 100), b.take(("n", str), 100)
        await world.pause(1)
        for name in ("melon", "tupelo.written.melon"):
            await a.do(a.core.spaces[name].door.write(("n", LARGE)))
        await world.pause(1)
        await a.write(("n", "1"))
        await a.store(("n", "2"))
        assert await reading == ("n", "1")
        assert await taking == ("n", "2")

    play(scene, "ab")


def test_many_that_are_larger_than_they_seem_are_sent_bit_by_bit(small_frames):
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        many = [("n", number, "x" * 900) for number in range(100)]
        await a.write(*many)
        await a.store(*many)
        assert await b.read_all(("n", int, str)) == many
        assert await b.take_all(("n", int, str)) == many
        assert await a.take_all(ANY) == []

    play(scene, "ab")


def hosts_that_trust_each_other() -> tuple[dict[str, Any], dict[str, Any]]:
    """What two hosts are made with, so that messages can be directed."""
    ada, ben = Identity.new(), Identity.new()
    trust = Trust.known([ada.key, ben.key])
    options = {"listen": "127.0.0.1:0", "trust": trust, "heartbeat": 5.0}
    return {**options, "identity": ada}, {**options, "identity": ben}


MEBIBYTES_20 = ("n", b"x" * (20 * 2**20))


def test_threads_exchange_messages_of_many_megabytes():
    ada, ben = hosts_that_trust_each_other()
    with (
        tupelo.Host("one", **ada) as one,
        tupelo.Host("two", peers=[one.address], **ben) as two,
        Melon(one, copies=Copies()) as first,
        Melon(two, copies=Copies()) as second,
    ):
        first.write(MEBIBYTES_20)
        assert second.read(("n", bytes), wait=PATIENCE_SECONDS) == MEBIBYTES_20
        first.store(MEBIBYTES_20)
        assert second.take(("n", bytes), wait=PATIENCE_SECONDS) == MEBIBYTES_20
        first.store(MEBIBYTES_20, to=second.identity)
        taken = second.take(("n", bytes), wait=PATIENCE_SECONDS, sender=first.identity)
        assert taken == MEBIBYTES_20


async def exchange_messages_of_many_megabytes() -> None:
    ada, ben = hosts_that_trust_each_other()
    async with (
        aio.Host("one", **ada) as one,
        aio.Host("two", peers=[one.address], **ben) as two,
        Melon(one, copies=Copies()) as first,
        Melon(two, copies=Copies()) as second,
    ):
        await first.write(MEBIBYTES_20)
        assert await second.read(("n", bytes), wait=PATIENCE_SECONDS) == MEBIBYTES_20
        await first.store(MEBIBYTES_20)
        assert await second.take(("n", bytes), wait=PATIENCE_SECONDS) == MEBIBYTES_20
        await first.store(MEBIBYTES_20, to=second.identity)
        taken = await second.take(("n", bytes), wait=PATIENCE_SECONDS, sender=first.identity)
        assert taken == MEBIBYTES_20


def test_tasks_exchange_messages_of_many_megabytes():
    asyncio.run(exchange_messages_of_many_megabytes())


def test_the_next_to_a_message_of_many_megabytes_is_had_over_sockets(neighbourhood):
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        large, fits = ("n", bytes(wire.MESSAGE_MAX)), ("n", bytes(wire.FRAME_MAX - 100_000))
        for door in (await a.space(), a.kept("written")):
            await a.do(door.write(large))
        await a.write(fits)
        await a.store(fits)
        assert await b.read(("n", bytes), 30) == fits
        assert await b.take(("n", bytes), 30) == fits
        assert await a.take(("n", bytes)) == large

    place = ("async", "memory spanning")
    play_on_kind(neighbourhood, place, scene, "ab", names="ab")
