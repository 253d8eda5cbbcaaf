"""Sessions, views and queries as a user holds them, at either door."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument, HeapDestroyed, HostClosed, TupeloError
from tupelo.models.event_heap.events import BothMatch, freeze_all
from tupelo.models.event_heap.orders import ViewCloned
from tupelo.models.event_heap.readings import Ordered
from tupelo.models.event_heap.uses import LEASE_SECONDS, check_unused
from tupelo.space.dual_api import Closing, dual_api, maybe_await
from tupelo.space.port import value_of
from tupelo.space.query import check_wait
from tupelo.space.waiting import Items
from tupelo.values.entry import freeze
from tupelo.values.lease import check_lease
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.models.event_heap.heap import EventHeap

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
