"""The interfaces of hosts, as operations over several hosts use them: the package `hosts`, which
implements them, is above this one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tupelo.federation.links import wire
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.spaces.hosted import DoubtfulDeliveries, HostedSpace
from tupelo.values.holder import Holder
from tupelo.values.scope import Scope

if TYPE_CHECKING:
    from tupelo.federation.spanning.federated import Federation
    from tupelo.federation.spanning.moving import EntryMover


T = TypeVar("T")


class EngagedPeer(Protocol):
    """Another host that is engaged with this one."""

    id: str
    name: str
    incarnation: str
    level: int
    spaces: set[str]
    agents: set[str]
    talk: Conversation
    hints: dict[int, Callable[[wire.Hint], None]]
    """By the number of a watch of ours at that host: called with its hints."""

    holder: Holder
    """The holder of the entries that it takes here."""

    def hosted(self, space: str, operation: str) -> HostedSpace | None:
        """The shared space of this name here, or None. AccessError if the agents of that host may
        not do this in it."""
        ...

    def may(self, operation: str, hosted: HostedSpace) -> bool:
        """Whether the agents of that host may do this in the space."""
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
    """A host with its operations over several hosts."""

    federation: Federation
    mover: EntryMover
    new_id: Callable[[], str]

    def spans(self, hosted: HostedSpace, scope: Scope | None) -> bool:
        """Whether an operation with this scope looks at other hosts."""
        ...


class OnLoop(Protocol):
    """A host object of the blocking or the async API, which runs work on the host's loop."""

    @property
    def core(self) -> SpanningHost: ...

    async def on_loop(
        self, work: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None
    ) -> T:
        """Run a coroutine on the host's loop and return its result. If
        the waiting thread is interrupted, `undo` is called with the result, on the loop."""
        ...

    def now(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that never waits."""
        ...

    def soon(self, function: Callable[..., object], *args: Any) -> bool:
        """Call a function on the host's loop, without waiting. False if the loop is closed."""
        ...

    def run_apart(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this in a thread, or a task, of its own."""
        ...
