"""The server: the operations out, in, rd, inp, rdp, ing and rdg on an interface tuple space.

An operation first looks at the tuples of its own host. If it finds a match there, or the tuple of
an `out` stays there, the operation is one step of the space and does not wait for a change of the
membership. Otherwise it is one operation of the group: the membership does not change meanwhile. If
a host is lost before it has answered, the operation runs again in the next membership, so that it
never misses the hosts behind the lost one. Waiting operations wait outside of the group's
operations and search again afterwards. An operation on one host or agent sends its request only
there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from tupelo.errors import AgentEnded, PeerLost, PrivateSpace, SpaceClosed
from tupelo.models.lime.locations import AgentLocation
from tupelo.models.lime.messages import (
    ANYWHERE,
    FoundTuple,
    TuplePattern,
    TuplePlace,
    encoded_template,
)
from tupelo.models.lime.part import NOWHERE, LimePart
from tupelo.models.lime.reactions import Detected, ReactionWatch, mark_of
from tupelo.models.lime.spaces import InterfaceSpace, TupleStore
from tupelo.space.port import value_of
from tupelo.space.query import Query, deadline_of
from tupelo.space.tasks import timeout_at
from tupelo.values.entry import Entry, freeze, require_known

T = TypeVar("T")

logger = logging.getLogger("tupelo")


class Server(LimePart):
    """LIME at one host: its part in the group, with the operations of the agents."""

    # Writing

    async def out(
        self, space: InterfaceSpace, value: object, destination: AgentLocation | None = None
    ) -> None:
        """Write a tuple. If it is for an agent in the group that shares the space, it is at the
        host of that agent when this returns, and was never visible elsewhere. Raises BadEntry if
        the space is shared and the tuple cannot be sent."""
        space.require_writable("write")
        item = freeze(value)
        await self._finish(self._out(space, item, destination))

    async def _out(
        self, space: InterfaceSpace, item: Any, destination: AgentLocation | None
    ) -> None:
        _require_alive(space)
        space.require_sendable(item)
        mark = mark_of(space.agent, destination)
        shape, fields = item
        entry = Entry(fields, shape, space.agent.id, mark.n or 0, 0, to=mark.to)
        if space.shared and space.tuple_store.away(entry) is not None:
            async with self.group.operating():
                _require_alive(space)
                _, batches = self.transfer.pass_on(
                    space.tuple_store, [entry] if space.shared else []
                )
                if batches:
                    await self.transfer.send(batches)
                    return
        tuple_store = space.tuple_store
        await tuple_store.flush(tuple_store.engine.write(item, mark))
        await self.announce_fresh(tuple_store)

    # Reading

    async def rdp(self, space: InterfaceSpace, template: Any, where: TuplePlace = ANYWHERE) -> Any:
        seen = await self._read(space, template, where, one=True)
        return value_of(seen[0]) if seen else None

    async def rdg(
        self, space: InterfaceSpace, template: Any, where: TuplePlace = ANYWHERE
    ) -> list[Any]:
        seen = await self._read(space, template, where, one=False)
        return [value_of(entry) for entry in seen]

    async def _read(
        self, space: InterfaceSpace, template: Any, where: TuplePlace, *, one: bool
    ) -> list[Entry]:
        _require_alive(space)
        if one or not space.shared:
            seen = space.tuple_store.look(template, where, one=one)
            if seen or not space.shared:
                return seen
        return await self._in_one_membership(lambda: self._read_now(space, template, where, one))

    async def _read_now(
        self, space: InterfaceSpace, template: Any, where: TuplePlace, one: bool
    ) -> list[Entry]:
        _require_alive(space)
        seen = space.tuple_store.look(template, where, one=one)
        if not space.shared or (one and seen):
            return seen
        target = self.target(where)
        if target == self.core.id or target == NOWHERE:
            return seen
        pattern = TuplePattern(space.name, encoded_template(template), where, False, one)
        if target is not None:
            return _distinct(seen, await self.transfer.look(target, pattern), one)
        elsewhere, lost = await self.transport.probe(pattern, every=not one)
        for host in sorted(lost):
            if not (one and elsewhere):
                elsewhere += await self.transfer.look(host, pattern)
        return _distinct(seen, elsewhere, one)

    async def rd(
        self,
        space: InterfaceSpace,
        template: Any,
        where: TuplePlace = ANYWHERE,
        wait: float | None = None,
    ) -> Any:
        """A matching tuple; None after `wait` seconds without one."""
        deadline = deadline_of(self.core.clock, wait)
        _require_waitable(space, "rd")
        seen = space.tuple_store.look(template, where, one=True)
        if not seen and space.shared and self.target(where) not in (None, NOWHERE, self.core.id):
            async with self.group.operating():
                with suppress(PeerLost):  # Then wait.
                    seen = await self._read_now(space, template, where, one=True)
        if seen:
            return value_of(seen[0])
        if space.is_system:
            watch = partial(self._watch_system, template)
        else:
            pattern = TuplePattern(space.name, encoded_template(template), where, False, True)
            watch = partial(self.transport.watch, pattern)
        came = await self._wait(space, watch, "rd", deadline)
        if came is None:
            return None
        require_known(came.entry)
        return value_of(came.entry)

    def _watch_system(self, template: Any, deliver: Detected) -> ReactionWatch:
        async def look() -> None:
            query = Query(template, deadline=None, known=False)
            for entry in await self.system.port.fetch(query):
                deliver(FoundTuple(entry, self.core.id, self.core.id))

        return self.spawn(look())

    # Taking

    async def inp(self, space: InterfaceSpace, template: Any, where: TuplePlace = ANYWHERE) -> Any:
        space.require_writable("take")
        taken = await self._finish_taking(space, self._inp(space, template, where))
        return value_of(taken[0]) if taken else None

    async def ing(
        self, space: InterfaceSpace, template: Any, where: TuplePlace = ANYWHERE
    ) -> list[Any]:
        space.require_writable("take")
        taken = await self._finish_taking(space, self._ing(space, template, where))
        return [value_of(entry) for entry in taken]

    async def in_(
        self,
        space: InterfaceSpace,
        template: Any,
        where: TuplePlace = ANYWHERE,
        wait: float | None = None,
    ) -> Any:
        """A matching tuple; None after `wait` seconds without one."""
        deadline = deadline_of(self.core.clock, wait)
        space.require_writable("take")
        _require_waitable(space, "in_")
        pattern = TuplePattern(space.name, encoded_template(template), where, True, True)
        watch = partial(self.transport.watch, pattern)
        host = self.target(where) or self.core.id
        while True:
            work = self._take_at(space, template, pattern, host)
            taken = await self._finish_taking(space, work)
            if taken:
                return value_of(taken[0])
            came = await self._wait(space, watch, "in_", deadline)
            if came is None:
                return None
            host = came.host

    async def _inp(self, space: InterfaceSpace, template: Any, where: TuplePlace) -> list[Entry]:
        _require_alive(space)
        taken = await space.tuple_store.take(template, where, one=True)
        if taken or not space.shared:
            return taken
        return await self._in_one_membership(lambda: self._inp_now(space, template, where))

    async def _inp_now(
        self, space: InterfaceSpace, template: Any, where: TuplePlace
    ) -> list[Entry]:
        _require_alive(space)
        taken = await space.tuple_store.take(template, where, one=True)
        target = self.target(where)
        if taken or not space.shared or target == self.core.id or target == NOWHERE:
            return taken
        pattern = TuplePattern(space.name, encoded_template(template), where, True, True)
        if target is not None:
            return await self._take_from(target, space.tuple_store, template, pattern)
        while space.shared:  # Another taker may be faster.
            found_elsewhere, lost = await self.transport.probe(pattern, every=False)
            for host in [found_elsewhere[0].host] if found_elsewhere else sorted(lost):
                taken = await self._take_from(host, space.tuple_store, template, pattern)
                if taken:
                    return taken
            if not found_elsewhere:
                return []
        return await space.tuple_store.take(template, where, one=True)  # It is private by now.

    async def _take_at(
        self, space: InterfaceSpace, template: Any, pattern: TuplePattern, host: str
    ) -> list[Entry]:
        """Take a match here or else at this host, where one was seen or must be."""
        _require_waitable(space, "in_")
        taken = await space.tuple_store.take(template, pattern.where, one=True)
        if taken or host == self.core.id:
            return taken
        async with self.group.operating():
            _require_waitable(space, "in_")
            if host in self.directory.hosts:
                with suppress(PeerLost):  # Tuples that it reserved return there.
                    taken = await self._take_from(host, space.tuple_store, template, pattern)
            return taken

    async def _take_from(
        self, host: str, tuple_store: TupleStore, template: Any, pattern: TuplePattern
    ) -> list[Entry]:
        if host == self.core.id:
            return await tuple_store.take(template, pattern.where, one=True)
        taken: list[Entry] = []
        await self.transfer.take(host, pattern, taken)
        return taken

    async def _ing(self, space: InterfaceSpace, template: Any, where: TuplePlace) -> list[Entry]:
        """Tuples that were taken before a host was lost stay taken; the others are taken in the
        next membership."""
        _require_alive(space)
        tuple_store = space.tuple_store
        if not space.shared:
            return await tuple_store.take(template, where, one=False)
        taken: list[Entry] = []
        try:
            await self._in_one_membership(lambda: self._ing_now(space, template, where, taken))
        except BaseException:
            tuple_store.put(taken)
            raise
        return taken

    async def _ing_now(
        self, space: InterfaceSpace, template: Any, where: TuplePlace, taken: list[Entry]
    ) -> None:
        _require_alive(space)
        taken += await space.tuple_store.take(template, where, one=False)
        target = self.target(where)
        if not space.shared or target == self.core.id or target == NOWHERE:
            return
        pattern = TuplePattern(space.name, encoded_template(template), where, True, False)
        if target is None:
            some = msgspec.structs.replace(pattern, one=True)
            found_elsewhere, lost = await self.transport.probe(some, every=True)
            hosts = {one.host for one in found_elsewhere if one.host != self.core.id} | lost
        else:
            hosts = {target}
        ended = await asyncio.gather(
            *(self.transfer.take(host, pattern, taken) for host in sorted(hosts)),
            return_exceptions=True,
        )
        errors = [error for error in ended if error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
            raise error

    # Waiting and completion

    async def _in_one_membership(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` as one operation of the group. If a host is lost before it has answered, run
        it again in the next membership: no operation sees half of a change."""
        while True:
            async with self.group.operating():
                membership = self.group.membership
                try:
                    return await work()
                except PeerLost as error:
                    logger.debug("an operation runs again in the next membership: %s", error)
            await self.group.changed(membership)

    async def _wait(
        self,
        space: InterfaceSpace,
        watch: Callable[[Detected], ReactionWatch],
        operation: str,
        deadline: float | None,
    ) -> FoundTuple | None:
        """Wait, outside of operations of the group, for a match; None at the deadline."""
        if deadline is not None and deadline <= self.core.clock.now():
            return None
        seen: asyncio.Future[FoundTuple] = asyncio.get_running_loop().create_future()

        def deliver(found: FoundTuple) -> None:
            if not seen.done():
                seen.set_result(found)

        _require_waitable(space, operation)
        space.waiting[seen] = operation
        watching = watch(deliver)
        try:
            async with timeout_at(self.core.clock, deadline):
                return await seen
        except TimeoutError:
            return None
        finally:
            watching.cancel()
            space.waiting.pop(seen, None)

    async def _finish_taking(
        self, space: InterfaceSpace, work: Coroutine[Any, Any, list[Entry]]
    ) -> list[Entry]:
        """Run `work` to its end; if the caller is cancelled, put the taken tuples back."""
        tuple_store = space.tuple_store
        task: asyncio.Task[list[Entry]] = self.spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: _return(tuple_store, done))
            raise


def _return(tuple_store: TupleStore, done: asyncio.Task[list[Entry]]) -> None:
    if not done.cancelled() and done.exception() is None:
        with suppress(SpaceClosed):
            tuple_store.put(done.result())


def _distinct(seen: list[Entry], elsewhere: list[FoundTuple], one: bool) -> list[Entry]:
    """The matches of this host and of others, without duplicates."""
    known = {(entry.origin, entry.n) for entry in seen}
    for found_elsewhere in elsewhere:
        entry = found_elsewhere.entry
        if (entry.origin, entry.n) not in known:
            known.add((entry.origin, entry.n))
            require_known(entry)
            seen.append(entry)
    return seen[:1] if one else seen


def _require_alive(space: InterfaceSpace) -> None:
    if space.agent.ended:
        raise AgentEnded(space.agent.id)


def _require_waitable(space: InterfaceSpace, operation: str) -> None:
    _require_alive(space)
    if not space.shared and not space.is_system:
        raise PrivateSpace(operation, space.name)
