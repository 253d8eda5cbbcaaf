"""Operations: out, in, rd, inp, rdp, ing and rdg on an interface tuple space.

Each is one operation of the group: no change of the group comes between. Those that wait do so
outside, and look again afterwards. What the host itself has is looked at first; what is asked of
one host, or agent, is asked there and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from tupelo.errors import AgentEnded, PeerLost, PrivateSpace, SpaceClosed
from tupelo.federation.groups.group import Group
from tupelo.federation.groups.routing import Voice
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.spanning.handover import found
from tupelo.models.lime.carriage import Carriage, Found
from tupelo.models.lime.directory import Directory
from tupelo.models.lime.handover import HandOver
from tupelo.models.lime.locations import AgentLocation, Location
from tupelo.models.lime.messages import (
    Look,
    Pattern,
    Placed,
    Where,
    read,
    spell,
    spelled_template,
    where_of,
)
from tupelo.models.lime.moving import Moving
from tupelo.models.lime.reactions import Detected, Watch, mark_of
from tupelo.models.lime.spaces import Ground, Its
from tupelo.space.checks import check_wait
from tupelo.space.tasks import TaskSignal
from tupelo.values.entry import Entry, freeze, require_known, thaw

NOWHERE = ""


class Shell(Protocol):
    """What operations need of the server."""

    core: HostCore
    group: Group
    voice: Voice
    carriage: Carriage
    handover: HandOver
    moving: Moving

    @property
    def directory(self) -> Directory: ...

    async def speak(self, ground: Ground) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...


class Operations:
    """The operations of the agents at one host."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._here = shell.core.id

    # Writing

    async def out(self, its: Its, value: object, destination: AgentLocation | None = None) -> None:
        """Write a tuple. What is for an agent in the group that shares the space is with it when
        this returns, and was never seen elsewhere."""
        its.require_writable("write")
        item = freeze(value)
        await self._finish(self._out(its, item, destination))

    async def _out(self, its: Its, item: Any, destination: AgentLocation | None) -> None:
        shell = self._shell
        async with shell.group.operating():
            _require_alive(its)
            ground = its.ground
            mark = mark_of(its.agent, destination)
            if its.shared and mark.to is not None:
                shape, fields = item
                entry = Entry(fields, shape, its.agent.id, mark.n or 0, 0, to=mark.to)
                _, parcels = shell.moving.pass_on(ground, [entry])
                if parcels:
                    await shell.moving.send(parcels)
                    return
            _, position = ground.operations.write_items(
                [item], None, None, None, TaskSignal, 0, mark
            )
            await ground.hosted.flush(position)
            await shell.speak(ground)

    # Reading

    async def rdp(
        self,
        its: Its,
        template: Any,
        current: Location | None = None,
        destination: AgentLocation | None = None,
    ) -> Any:
        seen = await self._read(its, template, where_of(current, destination), one=True)
        return value_of(seen[0]) if seen else None

    async def rdg(
        self,
        its: Its,
        template: Any,
        current: Location | None = None,
        destination: AgentLocation | None = None,
    ) -> list[Any]:
        seen = await self._read(its, template, where_of(current, destination), one=False)
        return [value_of(entry) for entry in seen]

    async def _read(self, its: Its, template: Any, where: Where, *, one: bool) -> list[Entry]:
        async with self._shell.group.operating():
            _require_alive(its)
            seen = its.ground.look(template, where, one=one)
            if not its.shared or (one and seen):
                return seen
            target = self._target(where)
            if target == self._here or target == NOWHERE:
                return seen
            pattern = Pattern(its.name, spelled_template(template), where, False, one)
            if target is None:
                elsewhere = await self._shell.carriage.probe(pattern, every=not one)
            else:
                elsewhere = await self._look_at(target, pattern)
        return _distinct(seen, elsewhere, one)

    async def _look_at(self, host: str, pattern: Pattern) -> list[Found]:
        try:
            answer = await self._shell.voice.ask(host, spell(Look(pattern)))
        except PeerLost:  # It is not in the group any more.
            return []
        now = self._shell.core.clock.now()
        placed = read(answer, list[Placed])
        return [Found(one.entry.read(now), one.current, host) for one in placed]

    def _target(self, where: Where) -> str | None:
        """The one host to ask; NOWHERE if it is not in the group; None if it could be any."""
        if where.current is None:
            return None
        kind, name = where.current
        directory = self._shell.directory
        if kind == "host":
            return name if name in directory.hosts else NOWHERE
        return directory.host_of(name) or NOWHERE

    async def rd(
        self,
        its: Its,
        template: Any,
        current: Location | None = None,
        destination: AgentLocation | None = None,
        wait: float | None = None,
    ) -> Any:
        """None if its time has run out."""
        check_wait(wait)
        _require_waitable(its, "rd")
        where = where_of(current, destination)
        async with self._shell.group.operating():
            _require_alive(its)
            ground = its.ground
            seen = ground.look(template, where, one=True)
        if seen:
            return value_of(seen[0])
        if its.is_system:
            watch = partial(self._watch_system, ground, template)
        else:
            pattern = Pattern(its.name, spelled_template(template), where, False, True)
            watch = partial(self._shell.carriage.watch, pattern)
        came = await self._wait(its, watch, "rd", wait)
        if came is None:
            return None
        require_known(came.entry)
        return value_of(came.entry)

    def _watch_system(self, ground: Ground, template: Any, told: Detected) -> Watch:
        async def look() -> None:
            for entry in await found(ground.hosted, template, False, None, False, None):
                told(entry, self._here, self._here)

        return self._shell.spawn(look())

    # Taking

    async def inp(
        self,
        its: Its,
        template: Any,
        current: Location | None = None,
        destination: AgentLocation | None = None,
    ) -> Any:
        its.require_writable("take")
        where = where_of(current, destination)
        taken = await self._finish_taking(its, self._inp(its, template, where))
        return value_of(taken[0]) if taken else None

    async def ing(
        self,
        its: Its,
        template: Any,
        current: Location | None = None,
        destination: AgentLocation | None = None,
    ) -> list[Any]:
        its.require_writable("take")
        where = where_of(current, destination)
        taken = await self._finish_taking(its, self._ing(its, template, where))
        return [value_of(entry) for entry in taken]

    async def in_(
        self,
        its: Its,
        template: Any,
        current: Location | None = None,
        destination: AgentLocation | None = None,
        wait: float | None = None,
    ) -> Any:
        """None if its time has run out."""
        check_wait(wait)
        its.require_writable("take")
        _require_waitable(its, "in_")
        where = where_of(current, destination)
        pattern = Pattern(its.name, spelled_template(template), where, True, True)
        watch = partial(self._shell.carriage.watch, pattern)
        loop = asyncio.get_running_loop()
        end = None if wait is None else loop.time() + wait
        host = self._here
        while True:
            work = self._take_at(its, template, pattern, host)
            taken = await self._finish_taking(its, work)
            if taken:
                return value_of(taken[0])
            left = None if end is None else max(0.0, end - loop.time())
            came = await self._wait(its, watch, "in_", left)
            if came is None:
                return None
            host = came.host

    async def _inp(self, its: Its, template: Any, where: Where) -> list[Entry]:
        async with self._shell.group.operating():
            _require_alive(its)
            taken = await its.ground.take(template, where, one=True)
            target = self._target(where)
            if taken or not its.shared or target == self._here or target == NOWHERE:
                return taken
            pattern = Pattern(its.name, spelled_template(template), where, True, True)
            if target is not None:
                return (await self._shell.handover.take(target, pattern))[0]
            while True:  # Someone else may take what was found, before us.
                sighted = await self._shell.carriage.probe(pattern, every=False)
                if not sighted:
                    return []
                taken = await self._take_from(sighted[0].host, its.ground, template, pattern)
                if taken:
                    return taken

    async def _take_at(self, its: Its, template: Any, pattern: Pattern, host: str) -> list[Entry]:
        """Take one here or else at this host, where one was seen."""
        async with self._shell.group.operating():
            _require_alive(its)
            _require_waitable(its, "in_")
            taken = await its.ground.take(template, pattern.where, one=True)
            if taken or host == self._here or host not in self._shell.directory.hosts:
                return taken
            return await self._take_from(host, its.ground, template, pattern)

    async def _take_from(
        self, host: str, ground: Ground, template: Any, pattern: Pattern
    ) -> list[Entry]:
        if host == self._here:
            return await ground.take(template, pattern.where, one=True)
        return (await self._shell.handover.take(host, pattern))[0]

    async def _ing(self, its: Its, template: Any, where: Where) -> list[Entry]:
        async with self._shell.group.operating():
            _require_alive(its)
            taken = await its.ground.take(template, where, one=False)
            target = self._target(where)
            if not its.shared or target == self._here or target == NOWHERE:
                return taken
            try:
                pattern = Pattern(its.name, spelled_template(template), where, True, False)
                if target is None:
                    sighted = await self._shell.carriage.probe(pattern, every=True)
                    hosts = dict.fromkeys(one.host for one in sighted if one.host != self._here)
                else:
                    hosts = {target: None}
                ended = await asyncio.gather(
                    *(self._take_all(host, pattern) for host in hosts), return_exceptions=True
                )
                for part in ended:
                    taken += part if isinstance(part, list) else []
                for part in ended:
                    if isinstance(part, BaseException):
                        raise part
            except BaseException:
                its.ground.put(taken)
                raise
        return taken

    async def _take_all(self, host: str, pattern: Pattern) -> list[Entry]:
        """All that there is at a host at this time. What comes while it is being taken is not
        waited for."""
        taken, left = await self._shell.handover.take(host, pattern)
        while left > 0:
            more, _ = await self._shell.handover.take(host, pattern)
            taken += more
            left = left - len(more) if more else 0
        return taken

    # Waiting, and carrying through

    async def _wait(
        self,
        its: Its,
        watch: Callable[[Detected], Watch],
        operation: str,
        seconds: float | None,
    ) -> Found | None:
        """Wait, outside of operations, until something is seen."""
        if seconds == 0:
            return None
        seen: asyncio.Future[Found] = asyncio.get_running_loop().create_future()

        def told(entry: Entry, current: str, host: str) -> None:
            if not seen.done():
                seen.set_result(Found(entry, current, host))

        _require_alive(its)
        _require_waitable(its, operation)
        its.waiting[seen] = operation
        watching = watch(told)
        try:
            async with asyncio.timeout(seconds):
                return await seen
        except TimeoutError:
            return None
        finally:
            watching.cancel()
            its.waiting.pop(seen, None)

    async def _finish(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Carry this through, even if nobody waits for it any more."""
        return await asyncio.shield(self._shell.spawn(work))

    async def _finish_taking(self, its: Its, work: Coroutine[Any, Any, list[Entry]]) -> list[Entry]:
        """The same. What was taken for someone who does not wait any more goes back."""
        ground = its.ground
        task: asyncio.Task[list[Entry]] = self._shell.spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: _return(ground, done))
            raise


def _return(ground: Ground, done: asyncio.Task[list[Entry]]) -> None:
    if not done.cancelled() and done.exception() is None:
        with suppress(SpaceClosed):
            ground.put(done.result())


def _distinct(seen: list[Entry], elsewhere: list[Found], one: bool) -> list[Entry]:
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


def _require_alive(its: Its) -> None:
    if its.agent.ended:
        raise AgentEnded(its.agent.id)


def _require_waitable(its: Its, operation: str) -> None:
    if not its.shared and not its.is_system:
        raise PrivateSpace(operation, its.name)
