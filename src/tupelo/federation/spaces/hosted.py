"""A hosted space: one space of a host, with the rules by which others may use it."""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import Literal

import msgspec

from tupelo.errors import BadArgument
from tupelo.federation.identity.access import Access
from tupelo.federation.names import is_reserved
from tupelo.space import asynchronous, blocking
from tupelo.space.port import port_of
from tupelo.space.session import Seen
from tupelo.values.entry import Entry
from tupelo.values.lease import check_lease

logger = logging.getLogger("tupelo")


class Doubt(msgspec.Struct, frozen=True):
    """What becomes of an entry that was handed over and not confirmed, if the one who took it does
    not come back within so many `seconds`: it returns to the space, or is forgotten as taken. If
    the taker lives on and had it, an entry that returns is had twice; None waits for the taker as
    long as it is away: rather late than twice.

    Tuples of LIME, and entries that move to their agents, go between hosts that may be apart for
    hours: for them `apart_seconds` counts, and says by default to wait.
    """

    seconds: float | None = 30.0
    then: Literal["return", "forget"] = "return"
    apart_seconds: float | None = None


class HostedSpace:
    """One space of a host. `space` is its blocking door, `door` its async one, and `port` what
    everything at the host does with it.

    With `serves` it is a companion: a model keeps here what belongs to that space. The rules of
    that space, its password included, hold here as well, beside the `access` of the companion.
    `former` is the name that a companion had in earlier versions, which records on disk may have.
    """

    def __init__(
        self,
        space: blocking.Space,
        access: Access,
        doubt: Doubt,
        *,
        commit_in_place: bool,
        serves: HostedSpace | None = None,
        former: str | None = None,
    ) -> None:
        self.space = space
        self.port = port_of(space)
        self.name = space.name
        self.access = access
        self.serves = serves
        self.former = former
        self.alone = False
        """Do only this host and its clients use it, whatever its rules say of other hosts?"""
        self.doubt = doubt
        self.clock = self.port.clock
        self.durable = self.port.durable
        self.flush = self.port.flushed
        self.flush_soon = self.port.flush_soon
        self.door = asynchronous.Space(space)
        if commit_in_place:
            self.port.commit_in_place()
        self.unsendable = Seen()
        """Its entries that other hosts do not get, since they cannot be sent."""

    def check(self, operation: str, who: str | None, shown: Container[str] = ()) -> None:
        """WrongPassword or NotAllowed if `who` may not do this here: see `Access.check`. `shown`
        are the names of the spaces whose passwords it has shown."""
        if self.serves is not None:
            self.serves.check(operation, who, shown)
        self.access.check(operation, self.name, who, self.name in shown)

    def allows_host(self, operation: str, host_id: str) -> bool:
        """May the host of this id do this here, whoever tells of it: see `Access.allows_host`."""
        served = self.serves is None or self.serves.allows_host(operation, host_id)
        return served and self.access.allows_host(operation, host_id)

    @property
    def protected(self) -> bool:
        """Is there a password, of this space or of the one that it serves?"""
        return self.access.protected or (self.serves is not None and self.serves.protected)

    @property
    def shared(self) -> bool:
        """Is it part of a federation? Those with a password are not, nor those that the host keeps
        for itself."""
        is_of_system = self.serves is None and is_reserved(self.name)
        return not (self.protected or is_of_system or self.alone)

    def pass_over(self, entry: Entry, reason: object) -> None:
        """This cannot be sent: who asks elsewhere gets what stands behind it."""
        with self.port.atomic():
            is_known = entry in self.unsendable
            self.unsendable.add(entry)
        if not is_known:
            self.port.remember(self.unsendable)
            logger.warning("other hosts do not get an entry of %r: %s", self.name, reason)


def check_doubt(doubt: object) -> Doubt:
    if doubt is None:
        return Doubt()
    if not isinstance(doubt, Doubt) or doubt.then not in ("return", "forget"):
        raise BadArgument("doubt", 'a Doubt(seconds, "return" or "forget")', doubt)
    check_lease(doubt.seconds, "doubt")
    check_lease(doubt.apart_seconds, "doubt")
    return doubt
