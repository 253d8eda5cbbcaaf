"""Factories: create heaps, views and shared sessions, and destroy heaps, on request by an entry.

Each host that has a heap has a factory. It serves the requests in the host's own space "event
heaps", which is not shared with other hosts: a request comes from a program at this host, or from a
client (`connect` finds the space). A client needs the same rights in the heap's space as for the
operation: write to create a heap or view, read to share a session, administer to destroy the heap.
The answer is a `Made` entry, which the requester takes; it expires after a while. An `EventHeap`
calls the factory of its host directly.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tupelo.errors import BadArgument, DiskFull, JournalFailed, NotAllowed, SpaceClosed, TupeloError
from tupelo.models.event_heap.records import SessionMade
from tupelo.models.event_heap.seen import read_seen
from tupelo.models.event_heap.uses import check_unused
from tupelo.space.port import value_of
from tupelo.space.query import Query
from tupelo.space.tasks import Tasks, when_room
from tupelo.values.checks import is_number
from tupelo.values.kind import entry
from tupelo.values.template import Template

if TYPE_CHECKING:
    from tupelo.models.event_heap.replica import Heaps

SPACE = "event heaps"
ANSWER_SECONDS = 60.0
"""Lease of an answer, in seconds."""
PATIENCE_SECONDS = 5.0
NAME_BYTES_MAX = 60
REQUESTS_MAX = 100
"""Most requests that are served at a time; others wait."""


@dataclass
class FactoryRequest:
    """A request to a factory. The answer names the request by its id."""

    request: str | None = None
    heap: str | None = None


@entry("tupelo.heap.request")
@dataclass
class HeapRequest(FactoryRequest):
    """Create the heap of this name, or join it. `patience`: seconds that the owner of a total view
    may be away before the view is cloned."""

    patience: float | None = None


@entry("tupelo.heap.destroy request")
@dataclass
class DestroyRequest(FactoryRequest):
    """Destroy the heap at every host."""


@entry("tupelo.heap.view request")
@dataclass
class ViewRequest(FactoryRequest):
    """Create a view with the order "none", "source" or "total". It ends when no host within reach
    has used it for `lease` seconds. At least the last `horizon` places of a total view are kept, or
    those of all living events."""

    order: str | None = None
    lease: float | None = None
    horizon: int | None = None


@entry("tupelo.heap.session request")
@dataclass
class SessionRequest(FactoryRequest):
    """Create a shared session, with this record of seen events or an empty one. It ends when no
    host within reach has used it for `lease` seconds."""

    record: bytes | None = None
    lease: float | None = None


@entry("tupelo.heap.answer")
@dataclass
class Made:
    """The answer: the id of the view or session, or the name of the heap; or an `error`."""

    request: str | None = None
    id: str | None = None
    error: str | None = None


_RULES: dict[type[FactoryRequest], str] = {
    HeapRequest: "write",
    DestroyRequest: "administer",
    ViewRequest: "write",
    SessionRequest: "read",
}
"""The right that a client needs in the space of the heap, by request."""
_NEXT = Query(Template.any_of(list(_RULES)), take=True, deadline=None)


class Factory:
    """The factory of one host, on its loop."""

    def __init__(self, heaps: Heaps) -> None:
        self._heaps = heaps
        self._space = heaps.core.make_space(SPACE, kept_here=True)
        self._space.is_hidden = True  # Only this program, and clients of this host, may ask.
        self._free = asyncio.Semaphore(REQUESTS_MAX)
        self._tasks = Tasks()
        self._tasks.start(self._serve())
        self.close = self._tasks.cancel

    async def ask(self, request: FactoryRequest) -> str:
        """Serve a request of the program of this host, to its end even if the caller is cancelled;
        returns the id or name of what was made."""
        return await asyncio.shield(self._tasks.start(self._make(request)))

    async def _serve(self) -> None:
        while True:
            await self._free.acquire()
            try:
                found = await when_room(partial(self._space.port.answer, _NEXT))
                assert found is not None
                (entry,), position = found
                with suppress(DiskFull):  # If it is lost in a crash, it is answered again.
                    await self._space.flush(position)
            except (SpaceClosed, JournalFailed):
                return
            self._tasks.start(self._answer(value_of(entry), entry.origin))

    async def _answer(self, request: FactoryRequest, agent: str) -> None:
        try:
            self._check_allowed(request, agent)
            made = Made(request.request, await self._make(request))
        except TupeloError as error:
            made = Made(request.request, None, f"{type(error).__name__}: {error}")
        finally:
            self._free.release()
        await when_room(partial(self._space.door.write, made, lease=ANSWER_SECONDS))

    def _check_allowed(self, request: FactoryRequest, agent: str) -> None:
        """AccessError if the agent that has written the request lacks the right to it. The program
        of the host has all rights."""
        core, rule, heap = self._heaps.core, _RULES[type(request)], _heap_of(request)
        if agent == core.id:
            return
        links = [one for one in core.servings.values() if one.agent == agent]
        if not links:
            raise NotAllowed(rule, heap, f"the agent {agent}, which is not connected here,")
        for one in links:  # Another link may have the same name and fewer rights.
            one.hosted(heap, rule)

    async def _make(self, request: FactoryRequest) -> str:
        heap = _heap_of(request)
        if isinstance(request, HeapRequest):
            patience = request.patience
            check_heap(heap, PATIENCE_SECONDS if patience is None else patience)
            return (await self._heaps.create(heap, patience or PATIENCE_SECONDS)).name
        replica = self._heaps.replicas.get(heap)
        if replica is None:
            raise BadArgument("heap", "one that this host has", heap)
        if isinstance(request, DestroyRequest):
            await replica.destroy()
            return heap
        made = self._heaps.core.new_id()
        if isinstance(request, ViewRequest):
            lease, horizon = check_unused(request.lease), check_horizon(request.horizon)
            await replica.orders.make(made, check_order(request.order), lease, horizon=horizon)
        elif isinstance(request, SessionRequest):
            lease = check_unused(request.lease)
            await replica.shared_record(made).begin(read_seen(request.record or b""))
            await replica.record(SessionMade(made, lease=lease))
        return made


def _heap_of(request: FactoryRequest) -> str:
    if not isinstance(request.heap, str):
        raise BadArgument("heap", "the name of a heap", request.heap)
    return request.heap


def check_order(order: object) -> str:
    if order not in ("none", "source", "total"):
        raise BadArgument("order", '"none", "source" or "total"', order)
    return str(order)


def check_horizon(horizon: object) -> int | None:
    if horizon is not None and (type(horizon) is not int or horizon < 0):
        raise BadArgument("horizon", "a number of places, or None for all", horizon)
    return horizon


def check_heap(name: object, patience: object) -> str:
    if not isinstance(name, str) or not name or len(name.encode()) > NAME_BYTES_MAX:
        raise BadArgument("name", f"a text of 1 to {NAME_BYTES_MAX} bytes", name)
    if not is_number(patience) or not patience > 0:
        raise BadArgument("patience", "a number of seconds above 0", patience)
    return name
