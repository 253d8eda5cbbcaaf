"""Templates as the options of a reader, which are texts.

A template is written as in Python: `("job", int, ANY)`, `("job", Between(1, 9) & Not(5))`,
`Named(name="resize")`, `job(name="resize")` for a dataclass by its name, and `&`, `|`, `~` between
them. Nothing is evaluated: only these words are known. `as_option` spells any template that can be
sent, also of classes.
"""

from __future__ import annotations

import ast
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from tupelo.errors import BadTemplate
from tupelo.values.codec import BadBytes, decode_entry
from tupelo.values.parts import ANY, Between, Exactly, NestedTyped, Not, OfType, OneOf, as_part
from tupelo.values.spelling import read_wire_extension, template_from_wire, template_to_wire
from tupelo.values.template import Named, Template

_SPELLED = "spelled:"
_TYPES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(object, bool, int, float, str, bytes),
        *(datetime, UUID, Decimal, tuple, list, dict),
    )
}
_NAMES: dict[str, Any] = {"ANY": ANY, "NoneType": NoneType, **_TYPES}
_PARTS: dict[str, Callable[..., Any]] = {
    "Between": Between,
    "OneOf": OneOf,
    "Not": Not,
    "Exactly": Exactly,
    "Named": Named,
    "datetime": datetime.fromisoformat,
    "UUID": UUID,
    "Decimal": Decimal,
}
_UNREADABLE = (SyntaxError, ValueError, TypeError, ArithmeticError, BadBytes, RecursionError)
_decode = msgspec.msgpack.Decoder(ext_hook=read_wire_extension).decode


def as_option(template: object) -> str:
    """A template as the text of an option. BadTemplate if it holds code."""
    wired = msgspec.msgpack.encode(template_to_wire(template))
    return _SPELLED + b64encode(wired).decode()


def from_option(text: str) -> Template:
    """The template that is written in an option."""
    try:
        if text.startswith(_SPELLED):
            wired = _decode(b64decode(text.removeprefix(_SPELLED), validate=True))
            found = template_from_wire(wired)
            return found if isinstance(found, Template) else Template(found)
        read = _read(ast.parse(text.strip(), mode="eval").body)
        return read if isinstance(read, Template) else Template(read)
    except BadTemplate:
        raise
    except _UNREADABLE as error:
        raise BadTemplate(f"template={text!r} cannot be read: {error}") from error


def matching(template: Template, payloads: pa.Array) -> pa.Array:
    """Which of these entries match, as a mask. What is no entry does not."""
    found = np.zeros(len(payloads), dtype=bool)
    for place, payload in enumerate(payloads.to_pylist()):
        if payload is not None:
            shape, fields = decode_entry(payload)
            binding = template.bind(shape)
            found[place] = binding is not None and binding.test(fields)
    return pa.array(found)


def _read(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if value is not Ellipsis and not isinstance(value, complex):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~_whole(operand)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _read(left) | _read(right) if _are_parts(left, right) else _or(left, right)
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _read(left) & _read(right) if _are_parts(left, right) else _and(left, right)
        case ast.Tuple(elts=parts):
            return tuple([_read(part) for part in parts])
        case ast.List(elts=parts):
            return [_read(part) for part in parts]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            return {_read(key): _read(value) for key, value in pairs if key is not None}
        case ast.Name(id=name):
            return _NAMES[name] if name in _NAMES else OfType(name)
        case ast.Attribute():
            return OfType(_dotted(node))
        case ast.Call(func=function, args=args, keywords=named) if all(k.arg for k in named):
            fields = {str(word.arg): _read(word.value) for word in named}
            made = _PARTS.get(_dotted(function))
            if made is not None:
                return made(*[_read(arg) for arg in args], **fields)
            if args:
                raise BadTemplate(f"{_dotted(function)}(...) names its fields: field=value")
            kind = _dotted(function)
            asked = {name: as_part(raw, f"field {name!r}") for name, raw in fields.items()}
            return NestedTyped(kind, asked)
    raise BadTemplate(f"{ast.unparse(node)!r} is no part of a template")


def _are_parts(*nodes: ast.expr) -> bool:
    """Do `|` and `&` stand between fields, and not between whole templates?"""
    names = {"Between", "OneOf", "Not", "Exactly"}
    return all(
        (isinstance(node, ast.Name) and node.id in _TYPES)
        or (isinstance(node, ast.Call) and _dotted(node.func) in names)
        or (isinstance(node, ast.BinOp) and _are_parts(node.left, node.right))
        for node in nodes
    )


def _whole(node: ast.expr) -> Template:
    read = _read(node)
    return read if isinstance(read, Template) else Template(read)


def _or(left: ast.expr, right: ast.expr) -> Template:
    return _whole(left) | _whole(right)


def _and(left: ast.expr, right: ast.expr) -> Template:
    return _whole(left) & _whole(right)


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
    raise BadTemplate(f"{ast.unparse(node)!r} is no name")
