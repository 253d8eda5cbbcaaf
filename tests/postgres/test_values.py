"""Values whose keys need care match as in memory."""

import random
import string
from dataclasses import make_dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tupelo
from tests.kinds import space_url
from tests.values.strategies import values
from tupelo.errors import BadArgument, BadEntry


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


HOSTILE = [
    *(
        "'; DROP TABLE tupelo.entries; --",
        '"',
        "\\",
        "\\x00",
        "$1",
        "%s",
        "%(space)s",
        "%%",
        "{}",
        "{0}",
    ),
    *("{", "NULL", "\n", "é\u202e𝄞", ":a", "?", "*", "--", "/*", "E'\\''", " ", "a" * 1_000),
]


def test_hostile_names_are_names():
    """Of spaces, labels, agents and classes."""
    for text in HOSTILE:
        cls = tupelo.entry(f"{text} {uuid4()}")(make_dataclass("Hostile", [("x", Any, None)]))
        name = f"{text} {uuid4()}"
        with tupelo.connect(space_url(name), name=text) as space:
            space.write(cls(text), to=text)
            assert space.name == name
            assert space.take(cls(text), wait=0) == cls(text)
            written, taken = space.changes()
            assert written.agent_name == text and written.to == text and taken.kind == "taken"
            with pytest.raises(tupelo.errors.UnknownSpace):
                tupelo.connect(space_url(f"{name} "), create=False)


PATTERNS = [
    *(make(text) for make in (tupelo.Prefix, tupelo.Suffix) for text in ["", *HOSTILE]),
    *map(
        tupelo.Regex, [".*", "%", "_", "(a|b)+", r"\\", "['\"]", "(?i)null", r"\$1|\{\}", "a{1000}"]
    ),
    *(tupelo.OneOf(*HOSTILE), tupelo.Not(tupelo.OneOf("%s", "{}")), tupelo.Between("%", "'")),
]


def test_templates_with_hostile_texts_find_what_they_find_in_memory(space):
    with tupelo.Space() as memory:
        for each in (space, memory):
            each.write_all([("a", text) for text in HOSTILE])
        for part in [*HOSTILE, *PATTERNS]:
            assert space.read_all(("a", part)) == memory.read_all(("a", part)), part
            assert space.count(("a", part)) == memory.count(("a", part)), part


@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(values, min_size=1, max_size=6))
def test_any_values_are_kept_and_found_as_in_memory(space, some):
    with tupelo.Space() as memory:
        for each in (space, memory):
            each.take_all()
            each.write_all([(place, value) for place, value in enumerate(some)])
        assert repr(space.read_all()) == repr(memory.read_all())
        for value in some:
            answers = []
            for each in (space, memory):
                try:
                    answers.append(repr(each.read_all((int, value))))
                except tupelo.TupeloError as error:
                    answers.append(type(error).__name__)
            assert answers[0] == answers[1]


def test_entries_of_many_fields_and_long_names(space):
    """Their shapes are longer than an index takes."""
    rng = random.Random(1)
    wide = tuple(rng.choice([1, 1.0, "a", b"", None, True]) for _ in range(5_000))
    names = ["".join(rng.choices(string.ascii_letters, k=40)) for _ in range(300)]
    cls = tupelo.entry("tests.postgres.Wide")(make_dataclass("Wide", [(n, int) for n in names]))
    for entry in (wide, cls(*range(300)), wide):
        space.write(entry)
        assert space.take(entry, wait=0) == entry


def test_deep_and_long_values(space):
    deep: Any = 1
    while True:
        try:
            space.write(("deep", (deep,)))
        except BadEntry:
            break
        deep = (deep,)
    depths = space.take_all(("deep", tuple))
    assert len(depths) > 10 and len({repr(entry) for entry in depths}) == len(depths)
    long = ("long", "x" * 3_000_000, b"y" * 3_000_000, 10**20_000)
    space.write(long)
    assert space.take(long, wait=0) == long


@pytest.mark.parametrize("length", [2_001, 100_000])
def test_a_name_that_is_too_long_is_refused(length):
    with pytest.raises(
        BadArgument, match=f"name= must be .* at most 2000 bytes, .* {length} bytes"
    ):
        tupelo.connect(space_url("x" * length))
    tupelo.connect(space_url(f"{uuid4()}".ljust(2_000, "x"))).close()


def test_numbers_beyond_those_of_the_database(space):
    space.write_all([("a", i) for i in range(3)])
    assert len(space.read_all(("a", int), limit=10**30)) == 3
    assert len(space.match_set(("a", int), limit=10**30).next()) == 2
    assert space.changes(since=10**30) == []
    assert len(space.take_all(("a", int), limit=10**30)) == 3
    space.write(("b",), lease=1e300)
    space.trim(before=10**30)
    assert space.take(("b",), wait=0) == ("b",)
