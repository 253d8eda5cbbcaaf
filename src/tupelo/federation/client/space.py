"""Remote spaces: the operations of a space, at a host elsewhere. One text for both doors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Protocol

from tupelo.errors import BadArgument
from tupelo.federation.client.arguments import (
    NUMBER_MAX,
    is_text,
    listed,
    parts,
)
from tupelo.federation.client.channel import Channel
from tupelo.federation.client.handles import RemoteMatchSet, RemoteTransaction
from tupelo.federation.client.listening import BACKLOG_MAX, RemoteReaction
from tupelo.federation.client.reach import RemoteOperations, Txn, id_of
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import read_change
from tupelo.space.dual_api import dual_api
from tupelo.space.order import Fifo, Order
from tupelo.space.port import check_entries
from tupelo.space.protocol import (
    AsyncSpaceLike,
    Opening,
    SpaceLike,
    names_of,
    takes_longer,
    takes_longer_to_write,
)
from tupelo.space.query import check_count, check_limit, check_position
from tupelo.space.reaction import WeakFunction
from tupelo.values.change import Change, Notice
from tupelo.values.entry import freeze
from tupelo.values.lease import AsyncLease, Lease, check_lease
from tupelo.values.scope import HERE, Coverage, Scope, check_coverage, check_scope
from tupelo.values.template_encoding import template_to_wire


class RemoteSpaceLike(SpaceLike, Protocol):
    """A space at a host elsewhere, for threads: what `tupelo.connect` returns."""

    @property
    def agent(self) -> str: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def host(self) -> dict[str, Any]: ...

    def space(self, name: str, password: str | None = None) -> RemoteSpaceLike: ...


class AsyncRemoteSpaceLike(AsyncSpaceLike, Protocol):
    """A space at a host elsewhere, for coroutines: what `tupelo.aio.connect` returns."""

    @property
    def agent(self) -> str: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def host(self) -> Awaitable[dict[str, Any]]: ...

    def space(self, name: str, password: str | None = None) -> Opening[AsyncRemoteSpaceLike]: ...


class RemoteSpace(RemoteOperations, SpaceLike):
    """A space at a host elsewhere, with the methods of `tupelo.Space`, or on the async door with
    those of `tupelo.aio.Space`; there transactions, sessions and subscriptions are to be awaited
    too (`await space.transaction()`), or used by `async with`.

    `scope` narrows where an operation looks; `to` writes for one agent. Code is not sent: a `Where`
    and an order that is a function are refused. If the link is lost it is dialled again, and what
    only asks is asked again; see `PeerLost` for the rest.
    """

    _get_fast = staticmethod(takes_longer)
    _write_fast = staticmethod(takes_longer_to_write)

    @property
    def host(self) -> Any:
        """What the host says of itself: a dict; on the async door to be awaited."""
        return self.coming(self.told)

    def space(self, name: str, password: str | None = None) -> Any:
        """Another space of the same host, over the same link."""
        return self.coming(opened, self._channel, name, password)

    # Writing

    @dual_api
    async def _write(
        self,
        entry: object,
        lease: float | None,
        txn: Txn,
        at: Any,
        wait: float | None,
        to: str | None,
    ) -> Lease | AsyncLease:
        item = freeze(entry)
        if lease is not None:
            lease = check_lease(lease)
        place = None if at is None else [at]
        return (await self.written([item], lease, txn, place, wait, to))[0]

    @dual_api
    async def _write_all(
        self,
        entries: Iterable[object],
        lease: float | list[float | None] | None,
        txn: Txn,
        at: Sequence[Any] | None,
        wait: float | None,
        to: str | None,
    ) -> list[Lease | AsyncLease]:
        items, leases = check_entries(entries, lease, at)
        if len(items) > wire.BULK_MAX:
            what = f"at most {wire.BULK_MAX:,} at a time, at a host elsewhere"
            raise BadArgument("entries", what, f"{len(items):,}")
        return await self.written(items, leases, txn, None if at is None else list(at), wait, to)

    # Reading and taking

    @dual_api
    async def _get(
        self,
        template: object,
        take: bool,
        wait: float | None,
        many: bool,
        limit: int | None,
        txn: Txn,
        order: Order | None,
        if_exists: bool,
        scope: Scope | None,
        coverage: Coverage | None,
    ) -> Any:
        message = self.get_message(
            template, take, wait, order, if_exists, scope, many=many, limit=limit if many else None
        )
        branch = None if txn is None else await self.branch(txn)
        found = await self.got(message, branch, coverage)
        return found if many else found[0] if found else None

    @dual_api
    async def _count(
        self, template: object, txn: Txn, scope: Scope | None, coverage: Coverage | None
    ) -> int:
        check_scope(scope)
        check_coverage(coverage)
        wanted = template_to_wire(template)
        branch = await self.branch(txn)
        message = wire.CountRequest(
            0, self._name, wanted, id_of(branch), scope, coverage is not None
        )
        answer = await self.ask_in(branch, message)
        if coverage is not None:
            answer, covered, missing = parts(answer, 3)
            coverage.fill(listed(covered), listed(missing))
        count: int = answer
        return count

    @dual_api
    async def _match_set(
        self, template: object, limit: int | None, txn: Txn, lease: float | None
    ) -> RemoteMatchSet:
        check_limit(limit)
        seconds = check_lease(lease)
        wanted = template_to_wire(template)
        branch = await self.branch(txn)
        most = None if limit is None else min(limit, NUMBER_MAX)
        message = wire.Match(0, self._name, wanted, most, id_of(branch), seconds)
        asked = await self.asked(message, None if branch is None else branch.serial)
        return RemoteMatchSet(self, asked.serial, *parts(asked.value, 2))

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Any:
        return self.coming(self.begin, lease)

    @dual_api
    async def in_doubt(self) -> list[RemoteTransaction]:
        asked = await self.asked(wire.ListPrepared(0, self._name))
        known = {held.id: held for held in self.held if isinstance(held, RemoteTransaction)}
        return [
            known.get(txn_id) or RemoteTransaction(self, asked.serial, txn_id, state="prepared")
            for txn_id in listed(asked.value)
        ]

    def session(self, *, lease: float | None = None) -> Any:
        return self.coming(self.remember, lease)

    # Subscriptions, reactions

    def _subscribe(
        self,
        template: object,
        callback: Callable[[Notice], object] | None,
        lease: float | None,
        txn: Txn,
        handback: Any,
        backlog_max: int,
        available: bool,
        returned: bool,
        scope: Scope | None,
    ) -> Any:
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function of a notice", callback)
        if iscoroutinefunction(callback) and not self.is_async:
            raise BadArgument("callback", "a plain function, or use tupelo.aio", callback)
        check_count(backlog_max, "backlog_max")
        _require_at_host(scope)
        message = wire.Subscribe(
            0,
            self._name,
            template_to_wire(template),
            check_lease(lease),
            None,
            min(backlog_max, NUMBER_MAX),
            bool(available),
            bool(returned),
        )
        return self.coming(self.listened, message, callback, txn, handback)

    @dual_api
    async def _react(
        self,
        template: object,
        function: WeakFunction,
        once: bool,
        existing: bool,
        scope: Scope | None,
    ) -> RemoteReaction:
        """Code is not sent: the function is called here."""
        if not callable(function):
            raise BadArgument("function", "a function of an entry and a step", function)
        if iscoroutinefunction(function) and not self.is_async:
            raise BadArgument("function", "a plain function, or use tupelo.aio", function)
        _require_at_host(scope)
        wanted = template_to_wire(template)
        message = wire.Subscribe(0, self._name, wanted, backlog_max=BACKLOG_MAX)
        subscription = await self.listened(message, None, None, None)

        async def look() -> list[Any]:
            message = self.get_message(template, False, 0, Fifo(), many=True, whole=True)
            return await self.got(message)

        there = await look() if existing else []
        reaction = RemoteReaction(self, subscription, look, function, bool(once))
        self._channel.start(lambda: reaction.run(there), "tupelo-reaction")
        return reaction

    # The log, closing

    @dual_api
    async def changes(self, *, since: int = 0, limit: int | None = None) -> list[Change]:
        check_position("since", since)
        check_limit(limit)
        most = None if limit is None else min(limit, NUMBER_MAX)
        message = wire.Changes(0, self._name, min(since, NUMBER_MAX), most)
        return [read_change(encoded) for encoded in listed(await self.ask(message))]

    @dual_api
    async def trim(self, *, before: int) -> None:
        check_position("before", before)
        await self.ask(wire.Trim(0, self._name, min(before, NUMBER_MAX)))

    @dual_api
    async def compact(self) -> None:
        await self.ask(wire.Trim(0, self._name))

    @dual_api
    async def close(self) -> None:
        await self.leave(None)

    def __dir__(self) -> list[str]:
        return names_of(SpaceLike, "agent", "host", "is_async", "space")

    def __repr__(self) -> str:
        return f"{'aio.' if self.is_async else ''}RemoteSpace({self._name!r}, {self.peer!r})"


def _require_at_host(scope: Scope | None) -> None:
    """A client is told of what is at its host."""
    check_scope(scope)
    if scope is not None and scope != HERE:
        what = "HERE or None: a client is told of what comes to its host"
        raise BadArgument("scope", what, scope)


async def opened(channel: Channel, name: str, password: str | None) -> RemoteSpace:
    """A space of the host at the other end of the channel."""
    if not is_text(name) or not name:
        raise BadArgument("name", "the name of a space", name)
    if password is not None and not is_text(password):
        raise BadArgument("password", "a text, or None", password)
    space = RemoteSpace(channel, name)
    await space.open(password)
    return space
