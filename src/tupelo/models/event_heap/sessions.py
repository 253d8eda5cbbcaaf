"""Sessions, views and queries as a user holds them, at either door."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument, TokenAway, TupeloError
from tupelo.models.event_heap.events import asked, freeze_all
from tupelo.models.event_heap.orders import ViewCloned
from tupelo.models.event_heap.readings import Ordered, Reading
from tupelo.space.checks import check_wait
from tupelo.space.either import Closing, either, settled
from tupelo.space.operations import value_of
from tupelo.space.session import Seen
from tupelo.space.writers import Items
from tupelo.values.entry import freeze
from tupelo.values.lease import check_lease
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.models.event_heap.heap import EventHeap

logger = logging.getLogger("tupelo")


class Session(Closing):
    """Gives no event twice. Tasks and threads may share it.

    A session that has an `id` is shared: it can be opened by that at every host that has the heap,
    and each event goes to only one of those who do. What they have seen is known to the host that
    used it last, which hands it on when it is closed. While that is out of reach the others get
    nothing (TokenAway, when their time is over), since it might be given twice. If it has no
    folder, and is gone for longer than the heap's patience, the session counts as lost (SessionLost
    at once): who still needs one shares another.
    """

    def __init__(self, heap: EventHeap, reading: Reading, id: str | None = None) -> None:
        self.is_async = heap.is_async
        self._id = id
        self._heap = heap
        self._reading = reading

    @property
    def id(self) -> str | None:
        return self._id

    @either
    async def get(self, template: object = ANY) -> Any:
        """The next event that matches and was not seen; None if there is none here now."""
        return await self._next(template, 0)

    @either
    async def wait(self, template: object = ANY, *, wait: float | None = None) -> Any:
        """The same, but wait for it, so long at most; None if none came in time."""
        check_wait(wait)
        return await self._next(template, wait)

    async def _next(self, template: object, wait: float | None) -> Any:
        return await self._heap._next(self._reading, template, wait)

    @either
    async def get_all(self, template: object = ANY) -> list[Any]:
        """All that match, are here and were not seen."""
        return await self._heap._rest(self._reading, asked(template))

    @either
    async def clone(self) -> Session:
        """A session of its own, which has seen what this one has seen by now."""
        return await self._heap._session(await self._record())

    @either
    async def share(self) -> str:
        """The id of a shared session, which has seen what this one has seen by now."""
        return await self._heap._share(await self._record())

    async def _record(self) -> Seen:
        seen: Seen = await self._heap._on_loop(self._reading.record())
        return seen

    @either
    async def close(self) -> None:
        async def work() -> None:
            self._heap._ends(self._reading)

        await self._heap._on_loop_unless_closed(work)

    def __iter__(self) -> Any:
        """All that is there, and all that comes."""
        while (event := self.wait()) is not None:
            yield event

    async def __aiter__(self) -> Any:
        while (event := await self.wait()) is not None:
            yield event


class Query(Session):
    """A persistent query: all that match and are there, and all that come, once each."""

    def __init__(self, heap: EventHeap, reading: Reading, template: object) -> None:
        super().__init__(heap, reading)
        self._template = template

    @either
    async def get(self, template: object = ANY) -> Any:
        return await self._next(self._both(template), 0)

    @either
    async def wait(self, template: object = ANY, *, wait: float | None = None) -> Any:
        check_wait(wait)
        return await self._next(self._both(template), wait)

    @either
    async def get_all(self, template: object = ANY) -> list[Any]:
        return await self._heap._rest(self._reading, asked(self._both(template)))

    def _both(self, template: object) -> object:
        if template is ANY:
            return self._template
        return asked(self._template) & asked(template)

    def _told_to(self, callback: Callable[[Any], object]) -> Query:
        self._heap._host._start(partial(self._call, callback))
        return self

    async def _call(self, callback: Callable[[Any], object]) -> None:
        try:
            while (event := await settled(self.wait())) is not None:
                answer = callback(event)
                if self.is_async and isawaitable(answer):
                    await answer
        except TupeloError:
            pass  # The query, the heap or the host was closed.
        except Exception:
            logger.exception("a listener raised; it is told no more")
            await settled(self.close())


class View(Session):
    """A view of a heap. Those who use a view of total order see the same events in one order, and
    each of them none twice.

    Its `id` changes if the view is cloned, because its owner is gone; `cloned` tells of it, and so
    does the function that was given as `on_clone`, on the host's own thread.
    """

    def __init__(self, heap: EventHeap, reading: Reading, id: str, order: str) -> None:
        super().__init__(heap, reading, id)
        self.order = order

    @property
    def id(self) -> str:
        return self._reading.order.id if isinstance(self._reading, Ordered) else self._id or ""

    @property
    def cloned(self) -> list[ViewCloned]:
        """How often it was cloned while it was used here, and by which views."""
        return list(self._reading.cloned) if isinstance(self._reading, Ordered) else []

    @property
    def is_owner(self) -> bool:
        """Has this host the token of the view?"""
        return isinstance(self._reading, Ordered) and self._reading.order.token.here

    @either
    async def put(
        self, event: object, *, ttl: float | None = None, wait: float | None = None
    ) -> None:
        """Put an event in the heap, which has its place in this view when this returns. TokenAway,
        if the view cannot be owned in time, and nothing was done."""
        check_wait(wait)
        ttl = check_lease(ttl, "ttl")
        await self._heap._on_loop(self._put([freeze(event)], ttl, wait))

    @either
    async def put_all(
        self, events: Iterable[object], *, ttl: float | None = None, wait: float | None = None
    ) -> None:
        """The same, of several: all of them or none, with nothing between them in the view."""
        check_wait(wait)
        ttl = check_lease(ttl, "ttl")
        await self._heap._on_loop(self._put(freeze_all(events), ttl, wait))

    async def _put(self, items: Items, ttl: float | None, wait: float | None) -> None:
        replica = self._heap._replica
        if not isinstance(self._reading, Ordered):
            await replica.put(items, ttl)
            return
        loop = asyncio.get_running_loop()
        until = None if wait is None else loop.time() + wait
        while True:
            order = self._reading.order
            left = None if until is None else max(0.0, until - loop.time())
            try:
                await order.put(items, ttl, left)
                return
            except TokenAway:
                if self._reading.order is order:
                    raise

    @either
    async def replay(self, template: object = ANY) -> list[Any]:
        """All events of the view that match, from its start, whoever has seen them. It does not
        count as seen."""
        if isinstance(self._reading, Ordered):
            reading = self._reading

            async def work() -> Any:
                return reading.replay(asked(template))

            found = await self._heap._on_loop(work())
        else:
            found = await self._heap._on_loop(self._heap._find(asked(template)))
        return [value_of(entry) for entry in found]

    @either
    async def session(self) -> View:
        """Another reading of the same view, which has seen nothing."""
        return await self._heap._open_view(self.id, self.order)

    @either
    async def clone(self) -> View:
        """Another reading of the same view, which has seen the same."""
        return await self._heap._open_view(self.id, self.order, await self._record())


def check_order(order: object) -> str:
    if order not in ("none", "source", "total"):
        raise BadArgument("order", '"none", "source" or "total"', order)
    return str(order)
