"""Writers: how entries are admitted to a space, and writes that wait until they can be.

A write that is refused (the space is full, its key is taken) may wait. When something has left,
those who wait to write are tried again in the order in which they came, after all who wait to read
or take; one who still cannot go does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import BadArgument, Refused
from tupelo.values.entry import Entry, Shape

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.log import Actor
    from tupelo.space.transaction import Txn
    from tupelo.space.waiting import Signal

Items = list[tuple[Shape, tuple[Any, ...]]]
Asked = float | None | list[float | None]
"""The lease asked for: one for all, or one for each."""
Places = Sequence[Any] | None
"""Where each entry is to stand, as the space's order understands it."""


class WriteOutcome(msgspec.Struct, frozen=True):
    """Who has written an entry, and its number there if it comes from elsewhere; and the agent that
    it is for."""

    origin: str | None = None
    n: int | None = None
    to: str | None = None

    def put_on(self, entry: Entry) -> Entry:
        if self.origin is not None:
            entry.origin = self.origin
        if self.n is not None:
            entry.n = self.n
        entry.to = self.to
        return entry


def admit(core: Core, entries: list[Entry], at: Places, txn: Txn | None) -> None:
    """Refuse what does not fit, before anything is done; else hold it from now on."""
    if at is not None and (core.books is None or not core.books.keeps_books):
        raise BadArgument("at", "left out: only a space whose order keeps places has them", at)
    if core.room is not None:
        taken = [entry for above in txn.line() for entry in above.taken] if txn else ()
        core.room.require(entries, core.store, taken)
    if core.books is not None:
        for i, entry in enumerate(entries):
            try:
                core.books.admit(entry, None if at is None else at[i])
            except BaseException:
                for admitted in entries[:i]:
                    core.books.forget(admitted)
                raise
    if core.room is not None:
        core.room.add(entries)


class Writer:
    """A parked write. It is answered once: with the entries written or an error."""

    __slots__ = (
        "actor",
        "at",
        "done",
        "entries",
        "error",
        "items",
        "lease",
        "mark",
        "position",
        "signal",
        "txn",
    )

    def __init__(
        self,
        items: Items,
        lease: Asked,
        txn: Txn | None,
        at: Places,
        signal: Signal,
        refusal: Refused,
        mark: WriteOutcome | None,
        actor: Actor,
    ) -> None:
        self.actor = actor
        self.items = items
        self.lease = lease
        self.txn = txn
        self.at = at
        self.signal = signal
        self.mark = mark
        self.error: Exception = refusal  # the last one, until it is answered
        self.done = False
        self.entries: list[Entry] | None = None
        self.position = 0

    def wake(self) -> bool:
        return self.signal.wake()


class Writers:
    """Everyone who waits to write at one space, in the order in which they came."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: dict[Writer, None] = {}
        self._serving = False
        self.may_go = False  # Something has left, or locks have changed.

    @property
    def ready(self) -> bool:
        """Is there anyone to be tried again?"""
        return self.may_go and bool(self._waiting) and not self._serving

    def __iter__(self) -> Iterator[Writer]:
        return iter(list(self._waiting))

    def park(
        self,
        items: Items,
        lease: Asked,
        txn: Txn | None,
        at: Places,
        signal: Signal,
        refusal: Refused,
        mark: WriteOutcome | None = None,
    ) -> Writer:
        writer = Writer(items, lease, txn, at, signal, refusal, mark, self._core.log.actor)
        self._waiting[writer] = None
        self._core.watched += 1
        return writer

    def unpark(self, writer: Writer) -> None:
        if self._waiting.pop(writer, True) is None:
            self._core.watched -= 1

    def serve(self) -> None:
        """Something has left: who can write now does."""
        self._serving = True  # What leaves while one of them writes is heeded after that.
        try:
            self.may_go = False
            for writer in self:
                if not writer.done:
                    self._try(writer)
        finally:
            self._serving = False

    def _try(self, writer: Writer) -> None:
        core = self._core
        before = core.log.position
        try:
            with core.log.by(writer.actor):
                written = core.write_all(
                    writer.items, writer.lease, writer.txn, writer.at, writer.mark
                )
        except Refused as error:
            writer.error = error
            if error.hopeless:
                self._answer(writer)
        except Exception as error:  # whatever it is, it is the writer's and not this step's
            self.fail(writer, error)
        else:
            if not writer.done:
                writer.entries = written
                writer.position = core.log.position if core.log.position != before else 0
                self._answer(writer)

    def _answer(self, writer: Writer) -> None:
        self.unpark(writer)
        writer.done = True
        self._core.woken.append(writer)

    def fail(self, writer: Writer, error: Exception) -> None:
        if not writer.done:
            writer.error = error
            self._answer(writer)

    def end_within(self, txn: Txn) -> None:
        for writer in self:
            if writer.txn is txn:
                self.fail(writer, txn.refusal())

    def close(self, error: Exception) -> None:
        for writer in self:
            self.fail(writer, error)
