"""A vector's places: counted as the writer sees them, and kept over a restart."""

import asyncio
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import core_of, memory_folder, parked_at
from tupelo.errors import BadEntry, IndexOutOfRange
from tupelo.models.xvsm import (
    COUNT_ALL,
    COUNT_MAX,
    INFINITE,
    INFINITE_TIMEOUT,
    AnySelector,
    AsyncCapi,
    Capi,
    Entry,
    KeyCoordinator,
    KeySelector,
    LindaCoordinator,
    LindaSelector,
    VectorCoordinator,
    VectorSelector,
)
from tupelo.space.ranking import between


def container(capi: Any, *coordinators: Any) -> Any:
    return capi.create_container(None, None, None, INFINITE, *coordinators)


def read(capi: Any, cref: Any, *selectors: Any, tx: Any = None) -> list[Any]:
    return list(capi.read(cref, 0, tx, *selectors))


def vector(capi: Any, cref: Any, tx: Any = None) -> str:
    return "".join(read(capi, cref, VectorSelector(0, COUNT_ALL), tx=tx))


def at(value: Any, index: int) -> Entry:
    return Entry(value, VectorSelector(index))


def test_an_index_counts_what_the_writer_sees(capi):
    cref = container(capi, VectorCoordinator())
    capi.write(cref, 0, None, *"abc")
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    assert capi.take(cref, 0, tx, VectorSelector(0)) == ["a"]
    capi.write(cref, 0, tx, at("z", 2))
    assert vector(capi, cref, tx) == "bcz"
    with pytest.raises(IndexOutOfRange, match="written at 4: the vector has 3"):
        capi.write(cref, 0, tx, at("y", 4))
    # The others see neither, and what is taken has no index.
    assert vector(capi, cref) == "bc"
    with pytest.raises(IndexOutOfRange, match="written at 3: the vector has 2"):
        capi.write(cref, 0, None, at("y", 3))
    capi.write(cref, 0, None, at("y", 1))
    capi.commit_transaction(tx)
    assert vector(capi, cref) == "bycz"


def test_a_taken_entry_comes_back_to_its_place(capi):
    cref = container(capi, VectorCoordinator())
    capi.write(cref, 0, None, *"abc")
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.take(cref, 0, tx, VectorSelector(1))
    capi.write(cref, 0, None, at("x", 1))
    assert vector(capi, cref) == "axc"
    capi.rollback_transaction(tx)
    assert vector(capi, cref) in ("abxc", "axbc")


def test_a_shift_to_two_places(capi):
    cref = container(capi, VectorCoordinator())
    capi.write(cref, 0, None, *"abc")
    capi.shift(cref, None, at("x", 0), at("z", 2))
    assert vector(capi, cref) == "xbz"


def test_a_vector_is_opened_again_in_its_order(make_capi, place, wait_at):
    if place[1] == "memory":
        return
    capi = make_capi()
    kinds = [VectorCoordinator(), KeyCoordinator(name="id")]
    cref = capi.create_container(None, None, "v", 6, *kinds)

    def entry(value: str, index: int | None = None) -> Entry:
        return Entry(value, VectorSelector(index), KeySelector(value, name="id"))

    capi.write(cref, 0, None, entry("a"), entry("b"))
    capi.write(cref, 0, None, entry("f", 0))
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(cref, 0, tx, entry("t", 1), entry("u", 1))
    capi.commit_transaction(tx)
    capi.shift(cref, None, entry("s", 2))
    capi.write(cref, 0, None, entry("l"))
    assert vector(capi, cref) == "fusabl"
    late = wait_at(cref, capi.write, cref, None, None, entry("w", 1))
    capi.take(cref, 0, None, VectorSelector(0))
    late.result()
    assert vector(capi, cref) == "uwsabl"
    capi.shutdown(None)
    capi = make_capi()
    cref = capi.lookup_container(None, None, "v")
    assert vector(capi, cref) == "uwsabl"
    capi.take(cref, 0, None, VectorSelector(3))
    capi.write(cref, 0, None, entry("n", 1))
    assert vector(capi, cref) == "unwsbl"


def test_what_has_no_encoding_is_refused_by_a_vector_in_a_folder(make_capi, place):
    if place[1] == "memory":
        return
    capi = make_capi()
    cref = container(capi, VectorCoordinator())
    with pytest.raises(BadEntry, match="Unicode"):
        capi.write(cref, 0, None, ("\ud800", 1))
    capi.write(cref, 0, None, "a")
    assert vector(capi, cref) == "a"


def test_an_optional_vector_is_opened_again(make_capi, place):
    if place[1] == "memory":
        return
    capi = make_capi()
    cref = capi.create_container(None, None, "v", INFINITE, optional=[VectorCoordinator()])
    capi.write(cref, 0, None, "out", at("b", 0), at("a", 0))
    capi.shutdown(None)
    capi = make_capi()
    cref = capi.lookup_container(None, None, "v")
    assert vector(capi, cref) == "ab"
    assert read(capi, cref, AnySelector(COUNT_ALL)) == ["out", "b", "a"]


PLACES = st.integers(0, 5)
DEEDS = st.one_of(
    st.tuples(st.sampled_from(["write", "take", "shift"]), PLACES),
    st.tuples(st.sampled_from(["begin", "commit", "rollback"]), st.none()),
)


class Twin:
    """A list, and a copy of it while there is a transaction."""

    def __init__(self) -> None:
        self.outside: list[int] = []
        self.within: list[int] | None = None

    @property
    def seen(self) -> list[int]:
        return self.outside if self.within is None else self.within

    def do(self, verb: str, index: int, value: int) -> bool:
        """Did it work?"""
        if index > len(self.seen) - (verb == "take"):
            return False
        if verb != "write":
            del self.seen[index : index + 1]
        if verb != "take":
            self.seen.insert(index, value)
        return True


def live(deeds: list[tuple[str, int | None]], folder: Path | None) -> list[int]:
    """Do this to a vector and to a list; the list, as all see it in the end."""
    twin, tx = Twin(), None
    with Capi(folder) as capi:
        cref = capi.create_container(None, None, "v", INFINITE, VectorCoordinator())
        for value, (verb, index) in enumerate(deeds):
            if verb == "begin" and tx is None:
                tx, twin.within = capi.create_transaction(None, None), list(twin.outside)
            elif verb in ("commit", "rollback") and tx is not None:
                getattr(capi, f"{verb}_transaction")(tx)
                twin.outside = twin.seen if verb == "commit" else twin.outside
                tx = twin.within = None
            elif index is not None:
                try:
                    if verb == "take":
                        capi.take(cref, 0, tx, VectorSelector(index))
                    elif verb == "write":
                        capi.write(cref, 0, tx, at(value, index))
                    else:
                        capi.shift(cref, tx, at(value, index))
                    worked = True
                except IndexOutOfRange:
                    worked = False
                assert worked is twin.do(verb, index, value), (verb, index)
            assert read(capi, cref, VectorSelector(0, COUNT_ALL), tx=tx) == twin.seen
    return twin.outside


@settings(max_examples=100)
@given(st.lists(DEEDS, max_size=30))
def test_a_vector_does_what_a_list_would(deeds):
    live(deeds, None)


@settings(max_examples=20)
@given(st.lists(DEEDS, max_size=15))
def test_a_vector_in_a_folder_is_the_same_list_afterwards(deeds):
    with memory_folder() as folder:
        left = live(deeds, folder)
        with Capi(folder) as capi:
            cref = capi.lookup_container(None, None, "v")
            assert read(capi, cref, VectorSelector(0, COUNT_ALL)) == left


HELD_DEEDS = st.tuples(
    st.sampled_from(["write", "take", "read", "end"]),
    st.sampled_from([None, 0, 1]),  # which transaction
    PLACES,
)


@settings(max_examples=100)
@given(st.lists(HELD_DEEDS, max_size=30))
def test_an_index_is_the_same_beside_transactions_that_hold_entries(deeds):
    """An entry found by its position is the one that a look at all entries finds."""
    with Capi() as capi:
        cref = container(capi, VectorCoordinator())
        capi.write(cref, 0, None, *"abcdef")
        txs: list[Any] = [capi.create_transaction(None, None) for _ in range(2)]
        for number, (verb, who, index) in enumerate(deeds):
            tx = None if who is None else txs[who]
            try:
                if verb == "write":
                    capi.write(cref, 0, tx, at(number, index))
                elif verb == "end" and who is not None:
                    (capi.commit_transaction if index % 2 else capi.rollback_transaction)(txs[who])
                    txs[who] = capi.create_transaction(None, None)
                elif verb != "end":
                    getattr(capi, verb)(cref, 0, tx, VectorSelector(index))
            except IndexOutOfRange:
                pass
            some = VectorSelector(index, COUNT_MAX)
            for viewer in (None, *txs):
                everything = (AnySelector(COUNT_MAX), some)
                for verb in ("read", "take"):
                    counts = [
                        capi.test(cref, 0, viewer, *asked, operation=verb)
                        for asked in ((some,), everything)
                    ]
                    assert counts[0] == counts[1], (verb, viewer)
            assert read(capi, cref, some) == read(capi, cref, AnySelector(COUNT_MAX), some)


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python this runs, a line in a loop as often as it comes round."""
    lines = 0

    def trace(frame: object, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("others", [0, 3], ids=["alone", "beside a transaction"])
def test_an_index_is_found_without_a_look_at_the_other_entries(others):
    def costs(size: int) -> dict[str, int]:
        with Capi() as capi:
            cref = container(capi, VectorCoordinator(), KeyCoordinator(name="id"))

            keys = count()

            def entry(index: int | None = None) -> Entry:
                return Entry("x", VectorSelector(index), KeySelector(next(keys), name="id"))

            capi.write(cref, 0, None, *[entry() for _ in range(size)])
            tx = capi.create_transaction(None, None)
            for index in range(others):
                capi.take(cref, 0, tx, VectorSelector(index))
                capi.read(cref, 0, tx, VectorSelector(10 + index))
                capi.write(cref, 0, tx, entry(index))
            middle = VectorSelector(size // 2)
            deeds: dict[str, Callable[[], object]] = {
                "read": lambda: capi.read(cref, 0, None, middle),
                "append": lambda: capi.write(cref, 0, None, entry()),
                "insert": lambda: capi.write(cref, 0, None, entry(size // 2)),
                "take": lambda: capi.take(cref, 0, None, middle),
            }
            for deed in deeds.values():
                deed()  # the first of its kind plans the search
            return {name: lines_run(deed) for name, deed in deeds.items()}

    few, many = costs(100), costs(6_400)
    for name, lines in few.items():
        assert many[name] <= 2 * lines, name


def test_what_a_cancelled_taker_had_comes_back_to_its_place():
    async def story() -> list[Any]:
        async with AsyncCapi() as capi:
            cref = await capi.create_container(
                *(None, None, None, INFINITE), VectorCoordinator(), LindaCoordinator()
            )
            await capi.write(cref, 0, None, ("b",), ("c",))
            wanted = LindaSelector(("a",))
            taker = asyncio.create_task(capi.take(cref, INFINITE_TIMEOUT, None, wanted))
            while not parked_at(core_of(cref.space)):
                await asyncio.sleep(0)
            Capi(capi).write(cref, 0, None, at(("a",), 0))
            taker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taker
            return list(await capi.read(cref, 0, None, VectorSelector(0, COUNT_ALL)))

    assert asyncio.run(story()) == [("a",), ("b",), ("c",)]


@given(st.lists(st.integers(0, 40), max_size=60))
def test_there_is_a_rank_between_any_two(places):
    ranks: list[Any] = []
    for place in places:
        index = min(place, len(ranks))
        low = ranks[index - 1] if index else None
        high = ranks[index] if index < len(ranks) else None
        ranks.insert(index, between(low, high))
    assert ranks == sorted(set(ranks))


@pytest.mark.parametrize("index", [0, 1, -1])
def test_ranks_stay_short_where_one_comes_after_the_other(index):
    ranks: list[Any] = [(0,), (1,)]
    for _ in range(1000):
        where = index if index >= 0 else len(ranks) - 1
        ranks.insert(where, between(ranks[where - 1] if where else None, ranks[where]))
    assert max(map(len, ranks)) <= 2
