"""How an operation waits: it looks, sleeps until there may be something, and looks again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tupelo.postgres.listening import WaitingOperation
    from tupelo.postgres.prepared import Row
    from tupelo.postgres.searching import PostgresSearch
    from tupelo.postgres.space import PostgresSpace
    from tupelo.postgres.transactions import PostgresTransaction

Attempt = Callable[["WaitingOperation | None"], Coroutine[Any, Any, tuple[bool, Any]]]
"""A look: whether it is enough, and its result."""

HOLDER_POLL_SECONDS = 0.5
"""How often a waiting operation looks whether another program, which has its match in hand, is
gone: the server does not tell that."""


class GiveWay(Exception):
    """What was found is for one who waits for longer."""


async def until(
    space: PostgresSpace,
    attempt: Attempt,
    wait: float | None,
    txn: PostgresTransaction | None = None,
    search: PostgresSearch | None = None,
    writes: bool = False,
) -> tuple[bool, Any]:
    """Attempt until it succeeds, again at each notification, for at most `wait` seconds. Returns
    the last result."""
    done, result = await attempt(None)
    if done or wait == 0:
        return done, result
    clock, database, listener = space.clock, space.database, space.database.listener
    began = clock.now()
    deadline = None if wait is None else began + wait

    def is_over() -> bool:
        return deadline is not None and clock.now() >= deadline

    waiter = database.new_waiter()
    waiter.takes = search is not None and search.take
    waiter.search = search
    waiter.reconnect = space.reconnect
    if search is not None:
        search.waiter = waiter
    waiter.writes = writes
    if txn is not None:
        txn.waiters.add(waiter)
    space.handles.add(waiter)
    cancel_alarm = None if deadline is None else clock.call_at(deadline, waiter.wake)
    try:
        is_listening, woken = listener.join(space.id, waiter), False
        on_due = partial(listener.let_look, space.id, waiter)
        while True:
            if not is_listening:
                await database.sleep(waiter)
                is_listening = True
            waiter.event.clear()
            waiter.asleep = False
            space.require_open()
            if txn is not None:
                txn.require()
            if waiter.error is not None:
                raise waiter.error
            if search is not None:
                search.waited = max(0.0, clock.now() - began)
                targets = search.bind()
                waiter.known = targets.known
                waiter.shapes = frozenset(n for group in targets.groups for n in group.shapes)
            if woken:
                done, result = await attempt(waiter)
                if done or is_over():
                    return done, result
            # The state first: who commits a prepared transaction by hand tells nobody. Who has
            # given way to another does not look before that one.
            (state,) = await space.execute(space.sql.state)
            gave_way = waiter.due > 0 or (woken and search is not None and search.skipped)
            if not gave_way or is_over():
                done, result = await attempt(waiter)
                if done or is_over():
                    return done, result
            woken, due = True, _next_look(space, state, search)
            listener.looked(space.id, waiter)
            cancel = None if due is None else clock.call_at(due, on_due)
            waiter.asleep = True
            try:
                await database.sleep(waiter)
            finally:
                if cancel is not None:
                    cancel()
    finally:
        if cancel_alarm is not None:
            cancel_alarm()
        listener.leave(space.id, waiter)
        space.handles.discard(waiter)
        if txn is not None:
            txn.waiters.discard(waiter)


def _next_look(space: PostgresSpace, state: Row, search: PostgresSearch | None) -> float | None:
    """The moment at which to look again without being told: entries expire or appear then, or a
    holder may be gone. Who was in hand when the waiter looked may be free again by now."""
    _, late, held, seconds = state
    now = space.clock.now()
    due = None if seconds is None else now + seconds
    if space.given_clock is not None:
        return now if late else due
    if held or late or (search is not None and search.skipped):
        soon = now + HOLDER_POLL_SECONDS
        due = soon if due is None else min(due, soon)
    return due
