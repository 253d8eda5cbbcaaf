"""Long searches in slices: others get their turn, and the answer is that of one moment."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

import pytest

from tupelo import ANY, Between, Key, Lifo, Regex, Space, Template
from tupelo.space.port import Port, port_of
from tupelo.space.query import Query
from tupelo.values.entry import Entry
from tupelo.values.template import as_template

MANY = 20_000
NONE = (ANY, Between(-9, -1))
"""What none of the entries of `full` matches."""


@pytest.fixture
def full() -> Iterator[Space]:
    """A space with many entries."""
    with Space() as space:
        space.write_all([("job", n) for n in range(MANY)])
        yield space


def asked(template: Any = NONE, **how: Any) -> Query:
    return Query(as_template(template), in_slices=True, **how)


def fields(entries: list[Entry]) -> list[tuple[Any, ...]]:
    return [entry.fields for entry in entries]


async def during(search: Awaitable[Any], *events: Callable[[], object]) -> Any:
    """The answer of a search, in whose midst these happen, one in each round of the loop."""
    task = asyncio.ensure_future(search)
    for _ in range(3):
        await asyncio.sleep(0)
    for happen in events:
        assert not task.done()
        happen()
        await asyncio.sleep(0)
    return await task


def test_others_get_their_turn_during_a_long_search(full):
    async def run() -> int:
        task = asyncio.ensure_future(port_of(full).fetch(asked()))
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert await task == []
        return turns

    assert asyncio.run(run()) > 10


@pytest.mark.parametrize("how", [{}, {"order": Key(0), "limit": 1}], ids=["any", "by key"])
def test_long_texts_are_searched_by_a_regex_in_slices(how):
    with Space() as space:
        port, query = port_of(space), asked((int, Regex("(a|b)*c")), many=True, **how)
        space.write_all([(n, "ab") for n in range(50)])
        assert asyncio.run(port.fetch(query)) == [] and not port.is_long(query)
        space.write_all([(n, "ab" * 10_000) for n in range(50)])
        assert port.is_long(query) and asyncio.run(port.fetch(query)) == []


def test_an_index_is_built_in_slices(full):
    port = port_of(full)
    query = Query(("job", MANY - 1), in_slices=True)
    assert port.is_long(query)

    async def run() -> None:
        late = during(
            port.fetch(query),
            lambda: full.write(full.take((ANY, Between(MANY - 1, None)), wait=0)),
        )
        assert fields(await late) == [("job", MANY - 1)]

    asyncio.run(run())
    assert not port.is_long(query)


def test_two_searches_build_the_same_index_once(full):
    port = port_of(full)
    full.write_all([("job", "text", n) for n in range(MANY)])

    async def run() -> None:
        either = Template(("job", MANY - 1)) | Template(("job", str, MANY - 1))
        found = await asyncio.gather(
            *(port.fetch(Query(("job", n), in_slices=True)) for n in (MANY - 1, MANY - 2)),
            port.fetch(asked(either, many=True, limit=None)),
        )
        assert [fields(some) for some in found] == [
            [("job", MANY - 1)],
            [("job", MANY - 2)],
            [("job", MANY - 1), ("job", "text", MANY - 1)],
        ]

    asyncio.run(run())
    assert not port.is_long(Query(("job", 1)))


def test_searches_take_turns(full):
    """A round of the loop does one slice, however many search."""
    port = port_of(full)

    async def run() -> int:
        tasks = [asyncio.ensure_future(port.fetch(asked())) for _ in range(5)]
        turns = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(run()) > 50


def test_what_is_written_during_a_search_is_found(full):
    found = asyncio.run(during(port_of(full).fetch(asked()), lambda: full.write(("late", -1))))
    assert fields(found) == [("late", -1)]


def test_what_is_written_in_another_shape_is_found(full):
    template = Template(NONE) | Template((str, str, Between(1, 2)))
    found = asyncio.run(
        during(port_of(full).fetch(asked(template)), lambda: full.write(("a", "new shape", 1)))
    )
    assert fields(found) == [("a", "new shape", 1)]


def test_what_comes_back_during_a_search_is_found():
    with Space() as space:
        space.write(("held", -1))
        space.write_all([("job", n) for n in range(MANY)])
        txn = space.transaction()
        assert space.take(("held", int), wait=0, txn=txn) == ("held", -1)
        found = asyncio.run(during(port_of(space).fetch(asked(take=True)), txn.abort))
        assert fields(found) == [("held", -1)]
        assert space.count(NONE) == 0


def test_what_others_let_go_during_a_search_is_found():
    with Space() as space:
        space.write(("read", -1))
        space.write_all([("job", n) for n in range(MANY)])
        txn = space.transaction()
        assert space.read(("read", int), wait=0, txn=txn) == ("read", -1)
        found = asyncio.run(during(port_of(space).fetch(asked(take=True)), txn.commit))
        assert fields(found) == [("read", -1)]


def test_what_is_taken_during_a_search_is_not_among_its_matches(full):
    template = (ANY, Between(0, None))
    query = asked(template, many=True, limit=None)
    found = asyncio.run(during(port_of(full).fetch(query), lambda: full.take(("job", 3), wait=0)))
    assert fields(found) == [("job", n) for n in range(MANY) if n != 3]


def test_a_search_that_waits_gets_what_comes_after_it(full):
    port = port_of(full)

    async def run() -> list[Entry]:
        task = asyncio.ensure_future(port.fetch(asked(take=True, deadline=None)))
        while not port.under_way()["waiters"]:
            await asyncio.sleep(0)
        full.write_all([("other", 1), ("late", -1), ("late", -2)])
        return await task

    assert fields(asyncio.run(run())) == [("late", -1)]


def test_a_search_that_is_cancelled_takes_nothing(full):
    async def run() -> None:
        task = asyncio.ensure_future(port_of(full).fetch(asked((ANY, Between(MANY - 1, None)))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert full.count() == MANY


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"order": Lifo()},
        {"order": Key(1, reverse=True)},
        {"many": True, "limit": None},
        {"many": True, "limit": 7_000},
        {"many": True, "limit": 3, "order": Lifo()},
        {"many": True, "limit": None, "order": Lifo()},
        {"many": True, "limit": 5, "order": Key(1)},
        {"many": True, "limit": None, "order": Key(0)},
    ],
)
@pytest.mark.parametrize("template", [(ANY, Between(50, 19_000)), (ANY, Between(19_900, None))])
def test_it_finds_what_a_search_in_one_piece_finds(full, how, template):
    for n in range(0, MANY, 3):
        full.take(("job", n), wait=0)
    port = port_of(full)
    expected, _ = port.get_now(Query(template, **how))
    for take in (False, True):
        found = asyncio.run(port.fetch(asked(template, take=take, **how)))
        assert fields(found) == fields(expected)


def test_counts_match_sets_and_sessions_too(full):
    port = port_of(full)
    template = Template((ANY, Between(100, None)))

    async def run() -> None:
        assert await port.count_in_slices(template, None) == MANY - 100
        assert (
            await during(
                port.count_in_slices(template, None),
                lambda: full.take(("job", 100), wait=0),
                lambda: full.write(("job", 100)),
            )
            == MANY - 100
        )
        matches = await port.open_match_set_in_slices(template, None, None, None)
        first, _ = port.next_match(matches)
        assert first is not None and first.fields == ("job", 101)
        session = port.open_session(None)
        query = asked(template, session=session)
        assert fields(await port.fetch(query)) == [("job", 101)]
        assert fields(await port.fetch(query)) == [("job", 102)]
        rest = await port.fetch(query.replace(many=True, limit=None))
        assert len(rest) == MANY - 102
        assert await port.fetch(query) == []

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(4))
def test_each_entry_is_taken_once_and_none_is_overlooked(seed):
    """Takers in slices, while others write, take and give back."""
    chance = Random(seed)
    template = (ANY, Between(-1_000, -1))
    taken: list[int] = []
    with Space() as space:
        space.write_all([("job", n) for n in range(MANY)])
        port = port_of(space)

        async def take(port: Port) -> None:
            found = await port.fetch(asked(template, take=True, deadline=None))
            taken.extend(entry.fields[1] for entry in found)

        async def disturb() -> None:
            held = []
            for n in range(1, 41):
                space.write((chance.choice("ab"), -n))
                if chance.random() < 0.5:
                    txn = space.transaction()
                    if space.take(template, wait=0, txn=txn) is not None:
                        held.append(txn)
                if held and chance.random() < 0.5:
                    held.pop(chance.randrange(len(held))).abort()
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
            for txn in held:
                txn.abort()

        async def run() -> None:
            async with asyncio.timeout(120):
                await asyncio.gather(disturb(), *(take(port) for _ in range(40)))

        asyncio.run(run())
        assert sorted(taken) == list(range(-40, 0))
        assert space.count(template) == 0
