"""Sessions that span hosts: each entry once and in order, whatever hosts forget or lose; and what
is said for that does not grow."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random
from typing import Any

import pytest
from pyroaring import BitMap64

from tests.conftest import seeds
from tests.federation.company import await_space
from tests.federation.field import Field, kept_sessions, peer_session_cache, played
from tests.federation.raw import Raw
from tupelo import HERE
from tupelo.errors import NotAllAnswered, TupeloError, UnknownType
from tupelo.federation.client.connect import connect
from tupelo.federation.hosts import peer as peer_module
from tupelo.federation.links import wire
from tupelo.federation.spanning import records
from tupelo.federation.spanning.records import SeenRecord
from tupelo.federation.spanning.searching import REST_SECONDS, RESTING_MAX
from tupelo.space.query import Query
from tupelo.space.session import Seen
from tupelo.values.entry import Entry
from tupelo.values.template_encoding import template_to_wire

NEWS = ("news", str, int)


def looks_at(seen: Any) -> list[Entry]:
    """From now on, the entries of which it is asked whether they were seen."""
    looked: list[Entry] = []
    kind = type(seen)

    def contains(self: Any, entry: Entry) -> bool:
        looked.append(entry)
        return bool(kind.__contains__(self, entry))

    seen.__class__ = type("Looking", (kind,), {"__slots__": (), "__contains__": contains})
    return looked


# What is said


def test_a_question_does_not_grow_with_what_was_read():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all([("news", "x", i) for i in range(9_000)])
        session = here.session()
        sizes = []
        for read in (10, 5_000):
            await session.read_all(NEWS, limit=read)
            await session.read(NEWS, wait=0)
            before = field.network.sent["a", "b"].bytes
            for _ in range(20):
                assert await session.read(NEWS, wait=0) is not None
            sizes.append((field.network.sent["a", "b"].bytes - before) / 20)
        assert sizes[1] <= sizes[0] * 1.1, sizes

    played(main)


def test_a_host_goes_on_from_where_the_session_stopped():
    """It does not look again at all that was read."""

    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all([("news", "x", i) for i in range(500)])
        session = here.session()
        for i in range(400):
            assert await session.read(NEWS, wait=0) == ("news", "x", i)
        (kept,) = kept_sessions(field)
        looked = looks_at(kept.seen)
        assert await session.read(NEWS, wait=0) == ("news", "x", 400)
        assert 0 < len(looked) < 5

    played(main)


@pytest.mark.parametrize("limit", [None, 400])
@pytest.mark.parametrize("writer", [0, 1], ids=["here", "there"])
def test_what_was_read_at_once_is_not_looked_at_again(limit, writer):
    async def main(field: Field) -> None:
        await field.spaces[writer].write_all([("news", "x", i) for i in range(500)])
        session = field.spaces[0].session()
        seen = len(await session.read_all(NEWS, limit=limit))
        await field.spaces[writer].write(("news", "x", 500))
        kept = [one.seen for one in kept_sessions(field)]
        looked = looks_at(kept[0] if writer else session._record)
        assert await session.read(NEWS, wait=0) == ("news", "x", seen)
        assert 0 < len(looked) < 10

    played(main)


def test_a_host_watches_only_where_it_has_found_nothing():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write(("news", "x", 1))
        for read in (here.read, here.session().read, here.take):
            assert await read(NEWS, wait=10.0) == ("news", "x", 1)
            assert not watches(field)
        for read in (here.read, here.session().read, here.take):
            waiting = asyncio.create_task(read(NEWS, wait=10.0))
            await asyncio.sleep(1)
            assert len(watches(field)) == 1
            await there.write(("news", "x", 2))
            assert await waiting == ("news", "x", 2)
            await asyncio.sleep(REST_SECONDS + 1)
            assert not watches(field)
            await there.take_all(NEWS)

    played(main)


# A search that rests


def test_a_loop_of_reads_keeps_its_watches():
    """A read costs the messages of the host that has something new, not of all hosts."""

    async def main(field: Field) -> None:
        session = field.spaces[0].session()
        asked = [asked_of(field, number) for number in range(1, 6)]
        for number in range(20):
            asyncio.get_running_loop().call_later(
                0.5,
                asyncio.ensure_future,
                field.spaces[1 + number % 5].write(("news", "x", number)),
            )
            assert await session.read(NEWS, wait=10.0) == ("news", "x", number)
            await asyncio.sleep(0.1)
        assert sum(map(len, asked)) == 5 + 19  # all at first, then the host of the last entry

    played(main, hosts=6)


async def resting(field: Field) -> Any:
    """A session whose search rests."""
    session = field.spaces[0].session()
    asyncio.get_running_loop().call_later(
        1, asyncio.ensure_future, field.spaces[1].write(("news", "x", 0))
    )
    assert await session.read(NEWS, wait=10.0) == ("news", "x", 0)
    await asyncio.sleep(0.1)
    assert len(watches(field)) == 1
    return session


def watches(field: Field) -> dict[int, Any]:
    """Those of the first host at the second."""
    peer: Any = field.cores[1].peers[field.cores[0].id]
    watching: dict[int, Any] = peer._watches
    return watching


def test_an_entry_that_was_taken_meanwhile_is_not_read():
    async def main(field: Field) -> None:
        session = await resting(field)
        for number in (1, 2):
            await field.spaces[1].write(("news", "x", number))
            await asyncio.sleep(0.1)
            assert await field.spaces[1].take(("news", "x", number), wait=0)
        await asyncio.sleep(0.1)
        await field.spaces[1].write(("news", "x", 3))
        assert await session.read(NEWS, wait=10.0) == ("news", "x", 3)
        assert await session.read(NEWS, wait=1.0) is None
        await asyncio.sleep(1)
        assert not watches(field)

    played(main)


def test_entries_that_come_during_a_rest_are_read_in_their_order():
    async def main(field: Field) -> None:
        session = await resting(field)
        for number in range(1, 4):
            await field.spaces[1].write(("news", "x", number))
        for number in range(1, 4):
            assert await session.read(NEWS, wait=1.0) == ("news", "x", number)

    played(main)


def test_a_search_that_rests_meets_hosts_that_go_and_come():
    async def main(field: Field) -> None:
        session = await resting(field)
        field.network.cut("a", "b")
        await asyncio.sleep(1)
        await field.meet()
        await field.spaces[2].write(("news", "x", 2))
        assert await session.read(NEWS, wait=1.0) == ("news", "x", 2)
        await field.spaces[1].write(("news", "x", 1))
        assert await session.read(NEWS, wait=1.0) == ("news", "x", 1)

    played(main, hosts=3)


@pytest.mark.parametrize("end", ["session", "host", "another template"])
def test_the_watches_end_with_the_session(end):
    async def main(field: Field) -> None:
        session = await resting(field)
        if end == "session":
            await session.close()
        elif end == "host":
            await field.members[0].leave()
            assert not session._record.resting
            return
        else:
            for number in range(1, RESTING_MAX + 2):
                asyncio.get_running_loop().call_later(
                    0.1, asyncio.ensure_future, field.spaces[1].write(("news", "x", number))
                )
                assert await session.read(("news", str, number), wait=1.0)
                await asyncio.sleep(0.1)
            assert len(watches(field)) == RESTING_MAX
            return
        await asyncio.sleep(0.1)
        assert not watches(field)

    played(main)


def test_an_entry_that_is_given_back_during_a_rest_is_found():
    async def main(field: Field) -> None:
        session = await resting(field)
        await field.spaces[1].write(("news", "y", 1))
        query = Query(("news", "y", int), session=session._state, actor=session._actor)
        core = field.cores[0]
        got = await core.federation.get(core.spaces["jobs"], query)
        await asyncio.sleep(0.1)
        got.give_back()
        assert await session.read(NEWS, wait=1.0) == ("news", "y", 1)

    played(main)


def asked_of(field: Field, number: int) -> list[Any]:
    """What this host is asked by the first, from now on."""
    asked: list[Any] = []
    handlers = field.cores[number].from_hosts.later
    answer = handlers[wire.Ask]

    def listen(caller: Any, message: Any) -> Any:
        if caller.id == field.cores[0].id:
            asked.append(message)
        return answer(caller, message)

    handlers[wire.Ask] = listen
    return asked


def test_the_next_one_is_asked_for_where_the_last_one_was():
    async def main(field: Field) -> None:
        here, there, _ = field.spaces
        await there.write_all([("news", "x", i) for i in range(100)])
        session = here.session()
        there_asked, elsewhere_asked = asked_of(field, 1), asked_of(field, 2)
        for i in range(100):
            assert await session.read(NEWS, wait=0) == ("news", "x", i)
        assert len(there_asked) <= 101
        assert len(elsewhere_asked) <= 15
        assert await session.read(NEWS, wait=0) is None

    played(main, hosts=3)


def test_no_host_waits_for_ever_behind_one_that_has_much():
    async def main(field: Field) -> None:
        here, *others = field.spaces
        await others[0].write_all([("news", "x", i) for i in range(300)])
        await others[1].write_all([("news", "y", i) for i in range(300)])
        await others[2].write(("news", "z", 0))
        session = here.session()
        got = [await session.read(NEWS, wait=0) for _ in range(100)]
        assert {one[1] for one in got} == {"x", "y", "z"}
        for name in "xyz":
            numbers = [one[2] for one in got if one[1] == name]
            assert numbers == list(range(len(numbers)))

    played(main, hosts=4)


def test_the_end_of_a_session_is_told():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write(("news", "x", 1))
        async with here.session() as session:
            assert await session.read(NEWS, wait=0) is not None
            assert len(peer_session_cache(field)) == 1
        await asyncio.sleep(1)
        assert len(peer_session_cache(field)) == 0
        with pytest.raises(TupeloError, match="over"):
            await session.read(NEWS, wait=0)

    played(main)


def test_what_is_kept_for_others_is_bounded(monkeypatch):
    monkeypatch.setattr(peer_module, "SESSIONS_CACHED_MAX", 3)

    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all([("news", "x", i) for i in range(10)])
        sessions = [here.session() for _ in range(5)]
        for i in range(10):
            for session in sessions:
                assert await session.read(NEWS, wait=0) == ("news", "x", i)
                assert len(peer_session_cache(field)) <= 3
        assert [session.seen for session in sessions] == [10] * 5

    played(main)


def test_what_is_kept_for_others_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(peer_module, "SESSION_CACHE_BYTES", 100)

    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all([("news", "x", i) for i in range(10)])
        sessions = [here.session() for _ in range(5)]
        for i in range(10):
            for session in sessions:
                assert await session.read(NEWS, wait=0) == ("news", "x", i)
        assert len(peer_session_cache(field)) < 5

    played(main)


# What is forgotten


def test_a_host_that_has_forgotten_a_session_is_told_all_of_it():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all([("news", "x", i) for i in range(30)])
        session = here.session()
        got = []
        for i in range(15):
            got.append(await session.read(NEWS, wait=0))
            if i % 4 == 0:
                peer_session_cache(field).forget_all()
        got += await session.read_all(NEWS, limit=5)
        peer_session_cache(field).forget_all()
        got += await session.read_all(NEWS)
        assert got == [("news", "x", i) for i in range(30)]
        peer_session_cache(field).forget_all()
        assert await session.read_all(NEWS) == []

    played(main)


def test_what_died_elsewhere_is_forgotten():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all([("news", "x", i) for i in range(3_000)], lease=5.0)
        await there.write(("news", "x", 3_000))
        session = here.session()
        assert len(await session.read_all(NEWS)) == 3_001
        await asyncio.sleep(10)
        assert await session.read_all(NEWS) == []
        assert session.seen < 1_000
        await there.write(("news", "x", 3_001))
        assert await session.read_all(NEWS) == [("news", "x", 3_001)]

    played(main)


def test_what_died_here_is_forgotten_here_and_elsewhere():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await here.write_all([("news", "x", i) for i in range(3_000)], lease=5.0)
        await there.write(("news", "y", 0))
        session = here.session()
        assert len(await session.read_all(NEWS)) == 3_001
        assert await session.read_all(NEWS) == []
        (kept,) = kept_sessions(field)
        assert len(kept.seen) == 3_001
        await asyncio.sleep(10)
        assert await session.read_all(NEWS) == []
        assert session.seen < 1_000
        assert await session.read_all(NEWS) == []
        assert len(kept.seen) < 1_000

    played(main)


def test_nothing_is_forgotten_that_may_come_back():
    """It was taken by another host, and may be given back there; then it is known there."""

    async def main(field: Field) -> None:
        first, second, third = field.spaces
        await second.write_all([("news", "x", i) for i in range(3_000)])
        session = first.session()
        assert len(await session.read_all(NEWS)) == 3_000
        taken = await field.cores[2].federation.get(
            field.cores[2].spaces["jobs"], Query(NEWS, take=True, many=True, limit=None)
        )
        assert len(taken.entries) == 3_000
        taken.give_back()  # The one who asked has vanished.
        assert await third.count(NEWS) == 3_000
        for _ in range(3):
            assert await session.read_all(NEWS) == []
        assert session.seen == 3_000

    played(main, hosts=3)


# What is lost on its way


def test_an_answer_that_never_came_hides_nothing():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all([("news", "x", i) for i in range(6)])
        session = here.session()
        assert await session.read(NEWS, wait=0) == ("news", "x", 0)
        reading = asyncio.create_task(session.read(NEWS, wait=0))
        await asyncio.sleep(0)
        while kept_sessions(field)[0].answering:
            await asyncio.sleep(0.001)
        field.network.cut("a", "b")
        with pytest.raises(NotAllAnswered):
            await reading
        await field.meet()
        for i in range(1, 6):
            assert await session.read(NEWS, wait=0) == ("news", "x", i)
        assert await session.read(NEWS, wait=0) is None

    played(main)


def test_a_read_that_was_cancelled_hides_nothing():
    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write_all([("news", "x", i) for i in range(50)])
        session = here.session()
        got: list[Any] = []
        while len(got) < 50:
            reading = asyncio.create_task(session.read(NEWS, wait=0))
            await asyncio.sleep(field.loop.rng.uniform(0, 0.03))
            if reading.cancel():
                await asyncio.wait([reading])
            if not reading.cancelled():
                got.append(reading.result())
        assert got == [("news", "x", i) for i in range(50)]

    played(main)


def test_what_one_reader_did_not_get_another_gets():
    """It was read, and could not be handed out: it has not been seen, and who waits gets it."""

    async def main(field: Field) -> None:
        here, there = field.spaces
        await there.write(("news", "x", 1))
        session = here.session()
        core = field.cores[0]
        query = Query(NEWS, session=session._state, actor=session._actor)
        taken = await core.federation.get(core.spaces["jobs"], query)
        assert session.seen == 1
        waiting = asyncio.create_task(session.read(NEWS, wait=30.0))
        await asyncio.sleep(1)
        taken.give_back()
        assert await waiting == ("news", "x", 1)

    played(main)


def test_an_entry_of_an_unknown_class_stays_unread(threads):
    host, child = threads.host("first"), threads.child("second")
    child.do("write_only_there", 5)
    host.engage(child.address)
    await_space(host, child.id)
    with host.space("jobs").session() as session:
        for read in (session.read, session.read_all):
            with pytest.raises(UnknownType):
                read(wait=0)
        assert session.seen == 0


@pytest.mark.parametrize("cloned", [False, True])
def test_a_client_reads_in_a_session_over_all_hosts(threads, cloned):
    host, other = threads.host("first"), threads.host("second")
    other.space("jobs").write_all([("job", i) for i in range(3)])
    host.engage(other.address)
    await_space(host, other.id)
    with connect(f"{host.url}jobs") as space, space.session() as session:
        reader = session.clone() if cloned else session
        assert [reader.read(("job", int), wait=0) for _ in range(4)] == [
            *[("job", i) for i in range(3)],
            None,
        ]
        assert reader.seen == 3


# Everything at once


@pytest.mark.parametrize("seed", seeds(3))
def test_each_entry_once_and_in_order_through_everything(seed, monkeypatch):
    """Several read in one session, at a host of three, while links are cut and parted, hosts forget
    sessions, and reads are called off."""
    monkeypatch.setattr(peer_module, "SESSIONS_CACHED_MAX", 1 if seed % 3 == 0 else 1_000)
    monkeypatch.setattr(records, "CHANGES_MAX", 4 if seed % 2 else 4_096)
    rng = Random(seed)

    async def main(field: Field) -> None:
        sessions = [field.spaces[0].session(), field.spaces[0].session()]
        got: list[list[tuple[str, int]]] = [[], []]
        written: dict[str, int] = defaultdict(int)
        over = False

        async def write(number: int) -> None:
            space = field.spaces[number]
            while not over:
                name = "abc"[number]
                lease = 1.0 if rng.random() < 0.2 else None
                word = "brief" if lease else "news"
                await space.write((word, name, written[name]), lease=lease)
                written[name] += 1
                await asyncio.sleep(rng.uniform(0, 0.2))

        async def read(which: int) -> None:
            session = sessions[which]
            while not over:
                wait = rng.choice((0, 0.1))
                many = rng.random() < 0.3
                template = (str, str, int)
                work = (
                    session.read_all(template, wait=wait, limit=rng.choice((None, 1, 3)))
                    if many
                    else session.read(template, wait=wait)
                )
                reading = asyncio.ensure_future(work)
                await asyncio.wait([reading], timeout=rng.choice((0.01, 10.0)))
                reading.cancel()
                await asyncio.wait([reading])
                if not reading.cancelled() and reading.exception() is None:
                    found = reading.result()
                    for entry in found if many else [found] if found else []:
                        got[which].append(entry[1:])
                await asyncio.sleep(rng.uniform(0, 0.05))

        async def trouble() -> None:
            while not over:
                await asyncio.sleep(rng.uniform(0, 1.0))
                match rng.randrange(4):
                    case 0:
                        field.network.cut("a", rng.choice("bc"))
                    case 1:
                        field.network.partition(["a", "b"], ["c"])
                        await asyncio.sleep(rng.uniform(0, 4.0))
                        field.network.heal()
                    case 2:
                        for peer in field.cores[rng.choice((1, 2))].peers.values():
                            peer._sessions.forget_all()

        tasks = [asyncio.ensure_future(write(number)) for number in range(3)]
        tasks += [asyncio.ensure_future(read(which)) for which in (0, 0, 0, 1)]
        tasks.append(asyncio.ensure_future(trouble()))
        await asyncio.sleep(12)
        over = True
        await asyncio.gather(*tasks)
        await field.meet()
        alive = {entry[1:] for space in field.spaces for entry in await space.here.read_all(NEWS)}
        for session, read_so_far in zip(sessions, got, strict=True):
            read_so_far += [entry[1:] for entry in await session.read_all((str, str, int))]
            assert len(read_so_far) == len(set(read_so_far)), "twice"
            assert alive <= set(read_so_far), "missed"
            if session is sessions[1]:  # Of several readers each has its own order.
                for name in "abc":
                    numbers = [n for source, n in read_so_far if source == name]
                    assert numbers == sorted(numbers), "not in order"
        assert sum(written.values()) > 100

    played(main, hosts=3, seed=seed)


# Records


def test_what_is_summed_up_is_what_happened():
    """A host that hears of every change knows what the record knows."""

    class Peer:
        """Anyone."""

    rng = Random(5)
    peer: Any = Peer()
    record, kept = SeenRecord(), peer_module.PeerSeen()
    kept.heard(record.notes_for(peer, 1))
    for round_number in range(200):
        for _ in range(rng.randrange(6)):
            n, origin = rng.randrange(40), rng.choice("xy")
            entry: Any = type("E", (), {"origin": origin, "n": n})
            match rng.randrange(4):
                case 0:
                    record.discard(entry)
                case 1:
                    gone = Seen()
                    gone.bits = {origin: BitMap64([n, n + 1])}
                    record.prune(gone)
                case _:
                    record.add(entry)
        notes = record.notes_for(peer, 1)
        kept.heard(notes)
        assert {o: b for o, b in kept.bits.items() if b} == {
            o: b for o, b in record.bits.items() if b
        }, round_number


def test_what_was_gone_and_is_seen_again_is_told_as_seen():
    class Peer:
        """Anyone."""

    peer: Any = Peer()
    entry: Any = type("E", (), {"origin": "x", "n": 7})
    record, kept, gone = SeenRecord(), peer_module.PeerSeen(), Seen()
    gone.add(entry)
    kept.heard(record.notes_for(peer, 1))
    record.add(entry)
    kept.heard(record.notes_for(peer, 2))
    record.prune(gone)
    record.add(entry)
    kept.heard(record.notes_for(peer, 3))
    assert entry in kept


def test_nothing_is_forgotten_while_a_reader_has_it_in_its_hands():
    record = SeenRecord()
    entry: Any = type("E", (), {"origin": "x", "n": 7})
    gone = Seen()
    gone.add(entry)
    record.add(entry)
    record.hold()
    record.prune(gone)
    assert record.choose([entry], None) == []
    record.release()
    assert len(record) == 0


# Those who talk nonsense


ALL = template_to_wire(("job", int))


@pytest.fixture
def nosy(threads):
    """A host with an entry, and a line to it from one that is no good."""
    host = threads.host("good")
    host.space("jobs").write(("job", 1))
    raw = Raw.met(host.address, "host", spaces=["jobs"])
    yield host, raw
    raw.close()


def test_a_session_that_is_not_known_is_asked_for(nosy):
    _, raw = nosy
    notes = wire.SessionDelta(9, 4, 5, {})
    assert raw.call(wire.Ask, "jobs", ALL, "read", seen=notes).value is None
    notes = wire.SessionDelta(9, 0, 5, {})
    entries, gone = raw.call(wire.Ask, "jobs", ALL, "read", seen=notes).value
    assert (len(entries), gone) == (1, None)
    seen: dict[str, bytes | list[int]] = {entries[0][1]: BitMap64([entries[0][2]]).serialize()}
    notes = wire.SessionDelta(9, 5, 6, seen)
    assert raw.call(wire.Ask, "jobs", ALL, "read", seen=notes).value == [[], None]
    assert raw.call(wire.Ask, "jobs", ALL, "read", seen=notes).value is None
    assert raw.call(wire.Ask, "nowhere", ALL, "read", seen=notes).value == [[], None]
    notes = wire.SessionDelta(9, 6, 7, {}, seen)
    (again,), _ = raw.call(wire.Ask, "jobs", ALL, "read", seen=notes).value
    assert again == entries[0]


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", bytes(40), b"\xff" * 64, [-1], [-(2**63)], list(range(9))]
)
def test_numbers_that_cannot_be_are_refused(nosy, data):
    host, raw = nosy
    for notes in (
        wire.SessionDelta(9, 0, 5, {"x": data}),
        wire.SessionDelta(9, 0, 5, {}, {"x": data}),
        wire.SessionDelta(9, 0, 5, {}, {}, {"x": data}),
        wire.SessionDelta(0, 0, 0, {"x": data}),
    ):
        raw.call(wire.Ask, "jobs", ALL, "read", seen=notes)
    assert host.space("jobs").here.count() == 1


@pytest.mark.parametrize("nonsense", [None, [], [[]], [[], {}, {}], [[], {"x": b"no"}], [[], 5], 7])
def test_a_host_that_answers_nonsense_is_missing(nosy, nonsense, later):
    host, raw = nosy
    session = host.space("jobs").session()
    session.read_all(scope=HERE)
    for read in (session.read, session.read_all):
        call = later(read, ("job", int), wait=0)
        since = 1
        while since:  # None would be no nonsense if we had reason to think that it knows us.
            ask = raw.hear_until(lambda said: isinstance(said, wire.Ask))
            raw.say(wire.Answer(ask.call, nonsense))
            since = ask.seen.since if nonsense is None else 0
        with pytest.raises(NotAllAnswered):
            call.result()


def test_what_a_host_claims_to_have_seen_is_bounded(nosy, monkeypatch):
    """Also if it is of many origins, with no numbers at all; and if it cannot be."""
    monkeypatch.setattr(peer_module, "SESSION_CACHE_BYTES", 100_000)
    host, raw = nosy
    raw.call(wire.Ask, "jobs", ALL, "read", seen=wire.SessionDelta(1, 0, 1, {}))
    (peer,) = host.core.peers.values()
    peer_session_cache = peer._sessions
    for number in range(2, 6):
        many: dict[str, bytes | list[int]] = {f"{number}/{i}": [] for i in range(300)}
        raw.call(wire.Ask, "jobs", ALL, "read", seen=wire.SessionDelta(number, 0, 1, many))
        raw.call(wire.Ask, "jobs", ALL, "read", seen=wire.SessionDelta(number, 1, 2, {"x": b"no"}))
    assert list(peer_session_cache._kept) == [5]
    assert peer_session_cache._size == peer_session_cache._kept[5].size
    peer_session_cache.forget(5)
    assert peer_session_cache._size == 0


def test_who_says_that_it_saw_all_there_ever_will_be_sees_nothing(nosy):
    _, raw = nosy
    (entry,), _ = raw.call(wire.Ask, "jobs", ALL, "read", seen=wire.SessionDelta(1, 0, 1, {})).value
    most = BitMap64()
    most.add_range(entry[2] - 2**31, entry[2] + 2**31)
    most.run_optimize()
    notes = wire.SessionDelta(2, 0, 1, {entry[1]: most.serialize()})
    assert raw.call(wire.Ask, "jobs", ALL, "read", seen=notes).value == [[], None]


def test_a_watch_that_is_called_off_before_it_stands_never_stands(threads, tmp_path):
    """The take that it belongs to waits for the disk."""
    host = threads.host("good", path=tmp_path / "good")
    raw = Raw.met(host.address, "host", spaces=["jobs"])
    raw.say(*(wire.Ask(n, "jobs", ALL, "take", watch=n) for n in range(1, 40)))
    raw.say(*(wire.UnwatchRequest(100 + n, n) for n in range(1, 40)))
    waited_for = {*range(1, 40), *range(101, 140)}
    while waited_for:
        waited_for.discard(getattr(raw.hear(), "call", 0))
    (peer,) = host.core.peers.values()
    assert not peer._watches
    raw.close()


@pytest.mark.parametrize("in_session", [False, True])
def test_a_waiting_read_gets_the_entry_with_the_hint(in_session):
    """The reader does not ask a second time."""

    async def main(field: Field) -> None:
        here, there = field.spaces
        reader = here.session() if in_session else here
        waiting = asyncio.create_task(reader.read(NEWS))
        await asyncio.sleep(1)
        await there.write(("news", "x", 1))
        assert await waiting == ("news", "x", 1)
        assert sum("a → b  Ask(" in line for line in field.network.trace) == 1

    played(main)


def test_of_several_entries_that_come_at_once_a_waiting_read_gets_the_oldest():
    async def main(field: Field) -> None:
        here, there = field.spaces
        session = here.session()
        waiting = asyncio.create_task(session.read(NEWS))
        await asyncio.sleep(1)
        await there.write_all([("news", "x", i) for i in range(3)])
        assert await waiting == ("news", "x", 0)
        assert [await session.read(NEWS) for _ in range(2)] == [("news", "x", 1), ("news", "x", 2)]

    played(main)
