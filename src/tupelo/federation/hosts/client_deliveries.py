"""Given: what a client was given for its calls, and how it goes back if it did not reach its user.

What was taken is held until it is confirmed. What was taken in a transaction, or read in a session,
is the client's at once, and so is what it has confirmed; but its user may yet have been interrupted
before he got it. So the last of these are remembered, and go back if the client says so in time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from tupelo.errors import SpaceClosed, TransactionEnded
from tupelo.federation.spaces.hosted import HostedSpace, give_back
from tupelo.federation.spanning.federated import adopt
from tupelo.space.delivery import Delivery, Got
from tupelo.values.entry import Entry, about_bytes

GOT_MAX = 64
"""So many gets in transactions and sessions are remembered for each client."""
CONFIRMED_MAX = 256
"""So many takings that were confirmed are remembered for each client."""
ENTRIES_MAX = 1_000
"""So many entries may either have, beyond those of the last call; sessions remember what may come
back."""
REMEMBERED_BYTES = 16 * 2**20
"""So much may the entries of either have together, beyond those of the last call."""


class _WithEntries(Protocol):
    entries: list[Entry]


T = TypeVar("T", bound=_WithEntries)


class ClientDeliveries:
    """What one client was given, by call."""

    def __init__(self, space_of: Callable[[str], HostedSpace | None]) -> None:
        self._space_of = space_of
        self._held: dict[int, Delivery] = {}
        self._got: RecentByCall[Got] = RecentByCall(GOT_MAX, lambda got: None)
        self._confirmed: RecentByCall[Delivery] = RecentByCall(
            CONFIRMED_MAX, lambda delivery: delivery.forget()
        )

    def __contains__(self, call: int) -> bool:
        """Could something go back for this call?"""
        return call in self._held or call in self._got.calls or call in self._confirmed.calls

    def hold(self, call: int, delivery: Delivery) -> None:
        self._held[call] = delivery

    def got(self, call: int, got: Got) -> None:
        if got.entries:
            self._got.add(call, got)

    def confirm(self, call: int) -> None:
        """It has reached the client, and is gone for good."""
        delivery = self._held.pop(call, None)
        if delivery is not None:
            with suppress(SpaceClosed, TransactionEnded):  # The space took it back before.
                position = delivery.confirm()
                self._confirmed.add(call, delivery)
                hosted = self._space_of(delivery.space)
                if hosted is not None:
                    hosted.flush_soon(position)

    def give_back(self, call: int) -> None:
        """It has not reached the user after all."""
        delivery: Delivery | None = self._held.pop(call, None) or self._got.pop(call)
        if delivery is not None:
            give_back(self._space_of(delivery.space), delivery)
            return
        confirmed = self._confirmed.pop(call)
        hosted = None if confirmed is None else self._space_of(confirmed.space)
        if confirmed is not None and hosted is not None:
            adopt(hosted, confirmed.entries)

    def leave(self) -> dict[int, Delivery]:
        """The client is gone: what it has not confirmed. The rest is settled."""
        held, self._held = self._held, {}
        self._got.clear()
        self._confirmed.clear()
        return held


class RecentByCall(Generic[T]):
    """The last things of their kind, by call: not too many, and not too large, beyond the very
    last. The others are `dropped`."""

    def __init__(self, count_max: int, dropped: Callable[[T], None]) -> None:
        self.calls: dict[int, tuple[T, int]] = {}
        self._count_max = count_max
        self._dropped = dropped
        self._entries = 0
        self._size = 0

    def add(self, call: int, thing: T) -> None:
        self.pop(call)
        size = sum(about_bytes(entry.fields) for entry in thing.entries)
        self.calls[call] = thing, size
        self._entries += len(thing.entries)
        self._size += size
        while len(self.calls) > 1 and (
            len(self.calls) > self._count_max
            or self._entries > ENTRIES_MAX
            or self._size > REMEMBERED_BYTES
        ):
            self._drop(next(iter(self.calls)))

    def pop(self, call: int) -> T | None:
        thing, size = self.calls.pop(call, (None, 0))
        if thing is not None:
            self._entries -= len(thing.entries)
            self._size -= size
        return thing

    def _drop(self, call: int) -> None:
        thing = self.pop(call)
        if thing is not None:
            self._dropped(thing)

    def clear(self) -> None:
        for call in list(self.calls):
            self._drop(call)
