"""The group of one host: who is in it, what its parts say to each other, and halting while it
changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import BadFrame, CannotSend, HostClosed
from tupelo.federation.groups import protocol
from tupelo.federation.groups.gate import Gate, GatedOperation, GatedRequest
from tupelo.federation.groups.membership import Member, Membership
from tupelo.federation.groups.messages import GroupMessage, Said, Unreachable
from tupelo.federation.groups.routing import GroupPart, PartSender, Routing
from tupelo.federation.links import wire
from tupelo.values.template_encoding import read_wire_extension

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.peer import Peer

CHANNEL = "group"
PAUSE_SECONDS = 0.005
"""What happens within this time is for one round."""
DOUBLED_MAX = 10
"""So often the pause is doubled, while rounds are in vain."""

_read_metadata = msgspec.msgpack.Decoder(ext_hook=read_wire_extension).decode
_encode_metadata = msgspec.msgpack.Encoder().encode


def group_of(core: HostCore) -> Group:
    """The group that this host is in."""
    found = core.extensions.get(CHANNEL)
    return found if isinstance(found, Group) else Group(core)


class Group:
    """A host's place in its group. A host has one, made by `group_of`. It takes part with all hosts
    that it is engaged with, until it leaves."""

    def __init__(self, core: HostCore) -> None:
        self.sent: Counter[str] = Counter()
        """How many messages of each kind this host has sent."""
        self._core = core
        self.me = core.id
        self._loop = asyncio.get_running_loop()
        self._peers: dict[str, Peer] = {}
        self._parts: dict[str, GroupPart] = {}
        self._metadata_version = 0  # counts changes of this host's metadata
        self._announced_version = 0
        self._metadata_of_in_force = 0
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
        core.extensions.listen(CHANNEL, self, wire.reader(Said), self._heard)
        core.from_hosts.now[wire.Routed] = self._hear
        for peer in list(core.peers.values()):
            self._peers[peer.id] = peer
            self._do(self._protocol.engaged, peer.id, True)

    # What is used

    @property
    def membership(self) -> Membership:
        return self._routing.membership

    @property
    def halted(self) -> bool:
        """Do operations wait, because the group changes?"""
        return self._gate.shut

    def under_way(self) -> dict[str, list[Any]]:
        """What has begun in the group and has not ended: for the lab, and for whoever looks."""
        return {
            "operations": [self._gate.under_way] if self._gate.under_way else [],
            "requests": self._routing.under_way(),
        }

    def crash(self) -> None:
        """For the lab: fall silent, as a killed process does."""
        self._closed = True

    def part(self, name: str, part: GroupPart, said: Any = Any, asked: Any = Any) -> PartSender:
        """Take part, under this name. The part is told of the next membership, which comes at once;
        what is said to it and asked of it is of these types."""
        self._metadata_version += 1
        self._loop.call_soon(self._refresh)
        return self._routing.part(name, part, said, asked)

    def operating(self) -> GatedOperation:
        """`async with group.operating()`: an operation that spans hosts, and must not see half of a
        change. It waits while the group changes, and a change waits for it: so it must end by
        itself, and neither renew nor leave."""
        return GatedOperation(self._gate)

    def within_change(self) -> GatedRequest:
        """`async with group.within_change()`: what a part does to settle a membership. It is a part
        of the change, which waits for it, and operations inside do not wait."""
        return GatedRequest(self._gate)

    @property
    def is_flushing(self) -> bool:
        """Is the next membership agreed on, and not in force here yet? What is said now would be
        too late for the one in force."""
        return self._protocol.coming is not None

    async def flushed(self) -> None:
        """Come back when something can be said: in the membership in force, before the change has
        come so far, or in the next. Unlike an operation this does not wait for other hosts to
        settle."""
        await self._until(lambda: not self.is_flushing)

    async def renew(self) -> None:
        """A metadata of this host has changed: come back when a membership that has it is in
        force."""
        self._metadata_version += 1
        wanted = self._metadata_version
        self._refresh()
        await self._until(lambda: self._metadata_of_in_force >= wanted)

    async def changed(self, membership: Membership) -> None:
        """Come back when another membership than this one is in force. It must not be called within
        an operation, for which the change would wait."""
        await self._until(lambda: self.membership is not membership)

    async def join(self) -> None:
        """Take part with the hosts we are engaged with, after we left."""
        if not self._protocol.joined:
            self._do(self._protocol.join)
            await self.renew()

    async def leave(self) -> None:
        """Take part no more. Everyone in the group comes to rest before, so that nobody loses what
        is under way; but for so long only as answers are waited for."""
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

    # For the host

    def engaged(self, peer: Peer) -> None:
        self._peers[peer.id] = peer
        self._do(self._protocol.engaged, peer.id)

    def departed(self, peer: Peer) -> None:
        if self._peers.get(peer.id) is peer:
            del self._peers[peer.id]
            self._do(self._protocol.departed, peer.id)

    def _heard(self, peer: Peer, message: Said) -> None:
        if isinstance(message, Unreachable):
            self._hear(peer, message)
        else:
            self._do(self._protocol.heard, peer.id, message)

    async def stop(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._gate.close()
        self._tell()
        settling = self._settling
        if settling is not None:
            settling.cancel()
            await asyncio.wait([settling])
        await self._routing.stop()

    # What the round asks, and what it wants done

    def _member(self) -> Member:
        self._announced_version = self._metadata_version
        metadata_of = {name: part.metadata() for name, part in self._parts.items()}
        core = self._core
        # Everyone reads the same, this host as well.
        return Member(
            core.id, core.name, core.incarnation, _read_metadata(_encode_metadata(metadata_of))
        )

    def _busy(self) -> bool:
        return self._gate.under_way > 0 or self._settling is not None

    def _do(self, event: Callable[..., None], *args: Any) -> None:
        """Tell the round what has happened, and do what it says. A link may end while we speak:
        then the round is told of that, and the one who speaks goes on."""
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
                self._follow(self._protocol.outbox.popleft())
        finally:
            self._acting = False

    def _follow(self, instruction: protocol.Instruction) -> None:
        match instruction:
            case protocol.SendMessage(neighbour, message):
                self._say_or_part(neighbour, message)
            case protocol.DelayBegin():
                if self._timer is None:
                    pause = PAUSE_SECONDS * 2 ** min(self._protocol.vain, DOUBLED_MAX)
                    self._timer = self._loop.call_later(pause, self._begin)
            case protocol.HaltOperations():
                self._gate.halt()
                self._tell()
                if self._settling is not None and not self._settling.cancelling():
                    self._settling.cancel()  # once: it may take a while to end
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
        """A metadata is not in force: another round, after the one that is under way."""
        if self._metadata_version > self._announced_version and self._protocol.idle:
            self._do(self._protocol.want)

    def _quiet(self) -> None:
        self._do(self._protocol.quiet)

    def _install(self, membership: Membership) -> None:
        self._routing.install(membership)
        self._settling = self._loop.create_task(self._settle(membership))
        self._settling.add_done_callback(self._settled)
        self._tell()
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
        self._metadata_of_in_force = self._announced_version
        self._refresh()
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news.clear()

    # Speaking and hearing

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

    def _say_or_part(self, host: str, message: GroupMessage) -> None:
        """The round cannot go on without this being said."""
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
            raise BadFrame("a host can only be cut off from those behind it")
        self._routing.cut(hosts)
        self._do(self._protocol.tell_cut, neighbour, hosts)
