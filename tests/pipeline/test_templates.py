"""Templates as options: texts in, the same matching out."""

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pytest

import tupelo
from tupelo.errors import BadTemplate
from tupelo.pipeline.source.options import as_option, from_option, matching
from tupelo.values.codec import encode_entry
from tupelo.values.entry import freeze


@tupelo.entry("tests.pipeline.errand")
@dataclass
class Errand:
    name: str | None = None
    size: int | None = None


@pytest.mark.parametrize(
    ("text", "fits", "fits_not"),
    [
        ("ANY", ("job", 1), None),
        ('("job", int)', ("job", 1), ("job", 1.0)),
        ('("job", ANY, None)', ("job", 1, None), ("job", 1, 2)),
        ('("job", -3)', ("job", -3), ("job", 3)),
        ('("job", Between(1, 9) & Not(5))', ("job", 4), ("job", 5)),
        ('("job", OneOf(1, "one"))', ("job", "one"), ("job", 2)),
        ('("job", Prefix("a") & Suffix("z"))', ("job", "az"), ("job", "a")),
        (r'("job", Regex(r"\d+") | int)', ("job", "12"), ("job", "x")),
        ('("job", int | str)', ("job", "x"), ("job", 1.5)),
        ('("a",) | ("b", int)', ("b", 2), ("b",)),
        ('("a", int) & ~("a", 3)', ("a", 2), ("a", 3)),
        ('("a", (1, [2, {"k": b"v"}]))', ("a", (1, [2, {"k": b"v"}])), ("a", (1, [2, {}]))),
        ('("at", datetime("2026-01-02"))', ("at", datetime(2026, 1, 2)), ("at", "2026-01-02")),
        ('Named(name="x")', Errand("x", 1), Errand("y", 1)),
        ('tests.pipeline.errand(name="x", size=Between(1, 3))', Errand("x", 2), Errand("x", 4)),
        ("tests.pipeline.errand", Errand("y"), ("y",)),
    ],
)
def test_a_template_is_written_as_in_python(text, fits, fits_not):
    template = from_option(text)
    assert template.matches(fits)
    assert fits_not is None or not template.matches(fits_not)


def test_a_template_of_a_program_becomes_an_option():
    template = from_option(as_option(Errand(name="x")))
    assert template.matches(Errand("x", 9)) and not template.matches(Errand("y"))
    plain = from_option(as_option(("job", int)))
    assert plain.matches(("job", 1)) and not plain.matches(("job", "1"))
    with pytest.raises(BadTemplate):
        as_option(("job", tupelo.Where(lambda n: n > 3)))


@pytest.mark.parametrize(
    "text",
    [
        *("", "(", '("a"', "1 + 1", "5", "[1]", '("a", ...)', 'f"{1}"', "(lambda: 1,)", "{1: 2}"),
        *('__import__("os").system("true")', "(x for x in ())", "errand(1)", "errand(**{})"),
        *("spelled:!", "spelled:AAAA", "Between(2, 1, 0)", 'UUID("x")', "(1j,)", "Named()"),
        "(" * 500 + ")" * 500,
    ],
)
def test_what_is_no_template_is_refused_and_never_run(text):
    with pytest.raises(BadTemplate):
        from_option(text)


def test_what_is_no_entry_matches_nothing():
    payloads = [encode_entry(*freeze(entry)) for entry in [("job", 1), ("job", "x")]]
    mask = matching(from_option('("job", int)'), pa.array([*payloads, None], pa.binary()))
    assert mask.to_pylist() == [True, False, False]
