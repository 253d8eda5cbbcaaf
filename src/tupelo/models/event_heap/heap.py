"""The door: a heap of events, at a host of either door or at a connection to one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, Self

from tupelo.errors import (
    BadArgument,
    BadInput,
    CannotSend,
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
from tupelo.models.event_heap.events import BothMatch, asked, freeze_all
from tupelo.models.event_heap.factories import (
    PATIENCE_SECONDS,
    HeapRequest,
    check_heap,
    check_horizon,
)
from tupelo.models.event_heap.orders import ViewCloned
from tupelo.models.event_heap.readings import HeapCopies, Ordered
from tupelo.models.event_heap.replica import Replica, heaps_of
from tupelo.models.event_heap.served import METHODS, OWN, HostedHeap
from tupelo.models.event_heap.uses import LEASE_SECONDS, check_unused
from tupelo.space.checks import check_wait
from tupelo.space.dual_api import Closing, dual_api, maybe_await, run_sync
from tupelo.space.port import value_of
from tupelo.space.session import Seen
from tupelo.space.writers import Items, WriteOutcome
from tupelo.values.entry import Entry, freeze
from tupelo.values.lease import check_lease
from tupelo.values.parts import ANY
from tupelo.values.template import Template

logger = logging.getLogger("tupelo")


class Reads(Closing):
    """What a heap and its sessions have: reading, by which no event is given twice."""

    is_async: bool
    _heap: EventHeap
    _reading: str

    @dual_api
    async def get(self, template: object = ANY) -> Any:
        """The next event that matches and was not seen; None if there is none here now."""
        return await self._next(template, 0)

    @dual_api
    async def wait(self, template: object = ANY, *, wait: float | None = None) -> Any:
        """The same, but wait for it, so long at most; None if none came in time."""
        return await self._next(template, wait)

    async def _next(self, template: object, wait: float | None) -> Any:
        check_wait(wait)
        asked = self._asked(template)
        found = await self._heap._door.call("next", self._reading, asked, wait=wait)
        return found[0] if found else None

    @dual_api
    async def get_all(self, template: object = ANY) -> list[Any]:
        """All that match, are here and were not seen."""
        asked = self._asked(template)
        found: list[Any] = await self._heap._door.call("rest", self._reading, asked)
        return found

    def _asked(self, template: object) -> object:
        """What is looked for, if a user asks for this."""
        return template


class Session(Reads):
    """Gives no event twice. Tasks and threads may share it.

    A session that has an `id` is shared: it can be opened by that at every host that has the heap,
    and each event goes to only one of those who do. All that they have seen is known to the host
    that used it last, which hands it on when it is closed. While that is out of reach the others
    get nothing (TokenAway, when their time is over), since it might be given twice. If it has no
    folder, and is gone for longer than the heap's patience, the session counts as lost (SessionLost
    at once). If it is gone for good, `resume()` goes on from what others know.
    """

    def __init__(self, heap: EventHeap, reading: str, id: str | None = None) -> None:
        self.is_async = heap.is_async
        self._id = id
        self._heap = heap
        self._reading = reading

    @property
    def id(self) -> str | None:
        return self._id

    @dual_api
    async def clone(self) -> Session:
        """A session of its own, which has seen what this one has seen by now."""
        return Session(self._heap, await self._heap._door.call("clone", self._reading))

    @dual_api
    async def share(self, *, lease: float | None = LEASE_SECONDS) -> str:
        """The id of a shared session, which has seen what this one has seen by now. It ends for
        everyone when nobody within reach has used it for `lease` seconds: 0 to end with its last
        user, None for never."""
        made: str = await self._heap._door.call("share", self._reading, check_unused(lease))
        return made

    @dual_api
    async def resume(self) -> None:
        """Go on with a shared session whose host is gone for good, from what the hosts within reach
        know of it: the events that it got last, and told none of them, may be given again. The
        others who share it are told (SessionLost, once). If that host is not gone nothing is done;
        if it comes back, it goes on with this session too. BadInput if the session is not
        shared."""
        await self._heap._door.call("resume", self._reading)

    @dual_api
    async def destroy(self) -> None:
        """End it for everyone who uses the same view or shared session: they are told (LeaseLost).
        Any other session is closed."""
        await self._heap._door.call("end_for_all", self._reading)

    @dual_api
    async def close(self) -> None:
        """Use it no more."""
        with suppress(HostClosed, HeapDestroyed):
            await self._heap._door.call("end", self._reading)

    def __iter__(self) -> Any:
        """All that is there, and all that comes."""
        while (event := self.wait()) is not None:
            yield event

    async def __aiter__(self) -> Any:
        while (event := await self.wait()) is not None:
            yield event


class Query(Session):
    """A persistent query: all that match and are there, and all that come, once each."""

    def __init__(self, heap: EventHeap, reading: str, template: object) -> None:
        super().__init__(heap, reading)
        self._template = template

    def _asked(self, template: object) -> object:
        return self._template if template is ANY else BothMatch(self._template, template)

    def _told_to(self, callback: Callable[[Any], object]) -> Query:
        self._heap._door.run_apart(partial(self._call, callback))
        return self

    async def _call(self, callback: Callable[[Any], object]) -> None:
        try:
            while (event := await maybe_await(self.wait())) is not None:
                answer = callback(event)
                if self.is_async and isawaitable(answer):
                    await answer
        except TupeloError:
            pass  # The query, the heap or the host was closed.
        except Exception:
            logger.exception("a listener raised; it is told no more")
            await maybe_await(self.close())


class View(Session):
    """A view of a heap. Those who use a view of total order see the same events in one order, and
    each of them none twice.

    Its `id` changes if the view is cloned, because its owner is gone; `cloned` tells of it, and so
    does the function that was given as `on_clone`, on the host's own thread.
    """

    def __init__(self, heap: EventHeap, reading: str, id: str, order: str) -> None:
        super().__init__(heap, reading, id)
        self.order = order
        opened = heap._local.served.readings[reading]
        self._ordered = opened if isinstance(opened, Ordered) else None

    @property
    def id(self) -> str:
        return self._id or "" if self._ordered is None else self._ordered.order.id

    @property
    def cloned(self) -> list[ViewCloned]:
        """How often it was cloned while it was used here, and by which views."""
        return [] if self._ordered is None else list(self._ordered.cloned)

    @property
    def is_owner(self) -> bool:
        """Has this host the token of the view?"""
        return self._ordered is not None and self._ordered.order.token.here

    @dual_api
    async def put(
        self, event: object, *, ttl: float | None = None, wait: float | None = None
    ) -> None:
        """Put an event in the heap, which has its place in this view when this returns. TokenAway,
        if the view cannot be owned in time, and nothing was done."""
        await self._put([freeze(event)], ttl, wait)

    @dual_api
    async def put_all(
        self, events: Iterable[object], *, ttl: float | None = None, wait: float | None = None
    ) -> None:
        """The same, of several: all of them or none, with nothing between them in the view."""
        await self._put(freeze_all(events), ttl, wait)

    async def _put(self, items: Items, ttl: float | None, wait: float | None) -> None:
        check_wait(wait)
        ttl = check_lease(ttl, "ttl")
        local = self._heap._local
        await local.run(local.served.put_through, self._reading, items, ttl, wait)

    @dual_api
    async def replay(self, template: object = ANY) -> list[Any]:
        """All events of the view that match, from its start, whoever has seen them. It does not
        count as seen."""
        local = self._heap._local
        found = await local.run(local.served.replay, self._reading, template)
        return [value_of(entry) for entry in found]

    @dual_api
    async def session(self) -> View:
        """Another reading of the same view, which has seen nothing."""
        return await self._heap._open_view(self.id, self.order)

    @dual_api
    async def clone(self) -> View:
        """Another reading of the same view, which has seen the same."""
        return await self._heap._open_view(self.id, self.order, self._reading)


def check_order(order: object) -> str:
    if order not in ("none", "source", "total"):
        raise BadArgument("order", '"none", "source" or "total"', order)
    return str(order)


AnyHost = Host | AsyncHost | RemoteSpaceLike | AsyncRemoteSpaceLike


class EventHeap(Reads):
    """A heap of events, spread over all hosts that have one of this name and reach each other.

    What it gives by `get`, `wait` and `get_all` it never gives twice: it has a session of its own.
    Those who want to read again, or separately, have another: `session()`. `patience` is how many
    seconds the owner of a total view may be away before the view is cloned.

    It stands on a host, or on a connection to one: `EventHeap(tupelo.connect("tupelo://host/room"))`
    is the heap "room" of this host, which reads and removes for a client. Its sessions and queries
    end with its link (PeerLost), and when it is closed its connection is. It has no views.
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
        """The heap of this name, made anew if it was destroyed; to be awaited at the async door.
        The factory of the host makes it."""
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
        """For what only hosts can do."""
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
        """The ids of the engaged hosts that have this heap; of a client, those that its host is
        engaged with, to be awaited at the async door."""
        if isinstance(self._door, LocalDoor):
            return self._replica.feed.partners
        work = partial(self._door.call, "hosts")
        return work() if self.is_async else run_sync(work)

    # Putting

    @dual_api
    async def put(self, event: object, *, ttl: float | None = None) -> None:
        """Put an event in the heap, for so many seconds, or until it is removed."""
        await self._put([freeze(event)], ttl)

    @dual_api
    async def put_all(self, events: Iterable[object], *, ttl: float | None = None) -> None:
        """Put several events in the heap: all of them or none."""
        await self._put(freeze_all(events), ttl)

    async def _put(self, items: Items, ttl: float | None) -> None:
        await self._door.tell("put", items, check_lease(ttl, "ttl"))

    # Reading what is there, and removing

    @dual_api
    async def snoop(self, template: object = ANY) -> Any:
        """An event that matches, seen or not; it does not count as seen."""
        return _first(await self._door.call("find", template, 1))

    @dual_api
    async def snoop_all(self, template: object = ANY) -> list[Any]:
        found: list[Any] = await self._door.call("find", template, None)
        return found

    @dual_api
    async def remove(self, template: object = ANY) -> Any:
        """Remove an event that matches, for everyone, and give it; None if there is none here.
        SourceAway, if there are only such as live at hosts out of reach."""
        return _first(await self._door.call("remove", template))

    @dual_api
    async def wait_to_remove(self, template: object = ANY, *, wait: float | None = None) -> Any:
        """The same, but wait for one, so long at most."""
        check_wait(wait)
        return _first(await self._door.call("remove", template, wait=wait))

    @dual_api
    async def adopt(self, host: str) -> None:
        """The host of this id, which `SourceAway` names, is gone for good: what it has put lives
        at this host from now on, as far as it is known here, and can be removed. To be called at
        one host; if the other comes back nevertheless, what was adopted stays where it is. For
        those who may administer the space. BadArgument if the host is within reach, or has put
        nothing."""
        if not isinstance(host, str):
            raise BadArgument("host", "the id of a host", host)
        await self._door.call("adopt", host)

    # What stands

    @dual_api
    async def query(
        self, template: object = ANY, callback: Callable[[Any], object] | None = None
    ) -> Query:
        """A persistent query: all that match and are there, and all that come, once each; to be
        got from what is returned, or told to a function on a thread (or task) of its own."""
        asked(template)  # What cannot be asked is refused now.
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function", callback)
        query = Query(self, await self._door.call("copies"), template)
        return query if callback is None else query._told_to(callback)

    @dual_api
    async def register(self, template: object, callback: Callable[[Any], object]) -> Query:
        """Be told of each event that matches and comes from now on."""
        if not callable(callback):
            raise BadArgument("callback", "a function", callback)
        return Query(self, await self._door.call("news", template), template)._told_to(callback)

    @dual_api
    async def session(self, id: str | None = None, *, wait: float | None = 0) -> Session:
        """A session that has seen nothing; or the shared one of this id, for which is waited so
        long if it is not known here yet."""
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
        """A new view, in which events have no order ("none"), are in that of their source
        ("source"), or all in one that everyone who uses the view agrees on ("total"). Or the view
        of this id, for which is waited so long if it is not known here yet.

        A new view ends for everyone when nobody within reach has used it for `lease` seconds: 0 to
        end with its last user, None for never. Of a new total view at least the last `horizon`
        places can be replayed, and be read by those who are behind; None for all events that
        live."""
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

    # The end

    @dual_api
    async def destroy(self) -> None:
        """Destroy the heap, at every host that has it, with all its events: for those who may
        administer its space."""
        await self._door.call("destroy")

    @dual_api
    async def close(self) -> None:
        """Use it no more, nor the sessions, views and queries that were got from it: whoever waits
        is told (HostClosed). The replica stays, and goes on with the host; a connection is
        closed."""
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
    """Carries what is in a heap, and what comes, to another heap of the same host: everything, or
    what matches. With `both`, also the other way."""

    def __init__(
        self, a: EventHeap, b: EventHeap, template: object = ANY, *, both: bool = False
    ) -> None:
        for name, heap in (("a", a), ("b", b)):
            if not isinstance(heap, EventHeap):
                raise BadArgument(name, "an EventHeap", heap)
        if a._local.host is not b._local.host or a.name == b.name:
            raise BadArgument("b", "another heap of the same host", b)
        if not isinstance(both, bool):
            raise BadArgument("both", "True or False", both)
        a._local.require_open()
        b._local.require_open()
        self.is_async = a.is_async
        self.carried = 0
        """How many events it has carried."""
        self._heap = a
        self._tasks: list[asyncio.Task[None]] = []
        pairs = [(a._replica, b._replica), (b._replica, a._replica)]
        a._local.host.now(self._start(pairs if both else pairs[:1], asked(template)))

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
                if _is_home(mark, there.name) or _is_known(mark, known):
                    continue
                known.add_number(mark.origin or "", mark.n or 0)
                await self._carry(entry, mark, there)
        except TupeloError:
            return  # One of the heaps was destroyed, or the host closed.

    async def _carry(self, entry: Entry, mark: WriteOutcome, there: Replica) -> None:
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
        """Carry no more."""

        async def work() -> None:
            for task in self._tasks:
                task.cancel()

        with suppress(HostClosed):
            await self._heap._local.host.on_loop(work())


def _mark(entry: Entry, heap: str) -> WriteOutcome:
    """The identity that it has in every heap but its first."""
    if entry.origin.startswith(_PREFIX):
        return WriteOutcome(entry.origin, entry.n)
    return WriteOutcome(f"{_PREFIX}{heap}\n{entry.origin}", entry.n)


def _is_home(mark: WriteOutcome, heap: str) -> bool:
    return (mark.origin or "").startswith(f"{_PREFIX}{heap}\n")


def _is_known(mark: WriteOutcome, known: Seen) -> bool:
    bits = known.bits.get(mark.origin or "")
    return bits is not None and mark.n is not None and mark.n in bits
