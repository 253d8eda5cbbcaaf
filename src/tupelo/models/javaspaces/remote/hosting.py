"""A host serves a lookup service, a mailbox or a lease renewal service to programs elsewhere.

Each service has a table of its methods: the required permission, the function, and how each
argument is decoded. Everything that a service leases to a program has an id that the program
chooses; so a call that is repeated because its answer was lost finds the earlier result.

An offered service runs on the loop of its host. Calls that may wait for a disk run on a thread;
calls that wait for an event do not hold a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from inspect import iscoroutinefunction, isfunction
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tupelo.errors import BadArgument, BadEntry, InvalidIterator, LeaseLost, SpaceFull
from tupelo.federation.hosts.doors import HostDoor
from tupelo.federation.hosts.services import Caller
from tupelo.federation.identity.access import Access
from tupelo.federation.links import wire as calls
from tupelo.models.javaspaces.events import EventRegistration, RemoteEvent
from tupelo.models.javaspaces.leases import ANY_LEASE, FOREVER, Lease, seconds_asked
from tupelo.models.javaspaces.lookup import LookupService, RegisteredService, ServiceEvent
from tupelo.models.javaspaces.mailbox import EventMailbox, MailboxRegistration
from tupelo.models.javaspaces.remote import wire
from tupelo.models.javaspaces.remote.wire import (
    HERE,
    SERVICE_NAMES,
    ServiceLocation,
    kind_of_service,
    sendable,
)
from tupelo.models.javaspaces.renewal import LeaseRenewalService, LeaseRenewalSet
from tupelo.models.javaspaces.service_items import Description, SentService
from tupelo.space import asynchronous
from tupelo.space.port import port_of
from tupelo.values.entry import freeze_value
from tupelo.values.kind import Kind

logger = logging.getLogger("tupelo")

LEASE_MAX_SECONDS = 300.0
"""The longest lease of a program elsewhere, unless the host allows others. The leases of a program
that dies end within this time."""
LEASES_MAX = 10_000
"""How many leases one program elsewhere may have at the services of a host."""
EVENTS_MAX = 1_000
"""How many events wait for a program elsewhere; when there are more, the oldest are dropped."""
BATCH_MAX = 100
FETCH_SECONDS = 20.0
"""How many seconds a host waits for an event before it answers that there is none."""
RESERVED_SECONDS = 60.0
"""How many seconds an event stays reserved for a program elsewhere that has not confirmed it."""
_SWEEP_MIN = 64

LEASE, LEASED, LISTENER = "a duration", "the lease of something", "a listener"
"""Arguments that the OfferedService decodes itself, beside leased things."""


class OfferedObject(NamedTuple):
    """An argument that is a leased thing of this class."""

    kind: type


class RemoteMethod(NamedTuple):
    """How a call is served: the permission that it needs, the function, and the readers of its
    arguments (a type for msgspec, a function, or a constant above). A coroutine function gets the
    ServiceCall first. A method that `grants` returns something leased."""

    allowed: str | None
    function: Callable[..., Any]
    readers: tuple[Any, ...] = ()
    grants: bool = False


class ServiceCall(NamedTuple):
    """A call of a program elsewhere, for functions that need to know the caller."""

    offered: OfferedService
    caller: Caller
    wait: float | None


class OfferedService:
    """A service that a host offers."""

    def __init__(self, kind: str, service: Any, granted: GrantedLeases, lease_max: float) -> None:
        self.service = service
        self.granted = granted
        self.queues: dict[str, EventQueue] = {}
        self._rules = f"tupelo.{SERVICE_NAMES[kind]}"
        self._methods = {**_METHODS[kind](service), **METHODS}
        self._lease_max = lease_max
        self._on_disk = port_of(service.space).journaled

    async def invoke(self, caller: Caller, message: calls.Invoke) -> Any:
        """Serve a call: check the permission, decode the arguments, and encode the result."""
        method, args = self._methods.get(message.method), list(message.args)
        if method is None:
            raise BadArgument("method", f"one of {', '.join(self._methods)}", message.method)
        if method.allowed is not None:
            caller.hosted(self._rules, method.allowed)
        expected = len(method.readers) + method.grants
        if len(args) != expected:
            raise BadArgument("args", f"{expected} arguments of {message.method}", len(args))
        granted_id = wire.convert(args.pop(0), wire.Text) if method.grants else ""
        if method.grants and (known := self.granted.room_for(caller, granted_id)) is not None:
            return self._encode(known)
        read = [self._read(caller, *pair) for pair in zip(method.readers, args, strict=True)]
        if iscoroutinefunction(method.function):
            return await method.function(ServiceCall(self, caller, message.wait), *read)
        answer = await self._run(method.function, *read)
        if method.grants:
            kept = self.granted.add(caller, granted_id, answer)
            if kept is not answer:  # Two calls with this id ran at the same time.
                await self._run(answer.lease.cancel)
            answer = kept
        for one in read:
            if isinstance(one, QueueListener):
                one.queue.registrations.append(answer)
        return self._encode(answer)

    def left(self, caller: Caller) -> None:
        """Leased things stay until their leases end: the program may come back."""

    async def _run(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(work, *args) if self._on_disk else work(*args)

    # Arguments

    def _read(self, caller: Caller, reader: Any, value: Any) -> Any:
        if isinstance(reader, OfferedObject):
            return self.granted.find(wire.convert(value, wire.Text), reader.kind)
        if reader is LEASE:
            return self._lease_asked(wire.convert(value, float, "lease"))
        if reader is LEASED:
            return self.granted.lease(*wire.convert(value, tuple[wire.Text], "lease"))
        if reader is LISTENER:
            return self._listener(caller, wire.convert(value, wire.Texts))
        return reader(value) if isfunction(reader) else wire.convert(value, reader)

    def _lease_asked(self, seconds: float) -> float:
        """The lease to ask for, limited to what the host allows."""
        longest = self._lease_max
        if seconds == ANY_LEASE and longest < FOREVER:
            return longest
        return min(seconds, longest)

    def _listener(self, caller: Caller, names: list[str]) -> Callable[[RemoteEvent], object]:
        """The listener of a call: a mailbox of this host, or a queue from which the program fetches
        events."""
        if len(names) == 1:
            mailbox: MailboxRegistration = self.granted.find(names[0], MailboxRegistration)
            return mailbox.listener
        queue_id, tag = wire.convert(names, tuple[str, str])
        for name in [name for name, queue in self.queues.items() if queue.is_over]:
            if name != queue_id:
                del self.queues[name]
        queue = self.queues.setdefault(queue_id, EventQueue(caller.agent))
        if queue.agent != caller.agent:
            raise BadArgument("queue", "a name that no other program uses", queue_id)
        return QueueListener(queue, tag, self._encode_event)

    # Answers

    def _encode(self, answer: Any) -> Any:
        match answer:
            case Description():
                attributes = wire.encode(answer.attributes)
                return [answer.service_id, self._reachable(answer.service), attributes]
            case RegisteredService():
                return [_left(answer), answer.service_id]
            case EventRegistration():
                return [_left(answer), answer.source, answer.event_id, answer.sequence_number]
            case MailboxRegistration() | LeaseRenewalSet():
                return [_left(answer)]
            case Kind():
                return [answer.name, list(answer.names)]
            case tuple() | list():
                return [self._encode(one) for one in answer]
        return wire.encode(answer)

    def _reachable(self, service: Any) -> list[Any]:
        """A service, encoded; an empty list if it cannot be sent to programs elsewhere."""
        if isinstance(service, SentService):
            return [wire.encode(service.frozen)]
        if any(service is one for one in self.granted.services):
            service = ServiceLocation(str(kind_of_service(service)), HERE)
        with suppress(BadArgument):
            return [wire.encode(freeze_value(sendable(service), "service", 1))]
        return []

    def _encode_event(self, event: RemoteEvent) -> list[Any]:
        """An event with its service, encoded. Called from any thread."""
        about = event.after if isinstance(event, ServiceEvent) else None
        return [wire.encode_event(event), [] if about is None else self._reachable(about.service)]


def _left(thing: Any) -> float | None:
    """The remaining seconds of a lease; None for ever."""
    left: float | None = thing.lease.granted.remaining
    return left


# Leases


class GrantedLeases:
    """The services that a host offers, and the things that programs elsewhere have leased from
    them, by the ids that the programs chose."""

    def __init__(self) -> None:
        self.services: list[object] = []
        self._things: dict[str, tuple[Any, str]] = {}
        self._of_agent: Counter[str] = Counter()
        self._sweep_at = _SWEEP_MIN

    def lease(self, lease_id: str) -> Lease:
        """The lease with this id; BadArgument if it has ended."""
        thing = self._get(lease_id)
        if thing is None:
            raise BadArgument("lease", "a lease that has not ended", lease_id)
        lease: Lease = thing.lease
        return lease

    def find(self, lease_id: str, kind: type) -> Any:
        """The leased thing with this id; LeaseLost if it has ended."""
        thing = self._get(lease_id)
        if thing is None or not isinstance(thing, kind):
            raise LeaseLost("the lease has ended")
        return thing

    def room_for(self, caller: Caller, lease_id: str) -> Any:
        """The leased thing with this id; None if there is none, and one can be added. SpaceFull if
        this program has too many leases."""
        known = self._get(lease_id)
        if known is None and self._of_agent[caller.agent] >= LEASES_MAX:
            self._sweep()
            if self._of_agent[caller.agent] >= LEASES_MAX:
                raise SpaceFull(f"a program may have {LEASES_MAX} leases at a host, and has them")
        return known

    def add(self, caller: Caller, lease_id: str, thing: Any) -> Any:
        """Add a thing with a `lease`, unless there is one with this id; returns the one that is
        kept."""
        known = self._get(lease_id)
        if known is not None:
            return known
        self._forget(lease_id)
        self._things[lease_id] = thing, caller.agent
        self._of_agent[caller.agent] += 1
        if len(self._things) > self._sweep_at:
            self._sweep()
        return thing

    def _get(self, lease_id: str) -> Any:
        thing, _ = self._things.get(lease_id, (None, ""))
        return None if thing is None or _ended(thing) else thing

    def _forget(self, lease_id: str) -> None:
        if lease_id in self._things:
            _, agent = self._things.pop(lease_id)
            self._of_agent[agent] -= 1
            if not self._of_agent[agent]:
                del self._of_agent[agent]

    def _sweep(self) -> None:
        for lease_id in [name for name, (thing, _) in self._things.items() if _ended(thing)]:
            self._forget(lease_id)
        self._sweep_at = 2 * len(self._things) + _SWEEP_MIN


def _ended(thing: Any) -> bool:
    ended: bool = thing.lease.granted.thing.ended
    return ended


def _renew(thing: Any, lease: float) -> Any:
    thing.lease.renew(lease)
    return thing


def _cancel(thing: Any) -> None:
    thing.lease.cancel()


# Events for listeners elsewhere


class EventQueue:
    """The events for one program elsewhere. An event stays until the program has confirmed it, so
    that a lost link loses none."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.registrations: list[EventRegistration] = []
        self._loop = asyncio.get_running_loop()
        self._events: deque[tuple[int, str, Any]] = deque(maxlen=EVENTS_MAX)
        self._number = 0
        self._came = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether no listener is registered, and all events were fetched."""
        self.registrations = [one for one in self.registrations if one.active]
        return not self.registrations and not self._events

    def put_soon(self, tag: str, payload: Any) -> None:
        """Add an event, from any thread."""
        with suppress(RuntimeError):  # The host was closed.
            self._loop.call_soon_threadsafe(self._put, tag, payload)

    def _put(self, tag: str, payload: Any) -> None:
        self._number += 1
        self._events.append((self._number, tag, payload))
        self._came.set()

    async def fetch(self, received: int, wait: float | None) -> list[Any]:
        """The events after the number that the program has received; waits until there are some."""
        while self._events and self._events[0][0] <= received:
            self._events.popleft()
        if not self._events:
            self._came.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), wait)
        return [list(one) for one in list(self._events)[:BATCH_MAX]]


@dataclass(eq=False, repr=False)
class QueueListener:
    """A listener of a program elsewhere, which knows the listener by a tag."""

    queue: EventQueue
    _tag: str
    _encode: Callable[[RemoteEvent], Any]

    def __call__(self, event: RemoteEvent) -> None:
        try:
            self.queue.put_soon(self._tag, self._encode(event))
        except BadEntry as error:
            logger.warning("an event cannot be sent to a program elsewhere: %s", error)


async def _events(call: ServiceCall, queue_id: str, received: int) -> list[Any]:
    queue = call.offered.queues.get(queue_id)
    if queue is None or queue.agent != call.caller.agent or queue.is_over:
        raise LeaseLost("no listener is registered any more")
    return await queue.fetch(received, call.wait)


# Events of a mailbox


async def _begin(call: ServiceCall, registration: MailboxRegistration, received: int) -> str:
    """Begin a new iterator, which replaces others; returns its id."""
    await _settle(registration, received)
    return registration.new_reader("another iterator has replaced it").id


async def _next(
    call: ServiceCall, registration: MailboxRegistration, reader_id: str, received: int
) -> list[Any] | None:
    """The next event with its number; the same one again until the program has confirmed it."""
    reader = await _settle(registration, received, reader_id)
    if reader.out is None:
        wait = FETCH_SECONDS if call.wait is None else call.wait
        door = asynchronous.Space(registration.space)
        if await reader.fetch(wait, door, RESERVED_SECONDS + wait) is None:
            return None
        registration.sent += 1
        reader.number = registration.sent
    return [reader.number, reader.out.encoded]


async def _end(
    call: ServiceCall, registration: MailboxRegistration, reader_id: str, received: int
) -> None:
    """End the iterator."""
    (await _settle(registration, received, reader_id)).close()


async def _settle(
    registration: MailboxRegistration, received: int, reader_id: str | None = None
) -> Any:
    """The program has received the events up to this number: remove them. Returns the current
    reader."""
    reader = registration.reader
    if reader_id is not None and (reader is None or reader.id != reader_id):
        raise InvalidIterator("another iterator has replaced it")
    if reader is not None and reader.out is not None and 0 < reader.number <= received:
        # Even if the link is lost meanwhile: the program has the event.
        await asyncio.shield(asyncio.to_thread(reader.confirm))
    return reader


# The methods of the services


async def _describe(call: ServiceCall) -> list[Any]:
    """The description of the service, for a client that connects."""
    service = call.offered.service
    if isinstance(service, LookupService):
        return [service.service_id, list(service.groups), service.name]
    return []


def _counted(registration: MailboxRegistration) -> list[int]:
    return [registration.pending, registration.dropped]


METHODS = {
    "describe": RemoteMethod("read", _describe),
    "renew": RemoteMethod(None, _renew, (OfferedObject(object), LEASE)),
    "cancel": RemoteMethod(None, _cancel, (OfferedObject(object),)),
    "events": RemoteMethod(None, _events, (wire.Text, wire.Number)),
}


def _lookup(lookup: LookupService) -> dict[str, RemoteMethod]:
    registry, wanted, service = lookup.registry, wire.wanted, OfferedObject(RegisteredService)
    attributes = (service, wire.Number, wire.attributes)
    changes = (service, wire.Number, wire.templates, wire.changes)
    listening = (wanted, wire.anything, LISTENER, wire.anything, LEASE)
    return {
        "register": RemoteMethod(
            "write", registry.register, (wire.description, LEASE), grants=True
        ),
        "attributes": RemoteMethod(None, registry.attributes, (service,)),
        "add_attributes": RemoteMethod("write", registry.add_attributes, attributes),
        "set_attributes": RemoteMethod("write", registry.set_attributes, attributes),
        "modify_attributes": RemoteMethod("write", registry.modify_attributes, changes),
        "first": RemoteMethod("read", registry.first, (wanted,)),
        "find": RemoteMethod("read", registry.find, (wanted, wire.Number | None)),
        "kinds": RemoteMethod("read", registry.kinds, (wanted,)),
        "values": RemoteMethod("read", registry.values, (wanted, wire.Number, wire.Text)),
        "types": RemoteMethod("read", registry.types, (wanted, str)),
        "notify": RemoteMethod("subscribe", registry.notify, listening, grants=True),
    }


def _mailbox(mailbox: EventMailbox) -> dict[str, RemoteMethod]:
    box = OfferedObject(MailboxRegistration)
    reading = (box, wire.Text, wire.Number)
    return {
        "register": RemoteMethod("write", mailbox.register, (LEASE,), grants=True),
        "keep": RemoteMethod("write", MailboxRegistration.keep_encoded, (box, wire.sent_event)),
        "refuse": RemoteMethod("write", MailboxRegistration.refuse, (box, wire.sources)),
        "count": RemoteMethod("read", _counted, (box,)),
        "begin": RemoteMethod("take", _begin, (box, wire.Number)),
        "next": RemoteMethod("take", _next, reading),
        "end": RemoteMethod("take", _end, reading),
    }


def _renewals(service: LeaseRenewalService) -> dict[str, RemoteMethod]:
    sets, kept, value = LeaseRenewalSet, OfferedObject(LeaseRenewalSet), wire.anything
    warning, failure = (kept, LISTENER, value, value), (kept, LISTENER, value)
    return {
        "create": RemoteMethod("write", service.create_lease_renewal_set, (LEASE,), grants=True),
        "renew_for": RemoteMethod("write", sets.renew_for, (kept, LEASED, value, value)),
        "remove": RemoteMethod("write", sets.remove_named, (kept, wire.Text)),
        "lease_ids": RemoteMethod("read", sets.lease_ids, (kept,)),
        "warn": RemoteMethod("subscribe", sets.set_expiration_warning_listener, warning),
        "tell_failures": RemoteMethod("subscribe", sets.set_renewal_failure_listener, failure),
        "clear_warnings": RemoteMethod(
            "subscribe", sets.clear_expiration_warning_listener, (kept,)
        ),
        "clear_failures": RemoteMethod("subscribe", sets.clear_renewal_failure_listener, (kept,)),
    }


_METHODS: dict[str, Callable[[Any], dict[str, RemoteMethod]]] = {
    "lookup": _lookup,
    "mailbox": _mailbox,
    "lease renewal": _renewals,
}


_offers: WeakKeyDictionary[HostDoor, GrantedLeases] = WeakKeyDictionary()


def offer(
    host: HostDoor,
    service: LookupService | EventMailbox | LeaseRenewalService,
    *,
    lease_max: float = LEASE_MAX_SECONDS,
    access: Access | None = None,
) -> ServiceLocation:
    """Let a host serve a LookupService, an EventMailbox or a LeaseRenewalService to programs
    elsewhere. It replaces a service of the same kind. Returns the location of the service.

    A lease is granted for at most `lease_max` seconds. `access` has the permissions, as of a space:
    find services (read), register (write), listen (subscribe), fetch events (take). Clients find
    the service at the host's address; a lookup service with groups can also be announced: see
    `announce`.
    """
    if not isinstance(host, HostDoor):
        raise BadArgument("host", "a tupelo.Host", host)
    kind = kind_of_service(service)
    if kind is None:
        what = "a LookupService, an EventMailbox or a LeaseRenewalService"
        raise BadArgument("service", what, service)
    longest = seconds_asked(lease_max, name="lease_max")

    def make(core: Any) -> OfferedService:
        if not core.address:
            raise BadArgument("host", "one that listens", host)
        known = _offers.setdefault(host, GrantedLeases())
        known.services.append(service)
        return OfferedService(kind, service, known, FOREVER if longest is None else longest)

    host.offer(SERVICE_NAMES[kind], make, access=access)
    return ServiceLocation(kind, host.url)
