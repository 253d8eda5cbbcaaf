"""Remote spaces: the operations of a space, at a host elsewhere. One text for both doors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import iscoroutinefunction
from typing import Any

from tupelo.errors import BadArgument
from tupelo.federation.client.arguments import (
    NUMBER_MAX,
    check_leases,
    freeze_all,
    is_text,
    listed,
)
from tupelo.federation.client.channel import Channel
from tupelo.federation.client.doors import either
from tupelo.federation.client.handles import AsyncLease, RemoteTransaction
from tupelo.federation.client.listening import BACKLOG_MAX, RemoteReaction
from tupelo.federation.client.reach import Reach, Txn, id_of
from tupelo.federation.links import wire
from tupelo.federation.links.spelled import read_change, read_whole
from tupelo.federation.spanning.scope import Scope, spell_scope
from tupelo.federation.spanning.weak import WeakFunction
from tupelo.space.checks import check_count, check_limit, check_position
from tupelo.space.order import Order
from tupelo.values.change import Change
from tupelo.values.entry import freeze
from tupelo.values.lease import Lease, check_lease
from tupelo.values.notice import Notice
from tupelo.values.parts import ANY
from tupelo.values.spelling import template_to_wire


class RemoteSpace(Reach):
    """A space at a host elsewhere, with the methods of `tupelo.Space`, or on the async door with
    those of `tupelo.aio.Space`; there transactions, sessions and subscriptions are to be awaited
    too (`await space.transaction()`), or used by `async with`.

    `scope` narrows where an operation looks; `to` writes for one agent. Code is not sent: a `Where`
    and an order that is a function are refused. If the link is lost it is dialled again, and what
    only asks is asked again; see `PeerLost` for the rest.
    """

    @property
    def host(self) -> Any:
        """What the host says of itself: a dict; on the async door to be awaited."""
        return self.coming(self.told)

    def space(self, name: str, password: str | None = None) -> Any:
        """Another space of the same host, over the same link."""
        return self.coming(opened, self._channel, name, password)

    # Writing

    @either
    async def write(
        self,
        entry: object,
        *,
        lease: float | None = None,
        txn: Txn = None,
        at: Any = None,
        wait: float | None = 0,
        to: str | None = None,
    ) -> Lease | AsyncLease:
        """Write an entry: a tuple, or an instance of a dataclass. The space keeps a copy.

        `at` is for orders with places. If the space cannot take it now (it is full, or the order
        refuses the entry) it may `wait` until something leaves; then the refusal is raised.
        """
        item = freeze(entry)
        if lease is not None:
            lease = check_lease(lease)
        place = None if at is None else [at]
        return (await self.written([item], lease, txn, place, wait, to))[0]

    @either
    async def write_all(
        self,
        entries: Iterable[object],
        *,
        lease: float | list[float | None] | None = None,
        txn: Txn = None,
        at: Sequence[Any] | None = None,
        wait: float | None = 0,
        to: str | None = None,
    ) -> list[Lease | AsyncLease]:
        """Write many entries in one step: all of them become visible together, or none. The lease
        may be a list, with one for each."""
        items = freeze_all(entries)
        if at is not None and (not isinstance(at, (list, tuple)) or len(at) != len(items)):
            raise BadArgument("at", "a list with a place for each entry", at)
        leases = check_leases(lease, len(items))
        return await self.written(items, leases, txn, None if at is None else list(at), wait, to)

    # Reading and taking

    @either
    async def read(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Txn = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
    ) -> Any:
        """A copy of a matching entry; None if there is none in time.

        With `if_exists`, wait only while a transaction may still reveal or release a match.
        """
        found = await self.got(template, False, wait, txn, order, if_exists, scope)
        return found[0] if found else None

    @either
    async def take(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Txn = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
    ) -> Any:
        """Remove a matching entry and get it; nobody else will. None if there is none in time."""
        found = await self.got(template, True, wait, txn, order, if_exists, scope)
        return found[0] if found else None

    @either
    async def read_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        txn: Txn = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
    ) -> list[Any]:
        """Copies of all matching entries, at most `limit`. It waits for the first, if told to."""
        return await self.got(
            template, False, wait, txn, order, if_exists, scope, many=True, limit=limit
        )

    @either
    async def take_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        txn: Txn = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
    ) -> list[Any]:
        """Remove all matching entries, at most `limit`, in one step."""
        return await self.got(
            template, True, wait, txn, order, if_exists, scope, many=True, limit=limit
        )

    @either
    async def count(
        self, template: object = ANY, *, txn: Txn = None, scope: Scope | None = None
    ) -> int:
        """How many entries match at this moment."""
        wanted = template_to_wire(template)
        branch = await self.branch(txn)
        message = wire.Count(0, self._name, wanted, id_of(branch), spell_scope(scope))
        count: int = await self.ask_in(branch, message)
        return count

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Any:
        """All or nothing: pass it as `txn=`. It aborts itself when its lease runs out, or the link
        is lost."""
        return self.coming(self.begin, lease)

    @either
    async def in_doubt(self) -> list[RemoteTransaction]:
        """The transactions that were prepared and not decided, also before a crash."""
        asked = await self.asked(wire.Doubts(0, self._name))
        known = {held.id: held for held in self.held if isinstance(held, RemoteTransaction)}
        return [
            known.get(txn_id) or RemoteTransaction(self, asked.serial, txn_id, state="prepared")
            for txn_id in listed(asked.value)
        ]

    def session(self, *, lease: float | None = None) -> Any:
        """A reader that never sees the same entry twice."""
        return self.coming(self.remember, lease)

    # Subscriptions, reactions

    def subscribe(
        self,
        template: object = ANY,
        callback: Callable[[Notice], object] | None = None,
        *,
        lease: float | None = None,
        txn: Txn = None,
        handback: Any = None,
        backlog_max: int = 1_000,
        available: bool = False,
        returned: bool = True,
    ) -> Any:
        """Be told of entries that become visible; see `tupelo.Space.subscribe`. The callback is
        called in a thread, or a task, of its own."""
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function of a notice", callback)
        if iscoroutinefunction(callback) and not self.is_async:
            raise BadArgument("callback", "a plain function, or use tupelo.aio", callback)
        check_count(backlog_max, "backlog_max")
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

    @either
    async def react(
        self,
        template: object,
        function: WeakFunction,
        *,
        once: bool = False,
        existing: bool = True,
    ) -> RemoteReaction:
        """Call `function(entry, step)` here, after the step in which a match became visible.

        Code is not sent, so this is weaker than the reaction of a local space: others may see the
        entry first. It is called once for every entry (or `once` only), for those already there
        too unless `existing` is False, in a thread or task of its own. What it does through `step`
        is one transaction at the host, which commits when it returns and aborts if it raises; then
        the reaction's `error` says why, and it goes on with the next entry.
        """
        if not callable(function):
            raise BadArgument("function", "a function of an entry and a step", function)
        if iscoroutinefunction(function) and not self.is_async:
            raise BadArgument("function", "a plain function, or use tupelo.aio", function)
        wanted = template_to_wire(template)
        message = wire.Subscribe(0, self._name, wanted, backlog_max=BACKLOG_MAX)
        subscription = await self.listened(message, None, None, None)

        async def look() -> list[Any]:
            return await self.got(template, False, 0, many=True, build=read_whole)

        there = await look() if existing else []
        reaction = RemoteReaction(self, subscription, look, function, bool(once))
        self._channel.start(lambda: reaction.run(there), "tupelo-reaction")
        return reaction

    # The log, closing

    @either
    async def changes(self, *, since: int = 0, limit: int | None = None) -> list[Change]:
        """What happened after position `since`, oldest first."""
        check_position("since", since)
        check_limit(limit)
        most = None if limit is None else min(limit, NUMBER_MAX)
        message = wire.Changes(0, self._name, min(since, NUMBER_MAX), most)
        return [read_change(spelled) for spelled in listed(await self.ask(message))]

    @either
    async def trim(self, *, before: int) -> None:
        """Forget the changes before a position. What the space holds is not touched."""
        check_position("before", before)
        await self.ask(wire.Trim(0, self._name, min(before, NUMBER_MAX)))

    @either
    async def compact(self) -> None:
        """Trim the log by the space's policy and give the room back to the disk."""
        await self.ask(wire.Trim(0, self._name))

    @either
    async def close(self) -> None:
        """Let go of the space: who waits in it here gets SpaceClosed. The space itself goes on; the
        link is closed with the last space that uses it."""
        await self.leave(None)

    def __repr__(self) -> str:
        return f"{'aio.' if self.is_async else ''}RemoteSpace({self._name!r}, {self.peer!r})"


async def opened(channel: Channel, name: str, password: str | None) -> RemoteSpace:
    """A space of the host at the other end of the channel."""
    if not is_text(name) or not name:
        raise BadArgument("name", "the name of a space", name)
    if password is not None and not is_text(password):
        raise BadArgument("password", "a text, or None", password)
    space = RemoteSpace(channel, name)
    await space.open(password)
    return space
