"""The spaces: JavaSpace, and JavaSpace05 with its operations on many entries.

On a blocking space the methods block; on an async one (`tupelo.aio.Space`) they are awaited. Times
are in seconds. Arguments come in the order of the specification.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Self

from tupelo.errors import BadArgument, BadEntry, BadTemplate
from tupelo.models.javaspaces.events import (
    AvailabilityEvent,
    Delivery,
    EventRegistration,
    RemoteEvent,
    Retry,
    listening,
)
from tupelo.models.javaspaces.leases import FOREVER, Lease, any_lease_of, seconds_asked
from tupelo.models.javaspaces.matchset import MatchSet
from tupelo.models.javaspaces.snapshot import Snapshot
from tupelo.space import asynchronous
from tupelo.space.blocking import Space
from tupelo.space.checks import check_count
from tupelo.space.either import either, settled
from tupelo.values.kind import entry as named
from tupelo.values.kind import is_typed
from tupelo.values.notice import Notice
from tupelo.values.parts import ANY
from tupelo.values.template import Template

NO_WAIT = 0
_AS_GOOD_AS_FOREVER = 1e9  # seconds: some thirty years; programs pass the greatest number they have


@named("tupelo.javaspaces.Entry")
@dataclass
class Entry:
    """What all entries have in common, for those who want to say so: any dataclass will do.

    A template is an entry too: a field that is None matches anything, and an entry of a subclass
    matches as well. A field that is None can be written, and cannot be asked for.
    """


class JavaSpace:
    """A JavaSpace: a door to a space that is given, or to one of its own in memory.

    A listener that fails is told again by `retry`. When `backlog_max` events wait for one, the
    oldest is dropped, and counted in its registration.
    """

    NO_WAIT = NO_WAIT

    def __init__(
        self,
        space: Space | asynchronous.Space | str = "javaspace",
        *,
        retry: Retry | None = None,
        backlog_max: int = 100_000,
    ) -> None:
        if not isinstance(space, (Space, asynchronous.Space, str)):
            what = "a tupelo.Space, a tupelo.aio.Space or a name; of a host's space, its `here`"
            raise BadArgument("space", what, space)
        if retry is not None and not isinstance(retry, Retry):
            raise BadArgument("retry", "a Retry(...)", retry)
        self.space: Any = Space(space) if isinstance(space, str) else space
        self.is_async = isinstance(self.space, asynchronous.Space)
        self._retry = retry or Retry()
        self._backlog_max = check_count(backlog_max, "backlog_max")
        self._operations = self.space._operations

    @property
    def name(self) -> str:
        name: str = self.space.name
        return name

    def write(self, entry: Any, txn: Any = None, lease: Any = FOREVER) -> Any:
        """Write a copy of an entry; the lease says how long it was granted."""
        seconds = None if lease is FOREVER else self._asked(lease)
        granted = self.space.write(_entry(entry), lease=seconds, txn=txn)
        return _later(granted) if self.is_async else Lease(granted)

    def read(self, template: Any, txn: Any = None, timeout: float | None = FOREVER) -> Any:
        """A copy of a matching entry; None if there was none in time."""
        return self.space.read(_template(template), wait=_wait(timeout), txn=txn)

    def read_if_exists(
        self, template: Any, txn: Any = None, timeout: float | None = NO_WAIT
    ) -> Any:
        """Read, and wait only while a transaction may still reveal or release a match."""
        return self.space.read(_template(template), wait=_wait(timeout), txn=txn, if_exists=True)

    def take(self, template: Any, txn: Any = None, timeout: float | None = FOREVER) -> Any:
        """Remove a matching entry and get it; None if there was none in time."""
        return self.space.take(_template(template), wait=_wait(timeout), txn=txn)

    def take_if_exists(
        self, template: Any, txn: Any = None, timeout: float | None = NO_WAIT
    ) -> Any:
        """Take, and wait only while a transaction may still reveal or release a match."""
        return self.space.take(_template(template), wait=_wait(timeout), txn=txn, if_exists=True)

    @either
    async def notify(
        self, template: Any, txn: Any, listener: object, lease: Any = FOREVER, handback: Any = None
    ) -> EventRegistration:
        """Tell a listener of every matching entry that becomes visible from now on."""

        def event(notice: Notice) -> RemoteEvent:
            return RemoteEvent(self.name, notice.event_id, notice.sequence, notice.handback)

        asked = _template(template)
        return self._register(asked, txn, listener, lease, handback, event, returned=False)

    def snapshot(self, entry: Any) -> Snapshot:
        """An entry, or a template, that is prepared once and used often in its place."""
        return entry if isinstance(entry, Snapshot) else Snapshot(entry)

    def close(self) -> Any:
        """Close the space (to be awaited, if it is async)."""
        return self.space.close()

    def _asked(self, lease: Any, kind: str = "entry") -> float | None:
        return seconds_asked(lease, any_lease_of(self._operations, kind))

    def _register(
        self,
        template: Any,
        txn: Any,
        listener: object,
        lease: Any,
        handback: Any,
        event_of: Any,
        available: bool = False,
        returned: bool = True,
    ) -> EventRegistration:
        if not self.is_async and iscoroutinefunction(listening(listener)):
            raise BadArgument("listener", "a plain function, or use tupelo.aio", listener)
        clock = self._operations.engine.clock
        delivery = Delivery(listener, self._retry, clock, self.is_async)

        def deliver(notice: Notice) -> Any:
            delivery.missed += notice.missed
            return delivery.deliver(event_of(notice))

        subscription = self.space.subscribe(
            template,
            deliver,
            lease=self._asked(lease, "subscription"),
            txn=txn,
            handback=handback,
            backlog_max=self._backlog_max,
            available=available,
            returned=returned,
        )
        return EventRegistration(
            subscription, self.name, subscription.event_id, subscription.sequence, delivery
        )

    def __enter__(self) -> Self:
        if self.is_async:
            raise TypeError("this JavaSpace is of the async door: use `async with`")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await settled(self.close())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class JavaSpace05(JavaSpace):
    """A JavaSpace with operations on many entries: give `write` and `take` a list."""

    def write(self, entry: Any, txn: Any = None, lease: Any = FOREVER) -> Any:
        """Write an entry, or a list of them, which become visible together.

        For a list the lease may be a list too, with one for each entry.
        """
        if isinstance(entry, list):
            return self._write_many(entry, txn, lease)
        return super().write(entry, txn, lease)

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
        return self.space.take_all(
            _templates(template, "template"), wait=_wait(timeout), limit=_most(max_entries), txn=txn
        )

    @either
    async def contents(
        self,
        templates: Any,
        txn: Any = None,
        lease: Any = FOREVER,
        max_entries: int | None = None,
    ) -> MatchSet:
        """What matches any of the templates at this moment, to be read bit by bit. It does not
        wait: the set may be empty."""
        state = self._operations.open_match_set(
            _templates(templates), _most(max_entries), txn, self._asked(lease, "match set")
        )
        return MatchSet(self.space, state)

    @either
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
            return AvailabilityEvent(
                self.name,
                notice.event_id,
                notice.sequence,
                notice.handback,
                notice.entry,
                notice.kind == "visible",
            )

        template = _templates(templates)
        available = not visibility_only
        return self._register(template, txn, listener, lease, handback, event, available)

    @either
    async def _write_many(self, entries: list[Any], txn: Any, lease: Any) -> list[Lease]:
        leases = lease if isinstance(lease, list) else [lease] * len(entries)
        if len(leases) != len(entries):
            raise BadArgument("lease", f"one lease, or a list of {len(entries)}", lease)
        written = [_entry(entry) for entry in entries]
        asked = [self._asked(one) for one in leases]
        one_for_all = asked[0] if len(set(asked)) == 1 else asked
        granted = await settled(self.space.write_all(written, lease=one_for_all, txn=txn))
        return [Lease(one) for one in granted]


async def _later(granted: Coroutine[Any, Any, Any]) -> Lease:
    return Lease(await granted)


def _entry(entry: Any) -> Any:
    if isinstance(entry, Snapshot):
        return entry.entry
    if not is_typed(entry):
        what = "an instance of a dataclass, or a snapshot of one"
        raise BadEntry(f"entry= must be {what}, not {entry!r}", found=type(entry))
    return entry


def _template(template: Any) -> Any:
    if template is None:
        return ANY
    if isinstance(template, Snapshot):
        return template.template
    if isinstance(template, (tuple, list)):
        what = "an entry, a snapshot of one or None"
        raise BadTemplate(f"template= must be {what}, not {template!r}")
    return template


def _templates(templates: Any, name: str = "templates") -> Template:
    if not isinstance(templates, (list, tuple)) or not templates:
        raise BadArgument(name, "a list of one or more templates", templates)
    return Template.any_of(map(_template, templates))


def _most(max_entries: int | None) -> int | None:
    return None if max_entries is None else check_count(max_entries, "max_entries")


def _wait(timeout: Any) -> float | None:
    if timeout is None or timeout is FOREVER:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise BadArgument("timeout", "a number of seconds, 0 or more, or FOREVER", timeout)
    return None if timeout > _AS_GOOD_AS_FOREVER else timeout
