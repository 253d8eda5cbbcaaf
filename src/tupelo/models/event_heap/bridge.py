"""Bridges: they carry events from heap to heap.

An event that is carried keeps the identity that it had where it was put first, with the name of
that heap before its origin. That is all it takes to end loops: a bridge carries nothing back to the
heap where it is at home, and nothing that has been in the other heap since the bridge began; and if
two bridges at two hosts carry one event at the same time, it is the same event twice, which no
session and no view gives twice.

It is an event of the host at which the bridge is: there it lives, and is removed, and it goes on
living when the one that it was made from is removed. An event that was removed from a heap before a
bridge began may come there again by a way round.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tupelo.errors import BadArgument, CannotSend, HostClosed, Refused, TupeloError
from tupelo.federation.replication.broadcast import FeedCursor
from tupelo.models.event_heap.events import asked
from tupelo.models.event_heap.heap import EventHeap
from tupelo.models.event_heap.readings import HeapCopies
from tupelo.models.event_heap.replica import Replica
from tupelo.space.dual_api import Closing, dual_api
from tupelo.space.session import Seen
from tupelo.space.waiting import WriteOutcome
from tupelo.values.entry import Entry
from tupelo.values.parts import ANY
from tupelo.values.template import Template

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
