"""Calls: requests and their answers, the same between a client and its host, between two hosts, and
along the tree of a group.

A call is a message with a number, chosen by the caller, and gets one Answer or one Failure of that
number. The caller keeps its open calls in `PendingCalls`. The called program has `InboundCalls` for
each caller, and a table of `Handlers`, filled by the features that own the messages. This module
does not know links: messages are sent through a function, or a method of the caller.

A host serves its clients in turns (`TurnScheduler`): some messages of each program, then those of
the next. The loop runs in between, so that new programs are accepted and heartbeats are sent
however many messages a program sends. Messages that are not served yet stay unread in their
links."""

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
"""Messages of all programs that are served before the loop runs again. A new program waits for
several rounds until it is connected, and a message to a durable space may take a millisecond. With
1,024, new programs among 200 busy clients waited two to five times longer, at the same throughput
(within a tenth)."""
TURN_MIN = 64
"""The shortest turn, in messages: the answers of a turn are sent together, in two writes."""
FIRST_MESSAGES = 8
"""Messages of a new program that are served before those of programs that wait for a turn."""
WORKING_IN_ALL_MAX = 2_048
"""Calls of all programs that are worked on at a time."""


class TurnTaker(Protocol):
    """A conversation with messages that were not served yet."""

    def serve_turn(self, most: int) -> int:
        """Serve at most so many of them; return how many were served."""
        ...

    @property
    def awaits_turn(self) -> bool:
        """Whether there are more that can be served now."""
        ...


class TurnScheduler:
    """The turns of one host. `working` counts the calls that are worked on as tasks; while they are
    `working_max`, nothing more is served."""

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
        """How many of the messages that were just received may be served at once. The rest waits
        for a turn: see `queue`."""
        if self._waiting or self._left <= 0 or self.working >= self._working_max:
            return 0
        granted = min(wanted, self._left)
        self._left -= granted
        if self._left <= 0:
            self._schedule()
        return granted

    def queue(self, one: TurnTaker) -> None:
        """Add a conversation with waiting messages that is not in the queue yet."""
        self._waiting.append(one)
        self._schedule()

    def ended(self, calls: int = 1) -> None:
        """So many calls have ended that were counted in `working`."""
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
        # The more conversations wait, the shorter the turns.
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
"""Open calls of one host. There may be many: when hosts meet, all operations that wait at one of
them ask the other."""
CLIENT_CALLS_MAX = 20_000
"""Open calls of one client, most of which wait for entries."""
WORKING_MAX = 1_024
"""Calls of one client that are worked on at a time; then nothing more is read from it."""
MESSAGE_MAX = 1_000
"""Bytes of the message of an error that cannot be sent as it is."""


# The caller


class Pending(Protocol):
    """An open call."""

    def answered(self, value: Any) -> None: ...

    def failed(self, error: TupeloError) -> None: ...


P = TypeVar("P", bound=Pending)


class PendingCalls(dict[int, P]):
    """Open calls, by number."""

    def resolve(self, message: Answer | Failure) -> P | None:
        """Give a call its answer or error. Returns the call; None if it is not open any more."""
        call = self.pop(message.call, None)
        if call is not None:
            if type(message) is Answer:
                call.answered(message.value)
            else:
                call.failed(read_failure(message))  # type: ignore[arg-type]
        return call

    def pop_all(self, which: Callable[[P], bool] = lambda call: True) -> list[P]:
        """Remove and return these calls. Another thread may answer some of them meanwhile."""
        found = []
        for number in list(self):
            call = self.get(number)
            if call is not None and which(call) and self.pop(number, None) is not None:
                found.append(call)
        return found


def read_failure(failure: Failure) -> TupeloError:
    """The error in a Failure."""
    return read_error(failure.kind, failure.message, failure.data)


class InboundCall:
    """A call whose `answer` a task awaits. An error that no task retrieves is not logged."""

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


# The called program


class CallContext(Protocol):
    """Where answers are sent."""

    def say(self, message: Message) -> None:
        """Send a message. Raises CannotSend if that is not possible."""
        ...

    def end(self, reason: str) -> None:
        """Close the link of a caller that has sent garbage."""
        ...


class RemoteCaller(Protocol):
    """The program or host that calls, as `InboundCalls` needs it."""

    @property
    def label(self) -> str: ...

    @property
    def talk(self) -> CallContext: ...

    def holds(self, call: int) -> bool:
        """Whether entries are reserved for this call."""
        ...

    def give_back(self, call: int) -> None:
        """Return the entries that were taken for this call: they do not reach the caller."""
        ...


class WaitingCall(Protocol):
    """A waiting call that has no task."""

    def vanish(self) -> object:
        """Stop waiting: the caller does not want the answer any more."""
        ...


C = TypeVar("C", bound=RemoteCaller)


class Handlers(Generic[C]):
    """The functions that handle the messages of callers, by message class.

    Functions in `now` are called at once and send the answer themselves. Those in `later` are
    coroutine functions; each call runs as a task that returns the answer. Calls of `uncancellable`
    classes go on when their caller cancels them.
    """

    def __init__(self) -> None:
        self.now: dict[type, Callable[[C, Any], object]] = {}
        self.later: dict[type, Callable[[C, Any], Coroutine[Any, Any, Any]]] = {}
        self.uncancellable: set[type] = set()


class _Forbidden(BadFrame):
    """A strict caller has sent a message that it may not send."""


class InboundCalls(Generic[C]):
    """The open calls of one caller at this program: as tasks, or parked. A call that is not allowed
    is answered with an error; for a `strict` caller it is a BadFrame, which ends the link.

    At most `calls_max` calls are open. With `turns`, reading from the caller is put on `hold` while
    `working_max` of its calls are worked on: those that are tasks and do not wait for an entry. A
    waiting call must not hold it, since the next message may be the one that ends the wait.
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
        """Handle a message. Raises BadFrame if the caller may not send it."""
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
        """Count a call that has become a task, unless it waits for an entry."""
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
        """Raise BadFrame if a call of this number is open: a confirmation could not tell which of
        the two takes it is for."""
        if call in self.tasks or call in self.parked or self._caller.holds(call):
            raise BadFrame(f"call {call} is under way already")

    def spawn(
        self,
        call: int,
        work: Coroutine[Any, Any, Any],
        ended: Callable[[asyncio.Task[None]], None] | None = None,
    ) -> None:
        """Run a coroutine as a task, and answer the call with its result or error. `ended` is
        called when the task has ended; a task that was cancelled may not even have begun."""
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
        self.tasks.pop(call, None)  # now: the caller may use the number again
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
        """Answer this call with an error."""
        kind, message, data = encode_error(error)
        try:
            self._caller.talk.say(Failure(call, kind, message, data))
        except CannotSend:  # The message of the error is too long, or not valid Unicode.
            sayable = message.encode(errors="replace")[:MESSAGE_MAX].decode(errors="ignore")
            self._caller.talk.say(Failure(call, kind, sayable))

    def cancel(self, call: int) -> None:
        """Cancel a call: entries that were taken for it are returned."""
        task = self.tasks.get(call)
        if task is not None and call not in self._uncancellable:
            task.cancel()
        parked = self.parked.pop(call, None)
        if parked is not None:
            parked.vanish()
        self._caller.give_back(call)

    def stop(self) -> list[asyncio.Task[None]]:
        """The caller is gone: cancel all its calls. Returns the tasks, which are about to end."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        for parked in self.parked.values():
            parked.vanish()
        self.parked.clear()
        return tasks
