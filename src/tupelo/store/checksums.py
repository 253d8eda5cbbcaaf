"""Checksums of what a journal keeps: how a flipped bit, a lost row or a lost page is told.

The checksum of a row has two halves: one of the change, and one of the entry that it wrote, so that
opening a file has to read no more than the entries. Which entries live and which promises stand is
told by one number, `living`, that every commit keeps: a row that is missing or back changes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any
from zlib import crc32

import msgspec

CHECKED_SINCE = 6
"""The format of files since which there are checksums."""

_encode = msgspec.msgpack.Encoder().encode
_PRIME = 4_294_967_291
_MASK = 2**63 - 1
_FIRST, _SECOND = 0x1E37_79B9_7F4A_7C15, 0x3F58_476D_1CE4_E5B9


def entry_crc(position: int, origin: str | None, n: int, payload: bytes, dest: str | None) -> int:
    """Of an entry, as its row keeps it. TypeError for what cannot be the row of an entry."""
    crc = crc32(payload, (position * 0x9E37_79B1 + n) % _PRIME)
    if origin is not None or dest is not None:
        crc = crc32(_encode((origin, dest)), crc)
    return crc & 0x7FFF_FFFF


def change_crc(change: Sequence[Any]) -> int:
    """Of the columns of a change that never change, from `position` to `session`."""
    return crc32(_encode(change))


def last_crc(of_change: int, newest: int | None, living: int | None) -> int:
    """Of a change that also says what the space is like, if it is the last of a commit."""
    if newest is None and living is None:
        return of_change
    return crc32(_encode((newest, living)), of_change)


def row_crc(of_change: int, of_entry: int) -> int:
    """Of a row that wrote an entry. That of another change is `change_crc` itself."""
    return of_entry << 32 | of_change


def is_crc(crc: int, of_change: int) -> bool:
    """Is this the checksum of a row with such a change?"""
    return crc & 0xFFFF_FFFF == of_change


def is_entry_crc(crc: int, of_entry: int) -> bool:
    """Is this the checksum of a row with such an entry?"""
    return crc >> 32 == of_entry


def lease_crc(position: int, lease: float | None) -> int | None:
    """Of the lease of an entry as it is now; None if it has no end."""
    return None if lease is None else crc32(_encode((position, lease)))


def promise_crc(txn: str, payload: bytes) -> int:
    """Of a prepared transaction."""
    return crc32(payload, crc32(txn.encode()))


def meta_crc(meta: Mapping[str, Any]) -> int:
    """Of what describes the whole file."""
    return crc32(_encode(sorted((k, v) for k, v in meta.items() if k != "crc")))


def entry_weight(arrival: int) -> int:
    """What a living entry adds to `living`."""
    return arrival * (_FIRST + arrival * _SECOND)


def entry_weights(arrivals: list[int]) -> int:
    """What these entries add together, which is quicker than one after the other."""
    squares: int = sum(map(mul, arrivals, arrivals))
    return _FIRST * sum(arrivals) + _SECOND * squares


def promise_weight(txn: str) -> int:
    """What a promise adds to `living`."""
    return entry_weight(crc32(txn.encode()) + 2**48)


def bounded(living: int) -> int:
    """`living` as SQLite can keep it."""
    return living & _MASK
