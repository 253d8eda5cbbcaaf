"""Routing: what parts of hosts say to each other along the tree of the membership in force."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tupelo.errors import BadFrame, CannotSend, PeerLost, TupeloError, UnknownHost
from tupelo.federation.groups.gate import Gate, GatedRequest
from tupelo.federation.groups.membership import Membership
from tupelo.federation.links import wire
from tupelo.federation.links.calls import Handlers, InboundCall, InboundCalls, PendingCalls
from tupelo.values.codec import BadBytes

logger = logging.getLogger("tupelo")

Read = Callable[[msgspec.Raw], Any]


class GroupPart(Protocol):
    """A layer that takes part in the group. It is told of a membership before anything said in
    it."""

    def metadata(self) -> Any:
        """What everyone must know of this host. It can be said in msgpack, and is read as such."""
        ...

    def install(self, membership: Membership) -> None:
        """A new membership is in force. Nothing of an older one is heard any more."""
        ...

    async def settle(self, membership: Membership) -> None:
        """Do what must be done before operations go on. It ends by itself if hosts are lost. It is
        cancelled if the membership is replaced before; what it asks fails then at once."""
        ...

    def heard(self, neighbour: str, source: str, message: Any) -> None:
        """This came over a neighbour, from the host that has said it."""
        ...

    async def asked(self, neighbour: str, source: str, message: Any) -> Any:
        """The answer to a request. It may not wait for a change of the group, and is cancelled by
        one: then nobody awaits it."""
        ...

    def cut(self, hosts: frozenset[str]) -> None:
        """These hosts of the membership in force are out of reach."""
        ...


class PartSender:
    """How a part of this host speaks to the same part of others."""

    def __init__(self, routing: Routing, part: str) -> None:
        self._routing = routing
        self._part = part

    def send(self, host: str, message: Any) -> None:
        """To any host of the group. What is said within an operation arrives before the membership
        changes, or the host is cut off; what is said back, if the operation waits for it."""
        self._routing.send(self._part, host, message)

    async def ask(self, host: str, message: Any) -> Any:
        """Its answer, or its error. PeerLost as soon as it is cut off, UnknownHost if it is not in
        the group or takes no part."""
        return await self._routing.ask(self._part, host, message)


class RemoteAsker:
    """Another host, as one that asks this one in a membership: its answers go along the tree."""

    def __init__(self, routing: Routing, membership: Membership, host: str) -> None:
        self.host = host
        self.label = f"the host {membership.members[host].name!r}"
        self.talk = self
        self.requests: InboundCalls[RemoteAsker] = InboundCalls(self, routing.handlers)
        self._routing = routing
        self._membership = membership

    def say(self, message: wire.Message) -> None:
        self._routing.say(self._membership, self.host, message)

    def end(self, reason: str) -> None:
        """Whoever has passed on what it said could not read it."""

    def holds(self, call: int) -> bool:
        return False

    def give_back(self, call: int) -> None:
        """What a part hands over it keeps by itself."""


class Routing:
    """The parts of one host, and what is under way between them and others."""

    def __init__(
        self,
        me: str,
        membership: Membership,
        parts: dict[str, GroupPart],
        gate: Gate,
        say: Callable[[str, wire.Routed], None],
    ) -> None:
        self.membership = membership
        self.handlers: Handlers[RemoteAsker] = Handlers()
        self.handlers.now[wire.PartNotice] = self._hear
        self.handlers.later[wire.PartRequest] = self._answer
        self._parts = parts
        self._readers: dict[str, tuple[Read, Read]] = {}
        self._me = me
        self._gate = gate
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._present: dict[str, GroupPart] = {}  # those that know the membership in force
        self._unreachable: set[str] = set()
        self._abandoned = False
        self._calls = 0
        self._pending: PendingCalls[InboundCall] = PendingCalls()
        self._askers: dict[str, RemoteAsker] = {}
        self._ending: dict[asyncio.Task[None], None] = {}  # requests of memberships before

    def part(self, name: str, part: GroupPart, said: Any, asked: Any) -> PartSender:
        """A part of this name, and the types of what is said to it and asked of it."""
        self._parts[name] = part
        self._readers[name] = wire.reader(said), wire.reader(asked)
        return PartSender(self, name)

    # The membership changes

    def install(self, membership: Membership) -> None:
        self._end("the group has changed")
        self.membership = membership
        self._unreachable.clear()
        self._abandoned = False
        self._present = dict(self._parts)
        self._tell_parts(lambda part: part.install(membership))

    def abandon(self) -> None:
        """The membership is replaced before all are settled: whoever asks must not wait for it."""
        self._abandoned = True
        self._lose("the group changes again")

    def cut(self, hosts: frozenset[str]) -> None:
        new = hosts - self._unreachable
        if new:
            self._unreachable |= new
            self._lose("out of reach", new)
            self._tell_parts(lambda part: part.cut(new))

    def _tell_parts(self, tell: Callable[[GroupPart], None]) -> None:
        for part in self._present.values():
            try:
                tell(part)
            except Exception as error:
                self.report(part, error)

    def _lose(self, reason: str, hosts: frozenset[str] | None = None) -> None:
        """Nobody awaits the answers of these hosts any more; of all, if none are named."""
        for call in self._pending.pop_all(lambda call: hosts is None or call.target in hosts):
            call.lost(reason, in_doubt=True)

    def _end(self, reason: str) -> None:
        self._lose(reason)
        for asker in self._askers.values():
            for task in asker.requests.stop():
                self._ending[task] = None
                task.add_done_callback(lambda done: self._ending.pop(done, None))
        self._askers.clear()

    def report(self, part: GroupPart | None, error: Exception) -> None:
        """A part has failed: the others go on."""
        self._loop.call_exception_handler({"message": f"{part!r} failed", "exception": error})

    def under_way(self) -> list[Any]:
        """What is asked of others, and what others ask."""
        asked = [call for asker in self._askers.values() for call in asker.requests.tasks]
        return [*self._pending, *asked, *self._ending]

    async def stop(self) -> None:
        self._end("the host was closed")
        self._abandoned = True
        await asyncio.gather(*self._ending, return_exceptions=True)

    # Speaking

    def send(self, part: str, host: str, message: Any) -> None:
        if host == self._me:
            if part in self._present:
                self._present[part].heard(host, host, message)
        else:
            self.say(self.membership, host, wire.PartNotice(part, wire.body(message)))

    async def ask(self, part: str, host: str, message: Any) -> Any:
        if host == self._me:
            return await self._parts[part].asked(host, host, message)
        if host not in self.membership.members:
            raise UnknownHost(host)
        peer, during = f"the host {self.membership.members[host].name!r}", f"a request of {part}"
        if host in self._unreachable or self._abandoned:
            raise PeerLost(peer, during, "out of reach", in_doubt=False)
        self._calls += 1
        number = self._calls
        call = self._pending[number] = InboundCall(peer, during, host)
        try:
            self.say(self.membership, host, wire.PartRequest(number, part, wire.body(message)))
            return await call.answer
        finally:
            self._pending.pop(number, None)

    def say(self, membership: Membership, host: str, message: wire.Message) -> None:
        """To another host of this membership. CannotSend if it cannot be said."""
        self._pass_on(wire.Routed(membership.id, self._me, host, message))  # type: ignore[arg-type]

    def _pass_on(self, routed: wire.Routed) -> None:
        """One step on its way. Who is cut off is not told anything more."""
        hop = self.membership.toward(self._me, routed.target)
        if hop is not None and routed.target not in self._unreachable:
            self._say(hop, routed)

    def _forward(self, routed: wire.Routed) -> None:
        """Pass on what another host says. If the next host cannot be sent it, the caller gets the
        error."""
        message = routed.message
        try:
            self._pass_on(routed)
        except CannotSend as error:
            if isinstance(message, wire.PartNotice):
                raise
            failure = wire.Failure(message.call, "CannotSend", str(error))
            ends = routed.source, routed.target
            if isinstance(message, wire.PartRequest):
                ends = routed.target, routed.source
            self._pass_on(wire.Routed(routed.membership, *ends, failure))

    # Hearing

    def heard(self, neighbour: str, routed: wire.Routed) -> None:
        """Something of the membership in force."""
        source, message = routed.source, routed.message
        if source not in self.membership.beyond(self._me, neighbour):
            raise BadFrame(f"{source!r} is not behind the one who passes this on")
        if routed.target not in self.membership.members:
            raise BadFrame(f"{routed.target!r} is not in this group")
        if routed.target != self._me:
            self._forward(routed)
        elif isinstance(message, (wire.Answer, wire.Failure)):
            call = self._pending.get(message.call)
            if call is not None and call.target == source:
                self._pending.resolve(message)
        else:
            asker = self._askers.get(source)
            if asker is None:
                asker = self._askers[source] = RemoteAsker(self, self.membership, source)
            try:
                asker.requests.serve(message)
            except BadFrame as error:
                if source == neighbour:
                    raise
                # Who has passed it on could not read it.
                logger.warning("what %s says is ignored: %s", asker.label, error)

    def _hear(self, asker: RemoteAsker, message: wire.PartNotice) -> None:
        part = self._present.get(message.part)
        if part is not None:
            read, _ = self._readers[message.part]
            part.heard(self._neighbour(asker), asker.host, read(message.body))

    async def _answer(self, asker: RemoteAsker, message: wire.PartRequest) -> Any:
        part = self._present.get(message.part)
        if part is None:
            raise UnknownHost(self._me)
        _, read = self._readers[message.part]
        try:
            async with GatedRequest(self._gate):
                return await part.asked(self._neighbour(asker), asker.host, read(message.body))
        except BadBytes as error:
            raise BadFrame(str(error)) from error
        except TupeloError:
            raise
        except Exception as error:
            self.report(part, error)
            raise TupeloError(f"it failed: {error!r}") from error

    def _neighbour(self, asker: RemoteAsker) -> str:
        return self.membership.toward(self._me, asker.host) or ""
