"""Operations: out, in, rd, inp, rdp, ing and rdg on an interface tuple space.

What the host itself has is looked at first. What is answered by that is one step of its space, and
waits for no change of the group; nor does a tuple that stays here. The rest is one operation of the
group: no change of the group comes between. If a host is lost before it has answered, the operation
is done again when the group has changed, so that it never misses the hosts behind the lost one.
Those that wait do so outside, and look again afterwards. What is asked of one host, or agent, is
asked there and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from tupelo.errors import AgentEnded, PeerLost, PrivateSpace, SpaceClosed
from tupelo.federation.groups.group import Group, PartSender
from tupelo.federation.hosts.core import HostCore
from tupelo.models.lime.locations import AgentLocation
from tupelo.models.lime.messages import (
    ANYWHERE,
    TuplePattern,
    TuplePlace,
    encoded_template,
)
from tupelo.models.lime.reactions import Detected, ReactionWatch, mark_of
from tupelo.models.lime.spaces import Directory, InterfaceSpace, LimeSystem, TupleStore
from tupelo.models.lime.transfer import TuplesToMove, TupleTransfer
from tupelo.models.lime.transport import FoundTuples, Transport, WindowedRead
from tupelo.space.query import Query, deadline_of
from tupelo.space.tasks import timeout_at
from tupelo.values.entry import Entry, freeze, require_known, thaw

NOWHERE = ""

T = TypeVar("T")

logger = logging.getLogger("tupelo")


class Operations:
    """The operations of the agents at one host: a part of its `Server`, which has the rest."""

    core: HostCore
    group: Group
    voice: PartSender
    carriage: Transport
    handover: TupleTransfer
    moving: TuplesToMove
    looking: WindowedRead
    system: LimeSystem

    @property
    def directory(self) -> Directory:
        raise NotImplementedError

    async def speak(self, tuple_store: TupleStore) -> None:
        """Tell of what has come into sight on a tuple store."""
        raise NotImplementedError

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have this done, though perhaps nobody waits for it."""
        raise NotImplementedError

    # Writing

    async def out(
        self, its: InterfaceSpace, value: object, destination: AgentLocation | None = None
    ) -> None:
        """Write a tuple. What is for an agent in the group that shares the space is with it when
        this returns, and was never seen elsewhere. BadEntry if the space is shared and the tuple
        could not be sent to another host."""
        its.require_writable("write")
        item = freeze(value)
        await self._finish(self._out(its, item, destination))

    async def _out(self, its: InterfaceSpace, item: Any, destination: AgentLocation | None) -> None:
        _require_alive(its)
        its.require_sendable(item)
        mark = mark_of(its.agent, destination)
        shape, fields = item
        entry = Entry(fields, shape, its.agent.id, mark.n or 0, 0, to=mark.to)
        if its.shared and its.tuple_store.away(entry) is not None:
            async with self.group.operating():
                _require_alive(its)
                _, parcels = self.moving.pass_on(its.tuple_store, [entry] if its.shared else [])
                if parcels:
                    await self.moving.send(parcels)
                    return
        tuple_store = its.tuple_store
        await tuple_store.flush(tuple_store.engine.write(item, mark))
        await self.speak(tuple_store)

    # Reading

    async def rdp(self, its: InterfaceSpace, template: Any, where: TuplePlace = ANYWHERE) -> Any:
        seen = await self._read(its, template, where, one=True)
        return value_of(seen[0]) if seen else None

    async def rdg(
        self, its: InterfaceSpace, template: Any, where: TuplePlace = ANYWHERE
    ) -> list[Any]:
        seen = await self._read(its, template, where, one=False)
        return [value_of(entry) for entry in seen]

    async def _read(
        self, its: InterfaceSpace, template: Any, where: TuplePlace, *, one: bool
    ) -> list[Entry]:
        _require_alive(its)
        if one or not its.shared:
            seen = its.tuple_store.look(template, where, one=one)
            if seen or not its.shared:
                return seen
        return await self._in_one_membership(lambda: self._read_now(its, template, where, one))

    async def _read_now(
        self, its: InterfaceSpace, template: Any, where: TuplePlace, one: bool
    ) -> list[Entry]:
        _require_alive(its)
        seen = its.tuple_store.look(template, where, one=one)
        if not its.shared or (one and seen):
            return seen
        target = self.target(where)
        if target == self.core.id or target == NOWHERE:
            return seen
        pattern = TuplePattern(its.name, encoded_template(template), where, False, one)
        if target is not None:
            return _distinct(seen, await self.looking.look(target, pattern), one)
        elsewhere, lost = await self.carriage.probe(pattern, every=not one)
        for host in sorted(lost):
            if not (one and elsewhere):
                elsewhere += await self.looking.look(host, pattern)
        return _distinct(seen, elsewhere, one)

    def target(self, where: TuplePlace) -> str | None:
        """The one host to ask; NOWHERE if it is not in the group; None if it could be any."""
        if where.current is None:
            return None
        kind, name = where.current
        directory = self.directory
        if kind == "host":
            return name if name in directory.hosts else NOWHERE
        return directory.host_of(name) or NOWHERE

    async def rd(
        self,
        its: InterfaceSpace,
        template: Any,
        where: TuplePlace = ANYWHERE,
        wait: float | None = None,
    ) -> Any:
        """None if its time has run out."""
        deadline = deadline_of(self.core.clock, wait)
        _require_waitable(its, "rd")
        _require_alive(its)
        seen = its.tuple_store.look(template, where, one=True)
        if not seen and its.shared and self.target(where) not in (None, NOWHERE, self.core.id):
            async with self.group.operating():
                with suppress(PeerLost):  # Then it is waited for.
                    seen = await self._read_now(its, template, where, one=True)
        if seen:
            return value_of(seen[0])
        if its.is_system:
            watch = partial(self._watch_system, template)
        else:
            pattern = TuplePattern(its.name, encoded_template(template), where, False, True)
            watch = partial(self.carriage.watch, pattern)
        came = await self._wait(its, watch, "rd", deadline)
        if came is None:
            return None
        require_known(came.entry)
        return value_of(came.entry)

    def _watch_system(self, template: Any, told: Detected) -> ReactionWatch:
        async def look() -> None:
            query = Query(template, deadline=None, known=False)
            for entry in await self.system.port.fetch(query):
                told(entry, self.core.id, self.core.id)

        return self.spawn(look())

    # Taking

    async def inp(self, its: InterfaceSpace, template: Any, where: TuplePlace = ANYWHERE) -> Any:
        its.require_writable("take")
        taken = await self._finish_taking(its, self._inp(its, template, where))
        return value_of(taken[0]) if taken else None

    async def ing(
        self, its: InterfaceSpace, template: Any, where: TuplePlace = ANYWHERE
    ) -> list[Any]:
        its.require_writable("take")
        taken = await self._finish_taking(its, self._ing(its, template, where))
        return [value_of(entry) for entry in taken]

    async def in_(
        self,
        its: InterfaceSpace,
        template: Any,
        where: TuplePlace = ANYWHERE,
        wait: float | None = None,
    ) -> Any:
        """None if its time has run out."""
        deadline = deadline_of(self.core.clock, wait)
        its.require_writable("take")
        _require_waitable(its, "in_")
        pattern = TuplePattern(its.name, encoded_template(template), where, True, True)
        watch = partial(self.carriage.watch, pattern)
        host = self.target(where) or self.core.id
        while True:
            work = self._take_at(its, template, pattern, host)
            taken = await self._finish_taking(its, work)
            if taken:
                return value_of(taken[0])
            came = await self._wait(its, watch, "in_", deadline)
            if came is None:
                return None
            host = came.host

    async def _inp(self, its: InterfaceSpace, template: Any, where: TuplePlace) -> list[Entry]:
        _require_alive(its)
        taken = await its.tuple_store.take(template, where, one=True)
        if taken or not its.shared:
            return taken
        return await self._in_one_membership(lambda: self._inp_now(its, template, where))

    async def _inp_now(self, its: InterfaceSpace, template: Any, where: TuplePlace) -> list[Entry]:
        _require_alive(its)
        taken = await its.tuple_store.take(template, where, one=True)
        target = self.target(where)
        if taken or not its.shared or target == self.core.id or target == NOWHERE:
            return taken
        pattern = TuplePattern(its.name, encoded_template(template), where, True, True)
        if target is not None:
            return await self._take_from(target, its.tuple_store, template, pattern)
        while True:  # Someone else may take what was found, before us.
            sighted, lost = await self.carriage.probe(pattern, every=False)
            for host in [sighted[0].host] if sighted else sorted(lost):
                taken = await self._take_from(host, its.tuple_store, template, pattern)
                if taken:
                    return taken
            if not sighted:
                return []

    async def _take_at(
        self, its: InterfaceSpace, template: Any, pattern: TuplePattern, host: str
    ) -> list[Entry]:
        """Take one here or else at this host, where one was seen, or must be."""
        _require_alive(its)
        _require_waitable(its, "in_")
        taken = await its.tuple_store.take(template, pattern.where, one=True)
        if taken or host == self.core.id:
            return taken
        async with self.group.operating():
            _require_alive(its)
            _require_waitable(its, "in_")
            if host in self.directory.hosts:
                with suppress(PeerLost):  # What it gave will return there, and be seen again.
                    taken = await self._take_from(host, its.tuple_store, template, pattern)
            return taken

    async def _take_from(
        self, host: str, tuple_store: TupleStore, template: Any, pattern: TuplePattern
    ) -> list[Entry]:
        if host == self.core.id:
            return await tuple_store.take(template, pattern.where, one=True)
        taken: list[Entry] = []
        await self.handover.take(host, pattern, taken)
        return taken

    async def _ing(self, its: InterfaceSpace, template: Any, where: TuplePlace) -> list[Entry]:
        """What was taken before a host was lost stays taken; the rest is taken when the group has
        changed."""
        _require_alive(its)
        tuple_store = its.tuple_store
        if not its.shared:
            return await tuple_store.take(template, where, one=False)
        taken: list[Entry] = []
        try:
            await self._in_one_membership(lambda: self._ing_now(its, template, where, taken))
        except BaseException:
            tuple_store.put(taken)
            raise
        return taken

    async def _ing_now(
        self, its: InterfaceSpace, template: Any, where: TuplePlace, taken: list[Entry]
    ) -> None:
        _require_alive(its)
        taken += await its.tuple_store.take(template, where, one=False)
        target = self.target(where)
        if not its.shared or target == self.core.id or target == NOWHERE:
            return
        pattern = TuplePattern(its.name, encoded_template(template), where, True, False)
        if target is None:
            some = msgspec.structs.replace(pattern, one=True)
            sighted, lost = await self.carriage.probe(some, every=True)
            hosts = {one.host for one in sighted if one.host != self.core.id} | lost
        else:
            hosts = {target}
        ended = await asyncio.gather(
            *(self.handover.take(host, pattern, taken) for host in sorted(hosts)),
            return_exceptions=True,
        )
        errors = [error for error in ended if error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
            raise error

    # Waiting, and carrying through

    async def _in_one_membership(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do this as one operation of the group. If a host is lost before it has answered, do it
        again when the group has changed: nobody sees half of a change."""
        while True:
            async with self.group.operating():
                membership = self.group.membership
                try:
                    return await work()
                except PeerLost as error:
                    logger.debug("an operation is done again in the next roster: %s", error)
            await self.group.changed(membership)

    async def _wait(
        self,
        its: InterfaceSpace,
        watch: Callable[[Detected], ReactionWatch],
        operation: str,
        deadline: float | None,
    ) -> FoundTuples | None:
        """Wait, outside of operations, until something is seen or the deadline is past."""
        if deadline is not None and deadline <= self.core.clock.now():
            return None
        seen: asyncio.Future[FoundTuples] = asyncio.get_running_loop().create_future()

        def told(entry: Entry, current: str, host: str) -> None:
            if not seen.done():
                seen.set_result(FoundTuples(entry, current, host))

        _require_alive(its)
        _require_waitable(its, operation)
        its.waiting[seen] = operation
        watching = watch(told)
        try:
            async with timeout_at(self.core.clock, deadline):
                return await seen
        except TimeoutError:
            return None
        finally:
            watching.cancel()
            its.waiting.pop(seen, None)

    async def _finish(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Carry this through, even if nobody waits for it any more."""
        return await asyncio.shield(self.spawn(work))

    async def _finish_taking(
        self, its: InterfaceSpace, work: Coroutine[Any, Any, list[Entry]]
    ) -> list[Entry]:
        """The same. What was taken for someone who does not wait any more goes back."""
        tuple_store = its.tuple_store
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


def _distinct(seen: list[Entry], elsewhere: list[FoundTuples], one: bool) -> list[Entry]:
    """What was found here and elsewhere, each once, though it was told twice."""
    known = {(entry.origin, entry.n) for entry in seen}
    for sighted in elsewhere:
        entry = sighted.entry
        if (entry.origin, entry.n) not in known:
            known.add((entry.origin, entry.n))
            require_known(entry)
            seen.append(entry)
    return seen[:1] if one else seen


def value_of(entry: Entry) -> Any:
    return thaw(entry.shape, entry.fields)


def _require_alive(its: InterfaceSpace) -> None:
    if its.agent.ended:
        raise AgentEnded(its.agent.id)


def _require_waitable(its: InterfaceSpace, operation: str) -> None:
    if not its.shared and not its.is_system:
        raise PrivateSpace(operation, its.name)
