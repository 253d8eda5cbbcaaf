"""A hosted space: one space of a host, with the rules by which others may use it."""

from __future__ import annotations

import logging
from typing import Literal

import msgspec

from tupelo.errors import BadArgument
from tupelo.federation.identity.access import Access
from tupelo.space import asynchronous, blocking
from tupelo.space.port import port_of
from tupelo.space.session import Seen
from tupelo.values.entry import Entry
from tupelo.values.lease import check_lease

logger = logging.getLogger("tupelo")


class Doubt(msgspec.Struct, frozen=True):
    """What becomes of an entry that was handed over and not confirmed, if the one who took it does
    not come back within so many seconds: it returns to the space, or is forgotten as taken."""

    seconds: float = 30.0
    then: Literal["return", "forget"] = "return"


class HostedSpace:
    """One space of a host. `space` is its blocking door, `door` its async one, and `port` what
    everything at the host does with it."""

    def __init__(
        self, space: blocking.Space, access: Access, doubt: Doubt, *, commit_in_place: bool
    ) -> None:
        self.space = space
        self.port = port_of(space)
        self.name = space.name
        self.access = access
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

    @property
    def shared(self) -> bool:
        """Is it part of a federation? Those with a password are not, nor those of the system."""
        return not self.access.protected and not self.name.startswith("tupelo.")

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
    if check_lease(doubt.seconds, "doubt") is None:
        raise BadArgument("doubt", "a Doubt of some seconds", doubt)
    return doubt
