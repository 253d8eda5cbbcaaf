"""Leases of a JavaSpace: renewed and cancelled one by one, or many in one call.

| Jini                                | Tupelo                                                 |
| ----------------------------------- | ------------------------------------------------------ |
| Lease, Lease.FOREVER, Lease.ANY     | the engine's lease in `granted`; None is for ever      |
| getExpiration                       | expiration, in seconds since the epoch                 |
| UnknownLeaseException               | LeaseLost                                              |
| LeaseMap, LeaseMapException         | LeaseMap; the errors are in the LeaseOutcome           |
| Landlord, LeasePeriodPolicy         | the space that granted it, its `lease_policy`          |

Leases of the async API are awaited: `await lease.renew(10)`. Leases of a lookup service, a mailbox
or a lease renewal service in this program are not: they never wait.

Services keep each leased thing as a `Tenant` of a `Tenancy`: when a lease expires or is cancelled,
the tenant is called at once, so that the service can remove what it keeps beside its space.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, cast

import msgspec

from tupelo.errors import BadArgument, LeaseLost, TupeloError
from tupelo.space.blocking import Space
from tupelo.space.clock import SystemClock
from tupelo.space.dual_api import dual_api, maybe_await
from tupelo.space.port import port_of
from tupelo.values import lease as engine
from tupelo.values.checks import is_number
from tupelo.values.lease import LeasePolicy, check_lease

FOREVER = math.inf
ANY_LEASE = -1
"""A lease of the length that the grantor prefers."""
_NO_TIME = math.ulp(0.0)  # Above 0, and yet it changes no moment to which it is added.


def seconds_asked(duration: object, name: str = "lease", *, zero: bool = False) -> float | None:
    """A duration as a space expects it: None for FOREVER, the engine's ANY_LEASE for ANY. A lease
    of 0 ends as soon as it begins; it is refused unless `zero`."""
    if duration == math.inf:
        return None
    if is_number(duration) and duration == ANY_LEASE:
        return engine.ANY_LEASE
    if is_number(duration) and zero and duration == 0:
        return _NO_TIME
    if not is_number(duration) or not duration > 0:
        least = "0 or more" if zero else "above 0"
        raise BadArgument(name, f"a number of seconds {least}, FOREVER or ANY", duration)
    return check_lease(duration, name)


class EventDelivery(Protocol):
    """The delivery of events to a listener: how many were `missed`, and how to stop it."""

    missed: int

    def call_off(self) -> None:
        """Deliver no more events, not even those that wait."""
        ...


class Lease(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The lifetime of an entry, transaction, registration or match set. `renew` and `cancel` raise
    LeaseLost after it has ended.

    Two leases are equal if they belong to the same thing.
    """

    granted: engine.Leased
    delivery: EventDelivery | None = None
    """The delivery to a listener, if this is the lease of a registration; `cancel` stops it."""

    FOREVER: ClassVar[float] = FOREVER
    ANY: ClassVar[float] = ANY_LEASE

    @property
    def expiration(self) -> float:
        """When the lease ends, in seconds since the epoch; FOREVER for never."""
        expires: float | None = self.granted.thing.expires
        return FOREVER if expires is None else expires

    def renew(self, duration: float) -> None:
        """Ask for `duration` seconds from now; `expiration` says what was granted. With 0 the lease
        ends now."""
        granted = self.granted
        seconds = seconds_asked(duration, "duration", zero=True)
        granted.landlord.renew_lease(granted.thing, seconds)

    def cancel(self) -> None:
        """End the lease now: an entry is removed, a transaction aborted, a listener dropped."""
        self.granted.landlord.cancel_lease(self.granted.thing)
        self.ended_by_cancel()

    def ended_by_cancel(self) -> None:
        """Called after the lease was cancelled, by itself or in a LeaseMap."""
        if self.delivery is not None:
            self.delivery.call_off()

    def can_batch(self, other: object) -> bool:
        """Whether both are renewed in one step. A LeaseMap accepts leases for which this is
        False."""
        return isinstance(other, Lease) and other.granted.landlord is self.granted.landlord

    def create_lease_map(self, duration: float) -> LeaseMap:
        """A LeaseMap that contains this lease."""
        return LeaseMap({self: duration})

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Lease)
            and other.granted.thing is self.granted.thing
            and other.granted.landlord is self.granted.landlord
        )

    def __hash__(self) -> int:
        return id(self.granted.thing)

    def __repr__(self) -> str:
        return f"Lease(expiration={self.expiration})"


class AsyncLease(Lease, frozen=True, eq=False):
    """A lease of the async API: `renew` and `cancel` are awaited."""

    async def renew(self, duration: float) -> None:  # type: ignore[override]
        granted = self.granted
        seconds = seconds_asked(duration, "duration", zero=True)
        await granted.landlord.renew_lease_async(granted.thing, seconds)

    async def cancel(self) -> None:  # type: ignore[override]
        await self.granted.landlord.cancel_lease_async(self.granted.thing)
        self.ended_by_cancel()


def lease_of(granted: engine.Leased, delivery: EventDelivery | None = None) -> Lease:
    """A Lease, or AsyncLease, for a lease that a space has granted."""
    kind = AsyncLease if isinstance(granted, engine.AsyncLease) else Lease
    return kind(granted, delivery)


@dataclass
class LeaseOutcome:
    """The result of renewing or cancelling a LeaseMap; `failed` has the error of each lease."""

    renewed: list[Lease] = field(default_factory=list)
    cancelled: list[Lease] = field(default_factory=list)
    failed: dict[Lease, Exception] = field(default_factory=dict)


class LeaseMap(MutableMapping[Lease, float]):
    """Leases, each with the seconds to renew it for, renewed or cancelled in one call. The call is
    awaited if the map contains an AsyncLease.

    Leases of one space in this program are handled in one step with one disk write. Leases of
    several spaces and services may be mixed; each fails or succeeds on its own.
    """

    def __init__(self, leases: Mapping[Lease, float] | Iterable[tuple[Lease, float]] = ()) -> None:
        self._durations: dict[Lease, float] = {}
        self.update(leases)

    @property
    def is_async(self) -> bool:
        """Whether the map contains an AsyncLease, so that its methods are awaited."""
        return any(isinstance(lease, AsyncLease) for lease in self._durations)

    @dual_api
    async def renew_all(self) -> LeaseOutcome:
        """Renew each lease for its duration. Leases that fail are removed from the map."""
        outcome = LeaseOutcome()
        for leases in self._by_landlord():
            asked = [seconds_asked(self._durations[lease], zero=True) for lease in leases]
            for lease, error in zip(leases, await renew_many(leases, asked), strict=True):
                if error is None:
                    outcome.renewed.append(lease)
                else:
                    outcome.failed[lease] = error
                    self._durations.pop(lease, None)
        return outcome

    @dual_api
    async def cancel_all(self) -> LeaseOutcome:
        """Cancel each lease. The map is empty afterwards."""
        outcome = LeaseOutcome()
        for leases in self._by_landlord():
            for lease, error in zip(leases, await _cancel_many(leases), strict=True):
                if error is None:
                    lease.ended_by_cancel()
                    outcome.cancelled.append(lease)
                else:
                    outcome.failed[lease] = error
        self._durations.clear()
        return outcome

    def can_contain_key(self, lease: object) -> bool:
        """Whether this can be put into the map: every lease can."""
        return isinstance(lease, Lease)

    def _by_landlord(self) -> list[list[Lease]]:
        groups: dict[tuple[int, bool], list[Lease]] = {}
        for lease in self._durations:
            key = id(lease.granted.landlord), isinstance(lease, AsyncLease)
            groups.setdefault(key, []).append(lease)
        return list(groups.values())

    def __getitem__(self, lease: Lease) -> float:
        return self._durations[lease]

    def __setitem__(self, lease: Lease, duration: float) -> None:
        if not isinstance(lease, Lease):
            raise BadArgument("lease", "a Lease of this package", lease)
        seconds_asked(duration, name="duration", zero=True)
        self._durations[lease] = duration

    def __delitem__(self, lease: Lease) -> None:
        del self._durations[lease]

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._durations)

    def __len__(self) -> int:
        return len(self._durations)

    def __repr__(self) -> str:
        return f"LeaseMap({self._durations!r})"


async def renew_many(leases: list[Lease], seconds: list[float | None]) -> list[Exception | None]:
    """Renew leases of one landlord, in one step if it supports that. Returns the error of each, or
    None."""
    wanted = [(lease.granted.thing, one) for lease, one in zip(leases, seconds, strict=True)]
    return await _ask_landlord(leases[0], "renew_lease", wanted, wanted)


async def _cancel_many(leases: list[Lease]) -> list[Exception | None]:
    things = [lease.granted.thing for lease in leases]
    return await _ask_landlord(leases[0], "cancel_lease", things, [(thing,) for thing in things])


async def _ask_landlord(
    lease: Lease, what: str, items: list[Any], arguments: list[Any]
) -> list[Exception | None]:
    """Call the landlord's method for many items, or its method for one item with each arguments."""
    landlord: Any = lease.granted.landlord
    is_async = isinstance(lease, AsyncLease)
    many = None if is_async else getattr(landlord, f"{what}s", None)
    if many is not None:
        try:
            errors: list[Exception | None] = many(items)
        except Exception as error:  # The space is closed, or its disk has failed: none was done.
            errors = [error] * len(items)
        return errors
    one = getattr(landlord, f"{what}_async" if is_async else what)
    errors = []
    for args in arguments:
        try:
            await maybe_await(one(*args))
            errors.append(None)
        except Exception as error:
            errors.append(error)
    return errors


class FixedLeasePeriodPolicy:
    """Grants what is asked for, at most `maximum` seconds, and `default` for ANY.

    Give it to a space: `tupelo.Space(lease_policy=FixedLeasePeriodPolicy(60, 10))`.
    """

    def __init__(self, maximum: float = FOREVER, default: float | None = None) -> None:
        self.maximum = check_lease(maximum, "maximum")
        limit = self.maximum
        self.default = limit if default is None else check_lease(default, "default")
        if limit is not None and (self.default is None or self.default > limit):
            raise BadArgument("default", f"a number of seconds up to maximum={limit:g}", default)

    def __call__(self, kind: str, asked: float | None) -> float | None:
        limit = self.maximum
        return asked if limit is None else limit if asked is None else min(asked, limit)

    def preferred(self, kind: str) -> float | None:
        """The seconds that are granted for ANY."""
        return self.default

    def __repr__(self) -> str:
        return f"FixedLeasePeriodPolicy({self.maximum}, {self.default})"


class PolicyByKind:
    """A policy for each kind of thing: `PolicyByKind(entry=FixedLeasePeriodPolicy(60))`.

    The kinds are entry, transaction, subscription, session and match_set. A kind without a policy
    is granted what is asked for.
    """

    KINDS = ("entry", "transaction", "subscription", "session", "match_set")

    def __init__(self, **policies: LeasePolicy) -> None:
        for kind, policy in policies.items():
            if kind not in self.KINDS:
                raise BadArgument(kind, f"one of {', '.join(self.KINDS)}", kind)
            if not callable(policy):
                raise BadArgument(kind, "a policy such as FixedLeasePeriodPolicy(60)", policy)
        self.policies = {kind.replace("_", " "): policy for kind, policy in policies.items()}

    def __repr__(self) -> str:
        given = (f"{kind.replace(' ', '_')}={policy}" for kind, policy in self.policies.items())
        return f"PolicyByKind({', '.join(given)})"

    def __call__(self, kind: str, asked: float | None) -> float | None:
        policy = self.policies.get(kind)
        return asked if policy is None else policy(kind, asked)

    def preferred(self, kind: str) -> float | None:
        """The seconds that are granted for ANY."""
        preferred = getattr(self.policies.get(kind), "preferred", None)
        return None if preferred is None else cast("float | None", preferred(kind))


class Tenant:
    """Something that a service has leased, represented by an entry in the service's space. The
    entry may be replaced while the lease goes on."""

    def __init__(
        self, tenancy: Tenancy, granted: engine.Lease, on_end: Callable[[], object]
    ) -> None:
        self.granted = granted  # the lease of the entry
        self.lease_ended = on_end
        """Frees the resources of the tenant, and removes the entry if it is there. Called once."""
        self.left = False  # Its end was handled.
        self.alarm_at = FOREVER
        self.cancel_alarm: Callable[[], None] = lambda: None
        self._tenancy = tenancy
        tenancy.watch(self)

    @property
    def expires(self) -> float | None:
        """When the lease ends; None for never."""
        return self.granted.expires

    @property
    def ended(self) -> bool:
        """Whether the lease has ended by now, even if the service has not noticed yet."""
        ended: bool = self.granted.thing.ended
        expires = self.granted.expires
        return (
            self.left or ended or (expires is not None and expires <= self.granted.landlord.now())
        )

    @property
    def active(self) -> bool:
        """Whether the lease has not ended."""
        return not self.ended

    @property
    def lease(self) -> Lease:
        """The lease, as the client of the service gets it."""
        return Lease(engine.Lease(self._tenancy, self))

    def renewed(self) -> None:
        """Called after an attempt to renew the lease."""


class Tenancy:
    """The landlord of tenants. Leases are renewed and cancelled while holding the `guard`.

    In a durable space with the system clock, an expired tenant is ended on a thread of its own:
    `lease_ended` waits for the disk, and the clock's thread must not.
    """

    def __init__(self, space: Space, guard: threading.RLock) -> None:
        self._port = port_of(space)
        self._clock = self._port.clock
        self._guard = guard
        self._threads = isinstance(self._clock, SystemClock) and self._port.journaled
        self._lock = threading.Lock()

    def replace(self, tenant: Tenant, granted: engine.Lease) -> None:
        """Another entry represents the tenant from now on."""
        tenant.granted = granted
        self.watch(tenant)

    def evict(self, tenant: Tenant) -> bool:
        """End a tenant without calling `lease_ended`. False if it had ended before."""
        with self._lock:
            before, tenant.left = tenant.left, True
        tenant.cancel_alarm()
        return not before

    def end(self, tenant: Tenant) -> None:
        """End a tenant now, unless it has ended before."""
        if self.evict(tenant):
            tenant.lease_ended()

    # As a landlord of leases

    def now(self) -> float:
        return self._clock.now()

    def renew_lease(self, tenant: Tenant, seconds: float | None) -> None:
        _raise(self.renew_leases([(tenant, seconds)]))

    def cancel_lease(self, tenant: Tenant) -> None:
        _raise(self.cancel_leases([tenant]))

    def renew_leases(self, wanted: list[tuple[Tenant, float | None]]) -> list[Exception | None]:
        with self._guard:
            outcomes = self._port.renew_leases(
                [(tenant.granted.thing, seconds) for tenant, seconds in wanted]
            )
            for tenant, _ in wanted:
                self.watch(tenant)
                tenant.renewed()
        return [*outcomes]

    def cancel_leases(self, tenants: list[Tenant]) -> list[Exception | None]:
        outcomes: list[Exception | None] = []
        with self._guard:
            for tenant in tenants:
                if tenant.ended or not self.evict(tenant):
                    outcomes.append(LeaseLost("it is gone; there is nothing to cancel"))
                    continue
                try:
                    tenant.lease_ended()
                    outcomes.append(None)
                except TupeloError as error:
                    outcomes.append(error)
        return outcomes

    async def renew_lease_async(self, tenant: Tenant, seconds: float | None) -> None:
        self.renew_lease(tenant, seconds)

    async def cancel_lease_async(self, tenant: Tenant) -> None:
        self.cancel_lease(tenant)

    # Ending by itself

    def watch(self, tenant: Tenant) -> None:
        """Set the alarm for the end of the lease, unless an earlier alarm is set: that one checks
        again."""
        expires = tenant.expires

        def on_alarm() -> None:
            if self._threads:
                threading.Thread(
                    target=self._check, args=(tenant,), name="tupelo-tenancy", daemon=True
                ).start()
            else:
                self._check(tenant)

        with self._lock:
            if not tenant.left and expires is not None and expires < tenant.alarm_at:
                tenant.cancel_alarm()
                tenant.alarm_at = expires
                tenant.cancel_alarm = self._clock.call_at(expires, on_alarm)

    def _check(self, tenant: Tenant) -> None:
        """End the tenant, unless its lease was renewed meanwhile."""
        with self._lock:
            tenant.alarm_at = FOREVER
        with self._guard:
            if not tenant.ended:
                self.watch(tenant)
            else:
                self.end(tenant)


def _raise(outcomes: list[Exception | None]) -> None:
    if outcomes[0] is not None:
        raise outcomes[0]
