"""Moving: an entry that is for an agent goes to the host where that agent is, as soon as it can.

Until then it is misplaced: it is here, and may be read and taken here, like any other.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tupelo.errors import PeerLost, SpaceClosed, TupeloError
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.federation.hosts.peer import Peer
from tupelo.federation.links import wire
from tupelo.federation.links.spelled import spell_whole
from tupelo.space.session import Seen
from tupelo.space.tasks import TaskSignal
from tupelo.space.transaction import Txn
from tupelo.space.writers import Mark
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore

_PREFIX = "move"


class Mover:
    """Moves what is misplaced at one host."""

    def __init__(self, host: HostCore) -> None:
        self._host = host
        self._accepted: dict[str, Seen] = {}
        self._positions: dict[str, int] = {}  # at which what was accepted is durable
        self._under_way: dict[tuple[str, str, int], Txn] = {}
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def recover(self, hosted: HostedSpace) -> None:
        """What was under way when this host crashed; what has come here from elsewhere."""
        accepted = self._accepted.setdefault(hosted.name, Seen())
        if hosted.engine.saved is not None:
            for origin, n in hosted.engine.saved.accepted():
                accepted.add_number(origin, n)
        for txn in hosted.operations.in_doubt():
            if txn.id.startswith(f"{_PREFIX}:"):
                txn.ending = "moved"
                for entry in txn.taken:
                    self._under_way[hosted.name, entry.origin, entry.n] = txn

    # Going

    def consider(self, hosted: HostedSpace) -> None:
        """Something was written for an agent."""
        self.arrived()

    def arrived(self) -> None:
        """An agent, a host or an entry has come: what can be moved is moved."""
        if self._task is not None and not self._task.done():
            self._again = True
        elif self._host.peers:
            self._task = asyncio.ensure_future(self._move_all())

    async def _move_all(self) -> None:
        while True:
            self._again = False
            with suppress(SpaceClosed, PeerLost):
                for name, hosted in list(self._host.spaces.items()):
                    for peer in list(self._host.peers.values()):
                        if name in peer.spaces:
                            await self._move_to(peer, hosted)
            if not self._again:
                return

    async def _move_to(self, peer: Peer, hosted: HostedSpace) -> None:
        for (space, _, _), txn in list(self._under_way.items()):
            if space == hosted.name and txn.id.startswith(f"{_PREFIX}:{peer.id}:"):
                for entry in list(txn.taken):
                    await self._move(peer, hosted, entry, txn)
        for agent in sorted(peer.agents):
            for entry in hosted.operations.core.directed.to(agent):
                txn = hosted.operations.begin_branch(
                    None, None, f"{_PREFIX}:{peer.id}:{entry.origin}:{entry.n}"
                )
                txn.ending = "moved"
                if not hosted.operations.take_entry(entry, txn):
                    hosted.operations.abort(txn)
                    continue
                await hosted.flush(hosted.operations.prepare(txn)[1])
                self._under_way[hosted.name, entry.origin, entry.n] = txn
                await self._move(peer, hosted, entry, txn)

    async def _move(self, peer: Peer, hosted: HostedSpace, entry: Entry, txn: Txn) -> None:
        """Deliver one. If the link is lost it is in doubt, and delivered again when it is back."""
        message = wire.Move(self._host.next_call(), hosted.name, _travelling(hosted, entry))
        try:
            accepted = await peer.talk.call(message, "move")
        except PeerLost:
            raise
        except TupeloError:
            accepted = False
        self._under_way.pop((hosted.name, entry.origin, entry.n), None)
        if accepted:
            hosted.flush_soon(hosted.operations.commit(txn))
        else:
            hosted.flush_soon(hosted.operations.abort(txn))

    # Coming

    async def accept(self, hosted: HostedSpace, entry: Entry) -> bool:
        """Take in an entry for an agent that is here; True too if it was taken in before."""
        accepted = self._accepted.setdefault(hosted.name, Seen())
        if entry in accepted:  # The one who asked before may not have waited for the disk.
            await hosted.flush(self._positions.get(hosted.name, 0))
            return True
        if entry.to not in self._host.agents or entry.origin in self._host.agents:
            return False
        position = self._positions[hosted.name] = adopt(hosted, [entry])
        accepted.add(entry)
        await hosted.flush(position)
        return True


def _travelling(hosted: HostedSpace, entry: Entry) -> list[Any]:
    return spell_whole(entry, hosted.clock.now())


def adopt(hosted: HostedSpace, entries: list[Entry]) -> int:
    """Let entries live here from now on, under the identity that they have; the position at which
    that is durable."""
    position = 0
    now = hosted.clock.now()
    for entry in entries:
        lease = None if entry.expires is None else entry.expires - now
        if lease is not None and lease <= 0:
            continue
        with suppress(SpaceClosed):
            _, position = hosted.operations.write_items(
                [(entry.shape, entry.fields)],
                lease,
                None,
                None,
                TaskSignal,
                0,
                Mark(entry.origin, entry.n, entry.to),
            )
    hosted.flush_soon(position)
    return position
