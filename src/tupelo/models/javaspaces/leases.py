"""Leases: what a JavaSpace grants, renewed and cancelled one by one or many in one call.

| Jini                                | Tupelo                                                 |
| ----------------------------------- | ------------------------------------------------------ |
| Lease, Lease.FOREVER, Lease.ANY     | the engine's lease in `granted`; None is for ever      |
| getExpiration                       | expiration, in seconds since the epoch                 |
| UnknownLeaseException               | LeaseLost                                              |
| LeaseMap, LeaseMapException         | LeaseMap; the errors are in the LeaseOutcome           |
| Landlord, LeasePeriodPolicy         | the space that granted it, its `lease_policy`          |

Leases of the async door are awaited: `await lease.renew(10)`. Those of a lookup service, a mailbox
or a lease renewal service in this program answer at once, and are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, cast

import msgspec

from tupelo.errors import BadArgument
from tupelo.space.dual_api import dual_api, maybe_await
from tupelo.values import lease as engine
from tupelo.values.lease import LeasePolicy, check_lease

FOREVER = math.inf
ANY_LEASE = -1
"""As long as the one who grants it prefers."""
_NO_TIME = math.ulp(0.0)  # Added to any moment, it gives that moment.


def seconds_asked(duration: object, name: str = "lease", *, zero: bool = False) -> float | None:
    """What a space is asked for: None for FOREVER, and its own ANY_LEASE for ANY. A lease of 0 is
    over when it begins; the specification allows it for some things only."""
    if duration == math.inf:
        return None
    number = isinstance(duration, (int, float)) and not isinstance(duration, bool)
    if number and duration == ANY_LEASE:
        return engine.ANY_LEASE
    if number and zero and duration == 0:
        return _NO_TIME
    if not number or not duration > 0:  # type: ignore[operator]
        least = "0 or more" if zero else "above 0"
        raise BadArgument(name, f"a number of seconds {least}, FOREVER or ANY", duration)
    return check_lease(duration, name)


class LeaseNotice(Protocol):
    """How a listener is told: how many events it has missed, and an end to it."""

    missed: int

    def call_off(self) -> None: ...


class Lease(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Until when something lives. `renew` and `cancel` raise LeaseLost once it is gone.

    Leases are equal if they are of the same thing, however they were come by.
    """

    granted: engine.Leased
    telling: LeaseNotice | None = None
    """What waits for a listener, if it is the lease of a registration: called off by cancelling."""

    FOREVER: ClassVar[float] = FOREVER
    ANY: ClassVar[float] = ANY_LEASE

    @property
    def expiration(self) -> float:
        """The moment, in seconds since the epoch, at which it ends; FOREVER for never."""
        expires: float | None = self.granted.thing.expires
        return FOREVER if expires is None else expires

    def renew(self, duration: float) -> None:
        """Live for `duration` seconds from now, or as long as is granted: see `expiration`. For 0
        it ends now."""
        granted = self.granted
        seconds = seconds_asked(duration, "duration", zero=True)
        granted.landlord.renew_lease(granted.thing, seconds)

    def cancel(self) -> None:
        """End it now: an entry is removed, a transaction aborted, a listener forgotten."""
        self.granted.landlord.cancel_lease(self.granted.thing)
        self.ended_by_cancel()

    def ended_by_cancel(self) -> None:
        """It was cancelled, alone or with others."""
        if self.telling is not None:
            self.telling.call_off()

    def can_batch(self, other: object) -> bool:
        """Would both be renewed in one step? A LeaseMap takes them all the same if not."""
        return isinstance(other, Lease) and other.granted.landlord is self.granted.landlord

    def create_lease_map(self, duration: float) -> LeaseMap:
        """A map of leases, with this one in it."""
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
    """A lease of the async door: `renew` and `cancel` are awaited."""

    async def renew(self, duration: float) -> None:  # type: ignore[override]
        granted = self.granted
        seconds = seconds_asked(duration, "duration", zero=True)
        await granted.landlord.renew_lease_async(granted.thing, seconds)

    async def cancel(self) -> None:  # type: ignore[override]
        await self.granted.landlord.cancel_lease_async(self.granted.thing)
        self.ended_by_cancel()


def lease_of(granted: engine.Leased, telling: LeaseNotice | None = None) -> Lease:
    """The lease of this package for one that a space has granted, at the same door."""
    kind = AsyncLease if isinstance(granted, engine.AsyncLease) else Lease
    return kind(granted, telling)


@dataclass
class LeaseOutcome:
    """What became of each lease of a map; `failed` tells why."""

    renewed: list[Lease] = field(default_factory=list)
    cancelled: list[Lease] = field(default_factory=list)
    failed: dict[Lease, Exception] = field(default_factory=dict)


class LeaseMap(MutableMapping[Lease, float]):
    """Leases, each with the seconds to renew it for; renewed or cancelled in one call, which is
    awaited if there are leases of the async door among them.

    The leases of one space of this program go in one step, and wait for its disk once. Leases of
    several spaces, and of services, may be mixed: what happens to one says nothing about the
    others.
    """

    def __init__(self, leases: Mapping[Lease, float] | Iterable[tuple[Lease, float]] = ()) -> None:
        self._durations: dict[Lease, float] = {}
        self.update(leases)

    @property
    def is_async(self) -> bool:
        return any(isinstance(lease, AsyncLease) for lease in self._durations)

    @dual_api
    async def renew_all(self) -> LeaseOutcome:
        """Renew each one for its duration. Those that fail are in the map no more."""
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
        """Cancel each one. The map is empty afterwards: there is nothing left to renew."""
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
        """May this be put into the map? Every lease may."""
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
    """Renew leases of one landlord and door, in one step if it can; the error of each, or None. It
    waits for a loop only if they are of the async door."""
    wanted = [(lease.granted.thing, one) for lease, one in zip(leases, seconds, strict=True)]
    return await _ask_landlord(leases[0], "renew_lease", wanted, wanted)


async def _cancel_many(leases: list[Lease]) -> list[Exception | None]:
    things = [lease.granted.thing for lease in leases]
    return await _ask_landlord(leases[0], "cancel_lease", things, [(thing,) for thing in things])


async def _ask_landlord(
    lease: Lease, what: str, items: list[Any], arguments: list[Any]
) -> list[Exception | None]:
    """Call the method of its landlord for many items, or that for one with each arguments."""
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
    """Grants what is asked for, `maximum` seconds at most; to one who asks for ANY, `default`.

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
        """For one who asks for ANY."""
        return self.default

    def __repr__(self) -> str:
        return f"FixedLeasePeriodPolicy({self.maximum}, {self.default})"


class PolicyByKind:
    """A policy for each kind of thing: `PolicyByKind(entry=FixedLeasePeriodPolicy(60))`.

    The kinds are entry, transaction, subscription, session and match_set; what has no policy is
    granted what is asked for.
    """

    KINDS = ("entry", "transaction", "subscription", "session", "match_set")

    def __init__(self, **policies: LeasePolicy) -> None:
        for kind, policy in policies.items():
            if kind not in self.KINDS:
                raise BadArgument(kind, f"one of {', '.join(self.KINDS)}", kind)
            if not callable(policy):
                raise BadArgument(kind, "a policy such as FixedLeasePeriodPolicy(60)", policy)
        self.policies = {kind.replace("_", " "): policy for kind, policy in policies.items()}

    def __call__(self, kind: str, asked: float | None) -> float | None:
        policy = self.policies.get(kind)
        return asked if policy is None else policy(kind, asked)

    def preferred(self, kind: str) -> float | None:
        """For one who asks for ANY."""
        preferred = getattr(self.policies.get(kind), "preferred", None)
        return None if preferred is None else cast("float | None", preferred(kind))
