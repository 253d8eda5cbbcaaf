"""The spaces: JavaSpace, and JavaSpace05 with its operations on many entries.

They stand on a space of any kind: in memory or in a file, at a host elsewhere (`tupelo.connect`),
spanning hosts (`host.space`), or at one host (`.here`). On a blocking space the methods block; on
an async one they are awaited. Times are in seconds. Arguments come in the order of the
specification.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, overload

from tupelo.errors import BadArgument, UnknownType
from tupelo.models.javaspaces.entries import (
    Snapshot,
    UnknownKinds,
    check_entry,
    check_template,
    check_templates,
)
from tupelo.models.javaspaces.events import (
    AvailabilityEvent,
    EventRegistration,
    Notifier,
    RemoteEvent,
    Retry,
    check_retry,
    listening,
)
from tupelo.models.javaspaces.leases import FOREVER, AsyncLease, Lease, lease_of, seconds_asked
from tupelo.models.javaspaces.matchset import MatchSet
from tupelo.space import asynchronous
from tupelo.space.blocking import Space
from tupelo.space.clock import Clock, SystemClock
from tupelo.space.dual_api import Async, Blocking, DoorT, OnDoor, dual_api, either_one, maybe_await
from tupelo.space.port import find_port
from tupelo.space.protocol import OPERATIONS, AsyncSpaceLike, SpaceLike
from tupelo.space.query import check_count
from tupelo.values.change import Notice
from tupelo.values.kind import entry as named

logger = logging.getLogger("tupelo")

NO_WAIT = 0
_system_clock = SystemClock()
_AS_GOOD_AS_FOREVER = 1e9  # seconds: some thirty years; programs pass the greatest number they have


@named("tupelo.javaspaces.Entry")
@dataclass
class Entry:
    """What all entries have in common, for those who want to say so: any dataclass will do. A
    subclass with fields of its own needs @dataclass too.

    A template is an entry too: a field that is None matches anything, and an entry of a subclass
    matches as well. A field that is None can be written, and cannot be asked for.
    """


class Options(TypedDict, total=False):
    """The options of a JavaSpace, to a type checker."""

    retry: Retry | None
    backlog_max: int


class JavaSpace(OnDoor[DoorT]):
    """A JavaSpace: a door to a space that is given, or to one of its own in memory.

    A listener that fails is told again by `retry`. When `backlog_max` events wait for one, the
    oldest is dropped, and counted in its registration.
    """

    NO_WAIT = NO_WAIT

    @overload
    def __init__(
        self: JavaSpace[Blocking], space: SpaceLike | str = ..., **options: Unpack[Options]
    ) -> None: ...

    @overload
    def __init__(
        self: JavaSpace[Async], space: AsyncSpaceLike, **options: Unpack[Options]
    ) -> None: ...

    def __init__(
        self,
        space: SpaceLike | AsyncSpaceLike | str = "javaspace",
        *,
        retry: Retry | None = None,
        backlog_max: int = 100_000,
    ) -> None:
        if not isinstance(space, str) and not is_space(space):
            raise BadArgument("space", "a space of any kind, or a name", space)
        self.space: Any = Space(space) if isinstance(space, str) else space
        self.is_async = is_async_space(self.space)
        self.clock = clock_of(self.space)
        self._retry = check_retry(retry)
        self._backlog_max = check_count(backlog_max, "backlog_max")
        self._unknown = UnknownKinds(self.space.name)

    @property
    def name(self) -> str:
        name: str = self.space.name
        return name

    def write(self, entry: Any, txn: Any = None, lease: Any = FOREVER) -> Any:
        """Write a copy of an entry; the lease says how long it was granted. With a lease of 0 only
        those find it who wait for it at this moment."""
        seconds = None if lease is FOREVER else seconds_asked(lease, zero=True)
        granted = self.space.write(check_entry(entry), lease=seconds, txn=txn)
        return _later(granted) if self.is_async else Lease(granted)

    @either_one
    def read(self, template: Any, txn: Any = None, timeout: float | None = FOREVER) -> Any:
        """A copy of a matching entry; None if there was none in time."""
        return self._get(self.space.read, check_template(template), txn, timeout)

    @either_one
    def read_if_exists(
        self, template: Any, txn: Any = None, timeout: float | None = NO_WAIT
    ) -> Any:
        """Read, and wait only while a transaction may still reveal or release a match."""
        return self._get(self.space.read, check_template(template), txn, timeout, if_exists=True)

    @either_one
    def take(self, template: Any, txn: Any = None, timeout: float | None = FOREVER) -> Any:
        """Remove a matching entry and get it; None if there was none in time."""
        return self._get(self.space.take, check_template(template), txn, timeout)

    @either_one
    def take_if_exists(
        self, template: Any, txn: Any = None, timeout: float | None = NO_WAIT
    ) -> Any:
        """Take, and wait only while a transaction may still reveal or release a match."""
        return self._get(self.space.take, check_template(template), txn, timeout, if_exists=True)

    @dual_api
    async def notify(
        self, template: Any, txn: Any, listener: object, lease: Any = FOREVER, handback: Any = None
    ) -> EventRegistration:
        """Tell a listener of every matching entry that becomes visible from now on."""

        def event(notice: Notice) -> RemoteEvent:
            return RemoteEvent(self.name, notice.event_id, notice.sequence, notice.handback)

        asked, seconds = check_template(template), seconds_asked(lease, zero=True)
        return await self._register(asked, txn, listener, seconds, handback, event, returned=False)

    def snapshot(self, entry: Any) -> Snapshot:
        """An entry, or a template, that is prepared once and used often in its place. Of None it
        is a template that matches anything."""
        return entry if isinstance(entry, Snapshot) else Snapshot(entry)

    def close(self) -> Any:
        """Close the space (to be awaited, if it is async)."""
        return self.space.close()

    def _get(
        self,
        operation: Callable[..., Any],
        template: Any,
        txn: Any,
        timeout: float | None,
        **options: Any,
    ) -> Any:
        """Read or take. Entries of classes that are not known here are passed over."""
        wait = _wait(timeout)
        if self.is_async or self._unknown:
            return self._get_known(operation, template, txn, wait, options)
        began = self.clock.now() if wait else 0.0
        try:
            return operation(template, wait=wait, txn=txn, **options)
        except UnknownType as error:
            self._unknown.add(error)
            if wait:
                wait = max(0.0, wait - (self.clock.now() - began))
            return self._get_known(operation, template, txn, wait, options)

    @dual_api
    async def _get_known(
        self,
        operation: Callable[..., Any],
        template: Any,
        txn: Any,
        wait: float | None,
        options: dict[str, Any],
    ) -> Any:
        clock = self.clock
        until = clock.now() + wait if wait else 0.0
        while True:
            asked = self._unknown.left_out_of(template)
            try:
                return await maybe_await(operation(asked, wait=wait, txn=txn, **options))
            except UnknownType as error:
                self._unknown.add(error)
            if wait:
                wait = max(0.0, until - clock.now())

    async def _register(
        self,
        template: Any,
        txn: Any,
        listener: object,
        seconds: float | None,
        handback: Any,
        event_of: Any,
        available: bool = False,
        returned: bool = True,
    ) -> EventRegistration:
        if not self.is_async and iscoroutinefunction(listening(listener)):
            raise BadArgument("listener", "a plain function, or use tupelo.aio", listener)
        notifier = Notifier(listener, self._retry, self.clock, self.is_async)

        def deliver(notice: Notice) -> Any:
            notifier.missed += notice.missed
            return notifier.deliver(event_of(notice))

        subscription = await maybe_await(
            self.space.subscribe(
                template,
                deliver,
                lease=seconds,
                txn=txn,
                handback=handback,
                backlog_max=self._backlog_max,
                available=available,
                returned=returned,
            )
        )
        registration = EventRegistration(
            subscription, self.name, subscription.event_id, 0, notifier
        )
        if self.is_async:
            await registration.refresh()
        registration.sequence_number = subscription.sequence
        return registration

    def __enter__(self) -> Self:
        if self.is_async:
            raise TypeError("this JavaSpace is of the async door: use `async with`")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await maybe_await(self.close())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class JavaSpace05(JavaSpace[DoorT]):
    """A JavaSpace with operations on many entries: give `write` and `take` a list."""

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: JavaSpace05[Blocking], space: SpaceLike | str = ..., **options: Unpack[Options]
        ) -> None: ...

        @overload
        def __init__(
            self: JavaSpace05[Async], space: AsyncSpaceLike, **options: Unpack[Options]
        ) -> None: ...

        def __init__(self, space: Any = ..., **options: Any) -> None: ...

    def write(self, entry: Any, txn: Any = None, lease: Any = FOREVER) -> Any:
        """Write an entry, or a list of them, which become visible together.

        For a list the lease may be a list too, with one for each entry.
        """
        if isinstance(entry, list):
            return self._write_many(entry, txn, lease)
        return super().write(entry, txn, lease)

    @either_one
    def take(
        self,
        template: Any,
        txn: Any = None,
        timeout: float | None = FOREVER,
        max_entries: int | None = None,
    ) -> Any:
        """Take an entry; or, for a list of templates, a list of what matches any of them, at most
        `max_entries`, waiting for the first."""
        if not isinstance(template, list):
            if max_entries is not None:
                raise BadArgument(
                    "max_entries", "left out, unless template= is a list", max_entries
                )
            return super().take(template, txn, timeout)
        asked, limit = check_templates(template, "template"), _most(max_entries)
        return self._get(self.space.take_all, asked, txn, timeout, limit=limit)

    @dual_api
    async def contents(
        self,
        templates: Any,
        txn: Any = None,
        lease: Any = FOREVER,
        max_entries: int | None = None,
    ) -> MatchSet:
        """What matches any of the templates at this moment, to be read bit by bit. It does not
        wait: the set may be empty."""
        asked, limit = check_templates(templates), _most(max_entries)
        matches = await maybe_await(
            self.space.match_set(asked, limit=limit, txn=txn, lease=seconds_asked(lease))
        )
        return MatchSet(matches, self.is_async)

    @dual_api
    async def register_for_availability_event(
        self,
        templates: Any,
        txn: Any,
        visibility_only: bool,
        listener: object,
        lease: Any = FOREVER,
        handback: Any = None,
    ) -> EventRegistration:
        """Tell a listener of entries that match any of the templates and become visible; unless
        `visibility_only`, also of those that become available. One event, however many match."""
        if not isinstance(visibility_only, bool):
            raise BadArgument("visibility_only", "True or False", visibility_only)

        def event(notice: Notice) -> AvailabilityEvent:
            try:
                entry = notice.entry
            except UnknownType as error:
                logger.warning("an event of the space %r comes without entry: %s", self.name, error)
                entry = None
            return AvailabilityEvent(
                self.name,
                notice.event_id,
                notice.sequence,
                notice.handback,
                entry,
                notice.kind == "visible",
            )

        asked, seconds = check_templates(templates), seconds_asked(lease)
        available = not visibility_only
        return await self._register(asked, txn, listener, seconds, handback, event, available)

    @dual_api
    async def _write_many(self, entries: list[Any], txn: Any, lease: Any) -> list[Lease]:
        if not entries:
            raise BadArgument("entry", "an entry, or a list of one or more", entries)
        leases = lease if isinstance(lease, list) else [lease] * len(entries)
        if len(leases) != len(entries):
            raise BadArgument("lease", f"one lease, or a list of {len(entries)}", lease)
        written = [check_entry(entry) for entry in entries]
        asked = [seconds_asked(one, zero=True) for one in leases]
        one_for_all = asked[0] if len(set(asked)) == 1 else asked
        granted = await maybe_await(self.space.write_all(written, lease=one_for_all, txn=txn))
        return [lease_of(one) for one in granted]


async def _later(granted: Coroutine[Any, Any, Any]) -> Lease:
    return AsyncLease(await granted)


def is_space(thing: object) -> bool:
    """Is this a space, of whichever kind?"""
    return all(callable(getattr(thing, name, None)) for name in OPERATIONS)


def is_async_space(space: Any) -> bool:
    """Are the operations of this space awaited?"""
    if isinstance(space, asynchronous.Space):
        return True
    is_async: bool = getattr(space, "is_async", False)
    return is_async


def clock_of(space: Any) -> Clock:
    """The clock of a space of this program; for one elsewhere, that of this program."""
    port = find_port(space)
    return _system_clock if port is None else port.clock


def _most(max_entries: int | None) -> int | None:
    return None if max_entries is None else check_count(max_entries, "max_entries")


def _wait(timeout: Any) -> float | None:
    if timeout is None or timeout is FOREVER:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise BadArgument("timeout", "a number of seconds, 0 or more, or FOREVER", timeout)
    return None if timeout > _AS_GOOD_AS_FOREVER else timeout
