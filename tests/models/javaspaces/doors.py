"""JavaSpaces at both doors by one text: the async one is called like the blocking one.

Here too are the entries of appendix B, a clock that knows who sleeps on it, operations that wait
in threads of their own, and listeners that keep what they were told.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import ismethod
from pathlib import Path
from typing import Any

import tupelo
from tests.conftest import PATIENCE_SECONDS, Call, HandClock, until_true
from tests.kinds import SpaceMaker
from tests.laws.doors import LoopThread
from tupelo.federation.client.handles import RemoteSpaceTransaction
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.spanning.space import FederatedSpace
from tupelo.models.javaspaces import (
    FOREVER,
    NO_WAIT,
    AsyncLease,
    AsyncTransactionManager,
    AvailabilityEvent,
    Created,
    Entry,
    EventRegistration,
    JavaSpace,
    JavaSpace05,
    LeaseMap,
    MatchSet,
    RemoteEvent,
    Transaction,
    TransactionManager,
)
from tupelo.postgres.space import PostgresSpace
from tupelo.postgres.transactions import PostgresTransaction
from tupelo.space.port import find_port

TIMEOUT = 5  # "All tests are performed [..] with a 5 seconds timeout."


@dataclass
class SimpleEntry(Entry):
    """Figure B.1: an Integer, a String and a Boolean."""

    number: int | None = None
    text: str | None = None
    flag: bool | None = None


@dataclass
class ExtendedEntry(SimpleEntry):
    """Figure B.1: fields that a template of the type SimpleEntry does not speak of."""

    weight: int | None = None
    label: str | None = None


def simple(n: int) -> SimpleEntry:
    """One of many entries: the halves differ in their text, and all in their number."""
    return SimpleEntry(n, "even" if n % 2 == 0 else "odd", n < 5)


def extended(n: int) -> ExtendedEntry:
    return ExtendedEntry(n, "even" if n % 2 == 0 else "odd", n < 5, 10 * n, f"label {n}")


SIMPLE = [simple(n) for n in range(10)]
EXTENDED = [extended(n) for n in range(10)]


class WakeupClock(HandClock):
    """A clock that also knows who sleeps on it at this moment: neither woken nor called off."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep: set[object] = set()

    def call_at(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        if getattr(callback, "__name__", "") == "_on_alarm":  # The space's own: for its leases.
            return super().call_at(when, callback)
        sleeper = object()

        def wake_up() -> None:
            self.asleep.discard(sleeper)
            callback()

        cancel = super().call_at(when, wake_up)
        self.asleep.add(sleeper)  # Not before: a test may move the clock as soon as it sees this.

        def call_off() -> None:
            self.asleep.discard(sleeper)
            cancel()

        return call_off


class Async:
    """A thing of the async door that is called like one of the blocking door."""

    def __init__(self, inner: Any, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        if name in ("active", "error") and hasattr(self._inner, "refresh"):
            self._loop.call(self._inner.refresh)  # Else it says what was known last.
        found = getattr(self._inner, name)
        if not ismethod(found):
            return self._wrapped(found)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = {name: bare(value) for name, value in kwargs.items()}
            return self._wrapped(self._loop.call(found, *map(bare, args), **given))

        return call

    def __iter__(self) -> Iterator[Any]:
        async def gather() -> list[Any]:
            return [entry async for entry in self._inner]

        return iter(self._loop.call(gather))

    def __enter__(self) -> "Async":
        self._loop.call(self._inner.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call(self._inner.__aexit__, *error)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._inner[bare(key)] = value

    def __eq__(self, other: object) -> bool:
        return bool(bare(other) == self._inner)

    def __hash__(self) -> int:
        return hash(self._inner)

    def __repr__(self) -> str:
        return f"Async({self._inner!r})"

    def _wrapped(self, answer: Any) -> Any:
        if isinstance(answer, Created):
            return Created(self._wrapped(answer.transaction), self._wrapped(answer.lease))
        if isinstance(answer, list):
            return [self._wrapped(one) for one in answer]
        return Async(answer, self._loop) if isinstance(answer, ASYNC_THINGS) else answer


ASYNC_THINGS = (
    *(JavaSpace, MatchSet, Transaction, AsyncLease, EventRegistration, LeaseMap),
    *(
        tupelo.aio.Space,
        tupelo.aio.Transaction,
        RemoteSpace,
        FederatedSpace,
        RemoteSpaceTransaction,
    ),
    *(PostgresSpace, PostgresTransaction),
)


def bare(argument: Any) -> Any:
    """The thing itself, without the door that the tests use it through."""
    if type(argument) in (list, tuple):
        return type(argument)(map(bare, argument))
    return argument._inner if isinstance(argument, Async) else argument


def port_of(javaspace: Any) -> Any:
    """The port of the space that a JavaSpace stands on, also if that is at a host."""
    space = bare(javaspace).space
    return space._port if isinstance(space, PostgresSpace) else find_port(space)  # type: ignore[attr-defined]


def core_of(space: Any) -> Any:
    """The core of the space of a JavaSpace, to see that nothing is left in it."""
    return port_of(space)._core


class World:
    """One door and one kind of space: where spaces, clients and transactions come from."""

    def __init__(
        self,
        place: tuple[str, str],
        clock: WakeupClock,
        folder: Path,
        loop: LoopThread,
        host_loop: LoopThread,
    ) -> None:
        self._maker = SpaceMaker(place, clock, folder, loop, host_loop)
        self.is_async = self._maker.is_async
        self.is_durable = self._maker.kind.is_durable
        self.loop = loop
        self.clock = clock
        managers = AsyncTransactionManager if self.is_async else TransactionManager
        path = folder / "manager.tupelo" if self.is_durable else None
        self.manager = self.door(managers(path, clock=clock))

    def space(self, name: str = "world", **options: Any) -> Any:
        """A space without a JavaSpace."""
        return self.door(self._maker.open(name, **options))

    def javaspace(self, name: str = "world", *, retry: Any = None, **options: Any) -> Any:
        return self.client(self.space(name, **options), retry=retry)

    def client(self, space: Any, *, retry: Any = None, kind: type[JavaSpace] = JavaSpace05) -> Any:
        """One more client of a space, or of the space of another client."""
        inner = bare(space)
        stands_on = inner.space if isinstance(inner, JavaSpace) else inner
        return self.door(kind(stands_on, retry=retry))

    def begin(self, lease: float = FOREVER, parent: Any = None) -> Any:
        """A new transaction."""
        return self.manager.create(lease, parent).transaction

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it where the spaces of this door are used: here, or on the loop."""
        if self.is_async:
            return self.loop.call(function, *args, **kwargs)
        return function(*args, **kwargs)

    def close(self) -> None:
        bare(self.manager).close()
        self._maker.close()

    def door(self, thing: Any) -> Any:
        """Use a thing of this door like one of the blocking door."""
        return Async(thing, self.loop) if self.is_async else thing


class Parked:
    """An operation that waits at a JavaSpace, in a thread of its own."""

    def __init__(
        self, javaspace: Any, operation: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> None:
        self._space = bare(javaspace).space
        self._port = port_of(javaspace)
        self._clock = self._port.clock
        timed = kwargs.get("timeout", FOREVER) != FOREVER
        waiting, asleep = self._waiting(), set(self._clock.asleep)
        self._call = Call(operation, *args, **kwargs)
        until_true(
            lambda: (
                not self._call.waits
                or (self._waiting() - waiting and (not timed or self._clock.asleep - asleep))
            ),
            "the operation waits",
        )
        assert self._call.waits, f"the operation did not wait: {self._call.result()!r}"
        self._waiters = self._waiting() - waiting
        self._alarms = set(self._clock.asleep - asleep) if timed else set()

    @property
    def waits(self) -> bool:
        """Neither answered nor out of patience. It is known at once: no thread need run first."""
        parked = getattr(self._port, "parked", None)  # in a database, where it looks now and then
        waiting = self._waiting() if parked is None else set(parked)
        return bool(self._waiters & waiting) and self._alarms <= self._clock.asleep

    def result(self) -> Any:
        return self._call.result()

    def ends_after(self, seconds: float) -> Any:
        """It waits until just before, and then no more; its answer."""
        self._clock.advance(seconds - 0.25)
        assert self.waits, "the operation did not wait long enough"
        self._clock.advance(0.25)
        return self.result()

    def _waiting(self) -> set[Any]:
        with self._port.atomic():
            here = set(self._port._core.waiting)
        # What waits for an entry of any host does so on the loop of its own.
        return here | set(getattr(self._space, "_calls", ()))


def at_once(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The answer of an operation that must not wait, though it is allowed to; no time passes."""
    return Call(function, *args, **kwargs).result()


class Listener:
    """Keeps what it is told, for the test to fetch."""

    def __init__(self) -> None:
        self._events: queue.Queue[RemoteEvent] = queue.Queue()

    def notify(self, event: RemoteEvent) -> None:
        self._events.put(event)

    def next(self) -> Any:
        return self._events.get(timeout=PATIENCE_SECONDS)

    def take(self, count: int) -> list[Any]:
        return [self.next() for _ in range(count)]

    @property
    def idle(self) -> bool:
        """Has it been told nothing that was not fetched?"""
        return self._events.empty()

    def heard_nothing_else(self, registration: Any) -> bool:
        """End the registration, if it is not over; wait until all that was due is delivered."""
        if registration.active:
            registration.cancel()
        join(registration)
        return self.idle


def join(registration: Any) -> None:
    """Wait until a registration that has ended has delivered everything."""
    subscription = bare(registration)._subscription
    task = getattr(subscription, "_task", None)
    if task is not None:
        until_true(task.done, "everything was delivered")
        return
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None)  # gone when the thread is done
        if thread.name == "tupelo-notices" and getattr(target, "__self__", None) is subscription:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "it still delivers"


def event_of(registration: Any, nth: int, handback: Any = None) -> RemoteEvent:
    """The nth event after the registration, as `notify` tells of it."""
    number = registration.sequence_number + nth
    return RemoteEvent(registration.source, registration.event_id, number, handback)


def availability(
    registration: Any, nth: int, entry: Any, *, visible: bool = True, handback: Any = None
) -> AvailabilityEvent:
    number = registration.sequence_number + nth
    return AvailabilityEvent(
        registration.source, registration.event_id, number, handback, entry, visible
    )


def fill(javaspace: Any, *entries: Any) -> None:
    for entry in entries:
        javaspace.write(entry)


def drain(javaspace: Any, template: Any = None) -> list[Any]:
    """Take everything that is there, with the operations of JavaSpace alone."""
    found = []
    while (entry := javaspace.take(template, None, NO_WAIT)) is not None:
        found.append(entry)
    return found


def in_order(entries: list[Any]) -> list[Any]:
    """For comparing without regard to the order."""
    return sorted(entries, key=repr)


# Mailboxes


def fetched(registration: Any) -> list[int]:
    return [kept.sequence_number for kept in registration.get_remote_events()]


class Target:
    """Fails as often as it is told to; `tries` counts all attempts."""

    def __init__(self, failures: int = 0, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or RuntimeError("not now")
        self.tries = 0
        self.got: list[int] = []

    def notify(self, event: RemoteEvent) -> None:
        self.tries += 1
        if self.failures:
            self.failures -= 1
            raise self.error
        self.got.append(event.sequence_number)
