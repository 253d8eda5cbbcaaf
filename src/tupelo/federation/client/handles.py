"""Handles of a remote space: leases, transactions, sessions, match sets, subscriptions, reactions.

On the blocking API a property whose value may have changed at the host asks the host. On the async
API it is the last known value, and `await handle.refresh()` asks the host.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tupelo.errors import (
    BadFrame,
    LeaseLost,
    PeerLost,
    SpaceClosed,
    TransactionEnded,
    TupeloError,
    UnknownType,
)
from tupelo.federation.client.arguments import built, listed, parts
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import read_error, read_whole
from tupelo.space.dual_api import DualHandle, dual_api, run_sync
from tupelo.space.fetching import Fetching, FetchingSubscription
from tupelo.space.matchset import Skipped
from tupelo.space.protocol import (
    MatchSetLike,
    SessionLike,
    SubscriptionLike,
    TransactionLike,
    names_of,
)
from tupelo.space.query import check_wait
from tupelo.space.transaction import LEASE_RAN_OUT, PrepareVote, TransactionState
from tupelo.values.change import Notice
from tupelo.values.entry import About, check_about
from tupelo.values.scope import Coverage, Scope

if TYPE_CHECKING:
    from tupelo.federation.client.space import HostConnection, RemoteSpace


# Leases


class WrittenEntryId(msgspec.Struct, gc=False):
    """Identifies an entry written by this client, for its lease."""

    n: int
    arrival: int
    expires: float | None
    serial: int | None = None
    kind = "entry"

    @property
    def id(self) -> str:
        return f"{self.n}:{self.arrival}"

    def __repr__(self) -> str:
        return f"<entry {self.id}>"


class RemoteLandlord:
    """Renews and cancels the leases of handles and entries at another host."""

    def __init__(self, space: HostConnection) -> None:
        self._space = space

    async def renew_lease_async(self, thing: Any, seconds: float | None) -> None:
        name = self._space.name
        message = wire.Renew(0, name, thing.kind, thing.id, seconds)
        thing.expires = await self._space.ask(message, thing.serial)

    async def cancel_lease_async(self, thing: Any) -> None:
        message = wire.CancelLease(0, self._space.name, thing.kind, thing.id)
        await self._space.ask(message, thing.serial)

    async def refresh(self) -> None:
        """Ask the host for its time; without a link the last known time stays."""
        if not self._space.channel.awaits_link:
            with suppress(PeerLost):
                await self._space.describe_host(self._space.serial)

    def renew_lease(self, thing: Any, seconds: float | None) -> None:
        """Called by a lease: renew it at the host."""
        run_sync(partial(self.renew_lease_async, thing, seconds))

    def cancel_lease(self, thing: Any) -> None:
        """Called by a lease: cancel it at the host."""
        run_sync(partial(self.cancel_lease_async, thing))

    def now(self) -> float:
        """The time at the host; see `HostConnection.host_time`."""
        return self._space.host_time()


# Transactions and sessions


_PROTOCOLS: dict[str, type] = {
    "transaction": TransactionLike,
    "session": SessionLike,
    "subscription": SubscriptionLike,
    "match set": MatchSetLike,
}


class RemoteHandle(DualHandle):
    """A leased resource of this client at a host; it ends with its link."""

    kind: wire.Thing

    def __init__(self, space: RemoteSpace, serial: int, handle_id: str, expires: Any) -> None:
        self._space = space
        self.is_async = space.is_async
        self.serial: int | None = serial
        self.id = handle_id
        self.expires: float | None = expires
        space.handles.add(self)

    def __dir__(self) -> list[str]:
        return names_of(_PROTOCOLS[self.kind], *(["refresh"] if hasattr(self, "refresh") else []))

    def __repr__(self) -> str:
        return f"<a {self.kind} of the space {self._space.name!r} at {self._space.peer}>"

    @property
    def lease(self) -> Any:
        """The lease, to renew or cancel."""
        return self._space.lease_of(self)

    def lost(self) -> None:
        """The link was lost."""

    def goodbye(self) -> Any:
        """The message that ends the handle at the host when its space is closed, or None."""
        return wire.Close(0, self._space.name, self.kind, self.id)

    async def _ask(self, message: Any) -> Any:
        return await self._space.ask(message, self.serial)

    async def _fetch_state(self) -> list[Any]:
        """The state at the host: is it active, when does it expire, a number and an error, whose
        meaning depends on the kind."""
        message = wire.State(0, self._space.name, self.kind, self.id)
        return parts(await self._ask(message), 4)


class ClosableHandle(RemoteHandle):
    """A handle that is closed at the end of its block."""

    @dual_api
    async def close(self) -> None:
        """End it at the host."""
        await self.finish()

    async def leave(self, error: BaseException | None) -> None:
        await self.finish()

    async def finish(self) -> None:
        """End the handle at the host, unless it has ended there or the host is out of reach."""
        self._space.handles.discard(self)
        with suppress(LeaseLost, PeerLost, SpaceClosed):
            await self._ask(wire.Close(0, self._space.name, self.kind, self.id))


class RemoteSpaceTransaction(RemoteHandle):
    """A transaction at another host. A lost link aborts it, unless it is prepared."""

    kind = "transaction"

    def __init__(
        self,
        space: RemoteSpace,
        serial: int,
        txn_id: str,
        expires: Any = None,
        state: TransactionState = "active",
    ) -> None:
        super().__init__(space, serial, txn_id, expires)
        self._state: TransactionState = state
        self._reason = ""
        if state == "prepared":
            self.serial = None

    @property
    def state(self) -> TransactionState:
        """active, prepared, committed or aborted."""
        if not self.is_async:
            with suppress(SpaceClosed):
                self.refresh()
        return self._state

    @dual_api
    async def refresh(self) -> None:
        """Get the current state from the host."""
        if self._state in ("active", "prepared") and not self._is_lost():
            await self._end("state")

    @dual_api
    async def commit(self) -> None:
        """Commit. TransactionEnded if it has ended; PeerLost if the outcome is not known."""
        self.require()
        await self._end("commit")

    @dual_api
    async def abort(self) -> None:
        """Undo everything that was done in the transaction."""
        await self._abort()

    async def _abort(self) -> None:
        self._space.require_open()
        if self._state == "committed":
            self.require()
        if self._state != "aborted" and not self._is_lost():
            try:
                await self._end("abort")
            except PeerLost:
                if self._state == "prepared":
                    raise  # It stays prepared until it is decided.

    @dual_api
    async def prepare(self) -> PrepareVote:
        """Phase one of a two-phase commit: promise to commit. "not changed" needs no second
        phase."""
        self.require()
        vote: PrepareVote = await self._end("prepare")
        return vote

    def transaction(self, *, lease: float | None = None) -> Any:
        """A nested transaction: it sees what this one sees, and commits into it."""
        return self.dual_call(self._space.begin, lease, self)

    def goodbye(self) -> Any:
        if self._state == "prepared":
            return None
        return wire.End(0, self._space.name, self.id, "abort")

    def require(self) -> None:
        """Raise TransactionEnded if it has ended, and PeerLost at the first use after its link was
        lost."""
        self._space.require_open()
        if self._state in ("committed", "aborted"):
            raise TransactionEnded(self.id, self._state, self._reason)
        if self._is_lost():
            raise PeerLost(self._space.peer, "a transaction", "the link was lost, and with it this")

    def _is_lost(self) -> bool:
        """Whether its link was lost; if so, it is aborted now."""
        if self.serial is None or self.serial == self._space.serial:
            return False
        self.lost()
        return True

    def lost(self) -> None:
        if self._state == "active":
            self.ended("aborted", "the link to its host was lost")

    def promised(self) -> None:
        """Note that it is prepared: closing the space must not abort it."""
        self._state = "prepared"

    def ended(self, state: TransactionState, reason: str) -> None:
        """Note that it has ended."""
        self._state, self._reason = state, reason
        self._space.handles.discard(self)

    async def _end(self, how: Literal["commit", "abort", "prepare", "state"]) -> Any:
        try:
            message = wire.End(0, self._space.name, self.id, how)
            vote, state, reason, self.expires = parts(await self._ask(message), 4)
        except PeerLost:
            self.lost()
            raise
        except TransactionEnded as ended:
            if ended.state in ("committed", "aborted"):
                self.ended(ended.state, ended.reason)  # type: ignore[arg-type]
            raise
        self._state = state
        if state == "prepared":
            self.serial = None  # It outlives the link.
        elif state != "active":
            self.ended(state, reason)
        return vote

    async def leave(self, error: BaseException | None) -> None:
        """The end of a block: commit, or abort on an error."""
        if error is not None:
            with suppress(SpaceClosed):  # It has ended then, and the error must not be hidden.
                if self._state == "active":
                    await self._abort()
        elif self._state == "active":
            try:
                self.require()
                await self._end("commit")
            except TransactionEnded as ended:
                if ended.reason == LEASE_RAN_OUT:
                    raise


class RemoteSession(ClosableHandle, SessionLike):
    """A session at another host: reads that never return the same entry twice."""

    kind = "session"
    _seen = 0

    @dual_api
    async def _read(
        self,
        template: object,
        wait: float | None,
        many: bool,
        limit: int | None,
        scope: Scope | None,
        coverage: Coverage | None,
        about: list[About] | None,
    ) -> Any:
        check_about(about)
        message = self._space.get_message(
            *(template, False, wait),
            scope=scope,
            many=many,
            limit=limit,
            session=self,
            whole=about is not None,
        )
        found = await self._space.get(message, self, coverage, about)
        return found if many else found[0] if found else None

    def clone(self, *, lease: float | None = None) -> Any:
        """A new session that starts with what this one has seen."""
        return self.dual_call(self._space.open_session, lease, self)

    @property
    def seen(self) -> int:
        """How many entries it remembers; removed entries are forgotten in time."""
        if not self.is_async:
            self.refresh()
        return self._seen

    @dual_api
    async def refresh(self) -> None:
        """Get the current state from the host."""
        _, self.expires, self._seen, _ = await self._fetch_state()


class RemoteMatchSet(ClosableHandle, Fetching):
    """The entries that matched at another host, in order of arrival. Iterate (`async for` on the
    async API), or call `next` until it returns None."""

    kind = "match set"

    def __init__(self, space: RemoteSpace, serial: int, set_id: str, expires: Any) -> None:
        super().__init__(space, serial, set_id, expires)
        self._skipped: list[Skipped] = []
        self._at_host: list[Skipped] = []

    @dual_api
    async def next(self) -> Any:
        """The next entry, or None at the end. MatchSetInvalid if one of its entries was taken."""
        return await self.fetch_next()

    async def fetch_next(self) -> Any:
        while True:
            message = wire.NextMatches(0, self._space.name, self.id, 1)
            entries, skipped = parts(await self._ask(message), 2)
            self._at_host = [Skipped((origin, n), reason) for origin, n, reason in skipped]
            if not entries:
                return None
            try:
                return built(entries[0])
            except UnknownType as error:
                self._skipped.append(Skipped(("", 0), str(error)))

    @property
    def skipped(self) -> list[Skipped]:
        """The entries that were left out so far, with the reasons."""
        return [*self._at_host, *self._skipped]


logger = logging.getLogger("tupelo")

AHEAD_MAX = 64
"""How many notices an iteration fetches at once."""

BACKLOG_MAX = 10_000
"""How many notices wait for a reaction at most."""


class RemoteSubscription(ClosableHandle, FetchingSubscription):
    """A subscription at another host: notices in order. Iterate (`async for` on the async API), or
    call `get`. It ends with its lease, its transaction, its space, its link, or `close()`."""

    kind = "subscription"

    def __init__(
        self,
        space: RemoteSpace,
        serial: int,
        granted: list[Any],
        handback: Any,
        backlog_max: int,
    ) -> None:
        subscription_id, self.event_id, expires = granted
        super().__init__(space, serial, subscription_id, expires)
        self._handback = handback
        self._backlog_max = backlog_max
        self._ahead: deque[Notice] = deque()
        self._closed = False
        self._active = True
        self._sequence = 0
        self._error: Exception | None = None

    @dual_api
    async def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None after `wait` seconds, or if the subscription has ended."""
        check_wait(wait)
        return await self._next(wait, 1)

    async def fetch_next(self) -> Notice | None:
        return await self._next(None, AHEAD_MAX)

    async def _next(self, wait: float | None, limit: int) -> Notice | None:
        while True:
            try:
                return self._ahead.popleft()
            except IndexError:
                if self._error is not None:
                    raise self._error from None
            if self._closed or not await self._fetch(wait, limit):
                return None

    async def _fetch(self, wait: float | None, limit: int) -> bool:
        """Fetch notices from the host; returns whether there were any."""
        try:
            message = wire.Next(0, self._space.name, self.id, wait, limit)
            notices = [self._read(encoded) for encoded in listed(await self._ask(message))]
        except SpaceClosed:
            return False
        except TupeloError as error:
            self.fail(error)
            raise
        self._ahead.extend(notices)
        return bool(notices)

    def _read(self, encoded: Any) -> Notice:
        try:
            event_id, sequence, kind, subject, missed = encoded
        except (TypeError, ValueError) as error:
            raise BadFrame(f"this is no notice: {error}") from error
        self._sequence = max(self._sequence, sequence)
        return Notice(event_id, sequence, kind, read_whole(subject), self._handback, missed)

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._active = False

    # State

    @property
    def sequence(self) -> int:
        """The sequence number of the last notice."""
        self._refresh_if_blocking()
        return self._sequence

    @property
    def active(self) -> bool:
        """Whether more notices can come."""
        self._refresh_if_blocking()
        return self._active

    @property
    def error(self) -> Exception | None:
        """The error that ended it, or None."""
        self._refresh_if_blocking()
        return self._error

    def _refresh_if_blocking(self) -> None:
        if not self.is_async:
            self.refresh()

    @dual_api
    async def refresh(self) -> None:
        """Get the current state from the host."""
        if self._closed or not self._active:
            return
        try:
            active, self.expires, self._sequence, error = await self._fetch_state()
            self._active = self._active and bool(active)  # It may have ended here meanwhile.
        except SpaceClosed:
            self._active = False
        except TupeloError as lost:
            self.fail(lost)
        else:
            if error is not None:
                self._error = read_error(*error)

    async def finish(self) -> None:
        """End the subscription; notices that have come can still be fetched."""
        if not self._closed:
            await self.keep_backlog()
            self._closed = True
            self._active = False
            await super().finish()

    async def keep_backlog(self) -> None:
        """Fetch the notices that wait at the host, which drops them when the subscription ends."""
        if self._active:
            try:
                await self._fetch(0, self._backlog_max)
            except TupeloError:  # It is kept as `error`.
                return
