"""How what a user holds of a host gets its work done on the loop where the host lives."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.federation.spanning.peers import ThisHost
from tupelo.values.scope import Scope

if TYPE_CHECKING:
    from tupelo.federation.spanning.federated import Federation
    from tupelo.federation.spanning.moving import EntryMover


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
