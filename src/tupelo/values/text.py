"""Entries and templates as text, for the command line and for messages.

A template is written as in Python: `("job", int, ANY)`, `("job", Between(1, 9) & Not(5))`,
`("job", Prefix("a-") | Regex("b[0-9]+"))`,
`Named(name="resize")`, `job(name="resize")` for a dataclass by its name, and `&`, `|`, `~` between
templates. An entry is a tuple of values, `("job", 7)`, or a dataclass by its name. The text is
parsed, never evaluated.
"""

from __future__ import annotations

import ast
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from html import escape
from math import isfinite
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec

from tupelo.errors import BadEntry, BadTemplate
from tupelo.values.codec import BadBytes, decode_entry, encode_entry
from tupelo.values.entry import Shape, Typed, thaw
from tupelo.values.kind import build, is_typed, kind_named
from tupelo.values.parts import (
    ANY,
    Between,
    Exactly,
    NestedTyped,
    Not,
    OfType,
    OneOf,
    Prefix,
    Regex,
    Suffix,
    as_part,
)
from tupelo.values.template import Named, Template

TEXT_MAX = 200
"""Longer entries are shortened for display."""
INTEGER_BITS_MAX = 10_000
_TYPES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(object, bool, int, float, str, bytes),
        *(datetime, UUID, Decimal, tuple, list, dict),
    )
}
_JSON_WORDS = {"true": True, "false": False, "null": None}
_NAMES: dict[str, Any] = {"ANY": ANY, "NoneType": NoneType, **_TYPES}
_PARSERS: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "UUID": UUID,
    "Decimal": Decimal,
}
_FIELD_PARTS: dict[str, Callable[..., Any]] = {
    cls.__name__: cls for cls in (Between, OneOf, Not, Exactly, Prefix, Suffix, Regex)
}
_PARTS: dict[str, Callable[..., Any]] = {"Named": Named, **_FIELD_PARTS, **_PARSERS}
_UNREADABLE = (SyntaxError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError)


def read_template(text: str) -> Template:
    """Parse a template. Raises BadTemplate."""
    try:
        return _template(ast.parse(text.strip(), mode="eval").body)
    except BadTemplate:
        raise
    except _UNREADABLE as error:
        raise BadTemplate(f"template={text!r} cannot be read: {_reason(error)}") from error


def read_entry(text: str) -> Any:
    """Parse an entry: a tuple (or a JSON list), a dataclass instance, which is a stand-in if the
    class is unknown, or the JSON object of `entry_json`. Raises BadEntry."""
    try:
        if text.lstrip().startswith("{"):
            return _from_json(msgspec.json.decode(text))
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (*_UNREADABLE, BadTemplate, BadBytes) as error:
        raise BadEntry(f"entry={text!r} cannot be read: {_reason(error)}") from error
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, tuple) and not is_typed(value):
        raise BadEntry(f'entry={text!r} is no entry: write ("job", 7), or job(number=7)')
    return value


def _reason(error: Exception) -> object:
    return error.msg if isinstance(error, SyntaxError) else error  # without the place in a file


def one_line(text: str) -> str:
    """Escape line breaks and control characters in text from other programs."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def html_table(title: str, rows: Iterable[Sequence[object]]) -> str:
    """A table for notebooks. Texts from other programs are shown as they are, and never obeyed."""
    lines = ("".join(f"<td>{escape(one_line(str(cell)))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(one_line(title))}</caption>{body}</table>"


def shape_text(shape: Shape) -> str:
    names = ["dataclass" if cls is Typed else cls.__name__ for cls in shape.types]
    if shape.kind is None:
        return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
    fields = zip(shape.kind.names, names, strict=True)
    return f"{shape.kind.name}({', '.join(f'{field}: {name}' for field, name in fields)})"


def entry_text(shape: Shape, fields: tuple[Any, ...], length_max: int | None = TEXT_MAX) -> str:
    """An entry as Python source, with the names of its classes; shortened if it is long."""
    text = _text(fields if shape.kind is None else Typed(shape.kind, fields))
    if length_max is None or len(text) <= length_max:
        return text
    return text[: length_max - 3] + "..."


def template_text(template: Template) -> str:
    """A template as `read_template` reads it, as far as it consists of values, types and ANY."""
    return _part_text(template.raw)


def _part_text(part: Any) -> str:
    if isinstance(part, type):
        return part.__name__ if part.__name__ in _NAMES else f"{part.__name__}()"
    if isinstance(part, tuple):
        return f"({', '.join(map(_part_text, part))}{',' if len(part) == 1 else ''})"
    return repr(part) if is_typed(part) else _text(part)


def _text(value: Any) -> str:
    if isinstance(value, Typed):
        pairs = zip(value.kind.names, value.values, strict=True)
        return f"{value.kind.name}({', '.join(f'{name}={_text(v)}' for name, v in pairs)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in value.items())}}}"
    return _too_long(value) or repr(value)


def _too_long(value: Any) -> str | None:
    """Placeholder for an integer with more digits than Python converts."""
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        return f"<an integer of {value.bit_length()} bits>"
    return None


def as_json(value: Any) -> Any:
    """Convert a value, such as the tuple of an entry's fields, for msgspec's JSON encoder."""
    cls = type(value)
    if cls is Typed:
        return {
            name: as_json(inner) for name, inner in zip(value.kind.names, value.values, strict=True)
        }
    if cls is list or cls is tuple:
        return [as_json(inner) for inner in value]
    if cls is dict:
        keys = {_key(key): as_json(inner) for key, inner in value.items()}
        return keys if len(keys) == len(value) else as_json(list(value.items()))
    if cls is datetime:
        return value.isoformat()
    if cls is UUID or cls is Decimal:
        return str(value)
    return _too_long(value) or value


def entry_json(shape: Shape, fields: tuple[Any, ...]) -> dict[str, Any]:
    """An entry for msgspec's JSON encoder. Where JSON loses types, `exact` has the entry as it is
    stored; see `read_entry`."""
    kind = shape.kind
    if kind is None:
        record, is_exact = {"fields": as_json(fields)}, True
    else:
        record = {"kind": kind.name, "fields": as_json(Typed(kind, fields))}
        is_exact = kind.lineage == (kind.name,)
    if not (is_exact and all(map(_is_json, fields))):
        record["exact"] = b64encode(encode_entry(shape, fields)).decode()
    return record


def _is_json(value: Any) -> bool:
    """Whether this is the same value after a way through JSON."""
    cls = type(value)
    if cls is list:
        return all(map(_is_json, value))
    if cls is dict:
        return all(type(key) is str and _is_json(inner) for key, inner in value.items())
    if cls is float:
        return isfinite(value)
    return cls in (NoneType, bool, str) or (cls is int and not _too_long(value))


def _from_json(record: Any) -> Any:
    match record:
        case {"exact": str() as encoded}:
            return thaw(*decode_entry(b64decode(encoded, validate=True)), stand_ins=True)
        case {"kind": str() as name, "fields": dict() as fields}:
            return build(kind_named(name, tuple(fields), (name,)), (*fields.values(),), True)
        case {"fields": list() as values} if "kind" not in record:
            return tuple(values)
    raise ValueError('an object has "fields", and the "kind" of a dataclass, as `tupelo read` says')


def _key(key: Any) -> str:
    if type(key) is str:
        return key
    encoded = as_json(key)
    return encoded if type(encoded) is str else msgspec.json.encode(encoded).decode()


def _literal(node: ast.expr, read: Callable[[ast.expr], Any]) -> Any:
    """The value of a constant, or of a tuple, list or dict whose parts are read by `read`;
    otherwise NotImplemented."""
    match node:
        case ast.Constant(value=value) if value is not Ellipsis and not isinstance(value, complex):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Tuple(elts=items):
            return tuple([read(item) for item in items])
        case ast.List(elts=items):
            return [read(item) for item in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            return {read(key): read(value) for key, value in pairs if key is not None}
        case ast.Name(id=word) if word in _JSON_WORDS:
            return _JSON_WORDS[word]
    return NotImplemented


def _value(node: ast.expr) -> Any:
    value = _literal(node, _value)
    if value is not NotImplemented:
        return value
    match node:
        case ast.Call(func=function, args=[ast.Constant(value=str() as text)], keywords=[]):
            return _PARSERS[_dotted(function)](text)
        case ast.Call(func=function, args=[], keywords=named) if all(k.arg for k in named):
            name = _dotted(function)
            kind = kind_named(name, tuple([str(word.arg) for word in named]), (name,))
            return build(kind, tuple([_value(word.value) for word in named]), stand_ins=True)
    text = ast.unparse(node)
    hint = f': a text has quotes, "{text}"' if isinstance(node, (ast.Name, ast.Attribute)) else ""
    raise ValueError(f"{text} is no value{hint}")


def _read(node: ast.expr) -> Any:
    value = _literal(node, _read)
    if value is not NotImplemented:
        return value
    match node:
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~_template(operand)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            read = _read if _are_parts(left, right) else _template
            return read(left) | read(right)
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            read = _read if _are_parts(left, right) else _template
            return read(left) & read(right)
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.Name() | ast.Attribute():  # Most often quotes were forgotten.
            name = ast.unparse(node)
            raise BadTemplate(
                f'{name} is no type: a text has quotes, "{name}"; a dataclass is {name}()'
            )
        case ast.Call(func=function, args=args, keywords=named) if all(k.arg for k in named):
            fields = {str(word.arg): _read(word.value) for word in named}
            kind = _dotted(function)
            made = _PARTS.get(kind)
            if made is not None:
                return made(*[_read(arg) for arg in args], **fields)
            if args and (near := get_close_matches(kind, _PARTS, 1)):
                raise BadTemplate(f"unknown: {kind}; did you mean {near[0]}?")
            if args:
                raise BadTemplate(f"{kind}(...) names its fields: field=value")
            conditions = {name: as_part(raw, f"field {name!r}") for name, raw in fields.items()}
            return NestedTyped(kind, conditions)
    raise BadTemplate(f"{ast.unparse(node)!r} is no part of a template")


def type_named(name: str) -> Any:
    """The part of a template for a type, or for a dataclass of this name."""
    return _NAMES[name] if name in _NAMES else OfType(name)


def _are_parts(*nodes: ast.expr) -> bool:
    """Whether `|` and `&` combine fields rather than whole templates."""
    return all(
        (isinstance(node, ast.Name) and node.id in _TYPES)
        or (isinstance(node, ast.Call) and _dotted(node.func) in _FIELD_PARTS)
        or (isinstance(node, ast.BinOp) and _are_parts(node.left, node.right))
        for node in nodes
    )


def _template(node: ast.expr) -> Template:
    if isinstance(node, (ast.Name, ast.Attribute)):
        return Template(type_named(_dotted(node)))
    read = _read(node)
    return read if isinstance(read, Template) else Template(read)


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
    raise BadTemplate(f"{ast.unparse(node)!r} is no name")
