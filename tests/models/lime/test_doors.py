"""LIME's spaces at both doors, over real sockets: sharing, operations, locations, LimeSystem."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

import tupelo
from tests.conftest import Call
from tests.models.lime.stage import (
    PATIENCE_SECONDS,
    Stage,
    at_both_doors,
    do,
    on_every_kind,
    on_every_space,
    play_async,
    play_blocking,
    shared,
)
from tupelo import aio
from tupelo.errors import (
    AgentEnded,
    BadArgument,
    BadInput,
    BadTemplate,
    HostClosed,
    NotOwner,
    PrivateSpace,
)
from tupelo.models import lime
from tupelo.models.lime import UNSPECIFIED, AgentLocation, HostLocation, LimeTupleSpace

ITEM = ("item", int)
PATIENCE: dict[str, Any] = {"wait": PATIENCE_SECONDS}
WORD: Any = "x"

# Sharing


@on_every_kind
def test_a_space_is_private_until_it_is_shared(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada, ben = await do(host.agent("ada")), await do(host.agent("ben"))
        mine = LimeTupleSpace("board", ada)
        assert mine.name == "board" and not mine.is_shared
        await do(mine.out(("item", 1)))
        theirs = await shared("board", ben)
        assert await do(theirs.rdp(ITEM)) is None
        assert await do(mine.rdp(ITEM)) == ("item", 1)
        await do(mine.set_shared(True))
        assert mine.is_shared
        assert await do(theirs.rdp(ITEM)) == ("item", 1)

    play(scene)


@on_every_kind
def test_a_space_that_is_private_again_has_its_own_tuples_and_no_others(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada, ben = await do(host.agent("ada")), await do(host.agent("ben"))
        mine, theirs = await shared("board", ada), await shared("board", ben)
        await do(mine.out(("item", 1)))
        await do(theirs.out(("item", 2)))
        await do(theirs.out(("item", 3), ada.location))
        await do(mine.set_shared(False))
        assert not mine.is_shared
        assert sorted(await do(mine.rdg(ITEM))) == [("item", 1), ("item", 3)]
        assert await do(theirs.rdg(ITEM)) == [("item", 2)]

    play(scene)


@on_every_kind
def test_only_spaces_of_one_name_are_shared(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        ada, ben = await do(a.agent("ada")), await do(b.agent("ben"))
        x, y = await shared("x", ben), await shared("y", ben)
        mine = await shared("x", ada)
        await do(x.out(("item", 1)))
        await do(y.out(("item", 2)))
        assert await do(mine.rdg(ITEM)) == [("item", 1)]

    play(scene)


@on_every_kind
def test_several_spaces_are_shared_in_one_step(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        ada, ben = await do(a.agent("ada")), await do(b.agent("ben"))
        spaces = [LimeTupleSpace(name, ada) for name in ("x", "y", "z")]
        memberships: list[set[str]] = []
        system = lime.LimeSystemTupleSpace(ben)

        def look(event: lime.ReactionEvent) -> None:
            assert event.step is not None
            found = event.step.rdg(("space", str, ada.id, str))
            memberships.append({name for _, name, _, _ in found})

        await do(
            system.add_strong_reaction(
                lime.LocalizedReaction(
                    b.location, UNSPECIFIED, ("space", str, ada.id, str), look, lime.ONCE_PER_TUPLE
                )
            )
        )
        await do(lime.set_shared(spaces, True))
        assert all(space.is_shared for space in spaces)
        await stage.until(lambda: len(memberships) == 3, "ben hears of all three")
        assert memberships == [{"x", "y", "z"}] * 3
        await do(lime.set_shared(spaces, False))
        assert not any(space.is_shared for space in spaces)
        assert await do(system.rdp(("space", str, ada.id, str))) is None

    play(scene)


@on_every_kind
@pytest.mark.parametrize("operation", ["in_", "rd"])
def test_what_would_wait_for_ever_in_a_private_space_is_refused(play, operation):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        space = LimeTupleSpace("board", await do(host.agent("ada")))
        await do(space.out(("item", 1)))
        with pytest.raises(PrivateSpace, match="board") as refused:
            await do(getattr(space, operation)(ITEM))
        assert (refused.value.space, refused.value.operation) == ("board", operation)
        assert await do(space.inp(ITEM)) == ("item", 1)

    play(scene)


@on_every_kind
def test_a_space_asked_for_again_is_the_same(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = await do(host.agent("ada"))
        await do(LimeTupleSpace("board", ada).out(("item", 1)))
        assert await do(LimeTupleSpace("board").rdp(ITEM)) == ("item", 1)

    play(scene)


# Operations


@on_every_kind
@pytest.mark.parametrize("over", ["collect", "publish"])
def test_every_operation_reaches_the_hosts_of_the_group(play, over):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a", over=over)
        b = await stage.host("b", near=[a], over=over)
        mine = await shared("board", await do(a.agent("ada")))
        theirs = await shared("board", await do(b.agent("ben")))
        for number in range(4):
            await do(mine.out(("item", number)))
        assert await do(theirs.rdp(("item", 2))) == ("item", 2)
        assert await do(theirs.rd(("item", 3))) == ("item", 3)
        assert await do(theirs.inp(("item", 0))) == ("item", 0)
        assert await do(theirs.in_(("item", 1))) == ("item", 1)
        assert sorted(await do(theirs.rdg(ITEM))) == [("item", 2), ("item", 3)]
        assert sorted(await do(theirs.ing(ITEM))) == [("item", 2), ("item", 3)]
        assert await do(mine.rdg(ITEM)) == []
        assert await do(mine.inp(ITEM)) is await do(theirs.rdp(ITEM)) is None

    play(scene)


def test_one_who_waits_gets_what_is_written_elsewhere():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        theirs = await shared("board", await do(b.agent("ben")))

        def wait() -> Any:
            mine = LimeTupleSpace("board", a.agent("ada"))
            mine.set_shared(True)
            mine.out(("ready",))
            return mine.in_(ITEM, **PATIENCE)

        waiting = Call(wait)
        assert theirs.rd(("ready",), **PATIENCE) == ("ready",)
        theirs.out(("item", 7))
        assert waiting.result() == ("item", 7)
        assert theirs.rdp(ITEM) is None

    play_blocking(scene)


def test_one_who_waits_in_a_task_gets_what_is_written_elsewhere():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        mine = await shared("board", await a.agent("ada"))
        theirs = await shared("board", await b.agent("ben"))
        read = asyncio.create_task(mine.rd(ITEM, **PATIENCE))
        taken = asyncio.create_task(mine.in_(ITEM, **PATIENCE))
        await asyncio.sleep(0)
        await theirs.out(("item", 7))
        await theirs.out(("item", 8))
        assert {await read, await taken} <= {("item", 7), ("item", 8)}
        assert len(await theirs.rdg(ITEM)) == 1

    play_async(scene)


@on_every_kind
def test_a_wait_comes_to_its_end(play):
    async def scene(stage: Stage) -> None:
        space = await shared("board", await do((await stage.host("a")).agent("ada")))
        assert await do(space.in_(ITEM, wait=0.01)) is None
        assert await do(space.rd(ITEM, wait=0)) is None

    play(scene)


def test_a_wait_that_is_cancelled_takes_nothing():
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        mine = await shared("board", await a.agent("ada"))
        theirs = await shared("board", await b.agent("ben"))
        waiting = asyncio.create_task(mine.in_(ITEM))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await theirs.out(("item", 1))
        assert await mine.rdg(ITEM) == [("item", 1)]

    play_async(scene)


@on_every_kind
def test_a_tuple_of_many_mebibytes_is_had_elsewhere(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a", heartbeat=5.0)
        b = await stage.host("b", near=[a], heartbeat=5.0)
        ada, ben = await do(a.agent("ada")), await do(b.agent("ben"))
        mine, theirs = await shared("board", ada), await shared("board", ben)
        large, template = ("large", b"x" * (20 * 2**20)), ("large", bytes)
        heard: list[Any] = []
        reaction = lime.UbiquitousReaction(template, heard.append, lime.ONCE)
        await do(mine.add_weak_reaction(reaction))
        await do(theirs.out(large))
        assert await do(mine.rd(template, **PATIENCE)) == large
        assert await do(mine.rdg(template)) == [large]
        assert await do(mine.ing(template)) == [large]
        await stage.until(
            lambda: [event.tuple for event in heard] == [large], "the reaction is told of it"
        )
        await do(mine.out(large, ben.location))
        assert await do(theirs.in_(template, ben.location, **PATIENCE)) == large
        assert await do(mine.rdp(template)) is None

    play(scene)


# Locations


@on_every_kind
def test_locations_choose_a_part_of_the_federated_space(play):
    """Table I: two hosts, two agents at the first, and tuples for one who is away."""

    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        agents = {"ada": await do(a.agent("ada")), "amy": await do(a.agent("amy"))}
        agents["ben"] = await do(b.agent("ben"))
        away = AgentLocation("nobody#1")
        spaces = {name: await shared("board", agent) for name, agent in agents.items()}
        for name, space in spaces.items():
            await do(space.out((name,)))
            await do(space.out((f"{name}-away",), away))
        await do(spaces["ben"].out(("for-ada",), agents["ada"].location))
        ada = agents["ada"].location
        looks: dict[str, tuple[Any, Any]] = {}
        looks["all"] = (UNSPECIFIED, UNSPECIFIED)
        looks["for away"] = (UNSPECIFIED, away)
        looks["at ada"] = (ada, UNSPECIFIED)
        looks["at a"] = (a.location, UNSPECIFIED)
        looks["at ada for away"] = (ada, away)
        looks["at a for away"] = (a.location, away)
        wanted = {
            "all": "ada ada-away amy amy-away ben ben-away for-ada",
            "for away": "ada-away amy-away ben-away",
            "at ada": "ada ada-away for-ada",
            "at a": "ada ada-away amy amy-away for-ada",
            "at ada for away": "ada-away",
            "at a for away": "ada-away amy-away",
        }
        for space in spaces.values():
            for look, (current, destination) in looks.items():
                found = await do(space.rdg((str,), current, destination))
                assert " ".join(sorted(word for (word,) in found)) == wanted[look], look
        assert await do(spaces["ben"].inp((str,), current=ada, destination=away)) == ("ada-away",)
        assert await do(spaces["ben"].rdp((str,), current=ada, destination=away)) is None
        assert await do(spaces["ada"].in_((str,), b.location, away)) == ("ben-away",)
        assert len(await do(spaces["ada"].ing((str,), a.location))) == 4

    play(scene)


@on_every_kind
def test_a_tuple_for_an_agent_elsewhere_goes_there(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        ada, ben = await do(a.agent("ada")), await do(b.agent("ben"))
        mine, theirs = await shared("board", ada), await shared("board", ben)
        await do(mine.out(("item", 1), destination=ben.location))
        assert await do(mine.rdg(ITEM, current=ben.location)) == [("item", 1)]
        await do(theirs.set_shared(False))
        assert await do(mine.rdg(ITEM)) == []
        assert await do(theirs.rdg(ITEM)) == [("item", 1)]

    play(scene)


@on_every_kind
def test_a_misplaced_tuple_goes_home_when_its_agent_engages(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        ada, ben = await do(a.agent("ada")), await do(b.agent("ben"))
        mine, theirs = await shared("board", ada), await shared("board", ben)
        await do(b.disengage())
        await do(mine.out(("item", 1), ben.location))
        assert await do(mine.rdg(ITEM, ada.location, ben.location)) == [("item", 1)]
        assert await do(theirs.rdg(ITEM)) == []
        await do(b.engage())
        await stage.grouped(a, b)
        assert await do(theirs.rd(ITEM, ben.location, **PATIENCE)) == ("item", 1)
        assert await do(mine.rdg(ITEM, ada.location)) == []

    play(scene)


# Coming and going


@on_every_kind
def test_tuples_stay_with_their_agents_when_hosts_part(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        mine = await shared("board", await do(a.agent("ada")))
        theirs = await shared("board", await do(b.agent("ben")))
        await do(mine.out(("item", 1)))
        await do(theirs.out(("item", 2)))
        await do(b.disengage())
        assert (b.hosts, await do(theirs.rdg(ITEM))) == ([b.location], [("item", 2)])
        await stage.until(lambda: a.hosts == [a.location], "a is alone")
        assert await do(mine.rdg(ITEM)) == [("item", 1)]
        await do(b.engage())
        await stage.grouped(a, b)
        assert sorted(await do(theirs.rdg(ITEM))) == [("item", 1), ("item", 2)]

    play(scene)


@at_both_doors
def test_hosts_that_only_reach_each_other_through_another_are_one_group(play):
    async def scene(stage: Stage) -> None:
        b = await stage.host("b")
        a = await stage.host("a", near=[b])
        c = await stage.host("c", near=[b])
        await stage.grouped(a, b, c)
        mine = await shared("board", await do(a.agent("ada")))
        theirs = await shared("board", await do(c.agent("cleo")))
        await do(mine.out(("item", 1)))
        assert await do(theirs.in_(ITEM, **PATIENCE)) == ("item", 1)
        assert set(a.hosts) == {a.location, b.location, c.location}

    play(scene)


@at_both_doors
def test_a_host_that_is_closed_is_gone_from_the_membership(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        mine = await shared("board", await do(a.agent("ada")))
        ben = await do(b.agent("ben"))
        theirs = await shared("board", ben)
        await do(theirs.out(("item", 1)))
        await do(b.close())
        await do(b.close())
        await stage.until(lambda: a.hosts == [a.location], "a is alone")
        assert await do(mine.rdg(ITEM)) == []
        with pytest.raises((AgentEnded, HostClosed)):
            await do(theirs.out(("item", 2)))
        with pytest.raises(HostClosed):
            await do(b.agent("ben"))

    play(scene)


# LimeSystem


@at_both_doors
def test_lime_system_says_who_is_there_and_is_the_same_everywhere(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        ada, ben = await do(a.agent("ada")), await do(b.agent("ben"))
        await shared("board", ada)
        LimeTupleSpace("secret", ben)
        here, there = lime.LimeSystemTupleSpace(ada), lime.LimeSystemTupleSpace(ben)
        for system in (here, there):
            assert await do(system.rd(("host", b.location.id, "b"))) is not None
            assert await do(system.rd(("agent", ben.id, b.location.id, str), **PATIENCE))
            assert await do(system.rd(("space", "board", ada.id, a.location.id), **PATIENCE))
            assert await do(system.rdp(("space", "secret", str, str))) is None
        everything = [await do(system.rdg(tupelo.ANY)) for system in (here, there)]
        assert sorted(everything[0]) == sorted(everything[1])
        await do(ben.end())
        assert await do(here.rdp(("agent", ben.id, str, str))) is None

    play(scene)


@at_both_doors
def test_lime_system_is_read_only(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = await do(host.agent("ada"))
        with pytest.raises(BadArgument, match="LimeSystem"):
            LimeTupleSpace("LimeSystem", ada)
        assert host.system.name == "LimeSystem"
        for word in ("out", "in_", "inp", "ing", "set_shared"):
            assert not hasattr(host.system, word)

    play(scene)


# Whose it is


def test_a_space_is_its_agents_alone():
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = host.agent("ada")
        space = LimeTupleSpace("board", ada)
        assert space.is_owner

        def meddle() -> None:
            assert not space.is_owner
            space.out(("item", 1))

        with pytest.raises(NotOwner, match="board") as refused:
            Call(meddle).result()
        assert (refused.value.space, refused.value.owner) == ("board", ada.id)
        for meddling in (
            lambda: LimeTupleSpace("board", ada),
            lambda: space.set_shared(True),
            space.get_registered_reactions,
            lambda: ada.migrate(HostLocation("x")),
        ):
            with pytest.raises(NotOwner):
                Call(meddling).result()
        assert space.rdp(ITEM) is None and not space.is_shared

    play_blocking(scene)


def test_a_space_is_for_the_task_of_its_agent():
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        spaces: list[LimeTupleSpace] = []

        async def own() -> None:
            spaces.append(LimeTupleSpace("board", await host.agent("ada")))

        await asyncio.create_task(own())
        with pytest.raises(NotOwner):
            await spaces[0].out(("item", 1))

    play_async(scene)


@at_both_doors
def test_without_an_agent_there_is_no_space(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        with pytest.raises(BadInput, match="agent"):
            LimeTupleSpace("board")
        with pytest.raises(BadInput, match="agent"):
            assert host.system

    play(scene)


# What it stands on


@on_every_space
def test_what_agents_share_is_seen_by_other_doors_and_theirs_by_agents(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        space = await shared("board", await do(host.agent("ada")))
        await do(space.out(("item", 1)))
        plain = host.host.space("board")
        assert await do(plain.read(ITEM, wait=0)) == ("item", 1)
        await do(plain.write(("item", 2)))
        assert await do(space.in_(("item", 2), **PATIENCE)) == ("item", 2)
        await do(plain.write(("item", 3)))
        assert await do(space.rdg(ITEM, current=host.location)) == [("item", 1), ("item", 3)]

    play(scene)


def test_it_stands_on_a_host_that_is_given_and_leaves_it_open():
    with tupelo.Host("a") as tuple_store:
        with lime.Host(tuple_store) as host:
            assert (host.host, host.name) == (tuple_store, "a")
            with pytest.raises(BadInput, match="already"):
                lime.Host(tuple_store)
        assert tuple_store.space("board").count() == 0
        with lime.Host(tuple_store) as again:
            space = LimeTupleSpace("board", again.agent("ada"))
            space.set_shared(True)
            space.out(("item", 1))
            assert space.in_(ITEM) == ("item", 1)


def test_an_async_host_must_be_begun():
    async def scene() -> None:
        tuple_store = aio.Host("a")
        host = lime.Host(tuple_store)
        with pytest.raises(BadInput, match="async with"):
            await host.start()
        async with tuple_store:
            with pytest.raises(BadInput, match="async with"):
                await host.agent("ada")
            with pytest.raises(BadInput, match="async with"), host:
                pass
            async with host:
                assert (await host.agent("ada")).name == "ada"
            await host.close()

    asyncio.run(scene())


def test_threads_of_its_own_are_gone_when_it_is_closed(until):
    before = set(threading.enumerate())
    with lime.Host("a") as host:
        LimeTupleSpace("board", host.agent("ada"))
    until(lambda: set(threading.enumerate()) <= before, "its threads have ended")


@at_both_doors
@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda s: s.out(["no", "tuple"]), "entry"),
        (lambda s: s.out(("item", 1), HostLocation("a")), "destination="),
        (lambda s: s.out(("item", 1), AgentLocation(cast(Any, 5))), "id="),
        (lambda s: s.out(("item", 1), AgentLocation("\ud800")), "id="),
        (lambda s: s.rdp(7), "template"),
        (lambda s: s.rdp(ITEM, current="a"), "current="),
        (lambda s: s.rdp(ITEM, destination="a"), "destination="),
        (lambda s: s.inp(ITEM, "a"), "current="),
        (lambda s: s.rdg(ITEM, "a"), "current="),
        (lambda s: s.ing(ITEM, UNSPECIFIED, "a"), "destination="),
        (lambda s: s.in_(ITEM, wait=-1), "wait="),
        (lambda s: s.rd(ITEM, wait="long"), "wait="),
        (lambda s: s.set_shared("yes"), "shared="),
        (lambda s: lime.set_shared([], True), "spaces="),
        (lambda s: lime.set_shared(cast(Any, 5), True), "spaces="),
        (lambda s: lime.set_shared([s, WORD], True), "spaces="),
        (lambda s: s.remove_reaction("x"), "reaction="),
        (lambda s: s.add_weak_reaction("x"), "reaction="),
        (lambda s: s.add_strong_reaction("x"), "reaction="),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(play, call, names):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        space = await shared("board", await do(host.agent("ada")))
        with pytest.raises((BadInput, BadTemplate), match=names):
            await do(call(space))
        assert await do(space.rdg(tupelo.ANY)) == []

    play(scene)


@at_both_doors
def test_a_location_is_a_value_and_can_be_sent(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        ada = await do(a.agent("ada"))
        mine = await shared("board", ada)
        theirs = await shared("board", await do(b.agent("ben")))
        await do(mine.out(("reply to", ada.location, a.location)))
        _, where, host = await do(theirs.in_(("reply to", AgentLocation, HostLocation), **PATIENCE))
        assert (where, host) == (ada.location, a.location)
        await do(theirs.out(("item", 1), where))
        assert await do(mine.rdp(ITEM, ada.location)) == ("item", 1)

    play(scene)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: lime.Host(cast(Any, 7)), "host="),
        (lambda: lime.Host("a", over=cast(Any, "pigeons")), "over="),
        (lambda: lime.Host("a", agents=[cast(Any, int)]), "agents="),
        (lambda: lime.Host("a", agents=cast(Any, 5)), "agents="),
        (lambda: HostLocation(cast(Any, 5)), "id="),
        (lambda: lime.Host("", listen=0), "name="),
        (lambda: lime.UbiquitousReaction(ITEM, "x", lime.ONCE), "listener="),
        (lambda: lime.UbiquitousReaction(ITEM, print, cast(Any, "twice")), "mode="),
        (lambda: lime.LocalizedReaction(WORD, UNSPECIFIED, ITEM, print, lime.ONCE), "current="),
        (lambda: lime.LocalizedReaction(UNSPECIFIED, WORD, ITEM, print, lime.ONCE), "destination="),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(call, names):
    with pytest.raises(BadArgument, match=names):
        call()


def test_a_host_that_is_given_takes_no_options():
    with tupelo.Host("a") as tuple_store, pytest.raises(BadArgument, match="listen"):
        lime.Host(tuple_store, listen=0)


@at_both_doors
def test_a_host_refuses_names_that_are_none(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        with pytest.raises(BadArgument, match="name="):
            await do(host.agent(""))
        ada = await do(host.agent("ada"))
        for name in ("", 7):
            with pytest.raises(BadArgument, match="name="):
                LimeTupleSpace(name, ada)  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="agent="):
            LimeTupleSpace("board", "ada")  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="spaces="):
            ben = await do(host.agent("ben"))
            await do(lime.set_shared([LimeTupleSpace("x", ada), LimeTupleSpace("x", ben)], True))

    play(scene)


@on_every_space
def test_every_tuple_is_found_whatever_the_order_of_the_space_shows(play):
    async def scene(stage: Stage) -> None:
        here = await stage.host("a")
        there = await stage.host("b", near=[here])
        board = here.host.space("board", order=tupelo.Queue())
        ada, ben = await do(here.agent("ada")), await do(there.agent("ben"))
        hers, his = await shared("board", ada), await shared("board", ben)
        for number in range(3):
            await do(hers.out(("item", number)))
        assert await do(board.read_all()) == [("item", 0)]
        assert sorted(await do(his.rdg(ITEM))) == [("item", number) for number in range(3)]
        assert await do(his.in_(("item", 2), **PATIENCE)) == ("item", 2)
        assert await do(hers.in_(("item", 1), **PATIENCE)) == ("item", 1)
        await do(hers.out(("item", 4)))
        await do(hers.set_shared(False))  # She takes along all that is hers.
        assert await do(board.here.count()) == 0
        assert await do(hers.rdg(ITEM)) == [("item", 0), ("item", 4)]

    play(scene)
