"""The host of an addressee is killed while its program takes: what it took is with the program, or
there again in the next life.

`TUPELO_HOST_KILLS=100` kills that often.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import tupelo
from tests.conftest import Program
from tupelo.models.melon import Melon

KILLS = int(os.environ.get("TUPELO_HOST_KILLS", "4"))
COUNT = 30 * KILLS
TAKERS = 4
CHILD = Path(__file__).with_name("directed_child.py")


def test_no_directed_message_is_lost_with_a_program_that_is_killed(tmp_path: Path) -> None:
    rng = random.Random(5)
    folder = tmp_path / "ben"
    folder.mkdir(mode=0o700)
    ada, ben = tupelo.Identity.new(), tupelo.Identity.at(folder / "identity")
    trust = tupelo.Trust.known([ada.key, ben.key])
    got: list[int] = []
    with (
        tupelo.Host("ada", listen=0, identity=ada, trust=trust) as host,
        Melon(host) as melon,
    ):

        def live(takers: int, until: Callable[[], bool]) -> None:
            options = [str(takers), str(folder), host.address, ada.key, ben.key]
            with Program([str(CHILD)], *options) as child:
                while not until():
                    got.append(int(child.line()))
                child.kill()
                got.extend(map(int, child.rest()))

        for number in range(COUNT):
            melon.store(("n", number), to=ben.key)
        for _ in range(KILLS):
            most = len(got) + rng.randrange(5, 20)
            live(TAKERS, lambda most=most: len(got) >= most)  # type: ignore[misc]
        melon.store(("n", COUNT), to=ben.key)
        live(1, lambda: COUNT in got)
    assert sorted(set(got)) == list(range(COUNT + 1))
    assert len(got) - len(set(got)) <= KILLS * TAKERS  # the last of each, that was not noted yet
