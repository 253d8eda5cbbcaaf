"""Queries: one request to a space as a value. An API makes it, and all layers pass it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tupelo.errors import BadArgument
from tupelo.space.clock import Clock
from tupelo.space.order import Order
from tupelo.values.checks import is_int, is_number
from tupelo.values.parts import ANY
from tupelo.values.scope import Scope

if TYPE_CHECKING:
    from tupelo.space.log import Actor
    from tupelo.space.order import Order
    from tupelo.space.search import SlicedSearch
    from tupelo.space.session import SessionState
    from tupelo.space.transaction import Txn
    from tupelo.store.index import Accept


WAIT_MAX = 1e9
"""About thirty years; None waits for ever."""


def check_wait(wait: object, name: str = "wait") -> None:
    if wait is None:
        return
    if not is_number(wait) or not 0 <= wait <= WAIT_MAX:
        raise BadArgument(
            name, f"a number of seconds from 0 to {WAIT_MAX:.0e}, or None for ever", wait
        )


def check_delay(delay: object, to: object) -> float | None:
    """The seconds for which an entry is hidden; None if it is visible at once."""
    if delay is None:
        return None
    if not is_number(delay) or not 0 <= delay <= WAIT_MAX:
        what = f"a number of seconds from 0 to {WAIT_MAX:.0e}, or None"
        raise BadArgument("delay", what, delay)
    if to is not None:
        raise BadArgument(
            "delay", "left out: an entry for an agent (to=) is visible at once", delay
        )
    return float(delay) or None


def check_limit(limit: object) -> None:
    if limit is None:
        return
    if not is_int(limit) or limit < 1:
        raise BadArgument("limit", "a whole number above 0, or None for all", limit)


def check_order(order: object) -> None:
    if not isinstance(order, Order):
        raise BadArgument("order", "an order such as Fifo() or Lifo()", order)
    if order.keeps_books:
        raise BadArgument("order", "one that needs no books: give a Vector to the space", order)


def check_position(name: str, position: object) -> None:
    if not is_int(position) or position < 0:
        raise BadArgument(name, "a position in the log, 0 or more", position)


def check_count(count: object, name: str) -> int:
    if not is_int(count) or count < 1:
        raise BadArgument(name, "a whole number above 0", count)
    return count


NOW: Final = 0.0
"""The deadline of an operation that does not wait."""


class Query(msgspec.Struct, frozen=True, gc=False):
    """One read or take.

    It waits until `deadline` on the space's clock: None for ever, NOW not at all. It returns at
    most `limit` entries (None for all); `many` distinguishes `read_all` and `take_all` from `read`
    and `take`. With `if_exists` it waits only while a transaction may reveal or release a match.
    `scope` selects hosts; `actor` is named in the log. Unless `known`, entries of unknown classes
    match too. `only` filters the matches. An operation that waited before keeps its place in the
    queue by its `ticket`. With `in_slices`, a long search is done in slices; `sliced` is its
    progress. A read of `committed` entries also sees entries that others have taken in open
    transactions, and holds no locks. A `test` finds entries without reading or taking them.
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
    sliced: SlicedSearch | None = None
    committed: bool = False
    test: bool = False

    @property
    def holder(self) -> Txn | None:
        """The transaction that gets a read lock."""
        return None if self.committed else self.txn

    @property
    def removes(self) -> bool:
        """Whether found entries leave at once, not when a transaction commits."""
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
        """A copy with these changes."""
        return msgspec.structs.replace(self, **changes)


def deadline_of(clock: Clock, wait: float | None, name: str = "wait") -> float | None:
    """The moment until which to wait. Raises BadArgument if `wait` is not a number of seconds."""
    if wait is None:
        return None
    if wait == 0 and wait is not False:
        return NOW
    check_wait(wait, name)
    return clock.now() + wait
