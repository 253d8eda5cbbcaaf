"""Orders by a number are left to the server, which finds the first entries without reading all."""

import math
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import tupelo
from tests.conftest import until_true
from tests.kinds import database_url, space_url
from tupelo.postgres.driver import BlockingDatabase
from tupelo.postgres.statements import Rank

MANY = 1_500
NUMBERS: dict[str, list[Any]] = {
    "ints": [3, 0, -1, 2**63, 10, 9, -(2**64) + 1, 3, 7, -10, 2**64 - 1, 10],
    "long ints": [5, 2**64, -1, -(2**64), 10**30, 5, 0],
    "floats": [1.5, -0.0, 0.0, 1e300, -1e-300, 1e16, 2.0, 1.5, 5e-324],
    "infinite": [1.0, math.inf, -math.inf, 0.5, math.nan, 0.5],
    "mixed": [1, 0.5, 2, 1.0, -1, "a", None],
}


@pytest.fixture
def space() -> Iterator[Any]:
    with tupelo.connect(space_url(f"orders {uuid4()}")) as space:
        yield space


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows in each answer of the server."""
    counts: list[int] = []
    execute = BlockingDatabase.run

    async def counting(*arguments: Any) -> Any:
        rows = await execute(*arguments)
        counts.append(len(rows))
        return rows

    monkeypatch.setattr(BlockingDatabase, "run", counting)
    return counts


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_the_order_is_that_of_other_spaces(space, numbers, reverse):
    entries = [("n", number, i) for i, number in enumerate(numbers)]
    template, order = (str, tupelo.ANY, int), tupelo.Key(1, reverse=reverse)
    if "a" in numbers:
        template = (str, tupelo.OneOf(*numbers[:-2]), int)
    with tupelo.Space() as memory:
        for one in (space, memory):
            one.write_all(entries)
        for limit in (2, 1):
            found = [one.take_all(template, limit=limit, order=order) for one in (space, memory)]
            assert repr(found[0]) == repr(found[1])
            assert found[0]
        while True:
            one, other = (one.take(template, wait=0, order=order) for one in (space, memory))
            assert repr(one) == repr(other)
            if one is None:
                break


def test_those_in_hand_and_those_that_a_check_refuses_are_passed_over(space):
    space.write_all([("n", 100 - i, i % 50) for i in range(100)])
    order = tupelo.Key(1)
    few = ("n", int, tupelo.Between(0, 1))
    with space.transaction() as txn:
        assert space.take(("n", int, int), order=order, txn=txn) == ("n", 1, 49)
        space.write(("n", -5, 0), txn=txn)
        assert space.take(("n", int, int), order=order) == ("n", 2, 48)
        assert space.read(few, order=order) == ("n", 49, 1)
        assert space.take(few, order=order, txn=txn) == ("n", -5, 0)
    assert space.take_all(few, order=order, limit=3) == [("n", 49, 1), ("n", 50, 0), ("n", 99, 1)]


def test_the_first_are_found_without_reading_all(space, fetched):
    """In a queue, by priority: with an index, and before there is one."""
    space.write_all([("job", i % 3, i) for i in range(MANY)])
    order = tupelo.Key(1, reverse=True)
    space.write(("job", 2**70, MANY))  # It has no rank: all are read, once.
    assert space.take(("job", int, int), order=order) == ("job", 2**70, MANY)
    wanted = [i for i in range(MANY) if i % 3 == 2]
    del fetched[:]
    for n in wanted[:40]:
        assert space.take(("job", int, tupelo.Between(0, MANY)), order=order) == ("job", 2, n)
    assert max(fetched) <= 8
    rank = Rank(1, True)

    def is_indexed() -> bool:
        assert space.read(("job", int, int), order=order) == ("job", 2, wanted[40])
        return rank in space.database.ranked

    until_true(is_indexed, "there is an index")
    assert space.take(("job", int, int), order=order) == ("job", 2, wanted[40])
    for other in (("text", "1e9x"), ("bytes", b"12"), (1, 2**80), (1.0, -0.5), ("x",)):
        space.write(other)  # The index has all entries.
        assert space.take(other, wait=0) == other
    with psycopg.connect(database_url()) as link:
        names = link.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE indisvalid")
        assert ("tupelo.entries_by_rank_down_1",) in names.fetchall()


def test_a_take_of_what_exists_does_not_look_at_all_matches(space, fetched):
    space.write_all([("job", i) for i in range(MANY)])
    del fetched[:]
    assert space.take(("job", int), if_exists=True) == ("job", 0)
    with space.transaction() as txn:
        assert space.take(("job", int), if_exists=True, txn=txn) == ("job", 1)
    assert max(fetched) <= 8
