"""Size: about how many bytes values need, for bounds that need not be exact."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tupelo.values.entry import Entry

_IDENTITY_BYTES = 128
"""What an entry is known by, beside its fields."""


def about_bytes(value: Any) -> int:
    cls = type(value)
    if cls is str or cls is bytes:
        return len(value)
    if cls is tuple or cls is list:
        return 8 + sum(map(about_bytes, value))
    if cls is dict:
        return 8 + sum(map(about_bytes, value)) + sum(map(about_bytes, value.values()))
    return 8


def fitting(entries: Iterable[Entry], bytes_max: int | None) -> tuple[list[Entry], bool]:
    """The first of these entries, as many as have room in so many bytes but one at least; and
    whether there are more."""
    if bytes_max is None:
        return list(entries), False
    found: list[Entry] = []
    for entry in entries:
        bytes_max -= about_bytes(entry.fields) + _IDENTITY_BYTES
        if bytes_max < 0 and found:
            return found, True
        found.append(entry)
    return found, False
