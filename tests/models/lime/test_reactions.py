"""Reactions at both doors: strong and weak ones, their modes, their events, their registration."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

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
from tupelo.errors import (
    BadArgument,
    BadInput,
    BadTemplate,
    LimeError,
    NotOwner,
    ReactionError,
    ReactionFailed,
    TransactionEnded,
)
from tupelo.models import lime
from tupelo.models.lime import (
    ONCE,
    ONCE_PER_TUPLE,
    UNSPECIFIED,
    AgentLocation,
    HostLocation,
    LimeTupleSpace,
    LocalizedReaction,
    ReactionEvent,
    RegisteredReaction,
    UbiquitousReaction,
)
from tupelo.space.dual_api import run_coroutine

ITEM = ("item", int)


class Heard(list[Any]):
    """A listener that writes down what it hears."""

    def reacts_to(self, event: ReactionEvent) -> None:
        self.append(event.tuple)


def localized(where: Any, listener: Any, mode: Any = ONCE_PER_TUPLE) -> LocalizedReaction:
    return LocalizedReaction(where.location, UNSPECIFIED, ITEM, listener, mode)


# Weak reactions


@on_every_kind
@pytest.mark.parametrize("over", ["collect", "publish"])
def test_a_weak_reaction_hears_of_every_tuple_once_wherever_it_is(play, over):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a", over=over)
        b = await stage.host("b", near=[a], over=over)
        mine = await shared("board", await do(a.agent("ada")))
        theirs = await shared("board", await do(b.agent("ben")))
        await do(theirs.out(("item", 1)))
        heard = Heard()
        await do(mine.add_weak_reaction(UbiquitousReaction(ITEM, heard, ONCE_PER_TUPLE)))
        await do(theirs.out(("item", 2)))
        await do(mine.out(("item", 3)))
        await do(theirs.out(("other", 4)))
        await do(theirs.out(("item", 5)))
        await stage.until(lambda: len(heard) >= 4, "all are heard")
        assert sorted(heard) == [("item", number) for number in (1, 2, 3, 5)]

    play(scene)


@on_every_kind
def test_a_reaction_of_once_fires_once_although_many_match(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        mine = await shared("board", await do(a.agent("ada")))
        theirs = await shared("board", await do(b.agent("ben")))
        for number in range(3):
            await do(mine.out(("item", number)))
            await do(theirs.out(("item", number + 10)))
        once, every = Heard(), Heard()
        [first] = await do(mine.add_weak_reaction(UbiquitousReaction(ITEM, once, ONCE)))
        await do(mine.add_weak_reaction(UbiquitousReaction(ITEM, every, ONCE_PER_TUPLE)))
        await do(theirs.out(("item", 99)))
        await stage.until(lambda: len(every) == 7, "the other one hears of all")
        assert len(once) == 1
        assert not mine.is_registered_reaction(first) and not first.enabled

    play(scene)


@on_every_space
def test_an_event_says_what_was_found_by_which_reaction_and_with_whom(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        ada, ben = await do(a.agent("ada")), await do(b.agent("ben"))
        mine, theirs = await shared("board", ada), await shared("board", ben)
        events: list[ReactionEvent] = []
        [registered] = await do(
            mine.add_weak_reaction(UbiquitousReaction(ITEM, events.append, ONCE_PER_TUPLE))
        )
        await do(theirs.out(("item", 1)))
        await do(theirs.out(("item", 2), ada.location))
        await do(b.host.space("board").write(("item", 3)))
        await stage.until(lambda: len(events) == 3, "all are heard")
        assert {event.tuple: event.source for event in events} == {
            ("item", 1): ben.location,
            ("item", 2): ada.location,
            ("item", 3): b.location,
        }
        assert all(event.reaction == registered and event.step is None for event in events)

    play(scene)


@on_every_kind
def test_a_localized_weak_reaction_hears_of_its_part_only(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        ada, ben = await do(a.agent("ada")), await do(b.agent("ben"))
        bea = await do(b.agent("bea"))
        mine = await shared("board", ada)
        of_ben, of_bea = await shared("board", ben), await shared("board", bea)
        away = AgentLocation("nobody#1")
        heard: dict[str, Heard] = {}
        for name, current, destination in (
            ("at ben", ben.location, UNSPECIFIED),
            ("at b", b.location, UNSPECIFIED),
            ("at a", a.location, UNSPECIFIED),
            ("for away", UNSPECIFIED, away),
            ("all", UNSPECIFIED, UNSPECIFIED),
        ):
            heard[name] = Heard()
            await do(
                mine.add_weak_reaction(
                    LocalizedReaction(current, destination, ITEM, heard[name], ONCE_PER_TUPLE)
                )
            )
        await do(of_ben.out(("item", 1)))
        await do(of_bea.out(("item", 2)))
        await do(mine.out(("item", 3)))
        await do(of_ben.out(("item", 4), away))
        await stage.until(lambda: len(heard["all"]) == 4, "all are heard")
        await stage.until(lambda: sum(map(len, heard.values())) >= 4 + 3 + 2 + 1 + 1)
        assert {name: sorted(n for _, n in found) for name, found in heard.items()} == {
            "at ben": [1, 4],
            "at b": [1, 2, 4],
            "at a": [3],
            "for away": [4],
            "all": [1, 2, 3, 4],
        }

    play(scene)


@on_every_kind
def test_after_they_part_and_meet_again_only_what_is_new_is_heard(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        mine = await shared("board", await do(a.agent("ada")))
        theirs = await shared("board", await do(b.agent("ben")))
        heard = Heard()
        await do(mine.add_weak_reaction(UbiquitousReaction(ITEM, heard, ONCE_PER_TUPLE)))
        await do(theirs.out(("item", 1)))
        await stage.until(lambda: len(heard) == 1)
        await do(b.disengage())
        await do(theirs.out(("item", 2)))
        await stage.until(lambda: a.hosts == [a.location])
        await do(mine.out(("item", 3)))
        await stage.until(lambda: len(heard) == 2)
        assert heard == [("item", 1), ("item", 3)]
        await do(b.engage())
        await stage.until(lambda: len(heard) == 3)
        assert heard[2:] == [("item", 2)]

    play(scene)


def test_weak_listeners_may_be_coroutines_and_come_one_after_the_other():
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        space = await shared("board", await host.agent("ada"))
        lines: list[str] = []

        async def listen(event: ReactionEvent) -> None:
            lines.append(f"begin {event.tuple[1]}")
            await space.out(("echo", event.tuple[1]))
            await asyncio.sleep(0)
            lines.append(f"end {event.tuple[1]}")

        await space.add_weak_reaction(UbiquitousReaction(ITEM, listen, ONCE_PER_TUPLE))
        for number in range(3):
            await space.out(("item", number))
        await stage.until(lambda: len(lines) == 6)
        assert lines == [f"{word} {n}" for n in range(3) for word in ("begin", "end")]
        assert len(await space.rdg(("echo", int))) == 3

    play_async(scene)


@at_both_doors
def test_a_weak_listener_that_raises_does_not_stop_the_others(play, caplog):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = await do(host.agent("ada"))
        space = await shared("board", ada)
        heard = Heard()

        def clumsy(event: ReactionEvent) -> None:
            heard.reacts_to(event)
            if event.tuple[1] == 1:
                raise ArithmeticError("dropped it")

        [registered] = await do(
            space.add_weak_reaction(UbiquitousReaction(ITEM, clumsy, ONCE_PER_TUPLE))
        )
        for number in (1, 2):
            await do(space.out(("item", number)))
        await stage.until(lambda: len(heard) == 2)
        await stage.until(lambda: isinstance(ada.error, ArithmeticError))
        assert registered.enabled

    with caplog.at_level(logging.ERROR, "tupelo"):
        play(scene)
    assert ["dropped it" in (record.exc_text or "") for record in caplog.records] == [True]


@on_every_kind
def test_a_weak_reaction_of_a_private_space_hears_of_its_own(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada, ben = await do(host.agent("ada")), await do(host.agent("ben"))
        mine, theirs = LimeTupleSpace("board", ada), await shared("board", ben)
        heard = Heard()
        await do(mine.add_weak_reaction(UbiquitousReaction(ITEM, heard, ONCE_PER_TUPLE)))
        await do(theirs.out(("item", 1)))
        await do(mine.out(("item", 2)))
        await stage.until(lambda: len(heard) == 1)
        assert heard == [("item", 2)]
        await do(mine.set_shared(True))
        await stage.until(lambda: len(heard) == 2)
        assert heard == [("item", 2), ("item", 1)]

    play(scene)


# Strong reactions


@on_every_kind
def test_a_strong_reaction_is_in_the_step(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada, ben = await do(host.agent("ada")), await do(host.agent("ben"))
        mine, theirs = await shared("board", ada), await shared("board", ben)

        def double(event: ReactionEvent) -> None:
            assert event.step is not None and event.source == ben.location
            assert event.step.rdp(ITEM) == event.step.inp(ITEM) == event.tuple
            event.step.out(("twice", event.tuple[1] * 2))
            event.step.out(("for ben", 1), ben.location)
            assert event.step.rdg(("twice", int)) == [("twice", 42)]
            assert event.step.ing(ITEM) == []

        await do(mine.add_strong_reaction(localized(host, double)))
        await do(theirs.out(("item", 21)))
        assert await do(theirs.rdg(tupelo.ANY, ada.location)) == [("twice", 42)]
        assert await do(mine.rdg(tupelo.ANY, ben.location)) == [("for ben", 1)]

    play(scene)


@on_every_kind
def test_a_strong_listener_that_raises_undoes_the_step(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        space = await shared("board", await do(host.agent("ada")))

        def refuse(event: ReactionEvent) -> None:
            assert event.step is not None
            event.step.out(("seen", event.tuple[1]))
            raise ArithmeticError("not here")

        [registered] = await do(space.add_strong_reaction(localized(host, refuse)))
        with pytest.raises(ReactionFailed, match="not here"):
            await do(space.out(("item", 1)))
        assert isinstance(registered.error, ArithmeticError)
        assert await do(space.rdg(tupelo.ANY)) == []
        await do(space.out(("other", 2)))
        assert await do(space.rdg(tupelo.ANY)) == [("other", 2)]

    play(scene)


@at_both_doors
def test_a_strong_listener_that_holds_its_host_is_disabled(play):
    """It runs inside the step, so nothing can stop it; but it does so once."""

    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = await do(host.agent("ada"))
        space = await shared("s", ada)
        heard: list[Any] = []

        def sleep(event: ReactionEvent) -> None:
            heard.append(event.tuple)
            if event.tuple == ("item", 1):
                time.sleep(3 * host.server.core.heartbeat)

        [registered] = await do(space.add_strong_reaction(localized(host, sleep)))
        with pytest.raises(ReactionFailed, match="make it a weak reaction"):
            await do(space.out(("item", 1)))
        assert await do(space.rdg(ITEM)) == []
        assert not registered.enabled
        assert isinstance(registered.error, LimeError)
        await do(space.out(("item", 2)))
        assert heard == [("item", 1)]
        await do(registered.enable())
        assert registered.enabled
        await do(space.out(("item", 3)))
        assert heard == [("item", 1), ("item", 2), ("item", 3)]

    play(scene)


@at_both_doors
def test_a_strong_listener_is_led_to_its_step(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = await do(host.agent("ada"))
        space = await shared("board", ada)
        errors: list[Exception] = []

        def listen(event: ReactionEvent) -> None:
            for use in (
                lambda: LimeTupleSpace("board", ada),
                space.get_registered_reactions,
            ):
                try:
                    use()
                except BadInput as error:
                    errors.append(error)

        await do(space.add_strong_reaction(localized(host, listen)))
        await do(space.out(("item", 1)))
        assert ["event.step" in str(error) for error in errors] == [True, True]

    play(scene)


def test_a_task_that_a_strong_listener_begins_is_not_in_its_step():
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        space = await shared("board", await host.agent("ada"))
        tasks: list[asyncio.Task[None]] = []

        def listen(event: ReactionEvent) -> None:
            tasks.append(asyncio.ensure_future(space.out(("later", event.tuple[1]))))

        await space.add_strong_reaction(localized(host, listen))
        await space.out(("item", 1))
        await tasks[0]
        assert await space.rdp(("later", int)) == ("later", 1)

    play_async(scene)


@on_every_kind
def test_a_strong_reaction_is_at_one_host_only(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        mine = await shared("board", await do(a.agent("ada")))
        theirs = await shared("board", await do(b.agent("ben")))
        here, there = Heard(), Heard()
        registered = await do(mine.add_strong_reaction(localized(a, here), localized(b, there)))
        await do(mine.out(("item", 1)))
        await do(theirs.out(("item", 2)))
        assert (here, there) == ([("item", 1)], [])
        assert [one.enabled for one in registered] == [True, True]
        with pytest.raises(BadArgument, match="strong"):
            await do(mine.add_strong_reaction(UbiquitousReaction(ITEM, here, ONCE)))  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="strong"):
            await do(
                mine.add_strong_reaction(
                    LocalizedReaction(UNSPECIFIED, UNSPECIFIED, ITEM, here, ONCE)
                )
            )

    play(scene)


@on_every_kind
def test_a_strong_reaction_to_an_agents_tuples_leaves_the_others_alone(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada, ben = await do(host.agent("ada")), await do(host.agent("ben"))
        mine, theirs = await shared("board", ada), await shared("board", ben)
        heard = Heard()
        await do(mine.add_strong_reaction(localized(ben, heard)))
        await do(mine.out(("item", 1)))
        await do(theirs.out(("item", 2)))
        await do(mine.out(("item", 3), ben.location))
        assert heard == [("item", 2), ("item", 3)]

    play(scene)


# Registration


@on_every_kind
@pytest.mark.parametrize("weak", [True, False], ids=["weak", "strong"])
def test_a_reaction_enabled_again_has_forgotten(play, weak):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        space = await shared("board", await do(host.agent("ada")))
        heard = Heard()
        add = space.add_weak_reaction if weak else space.add_strong_reaction
        [registered] = await do(add(localized(host, heard)))
        await do(space.out(("item", 1)))
        await stage.until(lambda: len(heard) == 1)
        await do(registered.disable())
        assert not registered.enabled and space.is_registered_reaction(registered)
        await do(space.out(("item", 2)))
        await do(registered.enable())
        await do(registered.enable())
        await stage.until(lambda: len(heard) == 3)
        await do(space.out(("item", 3)))
        await stage.until(lambda: len(heard) == 4)
        assert heard == [("item", 1), ("item", 1), ("item", 2), ("item", 3)]

    play(scene)


@on_every_kind
def test_reactions_are_registered_listed_and_removed(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = await do(host.agent("ada"))
        board, other = await shared("board", ada), await shared("other", ada)
        heard = Heard()
        reaction = UbiquitousReaction(ITEM, heard, ONCE_PER_TUPLE)
        weak = await do(board.add_weak_reaction(reaction, reaction))
        [strong] = await do(board.add_strong_reaction(localized(ada, heard)))
        [elsewhere] = await do(other.add_weak_reaction(reaction))
        assert board.get_registered_reactions() == [*weak, strong]
        assert other.get_registered_reactions() == [elsewhere]
        assert len({*weak, strong, elsewhere}) == 4
        assert board.is_registered_reaction(strong)
        assert not board.is_registered_reaction(elsewhere)
        assert isinstance(strong, RegisteredReaction) and isinstance(strong, lime.Reaction)
        assert (strong.tuple_space_name, strong.subscriber) == ("board", ada.location)
        assert (strong.is_weak, weak[0].is_weak, strong.enabled) == (False, True, True)
        assert (strong.template, strong.listener, strong.mode) == (ITEM, heard, ONCE_PER_TUPLE)
        assert (strong.current, strong.destination) == (ada.location, UNSPECIFIED)
        await do(board.remove_reaction(strong, weak[0]))
        await do(board.remove_reaction(strong))
        assert board.get_registered_reactions() == [weak[1]] and not strong.enabled
        with pytest.raises(BadArgument, match="reaction="):
            await do(strong.enable())
        with pytest.raises(BadArgument, match="reaction="):
            await do(board.remove_reaction(elsewhere))
        await do(board.out(("item", 1)))
        await stage.until(lambda: len(heard) == 1)
        await do(other.out(("item", 2)))
        await stage.until(lambda: len(heard) == 2)
        assert heard == [("item", 1), ("item", 2)]

    play(scene)


@at_both_doors
def test_a_reaction_of_another_agent_is_not_to_be_touched(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        kept: list[RegisteredReaction] = []

        async def own() -> None:
            space = await shared("board", await do(host.agent("ada")))
            kept.extend(await do(space.add_weak_reaction(UbiquitousReaction(ITEM, print, ONCE))))

        if stage.is_async:
            await asyncio.create_task(own())
            with pytest.raises(NotOwner):
                await kept[0].disable()
        else:
            await own()
            with pytest.raises(NotOwner):
                Call(kept[0].disable).result()
        assert kept[0].enabled

    play(scene)


@at_both_doors
def test_listeners_must_fit_their_reaction(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        space = await shared("board", await do(host.agent("ada")))

        async def listen(event: ReactionEvent) -> None:
            raise AssertionError

        with pytest.raises(BadArgument, match="listener="):
            await do(space.add_strong_reaction(localized(host, listen)))
        if not stage.is_async:
            with pytest.raises(BadArgument, match="listener="):
                space.add_weak_reaction(UbiquitousReaction(ITEM, listen, ONCE))
        assert space.get_registered_reactions() == []

    play(scene)


@at_both_doors
def test_a_template_that_is_code_cannot_be_watched_for_elsewhere(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        space = await shared("board", await do(host.agent("ada")))
        even: Callable[[Any], bool] = lambda number: number % 2 == 0  # noqa: E731
        template = ("item", tupelo.Where(even))
        heard = Heard()
        with pytest.raises(BadTemplate):
            await do(space.add_weak_reaction(UbiquitousReaction(template, heard, ONCE)))
        strong = LocalizedReaction(host.location, UNSPECIFIED, template, heard, ONCE)
        await do(space.add_strong_reaction(strong))
        await do(space.out(("item", 1)))
        await do(space.out(("item", 2)))
        assert heard == [("item", 2)]

    play(scene)


# LimeSystem


@on_every_kind
def test_reactions_to_who_comes_and_goes(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        ada = await do(a.agent("ada"))
        system = lime.LimeSystemTupleSpace(ada)
        weak, strong = Heard(), Heard()
        agents = ("agent", str, str, str)
        await do(system.add_weak_reaction(UbiquitousReaction(agents, weak, ONCE_PER_TUPLE)))
        await do(
            system.add_strong_reaction(
                LocalizedReaction(a.location, UNSPECIFIED, agents, strong, ONCE_PER_TUPLE)
            )
        )
        b = await stage.host("b", near=[a])
        ben = await do(b.agent("ben"))
        both = {ada.id, ben.id}
        await stage.until(
            lambda: all({found[1] for found in heard} == both for heard in (weak, strong)),
            "both agents are heard of",
        )
        assert system.get_registered_reactions()[0].tuple_space_name == "LimeSystem"
        departed = Heard()
        gone = ("departed host", str, str)
        await do(system.add_weak_reaction(UbiquitousReaction(gone, departed, ONCE_PER_TUPLE)))
        await do(b.close())
        await stage.until(lambda: a.hosts == [a.location])
        await stage.until(lambda: len(departed) == 1, "its departure is heard of")
        assert departed[0] == ("departed host", b.host.id, "b")
        assert await do(system.rdp(("departed agent", ben.id, str))) is not None
        assert await do(system.rdg(("host", str, str))) == [("host", a.location.id, "a")]
        assert HostLocation(b.host.id) not in a.hosts

    play(scene)


@on_every_kind
@pytest.mark.parametrize("how", ["removed", "disabled"])
def test_a_listener_is_called_no_more_for_what_waits_when_its_reaction_is(play, how):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        board = await shared("board", await do(host.agent("ada")))
        heard: list[Any] = []
        begun, gate = threading.Event(), threading.Event()

        def hear(event: ReactionEvent) -> None:
            heard.append(event.tuple)
            begun.set()
            assert gate.wait(PATIENCE_SECONDS)

        async def hear_async(event: ReactionEvent) -> None:
            heard.append(event.tuple)
            begun.set()
            while not gate.is_set():
                await asyncio.sleep(0)

        listener = hear_async if stage.is_async else hear
        [first] = await do(
            board.add_weak_reaction(UbiquitousReaction(ITEM, listener, ONCE_PER_TUPLE))
        )
        for number in range(3):
            await do(board.out(("item", number)))
        await stage.until(begun.is_set, "the first is heard")
        await do(board.remove_reaction(first) if how == "removed" else first.disable())
        other = Heard()
        await do(board.add_weak_reaction(UbiquitousReaction(("last",), other, ONCE)))
        await do(board.out(("last",)))
        gate.set()
        await stage.until(lambda: other, "the last one is heard")
        assert len(heard) == 1

    play(scene)


@at_both_doors
def test_a_listener_that_wants_to_end_more_than_itself_is_a_failure_and_others_are_called(
    play, caplog
):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = await do(host.agent("ada"))
        board = await shared("board", ada)
        raised: type[BaseException] = asyncio.CancelledError if stage.is_async else SystemExit

        def leave(event: ReactionEvent) -> None:
            raise raised

        heard = Heard()
        await do(board.add_weak_reaction(UbiquitousReaction(ITEM, leave, ONCE_PER_TUPLE)))
        await do(board.out(("item", 1)))
        await stage.until(lambda: ada.error is not None, "it has failed")
        assert isinstance(ada.error, raised)
        await do(board.add_weak_reaction(UbiquitousReaction(("other",), heard, ONCE)))
        await do(board.out(("other",)))
        await stage.until(lambda: heard, "the other one is called")

    with caplog.at_level(logging.CRITICAL, "tupelo"):
        play(scene)


def test_a_strong_listener_that_would_end_the_program_is_a_failure_and_the_host_goes_on():
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = host.agent("ada")
        board = await shared("board", ada)

        def leave(event: ReactionEvent) -> None:
            raise SystemExit

        board.add_strong_reaction(localized(ada, leave))
        with pytest.raises(ReactionFailed, match="SystemExit"):
            board.out(("item", 1))
        assert board.rdg(tupelo.ANY) == []

    play_blocking(scene)


@at_both_doors
@pytest.mark.parametrize(
    "use", [lambda step: step.out(("evil", 1)), lambda step: step.inp(), lambda step: step.ing()]
)
def test_lime_system_cannot_be_changed_in_a_step_either(play, use):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        await do(host.agent("ada"))
        before = sorted(await do(host.system.rdg(tupelo.ANY)))
        hosts = ("host", str, str)

        def change(event: ReactionEvent) -> None:
            use(event.step)

        reaction = LocalizedReaction(host.location, UNSPECIFIED, hosts, change, ONCE_PER_TUPLE)
        with pytest.raises(ReactionFailed, match="LimeSystem"):
            await do(host.system.add_strong_reaction(reaction))
        assert sorted(await do(host.system.rdg(tupelo.ANY))) == before

    play(scene)


@at_both_doors
def test_a_host_is_not_closed_nor_moved_inside_a_step_but_afterwards(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        ben = await do(b.agent("ben"))
        board = await shared("board", ben)
        refused: list[str] = []

        def strong(event: ReactionEvent) -> None:
            uses: list[Callable[..., Any]] = [b.close, b.engage, b.disengage, b.agent]
            for use, args in zip(uses, ((), (), (), ("bea",)), strict=True):
                with pytest.raises(BadInput) as error:
                    run_coroutine(do(use(*args)))
                refused.append(str(error.value))

        await do(board.add_strong_reaction(localized(ben, strong)))
        await do(board.out(("item", 1)))
        assert ["event.step" in one for one in refused] == [True] * 4
        assert set(b.hosts) == {a.location, b.location}
        await do(b.close())
        await stage.until(lambda: a.hosts == [a.location], "b has left")

    play(scene)


@at_both_doors
def test_who_fails_in_a_step_is_named_and_so_is_what_it_cannot_use(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = await do(host.agent("ada"))
        board = await shared("board", ada)

        def misdirected(event: ReactionEvent) -> None:
            assert event.step is not None
            event.step.out(("other",), "ben")  # type: ignore[arg-type]

        [strong] = await do(board.add_strong_reaction(localized(ada, misdirected)))
        with pytest.raises(ReactionFailed, match=r"'misdirected'.*destination="):
            await do(board.out(("item", 1)))
        assert isinstance(strong.error, BadArgument)
        assert await do(board.rdg(tupelo.ANY)) == []

    play(scene)


# Reactions that a strong listener registers and removes


def to_others(where: Any, listener: Any, mode: Any = ONCE_PER_TUPLE) -> LocalizedReaction:
    return LocalizedReaction(where.location, UNSPECIFIED, ("other", int), listener, mode)


@on_every_kind
def test_a_strong_listener_registers_a_strong_reaction_which_reacts_in_the_same_step(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = await do(host.agent("ada"))
        board = await shared("board", ada)
        await do(board.out(("other", 1)))
        heard: list[Any] = []
        added: list[RegisteredReaction] = []

        def take(event: ReactionEvent) -> None:
            assert event.step is not None and event.step.inp(event.tuple) == event.tuple
            heard.append(event.tuple)

        def begin(event: ReactionEvent) -> None:
            assert event.step is not None
            added.extend(event.step.add_strong_reaction(to_others(host, take)))
            assert heard == [], "it reacts when this listener has returned"
            event.step.out(("other", 2))

        await do(board.add_strong_reaction(localized(host, begin, ONCE)))
        await do(board.out(("item", 1)))
        assert sorted(heard) == [("other", 1), ("other", 2)]
        assert await do(board.rdg(tupelo.ANY)) == [("item", 1)]
        assert board.get_registered_reactions() == added and added[0].enabled
        await do(board.out(("other", 3)))
        assert heard[2:] == [("other", 3)]
        await do(board.remove_reaction(*added))
        await do(board.out(("other", 4)))
        assert heard[3:] == [] and board.get_registered_reactions() == []

    play(scene)


@on_every_kind
def test_a_strong_listener_removes_reactions_for_the_rest_of_the_step(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        board = await shared("board", await do(host.agent("ada")))
        for number in range(3):
            await do(board.out(("item", number)))
        before, after = Heard(), Heard()
        own: list[Any] = []

        def end(event: ReactionEvent) -> None:
            assert event.step is not None
            own.append(event.tuple)
            event.step.remove_reaction(event.reaction, later)
            assert not event.reaction.enabled

        [_, later] = await do(
            board.add_strong_reaction(to_others(host, before), localized(host, after))
        )
        after.clear()
        await do(board.add_strong_reaction(localized(host, end)))
        assert own == [("item", 0)]
        await do(board.out(("item", 3)))
        assert (len(own), after, len(board.get_registered_reactions())) == (1, [], 1)
        assert not later.enabled and not board.is_registered_reaction(later)

    play(scene)


@on_every_kind
def test_what_a_strong_listener_registers_and_removes_is_undone_with_its_step(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        board = await shared("board", await do(host.agent("ada")))
        old, new = Heard(), Heard()
        added: list[RegisteredReaction] = []

        def change(event: ReactionEvent) -> None:
            step = event.step
            assert step is not None
            added.extend(step.add_strong_reaction(to_others(host, new)))
            added.extend(
                step.add_weak_reaction(UbiquitousReaction(("other", int), new, ONCE_PER_TUPLE))
            )
            step.remove_reaction(*there)
            if event.tuple[1] == 1:
                raise ArithmeticError("not yet")

        there = await do(board.add_strong_reaction(to_others(host, old)))
        there += await do(
            board.add_weak_reaction(UbiquitousReaction(("other", int), old, ONCE_PER_TUPLE))
        )
        await do(board.add_strong_reaction(localized(host, change)))
        with pytest.raises(ReactionFailed, match="not yet"):
            await do(board.out(("item", 1)))
        assert [one.enabled for one in [*there, *added]] == [True, True, False, False]
        await do(board.out(("other", 1)))
        await stage.until(lambda: len(old) == 2, "both of the old ones have heard")
        assert new == []
        added.clear()
        await do(board.out(("item", 2)))
        assert [one.enabled for one in [*there, *added]] == [False, False, True, True]
        await stage.until(lambda: len(new) == 2, "the weak one too hears of what is there")
        await do(board.out(("other", 2)))
        await stage.until(lambda: len(new) == 4, "both of the new ones have heard")
        assert len(old) == 2

    play(scene)


@at_both_doors
def test_a_weak_reaction_of_a_strong_listener_hears_of_other_hosts(play):
    async def scene(stage: Stage) -> None:
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        mine = await shared("board", await do(a.agent("ada")))
        theirs = await shared("board", await do(b.agent("ben")))
        await do(theirs.out(("other", 1)))
        heard = Heard()

        def begin(event: ReactionEvent) -> None:
            assert event.step is not None
            [weak] = event.step.add_weak_reaction(
                UbiquitousReaction(("other", int), heard, ONCE_PER_TUPLE)
            )
            if event.tuple[1] == 1:
                event.step.remove_reaction(weak)

        await do(mine.add_strong_reaction(localized(a, begin)))
        await do(mine.out(("item", 1)))
        assert len(mine.get_registered_reactions()) == 1
        await do(mine.out(("item", 2)))
        await stage.until(lambda: heard == [("other", 1)], "it has heard of what was there")
        await do(theirs.out(("other", 2)))
        await stage.until(lambda: heard == [("other", 1), ("other", 2)], "and of what has come")

    play(scene)


def test_a_strong_listener_on_the_thread_of_another_door_registers_and_removes():
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        board = await shared("board", host.agent("ada"))
        heard, threads = Heard(), set()

        def change(event: ReactionEvent) -> None:
            assert event.step is not None
            threads.add(threading.get_ident())
            event.step.remove_reaction(event.reaction)
            event.step.add_strong_reaction(to_others(host, heard))
            event.step.add_weak_reaction(UbiquitousReaction(("other", int), heard, ONCE_PER_TUPLE))

        board.add_strong_reaction(localized(host, change))
        other_door = host.host.space("board")
        other_door.write(("item", 1))
        assert len(board.get_registered_reactions()) == 2
        other_door.write(("other", 2))
        await stage.until(lambda: len(heard) == 2, "the weak one has heard as well")
        other_door.write(("item", 3))
        assert len(threads) == 1 and len(board.get_registered_reactions()) == 2

    play_blocking(scene)


@at_both_doors
def test_a_strong_listener_is_told_what_it_cannot_register_or_remove(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        ada = await do(host.agent("ada"))
        board, notes = await shared("board", ada), await shared("notes", ada)
        [other] = await do(notes.add_strong_reaction(localized(host, Heard())))
        uses: list[tuple[str, Callable[[Any], object]]] = [
            (
                "strong",
                lambda step: step.add_strong_reaction(UbiquitousReaction(ITEM, print, ONCE)),
            ),
            ("UbiquitousReaction", lambda step: step.add_weak_reaction(ITEM)),
            ("with this space", lambda step: step.remove_reaction(other)),
            ("cannot wait", lambda step: step.add_strong_reaction(localized(host, wait))),
        ]

        async def wait(event: ReactionEvent) -> None:
            raise AssertionError

        for words, use in uses:
            [registered] = await do(
                board.add_strong_reaction(localized(host, lambda event, use=use: use(event.step)))
            )
            with pytest.raises(ReactionFailed, match=words):
                await do(board.out(("item", 1)))
            assert board.get_registered_reactions() == [registered]
            await do(board.remove_reaction(registered))
        kept: list[Any] = []
        await do(board.add_strong_reaction(localized(host, lambda event: kept.append(event.step))))
        await do(board.out(("item", 1)))
        with pytest.raises(TransactionEnded):
            kept[0].add_strong_reaction(localized(host, Heard()))
        with pytest.raises(TransactionEnded):
            kept[0].remove_reaction(*board.get_registered_reactions())
        assert other.enabled and len(board.get_registered_reactions()) == 1

    play(scene)


@at_both_doors
def test_of_several_reactions_a_strong_listener_registers_all_or_none(play):
    def fail(value: object) -> bool:
        raise ArithmeticError("it cannot tell")

    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        board = await shared("board", await do(host.agent("ada")))
        await do(board.out(("other", 1)))
        heard, errors = Heard(), []
        bad = LocalizedReaction(
            host.location, UNSPECIFIED, ("other", tupelo.Where(fail)), heard, ONCE_PER_TUPLE
        )

        def begin(event: ReactionEvent) -> None:
            assert event.step is not None
            try:
                event.step.add_strong_reaction(to_others(host, heard), bad)
            except Exception as error:
                errors.append(error)

        [first] = await do(board.add_strong_reaction(localized(host, begin)))
        await do(board.out(("item", 1)))
        assert "it cannot tell" in str(errors[0])
        await do(board.out(("other", 2)))
        assert heard == [] and board.get_registered_reactions() == [first]
        assert len(host.server.core.spaces["board"].port._core.reactions) == 1

    play(scene)


@at_both_doors
def test_listeners_that_register_each_other_for_ever_are_stopped_and_undone(play):
    async def scene(stage: Stage) -> None:
        host = await stage.host("a")
        board = await shared("board", await do(host.agent("ada")))

        def again(event: ReactionEvent) -> None:
            assert event.step is not None
            event.step.add_strong_reaction(localized(host, again))

        [first] = await do(board.add_strong_reaction(localized(host, again)))
        with pytest.raises(ReactionError):  # Livelock or, on a busy machine, "took too long"
            await do(board.out(("item", 1)))
        assert board.get_registered_reactions() == [first]
        assert await do(board.rdg(tupelo.ANY)) == []

    play(scene)
