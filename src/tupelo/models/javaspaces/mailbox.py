"""The event mailbox keeps events for a listener that is disconnected (Jini's Mercury).

| Jini                                  | Tupelo                                                 |
| ------------------------------------- | ------------------------------------------------------ |
| EventMailbox, PullEventMailbox        | a space whose entries are registrations and events     |
| MailboxRegistration.getListener       | listener: register it with the source of the events    |
| enableDelivery, disableDelivery       | events are delivered to a target, in order, or kept    |
| getRemoteEvents, RemoteEventIterator  | take, oldest first: a returned event is removed        |
| addUnknownEvents                      | the sources of such events get UnknownEvent            |

In a durable space registrations and events outlive the program. An event is delivered within a
transaction that commits when the target has processed it. After a crash an event may arrive twice;
no event is lost.
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
from tupelo.models.javaspaces.events import (
    EventSender,
    Notifier,
    RemoteEvent,
    RemoteEventIterator,
    Retry,
    check_retry,
    target_of,
)
from tupelo.models.javaspaces.leases import FOREVER, Tenancy, Tenant, seconds_asked
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
    """A registration in the space of the mailbox; its lease is that of the registration."""

    id: str | None = None


@entry("tupelo.javaspaces.KeptEvent")
@dataclass
class KeptEvent:
    """An event in the space of the mailbox, encoded: its classes need not be known here."""

    mailbox: str | None = None
    encoded: bytes | None = None

    def built(self) -> RemoteEvent:
        """The event. UnknownType if its class is unknown here."""
        event: RemoteEvent = thaw(*decode_entry(self.encoded or b""))
        return event


@entry("tupelo.javaspaces.UnwantedEvent")
@dataclass
class UnwantedEvent:
    """A registration does not want events with this source and id."""

    mailbox: str | None = None
    source: str | None = None
    event_id: int | None = None


class EventMailbox(ClosingHandle):
    """Keeps events, in the given space (which may be durable) or in a new space in memory.

    In a given space, registrations and encoded events are entries like any others: a template that
    matches anything takes them too.

    Async programs call its methods without await: they wait for nothing but the disk of a durable
    space. Only an iterator with `wait` blocks its thread.

    Each registration keeps `backlog_max` events. When there are more, the oldest is dropped and
    counted in `dropped`; the sequence numbers show the gap.
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
        # Only a space with another order must be told to return the oldest event first.
        self._order = Fifo() if self._port.is_ordered else None
        self._lock = threading.RLock()
        self._tenancy = Tenancy(self.space, self._lock)
        self._registrations: dict[str, MailboxRegistration] = {}
        self._closed = False
        self._load()

    def __repr__(self) -> str:
        return f"<EventMailbox in {self.space!r}, {len(self._registrations)} registrations>"

    @property
    def clock(self) -> Clock:
        """The clock that ends its leases."""
        return self._port.clock

    def register(self, lease: float = FOREVER) -> MailboxRegistration:
        """A new registration. It keeps the events that its `listener` is called with."""
        seconds = seconds_asked(lease)
        with self._lock:
            self._require_open()
            name = uuid4().hex
            return self._know(name, self.space.write(MailboxEntry(name), lease=seconds))

    def registration(self, registration_id: str) -> MailboxRegistration:
        """The registration with this id, also after a restart. LeaseLost if it has ended."""
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
        """All active registrations, the oldest first."""
        with self._lock:
            self._require_open()
            found = []
            for record in self._entries(MailboxEntry()):
                with suppress(LeaseLost):  # It has ended since.
                    found.append(self.registration(record.fields[0]))
            return found

    def close(self) -> None:
        """Stop delivering events. Registrations and events in a given space stay there."""
        with self._lock:
            self._closed = True
            registrations = list(self._registrations.values())
            self._registrations.clear()
        for registration in registrations:
            self._tenancy.evict(registration)
            registration._end_reader("the mailbox was closed")
        if self._owns:
            self.space.close()

    def _know(self, registration_id: str, granted: engine.Lease) -> MailboxRegistration:
        registration = MailboxRegistration(self, registration_id, granted)
        self._registrations[registration_id] = registration
        return registration

    def _load(self) -> None:
        """Load the registrations of the space, and remove the events of registrations that have
        ended."""
        for record in self._entries(MailboxEntry()):
            self._know(record.fields[0], engine.Lease(self._port, record))
        kept = self._entries(KeptEvent()) + self._entries(UnwantedEvent())
        self._remove([event for event in kept if event.fields[0] not in self._registrations])

    def _entries(self, template: object) -> list[Entry]:
        """The matching entries, the oldest first."""
        return self._port.find(Query(template, many=True, limit=None, order=Fifo()))

    def _remove(self, entries: list[Entry]) -> int:
        """Remove entries in one step; returns how many were still there."""
        if not entries:
            return 0
        outcomes = self._port.cancel_leases(entries)
        return sum(outcome is None for outcome in outcomes)

    def _require_open(self) -> None:
        if self._closed:
            raise SpaceClosed("the event mailbox is closed")


class MailboxRegistration(Tenant):
    """A leased registration: it keeps events until they are fetched, or delivered to a target.

    When its lease ends, the registration and its events are removed.
    """

    def __init__(self, mailbox: EventMailbox, registration_id: str, granted: engine.Lease) -> None:
        self.id = registration_id
        self.dropped = 0
        self.sent = 0
        """The number of events that were sent to a program elsewhere."""
        self.space = mailbox.space
        self.error: Exception | None = None
        """The error with which the target failed too often, if that has disabled delivery."""
        self._mailbox = mailbox
        self._template = KeptEvent(registration_id)
        self._lock = threading.RLock()
        self._count = self.space.count(self._template)
        self._sender: EventSender | None = None
        self._reader: MailboxReader | None = None
        self._unwanted = {
            (record.fields[1], record.fields[2])
            for record in mailbox._entries(UnwantedEvent(registration_id))
        }
        self._gone = False
        super().__init__(mailbox._tenancy, granted, self._remove_events)

    @property
    def pending(self) -> int:
        """The number of kept events, without an event that is being delivered."""
        return self.space.count(self._template)

    @property
    def delivering(self) -> bool:
        """Whether events are delivered to a target."""
        return self._sender is not None

    @property
    def reader(self) -> MailboxReader | None:
        """The current reader of the events."""
        return self._reader

    @property
    def listener(self) -> Callable[[RemoteEvent], None]:
        """The listener to register with the source of the events."""
        return self._keep

    def enable_delivery(self, target: object) -> None:
        """Deliver events, the kept ones first, in order to a target: a function of an event or an
        object with `notify`. None disables delivery.

        A failing target is called again; if it fails too often, delivery is disabled, `error` has
        the reason, and the events are kept. Events for which the target raises UnknownEvent are no
        longer delivered, and their source gets UnknownEvent; a new target gets all events again.
        Open iterators end.
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
                if self._sender is sender:
                    self._sender, self.error = None, error

        with self._lock:
            reader = self.new_reader("events are delivered to a target now", is_target=True)
            self._unwanted.clear()
            self._mailbox._remove(self._mailbox._entries(UnwantedEvent(self.id)))
            retry, clock = self._mailbox._retry, self._mailbox.clock
            sender = EventSender(
                _MailboxStore(self, reader), Notifier(tell, retry, clock, False), give_up
            )
            self._sender, self.error = sender, None
        sender.go()

    def disable_delivery(self) -> None:
        """Keep events from now on. An event that is being delivered is kept if the target fails."""
        with self._lock:
            self._require_active()
            self._stop_sender()

    def get_remote_events(self, wait: float | None = 0) -> RemoteEventIterator:
        """An iterator over the kept events, the oldest first; an event is removed when it is
        returned.

        A loop over the iterator waits up to `wait` seconds for each event (None: for ever), and
        ends when none came. Delivery is disabled, and earlier iterators end.
        """
        check_wait(wait)
        reader = self.new_reader("another iterator has replaced it")

        async def fetch(timeout: float | None) -> RemoteEvent | None:
            if await reader.fetch(timeout, self.space) is None:
                return None
            event = reader.built()
            reader.confirm()
            return event

        async def close() -> None:
            reader.close()

        return RemoteEventIterator(fetch, close, wait)

    def add_unknown_events(self, events: object) -> None:
        """Refuse further events with the sources and ids of these: their senders get UnknownEvent.
        Kept events stay."""
        self.refuse(sources_of(events))

    def refuse(self, unwanted: list[tuple[str, int]]) -> None:
        """`add_unknown_events` for pairs of source and id."""
        with self._lock:
            self._require_active()
            for what in unwanted:
                if what not in self._unwanted:
                    self.space.write(UnwantedEvent(self.id, *what))
                    self._unwanted.add(what)

    def new_reader(self, why: str, *, is_target: bool = False) -> MailboxReader:
        """A new reader of the events; the reader before it ends with the reason `why`."""
        with self._lock:
            self._require_active()
            self._end_reader(why)
            self._reader = MailboxReader(self, is_target)
            return self._reader

    def _keep(self, event: RemoteEvent) -> None:
        if not isinstance(event, RemoteEvent):
            raise BadArgument("event", "a RemoteEvent", event)
        self.keep_encoded((encode_entry(*freeze(event)), event.source, event.event_id))

    def keep_encoded(self, event: tuple[bytes, str, int]) -> None:
        """Keep an encoded event, given as bytes, source and id."""
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
            sender = self._sender
        if sender is not None:
            sender.go()

    def _drop_oldest(self) -> None:
        # The count is an estimate: verify it before an event is dropped.
        kept = self._mailbox._entries(self._template)
        excess = max(0, len(kept) - self._mailbox._backlog_max)
        dropped = self._mailbox._remove(kept[:excess])
        self.dropped += dropped
        self._count = len(kept) - dropped

    # Endings

    def _end_reader(self, why: str) -> None:
        """End the current reader."""
        with self._lock:
            self._stop_sender()
            if self._reader is not None:
                self._reader.end(why)

    def _stop_sender(self) -> None:
        if self._sender is not None:
            self._sender.stop()
            self._sender = None

    def _remove_events(self) -> None:
        """The lease has ended: remove the events of the registration."""
        self._gone = True
        with self._mailbox._lock:
            if self._mailbox._registrations.get(self.id) is self:
                del self._mailbox._registrations[self.id]
        self._end_reader("the registration is gone")
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


class MailboxReader:
    """A reader of the events of a registration: an iterator, a target, or a program elsewhere. A
    registration has one reader at a time.

    One event at a time is out, in a transaction, until it is confirmed or given back. An event that
    is being delivered to a target stays out until the target has processed it, even if another
    reader begins.
    """

    def __init__(self, registration: MailboxRegistration, is_target: bool) -> None:
        self.id = uuid4().hex
        self.out: KeptEvent | None = None
        self.number = 0
        """The number of the event that is out, if it was sent to a program elsewhere."""
        self._registration = registration
        self._is_target = is_target
        self._txn: Transaction | None = None
        self._why_over = ""

    async def fetch(
        self, wait: float | None, space: Any, lease: float | None = None
    ) -> KeptEvent | None:
        """The oldest event, to be confirmed or given back; it comes back by itself after `lease`
        seconds. `space` is the blocking or async mailbox space to wait at."""
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
        """The event that is out. If its class is unknown here, the event is given back."""
        assert self.out is not None
        try:
            return self.out.built()
        except BaseException:
            self.give_back()
            raise

    def confirm(self) -> None:
        """The event that is out has arrived: remove it."""
        txn, self._txn, self.out = self._txn, None, None
        if txn is not None:
            with suppress(TransactionEnded, SpaceClosed):
                txn.commit()
                with self._registration._lock:
                    self._registration._count -= 1

    def give_back(self) -> None:
        """Return the event that is out, if any, to its place."""
        txn, self._txn, self.out = self._txn, None, None
        if txn is not None:
            with suppress(TransactionEnded, SpaceClosed):
                txn.abort()
            if self._registration._gone:  # It ended meanwhile, while this event was hidden.
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
    """The events of a registration, as the store of an EventSender."""

    def __init__(self, registration: MailboxRegistration, reader: MailboxReader) -> None:
        self._registration = registration
        self._out: RemoteEvent | None = None
        self._reader = reader
        self.delivered = reader.confirm
        self.returned = reader.give_back

    def fetch(self) -> RemoteEvent | None:
        """The oldest event that is wanted; unwanted ones that were kept before are removed."""
        registration = self._registration
        fetch = partial(self._reader.fetch, 0, registration.space)
        while run_sync(fetch) is not None:
            self._out = event = self._reader.built()
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
    """The sources and ids of events. BadArgument if these are no events."""
    listed: list[Any] = list(events) if isinstance(events, (list, tuple)) else [events]
    if not all(isinstance(event, RemoteEvent) for event in listed):
        raise BadArgument("events", "a list of RemoteEvents", events)
    return [(event.source, event.event_id) for event in listed]
