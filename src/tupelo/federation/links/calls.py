"""Calls: requests and their answers, the same between a client and its host, between two hosts, and
along the tree of a group.

A call is a message with a number, chosen by the caller, and gets one Answer or one Failure of that
number. The caller keeps what it has asked in `PendingCalls`. Whoever is called has `InboundCalls`
for each caller, and a table of `Handlers`, filled by the features that own the messages. Nothing
here knows of links: what is said goes through a function, or a method of the caller."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tupelo.errors import BadFrame, CannotSend, LimitReached, PeerLost, TupeloError
from tupelo.federation.links.encoding import encode_error, read_error
from tupelo.federation.links.wire import Answer, Failure, Message
from tupelo.values.codec import BadBytes

ROUND_MESSAGES = 128
"""So many messages of all programs are served before the loop comes round. A newcomer waits for
several rounds until it is connected, and a message of a durable space may take a millisecond. With
1,024 newcomers among 200 busy clients waited two to five times longer; what the host did in a
second of its processor was the same within what such measurements differ (about a tenth)."""
TURN_MIN = 64
"""No turn is shorter, in messages: the answers of a turn go out together, in two writes."""
FIRST_MESSAGES = 8
"""So many messages of a program that has just come are served before all that wait."""
WORKING_IN_ALL_MAX = 2_048
"""So many calls of all programs may be worked on at a time."""


class TurnTaker(Protocol):
    """A conversation with messages that were not served yet."""

    def serve_turn(self, most: int) -> int:
        """Serve at most so many of them; how many were."""
        ...

    @property
    def awaits_turn(self) -> bool:
        """Are there more, that can be served now?"""
        ...


class TurnScheduler:
    """The turns of one host. `working` counts the calls that are being worked on, as tasks: when
    there are `working_max`, nothing more is served until one has ended."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, working_max: int = WORKING_IN_ALL_MAX
    ) -> None:
        self.working = 0
        self._working_max = working_max
        self._loop = loop
        self._waiting: deque[TurnTaker] = deque()
        self._left = ROUND_MESSAGES
        self._scheduled = False

    def take(self, wanted: int) -> int:
        """How many messages that have just come may be served at once. The rest waits for a
        turn: see `queue`."""
        if self._waiting or self._left <= 0 or self.working >= self._working_max:
            return 0
        granted = min(wanted, self._left)
        self._left -= granted
        if self._left <= 0:
            self._schedule()
        return granted

    def queue(self, one: TurnTaker) -> None:
        """This conversation has messages that wait for a turn, and is not in the queue yet."""
        self._waiting.append(one)
        self._schedule()

    def ended(self, calls: int = 1) -> None:
        """So many calls are not worked on any more."""
        full = self.working >= self._working_max
        self.working -= calls
        if full:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._scheduled = False
        self._left = ROUND_MESSAGES
        waiting = self._waiting
        # The more wait, the shorter is a turn, so that each has one soon.
        turn = max(TURN_MIN, ROUND_MESSAGES // max(1, len(waiting)))
        while waiting and self._left > 0 and self.working < self._working_max:
            one = waiting.popleft()
            self._left -= max(1, one.serve_turn(min(turn, self._left)))
            if one.awaits_turn:
                waiting.append(one)
        if self._left <= 0 or (waiting and self.working < self._working_max):
            self._schedule()


logger = logging.getLogger("tupelo")

CALLS_MAX = 100_000
"""So many calls of one host may be under way at a time: all that wait there ask when hosts meet."""
CLIENT_CALLS_MAX = 20_000
"""So many calls of one client may be under way at a time, most of which wait for entries."""
WORKING_MAX = 1_024
"""So many calls of one client are worked on at a time; then nothing more is read from it."""
MESSAGE_MAX = 1_000
"""So many bytes are said of an error that cannot be told as it is."""


# The caller


class Pending(Protocol):
    """A call that waits for its answer."""

    def answered(self, value: Any) -> None: ...

    def failed(self, error: TupeloError) -> None: ...


P = TypeVar("P", bound=Pending)


class PendingCalls(dict[int, P]):
    """The calls that wait for their answers, by number."""

    def resolve(self, message: Answer | Failure) -> P | None:
        """Tell a call its answer, or its error. None if nobody waits for it any more."""
        call = self.pop(message.call, None)
        if call is not None:
            if type(message) is Answer:
                call.answered(message.value)
            else:
                call.failed(read_failure(message))  # type: ignore[arg-type]
        return call

    def pop_all(self, which: Callable[[P], bool] = lambda call: True) -> list[P]:
        """Those calls, which wait no more. Another thread may answer some of them meanwhile."""
        found = []
        for number in list(self):
            call = self.get(number)
            if call is not None and which(call) and self.pop(number, None) is not None:
                found.append(call)
        return found


def read_failure(failure: Failure) -> TupeloError:
    """The error that a call has raised."""
    return read_error(failure.kind, failure.message, failure.data)


class InboundCall:
    """A call whose `answer` a task awaits. The caller may have gone: then no error is missed."""

    __slots__ = ("answer", "during", "peer", "target")

    def __init__(self, peer: str, during: str, target: str = "") -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.peer = peer
        self.during = during
        self.target = target

    def answered(self, value: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(value)

    def failed(self, error: TupeloError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()

    def lost(self, reason: str, *, in_doubt: bool = False) -> None:
        self.failed(PeerLost(self.peer, self.during, reason, in_doubt=in_doubt))


# Whoever is called


class CallContext(Protocol):
    """How the other end is told something."""

    def say(self, message: Message) -> None:
        """CannotSend if it cannot be said."""
        ...

    def end(self, reason: str) -> None:
        """It does not keep to the rules, and is not heard any more."""
        ...


class RemoteCaller(Protocol):
    """The other end, as `InboundCalls` needs it."""

    @property
    def label(self) -> str: ...

    @property
    def talk(self) -> CallContext: ...

    def holds(self, call: int) -> bool:
        """Is something kept for this call, which would go back with it?"""
        ...

    def give_back(self, call: int) -> None:
        """What was taken for this call does not reach the caller."""
        ...


class WaitingCall(Protocol):
    """A call that waits without a task."""

    def vanish(self) -> object:
        """Nobody wants the answer any more."""
        ...


C = TypeVar("C", bound=RemoteCaller)


class Handlers(Generic[C]):
    """Which function handles which message of a caller.

    Those in `now` are called at once, and answer by themselves, then or later. Those in `later`
    are coroutines, which run as a task each and return the answer. A call of an `uncancellable`
    message goes on when its caller cancels it.
    """

    def __init__(self) -> None:
        self.now: dict[type, Callable[[C, Any], object]] = {}
        self.later: dict[type, Callable[[C, Any], Coroutine[Any, Any, Any]]] = {}
        self.uncancellable: set[type] = set()


class _Forbidden(BadFrame):
    """A caller that is held strictly to the rules has broken them."""


class InboundCalls(Generic[C]):
    """The calls of one caller that are under way here: as tasks, or parked. A call that may not be
    is refused; from a caller that is held `strict`ly to the rules it is a BadFrame.

    At most `calls_max` are under way. With `turns`, the caller is put on `hold` while `working_max`
    of its calls are worked on: all that are tasks, but for those that wait for something. Those
    must not hold it, since what they wait for may be what it says next.
    """

    def __init__(
        self,
        caller: C,
        handlers: Handlers[C],
        *,
        strict: bool = False,
        calls_max: int | None = None,
        working_max: int = WORKING_MAX,
        turns: TurnScheduler | None = None,
        hold: Callable[[bool], object] = lambda held: None,
    ) -> None:
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.parked: dict[int, WaitingCall] = {}
        self._caller = caller
        self._now = handlers.now
        self._later = handlers.later
        self._uncancellable_types = handlers.uncancellable
        self._strict = strict
        self._calls_max = calls_max
        self._working_max = working_max
        self._turns = turns
        self._hold = hold
        self._working: set[int] = set()
        self._holding = False
        self._uncancellable: set[int] = set()
        self._loop = asyncio.get_running_loop()

    def serve(self, message: Message) -> None:
        """Do what a message asks. BadFrame if the caller may not say this."""
        call: int = getattr(message, "call", 0)
        try:
            if call and len(self.tasks) + len(self.parked) >= (self._calls_max or CALLS_MAX):
                self._forbid(LimitReached("calls under way", self._calls_max or CALLS_MAX))
            handle = self._now.get(type(message))
            if handle is not None:
                handle(self._caller, message)
                if self._turns is not None and call in self.tasks:
                    self._count(call, message, self._turns)
                return
            begin = self._later.get(type(message))
            if begin is None or not call:
                kind = type(message).__name__
                self._forbid(BadFrame(f"{self._caller.label} may not say {kind}"))
            else:
                self.spawn(call, begin(self._caller, message))
                if type(message) in self._uncancellable_types:
                    self._uncancellable.add(call)
                if self._turns is not None:
                    self._count(call, message, self._turns)
        except _Forbidden:
            raise
        except TupeloError as error:
            if not call:
                raise
            self.fail(call, error)

    def _count(self, call: int, message: Message, turns: TurnScheduler) -> None:
        """This call is a task from now on."""
        if getattr(message, "wait", 0) == 0 and call not in self._working:
            self._working.add(call)
            turns.working += 1
            if len(self._working) >= self._working_max and not self._holding:
                self._holding = True
                self._hold(True)

    def _discount(self, call: int) -> None:
        if call in self._working:
            assert self._turns is not None
            self._working.discard(call)
            self._turns.ended()
            if self._holding and len(self._working) <= self._working_max // 2:
                self._holding = False
                self._hold(False)

    def _forbid(self, error: TupeloError) -> None:
        raise _Forbidden(str(error)) if self._strict else error

    def require_new(self, call: int) -> None:
        """Two calls of one number could not be told apart: what one takes might be lost."""
        if call in self.tasks or call in self.parked or self._caller.holds(call):
            raise BadFrame(f"call {call} is under way already")

    def spawn(
        self,
        call: int,
        work: Coroutine[Any, Any, Any],
        ended: Callable[[asyncio.Task[None]], None] | None = None,
    ) -> None:
        """Run this as a task, and answer the call with what it returns or raises. `ended` is told
        when the task has ended; one that was cancelled may not even have begun."""
        try:
            self.require_new(call)
        except BadFrame:
            work.close()
            raise
        task = self.tasks[call] = self._loop.create_task(self._run(call, work))
        task.add_done_callback(partial(self._ended, call, work, ended))

    async def _run(self, call: int, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self._caller.talk.say(Answer(call, await work))
        except asyncio.CancelledError:
            self._caller.give_back(call)
            raise
        except BadBytes as error:
            self._caller.talk.end(f"garbage: {error}")
        except TupeloError as error:
            self._caller.give_back(call)
            self.fail(call, error)
        except Exception as error:
            logger.exception("a call of %s failed", self._caller.label)
            self._caller.give_back(call)
            self.fail(call, TupeloError(f"the host failed: {error!r}"))
        self.tasks.pop(call, None)  # At once: from now on the number may be used again.
        self._discount(call)

    def _ended(
        self,
        call: int,
        work: Coroutine[Any, Any, Any],
        ended: Callable[[asyncio.Task[None]], None] | None,
        task: asyncio.Task[None],
    ) -> None:
        work.close()
        self._uncancellable.discard(call)
        if self.tasks.get(call) is task:
            del self.tasks[call]
            self._discount(call)
        if ended is not None:
            ended(task)

    def fail(self, call: int, error: BaseException) -> None:
        """The answer of this call is an error."""
        kind, message, data = encode_error(error)
        try:
            self._caller.talk.say(Failure(call, kind, message, data))
        except CannotSend:  # It speaks of what cannot be said.
            sayable = message.encode(errors="replace")[:MESSAGE_MAX].decode(errors="ignore")
            self._caller.talk.say(Failure(call, kind, sayable))

    def cancel(self, call: int) -> None:
        """The caller wants this no more: what was taken for it goes back."""
        task = self.tasks.get(call)
        if task is not None and call not in self._uncancellable:
            task.cancel()
        parked = self.parked.pop(call, None)
        if parked is not None:
            parked.vanish()
        self._caller.give_back(call)

    def stop(self) -> list[asyncio.Task[None]]:
        """The caller is gone: nothing is answered any more. The tasks that are about to end."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        for parked in self.parked.values():
            parked.vanish()
        self.parked.clear()
        return tasks
