"""Two-phase commit over spaces and others that fail, refuse, stall and crash at every step: all
or nothing, always, and the client is told which.

`TUPELO_EXAMPLES=2000` runs that many random programs instead of the few fixed ones of the suite.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.simulation.two_phase_world import Fault, Round, Work, World

EXAMPLES = int(os.environ.get("TUPELO_EXAMPLES", "0"))

if EXAMPLES:
    pytestmark = pytest.mark.timeout(0)

kinds = st.sampled_from(["memory", "durable", "durable", "async", "async durable", "foreign"])
votes = st.sampled_from(
    ["do", "do, then raise", "raise", "refuse", "mumble"]
    + ["stall, then do", "do, then stall", "stall, then raise"]
)
deeds = st.sampled_from(
    ["do", "do, then raise", "raise", "stall, then do", "do, then stall", "stall, then raise"]
)


@st.composite
def scripts(draw: st.DrawFn) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """How a foreign participant takes the calls that come; most of the time it is well."""
    script = []
    for step, behaviours in (
        ("prepare", votes),
        ("prepare_and_commit", votes),
        ("commit", deeds),
        ("abort", deeds),
    ):
        if draw(st.integers(0, 3)) == 0:
            script.append((step, tuple(draw(st.lists(behaviours, min_size=1, max_size=2)))))
    return tuple(script)


works = st.builds(
    Work,
    takes=st.sampled_from([0, 0, 1, 2]),
    writes=st.sampled_from([0, 1, 1, 2]),
    reads=st.sampled_from([0, 0, 1]),
    poison=st.sampled_from([False] * 9 + [True]),
    nested=st.sampled_from(["no", "no", "no", "commit", "abort"]),
    script=scripts(),
)
faults = st.builds(
    Fault,
    tick=st.integers(0, 30),
    what=st.sampled_from(["crash", "crash", "space dies", "interrupt"]),
    which=st.integers(0, 3),
)
rounds = st.builds(
    Round,
    works=st.lists(st.tuples(st.integers(0, 3), works), max_size=5).map(tuple),
    end=st.sampled_from(["commit"] * 7 + ["abort", "expire", "leave"]),
    faults=st.lists(faults, max_size=3).map(tuple),
)


@settings(
    max_examples=EXAMPLES or 250,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    members=st.lists(kinds, max_size=4),
    async_manager=st.booleans(),
    plan=st.lists(rounds, min_size=1, max_size=2),
)
def test_all_or_nothing_always(
    members: list[str], async_manager: bool, plan: list[Any]
) -> None:
    world = World(members, async_manager)
    try:
        for one in plan:
            world.play(one)
    except BaseException:
        note("\n".join(world.trace))
        raise
    finally:
        world.close()
