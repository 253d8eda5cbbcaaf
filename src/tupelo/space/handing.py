"""Handing over what was found: until it is durable, the one who asked has not got it."""

from __future__ import annotations

from tupelo.errors import SpaceClosed
from tupelo.space.engine import Engine
from tupelo.space.session import SessionState
from tupelo.space.transaction import Txn
from tupelo.space.undoing import undo
from tupelo.values.entry import Entry


class Handing:
    """Entries on their way from the space to the one who asked, who waits for the disk."""

    __slots__ = ("entries", "session", "take", "txn")

    def __init__(
        self, entries: list[Entry], take: bool, txn: Txn | None, session: SessionState | None
    ) -> None:
        self.entries = entries
        self.take = take
        self.txn = txn
        self.session = session


class Handings:
    """All that is on its way at one space."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[Handing, bool] = {}

    def hand(
        self,
        entries: list[Entry],
        take: bool,
        txn: Txn | None,
        session: SessionState | None,
    ) -> Handing:
        handing = Handing(entries, take, txn, session)
        self._open[handing] = True
        return handing

    def received(self, handing: Handing) -> None:
        """The one who asked has them, and what was taken is gone for good."""
        if not self._open.pop(handing, False):
            raise SpaceClosed("the space was closed before what was asked for was on disk")
        if handing.take and handing.txn is None:
            self.taken(handing.entries)

    def taken(self, entries: list[Entry]) -> None:
        """These were received, and will not come back: whoever keeps something of them may forget
        it, and whoever waits for their keys may have them."""
        core = self._engine.core
        if core.pruning.memories or core.books is not None:
            with self._engine.lock:
                for entry in entries:
                    core.received(entry)
                if core.waiting.writers.ready and not core.closed:
                    self._engine.settle()

    def undo(self, handing: Handing) -> None:
        """The one who asked vanished before it got them."""
        if self._open.pop(handing, False):
            with self._engine.lock:
                self._take_back(handing)
                position = self._engine.settle()
            self._engine.flush(position)

    def take_all_back(self) -> None:
        """The space is being closed: nobody gets anything any more."""
        for handing in [*self._open]:
            if self._open.pop(handing, False):
                self._take_back(handing)

    def _take_back(self, handing: Handing) -> None:
        for entry in handing.entries:
            undo(self._engine.core, entry, handing.take, handing.txn, handing.session)
