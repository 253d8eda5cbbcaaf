"""The Jini services as programs elsewhere use them: a lookup service, a mailbox and a lease renewal
service at a host."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from tupelo.errors import (
    BadArgument,
    InvalidIterator,
    LeaseLost,
)
from tupelo.federation.client.arguments import listed, parts
from tupelo.models.javaspaces.discovery import LookupLocator
from tupelo.models.javaspaces.event_sender import EventSender, target_of
from tupelo.models.javaspaces.events import (
    EventRegistration,
    Notifier,
    RemoteEvent,
    RemoteEventIterator,
    listening,
)
from tupelo.models.javaspaces.leases import FOREVER, Lease
from tupelo.models.javaspaces.lookup import Registrar
from tupelo.models.javaspaces.mailbox import sources_of
from tupelo.models.javaspaces.remote import wire
from tupelo.models.javaspaces.remote.clients import (
    MailboxListener,
    RemoteLeaseHolder,
    RemoteService,
)
from tupelo.models.javaspaces.remote.hosting import FETCH_SECONDS
from tupelo.models.javaspaces.remote.locations import sendable
from tupelo.models.javaspaces.renewal_sets import RenewalFailureEvent
from tupelo.models.javaspaces.services import (
    CompiledTemplate,
    Description,
    SentTemplate,
    ServiceItem,
    description_of,
    types_of_service,
)
from tupelo.space.dual_api import Async, Blocking, dual_api
from tupelo.space.query import check_wait
from tupelo.values.entry import freeze_value
from tupelo.values.kind import Kind

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
