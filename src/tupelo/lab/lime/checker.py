"""The checker of LIME: the invariants that hold when all hosts have met again, whatever faults
there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tupelo.lab.lime.workload import (
    COMMAND,
    DONE,
    LATE,
    MAIN,
    MARK,
    NEWS,
    PARCEL,
    SIDE,
    SPACES,
    LimeHistory,
    LimeHost,
    LimeSimulation,
    LimeWorker,
    Tuple,
)
from tupelo.lab.simulation import Fault, left_behind, name_of, space_remains
from tupelo.models.lime.locations import home_of
from tupelo.values.entry import Entry


def check(world: LimeSimulation) -> list[Fault]:
    if not world.is_connected():
        memberships = ", ".join(
            f"{one.name}: {one.server.group.membership}" for one in world.members
        )
        return [Fault("apart", f"not all hosts are in one group that goes on: {memberships}")]
    return [
        *world.history.faults,
        *(fault for claim in world.history.claims if (fault := claim()) is not None),
        *check_agents(world),
        *check_tuples(world, world.history),
        *check_places(world),
        *check_reactions(world, world.history),
        *check_system(world),
        *left_behind({host: remains(host) for host in world.members}),
    ]


# Agents


def check_agents(world: LimeSimulation) -> Iterator[Fault]:
    """Every agent is at one host, unless it has ended or was at a host that crashed."""
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
        for life in member.host.runtimes.values():
            if life.error is not None:
                yield Fault("failed", f"{life.state.id}: {life.error!r}")


# Tuples


def check_tuples(world: LimeSimulation, history: LimeHistory) -> Iterator[Fault]:
    """Every tuple was taken once, or is there once. A command is there, or was replaced by
    "done"."""
    left = Counter(_as_written(one) for member in world.members for one in member.tuples())
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


def stores(member: LimeHost) -> Iterator[tuple[str, Entry]]:
    """The shared tuples at a host, with the names of their spaces."""
    for space in SPACES:
        if space in member.core.spaces:
            for entry in member.core.spaces[space].port.entries():
                yield space, entry


def sharing(world: LimeSimulation) -> dict[tuple[str, str], LimeHost]:
    """The hosts of the agents that share a space, by agent and space."""
    return {
        (agent.id, interface.name): member
        for member in world.members
        for agent in member.server.agents.values()
        for interface in agent.spaces.values()
        if interface.shared
    }


def check_places(world: LimeSimulation) -> Iterator[Fault]:
    """Every tuple is at the host of the agent to which it is addressed, if this agent shares the
    space."""
    homes = sharing(world)
    for member in world.members:
        for space, entry in stores(member):
            home = homes.get((home_of(entry), space), member)
            if home is not member:
                text = f"{name_of(entry.fields)} is at {member.name}, and at home at {home.name}"
                yield Fault("misplaced", text)


# Reactions


def check_reactions(world: LimeSimulation, history: LimeHistory) -> Iterator[Fault]:
    """Reactions have fired for every tuple that they see. That none fired twice is checked when it
    happens."""
    homes = sharing(world)
    shared: dict[str, set[Tuple]] = {space: set() for space in SPACES}
    for member in world.members:
        for space, entry in stores(member):
            if entry.fields[0] == NEWS:
                shared[space].add(entry.fields)
            home = homes.get((home_of(entry), space))
            is_obeyed = home is not None and home_of(entry) in world.known
            if entry.fields in history.unsettled:
                continue  # It was there before, and the reaction has fired then.
            if entry.fields[0] in (COMMAND, PARCEL) and is_obeyed:
                yield Fault("not reacted", f"{name_of(entry.fields)} is with {home_of(entry)}")
    for agent, life in _workers(world):
        if life.main.is_shared:
            missed = shared[MAIN] - set(history.fired[agent, "news"])
            if missed:
                names = ", ".join(sorted(map(name_of, missed)))
                yield Fault("not reacted", f"{agent} has not heard of {names}")
        if life.side.is_shared and shared[SIDE] and not history.fired[agent, "once"]:
            yield Fault("not reacted", f"{agent} has not heard of any news in {SIDE}")
        unknown = {member.name for member in world.members} - history.met[agent]
        if unknown:
            yield Fault("not reacted", f"LimeSystem has not told {agent} of {sorted(unknown)}")


def _workers(world: LimeSimulation) -> Iterator[tuple[str, LimeWorker]]:
    for member in world.members:
        for life in member.host.runtimes.values():
            if isinstance(life.agent, LimeWorker):
                yield life.state.id, life.agent


# LimeSystem


def check_system(world: LimeSimulation) -> Iterator[Fault]:
    """LimeSystem lists the hosts, agents and shared spaces, at every host."""
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
            text = f"at {member.name}: {sorted(set(known) ^ expected)} is missing, or too much"
            yield Fault("LimeSystem", text)


# Pending work


def remains(host: LimeHost) -> dict[str, Any]:
    """The operations that are still pending at a host."""
    found: dict[str, Any] = {
        **host.server.group.under_way(),
        "questions": host.server.broker.under_way(),
        "parked agents": list(host.host.migrations.parked),
        "decisions about agents": list(host.host.migrations.decisions),
        "tuples in doubt": [
            one for other in host.world.members for one in host.given_to(other.name)
        ],
    }
    for agent in host.server.agents.values():
        found[f"waits of {agent.id}"] = [op for its in agent.spaces.values() for op in its.waiting]
    return found | space_remains(host)
