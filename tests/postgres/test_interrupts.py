"""Takes whose caller is gone: cancelled tasks, Ctrl-C. What nobody got is there again."""

import asyncio
import itertools
import signal
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import tupelo
from tests.conftest import until_true
from tests.kinds import database_url, space_url
from tupelo import aio
from tupelo.errors import TransactionEnded
from tupelo.postgres.connect import open_space
from tupelo.postgres.driver import IDLE, BlockingDatabase, Database
from tupelo.space.clock import ManualClock
from tupelo.space.dual_api import run_sync


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


class Interrupt(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


@pytest.fixture
def interrupt(monkeypatch):
    """`interrupt(n)`: the n-th statement from now on is interrupted, before it or after it."""
    left, after = [0], [False]
    run = Database.run

    async def interrupted(self: Any, *arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after[0]:
            raise Interrupt
        answer = await run(self, *arguments)
        if left[0] == 0:
            raise Interrupt
        return answer

    monkeypatch.setattr(Database, "run", interrupted)

    def set_(step: int, is_done: bool = False) -> None:
        left[0], after[0] = step, is_done

    return set_


@pytest.mark.parametrize("end", ["commit", "abort", "prepare"])
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_an_end_that_is_interrupted_leaves_nothing_in_hand(url, link, interrupt, end, is_done):
    with tupelo.connect(url) as space:
        for step in itertools.count(1):
            space.take_all()
            space.write(("a", step))
            txn: Any = space.transaction()
            taken = space.take(("a", int), txn=txn)
            space.write(("b", step), txn=txn)
            interrupt(step, is_done)
            try:
                getattr(txn, end)()
            except Interrupt:
                interrupt(0)
                assert txn.link.closed or txn.link.pgconn.transaction_status == IDLE
                assert txn.state != "active"
            else:
                break
            if txn.state == "prepared":
                assert [one.id for one in space.in_doubt()] == [txn.id]
                txn.abort()
            assert space.in_doubt() == []
            expected = [("b", step)] if txn.state == "committed" else [taken]
            assert space.read_all() == expected
            with suppress(TransactionEnded):
                txn.abort()
            with suppress(TransactionEnded):
                txn.commit()
            assert space.read_all() == expected
        interrupt(0)
        if txn.state == "prepared":
            txn.abort()
        assert step > 2


def test_a_close_that_is_interrupted_keeps_no_connections(url, interrupt):
    for step in itertools.count(1):
        space: Any = tupelo.connect(f"{url}&application_name=alone")
        database = space.database
        space.write(("a", 1))
        txn = space.transaction()
        space.take(("a", int), txn=txn)
        with space.subscribe(("a", int)):
            pass
        interrupt(step)
        try:
            space.close()
        except Interrupt:
            interrupt(0)
            space.close()
            assert database.users == 0 and not database._idle
            assert txn.link.closed
        else:
            break
    assert step > 1


def test_a_nested_transaction_whose_begin_is_interrupted_does_not_harm_the_outer_one(
    url, interrupt
):
    clock = ManualClock()
    with run_sync(partial(open_space, url, is_async=False, clock=clock)) as space:
        for n, is_done in enumerate((False, True)):
            with space.transaction() as txn:
                space.write(("a", n), txn=txn)
                interrupt(1, is_done)
                with pytest.raises(Interrupt):
                    txn.transaction(lease=1)
                interrupt(0)
                clock.advance(2)
            assert space.take(("a", n)) == ("a", n)


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_end_of_a_nested_transaction_that_is_interrupted_undoes_all(
    url, interrupt, end, is_done
):
    with tupelo.connect(url) as space:
        space.write_all([("a", 1), ("a", 2)])
        txn = space.transaction()
        space.take(("a", 1), txn=txn)
        nested = txn.transaction()
        space.take(("a", 2), txn=nested)
        interrupt(1, is_done)
        with pytest.raises(Interrupt):
            getattr(nested, end)()
        interrupt(0)
        with pytest.raises(TransactionEnded, match="interrupted"):
            txn.commit()
        until_true(lambda: space.count() == 2)
        assert [change.kind for change in space.changes()] == ["written"] * 2


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("entries", [[], [("a", 1)]], ids=["none", "one"])
def test_a_take_of_a_host_that_is_interrupted_keeps_no_connection(
    url, interrupt, monkeypatch, is_done, entries
):
    links: list[Any] = []
    open_ = BlockingDatabase.open

    async def opened(self: Any) -> Any:
        links.append(await open_(self))
        return links[-1]

    monkeypatch.setattr(BlockingDatabase, "open", opened)
    with tupelo.connect(f"{url}&application_name=alone") as made:
        space: Any = made
        space.write(("a", 0))
        for step in itertools.count(1):
            space.take_all()
            space.write_all(entries)
            interrupt(step, is_done)
            try:
                reserved = run_sync(partial(space.reserve, ("a", int), 0, False, None, None, False))
            except Interrupt:
                interrupt(0)
            else:
                break
            assert all(link.closed or link in space.database._idle for link in links)
            assert space.read_all() == entries
        interrupt(0)
        assert bool(reserved) == bool(entries)
        if reserved is not None:
            run_sync(reserved[0].commit_now)
        assert space.count() == 0
        assert step > 3


def test_a_take_that_is_cancelled_while_it_waits_reads_no_log(url, monkeypatch):
    """Nothing was taken, and the log may be long."""
    statements: list[str] = []
    run = Database.run

    async def recorded(self: Any, link: Any, statement: str, *arguments: Any) -> Any:
        statements.append(statement)
        return await run(self, link, statement, *arguments)

    monkeypatch.setattr(Database, "run", recorded)

    async def go() -> None:
        async with await aio.connect(url) as made:
            space: Any = made
            await space.write(("b", 1))
            for template in (("a", int), ("b", int, int), ("b", tupelo.Between(2, 3))):
                taker = asyncio.ensure_future(space.take(template))
                while not any(one.asleep for one in space.database.listener.waiting(space.id)):
                    await asyncio.sleep(0.001)
                taker.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await taker
            assert space.sql.done not in statements

    asyncio.run(go())
