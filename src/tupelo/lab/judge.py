"""The judge: what must hold of a world after everyone is back, whatever has happened to it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import inf

from tupelo.lab.history import Act, Deal, Entry, History, name_of
from tupelo.lab.load import MAIL, NEWS
from tupelo.lab.ordering import check_order
from tupelo.lab.world import SPACE, World, WorldHost

MANY = 1_000
"""No take of many entries has had more."""


@dataclass(frozen=True)
class Fault:
    """Something that must not be: which invariant is broken, and how."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


def judge_entries(world: World, history: History, left: dict[str, list[Entry]]) -> list[Fault]:
    """Every entry that was written is taken once or still there; `left` is what is, by host."""
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
        if times > 1 and not any(_died_unheard(one) for one in takers[entry]):
            who = ", ".join(one.agent for one in takers[entry]) or "nobody"
            at = ", ".join(name for name, entries in left.items() if entry in entries) or "nowhere"
            faults.append(Fault("taken twice", f"{name_of(entry)}: by {who}; left: {at}"))
        if times == 0 and is_sure:
            lost.append(entry)
    there = {entry for entry in [*takers, *still] if takers[entry] or still[entry]}
    faults += _judge_losses(history, written, lost)
    excuses = _excuses(history)
    faults += [fault for deal in history.deals if (fault := _judge_deal(deal, there, excuses))]
    verdict = check_order(world, history, lost)
    if verdict.answer == "no" and not faults:
        faults.append(Fault("not linearizable", verdict.why))
    return faults


def _written(history: History) -> dict[Entry, tuple[bool, WorldHost, int]]:
    """What may have been written: is it sure, where, and when."""
    written = {}
    for act in history.of("write"):
        for entry in act.entries:
            written[entry] = (act.how == "done", act.member, act.call)
    for deal in history.deals:
        if deal.how != "aborted":
            for entry in deal.written:
                written[entry] = (deal.how == "committed", deal.member, deal.call)
    return written


def _died_unheard(taker: Act | Deal) -> bool:
    """A client, or a program of a host that takes from another, has its entry when the owner hears
    so. If it is killed before that is heard, the owner's `Doubt` decides, and says that the entry
    returns."""
    return isinstance(taker, Act) and taker.life.killed


def _judge_losses(
    history: History, written: dict[Entry, tuple[bool, WorldHost, int]], lost: list[Entry]
) -> list[Fault]:
    """A loss is excused if a memory went that may have held it: that of the host where it was
    written; that of a client that was killed, or of a program that was killed with the host where
    it was written; or that of the host of a taker who gave up, where it stayed. A host that is
    killed while it fetches an entry from another loses nothing. Each taker excuses no more than it
    could have had."""
    budget = _excuses(history)
    faults = []
    for entry in lost:
        _, member, tick = written[entry]
        if entry[0] == MAIL:  # It may have moved to the memory of the one whom it is for.
            if any(
                not m.durable and any(end > tick for end in m.ends) for m in member.world.members
            ):
                continue
        elif not member.durable and any(end > tick for end in member.ends):
            continue
        excuse = next(
            (one for one in ((entry[0], ""), (entry[0], member.name)) if budget[one]), None
        )
        if excuse is not None:
            budget[excuse] -= 1
            continue
        faults.append(Fault("lost", f"{name_of(entry)}, written at {member.name}"))
    return faults


def _excuses(history: History) -> Counter[tuple[str, str]]:
    """How many entries of each class may have gone with their takers: of those of one host, or of
    all ("")."""
    excuses: Counter[tuple[str, str]] = Counter()
    for act in history.of("take"):
        number = MANY if act.many else 1
        if (act.how == "killed" and act.is_client) or (act.how != "done" and _memory_went(act)):
            excuses[act.key, ""] += number
        elif act.how == "killed":
            excuses[act.key, act.member.name] += number
    for deal in history.deals:
        if deal.how == "unknown":
            excuses.update((entry[0], "") for entry in deal.taken)
    return excuses


def _memory_went(act: Act) -> bool:
    """That of the host of a taker who gave up. Also a durable host has only in memory what is its
    own and it has not heard so yet, because the owner went."""
    ends = [end for end in act.member.ends if end > act.call]
    if not act.member.durable or not ends:
        return bool(ends)
    others = [one for one in act.member.world.members if one is not act.member]
    return any(act.call < end < ends[0] for one in others for end in one.ends)


def _judge_deal(deal: Deal, there: set[Entry], excuses: Counter[tuple[str, str]]) -> Fault | None:
    """All or nothing: of what it wrote, all can be found or nothing; unless some may have gone
    with a taker."""
    hosts = ("", deal.member.name)
    if any(excuses[entry[0], host] for entry in deal.written for host in hosts):
        return None
    found = [entry for entry in deal.written if entry in there]
    memory_went = not deal.member.durable and any(end > deal.call for end in deal.member.ends)
    is_half = found and len(found) < len(deal.written) and not memory_went
    if is_half and deal.how != "aborted":
        return Fault("half done", f"{deal}: only {', '.join(map(name_of, found))} is there")
    return None


def judge_sessions(world: World, history: History, left: dict[str, list[Entry]]) -> list[Fault]:
    """No session gives an entry twice, and those of one source come as they were written; so for
    subscribers, of what was written since they listen, and those who live to the end hear of all
    that is left. Nobody takes the news, so none of them ever has to return to its place."""
    faults = []
    news = {entry for entries in left.values() for entry in entries if entry[0] == NEWS}
    since = {entry: act.call for act in history.of("write") for entry in act.entries}
    read: dict[str, list[Entry]] = defaultdict(list)
    for act in history.of("read"):
        if act.session is not None:
            read[act.session] += act.entries
    for (name, life), heard in history.listeners.items():
        stood = history.stood.get((name, life), inf)
        new = [entry for entry in heard if since[entry] > stood]
        who = f"the subscriber at {name} in life {life}"
        read[who] = new
        missed = [entry for entry in news if since[entry] > stood and entry not in heard]
        if missed and any(m.name == name and m.lives == life for m in world.members):
            told = ", ".join(sorted(map(name_of, missed)))
            faults.append(Fault("not told", f"{told} to {who}"))
    for who, entries in read.items():
        for entry, times in Counter(entries).items():
            if times > 1:
                faults.append(Fault("told twice", f"{name_of(entry)} was told to {who}"))
        last: dict[str, int] = {}
        for entry in entries:
            _, source, number = entry
            if number < last.get(source, 0):
                faults.append(Fault("out of order", f"{name_of(entry)} came late to {who}"))
            last[source] = number
    return faults


def judge_remains(world: World) -> list[Fault]:
    """Nothing is left behind of what was under way."""
    faults = []
    for member in world.members:
        core = member.core
        remains: dict[str, object] = dict(core.under_way())
        for hosted in core.spaces.values():
            for what, things in hosted.port.under_way().items():
                if what == "subscriptions" and hosted.name == SPACE:
                    things = things[1:]  # one is the world's own
                remains[f"{what} in {hosted.name}"] = things
        faults += [
            Fault("left behind", f"{what} at {member.name}: {things!r}")
            for what, things in remains.items()
            if things
        ]
    return faults
