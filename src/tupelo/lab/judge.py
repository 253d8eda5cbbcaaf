"""The judge: what must hold of a world after everyone is back, whatever has happened to it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from tupelo.lab.history import Act, Entry, History, name_of
from tupelo.lab.world import SPACE, World


@dataclass(frozen=True)
class Fault:
    """Something that must not be: which invariant is broken, and how."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


def judge_entries(world: World, history: History, left: dict[str, list[Entry]]) -> list[Fault]:
    """Every entry that was written is taken once or still there; `left` is what is, by host."""
    faults = []
    written = {entry: act for act in history.of("write") for entry in act.entries}
    takes: dict[Entry, list[Act]] = defaultdict(list)
    for act in history.of("take"):
        for entry in act.entries:
            takes[entry].append(act)
    still = Counter(entry for entries in left.values() for entry in entries)
    for entry in [*takes, *still]:
        if entry not in written:
            faults.append(Fault("made up", f"{name_of(entry)} was never written"))
    lost: list[Entry] = []
    for entry, act in written.items():
        times = len(takes[entry]) + still[entry]
        if times > 1:
            who = ", ".join(take.agent for take in takes[entry])
            at = ", ".join(name for name, entries in left.items() if entry in entries)
            faults.append(
                Fault(
                    "taken twice",
                    f"{name_of(entry)} was taken by {who or '-'}; left at {at or '-'}",
                )
            )
        if times == 0 and act.how == "done":
            lost.append(entry)
    return faults + _judge_losses(history, written, lost)


def _judge_losses(history: History, written: dict[Entry, Act], lost: list[Entry]) -> list[Fault]:
    """A loss is excused if a memory went that may have held it: that of the host where it was
    written, or of a taker who was killed, or who gave up and whose host went later. Each taker
    excuses no more than it could have had."""
    budget: Counter[str] = Counter()
    for act in history.of("take"):
        if act.how == "killed" or (
            act.how != "done" and not act.member.durable and _went_after(act, act.call)
        ):
            assert act.key is not None
            budget[act.key] += 1_000 if act.many else 1
    faults = []
    for entry in lost:
        act = written[entry]
        if not act.member.durable and _went_after(act, act.call):
            continue
        if budget[entry[0]]:
            budget[entry[0]] -= 1
            continue
        faults.append(Fault("lost", f"{name_of(entry)}, written at {act.member.name}"))
    return faults


def _went_after(act: Act, tick: int) -> bool:
    return any(end > tick for end in act.member.ends)


def judge_remains(world: World) -> list[Fault]:
    """Nothing is left behind of what was under way."""
    faults = []
    for member in world.members:
        core = member.core
        remains: dict[str, object] = {
            "searches": list(core.federation.searches),
            "unsettled hand-overs": list(core.federation._unsettled),
            "holders in doubt": core.doubts.holders(),
            "reservations": [call for peer in core.peers.values() for call in peer._held],
            "watches": [number for peer in core.peers.values() for number in peer._watches],
            "hints": [number for peer in core.peers.values() for number in peer.hints],
            "peers' tasks": [task for peer in core.peers.values() for task in peer._tasks],
            "subscriptions": list(core.federation.subscriptions),
            "moves under way": list(core.mover._under_way),
        }
        for hosted in core.spaces.values():
            space = hosted.operations.core
            remains[f"transactions in {hosted.name}"] = [txn.id for txn in space.transactions]
            remains[f"hand-overs in {hosted.name}"] = list(hosted.operations.handings._open)
            watched = len(list(space.subscriptions.watchers)) - (hosted.name == SPACE)
            remains[f"subscriptions of {hosted.name}"] = watched  # one is the world's own
            remains[f"waiters in {hosted.name}"] = list(space.waiting)
        faults += [
            Fault("left behind", f"{what} at {member.name}: {things!r}")
            for what, things in remains.items()
            if things
        ]
    return faults
