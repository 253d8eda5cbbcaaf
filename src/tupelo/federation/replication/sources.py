"""The names of streams.

The stream of a host is named after the host and its space: `host/space`. What a host writes may
also be parted into lanes, each of which is a stream of its own: `host/space>lane` is held by those
whom its source asks to, and `host/space>>lane` by all who hear of it and have room.
"""

from __future__ import annotations

from functools import lru_cache

from tupelo.federation.identity.keys import ID_CHARACTERS

NAMES_KEPT = 4_096


@lru_cache(NAMES_KEPT)
def host_of(source: str) -> str:
    """The id of the host whose stream this is."""
    return source.rpartition("/")[0]


def is_signed(source: str) -> bool:
    """Whether the host of this stream has an identity, and so signs it."""
    return len(host_of(source)) == ID_CHARACTERS


def lane_name(base: str, lane: str, *, spreads: bool) -> str:
    return f"{base}>>{lane}" if spreads else f"{base}>{lane}"


@lru_cache(NAMES_KEPT)
def base_of(source: str) -> str:
    """The name of the stream of which this is a lane; its own if it is none."""
    host, slash, rest = source.rpartition("/")
    return host + slash + rest.partition(">")[0]


def lane_of(source: str) -> str:
    """Empty if it is no lane."""
    return source.rpartition("/")[2].partition(">")[2].removeprefix(">")


def spreads(source: str) -> bool:
    return ">>" in source.rpartition("/")[2]
