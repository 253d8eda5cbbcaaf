"""Kinds: the name by which a class is known, here and elsewhere."""

import gc
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import pytest

import tupelo
from tupelo import ANY, Named, Template
from tupelo.errors import BadArgument, UnknownType
from tupelo.values import entry as entry_module
from tupelo.values import kind as kind_module
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import Entry, Typed, freeze, require_known, shape_of, thaw
from tupelo.values.kind import Kind, kind_named, kind_of, stand_in


@dataclass
class Plain:
    a: int = 0


@tupelo.entry("kinds.fixed")
@dataclass
class Fixed:
    a: int = 0


def elsewhere(name: str, fields: dict[str, Any], *above: str) -> tuple[Any, tuple[Any, ...]]:
    """An entry as another program encoded it, whose class is not known here."""
    kind = kind_named(name, tuple(fields), (name, *above))
    values = tuple(fields.values())
    return decode_entry(encode_entry(shape_of(kind, tuple(map(type, values))), values))


def matches(template: Any, shape: Any, fields: tuple[Any, ...]) -> bool:
    binding = Template(template).bind(shape)
    return binding is not None and binding.test(fields)


def test_a_class_is_known_by_its_qualified_name_from_its_first_use():
    assert kind_of(Plain).name == f"{Plain.__module__}.Plain"


def test_a_class_may_be_given_a_name():
    assert kind_of(Fixed).name == "kinds.fixed"
    assert thaw(*decode_entry(encode_entry(*freeze(Fixed(7))))) == Fixed(7)


def test_a_subclass_of_a_named_class_has_a_name_of_its_own():
    @dataclass
    class Sub(Fixed):
        b: int = 0

    kind = kind_of(Sub)
    assert kind.name.endswith("Sub") and kind.lineage[1] == "kinds.fixed"
    assert Template(Fixed(1)).matches(Sub(1, 2)) and Template(Fixed).matches(Sub(1, 2))


@pytest.mark.parametrize("name", ["", None, 1, b"x"])
def test_a_name_is_a_text(name):
    with pytest.raises(BadArgument, match="name="):
        tupelo.entry(name)


@pytest.mark.parametrize("thing", [int, Plain(1), "Plain", lambda: None])
def test_only_a_dataclass_is_given_a_name(thing):
    with pytest.raises(BadArgument, match="dataclass"):
        tupelo.entry("kinds.thing")(thing)


def test_a_name_is_given_to_one_class_only():
    with pytest.raises(BadArgument, match=r"kinds\.fixed"):

        @tupelo.entry("kinds.fixed")
        @dataclass
        class Thief:
            a: int = 0

    assert thaw(*freeze(Fixed(1))) == Fixed(1)


def test_a_class_may_be_named_after_its_first_use():
    @dataclass
    class Late:
        a: int = 0

    assert kind_of(Late).name.endswith("Late")
    assert tupelo.entry("kinds.late")(Late) is Late
    assert kind_of(Late).name == "kinds.late"
    assert type(thaw(*decode_entry(encode_entry(*freeze(Late(1)))))) is Late


# Classes that this program does not know


def test_an_unknown_class_is_kept_and_carried():
    shape, fields = elsewhere("away.Thing", {"a": 1, "b": [2]})
    encoded = encode_entry(shape, fields)
    again, same = decode_entry(encoded)
    assert again is shape and same == fields and encode_entry(again, same) == encoded


def test_an_unknown_class_is_refused_when_it_would_have_to_be_built():
    shape, fields = elsewhere("away.Thing", {"a": 1})
    with pytest.raises(UnknownType, match=r"away\.Thing.*import it") as unknown:
        thaw(shape, fields)
    assert unknown.value.name == "away.Thing"
    with pytest.raises(UnknownType):
        require_known(Entry(fields, shape, "x", 1, 1))


@pytest.mark.parametrize("wrap", [lambda v: (v,), lambda v: ([v],), lambda v: ({"k": (v,)},)])
def test_an_unknown_class_inside_a_field_is_refused_too(wrap):
    shape, fields = elsewhere("away.Thing", {"a": 1})
    assert isinstance(shape.kind, Kind)
    wrapped = wrap(Typed(shape.kind, fields))
    outer = shape_of(None, tuple(map(type, wrapped)))
    with pytest.raises(UnknownType):
        require_known(Entry(wrapped, outer, "x", 1, 1))


def test_an_unknown_class_is_matched_by_its_fields():
    shape, fields = elsewhere("away.Thing", {"name": "x", "size": 3})
    assert matches(Named(name="x"), shape, fields)
    assert matches(Named(size=int, name=ANY), shape, fields)
    assert not matches(Named(name="y"), shape, fields)
    assert not matches(Named(colour=ANY), shape, fields)
    assert matches(ANY, shape, fields)
    assert not matches(tuple, shape, fields)


def test_an_unknown_subclass_is_matched_by_the_name_of_its_base():
    shape, fields = elsewhere("away.Sub", {"a": 5, "extra": 1}, "kinds.fixed")
    assert matches(Fixed(5), shape, fields) and not matches(Fixed(6), shape, fields)
    assert matches(Fixed, shape, fields) and not matches(Plain, shape, fields)


def test_an_entry_becomes_known_with_its_class():
    shape, fields = elsewhere("away.soon", {"a": 9})
    with pytest.raises(UnknownType):
        thaw(shape, fields)

    @tupelo.entry("away.soon")
    @dataclass
    class Soon:
        a: int = 0

    assert thaw(shape, fields) == Soon(9)


def test_importing_is_never_done_for_you():
    module = types.ModuleType("never_imported")
    shape, fields = elsewhere("never_imported.Thing", {"a": 1})
    with pytest.raises(UnknownType):
        thaw(shape, fields)
    assert module.__name__ not in sys.modules


# Classes that change


def test_a_class_that_gained_a_field_gives_old_entries_its_default():
    @tupelo.entry("evolving.gained")
    @dataclass
    class Gained:
        a: int
        tags: list[str] = field(default_factory=list)
        size: int = 7

    shape, fields = elsewhere("evolving.gained", {"a": 1})
    one, other = thaw(shape, fields), thaw(shape, fields)
    assert one == Gained(1, [], 7)
    assert one.tags is not other.tags


def test_a_class_that_gained_a_field_without_a_default_does_not_fit():
    @tupelo.entry("evolving.demanding")
    @dataclass
    class Demanding:
        a: int
        b: int

    shape, fields = elsewhere("evolving.demanding", {"a": 1})
    with pytest.raises(UnknownType, match=r"lacks \['b'\]"):
        thaw(shape, fields)


def test_a_class_that_lost_a_field_does_not_fit():
    @tupelo.entry("evolving.lost")
    @dataclass
    class Lost:
        a: int

    shape, fields = elsewhere("evolving.lost", {"a": 1, "gone": 2})
    with pytest.raises(UnknownType, match="gone"):
        thaw(shape, fields)
    assert matches(Lost(1), shape, fields)


def test_a_class_whose_fields_changed_places_fits():
    @tupelo.entry("evolving.moved")
    @dataclass
    class Moved:
        b: int
        a: int

    shape, fields = elsewhere("evolving.moved", {"a": 1, "b": 2})
    assert thaw(shape, fields) == Moved(b=2, a=1)
    assert matches(Moved(b=2, a=None), shape, fields)  # type: ignore[arg-type]
    assert not matches(Moved(b=1, a=None), shape, fields)  # type: ignore[arg-type]


def test_building_runs_no_code_of_the_class():
    calls = []

    @dataclass
    class Chatty:
        a: int

        def __post_init__(self) -> None:
            calls.append(self.a)

    shape, fields = freeze(Chatty(1))
    assert thaw(shape, fields) == Chatty(1)
    assert calls == [1, 1]  # once for each Chatty(1) that is written here


def test_a_class_that_is_not_known_here_has_a_stand_in():
    inner = Typed(kind_named("far.Part", ("n",), ("far.Part",)), (7,))
    shape, fields = elsewhere("far.Job", {"name": "a", "inner": [inner]}, "far.Base")
    with pytest.raises(UnknownType):
        thaw(shape, fields)
    job = thaw(shape, fields, stand_ins=True)
    assert (type(job).__name__, job.name, job.inner[0].n) == ("Job", "a", 7)
    assert repr(job.inner[0]) == "Part(n=7)" and job == thaw(shape, fields, stand_ins=True)
    again, values = freeze(job)  # It is written again under the name that it has elsewhere.
    assert again.kind is shape.kind and again.kind.lineage == ("far.Job", "far.Base")
    assert values[1][0].kind is inner.kind
    assert matches(Named(name="a"), again, values)


def test_a_known_class_needs_no_stand_in():
    assert type(thaw(*freeze(Plain(3)), stand_ins=True)) is Plain


@pytest.mark.parametrize(
    "names", [("class",), ("1",), ("a", "a"), tuple(f"f{i}" for i in range(256))]
)
def test_not_every_class_can_have_a_stand_in(names):
    kind = kind_named("far.Odd", names, ("far.Odd",))
    with pytest.raises(UnknownType):
        stand_in(kind)


def test_stand_ins_are_bounded_and_keep_their_names(monkeypatch):
    monkeypatch.setattr("tupelo.values.kind.STAND_INS_MAX", 2)
    kinds = [kind_named(f"far.Bound{i}", ("a",), (f"far.Bound{i}",)) for i in range(10)]
    made = [stand_in(kind)() for kind in kinds]
    assert len(kind_module._stand_ins) == 2
    for number, one in enumerate(made):  # also those whose class was let go
        one.a = number
        shape, fields = freeze(one)
        assert (shape.kind.name, fields) == (f"far.Bound{number}", (number,))  # type: ignore[union-attr]


def test_the_name_of_a_stand_in_is_one_that_python_allows():
    assert stand_in(kind_named("far.a b", ("a",), ("far.a b",))).__name__ == "StandIn"


def test_kinds_and_shapes_that_nobody_uses_are_forgotten():
    # How many of those at hand are of this test depends on when they were last cleared.
    gc.collect()
    shapes_max = len(entry_module._shapes) + entry_module.SHAPES_MAX
    kinds_max = len(kind_module._kinds) + kind_module.KINDS_MAX + entry_module.SHAPES_MAX
    for number in range(40_000):
        stranger = kind_named(f"far.K{number}", (f"f{number}",), (f"far.K{number}",))
        shape_of(stranger, (int,))
        shape_of(None, (int,) * (number % 300))
    gc.collect()
    assert len(kind_module._kinds) <= kinds_max
    assert len(entry_module._shapes) <= shapes_max


def test_a_shape_that_is_in_use_is_the_same_for_ever():
    shape, _ = freeze(("kept", 1, 2.0, b"x", True))
    for number in range(2 * entry_module.SHAPES_MAX):
        far = kind_named(f"far.Other{number}", ("a",), (f"far.Other{number}",))
        shape_of(far, (int,))
    assert freeze(("kept", 1, 2.0, b"x", True))[0] is shape
