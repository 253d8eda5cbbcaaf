"""Finding: what an operation sees, and which of it it may have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tupelo.space.order import Order, arranged, needed
from tupelo.space.query import Query
from tupelo.space.sliced_search import SlicedSearch
from tupelo.space.transaction import Txn, may_take
from tupelo.store.index import Accept, Store
from tupelo.values.entry import Entry
from tupelo.values.parts import ANY
from tupelo.values.template import as_template

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.waiting import Waiter


_arrival = attrgetter("arrival")


def stores_of(core: Core, txn: Txn | None) -> list[Store]:
    """What an operation sees, the oldest entries first."""
    if txn is None:
        return [core.store]
    return [core.store, *[above.store for above in reversed(list(txn.line()))]]


def acceptance(core: Core, query: Query) -> Accept | None:
    """What a match must be besides: not seen by the session, not held by others."""
    only, take, txn, session = query.only, query.take, query.txn, query.session
    if only is not None:
        return lambda entry: only(entry) and not (take and not may_take(entry, txn))
    if session is not None:
        seen = session.seen
        return lambda entry: entry not in seen
    if take and core.read_locks:
        return lambda entry: may_take(entry, txn)
    return None


def sees(entry: Entry, waiter: Waiter) -> bool:
    """Can an operation that waits see this entry?"""
    query = waiter.query
    if query.session is not None and entry in query.session.seen:
        return False
    if query.only is not None and not query.only(entry):
        return False
    writer: Txn | None = entry.txn
    return writer is None or (query.txn is not None and writer in query.txn.line())


def search(core: Core, query: Query) -> list[Entry]:
    """The matches that may be had, the first choice of the order first."""
    raw, order = query.template, query.order or core.order
    accept = acceptance(core, query)
    if order is not None and order.head_only:
        question = core.store.question(raw)
        heads = _ordered(core, ANY, 1, query.txn, order, None)
        return [
            head
            for head in heads
            if core.store.is_match(question, head) and (accept is None or accept(head))
        ]
    if query.committed:
        taken = _taken_by_others(core, query)
        if taken:
            return _with_taken(core, query, order, taken)
    if query.survey is not None:
        query.survey.advance(accept)
    elif order is not None and raw is ANY and query.session is None and query.only is None:
        chosen = order.select(query.txn, _locked_by_others(core, query))
        if chosen is not None:
            return chosen[: query.limit]
    return _ordered(core, raw, query.limit, query.txn, order, accept, query.survey)


def _locked_by_others(core: Core, query: Query) -> Iterator[Entry]:
    """The entries that a take may not have because others have read them."""
    if query.take and core.read_locks:
        for other in core.transactions:
            for entry in other.read:
                if not may_take(entry, query.txn):
                    yield entry


def _taken_by_others(core: Core, query: Query) -> list[Entry]:
    """The matches that others have taken in transactions that may yet abort. What has promised to
    commit counts as committed: its taker may have it."""
    template, now = as_template(query.template), core.now()
    line = () if query.txn is None else tuple(query.txn.line())
    return [
        entry
        for other in core.transactions
        if other.state == "active" and other not in line
        for entry, home in other.taken.items()
        if home is None
        and (entry.expires is None or entry.expires > now)
        and template.admits(entry.shape, entry.fields)
    ]


def _with_taken(core: Core, query: Query, order: Order | None, taken: list[Entry]) -> list[Entry]:
    first, *own = stores_of(core, query.txn)
    question = first.question(query.template)
    found = sorted([*first.matches(question), *taken], key=_arrival)
    for store in own:
        found.extend(store.matches(store.question(query.template)))
    if order is None:
        return found[: query.limit]
    return arranged(order, found[::-1] if order.backwards else found, query.limit)


def _ordered(
    core: Core,
    raw: Any,
    limit: int | None,
    txn: Txn | None,
    order: Order | None,
    accept: Accept | None,
    survey: SlicedSearch | None = None,
) -> list[Entry]:
    if survey is not None and survey.rank is not None:
        return survey.first_choices(limit, accept)
    found: list[Entry] = []
    stores = stores_of(core, txn)
    if order is not None and limit is not None and survey is None:
        walk = order.walk()
        if walk is not None:
            return _first_on(walk, core, raw, limit, txn, order, accept)
    backwards = order is not None and order.backwards
    enough = limit if order is None else needed(order, limit)
    for store in reversed(stores) if backwards else stores:
        if survey is not None and survey.at_hand:
            matches = iter(survey.matches(store, accept, backwards))
        elif enough == 1 and not backwards:
            first = store.first(store.question(raw), accept)
            matches = iter(()) if first is None else iter((first,))
        else:
            matches = store.matches(store.question(raw), accept, backwards)
        found.extend(islice(matches, None if enough is None else enough - len(found)))
    return found if order is None else arranged(order, found, limit)


def _first_on(
    walk: Iterable[Entry],
    core: Core,
    raw: Any,
    limit: int,
    txn: Txn | None,
    order: Order,
    accept: Accept | None,
) -> list[Entry]:
    """The first matches on the walk of an order. With each step another match is looked up by its
    content: where there are few, all are found before the walk comes to them."""
    own = () if txn is None else tuple(txn.line())
    question = core.store.question(raw)
    matches = chain.from_iterable(
        store.matches(store.question(raw), accept) for store in stores_of(core, txn)
    )
    first: list[Entry] = []
    found: list[Entry] = []
    for entry in walk:
        match = next(matches, None)
        if match is None:
            return arranged(order, found, limit)
        found.append(match)
        is_here = not entry.gone and (entry.txn is None or entry.txn in own)
        if is_here and core.store.is_match(question, entry) and (accept is None or accept(entry)):
            first.append(entry)
            if len(first) == limit:
                break
    return first
