"""The group of one host: its membership, the messages between parts of hosts, and the gate that
holds operations while the membership changes.

A part is a layer that takes part in the group under a name (`GroupPart`): the brokers, LIME,
tokens, RPC. `Group` runs the membership protocol over the links of the host; `Routing` sends the
messages of the parts along the tree of the membership; `Gate` counts the operations that span
hosts."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tupelo.errors import BadFrame, CannotSend, HostClosed, PeerLost, TupeloError, UnknownHost
from tupelo.federation.groups import protocol
from tupelo.federation.groups.membership import Member, Membership
from tupelo.federation.groups.protocol import AnyGroupMessage, GroupMessage, Unreachable
from tupelo.federation.links import wire
from tupelo.federation.links.calls import Handlers, InboundCall, InboundCalls, PendingCalls
from tupelo.values.codec import BadBytes
from tupelo.values.template_encoding import read_wire_extension

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.peer import Peer


logger = logging.getLogger("tupelo")

Read = Callable[[msgspec.Raw], Any]


class GroupPart(Protocol):
    """A layer that takes part in the group. `install` is called before any message of the new
    membership is delivered. Methods without a result do nothing unless they are overridden."""

    def metadata(self) -> Any:
        """The metadata of this part of this host, which all hosts get: a value for msgpack."""
        ...

    def install(self, membership: Membership) -> None:
        """A new membership is in force; no more messages of older ones are delivered."""
        return

    async def settle(self, membership: Membership) -> None:
        """Do the work that must be done before operations go on. It must end if hosts are lost. It
        is cancelled if the membership is replaced before; its requests then fail at once."""
        return

    def heard(self, neighbour: str, source: str, message: Any) -> None:
        """A message of the host `source` has come, over this neighbour."""
        return

    async def asked(self, neighbour: str, source: str, message: Any) -> Any:
        """Return the answer to a request of the host `source`. It must not wait for a change of the
        membership, which cancels it."""
        ...

    def cut(self, hosts: frozenset[str]) -> None:
        """These hosts of the current membership are out of reach."""
        return


class PartSender:
    """Sends messages and requests of one part of this host to the same part of others."""

    def __init__(self, routing: Routing, part: str) -> None:
        self._routing = routing
        self._part = part

    def send(self, host: str, message: Any) -> None:
        """Send a message to a host of the group, without an answer. A message that is sent within
        an operation arrives before the membership changes, unless the host is cut off. A part
        sends nothing before it has installed the membership: it would speak of the one before."""
        routing, part = self._routing, self._part
        if part not in routing.present:
            return
        if host != routing.me:
            notice = wire.PartNotice(part, wire.body(message))
            routing.say(routing.membership, host, notice)
        else:
            routing.present[part].heard(host, host, message)

    async def ask(self, host: str, message: Any) -> Any:
        """Send a request and return the answer. Raises the error of the other host, PeerLost as
        soon as it is cut off, UnknownHost if it is not in the group or has no such part."""
        routing = self._routing
        if host == routing.me:
            return await routing.parts[self._part].asked(host, host, message)
        return await routing.ask(self._part, host, message)


class RemoteAsker:
    """Another host that sends requests, in one membership; answers go back along the tree."""

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
        """The link is not ended: it belongs to a neighbour, which only passed the message on."""

    def holds(self, call: int) -> bool:
        return False

    def give_back(self, call: int) -> None:
        """Parts keep their deliveries themselves."""


class Routing:
    """The parts of one host, and their messages and requests along the tree."""

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
        self.parts = parts
        self._readers: dict[str, tuple[Read, Read]] = {}
        self.me = me
        self._gate = gate
        self._say = say
        self._loop = asyncio.get_running_loop()
        self.present: dict[str, GroupPart] = {}  # the parts in which the membership is installed
        self._unreachable: set[str] = set()
        self._abandoned = False
        self._calls = 0
        self._pending: PendingCalls[InboundCall] = PendingCalls()
        self._askers: dict[str, RemoteAsker] = {}
        self._ending: dict[asyncio.Task[None], None] = {}  # requests of earlier memberships

    def part(self, name: str, part: GroupPart, said: Any, asked: Any) -> PartSender:
        """Add a part of this name; `said` and `asked` are the types of its messages and
        requests."""
        self.parts[name] = part
        self._readers[name] = wire.reader(said), wire.reader(asked)
        return PartSender(self, name)

    # Changes of the membership

    def install(self, membership: Membership) -> None:
        self._end("the group has changed")
        self.membership = membership
        self._unreachable.clear()
        self._abandoned = False
        self.present = {}
        for name, part in list(self.parts.items()):
            self.present[name] = part
            self._tell(part, lambda part: part.install(membership))

    def abandon(self) -> None:
        """The membership is replaced before it is settled: fail all requests at once."""
        self._abandoned = True
        self._lose("the group changes again")

    def cut(self, hosts: frozenset[str]) -> None:
        new = hosts - self._unreachable
        if new:
            self._unreachable |= new
            self._lose("out of reach", new)
            for part in self.present.values():
                self._tell(part, lambda part: part.cut(new))

    def _tell(self, part: GroupPart, tell: Callable[[GroupPart], None]) -> None:
        try:
            tell(part)
        except Exception as error:
            self.report(part, error)

    def _lose(self, reason: str, hosts: frozenset[str] | None = None) -> None:
        """Fail the pending requests to these hosts; to all hosts, if none are named."""
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
        """Log the failure of a part; the others go on."""
        self._loop.call_exception_handler({"message": f"{part!r} failed", "exception": error})

    def under_way(self) -> list[Any]:
        """Requests to and from other hosts that are not answered."""
        asked = [call for asker in self._askers.values() for call in asker.requests.tasks]
        return [*self._pending, *asked, *self._ending]

    async def stop(self) -> None:
        self._end("the host was closed")
        self._abandoned = True
        await asyncio.gather(*self._ending, return_exceptions=True)

    # Sending

    async def ask(self, part: str, host: str, message: Any) -> Any:
        """Send a request of a part to another host, and return the answer: see `PartSender.ask`."""
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
        """Send to another host of this membership. CannotSend if the message is too large."""
        self._pass_on(wire.Routed(membership.id, self.me, host, message))  # type: ignore[arg-type]

    def _pass_on(self, routed: wire.Routed) -> None:
        """Send to the next host on the path; messages to hosts that are cut off are dropped."""
        hop = self.membership.toward(self.me, routed.target)
        if hop is not None and routed.target not in self._unreachable:
            self._say(hop, routed)

    def _forward(self, routed: wire.Routed) -> None:
        """Pass on a message of another host. If it is too large for the next host, the caller gets
        the error."""
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

    # Receiving

    def heard(self, neighbour: str, routed: wire.Routed) -> None:
        """A message of the current membership: pass it on, or deliver it. BadFrame if it is
        forged."""
        source, message = routed.source, routed.message
        if source not in self.membership.beyond(self.me, neighbour):
            raise BadFrame(f"{source!r} is not behind the neighbour that passes this on")
        if routed.target not in self.membership.members:
            raise BadFrame(f"{routed.target!r} is not in this group")
        if routed.target != self.me:
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
                # The neighbour that passed it on could not read it.
                logger.warning("a message of %s is ignored: %s", asker.label, error)

    def _hear(self, asker: RemoteAsker, message: wire.PartNotice) -> None:
        part = self.present.get(message.part)
        if part is not None:
            read, _ = self._readers[message.part]
            part.heard(self._neighbour(asker), asker.host, read(message.body))

    async def _answer(self, asker: RemoteAsker, message: wire.PartRequest) -> Any:
        part = self.present.get(message.part)
        if part is None:
            raise UnknownHost(self.me)
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
        return self.membership.toward(self.me, asker.host) or ""


HELD_MAX = 10_000
"""The number of recent changes whose durations are kept in `Gate.held`."""


class Gate:
    """Counts running operations. While it is shut, new operations wait. `quiet` is called when the
    last operation has ended while the gate is shut."""

    def __init__(self, quiet: Callable[[], None]) -> None:
        self.under_way = 0
        self.shut = False
        self.held: deque[float] = deque(maxlen=HELD_MAX)
        self._quiet = quiet
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._closed = False

    def close(self) -> None:
        """Refuse all operations from now on, with HostClosed."""
        self._closed = True
        self._wake()

    def halt(self) -> None:
        if not self.shut:
            self.shut = True
            self._since = self._loop.time()

    def open(self) -> None:
        if self.shut:
            self.shut = False
            self.held.append(self._loop.time() - self._since)
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def enter(self) -> None:
        while self.shut and not self._closed:
            turn = self._loop.create_future()
            self._waiting[turn] = None
            try:
                await turn
            finally:
                self._waiting.pop(turn, None)
        self.enter_now()

    def enter_now(self) -> None:
        """Enter even if the gate is shut, for a nested operation. Raises HostClosed."""
        if self._closed:
            raise HostClosed("the host was closed")
        self.under_way += 1

    def leave(self) -> None:
        self.under_way -= 1
        if self.shut and not self.under_way:
            self._quiet()


class GatedOperation:
    """One operation, for `async with`. A nested operation does not wait, nor does one that serves a
    request of an operation elsewhere: the outer operation keeps the membership from changing."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._over = False
        self._outer: GatedOperation | None = None

    async def __aenter__(self) -> None:
        self._outer = _CURRENT.get()
        if self._outer is not None and self._outer.holds(self._gate):
            self._gate.enter_now()
        else:
            await self._gate.enter()
        _CURRENT.set(self)

    async def __aexit__(self, *error: object) -> None:
        self._over = True
        _CURRENT.set(self._outer)
        self._gate.leave()

    def holds(self, gate: Gate) -> bool:
        """Whether the operation still runs at this gate; a task that it started may outlive it."""
        return gate is self._gate and not self._over


_CURRENT: ContextVar[GatedOperation | None] = ContextVar("operation", default=None)


class GatedRequest(GatedOperation):
    """Work for an operation at another host, which keeps the membership from changing."""

    async def __aenter__(self) -> None:
        _CURRENT.set(self)

    async def __aexit__(self, *error: object) -> None:
        self._over = True


CHANNEL = "group"
PAUSE_SECONDS = 0.005
"""Changes within this time share a round."""
DOUBLED_MAX = 10
"""The pause is doubled at most so many times, while rounds are in vain."""

_read_metadata = msgspec.msgpack.Decoder(ext_hook=read_wire_extension).decode
_encode_metadata = msgspec.msgpack.Encoder().encode


def group_of(core: HostCore) -> Group:
    """The Group of this host; it is made on first use."""
    found = core.extensions.get(CHANNEL)
    return found if isinstance(found, Group) else Group(core)


class Group:
    """The group as one host sees it; made by `group_of`, one for each host. The host takes part
    with all hosts that it is linked with, until `leave`. All of it runs on the loop of the host."""

    def __init__(self, core: HostCore) -> None:
        self.sent: Counter[str] = Counter()
        """The number of messages that this host has sent, by type."""
        self._core = core
        self.me = core.id
        self._loop = asyncio.get_running_loop()
        self._peers: dict[str, Peer] = {}
        self._parts: dict[str, GroupPart] = {}
        self._metadata_version = 0  # counts changes of this host's metadata
        self._announced_version = 0
        self._installed_version = 0
        self._gate = Gate(self._quiet)
        self.held = self._gate.held
        self._protocol = protocol.MembershipProtocol(self._member, self._busy)
        self._routing = Routing(
            core.id, self._protocol.membership, self._parts, self._gate, self._say
        )
        self._early: list[tuple[Peer, Unreachable | wire.Routed]] = []
        self._settling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._acting = False
        self._closed = False
        core.extensions.listen(CHANNEL, self, wire.reader(AnyGroupMessage), self._heard)
        core.from_hosts.now[wire.Routed] = self._hear
        for peer in list(core.peers.values()):
            self._peers[peer.id] = peer
            self._do(self._protocol.engaged, peer.id, True)

    # For parts and applications

    @property
    def membership(self) -> Membership:
        return self._routing.membership

    @property
    def halted(self) -> bool:
        """Whether operations wait because the membership changes."""
        return self._gate.shut

    def under_way(self) -> dict[str, list[Any]]:
        """Running operations and unanswered requests, for the lab and for diagnosis."""
        return {
            "operations": [self._gate.under_way] if self._gate.under_way else [],
            "requests": self._routing.under_way(),
        }

    def crash(self) -> None:
        """For the lab: stop sending, as a killed process does."""
        self._closed = True

    def part(self, name: str, part: GroupPart, said: Any = Any, asked: Any = Any) -> PartSender:
        """Add a part under this name, and begin a round that announces it. `said` and `asked` are
        the types of the messages and requests that the part receives."""
        self._metadata_version += 1
        self._loop.call_soon(self._refresh)
        return self._routing.part(name, part, said, asked)

    def operating(self) -> GatedOperation:
        """`async with group.operating()`: an operation that spans hosts and must not see half of a
        change. It waits while the membership changes, and a change waits for it: so it must not
        call `renew` or `leave`, nor wait for another change."""
        return GatedOperation(self._gate)

    def within_change(self) -> GatedRequest:
        """`async with group.within_change()`: the work of a part that settles a membership. The
        change waits for it, and operations inside do not wait for the change."""
        return GatedRequest(self._gate)

    @property
    def is_flushing(self) -> bool:
        """Whether the next membership is agreed on but not in force here yet: it is too late for
        messages in the current one."""
        return self._protocol.coming is not None

    async def flushed(self) -> None:
        """Wait until messages can be sent, in the current membership or the next. Unlike an
        operation this does not wait until all hosts have settled."""
        await self._until(lambda: not self.is_flushing)

    async def renew(self) -> None:
        """Publish changed metadata of this host: return when a membership with it is in force."""
        self._metadata_version += 1
        wanted = self._metadata_version
        self._refresh()
        await self._until(lambda: self._installed_version >= wanted)

    async def changed(self, membership: Membership) -> None:
        """Wait until another membership than this is in force. It must not be called within an
        operation, for which the change would wait."""
        await self._until(lambda: self.membership is not membership)

    async def join(self) -> None:
        """Take part again, after `leave`."""
        if not self._protocol.joined:
            self._do(self._protocol.join)
            await self.renew()

    async def leave(self) -> None:
        """Take part no more. Operations in the whole group end first, so that none is cut; but
        no longer than `answer_seconds` are waited for them."""
        if not self._protocol.joined:
            return
        self._do(self._protocol.leave)
        try:
            async with asyncio.timeout(self._core.answer_seconds):
                await self._until(self._has_left)
        except TimeoutError:
            self._do(self._protocol.depart)
            await self._until(self._has_left)
        finally:
            self._protocol.leaving = False

    def _has_left(self) -> bool:
        return not self._protocol.joined and self._protocol.idle

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._closed:
                raise HostClosed("the host was closed")
            await self._news.wait()

    # Called by the host

    def engaged(self, peer: Peer) -> None:
        self._peers[peer.id] = peer
        self._do(self._protocol.engaged, peer.id)

    def departed(self, peer: Peer) -> None:
        if self._peers.get(peer.id) is peer:
            del self._peers[peer.id]
            self._do(self._protocol.departed, peer.id)

    def _heard(self, peer: Peer, message: AnyGroupMessage) -> None:
        if isinstance(message, Unreachable):
            self._hear(peer, message)
        else:
            self._do(self._protocol.heard, peer.id, message)

    async def stop(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._gate.close()
        self._wake()
        settling = self._settling
        if settling is not None:
            settling.cancel()
            await asyncio.wait([settling])
        await self._routing.stop()

    # The membership protocol

    def _member(self) -> Member:
        self._announced_version = self._metadata_version
        metadata_of = {name: part.metadata() for name, part in self._parts.items()}
        core = self._core
        # All hosts read the same encoding, this host as well.
        return Member(
            core.id, core.name, core.incarnation, _read_metadata(_encode_metadata(metadata_of))
        )

    def _busy(self) -> bool:
        return self._gate.under_way > 0 or self._settling is not None

    def _do(self, event: Callable[..., None], *args: Any) -> None:
        """Pass an event to the protocol and carry out its instructions. A link may end while a
        message is sent: that event is nested, and the outer call goes on with its instructions."""
        if self._closed:
            return
        try:
            event(*args)
        finally:
            self._act()

    def _act(self) -> None:
        if self._acting:
            return
        self._acting = True
        try:
            while self._protocol.outbox and not self._closed:
                self._carry_out(self._protocol.outbox.popleft())
        finally:
            self._acting = False

    def _carry_out(self, instruction: protocol.Instruction) -> None:
        match instruction:
            case protocol.SendMessage(neighbour, message):
                self._say_or_end_link(neighbour, message)
            case protocol.DelayBegin():
                if self._timer is None:
                    pause = PAUSE_SECONDS * 2 ** min(self._protocol.vain, DOUBLED_MAX)
                    self._timer = self._loop.call_later(pause, self._begin)
            case protocol.HaltOperations():
                self._gate.halt()
                self._wake()
                if self._settling is not None and not self._settling.cancelling():
                    self._settling.cancel()  # Once: it may take a while to end.
                    self._routing.abandon()
            case protocol.MarkUnreachable(hosts):
                self._routing.cut(hosts)
            case protocol.InstallMembership(membership):
                self._install(membership)
            case protocol.ResumeOperations():
                self._go_on()
            case protocol.DropNeighbour(neighbour):
                if neighbour in self._peers:
                    self._peers[neighbour].talk.end("it contradicts what others say")

    def _begin(self) -> None:
        self._timer = None
        self._do(self._protocol.begin)

    def _refresh(self) -> None:
        """Request a round if metadata of this host is not announced yet."""
        if self._metadata_version > self._announced_version and self._protocol.idle:
            self._do(self._protocol.want)

    def _quiet(self) -> None:
        self._do(self._protocol.quiet)

    def _install(self, membership: Membership) -> None:
        self._routing.install(membership)
        self._settling = self._loop.create_task(self._settle(membership))
        self._settling.add_done_callback(self._settled)
        self._wake()
        early, self._early = self._early, []
        for peer, message in early:
            try:
                self._hear(peer, message)
            except BadFrame as error:
                peer.talk.end(f"garbage: {error}")

    async def _settle(self, membership: Membership) -> None:
        for part in list(self._parts.values()):
            try:
                await part.settle(membership)
            except Exception as error:
                self._routing.report(part, error)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling = None
        if not task.cancelled():
            self._do(self._protocol.settled)
        self._quiet()

    def _go_on(self) -> None:
        self._gate.open()
        self._installed_version = self._announced_version
        self._refresh()
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news.clear()

    # Messages

    def _say(self, host: str, message: GroupMessage | wire.Routed) -> None:
        peer = self._peers.get(host)
        if peer is not None:
            self.sent[type(message).__name__] += 1
            if isinstance(message, wire.Routed):
                try:
                    peer.talk.say(message)
                except CannotSend as error:  # A host of an older version accepts less.
                    if not isinstance(message.message, wire.PartNotice):
                        raise
                    peer.talk.end(f"what is said along the tree cannot be passed on: {error}")
            else:
                peer.talk.say(wire.PartNotice(CHANNEL, wire.body(message)))

    def _say_or_end_link(self, host: str, message: GroupMessage) -> None:
        """Send a message of the protocol; end the link if it cannot be sent."""
        try:
            self._say(host, message)
        except CannotSend as error:
            self._peers[host].talk.end(f"the group cannot be described: {error}")

    def _hear(self, peer: Peer, message: Unreachable | wire.Routed) -> None:
        coming = self._protocol.coming
        if coming is not None and message.membership == coming.id:
            self._early.append((peer, message))
        elif message.membership == self.membership.id and not self._closed:
            if isinstance(message, Unreachable):
                self._hear_cut(peer.id, message)
            else:
                self._routing.heard(peer.id, message)

    def _hear_cut(self, neighbour: str, message: Unreachable) -> None:
        hosts = frozenset(message.hosts)
        if not hosts <= self.membership.beyond(self._core.id, neighbour):
            raise BadFrame("only hosts behind the sender can be cut off by it")
        self._routing.cut(hosts)
        self._do(self._protocol.announce_unreachable, neighbour, hosts)
