"""Templates: which entries match. Asked of what is there, and of what comes; with and without an
index, the answer is the same."""

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from numbers import Number
from typing import Any
from uuid import UUID

import pytest

from tests.laws.kinds import Basket, Empty, Job, Loud, Other, Point, Poster, PrintJob, Renamed
from tests.laws.talk import alike, drained, entries_of
from tupelo import (
    ANY,
    HERE,
    Between,
    Exactly,
    Named,
    Not,
    OneOf,
    Prefix,
    Regex,
    Suffix,
    Template,
    Where,
)
from tupelo.errors import BadTemplate

NAN = math.nan


def check(space: Any, template: Any, yes: list[Any], no: list[Any], scope: Any = None) -> None:
    """These match and those do not: for a listener, a reader, a counter and a taker."""
    listener = space.subscribe(template, scope=scope)
    mixed = [entry for pair in zip(no, [*yes, *[None] * len(no)], strict=False) for entry in pair]
    entries = [entry for entry in mixed if entry is not None] + yes[len(no) :]
    wanted = [entry for entry in entries if any(entry is one for one in yes)]
    space.write_all(entries)
    assert alike(entries_of(drained(listener)), wanted)
    assert alike(space.read_all(template, scope=scope), wanted)
    assert space.count(template, scope=scope) == len(wanted)
    if wanted:
        assert alike(space.read(template, wait=0, scope=scope), wanted[0])
    assert alike(space.take_all(template, scope=scope), wanted)
    assert space.read(template, wait=0, scope=scope) is None
    assert space.take(template, wait=0, scope=scope) is None
    assert len(space.take_all()) == len(no)
    listener.close()


ONES = [(1,), (1.0,), (True,), (Decimal(1),), ("1",), (b"1",), ([1],), ((1,),), ({1: 1},)]


def test_a_value_matches_only_the_same_type_and_value(space):
    for one in ONES:
        check(space, one, [one], [entry for entry in ONES if entry is not one])


def test_1_and_1_0_and_true_stay_apart_when_the_index_is_built(space):
    kinds = [(int, "i"), (float, "f"), (str, "s")]
    space.write_all([(kind(i), name) for i in range(100) for kind, name in kinds])
    space.write_all([(bool(i % 2), "b") for i in range(100)])
    for _ in range(3):
        for value in (0, 1, 99, 0.0, 1.0, 99.0, "0", "1", "99"):
            assert alike([e[0] for e in space.read_all((value, ANY))], [value])
            assert space.count((value, str)) == 1
        assert alike([e[0] for e in space.read_all((True, ANY))], [True] * 50)
        assert alike([e[0] for e in space.read_all((False, "b"))], [False] * 50)
        assert space.read((1, "f"), wait=0) is None
    assert alike(space.take((1.0, ANY), wait=0), (1.0, "f"))
    assert space.take((1.0, ANY), wait=0) is None
    assert alike(space.take((1, ANY), wait=0), (1, "i"))
    assert alike(space.take((True, ANY), wait=0), (True, "b"))


def test_the_index_finds_what_a_scan_finds(space):
    entries = [(i % 7, str(i % 5), None if i % 3 else b"x") for i in range(210)]
    space.write_all(entries)
    templates = [(a, str(b), c) for a in (0, 6, 7) for b in (0, 4, 5) for c in (None, b"x")]
    for _ in range(3):
        for template in templates:
            expected = [entry for entry in entries if entry == template]
            assert space.read_all(template) == expected
            assert space.read_all((*template[:2], ANY)) == [
                entry for entry in entries if entry[:2] == template[:2]
            ]


def test_indexed_entries_that_are_taken_are_gone_and_those_given_back_are_there(space):
    space.write_all([("key", i % 50) for i in range(200)])
    for _ in range(2):
        assert space.count(("key", 7)) == 4
        with space.transaction() as txn:
            assert len(space.take_all(("key", 7), txn=txn)) == 4
            assert space.count(("key", 7)) == 0
            txn.abort()
        assert space.read_all(("key", 7)) == [("key", 7)] * 4
    space.take(("key", 7), wait=0)
    space.write(("key", 7))
    assert space.count(("key", 7)) == 4


def test_nan_matches_nothing(space):
    check(space, (NAN,), [], [(NAN,), (0.0,), (float("nan"),), ("nan",)])


def test_nan_matches_nothing_wherever_it_stands(space):
    entries = [(NAN, 1), ([NAN], 1), ((NAN,), 1), ({1: NAN}, 1)]
    for template in (*entries, (NAN, ANY), (OneOf(NAN), ANY), ([NAN], ANY), ((NAN,), int)):
        check(space, template, [], entries)


def test_nan_matches_nothing_when_the_index_is_built(space):
    space.write_all([(float(i), "x") for i in range(100)] + [(NAN, "x")])
    for _ in range(3):
        assert space.read((50.0, "x"), wait=0) == (50.0, "x")
        assert space.read((NAN, "x"), wait=0) is None
        assert space.count((NAN, "x")) == 0


def test_a_type_matches_nan(space):
    check(space, (float,), [(NAN,), (math.inf,), (1.0,)], [(1,), (Decimal("NaN"),)])


def test_a_decimal_nan_matches_nothing(space):
    check(space, (Decimal("NaN"),), [], [(Decimal("NaN"),), (Decimal("sNaN"),), (Decimal(1),)])


def test_decimals_and_times_match_by_value(space):
    check(space, (Decimal("1.0"),), [(Decimal("1.00"),), (Decimal(1),)], [(1,), (Decimal(2),)])


def test_times_match_by_the_moment(space):
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    same = datetime(2024, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))
    check(space, (noon,), [(noon,), (same,)], [(datetime(2024, 1, 1, 12),), (noon.isoformat(),)])


BY_EQUALITY: list[tuple[Any, list[Any], list[Any]]] = [
    (([1, 2],), [([1, 2],)], [([2, 1],), ([1],), ([1, 2.0],), ((1, 2),), ([True, 2],)]),
    (({"a": 1},), [({"a": 1},)], [({"a": 1, "b": 2},), ({"a": 1.0},), ({},), ({"a": True},)]),
    (({"a": [1], "b": 2},), [({"b": 2, "a": [1]},)], [({"a": [1]},), ({"a": (1,), "b": 2},)]),
    (({1: "x"},), [({1: "x"},)], [({1.0: "x"},), ({True: "x"},), ({"1": "x"},)]),
    (([[1], {"a": (2,)}],), [([[1], {"a": (2,)}],)], [([[1], {"a": [2]}],)]),
    (([],), [([],)], [((),), ({},), ([None],)]),
]


def test_lists_and_dicts_match_by_equality(space):
    for template, yes, no in BY_EQUALITY:
        check(space, template, yes, no)


BY_TYPE: list[tuple[Any, list[Any], list[Any]]] = [
    ((int,), [(1,), (2**70,)], [(True,), (1.0,), ("1",), (None,)]),
    ((bool,), [(True,), (False,)], [(1,), (0,)]),
    ((object,), [(1,), (True,), (None,), ([],), (Job("x"),)], [(1, 2)]),
    ((type(None),), [(None,)], [(0,), (False,)]),
    ((tuple,), [((),), ((1, 2),)], [([],)]),
    ((list,), [([],), ([1],)], [((),)]),
    ((dict,), [({},)], [([],)]),
    ((datetime,), [(datetime(2024, 1, 1),)], [("2024",)]),
    ((UUID,), [(UUID(int=1),)], [(1,)]),
    ((Job,), [(Job("x"),), (PrintJob("y"),), (Loud("z"),)], [(Other("x"),), (1,)]),
    ((PrintJob,), [(PrintJob("y"),), (Poster("z"),)], [(Job("x"),)]),
    ((Exactly(Job),), [(Job("x"),)], [(PrintJob("y"),), (Loud("z"),), (1,)]),
    ((Exactly(int),), [(1,)], [(True,), (1.0,)]),
    ((Exactly(bool),), [(True,)], [(1,)]),
]


BY_ABSTRACT_TYPE: list[tuple[Any, list[Any], list[Any]]] = [
    ((Number,), [(1,), (1.0,), (Decimal(1),)], [(True,), ("1",)]),
    ((Exactly(Number),), [], [(1,), (1.0,)]),
]


def test_a_type_that_no_entry_has_matches_its_subclasses(space):
    for template, yes, no in BY_ABSTRACT_TYPE:
        check(space, template, yes, no, scope=HERE)


def test_a_type_matches_its_subclasses_and_exactly_does_not(space):
    for template, yes, no in BY_TYPE:
        check(space, template, yes, no)


BY_PART: list[tuple[Any, list[Any], list[Any]]] = [
    (Between(2, 4), [2, 3, 4], [1, 5, 3.0, True, "3", None]),
    (Between(None, 4), [-(2**80), 4], [5, 3.5, False]),
    (Between(4, None), [4, 2**80], [3, 4.5]),
    (Between(0.0, 1.0), [0.0, 0.5, 1.0], [0, 1, NAN, math.inf, Decimal("0.5")]),
    (Between("b", "d"), ["b", "cc", "d"], ["a", "dd", b"c"]),
    (Between(b"b", b"d"), [b"c"], ["c", b"a"]),
    (Between(Decimal(1), Decimal(2)), [Decimal("1.5")], [1, 1.5, Decimal("NaN")]),
    (
        Between(datetime(2024, 1, 1), datetime(2024, 12, 31)),
        [datetime(2024, 6, 1)],
        [datetime(2025, 1, 1), datetime(2024, 6, 1, tzinfo=UTC)],
    ),
    (Between(UUID(int=1), UUID(int=3)), [UUID(int=2)], [UUID(int=4), 2]),
    (Prefix("job-"), ["job-", "job-1"], ["job", "a job-1", "Job-1", b"job-1", 1, None, ["job-"]]),
    (Prefix(""), ["", "a"], [b"", None]),
    (Suffix(".png"), [".png", "a.png"], ["a.png ", "png", b"a.png"]),
    (Prefix("a") & Suffix("a") & Not("a"), ["aa", "aba"], ["a", "ab", "ba"]),
    (~Prefix("a") & str, ["", "b"], ["a", 1]),
    (
        Regex("[a-z]+-[0-9]{2}"),
        ["job-12"],
        ["job-1", "job-123", " job-12", "job-12\n", b"job-12", 1],
    ),
    (Regex(".*é+"), ["caféé", "é"], ["cafe", "é!", "a\né"]),
    (Regex("a|b") | Prefix("x") | 1, ["a", "b", "xy", 1], ["ab", "c", 2]),
    (Not(Regex("a*")), ["b", 1], ["", "aa"]),
    (OneOf(1, "a", None), [1, "a", None], [1.0, True, "b", 2]),
    (OneOf(int, "a"), [1, 2, "a"], [True, 1.0, "b"]),
    (OneOf(Between(1, 2), Between(5, 6), bool), [1, 6, True], [3, 7]),
    (OneOf([1], (1, ANY)), [[1], (1, "x")], [[2], (1,)]),
    (int | str, [1, "a"], [1.0, True, None]),
    (int | None, [1, None], ["a"]),
    (Not(1), [1.0, True, 2, "a", None], [1]),
    (Not(int), [1.0, True, "a"], [1, 2]),
    (Not(OneOf("a", "b")), ["c", 1], ["a", "b"]),
    (Not(Not(1)), [1], [2]),
    (Not(NAN), [NAN, 1.0], []),
    (Between(1, 9) & Not(5), [1, 9], [5, 0]),
    (Between(1, 2) | Between(5, 6) | "x", [1, 5, "x"], [3, "y"]),
    ("x" | Between(1, 2), ["x", 1], ["y"]),
    (~Between(1, 5), [0, 6, "a"], [1, 5]),
    (ANY, [1, None, "a", [], Job("x")], []),
    (None, [None], [0, False, ""]),
]


def test_a_part_says_what_one_field_may_be(space):
    for part, yes, no in BY_PART:
        check(space, ("part", part), [("part", v) for v in yes], [("part", v) for v in no])


BY_FUNCTION: list[tuple[Any, list[Any], list[Any]]] = [
    (Where(lambda v: v == 1), [1, 1.0, True], [2, "1"]),
    (Where(lambda v: isinstance(v, list) and len(v) == 2), [[1, 2]], [[1], (1, 2)]),
    (Where(lambda v: isinstance(v, Job) and v.name == "x"), [Job("x"), PrintJob("x")], [Job()]),
    (int & Where(lambda v: v % 2 == 0), [0, 2], [1, 2.0]),
]


def test_a_function_says_what_one_field_may_be(space):
    for part, yes, no in BY_FUNCTION:
        template = ("part", part)
        check(space, template, [("part", v) for v in yes], [("part", v) for v in no], scope=HERE)


NESTED: list[tuple[Any, list[Any], list[Any]]] = [
    (("a", ("b", int)), [("a", ("b", 1))], [("a", ("b", 1.0)), ("a", ["b", 1]), ("a", ("b",))]),
    (((ANY, (Between(1, 2),)),), [((0, (1,)),)], [((0, (3,)),), ((0, 1),)]),
    (((),), [((),)], [((1,),), ([],), ()]),
    ((("k", None),), [(("k", None),)], [(("k", 1),), (("k",),)]),
    (("p", Point(1, ANY)), [("p", Point(1, 2)), ("p", Point(1))], [("p", Point(2, 1))]),
    (("p", Point(Between(1, 3))), [("p", Point(2, 9))], [("p", Point(4)), ("p", (2, 9))]),
    (
        ("j", Job("x")),
        [("j", Job("x", 1)), ("j", PrintJob("x"))],
        [("j", Job("y")), ("j", "x")],
    ),
    (("j", PrintJob("x")), [("j", PrintJob("x", 1, 2))], [("j", Job("x"))]),
    (Basket(at=Point(1)), [], [Basket([], {}, Point(2))]),
    (
        Basket(items=None, labels=None, at=Point(1)),
        [Basket([1], {}, Point(1, 2))],
        [Basket([1], {}, Point(2, 2)), Basket()],
    ),
]


def test_templates_nest(space):
    for template, yes, no in NESTED:
        check(space, template, yes, no)


TYPED: list[tuple[Any, list[Any], list[Any]]] = [
    (Job(), [Job(), Job("x", 1), PrintJob("x"), Poster(), Loud("x")], [Other("x"), ("x", 1)]),
    (Job("x"), [Job("x", 1), PrintJob("x", None, 3), Loud("x")], [Job("y"), Other("x"), Job()]),
    (Job("x", 1), [Job("x", 1), Poster("x", 1)], [Job("x", 2), Job("x", True), Job("x")]),
    (PrintJob("x"), [PrintJob("x"), Poster("x", 1, 2, True)], [Job("x"), Loud("x")]),
    (PrintJob(pages=2), [PrintJob("x", 1, 2), Poster(pages=2)], [PrintJob(pages=3)]),
    (Job(name=Prefix("x")), [Job("x"), PrintJob("xy")], [Job("y"), Job(), Other("x")]),
    (Job(name=Regex("x|y+")), [Job("x"), PrintJob("yy")], [Job("xy"), Job()]),
    (Job(size=Between(1, 5)), [Job("x", 3), PrintJob("y", 5)], [Job("x", 6), Job("x")]),
    (Job(name=ANY, size=int), [Job(None, 1), Job("x", 2)], [Job("x"), Job("x", True)]),  # type: ignore[arg-type]
    (Job, [Job(), PrintJob("x"), Loud()], [Other("x"), (1,), Empty()]),
    (Exactly(Job), [Job("x"), Job()], [PrintJob("x"), Loud("x"), Other("x")]),
    (Loud(), [Loud("x")], [Job("x"), PrintJob("x")]),
    (Empty(), [Empty()], [Job(), ()]),
    (Renamed(1), [Renamed(1)], [Renamed(2), Renamed()]),
    (Renamed(Renamed(1)), [Renamed(Renamed(1))], [Renamed(1), Renamed(Renamed(2))]),
    (tuple, [(), (1,), (1, 2)], [Job(), Empty()]),
    (object, [(), (1,), Job(), Empty()], []),
]


def test_typed_entries_match_by_class_and_none_is_a_wildcard(space):
    for template, yes, no in TYPED:
        check(space, template, yes, no)


NAMED: list[tuple[Any, list[Any], list[Any]]] = [
    (Named(name="x"), [Job("x"), Other("x"), PrintJob("x", 1)], [Job("y"), Point(), ("x",)]),
    (Named(name=ANY), [Job("x"), Other(), Loud()], [Point(1, 2), Empty()]),
    (Named(name=str, size=Between(1, 9)), [Job("x", 5)], [Job("x"), Other("x")]),
    (Named(name=None), [Job(), Other()], [Job("x")]),
    (Named(x=1, y=(1, int)), [Point(1, (1, 2))], [Point(1, (2, 2)), Point(1.0, (1, 2))]),
]


def test_named_fields_match_whatever_the_class(space):
    for template, yes, no in NAMED:
        check(space, template, yes, no)


COMBINED: list[tuple[Any, list[Any], list[Any]]] = [
    (ANY, [(), (1,), Job("x"), Empty(), ([1],), (None, None)], []),
    (Template(("a", int)) & ("a", Between(1, 5)), [("a", 3)], [("a", 6), ("b", 3)]),
    (("a", int) & Template(("a", Between(1, 5))), [("a", 3)], [("a", 6), ("b", 3)]),
    (Template(("a", 1)) & ("a", 1), [("a", 1)], [("a", 2)]),
    (Template(("a", 1)) & ("a", 2), [], [("a", 1), ("a", 2)]),
    (Template(("a", int)) | ("b", str), [("a", 1), ("b", "x")], [("a", "x"), ("b", 1)]),
    (("b", str) | Template(("a", int)), [("a", 1), ("b", "x")], [("a", "x"), ("b", 1)]),
    (
        Template(("a",)) | ("a", ANY) | Job("x"),
        [("a",), ("a", 1), Job("x")],
        [("b",), Job("y")],
    ),
    (Template(ANY) | ("a",), [("a",), (1, 2), Job()], []),
    (~Template(("a", ANY)), [("b", 1), ("a",), Job("a")], [("a", 1), ("a", None)]),
    (~~Template(("a", ANY)), [("a", 1)], [("b", 1), ("a",)]),
    (~Template(ANY), [], [(), ("a",), Job()]),
    (~Template(Job("x")), [Job("y"), Other("x"), ("x",)], [Job("x"), PrintJob("x")]),
    (Not(("a", ANY)), [("b", 1), ("a",), Job("a")], [("a", 1)]),
    (Not(Job("x")), [Job("y"), Other("x"), ("x",)], [Job("x"), PrintJob("x")]),
    (OneOf(("a", int), Job("x"), ("c",)), [("a", 1), Job("x"), ("c",)], [("a",), Job()]),
    (Job | Other, [Job("x"), PrintJob(), Other()], [Point(), ("x",)]),
    (Template(Job) & ~Template(PrintJob), [Job("x"), Loud()], [PrintJob("x"), Other()]),
    (Template(Named(name="x")) & Job, [Job("x"), Loud("x")], [Other("x"), Job("y")]),
]


def test_whole_templates_combine(space):
    for template, yes, no in COMBINED:
        check(space, template, yes, no)


WHOLE_BY_FUNCTION: list[tuple[Any, list[Any], list[Any]]] = [
    (
        Where(lambda e: e[0] == "a" if isinstance(e, tuple) and e else False),
        [("a", 1)],
        [("b",)],
    ),
    (Where(lambda e: isinstance(e, Job)), [Job("x"), PrintJob()], [Other(), ("x",)]),
    (
        Template((str, int)) & Where(lambda e: len(e[0]) == e[1]),
        [("ab", 2)],
        [("ab", 3), ("x",)],
    ),
]


def test_a_function_may_judge_whole_entries(space):
    for template, yes, no in WHOLE_BY_FUNCTION:
        check(space, template, yes, no, scope=HERE)


def test_a_pattern_that_would_backtrack_for_ever_answers(space):
    space.write_all([("text", "a" * 100_000), ("text", "a" * 100_000 + "b")])
    assert space.take_all(("text", Regex("(a+)+$"))) == [("text", "a" * 100_000)]
    assert space.count() == 1


def test_a_compiled_template_can_be_asked_again_and_again(space):
    template = Template(("a", Between(1, 3)))
    for i in range(5):
        space.write(("a", i))
        assert space.count(template) == min(i, 3)
    assert space.take_all(template) == [("a", 1), ("a", 2), ("a", 3)]
    assert template.matches(("a", 2)) and not template.matches(("a", 4))


def test_a_template_matches_shapes_that_come_later(space):
    template = ("a", ANY)
    assert space.count(template) == 0
    space.write(("a", 1))
    assert space.count(template) == 1
    space.write(("a", "x"))
    space.write(("a", Job("x")))
    space.write(("a", [1]))
    assert space.count(template) == 4


def test_a_template_does_not_change_with_the_objects_it_was_made_of(space):
    wanted = [1]
    template = Template(("a", wanted))
    wanted.append(2)
    space.write(("a", [1]))
    assert space.count(template) == 1


def test_a_where_that_raises_is_a_bad_template_and_takes_nothing(space):
    def broken(value):
        raise ZeroDivisionError("oh")

    space.write(("a", 1))
    for verb in ("read", "take", "read_all", "take_all", "count"):
        with pytest.raises(BadTemplate, match=r"broken.*ZeroDivisionError.*oh") as refused:
            getattr(space, verb)(("a", Where(broken)), scope=HERE)
        assert isinstance(refused.value.__cause__, ZeroDivisionError)
    assert space.read_all() == [("a", 1)]


def test_a_waiter_whose_where_raises_is_told_and_the_writer_is_not(space, park):
    waiter = park(space, space.take, ("a", Where(lambda v: 1 / v)), scope=HERE)
    space.write(("a", 0))
    with pytest.raises(BadTemplate, match="ZeroDivisionError"):
        waiter.result()
    assert space.read_all() == [("a", 0)]
