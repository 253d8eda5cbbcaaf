"""The options of a reader, which Spark passes as strings."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa

from tupelo.errors import BadArgument, BadTemplate
from tupelo.pipeline.declared import Declared, typed
from tupelo.pipeline.logs.remote import Way, flag
from tupelo.pipeline.schema import check_columns
from tupelo.values.codec import BadBytes, decode_entry
from tupelo.values.template import Template
from tupelo.values.template_encoding import (
    read_wire_extension,
    template_from_wire,
    template_to_wire,
)
from tupelo.values.text import read_template

_ENCODED = "spelled:"
_decode = msgspec.msgpack.Decoder(ext_hook=read_wire_extension).decode


def as_option(template: object) -> str:
    """A template as the string of an option. Raises BadTemplate if it contains a function."""
    wired = msgspec.msgpack.encode(template_to_wire(template))
    return _ENCODED + b64encode(wired).decode()


def from_option(text: str) -> Template:
    """The template in an option."""
    if not text.startswith(_ENCODED):
        return read_template(text)
    try:
        wired = _decode(b64decode(text.removeprefix(_ENCODED), validate=True))
        found = template_from_wire(wired)
    except (ValueError, TypeError, BadBytes, RecursionError) as error:
        raise BadTemplate(f"template={text!r} cannot be read: {error}") from error
    return found if isinstance(found, Template) else Template(found)


def matching(template: Template, payloads: pa.Array) -> pa.Array:
    """A mask of the entries that match. Null does not."""
    found = np.zeros(len(payloads), dtype=bool)
    for place, payload in enumerate(payloads.to_pylist()):
        if payload is not None:
            shape, fields = decode_entry(payload)
            binding = template.bind(shape)
            found[place] = binding is not None and binding.test(fields)
    return pa.array(found)


Moment = int | datetime | Literal["now"]
"""A position of a log, a time, or the end of the log."""

ROWS_A_TASK = 250_000
"""The default largest number of changes that a task of a stream reads."""

WAY = Way()
_DIGITS_MAX = 18


@dataclass(frozen=True)
class ReadOptions:
    """What is to be read, and how.

    path          a space's file, a host's folder, an archive, tupelo://host:port/space or
                  tupelo://host:port/; several as load(["...", "..."])
    archive       a folder in which the past of these logs is sealed
    federation    true: at the hosts that this one is engaged with, too
    host          only the logs of these hosts, by their ids, with commas between
    space         only the logs of these spaces, with commas between
    columns       only these columns, with commas between
    entry         typed columns f.name for entries such as "name string, size long"
                  or "module:Class"; "any(name string, size long)" fits every entry
    kinds         only changes of these kinds, with commas between
    template      only changes of entries that match, such as ("job", int, ANY)
    pushdown      true: what Spark filters by, the reader passes over; up to Spark 4.3 only for a
                  table that is used once
    asOf          the entries at this position, at this time (ISO 8601) or "now", instead of changes
    partitions    into so many tasks; of a batch
    rowsPerTask   so many changes a task at most
    maxRows       so many changes a micro-batch at most
    startFrom     "earliest" or "latest": where a stream begins with the logs that it finds
    after         {"host/space": 120}, as JSON: only what comes after these positions; of a batch
    password      of the spaces
    tls           true or false: whether hosts are met under TLS
    reconnect     the seconds for which a task waits for a host that is away: 10 if left out
    """

    locations: tuple[str, ...]
    archive: str | None = None
    federation: bool = False
    hosts: tuple[str, ...] | None = None
    spaces: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    entry: Declared | None = None
    kinds: tuple[str, ...] | None = None
    template: str | None = None
    pushdown: bool = False
    as_of: Moment | None = None
    partitions: int | None = None
    rows_a_task: int | None = None
    rows_max: int | None = None
    from_latest: bool = False
    after: Mapping[str, int] = field(default_factory=dict)
    way: Way = WAY

    @classmethod
    def read(cls, options: Mapping[str, str]) -> ReadOptions:
        given = known_options(options, _KNOWN)
        locations = _locations(given)
        if not locations:
            raise BadArgument("path", 'given: load("jobs.tupelo"), or load("tupelo://...")', None)
        entry = given.get("entry")
        declared = None if entry is None else typed(entry)
        columns = _listed(given.get("columns"))
        if columns is not None:
            check_columns(columns, declared)
        template = given.get("template")
        if template is not None:
            from_option(template)  # raises an error before anything is read
        return cls(
            locations=locations,
            archive=given.get("archive"),
            federation=flag("federation", given.get("federation", "")),
            hosts=_listed(given.get("host")),
            spaces=_listed(given.get("space")),
            columns=columns,
            entry=declared,
            kinds=_listed(given.get("kinds")),
            template=template,
            pushdown=flag("pushdown", given.get("pushdown", "")),
            as_of=_moment(given.get("asof")),
            partitions=_count("partitions", given.get("partitions")),
            rows_a_task=_count("rowsPerTask", given.get("rowspertask")),
            rows_max=_count("maxRows", given.get("maxrows")),
            from_latest=_start(given.get("startfrom", "earliest")),
            after=_positions(given.get("after", "{}")),
            way=Way.read(given),
        )


def known_options(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """The options by their names in lower case, as Spark compares them. Raises BadArgument for an
    option that is not `known`."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = given.keys() - {name.lower() for name in known}
    if unknown:
        raise BadArgument("option", f"one of {', '.join(known)}", ", ".join(sorted(unknown)))
    return given


_KNOWN = (
    *("path", "paths", "archive", "federation", "host", "space", "columns", "entry", "kinds"),
    *("template", "pushdown", "asOf", "partitions", "rowsPerTask", "maxRows", "startFrom", "after"),
    *("password", "tls", "reconnect"),
)


def _locations(given: Mapping[str, str]) -> tuple[str, ...]:
    found = [given["path"]] if given.get("path") else []
    if given.get("paths"):
        found += _paths(given["paths"])
    return tuple(dict.fromkeys(found))


def _paths(value: str) -> list[str]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(path, str) and path for path in found):
        raise BadArgument("paths", 'locations, as JSON: ["jobs.tupelo", "archive"]', value)
    return found


def _listed(value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _count(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    number = _number(value)
    if not number:
        raise BadArgument(name, "a number above 0", value)
    return number


def _number(value: str) -> int | None:
    """None if it is not a number, or larger than any position."""
    if value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX:
        return int(value)
    return None


def _start(value: str) -> bool:
    if value not in ("earliest", "latest"):
        raise BadArgument("startFrom", '"earliest" or "latest"', value)
    return value == "latest"


def _positions(value: str) -> dict[str, int]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(n) is int for n in found.values()):
        raise BadArgument("after", 'positions by log, as JSON: {"host/space": 120}', value)
    return found


def _moment(value: str | None) -> Moment | None:
    if value is None:
        return None
    if value == "now":
        return "now"
    position = _number(value)
    if position is not None:
        return position
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise BadArgument(
            "asOf", "a position, now, or a time such as 2026-11-16T08:30:00Z", value
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
