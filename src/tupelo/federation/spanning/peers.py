"""What operations that span hosts need to know of this host, and of the hosts that it meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from tupelo.federation.links import wire
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.spaces.doubts import DoubtfulDeliveries
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.values.holder import Holder


class EngagedPeer(Protocol):
    """Another host, while this one is engaged with it."""

    id: str
    name: str
    incarnation: str
    spaces: set[str]
    agents: set[str]
    talk: Conversation
    hints: dict[int, Callable[[wire.Hint], None]]
    """Called when the host says that one of our watches has seen something."""

    holder: Holder
    """The holder of what it takes here."""

    def hosted(self, space: str, operation: str) -> HostedSpace | None:
        """The space, if there is one here that hosts share. AccessError if the agents of that host
        may not do this in it."""
        ...

    def may(self, operation: str, hosted: HostedSpace) -> bool:
        """May the agents of that host do this in the space?"""
        ...


class ThisHost(Protocol):
    """The host at which an operation begins."""

    id: str
    name: str
    incarnation: str
    answer_seconds: float
    doubts: DoubtfulDeliveries
    spaces: dict[str, HostedSpace]

    @property
    def peers(self) -> Mapping[str, EngagedPeer]: ...

    @property
    def agents(self) -> list[str]: ...

    def next_call(self) -> int: ...
