"""Messages that are too large to be sent, or cannot be for another reason."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.models.melon.garden import Garden, play
from tests.models.melon.kinds import play_on_kind
from tests.models.melon.test_copies import held
from tupelo import ANY
from tupelo.errors import BadEntry, CannotSend
from tupelo.federation.links import encoding, wire
from tupelo.federation.replication.change_capture import ITEM_BYTES_MAX
from tupelo.models.melon import Copies

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

    async def scene(garden: Garden) -> None:
        a = garden["a"]
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
    async def scene(garden: Garden) -> None:
        a, b = garden["a"], garden["b"]
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
    async def scene(garden: Garden) -> None:
        a, b = garden["a"], garden["b"]
        with pytest.raises(CannotSend, match=r"message=.* 33,550,336 can be copied"):
            await a.write(("n", bytes(ITEM_BYTES_MAX)), pin=pin)
        fits = ("n", bytes(ITEM_BYTES_MAX - 5_000))
        await a.write(fits, pin=pin)
        assert await b.read(("n", bytes), 10) == fits
        await held(garden, "b", "a", 1)
        await a.store(("n", bytes(ITEM_BYTES_MAX)))  # It is never copied.

    play(scene, "ab", copies=Copies())


@pytest.mark.parametrize("unsendable", UNSENDABLE)
@pytest.mark.parametrize("wait", [0, 5])
def test_what_cannot_be_sent_is_passed_over(
    small_frames, caplog, tmp_path, wait, options, unsendable
):
    """It came through another door. Its own host gives it; elsewhere is had what is behind it."""
    text, on_disk = UNSENDABLE[unsendable]

    async def scene(garden: Garden) -> None:
        a, b = garden["a"], garden["b"]
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
    async def scene(garden: Garden) -> None:
        a, b = garden["a"], garden["b"]
        reading, taking = b.read(("n", str), 100), b.take(("n", str), 100)
        await garden.pause(1)
        for name in ("melon", "tupelo.written.melon"):
            await a.do(a.core.spaces[name].door.write(("n", LARGE)))
        await garden.pause(1)
        await a.write(("n", "1"))
        await a.store(("n", "2"))
        assert await reading == ("n", "1")
        assert await taking == ("n", "2")

    play(scene, "ab")


def test_many_that_are_larger_than_they_seem_are_sent_bit_by_bit(small_frames):
    async def scene(garden: Garden) -> None:
        a, b = garden["a"], garden["b"]
        many = [("n", number, "x" * 900) for number in range(100)]
        await a.write(*many)
        await a.store(*many)
        assert await b.read_all(("n", int, str)) == many
        assert await b.take_all(("n", int, str)) == many
        assert await a.take_all(ANY) == []

    play(scene, "ab")


def test_the_next_to_a_message_of_many_megabytes_is_had_over_sockets(neighbourhood):
    async def scene(garden: Garden) -> None:
        a, b = garden["a"], garden["b"]
        large, fits = ("n", bytes(wire.MESSAGE_MAX)), ("n", bytes(wire.MESSAGE_MAX - 100_000))
        for door in (await a.space(), a.kept("written")):
            await a.do(door.write(large))
        await a.write(fits)
        await a.store(fits)
        assert await b.read(("n", bytes), 30) == fits
        assert await b.take(("n", bytes), 30) == fits
        assert await a.take(("n", bytes)) == large

    place = ("async", "memory spanning")
    play_on_kind(neighbourhood, place, scene, "ab", names="ab")
