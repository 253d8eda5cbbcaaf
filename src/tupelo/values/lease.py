"""Leases: limited lifetimes of entries, transactions, subscriptions and sessions.

A lease is a handle on a leased object (anything with `expires`); the space that granted it, its
landlord, renews and cancels it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from tupelo.errors import BadArgument
from tupelo.values.checks import is_number

LeasePolicy = Callable[[str, float | None], float | None]
"""(kind of object, seconds requested or None for ever) -> seconds granted or None for ever."""


ANY_LEASE: Final = -math.inf
"""Requests the duration that the space's policy prefers, see `LeasePolicy.preferred`."""


class Landlord(Protocol):
    """Grants leases. A landlord of one API only raises TypeError at the other."""

    def renew_lease(self, thing: Any, seconds: float | None) -> None: ...

    def cancel_lease(self, thing: Any) -> None: ...

    async def renew_lease_async(self, thing: Any, seconds: float | None) -> None: ...

    async def cancel_lease_async(self, thing: Any) -> None: ...

    def now(self) -> float:
        """The time on the clock that ends its leases."""
        ...


class Leased(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Common part of `Lease` and `AsyncLease`."""

    landlord: Landlord
    thing: Any

    @property
    def expires(self) -> float | None:
        """The moment at which it ends, in seconds since the epoch; None for never."""
        expires: float | None = self.thing.expires
        return expires

    @property
    def remaining(self) -> float | None:
        """Seconds left, by the clock as it was last known here; None for ever."""
        expires = self.expires
        return None if expires is None else max(0.0, expires - self.landlord.now())

    def __repr__(self) -> str:
        expires = getattr(self.thing, "expires", None)
        return f"<{type(self).__name__} of {self.thing!r}, expires={expires}>"


class Lease(Leased, frozen=True, eq=False, gc=False):
    """A limited lifetime; `renew()` and `cancel()` raise LeaseLost once it has ended."""

    def renew(self, seconds: float | None) -> None:
        """Live for `seconds` from now (None: for ever), or as long as the space's policy grants. A
        delayed entry lives for `seconds` from the moment when it becomes visible."""
        self.landlord.renew_lease(self.thing, check_lease(seconds))

    def cancel(self) -> None:
        """End it now: an entry is removed, a transaction aborted, a subscription closed."""
        self.landlord.cancel_lease(self.thing)


class AsyncLease(Leased, frozen=True, eq=False, gc=False):
    """A limited lifetime; `await lease.renew(seconds)` and `await lease.cancel()` raise LeaseLost
    once it has ended."""

    async def refresh(self) -> None:
        """Ask the host for its time, so that `remaining` is exact."""
        refresh = getattr(self.landlord, "refresh", None)
        if refresh is not None:
            await refresh()

    async def renew(self, seconds: float | None) -> None:
        """Live for `seconds` from now (None: for ever), or as long as the space's policy grants."""
        await self.landlord.renew_lease_async(self.thing, check_lease(seconds))

    async def cancel(self) -> None:
        """End it now: an entry is removed, a transaction aborted, a subscription closed."""
        await self.landlord.cancel_lease_async(self.thing)


def check_lease(seconds: object, name: str = "lease") -> float | None:
    if seconds is None:
        return None
    if not is_number(seconds) or not (seconds > 0 or seconds == ANY_LEASE):
        raise BadArgument(name, "a number of seconds above 0, or None for ever", seconds)
    try:
        return None if seconds == math.inf else float(seconds)
    except OverflowError:
        raise BadArgument(name, "a number of seconds that a float can hold", seconds) from None


def longest(seconds: float) -> LeasePolicy:
    """A lease policy that grants at most `seconds`."""
    limit = check_lease(seconds, "seconds")
    if limit is None:
        raise BadArgument("seconds", "a number of seconds above 0", seconds)

    def grant(kind: str, requested: float | None) -> float | None:
        return limit if requested is None else min(requested, limit)

    return grant
