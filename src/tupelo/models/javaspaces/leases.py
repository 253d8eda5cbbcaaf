"""Leases: what a JavaSpace grants, renewed and cancelled one by one or many in one call.

| Jini                                | Tupelo                                                 |
| ----------------------------------- | ------------------------------------------------------ |
| Lease, Lease.FOREVER, Lease.ANY     | the engine's lease in `granted`; None is for ever      |
| getExpiration                       | expiration, in seconds since the epoch                 |
| UnknownLeaseException               | LeaseLost                                              |
| LeaseMap, LeaseMapException         | LeaseMap; the errors are in the LeaseOutcome           |
| Landlord, LeasePeriodPolicy         | the space that granted it, its `lease_policy`          |

Renewing and cancelling answer at once and are not awaited, whatever the door; they wait for
nothing but the disk of a durable space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from tupelo.errors import BadArgument
from tupelo.space.leases import kind_of
from tupelo.values import lease as engine
from tupelo.values.lease import LeasePolicy, check_lease

FOREVER = math.inf
ANY_LEASE = -1
"""As long as the one who grants it prefers."""


def seconds_asked(
    duration: object, any_lease: float | None = None, name: str = "lease"
) -> float | None:
    """What the engine is asked for: None for FOREVER, `any_lease` for ANY."""
    if duration == math.inf:
        return None
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise BadArgument(name, "a number of seconds above 0, FOREVER or ANY", duration)
    if duration == ANY_LEASE:
        return any_lease
    if not duration > 0:
        raise BadArgument(name, "a number of seconds above 0, FOREVER or ANY", duration)
    return check_lease(duration, name)


def any_lease_of(landlord: object, kind: str = "entry") -> float | None:
    """How long a lease of such a thing the landlord's policy prefers; None for ever, or if it does
    not say."""
    policy = getattr(getattr(landlord, "core", None), "lease_policy", None)
    if isinstance(policy, PolicyByKind):
        policy = policy.policies.get(kind)
    return getattr(policy, "default", None)


class Lease(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Until when something lives. `renew` and `cancel` raise LeaseLost once it is gone.

    Leases are equal if they are of the same thing, however they were come by.
    """

    granted: engine.Lease

    FOREVER: ClassVar[float] = FOREVER
    ANY: ClassVar[float] = ANY_LEASE

    @property
    def expiration(self) -> float:
        """The moment, in seconds since the epoch, at which it ends; FOREVER for never."""
        expires: float | None = self.granted.thing.expires
        return FOREVER if expires is None else expires

    def renew(self, duration: float) -> None:
        """Live for `duration` seconds from now, or as long as is granted: see `expiration`."""
        granted = self.granted
        granted.landlord.renew_lease(granted.thing, asked_of(self, duration, "duration"))

    def cancel(self) -> None:
        """End it now: an entry is removed, a transaction aborted, a listener forgotten."""
        self.granted.cancel()

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


def asked_of(lease: Lease, duration: object, name: str = "lease") -> float | None:
    """What its landlord is asked for, when this lease is renewed."""
    granted = lease.granted
    return seconds_asked(duration, any_lease_of(granted.landlord, kind_of(granted.thing)), name)


@dataclass
class LeaseOutcome:
    """What became of each lease of a map; `failed` tells why."""

    renewed: list[Lease] = field(default_factory=list)
    cancelled: list[Lease] = field(default_factory=list)
    failed: dict[Lease, Exception] = field(default_factory=dict)


class LeaseMap(MutableMapping[Lease, float]):
    """Leases, each with the seconds to renew it for; renewed or cancelled in one call.

    The leases of one space go in one step, and wait for its disk once. Leases of several spaces,
    and of a lookup service, may be mixed: what happens to one says nothing about the others.
    """

    def __init__(self, leases: Mapping[Lease, float] | Iterable[tuple[Lease, float]] = ()) -> None:
        self._durations: dict[Lease, float] = {}
        self.update(leases)

    def renew_all(self) -> LeaseOutcome:
        """Renew each one for its duration. Those that fail are in the map no more."""
        outcome = LeaseOutcome()
        for landlord, leases in self._by_landlord():
            asked = [asked_of(lease, self._durations[lease]) for lease in leases]
            errors = _renew(landlord, leases, asked)
            for lease, error in zip(leases, errors, strict=True):
                if error is None:
                    outcome.renewed.append(lease)
                else:
                    outcome.failed[lease] = error
                    del self._durations[lease]
        return outcome

    def cancel_all(self) -> LeaseOutcome:
        """Cancel each one. The map is empty afterwards: there is nothing left to renew."""
        outcome = LeaseOutcome()
        for landlord, leases in self._by_landlord():
            for lease, error in zip(leases, _cancel(landlord, leases), strict=True):
                if error is None:
                    outcome.cancelled.append(lease)
                else:
                    outcome.failed[lease] = error
        self._durations.clear()
        return outcome

    def can_contain_key(self, lease: object) -> bool:
        """May this be put into the map? Every lease may."""
        return isinstance(lease, Lease)

    def _by_landlord(self) -> list[tuple[Any, list[Lease]]]:
        groups: dict[int, tuple[Any, list[Lease]]] = {}
        for lease in self._durations:
            landlord = lease.granted.landlord
            groups.setdefault(id(landlord), (landlord, []))[1].append(lease)
        return list(groups.values())

    def __getitem__(self, lease: Lease) -> float:
        return self._durations[lease]

    def __setitem__(self, lease: Lease, duration: float) -> None:
        if not isinstance(lease, Lease):
            raise BadArgument("lease", "a Lease of this package", lease)
        seconds_asked(duration, name="duration")
        self._durations[lease] = duration

    def __delitem__(self, lease: Lease) -> None:
        del self._durations[lease]

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._durations)

    def __len__(self) -> int:
        return len(self._durations)

    def __repr__(self) -> str:
        return f"LeaseMap({self._durations!r})"


def renew_many(leases: list[Lease], seconds: list[float | None]) -> list[Exception | None]:
    """Renew leases of one landlord in one step; the error of each, or None."""
    return _renew(leases[0].granted.landlord, leases, seconds)


def _renew(
    landlord: Any, leases: list[Lease], seconds: list[float | None]
) -> list[Exception | None]:
    things = [lease.granted.thing for lease in leases]
    many = getattr(landlord, "renew_leases", None)
    if many is None:
        return [
            _attempt(landlord.renew_lease, thing, asked)
            for thing, asked in zip(things, seconds, strict=True)
        ]
    return _attempt_many(many, list(zip(things, seconds, strict=True)))


def _cancel(landlord: Any, leases: list[Lease]) -> list[Exception | None]:
    things = [lease.granted.thing for lease in leases]
    many = getattr(landlord, "cancel_leases", None)
    if many is None:
        return [_attempt(landlord.cancel_lease, thing) for thing in things]
    return _attempt_many(many, things)


def _attempt(function: Callable[..., object], *args: Any) -> Exception | None:
    try:
        function(*args)
    except Exception as error:
        return error
    return None


def _attempt_many(
    function: Callable[[list[Any]], list[Exception | None]], items: list[Any]
) -> list[Exception | None]:
    try:
        return function(items)
    except Exception as error:  # The space is closed, or its disk has failed: none was done.
        return [error] * len(items)


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
