"""Programs are killed at random moments while they use a durable JavaSpace over a real socket: the
clients that write, take and move entries in transactions, and the host that has the space.

Nothing that was acknowledged is lost, and nothing is taken twice. `TUPELO_JAVASPACES_KILLS=100`
kills so often, from a new seed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.models.javaspaces.kill_child import SPACE, Done, Job
from tests.models.xvsm.test_kill import PATIENCE_SECONDS, World

KILLS = int(os.environ.get("TUPELO_JAVASPACES_KILLS", "0"))
SEED = random.randrange(10**9) if KILLS else 7

if KILLS:
    pytestmark = pytest.mark.timeout(0)


@pytest.mark.timeout(180)
def test_nothing_is_lost_or_taken_twice_when_programs_are_killed(tmp_path):
    program = Path(__file__).with_name("kill_child.py")
    world = World(tmp_path / "host", random.Random(SEED), program)
    try:
        world.start_site()
        for role in ("writer", "writer", "taker", "taker", "mover"):
            world.start_client(role)
        killed: Counter[str] = Counter()
        for _ in range(KILLS or 20):
            world.go_on()
            time.sleep(world.chance.uniform(0, 0.1))  # The kill comes at any moment.
            killed[world.kill()] += 1
        world.go_on()
        world.stop()
    finally:
        world.close()
    # What those who were killed had not confirmed comes back when they are given up.
    doubt = tupelo.Doubt(0.1)
    with tupelo.Host("site", path=tmp_path / "host", doubt=doubt) as host:
        space = host.space(SPACE)
        end = time.monotonic() + PATIENCE_SECONDS
        while host.core.doubts.owners() or space.in_doubt():
            assert time.monotonic() < end, "something is in doubt for ever"
            time.sleep(0.01)
        left: dict[str, list[Any]] = {
            "plain": [job.number for job in space.read_all(Job())],
            "moved": [done.number for done in space.read_all(Done())],
            "audited": [],
            "log": [],
        }
        lost = world.ledger.check(left)
    ledger = world.ledger
    assert ledger.taken and ledger.moved, "nothing has happened"
    print(
        f"{sum(killed.values())} kills {dict(killed)}: {len(ledger.written)} written, "
        f"{len(ledger.doubtful)} in doubt, {len(ledger.taken)} taken, {ledger.moved} moved; "
        f"{lost} were with takers that were killed; seed {SEED}"
    )
