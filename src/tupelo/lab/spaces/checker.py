"""The checker of the federation: the invariants that hold when all hosts are back, whatever faults
there were.

Besides, the history must be linearizable, class by class. Every entry that is read or taken was
there at some moment between the call and the return. A read or take that was answered by every host
and found nothing had a moment at which no host had a match. This holds for one entry at a time:
`read_all` and `count` ask one host after the other, so only the entries that they return are
checked.

A host that is down takes its entries with it, so an operation that could not reach every host is
not checked for what it did not find. An entry on its way to a taker is visible to nobody else; when
it is returned, the history gets a take and a write that no agent has called."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import inf

from tupelo.lab.linearize import Kind, LinearizeVerdict, TimedOperation
from tupelo.lab.linearize import check as linearize
from tupelo.lab.simulation import Fault, left_behind, name_of
from tupelo.lab.spaces.workload import (
    KEYS,
    MAIL,
    NEWS,
    SPACE,
    Act,
    Deal,
    Entry,
    SpacesHistory,
    SpacesHost,
    SpacesSimulation,
)
from tupelo.lab.virtual_world import WorldHost

MANY = 1_000
"""No `take_all` has returned more entries."""
MANY_KILLED = 20
"""To the linearizability check: how many entries a killed `take_all` may have taken."""
BUDGET = 20_000
"""Steps of the linearizability check."""


def check(world: SpacesSimulation) -> list[Fault]:
    return [
        *check_remains(world),
        *check_sessions(world, world.history),
        *check_entries(world, world.history),
    ]


# Entries


def check_entries(world: SpacesSimulation, history: SpacesHistory) -> list[Fault]:
    """Every entry that was written was taken once, or is still there once."""
    left = history.left
    written = _written(history)
    takers: dict[Entry, list[Act | Deal]] = defaultdict(list)
    for act in history.of("take"):
        for entry in act.entries:
            takers[entry].append(act)
    for deal in history.deals:
        if deal.how == "committed":
            for entry in deal.taken:
                takers[entry].append(deal)
    still = Counter(entry for entries in left.values() for entry in entries)
    faults = [
        Fault("made up", f"{name_of(entry)} was never written, or its transaction was aborted")
        for entry in [*takers, *still]
        if entry not in written
    ]
    lost = []
    for entry, (is_sure, _, _) in written.items():
        times = len(takers[entry]) + still[entry]
        if times > 1 and not any(_may_return(taker, history) for taker in takers[entry]):
            agents = ", ".join(taker.agent for taker in takers[entry]) or "nobody"
            at = ", ".join(name for name, entries in left.items() if entry in entries) or "nowhere"
            faults.append(Fault("taken twice", f"{name_of(entry)}: by {agents}; left: {at}"))
        if times == 0 and is_sure:
            lost.append(entry)
    found = {entry for entry in [*takers, *still] if takers[entry] or still[entry]}
    faults += _check_losses(history, written, lost)
    excuses = _excuses(history)
    faults += [fault for deal in history.deals if (fault := _check_deal(deal, found, excuses))]
    verdict = check_linearizable(world, history, lost)
    if verdict.answer == "no" and not faults:
        faults.append(Fault("not linearizable", verdict.why))
    return faults


def _written(history: SpacesHistory) -> dict[Entry, tuple[bool, SpacesHost, int]]:
    """The entries that may have been written: whether that is sure, at which host, and when."""
    written = {}
    for act in history.of("write"):
        for entry in act.entries:
            written[entry] = (act.how == "done", act.member, act.call)
    for deal in history.deals:
        if deal.how != "aborted":
            for entry in deal.written:
                written[entry] = (deal.how == "committed", deal.member, deal.call)
    return written


def _may_return(taker: Act | Deal, history: SpacesHistory) -> bool:
    """Whether the program of a taker was killed, or its host left while it could not reach an
    owner. If the owner of the entry does not have the confirmation then, its `Doubt` decides that
    the entry returns, so it may be taken again."""
    return isinstance(taker, Act) and (taker.life.killed or taker.life in history.unconfirmed)


def _check_losses(
    history: SpacesHistory, written: dict[Entry, tuple[bool, SpacesHost, int]], lost: list[Entry]
) -> list[Fault]:
    """A loss is excused if the entry may have been in a memory that is gone: the memory of the host
    where it was written; of a client that was killed, or of a program that was killed with the host
    where the entry was written; or of the host of a taker that gave up. A host that is killed
    while it fetches an entry from another host loses nothing. Each taker excuses no more entries
    than it could have had."""
    budget = _excuses(history)
    faults = []
    for entry in lost:
        _, member, tick = written[entry]
        if entry[0] == MAIL:  # It may have moved to the memory of its addressee's host.
            if any(
                not m.durable and any(end > tick for end in m.ends) for m in member.world.members
            ):
                continue
        elif not member.durable and any(end > tick for end in member.ends):
            continue
        excuse = next(
            (key for key in ((entry[0], ""), (entry[0], member.name)) if budget[key]), None
        )
        if excuse is not None:
            budget[excuse] -= 1
            continue
        faults.append(Fault("lost", f"{name_of(entry)}, written at {member.name}"))
    return faults


def _excuses(history: SpacesHistory) -> Counter[tuple[str, str]]:
    """How many entries of each class may have gone with their takers: entries of one host, or of
    any host ("")."""
    excuses: Counter[tuple[str, str]] = Counter()
    for act in history.of("take"):
        number = MANY if act.many else 1
        if (act.how == "killed" and act.is_client) or (act.how != "done" and _memory_gone(act)):
            excuses[act.key, ""] += number
        elif act.how == "killed":
            excuses[act.key, act.member.name] += number
    for deal in history.deals:
        if deal.how == "unknown":
            excuses.update((entry[0], "") for entry in deal.taken)
    return excuses


def _memory_gone(act: Act) -> bool:
    """Whether the host of a taker that gave up has lost its memory. A durable host too has an entry
    only in memory while it cannot confirm it, because the owner of the entry is down."""
    ends = [end for end in act.member.ends if end > act.call]
    if not act.member.durable or not ends:
        return bool(ends)
    others = [other for other in act.member.world.members if other is not act.member]
    return any(act.call < end < ends[0] for other in others for end in other.ends)


def _check_deal(deal: Deal, found: set[Entry], excuses: Counter[tuple[str, str]]) -> Fault | None:
    """All or nothing: all entries that a transaction wrote are found, or none; unless some may have
    gone with a taker."""
    hosts = ("", deal.member.name)
    if any(excuses[entry[0], host] for entry in deal.written for host in hosts):
        return None
    there = [entry for entry in deal.written if entry in found]
    memory_gone = not deal.member.durable and any(end > deal.call for end in deal.member.ends)
    is_half = there and len(there) < len(deal.written) and not memory_gone
    if is_half and deal.how != "aborted":
        return Fault("half done", f"{deal}: only {', '.join(map(name_of, there))} is there")
    return None


# Linearizability


def check_linearizable(
    world: SpacesSimulation, history: SpacesHistory, lost: list[Entry]
) -> LinearizeVerdict:
    """`lost` are the entries that nobody has, for a good reason."""
    everyone = frozenset(member.name for member in world.members)
    operations: list[TimedOperation] = []
    for act in history.acts:
        if act.key in KEYS:
            operations += _of_act(act, everyone)
    for deal in history.deals:
        operations += _of_deal(deal)
    calls = {one.entry: one.call for one in operations if one.kind == "write"}
    for entry in lost:
        if entry in calls:
            operations.append(TimedOperation(calls[entry], inf, "take", entry[0], None, "a crash"))
    for entry, sightings in world.sightings.items():
        for _ in range(sightings - 1 if entry in calls else 0):
            operations.append(TimedOperation(calls[entry], inf, "take", entry[0], None, "in vain"))
            operations.append(
                TimedOperation(calls[entry], inf, "write", entry[0], entry, "a return")
            )
    return linearize(operations, BUDGET)


def _of_act(act: Act, everyone: frozenset[str]) -> Iterator[TimedOperation]:
    key, agent = act.key, act.agent
    if act.kind == "write":
        ret = act.ret if act.how == "done" else inf
        yield TimedOperation(act.call, ret, "write", key, act.entries[0], agent)
    elif act.kind == "take" and (act.how == "killed" or act.host_ended):
        for _ in range(MANY_KILLED if act.many else 1):
            yield TimedOperation(act.call, inf, "take", key, None, agent)
    if act.kind in ("read", "take") and act.how == "done":
        kind: Kind = "read" if act.kind == "read" else "take"
        for entry in act.entries:
            yield TimedOperation(act.call, act.ret, kind, key, entry, agent)
        if not act.entries and not act.many and act.covered == everyone:
            yield TimedOperation(act.call, act.ret, kind, key, None, agent)


def _of_deal(deal: Deal) -> Iterator[TimedOperation]:
    if deal.how == "aborted":
        return
    ret = deal.ret if deal.how == "committed" else inf
    for entry in deal.taken:
        found = entry if deal.how == "committed" else None
        yield TimedOperation(deal.call, ret, "take", entry[0], found, deal.agent)
    for entry in deal.written:
        yield TimedOperation(deal.call, ret, "write", entry[0], entry, deal.agent)


# Sessions and subscriptions


def check_sessions(world: SpacesSimulation, history: SpacesHistory) -> list[Fault]:
    """A session returns no entry twice, and the entries of one writer in the order in which they
    were written; so does a subscription, of the entries written since it began. A subscription that
    lives to the end was told of all news that are left. Nobody takes news, so none is ever
    returned to its place."""
    faults = []
    news = {entry for entries in history.left.values() for entry in entries if entry[0] == NEWS}
    since = {entry: act.call for act in history.of("write") for entry in act.entries}
    read: dict[str, list[Entry]] = defaultdict(list)
    for act in history.of("read"):
        if act.session is not None:
            read[act.session] += act.entries
    for (name, life), notices in history.listeners.items():
        begin = history.subscribed.get((name, life), inf)
        reader = f"the subscriber at {name} in life {life}"
        read[reader] = [entry for entry in notices if since[entry] > begin]
        missed = [entry for entry in news if since[entry] > begin and entry not in notices]
        if missed and any(m.name == name and m.lives == life for m in world.members):
            names = ", ".join(sorted(map(name_of, missed)))
            faults.append(Fault("not told", f"{names} to {reader}"))
    for reader, entries in read.items():
        for entry, times in Counter(entries).items():
            if times > 1:
                faults.append(Fault("told twice", f"{name_of(entry)} was told to {reader}"))
        last: dict[str, int] = {}
        for entry in entries:
            _, source, number = entry
            if number < last.get(source, 0):
                faults.append(Fault("out of order", f"{name_of(entry)} came late to {reader}"))
            last[source] = number
    return faults


# Pending work


def check_remains(world: SpacesSimulation) -> list[Fault]:
    """No operation is pending any more."""
    remains: dict[WorldHost, dict[str, object]] = {}
    for host in world.members:
        found = remains[host] = dict(host.core.under_way())
        for hosted in host.core.spaces.values():
            for what, things in hosted.port.under_way().items():
                if what == "subscriptions" and hosted.name == SPACE:
                    things = things[1:]  # The first one belongs to the simulation.
                found[f"{what} in {hosted.name}"] = things
    return left_behind(remains)
