"""Entries and templates as JSON, without loss, for programs that are not written in Python.

A tuple is an array and a dataclass is `{"$kind": "job", "fields": {...}}`. Values that JSON does
not have are objects with one key: `{"$bytes": "aGk="}` (base64), `{"$datetime": "2026-11-18T..."}`,
`{"$uuid": ...}`, `{"$decimal": "1.50"}`, `{"$float": "nan"}`, `{"$int": "9007199254740993"}` for
integers above 2**53, `{"$tuple": [...]}` for a tuple inside an entry (an array is a list there),
and `{"$dict": [[key, value], ...]}` for a dict that JSON could not hold. A template may also have
`{"$any": true}`, `{"$type": "int"}`, `{"$prefix": "job-"}`, `{"$suffix": ".png"}` and
`{"$regex": "[a-z]+"}`; or it is text, as on the command line.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from tupelo.errors import BadEntry, BadTemplate, TupeloError
from tupelo.federation.client.arguments import built
from tupelo.values.entry import Typed, freeze
from tupelo.values.kind import build, kind_named
from tupelo.values.parts import ANY, Prefix, Regex, Suffix, TextPart
from tupelo.values.template import Template, as_template
from tupelo.values.text import INTEGER_BITS_MAX, read_entry, read_template, type_named

SAFE_INTEGER = 2**53
"""Integers up to this size are exact in every JSON reader."""
DEPTH_MAX = 64
_UNREADABLE = (KeyError, TypeError, ValueError, InvalidOperation, binascii.Error, RecursionError)


def entry_to_json(entry: object) -> Any:
    """An entry as a space returns it, as JSON."""
    if type(entry) is tuple:
        return [
            field
            if (cls := type(field)) is str
            or (cls is int and -SAFE_INTEGER <= field <= SAFE_INTEGER)
            else _to_json(field)
            for field in entry
        ]
    shape, fields = freeze(entry)
    if shape.kind is not None:
        return _to_json(Typed(shape.kind, fields))
    return [_to_json(field) for field in fields]


def encoded_to_json(encoded: Any) -> Any:
    """An entry as a message from a host has it, as JSON. Most need no other form in between."""
    if type(encoded) is list:
        for field in encoded:
            cls = type(field)
            if cls is not str and (cls is not int or not -SAFE_INTEGER <= field <= SAFE_INTEGER):
                break
        else:
            return encoded
    return entry_to_json(built(encoded))


def fields_to_json(kind: Any, fields: tuple[Any, ...]) -> Any:
    """The fields of a change or an entry, of this kind or of none, as JSON."""
    return _to_json(Typed(kind, fields)) if kind is not None else [_to_json(f) for f in fields]


def entry_from_json(said: Any) -> Any:
    """The entry of a JSON document: an array, an object with "$kind", or text.

    BadEntry if it is none of these.
    """
    if isinstance(said, str):
        return read_entry(said)
    try:
        if isinstance(said, list):
            return tuple([_from_json(value, 0) for value in said])
        if isinstance(said, dict) and "$kind" in said:
            return _from_json(said, 0)
    except TupeloError:
        raise
    except _UNREADABLE as error:
        raise BadEntry(f"entry={said!r:.200} cannot be read: {error}") from error
    raise BadEntry(f'entry={said!r:.200} is no entry: write ["job", 7] or {{"$kind": "job", ...}}')


def template_from_json(said: Any) -> Template:
    """The template of a JSON document: text, or an array with `{"$any": true}` and such.

    None matches every entry. BadTemplate if it cannot be read.
    """
    if said is None:
        return as_template(ANY)
    if isinstance(said, str):
        return read_template(said)
    try:
        if isinstance(said, list):
            return as_template(tuple([_from_json(value, 0, part=True) for value in said]))
    except BadTemplate:
        raise
    except (*_UNREADABLE, TupeloError) as error:
        raise BadTemplate(f"template={said!r:.200} cannot be read: {error}") from error
    raise BadTemplate(f"template={said!r:.200} is no template: write text or an array")


def _to_json(value: Any) -> Any:
    cls = type(value)
    if cls is str or cls is bool or value is None:
        return value
    if cls is int:
        return value if -SAFE_INTEGER <= value <= SAFE_INTEGER else {"$int": _digits(value)}
    if cls is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if cls is Typed:
        pairs = zip(value.kind.names, value.values, strict=True)
        return {"$kind": value.kind.name, "fields": {name: _to_json(v) for name, v in pairs}}
    if cls is list:
        return [_to_json(item) for item in value]
    if cls is tuple:
        return {"$tuple": [_to_json(item) for item in value]}
    if cls is dict:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _to_json(inner) for key, inner in value.items()}
        return {"$dict": [[_to_json(key), _to_json(inner)] for key, inner in value.items()]}
    if cls is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if cls is datetime:
        return {"$datetime": value.isoformat()}
    return {"$uuid" if cls is UUID else "$decimal": str(value)}


def _digits(value: int) -> str:
    # Python refuses to write out larger ones in decimal.
    return str(value) if value.bit_length() <= INTEGER_BITS_MAX else hex(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$datetime": datetime.fromisoformat,
    "$uuid": UUID,
    "$decimal": Decimal,
    "$float": float,
    "$int": lambda text: int(text, 0),
}

_TEXT_PARTS: dict[str, type[TextPart]] = {"$prefix": Prefix, "$suffix": Suffix, "$regex": Regex}


def _from_json(said: Any, depth: int, part: bool = False) -> Any:
    if depth > DEPTH_MAX:
        raise ValueError(f"nested more than {DEPTH_MAX} deep")
    if isinstance(said, list):
        return [_from_json(item, depth + 1, part) for item in said]
    if not isinstance(said, dict):
        return said
    if "$kind" in said:
        fields = {
            name: _from_json(value, depth + 1, part)
            for name, value in dict(said.get("fields", {})).items()
        }
        kind = kind_named(said["$kind"], tuple(fields), (said["$kind"],))
        return build(kind, tuple(fields.values()), stand_ins=True)
    if len(said) == 1 and next(iter(said)).startswith("$"):
        [(key, inner)] = said.items()
        if key == "$tuple":
            return tuple([_from_json(item, depth + 1, part) for item in inner])
        if key == "$dict":
            return {_key(k, depth): _from_json(v, depth + 1, part) for k, v in inner}
        if part and key == "$any":
            return ANY
        if part and key == "$type":
            return _type_named(inner)
        if part and key in _TEXT_PARTS:
            return _TEXT_PARTS[key](inner)
        if key not in _READERS:
            raise ValueError(f"{key!r} is not known")
        if not isinstance(inner, str):
            raise ValueError(f"{key!r} has text")
        return _READERS[key](inner)
    return {key: _from_json(value, depth + 1, part) for key, value in said.items()}


def _key(said: Any, depth: int) -> Any:
    key = _from_json(said, depth + 1)
    hash(key)  # TypeError if it cannot be a key.
    return key


def _type_named(name: str) -> Any:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f'"$type" has the name of a type, not {name!r}')
    return type_named(name)
