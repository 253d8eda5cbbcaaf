"""Two-phase commit over spaces and others that fail, refuse, stall and crash at every step: all
or nothing, always, and the client is told which.

`TUPELO_EXAMPLES=2000` runs that many random programs instead of the few fixed ones of the suite,
and `TUPELO_KILLS=2000` kills that often, from a new seed.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import tupelo
from tests.simulation import test_kill
from tests.simulation.two_phase_child import TOKENS
from tests.simulation.two_phase_world import MEMORY_DISK, Fault, Round, Work, World

EXAMPLES = int(os.environ.get("TUPELO_EXAMPLES", "0"))
KILLS = int(os.environ.get("TUPELO_KILLS", "0"))
SEED = random.randrange(10**9) if KILLS else 3
PATIENCE_SECONDS = 30.0

if EXAMPLES or KILLS:
    pytestmark = pytest.mark.timeout(0)

kinds = st.sampled_from(["memory", "durable", "durable", "async", "async durable", "foreign"])
failures = ["raise", "do, then raise", "stall, then do", "do, then stall", "stall, then raise"]
deeds = st.sampled_from(["do", *failures])
votes = st.sampled_from(["do", *failures, "refuse", "mumble"])


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
    max_examples=EXAMPLES or 100,
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
def test_all_or_nothing_always(members: list[str], async_manager: bool, plan: list[Any]) -> None:
    world = World(members, async_manager)
    try:
        for one in plan:
            world.play(one)
    except BaseException:
        note("\n".join(world.trace))
        raise
    finally:
        world.close()


class Nursery(test_kill.Nursery):
    """The process that makes the children of `two_phase_child`."""

    module = "tests.simulation.two_phase_child"


class Ledger:
    """How often each token has moved for sure, and which moves were under way at the death."""

    def __init__(self) -> None:
        self.hops = dict.fromkeys(range(TOKENS), 0)
        self.under_way: dict[int, list[Any]] = {}
        self.commits = 0
        self.found_done = 0

    def hear(self, said: Any) -> None:
        match said:
            case ["begin", worker, moves]:
                self.under_way[worker] = moves
            case ["done", worker, moves]:
                assert self.under_way.pop(worker) == moves
                self.hops.update(dict(moves))
                self.commits += 1
            case ["seen", left, right, in_doubt, log]:
                self.settle(left, right)
                assert not in_doubt
                assert [entry[0] for entry in log] == ["manager"]
            case ["failed", error]:
                pytest.fail(error)
            case _:
                raise AssertionError(said)

    def settle(self, left: list[Any], right: list[Any]) -> None:
        """This is what is left. Every token is somewhere, once, and moves were made together."""
        seen = {token: hop for _, token, hop in left + right}
        assert len(seen) == len(left) + len(right) == TOKENS, ("lost or doubled", left, right)
        assert all(hop % 2 == 0 for _, _, hop in left) and all(hop % 2 for _, _, hop in right)
        for moves in self.under_way.values():
            signs = {seen[token] == hop for token, hop in moves}
            assert len(signs) == 1, ("half done", moves, seen)
            if signs.pop():
                self.hops.update(dict(moves))
                self.found_done += 1
        self.under_way.clear()
        assert seen == self.hops


@pytest.fixture
def folder() -> Iterator[Path]:
    """A killed process leaves its writes to the system, so no real disk is needed."""
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as name:
        yield Path(name)


def test_no_token_is_lost_or_doubled_by_kills_between_the_phases(folder: Path) -> None:
    chance = random.Random(SEED)
    ledger = Ledger()
    with tupelo.Space("left", path=folder / "left") as space:
        space.write_all([("token", number, 0) for number in range(TOKENS)])
    nursery = Nursery()
    try:
        for generation in range(KILLS or 60):
            by_hand = chance.random() < 0.25
            pid = nursery.order(
                folder=str(folder),
                seed=f"{SEED} {generation}",
                tick=None if by_hand else chance.randrange(chance.choice([12, 60, 300])),
            )
            live_and_die(nursery, ledger, pid, chance.uniform(0, 0.05) if by_hand else None)
    finally:
        nursery.close()
    assert ledger.commits and ledger.found_done
    print(f"{ledger.commits} commits, {ledger.found_done} more when they were killed; seed {SEED}")


def live_and_die(nursery: Nursery, ledger: Ledger, pid: int, seconds: float | None) -> None:
    """Hear the child until it is dead; kill it after so many seconds, if it does not itself."""
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        left = PATIENCE_SECONDS if until is None else max(0.0, until - time.monotonic())
        said = nursery.hear(left)
        if said is None:
            assert until is not None, "the child hangs"
            os.kill(pid, signal.SIGKILL)
            until = None
        elif said[0] == "dead":
            assert os.WIFSIGNALED(said[2]) and os.WTERMSIG(said[2]) == signal.SIGKILL, said
            return
        else:
            ledger.hear(said)
