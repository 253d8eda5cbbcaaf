"""The door: a heap of events, at a host of either door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any

from tupelo.errors import BadArgument, HeapDestroyed, HostClosed
from tupelo.federation.hosts.doors import AsyncHost, Host, HostDoor
from tupelo.models.event_heap import factories as requests
from tupelo.models.event_heap import readings
from tupelo.models.event_heap.events import asked, freeze_all
from tupelo.models.event_heap.factories import PATIENCE_SECONDS, check_heap
from tupelo.models.event_heap.orders import ViewCloned
from tupelo.models.event_heap.readings import Reading
from tupelo.models.event_heap.replica import Replica, heaps_of
from tupelo.models.event_heap.sessions import Query, Session, View, check_order
from tupelo.space.checks import check_wait
from tupelo.space.either import Closing, either, finished
from tupelo.space.operations import value_of
from tupelo.space.session import Seen
from tupelo.space.writers import Items
from tupelo.values.entry import Entry, freeze
from tupelo.values.lease import check_lease
from tupelo.values.parts import ANY
from tupelo.values.template import Template


class EventHeap(Closing):
    """A heap of events, spread over all hosts that have one of this name and reach each other.

    What it gives by `get`, `wait` and `get_all` it never gives twice: it has a session of its own.
    Those who want to read again, or separately, have another: `session()`. `patience` is how many
    seconds the owner of a total view may be away before the view is cloned.
    """

    def __init__(
        self, host: Host | AsyncHost, name: str, *, patience: float = PATIENCE_SECONDS
    ) -> None:
        _check_host(host)
        check_heap(name, patience)
        self.is_async = host.is_async
        self.name = name
        self._host: HostDoor = host
        self._patience = patience
        self._closed = False
        self._opened: dict[Reading, None] = {}
        """What is read through it, until it is closed."""
        self._scopes: set[asyncio.Timeout] = set()
        """What is being done through it."""
        host._now(self._start())

    @classmethod
    def create(
        cls, host: Host | AsyncHost, name: str, *, patience: float = PATIENCE_SECONDS
    ) -> Any:
        """The heap of this name, made anew if it was destroyed; to be awaited at the async door.
        The factory of the host makes it."""
        _check_host(host)
        check_heap(name, patience)

        request = requests.HeapRequest(heap=name, patience=float(patience))

        async def work() -> EventHeap:
            await host._on_loop(_ask_factory(host, request))
            return cls(host, name, patience=patience)

        return work() if host.is_async else finished(work())

    async def _start(self) -> None:
        self._replica: Replica = heaps_of(self._host._core).replica(self.name, self._patience)
        self._reading: Reading = self._opens(readings.Copies(self._replica))

    async def _on_loop(
        self, work: Coroutine[Any, Any, Any], undo: Callable[[Any], object] | None = None
    ) -> Any:
        try:
            return await self._host._on_loop(self._unless_closed(work), undo)
        except HostClosed:
            if getcoroutinestate(work) == CORO_CREATED:
                work.close()  # The host did not begin it.
            raise

    async def _unless_closed(self, work: Coroutine[Any, Any, Any]) -> Any:
        """HostClosed if this is closed, now or meanwhile."""
        self._require_open()
        scope = asyncio.timeout(None)
        self._scopes.add(scope)
        try:
            async with scope:
                return await work
        except TimeoutError:
            if scope.expired():
                raise self._closing from None
            raise
        finally:
            self._scopes.discard(scope)

    @property
    def _closing(self) -> HostClosed:
        return HostClosed(f"this EventHeap of {self.name!r} was closed")

    def _require_open(self) -> None:
        if self._closed:
            raise self._closing

    def _opens(self, reading: Reading) -> Reading:
        self._opened[reading] = None
        return reading

    def _ends(self, reading: Reading) -> None:
        self._opened.pop(reading, None)
        reading.close()

    async def _on_loop_unless_closed(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with suppress(HostClosed, HeapDestroyed):
            await self._host._on_loop(work())

    @property
    def hosts(self) -> list[str]:
        """The ids of the engaged hosts that have this heap."""
        return self._replica.feed.partners

    async def _next(self, reading: Reading, template: object, wait: float | None) -> Any:
        def undo(found: Entry | None) -> None:
            reading.unsee([] if found is None else [found])

        return _value(await self._on_loop(reading.next(asked(template), wait), undo))

    async def _rest(self, reading: Reading, template: Template) -> list[Any]:
        found = await self._on_loop(reading.rest(template), reading.unsee)
        return [value_of(entry) for entry in found]

    # Putting

    @either
    async def put(self, event: object, *, ttl: float | None = None) -> None:
        """Put an event in the heap, for so many seconds, or until it is removed."""
        ttl = check_lease(ttl, "ttl")
        await self._put([freeze(event)], ttl)

    @either
    async def put_all(self, events: Iterable[object], *, ttl: float | None = None) -> None:
        """Put several events in the heap: all of them or none."""
        ttl = check_lease(ttl, "ttl")
        await self._put(freeze_all(events), ttl)

    async def _put(self, items: Items, ttl: float | None) -> None:
        async def work() -> None:
            self._require_open()
            await self._replica.put(items, ttl)  # What is begun is done.

        await self._host._on_loop(work())

    # Reading

    @either
    async def get(self, template: object = ANY) -> Any:
        """The next event that matches and was not seen; None if there is none here now."""
        return await self._next(self._reading, template, 0)

    @either
    async def wait(self, template: object = ANY, *, wait: float | None = None) -> Any:
        """The same, but wait for it, so long at most; None if none came in time."""
        check_wait(wait)
        return await self._next(self._reading, template, wait)

    @either
    async def get_all(self, template: object = ANY) -> list[Any]:
        """All that match, are here and were not seen."""
        return await self._rest(self._reading, asked(template))

    @either
    async def snoop(self, template: object = ANY) -> Any:
        """An event that matches, seen or not; it does not count as seen."""
        found = await self._on_loop(self._find(asked(template), 1))
        return value_of(found[0]) if found else None

    @either
    async def snoop_all(self, template: object = ANY) -> list[Any]:
        found = await self._on_loop(self._find(asked(template)))
        return [value_of(entry) for entry in found]

    async def _find(self, template: Template, limit: int | None = None) -> list[Entry]:
        return readings.distinct(self._replica.find(template, limit))

    # Removing

    @either
    async def remove(self, template: object = ANY) -> Any:
        """Remove an event that matches, for everyone, and give it; None if there is none here.
        SourceAway, if there are only such as live at hosts out of reach."""
        return await self._remove(template, 0)

    @either
    async def wait_to_remove(self, template: object = ANY, *, wait: float | None = None) -> Any:
        """The same, but wait for one, so long at most."""
        check_wait(wait)
        return await self._remove(template, wait)

    async def _remove(self, template: object, wait: float | None) -> Any:
        removing = self._replica.removing
        return _value(await self._on_loop(removing.remove(asked(template), wait), removing.undo))

    # What stands

    @either
    async def query(
        self, template: object = ANY, callback: Callable[[Any], object] | None = None
    ) -> Query:
        """A persistent query: all that match and are there, and all that come, once each; to be
        got from what is returned, or told to a function on a thread (or task) of its own."""
        asked(template)  # What cannot be asked is refused now.
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function", callback)
        query = Query(self, await self._on_loop(self._copies(None)), template)
        return query if callback is None else query._told_to(callback)

    @either
    async def register(self, template: object, callback: Callable[[Any], object]) -> Query:
        """Be told of each event that matches and comes from now on."""
        if not callable(callback):
            raise BadArgument("callback", "a function", callback)

        async def work() -> Reading:
            seen = Seen()
            for entry in self._replica.find(asked(template)):
                seen.add(entry)
            return self._opens(readings.Copies(self._replica, seen))

        return Query(self, await self._on_loop(work()), template)._told_to(callback)

    async def _copies(self, seen: Seen | None) -> Reading:
        return self._opens(readings.Copies(self._replica, seen))

    # Sessions

    @either
    async def session(self, id: str | None = None, *, wait: float | None = 0) -> Session:
        """A session that has seen nothing; or the shared one of this id, for which is waited so
        long if it is not known here yet."""
        check_wait(wait)
        if id is None:
            return await self._session(None)
        if not isinstance(id, str):
            raise BadArgument("id", "the id of a shared session", id)
        return Session(self, await self._on_loop(self._open_shared(id, wait)), id)

    async def _session(self, seen: Seen | None) -> Session:
        return Session(self, await self._on_loop(self._copies(seen)))

    async def _share(self, seen: Seen) -> str:
        async def work() -> str:
            self._replica.require_open()
            record = readings.spell_record(seen)
            request = requests.SessionRequest(heap=self.name, record=record)
            return await _ask_factory(self._host, request)

        made: str = await self._on_loop(work())
        return made

    async def _open_shared(self, session: str, wait: float | None) -> Reading:
        replica = self._replica
        await self._known("session", session, lambda: session in replica.sessions, wait)
        return self._opens(readings.Shared(replica, session))

    async def _known(
        self, what: str, id: str, condition: Callable[[], object], wait: float | None
    ) -> None:
        self._replica.require_open()
        try:
            async with asyncio.timeout(wait):
                await self._replica.until(condition)
        except TimeoutError:
            raise BadArgument("id", f"that of a {what} that is known here", id) from None

    # Views

    @either
    async def view(
        self,
        id: str | None = None,
        *,
        order: str = "total",
        wait: float | None = 0,
        on_clone: Callable[[ViewCloned], object] | None = None,
    ) -> View:
        """A new view, in which events have no order ("none"), are in that of their source
        ("source"), or all in one that everyone who uses the view agrees on ("total"). Or the view
        of this id, for which is waited so long if it is not known here yet."""
        check_wait(wait)
        check_order(order)
        if id is not None and not isinstance(id, str):
            raise BadArgument("id", "the id of a view", id)
        if on_clone is not None and not callable(on_clone):
            raise BadArgument("on_clone", "a function", on_clone)
        if id is None:
            id = await self._on_loop(self._make_view(order))
        else:
            order = await self._on_loop(self._find_view(id, wait))
        return await self._open_view(id, order, None, on_clone)

    async def _make_view(self, order: str) -> str:
        self._replica.require_open()
        request = requests.ViewRequest(heap=self.name, order=order)
        return await _ask_factory(self._host, request)

    async def _find_view(self, view: str, wait: float | None) -> str:
        made = self._replica.orders.made
        await self._known("view", view, lambda: view in made, wait)
        return made[view].order or "none"

    async def _open_view(
        self,
        view: str | None,
        order: str,
        seen: Seen | None = None,
        on_clone: Callable[[ViewCloned], object] | None = None,
    ) -> View:
        id = view or ""

        async def work() -> Reading:
            if order != "total":
                return await self._copies(seen)
            total = self._replica.orders.order(id)
            return self._opens(readings.Ordered(self._replica, total, seen, on_clone))

        return View(self, await self._on_loop(work()), id, order)

    # The end

    @either
    async def destroy(self) -> None:
        """Destroy the heap, at every host that has it, with all its events."""

        async def work() -> None:
            self._replica.require_open()
            await _ask_factory(self._host, requests.DestroyRequest(heap=self.name))

        await self._on_loop(work())

    @either
    async def close(self) -> None:
        """Use it no more, nor the sessions, views and queries that were got from it: whoever waits
        is told (HostClosed). The replica stays, and goes on with the host."""

        async def work() -> None:
            self._closed = True
            for scope in self._scopes:
                if not scope.expired():
                    scope.reschedule(0)
            for reading in list(self._opened):
                self._ends(reading)

        await self._on_loop_unless_closed(work)

    def __repr__(self) -> str:
        return f"<the event heap {self.name!r} at {self._host.name!r}>"


async def _ask_factory(host: HostDoor, request: requests.Request) -> str:
    return await heaps_of(host._core).factory.ask(request)


def _check_host(host: object) -> None:
    if not isinstance(host, HostDoor):
        raise BadArgument("host", "a Host, of either door", host)


def _value(found: Entry | None) -> Any:
    return None if found is None else value_of(found)
