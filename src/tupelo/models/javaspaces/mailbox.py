"""The event mailbox: it keeps events for a listener that is away (Jini's Mercury).

| Jini                                  | Tupelo                                                 |
| ------------------------------------- | ------------------------------------------------------ |
| EventMailbox, PullEventMailbox        | a space whose entries are registrations and events     |
| MailboxRegistration.getListener       | listener: give it to whoever sends the events          |
| enableDelivery, disableDelivery       | events are brought to a target, in order, or kept      |
| getRemoteEvents, RemoteEventIterator  | take, oldest first: what is handed out is gone         |
| addUnknownEvents                      | the sources of such events are told UnknownEvent       |

In a durable space registrations and events outlive the program. An event is brought within a
transaction that commits when the target has had it. After a crash it may come twice; it is never
lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from tupelo.errors import (
    BadArgument,
    InvalidIterator,
    LeaseLost,
    SpaceClosed,
    TransactionEnded,
    UnknownEvent,
)
from tupelo.models.javaspaces.event_sender import EventSender, target_of
from tupelo.models.javaspaces.events import (
    Notifier,
    RemoteEvent,
    RemoteEventIterator,
    Retry,
    check_retry,
)
from tupelo.models.javaspaces.leases import FOREVER, seconds_asked
from tupelo.models.javaspaces.tenancy import Tenancy, Tenant
from tupelo.space.blocking import ClosingHandle, Space, Transaction
from tupelo.space.clock import Clock
from tupelo.space.dual_api import maybe_await, run_sync
from tupelo.space.order import Fifo
from tupelo.space.port import port_of
from tupelo.space.query import Query, check_count, check_wait
from tupelo.values import lease as engine
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import Entry, freeze, thaw
from tupelo.values.kind import entry


@entry("tupelo.javaspaces.Mailbox")
@dataclass
class MailboxEntry:
    """A registration, as it stands in the mailbox's space; its lease is the registration's."""

    id: str | None = None


@entry("tupelo.javaspaces.KeptEvent")
@dataclass
class KeptEvent:
    """An event that waits in the mailbox's space, in bytes: its classes need not be known here."""

    mailbox: str | None = None
    encoded: bytes | None = None

    def built(self) -> RemoteEvent:
        """The event. UnknownType if it has no class here."""
        event: RemoteEvent = thaw(*decode_entry(self.encoded or b""))
        return event


@entry("tupelo.javaspaces.UnwantedEvent")
@dataclass
class UnwantedEvent:
    """Events of this source and id are unknown to a registration."""

    mailbox: str | None = None
    source: str | None = None
    event_id: int | None = None


class EventMailbox(ClosingHandle):
    """Keeps events, in a space that is given (durable, perhaps) or in one of its own in memory.

    Others who use a given space see registrations, and events in bytes, as entries there, as they
    see everything in it: a template that matches anything takes them too.

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
        self._backlog_max = check_count(backlog_max, "backlog_max")
        self._owns = space is None
        self.space = Space("mailbox", clock=clock) if space is None else space
        self._port = port_of(self.space)
        self._retry = check_retry(retry)
        # Only a space with an order of its own has to be told that events go first in, first out.
        self._order = Fifo() if self._port.is_ordered else None
        self._lock = threading.RLock()
        self._tenancy = Tenancy(self.space, self._lock)
        self._registrations: dict[str, MailboxRegistration] = {}
        self._closed = False
        self._take_stock()

    @property
    def clock(self) -> Clock:
        """The clock that ends its leases."""
        return self._port.clock

    def register(self, lease: float = FOREVER) -> MailboxRegistration:
        """A new registration, which keeps the events that its `listener` is told of."""
        seconds = seconds_asked(lease)
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
            return self._know(registration_id, engine.Lease(self._port, found[0]))

    def registrations(self) -> list[MailboxRegistration]:
        """All registrations whose leases last, oldest first."""
        with self._lock:
            self._require_open()
            found = []
            for record in self._entries(MailboxEntry()):
                with suppress(LeaseLost):  # It has ended since.
                    found.append(self.registration(record.fields[0]))
            return found

    def close(self) -> None:
        """Stop bringing events. What is kept in a given space stays there."""
        with self._lock:
            self._closed = True
            registrations = list(self._registrations.values())
            self._registrations.clear()
        for registration in registrations:
            self._tenancy.evict(registration)
            registration._end_turn("the mailbox was closed")
        if self._owns:
            self.space.close()

    def _know(self, registration_id: str, granted: engine.Lease) -> MailboxRegistration:
        registration = MailboxRegistration(self, registration_id, granted)
        self._registrations[registration_id] = registration
        return registration

    def _take_stock(self) -> None:
        """Know the registrations that are there, and remove the events of those that are not."""
        for record in self._entries(MailboxEntry()):
            self._know(record.fields[0], engine.Lease(self._port, record))
        kept = self._entries(KeptEvent()) + self._entries(UnwantedEvent())
        self._remove([event for event in kept if event.fields[0] not in self._registrations])

    def _entries(self, template: object) -> list[Entry]:
        """The entries themselves, oldest first."""
        return self._port.find(Query(template, many=True, limit=None, order=Fifo()))

    def _remove(self, entries: list[Entry]) -> int:
        """Remove entries in one step; the answer is how many were still there."""
        if not entries:
            return 0
        outcomes = self._port.cancel_leases(entries)
        return sum(outcome is None for outcome in outcomes)

    def _require_open(self) -> None:
        if self._closed:
            raise SpaceClosed("the event mailbox is closed")


class MailboxRegistration(Tenant):
    """Events are kept for you until you fetch them, or have them brought to a target.

    When its lease ends, the registration ends, and with it the events that it keeps.
    """

    def __init__(self, mailbox: EventMailbox, registration_id: str, granted: engine.Lease) -> None:
        self.id = registration_id
        self.dropped = 0
        self.sent = 0
        """How many events were sent to a program elsewhere."""
        self.space = mailbox.space
        self.error: Exception | None = None
        """Why the last delivery was disabled, if its target had failed too often."""
        self._mailbox = mailbox
        self._template = KeptEvent(registration_id)
        self._lock = threading.RLock()
        self._count = self.space.count(self._template)
        self._courier: EventSender | None = None
        self._turn: IteratorTurn | None = None
        self._unwanted = {
            (record.fields[1], record.fields[2])
            for record in mailbox._entries(UnwantedEvent(registration_id))
        }
        self._gone = False
        super().__init__(mailbox._tenancy, granted)

    @property
    def pending(self) -> int:
        """How many events are kept at this moment, without one that is on its way to a target."""
        return self.space.count(self._template)

    @property
    def delivering(self) -> bool:
        """Are events brought to a target?"""
        return self._courier is not None

    @property
    def turn(self) -> IteratorTurn | None:
        """Whoever fetched events last."""
        return self._turn

    @property
    def listener(self) -> Callable[[RemoteEvent], None]:
        """What to register with the source of the events; it keeps those that it is told of."""
        return self._keep

    def enable_delivery(self, target: object) -> None:
        """Bring events to a target, a function of an event or an object with `notify`, in order,
        those first that are kept. None disables delivery.

        A target that fails is tried again; if it fails too often, delivery is disabled, `error`
        says why, and the events are kept. Events for which it raises UnknownEvent are brought no
        more, and their source is told so; a new target wants everything. Iterators are over.
        """
        if target is None:
            self.disable_delivery()
            return
        tell = target_of("target", target)
        owner = getattr(tell, "__self__", None)
        if isinstance(owner, MailboxRegistration) and owner.space is self.space:
            raise BadArgument("target", "a listener that is not of this mailbox itself", target)

        def give_up(error: Exception) -> None:
            with self._lock:
                if self._courier is courier:
                    self._courier, self.error = None, error

        with self._lock:
            turn = self.take_turn("events are delivered to a target now", is_target=True)
            self._unwanted.clear()
            self._mailbox._remove(self._mailbox._entries(UnwantedEvent(self.id)))
            retry, clock = self._mailbox._retry, self._mailbox.clock
            courier = EventSender(
                _MailboxStore(self, turn), Notifier(tell, retry, clock, False), give_up
            )
            self._courier, self.error = courier, None
        courier.go()

    def disable_delivery(self) -> None:
        """Keep events from now on. One that is on its way is kept if the target fails."""
        with self._lock:
            self._require_active()
            self._stop_courier()

    def get_remote_events(self, wait: float | None = 0) -> RemoteEventIterator:
        """Hand out the events that are kept, oldest first; each is removed when it is handed out.

        A loop over the answer waits up to `wait` seconds for each event (None: for ever), and ends
        when none came. Delivery is disabled, and iterators of before are over.
        """
        check_wait(wait)
        turn = self.take_turn("another iterator has taken its place")

        async def fetch(timeout: float | None) -> RemoteEvent | None:
            if await turn.fetch(timeout, self.space) is None:
                return None
            event = turn.built()
            turn.confirm()
            return event

        async def close() -> None:
            turn.close()

        return RemoteEventIterator(fetch, close, wait)

    def add_unknown_events(self, events: object) -> None:
        """Want no more events of the sources and ids of these. Whoever brings one is told
        UnknownEvent; those that are kept stay."""
        self.refuse(sources_of(events))

    def refuse(self, unwanted: list[tuple[str, int]]) -> None:
        """`add_unknown_events`, by their sources and ids."""
        with self._lock:
            self._require_active()
            for what in unwanted:
                if what not in self._unwanted:
                    self.space.write(UnwantedEvent(self.id, *what))
                    self._unwanted.add(what)

    def take_turn(self, why: str, *, is_target: bool = False) -> IteratorTurn:
        """Be the one who fetches events, in the place of others, who are told why."""
        with self._lock:
            self._require_active()
            self._end_turn(why)
            self._turn = IteratorTurn(self, is_target)
            return self._turn

    def _keep(self, event: RemoteEvent) -> None:
        if not isinstance(event, RemoteEvent):
            raise BadArgument("event", "a RemoteEvent", event)
        self.keep_encoded((encode_entry(*freeze(event)), event.source, event.event_id))

    def keep_encoded(self, event: tuple[bytes, str, int]) -> None:
        """Keep an event: its bytes, source and id."""
        encoded, source, event_id = event
        with self._lock:
            if not self.active:
                raise UnknownEvent(f"the mailbox registration {self.id} is gone")
            if (source, event_id) in self._unwanted:
                raise UnknownEvent(f"the mailbox registration {self.id} wants no such events")
            self.space.write(KeptEvent(self.id, encoded))
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

    def _end_turn(self, why: str) -> None:
        """Whoever fetched events until now does so no more."""
        with self._lock:
            self._stop_courier()
            if self._turn is not None:
                self._turn.end(why)

    def _stop_courier(self) -> None:
        if self._courier is not None:
            self._courier.stop()
            self._courier = None

    def lease_ended(self) -> None:
        """Its lease has ended: nothing of it stays."""
        self._gone = True
        with self._mailbox._lock:
            if self._mailbox._registrations.get(self.id) is self:
                del self._mailbox._registrations[self.id]
        self._end_turn("the registration is gone")
        self.error = LeaseLost("the mailbox registration is gone")
        with self._lock, suppress(SpaceClosed):
            entries = self._mailbox._entries
            parts = (MailboxEntry(self.id), self._template, UnwantedEvent(self.id))
            self._mailbox._remove([found for part in parts for found in entries(part)])

    def _require_active(self) -> None:
        self._mailbox._require_open()
        if not self.active:
            raise LeaseLost(f"the mailbox registration {self.id} is gone")

    def __repr__(self) -> str:
        return f"MailboxRegistration({self.id!r})"


class IteratorTurn:
    """One who fetches the events of a registration: an iterator, a target, or a program elsewhere.
    There is one at a time. One event is out at a time, in a transaction, until it is confirmed or
    given back; that of a target stays out though another turn begins, until the target has had it.
    """

    def __init__(self, registration: MailboxRegistration, is_target: bool) -> None:
        self.id = uuid4().hex
        self.out: KeptEvent | None = None
        self.number = 0
        """Of the event that is out, if it was sent to a program elsewhere."""
        self._registration = registration
        self._is_target = is_target
        self._txn: Transaction | None = None
        self._why_over = ""

    async def fetch(
        self, wait: float | None, space: Any, lease: float | None = None
    ) -> KeptEvent | None:
        """The oldest event, to be confirmed or given back; `space` is the door to the mailbox's
        space to wait at. It comes back by itself when `lease` is over."""
        registration = self._registration
        with registration._lock:
            self._require()
            self._txn = txn = registration.space.transaction(lease=lease)
        order = registration._mailbox._order
        try:
            kept: KeptEvent | None = await maybe_await(
                space.take(registration._template, wait=wait, txn=txn, order=order)
            )
        except BaseException as error:
            self.give_back()
            if isinstance(error, TransactionEnded):
                self._require()
            raise
        self.out = kept
        if kept is None:
            self.give_back()
        return kept

    def built(self) -> RemoteEvent:
        """The event that is out. If it has no class here, it goes back."""
        assert self.out is not None
        try:
            return self.out.built()
        except BaseException:
            self.give_back()
            raise

    def confirm(self) -> None:
        """The event that is out has arrived, and is gone."""
        txn, self._txn, self.out = self._txn, None, None
        if txn is not None:
            with suppress(TransactionEnded, SpaceClosed):
                txn.commit()
                with self._registration._lock:
                    self._registration._count -= 1

    def give_back(self) -> None:
        """Nothing stays out."""
        txn, self._txn, self.out = self._txn, None, None
        if txn is not None:
            with suppress(TransactionEnded, SpaceClosed):
                txn.abort()
            if self._registration._gone:  # It ended meanwhile, and could not see this one.
                self._registration.lease_ended()

    def close(self) -> None:
        with self._registration._lock:
            self._require()
            self.end("it was closed")

    def end(self, why: str) -> None:
        self._why_over = self._why_over or why
        if not self._is_target:
            self.give_back()

    def _require(self) -> None:
        if not self._registration.active:
            raise InvalidIterator("the mailbox, or this registration of it, is gone")
        if self._why_over:
            raise InvalidIterator(self._why_over)


class _MailboxStore:
    """The events of a registration, for a courier."""

    def __init__(self, registration: MailboxRegistration, turn: IteratorTurn) -> None:
        self._registration = registration
        self._out: RemoteEvent | None = None
        self._turn = turn
        self.delivered = turn.confirm
        self.returned = turn.give_back

    def fetch(self) -> RemoteEvent | None:
        """The oldest event. Those that came before it was said that they are not wanted go."""
        registration = self._registration
        fetch = partial(self._turn.fetch, 0, registration.space)
        while run_sync(fetch) is not None:
            self._out = event = self._turn.built()
            if (event.source, event.event_id) not in registration._unwanted:
                return event
            self.delivered()
        return None

    def unwanted(self) -> bool:
        assert self._out is not None
        with suppress(LeaseLost, SpaceClosed):
            self._registration.refuse([(self._out.source, self._out.event_id)])
        self.delivered()
        return True


def sources_of(events: object) -> list[tuple[str, int]]:
    """The sources and ids of events; BadArgument if they are none."""
    listed: list[Any] = list(events) if isinstance(events, (list, tuple)) else [events]
    if not all(isinstance(event, RemoteEvent) for event in listed):
        raise BadArgument("events", "a list of RemoteEvents", events)
    return [(event.source, event.event_id) for event in listed]
