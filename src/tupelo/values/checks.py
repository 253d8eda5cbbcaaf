"""Checks of arguments, for all layers. True and False are not numbers."""

from __future__ import annotations

from typing import TypeGuard

from tupelo.errors import BadArgument


def is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_text(name: str, value: object) -> str:
    """The value of an argument. Raises BadArgument, which names it, unless it is a text that is not
    empty."""
    if not isinstance(value, str) or not value:
        raise BadArgument(name, "a text that is not empty", value)
    return value


def check_bool(name: str, value: object) -> None:
    """Raises BadArgument, which names the argument, unless the value is True or False."""
    if not isinstance(value, bool):
        raise BadArgument(name, "True or False", value)
