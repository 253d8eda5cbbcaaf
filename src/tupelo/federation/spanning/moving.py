"""Moving entries that are written for an agent to the host of that agent, once it is engaged.

Until then such an entry is misplaced: it can be read and taken here like any other. While it is in
transit nobody can see it. If the other host does not answer, the entry is in doubt; if that host
never comes back, the `Doubt` of the space decides.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from tupelo.errors import CannotSend, DiskFull, PeerLost, TupeloError
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_whole, read_whole
from tupelo.federation.spaces.hosted import HostedSpace, confirm, give_back
from tupelo.federation.spanning.peers import EngagedPeer, ThisHost
from tupelo.space.delivery import Prepared
from tupelo.space.session import Seen
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder

logger = logging.getLogger("tupelo")

_Key = tuple[str, str, int]


class EntryInTransit:
    """A delivery of an entry that is being moved. `peer` is the host whose answer is awaited."""

    def __init__(self, mover: EntryMover, hosted: HostedSpace, delivery: Prepared) -> None:
        self.hosted = hosted
        self.holder = delivery.holder
        self.entries = delivery.entries
        self.space = hosted.name
        self.peer: EngagedPeer | None = None
        self._delivery = delivery
        self._mover = mover

    @property
    def key(self) -> _Key:
        entry = self.entries[0]
        return self.hosted.name, entry.origin, entry.n

    def confirm(self) -> int:
        """The other host has the entry: remove it here."""
        self._mover.ended(self)
        return self._delivery.confirm()

    def give_back(self) -> int:
        """Make the entry visible here again."""
        self._mover.ended(self)
        return self._delivery.give_back()

    def forget(self) -> None:
        """Sessions keep it as seen, since they meet it again at the other host."""


class EntryMover:
    """Moves the misplaced entries of this host, with one task per peer, and accepts those of
    others."""

    def __init__(self, host: ThisHost) -> None:
        self._host = host
        self._accepted: dict[str, Seen] = {}
        self._positions: dict[str, int] = {}  # of the last accepted entry, to flush
        self._under_way: dict[_Key, EntryInTransit] = {}
        self._tasks: dict[EngagedPeer, asyncio.Task[None]] = {}
        self._again: set[EngagedPeer] = set()

    def load_accepted(self, hosted: HostedSpace) -> None:
        """Before a space is served: load the identities of accepted entries. Raises DamagedFile."""
        accepted = self._accepted.setdefault(hosted.name, Seen())
        for origin, n in hosted.port.accepted():
            accepted.add_number(origin, n)

    def recover(self, hosted: HostedSpace) -> None:
        """After a restart: load the entries in transit."""
        for delivery in hosted.port.deliveries_in_doubt():
            if delivery.holder.kind == "move":
                moving = EntryInTransit(self, hosted, delivery)
                self._under_way[moving.key] = moving
                self._host.doubts.leave(moving.key, {0: moving})

    # Sending

    def move_soon(self) -> None:
        """An agent, a host or an entry has come: move what can be moved now."""
        for peer in self._host.peers.values():
            self._begin(peer)

    def _begin(self, peer: EngagedPeer) -> None:
        if self._is_busy_with(peer):
            self._again.add(peer)
        else:
            task = self._tasks[peer] = asyncio.ensure_future(self._move_all(peer))
            task.add_done_callback(partial(self._task_done, peer))

    def _is_busy_with(self, peer: EngagedPeer) -> bool:
        task = self._tasks.get(peer)
        return task is not None and not task.done()

    def under_way(self) -> list[Any]:
        """The entries in transit."""
        return list(self._under_way)

    def _task_done(self, peer: EngagedPeer, task: asyncio.Task[None]) -> None:
        if self._tasks.get(peer) is task:  # otherwise the next task has begun
            del self._tasks[peer]
            self._again.discard(peer)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("moving entries to the host %r failed", peer.name, exc_info=error)

    async def _move_all(self, peer: EngagedPeer) -> None:
        while not peer.talk.over:
            self._again.discard(peer)
            for name, hosted in list(self._host.spaces.items()):
                if hosted.shared and name in peer.spaces:
                    try:
                        await self._move_to(peer, hosted)
                    except PeerLost:
                        return
                    except TupeloError as error:
                        logger.info("%r gets no entries of %r: %s", peer.name, name, error)
            if peer not in self._again:
                return

    async def _move_to(self, peer: EngagedPeer, hosted: HostedSpace) -> None:
        for moving in list(self._under_way.values()):
            to_it = moving.holder.who == peer.id
            undecided = self._under_way.get(moving.key) is moving
            if moving.hosted is hosted and to_it and undecided and moving.peer is not peer:
                await self._deliver(peer, moving)
        for agent in sorted(peer.agents):
            for entry in hosted.port.directed_to(agent):
                if peer.talk.over or not peer.may("take", hosted):
                    return
                await self._move(peer, hosted, entry)

    async def _move(self, peer: EngagedPeer, hosted: HostedSpace, entry: Entry) -> None:
        if not self._can_be_sent(peer, hosted, entry):
            return
        holder = Holder("move", peer.id, entry.origin, entry.n)
        delivery, position = hosted.port.put_aside([entry], holder)
        if delivery is None:
            return
        moving = EntryInTransit(self, hosted, delivery)
        try:
            await hosted.flush(position)
        except DiskFull:  # It is tried again when an agent, a host or an entry comes.
            give_back(hosted, moving)
            raise
        if peer.talk.over:  # The entry was not sent.
            give_back(hosted, moving)
            return
        self._under_way[moving.key] = moving
        await self._deliver(peer, moving)

    def _can_be_sent(self, peer: EngagedPeer, hosted: HostedSpace, entry: Entry) -> bool:
        try:
            wire.encode(self._message(hosted, entry), peer.talk.link.message_max)
        except (CannotSend, UnicodeEncodeError) as error:
            logger.info("an entry of %r stays where it is: %s", hosted.name, error)
            return False
        return True

    def _message(self, hosted: HostedSpace, entry: Entry) -> wire.MoveEntry:
        encoded = encode_whole(entry, hosted.clock.now())
        return wire.MoveEntry(self._host.next_call(), hosted.name, encoded)

    async def _deliver(self, peer: EngagedPeer, moving: EntryInTransit) -> None:
        """Send one entry. Without an answer in time it is in doubt, and is sent again when the host
        comes back; then PeerLost is raised, so that no further entry is sent."""
        answer = peer.talk.call(self._message(moving.hosted, moving.entries[0]), "move")
        moving.peer = peer
        self._host.doubts.forget(moving.key, 0)  # The answer decides now.
        answer.add_done_callback(partial(self._answered, peer, moving))
        await asyncio.wait([answer], timeout=self._host.answer_seconds)
        if not answer.done():
            self._host.doubts.leave(moving.key, {0: moving})
            raise PeerLost(peer.name, "move")

    def _answered(
        self, peer: EngagedPeer, moving: EntryInTransit, answer: asyncio.Future[Any]
    ) -> None:
        """Handle an answer, which may come so late that the doubt was decided before."""
        if moving.peer is not peer or answer.cancelled():
            return
        moving.peer = None
        error = answer.exception()
        if not self._is_busy_with(peer) and not isinstance(error, PeerLost):
            self._begin(peer)  # Its task had given up, and the peer answers again.
        if self._under_way.get(moving.key) is not moving:
            return
        if isinstance(error, PeerLost):
            self._host.doubts.leave(moving.key, {0: moving})
            return
        if error is None and answer.result():
            confirm(moving.hosted, moving)
        else:
            give_back(moving.hosted, moving)

    def ended(self, moving: EntryInTransit) -> None:
        """The entry is not in transit any more."""
        if self._under_way.get(moving.key) is moving:
            del self._under_way[moving.key]
        self._host.doubts.forget(moving.key, 0)

    # Receiving

    async def accept(self, peer: EngagedPeer, message: wire.MoveEntry) -> bool:
        """Accept an entry that a peer sends. True if this host has it on disk."""
        hosted = peer.hosted(message.space, "write")
        return hosted is not None and await self._accept(
            hosted, read_whole(message.entry, hosted.clock.now())
        )

    async def _accept(self, hosted: HostedSpace, entry: Entry) -> bool:
        """Accept an entry for an agent of this host; also True if it was accepted before."""
        accepted = self._accepted.setdefault(hosted.name, Seen())
        if entry in accepted:  # It may not be on disk yet.
            await hosted.flush(self._positions.get(hosted.name, 0))
            return True
        if entry.to not in self._host.agents or entry.origin in self._host.agents:
            return False
        position = self._positions[hosted.name] = hosted.port.take_in(entry)
        accepted.add(entry)
        await hosted.flush(position)
        return True
