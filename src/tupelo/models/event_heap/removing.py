"""Removing events: each is removed where it lives, at its source, and nowhere else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tupelo.errors import NotAllowed, PeerLost, SourceAway, UnknownHost
from tupelo.federation.replication.feed import host_of
from tupelo.models.event_heap.ordering import Place
from tupelo.values.entry import Entry
from tupelo.values.template import Template

if TYPE_CHECKING:
    from tupelo.models.event_heap.replica import Replica


class Removing:
    """How events are removed at one host, or for one."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def remove(self, template: Template, wait: float | None) -> Entry | None:
        """Remove the oldest match. SourceAway if there are some, but none within reach; NotAllowed
        if their hosts do not let us."""
        loop = asyncio.get_running_loop()
        until = None if wait is None else loop.time() + wait
        while True:
            rings = self._replica.bell.rings
            away: set[str] = set()
            refusals: list[NotAllowed] = []
            for entry in self._replica.find(template):
                place = self._replica.place_of(entry)
                if place is not None and await self._remove(place, away, refusals):
                    return entry
            try:  # Patience ends between questions: what was removed must not be lost.
                left = None if until is None else max(0.0, until - loop.time())
                async with asyncio.timeout(left):
                    await self._replica.bell.wait(rings)
            except TimeoutError:
                if away:
                    raise SourceAway(sorted(away)) from None
                if refusals:
                    raise refusals[0] from None
                return None

    async def _remove(self, place: Place, away: set[str], refusals: list[NotAllowed]) -> bool:
        source, number = place
        host = host_of(source)
        if source == self._replica.feed.source:
            return await self.here(number)
        try:
            removed = await self._replica.voice.ask(host, ["remove", source, number])
        except NotAllowed as refusal:
            refusals.append(refusal)
            return False
        except UnknownHost:
            away.add(host)
            return False
        except PeerLost as error:
            if error.in_doubt:
                raise
            away.add(host)
            return False
        if removed is None:  # It has a source of that name no more: another life.
            away.add(host)
        return removed is True

    async def here(self, number: int) -> bool:
        operations = self._replica.feed.space.operations
        entry = self._replica.feed.original(number)
        if entry is None:
            return False
        txn = operations.begin(None)
        if not operations.take_entry(entry, txn):
            operations.abort(txn)
            return False
        await self._replica.feed.space.flush(operations.commit(txn))
        await self._replica.until(lambda: number not in self._replica.feed.exchange.own.items)
        return True
