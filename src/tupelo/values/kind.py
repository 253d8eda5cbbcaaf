"""Dataclasses as entries: the names by which programs and files know a class.

A `Kind` is what is sent and stored: a name, the field names, and the names of the base classes. The
class is only looked up to build an instance, so a program keeps, forwards and matches entries of
classes that it does not have.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from operator import attrgetter
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from tupelo.errors import BadArgument, BadEntry, UnknownType
from tupelo.values.checks import check_text

T = TypeVar("T", bound=type)

KINDS_MAX = 4_096
"""Size of the cache of kinds, which also keeps unused ones."""
KIND_TEXT_MAX = 4_096
"""Kinds whose names have more characters than this are not cached."""
STAND_INS_MAX = 1_000
"""The number of stand-in classes that are kept; the oldest is dropped first."""
STAND_IN_FIELDS_MAX = 255


class Kind(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The class of typed entries: `lineage` names the class itself and its dataclass bases."""

    name: str
    names: tuple[str, ...]
    lineage: tuple[str, ...]


_Names = tuple[str, tuple[str, ...], tuple[str, ...]]

_kinds_at_hand: dict[_Names, Kind] = {}
# All kinds in use. Other programs choose the names, so unused ones must not be kept.
_kinds: WeakValueDictionary[_Names, Kind] = WeakValueDictionary()
_kind_of_class: dict[type, Kind] = {}
_class_of_name: dict[str, type] = {}
_given_name: dict[type, str] = {}
_values_of_class: dict[type, Callable[[Any], tuple[Any, ...]]] = {}
_stand_ins: dict[Kind, type] = {}
_OF_STAND_IN = "__tupelo_kind__"
_only_stand_ins = ContextVar("only stand-ins", default=False)
_PRESENCE = ("tupelo.host", "tupelo.agent", "tupelo.space")
"""Kinds of entries in the presence space, whose classes are loaded when first needed."""


def entry(name: str) -> Callable[[T], T]:
    """Set the name by which files and other hosts know a dataclass: `@tupelo.entry("job")`."""
    check_text("name", name)

    def declare(cls: T) -> T:
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
            raise BadArgument("entry", "a dataclass (put @dataclass below @tupelo.entry)", cls)
        known = _class_of_name.get(name)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise BadArgument("name", f"free: {name!r} already names {known.__qualname__}", name)
        _given_name[cls] = name
        _kind_of_class.pop(cls, None)
        kind_of(cls)
        return cls

    return declare


def kind_of(cls: type) -> Kind:
    """The kind of a dataclass; from now on the class is found by the name of its kind."""
    kind = _kind_of_class.get(cls) or vars(cls).get(_OF_STAND_IN)
    if kind is None:
        names = tuple(field.name for field in dataclasses.fields(cls))
        lineage = tuple(
            name_of(base)
            for base in cls.__mro__
            if "__dataclass_fields__" in vars(base) or base is cls
        )
        kind = _kind_of_class[cls] = kind_named(lineage[0], names, lineage)
        _class_of_name[kind.name] = cls
        _values_of_class[cls] = _reader(names)
    return kind


def kind_named(name: str, names: tuple[str, ...], lineage: tuple[str, ...]) -> Kind:
    """The one Kind object with these names, whether or not its class is known here."""
    key = (name, names, lineage)
    return _kinds_at_hand.get(key) or _find_kind(key)


def _find_kind(key: _Names) -> Kind:
    name, names, lineage = key
    kind = _kinds.get(key) or Kind(name, names, lineage)
    if sum(map(len, names)) + sum(map(len, lineage)) <= KIND_TEXT_MAX:
        if len(_kinds_at_hand) >= KINDS_MAX:
            _kinds_at_hand.clear()
        kind = _kinds_at_hand.setdefault(key, kind)  # Another thread may have been faster.
    _kinds[key] = kind
    return kind


def name_of(cls: type | str) -> str:
    """The name of a class in files and other programs; a string is returned unchanged."""
    if isinstance(cls, str):
        return cls
    return _given_name.get(cls) or f"{cls.__module__}.{cls.__qualname__}"


def values_of(instance: Any) -> tuple[Any, ...]:
    """The field values of a dataclass instance, in the order of its kind's names."""
    cls = type(instance)
    reader = _values_of_class.get(cls)
    if reader is None:
        kind = kind_of(cls)
        reader = _values_of_class.get(cls) or _reader(kind.names)
    try:
        return reader(instance)
    except AttributeError:
        names = kind_of(cls).names
        absent = next(name for name in names if not hasattr(instance, name))
        raise BadEntry(f"field {absent!r} of the {cls.__name__} has no value") from None


def class_of(kind: Kind) -> type:
    """The class of a kind. Raises UnknownType if this program does not have it, or it differs."""
    cls = _class_of_name.get(kind.name) or _find_class(kind.name)
    if cls is None:
        if _only_stand_ins.get():
            return stand_in(kind)
        raise UnknownType(kind.name, fields=kind.names)
    known = kind_of(cls)
    if known is not kind and known.names != kind.names:
        missing = [
            field.name
            for field in dataclasses.fields(cls)
            if field.name not in kind.names
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ]
        extra = [name for name in kind.names if name not in known.names]
        if (missing or extra) and _only_stand_ins.get():
            return stand_in(kind)
        if missing or extra:
            raise UnknownType(
                kind.name,
                f"the class {kind.name!r} of this program does not fit the entry: "
                f"the entry lacks {missing}, the class lacks {extra}",
                kind.names,
            )
    return cls


def _find_class(name: str) -> type | None:
    """An entry class of Tupelo itself, or a dataclass of a loaded module that was not used as an
    entry before."""
    if name in _PRESENCE:
        import_module("tupelo.federation.hosts.presence")
        return _class_of_name.get(name)
    module, dot, rest = name.rpartition(".")
    while dot and module not in sys.modules:
        module, dot, last = module.rpartition(".")
        rest = f"{last}.{rest}"
    found: Any = sys.modules.get(module)
    for part in rest.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and dataclasses.is_dataclass(found) and name_of(found) == name:
        kind_of(found)
        return found
    return None


def stand_in(kind: Kind) -> type:
    """Make a dataclass for a kind whose class this program does not have. Its instances have the
    fields of the kind and can be written again under its name. Raises UnknownType if the names are
    not valid."""
    cls = _stand_ins.get(kind)
    if cls is None:
        if len(kind.names) > STAND_IN_FIELDS_MAX:
            raise UnknownType(kind.name)
        label = kind.name.rpartition(".")[2]
        try:
            cls = dataclasses.make_dataclass(
                label if label.isidentifier() else "StandIn", kind.names, init=False
            )
        except TypeError as error:  # A field's name is not valid in Python.
            raise UnknownType(kind.name) from error
        setattr(cls, _OF_STAND_IN, kind)  # Lives as long as the class.
        while len(_stand_ins) >= STAND_INS_MAX:
            _stand_ins.pop(next(iter(_stand_ins)), None)
        _stand_ins[kind] = cls
    return cls


def always_stand_in() -> None:
    """From now on build entries of unknown classes as stand-ins, in this thread or task and in the
    tasks it creates. For tools such as the command line, which have no classes of their own."""
    _only_stand_ins.set(True)


def class_if_known(kind: Kind) -> type | None:
    return _class_of_name.get(kind.name)


def is_at_hand(kind: Kind) -> bool:
    """Whether this program has the class, with the same fields as when the entry was written."""
    cls = _class_of_name.get(kind.name)
    return cls is not None and _kind_of_class.get(cls) is kind


def build(kind: Kind, values: tuple[Any, ...], stand_ins: bool = False) -> Any:
    """Make an instance with these values without running code of the class. With `stand_ins`, an
    unknown class is replaced by a stand-in."""
    try:
        cls = class_of(kind)
    except UnknownType:
        if not stand_ins:
            raise
        cls = stand_in(kind)
    instance: Any = object.__new__(cls)
    for name, value in zip(kind.names, values, strict=True):
        object.__setattr__(instance, name, value)
    if kind_of(cls).names != kind.names:
        for field in dataclasses.fields(cls):
            if field.name not in kind.names:
                default = (
                    field.default_factory()
                    if field.default_factory is not dataclasses.MISSING
                    else field.default
                )
                object.__setattr__(instance, field.name, default)
    return instance


def is_typed(value: object) -> bool:
    """Whether this is an instance of a dataclass, not a class."""
    return hasattr(type(value), "__dataclass_fields__")


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)

    def read(instance: Any) -> tuple[Any, ...]:
        return tuple([getattr(instance, name) for name in names])

    return read
