"""Choosing: how those who wait are served if the orders of some of them may leave matches out.

With such an order an entry that leaves may reveal another one. So those who wait are served from
the top: all readers, then the first taker who can be, and from the top again until nothing changes.

A head-only order shows one entry, and only those who want that entry are asked. Any other order is
asked for each operation that waits, when something has left, and with books also when something has
come: see docs/ORDERS.md.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tupelo.errors import TupeloError
from tupelo.space.finding import sees
from tupelo.space.order import Order, Queue, Stack, hides
from tupelo.space.query import Query
from tupelo.space.transaction import may_take
from tupelo.values.entry import Entry
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.transaction import Txn
    from tupelo.space.waiting import Waiter, Waiting

Head = tuple[Order | type[Order], "Txn | None"]
"""What decides which entry is the head: the order, and the transaction in which it is asked."""

_ticket = attrgetter("ticket")


class Peek:
    """A question whose order may leave matches out, of one who is told when there is a match."""

    def __init__(self, raw: Any, order: Order, hint: Callable[[], object]) -> None:
        self.order = order
        self._raw = raw
        self._hint = hint

    def ask(self, core: Core) -> None:
        try:
            found = core.find(Query(self._raw, order=self.order, known=False))
        except TupeloError:
            self._hint()  # so that the one who is told finds the error
        else:
            if found:
                self._hint()


class Choosing:
    """Operations that wait whose orders may leave matches out, and peeks: `count` of them."""

    def __init__(self, core: Core, waiting: Waiting) -> None:
        self._core = core
        self._waiting = waiting
        # Who waits for which head. An OrderedDict finds its first at once, also when many before
        # that have gone.
        self._heads: dict[Head, OrderedDict[Waiter, None]] = {}
        self._for_heads = 0  # how many they are
        self._others: dict[Waiter, None] = {}  # whose orders are not head-only
        self._shown: dict[Head, Entry] = {}  # the heads of this moment
        self._peeks: dict[Peek, None] = {}
        self.count = 0

    def add(self, waiter: Waiter) -> None:
        """This one waits, in the order of its ticket; of no concern if its order shows all."""
        if waiter.order is not None and waiter.order.head_only:
            self._heads.setdefault(_head(waiter), OrderedDict())[waiter] = None
            self._for_heads += 1
            self.count += 1
        elif hides(waiter.order):
            self._others[waiter] = None
            self.count += 1

    def discard(self, waiter: Waiter) -> None:
        """This one, which was added, waits no more."""
        if not hides(waiter.order):
            return
        self.count -= 1
        if waiter in self._others:
            del self._others[waiter]
        else:
            head = _head(waiter)
            waiters = self._heads[head]
            del waiters[waiter]
            self._for_heads -= 1
            if not waiters:
                del self._heads[head]

    def peek(self, raw: Any, order: Order | None, hint: Callable[[], object]) -> Peek | None:
        """Call `hint`, under the lock, whenever the order may show a match that it left out before.
        None: the order shows every match, and nobody need be told."""
        order = order or self._core.order
        if order is None or not hides(order):
            return None
        peek = Peek(raw, order, hint)
        self._peeks[peek] = None
        self.count += 1
        return peek

    def end_peek(self, peek: Peek) -> None:
        if self._peeks.pop(peek, peek) is None:
            self.count -= 1

    # Serving

    def serve(self, fresh: list[Entry], left: bool) -> None:
        """Serve all who wait, after these entries have become available and perhaps others have
        `left`."""
        while True:
            offers = self._offers(fresh)
            self._serve_readers(offers, left)
            served = self._serve_first_taker(offers, left)
            self._waiting.fail_those_who_raised()
            if not served:
                break
            left = True
        for peek in list(self._peeks):
            if left or peek.order.keeps_books:
                peek.ask(self._core)

    def _offers(self, fresh: list[Entry]) -> list[Entry]:
        """What may be wanted: what head-only orders show, and what is fresh, unless all who wait
        have such orders."""
        self._shown.clear()
        for head, waiters in list(self._heads.items()):
            one = next(iter(waiters))
            try:
                found = self._core.find(Query(ANY, txn=one.query.txn, order=one.order, known=False))
            except TupeloError as error:
                for waiter in list(waiters):
                    self._waiting.fail(waiter, error)
            else:
                self._shown.update((head, entry) for entry in found)
        offers = dict.fromkeys(self._shown.values())
        if len(self._waiting.readers) + len(self._waiting.takers) > self._for_heads:
            offers.update(dict.fromkeys(entry for entry in fresh if not entry.gone))
        return list(offers)

    def _serve_readers(self, offers: list[Entry], left: bool) -> None:
        asked = {waiter: None for entry in offers for waiter in self._readers_of(entry)}
        asked.update(
            (one, None) for one in self._others if not one.query.take and _is_asked(one, left)
        )
        for waiter in sorted(asked, key=_ticket):
            self._waiting.deliver(waiter)

    def _readers_of(self, entry: Entry) -> Iterator[Waiter]:
        return self._waiting.readers.wanting(entry, partial(self._may_have, entry))

    def _serve_first_taker(self, offers: list[Entry], left: bool) -> bool:
        """False if none can be served."""
        others = [one for one in self._others if one.query.take and _is_asked(one, left)]
        takers = self._waiting.takers
        wanting = [takers.wanting(entry, partial(self._may_have, entry)) for entry in offers]
        before = None
        for waiter in heapq.merge(others, *wanting, key=_ticket):
            if waiter is not before:
                self._waiting.deliver(waiter)
                if waiter.done:  # It was served, or has failed: either way it waits no more.
                    return True
            before = waiter
        return False

    def _may_have(self, entry: Entry, waiter: Waiter) -> bool:
        order = waiter.order
        if order is not None and order.head_only and self._shown.get(_head(waiter)) is not entry:
            return False
        return sees(entry, waiter) and (not waiter.query.take or may_take(entry, waiter.query.txn))


def _head(waiter: Waiter) -> Head:
    order = waiter.order
    assert order is not None
    return type(order) if type(order) in (Queue, Stack) else order, waiter.query.txn


def _is_asked(waiter: Waiter, left: bool) -> bool:
    assert waiter.order is not None
    return left or waiter.order.keeps_books
