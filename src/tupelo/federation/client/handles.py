"""What remote spaces hand out: leases, transactions and sessions.

On the blocking door what may have changed at the host is asked for when it is looked at; on the
async door it is what was last known, and `await thing.refresh()` asks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from tupelo.errors import LeaseLost, PeerLost, SpaceClosed, TransactionEnded, UnknownType
from tupelo.federation.client.arguments import built, parts
from tupelo.federation.links import wire
from tupelo.space.dual_api import dual_api, run_sync
from tupelo.space.matchset import Skipped
from tupelo.space.protocol import (
    MatchSetLike,
    SessionLike,
    SubscriptionLike,
    TransactionLike,
    names_of,
)
from tupelo.space.transaction import LEASE_RAN_OUT, State, Vote
from tupelo.values.scope import Coverage, Scope

if TYPE_CHECKING:
    from tupelo.federation.client.reach import RemoteOperations


class AwaitableHandle:
    """A thing of the async door that is on its way: `await` it, or use it by `async with`."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self._thing: Any = None

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()

    async def __aenter__(self) -> Any:
        self._thing = await self._work
        return await self._thing.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._thing.__aexit__(*error)


class DualHandle:
    """What is at one of the two doors, and closed at the end of a `with` or `async with` block."""

    is_async: bool

    def coming(self, work: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """What this work makes; on the async door, once it is awaited."""
        return AwaitableHandle(work(*args)) if self.is_async else run_sync(partial(work, *args))

    def require_door(self, is_async: bool, instead: str) -> None:
        if self.is_async is not is_async:
            raise TypeError(f"use {instead} with this {type(self).__name__}")

    def __enter__(self) -> Self:
        self.require_door(False, "'async with'")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run_sync(partial(self.leave, error))

    async def __aenter__(self) -> Self:
        self.require_door(True, "'with'")
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.leave(error)

    async def leave(self, error: BaseException | None) -> None:
        raise NotImplementedError


# Leases


class WrittenEntryId(msgspec.Struct, gc=False):
    """An entry that we wrote, as its lease knows it."""

    n: int
    arrival: int
    expires: float | None
    serial: int | None = None
    kind = "entry"

    @property
    def id(self) -> str:
        return f"{self.n}:{self.arrival}"


class RemoteLandlord:
    """Leases of things in a space at a host elsewhere."""

    def __init__(self, space: RemoteOperations) -> None:
        self._space = space

    async def renew_lease_async(self, thing: Any, seconds: float | None) -> None:
        name = self._space.name
        message = wire.Renew(0, name, thing.kind, thing.id, seconds)
        thing.expires = await self._space.ask(message, thing.serial)

    async def cancel_lease_async(self, thing: Any) -> None:
        message = wire.CancelLease(0, self._space.name, thing.kind, thing.id)
        await self._space.ask(message, thing.serial)

    async def refresh(self) -> None:
        """Ask the host for the time there; without a link, what was known before stands."""
        if not self._space.channel.awaits_link:
            with suppress(PeerLost):
                await self._space.told(self._space.serial)

    def renew_lease(self, thing: Any, seconds: float | None) -> None:
        run_sync(partial(self.renew_lease_async, thing, seconds))

    def cancel_lease(self, thing: Any) -> None:
        run_sync(partial(self.cancel_lease_async, thing))

    def now(self) -> float:
        """The time at the host, as far as it is known from when it was last asked."""
        return self._space.time_there()


# Transactions and sessions


_PROTOCOLS: dict[str, type] = {
    "transaction": TransactionLike,
    "session": SessionLike,
    "subscription": SubscriptionLike,
    "match set": MatchSetLike,
}


class RemoteHandle(DualHandle):
    """Something leased that a host keeps for us, until the link that carries it is lost."""

    kind: wire.Thing

    def __init__(self, space: RemoteOperations, serial: int, thing_id: str, expires: Any) -> None:
        self._space = space
        self.is_async = space.is_async
        self.serial: int | None = serial
        self.id = thing_id
        self.expires: float | None = expires
        space.held.add(self)

    def __dir__(self) -> list[str]:
        return names_of(_PROTOCOLS[self.kind], *(["refresh"] if hasattr(self, "refresh") else []))

    @property
    def lease(self) -> Any:
        return self._space.lease_of(self)

    def goodbye(self) -> Any:
        """What to tell the host when the space is closed, if anything."""
        return wire.Close(0, self._space.name, self.kind, self.id)

    async def _ask(self, message: Any) -> Any:
        return await self._space.ask(message, self.serial)

    async def _told(self) -> list[Any]:
        message = wire.State(0, self._space.name, self.kind, self.id)
        return parts(await self._ask(message), 4)

    async def _close(self) -> None:
        """Tell the host, if it can be told and has not ended it itself."""
        self._space.held.discard(self)
        with suppress(LeaseLost, PeerLost, SpaceClosed):
            await self._ask(wire.Close(0, self._space.name, self.kind, self.id))


class RemoteTransaction(RemoteHandle):
    """All or nothing, at a host elsewhere. If the link is lost it is over, unless prepared."""

    kind = "transaction"

    def __init__(
        self,
        space: RemoteOperations,
        serial: int,
        thing_id: str,
        expires: Any = None,
        state: State = "active",
    ) -> None:
        super().__init__(space, serial, thing_id, expires)
        self._state: State = state
        self._reason = ""
        if state == "prepared":
            self.serial = None

    @property
    def state(self) -> State:
        """active, prepared, committed or aborted."""
        if not self.is_async:
            with suppress(SpaceClosed):
                run_sync(self._refresh)
        return self._state

    @dual_api
    async def refresh(self) -> None:
        """Ask the host how it stands."""
        await self._refresh()

    async def _refresh(self) -> None:
        if self._state in ("active", "prepared") and not self._is_lost():
            await self._end("state")

    @dual_api
    async def commit(self) -> None:
        self.require()
        await self._end("commit")

    @dual_api
    async def abort(self) -> None:
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
                    raise  # It stands until someone decides.

    @dual_api
    async def prepare(self) -> Vote:
        """Phase one: promise to commit, whatever comes. "not changed" needs no second phase."""
        self.require()
        vote: Vote = await self._end("prepare")
        return vote

    def transaction(self, *, lease: float | None = None) -> Any:
        """A nested transaction: it sees what this one sees, and commits into it."""
        return self.coming(self._space.begin, lease, self)

    def goodbye(self) -> Any:
        if self._state == "prepared":
            return None
        return wire.End(0, self._space.name, self.id, "abort")

    def require(self) -> None:
        """PeerLost the first time that it is used after its link was lost; TransactionEnded if it
        has ended."""
        self._space.require_open()
        if self._state in ("committed", "aborted"):
            raise TransactionEnded(self.id, self._state, self._reason)
        if self._is_lost():
            raise PeerLost(self._space.peer, "a transaction", "the link was lost, and with it this")

    def _is_lost(self) -> bool:
        """Was the link lost that carries it? Then it is over from now on."""
        if self.serial is None or self.serial == self._space.serial:
            return False
        self.lost()
        return True

    def lost(self) -> None:
        if self._state == "active":
            self.ended("aborted", "the link to its host was lost")

    def promised(self) -> None:
        """It has promised to commit: a space that is closed now must not call it off."""
        self._state = "prepared"

    def ended(self, state: State, reason: str) -> None:
        self._state, self._reason = state, reason
        self._space.held.discard(self)

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
            with suppress(SpaceClosed):  # That would hide the error, and has ended it anyway.
                if self._state == "active":
                    await self._abort()
        elif self._state == "active":
            try:
                self.require()
                await self._end("commit")
            except TransactionEnded as ended:
                if ended.reason == LEASE_RAN_OUT:
                    raise


class RemoteSession(RemoteHandle, SessionLike):
    """Reads that never give the same entry twice, at a host elsewhere. It ends with its link."""

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
    ) -> Any:
        message = self._space.get_message(
            template, False, wait, scope=scope, many=many, limit=limit, session=self
        )
        found = await self._space.got(message, self, coverage)
        return found if many else found[0] if found else None

    def clone(self, *, lease: float | None = None) -> Any:
        """Another session that has seen the same."""
        return self.coming(self._space.remember, lease, self)

    @property
    def seen(self) -> int:
        """How many entries it remembers; those that are gone are forgotten in time."""
        if not self.is_async:
            run_sync(self._refresh)
        return self._seen

    @dual_api
    async def refresh(self) -> None:
        """Ask the host how it stands."""
        await self._refresh()

    async def _refresh(self) -> None:
        _, self.expires, self._seen, _ = await self._told()

    @dual_api
    async def close(self) -> None:
        await self._close()

    async def leave(self, error: BaseException | None) -> None:
        await self._close()


class RemoteMatchSet(RemoteHandle):
    """What matched at a host elsewhere, in order of arrival: iterate (`async for` on the async
    door), or call `next` until it answers None. It ends with its link."""

    kind = "match set"

    def __init__(self, space: RemoteOperations, serial: int, thing_id: str, expires: Any) -> None:
        super().__init__(space, serial, thing_id, expires)
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
        """What was left out so far, and why."""
        return [*self._at_host, *self._skipped]

    @dual_api
    async def close(self) -> None:
        """It is not needed any more."""
        await self._close()

    async def leave(self, error: BaseException | None) -> None:
        await self._close()

    def __iter__(self) -> Iterator[Any]:
        self.require_door(False, "'async for'")
        while (entry := self.next()) is not None:
            yield entry

    async def __aiter__(self) -> AsyncIterator[Any]:
        self.require_door(True, "'for'")
        while (entry := await self.next()) is not None:
            yield entry
