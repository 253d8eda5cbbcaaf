"""One text, many spaces: each law runs on every kind of space in `tests.kinds`, at both doors."""

from pathlib import Path
from typing import Any

import pytest

from tests.exceptions import skip_exception
from tests.kinds import KINDS, ONCE, PLACES, SpaceMaker, take_turns

IN_TURN = {
    ("async", "full"),
    ("async", "memory spanning"),
    ("blocking", "postgres"),
    ("async", "postgres"),
}
"""Where another place is tried with all parameters: below the doors the code is the same."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """On a kind that is tried at one door, and where a door adds nothing, a law runs with one of
    its parameters, in turn."""

    def is_full(law: str, place: tuple[str, str]) -> bool:
        return place[1] not in ONCE and place not in IN_TURN

    take_turns(config, items, Path(__file__).parent, is_full)


@pytest.fixture(params=PLACES, ids="-".join)
def place(request):
    """A door and a kind of space."""
    return request.param


@pytest.fixture
def make_space(place, loop_thread, host_thread, clock, folder):
    """`make_space(**options)`: a new space of this kind at this door."""
    maker = SpaceMaker(place, clock, folder, loop_thread, host_thread)
    yield maker
    maker.close()


@pytest.fixture
def space(make_space):
    return make_space()


@pytest.fixture
def has_log(place):
    return KINDS[place[1]].has_log


@pytest.fixture(autouse=True)
def _exempt(request):
    """Skip what docs/SPACES.md says that this kind of space does not do."""
    skip_exception(request)
