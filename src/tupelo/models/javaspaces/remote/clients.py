"""What the clients of Jini services have in common: calls, leases, and events for their listeners.

On the blocking door methods block; on the async door they are awaited. Listeners are called from
threads, as by the services themselves. When the link is lost the host is dialled again, for as long
as `reconnect=` says, and what was asked is asked again.
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
    LeaseLost,
    SpaceClosed,
    TupeloError,
    UnknownEvent,
    UnknownType,
)
from tupelo.federation.client.arguments import listed, parts
from tupelo.federation.client.services import connect_to_host, connect_to_host_async, invoke
from tupelo.federation.client.space import HostConnection
from tupelo.federation.links.address import Address, parse_url
from tupelo.models.javaspaces.event_sender import ListenerThread, target_of
from tupelo.models.javaspaces.events import EventRegistration, RemoteEvent, Retry, check_retry
from tupelo.models.javaspaces.leases import ANY_LEASE, FOREVER, Lease, lease_of
from tupelo.models.javaspaces.remote import wire
from tupelo.models.javaspaces.remote.hosting import FETCH_SECONDS
from tupelo.models.javaspaces.remote.locations import SERVICE_NAMES, seen_from
from tupelo.models.javaspaces.services import Description, SentTemplate
from tupelo.space.clock import Clock, SystemClock
from tupelo.space.dual_api import Closing, dual_api, run_sync
from tupelo.values import lease as engine
from tupelo.values.entry import freeze_value

logger = logging.getLogger("tupelo")

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
        for listening in ended.values():
            listening.call_off(error)
            listening.lease.thing.lost = True
