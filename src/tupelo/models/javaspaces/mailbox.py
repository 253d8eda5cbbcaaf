"""The event mailbox: it keeps events for a listener that is away (Jini's Mercury).

| Jini                                  | Tupelo                                                 |
| ------------------------------------- | ------------------------------------------------------ |
| EventMailbox, PullEventMailbox        | a space whose entries are registrations and events     |
| MailboxRegistration.getListener       | listener: give it to whoever sends the events          |
| enableDelivery, disableDelivery       | events are brought to a target, in order, or kept      |
| getRemoteEvents, RemoteEventIterator  | take, oldest first: what is handed out is gone         |

In a durable space registrations and events outlive the program. An event is brought within a
transaction that commits when the target has had it, so after a crash it may come twice, but it
is never lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tupelo.errors import BadArgument, LeaseLost, SpaceClosed, TransactionEnded, UnknownEvent
from tupelo.models.javaspaces.courier import Courier, target_of
from tupelo.models.javaspaces.events import RemoteEvent, Retry
from tupelo.models.javaspaces.leases import FOREVER, Lease, any_lease_of, seconds_asked
from tupelo.models.javaspaces.tenancy import Tenancy
from tupelo.space.blocking import Space, Transaction
from tupelo.space.checks import check_count, check_wait
from tupelo.space.clock import Clock
from tupelo.space.handles import Closing
from tupelo.space.order import Fifo
from tupelo.values import lease as engine
from tupelo.values.entry import Entry
from tupelo.values.kind import entry


@entry("tupelo.javaspaces.Mailbox")
@dataclass
class MailboxEntry:
    """A registration, as it stands in the mailbox's space; its lease is the registration's."""

    id: str | None = None


@entry("tupelo.javaspaces.KeptEvent")
@dataclass
class KeptEvent:
    """An event that waits in the mailbox's space."""

    mailbox: str | None = None
    event: Any = None


class EventMailbox(Closing):
    """Keeps events, in a space that is given (durable, perhaps) or in one of its own in memory.

    Others who use a given space see registrations and events as entries there, as they see
    everything in it: a template that matches anything takes them too.

    It is for both doors: its calls answer at once, and wait for nothing but the disk of a durable
    space; only an iterator that was told to wait does so, and blocks its thread.

    Each registration keeps `backlog_max` events. When there are more, the oldest is dropped, and
    counted in `dropped`; the sequence numbers of the others show where it was.
    """

    def __init__(
        self,
        space: Space | None = None,
        *,
        clock: Clock | None = None,
        retry: Retry | None = None,
        backlog_max: int = 10_000,
    ) -> None:
        if space is not None and not isinstance(space, Space):
            raise BadArgument(
                "space", "a tupelo.Space (an aio.Space can stand on the same one)", space
            )
        if space is not None and clock is not None:
            raise BadArgument("clock", "left out, as space= has one", clock)
        if retry is not None and not isinstance(retry, Retry):
            raise BadArgument("retry", "a Retry(...)", retry)
        self._backlog_max = check_count(backlog_max, "backlog_max")
        self._owns = space is None
        self.space = Space("mailbox", clock=clock) if space is None else space
        self._operations = self.space._operations
        self._retry = retry or Retry()
        # Only a space with an order of its own has to be told that events go first in, first out.
        self._order = None if self._operations.core.order is None else Fifo()
        self._lock = threading.RLock()
        self._tenancy = Tenancy(self.space, self._lock, MailboxRegistration._end)
        self._registrations: dict[str, MailboxRegistration] = {}
        self._closed = False
        self._take_stock()

    def register(self, lease: float = FOREVER) -> MailboxRegistration:
        """A new registration, which keeps the events that its `listener` is told of."""
        seconds = seconds_asked(lease, any_lease_of(self._tenancy))
        with self._lock:
            self._require_open()
            name = uuid4().hex
            return self._know(name, self.space.write(MailboxEntry(name), lease=seconds))

    def registration(self, registration_id: str) -> MailboxRegistration:
        """Find a registration by its id, also after a restart. LeaseLost if it is gone."""
        if not isinstance(registration_id, str) or not registration_id:
            raise BadArgument("registration_id", "the id of a registration", registration_id)
        with self._lock:
            self._require_open()
            known = self._registrations.get(registration_id)
            if known is not None and known.active:
                return known
            found = self._entries(MailboxEntry(registration_id))
            if not found:
                raise LeaseLost(f"the mailbox registration {registration_id!r} is gone")
            return self._know(registration_id, engine.Lease(self._operations, found[0]))

    def registrations(self) -> list[MailboxRegistration]:
        """All registrations whose leases last, oldest first."""
        with self._lock:
            self._require_open()
            records = self._entries(MailboxEntry())
            return [self.registration(record.fields[0]) for record in records]

    def close(self) -> None:
        """Stop bringing events. What is kept in a given space stays there."""
        with self._lock:
            self._closed = True
            registrations = list(self._registrations.values())
            self._registrations.clear()
        for registration in registrations:
            self._tenancy.evict(registration._tenant)
            registration._stop(None)
        if self._owns:
            self.space.close()

    def _know(self, registration_id: str, granted: engine.Lease) -> MailboxRegistration:
        registration = MailboxRegistration(self, registration_id, granted)
        self._registrations[registration_id] = registration
        return registration

    def _take_stock(self) -> None:
        """Know the registrations that are there, and remove the events of those that are not."""
        for record in self._entries(MailboxEntry()):
            self._know(record.fields[0], engine.Lease(self._operations, record))
        kept = self._entries(KeptEvent())
        self._remove([event for event in kept if event.fields[0] not in self._registrations])

    def _entries(self, template: object) -> list[Entry]:
        """The entries themselves: a read would refuse events of classes not known here yet."""
        store = self._operations.core.store
        with self._operations.engine.lock:
            self._operations.expire()
            return list(store.matches(store.question(template)))

    def _remove(self, entries: list[Entry]) -> int:
        """Remove entries in one step; the answer is how many were still there."""
        if not entries:
            return 0
        outcomes = self._operations.cancel_leases(entries)
        return sum(outcome is None for outcome in outcomes)

    def _require_open(self) -> None:
        if self._closed:
            raise SpaceClosed("the event mailbox is closed")


class MailboxRegistration:
    """Events are kept for you until you fetch them, or have them brought to a target.

    When its lease ends, the registration ends, and with it the events that it keeps.
    """

    def __init__(self, mailbox: EventMailbox, registration_id: str, granted: engine.Lease) -> None:
        self.id = registration_id
        self.dropped = 0
        self._mailbox = mailbox
        self._space = mailbox.space
        self._template = KeptEvent(registration_id)
        self._lock = threading.RLock()
        self._count = self._space.count(self._template)
        self._courier: Courier | None = None
        self._error: Exception | None = None
        self._turn = 0  # Who fetches events now: iterators of earlier turns are over.
        self._fetching: set[Transaction] = set()
        self._gone = False
        self._tenant = mailbox._tenancy.admit(self, granted)

    @property
    def lease(self) -> Lease:
        return self._mailbox._tenancy.lease(self._tenant)

    @property
    def active(self) -> bool:
        """Does its lease last?"""
        return not self._tenant.ended

    @property
    def pending(self) -> int:
        """How many events are kept at this moment, without one that is on its way to a target."""
        return self._space.count(self._template)

    @property
    def delivering(self) -> bool:
        """Are events brought to a target?"""
        return self._courier is not None

    @property
    def error(self) -> Exception | None:
        """Why the last delivery was disabled, if its target had failed too often."""
        return self._error

    @property
    def listener(self) -> Callable[[RemoteEvent], None]:
        """What to register with the source of the events; it keeps those that it is told of."""
        return self._keep

    def enable_delivery(self, target: object) -> None:
        """Bring events to a target, a function of an event or an object with `notify`, in order,
        those first that are kept.

        A target that fails is tried again; if it fails too often, or raises UnknownEvent,
        delivery is disabled, `error` says why, and the events are kept. Iterators are over.
        """
        tell = target_of("target", target)
        with self._lock:
            self._require_active()
            self._change_turn()
            bag = _Bag(self)
            clock = self._space._operations.engine.clock

            def give_up(error: Exception) -> None:
                with self._lock:
                    if self._courier is courier:
                        self._courier, self._error = None, error

            courier = Courier(bag, tell, clock, self._mailbox._retry, give_up)
            self._courier, self._error = courier, None
        courier.go()

    def disable_delivery(self) -> None:
        """Keep events from now on. One that is on its way is kept if the target fails."""
        with self._lock:
            self._require_active()
            self._stop_courier()

    def get_remote_events(self, wait: float | None = 0) -> Iterator[RemoteEvent]:
        """Hand out the events that are kept, oldest first; each is removed when it is handed out.

        It waits up to `wait` seconds for each event (None: for ever), and ends when none came, or
        with the registration. Delivery is disabled, and iterators of before are over.
        """
        check_wait(wait)
        with self._lock:
            self._require_active()
            self._change_turn()
            turn = self._turn
        return self._events(turn, wait)

    def _events(self, turn: int, wait: float | None) -> Iterator[RemoteEvent]:
        while (kept := self._take(turn, wait)) is not None:
            yield kept.event

    def _take(self, turn: int, wait: float | None) -> KeptEvent | None:
        order = self._mailbox._order
        with self._lock:
            if turn != self._turn or not self.active:
                return None
            kept: KeptEvent | None = self._space.take(self._template, wait=0, order=order)
            if kept is not None or wait == 0:
                self._count -= kept is not None
                return kept
            # Within a transaction, because that can be aborted when there is no more to wait for.
            txn = self._space.transaction()
            self._fetching.add(txn)
        try:
            kept = self._space.take(self._template, wait=wait, txn=txn, order=order)
            txn.commit()
        except TransactionEnded:
            return None
        except BaseException:
            with suppress(SpaceClosed):
                txn.abort()
            raise
        finally:
            with self._lock:
                self._fetching.discard(txn)
        with self._lock:
            self._count -= kept is not None
        return kept

    def _keep(self, event: RemoteEvent) -> None:
        if not isinstance(event, RemoteEvent):
            raise BadArgument("event", "a RemoteEvent", event)
        with self._lock:
            if not self.active:
                raise UnknownEvent(f"the mailbox registration {self.id} is gone")
            self._space.write(KeptEvent(self.id, event))
            self._count += 1
            if self._count > self._mailbox._backlog_max:
                self._drop_oldest()
            courier = self._courier
        if courier is not None:
            courier.go()

    def _drop_oldest(self) -> None:
        # We count what we see come and go; before something is lost, look what there is.
        kept = self._mailbox._entries(self._template)
        excess = max(0, len(kept) - self._mailbox._backlog_max)
        dropped = self._mailbox._remove(kept[:excess])
        self.dropped += dropped
        self._count = len(kept) - dropped

    # Endings

    def _change_turn(self) -> None:
        """Whoever fetched events until now does so no more."""
        self._turn += 1
        self._stop_courier()
        fetching, self._fetching = self._fetching, set()
        for txn in fetching:
            with suppress(TransactionEnded, SpaceClosed):
                txn.abort()

    def _stop_courier(self) -> None:
        if self._courier is not None:
            self._courier.stop()
            self._courier = None

    def _stop(self, error: Exception | None) -> None:
        with self._lock:
            self._change_turn()
            self._error = error

    def _end(self) -> None:
        """Its lease has ended: nothing of it stays."""
        self._gone = True
        with self._mailbox._lock:
            if self._mailbox._registrations.get(self.id) is self:
                del self._mailbox._registrations[self.id]
        self._stop(LeaseLost("the mailbox registration is gone"))
        with self._lock, suppress(SpaceClosed):
            entries = self._mailbox._entries
            self._mailbox._remove(entries(MailboxEntry(self.id)) + entries(self._template))

    def _require_active(self) -> None:
        self._mailbox._require_open()
        if not self.active:
            raise LeaseLost(f"the mailbox registration {self.id} is gone")

    def __repr__(self) -> str:
        return f"MailboxRegistration({self.id!r})"


class _Bag:
    """The events of a registration, for a courier: one is out at a time, in a transaction."""

    def __init__(self, registration: MailboxRegistration) -> None:
        self._registration = registration
        self._txn: Transaction | None = None

    def fetch(self) -> RemoteEvent | None:
        registration = self._registration
        space = registration._space
        txn = space.transaction()
        try:
            kept: KeptEvent | None = space.take(
                registration._template, wait=0, txn=txn, order=registration._mailbox._order
            )
        except BaseException:
            with suppress(SpaceClosed):
                txn.abort()
            raise
        if kept is None:
            txn.abort()
            return None
        self._txn = txn
        event: RemoteEvent = kept.event
        return event

    def delivered(self) -> None:
        assert self._txn is not None
        self._txn.commit()
        with self._registration._lock:
            self._registration._count -= 1

    def returned(self) -> None:
        assert self._txn is not None
        registration = self._registration
        with suppress(SpaceClosed):
            self._txn.abort()
            if registration._gone:  # It ended meanwhile, and could not see this one.
                registration._end()
