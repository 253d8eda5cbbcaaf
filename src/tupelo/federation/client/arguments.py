"""What is given to a remote space and what comes back: checked, and encoded to be sent."""

from __future__ import annotations

from typing import Any

from tupelo.errors import BadArgument, BadFrame
from tupelo.federation.links.encoding import read_encoded_entry
from tupelo.values.entry import thaw

NUMBER_MAX = 2**63 - 1
"""The largest number that is sent; nothing is ever so many."""


def built(encoded: Any) -> Any:
    """What the reader of an entry gets."""
    shape, fields = read_encoded_entry(encoded)
    return fields if shape.plain else thaw(shape, fields)


def is_text(value: object) -> bool:
    """Is this a text that can be sent?"""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_to(to: object) -> None:
    if to is not None and (not is_text(to) or not to):
        raise BadArgument("to", "the id of an agent, or None", to)


def parts(answer: Any, count: int) -> list[Any]:
    """The parts of an answer. BadFrame if it has not so many."""
    if type(answer) is not list or len(answer) != count:
        raise BadFrame(f"an answer of {count} parts was expected")
    return answer


def listed(answer: Any) -> list[Any]:
    """An answer that is a list. BadFrame if it is none."""
    if type(answer) is not list:
        raise BadFrame("a list was expected as the answer")
    return answer
