"""The protocol by which the hosts of a group agree on the next membership, and its messages.

It is an echo algorithm with extinction. A host that knows of a change begins a round: Probe goes to
all its neighbours, and from each of them to its own neighbours. The first neighbour that sends a
Probe is the parent of a host; the parents form a tree. When all neighbours of a host have answered
and no operation runs there any more, the host sends its parent an Echo that lists the hosts behind
it. So the host that began the round learns of all hosts, and sends the membership (Commit) down the
same tree. Of several rounds the one with the greatest id goes on: a host that hears of it leaves
the round it was in.

A round that loses a parent, a child or an awaited neighbour cannot end; the host that notices this
begins a greater round. News that come too late for a round are for the next. So when nothing more
changes, the last round ends, and all hosts that reach each other have the same membership.

Before a host installs a membership, all messages of the old one are driven through the old tree: a
host sends a neighbour Flush when all its other old neighbours have sent Flush. So a message that an
operation has sent in a membership arrives in that membership, unless its path was cut. Settled
comes back up the tree when the new membership is in force, and Resume lets operations go on.

`MembershipProtocol` is a state machine without time and without a network. Events are method calls;
instructions to carry out are in `outbox`, in their order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import msgspec

from tupelo.errors import BadFrame
from tupelo.federation.groups.membership import Member, Membership, MembershipId

RoundNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
RoundId = tuple[RoundNumber, str]


class GroupMessage(msgspec.Struct, array_like=True):
    """Base of all messages of the group."""


# Meeting and parting


class Join(GroupMessage, tag=1):
    """The sender takes part, in this incarnation; this membership is in force there. `late`: the
    link existed before, and the sender has missed earlier messages of the receiver."""

    incarnation: str
    membership: RoundId
    late: bool = False


class Leave(GroupMessage, tag=2):
    """The sender takes part no more."""


# The round


class RoundMessage(GroupMessage):
    """Base of the messages of one round."""

    round_id: RoundId


class Probe(RoundMessage, tag=3):
    """Halt operations, pass the probe on, and answer with the hosts behind you."""


class FoundHost(msgspec.Struct, array_like=True):
    """A host that the round has found, its parent in the tree, and the membership it `was` in."""

    member: Member
    parent: str | None
    was: RoundId


class Echo(RoundMessage, tag=4):
    """The sender and the hosts behind it; no operation runs there."""

    found: list[FoundHost]


class Commit(RoundMessage, tag=5):
    """The new membership: all hosts that were found."""

    found: list[FoundHost]


class Flush(RoundMessage, tag=6):
    """The sender will pass on no more messages of the old membership."""


class Settled(RoundMessage, tag=7):
    """The new membership is in force and settled at the sender and all hosts behind it."""


class Resume(RoundMessage, tag=8):
    """All hosts are settled: operations may begin again."""


# In a membership


class Unreachable(GroupMessage, tag=9):
    """The sender cannot reach these hosts any more, within this membership."""

    membership: RoundId
    hosts: list[str]


ProtocolMessage = Join | Leave | Probe | Echo | Commit | Flush | Settled | Resume
AnyGroupMessage = ProtocolMessage | Unreachable


AHEAD_MAX = 2**32
"""A round number that is further ahead than this is refused."""
CONTRADICTIONS_MAX = 10
"""A neighbour that contradicts others for more rounds in a row than this is dropped. A few are
allowed: it may not have heard yet of the end of a host."""


class ProtocolPhase(Enum):
    """The progress of a host in the round with the id `MembershipProtocol.id`."""

    IDLE = "the round is over; operations go on"
    GATHERING = "neighbours have not answered, or operations still run here"
    ECHOED = "the echo was sent to the parent"
    FLUSHING = "the new membership is known; Flush of old neighbours is awaited"
    SETTLING = "the new membership is in force; this host or one behind it is not settled"
    SETTLED = "this host and all hosts behind it are settled"
    BROKEN = "the round cannot end; a greater one must begin"


# Instructions


@dataclass(frozen=True)
class SendMessage:
    neighbour: str
    message: GroupMessage


@dataclass(frozen=True)
class DelayBegin:
    """Call `begin` after a pause, so that several changes share a round. The pause grows with the
    number of rounds that were in vain."""


@dataclass(frozen=True)
class HaltOperations:
    """Let no operation begin, and call `quiet` when none is running. Cancel the settling of a
    membership."""


@dataclass(frozen=True)
class MarkUnreachable:
    """These hosts of the current membership are out of reach."""

    hosts: frozenset[str]


@dataclass(frozen=True)
class InstallMembership:
    """Put this membership in force, and call `settled` when this host has settled it."""

    membership: Membership


@dataclass(frozen=True)
class ResumeOperations:
    """Let operations begin again."""


@dataclass(frozen=True)
class DropNeighbour:
    """End the link to this neighbour: its messages contradict those of others."""

    neighbour: str


TreePlace = tuple[str | None, str, MembershipId]
"""The parent of a host in the tree, its incarnation, and the membership it was in."""

Instruction = (
    SendMessage
    | DelayBegin
    | HaltOperations
    | MarkUnreachable
    | InstallMembership
    | ResumeOperations
    | DropNeighbour
)


class MembershipProtocol:
    """The state of one host in the rounds of its group. `member()` returns the current metadata of
    this host; `busy()` whether an operation runs that must end before the membership may change."""

    def __init__(self, member: Callable[[], Member], busy: Callable[[], bool]) -> None:
        first = member()
        self.me = first.host
        self.outbox: deque[Instruction] = deque()
        self.joined = True
        self.leaving = False
        self.phase = ProtocolPhase.IDLE
        self._life = f"{first.host} {first.incarnation}"
        self._incarnation = first.incarnation
        self._member = member
        self._busy = busy
        self._links: dict[str, Join | None] = {}
        self._last_round = 0
        self._wanted = False
        self.vain = 0
        """The number of rounds in a row that found contradictions, or missed a neighbour."""
        self._contradicted: Counter[str] = (
            Counter()
        )  # contradictions, by the child that reported them
        self.membership = Membership((0, self._life), [first], [])
        self._severed: set[str] = set()
        self._enter(self.membership.id, None)

    def _enter(self, round_id: MembershipId, parent: str | None) -> None:
        self.id = round_id
        self.coming: Membership | None = None
        self._parent = parent
        self._asked: dict[str, None] = {}
        self._awaited: dict[str, None] = {}
        self._children: dict[str, list[FoundHost]] = {}
        self._flushed: set[str] = set()
        self._owed: list[str] = []
        self._was: dict[str, MembershipId] = {}
        self._done: set[str] = set()
        self._settled = False

    @property
    def idle(self) -> bool:
        return self.phase is ProtocolPhase.IDLE

    @property
    def neighbours(self) -> list[str]:
        """The linked hosts that take part; none, if this host does not take part."""
        return [host for host, here in self._links.items() if here] if self.joined else []

    def _say(self, host: str, message: GroupMessage) -> None:
        self.outbox.append(SendMessage(host, message))

    # Hosts come and go

    def engaged(self, host: str, late: bool = False) -> None:
        self._links[host] = None
        if self.joined:
            self._say(host, Join(self._incarnation, self.membership.id, late))

    def departed(self, host: str) -> None:
        self._gone(host)
        del self._links[host]

    def _gone(self, host: str) -> None:
        was_neighbour = host in self.neighbours
        self._links[host] = None
        self._asked.pop(host, None)  # If it comes back, it awaits an answer again.
        if was_neighbour:
            self._lose([host])

    def join(self) -> None:
        """Take part again, after `depart`."""
        if not self.joined:
            self.joined = True
            for host in self._links:
                self._say(host, Join(self._incarnation, self.membership.id))
            self.want()

    def leave(self) -> None:
        """Depart at the end of a round that this host has begun, when all operations have ended."""
        self.leaving = True
        if self.idle:
            self.want()

    def depart(self) -> None:
        """Stop taking part at once."""
        lost = self.neighbours
        self.joined = self.leaving = False
        for host in self._links:
            self._say(host, Leave())
        self._lose(lost)

    def want(self) -> None:
        """Request a round after the current one."""
        self._wanted = True
        if self.phase in (ProtocolPhase.IDLE, ProtocolPhase.BROKEN):
            if self.neighbours:
                self.outbox.append(DelayBegin())
            else:
                self.begin()

    def _lose(self, hosts: Collection[str]) -> None:
        for host in hosts:
            if host in self.membership.neighbours(self.me) and host not in self._severed:
                self._sever(host)
        if self.phase in (ProtocolPhase.IDLE, ProtocolPhase.BROKEN):
            if self._severed:
                self.want()
        elif any(self._needs(host) for host in hosts):
            self._break()
        elif self.phase is ProtocolPhase.FLUSHING:
            self._flush()

    def _sever(self, lost: str) -> None:
        """An edge of the tree is lost, and with it all hosts beyond."""
        self._severed.add(lost)
        beyond = self.membership.beyond(self.me, lost)
        self.outbox.append(MarkUnreachable(beyond))
        self.announce_unreachable(lost, beyond)

    def announce_unreachable(self, where: str, hosts: frozenset[str]) -> None:
        """Tell the neighbours on all other edges that these hosts are out of reach."""
        for host in self.membership.neighbours(self.me):
            if host != where and host not in self._severed and host in self.neighbours:
                self._say(host, Unreachable(self.membership.id, sorted(hosts)))

    def _needs(self, host: str) -> bool:
        """Whether the current round cannot end without this host."""
        return host == self._parent or host in self._awaited or host in self._children

    def _break(self) -> None:
        self.phase = ProtocolPhase.BROKEN
        self.want()

    # A round begins

    def begin(self) -> None:
        """Begin the requested round, unless a round is running."""
        if self._wanted and self.phase in (ProtocolPhase.IDLE, ProtocolPhase.BROKEN):
            self._take_part((self._last_round + 1, self._life), None)

    def _take_part(self, round_id: MembershipId, parent: str | None) -> None:
        self._enter(round_id, parent)
        self._last_round = max(self._last_round, round_id[0])
        self._wanted = False
        self.phase = ProtocolPhase.GATHERING
        self.outbox.append(HaltOperations())
        for host in self.neighbours:
            if host != parent:
                self._ask(host)
        self._gathered()

    def _ask(self, host: str) -> None:
        self._asked[host] = self._awaited[host] = None
        self._say(host, Probe(self.id))

    # Messages

    def heard(self, host: str, message: ProtocolMessage) -> None:
        if isinstance(message, Join | Probe):
            ahead = message.membership if isinstance(message, Join) else message.round_id
            if ahead[0] > self._last_round + AHEAD_MAX:
                raise BadFrame(f"the round {ahead[0]} is too far ahead")
        if isinstance(message, Join):
            self._here(host, message)
        elif isinstance(message, Leave):
            self._gone(host)
        elif host not in self.neighbours:
            return  # It does not know yet that this host has left.
        elif isinstance(message, Probe):
            self._probed(host, message.round_id)
        elif message.round_id != self.id:
            return  # It does not know yet of the current round.
        elif isinstance(message, Echo):
            self._echoed(host, message.found)
        elif isinstance(message, Commit):
            self._committed(host, message.found)
        elif isinstance(message, Flush):
            self._flushed.add(host)
            self._flush()
        elif isinstance(message, Settled):
            self._done.add(host)
            self._check_settled()
        elif host == self._parent and self.phase is ProtocolPhase.SETTLED:
            self._finish()

    def _here(self, host: str, here: Join) -> None:
        self._links[host] = here
        self._last_round = max(self._last_round, here.membership[0])
        if not self.joined:
            return
        if here.late:
            self._say(host, Join(self._incarnation, self.membership.id))
        if self.phase is ProtocolPhase.GATHERING and host not in self._asked:
            self._ask(host)
        elif self.phase is ProtocolPhase.IDLE and not self._knows(host):
            self.want()

    def _knows(self, host: str) -> bool:
        """Whether the current membership has this neighbour in its current incarnation."""
        here, member = self._links.get(host), self.membership.members.get(host)
        return (
            here is not None
            and member is not None
            and member.incarnation == here.incarnation
            and here.membership <= self.membership.id
        )

    def _probed(self, host: str, round_id: MembershipId) -> None:
        if round_id > self.id:
            self._take_part(round_id, host)
        elif self.phase is ProtocolPhase.IDLE:
            self.want()  # That round cannot win, and its host must not wait for ever.
        elif round_id == self.id:
            if (
                host not in self._asked
            ):  # A neighbour that joined after the probes awaits an answer.
                self._asked[host] = None
                self._say(host, Probe(round_id))
            self._awaited.pop(host, None)
            self._gathered()

    def _echoed(self, host: str, found: list[FoundHost]) -> None:
        if self.phase is ProtocolPhase.GATHERING and host in self._awaited:
            if not found or (found[0].member.host, found[0].parent) != (host, self.me):
                raise BadFrame("this echo does not begin with its sender")
            _check_tree(found)
            self._check_lives(host, found)
            del self._awaited[host]
            self._children[host] = found
            self._gathered()

    def _check_lives(self, host: str, found: list[FoundHost]) -> None:
        """Raise BadFrame if the sender of an echo has another incarnation than in its Join, or
        lists hosts behind it that have another place in this round."""
        lives = {near: here.incarnation for near, here in self._links.items() if here}
        for one in found[1:]:
            near, life = one.member.host, one.member.incarnation
            placed = near == self._parent or near in self._children
            if near == self.me or (placed and lives.get(near) == life):
                raise BadFrame(f"{near!r} is not behind the sender of this echo")
        if found[0].member.incarnation != lives.get(host):
            raise BadFrame("this echo is of another incarnation")

    def quiet(self) -> None:
        """No operation runs here any more."""
        self._gathered()

    def _gathered(self) -> None:
        """Send the parent an echo, or everybody the result, once all have answered and no operation
        runs here."""
        if self.phase is not ProtocolPhase.GATHERING or self._awaited or self._busy():
            return
        found = [FoundHost(self._member(), self._parent, self.membership.id)]
        for behind in self._children.values():
            found += behind
        if len({one.member.host for one in found}) < len(found):
            self._contradict(Counter(one.member.host for one in found))
        elif self._parent is not None:
            self.phase = ProtocolPhase.ECHOED
            self._say(self._parent, Echo(self.id, found))
        else:
            self._agree(found)

    def _contradict(self, times: Counter[str]) -> None:
        """A host was found twice: a host does not know yet of its end, or lies."""
        self.vain += 1
        for child, behind in self._children.items():
            if any(times[one.member.host] > 1 for one in behind[1:]):
                self._contradicted[child] += 1
                if self._contradicted[child] > CONTRADICTIONS_MAX:
                    del self._contradicted[child]
                    self.outbox.append(DropNeighbour(child))
        self._break()

    # The new membership

    def _committed(self, host: str, found: list[FoundHost]) -> None:
        if self.phase is ProtocolPhase.ECHOED and host == self._parent:
            _check_tree(found)
            places = {one.member.host: _place(one) for one in found}
            expected: dict[str, TreePlace] = {
                self.me: (host, self._incarnation, self.membership.id)
            }
            for behind in self._children.values():
                expected.update((one.member.host, _place(one)) for one in behind)
            here = {one for one, place in places.items() if one in expected or place[0] in expected}
            if found[0].parent is not None or {one: places[one] for one in here} != expected:
                raise BadFrame("this membership has another tree than the round has made")
            self._agree(found)

    def _agree(self, found: list[FoundHost]) -> None:
        edges = [(one.parent, one.member.host) for one in found if one.parent is not None]
        self.coming = Membership(self.id, [one.member for one in found], edges)
        for host in self._children:
            self._say(host, Commit(self.id, found))
        self._was = {one.member.host: one.was for one in found}
        self._owed = self._old_neighbours()
        self.phase = ProtocolPhase.FLUSHING
        self._flush()

    def _old_neighbours(self) -> list[str]:
        """The neighbours in the old tree whose edges are not lost."""
        return [
            host
            for host in self.membership.neighbours(self.me)
            if host not in self._severed and self._was.get(host) == self.membership.id
        ]

    def _flush(self) -> None:
        if self.phase is not ProtocolPhase.FLUSHING:
            return
        edges = self._old_neighbours()
        missing = {host for host in edges if host not in self._flushed}
        for host in [one for one in self._owed if missing <= {one}]:
            self._owed.remove(host)
            if host in edges:
                self._say(host, Flush(self.id))
        if not missing:
            self._install()

    def _install(self) -> None:
        assert self.coming is not None
        self.membership, self.coming = self.coming, None
        self._severed.clear()
        self.phase = ProtocolPhase.SETTLING
        self.outbox.append(InstallMembership(self.membership))

    def settled(self) -> None:
        """This host has settled the membership."""
        if self.phase is ProtocolPhase.SETTLING:
            self._settled = True
            self._check_settled()

    def _check_settled(self) -> None:
        if self.phase is not ProtocolPhase.SETTLING or not self._settled:
            return
        if self._done.issuperset(self._children):
            self.phase = ProtocolPhase.SETTLED
            if self._parent is not None:
                self._say(self._parent, Settled(self.id))
                return
            if self.leaving:
                self.depart()  # All hosts have halted, and no operation runs anywhere.
            if self.phase is ProtocolPhase.SETTLED:
                self._finish()

    def _finish(self) -> None:
        for host in self._children:
            self._say(host, Resume(self.id))
        self.phase = ProtocolPhase.IDLE
        self.outbox.append(ResumeOperations())
        knows_all = all(map(self._knows, self.neighbours))
        self.vain = 0 if knows_all else self.vain + 1
        self._contradicted.clear()
        if self.leaving or not knows_all:
            self._wanted = True
            self.outbox.append(DelayBegin())


def _place(one: FoundHost) -> TreePlace:
    return one.parent, one.member.incarnation, one.was


def _check_tree(found: list[FoundHost]) -> None:
    """Raise BadFrame unless each host but the first has a parent that comes before it."""
    hosts: set[str] = set()
    for one in found:
        if one.member.host in hosts or (hosts and one.parent not in hosts):
            raise BadFrame("these hosts form no tree")
        hosts.add(one.member.host)
