"""Coordinators and selectors: each alone, several on one container, and chains of them."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.laws.talk import refused
from tupelo import Between, Named, Where
from tupelo.errors import BadArgument, BadSelector, CountNotMet, DuplicateKey, IndexOutOfRange
from tupelo.models.xvsm import (
    COUNT_ALL,
    COUNT_MAX,
    INFINITE,
    INFINITE_TIMEOUT,
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
    RandomSelector,
    Selector,
    TypeCoordinator,
    TypeSelector,
    VectorCoordinator,
    VectorSelector,
)


@dataclass
class Job:
    name: str | None = None
    size: int | None = None


def container(capi: Any, *coordinators: Any, **options: Any) -> Any:
    return capi.create_container(None, None, None, INFINITE, *coordinators, **options)


def read(capi: Any, cref: Any, *selectors: Any) -> list[Any]:
    return list(capi.read(cref, 0, None, *selectors))


def test_fifo_and_lifo(capi):
    cref = container(capi, FifoCoordinator(), LifoCoordinator())
    capi.write(cref, 0, None, 1, 2, 3, 4)
    assert read(capi, cref, FifoSelector(2)) == [1, 2]
    assert read(capi, cref, LifoSelector(2)) == [4, 3]
    assert read(capi, cref, LifoSelector()) == [4]
    assert read(capi, cref, LifoSelector(COUNT_ALL)) == [4, 3, 2, 1]
    assert capi.take(cref, 0, None, LifoSelector()) == [4]
    assert capi.take(cref, 0, None, FifoSelector()) == [1]
    with pytest.raises(CountNotMet):
        read(capi, cref, LifoSelector(3))


def test_lifo_sees_what_its_transaction_wrote_first(capi):
    cref = container(capi, LifoCoordinator())
    capi.write(cref, 0, None, 1, 2)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(cref, 0, tx, 3)
    assert capi.read(cref, 0, tx, LifoSelector(2)) == [3, 2]
    assert read(capi, cref, LifoSelector()) == [2]


def test_every_container_has_any_and_random(make_capi):
    capi = make_capi(random=random.Random(3))
    cref = container(capi)
    capi.write(cref, 0, None, *range(20))
    assert read(capi, cref) == read(capi, cref, AnySelector()) == [0]
    mixed = read(capi, cref, RandomSelector(20))
    assert sorted(mixed) == list(range(20)) and mixed != list(range(20))
    assert sorted(capi.take(cref, 0, None, RandomSelector(COUNT_ALL))) == list(range(20))


def test_linda(capi):
    cref = container(capi, LindaCoordinator())
    leases = capi.write(cref, 0, None, ("a", 1), ("b", 2), ("b", 2, ("x", 1)), Job("j", 1))
    assert read(capi, cref, LindaSelector(("b", None))) == [("b", 2)]
    assert read(capi, cref, LindaSelector((None, None), count=2)) == [("a", 1), ("b", 2)]
    assert read(capi, cref, LindaSelector(("b", None, (None, 1)))) == [("b", 2, ("x", 1))]
    assert read(capi, cref, LindaSelector(Job(size=1))) == [Job("j", 1)]
    assert read(capi, cref, LindaSelector(("a", Between(0, 1)))) == [("a", 1)]
    several = LindaSelector(("a", None), Job, count=COUNT_ALL)
    assert read(capi, cref, several) == [("a", 1), Job("j", 1)]
    assert read(capi, cref, LindaSelector(entry=leases[1])) == [("b", 2)]
    assert capi.take(cref, 0, None, LindaSelector(entry=leases[1])) == [("b", 2)]
    with pytest.raises(CountNotMet):
        read(capi, cref, LindaSelector(entry=leases[1]))
    with pytest.raises(BadArgument, match="entry="):
        capi.write(cref, 0, None, 5)
    with pytest.raises(BadArgument, match="entry="):
        LindaSelector(entry="5")  # type: ignore[arg-type]


def test_linda_ignores_the_first_fields(capi):
    cref = container(capi, LindaCoordinator(ignore_fields=1), LifoCoordinator())
    leases = capi.write(cref, 0, None, ("lease 1", "a", 1), ("lease 2", "b", 2), ("lease 3",))
    assert read(capi, cref, LindaSelector(("b", int))) == [("lease 2", "b", 2)]
    assert read(capi, cref, LindaSelector(())) == [("lease 3",)]
    either = LindaSelector(("a", 1), ("b", 2), count=COUNT_ALL)
    assert read(capi, cref, either) == [("lease 1", "a", 1), ("lease 2", "b", 2)]
    assert read(capi, cref, LifoSelector()) == [("lease 3",)]
    assert read(capi, cref, LindaSelector(entry=leases[0])) == [("lease 1", "a", 1)]
    with pytest.raises(CountNotMet):
        read(capi, cref, LindaSelector(("lease 1", "a", 1)))
    assert capi.take(cref, 0, None, LindaSelector((None, 1))) == [("lease 1", "a", 1)]
    for entry in ((), Job("j", 1)):
        with pytest.raises(BadArgument, match="entry="):
            capi.write(cref, 0, None, entry)
    with pytest.raises(BadArgument, match="selectors="):
        read(capi, cref, LindaSelector(Job))
    for wrong in (-1, True, "1", 10**9):
        with pytest.raises(BadArgument, match="ignore_fields="):
            LindaCoordinator(wrong)  # type: ignore[arg-type]


def matched(capi: Any, cref: Any, *entries: Any) -> list[Any]:
    return read(capi, cref, LindaSelector(*entries, count=COUNT_ALL))


def test_reverse_matching_finds_the_templates_that_an_entry_matches(capi):
    for beside in ((), (LabelCoordinator(),)):
        cref = container(capi, LindaCoordinator(reverse_matching=True), *beside)
        kept = [
            ("a", None),
            (None, 1),
            ("a", 1),
            (None, None),
            ("a",),
            (None, ("b", None)),
            Job("j"),
        ]
        for template in kept:
            capi.write(cref, 0, None, Entry(template, *[LabelSelector("l")] * len(beside)))
        assert matched(capi, cref, ("a", 1)) == kept[:4]
        assert matched(capi, cref, ("a", True)) == [("a", None), (None, None)]
        assert matched(capi, cref, (None, None)) == [(None, None)]
        assert matched(capi, cref, ("a",)) == [("a",)]
        assert matched(capi, cref, ("x", ("b", 5))) == [(None, None), (None, ("b", None))]
        assert matched(capi, cref, ("x", ("c", 5))) == [(None, None)]
        assert matched(capi, cref, Job("j", 5)) == [Job("j")]
        assert matched(capi, cref, BigJob("j", 5, 6)) == [Job("j")]
        assert matched(capi, cref, Job("k", 5)) == matched(capi, cref, ()) == []
        assert matched(capi, cref, ("a",), Job("j", 5)) == [("a",), Job("j")]
        assert capi.take(cref, 0, None, LindaSelector(("a", 1))) == [("a", None)]
        for wrong in (("a", int), ("a", Between(1, 2)), Job, Named(name="j")):
            with pytest.raises(BadArgument, match="selectors="):
                read(capi, cref, LindaSelector(wrong))
    for unfit in (1, None, "yes"):
        with pytest.raises(BadArgument, match="reverse_matching="):
            LindaCoordinator(reverse_matching=unfit)  # type: ignore[arg-type]


def test_reverse_matching_ignores_the_first_fields(capi, wait_at):
    cref = container(capi, LindaCoordinator(1, reverse_matching=True))
    capi.write(cref, 0, None, ("ada", "a", None), ("bob", None, 1))
    assert matched(capi, cref, ("a", 1)) == [("ada", "a", None), ("bob", None, 1)]
    assert matched(capi, cref, ("b", 1)) == [("bob", None, 1)]
    call = wait_at(cref, capi.take, cref, INFINITE_TIMEOUT, None, LindaSelector(("c", 2)))
    capi.write(cref, 0, None, ("eve", "c", 3))
    capi.write(cref, 0, None, ("joe", "c", None))
    assert call.result() == [("joe", "c", None)]


def test_reverse_matching_is_matching_turned_around():
    chance = random.Random(44)

    def value(depth: int = 2) -> Any:
        kinds: list[Any] = [None, 1, 1.0, True, "a", b"a", float("nan"), [1, None], {"k": None}]
        nested: Any = ("a", None)
        kinds += [Job("a"), Job(None, 1), BigJob("a", 1, 1), Job(nested)] if depth else []
        kinds += [tuple(value(depth - 1) for _ in range(chance.randrange(3)))] if depth else []
        return chance.choice(kinds)

    def entry() -> Any:
        if chance.random() < 0.3:
            return chance.choice([Job, BigJob])(value(), value())
        return tuple(value() for _ in range(chance.randrange(4)))

    met = 0
    with Capi() as capi:
        reverse = container(capi, LindaCoordinator(reverse_matching=True))
        forward = container(capi, LindaCoordinator())
        for _ in range(60):
            templates, one = [entry() for _ in range(20)], entry()
            capi.write(reverse, 0, None, *templates)
            capi.write(forward, 0, None, one)
            expected = [t for t in templates if capi.read(forward, 0, None, select(t))]
            assert repr(capi.take(reverse, 0, None, select(one))) == repr(expected)
            met += len(expected)
            for cref in (reverse, forward):
                capi.destroy(cref, 0, None, AnySelector(COUNT_ALL))
    assert met > 50


def select(template: Any) -> LindaSelector:
    return LindaSelector(template, count=COUNT_MAX)


def test_options_of_coordinators_are_kept_in_a_folder(folder):
    with Capi(folder / "space") as capi:
        capi.create_container(None, None, "t", INFINITE, TypeCoordinator(Job, int))
        capi.create_container(None, None, "l", INFINITE, LindaCoordinator(1, True))
    with Capi(folder / "space") as capi:
        typed, linda = (capi.lookup_container(None, None, name) for name in "tl")
        capi.write(typed, 0, None, BigJob("b"), 5)
        with pytest.raises(BadArgument, match="entry="):
            capi.write(typed, 0, None, "s")
        capi.write(linda, 0, None, ("x", None, 2))
        assert matched(capi, linda, (1, 2)) == [("x", None, 2)]


@dataclass
class BigJob(Job):
    parts: int | None = None


def test_type_finds_entries_of_a_type_and_its_subtypes(capi):
    for coordinators in ((TypeCoordinator(),), (TypeCoordinator(), VectorCoordinator())):
        cref = container(capi, *coordinators, LifoCoordinator())
        everything = [
            Job("j", 1),
            5,
            BigJob("b", 2, 3),
            ("t", 1),
            "s",
            True,
            None,
            (Job("i"),),
            [1],
        ]
        capi.write(cref, 0, None, *everything)
        by_type: dict[Any, list[Any]] = {
            Job: [Job("j", 1), BigJob("b", 2, 3)],
            BigJob: [BigJob("b", 2, 3)],
            tuple: [("t", 1), (Job("i"),)],
            int: [5],
            bool: [True],
            type(None): [None],
            list: [[1]],
            object: everything,
            dict: [],
            f"{Job.__module__}.Job": [Job("j", 1), BigJob("b", 2, 3)],
            "int": [5],
            "a.b.Unknown": [],
        }
        for cls, found in by_type.items():
            assert read(capi, cref, TypeSelector(cls, COUNT_ALL)) == found, cls
        assert read(capi, cref, TypeSelector(Job, COUNT_ALL), LifoSelector()) == [BigJob("b", 2, 3)]
        assert capi.take(cref, 0, None, TypeSelector(Job)) == [Job("j", 1)]
        assert capi.take(cref, 0, None, TypeSelector(Job)) == [BigJob("b", 2, 3)]
        with pytest.raises(CountNotMet):
            capi.take(cref, 0, None, TypeSelector(Job))
    for wrong in (5, None, "", Job()):
        with pytest.raises(BadArgument, match="type="):
            TypeSelector(wrong)  # type: ignore[arg-type]


def test_type_takes_entries_of_allowed_types_only(make_capi):
    capi = make_capi()
    cref = container(capi, TypeCoordinator(Job, str))
    capi.write(cref, 0, None, BigJob("b"), "s")
    for entry in (5, ("t",), None):
        with pytest.raises(BadArgument, match="entry="):
            capi.write(cref, 0, None, entry)
    assert read(capi, cref, TypeSelector(object, COUNT_ALL)) == [BigJob("b"), "s"]
    optional = container(capi, optional=[TypeCoordinator(Job)])
    capi.write(optional, 0, None, 5, Entry(Job("j"), TypeSelector(Job)), Job("not registered"))
    assert read(capi, optional, TypeSelector(object, COUNT_ALL)) == [Job("j")]
    with pytest.raises(BadArgument, match="entry="):
        capi.write(optional, 0, None, Entry(5, TypeSelector(int)))
    for wrong in (5, None, Coordinator):
        with pytest.raises(BadArgument, match="allowed="):
            TypeCoordinator(wrong)  # type: ignore[arg-type]


def test_one_who_waits_for_a_type_gets_what_comes(capi, wait_at):
    cref = container(capi, TypeCoordinator())
    call = wait_at(cref, capi.take, cref, INFINITE_TIMEOUT, None, TypeSelector(Job))
    capi.write(cref, 0, None, 5)
    capi.write(cref, 0, None, BigJob("b"))
    assert call.result() == [BigJob("b")]


def test_key(capi):
    cref = container(capi, KeyCoordinator())
    keys = ["k", 1, 1.0, True, b"b", ("t", 1), ("t", (2, "x")), Job("k", 1)]
    for i, key in enumerate(keys):
        capi.write(cref, 0, None, Entry(("v", i), KeySelector(key)))
        with pytest.raises(DuplicateKey):
            capi.write(cref, 0, None, Entry(("w", i), KeySelector(key)))
    for i, key in enumerate(keys):
        assert read(capi, cref, KeySelector(key)) == [("v", i)]
        assert read(capi, cref, KeySelector(key, COUNT_ALL)) == [("v", i)]
    with pytest.raises(CountNotMet):
        read(capi, cref, KeySelector("nobody"))
    assert read(capi, cref, KeySelector("nobody", COUNT_ALL)) == []
    with pytest.raises(BadSelector, match="KeyCoordinator"):
        capi.write(cref, 0, None, ("v", 9))
    with pytest.raises(BadSelector, match="KeySelector"):
        read(capi, cref, FifoSelector(name="key"))
    for key in (None, float("nan")):
        with pytest.raises(BadArgument, match="key="):
            KeySelector(key)


def test_payloads_of_any_kind_are_found_by_key(capi):
    cref = container(capi, KeyCoordinator())
    payloads = [("a", 1), ("b",), (), Job("j"), 5, ("a", 1, 2)]
    for i, payload in enumerate(payloads):
        capi.write(cref, 0, None, Entry(payload, KeySelector(i)))
        assert [read(capi, cref, KeySelector(k))[0] for k in range(i + 1)] == payloads[: i + 1]


def test_label(capi):
    cref = container(capi, LabelCoordinator())
    for i, label in enumerate(["x", "y", "x", "x"]):
        capi.write(cref, 0, None, Entry(i, LabelSelector(label)))
    assert read(capi, cref, LabelSelector("x")) == [0]
    assert read(capi, cref, LabelSelector("x", COUNT_ALL)) == [0, 2, 3]
    assert capi.take(cref, 0, None, LabelSelector("x", 2)) == [0, 2]
    assert read(capi, cref, LabelSelector("y", COUNT_MAX)) == [1]
    assert read(capi, cref, LabelSelector("z", COUNT_MAX)) == []
    with pytest.raises(BadSelector, match="LabelCoordinator"):
        capi.write(cref, 0, None, 9)
    with pytest.raises(BadSelector, match="LabelSelector"):
        capi.write(cref, 0, None, Entry(9, KeySelector(1, name="label")))
    with pytest.raises(BadArgument, match="label="):
        LabelSelector(None)


def test_vector(capi):
    cref = container(capi, VectorCoordinator())
    capi.write(cref, 0, None, "a", Entry("b"), Entry("z", VectorSelector(0)))
    assert read(capi, cref, VectorSelector(0, COUNT_ALL)) == ["z", "a", "b"]
    assert read(capi, cref, VectorSelector(1)) == ["a"]
    assert read(capi, cref, VectorSelector(1, 2)) == ["a", "b"]
    assert capi.take(cref, 0, None, VectorSelector(1)) == ["a"]
    capi.write(cref, 0, None, Entry("m", VectorSelector(1)))
    assert read(capi, cref, VectorSelector(count=3)) == ["z", "m", "b"]
    with pytest.raises(IndexOutOfRange, match="index 3"):
        read(capi, cref, VectorSelector(3))
    with pytest.raises(CountNotMet, match="2 entries"):
        read(capi, cref, VectorSelector(2, 2))
    with pytest.raises(IndexOutOfRange, match="written at 9"):
        capi.write(cref, 0, None, Entry("x", VectorSelector(9)))
    with pytest.raises(IndexOutOfRange):
        capi.write(cref, 0, None, "first of two", Entry("x", VectorSelector(9)))
    assert read(capi, cref, VectorSelector(count=COUNT_ALL)) == ["z", "m", "b"]
    for index in (-1, True, "1"):
        with pytest.raises(BadArgument, match="index="):
            VectorSelector(index)  # type: ignore[arg-type]


def test_a_vector_is_waited_for_until_it_is_long_enough(capi, wait_at, clock):
    cref = container(capi, VectorCoordinator())
    waiter = wait_at(cref, capi.read, cref, None, None, VectorSelector(2))
    capi.write(cref, 0, None, 0)
    capi.write(cref, 0, None, 1)
    assert waiter.waits
    capi.write(cref, 0, None, 2)
    assert waiter.result() == [2]
    late = wait_at(cref, capi.read, cref, 5, None, VectorSelector(7), timed=True)
    clock.advance(5)
    with pytest.raises(IndexOutOfRange):
        late.result()


def test_query(capi):
    cref = container(capi, QueryCoordinator())
    jobs = [Job("c", 3), Job("a", 1), Job("b", 2), Job("a", 4)]
    capi.write(cref, 0, None, *jobs, ("t", 9))
    every = COUNT_ALL
    by_size = Query().filter(Job).sort_by("size")
    assert [j.size for j in read(capi, cref, QuerySelector(by_size, every))] == [1, 2, 3, 4]
    assert [j.size for j in read(capi, cref, QuerySelector(by_size.reverse(), 2))] == [4, 3]
    assert read(capi, cref, QuerySelector(Query().filter(Job("a")), every)) == [jobs[1], jobs[3]]
    assert read(capi, cref, QuerySelector(Query().filter(Named(size=3)))) == [jobs[0]]
    assert read(capi, cref, QuerySelector(by_size.limit(2).filter(Job("a")), every)) == [jobs[1]]
    names = Query().filter(Job).distinct("name")
    assert [j.name for j in read(capi, cref, QuerySelector(names, every))] == ["c", "a", "b"]
    assert len(read(capi, cref, QuerySelector(Query().distinct(), every))) == 5
    sized = Query().filter(("t", None)).sort_by(1)
    assert read(capi, cref, QuerySelector(sized)) == [("t", 9)]
    with pytest.raises(CountNotMet):
        read(capi, cref, QuerySelector(Query().filter(Job("z"))))
    refused(BadArgument, "most=", lambda: Query().limit(0))
    refused(BadArgument, "key=", lambda: Query().sort_by(1.5))  # type: ignore[arg-type]
    refused(BadArgument, "query=", lambda: QuerySelector("size > 3"))  # type: ignore[arg-type]


def test_a_query_with_functions(capi):
    cref = container(capi, QueryCoordinator())
    jobs = [Job("c", 3), Job("a", 1), Job("b", 2), Job("a", 4)]
    capi.write(cref, 0, None, *jobs)
    big = Query().filter(Job).filter(Where(lambda job: job.size > 1))
    assert len(read(capi, cref, QuerySelector(big, COUNT_ALL))) == 3
    by_function = Query().filter(Job).sort_by(lambda job: -job.size).limit(1)
    assert capi.take(cref, 0, None, QuerySelector(by_function)) == [jobs[3]]


# Counts


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"count": 3}, 3),
        ({"count": 3, "min_count": 1, "max_count": 9}, 3),  # within: exactly count
        ({"count": 7, "min_count": 1, "max_count": 9}, None),
        ({"count": 1, "min_count": 2, "max_count": 4}, 4),  # min_count >= count: between
        ({"count": 1, "min_count": 2}, 5),
        ({"count": 4, "min_count": 1, "max_count": 2}, 2),  # max_count <= count: between
        ({"count": 8, "min_count": 6, "max_count": 8}, None),
        ({"count": COUNT_ALL}, 5),
        ({"count": COUNT_MAX}, 5),
    ],
)
@pytest.mark.parametrize("kind", ["linda", "fifo", "label", "lifo"])
def test_counts(capi, options, found, kind):
    coordinators = [LindaCoordinator(), FifoCoordinator(), LifoCoordinator(), LabelCoordinator()]
    cref = container(capi, *coordinators)
    capi.write(cref, 0, None, *[Entry(("n", i), LabelSelector("x")) for i in range(5)])
    make: dict[str, Any] = {
        "linda": lambda: LindaSelector(("n", None), **options),
        "fifo": lambda: FifoSelector(**options),
        "lifo": lambda: LifoSelector(**options),
        "label": lambda: LabelSelector("x", **options),
    }
    selector = make[kind]()
    if found is None:
        with pytest.raises(CountNotMet):
            read(capi, cref, selector)
    else:
        assert len(read(capi, cref, selector)) == found


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"count": 0}, "count"),
        ({"count": -1}, "count"),
        ({"count": True}, "count"),
        ({"count": 1.5}, "count"),
        ({"count": COUNT_ALL, "min_count": 1}, "count"),
        ({"min_count": -1}, "min_count"),
        ({"max_count": 0}, "max_count"),
        ({"min_count": 3, "max_count": 2}, "max_count"),
    ],
)
def test_a_count_that_makes_no_sense_is_refused(options, argument):
    with pytest.raises(BadArgument, match=f"{argument}="):
        FifoSelector(**options)


# Several


def test_several_coordinators_of_a_kind_have_names(capi):
    cref = container(capi, KeyCoordinator(name="isbn"), KeyCoordinator(name="shelf"))
    capi.write(
        cref, 0, None, Entry("book", KeySelector(1, name="isbn"), KeySelector(7, name="shelf"))
    )
    assert read(capi, cref, KeySelector(7, name="shelf")) == ["book"]
    with pytest.raises(DuplicateKey):
        capi.write(
            cref, 0, None, Entry("b", KeySelector(2, name="isbn"), KeySelector(7, name="shelf"))
        )
    capi.write(cref, 0, None, Entry("b", KeySelector(2, name="isbn"), KeySelector(8, name="shelf")))
    with pytest.raises(BadSelector, match="isbn"):
        capi.write(cref, 0, None, Entry("c", KeySelector(9, name="shelf")))
    with pytest.raises(BadSelector, match="no coordinator named 'key'"):
        read(capi, cref, KeySelector(7))


def test_a_refusal_by_one_of_several_leaves_nothing_in_the_books_of_the_others(capi):
    cref = container(capi, VectorCoordinator(), KeyCoordinator())
    capi.write(cref, 0, None, Entry("a", KeySelector(1)))
    for _ in range(2):
        with pytest.raises(DuplicateKey):
            capi.write(cref, 0, None, Entry("b", KeySelector(1), VectorSelector(0)))
    assert read(capi, cref, VectorSelector(count=COUNT_ALL)) == ["a"]
    with pytest.raises(IndexOutOfRange):
        capi.write(cref, 0, None, Entry("b", KeySelector(2), VectorSelector(5)))
    capi.write(cref, 0, None, Entry("b", KeySelector(2), VectorSelector(0)))
    assert read(capi, cref, VectorSelector(count=COUNT_ALL)) == ["b", "a"]


def test_optional_coordinators_know_what_was_written_for_them(capi):
    cref = container(
        capi,
        LindaCoordinator(),
        optional=[FifoCoordinator(), KeyCoordinator(), VectorCoordinator()],
    )
    capi.write(cref, 0, None, ("a", 1))
    capi.write(cref, 0, None, Entry(("b", 2), KeySelector("k"), FifoSelector()))
    capi.write(cref, 0, None, Entry(("c", 3), FifoSelector(), VectorSelector()))
    capi.write(cref, 0, None, Entry(("d", 4), VectorSelector(0)))
    assert read(capi, cref, FifoSelector(COUNT_ALL)) == [("b", 2), ("c", 3)]
    assert read(capi, cref, KeySelector("k")) == [("b", 2)]
    assert read(capi, cref, VectorSelector(0, 2)) == [("d", 4), ("c", 3)]
    assert len(read(capi, cref, LindaSelector((None, None), count=COUNT_ALL))) == 4
    assert read(capi, cref, LindaSelector(("a", None))) == [("a", 1)]
    assert len(read(capi, cref, AnySelector(COUNT_ALL))) == 4


def test_a_chain_narrows(capi):
    cref = container(
        capi, LindaCoordinator(), FifoCoordinator(), LifoCoordinator(), LabelCoordinator()
    )
    for i in range(6):
        capi.write(cref, 0, None, Entry(("n", i), LabelSelector("even" if i % 2 == 0 else "odd")))
    every = LindaSelector(("n", None), count=COUNT_ALL)
    assert read(capi, cref, every, LifoSelector(2)) == [("n", 5), ("n", 4)]
    assert read(capi, cref, LabelSelector("even", COUNT_MAX), LifoSelector()) == [("n", 4)]
    assert read(capi, cref, FifoSelector(3), LifoSelector()) == [("n", 2)]
    assert read(capi, cref, FifoSelector(3), LabelSelector("odd")) == [("n", 1)]
    assert read(capi, cref, LifoSelector(2), LabelSelector("even", COUNT_ALL)) == [("n", 4)]
    assert read(capi, cref, LabelSelector("odd", COUNT_ALL), LindaSelector(("n", 3))) == [("n", 3)]
    with pytest.raises(CountNotMet):
        read(capi, cref, FifoSelector(2), LindaSelector(("n", 3)))
    with pytest.raises(CountNotMet, match="9 entries"):
        read(capi, cref, FifoSelector(9), LifoSelector(COUNT_ALL))
    assert capi.take(cref, 0, None, every, LifoSelector(2), FifoSelector(1)) == [("n", 4)]


def test_a_key_in_a_chain_goes_with_a_template(capi):
    cref = container(capi, KeyCoordinator(), LindaCoordinator())
    capi.write(cref, 0, None, Entry(("a", 1), KeySelector(1)), Entry(Job("j"), KeySelector(2)))
    assert read(capi, cref, KeySelector(1), LindaSelector(("a", None))) == [("a", 1)]
    assert read(capi, cref, KeySelector(2), LindaSelector(Job)) == [Job("j")]
    assert read(capi, cref, LindaSelector(("a", None))) == [("a", 1)]
    with pytest.raises(CountNotMet):
        read(capi, cref, KeySelector(1), LindaSelector(("b", None)))


def test_a_function_finds_an_entry_behind_its_key(capi):
    cref = container(capi, KeyCoordinator(), LindaCoordinator())
    capi.write(cref, 0, None, Entry(("a", 1), KeySelector(1)), Entry(Job("j"), KeySelector(2)))
    assert read(capi, cref, LindaSelector(Where(lambda e: isinstance(e, Job)))) == [Job("j")]


def test_a_chain_waits_until_all_of_it_is_met(capi, wait_at):
    cref = container(capi, LindaCoordinator(), LifoCoordinator())
    every = LindaSelector(("n", None), count=COUNT_ALL)
    waiter = wait_at(cref, capi.take, cref, None, None, every, LifoSelector(2))
    capi.write(cref, 0, None, ("n", 1))
    capi.write(cref, 0, None, ("m", 1))
    assert waiter.waits
    capi.write(cref, 0, None, ("n", 2))
    assert waiter.result() == [("n", 2), ("n", 1)]


# One of one's own


class PriorityCoordinator(Coordinator):
    """The smallest number first, which is told when an entry is written."""

    default_name = "priority"
    explicit = True
    keeps = True

    def kept(self, selector: Selector) -> Any:
        assert isinstance(selector, PrioritySelector)
        return selector.priority

    def arrange(self, found: list[Any]) -> Iterable[Any]:
        return sorted(found, key=self.kept_of)


class PrioritySelector(Selector):
    default_name = "priority"

    def __init__(self, priority: int | None = None, count: Any = 1) -> None:
        super().__init__(count)
        self.priority = priority


def test_a_coordinator_of_ones_own(capi, wait_at):
    cref = container(capi, PriorityCoordinator(), LindaCoordinator())
    for priority, name in ((5, "slow"), (1, "first"), (3, "mid")):
        capi.write(cref, 0, None, Entry(("job", name), PrioritySelector(priority)))
    with pytest.raises(BadSelector, match="PriorityCoordinator"):
        capi.write(cref, 0, None, ("job", "none"))
    assert capi.take(cref, 0, None, PrioritySelector()) == [("job", "first")]
    jobs = [("job", "mid"), ("job", "slow")]
    assert read(capi, cref, PrioritySelector(count=COUNT_ALL)) == jobs
    assert read(capi, cref, PrioritySelector(count=2), LindaSelector(("job", "slow"))) == jobs[1:]
    waiter = wait_at(cref, capi.take, cref, None, None, PrioritySelector(count=3))
    capi.write(cref, 0, None, Entry(("job", "new"), PrioritySelector(4)))
    assert waiter.result() == [("job", "mid"), ("job", "new"), ("job", "slow")]


def test_a_container_with_a_coordinator_of_ones_own_is_opened_again(make_capi, place):
    if place[1] == "memory":
        return
    capi = make_capi()
    cref = capi.create_container(None, None, "c", INFINITE, PriorityCoordinator())
    capi.write(cref, 0, None, Entry("b", PrioritySelector(2)), Entry("a", PrioritySelector(1)))
    capi.shutdown(None)
    capi = make_capi()
    cref = capi.lookup_container(None, None, "c")
    assert read(capi, cref, PrioritySelector(count=2)) == ["a", "b"]
