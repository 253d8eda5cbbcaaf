"""Two hundred operations of one program that wait at a space."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import tupelo
from tests.conftest import Call, until_true
from tests.kinds import database_url, space_url
from tupelo import aio
from tupelo.errors import SpaceClosed

MANY = 200


@pytest.fixture
def url():
    return space_url(f"many {uuid4()}")


def asleep_at(space: Any) -> int:
    return sum(waiter.asleep for waiter in space.database.listener.waiting(space.id))


def links_of(url: str) -> int:
    """The connections of the program with this name."""
    with psycopg.connect(database_url()) as link:
        asked = "SELECT FROM pg_stat_activity WHERE application_name = %s"
        return link.execute(asked, (url[-12:],)).rowcount


def test_each_of_many_threads_gets_an_entry_and_few_connections_are_kept(url):
    with tupelo.connect(f"{url}&application_name={url[-12:]}") as space:
        takers = [Call(space.take, ("a", int)) for _ in range(MANY)]
        until_true(lambda: asleep_at(space) == MANY, "all of them wait")
        assert links_of(url) <= 20
        space.write_all([("a", i) for i in range(MANY)])
        assert sorted(taker.result() for taker in takers) == [("a", i) for i in range(MANY)]
        assert space.count() == 0


async def all_wait(space: Any, count: int) -> None:
    while asleep_at(space) < count:
        await asyncio.sleep(0.01)


def test_each_of_many_tasks_gets_an_entry_and_those_that_are_cancelled_none(url):
    async def go() -> None:
        async with await aio.connect(f"{url}&application_name={url[-12:]}") as space:
            takers = [asyncio.ensure_future(space.take(("a", int))) for _ in range(MANY)]
            await all_wait(space, MANY)
            assert links_of(url) <= 20
            for taker in takers[::2]:
                taker.cancel()
            await asyncio.wait(takers[::2])
            await space.write_all([("a", i) for i in range(MANY)])
            got = await asyncio.gather(*takers[1::2])
            left = await space.read_all()
            assert sorted([*got, *left]) == [("a", i) for i in range(MANY)]
            assert len(got) == MANY // 2

    asyncio.run(go())


def test_a_space_that_is_closed_ends_all_that_wait(url):
    with tupelo.connect(url) as other:
        space = tupelo.connect(url)
        calls = [
            Call(operation, ("a", int))
            for operation in (space.take, space.read)
            for _ in range(MANY // 4)
        ]
        until_true(lambda: asleep_at(space) == len(calls), "all of them wait")
        space.close()
        for call in calls:
            with pytest.raises(SpaceClosed):
                call.result()
        other.write(("a", 1))
        assert other.take(("a", int), wait=0) == ("a", 1)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "write": lambda space: space.write(("b", 1)),
    "write_all": lambda space: space.write_all([("b", i) for i in range(10)]),
    "read": lambda space: space.read(("a", int)),
    "count": lambda space: space.count(("a", tupelo.Between(0, 9))),
    "take": lambda space: space.take(("a", int)),
    "take, checked": lambda space: space.take(("a", tupelo.Between(0, 9))),
    "take_all": lambda space: space.take_all(("a", int)),
    "changes": lambda space: space.changes(),
}


class Interrupt(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_is_interrupted_at_any_statement_is_done_or_not(
    url, monkeypatch, name, is_done
):
    """Before or after each statement that it sends."""
    with tupelo.connect(url) as space:
        database: Any = space.database  # type: ignore[attr-defined]
        execute = type(database).run
        left = [-1]

        async def interrupted(self: Any, *arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not is_done:
                raise Interrupt
            answer = await execute(self, *arguments, **options)
            if left[0] == 0:
                raise Interrupt
            return answer

        monkeypatch.setattr(type(database), "run", interrupted)
        space.write(("b", 0))
        step = 0
        while True:
            space.take_all()
            space.write_all([("a", 1), ("a", 2)])
            step += 1
            left[0] = step
            try:
                OPERATIONS[name](space)
                break
            except Interrupt:
                left[0] = -1
            assert space.read_all(("a", int)) == [("a", 1), ("a", 2)]
            assert space.count(("b", int)) in (0, {"write": 1, "write_all": 10}.get(name, 0))
            assert space.take(("a", 1), wait=0) == ("a", 1)
        assert step > 1
