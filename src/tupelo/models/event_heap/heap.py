"""The public classes of the Event Heap: a heap on a host of either API, or on a connection to one;
its sessions, views and queries; and bridges between heaps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, Self

from tupelo.errors import (
    BadArgument,
    BadInput,
    CannotSend,
    DiskFull,
    HeapDestroyed,
    HostClosed,
    Refused,
    TupeloError,
)
from tupelo.federation.client.services import ServedDoor, check_client
from tupelo.federation.client.space import AsyncRemoteSpaceLike, RemoteSpace, RemoteSpaceLike
from tupelo.federation.hosts.doors import AsyncHost, Host, HostDoor
from tupelo.federation.hosts.local import LocalDoor, open_door
from tupelo.federation.replication.feeds import FeedCursor
from tupelo.models.event_heap.events import BothMatch, event_template, freeze_all
from tupelo.models.event_heap.factories import (
    PATIENCE_SECONDS,
    HeapRequest,
    check_heap,
    check_horizon,
    check_order,
)
from tupelo.models.event_heap.orders import ViewCloned
from tupelo.models.event_heap.readings import HeapCopies, Ordered
from tupelo.models.event_heap.replica import Replica, heaps_of
from tupelo.models.event_heap.served import METHODS, OWN, HostedHeap
from tupelo.models.event_heap.uses import LEASE_SECONDS, check_unused
from tupelo.space.dual_api import Closing, dual_api, maybe_await, run_sync
from tupelo.space.port import value_of
from tupelo.space.query import check_wait
from tupelo.space.session import Seen
from tupelo.space.tasks import FULL_DISK_SECONDS
from tupelo.space.waiting import Items, WriteOutcome
from tupelo.values.checks import check_bool
from tupelo.values.entry import Entry, freeze
from tupelo.values.lease import check_lease
from tupelo.values.parts import ANY
from tupelo.values.template import Template

logger = logging.getLogger("tupelo")


class Reads(Closing):
    """Reading, common to heaps and sessions: no event is returned twice."""

    is_async: bool
    _heap: EventHeap
    _reading: str

    @dual_api
    async def get(self, template: object = ANY) -> Any:
        """Return the next unseen match; None if there is none here now."""
        return await self._next(template, 0)

    @dual_api
    async def wait(self, template: object = ANY, *, wait: float | None = None) -> Any:
        """Return the next unseen match, waiting up to `wait` seconds; None if none came in time."""
        return await self._next(template, wait)

    async def _next(self, template: object, wait: float | None) -> Any:
        check_wait(wait)
        wanted = self._template_for(template)
        found = await self._heap._door.call("next", self._reading, wanted, wait=wait)
        return found[0] if found else None

    @dual_api
    async def get_all(self, template: object = ANY) -> list[Any]:
        """Return all unseen matches that are here."""
        wanted = self._template_for(template)
        found: list[Any] = await self._heap._door.call("rest", self._reading, wanted)
        return found

    def _template_for(self, template: object) -> object:
        """The template to search for, given the user's template."""
        return template


class Session(Reads):
    """A reader to which no event is returned twice. Tasks and threads may share it.

    A session with an `id` is shared: every host that has the heap can open it, and each event goes
    to one of its users. The host that used it last knows what was seen, and hands that on when it
    is closed. While that host is out of reach the others get nothing (TokenAway at the end of their
    wait), because an event might be returned twice. If that host has no folder and is away for
    longer than the heap's patience, the session counts as lost (SessionLost at once). If it is gone
    for good, `resume()` goes on from what other hosts know.
    """

    def __init__(self, heap: EventHeap, reading: str, id: str | None = None) -> None:
        self.is_async = heap.is_async
        self._id = id
        self._heap = heap
        self._reading = reading

    @property
    def id(self) -> str | None:
        """The id of a shared session; None if it is not shared."""
        return self._id

    def __repr__(self) -> str:
        shared = "" if self.id is None else f" {self.id!r}"
        return f"<{type(self).__name__}{shared} of the event heap {self._heap.name!r}>"

    @dual_api
    async def clone(self) -> Session:
        """Return a new session that has seen what this one has seen by now."""
        return Session(self._heap, await self._heap._door.call("clone", self._reading))

    @dual_api
    async def share(self, *, lease: float | None = LEASE_SECONDS) -> str:
        """Return the id of a new shared session that has seen what this one has seen by now. It
        ends for everyone when no host within reach has used it for `lease` seconds: 0 ends it with
        its last user, None never."""
        made: str = await self._heap._door.call("share", self._reading, check_unused(lease))
        return made

    @dual_api
    async def resume(self) -> None:
        """Go on with a shared session whose host is gone for good, from what the hosts within reach
        know. Events that the lost host had read without another host hearing of it may be returned
        again. The other users are notified (SessionLost, once). Does nothing if the host is not
        gone; if it comes back, it uses this session too. BadInput if the session is not shared."""
        await self._heap._door.call("resume", self._reading)

    @dual_api
    async def destroy(self) -> None:
        """End the view or shared session for all its users, who get LeaseLost. A session that is
        not shared is only closed."""
        await self._heap._door.call("end_for_all", self._reading)

    @dual_api
    async def close(self) -> None:
        """Close the session at this host; its waiters get LeaseLost."""
        with suppress(HostClosed, HeapDestroyed):
            await self._heap._door.call("end", self._reading)

    def __iter__(self) -> Any:
        """Iterate over all events that are here, and all that come."""
        while (event := self.wait()) is not None:
            yield event

    async def __aiter__(self) -> Any:
        while (event := await self.wait()) is not None:
            yield event


class Query(Session):
    """A persistent query: yields all matches that are here, and all that come, once each."""

    def __init__(self, heap: EventHeap, reading: str, template: object) -> None:
        super().__init__(heap, reading)
        self._template = template

    def _template_for(self, template: object) -> object:
        return self._template if template is ANY else BothMatch(self._template, template)

    def _forward_to(self, callback: Callable[[Any], object]) -> Query:
        self._heap._door.run_apart(partial(self._call, callback))
        return self

    async def _pause(self) -> None:
        if self.is_async:
            await asyncio.sleep(FULL_DISK_SECONDS)
        else:
            time.sleep(FULL_DISK_SECONDS)

    async def _call(self, callback: Callable[[Any], object]) -> None:
        try:
            while True:
                try:
                    event = await maybe_await(self.wait())
                except DiskFull:  # What was read is noted when there is room.
                    await self._pause()
                    continue
                if event is None:
                    return
                answer = callback(event)
                if self.is_async and isawaitable(answer):
                    await answer
        except TupeloError:
            pass  # The query, the heap or the host was closed.
        except Exception:
            logger.exception("a listener raised an exception and is not called again")
            await maybe_await(self.close())


class View(Session):
    """A view of a heap. The users of a total view see the same events in the same order, each event
    once.

    The `id` changes if the view is cloned because its owner is gone; then `cloned` grows, and the
    function given as `on_clone` is called on the thread of the host.
    """

    def __init__(self, heap: EventHeap, reading: str, id: str, order: str) -> None:
        super().__init__(heap, reading, id)
        self.order = order
        opened = heap._local.served.readings[reading]
        self._ordered = opened if isinstance(opened, Ordered) else None

    @property
    def id(self) -> str:
        """The id of the view, with which other hosts open it."""
        return self._id or "" if self._ordered is None else self._ordered.order.id

    @property
    def cloned(self) -> list[ViewCloned]:
        """The clones that have replaced this view while it was used here."""
        return [] if self._ordered is None else list(self._ordered.cloned)

    @property
    def is_owner(self) -> bool:
        """Whether this host owns the view (holds its token)."""
        return self._ordered is not None and self._ordered.order.token.here

    @dual_api
    async def put(
        self, event: object, *, ttl: float | None = None, wait: float | None = None
    ) -> None:
        """Put an event that has its place in this view when this returns. TokenAway if this host
        cannot own the view in time; then nothing was put."""
        await self._put([freeze(event)], ttl, wait)

    @dual_api
    async def put_all(
        self, events: Iterable[object], *, ttl: float | None = None, wait: float | None = None
    ) -> None:
        """Put several events: all of them or none, with no other event between them in the view."""
        await self._put(freeze_all(events), ttl, wait)

    async def _put(self, items: Items, ttl: float | None, wait: float | None) -> None:
        check_wait(wait)
        ttl = check_lease(ttl, "ttl")
        local = self._heap._local
        await local.run(local.served.put_through, self._reading, items, ttl, wait)

    @dual_api
    async def replay(self, template: object = ANY) -> list[Any]:
        """Return all matches from the start of the view, seen or not. They do not count as seen."""
        local = self._heap._local
        found = await local.run(local.served.replay, self._reading, template)
        return [value_of(entry) for entry in found]

    @dual_api
    async def session(self) -> View:
        """Return a new reader of this view that has seen nothing."""
        return await self._heap._open_view(self.id, self.order)

    @dual_api
    async def clone(self) -> View:
        """Return a new reader of this view that has seen what this one has seen."""
        return await self._heap._open_view(self.id, self.order, self._reading)


AnyHost = Host | AsyncHost | RemoteSpaceLike | AsyncRemoteSpaceLike


class EventHeap(Reads):
    """A heap of events, replicated at all hosts that have one of this name and reach each other.

    `get`, `wait` and `get_all` return no event twice: the heap has a session of its own.
    `session()` makes another, to read again or separately. `patience`: seconds that the owner of a
    total view may be away before the view is cloned.

    A heap is opened on a host, or on a connection:
    `EventHeap(tupelo.connect("tupelo://host/room"))` is the heap "room" of that host, used by a
    client. Its sessions and queries end with its link (PeerLost), and closing it closes the
    connection. A client has no views.
    """

    def __init__(
        self, host: AnyHost, name: str | None = None, *, patience: float = PATIENCE_SECONDS
    ) -> None:
        self.name = _check_name(host, name, patience)
        self._door: LocalDoor[HostedHeap] | ServedDoor = open_door(
            host,
            "event_heap",
            f"EventHeap of {self.name!r}",
            METHODS,
            lambda core: HostedHeap(core, self.name, patience),
        )
        self.is_async = self._door.is_async
        self._heap, self._reading = self, OWN

    async def __aenter__(self) -> Self:
        await self._door.open()
        return self

    @classmethod
    def create(
        cls, host: AnyHost, name: str | None = None, *, patience: float = PATIENCE_SECONDS
    ) -> Any:
        """Return the heap of this name, created again if it was destroyed; awaited in the async
        API. The factory of the host creates it."""
        heap = _check_name(host, name, patience)

        async def work() -> EventHeap:
            if isinstance(host, RemoteSpace):
                await ServedDoor(host, "event_heap", "EventHeap", METHODS).tell("create")
            else:
                assert isinstance(host, HostDoor)
                request = HeapRequest(heap=heap, patience=float(patience))
                await host.on_loop(heaps_of(host.core).factory.ask(request))
            return cls(host, name, patience=patience)

        return work() if host.is_async else run_sync(work)

    @property
    def _local(self) -> LocalDoor[HostedHeap]:
        """The replica, for features that only a host has."""
        if isinstance(self._door, ServedDoor):
            raise BadInput(
                "a client has no views: the hosts of a heap agree on the order of a view, by a "
                "token that one of them holds; open the EventHeap at a tupelo.Host of your own"
            )
        return self._door

    @property
    def _replica(self) -> Replica:
        return self._local.served.replica

    @property
    def hosts(self) -> Any:
        """The ids of the connected hosts that have this heap; for a client, those of its host
        (awaited in the async API)."""
        if isinstance(self._door, LocalDoor):
            return self._replica.feed.partners
        work = partial(self._door.call, "hosts")
        return work() if self.is_async else run_sync(work)

    # Putting

    @dual_api
    async def put(self, event: object, *, ttl: float | None = None) -> None:
        """Put an event, for `ttl` seconds, or until it is removed."""
        await self._put([freeze(event)], ttl)

    @dual_api
    async def put_all(self, events: Iterable[object], *, ttl: float | None = None) -> None:
        """Put several events, all of them or none. They end `ttl` seconds later; None never."""
        await self._put(freeze_all(events), ttl)

    async def _put(self, items: Items, ttl: float | None) -> None:
        await self._door.tell("put", items, check_lease(ttl, "ttl"))

    # Reading what is there, and removing

    @dual_api
    async def snoop(self, template: object = ANY) -> Any:
        """Return a match, seen or not. It does not count as seen."""
        return _first(await self._door.call("find", template, 1))

    @dual_api
    async def snoop_all(self, template: object = ANY) -> list[Any]:
        """All matches here, whether they were returned before or not."""
        found: list[Any] = await self._door.call("find", template, None)
        return found

    @dual_api
    async def remove(self, template: object = ANY) -> Any:
        """Remove a match for everyone and return it; None if there is none here. SourceAway if all
        matches live at hosts out of reach."""
        return _first(await self._door.call("remove", template))

    @dual_api
    async def wait_to_remove(self, template: object = ANY, *, wait: float | None = None) -> Any:
        """Remove and return a match, waiting up to `wait` seconds for one."""
        check_wait(wait)
        return _first(await self._door.call("remove", template, wait=wait))

    @dual_api
    async def adopt(self, host: str) -> None:
        """Take over the events of a host that is gone for good (the id in `SourceAway`), as far as
        this host has them, so that they can be removed. Call it at one host only. If the other host
        comes back, the events stay here. Needs the right to administer the space. BadArgument if
        the host is within reach, or has put nothing."""
        if not isinstance(host, str):
            raise BadArgument("host", "the id of a host", host)
        await self._door.call("adopt", host)

    # Queries, sessions and views

    @dual_api
    async def query(
        self, template: object = ANY, callback: Callable[[Any], object] | None = None
    ) -> Query:
        """Return a persistent query: all matches that are here and all that come, once each. With
        `callback`, they are passed to it on a thread (or task) of its own."""
        event_template(template)  # An invalid template is refused now.
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function", callback)
        query = Query(self, await self._door.call("copies"), template)
        return query if callback is None else query._forward_to(callback)

    @dual_api
    async def register(self, template: object, callback: Callable[[Any], object]) -> Query:
        """Call `callback(event)` for each match that comes from now on."""
        if not callable(callback):
            raise BadArgument("callback", "a function", callback)
        return Query(self, await self._door.call("news", template), template)._forward_to(callback)

    @dual_api
    async def session(self, id: str | None = None, *, wait: float | None = 0) -> Session:
        """Return a new session that has seen nothing; or the shared session of this id, waiting up
        to `wait` seconds until it is known here."""
        check_wait(wait)
        if id is None:
            return Session(self, await self._door.call("copies"))
        if not isinstance(id, str):
            raise BadArgument("id", "the id of a shared session", id)
        return Session(self, await self._door.call("shared", id, wait=wait), id)

    @dual_api
    async def view(
        self,
        id: str | None = None,
        *,
        order: str = "total",
        wait: float | None = 0,
        lease: float | None = LEASE_SECONDS,
        horizon: int | None = None,
        on_clone: Callable[[ViewCloned], object] | None = None,
    ) -> View:
        """Return a new view, or the view with this `id`, waiting up to `wait` seconds until it is
        known here.

        In a new view events have no order ("none"), the order of their source ("source"), or one
        order for all its users ("total"). It ends for everyone when no host within reach has used
        it for `lease` seconds: 0 ends it with its last user, None never. At least the last
        `horizon` places of a new total view can be replayed, and read by users that are behind;
        None keeps those of all living events. `on_clone(ViewCloned)` is called when a clone
        replaces the view.
        """
        check_wait(wait)
        check_horizon(horizon)
        lease = check_unused(lease)
        check_order(order)
        if id is not None and not isinstance(id, str):
            raise BadArgument("id", "the id of a view", id)
        if on_clone is not None and not callable(on_clone):
            raise BadArgument("on_clone", "a function", on_clone)
        local = self._local
        if id is None:
            id = await local.run(local.served.make_view, order, lease, horizon)
        else:
            order = await local.run(local.served.order_of_view, id, wait)
        return await self._open_view(id, order, None, on_clone)

    async def _open_view(
        self,
        id: str,
        order: str,
        like: str | None = None,
        on_clone: Callable[[ViewCloned], object] | None = None,
    ) -> View:
        local = self._local
        reading = await local.run(local.served.open_view, id, order, like, on_clone)
        return View(self, reading, id, order)

    # Closing

    @dual_api
    async def destroy(self) -> None:
        """Destroy the heap and all its events, at every host. Needs the right to administer its
        space."""
        await self._door.call("destroy")

    @dual_api
    async def close(self) -> None:
        """Close the heap with its sessions, views and queries; their waiters get HostClosed. The
        replica goes on with the host; a connection is closed."""
        await self._door.close()

    def __repr__(self) -> str:
        return f"<the event heap {self.name!r} {self._door.where}>"


def _check_name(host: object, name: str | None, patience: float) -> str:
    if not isinstance(host, RemoteSpace):
        if not isinstance(host, HostDoor):
            raise BadArgument("host", "a Host, of either door, or a connection to one", host)
        return check_heap(name, patience)
    check_client(host, name, patience=(patience, PATIENCE_SECONDS))
    return check_heap(host.name, patience)


def _first(found: list[Any]) -> Any:
    return found[0] if found else None


_PREFIX = "carried from "


class Bridge(Closing):
    """Copies the events of a heap to another heap of the same host: all of them, or those that
    match. With `both`, also in the other direction."""

    def __init__(
        self, a: EventHeap, b: EventHeap, template: object = ANY, *, both: bool = False
    ) -> None:
        for name, heap in (("a", a), ("b", b)):
            if not isinstance(heap, EventHeap):
                raise BadArgument(name, "an EventHeap", heap)
        if a._local.host is not b._local.host or a.name == b.name:
            raise BadArgument("b", "another heap of the same host", b)
        check_bool("both", both)
        a._local.require_open()
        b._local.require_open()
        self.is_async = a.is_async
        self.carried = 0
        """Number of events copied."""
        self._heap = a
        self._tasks: list[asyncio.Task[None]] = []
        pairs = [(a._replica, b._replica), (b._replica, a._replica)]
        a._local.host.now(self._start(pairs if both else pairs[:1], event_template(template)))

    def __repr__(self) -> str:
        return f"<Bridge from {self._heap!r}, {self.carried} events copied>"

    async def _start(self, pairs: list[tuple[Replica, Replica]], template: Template) -> None:
        for here, there in pairs:
            self._tasks.append(asyncio.ensure_future(self._run(here, there, template)))

    async def _run(self, here: Replica, there: Replica, template: Template) -> None:
        try:
            reading = HeapCopies(here)
            known, news = Seen(), FeedCursor(there.feed)
            while (entry := await reading.next(template, None)) is not None:
                for _, _, one in news.news():
                    known.add(one)
                mark = _mark(entry, here.name)
                origin, number = mark.origin or "", mark.n or 0
                is_home = origin.startswith(f"{_PREFIX}{there.name}\n")
                if is_home or number in known.bits.get(origin, ()):
                    continue
                known.add_number(origin, number)
                await self._copy(entry, mark, there)
        except TupeloError:
            return  # One of the heaps was destroyed, or the host closed.

    async def _copy(self, entry: Entry, mark: WriteOutcome, there: Replica) -> None:
        ttl = None if entry.expires is None else entry.expires - there.feed.space.clock.now()
        if ttl is not None and ttl <= 0:
            return
        try:
            await there.put([(entry.shape, entry.fields)], ttl, mark)
        except (Refused, CannotSend):  # It does not fit there.
            return
        self.carried += 1

    @dual_api
    async def close(self) -> None:
        """Stop copying."""

        async def work() -> None:
            for task in self._tasks:
                task.cancel()

        with suppress(HostClosed):
            await self._heap._local.host.on_loop(work())


def _mark(entry: Entry, heap: str) -> WriteOutcome:
    """The identity of an event in all heaps but its first."""
    if entry.origin.startswith(_PREFIX):
        return WriteOutcome(entry.origin, entry.n)
    return WriteOutcome(f"{_PREFIX}{heap}\n{entry.origin}", entry.n)
