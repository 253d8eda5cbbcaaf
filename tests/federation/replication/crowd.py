"""A crowd of exchanges without time: links that keep the order, and a seed that decides what comes
next. It knows what every source has written and removed, and watches what must hold."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from random import Random
from typing import Any

import msgspec

from tupelo.federation.identity.keys import Identity, id_of
from tupelo.federation.replication import messages
from tupelo.federation.replication.exchange import FeedExchange
from tupelo.federation.replication.streams import Stream

STEPS_MAX = 200_000
IDENTITIES = {name: Identity.new() for name in "abcdefgh"}
FEED = "feed"


class Shelf:
    """Keeps items as they are, and knows in which order they came."""

    def __init__(self) -> None:
        self.came: dict[str, list[int]] = {}

    def put(self, stream: Stream, items: Any) -> Any:
        self.came.setdefault(stream.source, []).extend(number for number, _ in items)
        return items

    def remove(self, stream: Stream, items: list[Any]) -> None:
        return

    def drop(self, stream: Stream) -> None:
        self.came.pop(stream.source, None)

    def encode(self, item: Any) -> bytes | None:
        return msgspec.msgpack.encode(item)

    def read(self, encoded: Any) -> Any:
        return encoded

    def content(self, item: Any) -> bytes:
        return msgspec.msgpack.encode(item)

    def lease(self, item: Any) -> float:
        return 0.0


class Truth:
    """What a source has written, and removed: how many removals it had made after each."""

    def __init__(self) -> None:
        self.written: dict[int, str] = {}
        self.removed: dict[int, int] = {}


class Person:
    def __init__(self, crowd: Crowd, name: str, life: int, everything: bool) -> None:
        self.name = name
        identity = IDENTITIES[name] if crowd.signed else None
        self.id = name if identity is None else id_of(identity.key)
        self.source = f"{self.id}/{life if not crowd.durable else 'disk'}"
        self.shelf = Shelf()
        self.exchange = FeedExchange(
            FEED,
            self.source,
            self.shelf,
            everything=everything,
            has_room=lambda host: crowd.rng.random() < 0.9,
            window_bytes=200,
            identity=identity,
        )
        self.saved: dict[str, Stream] = {}

    def save(self) -> None:
        self.saved = deepcopy(self.exchange.streams)


class Crowd:
    """Hosts and the links between them."""

    def __init__(
        self,
        seed: int,
        hosts: int,
        *,
        durable: bool,
        everything: bool = True,
        signed: bool = False,
    ) -> None:
        self.signed = signed
        self.rng = Random(seed)
        self.durable = durable
        self.everything = everything
        self.names = [chr(ord("a") + number) for number in range(hosts)]
        self.people: dict[str, Person] = {}
        self.asleep: dict[str, Person] = {}
        self.lives = 0
        self.links: set[tuple[str, str]] = set()
        self.lines: dict[tuple[str, str], deque[Any]] = {}
        self.truths: dict[str, Truth] = {}
        self.said = 0
        self.calm = self.rng.random()
        self.speeds: dict[tuple[str, str], float] = {}
        for name in self.names:
            self.start(name)

    # Lives

    def start(self, name: str) -> None:
        if name in self.people or any(name in link for link in self.links):
            return
        self.lives += 1
        person = self.people[name] = Person(self, name, self.lives, self.everything)
        self.truths.setdefault(person.source, Truth())
        before = self.asleep.pop(name, None)
        if before is not None and self.durable:
            # What it has of others is as old as its disk; its own it has as it was.
            before.saved[before.source] = before.exchange.own
            for stream in before.saved.values():
                person.exchange.load(stream)
                person.shelf.came[stream.source] = list(stream.items)
            person.exchange.own.tombstones += 1_000

    def crash(self, name: str) -> None:
        person = self.people.pop(name, None)
        if person is not None:
            self.asleep[name] = person
            for other in self.names:
                self.links.discard((name, other))
                if (name, other) in self.lines:
                    line = self.lines[name, other]
                    for _ in range(self.rng.randrange(len(line) + 1)):
                        line.pop()

    # Links

    def id_of(self, name: str) -> str:
        return id_of(IDENTITIES[name].key) if self.signed else name

    def connect(self, one: str, other: str) -> None:
        linked = (one, other) in self.links or (other, one) in self.links
        if one != other and one in self.people and other in self.people and not linked:
            for near, far in ((one, other), (other, one)):
                self.lines[near, far] = deque()
                self.speeds[near, far] = self.rng.choice((0.01, 0.1, 1.0))
                self.links.add((near, far))
            for near, far in ((one, other), (other, one)):
                self.people[near].exchange.engaged(self.id_of(far))
                self.post(near)

    def disconnect(self, one: str, other: str) -> None:
        """One hears of it now, the other later; what is under way is lost, or some of it."""
        for pair in ((one, other), (other, one)):
            if pair in self.lines:
                line = self.lines[pair]
                for _ in range(self.rng.randrange(len(line) + 1)):
                    line.pop()
        self.notice(one, other)

    def notice(self, near: str, far: str) -> None:
        if (near, far) in self.links:
            self.links.discard((near, far))
            if near in self.people:
                self.people[near].exchange.departed(self.id_of(far))
                self.post(near)

    def post(self, name: str) -> None:
        outbox = self.people[name].exchange.outbox
        while outbox:
            hosts, message = outbox.popleft()
            body = msgspec.msgpack.encode(message)
            for host in [one for one in self.names if self.id_of(one) in hosts]:
                self.said += 1
                if (name, host) in self.links:
                    self.lines[name, host].append(body)

    # What happens

    def write(self, name: str, count: int) -> None:
        person = self.people.get(name)
        if person is not None:
            truth = self.truths[person.source]
            last = max(truth.written, default=0)
            items = []
            for _ in range(count):
                last += self.rng.choice((1, 1, 1, 7))
                items.append((last, f"{person.source} {last} " + "x" * self.rng.choice((1, 50))))
            truth.written.update(items)
            person.exchange.write(items)

    def remove(self, name: str, count: int) -> None:
        person = self.people.get(name)
        if person is not None:
            own = person.exchange.own
            chosen = self.rng.sample(list(own.items), min(count, len(own.items)))
            for place, number in enumerate(chosen):
                self.truths[person.source].removed[number] = own.tombstones + place + 1
            person.exchange.mark_removed(chosen)

    def hold_or_drop(self, name: str, other: str) -> None:
        """It takes the stream of another, or takes it no more."""
        if name != other and name in self.people and other in self.people:
            exchange, source = self.people[name].exchange, self.people[other].source
            if source not in exchange.streams:
                exchange.hold(source)
            elif self.rng.random() < 0.5:
                exchange.drop(source)
            self.post(name)

    def happen(self) -> None:
        one, other = self.rng.choice(self.names), self.rng.choice(self.names)
        if self.rng.random() > self.calm:
            match self.rng.randrange(4):
                case 0:
                    self.disconnect(one, other)
                case 1:
                    self.crash(one)
                case 2:
                    self.start(one)
                case 3 if one in self.people:
                    self.people[one].save()
        if not self.everything:
            self.hold_or_drop(one, other)
        match self.rng.randrange(4):
            case 0:
                self.connect(one, other)
            case 1:
                self.remove(one, self.rng.randrange(1, 4))
            case 2:
                self.write(one, self.rng.choice((1, 1, 3, 20)))
            case 3:
                self.write(one, 2)
                self.remove(one, self.rng.randrange(1, 4))
        self.check()

    def step(self) -> bool:
        """One thing that is due, if there is one."""
        due: list[tuple[float, Any]] = []
        for near, far in sorted(self.lines):
            if self.lines[near, far] and (far, near) in self.links:
                due.append((self.speeds[near, far], (self.deliver, near, far)))
        for near, far in sorted(self.links):
            if (far, near) not in self.links and not self.lines[far, near]:
                due.append((0.2, (self.notice, near, far)))
        for name, person in sorted(self.people.items()):
            if person.exchange.is_due:
                due.append((0.5, (self.tell, name)))
        if not due:
            return False
        ((work, *args),) = self.rng.choices([one for _, one in due], [often for often, _ in due])
        work(*args)
        return True

    def deliver(self, near: str, far: str) -> None:
        body = self.lines[near, far].popleft()
        if far in self.people:
            self.people[far].exchange.heard(self.id_of(near), messages.read(body))
            self.post(far)
            self.check_person(self.people[far])

    def tell(self, name: str) -> None:
        self.people[name].exchange.tell()
        self.post(name)

    def run(self, events: int) -> None:
        for _ in range(events):
            self.happen()
            for _ in range(self.rng.randrange(20)):
                self.step()

    def rest(self) -> None:
        for _ in range(STEPS_MAX):
            if not self.step():
                return
        raise AssertionError("it never comes to rest")

    # What must hold

    def check(self) -> None:
        for person in self.people.values():
            self.check_person(person)

    def check_person(self, person: Person) -> None:
        assert not any(far.doubted for far in person.exchange.partners.values()), "nobody lies here"
        for source, stream in person.exchange.streams.items():
            truth = self.truths[source]
            came = person.shelf.came.get(source, [])
            assert came == sorted(set(came)), "each once, in the order of its source"
            due = {number for number in truth.written if number <= stream.upto}
            assert stream.items.keys() <= due
            for number in due - stream.items.keys() - set(stream.away):
                assert number in truth.removed, f"{person.name} has a hole at {source} {number}"
            for number, item in stream.items.items():
                assert item == truth.written[number]
                assert truth.removed.get(number, 2**60) > stream.tombstones, "it is dead"
            assert {n for n in stream.alive if n <= stream.upto} == stream.items.keys()
            assert stream.upto <= stream.known
            assert all(number > stream.known for number in stream.dead)

    def groups(self) -> list[set[str]]:
        left = set(self.people)
        groups = []
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

    def check_neighbours(self) -> None:
        """Two who are engaged have the same of what both take."""
        for near, far in self.links:
            here, there = self.people[near].exchange.streams, self.people[far].exchange.streams
            for source in here.keys() & there.keys():
                one, other = here[source], there[source]
                assert (one.mark, one.items) == (other.mark, other.items), f"{near} and {far}"

    def check_agreed(self) -> None:
        """Those who reach each other have the same."""
        for group in self.groups():
            views = [
                {
                    source: (stream.mark, dict(stream.items))
                    for source, stream in self.people[name].exchange.streams.items()
                    if stream.upto
                }
                for name in sorted(group)
            ]
            assert all(view == views[0] for view in views), f"{sorted(group)} differ"
            for name in group:
                person = self.people[name]
                living = {
                    number: item
                    for number, item in self.truths[person.source].written.items()
                    if number not in self.truths[person.source].removed
                }
                assert views[0].get(person.source, (None, {}))[1] == living
