"""Agents at both doors: what they are given, how they run, and how they end."""

from __future__ import annotations

import asyncio
import logging
import queue
from typing import Any, cast

import pytest

import tupelo
from tests.models.lime.stage import (
    PATIENCE_SECONDS,
    Stage,
    at_both_doors,
    do,
    on_every_kind,
    play_async,
    play_blocking,
    shared,
)
from tupelo.errors import AgentEnded, BadArgument, BadInput, LoadFailed, MigrationFailed
from tupelo.models import lime
from tupelo.models.lime import Agent, HostLocation, LimeTupleSpace
from tupelo.models.lime.messages import PAYLOAD_BYTES_MAX

ITEM = ("item", int)
PATIENCE: dict[str, Any] = {"wait": PATIENCE_SECONDS}


class Counter(Agent):
    """Writes a number of tuples, and goes on living."""

    def __init__(self, items: int = 1) -> None:
        self.items = items
        self.board = LimeTupleSpace("board")

    def run(self) -> None:
        self.board.set_shared(True)
        for number in range(self.items):
            self.board.out(("item", number))
        LimeTupleSpace("board").out(("done", self.id))


class AsyncCounter(Agent):
    """The same, for the async door."""

    def __init__(self, items: int = 1) -> None:
        self.items = items
        self.board = LimeTupleSpace("board")

    async def run(self) -> None:
        await self.board.set_shared(True)
        for number in range(self.items):
            await self.board.out(("item", number))
        await LimeTupleSpace("board").out(("done", self.id))


def counter(stage: Stage) -> type[Counter] | type[AsyncCounter]:
    return AsyncCounter if stage.is_async else Counter


@on_every_kind
def test_an_agent_runs_with_what_it_was_given_and_is_still_there_afterwards(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        mine = await shared("board", await do(host.agent("ada")))
        agent = await do(host.load(counter(stage), 3))
        assert await do(mine.in_(("done", str), **PATIENCE)) == ("done", agent.id)
        await stage.until(lambda: not agent.running, "run() returns")
        assert sorted(await do(mine.rdg(ITEM, agent.location))) == [("item", n) for n in range(3)]
        assert await do(host.system.rdp(("agent", agent.id, host.location.id, str))) is not None
        assert not agent.ended and agent.error is None

    play(scene)


@on_every_kind
def test_an_agent_knows_who_and_where_it_is(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada, other = await do(host.agent("ada")), await do(host.agent("ada"))
        assert (ada.name, ada.host) == ("ada", host)
        assert ada.id.startswith("ada#") and ada.location == lime.AgentLocation(ada.id)
        assert ada.id != other.id
        agent = await do(host.load(counter(stage)))
        assert agent.name == type(agent).__name__
        named = await do(host.load(counter(stage), name="nan"))
        assert named.name == "nan" and named.id in repr(named)

    play(scene)


@on_every_kind
def test_an_agent_that_ends_takes_its_spaces_with_it(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        mine = await shared("board", await do(a.agent("ada")))
        ben = await do(b.agent("ben"))
        theirs = await shared("board", ben)
        await do(theirs.out(("item", 1)))
        await do(mine.out(("item", 2)))
        await do(ben.end())
        await do(ben.end())
        assert ben.ended
        assert await do(mine.rdg(ITEM)) == [("item", 2)]
        assert await do(a.system.rdp(("agent", ben.id, str, str))) is None
        with pytest.raises(AgentEnded, match="ben") as ended:
            await do(theirs.rdp(ITEM))
        assert ended.value.agent == ben.id

    play(scene)


class Waiter(Agent):
    def __init__(self, told: Any) -> None:
        self._told = told

    def run(self) -> None:
        board = LimeTupleSpace("board")
        board.set_shared(True)
        board.out(("waiting",))
        try:
            board.in_(ITEM)
        except Exception as error:
            self._told.put(error)
            raise


def test_an_agent_that_waits_hears_that_it_was_ended(caplog):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        mine = await shared("board", host.agent("ada"))
        told: queue.Queue[Exception] = queue.Queue()
        waiter = host.load(Waiter, told)
        mine.in_(("waiting",), **PATIENCE)
        waiter.end()
        assert isinstance(told.get(timeout=PATIENCE_SECONDS), AgentEnded)
        await stage.until(lambda: not waiter.running)
        assert waiter.error is None

    with caplog.at_level(logging.ERROR):
        play_blocking(scene)
    assert not caplog.records


class AsyncWaiter(Agent):
    ended_well = False

    async def run(self) -> None:
        board = LimeTupleSpace("board")
        await board.set_shared(True)
        await board.out(("waiting",))
        try:
            await board.in_(ITEM)
        finally:
            type(self).ended_well = True


def test_the_task_of_an_agent_ends_with_it():
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        mine = await shared("board", await host.agent("ada"))
        waiter = await host.load(AsyncWaiter)
        await mine.in_(("waiting",), **PATIENCE)
        await waiter.end()
        await stage.until(lambda: not waiter.running)
        assert AsyncWaiter.ended_well

    play_async(scene)


class Clumsy(Agent):
    def run(self) -> None:
        LimeTupleSpace("board").set_shared(True)
        LimeTupleSpace("board").out(("item", 1))
        raise ArithmeticError("dropped it")


class AsyncClumsy(Agent):
    async def run(self) -> None:
        board = LimeTupleSpace("board")
        await board.set_shared(True)
        await board.out(("item", 1))
        raise ArithmeticError("dropped it")


@at_both_doors
def test_an_agent_whose_run_raises_says_so_and_its_tuples_stay(play, caplog):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        mine = await shared("board", await do(host.agent("ada")))
        agent = await do(host.load(AsyncClumsy if stage.is_async else Clumsy))
        await stage.until(lambda: not agent.running)
        assert isinstance(agent.error, ArithmeticError) and not agent.ended
        assert await do(mine.rdp(ITEM)) == ("item", 1)

    with caplog.at_level(logging.ERROR, "tupelo"):
        play(scene)
    assert ["dropped it" in (record.exc_text or "") for record in caplog.records] == [True]


class Stillborn(Agent):
    def __init__(self) -> None:
        raise ArithmeticError("not today")


@at_both_doors
def test_an_agent_that_cannot_be_made_is_not_there(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        await do(host.agent("ada"))
        with pytest.raises(ArithmeticError):
            await do(host.load(Stillborn))
        assert await do(host.system.rdg(("agent", str, str, str))) == [
            found
            for found in await do(host.system.rdg(("agent", str, str, str)))
            if found[1].startswith("ada#")
        ]

    play(scene)


@at_both_doors
def test_a_class_must_fit_its_door(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        wrong = Counter if stage.is_async else AsyncCounter
        for use in (host.register, host.load):
            with pytest.raises(BadArgument, match="run"):
                await do(use(wrong))
        with pytest.raises(BadArgument, match="cls="):
            await do(host.load(int))  # type: ignore[type-var]

        class Other(Agent):
            """Lives by its reactions alone, at either door."""

        Other.__name__ = "Counter"
        host.register(counter(stage), "Counter")
        with pytest.raises(BadArgument, match="name="):
            host.register(Other)
        host.register(Other, "Other")

    play(scene)


def test_an_agent_that_was_not_loaded_is_nowhere():
    agent = Agent()
    assert "at no host" in repr(agent)
    for use in (lambda: agent.id, lambda: agent.host, agent.end, lambda: agent.location):
        with pytest.raises(BadInput, match="load"):
            use()


@on_every_kind
def test_a_stationary_agent_stays(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        ada = await do(a.agent("ada"))
        with pytest.raises(MigrationFailed, match="stationary") as refused:
            await do(ada.migrate(b.location))
        assert (refused.value.agent, refused.value.host) == (ada.id, b.location.id)
        with pytest.raises(BadArgument, match="host="):
            await do(ada.migrate(a.location))
        with pytest.raises(BadArgument, match="host="):
            await do(ada.migrate("b"))
        assert not ada.ended

    play(scene)


def test_agents_end_when_their_host_is_closed():
    async def scene() -> None:
        from tupelo import aio

        async with aio.Host("a") as tuple_store:
            async with lime.Host(tuple_store) as host:
                mine = await shared("board", await host.agent("ada"))
                waiter = await host.load(AsyncWaiter)
                await mine.in_(("waiting",), **PATIENCE)
            assert waiter.ended and not waiter.running
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left

    asyncio.run(scene())


def test_a_location_is_its_name():
    assert HostLocation("a") == HostLocation("a")
    assert cast(Any, HostLocation("a")) != lime.AgentLocation("a")
    assert len({HostLocation("a"), HostLocation("a"), HostLocation("b")}) == 2


# Loading at another host


class Choosy(Agent):
    """Shares a space as it is made, and says what it was given."""

    def __init__(self, space: str, given: Any) -> None:
        self.space = LimeTupleSpace(space)
        if not self.is_async:
            self.space.set_shared(True)
            self.space.out(("given", given))
        if given == "wrong":
            raise ArithmeticError("not that")


@on_every_kind
def test_an_agent_is_loaded_at_another_host_that_knows_its_class(play):
    async def scene(stage: Stage) -> None:
        cls = counter(stage)
        a = await stage.host("a")
        b = await stage.host("b", agents=[cls], near=[a])
        c = await stage.host("c", near=[b])
        await stage.grouped(a, b, c)
        ada = await do(a.agent("ada"))
        mine = await shared("board", ada)
        location = await do(a.load_at(b.location, cls, 3))
        assert a.server.directory.host_of(location.id) == b.location.id
        assert await do(mine.in_(("done", str), **PATIENCE)) == ("done", location.id)
        assert sorted(await do(mine.rdg(ITEM, location))) == [("item", n) for n in range(3)]
        await do(c.agent("cleo"))
        named = await do(c.load_at(b.location, cls.__name__, 0, name="nora"))
        assert named.id.startswith("nora#")
        assert await do(mine.in_(("done", str), **PATIENCE)) == ("done", named.id)
        life = b.runtimes[named.id]
        await do(life.agent.end())
        await stage.until(lambda: a.server.directory.host_of(named.id) is None, "it has ended")

    play(scene)


def test_an_agent_that_is_loaded_elsewhere_may_wait_as_it_is_made():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", agents=[Choosy], near=[a])
        board = await shared("board", a.agent("ada"))
        a.load_at(b.location, Choosy, "board", ["x", 1])
        assert board.rdp(("given", list)) == ("given", ["x", 1])

    play_blocking(scene)


@at_both_doors
def test_what_cannot_be_loaded_elsewhere_is_named_and_nobody_is_there(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", agents=[Choosy], near=[a])
        await do(a.agent("ada"))
        failures: list[tuple[str, tuple[Any, ...]]] = [
            ("knows no class", ("Nobody",)),
            ("knows no class", (counter(stage), 1)),
            ("ArithmeticError: not that", (Choosy, "board", "wrong")),
            ("TypeError", (Choosy,)),
        ]
        for words, (cls, *args) in failures:
            with pytest.raises(LoadFailed, match=words) as failed:
                await do(a.load_at(b.location, cls, *args))
            assert failed.value.host == "b"
        with pytest.raises(LoadFailed, match="'nowhere'"):
            await do(a.load_at(HostLocation("nowhere"), Choosy, "board", 1))
        bad: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("host=", (a.location, Choosy), {}),
            ("host=", ("b", Choosy), {}),
            ("cls=", (b.location, int), {}),
            ("name=", (b.location, Choosy), {"name": ""}),
            ("args=", (b.location, Choosy, "board", object()), {}),
            ("args=", (b.location, Choosy, "board", "x" * (PAYLOAD_BYTES_MAX + 1)), {}),
        ]
        for words, given, options in bad:
            with pytest.raises(BadArgument, match=words):
                await do(a.load_at(*given, **options))
        assert b.runtimes == {}
        found = await do(a.system.rdg(("agent", str, b.location.id, str)))
        assert found == []

    play(scene)


def test_an_agent_that_is_loaded_elsewhere_shares_only_what_its_loader_may_use():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", agents=[Choosy], near=[a])
        b.host.space("board", access=tupelo.Access(take=[]))
        b.host.space("locked", access=tupelo.Access(password="sesame"))
        a.agent("ada")
        for space in ("board", "locked"):
            with pytest.raises(LoadFailed, match=f"NotAllowed.*{space!r}"):
                a.load_at(b.location, Choosy, space, 1)
        assert b.runtimes == {}
        b.load(Choosy, "board", 1)  # The host's own may.
        a.load_at(b.location, Choosy, "other", 1)

    play_blocking(scene)
