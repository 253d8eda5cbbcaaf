"""Values whose keys need care match as in memory."""

from datetime import datetime, timedelta, timezone
from uuid import uuid4

import pytest

import tupelo
from tests.kinds import space_url
from tupelo.errors import BadArgument


@pytest.fixture
def space():
    with tupelo.connect(space_url(f"values {uuid4()}")) as space:
        yield space


def east(hours: int) -> timezone:
    return timezone(timedelta(hours=hours))


VALUES = [
    *(
        1,
        1.0,
        True,
        0,
        -0.0,
        0.0,
        False,
        None,
        float("nan"),
        2**64,
        2**64 + 1,
        10**6000,
        -(10**6000),
    ),
    *("", "a", "=a", "a\0b", "x" * 64, "x" * 65, "x" * 9_000, b"", b"a", b"\0", b"x" * 9_000),
    *(datetime(1, 1, 1, tzinfo=east(1)), datetime(1, 1, 1, 1, tzinfo=east(2))),
    *(datetime(9999, 12, 31, 23, tzinfo=east(-1)), datetime(9999, 12, 31, 22, tzinfo=east(-2))),
    *(
        datetime(2020, 1, 1),
        datetime(2020, 1, 1, tzinfo=east(0)),
        datetime(2020, 1, 1, 1, tzinfo=east(1)),
    ),
]


def test_each_value_finds_what_it_finds_in_memory(space):
    with tupelo.Space() as memory:
        for place, value in enumerate(VALUES):
            space.write((place, value))
            memory.write((place, value))
        for value in VALUES:
            found = [place for place, _ in space.read_all((int, value))]
            assert found == [place for place, _ in memory.read_all((int, value))]


def test_a_text_that_nobody_can_write_is_not_found(space):
    space.write(("a",))
    assert space.read(("\ud800",), wait=0) is None


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_names_that_a_database_cannot_keep_are_refused(space, text):
    with pytest.raises(BadArgument, match="to= must be"):
        space.write(("a",), to=text)
    with pytest.raises(BadArgument, match="name= must be"):
        tupelo.connect(space_url("a"), name=text)
