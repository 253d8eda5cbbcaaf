"""Templates on their own: what can be said, and what cannot."""

import math
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values.strategies import Branch, Leaf, entries, positional, values
from tupelo import (
    ANY,
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
from tupelo.values.entry import freeze, same
from tupelo.values.kind import name_of
from tupelo.values.parts import OfKind

NAN = float("nan")


@given(entries)
def test_any_matches_every_entry_and_its_opposite_none(entry):
    assert Template(ANY).matches(entry) and not (~Template(ANY)).matches(entry)
    assert Template(object).matches(entry)


@given(positional)
def test_an_entry_matches_the_template_that_looks_like_it(entry):
    if all(map(_matches_itself, entry)):
        assert Template(entry).matches(entry)


def _matches_itself(value: Any) -> bool:
    """NaN is like nothing, and None in a nested dataclass is a wildcard."""
    (frozen,) = freeze((value,))[1]
    return same(frozen, frozen)


@given(positional, positional)
def test_a_template_matches_only_what_is_the_same(one, other):
    if "(" not in repr([v for v in one if isinstance(v, Leaf)]):  # no wildcards by None
        assert Template(one).matches(other) <= same(freeze(one)[1], freeze(other)[1])


@given(positional)
def test_a_template_of_types_matches(entry):
    assert Template(tuple(type(value) for value in entry)).matches(entry)
    assert Template(tuple(ANY for _ in entry)).matches(entry)
    assert not Template((*(ANY for _ in entry), ANY)).matches(entry)


@given(entries, positional)
def test_the_laws_of_and_or_and_not(entry, other):
    one, two = Template(tuple(type(v) for v in other)), Template(Named(value=ANY))
    a, b = one.matches(entry), two.matches(entry)
    assert (one & two).matches(entry) == (a and b)
    assert (one | two).matches(entry) == (a or b)
    assert (~one).matches(entry) == (not a)
    assert (~(one | two)).matches(entry) == (~one & ~two).matches(entry)
    assert (~(one & two)).matches(entry) == (~one | ~two).matches(entry)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Template(None), "template"),
        (lambda: Template(1), "template"),
        (lambda: Template("text"), "template"),
        (lambda: Template([1]), r"tuple\(template\)"),
        (lambda: Template({"a": 1}), "template"),
        (lambda: Template(object()), "template"),
        (lambda: Template(Between(1, 2)), "one field"),
        (lambda: Template(OneOf(1, 2)), "one field"),
        (lambda: Template((1, {2})), "field 1"),
        (lambda: Template((object(),)), "field 0"),
        (lambda: Template((1, (2, {3}))), r"field 1\[1\]"),
        (lambda: Template((1, [2, {3}])), r"field 1\[1\]"),
        (lambda: Template(Leaf({1})), "value"),
        (lambda: Template((Branch(1, {2}),)), "left"),
        (lambda: Template(("a", Template(("b",)))), "field 1"),
        (lambda: Template(("a", Named(x=1))), "field 1"),
        (lambda: Template((list[int],)), "field 0"),
        (lambda: Between(1, "a"), "Between"),
        (lambda: Between(None, None), "Between"),
        (lambda: Between(5, 1), "nothing lies between"),
        (lambda: Between([1], [2]), "Between"),
        (lambda: Between(1, 2.0), "Between"),
        (lambda: Between(datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)), "Between"),
        (lambda: Between(NAN, 1.0), "Between"),
        (lambda: Between(Decimal("NaN"), Decimal(1)), "Between"),
        (lambda: Between(Decimal("sNaN"), Decimal(1)), "Between"),
        (lambda: Template(Prefix("a")), "one field"),
        (lambda: Prefix(1), r"Prefix\(\) takes a str, not 1"),  # type: ignore[arg-type]
        (lambda: Suffix(b"a"), r"Suffix\(\) takes a str"),  # type: ignore[arg-type]
        (lambda: Regex(None), r"Regex\(\) takes a str"),  # type: ignore[arg-type]
        (lambda: Regex("(é"), r"Regex\('\(é'\).*missing \)"),
        (lambda: Regex(r"(a)\1"), "invalid escape"),
        (lambda: Regex("(?=a)"), "invalid perl operator"),
        (lambda: Regex("a{1001}"), "repetition"),
        (lambda: Regex("a" * 200_000), "too large"),
        (lambda: Regex("\ud800"), "surrogates"),
        (lambda: OneOf(), "OneOf"),
        (lambda: OneOf(1, {2}), "choice 1"),
        (lambda: Not({1}), r"Not\(\)"),
        (lambda: Where(1), "Where"),  # type: ignore[arg-type]
        (lambda: Exactly(1), "Exactly"),  # type: ignore[arg-type]
        (lambda: Named(), "Named"),
        (lambda: Named(x={1}), "'x'"),
        (lambda: Template(("a",)) & [1], "template"),
        (lambda: Template(("a",)) | 1, "template"),
        (lambda: Between(1, 2) & {1}, "&"),
        (lambda: Between(1, 2) | {1}, r"\|"),
    ],
)
def test_what_makes_no_sense_is_refused(make, says):
    with pytest.raises(BadTemplate, match=says):
        make()


def test_a_template_says_what_it_is():
    template = Template(("a", Between(1, 2), OneOf(int, "x"), Not(None))) | Named(x=1)
    text = repr(template)
    for part in ("'a'", "Between(1, 2)", "OneOf", "int", "Not", "Named"):
        assert part in text


def test_a_where_of_one_field_gets_a_copy():
    def spoil(value: Any) -> bool:
        value.append("spoilt")
        return True

    entry = ([1],)
    template = Template((Where(spoil),))
    assert template.matches(entry) and entry == ([1],)


class Walks(Protocol):
    def walk(self) -> None: ...


def test_a_type_that_cannot_be_asked_is_refused():
    with pytest.raises(BadTemplate, match="Walks"):
        Template((Walks,)).matches((1,))


def test_any_of_typing_is_any_or_refused_but_never_silently_nothing():
    try:
        template = Template(("a", Any))
    except BadTemplate:
        return
    assert template.matches(("a", 1)) and template.matches(("a", None))


def test_a_kind_is_found_at_any_depth_whether_its_class_is_known_or_not():
    @dataclass
    class Inner:
        n: int

    @dataclass
    class Outer:
        what: Any

    held = Inner(1)
    holders = [held, (held,), (1, [held]), ({"a": (held,)},), Outer(held), Outer([Outer(held)])]
    others: list[Any] = [(1,), ([1], {"a": 2}), Outer(1), Outer([2]), (), Outer(None)]
    template = Template(OfKind(name_of(Inner), ("n",)))
    assert all(map(template.matches, holders)) and not any(map(template.matches, others))
    assert all(map((~template).matches, others)) and not any(map((~template).matches, holders))
    later = Template(OfKind(name_of(Inner), ("n", "size")))
    assert not any(map(later.matches, holders)), "another version of the class is another kind"
    assert repr(template) == f"Template(OfKind({name_of(Inner)!r}, ('n',)))"


@pytest.mark.parametrize("value", [1, 1.0, True, None, "1", b"1", math.nan, -0.0, (1,), [1]])
def test_one_of_many_values_is_what_each_of_them_is(value):
    choices = [0, 1, 2.0, False, None, "x", b"1", math.nan, 0.0, (1,), str]
    expected = any(Template((choice,)).matches((value,)) for choice in choices)
    assert Template((OneOf(*choices),)).matches((value,)) == expected


short = st.text("ab\né\ud800", max_size=6)


@given(short, short | values)
def test_prefix_and_suffix_are_those_of_python(text, value):
    is_text = type(value) is str
    assert Template((Prefix(text),)).matches((value,)) == (is_text and value.startswith(text))
    assert Template((Suffix(text),)).matches((value,)) == (is_text and value.endswith(text))


patterns = st.recursive(
    st.sampled_from(["a", "b", "é", ".", "[ab]", "[^a]", r"\n", r"\w", "", "^", r"\b"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda some: f"(?:{'|'.join(some)})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda two: f"(?:{two[0]}){two[1]}"),
    ),
    max_leaves=6,
)


@given(patterns, st.text("ab\né", max_size=6))
def test_a_regex_matches_what_fullmatch_of_python_matches(pattern, text):
    expected = re.compile(pattern, re.ASCII).fullmatch(text) is not None
    assert Template((Regex(pattern),)).matches((text,)) == expected


def test_a_regex_may_be_asked_of_text_that_is_not_valid_unicode():
    assert Template((Regex("a.b"),)).matches(("a\ud800b",))
    assert not Template((Regex("[ab]*"),)).matches(("a\ud800b",))


def test_a_match_that_could_take_very_long_is_not_tried():
    """States that no table holds: each byte would cost a step for each of them."""
    slow = Regex("(a|b)*a(a|b){900}")
    assert Template((slow,)).matches(("a" * 901,))
    assert not Template((slow,)).matches(("a" * 20_000,))
    assert Template((Regex("(a|b)*"),)).matches(("ab" * 500_000,))


def test_without_re2_a_regex_names_the_extra_and_the_others_work():
    program = """
import sys
sys.modules["re2"] = None
import tupelo
space = tupelo.Space()
space.write(("job-1",))
print(space.read((tupelo.Prefix("job") & tupelo.Suffix("1"),)))
try:
    tupelo.Regex("a+")
except tupelo.errors.BadTemplate as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "('job-1',)",
        "Regex('a+') needs the package google-re2, which is not here: "
        'pip install "tupelo[patterns]"',
    ]
