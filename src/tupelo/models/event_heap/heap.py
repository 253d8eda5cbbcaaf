"""The door: a heap of events, at a host of either door or at a connection to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self

from tupelo.errors import BadArgument, BadInput
from tupelo.federation.client.services import ServedDoor, check_client
from tupelo.federation.client.space import AsyncRemoteSpaceLike, RemoteSpace, RemoteSpaceLike
from tupelo.federation.hosts.doors import AsyncHost, Host, HostDoor
from tupelo.federation.hosts.local import LocalDoor, open_door
from tupelo.models.event_heap.events import asked, freeze_all
from tupelo.models.event_heap.factories import (
    PATIENCE_SECONDS,
    HeapRequest,
    check_heap,
    check_horizon,
)
from tupelo.models.event_heap.orders import ViewCloned
from tupelo.models.event_heap.replica import Replica, heaps_of
from tupelo.models.event_heap.served import METHODS, OWN, HostedHeap
from tupelo.models.event_heap.sessions import Query, Reads, Session, View, check_order
from tupelo.models.event_heap.uses import LEASE_SECONDS, check_unused
from tupelo.space.dual_api import dual_api, run_sync
from tupelo.space.query import check_wait
from tupelo.space.waiting import Items
from tupelo.values.entry import freeze
from tupelo.values.lease import check_lease
from tupelo.values.parts import ANY

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
