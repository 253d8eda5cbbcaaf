"""Handles of a remote space: leases, transactions, sessions, match sets, subscriptions, reactions.

On the blocking API a property whose value may have changed at the host asks the host. On the async
API it is the last known value, and `await handle.refresh()` asks the host.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tupelo.errors import (
    BadFrame,
    LeaseLost,
    ListenerFailed,
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
from tupelo.space.matchset import Skipped
from tupelo.space.protocol import (
    MatchSetLike,
    SessionLike,
    SubscriptionLike,
    TransactionLike,
    names_of,
)
from tupelo.space.query import check_wait
from tupelo.space.reaction import WeakFunction, WeakStep
from tupelo.space.session import Seen
from tupelo.space.transaction import LEASE_RAN_OUT, State, Vote
from tupelo.values.change import Notice
from tupelo.values.entry import About, Entry, check_about, thaw
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
        run_sync(partial(self.renew_lease_async, thing, seconds))

    def cancel_lease(self, thing: Any) -> None:
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


class RemoteTransaction(RemoteHandle):
    """A transaction at another host. A lost link aborts it, unless it is prepared."""

    kind = "transaction"

    def __init__(
        self,
        space: RemoteSpace,
        serial: int,
        txn_id: str,
        expires: Any = None,
        state: State = "active",
    ) -> None:
        super().__init__(space, serial, txn_id, expires)
        self._state: State = state
        self._reason = ""
        if state == "prepared":
            self.serial = None

    @property
    def state(self) -> State:
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
    async def prepare(self) -> Vote:
        """Phase one of a two-phase commit: promise to commit. "not changed" needs no second
        phase."""
        self.require()
        vote: Vote = await self._end("prepare")
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
        """Was its link lost? If so, it is aborted now."""
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

    def ended(self, state: State, reason: str) -> None:
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


class RemoteMatchSet(ClosableHandle):
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

    def __iter__(self) -> Iterator[Any]:
        self.require_door(False, "'async for'")
        while (entry := self.next()) is not None:
            yield entry

    async def __aiter__(self) -> AsyncIterator[Any]:
        self.require_door(True, "'for'")
        while (entry := await self.next()) is not None:
            yield entry


logger = logging.getLogger("tupelo")

AHEAD_MAX = 64
"""How many notices an iteration fetches at once."""

BACKLOG_MAX = 10_000
"""How many notices wait for a reaction at most."""


class RemoteSubscription(ClosableHandle):
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

    def __iter__(self) -> Iterator[Notice]:
        self.require_door(False, "'async for'")
        while (notice := run_sync(partial(self._next, None, AHEAD_MAX))) is not None:
            yield notice

    async def __aiter__(self) -> AsyncIterator[Notice]:
        self.require_door(True, "'for'")
        while (notice := await self._next(None, AHEAD_MAX)) is not None:
            yield notice

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
        """Fetch notices from the host; were there any?"""
        try:
            message = wire.Next(0, self._space.name, self.id, wait, limit)
            notices = [self._read(encoded) for encoded in listed(await self._ask(message))]
        except SpaceClosed:
            return False
        except TupeloError as error:
            self._end(error)
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

    async def call(self, callback: Callable[[Notice], object]) -> None:
        """Call `callback` with each notice; an exception of the callback ends the subscription."""
        try:
            while (notice := await self._next(None, AHEAD_MAX)) is not None:
                result = callback(notice)
                if self.is_async and isawaitable(result):
                    await result
        except PeerLost as error:
            logger.warning(
                "a subscription in the space %r ended: %s; subscribe again to be told what comes "
                "from now on",
                self._space.name,
                error,
            )
        except Exception as error:
            logger.exception("a subscription's callback raised; the subscription is closed")
            self._end(error)
            await super().finish()
        except BaseException as error:
            self._end(ListenerFailed(repr(error)))
            raise

    def _end(self, error: Exception) -> None:
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
        """Can more notices come?"""
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
            self._end(lost)
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


class RemoteReaction:
    """A reaction to entries of another host: this program calls the function once for every entry,
    after the host's step. It may lag behind by `BACKLOG_MAX` entries; of the entries beyond that it
    sees only those that are still in the space."""

    def __init__(
        self,
        space: RemoteSpace,
        subscription: RemoteSubscription,
        read_matches: Callable[[], Coroutine[Any, Any, list[Entry]]],
        function: WeakFunction,
        once: bool,
    ) -> None:
        self._space = space
        self._subscription = subscription
        self._read_matches = read_matches
        self._function = function
        self._once = once
        self._seen = Seen()
        self._active = True
        self._error: Exception | None = None
        self.is_async = space.is_async

    def __repr__(self) -> str:
        return f"<a reaction in the space {self._space.name!r} at {self._space.peer}>"

    @property
    def active(self) -> bool:
        """Will the function be called again?"""
        return self._active

    @property
    def error(self) -> Exception | None:
        """The last exception of the function, or the error that ended the reaction."""
        return self._error

    @dual_api
    async def cancel(self) -> None:
        """End the reaction."""
        self._active = False
        await self._subscription.finish()

    async def run(self, existing: list[Entry]) -> None:
        """React to the entries that are there, then to those that come."""
        try:
            await self._react_to(existing)
            while self._active and (notice := await self._subscription._next(None, AHEAD_MAX)):
                if notice.missed:  # The backlog was full.
                    await self._react_to(await self._read_matches())
                await self._react_to([notice.subject])
        except TupeloError as error:
            self._error = error
            if isinstance(error, PeerLost):
                logger.warning(
                    "a reaction in the space %r ended: %s; call react again to go on",
                    self._space.name,
                    error,
                )
        finally:
            self._active = False
        await self._subscription.finish()

    async def _react_to(self, entries: list[Entry]) -> None:
        for entry in entries:
            await self._react(entry)

    async def _react(self, entry: Entry) -> None:
        if not self._active or entry in self._seen:
            return
        self._seen.add(entry)
        try:
            txn = await self._space.begin(None)
            try:
                step = WeakStep(self._space, txn)
                result = self._function(thaw(entry.shape, entry.fields), step)
                if self.is_async and isawaitable(result):
                    await result
            except BaseException as error:
                await txn.leave(error)
                raise
            await txn.leave(None)
        except (PeerLost, SpaceClosed):
            raise
        except Exception as error:
            logger.exception("a reaction's function raised; what it did is undone")
            self._error = error
        else:
            if self._once:
                self._active = False
