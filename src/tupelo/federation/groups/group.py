"""The group of one host: who is in it, what its parts say to each other, and halting while it
changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import BadFrame, CannotSend, HostClosed
from tupelo.federation.groups import wave
from tupelo.federation.groups.gate import Gate, GatedOperation, GatedRequest
from tupelo.federation.groups.messages import GroupMessage, Said, Unreachable
from tupelo.federation.groups.roster import Member, Membership
from tupelo.federation.groups.routing import GroupPart, PartSender, Routing
from tupelo.federation.links import wire
from tupelo.values.spelling import read_wire_extension

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.peer import Peer

CHANNEL = "group"
PAUSE_SECONDS = 0.005
"""What happens within this time is for one wave."""
DOUBLED_MAX = 10
"""So often the pause is doubled, while waves are in vain."""

_read_card = msgspec.msgpack.Decoder(ext_hook=read_wire_extension).decode
_spell_card = msgspec.msgpack.Encoder().encode


def group_of(core: HostCore) -> Group:
    """The group that this host is in."""
    found = core.carriers.get(CHANNEL)
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
        self._cards = 0  # how often a card has changed
        self._cards_said = 0
        self._cards_in_force = 0
        self._gate = Gate(self._quiet)
        self.held = self._gate.held
        self._wave = wave.MembershipProtocol(self._member, self._busy)
        self._routing = Routing(core.id, self._wave.roster, self._parts, self._gate, self._say)
        self._early: list[tuple[Peer, Unreachable | wire.Routed]] = []
        self._settling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._acting = False
        self._closed = False
        core.carriers.listen(CHANNEL, self, wire.reader(Said), self._heard)
        core.from_hosts.now[wire.Routed] = self._hear
        for peer in list(core.peers.values()):
            self._peers[peer.id] = peer
            self._do(self._wave.engaged, peer.id, True)

    # What is used

    @property
    def roster(self) -> Membership:
        return self._routing.roster

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
        """Take part, under this name. The part is told of the next roster, which comes at once;
        what is said to it and asked of it is of these types."""
        self._cards += 1
        self._loop.call_soon(self._refresh)
        return self._routing.part(name, part, said, asked)

    def operating(self) -> GatedOperation:
        """`async with group.operating()`: an operation that spans hosts, and must not see half of a
        change. It waits while the group changes, and a change waits for it: so it must end by
        itself, and neither renew nor leave."""
        return GatedOperation(self._gate)

    def within_change(self) -> GatedRequest:
        """`async with group.within_change()`: what a part does to settle a roster. It is a part of
        the change, which waits for it, and operations inside do not wait."""
        return GatedRequest(self._gate)

    @property
    def is_flushing(self) -> bool:
        """Is the next roster agreed on, and not in force here yet? What is said now would be too
        late for the one in force."""
        return self._wave.coming is not None

    async def flushed(self) -> None:
        """Come back when something can be said: in the roster in force, before the change has come
        so far, or in the next. Unlike an operation this does not wait for other hosts to settle."""
        await self._until(lambda: not self.is_flushing)

    async def renew(self) -> None:
        """A card of this host has changed: come back when a roster that has it is in force."""
        self._cards += 1
        wanted = self._cards
        self._refresh()
        await self._until(lambda: self._cards_in_force >= wanted)

    async def changed(self, roster: Membership) -> None:
        """Come back when another roster than this one is in force. It must not be called within an
        operation, for which the change would wait."""
        await self._until(lambda: self.roster is not roster)

    async def join(self) -> None:
        """Take part with the hosts we are engaged with, after we left."""
        if not self._wave.joined:
            self._do(self._wave.join)
            await self.renew()

    async def leave(self) -> None:
        """Take part no more. Everyone in the group comes to rest before, so that nobody loses what
        is under way; but for so long only as answers are waited for."""
        if not self._wave.joined:
            return
        self._do(self._wave.leave)
        try:
            async with asyncio.timeout(self._core.answer_seconds):
                await self._until(self._has_left)
        except TimeoutError:
            self._do(self._wave.depart)
            await self._until(self._has_left)
        finally:
            self._wave.leaving = False

    def _has_left(self) -> bool:
        return not self._wave.joined and self._wave.idle

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._closed:
                raise HostClosed("the host was closed")
            await self._news.wait()

    # For the host

    def engaged(self, peer: Peer) -> None:
        self._peers[peer.id] = peer
        self._do(self._wave.engaged, peer.id)

    def departed(self, peer: Peer) -> None:
        if self._peers.get(peer.id) is peer:
            del self._peers[peer.id]
            self._do(self._wave.departed, peer.id)

    def _heard(self, peer: Peer, message: Said) -> None:
        if isinstance(message, Unreachable):
            self._hear(peer, message)
        else:
            self._do(self._wave.heard, peer.id, message)

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

    # What the wave asks, and what it wants done

    def _member(self) -> Member:
        self._cards_said = self._cards
        cards = {name: part.card() for name, part in self._parts.items()}
        core = self._core
        # Everyone reads the same, this host as well.
        return Member(core.id, core.name, core.incarnation, _read_card(_spell_card(cards)))

    def _busy(self) -> bool:
        return self._gate.under_way > 0 or self._settling is not None

    def _do(self, event: Callable[..., None], *args: Any) -> None:
        """Tell the wave what has happened, and do what it says. A link may end while we speak: then
        the wave is told of that, and the one who speaks goes on."""
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
            while self._wave.outbox and not self._closed:
                self._follow(self._wave.outbox.popleft())
        finally:
            self._acting = False

    def _follow(self, instruction: wave.Instruction) -> None:
        match instruction:
            case wave.SendMessage(neighbour, message):
                self._say_or_part(neighbour, message)
            case wave.DelayBegin():
                if self._timer is None:
                    pause = PAUSE_SECONDS * 2 ** min(self._wave.vain, DOUBLED_MAX)
                    self._timer = self._loop.call_later(pause, self._begin)
            case wave.HaltOperations():
                self._gate.halt()
                self._tell()
                if self._settling is not None and not self._settling.cancelling():
                    self._settling.cancel()  # once: it may take a while to end
                    self._routing.abandon()
            case wave.MarkUnreachable(hosts):
                self._routing.cut(hosts)
            case wave.InstallMembership(roster):
                self._install(roster)
            case wave.ResumeOperations():
                self._go_on()
            case wave.DropNeighbour(neighbour):
                if neighbour in self._peers:
                    self._peers[neighbour].talk.end("it contradicts what others say")

    def _begin(self) -> None:
        self._timer = None
        self._do(self._wave.begin)

    def _refresh(self) -> None:
        """A card is not in force: another wave, after the one that is under way."""
        if self._cards > self._cards_said and self._wave.idle:
            self._do(self._wave.want)

    def _quiet(self) -> None:
        self._do(self._wave.quiet)

    def _install(self, roster: Membership) -> None:
        self._routing.install(roster)
        self._settling = self._loop.create_task(self._settle(roster))
        self._settling.add_done_callback(self._settled)
        self._tell()
        early, self._early = self._early, []
        for peer, message in early:
            try:
                self._hear(peer, message)
            except BadFrame as error:
                peer.talk.end(f"garbage: {error}")

    async def _settle(self, roster: Membership) -> None:
        for part in list(self._parts.values()):
            try:
                await part.settle(roster)
            except Exception as error:
                self._routing.report(part, error)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling = None
        if not task.cancelled():
            self._do(self._wave.settled)
        self._quiet()

    def _go_on(self) -> None:
        self._gate.open()
        self._cards_in_force = self._cards_said
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
                peer.talk.say(message)
            else:
                peer.talk.say(wire.PartNotice(CHANNEL, wire.body(message)))

    def _say_or_part(self, host: str, message: GroupMessage) -> None:
        """The wave cannot go on without this being said."""
        try:
            self._say(host, message)
        except CannotSend as error:
            self._peers[host].talk.end(f"the group cannot be described: {error}")

    def _hear(self, peer: Peer, message: Unreachable | wire.Routed) -> None:
        coming = self._wave.coming
        if coming is not None and message.roster == coming.id:
            self._early.append((peer, message))
        elif message.roster == self.roster.id and not self._closed:
            if isinstance(message, Unreachable):
                self._hear_cut(peer.id, message)
            else:
                self._routing.heard(peer.id, message)

    def _hear_cut(self, neighbour: str, message: Unreachable) -> None:
        hosts = frozenset(message.hosts)
        if not hosts <= self.roster.beyond(self._core.id, neighbour):
            raise BadFrame("a host can only be cut off from those behind it")
        self._routing.cut(hosts)
        self._do(self._wave.tell_cut, neighbour, hosts)
