"""Routing: what parts of hosts say to each other along the tree of the roster in force."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tupelo.errors import BadFrame, PeerLost, TupeloError, UnknownHost
from tupelo.federation.groups.gate import Gate, Request
from tupelo.federation.groups.messages import (
    Answered,
    Asked,
    Failed,
    Message,
    Routed,
    Said,
    Sent,
)
from tupelo.federation.groups.roster import Roster
from tupelo.federation.links.spelled import read_error, spell_error

REQUESTS_MAX = 100_000
"""So many requests of others may be under way here at a time."""


class Part(Protocol):
    """A layer that takes part in the group. It is told of a roster before anything said in it."""

    def card(self) -> Any:
        """What everyone must know of this host. It can be said in msgpack, and is read as such."""
        ...

    def install(self, roster: Roster) -> None:
        """A new roster is in force. Nothing of an older one is heard any more."""
        ...

    async def settle(self, roster: Roster) -> None:
        """Do what must be done before operations go on. It ends by itself if hosts are lost. It is
        cancelled if the roster is replaced before; what it asks fails then at once."""
        ...

    def heard(self, neighbour: str, source: str, body: Any) -> None:
        """This came over a neighbour, from the host that has said it."""
        ...

    async def asked(self, neighbour: str, source: str, body: Any) -> Any:
        """The answer to a request. It may not wait for a change of the group, and is cancelled by
        one: then nobody awaits it."""
        ...

    def cut(self, hosts: frozenset[str]) -> None:
        """These hosts of the roster in force are out of reach."""
        ...


class Voice:
    """How a part of this host speaks to the same part of others."""

    def __init__(self, routing: Routing, part: str) -> None:
        self._routing = routing
        self._part = part

    def say(self, neighbour: str, body: Any) -> None:
        """To a neighbour in the tree. What is said within an operation arrives before the roster
        changes, or the neighbour is cut off; what is said back, if the operation waits for it."""
        self._routing.say(self._part, neighbour, body)

    def send(self, host: str, body: Any) -> None:
        """The same, to any host of the group."""
        self._routing.send(self._part, host, body)

    async def ask(self, host: str, body: Any) -> Any:
        """Its answer, or its error. PeerLost as soon as it is cut off, UnknownHost if it is not in
        the group or takes no part."""
        return await self._routing.ask(self._part, host, body)


@dataclass(frozen=True)
class Pending:
    """An answer that is awaited."""

    host: str
    part: str
    answer: asyncio.Future[Any]


class Routing:
    """The parts of one host, and what is under way between them and others."""

    def __init__(
        self,
        me: str,
        roster: Roster,
        parts: dict[str, Part],
        gate: Gate,
        say: Callable[[str, Message], None],
    ) -> None:
        self.roster = roster
        self._parts = parts
        self._me = me
        self._gate = gate
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._present: dict[str, Part] = {}  # those that know the roster in force
        self._unreachable: set[str] = set()
        self._abandoned = False
        self._calls = 0
        self._pending: dict[int, Pending] = {}
        self._requests: dict[asyncio.Task[None], None] = {}

    # The roster changes

    def install(self, roster: Roster) -> None:
        self._end("the group has changed")
        self.roster = roster
        self._unreachable.clear()
        self._abandoned = False
        self._present = dict(self._parts)
        self._tell_parts(lambda part: part.install(roster))

    def abandon(self) -> None:
        """The roster is replaced before all are settled: whoever asks must not wait for it."""
        self._abandoned = True
        self._fail(lambda pending: True, "the group changes again")

    def cut(self, hosts: frozenset[str]) -> None:
        new = hosts - self._unreachable
        if new:
            self._unreachable |= new
            self._fail(lambda pending: pending.host in new, "out of reach")
            self._tell_parts(lambda part: part.cut(new))

    def _tell_parts(self, tell: Callable[[Part], None]) -> None:
        for part in self._present.values():
            try:
                tell(part)
            except Exception as error:
                self.report(part, error)

    def _fail(self, which: Callable[[Pending], bool], reason: str) -> None:
        for call, pending in list(self._pending.items()):
            if which(pending):
                del self._pending[call]
                if not pending.answer.done():
                    pending.answer.set_exception(self._lost(pending.host, pending.part, reason))
                    pending.answer.exception()  # Who asked may have gone.

    def _lost(self, host: str, part: str, reason: str, *, in_doubt: bool = True) -> PeerLost:
        member = self.roster.members[host]
        return PeerLost(
            f"the host {member.name!r}", f"a request of {part}", reason, in_doubt=in_doubt
        )

    def _end(self, reason: str) -> None:
        self._fail(lambda pending: True, reason)
        for task in list(self._requests):
            task.cancel()

    def report(self, part: Part | None, error: Exception) -> None:
        """A part has failed: the others go on."""
        self._loop.call_exception_handler({"message": f"{part!r} failed", "exception": error})

    async def stop(self) -> None:
        tasks = list(self._requests)
        self._end("the host was closed")
        self._abandoned = True
        await asyncio.gather(*tasks, return_exceptions=True)

    # Speaking

    def say(self, part: str, neighbour: str, body: Any) -> None:
        if neighbour not in self._unreachable and neighbour in self.roster.neighbours(self._me):
            self._say(neighbour, Said(self.roster.id, part, body))

    def send(self, part: str, host: str, body: Any) -> None:
        if host == self._me:
            self._hear(part, host, host, body)
        else:
            self._pass_on(Sent(self.roster.id, part, self._me, host, body))

    async def ask(self, part: str, host: str, body: Any) -> Any:
        if host == self._me:
            return await self._parts[part].asked(host, host, body)
        if host not in self.roster.members:
            raise UnknownHost(host)
        if host in self._unreachable or self._abandoned:
            raise self._lost(host, part, "out of reach", in_doubt=False)
        self._calls += 1
        call = self._calls
        pending = Pending(host, part, self._loop.create_future())
        self._pending[call] = pending
        try:
            self._pass_on(Asked(self.roster.id, part, self._me, host, call, body))
            return await pending.answer
        finally:
            self._pending.pop(call, None)

    def _pass_on(self, message: Routed) -> None:
        """One step on its way. Who is cut off is not told anything more."""
        hop = self.roster.toward(self._me, message.target)
        if hop is not None and message.target not in self._unreachable:
            self._say(hop, message)

    # Hearing

    def heard(self, neighbour: str, message: Said | Routed) -> None:
        """Something of the roster in force."""
        if isinstance(message, Said):
            if neighbour not in self.roster.neighbours(self._me):
                raise BadFrame("only a neighbour in the tree may say this")
            self._hear(message.part, neighbour, neighbour, message.body)
            return
        if message.source not in self.roster.beyond(self._me, neighbour):
            raise BadFrame(f"{message.source!r} is not behind the one who passes this on")
        if message.target not in self.roster.members:
            raise BadFrame(f"{message.target!r} is not in this group")
        if message.target != self._me:
            self._pass_on(message)
        elif isinstance(message, Sent):
            self._hear(message.part, neighbour, message.source, message.body)
        elif isinstance(message, Asked):
            if len(self._requests) >= REQUESTS_MAX:
                raise BadFrame(f"more than {REQUESTS_MAX} requests at a time")
            task = self._loop.create_task(self._serve(neighbour, message))
            self._requests[task] = None
            task.add_done_callback(lambda done: self._requests.pop(done, None))
        else:
            self._answered(message)

    def _hear(self, name: str, neighbour: str, source: str, body: Any) -> None:
        part = self._present.get(name)
        if part is not None:
            part.heard(neighbour, source, body)

    async def _serve(self, neighbour: str, message: Asked) -> None:
        part = self._present.get(message.part)
        address = (message.roster, self._me, message.source, message.call)
        try:
            if part is None:
                raise UnknownHost(self._me)
            async with Request(self._gate):
                value = await part.asked(neighbour, message.source, message.body)
            self._pass_on(Answered(*address, value))
        except TupeloError as error:
            self._pass_on(Failed(*address, *spell_error(error)))
        except Exception as error:
            self.report(part, error)
            self._pass_on(Failed(*address, *spell_error(TupeloError(f"it failed: {error!r}"))))

    def _answered(self, message: Answered | Failed) -> None:
        pending = self._pending.get(message.call)
        if pending is None or pending.host != message.source or pending.answer.done():
            return
        if isinstance(message, Answered):
            pending.answer.set_result(message.value)
        else:
            pending.answer.set_exception(read_error(message.kind, message.message, message.data))
            pending.answer.exception()
