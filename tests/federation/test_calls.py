"""The one layer of requests and replies: what callers and the called may rely on, without a link,
and between two conversations over one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tupelo.errors import BadArgument, BadFrame, CannotSend, NotAllowed, PeerLost, TupeloError
from tupelo.federation.links import calls, wire
from tupelo.federation.links.calls import Handlers, InboundCall, InboundCalls, PendingCalls
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.links.link import FrameReceiver
from tupelo.values.codec import BadBytes


class Talk:
    """What a caller is told. A list is an answer that cannot be said."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.ended: list[str] = []

    def say(self, message: wire.Message) -> None:
        if type(getattr(message, "value", None)) is list:
            raise CannotSend("it is too long")
        self.said.append(message)

    def end(self, reason: str) -> None:
        self.ended.append(reason)


class Someone:
    """A caller, and what is taken for its calls."""

    label = "someone"

    def __init__(self) -> None:
        self.talk = Talk()
        self.held: dict[int, str] = {}
        self.given_back: list[str] = []

    def holds(self, call: int) -> bool:
        return call in self.held

    def give_back(self, call: int) -> None:
        if call in self.held:
            self.given_back.append(self.held.pop(call))


class Stand:
    """Someone, and their requests. A Tell runs the work of its number; an End does too."""

    def __init__(self, *, strict: bool = False) -> None:
        self.caller = Someone()
        self.works: dict[int, Callable[[], Coroutine[Any, Any, Any]]] = {}
        self.handlers: Handlers[Someone] = Handlers()
        self.handlers.later |= {wire.DescribeHost: self.work, wire.End: self.work}
        self.handlers.uncancellable.add(wire.End)
        self.handlers.now[wire.ListPrepared] = self.refuse
        self.handlers.now[wire.Cancel] = self.cancel
        self.requests = InboundCalls(self.caller, self.handlers, strict=strict)

    async def work(self, caller: Someone, message: Any) -> Any:
        assert caller is self.caller
        return await self.works[message.call]()

    def refuse(self, caller: Someone, message: wire.ListPrepared) -> None:
        raise NotAllowed("doubt", message.space, "someone")

    def cancel(self, caller: Someone, message: wire.Cancel) -> None:
        for call in message.calls:
            self.requests.cancel(call)

    def ask(self, call: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.works[call] = work
        self.requests.serve(wire.DescribeHost(call))

    async def rest(self) -> list[Any]:
        """What was said, when all that can end has ended."""
        for _ in range(5):
            await asyncio.sleep(0)
        return self.caller.talk.said

    async def take(self, call: int, answer: Any) -> Any:
        self.caller.held[call] = f"entry {call}"
        return answer


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def raising(error: Exception) -> Callable[[], Coroutine[Any, Any, Any]]:
    async def work() -> None:
        raise error

    return work


def returning(value: Any) -> Callable[[], Coroutine[Any, Any, Any]]:
    async def work() -> Any:
        return value

    return work


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


# Whoever is called


def test_a_call_is_answered_with_what_its_work_returns():
    async def scene() -> None:
        stand = Stand()
        stand.ask(1, returning("one"))
        stand.ask(2, returning(2))
        said = await stand.rest()
        assert [(one.call, one.value) for one in said] == [(1, "one"), (2, 2)]
        assert not stand.requests.tasks

    play(scene)


def test_an_error_is_told_with_what_it_carries():
    async def scene() -> None:
        stand = Stand()
        stand.ask(1, raising(BadArgument("limit", "more than 0", -1)))
        stand.ask(2, raising(ZeroDivisionError("by nothing")))
        stand.requests.serve(wire.ListPrepared(3, "jobs"))
        said = {one.call: one for one in await stand.rest()}
        assert (said[1].kind, said[1].data["argument"]) == ("BadArgument", "limit")
        assert said[2].kind == "TupeloError" and "by nothing" in said[2].message
        assert said[3].kind == "NotAllowed"
        assert isinstance(calls.read_failure(said[3]), NotAllowed)

    play(scene)


def test_an_error_that_cannot_be_told_is_told_as_far_as_it_can_be():
    class Talking(Talk):
        def say(self, message: wire.Message) -> None:
            if getattr(message, "data", None):
                raise CannotSend("it carries too much")
            self.said.append(message)

    async def scene() -> None:
        stand = Stand()
        stand.caller.talk = Talking()
        stand.ask(1, raising(BadArgument("x" * 5_000, "short", "long")))
        (said,) = await stand.rest()
        assert said.kind == "BadArgument"
        assert len(said.message) == calls.MESSAGE_MAX

    play(scene)


@pytest.mark.parametrize(
    ("answer", "kind"), [("said", wire.Answer), (["unsayable"], wire.Failure)], ids=str
)
def test_an_answer_that_cannot_be_sent_gives_back_what_it_carried(answer, kind):
    async def scene() -> None:
        stand = Stand()
        stand.ask(7, lambda: stand.take(7, answer))
        (said,) = await stand.rest()
        assert type(said) is kind and said.call == 7
        assert stand.caller.given_back == ([] if kind is wire.Answer else ["entry 7"])
        assert bool(stand.caller.held) is (kind is wire.Answer)

    play(scene)


def test_work_that_fails_or_is_cancelled_gives_back_what_it_took():
    async def scene() -> None:
        stand = Stand()

        async def failing() -> None:
            await stand.take(1, None)
            raise TupeloError("no")

        async def waiting() -> None:
            await stand.take(2, None)
            await for_ever()

        stand.ask(1, failing)
        stand.ask(2, waiting)
        assert [one.call for one in await stand.rest()] == [1]
        stand.requests.serve(wire.Cancel([2, 99]))
        await stand.rest()
        assert stand.caller.given_back == ["entry 1", "entry 2"]
        assert not stand.requests.tasks

    play(scene)


def test_a_cancelled_call_is_not_answered_even_if_it_has_not_begun():
    async def scene() -> None:
        stand = Stand()
        ended: list[bool] = []
        stand.requests.spawn(1, for_ever(), lambda task: ended.append(task.cancelled()))
        stand.requests.serve(wire.Cancel([1]))
        assert await stand.rest() == []
        assert ended == [True] and not stand.requests.tasks

    play(scene)


def test_what_is_firm_cannot_be_cancelled():
    async def scene() -> None:
        stand = Stand()
        going_on = asyncio.Event()

        async def work() -> str:
            await going_on.wait()
            return "committed"

        stand.works[1] = work
        stand.requests.serve(wire.End(1, "jobs", "t", "commit"))
        await stand.rest()
        stand.requests.serve(wire.Cancel([1]))
        going_on.set()
        (said,) = await stand.rest()
        assert said.value == "committed"

    play(scene)


@pytest.mark.parametrize("strict", [False, True])
def test_no_more_calls_are_under_way_than_may_be(monkeypatch, strict):
    monkeypatch.setattr(calls, "CALLS_MAX", 2)

    class Waiting:
        def __init__(self) -> None:
            self.vanished = False

        def vanish(self) -> None:
            self.vanished = True

    async def scene() -> None:
        stand = Stand(strict=strict)
        parked = stand.requests.parked[1] = Waiting()
        stand.ask(2, for_ever)
        if strict:
            with pytest.raises(BadFrame, match="calls"):
                stand.ask(3, for_ever)
        else:
            stand.ask(3, for_ever)
            (said,) = await stand.rest()
            assert (said.call, said.kind) == (3, "LimitReached")
            assert said.data == {"what": "calls under way", "limit": 2}
            stand.caller.talk.said.clear()
        stand.requests.serve(wire.Cancel([1]))
        assert parked.vanished
        stand.ask(4, returning("room again"))
        assert [one.value for one in await stand.rest()] == ["room again"]
        await asyncio.gather(*stand.requests.stop(), return_exceptions=True)

    play(scene)


def test_a_number_that_is_in_use_is_refused():
    async def scene() -> None:
        stand = Stand(strict=True)
        stand.ask(1, for_ever)
        await stand.rest()
        stand.ask(1, returning("twice"))
        stand.caller.held[2] = "entry 2"
        stand.ask(2, returning("twice"))
        assert [(one.call, one.kind) for one in await stand.rest()] == [
            (1, "BadFrame"),
            (2, "BadFrame"),
        ]
        assert list(stand.requests.tasks) == [1]
        assert stand.caller.held
        stand.requests.stop()
        await stand.rest()

    play(scene)


@pytest.mark.parametrize("strict", [False, True])
def test_what_nobody_handles_is_refused_or_ends_the_link(strict):
    async def scene() -> None:
        stand = Stand(strict=strict)
        with pytest.raises(BadFrame, match="someone may not say Ping"):
            stand.requests.serve(wire.Ping())
        with pytest.raises(BadFrame, match="DescribeHost"):
            stand.requests.serve(wire.DescribeHost(0))
        if strict:
            with pytest.raises(BadFrame, match="someone may not say Open"):
                stand.requests.serve(wire.Open(1, "jobs"))
        else:
            stand.requests.serve(wire.Open(1, "jobs"))
            (said,) = await stand.rest()
            assert (said.call, said.kind) == (1, "BadFrame")

    play(scene)


def test_garbage_in_a_call_ends_the_link():
    async def scene() -> None:
        stand = Stand()
        stand.ask(1, raising(BadBytes("no entry")))
        assert await stand.rest() == []
        assert stand.caller.talk.ended == ["garbage: no entry"]

    play(scene)


# The caller


def test_calls_get_their_answers_and_errors_once():
    async def scene() -> None:
        pending: PendingCalls[InboundCall] = PendingCalls()
        for number in (1, 2):
            pending[number] = InboundCall("there", "a question")
        first, second = pending[1], pending[2]
        assert pending.resolve(wire.Answer(1, "yes")) is first
        assert pending.resolve(wire.Answer(1, "no")) is None
        assert pending.resolve(wire.Failure(2, "NotAllowed", "you may not")) is second
        assert await first.answer == "yes"
        with pytest.raises(NotAllowed, match="you may not"):
            await second.answer
        assert not pending

    play(scene)


def test_those_whose_host_is_lost_are_told_and_the_others_wait_on():
    async def scene() -> None:
        pending: PendingCalls[InboundCall] = PendingCalls()
        for number, target in enumerate("aab"):
            pending[number] = InboundCall(f"the host {target}", "a take", target)
        gone = pending[0].answer
        pending[1].answer.cancel()  # Nobody awaits it any more.
        for call in pending.pop_all(lambda call: call.target == "a"):
            call.lost("out of reach")
        with pytest.raises(PeerLost, match="out of reach") as lost:
            await gone
        assert (lost.value.peer, lost.value.during) == ("the host a", "a take")
        assert list(pending) == [2]

    play(scene)


# Both, over a link


class Wire:
    """A link within this loop: frames arrive at the next turn."""

    label = "the other end"
    identity: str | None = None
    here = True
    message_max = wire.FRAME_MAX
    waiting = in_pieces = 0

    def __init__(self) -> None:
        self.other: Wire
        self.ear: FrameReceiver
        self.is_cut = False

    def send(self, content: bytes, *, overtake: bool = False) -> None:
        asyncio.get_running_loop().call_soon(self.other.hear, content)

    def hear(self, content: bytes) -> None:
        if not self.is_cut:
            self.ear.heard([content])

    def admit(self, message_max: int) -> None:
        pass

    def pause(self) -> None:
        raise AssertionError("nothing waits here")

    resume = pause

    def close(self) -> None:
        self.is_cut = True
        asyncio.get_running_loop().call_soon(self.other.lose)

    abort = close

    def lose(self) -> None:
        if not self.is_cut:
            self.is_cut = True
            self.ear.lost("cut")


class End(Someone):
    """One end of a link: it asks, and is asked."""

    def __init__(self, link: Wire, handlers: Handlers[End]) -> None:
        super().__init__()
        numbers = iter(range(1, 1_000))
        self.requests: InboundCalls[End] = InboundCalls(self, handlers)
        self.reasons: list[str] = []
        self.conversation = Conversation(
            link,
            serve=self.requests.serve,
            ended=self.ended,
            next_call=lambda: next(numbers),
            heartbeat=10.0,
        )
        self.talk = self.conversation  # type: ignore[assignment]
        link.ear = self.conversation

    def ended(self, reason: str) -> None:
        self.reasons.append(reason)
        self.requests.stop()

    def ask(self, space: str) -> asyncio.Future[Any]:
        number = self.conversation.next_call()
        return self.conversation.call(wire.Open(number, space), "a question")


def two_ends(handlers: Handlers[End]) -> tuple[End, End]:
    links = Wire(), Wire()
    links[0].other, links[1].other = links[1], links[0]
    return End(links[0], handlers), End(links[1], handlers)


def test_a_lost_link_ends_the_calls_of_both_ends():
    async def scene() -> None:
        begun: list[str] = []
        cancelled: list[str] = []

        async def work(caller: End, message: wire.Open) -> str:
            begun.append(message.space)
            if message.space == "quick":
                return "done"
            try:
                caller.held[message.call] = message.space
                await for_ever()
            except asyncio.CancelledError:
                cancelled.append(message.space)
                raise
            return "never"

        handlers: Handlers[End] = Handlers()
        handlers.later[wire.Open] = work
        one, other = two_ends(handlers)
        assert await one.ask("quick") == "done"
        asked = [one.ask("there"), other.ask("here")]
        while len(begun) < 3:
            await asyncio.sleep(0)
        one.conversation.end("it is silent")
        for answer, reason in zip(asked, ("it is silent", "cut"), strict=True):
            with pytest.raises(PeerLost, match=reason):
                await answer
        await asyncio.sleep(0)
        assert sorted(cancelled) == ["here", "there"]
        assert (one.reasons, other.reasons) == (["it is silent"], ["cut"])
        assert (one.given_back, other.given_back) == (["here"], ["there"])
        with pytest.raises(PeerLost):
            await one.ask("quick")

    play(scene)
