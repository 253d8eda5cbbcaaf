"""A crowd of rounds without time: links that keep the order, and a seed that decides what happens
next. It watches what must hold at every moment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tupelo.federation.groups import protocol
from tupelo.federation.groups.membership import Member, Membership, MembershipId
from tupelo.federation.groups.protocol import (
    DelayBegin,
    HaltOperations,
    InstallMembership,
    MarkUnreachable,
    MembershipProtocol,
    ResumeOperations,
    SendMessage,
)

STEPS_MAX = 100_000


@dataclass
class Parcel:
    """What a part has said in a membership, on its way from one host to another."""

    membership: MembershipId
    source: str
    target: str
    number: int


@dataclass
class Person:
    """One life of a host: its round, and what is under way there."""

    crowd: Crowd
    name: str
    life: int
    metadata: int = 0
    operations: int = 0
    settling: MembershipId | None = None
    ending: bool = False
    halted: bool = False
    paused: bool = False
    said_metadata: int = 0
    installed: list[MembershipId] = field(default_factory=list)
    early: list[tuple[str, Parcel]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.protocol = MembershipProtocol(
            self.member, lambda: self.operations > 0 or self.settling is not None
        )

    def member(self) -> Member:
        self.said_metadata = self.metadata
        return Member(self.name, self.name, f"life {self.life}", {"card": self.metadata})

    def tell(self, event: Any, *args: Any) -> None:
        event(*args)
        while self.protocol.outbox:
            self._follow(self.protocol.outbox.popleft())

    def _follow(self, instruction: Any) -> None:
        match instruction:
            case SendMessage(host, message):
                self.crowd.send(self.name, host, message)
            case DelayBegin():
                self.paused = True
            case HaltOperations():
                self.halted = True
                self.ending = self.settling is not None
            case MarkUnreachable():
                pass
            case InstallMembership(membership):
                self._install(membership)
            case ResumeOperations():
                self._go_on()

    def _install(self, membership: Membership) -> None:
        assert self.halted and not self.operations and self.settling is None
        assert not self.installed or membership.id > self.installed[-1], "ids of memberships grow"
        self.crowd.check_same(membership)
        self.installed.append(membership.id)
        self.settling = membership.id
        early, self.early = self.early, []
        for neighbour, parcel in early:
            self.hear_parcel(neighbour, parcel)

    def _go_on(self) -> None:
        self.halted = False
        self.crowd.check_all_installed(self.protocol.membership)
        if self.metadata > self.said_metadata:
            self.tell(self.protocol.want)

    def hear(self, host: str, message: Any) -> None:
        if isinstance(message, Parcel):
            self.hear_parcel(host, message)
        elif not isinstance(message, protocol.Unreachable):
            self.tell(self.protocol.heard, host, message)

    def hear_parcel(self, neighbour: str, parcel: Parcel) -> None:
        protocol = self.protocol
        if protocol.coming is not None and parcel.membership == protocol.coming.id:
            self.early.append((neighbour, parcel))
        elif parcel.membership != protocol.membership.id:
            self.crowd.check_was_cut(parcel)
        elif parcel.target == self.name:
            self.crowd.delivered.add(parcel.number)
        else:
            self.pass_on(parcel)

    def pass_on(self, parcel: Parcel) -> None:
        hop = self.protocol.membership.toward(self.name, parcel.target)
        assert hop is not None
        self.crowd.send(self.name, hop, parcel)

    # What it does by itself

    def steps(self) -> list[Any]:
        """What could happen here next."""
        steps: list[Any] = []
        if self.paused:
            steps.append(self.begin)
        if self.operations:
            steps.append(self.end_operation)
        if self.settling is not None:
            steps.append(self.end_settling)
        return steps

    def begin(self) -> None:
        self.paused = False
        self.tell(self.protocol.begin)

    def end_operation(self) -> None:
        self._talk()
        self.operations -= 1
        if not self.operations and self.halted:
            self.tell(self.protocol.quiet)

    def end_settling(self) -> None:
        self.settling = None
        ended, self.ending = self.ending, False
        if not ended or self.crowd.rng.random() < 0.5:  # It may have come to its end just before.
            self.tell(self.protocol.settled)
        self.tell(self.protocol.quiet)

    def renew(self) -> None:
        self.metadata += 1
        if self.protocol.idle:
            self.tell(self.protocol.want)

    def operate(self) -> None:
        if not self.halted:
            self.operations += 1
            self._talk()

    def _talk(self) -> None:
        """Part of an operation: something goes to other hosts of the group."""
        membership = self.protocol.membership
        others = [host for host in membership.members if host != self.name]
        for host in others:
            self.crowd.post(self, host)

    def join_or_leave(self) -> None:
        if self.protocol.leaving:  # It does not wait until the group has come to rest.
            self.crowd.break_edges(self.name)
            self.tell(self.protocol.depart)
        elif self.protocol.joined:
            self.tell(self.protocol.leave)
        else:
            self.tell(self.protocol.join)


class Crowd:
    """Hosts and the links between them."""

    def __init__(self, seed: int, hosts: int) -> None:
        self.rng = Random(seed)
        self.names = [chr(ord("a") + number) for number in range(hosts)]
        self.people: dict[str, Person] = {}
        self.lives: dict[str, int] = {}
        self.lines: dict[tuple[str, str], deque[Any]] = {}
        self.links: set[tuple[str, str]] = set()
        """As each end knows it: one may hear later than the other that it is lost."""
        self.memberships: dict[MembershipId, tuple[Any, Any]] = {}
        self.broken: dict[frozenset[str], int] = {}
        self.installed: dict[MembershipId, set[str]] = {}
        self.moments: dict[MembershipId, int] = {}
        self.now = 0
        self.parcels = 0
        self.delivered: set[int] = set()
        self.sent_at: dict[int, tuple[Membership, int]] = {}
        self.calm = self.rng.random()
        """How rarely something is lost."""
        self.speeds: dict[tuple[str, str], float] = {}
        for number, name in enumerate(self.names):
            self.start(name)
            if number:
                self.connect(name, self.rng.choice(self.names[:number]))

    # Links

    def send(self, source: str, target: str, message: Any) -> None:
        if (source, target) in self.links:
            self.lines[source, target].append(message)

    def connect(self, one: str, other: str) -> None:
        if one in self.people and other in self.people and not self.linked(one, other):
            for near, far in ((one, other), (other, one)):
                self.lines[near, far] = deque()
                self.speeds[near, far] = self.rng.choice((0.05, 1.0, 1.0))
                self.links.add((near, far))
            for near, far in ((one, other), (other, one)):
                self.people[near].tell(self.people[near].protocol.engaged, far)

    def linked(self, one: str, other: str) -> bool:
        return (one, other) in self.links or (other, one) in self.links

    def disconnect(self, one: str, other: str) -> None:
        """Both lose the link, one a while after the other; what was under way is lost."""
        for near, far in ((one, other), (other, one)):
            if (near, far) in self.lines:
                self.lines[near, far].clear()
        self.notice(one, other)

    def replace(self, one: str, other: str) -> None:
        """A new link between two who have one: both know the end of the old one first."""
        self.disconnect(one, other)
        self.notice(one, other)
        self.notice(other, one)
        self.connect(one, other)

    def notice(self, near: str, far: str) -> None:
        if (near, far) in self.links:
            self.break_edge(near, far)
            self.links.discard((near, far))
            person = self.people.get(near)
            if person is not None:
                person.tell(person.protocol.departed, far)

    def break_edge(self, one: str, other: str) -> None:
        self.broken[frozenset((one, other))] = self.now

    def break_edges(self, name: str) -> None:
        for other in self.names:
            self.break_edge(name, other)

    # Lives

    def start(self, name: str) -> None:
        if name not in self.people and not any(name in link for link in self.links):
            self.lives[name] = self.lives.get(name, 0) + 1
            self.people[name] = Person(self, name, self.lives[name])
            self.note_installed(self.people[name].protocol.membership, name)

    def crash(self, name: str) -> None:
        if self.people.pop(name, None) is not None:
            self.break_edges(name)
            for other in self.names:
                self.links.discard((name, other))
                if (name, other) in self.lines:
                    keep = self.rng.randrange(len(self.lines[name, other]) + 1)
                    while len(self.lines[name, other]) > keep:
                        self.lines[name, other].pop()

    # What must hold

    def note_installed(self, membership: Membership, name: str) -> None:
        self.installed.setdefault(membership.id, set()).add(name)
        self.moments.setdefault(membership.id, self.now)

    def check_same(self, membership: Membership) -> None:
        known = self.memberships.setdefault(membership.id, (membership.members, membership.edges))
        assert known == (membership.members, membership.edges), (
            f"two memberships have the id {membership.id}"
        )
        assert len(membership.edges) == len(membership.members) - 1
        for name in membership.members:
            assert len(
                {name}.union(*(membership.beyond(name, n) for n in membership.neighbours(name)))
            ) == len(membership.members), "the tree spans the group"

    def check_all_installed(self, membership: Membership) -> None:
        """Who goes on in a membership knows that everyone in it has it."""
        missing = {
            name
            for name, member in membership.members.items()
            if name in self.people
            and member.incarnation == f"life {self.people[name].life}"
            and membership.id not in self.people[name].installed
        }
        assert not missing, f"operations go on in {membership}, but {missing} have not installed it"

    def post(self, person: Person, target: str) -> None:
        self.parcels += 1
        parcel = Parcel(person.protocol.membership.id, person.name, target, self.parcels)
        self.sent_at[self.parcels] = (person.protocol.membership, self.now)
        person.pass_on(parcel)

    def check_was_cut(self, parcel: Parcel) -> None:
        membership, _ = self.sent_at[parcel.number]
        here = parcel.source
        while here != parcel.target:
            hop = membership.toward(here, parcel.target)
            assert hop is not None
            if self.broken.get(frozenset((here, hop)), -1) >= self.moments[membership.id]:
                return
            here = hop
        raise AssertionError(f"{parcel} was lost though its way was whole")

    # What happens

    def step(self) -> bool:
        """One thing that is due, if there is one."""
        self.now += 1
        due: list[tuple[float, Any]] = []
        for near, far in sorted(self.lines):
            if self.lines[near, far] and (far, near) in self.links:
                due.append((self.speeds[near, far], (self.deliver, near, far)))
        for near, far in sorted(self.links):
            if (far, near) not in self.links and not self.lines[far, near]:
                due.append((0.2, (self.notice, near, far)))
        for name in sorted(self.people):
            due += [(0.5, (step,)) for step in self.people[name].steps()]
        if not due:
            return False
        ((work, *args),) = self.rng.choices([one for _, one in due], [often for often, _ in due])
        work(*args)
        self.note()
        return True

    def deliver(self, near: str, far: str) -> None:
        message = self.lines[near, far].popleft()
        person = self.people.get(far)
        if person is not None:
            person.hear(near, message)

    def note(self) -> None:
        for name, person in self.people.items():
            self.note_installed(person.protocol.membership, name)

    def happen(self) -> None:
        """Something from outside."""
        self.now += 1
        one, other = self.rng.sample(self.names, 2)
        person = self.people.get(one)
        if self.rng.random() > self.calm:
            match self.rng.randrange(5):
                case 0:
                    self.disconnect(one, other)
                case 1:
                    self.crash(one)
                case 2:
                    self.start(one)
                case 3 if person is not None:
                    person.join_or_leave()
                case 4 if self.linked(one, other):
                    self.replace(one, other)
        match self.rng.randrange(6):
            case 0 | 1:
                self.connect(one, other)
            case 2 if person is not None:
                person.renew()
            case _ if person is not None:
                person.operate()
        self.note()

    def run(self, events: int) -> None:
        for _ in range(events):
            self.happen()
            for _ in range(self.rng.randrange(20)):
                self.step()

    def rest(self) -> None:
        """Let everything that is due happen."""
        for _ in range(STEPS_MAX):
            if not self.step():
                return
        raise AssertionError("it never comes to rest")

    def groups(self) -> list[set[str]]:
        """Who reaches whom."""
        left = {name for name, person in self.people.items() if person.protocol.joined}
        groups = [{name} for name in set(self.people) - left]
        while left:
            group, ahead = set[str](), [left.pop()]
            while ahead:
                name = ahead.pop()
                group.add(name)
                near = {other for other in left if (name, other) in self.links}
                left -= near
                ahead += near
            groups.append(group)
        return groups

    def check_agreed(self) -> None:
        for group in self.groups():
            memberships = {self.people[name].protocol.membership.id for name in group}
            assert len(memberships) == 1, f"{group} have {memberships}"
            for name in group:
                person = self.people[name]
                membership = person.protocol.membership
                assert set(membership.members) == group
                assert person.protocol.idle and not person.halted
                for other in group:
                    member = membership.members[other]
                    assert member.incarnation == f"life {self.people[other].life}"
                    assert member.metadata_of == {"card": self.people[other].metadata}
