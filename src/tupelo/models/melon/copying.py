"""Copies: how many hosts hold what was written here, and how much is held here for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tupelo.errors import BadArgument
from tupelo.federation.replication.placing import Some
from tupelo.models.melon.collecting import Bound


@dataclass(frozen=True)
class Copies:
    """What this host has written is to be held by so many other `hosts`, among those that it is
    engaged with; and this much `room` is here for what others have written: None for as much as
    comes, 0 for nothing but what is read here."""

    hosts: int = 1
    room: Bound | Literal[0] | None = None

    def __post_init__(self) -> None:
        if type(self.hosts) is not int or self.hosts < 0:
            raise BadArgument("hosts", "how many: a whole number", self.hosts)
        if not (self.room is None or isinstance(self.room, Bound)) and self.room != 0:
            raise BadArgument("room", "a Bound(...), None, or 0", self.room)

    @property
    def policy(self) -> Some:
        if isinstance(self.room, Bound):
            return Some(self.hosts, self.room.capacity)
        return Some(self.hosts, self.room)
