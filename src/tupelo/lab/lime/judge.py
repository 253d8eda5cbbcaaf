"""The judge: what must hold of LIME after everyone has met again, whatever has happened to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tupelo.lab.judge import Fault
from tupelo.lab.lime.history import LimeHistory, Tuple, name_of
from tupelo.lab.lime.load import COMMAND, DONE, LATE, MARK, NEWS, PARCEL, LimeWorker
from tupelo.lab.lime.world import (
    MAIN,
    SIDE,
    SPACES,
    LimeWorld,
    SimulatedLimeHost,
    given_to,
    tuples_of,
)
from tupelo.models.lime.locations import home_of
from tupelo.values.entry import Entry


def judge(world: LimeWorld) -> list[Fault]:
    if not world.is_one_group():
        memberships = ", ".join(
            f"{one.name}: {one.server.group.membership}" for one in world.members
        )
        return [Fault("apart", f"not all are in one group, and go on: {memberships}")]
    return [
        *world.history.faults,
        *(fault for claim in world.history.claims if (fault := claim()) is not None),
        *judge_agents(world),
        *judge_tuples(world, world.history),
        *judge_places(world),
        *judge_reactions(world, world.history),
        *judge_system(world),
        *judge_remains(world),
    ]


# Agents


def judge_agents(world: LimeWorld) -> Iterator[Fault]:
    """There is one of each, but for those that have ended or were with a host that crashed."""
    at: dict[str, list[str]] = {agent: [] for agent in world.known}
    for member in world.members:
        for agent in member.server.agents:
            at.setdefault(agent, []).append(member.name)
    for agent, places in at.items():
        if len(places) > 1:
            yield Fault("two of one", f"{agent} is at {', '.join(places)}")
        elif not places and agent not in world.history.gone:
            yield Fault("agent lost", agent)
        elif places and agent in world.known:
            running = world.running.get(agent, ("nowhere",))[0]
            if running != places[0]:
                yield Fault("agent lost", f"{agent} is at {places[0]}, and runs at {running}")
    for member in world.members:
        for life in member.host.lives.values():
            if life.error is not None:
                yield Fault("failed", f"{life.state.id}: {life.error!r}")


# Tuples


def judge_tuples(world: LimeWorld, history: LimeHistory) -> Iterator[Fault]:
    """What was written was taken once, or is there once. A command is there, or done."""
    left = Counter(_as_written(one) for member in world.members for one in tuples_of(member))
    taken = Counter(
        _as_written(one)
        for act in history.acts
        if act.takes and act.how == "done"
        for one in act.tuples
    )
    written = {
        one: act.how == "done" for act in history.acts if act.verb == "out" for one in act.tuples
    }
    for one in sorted({*left, *taken}, key=name_of):
        if one[0] not in (MARK, LATE) and one not in written:
            yield Fault("made up", f"{name_of(one)} was never written")
    excuses = history.excuses()
    sunk = set(map(_as_written, history.sunk))
    unsettled = set(map(_as_written, history.unsettled))
    for one, is_sure in written.items():
        times = left[one] + taken[one]
        if times > 1 and one not in unsettled:
            how = f"taken {taken[one]} times, and there {left[one]} times"
            yield Fault("doubled", f"{name_of(one)} was {how}")
        if times == 0 and is_sure and one not in sunk:
            if not excuses[one[0]]:
                yield Fault("lost", name_of(one))
            excuses[one[0]] -= 1


def _as_written(one: Tuple) -> Tuple:
    return (COMMAND, *one[1:]) if one[0] == DONE else one


# Places


def stores(member: SimulatedLimeHost) -> Iterator[tuple[str, Entry]]:
    """The shared tuples at a host."""
    for space in SPACES:
        if space in member.core.spaces:
            for entry in member.core.spaces[space].port.entries():
                yield space, entry


def sharing(world: LimeWorld) -> dict[tuple[str, str], SimulatedLimeHost]:
    """Where the agents are that share a space."""
    return {
        (agent.id, interface.name): member
        for member in world.members
        for agent in member.server.agents.values()
        for interface in agent.spaces.values()
        if interface.shared
    }


def judge_places(world: LimeWorld) -> Iterator[Fault]:
    """Every tuple is with the agent that it is for, if that shares the space."""
    homes = sharing(world)
    for member in world.members:
        for space, entry in stores(member):
            home = homes.get((home_of(entry), space), member)
            if home is not member:
                text = f"{name_of(entry.fields)} is at {member.name}, and at home at {home.name}"
                yield Fault("misplaced", text)


# Reactions


def judge_reactions(world: LimeWorld, history: LimeHistory) -> Iterator[Fault]:
    """What can be seen has been reacted to. That nothing was twice is said when it happens."""
    homes = sharing(world)
    shared: dict[str, set[Tuple]] = {space: set() for space in SPACES}
    for member in world.members:
        for space, entry in stores(member):
            if entry.fields[0] == NEWS:
                shared[space].add(entry.fields)
            home = homes.get((home_of(entry), space))
            is_obeyed = home is not None and home_of(entry) in world.known
            if entry.fields in history.unsettled:
                continue  # It was there before, and was reacted to then.
            if entry.fields[0] in (COMMAND, PARCEL) and is_obeyed:
                yield Fault("not reacted", f"{name_of(entry.fields)} is with {home_of(entry)}")
    for agent, life in _workers(world):
        if life.main.is_shared:
            missed = shared[MAIN] - set(history.fired[agent, "news"])
            if missed:
                said = ", ".join(sorted(map(name_of, missed)))
                yield Fault("not reacted", f"{agent} has not heard of {said}")
        if life.side.is_shared and shared[SIDE] and not history.fired[agent, "once"]:
            yield Fault("not reacted", f"{agent} has not heard of any news in {SIDE}")
        unknown = {member.name for member in world.members} - history.met[agent]
        if unknown:
            yield Fault("not reacted", f"LimeSystem has not told {agent} of {sorted(unknown)}")


def _workers(world: LimeWorld) -> Iterator[tuple[str, LimeWorker]]:
    for member in world.members:
        for life in member.host.lives.values():
            if isinstance(life.agent, LimeWorker):
                yield life.state.id, life.agent


# LimeSystem


def judge_system(world: LimeWorld) -> Iterator[Fault]:
    """It says everywhere what is so."""
    expected: set[tuple[str, ...]] = set()
    for member in world.members:
        expected.add(("host", member.name, member.name))
        for agent in member.server.agents.values():
            expected.add(("agent", agent.id, member.name, agent.state))
            for interface in agent.spaces.values():
                if interface.shared:
                    expected.add(("space", interface.name, agent.id, member.name))
    for member in world.members:
        said = [entry.fields for entry in member.server.system.tuple_store.entries()]
        known = [fields for fields in said if not fields[0].startswith("departed")]
        if Counter(known) != Counter(expected) or any(
            (fields[0].removeprefix("departed "), fields[1]) in {one[:2] for one in expected}
            for fields in set(said) - set(known)
        ):
            text = f"at {member.name}: {sorted(set(known) ^ expected)} should be otherwise"
            yield Fault("LimeSystem", text)


# What is left


def judge_remains(world: LimeWorld) -> Iterator[Fault]:
    """Nothing is left behind of what was under way."""
    for member in world.members:
        for what, things in remains(member).items():
            if things:
                yield Fault("left behind", f"{what} at {member.name}: {things!r}")


def remains(member: SimulatedLimeHost) -> dict[str, Any]:
    group, migrations = member.server.group, member.host.migrations
    found: dict[str, Any] = {
        **group.under_way(),
        "questions": member.server.broker.under_way(),
        "parked agents": list(migrations.parked),
        "words about agents": list(migrations.decisions),
        "tuples in doubt": [
            one for other in member.world.members for one in given_to(member, other.name)
        ],
    }
    for agent in member.server.agents.values():
        found[f"waits of {agent.id}"] = [
            op for interface in agent.spaces.values() for op in interface.waiting
        ]
    for name, hosted in member.core.spaces.items():
        under_way = hosted.port.under_way()
        for what in ("transactions", "deliveries", "waiters"):
            found[f"{what} in {name}"] = under_way[what]
    return found
