"""The engine: the core under a lock, with its journal, its clock and the callers that it wakes.

Both APIs use it. An operation acquires the lock, calls the core, and settles: changes go to the
journal, waiters are woken. Waiting for the disk happens outside the lock, so that many callers
share one commit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal
from uuid import uuid4

from tupelo.errors import (
    BadArgument,
    BadInput,
    DamagedFile,
    JournalFailed,
    LogTrimmed,
    SpaceClosed,
    TupeloError,
)
from tupelo.space.capacity import Capacity
from tupelo.space.clock import Clock, system_clock
from tupelo.space.core import Core
from tupelo.space.order import Order
from tupelo.space.query import check_count, check_limit, check_position
from tupelo.space.transaction import Txn, hold, was_published
from tupelo.space.waiting import Waiter
from tupelo.store.checking import explained, salvage_in_place
from tupelo.store.journal import Journal, MemoryJournal
from tupelo.store.sqlite import Durability, LogKeep, SqliteJournal
from tupelo.store.tail import Tail, tail_in, tail_of
from tupelo.values.change import Change
from tupelo.values.checks import check_text, is_int
from tupelo.values.codec import BadBytes, decode_entry
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder
from tupelo.values.lease import LeasePolicy

logger = logging.getLogger(__name__)
CLOCK_TOLERANCE_SECONDS = 1.0
Damaged = Literal["refuse", "salvage"]


def random_id() -> str:
    return uuid4().hex


class Engine:
    def __init__(
        self,
        name: str | None,
        *,
        path: str | Path | None = None,
        durability: Durability | None = None,
        order: Order | None = None,
        capacity: Capacity | None = None,
        lease_policy: LeasePolicy | None = None,
        log_keep: LogKeep | None = None,
        log_reads: bool = False,
        reactions_max: int = 10_000,
        agent: str | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] = random_id,
        damaged: Damaged = "refuse",
    ) -> None:
        durability = _check_options(name, path, durability, order, capacity, log_keep)
        _check_more_options(lease_policy, reactions_max, agent, clock, damaged)
        self.clock: Clock = clock or system_clock
        self.lock = threading.RLock()
        self.saved: SqliteJournal | None = None
        self.journal: Journal | None = None
        if path is not None:
            if damaged == "salvage":
                _salvage(path)
            with _explaining(path):
                self.saved = SqliteJournal(
                    Path(path),
                    name or Path(path).stem,
                    agent or new_id(),
                    durability,
                    log_keep,
                    new_id,
                )
            self.journal = self.saved
            agent = self.saved.agent
        elif log_keep:
            self.journal = MemoryJournal(None if log_keep == "all" else log_keep)
        self.name = name or (self.saved.name if self.saved else "space")
        # Identifies the space to coordinators; agents and names need not be unique.
        self.id = self.saved.id if self.saved else new_id()
        self.new_id = new_id
        self.core = Core(
            agent or new_id(),
            self.clock.now,
            order=order,
            capacity=capacity,
            lease_policy=lease_policy,
            logging=self.journal is not None,
            encodes=self.saved is not None,
            log_reads=log_reads,
            reactions_max=reactions_max,
        )
        self.on_close: Callable[[], None] = lambda: None
        self._failure: JournalFailed | None = None
        self._alarm_at: float | None = None
        self._cancel_alarm: Callable[[], None] = lambda: None
        if self.saved is not None:
            with _explaining(self.saved.path):
                self._load(self.saved)

    # Opening and closing

    def _load(self, saved: SqliteJournal) -> None:
        try:
            if saved.name != self.name:
                raise BadArgument("name", f"{saved.name!r}, as it is in {saved.path}", self.name)
            _load(
                self.core,
                (
                    Entry(
                        fields,
                        shape,
                        one.origin,
                        one.n,
                        one.arrival,
                        one.expires,
                        to=one.to,
                        deliveries=one.deliveries,
                        visible=one.visible,
                        delayed=one.delayed,
                    )
                    for one in saved.entries()
                    for shape, fields in (decode_entry(one.payload),)
                ),
                saved.n,
                saved.durable,
            )
            for txn_id, promise in saved.promises():
                marks = promise.marks or [(saved.agent, None)] * len(promise.written)
                visible = promise.visible or [None] * len(promise.written)
                written = [
                    Entry(fields, shape, origin, n, 0, expires, to=to, visible=when)
                    for (n, expires, p), (origin, to), when in zip(
                        promise.written, marks, visible, strict=True
                    )
                    for shape, fields in (decode_entry(p),)
                ]
                self.core.arrivals = max(self.core.arrivals, saved.n)
                _restore_prepared(
                    self.core, txn_id, written, promise.taken, promise.read, promise.holder
                )
        except (BadBytes, KeyError) as error:
            saved.stop()
            raise DamagedFile(
                f"{saved.path} is damaged ({error}); it was left as it was"
            ) from error
        except BaseException:
            saved.stop()
            raise
        try:
            saved.start()
        except BaseException:
            saved.stop()
            raise
        with self.lock:
            self.core.disk_low = saved.room.is_low
            self._compare_clocks(saved.last_time)
            self.core.expire()
            self.settle()

    def _compare_clocks(self, last: float) -> None:
        """Warn if the clock was set back since the last change: leases then end later than
        intended, but are not changed."""
        back = last - self.clock.now()
        leased = len(self.core.deadlines.heap)
        if back > CLOCK_TOLERANCE_SECONDS and leased:
            logger.warning(
                "%r: the clock is %.0f seconds behind the last change; %d leases end so much later",
                self.name,
                back,
                leased,
            )

    def close(self) -> None:
        with self.lock:
            self.refuse_inside()
            if self.core.closed:
                return
            self.core.expire()
            self.core.closed = True  # No notices for entries that are returned now.
            self.on_close()
            self.core.close(SpaceClosed("the space was closed"))
            self.settle()
            self._cancel_alarm()
        if self.journal is not None:
            self.journal.close()

    def fail(self, error: JournalFailed) -> None:
        """The disk refused a commit, so memory is ahead of it: close the space."""
        with self.lock:
            if not self.core.closed:
                logger.error("the space %r is closed: %s", self.name, error)
                self._failure = error
                self.core.close(error)
                self.wake()
                self._cancel_alarm()
                self.core.reconsider()
                assert self.journal is not None
                with suppress(JournalFailed):
                    self.journal.close()

    def crash(self) -> None:
        """Drop the space as a killed process does: the file stays as the last commit left it."""
        with self.lock:
            self.core.close(SpaceClosed("its process is gone"))
            self._cancel_alarm()
            if self.saved is not None:
                self.saved.crash()

    def begin(self) -> None:
        """Begin a step, under the lock. Raises an error inside another step or if the space is
        closed."""
        self.refuse_inside()
        if self.core.closed:
            raise self._failure or SpaceClosed(f"the space {self.name!r} is closed")
        self.core.plain = False  # until the step is settled

    def refuse_inside(self) -> None:
        """Raise an error if a function that runs inside a step tries to begin another."""
        if self.core.running:
            raise BadInput(
                f"{self.core.running}'s function runs inside the step and may not use the space "
                "itself" + (": use its second argument" if "reaction" in self.core.running else "")
            )

    # Steps

    def settle(self) -> int:
        """End a step, under the lock: log the changes, wake the answered callers, set the alarm.

        Returns the position that must be durable before the caller may see the result.
        """
        core = self.core
        core.serve()
        if core.woken:
            self.wake()
        self.keep_changes()
        if core.watched and core.deadlines.heap:
            self._set_alarm()
        core.reconsider()
        return core.log.position

    def keep_changes(self) -> None:
        """Pass the changes to the journal, in order."""
        log = self.core.log
        if log.changes:
            assert self.journal is not None
            if self.saved is not None:
                self.saved.n = self.core.arrivals
            self.journal.append(log.changes)
            log.changes = []

    def wake(self) -> None:
        """Wake the answered callers; entries for lost callers are returned, perhaps to other
        waiters."""
        core = self.core
        while core.woken:
            lost = [signal for signal in core.woken if not signal.wake()]
            core.woken.clear()
            for signal in lost:
                if isinstance(signal, Waiter):
                    core.waiting.refused(signal)
            if lost:
                core.serve()

    def _set_alarm(self) -> None:
        """If callers wait, leases must end on time and not at the next operation."""
        when = self.core.deadlines.next()
        if when is not None and (self._alarm_at is None or when < self._alarm_at):
            self._cancel_alarm()
            self._alarm_at = when
            self._cancel_alarm = self.clock.call_at(when, self._on_alarm)

    def _on_alarm(self) -> None:
        with self.lock:
            self._alarm_at = None
            if not self.core.closed:
                self.core.expire()
                self.settle()

    def flush(self, position: int) -> None:
        """Block until the changes up to this position are as durable as the space promises."""
        if self.journal is not None:
            try:
                self.journal.flush(position)
            except JournalFailed as error:
                self.fail(error)
                raise
            finally:
                if self.saved is not None and self.saved.room.is_low != self.core.disk_low:
                    self._heed_disk()

    def _heed_disk(self) -> None:
        assert self.saved is not None
        with self.lock:
            self.core.disk_low = self.saved.room.is_low
            self.core.reconsider()

    def require_room(self, taking: bool = False, size: int = 0) -> None:
        """Before a change, under the lock: raise DiskFull if the disk has no room, or JournalFailed
        if it refuses what had no room before."""
        if self.saved is not None and (self.core.disk_low or size):
            try:
                self.saved.require_room(taking, size)
            except JournalFailed as error:
                self.fail(error)
                raise
            finally:
                self.core.disk_low = self.saved.room.is_low

    @property
    def health(self) -> str:
        """ "ok", or the problem: the disk is full, or the space is closed."""
        with self.lock:
            try:
                if self.core.closed:
                    raise self._failure or SpaceClosed("closed")
                self.require_room()
            except TupeloError as error:
                return str(error)
            finally:
                self.core.reconsider()
        return "ok"

    def is_durable(self, position: int) -> bool:
        """Whether the changes up to this position are durable."""
        journal = self.journal
        return journal is None or not journal.waits or journal.durable >= position

    def position_for(self, entries: list[Entry]) -> int:
        """The position that must be durable before a reader may see these entries, or 0: entries
        that were read must not vanish in a crash."""
        if self.journal is None:
            return 0
        written = max((e.arrival for e in entries if was_published(e)), default=0)
        return 0 if written <= self.journal.durable else written

    # The log

    def changes(self, since: int, limit: int | None) -> list[Change]:
        check_position("since", since)
        check_limit(limit)
        return self._log().read(since, limit)

    def log_columns(self, names: Sequence[str], first: int, last: int) -> Tail:
        """The first and last position of the log, and the given columns of a part of it."""
        journal = self._log()
        if isinstance(journal, MemoryJournal):
            return tail_of(journal, names, first, last)
        assert self.saved is not None
        journal.read(self.saved.durable, 0)  # writes pending changes first
        return tail_in(self.saved.path, names, first, last)

    def trim(self, before: int) -> None:
        check_position("before", before)
        self._log().trim(before)

    def compact(self) -> None:
        self._log().compact()

    def _log(self) -> Journal:
        """The journal, with all changes up to now."""
        with self.lock:
            self.begin()
            self.core.expire()
            self.settle()
        if self.journal is None:
            raise LogTrimmed("this space keeps no log; give it log_keep= when you make it", 1)
        return self.journal


def _salvage(path: str | Path) -> None:
    """If the file is damaged, replace it by its undamaged part, and log the losses."""
    examination = salvage_in_place(path)
    for damage in examination.found if examination else ():
        logger.warning("%s was damaged, and what is good of it was saved: %s", path, damage)


@contextmanager
def _explaining(path: str | Path) -> Iterator[None]:
    """If the file is damaged, raise DamagedFile with all damages."""
    try:
        yield
    except DamagedFile as error:
        raise explained(path, error) from error


def _check_options(
    name: object,
    path: object,
    durability: Durability | None,
    order: object,
    capacity: object,
    log_keep: object,
) -> Durability:
    if name is not None:
        check_text("name", name)
    if path is not None and (not isinstance(path, (str, Path)) or not str(path)):
        raise BadArgument("path", "a file name", path)
    if path is not None and "\0" in str(path):
        raise BadArgument("path", "a file name", path)
    if durability not in (None, "full", "process", "none"):
        raise BadArgument("durability", '"full", "process" or "none"', durability)
    if path is None and durability in ("full", "process"):
        raise BadArgument("path", f'given, for durability="{durability}"', path)
    if order is not None and not isinstance(order, Order):
        raise BadArgument("order", "an order such as Fifo() or Lifo()", order)
    if capacity is not None and not isinstance(capacity, Capacity):
        raise BadArgument("capacity", "a Capacity(...)", capacity)
    if log_keep not in (None, "all") and (not is_int(log_keep) or log_keep < 0):
        raise BadArgument("log_keep", 'a number of changes, or "all"', log_keep)
    return durability or ("none" if path is None else "full")


def _check_more_options(
    lease_policy: object, reactions_max: object, agent: object, clock: object, damaged: object
) -> None:
    if damaged not in ("refuse", "salvage"):
        raise BadArgument("damaged", '"refuse" or "salvage"', damaged)
    if lease_policy is not None and not callable(lease_policy):
        raise BadArgument("lease_policy", "a function such as longest(60)", lease_policy)
    check_count(reactions_max, "reactions_max")
    if agent is not None:
        check_text("agent", agent)
    if clock is not None and not all(hasattr(clock, m) for m in ("now", "acquire", "call_at")):
        raise BadArgument("clock", "a clock such as ManualClock()", clock)


def _load(core: Core, entries: Iterable[Entry], arrivals: int, position: int) -> None:
    """Add the entries of a journal, in order of arrival."""
    add, deadlines = core.store.add, core.deadlines
    for entry in entries:
        if entry.visible is not None:
            core.store.know(entry.shape)
            core.keep_delayed(entry)
        else:
            add(entry)
            core.directed.add(entry)
            if entry.delayed is not None:
                core.delayed[entry.delayed] = entry
        if entry.expires is not None:
            deadlines.add(entry)
        _admit(core, entry)
    core.arrivals = arrivals
    core.log.position = position


def _restore_prepared(
    core: Core,
    txn_id: str,
    written: list[Entry],
    taken: list[int],
    read: list[int],
    holder: Holder | None,
) -> None:
    """Restore a prepared transaction with its locks."""
    txn = Txn(txn_id)
    txn.state = "prepared"
    txn.holder = holder
    core.transactions[txn] = None
    held = {*taken, *read}
    found = {entry.arrival: entry for entry in core.store if entry.arrival in held}
    for arrival in read:
        if arrival in found:
            hold(core, txn, found[arrival])
    for arrival in taken:
        core.acquire(found[arrival], True, txn, None)
    for entry in written:
        entry.arrival = core.next_arrival()
        entry.txn = txn
        core.store.know(entry.shape)
        if entry.visible is not None:
            entry.gone = True
            txn.delayed[entry] = None
        else:
            txn.store.add(entry)
        core.deadlines.add(entry)
        _admit(core, entry)


def _admit(core: Core, entry: Entry) -> None:
    if core.books is not None:
        core.books.readmit(entry)
        if entry.visible is not None:
            core.books.taken(entry)
    if core.room is not None:
        core.room.add([entry])
