"""A hosted space: one space of a host, with the rules by which others may use it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Literal

import msgspec

from tupelo.errors import BadArgument, JournalError, LeaseLost
from tupelo.federation.identity.access import Access
from tupelo.space import asynchronous, blocking
from tupelo.space.session import Seen
from tupelo.space.tasks import NowFlusher
from tupelo.values.entry import Entry
from tupelo.values.lease import check_lease

logger = logging.getLogger("tupelo")


class Doubt(msgspec.Struct, frozen=True):
    """What becomes of an entry that was handed over and not confirmed, if the one who took it does
    not come back within so many seconds: it returns to the space, or is forgotten as taken."""

    seconds: float = 30.0
    then: Literal["return", "forget"] = "return"


class HostedSpace:
    """One space of a host. `space` is its blocking door and `door` its async one."""

    def __init__(
        self, space: blocking.Space, access: Access, doubt: Doubt, *, commit_in_place: bool
    ) -> None:
        self.space = space
        self.name = space.name
        self.access = access
        self.doubt = doubt
        self.operations = space._operations
        self.engine = self.operations.engine
        self.clock = self.engine.clock
        self.durable = self.engine.saved is not None
        self.door = asynchronous.Space(space)
        if commit_in_place:
            self.door._flusher = NowFlusher(self.engine)
            self.door._flush = self.door._flusher.flush
        self.flush = self.door._flusher.flush
        self.unsendable = Seen()
        """Its entries that other hosts do not get, since they cannot be sent."""
        self._flushing: set[asyncio.Task[None]] = set()

    @property
    def shared(self) -> bool:
        """Is it part of a federation? Those with a password are not, nor those of the system."""
        return not self.access.protected and not self.name.startswith("tupelo.")

    def flush_soon(self, position: int) -> None:
        """Make the changes up to here durable, though nobody waits for it."""
        if position and self.durable:
            task = asyncio.ensure_future(self._flush_quietly(position))
            self._flushing.add(task)
            task.add_done_callback(self._flushing.discard)

    async def _flush_quietly(self, position: int) -> None:
        with suppress(JournalError):  # The space is closed then, and says so to everyone.
            await self.flush(position)

    def pass_over(self, entry: Entry, reason: object) -> None:
        """This cannot be sent: who asks elsewhere gets what stands behind it."""
        with self.engine.lock:
            is_known = entry in self.unsendable
            self.unsendable.add(entry)
        if not is_known:
            self.operations.remember(self.unsendable)
            logger.warning("other hosts do not get an entry of %r: %s", self.name, reason)

    def entry_of(self, origin: str, n: int, arrival: int) -> Entry:
        """The entry that this agent wrote under this number; LeaseLost if it is gone."""
        core = self.operations.core
        with self.engine.lock:
            entry = core.store.at(arrival)
            if entry is None:  # A transaction may hold it.
                taken = (held for txn in core.transactions for held in txn.taken)
                entry = next((held for held in taken if held.arrival == arrival), None)
        if entry is None or entry.n != n or entry.origin != origin:
            raise LeaseLost("the entry is gone, or was never written by you")
        return entry


def check_doubt(doubt: object) -> Doubt:
    if doubt is None:
        return Doubt()
    if not isinstance(doubt, Doubt) or doubt.then not in ("return", "forget"):
        raise BadArgument("doubt", 'a Doubt(seconds, "return" or "forget")', doubt)
    if check_lease(doubt.seconds, "doubt") is None:
        raise BadArgument("doubt", "a Doubt of some seconds", doubt)
    return doubt
