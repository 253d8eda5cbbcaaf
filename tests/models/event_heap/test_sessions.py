"""Sessions: at most once, cloned, inherited, and shared by hosts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.models.event_heap.world import HeapHost, HeapWorld, meet
from tupelo.errors import BadArgument, BadFrame, BadInput, LeaseLost, SessionLost, TokenAway
from tupelo.federation.replication.tokens import Token
from tupelo.models.event_heap import Event, Session
from tupelo.models.event_heap.events import event_template
from tupelo.models.event_heap.records import SessionSeen
from tupelo.models.event_heap.replica import Replica
from tupelo.models.event_heap.seen import encode_seen
from tupelo.space.session import Seen
from tupelo.values.entry import Entry
from tupelo.values.kind import kind_of

ROW = ("ba", "cb")


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


def test_each_session_sees_an_event_once_whatever_template_finds_it():
    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        await a.put(Event("n", i=1), Event("n", i=2), Event("m"))
        first = await a.do(a.heap.session())
        assert await a.do(first.get(Event("n", i=2))) == Event("n", i=2)
        assert await a.do(first.get(Event("n"))) == Event("n", i=1)
        assert await a.do(first.get(Event("n"))) is None
        again = await a.do(a.heap.session())
        assert await a.do(again.get(Event("n"))) == Event("n", i=1)
        heir = await a.do(first.clone())
        assert await a.do(heir.get_all()) == [Event("m")]
        assert await a.do(first.get_all()) == [Event("m")]
        await a.do(first.close())
        await a.put(Event("k"))
        assert await a.do(heir.get()) == Event("k")

    meet(scene, names="a")


async def open_shared(world: HeapWorld, name: str, shared: str) -> Session:
    opened: Session = await world[name].do(world[name].heap.session(shared, wait=30.0))
    return opened


async def work(member: HeapHost, session: Session, count: list[int], wait: float = 3.0) -> None:
    while True:
        try:
            event = await session.wait(Event("job"), wait=wait)
        except TokenAway:
            continue
        if event is None:
            return
        count.append(event["i"])
        await asyncio.sleep(0.01)


def test_hosts_that_share_a_session_share_the_work(folder):
    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        await a.put(Event("job", i=-1))
        mine = await a.do(a.heap.session())
        assert (await a.do(mine.get()))["i"] == -1
        shared = await a.do(mine.share())
        done: dict[str, list[int]] = {name: [] for name in "abc"}
        tasks = []
        for name in "abc":
            session = await world[name].do(world[name].heap.session(shared, wait=30.0))
            assert session.id == shared
            tasks.append(world[name].do(work(world[name], session, done[name])))
        for i in range(12):
            await world["abc"[i % 3]].put(Event("job", i=i))
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks)
        assert sorted(i for one in done.values() for i in one) == list(range(12))
        # Another session sees all of them.
        again = await world["b"].do(world["b"].heap.session())
        assert len(await world["b"].do(again.get_all())) == 13

    meet(scene, *ROW, folder=folder)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_gets_twice_what_is_shared_through_partings_and_removals(seed):
    async def scene(world: HeapWorld) -> None:
        rng = Random(seed)
        names = "abcd"
        shared = await world["a"].do((await world["a"].do(world["a"].heap.session())).share())
        done: list[int] = []
        tasks = []
        for name in names:
            session = await world[name].do(world[name].heap.session(shared, wait=30.0))
            tasks.append(world[name].do(work(world[name], session, done, wait=30.0)))
        for i in range(12):
            name = rng.choice(names)
            await world[name].put(Event("job", i=i))
            if rng.random() < 0.2:
                await world[name].do(world[name].heap.put(Event("other")))
                await world[name].do(world[name].heap.remove(Event("other")))
            if rng.random() < 0.4:
                side = [one for one in names if rng.random() < 0.5]
                world.network.partition(side, [one for one in names if one not in side])
                await asyncio.sleep(rng.random() * 5)
                world.network.heal()
        await asyncio.gather(*tasks)
        assert sorted(done) == list(range(12))

    meet(scene, "ba", "cb", "dc", "da", seed=seed)


def test_who_cannot_get_the_record_is_told_so():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        shared = await a.do((await a.do(a.heap.session())).share())
        theirs = await b.do(b.heap.session(shared, wait=30.0))
        world.network.partition("a", "b")
        await asyncio.sleep(5)
        assert await b.do(theirs.get()) is None  # There is nothing.
        await b.put(Event("n"))
        with pytest.raises(TokenAway):
            await b.do(theirs.get())
        with pytest.raises(BadArgument):
            await b.do(b.heap.session("nonsense"))
        world.network.heal()
        assert await b.do(theirs.wait(wait=30.0)) == Event("n")

    meet(scene, "ba")


@pytest.mark.parametrize("seed", range(2))
def test_nobody_gets_twice_what_is_shared_through_crashes(seed, tmp_path):
    async def scene(world: HeapWorld) -> None:
        rng = Random(seed)
        names = "abc"
        shared = await world["a"].do((await world["a"].do(world["a"].heap.session())).share())
        done: list[int] = []
        tasks: dict[str, asyncio.Task[None]] = {}

        async def begin(name: str) -> None:
            session = await world[name].do(world[name].heap.session(shared, wait=30.0))
            tasks[name] = world[name].do(work(world[name], session, done, wait=20.0))

        for name in names:
            await begin(name)
        for i in range(12):
            await world[rng.choice(names)].put(Event("job", i=i))
            await asyncio.sleep(rng.random())
            if i % 4 == 3:
                victim = rng.choice(names)
                await world[victim].citizen.crash()
                await asyncio.wait([tasks[victim]])
                await world[victim].citizen.start()
                world[victim].begin()
                await begin(victim)
        await asyncio.gather(*tasks.values())
        # One that was given to a host as it crashed may be lost with it, but is given to no other.
        assert len(done) == len(set(done)) >= 9

    meet(scene, *ROW, folder=tmp_path, seed=seed)


def test_a_session_whose_record_is_lost_says_what_to_do():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        shared = await a.do((await a.do(a.heap.session())).share())
        theirs = await b.do(b.heap.session(shared, wait=30.0))
        await b.put(Event("n", i=1))
        await a.citizen.crash()
        waiting = b.do(theirs.wait())
        await asyncio.sleep(1)
        assert not waiting.done()  # It may be within reach again.
        await a.citizen.start()
        a.begin()
        with pytest.raises(SessionLost, match="share a new one") as raised:
            await waiting
        assert raised.value.session == shared
        with pytest.raises(SessionLost):
            await b.do(theirs.get_all())
        anew = await b.do((await b.do(theirs.clone())).share())
        ours = await b.do(b.heap.session(anew))
        assert await b.do(ours.get()) == Event("n", i=1)

    meet(scene, "ba")


def test_who_shares_a_session_knows_what_the_others_have_seen():
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(*[Event("n", i=i) for i in range(5)])
        session = await world["a"].do(world["a"].heap.session())
        shared = await world["a"].do(session.share())
        await world.together()
        opened = {name: await open_shared(world, name, shared) for name in "abc"}
        for i, name in enumerate("abc"):
            assert await world[name].do(opened[name].get()) == Event("n", i=i)
        for name in "abc":
            twin = await world[name].do(opened[name].clone())
            assert await world[name].do(twin.get()) == Event("n", i=3)
            again = await open_shared(world, name, await world[name].do(opened[name].share()))
            assert await world[name].do(again.get()) == Event("n", i=3)

    meet(scene, "ba", "cb")


def test_a_cancelled_get_of_a_shared_session_loses_nothing(tmp_path, monkeypatch):
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("n", i=1))
        shared = await world["a"].do((await world["a"].do(world["a"].heap.session())).share())
        await world.together()
        opened = {name: await open_shared(world, name, shared) for name in "ab"}

        async def record(replica: Replica, *told: Any) -> None:
            await asyncio.sleep(1)
            await original(replica, *told)

        original = Replica.record
        monkeypatch.setattr(Replica, "record", record)
        getting = world["a"].do(opened["a"].get())
        await asyncio.sleep(0.5)
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        assert await world["b"].do(opened["b"].wait(wait=30.0)) == Event("n", i=1)
        assert await world["a"].do(opened["a"].get()) is None

    meet(scene, "ba", folder=tmp_path)


def test_who_waits_for_a_token_is_told_that_the_session_was_closed():
    async def scene(world: HeapWorld) -> None:
        shared = await world["a"].do((await world["a"].do(world["a"].heap.session())).share())
        opened = await open_shared(world, "b", shared)
        await world["a"].put(Event("n", i=1))
        await world.together()
        world.network.partition("a", "b")
        waiting = [world["b"].do(opened.wait()) for _ in range(2)]
        await asyncio.sleep(2)
        await world["b"].do(opened.close())
        for one in waiting:
            with pytest.raises(LeaseLost):
                await asyncio.wait_for(one, 5.0)

    meet(scene, "ba")


def test_a_hand_over_costs_the_same_however_much_was_seen(monkeypatch):
    """Bytes that are sent, and events that are looked at."""
    looked: list[Entry] = []

    def contains(seen: Seen, entry: Entry) -> bool:
        looked.append(entry)
        return bool(original(seen, entry))

    original = Seen.__contains__
    monkeypatch.setattr(Seen, "__contains__", contains)
    costs: list[tuple[int, int]] = []

    def sent(world: HeapWorld) -> int:
        return sum(traffic.bytes for traffic in world.network.sent.values())

    async def scene(world: HeapWorld) -> None:
        a, many = world["a"], sizes[len(costs)]
        kinds = "odd", "even"  # Of the numbers that were seen every second one is missing.
        await a.do(a.heap.put_all([Event(kinds[i % 2], i=i) for i in range(many)]))
        shared = await a.do((await a.do(a.heap.session())).share())
        await world.together()
        opened = {name: await open_shared(world, name, shared) for name in "ab"}
        assert len(await a.do(opened["a"].get_all(Event("even")))) == many // 2

        async def take_turns() -> None:
            for name in "baba":
                assert await world[name].do(opened[name].get(Event("odd"))) is not None
            await world.together()

        await take_turns()  # Each has looked at all, once.
        before = sent(world), len(looked)
        await take_turns()
        costs.append((sent(world) - before[0], len(looked) - before[1]))

    sizes = 100, 3_200
    for _ in sizes:
        meet(scene, "ba")
    (few_bytes, few_looks), (many_bytes, many_looks) = costs
    assert many_bytes < 1.1 * few_bytes
    assert many_looks == few_looks


def test_what_was_seen_is_told_anew_and_records_before_that_are_removed(folder, monkeypatch):
    monkeypatch.setattr(Replica, "folded_after", 5)

    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        await a.put(*[Event("n", i=i) for i in range(30)])
        shared = await a.do((await a.do(a.heap.session())).share())
        await world.together()
        opened = {name: await open_shared(world, name, shared) for name in "abc"}
        got = [(await world[name].do(opened[name].get()))["i"] for name in "abcaabccab" * 2]
        assert got == list(range(20))
        await world.together()
        for member in world.members.values():
            told = member.replica.system.space.port.entries()
            assert len([one for one in told if one.shape.kind is kind_of(SessionSeen)]) < 12
        if folder is not None:
            for name in "cab":
                await world[name].citizen.crash()
                await world[name].citizen.start()
                world[name].begin()
            opened = {name: await open_shared(world, name, shared) for name in "abc"}
        got = [(await world[name].do(opened[name].wait(wait=30.0)))["i"] for name in "bacb"]
        assert got == list(range(20, 24))

    meet(scene, *ROW, folder=folder)


def test_the_token_of_an_older_release_is_read_with_the_events_that_it_carries(tmp_path):
    """Before decision 0043 the token itself carried what was seen, and no record told it."""

    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        await a.put(*[Event("n", i=i) for i in range(4)])
        shared = await a.do((await a.do(a.heap.session())).share())
        seen = Seen()
        for entry in a.replica.find(event_template(Event("n")), 2):
            seen.add(entry)
        await a.do(write_token(a, shared, encode_seen(seen)))
        await a.citizen.crash()
        await a.citizen.start()
        a.begin()
        session = await open_shared(world, "a", shared)
        assert await a.do(session.get()) == Event("n", i=2)
        b = world["b"]
        other = await open_shared(world, "b", shared)
        assert await b.do(other.wait(wait=30.0)) == Event("n", i=3)
        await b.do(write_token(b, shared, b"garbage"))
        with pytest.raises(BadFrame, match=f"session '{shared}' cannot be read.*share a new"):
            await b.do(other.get_all())
        await b.citizen.crash()

    meet(scene, *ROW, folder=tmp_path)


async def write_token(member: HeapHost, session: str, state: bytes) -> None:
    async with member.replica.shared_record(session).token.held() as token:
        token.state = state


# Others go on


def test_others_go_on_with_a_session_whose_host_is_gone():
    async def scene(world: HeapWorld) -> None:
        b, c = world["b"], world["c"]
        opened = await shared_by_three(world)
        assert await world["a"].do(opened["a"].get()) == Event("n", i=3)
        await world.together()
        await world["a"].citizen.crash()
        for name in "bc":
            with pytest.raises(SessionLost, match="resume") as raised:
                await asyncio.wait_for(world[name].do(opened[name].wait()), 60.0)
            assert (raised.value.holder, raised.value.resumed) == ("a", False)
        late = await open_shared(world, "c", opened["b"].id or "")
        await b.do(opened["b"].resume())
        # What the one that is gone has read is known, as far as it was heard.
        assert await b.do(opened["b"].get()) == Event("n", i=4)
        assert await c.do(opened["c"].wait()) == Event("n", i=5)
        with pytest.raises(SessionLost, match="resumed") as raised:  # It was not told yet.
            await c.do(late.get())
        assert raised.value.resumed
        assert await c.do(late.get()) == Event("n", i=6)
        await c.do(opened["c"].resume())  # Nothing is done.
        assert await b.do(opened["b"].get_all()) == [Event("n", i=7)]

    meet(scene, *ROW)


async def shared_by_three(world: HeapWorld) -> dict[str, Session]:
    """A session of eight events, of which each has read one."""
    a = world["a"]
    await a.put(*[Event("n", i=i) for i in range(8)])
    shared = await a.do((await a.do(a.heap.session())).share())
    await world.together()
    opened = {name: await open_shared(world, name, shared) for name in "abc"}
    for i, name in enumerate("abc"):
        assert await world[name].do(opened[name].get()) == Event("n", i=i)
    return opened


def test_what_a_host_has_told_nobody_is_given_again_and_it_goes_on_with_the_others(folder):
    """It was only out of reach: when they meet again there is one session."""

    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        opened = await shared_by_three(world)
        assert await a.do(opened["a"].get()) == Event("n", i=3)
        await world.together()
        world.network.partition("a", "bc")
        await world.until(lambda: "a" not in b.replica.others, "they have parted")
        assert await a.do(opened["a"].get()) == Event("n", i=4)
        await b.do(opened["b"].resume())
        assert await b.do(opened["b"].get()) == Event("n", i=4)
        with pytest.raises(SessionLost, match="resumed"):
            await world["c"].do(opened["c"].wait(wait=30.0))
        assert await world["c"].do(opened["c"].get()) == Event("n", i=5)
        assert await a.do(opened["a"].get()) == Event("n", i=5)
        assert await a.do(opened["a"].get()) == Event("n", i=6)
        world.network.heal()
        await world.until(lambda: "a" in b.replica.others, "they have met")
        # From now on nothing is given twice, though nobody has waited until all was heard.
        assert await world["c"].do(opened["c"].get()) == Event("n", i=7)
        await b.put(Event("n", i=8))
        await world.together()
        with pytest.raises(SessionLost, match="resumed"):
            await a.do(opened["a"].wait(wait=30.0))
        assert await a.do(opened["a"].get_all()) == [Event("n", i=8)]
        for name in "abc":
            assert await world[name].do(opened[name].get_all()) == []

    meet(scene, *ROW, "ca", folder=folder)


def test_of_a_session_that_was_resumed_in_two_places_one_is_left(folder):
    async def scene(world: HeapWorld) -> None:
        opened = await shared_by_three(world)
        assert await world["a"].do(opened["a"].get()) == Event("n", i=3)
        await world.together()
        world.network.partition("a", "b", "c")
        await asyncio.sleep(5)
        for name in "bc":
            await world[name].do(opened[name].resume())
            assert await world[name].do(opened[name].get()) == Event("n", i=4)
        assert await world["c"].do(opened["c"].get()) == Event("n", i=5)
        world.network.heal()
        await world.until(
            lambda: all(len(world[name].replica.others) == 2 for name in "abc"),
            "they have met",
        )
        tasks = [world[name].do(read_on(opened[name])) for name in "abc"]
        assert sorted(await tasks[0] + await tasks[1] + await tasks[2]) == [6, 7]
        here = [name for name in "abc" if token_of(world[name], opened["a"]).here]
        assert len(here) == 1

    meet(scene, *ROW, "ca", folder=folder)


def test_a_session_that_was_resumed_at_a_host_that_is_lost_as_well_is_resumed_again():
    """Its first holder is back, and finds that a lost token has replaced its own."""

    async def scene(world: HeapWorld) -> None:
        a, b, c = world["a"], world["b"], world["c"]
        opened = await shared_by_three(world)
        assert await a.do(opened["a"].get()) == Event("n", i=3)
        await world.together()
        world.network.partition("a", "bc")
        await asyncio.sleep(5)
        await b.do(opened["b"].resume())
        await c.do(opened["c"].resume())
        assert await c.do(opened["c"].get()) == Event("n", i=4)
        world.network.heal()
        await world.until(lambda: all(len(one.replica.others) == 2 for one in (a, b, c)), "met")
        await world.together()
        assert token_of(a, opened["a"]).here and token_of(c, opened["c"]).here
        await c.citizen.crash()
        await c.citizen.start()
        c.begin()
        await world.until(lambda: all(len(one.replica.others) == 2 for one in (a, b, c)), "again")
        with pytest.raises(SessionLost):
            await b.do(opened["b"].get())
        await b.do(opened["b"].resume())
        assert await b.do(opened["b"].get()) == Event("n", i=5)

    meet(scene, *ROW, "ca")


def test_a_session_that_was_resumed_apart_goes_on_when_its_first_token_has_moved_often():
    """Other hosts know that the token was replaced, and still where the first one is."""

    async def scene(world: HeapWorld) -> None:
        opened = await shared_by_three(world)
        assert await world["a"].do(opened["a"].get()) == Event("n", i=3)
        await world.together()
        world.network.partition("ab", "c")
        await asyncio.sleep(5)
        await world["c"].do(opened["c"].resume())
        for name, number in (("b", 4), ("a", 5)):
            assert await world[name].do(opened[name].get()) == Event("n", i=number)
        world.network.heal()
        await world.until(
            lambda: all(len(world[name].replica.others) == 2 for name in "abc"),
            "they have met",
        )
        await world.together()
        async with asyncio.timeout(600):
            for name in "abc":
                with suppress(SessionLost):
                    await world[name].do(opened[name].get())
            tasks = [world[name].do(read_on(opened[name])) for name in "abc"]
            await asyncio.wait(tasks)
        here = [name for name in "abc" if token_of(world[name], opened["a"]).here]
        assert len(here) == 1

    meet(scene, *ROW, "ca")


async def read_on(session: Session) -> list[int]:
    got: list[int] = []
    while True:
        try:
            event = await session.wait(wait=30.0)
        except TokenAway:
            continue
        if event is None:
            return got
        got.append(event["i"])


def token_of(member: HeapHost, session: Session) -> Token:
    return member.replica.shared_record(session.id or "").token


def test_only_a_shared_session_can_be_resumed():
    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        with pytest.raises(BadInput, match="shared"):
            await a.do((await a.do(a.heap.session())).resume())

    meet(scene, names="a")
