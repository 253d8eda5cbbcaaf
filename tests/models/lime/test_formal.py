"""The formal semantics themselves: the example of figure 3, table I, and each clause once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.models.lime.formal import (
    ONCE,
    ONCEPERTUPLE,
    Agent,
    Firing,
    NotAllowed,
    On,
    Reaction,
    System,
    Tuple,
)

JOBS = "jobs"


def system(hosts: str, *links: str) -> System:
    """Hosts by their letters; "xy" is a link from x to y."""
    made = System(hosts)
    made.relink(links)
    return made


def agent(of: System, id: str, host: str, *, shared: bool = True) -> Agent:
    made = of.add_agent(id, host)
    of.make_space(made, JOBS)
    if shared:
        of.set_shared(made, [JOBS], True)
    return made


def seen(of: System, a: Agent, x: Any = None, y: Any = None) -> list[str]:
    return sorted(theta.data[0] for theta in of.rdg(a, JOBS, (str,), x, y))


def record(
    of: System, a: Agent, mode: str, *, is_weak: bool, x: Any = None, y: Any = None
) -> tuple[Reaction, list[str]]:
    """A reaction to every tuple that writes down which it was."""
    said: list[str] = []
    rho = of.add_reaction(
        f"ρ{len(of.reactions)}",
        lambda theta: said.append(theta.data[0]),
        a,
        JOBS,
        (str,),
        mode,
        x,
        y,
        is_weak=is_weak,
    )
    return rho, said


def run_events(of: System, rho: Reaction) -> None:
    while rho.events:
        of.deliver(rho, rho.events[0])


# Figure 3


@pytest.mark.parametrize("seed", range(20))
def test_producer_and_consumers_of_figure_3(seed):
    """A producer and two consumers on hosts that come and go. Every job is done once, also those
    for the first consumer that it carries away, and a priority job as soon as it can be seen."""
    rng = Random(seed)
    world = System("abc", choose=lambda what, allowed: rng.choice(allowed))
    producer = agent(world, "producer 0", "a")
    consumers = [agent(world, "consumer 1", "b"), agent(world, "consumer 2", "c")]
    done: list[str] = []

    def do_priority_job(a: Agent) -> Any:
        def statement(theta: Tuple) -> None:
            if world.match_exists(a, JOBS, theta.data):
                world.inp(a, JOBS, theta.data)
                done.append(theta.data[0])

        return statement

    reactions = [
        world.add_reaction(
            f"pri {a.id}",
            do_priority_job(a),
            a,
            JOBS,
            (str, "PRIORITY"),
            ONCEPERTUPLE,
            is_weak=True,
        )
        for a in consumers
    ]
    written = []
    for step in range(60):
        match rng.choice(("job", "directed", "priority", "take", "events", "links")):
            case "links":
                for rho in reactions:  # Who hears of a job while it is away cannot do it.
                    run_events(world, rho)
                world.relink(link for link in ("ab", "bc", "ac") if rng.random() < 0.5)
            case "take":
                a = rng.choice(consumers)
                job = world.in_(a, JOBS, (str, rng.choice("AB")))
                if job is not None:
                    done.append(job.data[0])
            case "events":
                for rho in reactions:
                    run_events(world, rho)
            case kind:
                written.append(f"job {step}")
                name = "PRIORITY" if kind == "priority" else rng.choice("AB")
                d = "consumer 1" if kind == "directed" else None
                world.out(producer, JOBS, (f"job {step}", name), d)
    world.relink(["ab", "bc"])
    for rho in reactions:
        run_events(world, rho)
    left = world.ing(producer, JOBS, (str, str))
    assert sorted(done + [theta.data[0] for theta in left]) == sorted(written)
    assert not any(theta.data[1] == "PRIORITY" for theta in left)


def test_a_directed_job_goes_with_its_consumer():
    world = system("ab", "ab")
    producer, consumer = agent(world, "p", "a"), agent(world, "c", "b")
    world.out(producer, JOBS, ("now",), "c")
    world.relink([])
    world.out(producer, JOBS, ("later",), "c")
    assert seen(world, consumer) == ["now"]
    assert seen(world, producer) == ["later"]
    world.relink(["ab"])
    assert seen(world, producer, x="c") == ["later", "now"]
    assert seen(world, producer, x="p") == []


# Transient sharing


def test_connectivity_is_transitive():
    world = system("abcd", "ab", "bc")
    assert world.group("a") == {"a", "b", "c"}
    assert world.group("d") == {"d"}
    world.disengage("b")
    assert world.group("a") == {"a"}
    world.engage("b")
    assert world.group("c") == {"a", "b", "c"}


def test_the_union_on_engagement_and_its_parts_on_disengagement():
    world = system("abc", "ab")
    one, two, three = agent(world, "1", "a"), agent(world, "2", "b"), agent(world, "3", "c")
    for a in (one, two, three):
        world.out(a, JOBS, (a.id,))
    assert seen(world, one) == seen(world, two) == ["1", "2"]
    world.relink(["ab", "bc"])
    assert seen(world, one) == seen(world, three) == ["1", "2", "3"]
    world.relink(["bc"])
    assert seen(world, one) == ["1"]
    assert seen(world, two) == seen(world, three) == ["2", "3"]


def test_what_is_private_is_seen_by_its_agent_only():
    world = system("a")
    one, two = agent(world, "1", "a"), agent(world, "2", "a", shared=False)
    world.out(one, JOBS, ("x",))
    world.out(two, JOBS, ("y",))
    assert seen(world, one) == ["x"]
    assert seen(world, two) == ["y"]
    world.set_shared(two, [JOBS], True)
    assert seen(world, one) == seen(world, two) == ["x", "y"]
    world.set_shared(one, [JOBS], False)
    assert seen(world, one) == ["x"]
    assert seen(world, two) == ["y"]


def test_a_misplaced_tuple_waits_until_its_space_is_shared():
    world = system("a")
    one, two = agent(world, "1", "a"), agent(world, "2", "a", shared=False)
    world.out(one, JOBS, ("x",), "2")
    assert seen(world, one, x="1", y="2") == ["x"]
    world.set_shared(two, [JOBS], True)
    assert seen(world, one, x="2", y="2") == ["x"]


def test_an_agent_moves_with_its_tuples():
    world = system("ab")
    one, two, three = agent(world, "1", "a"), agent(world, "2", "a"), agent(world, "3", "b")
    world.out(one, JOBS, ("x",))
    world.out(two, JOBS, ("for 3",), "3")
    world.migrate(two, "b")
    assert seen(world, one) == ["x"]
    assert seen(world, three, x="3") == ["for 3"]
    world.migrate(one, "b")
    assert seen(world, three, x=On("b")) == ["for 3", "x"]


def test_who_crashes_is_gone_with_its_tuples():
    world = system("ab", "ab")
    one, two = agent(world, "1", "a"), agent(world, "2", "b")
    world.out(one, JOBS, ("x",))
    world.out(two, JOBS, ("y",), "1")
    world.crash("a")
    assert seen(world, two) == []
    assert "1" not in world.agents


# Table I


def test_projections_of_table_1():
    world = system("ab", "ab")
    one, two, three = agent(world, "1", "a"), agent(world, "2", "a"), agent(world, "3", "b")
    for a in (one, two, three):
        world.out(a, JOBS, (f"of {a.id}",))
        world.out(a, JOBS, (f"from {a.id} for 9",), "9")
    at_a = ["from 1 for 9", "from 2 for 9", "of 1", "of 2"]
    assert seen(world, three) == sorted([*at_a, "from 3 for 9", "of 3"])
    assert seen(world, three, None, "9") == ["from 1 for 9", "from 2 for 9", "from 3 for 9"]
    assert seen(world, three, "1") == ["from 1 for 9", "of 1"]
    assert seen(world, three, On("a")) == at_a
    assert seen(world, three, "1", "9") == ["from 1 for 9"]
    assert seen(world, three, On("a"), "9") == ["from 1 for 9", "from 2 for 9"]


def test_probes_answer_what_is_chosen_of_what_is_there():
    world = system("a")
    one = agent(world, "1", "a")
    assert world.inp(one, JOBS, (str,)) is world.rdp(one, JOBS, (str,)) is None
    world.out(one, JOBS, ("x",))
    y = world.out(one, JOBS, ("y",))
    world.choose = lambda what, allowed: y
    assert world.rdp(one, JOBS, (str,)) == world.inp(one, JOBS, (str,)) == y
    with pytest.raises(NotAllowed):
        world.rdp(one, JOBS, (str,))
    assert seen(world, one) == ["x"]


# Reactions


@pytest.mark.parametrize("is_weak", [False, True])
def test_once_per_tuple_also_after_parting(is_weak):
    world = system("ab", "ab")
    one, two = agent(world, "1", "a"), agent(world, "2", "b" if is_weak else "a")
    world.out(one, JOBS, ("x",))
    rho, said = record(world, two, ONCEPERTUPLE, is_weak=is_weak)
    world.out(one, JOBS, ("y",))
    run_events(world, rho)
    world.migrate(one, "b")
    world.relink([])
    world.migrate(one, "a")
    world.relink(["ab"])
    run_events(world, rho)
    assert said == ["x", "y"]


@pytest.mark.parametrize("is_weak", [False, True])
def test_once_is_once_until_it_is_enabled_again(is_weak):
    world = system("a")
    one = agent(world, "1", "a")
    rho, said = record(world, one, ONCE, is_weak=is_weak)
    world.out(one, JOBS, ("x",))
    world.out(one, JOBS, ("y",))
    run_events(world, rho)
    assert said == ["x"]
    world.enable(rho)  # It is: nothing is forgotten.
    run_events(world, rho)
    assert said == ["x"]
    world.disable(rho)
    world.enable(rho)
    run_events(world, rho)
    assert said == ["x", "x"]


def test_enabling_again_forgets():
    world = system("a")
    one = agent(world, "1", "a")
    world.out(one, JOBS, ("x",))
    rho, said = record(world, one, ONCEPERTUPLE, is_weak=False)
    world.disable(rho)
    world.out(one, JOBS, ("y",))
    assert said == ["x"]
    world.enable(rho)
    assert said == ["x", "x", "y"]


def test_a_strong_reaction_waits_for_its_agent_to_be_there():
    world = system("ab", "ab")
    one, two = agent(world, "1", "a"), agent(world, "2", "b")
    world.out(one, JOBS, ("x",))
    _, said = record(world, two, ONCEPERTUPLE, is_weak=False, x=On("a"))
    assert said == []
    world.migrate(two, "a")
    assert said == ["x"]
    world.migrate(two, "b")
    world.migrate(two, "a")
    assert said == ["x"]


def test_what_reactions_do_is_part_of_the_step():
    world = system("a")
    one = agent(world, "1", "a")

    def answer(theta: Tuple) -> None:
        world.inp(one, JOBS, theta.data)
        world.out(one, JOBS, (f"{theta.data[0]}!",))

    world.add_reaction("ρ", answer, one, JOBS, ("x",), ONCEPERTUPLE, is_weak=False)
    world.out(one, JOBS, ("x",))
    assert seen(world, one) == ["x!"]


def test_the_reactive_program_must_end():
    world = system("a")
    one = agent(world, "1", "a")

    def repeat(theta: Tuple) -> None:
        world.out(one, JOBS, theta.data)

    world.add_reaction(
        "ρ",
        repeat,
        one,
        JOBS,
        ("x",),
        ONCEPERTUPLE,
        is_weak=False,
    )
    with pytest.raises(NotAllowed, match="fixed point"):
        world.out(one, JOBS, ("x",))


@pytest.mark.parametrize("is_reaction_first", [False, True])
def test_order_of_migration_and_reaction_is_free(is_reaction_first):
    """A strong reaction at the writer may be faster than the way home, or slower."""

    def choose(what: str, allowed: list[Any]) -> Any:
        return max(allowed, key=lambda one: isinstance(one, Firing) is is_reaction_first)

    world = system("ab", "ab")
    world.choose = choose
    one, _ = agent(world, "1", "a"), agent(world, "2", "b")
    _, said = record(world, one, ONCEPERTUPLE, is_weak=False)
    world.out(one, JOBS, ("x",), "2")
    assert said == (["x"] if is_reaction_first else [])
    assert seen(world, one, x="2") == ["x"]


# LimeSystem


def test_lime_system_is_what_the_group_knows():
    world = system("abc", "ab")
    agent(world, "1", "a")
    agent(world, "2", "b", shared=False)
    agent(world, "3", "c")
    assert world.lime_system("a") == {
        ("host", "a"),
        ("host", "b"),
        ("agent", "1", "a"),
        ("agent", "2", "b"),
        ("space", JOBS, "1", "a"),
    }
    assert world.lime_system("a") == world.lime_system("b")
    assert ("space", JOBS, "3", "c") in world.lime_system("c")
