"""The corners of coordinators, selectors and chains."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import Call
from tupelo import Between, Named, Template, Where
from tupelo.errors import BadArgument, BadSelector, CountNotMet, DuplicateKey
from tupelo.models.xvsm import (
    COUNT_ALL,
    COUNT_MAX,
    INFINITE,
    INFINITE_TIMEOUT,
    AnyCoordinator,
    AnySelector,
    Capi,
    Coordinator,
    Entry,
    FifoCoordinator,
    FifoSelector,
    KeyCoordinator,
    KeySelector,
    LabelCoordinator,
    LabelSelector,
    LifoCoordinator,
    LifoSelector,
    LindaCoordinator,
    LindaSelector,
    Query,
    QueryCoordinator,
    QuerySelector,
    RandomCoordinator,
    RandomSelector,
    Selector,
    VectorCoordinator,
    VectorSelector,
)


@dataclass
class Job:
    name: str | None = None
    size: int | None = None


def container(capi: Any, *coordinators: Any, size: Any = INFINITE, **options: Any) -> Any:
    return capi.create_container(None, None, None, size, *coordinators, **options)


def read(capi: Any, cref: Any, *selectors: Any, tx: Any = None) -> list[Any]:
    return list(capi.read(cref, 0, tx, *selectors))


# Who waits for a kept value


@pytest.mark.parametrize(
    ("coordinator", "selector"),
    [(KeyCoordinator, KeySelector), (LabelCoordinator, LabelSelector)],
)
@pytest.mark.parametrize("payload", [(1, 2, 3), (), 5, ("one",), Job("j")])
def test_what_is_waited_for_may_be_of_another_length(capi, wait_at, coordinator, selector, payload):
    cref = container(capi, coordinator())
    capi.write(cref, 0, None, Entry((1, 2), selector("a")))
    reader = wait_at(cref, capi.read, cref, None, None, selector("b"))
    taker = wait_at(cref, capi.take, cref, None, None, selector("b"))
    capi.write(cref, 0, None, Entry(payload, selector("b")))
    assert reader.result() == taker.result() == [payload]


def test_what_is_waited_for_may_be_of_another_length_for_an_optional_coordinator(capi, wait_at):
    cref = container(capi, optional=[FifoCoordinator()])
    capi.write(cref, 0, None, (1, 2))
    taker = wait_at(cref, capi.take, cref, None, None, FifoSelector())
    capi.write(cref, 0, None, Entry((1, 2, 3), FifoSelector()))
    assert taker.result() == [(1, 2, 3)]


def test_the_shapes_of_a_container_are_looked_at_under_its_lock():
    with Capi() as capi:
        cref = container(capi, KeyCoordinator())
        capi.write(cref, 0, None, Entry((1, 2), KeySelector("a")))
        lock: Any = cref.port.atomic()
        looked = []

        class Watched(dict[Any, None]):
            def __iter__(self) -> Any:
                looked.append(lock._is_owned())
                return super().__iter__()

        cref._shapes = Watched(cref._shapes)
        assert cref.arity == 2
        assert read(capi, cref, KeySelector("a")) == [(1, 2)]
        assert looked == [True]


def test_new_shapes_hide_nothing_from_a_reader_by_key():
    with Capi() as capi:
        cref = container(capi, KeyCoordinator())
        capi.write(cref, 0, None, Entry((1, 2), KeySelector("a")))

        def widen() -> None:
            for i in range(200):
                capi.write(cref, 0, None, Entry((0,) * (i + 2), KeySelector(i)))

        writer = threading.Thread(target=widen)
        writer.start()
        while writer.is_alive():
            assert read(capi, cref, KeySelector("a")) == [(1, 2)]
        writer.join()


# Orders in a chain


@pytest.mark.parametrize(
    ("chain", "found"),
    [
        ((LifoSelector(3), FifoSelector(1)), [3]),
        ((LifoSelector(COUNT_ALL), FifoSelector(1)), [0]),
        ((LifoSelector(COUNT_ALL), FifoSelector(2)), [0, 1]),
        ((LifoSelector(COUNT_MAX), FifoSelector(COUNT_MAX)), [0, 1, 2, 3, 4, 5]),
        ((FifoSelector(COUNT_MAX), LifoSelector(COUNT_MAX)), [5, 4, 3, 2, 1, 0]),
        ((RandomSelector(6), FifoSelector(6)), [0, 1, 2, 3, 4, 5]),
        ((RandomSelector(6), LifoSelector(1)), [5]),
        ((FifoSelector(3), LifoSelector(1)), [2]),
        ((LifoSelector(COUNT_ALL), AnySelector(1)), [5]),
        ((LifoSelector(COUNT_ALL), AnySelector(2)), [5, 4]),
        ((LifoSelector(COUNT_MAX), AnySelector(COUNT_ALL)), [5, 4, 3, 2, 1, 0]),
        ((LifoSelector(3), AnySelector(2)), [5, 4]),
        ((LifoSelector(COUNT_ALL), QuerySelector(Query(), 2)), [5, 4]),
    ],
)
def test_fifo_and_lifo_sort_what_they_are_given_and_any_leaves_it(make_capi, chain, found):
    capi = make_capi(random=random.Random(5))
    cref = container(capi, FifoCoordinator(), LifoCoordinator(), QueryCoordinator())
    capi.write(cref, 0, None, *range(6))
    assert read(capi, cref, *chain) == found


def test_what_matches_a_template_is_left_in_the_order_of_the_stage_before(capi):
    cref = container(capi, LindaCoordinator(), LifoCoordinator(), LabelCoordinator())
    for i in range(4):
        capi.write(cref, 0, None, Entry(("n", i), LabelSelector("x")))
    every = LifoSelector(COUNT_ALL)
    assert read(capi, cref, every, LindaSelector(("n", None))) == [("n", 3)]
    assert read(capi, cref, every, LabelSelector("x", 2)) == [("n", 3), ("n", 2)]


def test_the_newest_of_a_chain_are_those_of_the_innermost_transaction(capi):
    cref = container(capi, FifoCoordinator(), LifoCoordinator())
    capi.write(cref, 0, None, "gone")
    capi.take(cref, 0, None)
    capi.write(cref, 0, None, 1, 2)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(cref, 0, tx, 3, 4)
    assert read(capi, cref, RandomSelector(4), FifoSelector(4), tx=tx) == [1, 2, 3, 4]
    assert read(capi, cref, RandomSelector(4), LifoSelector(4), tx=tx) == [4, 3, 2, 1]


# Queries


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(
    ("query", "found"),
    [
        (Query().filter(Where(lambda value: value > 1)), [5, 4]),
        (Query().filter(~Where(lambda value: value > 1)), [1]),
        (Query().filter(Where(lambda v: v > 1) & Where(lambda v: v < 5)), [4]),
        (Query().filter(Where(lambda v: v == 1) | Where(lambda v: v == 5)), [5, 1]),
        (Query().sort_by(lambda value: value).filter(Where(lambda value: value > 1)), [4, 5]),
        (Query().sort_by(lambda value: value).filter(Named(value=4)), [4]),
    ],
)
def test_functions_filter_single_values(capi, labelled, query, found):
    filter_single_values(capi, labelled, query, found)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(
    ("query", "found"),
    [
        (Query().filter(Named(value=4)), [4]),
        (Query().filter(Named(value=Between(4, None))), [5, 4]),
        (Query().reverse().filter(~Template(Named(value=4))), [1, 5]),
        (Query().distinct().limit(2), [5, 1]),
    ],
)
def test_a_query_filters_single_values(capi, labelled, query, found):
    filter_single_values(capi, labelled, query, found)


def filter_single_values(capi: Any, labelled: bool, query: Query, found: list[int]) -> None:
    kinds = [QueryCoordinator(), *([LabelCoordinator()] if labelled else [])]
    cref = container(capi, *kinds)
    for value in (5, 1, 4):
        capi.write(cref, 0, None, Entry(value, LabelSelector("x")) if labelled else value)
    assert read(capi, cref, QuerySelector(query, COUNT_MAX)) == found


def test_an_error_of_a_query_names_its_selector(capi):
    cref = container(capi, QueryCoordinator())
    capi.write(cref, 0, None, 5)
    with pytest.raises(BadArgument, match=r"selector= .*QuerySelector\(Query\(\)\.sort_by\(0\)\)"):
        read(capi, cref, QuerySelector(Query().sort_by(0)))


# Coordinators that a container has anyway


@pytest.mark.parametrize("coordinator", [AnyCoordinator, RandomCoordinator])
def test_any_and_random_know_every_entry_and_are_not_optional(capi, coordinator):
    with pytest.raises(BadArgument, match="optional="):
        container(capi, optional=[coordinator(), LabelCoordinator()])
    cref = container(capi, coordinator(), optional=[LabelCoordinator()])
    capi.write(cref, 0, None, 1)
    assert read(capi, cref, AnySelector()) == read(capi, cref, RandomSelector()) == [1]


def test_an_optional_any_of_another_name_knows_what_was_written_for_it(capi):
    cref = container(capi, optional=[AnyCoordinator(name="some"), LabelCoordinator()])
    capi.write(cref, 0, None, 1, Entry(2, AnySelector(name="some")))
    assert read(capi, cref, AnySelector(COUNT_ALL, name="some")) == [2]
    assert read(capi, cref, AnySelector(COUNT_ALL)) == [1, 2]


def test_the_names_any_and_random_are_taken(capi):
    for name in ("any", "random"):
        with pytest.raises(BadArgument, match="coordinators="):
            container(capi, KeyCoordinator(name=name))


# Counts and keys


def test_count_all_answers_what_it_can_see_when_its_time_is_up(capi, wait_at, clock):
    cref = container(capi, FifoCoordinator())
    capi.write(cref, 0, None, 1)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(cref, 0, tx, 2)
    assert read(capi, cref, FifoSelector(COUNT_ALL)) == [1]
    late = wait_at(cref, capi.read, cref, 5, None, FifoSelector(COUNT_ALL), timed=True)
    patient = wait_at(cref, capi.read, cref, None, None, FifoSelector(COUNT_ALL))
    clock.advance(5)
    assert late.result() == [1]
    assert patient.waits
    capi.commit_transaction(tx)
    assert patient.result() == [1, 2]


def test_nobody_waits_for_a_key_of_ones_own_transaction(capi, wait_at):
    cref = container(capi, KeyCoordinator())
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(cref, 0, tx, Entry((1, 1), KeySelector("a")))
    within = Call(capi.write, cref, INFINITE_TIMEOUT, tx, Entry((2, 2), KeySelector("a")))
    with pytest.raises(DuplicateKey):
        within.result()
    other = wait_at(cref, capi.write, cref, None, None, Entry((3, 3), KeySelector("a")))
    capi.rollback_transaction(tx)
    other.result()
    assert read(capi, cref, KeySelector("a")) == [(3, 3)]


# Errors


@pytest.mark.parametrize(
    ("selector", "shown"),
    [
        (KeySelector("a"), "KeySelector('a')"),
        (KeySelector(7, COUNT_MAX, name="id"), "KeySelector(7, count=COUNT_MAX, name='id')"),
        (LabelSelector("x", 3), "LabelSelector('x', count=3)"),
        (LindaSelector(("a", None), count=COUNT_ALL), "LindaSelector(('a', ANY), count=COUNT_ALL)"),
        (VectorSelector(4), "VectorSelector(4)"),
        (VectorSelector(), "VectorSelector()"),
        (FifoSelector(1, min_count=2, max_count=4), "FifoSelector(min_count=2, max_count=4)"),
        (FifoSelector(1, min_count=2), "FifoSelector(min_count=2)"),
        (QuerySelector(Query().limit(2)), "QuerySelector(Query().limit(2))"),
        (AnySelector(), "AnySelector()"),
    ],
)
def test_a_selector_is_shown_with_what_it_asks(selector, shown):
    assert repr(selector) == shown


def test_what_was_not_found_is_named(capi):
    cref = container(capi, KeyCoordinator())
    with pytest.raises(CountNotMet, match=r"wanted by KeySelector\('b'\), 0 found"):
        read(capi, cref, KeySelector("b"))


@pytest.mark.parametrize("timeout", ["", False, True, -1, "1", float("nan"), 1e10, (), []])
def test_a_time_that_makes_no_sense_is_refused_by_every_way(capi, timeout):
    cref = container(capi, LindaCoordinator())
    keyed = container(capi, KeyCoordinator())
    capi.write(cref, 0, None, ("a", 1))
    capi.write(keyed, 0, None, Entry((1, 2), KeySelector("a")))
    deeds: list[Callable[[], Any]] = [
        lambda: capi.write(cref, timeout, None, ("b", 1)),
        lambda: capi.write(keyed, timeout, None, Entry((1, 2), KeySelector("b"))),
        lambda: capi.read(cref, timeout, None, LindaSelector(("a", None))),
        lambda: capi.take(keyed, timeout, None, KeySelector("a")),
    ]
    for deed in deeds:
        with pytest.raises(BadArgument, match="timeout="):
            deed()
    assert read(capi, cref, AnySelector(COUNT_ALL)) == [("a", 1)]
    assert read(capi, keyed, AnySelector(COUNT_ALL)) == [(1, 2)]


def test_a_container_of_another_capi_is_refused_by_every_way(make_capi, clock):
    capi = make_capi()
    with Capi(clock=clock) as other:
        cref = container(other, LindaCoordinator())
        other.write(cref, 0, None, ("a", 1))
        deeds: list[Callable[[], Any]] = [
            lambda: capi.write(cref, 0, None, ("b", 1)),
            lambda: capi.read(cref, 0, None, LindaSelector(("a", None))),
            lambda: capi.take(cref, 0, None, LindaSelector(("a", None))),
        ]
        for deed in deeds:
            with pytest.raises(BadArgument, match="cref="):
                deed()
        assert read(other, cref, AnySelector(COUNT_ALL)) == [("a", 1)]


@pytest.mark.parametrize("name", ["fifo", "lifo", "any", "random", "query", "linda", "vector"])
def test_a_selector_of_another_kind_is_refused(capi, name):
    kinds = (FifoCoordinator, LifoCoordinator, QueryCoordinator, LindaCoordinator)
    cref = container(capi, *[kind() for kind in kinds], VectorCoordinator())
    capi.write(cref, 0, None, ("a", 1))
    with pytest.raises(BadSelector, match=f"needs a {name.capitalize()}Selector"):
        read(capi, cref, KeySelector("a", name=name))
    with pytest.raises(BadSelector, match=f"needs a {name.capitalize()}Selector"):
        capi.write(cref, 0, None, Entry(("b", 1), KeySelector("a", name=name)))


class Nameless(Coordinator):
    default_name = "nameless"

    def __init__(self, low: int = 0) -> None:
        super().__init__()
        self.low = low


class Bounded(Coordinator):
    default_name = "bounded"

    def __init__(self, low: int, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.low = low

    def options(self) -> tuple[Any, ...]:
        return (self.low,)


def test_a_coordinator_that_cannot_be_made_again_is_refused_in_a_folder(make_capi, place):
    class Local(Coordinator):
        default_name = "local"

    capi = make_capi()
    if place[1] == "memory":
        container(capi, Local(), Nameless(3))
        return
    with pytest.raises(BadArgument, match="classes that a module has"):
        container(capi, Local())
    with pytest.raises(BadArgument, match="name="):
        container(capi, Nameless(3))
    capi.create_container(None, None, "b", INFINITE, Bounded(3, name="mine"))
    capi.shutdown(None)
    capi = make_capi()
    again = capi.lookup_container(None, None, "b").coordinators["mine"]
    assert again.low == 3


# Entries by their leases


def test_an_entry_is_found_by_its_lease_among_many_like_it(capi):
    cref = container(capi, LindaCoordinator(), VectorCoordinator())
    like = [("a", 1), ("a", 1), ("a", None), ("a",), (Job("j"),), Job("j"), ("a", float("nan"))]
    leases = [capi.write(cref, 0, None, entry)[0] for entry in like]
    for entry, lease in zip(like, leases, strict=True):
        assert repr(capi.read(cref, 0, None, LindaSelector(entry=lease))) == repr([entry])
    assert capi.take(cref, 0, None, LindaSelector(entry=leases[1])) == [("a", 1)]
    with pytest.raises(CountNotMet):
        read(capi, cref, LindaSelector(entry=leases[1]))
    assert read(capi, cref, LindaSelector(entry=leases[0])) == [("a", 1)]


def test_a_plain_selector_speaks_to_a_coordinator_of_ones_own(capi):
    cref = container(capi, Bounded(3))
    capi.write(cref, 0, None, 1)
    assert read(capi, cref, Selector(name="bounded")) == [1]
