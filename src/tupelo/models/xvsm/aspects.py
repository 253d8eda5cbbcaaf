"""Aspects: functions before and after the operations of a container, or of the whole space.

An aspect is an object with a method for each point at which it is registered (`pre_write`,
`post_take`, ...). It gets the request, whose arguments it may change, and returns:

| result                    | what happens                                                        |
| ------------------------- | ------------------------------------------------------------------- |
| None or OK                | the next aspect runs, or the operation                              |
| SKIP                      | no operation and no further aspects; the result is `request.result` |
| Veto(reason), or raised   | AspectVeto, and all that was done is undone                         |
| RESCHEDULE                | undone, and repeated when the container has changed, until timeout  |
| any error that it raises  | AspectFailed, and all that was done is undone                       |

"The container has changed" means that a Capi has done an operation there, or that an entry was
written by any API; an entry that was taken by another API is not noticed. A veto or an error of an
aspect after a commit, a rollback or the shutdown undoes nothing, and raises AspectFailed.

Aspects at one point run in the order of registration: before an operation, those of the space and
then those of the container; after it, the other way round. What an aspect does with
`request.transaction` is part of the operation: it is undone with it, and not visible before. An
aspect may use that transaction, but not replace it. Entries that a read without a transaction has
found are not locked for the aspects after it: another program may take them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, fields
from enum import Enum
from inspect import isawaitable
from itertools import count as numbers
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tupelo.errors import AspectFailed, AspectVeto, BadArgument, SpaceClosed
from tupelo.space.blocking import Space, ThreadSignal
from tupelo.space.dual_api import maybe_await, run_coroutine
from tupelo.space.query import deadline_of
from tupelo.space.tasks import TaskSignal
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.models.xvsm.capi import AnyCapi
    from tupelo.models.xvsm.container import Container
    from tupelo.models.xvsm.selectors import Selector
    from tupelo.space.clock import Clock
    from tupelo.space.protocol import SubscriptionLike
    from tupelo.space.shared import SharedTransaction
    from tupelo.values.change import Notice


class Point(Enum):
    """An interception point. Its value is the name of the method that an aspect has for it."""

    PRE_ADD_ASPECT = "pre_add_aspect"
    POST_ADD_ASPECT = "post_add_aspect"
    PRE_REMOVE_ASPECT = "pre_remove_aspect"
    POST_REMOVE_ASPECT = "post_remove_aspect"
    PRE_READ = "pre_read"
    POST_READ = "post_read"
    PRE_TAKE = "pre_take"
    POST_TAKE = "post_take"
    PRE_DESTROY = "pre_destroy"
    POST_DESTROY = "post_destroy"
    PRE_WRITE = "pre_write"
    POST_WRITE = "post_write"
    PRE_SHIFT = "pre_shift"
    POST_SHIFT = "post_shift"
    PRE_TEST = "pre_test"
    POST_TEST = "post_test"

    PRE_CREATE_CONTAINER = "pre_create_container"
    POST_CREATE_CONTAINER = "post_create_container"
    PRE_DESTROY_CONTAINER = "pre_destroy_container"
    POST_DESTROY_CONTAINER = "post_destroy_container"
    PRE_TRANSACTION_CREATE = "pre_transaction_create"
    POST_TRANSACTION_CREATE = "post_transaction_create"
    PRE_TRANSACTION_COMMIT = "pre_transaction_commit"
    POST_TRANSACTION_COMMIT = "post_transaction_commit"
    PRE_TRANSACTION_ROLLBACK = "pre_transaction_rollback"
    POST_TRANSACTION_ROLLBACK = "post_transaction_rollback"
    PRE_SHUTDOWN = "pre_shutdown"
    POST_SHUTDOWN = "post_shutdown"

    def __str__(self) -> str:
        return self.value


LOCAL_POINTS = tuple(Point)[:16]
"""The points of a container; an aspect of the space at these points is called for all
containers."""
GLOBAL_POINTS = tuple(Point)[16:]
"""The points of the space itself."""
FINAL_POINTS = (Point.POST_TRANSACTION_COMMIT, Point.POST_TRANSACTION_ROLLBACK, Point.POST_SHUTDOWN)
"""Points after which nothing can be undone."""

_numbers = numbers()


class Verdict(Enum):
    """What an aspect returns."""

    OK = "ok"
    SKIP = "skip"
    RESCHEDULE = "reschedule"


OK = Verdict.OK
SKIP = Verdict.SKIP
RESCHEDULE = Verdict.RESCHEDULE


class Veto(Exception):
    """Returned or raised by an aspect: the operation is refused, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True, eq=False)
class Request:
    """An operation, as aspects see it. Later aspects see what earlier ones have changed."""

    operation: str
    capi: AnyCapi
    context: dict[str, Any] = field(init=False)
    container: Container | None = None
    entries: list[Any] = field(default_factory=list)  # to be written
    selectors: list[Selector] = field(default_factory=list)
    timeout: float | None = None
    transaction: SharedTransaction | None = None
    is_alone: bool = False  # whether the transaction ends with the operation
    result: Any = None
    aspect: Aspect | None = None  # of add_aspect and remove_aspect
    points: list[Point] = field(default_factory=list)
    # name, size, coordinators, of create_container; isolation, operation, of read and test
    values: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.context = self.capi.get_aspect_context()

    def copy(self) -> Request:
        """A copy for one attempt, so that changes by aspects do not last."""
        copied = copy(self)
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, (list, dict)):
                setattr(copied, one.name, value.copy())
        return copied


class Aspect:
    """Base class of aspects: override the methods of the points that you want. Any object with such
    methods can be an aspect."""


class Registration:
    """An aspect with its points; the handle for `remove_aspect`."""

    def __init__(self, aspect: Any, points: list[Point]) -> None:
        self.id = uuid4().hex
        self.number = next(_numbers)
        self.aspect = aspect
        self.points = points

    def __repr__(self) -> str:
        return f"<{type(self.aspect).__name__} at {', '.join(map(str, self.points))}>"


class Interceptors:
    """The aspects of one container, or of the space, by point."""

    def __init__(self) -> None:
        self._at: dict[Point, list[Registration]] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._at)

    def at(self, point: Point) -> list[Registration]:
        """The aspects at a point, in order."""
        return list(self._at.get(point, ()))

    def add(self, registration: Registration, points: Iterable[Point]) -> None:
        """Add an aspect at these points. An aspect that was there before gets its old position
        back."""
        with self._lock:
            for point in points:
                there = [*self._at.get(point, ()), registration]
                self._at[point] = sorted(there, key=lambda one: one.number)

    def remove(self, registration: Registration, points: Iterable[Point]) -> list[Point]:
        """Remove an aspect from these points; returns the points where it was."""
        with self._lock:
            removed = [point for point in points if registration in self._at.get(point, ())]
            for point in removed:
                left = [one for one in self._at[point] if one is not registration]
                if left:
                    self._at[point] = left
                else:
                    del self._at[point]
        return removed


def check_points(points: Any, allowed: tuple[Point, ...], aspect: Any = None) -> list[Point]:
    """The checked argument `points` of add_aspect and remove_aspect."""
    if isinstance(points, Point):
        points = [points]
    if not isinstance(points, (list, tuple, set, frozenset)) or not points:
        raise BadArgument("points", "a list of points such as Point.PRE_WRITE", points)
    for point in points:
        if point not in allowed:
            where = "a container" if allowed is LOCAL_POINTS else "the space"
            raise BadArgument("points", f"points of {where}", point)
        if aspect is not None and not callable(getattr(aspect, point.value, None)):
            raise BadArgument("aspect", f"an object with a method {point.value}", aspect)
    return list(dict.fromkeys(points))


async def call_aspects(point: Point, registered: list[Registration], request: Request) -> Verdict:
    """Call the aspects at a point, one after the other."""
    final = point in FINAL_POINTS
    outcome = "what was done stands" if final else "the operation was undone"
    for registration in registered:
        name = f"{type(registration.aspect).__name__}.{point}"
        try:
            answer = await _answered(getattr(registration.aspect, point.value)(request), request)
        except Veto as veto:
            answer = veto
        except Exception as error:
            raise AspectFailed(
                f"{name} raised {type(error).__name__}: {error}; {outcome}"
            ) from error
        if final and (isinstance(answer, Veto) or answer is RESCHEDULE):
            raise AspectFailed(f"{name} answered {answer!r} too late; {outcome}")
        if isinstance(answer, Veto):
            raise AspectVeto(point.value, answer.reason)
        if answer is SKIP or answer is RESCHEDULE:
            return Verdict(answer)
        if answer is not None and answer is not OK:
            raise AspectFailed(
                f"{name} answered {answer!r}, which is none of OK, SKIP, RESCHEDULE and "
                f"Veto(reason); {outcome}"
            )
    return OK


async def _answered(answer: Any, request: Request) -> Any:
    if not isawaitable(answer):
        return answer
    if request.capi.is_async:
        return await answer
    try:
        return run_coroutine(maybe_await(answer))
    except RuntimeError as error:
        raise TypeError(
            "it waits for an event loop, which a Capi does not have: use an AsyncCapi, or a "
            "method that is not async"
        ) from error


class ChangeSignal:
    """Wakes operations that an aspect has rescheduled when the container has changed. It counts
    changes; an operation waits for a higher number."""

    def __init__(self, clock: Clock) -> None:
        self.count = 0
        self.waiting: list[ThreadSignal | TaskSignal] = []
        """The signals of the operations that wait."""
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False

    def watch(self, space: Space) -> SubscriptionLike:
        """Count entries that are written to this space by any API, until the space is closed."""
        seen: set[object] = set()

        def on_notice(notice: Notice) -> None:
            # Otherwise an operation that returned it would wake itself.
            if notice.subject not in seen:
                seen.add(notice.subject)
                self.tell()

        return space.subscribe(ANY, on_notice)

    def tell(self) -> None:
        """Count a change."""
        with self._lock:
            self.count += 1
            for signal in self.waiting:
                signal.wake()

    async def after(self, count: int, wait: float | None, is_async: bool) -> bool:
        """Wait for a change after this number; False if there was none in time. SpaceClosed if the
        container is closed."""
        signal = TaskSignal() if is_async else ThreadSignal()
        with self._lock:
            if self.count > count:
                return True
            self._require_open()
            if wait == 0:
                return False
            self.waiting.append(signal)
        try:
            if isinstance(signal, TaskSignal):
                await signal.wait_until(self._clock, deadline_of(self._clock, wait))
            else:
                self._clock.acquire(signal.lock, wait)
        finally:
            with self._lock:
                self.waiting.remove(signal)
        self._require_open()
        return self.count > count

    def _require_open(self) -> None:
        if self._closed:
            raise SpaceClosed("the container was closed")

    def close(self) -> None:
        """Let all that wait, now or later, raise SpaceClosed."""
        self._closed = True
        self.tell()
