"""Is the history of a world linearizable, class by class?

What is claimed: every entry that is read or taken was there at some moment between the call and the
return. And a read or take that was answered by every host of the world, and found nothing, had a
moment at which no host had a match. So much for one entry at a time: `read_all` and `count` look at
one host after the other, and only what they find is judged.

A host that is away takes its entries with it, so who could not reach every host is not judged for
what it did not find. While an entry is on its way to a taker nobody else sees it; if that comes to
nothing it returns, and that is in the history as a take and a write that nobody has asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from tupelo.lab.history import Act, Deal, Entry, History
from tupelo.lab.linearize import Kind, LinearizeVerdict, TimedOperation, check
from tupelo.lab.load import KEYS
from tupelo.lab.world import World

BUDGET = 20_000
MANY = 20
"""So many entries may have gone with a taker who asked for many and was killed."""


def check_order(world: World, history: History, lost: list[Entry]) -> LinearizeVerdict:
    """`lost` is what nobody has, for a good reason."""
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
    return check(operations, BUDGET)


def _of_act(act: Act, everyone: frozenset[str]) -> Iterator[TimedOperation]:
    key, who = act.key, act.agent
    if act.kind == "write":
        ret = act.ret if act.how == "done" else inf
        yield TimedOperation(act.call, ret, "write", key, act.entries[0], who)
    elif act.kind == "take" and (act.how == "killed" or act.host_went):
        for _ in range(MANY if act.many else 1):
            yield TimedOperation(act.call, inf, "take", key, None, who)
    if act.kind in ("read", "take") and act.how == "done":
        kind: Kind = "read" if act.kind == "read" else "take"
        for entry in act.entries:
            yield TimedOperation(act.call, act.ret, kind, key, entry, who)
        if not act.entries and not act.many and act.covered == everyone:
            yield TimedOperation(act.call, act.ret, kind, key, None, who)


def _of_deal(deal: Deal) -> Iterator[TimedOperation]:
    if deal.how == "aborted":
        return
    ret = deal.ret if deal.how == "committed" else inf
    for entry in deal.taken:
        found = entry if deal.how == "committed" else None
        yield TimedOperation(deal.call, ret, "take", entry[0], found, deal.agent)
    for entry in deal.written:
        yield TimedOperation(deal.call, ret, "write", entry[0], entry, deal.agent)
