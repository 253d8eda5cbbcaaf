"""The schema of changes, version 3: one row per change, as Arrow batches and as Spark's DDL.

The content of an entry is there three times: `payload` is its exact encoding (`values.codec`);
`fields` is JSON, for people; and the struct `f` has typed columns, where a shape is declared. A
tuple is a JSON array, a dataclass an object. JSON does not distinguish tuples from lists and omits
the names of nested classes; times, UUIDs and decimals are strings, bytes are base64, keys are
strings (a dict with two equal ones is an array of pairs), and numbers that are not finite are null.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tupelo.errors import BadArgument
from tupelo.pipeline.declared import Declared
from tupelo.values.codec import BadBytes, decode_entry, read_extension
from tupelo.values.entry import NATIVE, Typed, types_of
from tupelo.values.kind import Kind
from tupelo.values.text import as_json

SCHEMA_VERSION = 3

TIME = pa.timestamp("us", tz="UTC")
CHANGES = pa.schema(
    [
        ("host", pa.string()),
        ("space", pa.string()),
        ("position", pa.int64()),
        ("arrival", pa.int64()),
        ("time", TIME),
        ("kind", pa.string()),
        ("origin", pa.string()),
        ("n", pa.int64()),
        ("agent", pa.string()),
        ("agent_name", pa.string()),
        ("session", pa.string()),
        ("txn", pa.string()),
        ("to", pa.string()),
        ("waited", pa.float64()),
        ("expires", TIME),
        ("deliveries", pa.int64()),
        ("delayed", pa.int64()),
        ("bytes", pa.int32()),
        ("type", pa.string()),
        ("shape", pa.string()),
        ("fields", pa.string()),
        ("payload", pa.binary()),
    ]
)
MEANINGS = {
    "host": "the id of the host that keeps the log, or the agent of a space without a host",
    "space": "the name of the space",
    "position": "the place of the change in the log of its space, without gaps",
    "arrival": "the position at which the entry was written; null: no entry",
    "time": "when it happened, by the clock of the host",
    "kind": "what happened: written, read, taken, ...",
    "origin": "the agent that wrote the entry first; with n, identifies it",
    "n": "the number of the entry at its origin",
    "agent": "who made the change",
    "agent_name": "the name that the agent gave itself; null: none",
    "session": "the session of the operation",
    "txn": "the transaction of the operation; reaction:N if it reacted to the arrival N",
    "to": "the agent that the entry is for; null: everyone",
    "waited": "how many seconds the operation waited for its match",
    "expires": "when the lease ends, after the change; null: never",
    "deliveries": "how often the entry was returned or released so far",
    "delayed": "the position at which a written entry was delayed; null: it was not",
    "bytes": "the length of the payload",
    "type": "the name of the dataclass; null: a tuple",
    "shape": "the types of the fields: (str, int), or (name: str, size: int)",
    "fields": "the entry as JSON",
    "payload": "the entry as it is kept",
}
"""What the columns mean, for people."""
COLUMNS: tuple[str, ...] = tuple(CHANGES.names)
SINCE = {"agent_name": 2, "deliveries": 2, "delayed": 3}
"""The first version with such a column; in logs of an older one it is null."""
TYPED = "f"
"""The struct of the typed columns, where a shape is declared: f.name, f.size."""

_DERIVED = frozenset({"bytes", "type", "shape", "fields", TYPED})
OF_THE_ENTRY = _DERIVED | {"origin", "n", "to", "payload"}
"""The columns that are equal in all changes of an entry."""
_FAR = 253_402_300_799.0  # the end of the year 9999, the latest time in Python

Raw = dict[str, Any]
"""Columns by name, as lists or Arrow arrays."""


def schema_of(columns: Sequence[str] | None = None, entry: Declared | None = None) -> pa.Schema:
    """The schema of a batch with these columns (all of them if None)."""
    named = {field.name: field for field in CHANGES}
    if entry is not None:
        named[TYPED] = pa.field(TYPED, entry.type)
    return pa.schema([named[name] for name in check_columns(columns, entry)])


def check_columns(columns: Sequence[str] | None, entry: Declared | None = None) -> Sequence[str]:
    known = COLUMNS if entry is None else (*COLUMNS, TYPED)
    if columns is None:
        return known
    if not columns or isinstance(columns, str) or not set(columns) <= set(known):
        raise BadArgument("columns", f"some of {', '.join(known)}", columns)
    return columns


def ddl_of(schema: pa.Schema, comments: bool = False) -> str:
    """The schema as Spark's DDL, with the meanings of the columns of changes on demand."""
    parts = []
    for field in schema:
        meaning = MEANINGS.get(field.name) if comments else None
        comment = f" COMMENT '{meaning}'" if meaning else ""
        parts.append(f"`{field.name}` {ddl_type(field.type)}{comment}")
    return ", ".join(parts)


def ddl_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{part.name}`: {ddl_type(part.type)}' for part in kind)}>"
    return _SPARK[kind]


_SPARK = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    TIME: "timestamp",
}


def needed_for(columns: Sequence[str]) -> set[str]:
    """The columns of the log that these columns are computed from."""
    needed = set(columns) - {"host", "space"}
    return needed - _DERIVED | ({"payload"} if needed & _DERIVED else set())


# Batches


def build(
    host: str,
    space: str,
    count: int,
    raw: Raw,
    columns: Sequence[str],
    entry: Declared | None = None,
) -> pa.RecordBatch:
    """Make a batch of so many rows from raw columns."""
    raw = {**raw, "host": pa.repeat(host, count), "space": pa.repeat(space, count)}
    schema = schema_of(columns, entry)
    return pa.RecordBatch.from_arrays(list(fill(raw, columns, entry).values()), schema=schema)


def fill(raw: Raw, columns: Sequence[str], entry: Declared | None = None) -> dict[str, pa.Array]:
    """These columns as Arrow arrays; columns about entries are computed from the payload."""
    missing = [name for name in columns if name not in raw]
    derived: dict[str, pa.Array] = {}
    if missing:
        payloads = raw["payload"]
        if not isinstance(payloads, pa.Array):
            payloads = pa.array(payloads, pa.binary())
        raw = {**raw, "payload": payloads}
        derived = about_entries(payloads, missing, entry)
    filled: dict[str, pa.Array] = {}
    for name in columns:
        if name in derived:
            filled[name] = derived[name]
        elif isinstance(raw[name], pa.Array):
            filled[name] = raw[name]
        elif CHANGES.field(name).type == TIME:
            filled[name] = times(raw[name])
        else:
            filled[name] = pa.array(raw[name], CHANGES.field(name).type)
    return filled


def times(seconds: Sequence[float | None]) -> pa.Array:
    """Seconds since 1970 as timestamps."""
    numbers = np.array(seconds, dtype=np.float64)
    absent = np.isnan(numbers)
    micros = np.rint(np.clip(np.where(absent, 0.0, numbers), -_FAR, _FAR) * 1e6)
    return pa.array(micros.astype(np.int64), pa.int64(), mask=absent).cast(TIME)


# Entries


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Disable the garbage collector, which would take a third of the time to scan thousands of
    short-lived entries."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Look:
    """The description of the entries of one shape."""

    __slots__ = ("native", "shape", "type")

    def __init__(self, kind: Kind | None, types: tuple[type, ...]) -> None:
        names = [_TYPE_NAMES.get(cls, cls.__name__) for cls in types]
        if kind is not None:
            names = [f"{field}: {name}" for field, name in zip(kind.names, names, strict=True)]
        self.type = None if kind is None else kind.name
        self.shape = f"({', '.join(names)})"
        self.native = kind is None and NATIVE.issuperset(types)


class _Looks(dict[Any, int]):
    """Numbers the descriptions of entries."""

    def __init__(self) -> None:
        self.known: list[_Look] = []

    def __missing__(self, key: Any) -> int:
        if key and isinstance(key[0], Kind):
            self.known.append(_Look(key[0], key[1:]))
        else:
            self.known.append(_Look(None, key))
        number = self[key] = len(self.known) - 1
        return number


_TYPE_NAMES = {NoneType: "None", Typed: "dataclass"}
_lines = msgspec.json.Encoder().encode_lines
_decode_many = msgspec.msgpack.Decoder(list[Any], ext_hook=read_extension).decode
_encoded_in = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def look_of(value: Any) -> Any:
    """The key of the description of an entry: its types, preceded by its kind if it has one. The
    entry is a list of fields, or `Typed`."""
    if type(value) is list:
        return types_of(value)  # type: ignore[arg-type]
    return (value.kind, *map(type, value.values))


def _looks_of(values: list[Any]) -> list[Any]:
    if set(map(type, values)) == {list}:  # the common case, without a Python step for each
        return list(map(tuple, map(map, repeat(type), values)))
    return [look_of(value) for value in values]


def about_entries(
    payloads: pa.Array, columns: Sequence[str], entry: Declared | None = None
) -> dict[str, pa.Array]:
    """These columns about the encoded entries; null payloads give null. Raises BadBytes if a
    payload is not an entry."""
    found: dict[str, pa.Array] = {}
    if "bytes" in columns:
        found["bytes"] = pc.binary_length(payloads)
    if set(columns).isdisjoint({"type", "shape", "fields", TYPED}):
        return found
    # An entry that is written, read and taken is decoded once.
    encoded = payloads.dictionary_encode()
    with _no_collecting():
        about = _about_distinct(encoded.dictionary, columns, entry)
    if len(encoded.dictionary) < len(payloads):
        about = {name: array.take(encoded.indices) for name, array in about.items()}
    return found | about


def _about_distinct(
    payloads: pa.Array, columns: Sequence[str], entry: Declared | None
) -> dict[str, pa.Array]:
    found: dict[str, pa.Array] = {}
    values = decode_many(payloads)
    numbers = _Looks()
    places = pa.array(list(map(numbers.__getitem__, _looks_of(values))), pa.int32())
    known = numbers.known
    if "shape" in columns:
        found["shape"] = _chosen([look.shape for look in known], places)
    if "type" in columns:
        found["type"] = _chosen([look.type for look in known], places)
    if "fields" in columns:
        plain = values if all(look.native for look in known) else list(map(as_json, values))
        found["fields"] = _json(plain)
    if entry is not None and TYPED in columns:
        found[TYPED] = entry.column(values)
    return found


def _chosen(texts: list[str | None], places: pa.Array) -> pa.Array:
    return pa.array(texts, pa.string()).take(places)


def decode_many(payloads: pa.Array) -> list[Any]:
    """Decode payloads, none of them null: lists of fields, or `Typed`. All at once, which takes a
    third of the time. Raises BadBytes if a payload is not an entry."""
    if not len(payloads):
        return []
    _, places, encoded = payloads.buffers()
    ends = np.frombuffer(places, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
    joined = b"\xdd" + len(payloads).to_bytes(4, "big") + memoryview(encoded)[ends[0] : ends[-1]]
    try:
        values = _decode_many(joined)
        # A torn payload may continue in the next: each must end where its bytes end.
        lengths = list(map(len, _encoded_in(joined)))
        if {list, Typed}.issuperset(map(type, values)) and lengths == np.diff(ends).tolist():
            return values
    except (msgspec.DecodeError, BadBytes, ValueError, TypeError, ArithmeticError, RecursionError):
        pass
    for payload in payloads.to_pylist():
        decode_entry(payload)  # raises the error of the damaged one
    raise BadBytes("these bytes do not encode entries")


def _json(values: list[Any]) -> pa.Array:
    """Each value as JSON. All are encoded at once, one per line, and then split."""
    text = np.frombuffer(_lines(values), dtype=np.uint8)
    ends = text == 10
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    offsets[1:] = np.flatnonzero(ends) - np.arange(len(values))
    if offsets[-1] > 2**31 - 1:
        raise BadArgument("rows", "fewer: the entries of one batch are beyond 2 GB", len(values))
    return pa.StringArray.from_buffers(
        len(values), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text[~ends])
    )
