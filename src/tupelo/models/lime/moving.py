"""Moving: a tuple that is for an agent goes to the host where that agent shares the space.

Until then it is misplaced: it is here, and may be read and taken here, like any other. When the
group has changed, all that can go home does so before operations go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tupelo.federation.spanning.handover import Reservation, give_back
from tupelo.models.lime.handover import MOVED, HandOver, Limbo, Parcel, heaps_of
from tupelo.models.lime.spaces import Ground, Spaces
from tupelo.values.entry import Entry


class Moving:
    """Moves what is misplaced at one host."""

    def __init__(self, spaces: Spaces, handover: HandOver) -> None:
        self._spaces = spaces
        self._handover = handover

    def gather(self) -> list[Parcel]:
        """Take all that is misplaced, and could be at home, out of sight."""
        return [parcel for ground in self._spaces for parcel in self._gather(ground)]

    async def tidy(self, ground: Ground, entries: list[Entry]) -> None:
        """If some of these, which have come into sight here, are at home elsewhere, they go."""
        if any(ground.away(entry) for entry in entries):
            await self.send(self._gather(ground))

    def pass_on(self, ground: Ground, entries: list[Entry]) -> tuple[list[Entry], list[Parcel]]:
        """Of tuples that are to be on this ground: those that stay, and those that go on at once,
        and are never seen here."""
        parcels = []
        for host, heap in _sorted(ground, entries):
            token = self._handover.next_token()
            parcels.append(Parcel(host, token, Limbo(ground, heap)))
        going = {entry for parcel in parcels for entry in parcel.held.entries}
        return [entry for entry in entries if entry not in going], parcels

    def _gather(self, ground: Ground) -> list[Parcel]:
        with ground.hosted.engine.lock:
            heaps = _sorted(ground, ground.operations.core.store)
        parcels = [self._put_aside(ground, host, heap) for host, heap in heaps]
        return [parcel for parcel in parcels if parcel is not None]

    def _put_aside(self, ground: Ground, host: str, entries: list[Entry]) -> Parcel | None:
        operations = ground.operations
        token = self._handover.next_token()
        txn = operations.begin_branch(None, None, self._handover.name_of(MOVED, host, token))
        txn.ending = "moved"
        taken = [entry for entry in entries if operations.take_entry(entry, txn)]
        if not taken:  # Someone holds them, or was faster.
            operations.abort(txn)
            return None
        _, position = operations.prepare(txn)
        return Parcel(host, token, Reservation(ground.hosted, taken, None, txn), position)

    async def send(self, parcels: list[Parcel]) -> None:
        """To all hosts at once, to each in order. If this is cut short, what was not sent is here
        again."""
        by_host: dict[str, list[Parcel]] = {}
        for parcel in parcels:
            by_host.setdefault(parcel.host, []).append(parcel)
        try:
            await asyncio.gather(*map(self._send, by_host.values()))
        finally:
            for unsent in by_host.values():
                for parcel in unsent:
                    give_back(parcel.held)

    async def _send(self, parcels: list[Parcel]) -> None:
        while parcels:
            await self._handover.move(parcels.pop(0))


def _sorted(ground: Ground, entries: Iterable[Entry]) -> list[tuple[str, list[Entry]]]:
    """What is at home elsewhere and can be sent, in heaps for each host."""
    going: dict[str, list[Entry]] = {}
    for entry in entries:
        host = ground.away(entry)
        if host is not None:
            going.setdefault(host, []).append(entry)
    return [(host, heap) for host in going for heap in heaps_of(going[host])]
