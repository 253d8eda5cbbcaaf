"""Clients of the Jini services at a host elsewhere: lookup service, mailbox, lease renewal service.

`RemoteService` is the connection, and the landlord of its leases; `RemoteLeaseHolder` is something
leased at the host; the `EventPump` fetches events for listeners of this program.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Self
from uuid import uuid4

from tupelo.errors import (
    BadArgument,
    InvalidIterator,
    LeaseLost,
    SpaceClosed,
    TupeloError,
    UnknownEvent,
    UnknownType,
)
from tupelo.federation.client.arguments import listed, parts
from tupelo.federation.client.handles import RemoteLandlord
from tupelo.federation.client.services import connect_to_host, connect_to_host_async, invoke
from tupelo.federation.client.space import HostConnection
from tupelo.federation.links.address import Address, parse_url
from tupelo.models.javaspaces.events import (
    EventRegistration,
    EventSender,
    ListenerThread,
    Notifier,
    RemoteEvent,
    RemoteEventIterator,
    Retry,
    check_retry,
    function_of,
    target_of,
)
from tupelo.models.javaspaces.leases import ANY_LEASE, FOREVER, Lease, lease_of
from tupelo.models.javaspaces.lookup import LookupLocator, Registrar
from tupelo.models.javaspaces.mailbox import sources_of
from tupelo.models.javaspaces.remote import wire
from tupelo.models.javaspaces.remote.hosting import FETCH_SECONDS
from tupelo.models.javaspaces.remote.wire import SERVICE_NAMES, seen_from, sendable
from tupelo.models.javaspaces.renewal import RenewalFailureEvent
from tupelo.models.javaspaces.service_items import (
    Description,
    SentService,
    ServiceItem,
    description_of,
    types_of_service,
)
from tupelo.space.clock import Clock, system_clock
from tupelo.space.dual_api import Async, Blocking, Closing, dual_api, maybe_await, run_sync
from tupelo.space.query import check_wait
from tupelo.values import lease as engine
from tupelo.values.entry import freeze_value
from tupelo.values.kind import Kind

logger = logging.getLogger("tupelo")

Register = Callable[[list[str], Any], Coroutine[Any, Any, Any]]
"""Registers a listener at a host, by its names there; the handback is sent along."""


class RemoteService(RemoteLandlord, Closing):
    """A connection to a service at a host elsewhere. Use it by `with`, or `async with`."""

    kind: ClassVar[str]

    def __init__(self, connection: HostConnection, url: str, retry: Retry | None = None) -> None:
        super().__init__(connection)
        self.is_async = connection.is_async
        self.url = url
        self.host: Address = parse_url(url)[0]
        self.clock: Clock = system_clock
        self.retry = check_retry(retry)
        self._connection = connection
        self._pump: EventPump | None = None

    @classmethod
    def connect(cls, url: str, **options: Any) -> Self:
        """Connect to the service at the host with this URL, tupelo://host:7700, with the options of
        `tupelo.connect`. UnknownService if the host does not offer it."""
        return run_sync(partial(cls._connect, connect_to_host, url, options))

    @classmethod
    async def connect_async(cls, url: str, **options: Any) -> Self:
        """`connect` for the async API."""
        return await cls._connect(connect_to_host_async, url, options)

    @classmethod
    async def _connect(cls, connect: Callable[..., Any], url: str, options: dict[str, Any]) -> Self:
        connection = await maybe_await(connect(url, **options))
        made = cls(connection, url)
        try:
            made._described(await made.call("describe"))
        except BaseException:
            await connection.leave(None)
            raise
        return made

    def _described(self, answer: Any) -> None:
        """Store the description that the host has sent."""

    async def call(
        self, method: str, *args: Any, wait: float | None = 0, again: bool = True
    ) -> Any:
        """Call a method of the service, with encoded arguments. With `again`, the call is repeated
        after a lost link: it must do no harm if it is done twice."""
        name = SERVICE_NAMES[self.kind]
        return await invoke(self._connection, name, method, *args, wait=wait, again=again)

    async def ask(self, method: str, *args: Any, wait: float | None = 0) -> Any:
        """Call a method. Arguments may be RemoteLeaseHolders, or their leases."""
        try:
            return await self.call(method, *map(self._encode, args), wait=wait)
        except LeaseLost:
            for one in args:
                if isinstance(one, RemoteLeaseHolder):
                    one.lost = True
            raise

    async def grant(
        self, method: str, *args: Any, kind: type[RemoteLeaseHolder] | None = None
    ) -> Any:
        """Call a method that returns something leased, of this class."""
        held = (kind or RemoteLeaseHolder)(self)
        held.granted_for(*await self.ask(method, held, *args))
        return held

    def _encode(self, argument: Any) -> Any:
        match argument:
            case RemoteLeaseHolder():
                return argument.id
            case Lease():
                return [self.held_by(argument).id]
        return wire.encode(argument)

    def held_by(self, lease: object) -> RemoteLeaseHolder:
        """The leased thing of a lease that a service of the same host has granted. BadArgument for
        other leases."""
        landlord = lease.granted.landlord if isinstance(lease, Lease) else None
        if not isinstance(landlord, RemoteService) or landlord.host != self.host:
            raise BadArgument("lease", f"a lease of a service at {self.host}", lease)
        held: RemoteLeaseHolder = lease.granted.thing  # type: ignore[attr-defined]
        return held

    @dual_api
    async def close(self) -> None:
        """Disconnect. Registrations stay until their leases end. Awaited in the async API."""
        if self._pump is not None:
            self._pump.stop()
        await self._connection.leave(None)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this on a thread, or in a task of the loop."""
        self._connection.channel.start(work, "tupelo-remote-events")

    async def register_listener(
        self, listener: object, handback: Any, held: RemoteLeaseHolder, register: Register
    ) -> EventRegistration:
        """Register a listener of this program: its events are fetched from the host, and passed on
        with the `handback`, which stays here. Events for a mailbox at the same host stay there."""
        tell = target_of("listener", listener)
        listening = ListenerThread(
            lambda: held.lease.granted, tell, handback, clock=self.clock, retry=self.retry
        )
        if isinstance(listener, MailboxListener) and listener.service.host == self.host:
            names = [listener.registration_id]
            granted = await register(names, freeze_value(handback, "handback", 1))
        else:
            if self._pump is None:
                self._pump = EventPump(self)
            granted = await self._pump.register(listening, register)
        held.granted_for(*granted)
        return EventRegistration(listening, *held.data)

    def read_service(self, encoded: Any) -> SentService | None:
        """A service that the host has sent; None if it cannot be reached from here."""
        return SentService(seen_from(wire.frozen(encoded[0]), self.url)) if encoded else None

    def read_event(self, payload: Any) -> RemoteEvent:
        """An event that the host has sent. UnknownType if its class is unknown here."""
        encoded, service = parts(payload, 2)
        event = wire.decode_event(encoded)
        if service:
            about = Description("", self.read_service(service), {}, ())
            event.__dict__["_after"] = about
        return event

    # As the landlord of its leases

    async def renew_lease_async(self, thing: RemoteLeaseHolder, seconds: float | None) -> None:
        """Called by a lease of the service: renew it there."""
        if seconds is None or seconds == engine.ANY_LEASE:
            seconds = FOREVER if seconds is None else ANY_LEASE
        thing.granted_for(*await self.ask("renew", thing, seconds))

    async def cancel_lease_async(self, thing: RemoteLeaseHolder) -> None:
        """Called by a lease of the service: cancel it there."""
        if thing.ended:
            raise LeaseLost("it is gone; there is nothing to cancel")
        # Not repeated: the second attempt would raise LeaseLost.
        await self.call("cancel", thing.id, again=False)
        thing.lost = True

    def now(self) -> float:
        return self.clock.now()

    def __enter__(self) -> Self:
        self._connection.require_door(False, "'async with'")
        return self

    async def __aenter__(self) -> Self:
        self._connection.require_door(True, "'with'")
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class RemoteLeaseHolder:
    """Something that a service elsewhere has leased to this program. `expires` is in the time of
    this program's clock."""

    def __init__(self, service: RemoteService) -> None:
        self.id = uuid4().hex
        self.is_async = service.is_async
        self.lost = False
        self.expires: float | None = None
        self.data: tuple[Any, ...] = ()
        self._service = service

    def granted_for(self, seconds: float | None, *data: Any) -> None:
        """The host has granted so many seconds from now, and sent this data."""
        self.expires = None if seconds is None else self._service.now() + seconds
        self.data = data

    @property
    def service_id(self) -> str:
        """The id of the service, for a registration with a lookup service."""
        return str(self.data[0])

    @property
    def ended(self) -> bool:
        """Whether the lease has ended, as far as this program knows."""
        return self.lost or (self.expires is not None and self.expires <= self._service.now())

    @property
    def active(self) -> bool:
        """Whether the lease has not ended, as far as this program knows."""
        return not self.ended

    @property
    def lease(self) -> Any:
        """The Lease, or AsyncLease."""
        kind = engine.AsyncLease if self.is_async else engine.Lease
        return lease_of(kind(self._service, self))

    async def ask(self, method: str, *args: Any, wait: float | None = 0) -> Any:
        """Call a method of the service about this thing."""
        return await self._service.ask(method, self, *args, wait=wait)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


# Events


class MailboxListener:
    """The listener of a mailbox elsewhere: it stores events there. Services at the host of the
    mailbox send events to it directly."""

    def __init__(self, service: RemoteService, registration_id: str) -> None:
        self.service = service
        self.registration_id = registration_id

    @property
    def is_async(self) -> bool:
        return self.service.is_async

    @dual_api
    async def notify(self, event: RemoteEvent) -> None:
        """Store an event in the mailbox; awaited in the async API."""
        try:
            await self.service.call("keep", self.registration_id, wire.encode_event(event))
        except LeaseLost:
            raise UnknownEvent("the mailbox registration is gone") from None

    def __call__(self, event: RemoteEvent) -> Any:
        return self.notify(event)


class EventPump:
    """Fetches events from the host while there are listeners, and passes them on."""

    def __init__(self, service: RemoteService) -> None:
        self.queue_id = uuid4().hex
        self._listeners: dict[str, ListenerThread] = {}
        self._service = service
        self._lock = threading.Lock()
        self._running = False
        self._stopped = False
        self._received = 0

    async def register(self, listening: ListenerThread, register: Register) -> Any:
        """Register a listener at the host, and start fetching its events."""
        tag = uuid4().hex
        self._listeners[tag] = listening  # before there is an event
        try:
            granted = await register([self.queue_id, tag], None)
        except BaseException:
            self._listeners.pop(tag, None)
            raise
        with self._lock:
            starts, self._running = not (self._running or self._stopped), not self._stopped
        if starts:
            self._service.start(self._run)
        return granted

    def stop(self) -> None:
        """Stop fetching events."""
        self._stopped = True
        self._end(SpaceClosed("the service was closed here"))

    async def _run(self) -> None:
        try:
            while self._wanted():
                fetched = await self._service.call(
                    "events", self.queue_id, self._received, wait=FETCH_SECONDS
                )
                for one in listed(fetched):
                    self._received, tag, payload = parts(one, 3)
                    self._pass_on(tag, payload)
        except LeaseLost:
            self._end(None)
        except TupeloError as error:
            if not self._stopped:
                logger.warning("no more events come from %r: %s", self._service, error)
            self._end(error)

    def _wanted(self) -> bool:
        with self._lock:
            for tag in [tag for tag, one in self._listeners.items() if not one.active]:
                del self._listeners[tag]
            self._running = bool(self._listeners) and not self._stopped
            return self._running

    def _pass_on(self, tag: Any, payload: Any) -> None:
        listening = self._listeners.get(tag)
        if listening is None:
            return
        try:
            event = self._service.read_event(payload)
        except UnknownType as error:
            logger.warning("an event from %r cannot be built here: %s", self._service, error)
            return
        event.__dict__["handback"] = listening.handback
        listening.tell(event)

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            self._running = False
            ended, self._listeners = self._listeners, {}
        for listener in ended.values():
            listener.call_off(error)
            listener.lease.thing.lost = True


class RemoteLookupService(RemoteService, Registrar[Blocking | Async]):
    """A lookup service at a host elsewhere, with the methods of a LookupService; found by a
    LookupLocator or by LookupDiscovery. In the async API the methods are awaited.

    A registered service must be a value that can be sent: a ServiceLocation, a JavaSpace at a host,
    or any entry. Lookups return such values; attributes of unknown classes are left out. The host
    limits leases, often to some minutes: see LeaseRenewalManager.
    """

    kind = "lookup"
    service_id = ""
    groups: tuple[str, ...] = ()
    name = ""

    def _described(self, answer: Any) -> None:
        self.service_id, groups, self.name = parts(answer, 3)
        self.groups = tuple(listed(groups))

    @property
    def locator(self) -> LookupLocator:
        """The address of the lookup service."""
        return LookupLocator(self.url)

    def described(self, item: ServiceItem) -> Description:
        known = description_of(item)
        service = sendable(item.service)
        sent = SentService(freeze_value(service, "service", 1))
        types = {**known.types, **types_of_service(service)}
        return Description(known.service_id, sent, types, known.attributes)

    async def ask(self, method: str, *args: Any, wait: float | None = 0) -> Any:
        answer = await super().ask(method, *args, wait=wait)
        if method == "first":
            return None if answer is None else self._read_description(answer)
        if method == "find":
            found, total = parts(answer, 2)
            return [self._read_description(one) for one in listed(found)], total
        if method == "kinds":
            pairs = [parts(one, 2) for one in listed(answer)]
            return [Kind(name, tuple(names), (name,)) for name, names in pairs]
        if method in ("attributes", "values"):
            return [wire.frozen(one) for one in listed(answer)]
        return answer

    def _read_description(self, answer: Any) -> Description:
        service_id, service, attributes = parts(answer, 3)
        sent = self.read_service(service)
        return Description(service_id, sent, {}, wire.attributes(attributes))

    async def listen(
        self, listener: object, handback: Any, lease: float, *about: Any
    ) -> EventRegistration:
        held = RemoteLeaseHolder(self)
        return await self.register_listener(
            *(listener, handback, held),
            lambda names, sent: self.ask("notify", held, *about, names, sent, lease),
        )


# The mailbox


class RemoteEventMailbox(RemoteService):
    """An event mailbox at a host elsewhere, with the methods of an EventMailbox."""

    kind = "mailbox"

    @dual_api
    async def register(self, lease: float = FOREVER) -> RemoteMailboxRegistration:
        """A new registration. It keeps the events that its `listener` is called with. The host
        limits its lease."""
        made: RemoteMailboxRegistration
        made = await self.grant("register", lease, kind=RemoteMailboxRegistration)
        return made


class RemoteMailboxRegistration(RemoteLeaseHolder):
    """A mailbox registration at a host elsewhere: it keeps events until they are fetched, or
    delivered to a target in this program.

    Each call tells the host which event was received last; until then the mailbox keeps that event.
    So no event is lost with a link or with the program; after a crash of the program the last event
    may arrive twice.
    """

    def __init__(self, mailbox: RemoteService) -> None:
        super().__init__(mailbox)
        self.error: Exception | None = None
        self._received = 0
        self._sender: EventSender | None = None

    @property
    def listener(self) -> MailboxListener:
        """The listener to register with the source of the events; a service of the same host sends
        them directly."""
        return MailboxListener(self._service, self.id)

    @property
    def delivering(self) -> bool:
        """Whether events are delivered to a target."""
        return self._sender is not None

    @property
    def pending(self) -> Any:
        """The number of kept events, without one that is being delivered. Awaited in the async
        API."""
        return self._counted(0)

    @property
    def dropped(self) -> Any:
        """The number of events that were dropped because too many were kept. Awaited in the async
        API."""
        return self._counted(1)

    @dual_api
    async def _counted(self, which: int) -> int:
        return int(parts(await self.ask("count"), 2)[which])

    @dual_api
    async def add_unknown_events(self, events: object) -> None:
        """Refuse further events with the sources and ids of these: their senders get
        UnknownEvent."""
        await self.refuse(sources_of(events))

    async def refuse(self, unwanted: list[tuple[str, int]]) -> None:
        """`add_unknown_events` for pairs of source and id."""
        await self.ask("refuse", [list(one) for one in unwanted])

    @dual_api
    async def get_remote_events(self, wait: float | None = 0) -> RemoteEventIterator:
        """An iterator over the kept events, the oldest first. Delivery is disabled."""
        check_wait(wait)
        self._stop_delivery()
        reader_id = await self._begin()

        async def close() -> None:
            await self.ask("end", reader_id, self._received)

        return RemoteEventIterator(partial(self._fetch, reader_id), close, wait, self.is_async)

    @dual_api
    async def enable_delivery(self, target: object) -> None:
        """Deliver events, the kept ones first, in order to a target in this program. None disables
        delivery. In the async API the target may be a coroutine function.

        A failing target is called again; if it fails too often, delivery is disabled, `error` has
        the reason, and the event is kept. Events for which the target raises UnknownEvent are no
        longer delivered.
        """
        if target is None:
            await self._disable()
            return
        function_of(target, "target")
        if isinstance(target, MailboxListener) and target.service.host == self._service.host:
            raise BadArgument("target", "a listener that is not of this mailbox itself", target)
        self._stop_delivery()
        service, self.error = self._service, None
        notifier = Notifier(target, service.retry, service.clock, self.is_async)

        def give_up(error: Exception) -> None:
            logger.warning("events of %r are not delivered any more: %s", self, error)
            if self._sender is sender:
                self._sender, self.error = None, error

        store = _RemoteStore(self, notifier, await self._begin())
        self._sender = sender = EventSender(store, notifier, give_up, service.start)
        sender.go()

    @dual_api
    async def disable_delivery(self) -> None:
        """Keep events from now on."""
        await self._disable()

    async def _disable(self) -> None:
        if not self.active:
            raise LeaseLost("the mailbox registration is gone")
        if self._stop_delivery():
            await self._begin()  # An event that is being delivered goes back.

    async def _begin(self) -> str:
        return str(await self.ask("begin", self._received))

    async def _fetch(self, reader_id: str, timeout: float | None) -> RemoteEvent | None:
        """The next event; None if there was none in time. Long waits are split into several
        calls."""
        clock = self._service.clock
        until = None if timeout is None else clock.now() + timeout
        while True:
            left = FETCH_SECONDS if until is None else max(0.0, until - clock.now())
            wait = min(left, FETCH_SECONDS)
            try:
                fetched = await self.ask("next", reader_id, self._received, wait=wait)
            except LeaseLost as error:
                raise InvalidIterator("the mailbox registration is gone") from error
            if fetched is not None:
                number, payload = parts(fetched, 2)
                event = wire.decode_event(payload)
                self._received = number
                return event
            if until is not None and clock.now() >= until:
                return None

    def _stop_delivery(self) -> bool:
        """Stop the delivery; False if there was none."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.stop()
        return sender is not None


class _RemoteStore:
    """The events of a registration elsewhere, as the store of an EventSender."""

    def __init__(
        self, registration: RemoteMailboxRegistration, notifier: Notifier, reader_id: str
    ) -> None:
        self._registration = registration
        self._notifier = notifier
        self._reader_id = reader_id
        self._before = 0
        self._out: RemoteEvent | None = None

    async def fetch(self) -> RemoteEvent | None:
        self._before = self._registration._received
        self._out = await self._registration._fetch(self._reader_id, None)
        return self._out

    def delivered(self) -> None:
        """The next call tells the host."""

    async def returned(self) -> None:
        """The event counts as not received, and is in the mailbox again."""
        self._registration._received = self._before
        if not self._notifier.cancelled:  # otherwise another reader has begun
            self._reader_id = await self._registration._begin()

    async def unwanted(self) -> bool:
        await self._registration.refuse(sources_of(self._out))
        return True


# Lease renewal


class RemoteLeaseRenewalService(RemoteService):
    """A lease renewal service at a host elsewhere."""

    kind = "lease renewal"

    @dual_api
    async def create_lease_renewal_set(self, lease: float = FOREVER) -> RemoteLeaseRenewalSet:
        """A new, empty set. The host limits its lease."""
        made: RemoteLeaseRenewalSet
        made = await self.grant("create", lease, kind=RemoteLeaseRenewalSet)
        return made


class RemoteLeaseRenewalSet(RemoteLeaseHolder):
    """A LeaseRenewalSet at a host elsewhere: it renews leases that services of that host have
    granted, also while this program is disconnected."""

    def __init__(self, service: RemoteService) -> None:
        super().__init__(service)
        self._given: dict[str, Lease] = {}

    @property
    def leases(self) -> Any:
        """The leases of the set that this program has added. Awaited in the async API."""
        return self._get_leases()

    @dual_api
    async def _get_leases(self) -> list[Lease]:
        names = listed(await self.ask("lease_ids"))
        return [self._given[name] for name in names if name in self._given]

    @dual_api
    async def renew_for(
        self, lease: Lease, duration: float = FOREVER, renew_duration: float = FOREVER
    ) -> str:
        """Renew a lease for `duration` seconds from now: see LeaseRenewalSet. The lease must be of
        a service of the same host. From now on the host renews it, and this program learns of its
        end only by a RenewalFailureEvent."""
        name = str(await self.ask("renew_for", lease, duration, renew_duration))
        self._given[name] = lease
        expires = None if duration == FOREVER else self._service.clock.now() + duration
        lease.granted.thing.expires = expires
        return name

    @dual_api
    async def remove(self, lease: Lease) -> Lease | None:
        """Remove a lease from the set and return it; None if it was not there. It is not
        cancelled."""
        self._service.held_by(lease)
        name = next((name for name, given in self._given.items() if given == lease), "-")
        self._given.pop(name, None)
        return lease if await self.ask("remove", name) else None

    @dual_api
    async def set_expiration_warning_listener(
        self, listener: object, min_warning: float, handback: Any = None
    ) -> EventRegistration:
        """Send a listener of this program an event `min_warning` seconds before the lease of the
        set ends."""
        return await self._service.register_listener(
            listener, handback, self, lambda names, sent: self.ask("warn", names, min_warning, sent)
        )

    @dual_api
    async def clear_expiration_warning_listener(self) -> None:
        """Remove the listener of expiration warnings."""
        await self.ask("clear_warnings")

    @dual_api
    async def set_renewal_failure_listener(
        self, listener: object, handback: Any = None
    ) -> EventRegistration:
        """Send a listener of this program an event for each lease that could not be renewed."""
        tell = target_of("listener", listener)

        def forward(event: RemoteEvent) -> object:
            if isinstance(event, RenewalFailureEvent):
                lease = self._given.pop(event.lease_id, None)
                event.__dict__["_lease"] = lease
                if lease is not None:
                    lease.granted.thing.lost = True
            return tell(event)

        return await self._service.register_listener(
            forward, handback, self, partial(self.ask, "tell_failures")
        )

    @dual_api
    async def clear_renewal_failure_listener(self) -> None:
        """Remove the listener of renewal failures."""
        await self.ask("clear_failures")
