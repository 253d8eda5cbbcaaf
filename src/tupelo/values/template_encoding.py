"""The encoding of templates for other programs, which may not have the classes.

A template becomes nested tuples of values, which the codec encodes. Classes are given by name. A
`Where` is refused: code is never sent.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID

from msgspec.msgpack import Ext

from tupelo.errors import BadEntry, BadTemplate, TupeloError
from tupelo.values.codec import BadBytes, decode_entry, encode_entry, read_extension
from tupelo.values.entry import DEPTH_MAX, NATIVE, shape_of, types_of
from tupelo.values.kind import name_of
from tupelo.values.parts import (
    ANY,
    REGEX_COST_MIN,
    AnyPart,
    Between,
    Both,
    Equal,
    Exactly,
    Nested,
    NestedTyped,
    Not,
    OfKind,
    OfType,
    OneOf,
    Part,
    Prefix,
    Regex,
    Suffix,
    TextPart,
    Where,
    as_part,
)
from tupelo.values.template import AllOf, AnyOf, Combined, Named, NoneOf, Template, as_template

EncodedTemplate = tuple[Any, ...]


class UnusablePart(BadBytes):
    """A template has a part that this program cannot ask: of a newer version, or one that needs a
    package that is not installed here."""


TEMPLATE_BYTES_MAX = 128 * 1024
"""The largest encoding of a template that is accepted from another program."""
TEMPLATE_COST_MAX = 1_000
"""The largest number of comparisons for one entry. The values of a OneOf count as one."""

_TYPES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        *(object, NoneType, bool, int, float, str, bytes),
        *(datetime, UUID, Decimal, tuple, list, dict),
    )
}
_TEMPLATE, _ANY, _TYPE = 16, 17, 18
_TYPE_NAMES = {cls: Ext(_TYPE, name.encode()) for name, cls in _TYPES.items()}
_SPELLED_TYPES = {name.encode(): cls for name, cls in _TYPES.items()}
_WILDCARD = Ext(_ANY, b"")
_READ_MAX = 1_024
_SHORT = 1_024  # bytes; long templates are not cached
_known: dict[bytes, Template] = {}
_COMBINED: dict[str, type[Combined]] = {"&": AllOf, "|": AnyOf, "~": NoneOf}
_SIGNS = {cls: sign for sign, cls in _COMBINED.items()}
_SIGNS_OF_PARTS = frozenset(
    (
        *("any", "=", "kind", "type", "exactly", "between", "prefix", "suffix", "regex"),
        *("one of", "not", "both", "tuple", "typed"),
    )
)


def encode_template(raw: Any) -> EncodedTemplate:
    """Convert a template to a value. Raises BadTemplate if it contains a `Where`."""
    template = raw if isinstance(raw, Template) else None
    if template is not None:
        raw = template.raw
    if isinstance(raw, Combined):
        return (_SIGNS[type(raw)], *(encode_template(part) for part in raw.parts))
    if isinstance(raw, Named):
        return ("named", _encode_fields(raw.fields))
    if template is None:
        Template(raw)  # raises BadTemplate
    return _encode(as_part(raw, "field"))


def read_template(encoded: Any) -> Template:
    """The reverse of `encode_template`. Raises BadBytes."""
    try:
        _check_cost(_regexes(encoded) * REGEX_COST_MIN, BadBytes)  # before they are compiled
        return _read_whole(encoded, 0)
    except BadTemplate as error:
        raise BadBytes(f"this is no template: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadBytes(f"this does not encode a template: {error}") from error


def template_to_wire(raw: Any) -> Any:
    """Convert a template to an object that msgpack can encode; common ones become a list of their
    fields. Raises BadTemplate if the template cannot be sent or exceeds a limit."""
    given = raw.raw if isinstance(raw, Template) else raw
    if type(given) is tuple:
        fields = [_encode_field(field) for field in given]
        if NotImplemented not in fields:
            _check_cost(len(fields), BadTemplate)
            return fields
    template = as_template(raw)
    encoded = encode_template(template)
    try:
        packed = encode_entry(shape_of(None, types_of(encoded)), encoded)
    except BadEntry as error:
        raise BadTemplate(f"the template is not valid Unicode: {error.__cause__}") from error
    _check_size(len(packed), BadTemplate)
    _check_cost(template.cost, BadTemplate)
    return Ext(_TEMPLATE, packed)


def _check_size(size: int, error: type[TupeloError]) -> None:
    if size > TEMPLATE_BYTES_MAX:
        raise error(
            f"the template needs {size:,} bytes, and {TEMPLATE_BYTES_MAX:,} can be sent to another"
            " program; ask several times, with a part of it each"
        )


def _check_cost(cost: int, error: type[TupeloError]) -> None:
    if cost > TEMPLATE_COST_MAX:
        raise error(
            f"the template makes {cost:,} comparisons with each entry, and another program allows"
            f" {TEMPLATE_COST_MAX:,}; ask several times, with a part of it each"
        )


def template_from_wire(value: Any) -> Any:
    """The reverse of `template_to_wire`, with `read_wire_extension`. Raises BadBytes, or
    BadTemplate if the template is sound and cannot be used here."""
    if type(value) is list:
        fields = tuple(value)
        _check_cost(len(fields), BadBytes)
        for field in fields:
            cls = type(field)
            if not (cls in NATIVE or cls is type or field is ANY):
                raise BadBytes(f"a {cls.__name__} is no field of a template")
        return fields
    if type(value) is Template:
        return value
    if type(value) is UnusablePart:
        raise BadTemplate(str(value)) from value
    raise BadBytes(f"a template expected, not a {type(value).__name__}")


def read_wire_extension(code: int, data: memoryview) -> Any:
    """Reads the msgpack extensions of templates and values."""
    if code == _ANY:
        return ANY
    if code == _TYPE:
        cls = _SPELLED_TYPES.get(bytes(data))
        if cls is None:
            raise BadBytes(f"no value is of the type {bytes(data)!r}")
        return cls
    if code == _TEMPLATE:
        encoded = bytes(data)
        known = _known.get(encoded)  # Repeated templates are decoded and planned once.
        if known is None:
            _check_size(len(encoded), BadBytes)
            try:
                known = read_template(decode_entry(encoded)[1])
            except UnusablePart as error:  # The link stays: only this request is refused.
                return error
            _check_cost(known.cost, BadBytes)
            if len(encoded) <= _SHORT:
                if len(_known) >= _READ_MAX:
                    _known.clear()
                _known[encoded] = known
        return known
    return read_extension(code, data)


def _valid(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadTemplate(f"the template is not valid Unicode: {error}") from error
    return text


def _encode_field(field: Any) -> Any:
    cls = type(field)
    if cls is str:
        return field if field.isascii() else _valid(field)
    if cls in NATIVE:
        return field if cls is not int or -(2**63) <= field < 2**64 else NotImplemented
    if cls is type:
        return _TYPE_NAMES.get(field, NotImplemented)
    return _WILDCARD if field is ANY else NotImplemented


def _encode(part: Part) -> EncodedTemplate:
    match part:
        case AnyPart():
            return ("any",)
        case Equal(value=value):
            return ("=", value)
        case OfKind(name=name, names=names):
            return ("kind", name, *names)
        case OfType(cls=cls):
            return ("type", *_encode_class(cls))
        case Exactly(cls=cls):
            return ("exactly", *_encode_class(cls))
        case Between(low=low, high=high):
            return ("between", low, high)
        case TextPart(text=text):
            return (type(part).__name__.lower(), text)
        case OneOf(choices=choices):
            return ("one of", *map(_encode, choices))
        case Not(part=inner):
            return ("not", _encode(inner))
        case Both(first=first, second=second):
            return ("both", _encode(first), _encode(second))
        case Nested(parts=parts):
            return ("tuple", *map(_encode, parts))
        case NestedTyped(cls=cls, fields=fields):
            return ("typed", *_encode_class(cls), _encode_fields(fields))
        case Where():
            raise BadTemplate(
                f"{part!r} cannot be sent to another program: its function is code; use values, "
                "types, Between, Prefix, Regex, OneOf, Not and Named"
            )
    raise BadTemplate(f"{part!r} cannot be sent to another program")


def _encode_fields(fields: dict[str, Part]) -> tuple[Any, ...]:
    return tuple([(name, _encode(part)) for name, part in fields.items()])


def _encode_class(cls: type | str) -> tuple[str, str]:
    if isinstance(cls, str):
        return "kind", cls
    if _TYPES.get(cls.__name__) is cls:
        return "value", cls.__name__
    if hasattr(cls, "__dataclass_fields__"):
        return "kind", name_of(cls)
    raise BadTemplate(f"the type {cls.__name__} cannot be sent: it is no value's and no dataclass")


def _read_whole(encoded: Any, depth: int) -> Template:
    _require_depth(depth)
    sign = encoded[0]
    if sign in _COMBINED:
        parts = [_read_whole(part, depth + 1) for part in encoded[1:]]
        if not parts or (sign == "~" and len(parts) != 1) or (sign == "&" and len(parts) != 2):
            raise BadBytes(f"{sign!r} of {len(parts)} templates")
        return Template(_COMBINED[sign](*parts))
    if sign == "named":
        return Template(Named(**_read_fields(encoded[1], depth)))
    return Template(_read(encoded, depth))


def _read(encoded: Any, depth: int) -> Part:
    _require_depth(depth)
    if encoded[0] not in _SIGNS_OF_PARTS:
        raise UnusablePart(
            f"the part {encoded[0]!r:.50} of a template is not known to this version"
        )
    below = depth + 1
    match encoded:
        case ("any", *_):
            return ANY
        case ("=", value):
            return Equal(value)
        case ("kind", name, *names):
            return OfKind(_text(name), tuple(map(_text, names)))
        case ("type", sort, name):
            return OfType(_read_class(sort, name))
        case ("exactly", sort, name):
            part = Exactly(object)
            part.cls = _read_class(sort, name)
            return part
        case ("between", low, high):
            return Between(low, high)
        case ("prefix", text):
            return Prefix(text)
        case ("suffix", text):
            return Suffix(text)
        case ("regex", text):
            return _read_regex(text)
        case ("one of", *choices):
            return OneOf(*[_read(choice, below) for choice in choices])
        case ("not", part):
            return Not(_read(part, below))
        case ("both", first, second):
            return Both(_read(first, below), _read(second, below))
        case ("tuple", *parts):
            return Nested(tuple([_read(part, below) for part in parts]))
        case ("typed", sort, name, fields):
            return NestedTyped(_read_class(sort, name), _read_fields(fields, below))
    raise BadBytes(f"the part {encoded[0]!r} of a template has the wrong number of values")


def _read_fields(encoded: Any, depth: int) -> dict[str, Part]:
    return {_text(name): _read(part, depth + 1) for name, part in encoded}


def _read_class(sort: str, name: str) -> Any:
    return _TYPES[name] if sort == "value" else _text(name)


def _read_regex(text: Any) -> Part:
    try:
        part = Regex(text)
    except BadTemplate as error:  # Without RE2, or with an older one.
        raise UnusablePart(str(error)) from error
    _check_cost(part.cost, BadBytes)
    return part


def _regexes(encoded: Any) -> int:
    if type(encoded) is not tuple or not encoded:
        return 0
    return int(encoded[0] == "regex") + sum(map(_regexes, encoded[1:]))


def _text(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise BadBytes(f"a name expected, not {name!r}")
    return name


def _require_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise BadBytes(f"nested deeper than {DEPTH_MAX} levels")
