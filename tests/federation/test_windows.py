"""Reads and takes of more than one answer holds: they are asked for in windows, and nothing is
lost, doubled or out of order for that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.federation.company import await_space
from tests.federation.field import Field, peer_session_cache, played
from tests.federation.raw import Raw
from tupelo import Coverage, Lifo
from tupelo.errors import NotAllAnswered
from tupelo.federation.hosts import peer
from tupelo.federation.links import wire
from tupelo.federation.spanning import searching
from tupelo.values.entry import fitting

NEWS = ("news", int)
ALL = [("news", i) for i in range(200)]


@pytest.fixture(autouse=True)
def small_answers(monkeypatch):
    """A few entries fill an answer."""
    monkeypatch.setattr(peer, "ANSWER_BYTES", 1_000)


def counted(field: Field) -> list[Any]:
    """The questions that the second host is asked from now on."""
    asked: list[Any] = []
    handlers = field.cores[1].from_hosts.later
    look = handlers[wire.Ask]

    def listen(caller: Any, message: Any) -> Any:
        if caller.id == field.cores[0].id:
            asked.append(message)
        return look(caller, message)

    handlers[wire.Ask] = listen
    return asked


@pytest.mark.parametrize("wait", [0, 10.0])
@pytest.mark.parametrize("session", [False, True], ids=["plain", "session"])
def test_all_are_read(session, wait):
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all(ALL)
        await here.write(("news", 1_000))
        asked = counted(field)
        reader = here.session() if session else here
        got = await reader.read_all(NEWS, wait=wait)
        assert sorted(got) == [*ALL, ("news", 1_000)]
        assert [one for one in got if one[1] < 1_000] == ALL
        assert len(asked) > 10
        assert await here.count(NEWS) == 201

    played(main)


@pytest.mark.parametrize("limit", [1, 50, 150, 200, 300])
@pytest.mark.parametrize("verb", ["read_all", "take_all", "session"])
def test_so_many_are_had_and_no_more(verb, limit):
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all(ALL)
        read = here.session().read_all if verb == "session" else getattr(here, verb)
        assert await read(NEWS, limit=limit) == ALL[:limit]
        left = await there.here.read_all(NEWS)
        assert left == (ALL[limit:] if verb == "take_all" else ALL)

    played(main)


def test_another_order_is_kept():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all(ALL)
        assert await here.read_all(NEWS, order=Lifo()) == ALL[::-1]
        assert await here.take_all(NEWS, order=Lifo(), limit=150) == ALL[:49:-1]

    played(main)


@pytest.mark.parametrize("wait", [0, 10.0])
def test_all_are_taken(wait):
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all(ALL)
        assert await here.take_all(NEWS, wait=wait) == ALL
        assert await here.count(NEWS) == 0

    played(main)


@pytest.mark.parametrize("wait", [0, 10.0])
def test_all_are_taken_from_a_disk(threads, tmp_path, wait):
    here, there = threads.host("here"), threads.host("there", path=tmp_path / "there")
    there.space("jobs").write_all(ALL)
    here.engage(there.address)
    await_space(here, there.id)
    assert here.space("jobs").take_all(NEWS, wait=wait) == ALL
    assert there.space("jobs").here.count() == 0


def test_what_is_larger_than_a_frame_can_be_had(threads, monkeypatch):
    monkeypatch.undo()
    here, there = threads.host("here"), threads.host("there")
    large = [("large", i, bytes(100_000)) for i in range(300)]
    there.space("jobs").write_all(large)
    assert sum(len(one[2]) for one in large) > wire.FRAME_MAX
    here.engage(there.address)
    await_space(here, there.id)
    jobs = here.space("jobs")
    assert jobs.read_all() == large
    assert jobs.session().read_all() == large
    assert jobs.take_all() == large


def test_nothing_is_kept_of_a_read_outside_a_session():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all(ALL)
        assert await here.read_all(NEWS) == ALL
        await asyncio.sleep(1)
        assert len(peer_session_cache(field)) == 0

    played(main)


def test_who_is_lost_between_two_answers_is_missing_and_hides_nothing():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all(ALL)
        asked = counted(field)
        session, coverage = here.session(), Coverage()
        reading = asyncio.create_task(session.read_all(NEWS, coverage=coverage))
        while len(asked) < 3:
            await asyncio.sleep(0.001)
        field.network.cut("a", "b")
        got = await reading
        assert 0 < len(got) < 200
        assert (coverage.covered, coverage.missing) == (["a"], ["b"])
        await field.meet()
        assert got + await session.read_all(NEWS) == ALL

    played(main)


def test_a_read_that_is_called_off_between_two_answers_hides_nothing():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all(ALL)
        asked = counted(field)
        session = here.session()
        reading = asyncio.create_task(session.read_all(NEWS))
        while len(asked) < 3:
            await asyncio.sleep(0.001)
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        assert session.seen == 0
        assert await session.read_all(NEWS) == ALL

    played(main)


def test_a_take_that_is_called_off_between_two_answers_loses_nothing():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all(ALL)
        asked = counted(field)
        taking = asyncio.create_task(here.take_all(NEWS))
        while len(asked) < 3:
            await asyncio.sleep(0.001)
        taking.cancel()
        await asyncio.wait([taking])
        await asyncio.sleep(30)
        assert sorted(await here.read_all(NEWS)) == ALL

    played(main)


def test_several_readers_of_a_session_share_what_there_is():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all(ALL)
        session = here.session()
        parts = await asyncio.gather(*(session.read_all(NEWS) for _ in range(4)))
        assert sorted(one for part in parts for one in part) == ALL

    played(main)


@pytest.fixture
def liar(threads):
    """A host, and a line to it from one that answers what the test says."""
    host = threads.host("good")
    raw = Raw.met(host.address, "host", spaces=["jobs"])
    yield host.space("jobs"), raw
    raw.close()


@pytest.mark.parametrize("session", [False, True], ids=["plain", "session"])
def test_a_host_that_says_for_ever_that_it_has_more_is_not_believed(
    liar, later, session, monkeypatch
):
    monkeypatch.setattr(searching, "ROUNDS_MAX", 5)
    space, raw = liar
    call = later((space.session() if session else space).read_all, ("job", int))
    for _ in range(6):
        ask = raw.hear_until(lambda said: isinstance(said, wire.Ask))
        answer = [[["job", 1], "someone", 1, 1, None, None], None]
        raw.say(wire.Answer(ask.call, answer if ask.seen is None else [answer, None]))
    assert call.result() == [("job", 1)]


def test_a_host_that_has_more_and_sends_nothing_is_missing(liar, later):
    space, raw = liar
    call = later(space.read_all, ("job", int))
    ask = raw.hear_until(lambda said: isinstance(said, wire.Ask))
    raw.say(wire.Answer(ask.call, [None]))
    with pytest.raises(NotAllAnswered):
        call.result()


def test_one_fits_however_large_it_is():
    class Large:
        fields = ("x" * 1_000,)

    entries: Any = [Large(), Large()]
    assert fitting(entries, 10) == (entries[:1], True)
    assert fitting(entries[:1], 10) == (entries[:1], False)
    assert fitting(entries, 10_000) == (entries, False)
    assert fitting(entries, None) == (entries, False)
    assert fitting([], 10) == ([], False)
