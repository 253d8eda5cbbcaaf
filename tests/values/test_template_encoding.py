"""A template that was sent asks what it asked before."""

from contextlib import suppress
from dataclasses import dataclass
from numbers import Number
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import shown
from tests.values.strategies import values
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
from tupelo.values.codec import BadBytes, decode_entry, encode_entry
from tupelo.values.entry import shape_of
from tupelo.values.parts import OfKind
from tupelo.values.template import as_template
from tupelo.values.template_encoding import (
    encode_template,
    read_template,
    read_wire_extension,
    template_from_wire,
    template_to_wire,
)


@dataclass
class Job:
    name: str | None = None
    size: int | None = None


@dataclass
class Urgent(Job):
    why: str | None = None


ENTRIES: list[Any] = [
    ("job", 1),
    ("job", 1.0),
    ("job", True),
    ("job", None),
    ("job", (1, "a")),
    ("job", [1]),
    ("job", "a.png"),
    ("job", "b"),
    ("job", Job("a", 1)),
    ("job", Urgent("a", 1, "now")),
    Job("a", 1),
    Job("b"),
    Urgent("a", 2, "now"),
    (),
    (5,),
]

TEMPLATES: list[Any] = [
    ANY,
    ("job", ANY),
    ("job", int),
    ("job", object),
    ("job", bool),
    ("job", 1),
    ("job", None),
    ("job", Between(0, 3)),
    ("job", Between(None, 3)),
    ("job", Prefix("a") & Suffix(".png")),
    ("job", Regex("[a-c]")),
    Job(name=Regex("a|c")),
    ("job", OneOf(1, None, (1, str))),
    ("job", Not(1)),
    ("job", int | None),
    ("job", (ANY, str)),
    ("job", [1]),
    ("job", Job),
    ("job", Job(name="a")),
    ("job", Exactly(Job)),
    Job,
    Job(),
    Job(name="a"),
    Urgent(),
    Exactly(Job),
    Exactly(tuple),
    tuple,
    object,
    Named(name="a"),
    Named(size=Between(1, 2), name=str),
    Template(Job(name="a")) | ("job", int),
    Template(Job()) & Named(size=1),
    ~Template(Job()),
    Template.any_of([Job(name="b"), (int,), ()]),
    Not(Job),
    OneOf(Job, tuple),
    OfKind("tests.values.test_template_encoding.Job", ("name", "size")),
    ~Template(OfKind("tests.values.test_template_encoding.Job", ("name", "size"))),
    ("job", OfKind("tests.values.test_template_encoding.Urgent", ("name", "size", "why"))),
]


def sent(template: Any) -> Template:
    """What arrives, through the bytes of an entry."""
    payload = encode_entry(shape_of(None, (tuple,)), (encode_template(template),))
    return read_template(decode_entry(payload)[1][0])


def wired(template: Any) -> Template:
    """What arrives over a link, the everyday templates in a short form."""
    content = msgspec.msgpack.encode(template_to_wire(template))
    decoded = msgspec.msgpack.Decoder(ext_hook=read_wire_extension).decode(content)
    return as_template(template_from_wire(decoded))


WAYS = pytest.mark.parametrize("send", [sent, wired])


@WAYS
@pytest.mark.parametrize("template", TEMPLATES, ids=shown)
def test_it_matches_what_it_matched_before(send, template):
    before, after = as_template(template), send(template)
    assert [after.matches(entry) for entry in ENTRIES] == [before.matches(e) for e in ENTRIES]


@WAYS
@given(value=values)
def test_every_value_can_be_asked_for(send, value):
    entry = ("value", value)
    assert send(entry).matches(entry) == Template(entry).matches(entry)


@pytest.mark.parametrize("value", [5, [[1]], [b"", {}], {"a": 1}, "text", None])
def test_what_arrives_over_a_link_and_is_no_template_is_refused(value):
    with pytest.raises(BadBytes):
        template_from_wire(value)


@pytest.mark.parametrize(
    "template", [Where(bool), ("a", Where(bool)), ~Template((Where(bool),)), ("a", Number)]
)
def test_code_and_foreign_types_are_not_sent(template):
    with pytest.raises(BadTemplate, match="cannot be sent"):
        encode_template(template)


@pytest.mark.parametrize("raw", [[], 5, Named])
def test_what_is_no_template_is_refused(raw):
    with pytest.raises(BadTemplate):
        encode_template(raw)


tree = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)


@given(tree)
def test_anything_else_is_told_apart(encoded):
    """Whatever arrives is a template or BadBytes, and nothing worse."""
    with suppress(BadBytes):
        assert isinstance(read_template(encoded), Template)


SIGNS = ["any", "=", "type", "exactly", "between", "one of", "not", "both", "tuple", "typed"]
SIGNS += ["prefix", "suffix", "regex"]


@given(st.sampled_from([*SIGNS, "&", "|", "~", "named"]), st.lists(tree, max_size=3))
def test_known_signs_with_anything_behind_them(sign, rest):
    with suppress(BadBytes):
        assert isinstance(read_template((sign, *rest)), Template)


def test_it_may_not_be_nested_too_deeply():
    deep: Any = ("any",)
    for _ in range(100):
        deep = ("not", deep)
    with pytest.raises(BadBytes, match="deeper"):
        read_template(deep)


def arrived(*encoded: Any) -> Any:
    """What a link delivers for an encoding that another version made."""
    packed = encode_entry(shape_of(None, tuple(map(type, encoded))), encoded)
    return read_wire_extension(16, memoryview(packed))


@pytest.mark.parametrize(
    ("part", "says"),
    [(("of the future", 1), "'of the future'.*not known"), (("regex", "(a"), r"Regex\('\(a'\)")],
)
def test_a_part_that_cannot_be_used_here_is_refused_and_does_not_end_the_link(part, says):
    for encoded in [("tuple", part), ("~", ("tuple", ("not", part)))]:
        with pytest.raises(BadTemplate, match=says):
            template_from_wire(arrived(*encoded))


def test_a_regex_of_many_steps_is_not_sent():
    with pytest.raises(BadTemplate, match="comparisons"):
        template_to_wire((Regex(".{1000}"),))
    with pytest.raises(BadBytes, match="comparisons"):
        arrived("tuple", ("regex", ".{1000}"))
    assert wired((Regex(r"\p{L}+"),)).matches(("é",))


def test_a_template_that_is_sent_has_few_regexes():
    several = [Regex(f"{n}+") for n in range(15)]
    assert wired((OneOf(*several),)).matches(("77",))
    with pytest.raises(BadTemplate, match="comparisons"):
        template_to_wire((OneOf(*several, *several),))
    with pytest.raises(BadBytes, match="makes 60,000 comparisons"):  # none was compiled
        arrived("tuple", ("not", ("one of", *[("regex", "(")] * 1_000)))
