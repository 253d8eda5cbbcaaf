"""Leases: until when something lives. Entries, transactions, subscriptions and sessions have one.

A lease is a handle on a leased thing (anything with `expires`); what renewing and cancelling
do is the landlord's business, which is the space that granted it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tupelo.errors import BadArgument

LeasePolicy = Callable[[str, float | None], float | None]
"""(kind of thing, seconds asked for or None for ever) → seconds granted or None for ever."""


class Landlord(Protocol):
    def renew_lease(self, thing: Any, seconds: float | None) -> None: ...

    def cancel_lease(self, thing: Any) -> None: ...

    def now(self) -> float: ...


class Lease(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Until when something lives; `renew()` and `cancel()` raise LeaseLost once it is gone."""

    landlord: Landlord
    thing: Any

    @property
    def expires(self) -> float | None:
        """The moment, in seconds since the epoch, at which it ends; None for never."""
        expires: float | None = self.thing.expires
        return expires

    @property
    def remaining(self) -> float | None:
        """Seconds left; None for ever."""
        expires = self.expires
        return None if expires is None else max(0.0, expires - self.landlord.now())

    def renew(self, seconds: float | None) -> None:
        """Live for `seconds` from now (None: for ever), or as long as the space's policy grants."""
        self.landlord.renew_lease(self.thing, check_lease(seconds))

    def cancel(self) -> None:
        """End it now: an entry is removed, a transaction aborted, a subscription closed."""
        self.landlord.cancel_lease(self.thing)


def check_lease(seconds: object, name: str = "lease") -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise BadArgument(name, "a number of seconds above 0, or None for ever", seconds)
    try:
        return None if seconds == math.inf else float(seconds)
    except OverflowError:
        raise BadArgument(name, "a number of seconds that a float can hold", seconds) from None


def longest(seconds: float) -> LeasePolicy:
    """A policy that grants what is asked for, but never more than `seconds`."""
    limit = check_lease(seconds, "seconds")
    if limit is None:
        raise BadArgument("seconds", "a number of seconds above 0", seconds)

    def grant(kind: str, asked: float | None) -> float | None:
        return limit if asked is None else min(asked, limit)

    return grant
