"""The checker: compares what each client was told with what all clients saw and what was left.

It knows nothing of the implementation. It has the histories of the clients (values are unique, so
each write is known by its value), the moments at which hosts were killed, and the durable hosts.
The clients that drain the spaces after the faults are clients like the others: the values that they
take were there at the end.

| violation | meaning |
| --- | --- |
| invented | a client got a value that nobody has written, or before anyone had begun to |
| told wrong | an operation said that nothing was done, and its value was seen |
| taken twice | two clients were given a value that only one may have |
| lost | a write that was acknowledged, and its value was neither taken nor there at the end |
| half done | of a transaction some was done and some was not |
| sum | the accounts have more or less than what was paid in |
| ghost | a value was read after somebody had taken it for good |
| seen twice | a session gave a value twice |
| out of order | a session gave values of one source in another order than they were written |
| two orders | readers of one view saw values in different orders |
| misdirected | a value was given to a host to which it was not directed |
| not seen | when all was well, a space could not be looked into |
| stuck | an operation did not end, though all links and hosts were well |

Violations that no implementation could prevent are excused, where they are checked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from tupelo.lab.torture.history import ClientOperation, TortureHistory

MANY = 1_000
"""No operation has taken more values."""
ACCOUNT = "account"
"""The class of values that have an amount, as in `ada@w1.3=40`."""
DRAIN = "drain"
"""The prefix of the names of the clients that drain the spaces at the end."""
NOT_SEEN = "not seen"
STALE_READS = frozenset({"event-heap", "melon"})
"""Models whose hosts read copies: a value that was taken may still be read for a while."""
CONFIRMED_BY_HOSTS = frozenset({"lime"})
"""Models whose hosts confirm deliveries to other hosts for their clients."""
REMOVED_AT_SOURCE = frozenset({"event-heap"})
"""Models whose hosts remove a value before they answer a host that reaches them through others."""
CONFIRMED_LATE = frozenset({"melon:directed"})
"""Classes of values whose takers confirm them: no value is lost with a killed taker."""
FLEETING = frozenset({"pubsub:told"})
"""Classes of values that are not stored: a client that was cut off has missed them."""
ORDERED_BY_SOURCE = frozenset({"space", "melon", "pubsub"})
"""Models whose sessions keep the order of each source."""


@dataclass(frozen=True)
class Violation:
    """A contradiction in a history."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class Facts:
    """What clients cannot know: when hosts were killed, and which hosts are durable."""

    durable: set[str] = field(default_factory=set)
    kills: dict[str, list[float]] = field(default_factory=dict)
    mortal: set[str] = field(default_factory=set)
    """Models whose values are lost with the host of their writer: agents of LIME."""


def check(history: TortureHistory, facts: Facts) -> list[Violation]:
    """All violations of a history; first those that cannot go away with more time."""
    case = _Case(history, facts)
    return [
        *case.inventions(),
        *case.doubles(),
        *case.transfers(),
        *case.ghosts(),
        *case.readers(),
        *case.views(),
        *case.directed(),
        *case.stuck(),
        *case.losses(),
        *case.sums(),
    ]


def may_mend(violation: Violation) -> bool:
    """Whether a violation may go away with more time, because a value was not seen yet."""
    return violation.kind in ("lost", "half done", "sum", NOT_SEEN)


class _Case:
    def __init__(self, history: TortureHistory, facts: Facts) -> None:
        self.facts = facts
        self.operations = history.operations
        self.ended = history.ended
        self.writer: dict[str, ClientOperation] = {}
        for one in self.operations:
            if one.verb in ("write", "transfer"):
                self.writer |= dict.fromkeys(one.wrote, one)
        self.takers: dict[str, list[ClientOperation]] = defaultdict(list)
        self.readers_of: dict[str, list[ClientOperation]] = defaultdict(list)
        for one in self.operations:
            if one.verb == "take" or (one.verb == "transfer" and one.outcome == "ok"):
                for value in one.got:
                    self.takers[value].append(one)
            elif one.verb != "transfer":
                for value in one.got:
                    self.readers_of[value].append(one)

        self.left = {
            value
            for value, some in self.readers_of.items()
            if any(one.client.startswith(DRAIN) for one in some)
        }

    def killed(self, one: ClientOperation) -> bool:
        return one.client not in self.ended

    def host_killed(self, one: ClientOperation, until: float | None = None) -> bool:
        """Whether the host of an operation was killed after the operation began, and before
        `until`."""
        return any(
            at >= one.began and (until is None or at <= until)
            for at in self.facts.kills.get(one.where, ())
        )

    def sunk(self, writing: ClientOperation) -> bool:
        """Whether the value was in the memory of a host that was killed, or with its agent."""
        in_memory = writing.where not in self.facts.durable
        mortal = _model(writing.key) in self.facts.mortal
        return (in_memory or mortal) and self.host_killed(writing)

    # Values

    def inventions(self) -> Iterator[Violation]:
        seen: dict[str, list[ClientOperation]] = defaultdict(list)
        for sightings in (self.takers, self.readers_of):
            for value, some in sightings.items():
                seen[value] += some
        for one in self.operations:
            if one.verb == "transfer" and one.outcome != "ok":
                for value in one.got:
                    seen[value].append(one)
        for value, some in seen.items():
            writing = self.writer.get(value)
            if writing is None:
                yield Violation("invented", f"{value} was never written; {some[0]}")
                continue
            early = [one for one in some if one.ended < writing.began]
            if early:
                text = f"{value} was seen before it was written; {early[0]}"
                yield Violation("invented", text)
            if writing.outcome == "fail":
                text = f"{value} was seen, and was not written: {writing}; {some[0]}"
                yield Violation("told wrong", text)

    def doubles(self) -> Iterator[Violation]:
        """Values that were taken twice. If a client is killed before it has confirmed a value, the
        value returns, and another client may take it too."""
        for value, takers in self.takers.items():
            final = [one for one in takers if one.verb == "transfer" or not self.killed(one)]
            if len(final) > 1:
                text = f"{value}: {'; '.join(map(str, takers))}"
                yield Violation("taken twice", text)

    def losses(self) -> Iterator[Violation]:
        excuses, in_doubt = self.excuses, self.removals_in_doubt
        for value, writing in self.writer.items():
            if (
                writing.key in FLEETING
                or writing.outcome != "ok"
                or self.takers[value]
                or value in self.left
            ):
                continue
            if writing.verb == "transfer" or value in self.consumed or self.sunk(writing):
                continue  # `transfers` reports those in more detail.
            if excuses[writing.key]:
                excuses[writing.key] -= 1
                continue
            if doubtful := [one for one in in_doubt if _may_have_lost(one, writing)]:
                in_doubt.remove(doubtful[0])
                continue
            yield Violation("lost", f"{value}: {writing}")

    @cached_property
    def excuses(self) -> Counter[str]:
        """How many values of each class may be lost with their takers: with a client that was
        killed during a take, unless takers of the class confirm; and, in models whose hosts confirm
        for their clients (decision 0031), with a host that was killed while it fetched a value for
        its client, or after a client's take had failed there."""
        found: Counter[str] = Counter()
        for one in self.operations:
            if one.verb == "take" and not one.got:
                cut_off = one.outcome == "pending" and self.killed(one)
                cut_off = cut_off and one.key not in CONFIRMED_LATE
                until = one.ended if one.outcome == "ok" else None
                on_the_way = one.spans and _model(one.key) in CONFIRMED_BY_HOSTS
                if cut_off or (on_the_way and self.host_killed(one, until)):
                    found[one.key] += MANY if one.many else 1
        return found

    @property
    def removals_in_doubt(self) -> list[ClientOperation]:
        """Removals with an unknown outcome. Each may have lost one value of another host."""
        return [
            one
            for one in self.operations
            if one.verb == "take"
            and one.outcome == "unknown"
            and _model(one.key) in REMOVED_AT_SOURCE
        ]

    def ghosts(self) -> Iterator[Violation]:
        for value, readers in self.readers_of.items():
            if _model(readers[0].key) in STALE_READS or not self.takers[value]:
                continue
            gone = [one for one in self.takers[value] if not self.killed(one)]
            if not gone:
                continue
            since = min(gone, key=lambda one: one.ended)
            for one in readers:
                if one.verb == "read" and one.began > since.ended:
                    text = f"{value} was taken: {since}; and read later: {one}"
                    yield Violation("ghost", text)
                    break

    # Transactions

    @cached_property
    def consumed(self) -> dict[str, ClientOperation]:
        """The values taken in transactions with an unknown outcome that were probably committed."""
        return {
            value: one
            for one in self.operations
            if one.verb == "transfer"
            and one.outcome in ("unknown", "pending")
            and not self._returned(one)
            for value in one.got
        }

    def _returned(self, one: ClientOperation) -> list[str]:
        """The values that a transaction has taken and other clients were given."""
        return [value for value in one.got if any(taker is not one for taker in self.takers[value])]

    def _shown(self, one: ClientOperation) -> list[str]:
        """The values that a transaction wrote and other clients have seen."""
        return [
            value for value in one.wrote if self.takers[value] or self._taken_in_doubt(value, one)
        ]

    def _taken_in_doubt(self, value: str, writing: ClientOperation) -> bool:
        return any(value in one.got for one in self._in_doubt if one is not writing)

    @cached_property
    def _in_doubt(self) -> list[ClientOperation]:
        return [
            one
            for one in self.operations
            if one.verb == "transfer" and one.outcome in ("unknown", "pending", "fail")
        ]

    def transfers(self) -> Iterator[Violation]:
        """Of a committed transaction all written values were seen, and nobody else got the values
        that it took; of an aborted one the other way round; of an unknown one either."""
        for one in self.operations:
            if one.verb != "transfer" or self.sunk(one):
                continue
            shown, returned = self._shown(one), self._returned(one)
            missing = [value for value in one.wrote if value not in shown]
            missing = [value for value in missing if not self.excuses[one.key]]
            if one.outcome == "ok":
                if returned:
                    text = f"what it took was given to others ({', '.join(returned)}): {one}"
                    yield Violation("half done", text)
                if missing:
                    text = f"what it wrote was not seen ({', '.join(missing)}): {one}"
                    yield Violation("half done" if shown else "lost", text)
            elif one.outcome == "fail":
                # `inventions` checks the values that it wrote.
                gone = [
                    value
                    for value in one.got
                    if not self.takers[value]
                    and value not in self.consumed
                    and not self.excuses[one.key]
                    and value in self.writer
                    and not self.sunk(self.writer[value])
                ]
                if gone:
                    text = f"it was called off, and took {', '.join(gone)} with it: {one}"
                    yield Violation("half done", text)
            elif (shown and returned) or (shown and missing):
                text = f"seen {', '.join(shown)}; given to others {', '.join(returned) or '-'}; "
                text += f"not seen {', '.join(missing) or '-'}: {one}"
                yield Violation("half done", text)
            elif not shown and not returned and one.got and not self.excuses[one.key]:
                text = f"neither what it took nor what it wrote is there: {one}"
                yield Violation("half done", text)

    def sums(self) -> Iterator[Violation]:
        """The sum of the accounts at the end is the sum that was paid in."""
        paid: Counter[str] = Counter()
        final: Counter[str] = Counter()
        for one in self.operations:
            if one.key.endswith(f":{ACCOUNT}"):
                if one.verb == "write":
                    paid[one.key] += sum(map(amount_of, one.wrote))
                elif one.verb == "take":
                    final[one.key] += sum(map(amount_of, one.got))
        for key, amount in paid.items():
            opened = [one for one in self.operations if one.key == key and one.verb == "write"]
            if any(map(self.sunk, opened)):
                continue
            if final[key] != amount:
                yield Violation("sum", f"{key}: {amount} was paid in, and {final[key]} is there")

    # Readers

    def readers(self) -> Iterator[Violation]:
        got: dict[tuple[str, str], list[str]] = defaultdict(list)
        for one in sorted(self.operations, key=lambda one: one.began):
            if one.verb in ("once", "ordered"):
                got[one.key, one.reader] += one.got
        for (key, reader), values in got.items():
            for value, times in Counter(values).items():
                if times > 1:
                    yield Violation("seen twice", f"{value} by {reader}")
            if _model(key) in ORDERED_BY_SOURCE:
                yield from self._out_of_order(reader, values)

    def _out_of_order(self, reader: str, values: list[str]) -> Iterator[Violation]:
        latest: dict[tuple[str, str], ClientOperation] = {}
        for value in values:
            writing = self.writer.get(value)
            if writing is None or writing.outcome != "ok":
                continue
            source = writing.client, writing.where
            before = latest.get(source)
            if before is not None and writing.ended < before.began:
                text = f"{reader} was given {value} after {', '.join(before.wrote)}"
                yield Violation("out of order", text)
            if before is None or writing.began > before.began:
                latest[source] = writing

    def views(self) -> Iterator[Violation]:
        """The orders that readers of a view saw are compatible with one order."""
        sequences: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for one in sorted(self.operations, key=lambda one: one.began):
            if one.verb == "ordered":
                view, _, reader = one.reader.partition("/")
                sequences[view][reader] += one.got
        for view, readers in sequences.items():
            sorter: TopologicalSorter[str] = TopologicalSorter()
            for values in readers.values():
                for before, after in pairwise(dict.fromkeys(values)):
                    sorter.add(after, before)
            try:
                sorter.prepare()
            except CycleError as error:
                circle = " before ".join(error.args[1])
                yield Violation("two orders", f"in the view {view}: {circle}")

    def directed(self) -> Iterator[Violation]:
        for value, takers in self.takers.items():
            writing = self.writer.get(value)
            if writing is not None and writing.to:
                for one in takers:
                    if one.where != writing.to:
                        text = f"{value} is for {writing.to}: {one}"
                        yield Violation("misdirected", text)

    def stuck(self) -> Iterator[Violation]:
        """Operations that did not end although their client was not killed: the round waits for its
        clients, and lists them as ended."""
        for one in self.operations:
            if one.outcome == "pending" and not self.killed(one):
                yield Violation("stuck", str(one))


def _may_have_lost(removal: ClientOperation, writing: ClientOperation) -> bool:
    is_later = removal.ended > writing.began
    return is_later and removal.key == writing.key and removal.where != writing.where


def amount_of(value: str) -> int:
    _, _, amount = value.rpartition("=")
    return int(amount) if amount.lstrip("-").isdigit() else 0


def _model(key: str) -> str:
    return key.partition(":")[0]
