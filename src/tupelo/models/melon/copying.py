"""Copies: how many hosts hold what was written here, and how much is held here for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tupelo.errors import BadArgument
from tupelo.federation.replication.placement import CopySome
from tupelo.models.melon.collecting import Bound
from tupelo.space.capacity import Capacity


@dataclass(frozen=True)
class Copies:
    """What this host has written is to be held by so many other `hosts`, among those that it is
    engaged with, and what it has `directed` to someone is to be carried by so many: None for all
    that meet it, or meet one who carries it; 0 for nobody, so that it waits here for its addressee.

    This much `room` is here for what others have written, and as much for what they have directed
    to others: None for as much as comes, 0 for nothing but what is read or taken here. A host with
    room also copies what hosts have written that it is not engaged with, from any engaged host that
    has it: a message outlives its host and that carrier, though nobody reads it here. When room is
    full the oldest copies give way, of whatever host; of what is carried to another, all that one
    host has for it, since it must come in order and without a gap.
    """

    hosts: int = 1
    room: Bound | Literal[0] | None = None
    directed: int | None = None

    def __post_init__(self) -> None:
        if type(self.hosts) is not int or self.hosts < 0:
            raise BadArgument("hosts", "how many: a whole number", self.hosts)
        has_room = self.room is None or isinstance(self.room, Bound)
        if not has_room and (type(self.room) is not int or self.room != 0):
            raise BadArgument("room", "a Bound(...), None, or 0", self.room)
        if self.directed is not None and (type(self.directed) is not int or self.directed < 0):
            raise BadArgument("directed", "how many: a whole number, or None", self.directed)

    @property
    def policy(self) -> CopySome:
        return CopySome(self.hosts, self._room)

    @property
    def directed_policy(self) -> CopySome:
        return CopySome(self.directed or 0, self._room)

    @property
    def _room(self) -> Capacity | Literal[0] | None:
        return self.room.capacity if isinstance(self.room, Bound) else self.room
