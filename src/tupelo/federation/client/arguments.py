"""Checks of the arguments of remote operations, and of the answers of hosts."""

from __future__ import annotations

from typing import Any

from tupelo.errors import BadArgument, BadFrame
from tupelo.federation.links.encoding import read_encoded_entry
from tupelo.values.entry import thaw

NUMBER_MAX = 2**63 - 1
"""The largest integer in a message; larger limits and positions are cut to it."""


def built(encoded: Any) -> Any:
    """Decode an entry, as its reader gets it: a tuple or a dataclass instance."""
    shape, fields = read_encoded_entry(encoded)
    return fields if shape.plain else thaw(shape, fields)


def is_text(value: object) -> bool:
    """Whether this is a string that can be encoded in UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_to(to: object) -> None:
    """Raise BadArgument unless `to` is the id of an agent or None."""
    if to is not None and (not is_text(to) or not to):
        raise BadArgument("to", "the id of an agent, or None", to)


def parts(answer: Any, count: int) -> list[Any]:
    """An answer that is a list of `count` parts; BadFrame otherwise."""
    if type(answer) is not list or len(answer) != count:
        raise BadFrame(f"an answer of {count} parts was expected")
    return answer


def listed(answer: Any) -> list[Any]:
    """An answer that is a list; BadFrame otherwise."""
    if type(answer) is not list:
        raise BadFrame("a list was expected as the answer")
    return answer
