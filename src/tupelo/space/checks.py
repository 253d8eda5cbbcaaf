"""Checks of arguments: what cannot be used is refused by name, before anything is done."""

from __future__ import annotations

from tupelo.errors import BadArgument
from tupelo.space.order import Order

WAIT_MAX = 1e9
"""Some thirty years; None waits longer."""


def check_wait(wait: object, name: str = "wait") -> None:
    if wait is None:
        return
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait <= WAIT_MAX:
        raise BadArgument(
            name, f"a number of seconds from 0 to {WAIT_MAX:.0e}, or None for ever", wait
        )


def check_limit(limit: object) -> None:
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadArgument("limit", "a whole number above 0, or None for all", limit)


def check_order(order: object) -> None:
    if not isinstance(order, Order):
        raise BadArgument("order", "an order such as Fifo() or Lifo()", order)
    if order.keeps_books:
        raise BadArgument("order", "one that needs no books: give a Vector to the space", order)


def check_position(name: str, position: object) -> None:
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise BadArgument(name, "a position in the log, 0 or more", position)


def check_count(count: object, name: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise BadArgument(name, "a whole number above 0", count)
    return count
