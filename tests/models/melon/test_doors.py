"""MELON at both doors, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

import tupelo
from tupelo import Identity, Trust, aio
from tupelo.errors import HostClosed
from tupelo.models.melon import Bound, Copies, Melon

PATIENCE_SECONDS = 30.0


@pytest.fixture
def pair():
    with (
        tupelo.Host("one", listen=0) as one,
        tupelo.Host("two", listen=0, peers=[one.address]) as two,
    ):
        yield one, two


def test_threads_exchange_messages(pair, later):
    one, two = pair
    with Melon(one) as first, Melon(two) as second:
        waiting = later(second.take, ("job", int))
        reading = later(second.read_all, ("news", str), PATIENCE_SECONDS)
        first.store(("job", 1))
        first.write(("news", "a"))
        assert waiting.result() == ("job", 1)
        assert reading.result() == [("news", "a")]
        assert first.take(("job", int), wait=0) is None
        assert first.read(("news", str)) == ("news", "a")
        assert first.read(("news", str), wait=0) is None
        for number in range(50):
            first.write(("n", number))
        got = [second.read(("n", int), PATIENCE_SECONDS) for _ in range(50)]
        assert got == [("n", number) for number in range(50)]


def test_many_threads_share_one_melon(pair, later):
    one, two = pair
    writer, reader = Melon(one, copies=Copies()), Melon(two, copies=Copies())
    calls = [later(reader.read, ("n", int), PATIENCE_SECONDS) for _ in range(8)]
    for number in range(8):
        writer.write(("n", number))
    assert sorted(call.result() for call in calls) == [("n", number) for number in range(8)]
    assert reader.read(("n", int), wait=0) is None


def test_who_waits_is_told_when_the_host_is_closed(later):
    with tupelo.Host("one") as one:
        melon = Melon(one, copies=Copies())
        calls = [later(melon.read, ("n", int)), later(melon.take, ("n", int))]
        told = later(list, melon.collected)
    for call in calls:
        with pytest.raises(HostClosed):
            call.result()
    assert told.result() == []
    with pytest.raises(HostClosed):
        melon.read(("n", int), wait=0)
    melon.close()


def test_what_was_collected_is_told_to_threads():
    with tupelo.Host("one") as one, Melon(one, bound=Bound(count=2)) as melon:
        for number in range(5):
            melon.write(("n", number))
        told = [melon.collected.get(PATIENCE_SECONDS).message for _ in range(3)]
        assert told == [("n", 0), ("n", 1), ("n", 2)]
        melon.close()
        with pytest.raises(HostClosed):
            melon.write(("n", 5))


async def coroutines() -> None:
    ada, ben = Identity.new(), Identity.new()
    trust = Trust.known([ada.key, ben.key])
    async with (
        aio.Host("one", listen=0, identity=ada, trust=trust) as one,
        aio.Host("two", listen=0, identity=ben, trust=trust, peers=[one.address]) as two,
        Melon(one) as first,
        Melon(two) as second,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        reading = asyncio.create_task(second.read(("n", int)))
        taking = asyncio.create_task(second.take(("secret", str), sender=ada.key))
        await first.write(("n", 1))
        await first.store(("secret", "soup"), to=ben.key)
        assert await reading == ("n", 1)
        assert await taking == ("secret", "soup")
        assert await second.take_all(("secret", str), wait=0) == []
        assert await first.take_all(("secret", str), wait=0) == []


def test_coroutines_exchange_messages():
    asyncio.run(coroutines())
