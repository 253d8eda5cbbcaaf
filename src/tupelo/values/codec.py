"""Entries in bytes: msgpack, with extensions for the types that msgpack lacks.

A positional entry is an array of its fields; a typed one is an extension with the field names and
values. Within a field an array is a list; tuples, big integers, times and so on are extensions.
Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from msgspec.msgpack import Decoder, Encoder, Ext

from tupelo.errors import BadEntry, TupeloError
from tupelo.values.entry import (
    DEPTH_MAX,
    NATIVE,
    SCALARS,
    FrozenEntry,
    Shape,
    Typed,
    plain_shapes,
    shape_of,
    types_of,
)
from tupelo.values.kind import kind_named

TUPLE, TYPED, BIGINT, DATETIME, UUID_, DECIMAL, DICT = 1, 2, 3, 4, 5, 6, 7

_INT64 = range(-(2**63), 2**64)
_ARRAY_STARTS = frozenset([*range(0x90, 0xA0), 0xDC, 0xDD])


class BadBytes(TupeloError):
    """The bytes do not encode an entry."""


def encode_entry(shape: Shape, fields: tuple[Any, ...]) -> bytes:
    try:
        if shape.kind is not None:
            return _encoder.encode(_encode_typed(shape.kind, fields))
        if shape.native:
            try:
                return _encoder.encode(fields)
            except OverflowError:  # an integer beyond 64 bits
                pass
        return _encoder.encode([_encode(value) for value in fields])
    except UnicodeEncodeError as error:
        where = _where_unencodable(shape, fields)
        raise BadEntry(f"{where} is not valid Unicode: {error}", where=where, found=str) from error


def entry_to_wire(shape: Shape, fields: tuple[Any, ...]) -> Any:
    """Convert an entry to an object that msgpack can encode inside a message; see `read_entry`."""
    if shape.kind is not None:
        return _encode_typed(shape.kind, fields)
    if shape.native:
        for value in fields:
            if type(value) is int and value not in _INT64:
                break
        else:
            return fields
    return [_encode(value) for value in fields]


def read_entry(encoded: Any) -> FrozenEntry:
    """The reverse of `entry_to_wire`, after msgpack read the extensions. Raises BadBytes."""
    if type(encoded) is list:
        fields = tuple(encoded)
        types = types_of(fields)
        shape = plain_shapes.get(types)
        if shape is None:
            _check_values(fields)
            shape = shape_of(None, types)
        return shape, fields
    if type(encoded) is Typed:
        _check_values(encoded.values)
        return shape_of(encoded.kind, types_of(encoded.values)), encoded.values
    raise BadBytes(f"an entry expected, not a {type(encoded).__name__}")


def encode_value(value: Any) -> Any:
    """Convert a frozen value to an object that msgpack can encode inside a message."""
    return _encode(value)


def read_value(value: Any) -> Any:
    """The reverse of `encode_value`, after msgpack read the extensions. Raises BadBytes."""
    _check_values((value,))
    return value


def _where_unencodable(shape: Shape, fields: tuple[Any, ...]) -> str:
    names = shape.kind.names if shape.kind else range(len(fields))
    for name, value in zip(names, fields, strict=True):
        try:
            _encoder.encode(_encode(value))
        except UnicodeEncodeError:
            return f"field {name!r}"
    return "a name"


def decode_entry(payload: bytes) -> FrozenEntry:
    try:
        if payload[0] in _ARRAY_STARTS:
            fields = _decode_fields(payload)
            types = types_of(fields)
            shape = plain_shapes.get(types)
            if shape is None:
                _check_values(fields)
                shape = shape_of(None, types)
            return shape, fields
        typed = _decode_any(payload)
        if type(typed) is not Typed:
            raise BadBytes(f"an entry expected, not a {type(typed).__name__}")
        _check_values(typed.values)
        return shape_of(typed.kind, types_of(typed.values)), typed.values
    except (msgspec.DecodeError, ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise BadBytes(f"these bytes do not encode an entry: {error}") from error
    except RecursionError as error:
        raise BadBytes(f"nested deeper than {DEPTH_MAX} levels") from error


def _check_values(values: Iterable[Any], depth: int = 1) -> None:
    """Raise BadBytes for values that `freeze` would refuse: wrong types, or nested too deeply."""
    for value in values:
        cls = type(value)
        if cls in SCALARS:
            continue
        if depth > DEPTH_MAX:
            raise BadBytes(f"nested deeper than {DEPTH_MAX} levels")
        if cls is tuple or cls is list:
            _check_values(value, depth + 1)
        elif cls is Typed:
            _check_values(value.values, depth + 1)
        elif cls is dict:
            _check_keys(value, depth + 1)
            _check_values(value.values(), depth + 1)
        else:
            raise BadBytes(f"a {cls.__name__} is not a value of an entry")


def _check_keys(keys: Iterable[Any], depth: int) -> None:
    for key in keys:
        if type(key) is tuple and depth <= DEPTH_MAX:
            _check_keys(key, depth + 1)
        elif type(key) not in SCALARS:
            raise BadBytes(f"a {type(key).__name__} is not a key")


def _encode(value: Any) -> Any:
    cls = type(value)
    if cls is int and value not in _INT64:
        return Ext(BIGINT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if cls in NATIVE:
        return value
    if cls is list:
        return [_encode(v) for v in value]
    if cls is tuple:
        return Ext(TUPLE, _encoder.encode([_encode(v) for v in value]))
    if cls is dict:
        if all(type(k) is str for k in value):
            return {k: _encode(v) for k, v in value.items()}
        return Ext(DICT, _encoder.encode([[_encode(k), _encode(v)] for k, v in value.items()]))
    if cls is Typed:
        return _encode_typed(value.kind, value.values)
    if cls is datetime:
        return Ext(DATETIME, value.isoformat().encode())
    if cls is UUID:
        return Ext(UUID_, value.bytes)
    if cls is Decimal:
        return Ext(DECIMAL, str(value).encode())
    raise TypeError(f"{cls.__name__} has no encoding")


def _encode_typed(kind: Any, values: tuple[Any, ...]) -> Ext:
    parts = [kind.name, kind.names, kind.lineage[1:], [_encode(v) for v in values]]
    return Ext(TYPED, _encoder.encode(parts))


def _read_typed(data: memoryview) -> Typed:
    name, names, above, values = _decode_typed(data)
    if len(names) != len(values) or len(set(names)) != len(names):
        raise BadBytes(f"{name!r} has the fields {names} and {len(values)} values")
    return Typed(kind_named(name, names, (name, *above)), values)


def _read_dict(data: memoryview) -> dict[Any, Any]:
    return dict(_decode_pairs(data))


_readers: dict[int, Callable[[memoryview], Any]] = {
    TUPLE: lambda data: _decode_fields(data),
    TYPED: _read_typed,
    BIGINT: lambda data: int.from_bytes(data, "little", signed=True),
    DATETIME: lambda data: datetime.fromisoformat(bytes(data).decode()),
    UUID_: lambda data: UUID(bytes=bytes(data)),
    DECIMAL: lambda data: Decimal(bytes(data).decode()),
    DICT: _read_dict,
}


def read_extension(code: int, data: memoryview) -> Any:
    reader = _readers.get(code)
    if reader is None:
        raise BadBytes(f"unknown extension {code}")
    return reader(data)


_encoder = Encoder()
_decode_any = Decoder(ext_hook=read_extension).decode
_fields_decoder = Decoder(tuple[Any, ...], ext_hook=read_extension)
_decode_fields: Callable[[Any], tuple[Any, ...]] = _fields_decoder.decode
_decode_pairs = Decoder(list[tuple[Any, Any]], ext_hook=read_extension).decode
_decode_typed = Decoder(
    tuple[str, tuple[str, ...], tuple[str, ...], tuple[Any, ...]], ext_hook=read_extension
).decode
