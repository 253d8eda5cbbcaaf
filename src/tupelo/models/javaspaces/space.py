"""JavaSpace, and JavaSpace05 with its operations on many entries.

Both work on any kind of space: in memory or in a file, at a host elsewhere (`tupelo.connect`),
spanning hosts (`host.space`), or at one host (`.here`). On a blocking space the methods block; on
an async space they are awaited. Times are in seconds. Arguments come in the order of the
specification.

An entry is an instance of a dataclass. In a template, None matches anything, and any other value
must be equal as a whole. Tupelo's own templates also match inside tuples and nested dataclasses;
templates of a JavaSpace do not. Parts such as `Between(1, 3)` keep their meaning.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, Unpack, get_origin, overload

from tupelo.errors import BadArgument, BadEntry, BadTemplate, UnknownType
from tupelo.models.javaspaces.events import (
    AvailabilityEvent,
    EventRegistration,
    Notifier,
    RemoteEvent,
    Retry,
    check_retry,
    function_of,
)
from tupelo.models.javaspaces.leases import FOREVER, AsyncLease, Lease, lease_of, seconds_asked
from tupelo.space import asynchronous
from tupelo.space.blocking import Space
from tupelo.space.clock import Clock, system_clock
from tupelo.space.dual_api import (
    Async,
    Blocking,
    Closing,
    DoorT,
    OnDoor,
    dual_api,
    either_one,
    maybe_await,
)
from tupelo.space.matchset import Skipped
from tupelo.space.port import find_port
from tupelo.space.protocol import AsyncSpaceLike, SpaceLike, is_space
from tupelo.space.query import check_count
from tupelo.values.change import Notice
from tupelo.values.checks import check_bool, is_number
from tupelo.values.entry import SCALARS, FrozenEntry, freeze, freeze_value, thaw
from tupelo.values.kind import Kind, class_of, is_typed, kind_of, values_of
from tupelo.values.kind import entry as named
from tupelo.values.parts import ANY, Equal, NestedTyped, OfKind, Part, as_part
from tupelo.values.template import Template, as_template

logger = logging.getLogger("tupelo")

NO_WAIT = 0
_AS_GOOD_AS_FOREVER = 1e9  # seconds: thirty years; programs pass the largest number they have
_usable: set[type] = set()  # classes that declare all their fields


class Snapshot:
    """A copy of an entry or template, checked and compiled once. Later changes of the original do
    not affect the copy. `Snapshot(None)` is a template that matches anything."""

    __slots__ = ("entry", "template")

    def __init__(self, entry: Any) -> None:
        self.entry: Any = None
        self.template: Any = ANY
        if entry is None:
            pass
        elif is_typed(entry):
            require_fields(entry)
            self.entry = thaw(*freeze(entry))
            self.template = as_template(exact(self.entry))
        else:
            raise BadArgument("entry", "an instance of a dataclass, or None", entry)

    def __repr__(self) -> str:
        return f"Snapshot({self.entry!r})"


def check_entry(entry: Any) -> Any:
    """The entry to write. BadEntry if it is not a dataclass, or if fields would be lost."""
    if type(entry) in _usable:
        return entry
    if isinstance(entry, Snapshot) and entry.entry is not None:
        return entry.entry
    if not is_typed(entry):
        what = "an instance of a dataclass, or a snapshot of one"
        raise BadEntry(f"entry= must be {what}, not {entry!r}", found=type(entry))
    require_fields(entry)
    return entry


def check_template(template: Any) -> Any:
    """The template in the form that a space understands. BadTemplate if it is none."""
    if type(template) in _usable:
        return exact(template)
    if template is None:
        return ANY
    if isinstance(template, Snapshot):
        return template.template
    if isinstance(template, (tuple, list)):
        what = "an entry, a snapshot of one or None"
        raise BadTemplate(f"template= must be {what}, not {template!r}")
    if is_typed(template):
        require_fields(template)
        return exact(template)
    return template


def check_templates(templates: Any, name: str = "templates") -> Template:
    """One template that matches what any of these match."""
    if not isinstance(templates, (list, tuple)) or not templates:
        raise BadArgument(name, "a list of one or more templates", templates)
    return Template.any_of(map(check_template, templates))


def exact(template: Any) -> Any:
    """A template that compares each value as a whole. If all values are scalars, that is the entry
    itself, which the space answers fastest."""
    values = values_of(template)
    if SCALARS.issuperset(map(type, values)):
        return template
    parts = {
        name: _exact_part(value, name)
        for name, value in zip(kind_of(type(template)).names, values, strict=True)
        if value is not None and value is not ANY
    }
    return Template(NestedTyped(type(template), parts))


def _exact_part(value: Any, name: str) -> Part:
    try:
        return Equal(freeze_value(value, name, 1))
    except BadEntry:  # It has a type, or a part such as Between, in it.
        return as_part(value, f"field {name!r}")


def require_fields(entry: Any) -> None:
    """BadEntry if its class has fields that @dataclass does not know: they would be lost."""
    cls = type(entry)
    if cls in _usable:
        return
    names = kind_of(cls).names
    lost = [
        name
        for base in cls.__mro__
        if hasattr(base, "__dataclass_fields__") and "__dataclass_fields__" not in vars(base)
        for name, hint in vars(base).get("__annotations__", {}).items()
        if name not in names and not _is_class_variable(hint)
    ]
    declared = "__dataclass_fields__" in vars(cls)
    if not declared:
        lost += [name for name in getattr(entry, "__dict__", ()) if name not in names]
    if lost:
        raise BadEntry(
            f"the fields {', '.join(dict.fromkeys(lost))} of the class {cls.__name__} would be "
            f"lost: put @dataclass above {cls.__name__}, and above the entry classes it extends",
            found=cls,
        )
    if declared:  # Instances of other classes may still get attributes that no class declares.
        _usable.add(cls)


def _is_class_variable(hint: Any) -> bool:
    if isinstance(hint, str):
        return hint.replace("typing.", "").startswith("ClassVar")
    return hint is ClassVar or get_origin(hint) is ClassVar


class UnknownKinds:
    """The kinds of entries that were found and have no class in this program. Such entries are
    skipped, and stay in the space, until the class is defined."""

    def __init__(self, space: str) -> None:
        self._space = space
        self._kinds: list[Kind] = []

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def add(self, error: UnknownType) -> None:
        """Skip entries of this kind from now on. Raises the error if they are skipped already."""
        if any((kind.name, kind.names) == (error.name, error.fields) for kind in self._kinds):
            raise error
        logger.warning("an entry of the space %r is passed over: %s", self._space, error)
        self._kinds.append(Kind(error.name, error.fields, (error.name,)))

    def excluded_from(self, template: Any) -> Any:
        """The template, without the entries of these kinds."""
        for kind in list(self._kinds):
            try:
                class_of(kind)
                self._kinds.remove(kind)
            except UnknownType:
                template = as_template(template) & ~Template(OfKind(kind.name, kind.names))
        return template


class MatchSet:
    """The entries that matched, in order of arrival. Iterate, or call `next` until it returns None.

    `next` raises MatchSetInvalid after the lease has ended, or when an entry that was not returned
    yet has been taken. Entries that have expired, or whose class is unknown here, are in `skipped`.
    """

    def __init__(self, matches: Any, is_async: bool) -> None:
        self.is_async = is_async
        self._matches = matches
        self._last: FrozenEntry | None = None

    def __repr__(self) -> str:
        return repr(self._matches)

    @dual_api
    async def next(self) -> Any:
        """The next entry, or None at the end."""
        entry = await maybe_await(self._matches.next())
        if entry is not None:
            self._last = freeze(entry)  # The caller may change its copy.
        return entry

    @property
    def lease(self) -> Lease:
        """The lease of the set; renew it to keep the set valid."""
        return lease_of(self._matches.lease)

    @property
    def skipped(self) -> list[Skipped]:
        """The entries that `next` has not returned, and why."""
        skipped: list[Skipped] = self._matches.skipped
        return skipped

    def snapshot(self) -> Snapshot | None:
        """A snapshot of the entry that `next` returned last; None before the first."""
        return None if self._last is None else Snapshot(thaw(*self._last))

    def __iter__(self) -> Iterator[Any]:
        if self.is_async:
            raise TypeError("this match set is of the async door: use `async for`")
        while (entry := self.next()) is not None:
            yield entry

    async def __aiter__(self) -> AsyncIterator[Any]:
        if not self.is_async:
            raise TypeError("this match set is of the blocking door: use `for`")
        while (entry := await self.next()) is not None:
            yield entry


@named("tupelo.javaspaces.Entry")
@dataclass
class Entry:
    """An optional base class for entries: any dataclass can be an entry. A subclass with fields of
    its own needs @dataclass too.

    A template is an entry too: a field that is None matches anything, and entries of subclasses
    match as well. A field that is None can be written, but not searched for.
    """


class Options(TypedDict, total=False):
    """The options of a JavaSpace, to a type checker."""

    retry: Retry | None
    backlog_max: int


class JavaSpace(OnDoor[DoorT], Closing):
    """A JavaSpace on the given space, or on a new space in memory if `space` is a name.

    An event whose listener fails is sent again as `retry` says. When `backlog_max` events wait for
    a listener, the oldest is dropped, and counted in its registration.
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
        """The name of the space."""
        name: str = self.space.name
        return name

    def write(self, entry: Any, txn: Any = None, lease: Any = FOREVER) -> Any:
        """Write a copy of an entry, and return its lease. An entry with a lease of 0 is only found
        by operations that are waiting for it at this moment."""
        seconds = None if lease is FOREVER else seconds_asked(lease, zero=True)
        granted = self.space.write(check_entry(entry), lease=seconds, txn=txn)
        return _later(granted) if self.is_async else Lease(granted)

    @either_one
    def read(self, template: Any, txn: Any = None, timeout: float | None = FOREVER) -> Any:
        """A copy of a matching entry; None if there was none before the timeout."""
        return self._get(self.space.read, check_template(template), txn, timeout)

    @either_one
    def read_if_exists(
        self, template: Any, txn: Any = None, timeout: float | None = NO_WAIT
    ) -> Any:
        """Read, and wait only while a transaction may still reveal or release a match."""
        return self._get(self.space.read, check_template(template), txn, timeout, if_exists=True)

    @either_one
    def take(self, template: Any, txn: Any = None, timeout: float | None = FOREVER) -> Any:
        """Remove a matching entry and return it; None if there was none before the timeout."""
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
        """Send the listener an event for every matching entry that becomes visible from now on."""

        def event(notice: Notice) -> RemoteEvent:
            return RemoteEvent(self.name, notice.event_id, notice.sequence, notice.handback)

        asked, seconds = check_template(template), seconds_asked(lease, zero=True)
        return await self._register(asked, txn, listener, seconds, handback, event, returned=False)

    def snapshot(self, entry: Any) -> Snapshot:
        """A compiled copy of an entry or template, for use in many operations. `snapshot(None)` is
        a template that matches anything."""
        return entry if isinstance(entry, Snapshot) else Snapshot(entry)

    def close(self) -> Any:
        """Close the space; awaited if the space is async."""
        return self.space.close()

    def _get(
        self,
        operation: Callable[..., Any],
        template: Any,
        txn: Any,
        timeout: float | None,
        **options: Any,
    ) -> Any:
        """Read or take; entries whose class is unknown in this program are skipped."""
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
            asked = self._unknown.excluded_from(template)
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
        if not self.is_async and iscoroutinefunction(function_of(listener)):
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
        """Write an entry, or a list of entries that become visible together.

        For a list, `lease` may be a list too, with one lease for each entry.
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
        """Take an entry. For a list of templates: wait for the first entry that matches any of
        them, and return a list of at most `max_entries`."""
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
        self, templates: Any, txn: Any = None, lease: Any = FOREVER, max_entries: int | None = None
    ) -> MatchSet:
        """A leased set of the entries that match any of the templates at this moment. It does not
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
        """Send the listener an event for each entry that matches any of the templates and becomes
        visible, or, unless `visibility_only`, available. An entry that matches several templates
        causes one event."""
        check_bool("visibility_only", visibility_only)

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


def is_async_space(space: Any) -> bool:
    """Whether the operations of this space are awaited."""
    if isinstance(space, asynchronous.Space):
        return True
    return getattr(space, "is_async", False)


def clock_of(space: Any) -> Clock:
    """The clock of a space; for one at a host elsewhere, the system clock."""
    port = find_port(space)
    return getattr(space if port is None else port, "clock", system_clock)


def _most(max_entries: int | None) -> int | None:
    return None if max_entries is None else check_count(max_entries, "max_entries")


def _wait(timeout: Any) -> float | None:
    if timeout is None or timeout is FOREVER:
        return None
    if not is_number(timeout) or not timeout >= 0:
        raise BadArgument("timeout", "a number of seconds, 0 or more, or FOREVER", timeout)
    return None if timeout > _AS_GOOD_AS_FOREVER else timeout
