"""Takes whose caller is gone: cancelled tasks, Ctrl-C. What nobody got is there again."""

import asyncio
import signal
from contextlib import suppress
from uuid import uuid4

import psycopg
import pytest

import tupelo
from tests.kinds import database_url, space_url
from tupelo import aio
from tupelo.errors import TransactionEnded


@pytest.fixture
def url():
    return space_url(f"interrupted {uuid4()}")


@pytest.fixture
def link():
    with psycopg.connect(database_url(), autocommit=True) as link:
        yield link


@pytest.mark.parametrize("template", [("a", int), ("a", tupelo.Between(0, 9))])
def test_a_take_that_is_cancelled_when_it_is_done_gives_back(url, link, template):
    """One statement, or a transaction of several."""

    async def go() -> None:
        async with await aio.connect(url) as space:
            await space.write_all([("a", 1), ("a", 2)])

            def is_done() -> bool:
                count = "SELECT count(*) FROM tupelo.entries WHERE space = %s"
                found = link.execute(count, (space.id,)).fetchone()  # type: ignore[attr-defined]
                return bool(found != (2,))

            hits = 0
            while hits < 3:
                taker = asyncio.ensure_future(space.take(template))
                while not taker.done() and not is_done():
                    await asyncio.sleep(0)
                if taker.cancel():
                    hits += 1
                    with pytest.raises(asyncio.CancelledError):
                        await taker
                else:  # The answer was faster.
                    await space.take_all()
                    await space.write_all([("a", 1), ("a", 2)])
                assert await space.read_all() == [("a", 1), ("a", 2)]
            assert (await space.changes())[-1].kind == "returned"

    asyncio.run(go())


def test_takes_that_are_cancelled_at_any_moment_lose_nothing_and_double_nothing(url):
    async def go() -> None:
        async with await aio.connect(url) as space:
            numbers = [("a", i) for i in range(60)]
            await space.write_all(numbers)
            got = []
            for i in range(120):
                taker = asyncio.ensure_future(space.take(("a", int), wait=0))
                for _ in range(i % 40):
                    await asyncio.sleep(0.0001)
                taker.cancel()
                with suppress(asyncio.CancelledError):
                    got.append(await taker)
            left = await space.read_all()
            assert sorted([*filter(None, got), *left]) == numbers

    asyncio.run(go())


def test_a_transaction_whose_take_is_cancelled_commits_nothing_that_nobody_got(url):
    async def go() -> None:
        async with await aio.connect(url) as space:
            for i in range(40):
                await space.write(("a", i))
                txn = await space.transaction()
                taker = asyncio.ensure_future(space.take(("a", int), wait=0, txn=txn))
                for _ in range(i):
                    await asyncio.sleep(0.0002)
                taker.cancel()
                try:
                    found = await taker
                except asyncio.CancelledError:
                    found = None
                try:
                    await txn.commit()
                except TransactionEnded:
                    assert found is None
                assert await space.take(("a", i), wait=0) == (None if found else ("a", i))

    asyncio.run(go())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_moment_loses_nothing_and_doubles_nothing(url):
    """A connection that was interrupted before it was kept is closed, with a warning."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with tupelo.connect(url) as space:
            numbers = [("a", i) for i in range(60)]
            space.write_all(numbers)
            got = []
            for i in range(80):
                taken = None
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.0001 * (i % 40))
                    taken = space.take(("a", int), wait=0)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    pass
                got.append(taken)
            left = space.read_all()
            assert sorted([*filter(None, got), *left]) == numbers
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
