"""Queries: what is asked of a space, as one value. A door makes it, and all layers pass it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tupelo.errors import BadArgument
from tupelo.space.clock import Clock
from tupelo.space.order import Order
from tupelo.values.parts import ANY
from tupelo.values.scope import Scope, check_scope

if TYPE_CHECKING:
    from tupelo.space.log import Actor
    from tupelo.space.order import Order
    from tupelo.space.search import SlicedSearch
    from tupelo.space.session import SessionState
    from tupelo.space.transaction import Txn
    from tupelo.store.index import Accept


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


NOW: Final = 0.0
"""The deadline of an operation that does not wait."""


class Query(msgspec.Struct, frozen=True, gc=False):
    """One read or take.

    `deadline` is the moment, on the space's clock, until which it waits: None for ever, NOW not at
    all. It wants at most `limit` entries (None for all); `many` tells `read_all` and `take_all`
    from `read` and `take`. With `if_exists` it waits only while a transaction may reveal or release
    a match. `scope` says which hosts it looks at, `actor` whom the log names. Unless it must be
    `known`, an entry may be of a class that this program lacks. `only` filters the matches. An
    operation that has waited before keeps its place in the queue by its `ticket`. A long search is
    done `in_slices`, if it may be: its `survey` says how far it has come. One that reads what is
    `committed` sees also what others have taken in transactions that are open, and holds nothing. A
    `test` finds what it would read or take, and neither takes nor holds it.
    """

    template: Any = ANY
    take: bool = False
    deadline: float | None = NOW
    many: bool = False
    limit: int | None = 1
    order: Order | None = None
    txn: Txn | None = None
    session: SessionState | None = None
    if_exists: bool = False
    scope: Scope | None = None
    actor: Actor | None = None
    known: bool = True
    only: Accept | None = None
    ticket: int | None = None
    in_slices: bool = False
    survey: SlicedSearch | None = None
    committed: bool = False
    test: bool = False

    @property
    def holder(self) -> Txn | None:
        """The transaction that holds what is read, until it ends."""
        return None if self.committed else self.txn

    @property
    def removes(self) -> bool:
        """Is what it finds gone at once, and not when a transaction commits?"""
        return self.take and self.txn is None and not self.test

    @property
    def verb(self) -> str:
        return "take" if self.take else "read"

    def wait_left(self, clock: Clock) -> float | None:
        """Seconds until the deadline, by this clock: 0 if it has passed, None for ever."""
        deadline = self.deadline
        if deadline is None or deadline == NOW:
            return deadline
        return max(0.0, deadline - clock.now())

    def replace(self, **changes: Any) -> Query:
        """The same query but for these."""
        return msgspec.structs.replace(self, **changes)


def deadline_of(clock: Clock, wait: float | None, name: str = "wait") -> float | None:
    """The moment at which patience ends. BadArgument if `wait` is no number of seconds."""
    if wait is None:
        return None
    if type(wait) is int and wait == 0:
        return NOW
    check_wait(wait, name)
    return NOW if wait == 0 else clock.now() + wait


def check_query(limit: object, order: object, scope: object) -> None:
    """Check what a user gives to a read or take, but for the template, `wait` and `txn`."""
    if limit is not None:
        check_limit(limit)
    if order is not None:
        check_order(order)
    if scope is not None:
        check_scope(scope)
