"""Which views and shared sessions of a heap are in use, at this host and in the group, and the end
of unused ones.

A view or shared session ends for everyone on request, or when no host within reach has used it for
its lease. The host that holds its token ends it, because other users have asked that host, or go on
with a clone. If the token was lost with its holder, the host with the lowest id ends it. All that
is left is an `Ended` record, kept for some days for hosts that are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tupelo.errors import BadArgument, TokenAway, TupeloError
from tupelo.federation.groups.membership import Membership
from tupelo.models.event_heap.records import Ended
from tupelo.space.tasks import Tasks
from tupelo.values.lease import check_lease

if TYPE_CHECKING:
    from tupelo.models.event_heap.replica import Replica

LEASE_SECONDS = 24 * 3600.0
"""Default lease of an unused view or shared session."""
NEW_SECONDS = 60.0
"""A new view or session is kept at least this long for its first user."""
ENDED_SECONDS = 7 * 24 * 3600.0
"""Lease of the record that something has ended."""
ENDED_MAX = 10_000
"""Most ended ids that a host keeps in memory."""


class UsageLeases:
    """The views and shared sessions of one heap that are in use, as far as is known here."""

    def __init__(self, replica: Replica) -> None:
        self.ended: dict[str, None] = {}
        """Ended ids, the latest last."""
        self.leases: dict[str, float | None] = {}
        """Known views and shared sessions, with their leases."""
        self._replica = replica
        self._here: dict[str, list[Callable[[], None]]] = {}
        self._elsewhere: frozenset[str] = frozenset()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks = Tasks()

    @property
    def here(self) -> list[str]:
        return sorted({*self._here, *self._replica.orders.used})

    @property
    def used(self) -> set[str]:
        """The ids in use within reach."""
        return {*self._here, *self._replica.orders.used, *self._elsewhere}

    def is_used(self, id: str) -> bool:
        """Whether a host within reach uses it."""
        return id in self._here or id in self._replica.orders.used or id in self._elsewhere

    def use(self, id: str, end: Callable[[], None]) -> None:
        """Note a user of a shared session or of a view without a total order; `end` is called when
        it ends."""
        self._here.setdefault(id, []).append(end)
        self.changed(id)

    def leave(self, id: str, end: Callable[[], None]) -> None:
        users = self._here.get(id, [])
        if end in users:
            users.remove(end)
            if not users:
                del self._here[id]
                self.changed(id)

    def changed(self, id: str) -> None:
        """Announce that its use at this host has begun or ended."""
        self._review(id)
        self._replica.orders.metadata_changed()

    def install(self, membership: Membership) -> None:
        """Apply the metadata of the other hosts."""
        metadata_of = [
            one.metadata_of.get(self._replica.part)
            for one in membership.members.values()
            if one.host != self._replica.me
        ]
        before = self._elsewhere
        self._elsewhere = frozenset(
            id
            for metadata in metadata_of
            if isinstance(metadata, list)
            for id in metadata
            if type(id) is str
        )
        for id in sorted(before ^ self._elsewhere):
            self._review(id)

    def made(self, id: str, lease: object) -> None:
        """Note a new view or session."""
        if id not in self.leases and id not in self.ended:
            is_sound = type(lease) is float and lease >= 0
            self.leases[id] = lease if isinstance(lease, float) and is_sound else None
            self._review(id, NEW_SECONDS)

    def _review(self, id: str, least: float = 0.0) -> None:
        timer = self._timers.pop(id, None)
        if timer is not None:
            timer.cancel()
        lease = self.leases.get(id)
        if lease is not None and not self.is_used(id) and not self._replica.closed:
            loop = asyncio.get_running_loop()
            self._timers[id] = loop.call_later(max(lease, least), self._run_out, id)

    def _run_out(self, id: str) -> None:
        self._review(id, NEW_SECONDS)  # Once more later: the token may be elsewhere now.
        self._tasks.start(self._end_unused(id))

    async def _end_unused(self, id: str) -> None:
        replica = self._replica
        with suppress(TupeloError):
            token = replica.tokens.tokens.get(self._token_of(id))
            if token is None or token.is_lost_with_life:
                # A view without an order has no token, and nothing that could be lost.
                if replica.me == min([replica.me, *replica.others]):
                    await self.end(id)
                return
            with suppress(TokenAway):
                async with token.held(ask=False):
                    if not self.is_used(id):
                        await self.end(id)
                replica.orders.look()  # Events that came meanwhile have no places yet.

    def _token_of(self, id: str) -> str:
        return f"session {id}" if id in self._replica.sessions else f"view {id}"

    async def end(self, id: str, into: str | None = None) -> None:
        """End a view or session for everyone; users of a view may go on with the view `into`."""
        if id not in self.ended:
            await self._replica.record(Ended(id, into), ENDED_SECONDS)

    def heard(self, id: str, into: str | None) -> None:
        """Apply an `Ended` record: notify the users here, and remove this host's records."""
        if id in self.ended:
            return
        self.ended[id] = None
        if len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]
        self.leases.pop(id, None)
        self._review(id)
        for end in self._here.pop(id, []):
            end()
        self._replica.forget(id, self._token_of(id), into)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._tasks.cancel()


def check_unused(seconds: object) -> float | None:
    """Check the lease of an unused view or session. BadArgument if it is invalid."""
    if seconds == 0 and type(seconds) in (int, float):
        return 0.0
    try:
        return check_lease(seconds)
    except BadArgument:
        what = "a number of seconds, 0 to end with the last user, or None for ever"
        raise BadArgument("lease", what, seconds) from None
