"""Agents that move: what travels with them at both doors, and that there is always one of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any, ClassVar

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
from tests.virtual import VirtualFederation, WorldHost
from tupelo import Not
from tupelo.errors import (
    AgentEnded,
    LoadFailed,
    MigrationFailed,
    PeerLost,
    UnknownAgentClass,
)
from tupelo.lab.loop import VirtualLoop, run
from tupelo.lab.network import VirtualNetwork
from tupelo.models import lime
from tupelo.models.lime import (
    ONCE,
    ONCE_PER_TUPLE,
    UNSPECIFIED,
    Agent,
    AgentLocation,
    HostLocation,
    LimeTupleSpace,
    LocalizedReaction,
    ReactionEvent,
    UbiquitousReaction,
    migrating,
)
from tupelo.models.lime.messages import encoded_template

ITEM = ("item", int)
PATIENCE: dict[str, Any] = {"wait": PATIENCE_SECONDS}


class Traveller(Agent):
    """Goes from host to host, and leaves a word at each."""

    def __init__(self, route: list[str]) -> None:
        self.route = route
        self.visited: list[str] = []
        self.board = LimeTupleSpace("board")
        self.system = lime.LimeSystemTupleSpace()

    def run(self) -> None:
        self.board.set_shared(True)
        self.visited.append(self.host.name)
        if self.route:
            name = self.route.pop(0)
            found = self.system.rd(("host", str, name), **PATIENCE)
            self.migrate(HostLocation(found[1]))
        self.board.out(("arrived", self.id, self.visited))


class AsyncTraveller(Agent):
    """The same, for the async door."""

    def __init__(self, route: list[str]) -> None:
        self.route = route
        self.visited: list[str] = []
        self.board = LimeTupleSpace("board")
        self.system = lime.LimeSystemTupleSpace()

    async def run(self) -> None:
        await self.board.set_shared(True)
        self.visited.append(self.host.name)
        if self.route:
            name = self.route.pop(0)
            found = await self.system.rd(("host", str, name), **PATIENCE)
            await self.migrate(HostLocation(found[1]))
        await self.board.out(("arrived", self.id, self.visited))


@on_every_kind
def test_an_agent_goes_from_host_to_host_with_its_state(play):
    async def scene(stage: Stage) -> None:
        cls = AsyncTraveller if stage.is_async else Traveller
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[cls])
        c = await stage.host("c", near=[b], agents=[cls])
        await stage.grouped(a, b, c)
        ada = await do(a.agent("ada"))
        board = await shared("board", ada)
        agent = await do(a.load(cls, ["b", "c"]))
        arrived = await do(board.in_(("arrived", str, list), **PATIENCE))
        assert arrived == ("arrived", agent.id, ["a", "b", "c"])
        system = lime.LimeSystemTupleSpace(ada)
        found = await do(system.rdg(("agent", agent.id, str, str)))
        assert [where for _, _, where, _ in found] == [c.location.id]
        assert agent.ended and not agent.running and agent.error is None

    play(scene)


class Mover(Agent):
    """Moves as soon as it is told to; until then, and after, it listens."""

    heard: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)
        self.board = LimeTupleSpace("board")
        self.failed = ""

    async def run(self) -> None:
        await self.board.set_shared(True)
        await self.board.out(("ready", self.host.name))
        while True:
            _, host_id = await self.board.in_(("go", str), self.location)
            try:
                await self.migrate(HostLocation(host_id))
            except MigrationFailed as error:
                self.failed = str(error)
                await self.board.out(("ready", self.failed))

    def listen(self, event: ReactionEvent) -> None:
        self.heard.append((self.host.name, event.tuple))


@pytest.fixture(autouse=True)
def nothing_heard() -> Iterator[None]:
    Mover.heard.clear()
    yield
    Mover.heard.clear()


async def ready(space: LimeTupleSpace) -> str:
    """Where it is now, or why it is not elsewhere."""
    word: str = (await space.in_(("ready", str), **PATIENCE))[1]
    return word


class Prepared(Mover):
    """It sets itself up before it listens."""

    async def run(self) -> None:
        if not hasattr(self, "diary"):
            self.diary = LimeTupleSpace("diary")
            await self.diary.out(("secret", 42))
            weak = UbiquitousReaction(ITEM, self.listen, ONCE_PER_TUPLE)
            once = UbiquitousReaction(ITEM, self, ONCE)
            off = UbiquitousReaction(ITEM, self.never, ONCE_PER_TUPLE)
            there = LocalizedReaction(
                HostLocation(self.there), UNSPECIFIED, ("loud", int), self.strong, ONCE_PER_TUPLE
            )
            [self.weak, _, self.off] = await self.board.add_weak_reaction(weak, once, off)
            await self.off.disable()
            await self.board.add_strong_reaction(there)
            for number in range(3):
                await self.board.out(("item", number))
            await self.board.out(("misplaced",), AgentLocation("nobody#1"))
        await super().run()

    there: str

    def reacts_to(self, event: ReactionEvent) -> None:
        self.heard.append(("once", self.host.name))

    def never(self, event: ReactionEvent) -> None:
        self.heard.append(("never", event.tuple))

    def strong(self, event: ReactionEvent) -> None:
        self.heard.append(("strong", self.host.name))


def test_spaces_tuples_and_reactions_travel_along():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Prepared])
        ben = await b.agent("ben")
        board = await shared("board", ben)
        Prepared.there = b.location.id
        agent = await a.load(Prepared)
        assert await ready(board) == "a"
        await board.out(("loud", 1))
        await stage.until(lambda: len(Mover.heard) == 4)
        heard = [("a", ("item", number)) for number in range(3)]
        assert sorted(Mover.heard) == sorted([*heard, ("once", "a")])
        await board.out(("go", b.host.id), agent.location)
        assert await ready(board) == "b"
        # What is its own came along, the misplaced one too, with the same agent to hold it.
        own = await board.rdg(tupelo.ANY, agent.location)
        assert sorted(own) == [("item", 0), ("item", 1), ("item", 2), ("misplaced",)]
        here = b.runtimes[agent.id].agent
        assert isinstance(here, Prepared) and here is not agent
        assert (here.id, here.host) == (agent.id, b)
        assert here.diary.name == "diary" and not here.diary.is_shared
        # The strong reaction was for this host: it is in force now, and what is there counts.
        assert Mover.heard[4:] == [("strong", "b")]
        # Nothing is heard twice; what is new is heard here.
        await board.out(("item", 3))
        await stage.until(lambda: len(Mover.heard) == 6)
        assert Mover.heard[5:] == [("b", ("item", 3))]
        assert here.weak.enabled and not here.off.enabled
        assert len(b.runtimes[agent.id].state.reactions) == 3
        assert await a.agent("ada") and not a.system.get_registered_reactions()

    play_async(scene)


class Reader(Mover):
    async def run(self) -> None:
        self.diary = LimeTupleSpace("diary")
        if not hasattr(self, "started"):
            self.started = True
            await self.diary.out(("secret", 42))
        else:
            await self.board.set_shared(True)
            await self.board.out(("told", (await self.diary.rdp(("secret", int)))[1]))
        await super().run()


def test_a_private_space_stays_private_on_the_way():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Reader])
        board = await shared("board", await b.agent("ben"))
        diary = await shared("diary", await b.agent("ben"))
        agent = await a.load(Reader)
        assert await ready(board) == "a"
        await board.out(("go", b.host.id), agent.location)
        assert await ready(board) == "b"
        assert await board.in_(("told", int), **PATIENCE) == ("told", 42)
        assert await diary.rdg(tupelo.ANY) == []

    play_async(scene)


@at_both_doors
def test_an_unknown_class_is_refused_and_the_agent_goes_on(play):
    async def scene(stage: Stage) -> None:
        cls = AsyncStubborn if stage.is_async else Stubborn
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        board = await shared("board", await do(b.agent("ben")))
        agent = await do(a.load(cls, b.location.id))
        _, error, class_name, is_shared = await do(board.in_(("stays", str, str, bool), **PATIENCE))
        assert "b" in error and class_name == cls.__name__
        assert is_shared and not agent.ended
        assert await do(board.rdg(ITEM, agent.location)) == [("item", 1)]

    play(scene)


class Stubborn(Agent):
    def __init__(self, where: str) -> None:
        self.where = where
        self.board = LimeTupleSpace("board")

    def run(self) -> None:
        self.board.set_shared(True)
        self.board.out(("item", 1))
        try:
            self.migrate(HostLocation(self.where))
        except UnknownAgentClass as error:
            self.board.out(("stays", str(error), error.class_name, self.board.is_shared))


class AsyncStubborn(Agent):
    def __init__(self, where: str) -> None:
        self.where = where
        self.board = LimeTupleSpace("board")

    async def run(self) -> None:
        await self.board.set_shared(True)
        await self.board.out(("item", 1))
        try:
            await self.migrate(HostLocation(self.where))
        except UnknownAgentClass as error:
            await self.board.out(("stays", str(error), error.class_name, self.board.is_shared))


async def tried(stage: Stage, cls: type[Mover]) -> str:
    """Why an agent did not move. It goes on where it was, and can do so yet."""
    a = await stage.host("a")
    b = await stage.host("b", near=[a], agents=[cls])
    board = await shared("board", await b.agent("ben"))
    agent = await a.load(cls)
    assert await ready(board) == "a"
    await board.out(("go", b.host.id), agent.location)
    why = await ready(board)
    assert not agent.ended and agent.running and agent.board.is_shared
    await board.out(("item", 1), agent.location)
    assert await board.rdp(ITEM, agent.location) == ("item", 1)
    assert agent.id in a.runtimes and not b.migrations.parked
    return why


class WithSocket(Mover):
    async def run(self) -> None:
        self.socket = object()
        await super().run()


class WithLambda(Mover):
    async def run(self) -> None:
        reaction = UbiquitousReaction(("quiet", int), lambda event: None, ONCE)
        await self.board.add_weak_reaction(reaction)
        await super().run()


class WithWhere(Mover):
    async def run(self) -> None:
        template = ("quiet", tupelo.Where(lambda number: number > 1))
        here = AgentLocation(self.id)
        await self.board.add_strong_reaction(
            LocalizedReaction(here, UNSPECIFIED, template, self.listen, ONCE)
        )
        await super().run()


class WithList(Mover):
    def state(self) -> Any:
        return ["failed"]


class Unrestorable(Mover):
    def restore(self, state: dict[str, Any]) -> None:
        raise ArithmeticError("cannot be")


class Directed(Agent):
    """Does not want to be made again, and would end the host for it."""

    def __init__(self, target: HostLocation) -> None:
        self.target = target
        self.failed = ""

    def run(self) -> None:
        try:
            self.migrate(self.target)
        except MigrationFailed as error:
            self.failed = str(error)

    def restore(self, state: dict[str, Any]) -> None:
        assert isinstance(state["target"], HostLocation)
        raise SystemExit


def test_an_agent_that_would_end_the_program_there_is_refused_and_the_host_goes_on():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Directed])
        agent = a.load(Directed, b.location)
        await stage.until(lambda: agent.failed, "it was refused")
        assert "SystemExit" in agent.failed and not agent.ended
        assert b.agent("ben").host is b

    play_blocking(scene)


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (WithList, "a dict"),
        (WithSocket, "'socket'"),
        (WithLambda, "'quiet'"),
        (WithWhere, "code"),
        (Unrestorable, "cannot be"),
    ],
)
def test_what_cannot_travel_is_named_and_the_agent_goes_on(cls, says):
    async def scene(stage: Stage) -> None:
        assert says in await tried(stage, cls)

    play_async(scene)


def test_a_space_that_is_not_for_everybody_there_is_no_place_to_go():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Mover])
        b.host.space("board", access=tupelo.Access(password="sesame"))
        board = await shared("board", await a.agent("ada"))
        agent = await a.load(Mover)
        assert await ready(board) == "a"
        await board.out(("go", b.host.id), agent.location)
        assert "'board'" in await ready(board)
        assert not agent.ended

    play_async(scene)


def test_a_host_that_has_closed_its_doors_is_no_place_to_go():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Mover])
        board = await shared("board", await a.agent("ada"))
        agent = await a.load(Mover)
        assert await ready(board) == "a"
        await b.close()  # What it stands on is still in the group.
        await board.out(("go", b.host.id), agent.location)
        assert "closed" in await ready(board)
        assert not agent.ended

    play_async(scene)


def test_lime_system_says_that_an_agent_is_about_to_leave():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Mover, Unrestorable])
        ben = await b.agent("ben")
        board = await shared("board", ben)
        states: list[tuple[str, str]] = []

        def note(event: ReactionEvent) -> None:
            states.append(event.tuple[2:])

        await b.system.add_weak_reaction(
            UbiquitousReaction(("agent", Not(ben.id), str, str), note, ONCE_PER_TUPLE)
        )
        for cls, goal in ((Mover, b), (Unrestorable, a)):
            agent = await a.load(cls)
            assert await ready(board) == "a"
            await board.out(("go", b.host.id), agent.location)
            await ready(board)
            wanted = [(a.location.id, "here"), (a.location.id, "migrating")]
            wanted.append((goal.location.id, "here"))
            await stage.until(lambda: len(states) == 3)
            assert states == wanted
            states.clear()

    play_async(scene)


class Helped(Mover):
    """A task of its own works on while it leaves."""

    async def run(self) -> None:
        if not hasattr(self, "worked"):
            self.worked = True
            self._helper = asyncio.create_task(self.work())
        await super().run()

    async def work(self) -> None:
        await self.board.set_shared(True)
        number = 0
        while True:
            await self.board.out(("item", number))
            Mover.heard.append(("written", ("item", number)))
            number += 1


def test_what_an_agent_writes_while_it_leaves_is_not_left_behind():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Helped])
        board = await shared("board", await b.agent("ben"))
        agent = await a.load(Helped)
        assert await ready(board) == "a"
        await board.out(("go", b.host.id), agent.location)
        assert await ready(board) == "b"
        await asyncio.wait([agent._helper])
        assert isinstance(agent._helper.exception(), AgentEnded)
        found = sorted(await board.rdg(ITEM))
        assert found == [written for _, written in Mover.heard] and found

    play_async(scene)


class Chooser(Mover):
    """Says itself what travels."""

    def state(self) -> dict[str, Any]:
        return {"said": "hello", "board": self.board}

    def restore(self, state: dict[str, Any]) -> None:
        assert set(state) == {"said", "board"}
        self.board = state["board"]
        self.words = state["said"].upper()
        self.socket = object()


def test_an_agent_may_say_itself_what_travels():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Chooser])
        board = await shared("board", await b.agent("ben"))
        agent = await a.load(Chooser)
        assert await ready(board) == "a"
        await board.out(("go", b.host.id), agent.location)
        assert await ready(board) == "b"
        assert b.runtimes[agent.id].agent.words == "HELLO"  # type: ignore[attr-defined]

    play_async(scene)


def test_luggage_goes_in_pieces_and_too_much_is_refused(monkeypatch):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Mover])
        board = await shared("board", await b.agent("ben"))
        agent = await a.load(Mover)
        assert await ready(board) == "a"
        for number in range(50):
            await board.out(("item", number), agent.location)
        monkeypatch.setattr(migrating, "PIECES_MAX", 3)
        await board.out(("go", b.host.id), agent.location)
        assert "package is too large" in await ready(board)
        monkeypatch.setattr(migrating, "PIECES_MAX", 1_000)
        await board.out(("go", b.host.id), agent.location)
        assert await ready(board) == "b"
        assert len(await board.rdg(ITEM, agent.location)) == 50

    monkeypatch.setattr(migrating, "PIECE_BYTES", 100)
    play_async(scene)


class Follower(Agent):
    """Lives by a reaction alone, and moves because of it. It fits either door."""

    def __init__(self) -> None:
        self.steps = 0

    def follow(self, event: ReactionEvent) -> Any:
        self.steps += 1
        return self.migrate(HostLocation(event.tuple[1]))


@on_every_kind
def test_an_agent_whose_run_is_over_may_be_moved_by_a_listener(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Follower])
        ada = await do(a.agent("ada"))
        board = await shared("board", ada)
        agent = await do(a.load(Starter if not stage.is_async else AsyncStarter))
        b.register(type(agent), type(agent).__name__)
        await do(board.in_(("ready", "a"), **PATIENCE))
        await stage.until(lambda: not agent.running)
        await do(board.out(("follow", b.location.id)))
        await do(board.in_(("ready", "b"), **PATIENCE))
        assert agent.ended and b.runtimes[agent.id].agent.steps == 1  # type: ignore[attr-defined]

    play(scene)


class Starter(Follower):
    def run(self) -> None:
        board = LimeTupleSpace("board")
        board.set_shared(True)
        if not self.steps:
            follow = UbiquitousReaction(("follow", str), self.follow, ONCE_PER_TUPLE)
            board.add_weak_reaction(follow)
        board.out(("ready", self.host.name))


class AsyncStarter(Follower):
    async def run(self) -> None:
        board = LimeTupleSpace("board")
        await board.set_shared(True)
        if not self.steps:
            follow = UbiquitousReaction(("follow", str), self.follow, ONCE_PER_TUPLE)
            await board.add_weak_reaction(follow)
        await board.out(("ready", self.host.name))


class Busy(Mover):
    """While its run() is running, a listener cannot migrate the agent."""

    async def run(self) -> None:
        reaction = UbiquitousReaction(("follow", str), self.follow, ONCE_PER_TUPLE)
        await self.board.add_weak_reaction(reaction)
        await super().run()

    async def follow(self, event: ReactionEvent) -> None:
        try:
            await self.migrate(HostLocation(event.tuple[1]))
        except MigrationFailed as error:
            await self.board.out(("ready", str(error)))


def test_only_run_can_leave_while_it_is_under_way():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Busy])
        board = await shared("board", await b.agent("ben"))
        agent = await a.load(Busy)
        assert await ready(board) == "a"
        await board.out(("follow", b.location.id))
        assert "run() is running" in await ready(board)
        assert agent.running

    play_async(scene)


class Slow(Mover):
    """Its listener takes its time, so that events wait."""

    begun: asyncio.Event
    gate: asyncio.Event

    async def run(self) -> None:
        if not hasattr(self, "reacts"):
            self.reacts = True
            reaction = UbiquitousReaction(ITEM, self.slowly, ONCE_PER_TUPLE)
            await self.board.add_weak_reaction(reaction)
        await super().run()

    async def slowly(self, event: ReactionEvent) -> None:
        self.begun.set()
        await self.gate.wait()
        self.heard.append((self.host.name, event.tuple))


def test_the_listener_under_way_comes_to_its_end_and_what_waits_travels():
    async def scene(stage: Stage) -> None:
        Slow.begun, Slow.gate = asyncio.Event(), asyncio.Event()
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Slow])
        board = await shared("board", await b.agent("ben"))
        agent = await a.load(Slow)
        assert await ready(board) == "a"
        for number in range(3):
            await board.out(("item", number))
        await Slow.begun.wait()
        await board.out(("go", b.host.id), agent.location)
        await stage.until(lambda: agent._runtime._paused, "it is about to leave")
        Slow.gate.set()
        assert await ready(board) == "b"
        await stage.until(lambda: len(Mover.heard) == 3)
        assert Mover.heard == [(host, ("item", n)) for n, host in enumerate("abb")]

    play_async(scene)


class Watched(Mover):
    """The first of its reactions fires, once for all, when it leaves."""

    async def run(self) -> None:
        if not hasattr(self, "second"):
            system = lime.LimeSystemTupleSpace()
            leaving = ("agent", self.id, str, migrating.MIGRATING)
            await system.add_weak_reaction(UbiquitousReaction(leaving, self.listen, ONCE))
            [self.second, self.third] = await self.board.add_weak_reaction(
                UbiquitousReaction(("second", int), self.listen, ONCE_PER_TUPLE),
                UbiquitousReaction(("third", int), self.listen, ONCE_PER_TUPLE),
            )
        await super().run()


def test_a_reaction_is_the_same_one_there_though_another_has_fired_on_the_way():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Watched])
        board = await shared("board", await b.agent("ben"))
        agent = await a.load(Watched)
        assert await ready(board) == "a"
        await board.out(("go", b.host.id), agent.location)
        assert await ready(board) == "b"
        here = b.runtimes[agent.id].agent
        assert isinstance(here, Watched)
        for kept, name in ((here.second, "second"), (here.third, "third")):
            assert kept._registered.pattern().template == encoded_template((name, int))
        await stage.until(lambda: len(Mover.heard) == 1)
        assert Mover.heard[0][1] == ("agent", agent.id, a.host.id, migrating.MIGRATING)

    play_async(scene)


class Tired(Slow):
    """Where it has come to, its listener uses what it has, and ends it."""

    async def slowly(self, event: ReactionEvent) -> None:
        await super().slowly(event)
        if self.host.name == "b":
            found = await self.board.rd(ITEM)
            self.heard.append((f"shared: {self.board.is_shared}", found))
            await self.end()


def test_a_listener_is_called_there_when_its_spaces_are_shared_again_and_may_end_the_agent():
    async def scene(stage: Stage) -> None:
        Slow.begun, Slow.gate = asyncio.Event(), asyncio.Event()
        a = await stage.host("a")
        b = await stage.host("b", near=[a], agents=[Tired])
        ben = await b.agent("ben")
        board = await shared("board", ben)
        agent = await a.load(Tired)
        assert await ready(board) == "a"
        for _ in range(2):
            await board.out(("item", 1))
        await Slow.begun.wait()
        await board.out(("go", b.host.id), agent.location)
        await stage.until(lambda: agent._runtime._paused, "it is about to leave")
        Slow.gate.set()
        await stage.until(lambda: len(Mover.heard) == 3)
        assert Mover.heard[2] == ("shared: True", ("item", 1))
        await stage.until(lambda: agent.id not in b.runtimes, "it has ended")
        await stage.until(lambda: agent.id not in b.server.directory.metadata_of[b.host.id])
        assert await b.system.rdp(("agent", agent.id, str, str)) is None

    play_async(scene)


def test_a_host_that_is_not_there_is_no_place_to_go():
    class Lost(Agent):
        def run(self) -> None:
            board = LimeTupleSpace("board")
            board.set_shared(True)
            try:
                self.migrate(HostLocation("nowhere"))
            except MigrationFailed as error:
                board.out(("ready", error.host))

    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        board = await shared("board", host.agent("ada"))
        agent = host.load(Lost)
        assert board.in_(("ready", str), **PATIENCE) == ("ready", "nowhere")
        assert not agent.ended

    play_blocking(scene)


# Faults


class FaultyNetwork(VirtualNetwork):
    """Counts what is sent between two places, and does something when so much was."""

    left: int | None = None
    fault: Callable[[], None]

    def count(self, source: str, target: str, size: int) -> None:
        super().count(source, target, size)
        if self.left is not None and {source, target} <= {"a", "b"}:
            self.left -= 1
            if self.left < 0:
                self.left = None
                self.loop.call_soon(self.fault)


class Place(WorldHost):
    """A host with LIME."""

    host: lime.Host

    async def open(self) -> None:
        self.host = lime.Host(self.api, agents=[Resident])
        await self.host.start()

    async def leave(self) -> None:
        if self.is_up:
            await self.do(self.host.close())
        await super().leave()

    @property
    def residents(self) -> list[Resident]:
        if not self.is_up:
            return []
        lives = self.host.runtimes.values()
        return [one.agent for one in lives if isinstance(one.agent, Resident)]


class Town(VirtualFederation[Place]):
    """Three places, a, b and c, that hear each other until something goes wrong."""

    network: FaultyNetwork

    def __init__(self, loop: VirtualLoop) -> None:
        network = FaultyNetwork(loop, delay=(0.001, 0.004))
        super().__init__(loop, Place, ["ba", "ca", "cb"], network=network)

    async def grouped(self) -> None:
        """All that are up are one group again, and nothing is undecided."""
        up = [place for place in self.members if place.is_up]
        wanted = {place.name for place in up}
        await self.until(
            lambda: all(set(place.host.server.group.membership.members) == wanted for place in up),
            "one group",
        )
        for place in up:
            await place.do(self._pass(place))
        await asyncio.sleep(0.5)

    @staticmethod
    async def _pass(place: Place) -> None:
        async with place.host.server.group.operating():
            pass

    def residents(self) -> list[Resident]:
        return [one for place in self.members for one in place.residents]


class Resident(Agent):
    """Moves once, if it can, and listens."""

    heard: ClassVar[list[tuple[str, int]]] = []
    runs: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.target = ""
        self.failed = 0
        self.board = LimeTupleSpace("board")

    async def run(self) -> None:
        self.runs.append(self.host.name)
        await self.board.set_shared(True)
        if not self.board.get_registered_reactions():
            reaction = UbiquitousReaction(ITEM, self.listen, ONCE_PER_TUPLE)
            await self.board.add_weak_reaction(reaction)
        while True:
            _, self.target = await self.board.in_(("go", str), self.location)
            try:
                await self.migrate(HostLocation(self.target))
            except MigrationFailed:
                self.failed += 1

    def listen(self, event: ReactionEvent) -> None:
        self.heard.append(event.tuple)


async def send_off(town: Town) -> AgentLocation:
    """An agent at a, with tuples of its own and of others, is told to go to b."""
    a, c = town.hosts["a"], town.hosts["c"]
    agent = await a.do(a.host.load(Resident))
    await c.do(_furnish(c, agent))
    await town.until(lambda: len(Resident.heard) == 6, "all is heard")
    return agent.location  # type: ignore[no-any-return]


async def _furnish(place: Place, agent: Agent) -> None:
    board = await shared("board", await place.host.agent("cleo"))
    for number in range(3):
        await board.out(("item", number))
        await board.out(("item", number + 10), agent.location)


async def tell(place: Place, *words: Any) -> None:
    board = await shared("board", await place.host.agent("teller"))
    await board.out(*words)


async def seen(place: Place) -> list[Any]:
    board = await shared("board", await place.host.agent("seer"))
    found: list[Any] = await board.rdg(ITEM)
    return found


ITEMS = sorted(("item", number) for number in (0, 1, 2, 10, 11, 12))


def play_fault(frames: int, fault: Callable[[Town], Any], judge: Callable[[Town], Any]) -> bool:
    """Break something after so many frames of the journey; was there a journey yet to break?"""
    Resident.heard.clear()
    Resident.runs.clear()
    hit: list[bool] = []

    async def main(loop: VirtualLoop) -> None:
        town = Town(loop)
        for place in town.hosts.values():
            await place.start()
        try:
            await town.grouped()
            location = await send_off(town)
            tasks: list[asyncio.Task[None]] = []
            outside = copy_context()  # The fault is not done by the host that happens to speak.

            def strike() -> None:
                hit.append(True)
                tasks.append(loop.create_task(fault(town), context=outside))

            town.network.fault = strike
            town.network.left = frames
            await town.hosts["c"].do(tell(town.hosts["c"], ("go", "b"), location))
            await asyncio.sleep(2.0)
            town.network.left = None
            for task in tasks:
                await task
            await town.grouped()
            await judge(town)
        finally:
            for place in town.hosts.values():
                await place.leave()

    run(main, 1)
    return bool(hit)


async def cut(town: Town) -> None:
    town.network.cut("a", "b")


async def cut_off(town: Town) -> None:
    """Neither hears the other, nor whoever hears both."""
    town.network.partition("a", "bc")
    town.network.cut("a", "b")
    town.network.cut("a", "c")
    await asyncio.sleep(4.0)
    town.network.heal()


async def silence(town: Town) -> None:
    town.network.partition("a", "bc")
    await asyncio.sleep(4.0)
    town.network.heal()


async def exactly_one(town: Town) -> None:
    """One agent, with all its tuples, that has heard everything once, and hears what is new."""
    [agent] = town.residents()
    assert agent.running and not agent.ended
    where = agent.host.name
    assert where == ("a" if agent.failed else "b")
    assert Resident.runs == (["a"] if agent.failed else ["a", "b"])
    for place in town.hosts.values():
        assert sorted(await place.do(seen(place))) == ITEMS
        assert not place.host.migrations.parked and not place.host.migrations.decisions
    assert sorted(Resident.heard) == ITEMS
    c = town.hosts["c"]
    await c.do(tell(c, ("item", 99)))
    await town.until(lambda: len(Resident.heard) == 7, "the new one is heard")
    assert Resident.heard[-1] == ("item", 99)
    said = [place.host.server.system.tuple_store for place in town.hosts.values()]
    agents = [
        [found.fields[2] for found in tuple_store.entries() if found.fields[1] == agent.id]
        for tuple_store in said
    ]
    assert agents == [[where]] * 3


FRAMES_MAX = 1_000


@pytest.mark.parametrize("fault", [cut, cut_off, silence], ids=lambda fault: fault.__name__)
def test_a_link_lost_at_any_moment_leaves_exactly_one_agent(fault):
    moved = []
    for frames in range(FRAMES_MAX):
        hit = play_fault(frames, fault, exactly_one)
        moved.append("b" in Resident.runs)
        if not hit:
            break
    assert moved[-1], "without a fault it moves"
    assert set(moved[:-1]) == {True, False}, "faults came before and after it was decided"


async def come_back(town: Town, name: str) -> None:
    await town.hosts[name].crash()
    await asyncio.sleep(3.0)
    await town.hosts[name].start()


async def crash_source(town: Town) -> None:
    await come_back(town, "a")


async def crash_target(town: Town) -> None:
    await come_back(town, "b")


async def never_two(town: Town) -> None:
    """An agent whose host crashes is gone with its tuples; but there are never two of it."""
    agents = town.residents()
    assert len(agents) <= 1
    for place in town.hosts.values():
        assert not place.host.migrations.parked and not place.host.migrations.decisions
        found = await place.do(seen(place))
        assert sorted(found) in (ITEMS, [one for one in ITEMS if one[1] < 10])
        assert (len(found) == 6) == bool(agents)
    assert len(Resident.heard) == len(set(Resident.heard))


@pytest.mark.parametrize("fault", [crash_source, crash_target], ids=lambda fault: fault.__name__)
def test_a_host_that_crashes_at_any_moment_never_makes_two(fault):
    for frames in range(0, FRAMES_MAX, 3):
        if not play_fault(frames, fault, never_two):
            break


def test_who_stayed_and_moved_on_is_not_begun_where_it_was_parked(monkeypatch):
    """It was sent to b, which never heard that it stays; it goes to c instead. When its first host
    comes back with a new life, b must not take that for leave to begin."""

    async def main(loop: VirtualLoop) -> None:
        town = Town(loop)
        places = town.hosts
        for place in places.values():
            await place.start()
        try:
            await town.grouped()
            Resident.heard.clear()
            Resident.runs.clear()
            location = await send_off(town)
            b = places["b"]
            parked = b.host.migrations._park

            def park(*args: Any) -> None:
                parked(*args)
                town.network.partition("ac", "b")
                for other in "ac":
                    town.network.cut(other, "b")

            monkeypatch.setattr(b.host.migrations, "_park", park)
            await places["c"].do(tell(places["c"], ("go", "b"), location))
            await town.until(lambda: [one.failed for one in town.residents()] == [1], "it stays")
            assert len(b.host.migrations.parked) == 1
            await places["c"].do(tell(places["c"], ("go", "c"), location))
            await town.until(lambda: bool(places["c"].residents), "it is at c")
            await places["a"].crash()
            await places["a"].start()
            town.network.heal()
            await town.grouped()
            assert [one.host.name for one in town.residents()] == ["c"]
            assert not b.host.migrations.parked
            assert sorted(await b.do(seen(b))) == ITEMS
        finally:
            for place in places.values():
                await place.leave()

    run(main, 1)


# Loading at another host


@pytest.mark.parametrize("fault", [cut, cut_off, silence], ids=lambda fault: fault.__name__)
def test_an_agent_that_is_loaded_elsewhere_is_made_once_whatever_link_is_lost(fault):
    """Whoever loads it is told where it is, or that this is not known."""
    told: list[str] = []

    async def load(town: Town) -> str:
        a = town.hosts["a"]
        try:
            location = await a.host.load_at(HostLocation("b"), Resident)
        except PeerLost as error:
            return "in doubt" if error.in_doubt else "refused"
        except LoadFailed:
            return "refused"
        assert a.host.server.directory.host_of(location.id) in ("b", None)
        return "loaded"

    def play_load(frames: int) -> bool:
        Resident.runs.clear()
        hit: list[bool] = []

        async def main(loop: VirtualLoop) -> None:
            town = Town(loop)
            for place in town.hosts.values():
                await place.start()
            try:
                await town.grouped()
                tasks: list[asyncio.Task[None]] = []
                outside = copy_context()

                def strike() -> None:
                    hit.append(True)
                    tasks.append(loop.create_task(fault(town), context=outside))

                town.network.fault = strike
                town.network.left = frames
                told.append(await town.hosts["a"].do(load(town)))
                town.network.left = None
                for task in tasks:
                    await task
                await town.grouped()
                most = 0 if told[-1] == "refused" else 1
                least = 1 if told[-1] == "loaded" else 0
                assert least <= len(town.residents()) <= most
                assert len(Resident.runs) == len(town.residents())
                assert not town.hosts["a"].host.migrations._news
            finally:
                for place in town.hosts.values():
                    await place.leave()

        run(main, 1)
        return bool(hit)

    for frames in range(FRAMES_MAX):
        if not play_load(frames):
            break
    assert told[-1] == "loaded"


def test_a_host_that_loads_asks_for_the_outcome_and_nothing_is_kept_of_it():
    async def main(loop: VirtualLoop) -> None:
        town = Town(loop)
        for place in town.hosts.values():
            await place.start()
        try:
            await town.grouped()
            a, b = town.hosts["a"], town.hosts["b"]
            first, second = [
                await a.do(a.host.load_at(b.host.location, "Resident", name=name))
                for name in ("one", "two")
            ]
            assert [one.id.split("#")[0] for one in (first, second)] == ["one", "two"]
            await asyncio.sleep(0.5)
            assert len(b.residents) == 2 and b.host.migrations._loads == {}
        finally:
            for place in town.hosts.values():
                await place.leave()

    run(main, 1)
