"""The Jini services as programs elsewhere use them: a lookup service, a mailbox and a lease renewal
service at a host."""

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
from tupelo.federation.client.services import (
    HostConnection,
    connect_to_host,
    connect_to_host_async,
    invoke,
)
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
    listening,
    target_of,
)
from tupelo.models.javaspaces.leases import ANY_LEASE, FOREVER, Lease, lease_of
from tupelo.models.javaspaces.lookup import LookupLocator, Registrar
from tupelo.models.javaspaces.mailbox import sources_of
from tupelo.models.javaspaces.remote import wire
from tupelo.models.javaspaces.remote.hosting import FETCH_SECONDS
from tupelo.models.javaspaces.remote.wire import SERVICE_NAMES, seen_from, sendable
from tupelo.models.javaspaces.renewal_sets import RenewalFailureEvent
from tupelo.models.javaspaces.services import (
    CompiledTemplate,
    Description,
    SentTemplate,
    ServiceItem,
    description_of,
    types_of_service,
)
from tupelo.space.checks import check_wait
from tupelo.space.clock import Clock, SystemClock
from tupelo.space.dual_api import Closing, dual_api, run_sync
from tupelo.space.typed import Async, Blocking
from tupelo.values import lease as engine
from tupelo.values.entry import freeze_value
from tupelo.values.kind import Kind

_clock = SystemClock()


class RemoteService(Closing):
    """A service at a host elsewhere. Use it by `with`, or `async with`."""

    kind: ClassVar[str]

    def __init__(self, connection: HostConnection, url: str, retry: Retry | None = None) -> None:
        self.is_async = connection.is_async
        self.url = url
        self.host: Address = parse_url(url)[0]
        self.clock: Clock = _clock
        self.retry = check_retry(retry)
        self.landlord = ServiceLandlord(self)
        self._connection = connection
        self._pump: Pump | None = None

    @classmethod
    def connect(cls, url: str, **options: Any) -> Self:
        """The service at the host with this URL, tupelo://host:7700, by the options of
        `tupelo.connect`. UnknownService if the host does not offer it."""
        connection = connect_to_host(url, **options)
        made = cls(connection, url)
        try:
            run_sync(made._open)
        except BaseException:
            connection.__exit__(None, None, None)
            raise
        return made

    @classmethod
    async def connect_async(cls, url: str, **options: Any) -> Self:
        """`connect`, for tasks of the running loop."""
        connection = await connect_to_host_async(url, **options)
        made = cls(connection, url)
        try:
            await made._open()
        except BaseException:
            await connection.__aexit__(None, None, None)
            raise
        return made

    async def _open(self) -> None:
        """Ask the host whether it offers the service, and what it is."""
        self._described(await self.call("describe"))

    def _described(self, told: Any) -> None:
        """What the host says of the service."""

    async def call(
        self, method: str, *args: Any, wait: float | None = 0, again: bool = True
    ) -> Any:
        """Call a method of the service, with arguments as they are sent. What is asked `again` when
        a link was lost does no harm if it is done twice."""
        name = SERVICE_NAMES[self.kind]
        return await invoke(self._connection, name, method, *args, wait=wait, again=again)

    async def ask(self, method: str, *args: Any, wait: float | None = 0) -> Any:
        """Call a method; some arguments may be Rented things, or the leases of such."""
        try:
            return await self.call(method, *map(self._encode, args), wait=wait)
        except LeaseLost:
            for one in args:
                if isinstance(one, RemoteLeaseHolder):
                    one.lost = True
            raise

    async def grant(self, method: str, *args: Any) -> RemoteLeaseHolder:
        """Call a method that answers with something leased."""
        rented = RemoteLeaseHolder(self)
        rented.granted_for(*await self.ask(method, rented, *args))
        return rented

    def _encode(self, argument: Any) -> Any:
        match argument:
            case RemoteLeaseHolder():
                return argument.id
            case Lease():
                return [self.rented_by(argument).id]
        return wire.encode(argument)

    def rented_by(self, lease: object) -> RemoteLeaseHolder:
        """What a lease is of, which a service of the same host has granted."""
        landlord = lease.granted.landlord if isinstance(lease, Lease) else None
        if not isinstance(landlord, ServiceLandlord) or landlord.service.host != self.host:
            raise BadArgument("lease", f"a lease of a service at {self.host}", lease)
        rented: RemoteLeaseHolder = lease.granted.thing  # type: ignore[attr-defined]
        return rented

    @dual_api
    async def close(self) -> None:
        """Hang up. What was registered stays until its lease ends. (To be awaited on the async
        door.)"""
        if self._pump is not None:
            self._pump.stop()
        await self._connection.leave(None)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this in a thread, or in a task of the loop."""
        self._connection.channel.start(work, "tupelo-remote-events")

    async def register_listener(
        self,
        listener: object,
        handback: Any,
        rented: RemoteLeaseHolder,
        register: Callable[[list[str], Any], Coroutine[Any, Any, Any]],
    ) -> EventRegistration:
        """A registration whose events are fetched from the host and brought to the listener, with
        the handback, which stays here. The host is asked by `register`, with the listener and the
        handback that it is to use. The events for a mailbox at the same host stay there."""
        tell = target_of("listener", listener)
        listening = ListenerThread(
            lambda: rented.lease.granted, tell, handback, clock=self.clock, retry=self.retry
        )
        if isinstance(listener, MailboxListener) and listener.service.host == self.host:
            names = [listener.registration_id]
            told = await register(names, freeze_value(handback, "handback", 1))
        else:
            if self._pump is None:
                self._pump = Pump(self)
            told = await self._pump.register(listening, register)
        rented.granted_for(*told)
        return EventRegistration(listening, *rented.told)

    def read_service(self, encoded: Any) -> SentTemplate | None:
        """A service as the host has sent it; None if it cannot be reached from here."""
        return SentTemplate(seen_from(wire.frozen(encoded[0]), self.url)) if encoded else None

    def read_event(self, payload: Any) -> RemoteEvent:
        """An event as the host has sent it. UnknownType if it cannot be built here."""
        encoded, service = parts(payload, 2)
        event = wire.decode_event(encoded)
        if service:
            about = Description("", self.read_service(service), {}, ())
            event.__dict__["_after"] = about
        return event

    def __enter__(self) -> Self:
        self._connection.require_door(False, "'async with'")
        return self

    async def __aenter__(self) -> Self:
        self._connection.require_door(True, "'with'")
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


# Leases


class RemoteLeaseHolder:
    """Something leased at the host. `expires` is by the clock of this program."""

    def __init__(self, service: RemoteService) -> None:
        self.id = uuid4().hex
        self.lost = False
        self.expires: float | None = None
        self.told: tuple[Any, ...] = ()
        self._service = service

    def granted_for(self, seconds: float | None, *told: Any) -> None:
        """The host has said how long it is leased for from now, and what it is."""
        self.expires = None if seconds is None else self._service.clock.now() + seconds
        self.told = told

    @property
    def service_id(self) -> str:
        """Of a registration with a lookup service."""
        return str(self.told[0])

    @property
    def ended(self) -> bool:
        return self.lost or (self.expires is not None and self.expires <= self._service.clock.now())

    @property
    def lease(self) -> Any:
        kind = engine.AsyncLease if self._service.is_async else engine.Lease
        return lease_of(kind(self._service.landlord, self))


class ServiceLandlord:
    """The leases of a service elsewhere."""

    def __init__(self, service: RemoteService) -> None:
        self.service = service

    async def renew_lease_async(self, thing: RemoteLeaseHolder, seconds: float | None) -> None:
        if seconds is None or seconds == engine.ANY_LEASE:
            seconds = FOREVER if seconds is None else ANY_LEASE
        thing.granted_for(*await self.service.ask("renew", thing, seconds))

    async def cancel_lease_async(self, thing: RemoteLeaseHolder) -> None:
        if thing.ended:
            raise LeaseLost("it is gone; there is nothing to cancel")
        # Not again: whoever cancels twice is told that it is gone.
        await self.service.call("cancel", thing.id, again=False)
        thing.lost = True

    def renew_lease(self, thing: RemoteLeaseHolder, seconds: float | None) -> None:
        run_sync(partial(self.renew_lease_async, thing, seconds))

    def cancel_lease(self, thing: RemoteLeaseHolder) -> None:
        run_sync(partial(self.cancel_lease_async, thing))

    def now(self) -> float:
        return self.service.clock.now()


# Events


class MailboxListener:
    """The listener of a mailbox elsewhere: what is told to it is kept there. At the host of the
    mailbox, those who send events do so without this program."""

    def __init__(self, service: RemoteService, registration_id: str) -> None:
        self.service = service
        self.registration_id = registration_id

    @property
    def is_async(self) -> bool:
        return self.service.is_async

    @dual_api
    async def notify(self, event: RemoteEvent) -> None:
        """Have an event kept; to be awaited on the async door."""
        try:
            await self.service.call("keep", self.registration_id, wire.encode_event(event))
        except LeaseLost:
            raise UnknownEvent("the mailbox registration is gone") from None

    def __call__(self, event: RemoteEvent) -> Any:
        return self.notify(event)


class Pump:
    """Fetches events from the host, while there are listeners, and brings them to these."""

    def __init__(self, service: RemoteService) -> None:
        self.queue_id = uuid4().hex
        self._listeners: dict[str, ListenerThread] = {}
        self._service = service
        self._lock = threading.Lock()
        self._running = False
        self._stopped = False
        self._received = 0

    async def register(
        self,
        listening: ListenerThread,
        register: Callable[[list[str], Any], Coroutine[Any, Any, Any]],
    ) -> Any:
        tag = uuid4().hex
        self._listeners[tag] = listening  # before there is an event
        try:
            told = await register([self.queue_id, tag], None)
        except BaseException:
            self._listeners.pop(tag, None)
            raise
        with self._lock:
            starts, self._running = not (self._running or self._stopped), not self._stopped
        if starts:
            self._service.start(self._run)
        return told

    def stop(self) -> None:
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
                    self._bring(tag, payload)
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

    def _bring(self, tag: Any, payload: Any) -> None:
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


logger = logging.getLogger("tupelo")


class RemoteLookupService(RemoteService, Registrar[Blocking | Async]):
    """A lookup service at a host elsewhere, with the methods of a LookupService; found by a
    LookupLocator, or by LookupDiscovery. On the async door they are awaited.

    A service that is registered must be a value that can be sent: a ServiceLocation, a JavaSpace at
    a host, or any entry. What is found is such a value; attributes of classes that are not known
    here are left out. A lease is at most what the host allows, often some minutes: see
    LeaseRenewalManager.
    """

    kind = "lookup"
    service_id = ""
    groups: tuple[str, ...] = ()
    name = ""

    def _described(self, told: Any) -> None:
        self.service_id, groups, self.name = parts(told, 3)
        self.groups = tuple(listed(groups))

    @property
    def locator(self) -> LookupLocator:
        return LookupLocator(self.url)

    def described(self, item: ServiceItem) -> Description:
        known = description_of(item)
        service = sendable(item.service)
        sent = SentTemplate(freeze_value(service, "service", 1))
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

    def _read_description(self, told: Any) -> Description:
        service_id, service, attributes = parts(told, 3)
        sent = self.read_service(service)
        return Description(service_id, sent, {}, wire.attributes(attributes))

    async def listen(
        self,
        wanted: CompiledTemplate,
        transitions: int,
        listener: object,
        handback: Any,
        lease: float,
    ) -> EventRegistration:
        rented = RemoteLeaseHolder(self)

        async def register(names: list[str], sent: Any) -> Any:
            return await self.ask("notify", rented, wanted, transitions, names, sent, lease)

        return await self.register_listener(listener, handback, rented, register)


# The mailbox


class RemoteEventMailbox(RemoteService):
    """An event mailbox at a host elsewhere, with the methods of an EventMailbox."""

    kind = "mailbox"

    @dual_api
    async def register(self, lease: float = FOREVER) -> RemoteMailboxRegistration:
        """A new registration, which keeps the events that its `listener` is told of. Its lease is
        at most what the host allows."""
        return RemoteMailboxRegistration(self, await self.grant("register", lease))


class RemoteThing:
    """Something that a service elsewhere has leased to this program."""

    def __init__(self, service: RemoteService, rented: RemoteLeaseHolder) -> None:
        self.is_async = service.is_async
        self._service = service
        self._rented = rented

    @property
    def id(self) -> str:
        return self._rented.id

    @property
    def lease(self) -> Any:
        return self._rented.lease

    @property
    def active(self) -> bool:
        """Does its lease last, as far as is known here?"""
        return not self._rented.ended

    async def ask(self, method: str, *args: Any, wait: float | None = 0) -> Any:
        return await self._service.ask(method, self._rented, *args, wait=wait)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


class RemoteMailboxRegistration(RemoteThing):
    """Events are kept at a host elsewhere until they are fetched, or brought to a target here.

    The host learns with the next call which event was received last; until then the mailbox keeps
    that one. So no event is lost with a link or with the program; after a crash of the program the
    last one may come twice.
    """

    def __init__(self, mailbox: RemoteEventMailbox, rented: RemoteLeaseHolder) -> None:
        super().__init__(mailbox, rented)
        self.error: Exception | None = None
        self._received = 0
        self._courier: EventSender | None = None

    @property
    def listener(self) -> MailboxListener:
        """What to register with the source of the events: a service of the same host sends them
        without this program."""
        return MailboxListener(self._service, self.id)

    @property
    def delivering(self) -> bool:
        """Are events brought to a target?"""
        return self._courier is not None

    @property
    def pending(self) -> Any:
        """How many events are kept, without one that is on its way here; to be awaited on the async
        door."""
        return self._counted(0)

    @property
    def dropped(self) -> Any:
        """How many were dropped because too many were kept; to be awaited on the async door."""
        return self._counted(1)

    @dual_api
    async def _counted(self, which: int) -> int:
        return int(parts(await self.ask("count"), 2)[which])

    @dual_api
    async def add_unknown_events(self, events: object) -> None:
        """Want no more events of the sources and ids of these: their senders are told."""
        await self.refuse(sources_of(events))

    async def refuse(self, unwanted: list[tuple[str, int]]) -> None:
        await self.ask("refuse", [list(one) for one in unwanted])

    @dual_api
    async def get_remote_events(self, wait: float | None = 0) -> RemoteEventIterator:
        """An iterator over the events that are kept."""
        check_wait(wait)
        self._stop_delivery()
        turn = await self._begin()

        async def close() -> None:
            await self.ask("end", turn, self._received)

        return RemoteEventIterator(partial(self._fetch, turn), close, wait, self.is_async)

    @dual_api
    async def enable_delivery(self, target: object) -> None:
        """Have events brought to a target in this program, in order, those first that are kept;
        None disables it. On the async door the target may be a coroutine function.

        A target that fails is tried again; if it fails too often, delivery is disabled, `error`
        says why, and the event is kept. Events for which it raises UnknownEvent come no more.
        """
        if target is None:
            await self._disable()
            return
        listening(target, "target")
        if isinstance(target, MailboxListener) and target.service.host == self._service.host:
            raise BadArgument("target", "a listener that is not of this mailbox itself", target)
        self._stop_delivery()
        service, self.error = self._service, None
        notifier = Notifier(target, service.retry, service.clock, self.is_async)

        def give_up(error: Exception) -> None:
            logger.warning("events of %r are not delivered any more: %s", self, error)
            if self._courier is courier:
                self._courier, self.error = None, error

        bag = _RemoteBag(self, notifier, await self._begin())
        self._courier = courier = EventSender(bag, notifier, give_up, service.start)
        courier.go()

    @dual_api
    async def disable_delivery(self) -> None:
        """Keep events from now on."""
        await self._disable()

    async def _disable(self) -> None:
        if not self.active:
            raise LeaseLost("the mailbox registration is gone")
        if self._stop_delivery():
            await self._begin()  # What is on its way goes back.

    async def _begin(self) -> str:
        return str(await self.ask("begin", self._received))

    async def _fetch(self, turn: str, timeout: float | None) -> RemoteEvent | None:
        """The next event; None if there was none in time. It waits at the host, a while at a
        time."""
        clock = self._service.clock
        until = None if timeout is None else clock.now() + timeout
        while True:
            left = FETCH_SECONDS if until is None else max(0.0, until - clock.now())
            wait = min(left, FETCH_SECONDS)
            try:
                fetched = await self.ask("next", turn, self._received, wait=wait)
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
        """False if there was none."""
        courier, self._courier = self._courier, None
        if courier is not None:
            courier.stop()
        return courier is not None


class _RemoteBag:
    """The events of a registration elsewhere, for a courier here."""

    def __init__(
        self, registration: RemoteMailboxRegistration, notifier: Notifier, turn: str
    ) -> None:
        self._registration = registration
        self._notifier = notifier
        self._turn = turn
        self._before = 0
        self._out: RemoteEvent | None = None

    async def fetch(self) -> RemoteEvent | None:
        self._before = self._registration._received
        self._out = await self._registration._fetch(self._turn, None)
        return self._out

    def delivered(self) -> None:
        """The host learns of it with the next call."""

    async def returned(self) -> None:
        """It counts as not received, and is at its place in the mailbox again."""
        self._registration._received = self._before
        if not self._notifier.cancelled:  # else another turn has begun
            self._turn = await self._registration._begin()

    async def unwanted(self) -> bool:
        await self._registration.refuse(sources_of(self._out))
        return True


# Lease renewal


class RemoteLeaseRenewalService(RemoteService):
    """A lease renewal service at a host elsewhere."""

    kind = "lease renewal"

    @dual_api
    async def create_lease_renewal_set(self, lease: float = FOREVER) -> RemoteLeaseRenewalSet:
        """A new, empty set; its lease is at most what the host allows."""
        return RemoteLeaseRenewalSet(self, await self.grant("create", lease))


class RemoteLeaseRenewalSet(RemoteThing):
    """A LeaseRenewalSet at a host elsewhere: it renews leases that services of that host have
    granted, also while the program that holds them is away."""

    def __init__(self, service: RemoteLeaseRenewalService, rented: RemoteLeaseHolder) -> None:
        super().__init__(service, rented)
        self._given: dict[str, Lease] = {}

    @property
    def leases(self) -> Any:
        """The leases that are in the set, of those that were given to it here; to be awaited on the
        async door."""
        return self._get_leases()

    @dual_api
    async def _get_leases(self) -> list[Lease]:
        names = listed(await self.ask("lease_ids"))
        return [self._given[name] for name in names if name in self._given]

    @dual_api
    async def renew_for(
        self, lease: Lease, duration: float = FOREVER, renew_duration: float = FOREVER
    ) -> str:
        """Keep a lease for `duration` seconds from now; see LeaseRenewalSet. It must be of a
        service of the same host. From now on the host renews it, and this program learns of its
        end by a RenewalFailureEvent only."""
        name = str(await self.ask("renew_for", lease, duration, renew_duration))
        self._given[name] = lease
        expires = None if duration == FOREVER else self._service.clock.now() + duration
        lease.granted.thing.expires = expires
        return name

    @dual_api
    async def remove(self, lease: Lease) -> Lease | None:
        """Take a lease out of the set; None if it was not in it. It is not cancelled."""
        self._service.rented_by(lease)
        name = next((name for name, given in self._given.items() if given == lease), "-")
        self._given.pop(name, None)
        return lease if await self.ask("remove", name) else None

    @dual_api
    async def set_expiration_warning_listener(
        self, listener: object, min_warning: float, handback: Any = None
    ) -> EventRegistration:
        """Tell a listener here, `min_warning` seconds before the lease of the set ends."""

        async def register(names: list[str], sent: Any) -> Any:
            return await self.ask("warn", names, min_warning, sent)

        return await self._service.register_listener(listener, handback, self._rented, register)

    @dual_api
    async def clear_expiration_warning_listener(self) -> None:
        """Tell nobody that the lease of the set is nearly over."""
        await self.ask("clear_warnings")

    @dual_api
    async def set_renewal_failure_listener(
        self, listener: object, handback: Any = None
    ) -> EventRegistration:
        """Tell a listener here of leases that could not be renewed."""
        tell = target_of("listener", listener)

        def told(event: RemoteEvent) -> object:
            if isinstance(event, RenewalFailureEvent):
                lease = self._given.pop(event.lease_id, None)
                event.__dict__["_lease"] = lease
                if lease is not None:
                    lease.granted.thing.lost = True
            return tell(event)

        async def register(names: list[str], sent: Any) -> Any:
            return await self.ask("tell_failures", names, sent)

        return await self._service.register_listener(told, handback, self._rented, register)

    @dual_api
    async def clear_renewal_failure_listener(self) -> None:
        """Tell nobody of leases that could not be renewed."""
        await self.ask("clear_failures")
