"""What operations that span hosts need to know of this host, and of the hosts that it meets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tupelo.federation.links import wire
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.spaces.hosted import DoubtfulDeliveries, HostedSpace
from tupelo.values.holder import Holder
from tupelo.values.scope import Scope

if TYPE_CHECKING:
    from tupelo.federation.spanning.federated import Federation
    from tupelo.federation.spanning.moving import EntryMover


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


class SpanningHost(ThisHost, Protocol):
    """A host with what spans it and others."""

    federation: Federation
    mover: EntryMover
    new_id: Callable[[], str]

    def spans(self, hosted: HostedSpace, scope: Scope | None) -> bool:
        """Does an operation of this scope look beyond what is here?"""
        ...


class OnLoop(Protocol):
    """A host as a user holds it, at either door."""

    @property
    def core(self) -> SpanningHost: ...

    def on_loop(
        self, work: Coroutine[Any, Any, Any], undo: Callable[[Any], object] | None = None
    ) -> Any:
        """Have this done on the host's loop; the answer may be awaited. If the thread that waits
        for it is interrupted when it is on its way, `undo` has it, on the loop."""
        ...

    def now(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have this done, which never waits."""
        ...

    def soon(self, function: Callable[..., object], *args: Any) -> None: ...

    def run_apart(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this on a thread, or as a task, of its own."""
        ...
