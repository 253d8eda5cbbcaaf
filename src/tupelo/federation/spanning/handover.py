"""Hand-over: a take by someone elsewhere. Reserve, deliver, confirm.

What is taken is out of the space, reserved under the number of the call; then it is delivered; and
only when the taker confirms is it gone for good. A durable space keeps the reservation as a
transaction that is prepared, so that it outlives a crash of the host. Until it is settled it is in
doubt: whoever took it says which it has received when it comes back, and if it never does the
space's `Doubt` decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from tupelo.errors import SpaceClosed, TransactionEnded, TupeloError
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.space.asynchronous import Transaction
from tupelo.space.handing import Handing
from tupelo.space.log import Actor
from tupelo.space.order import Order
from tupelo.space.session import Seen, SessionState
from tupelo.space.tasks import TaskSignal
from tupelo.space.transaction import Txn
from tupelo.space.waiting import Waiter
from tupelo.store.index import Accept
from tupelo.values.entry import Entry

logger = logging.getLogger("tupelo")

_PREFIX = "handover"
HERE = "here"
"""The first part of a holder that is the host itself, for an agent of its own."""


class Held(Protocol):
    """Entries that are on their way to a taker, who will keep them or give them back."""

    entries: list[Entry]

    @property
    def hosted(self) -> HostedSpace: ...

    def keep(self) -> int: ...

    def give_back(self) -> None: ...


@runtime_checkable
class Forgettable(Protocol):
    """Entries that, once they were kept, may yet be met again, until they are forgotten."""

    def forget(self) -> None: ...


class Reservation:
    """Entries of this host that are on their way to a taker."""

    __slots__ = ("_handing", "_txn", "entries", "hosted")

    def __init__(
        self, hosted: HostedSpace, entries: list[Entry], handing: Handing | None, txn: Txn | None
    ) -> None:
        self.hosted = hosted
        self.entries = entries
        self._handing = handing
        self._txn = txn

    def keep(self) -> int:
        """They are gone for good; the position at which that is durable. SpaceClosed or
        TransactionEnded if they are not, because the space took them back before.

        Until they are to be forgotten they may be written again under their own names, here or
        where they have gone to, if the one who asked for them turns out to have vanished.
        """
        operations = self.hosted.operations
        position = 0
        with self.hosted.engine.lock, operations.core.pruning.leaving(self.entries):
            if self._txn is not None:
                position = operations.commit(self._txn)
            elif self._handing is not None:
                operations.handings.received(self._handing)
        self.hosted.flush_soon(position)
        return position

    def forget(self) -> None:
        """They will not be met again: sessions may forget them."""
        core = self.hosted.operations.core
        with self.hosted.engine.lock:
            for entry in self.entries:
                core.pruning.gone(entry)

    def give_back(self) -> None:
        """They are in the space again."""
        operations = self.hosted.operations
        with suppress(SpaceClosed, TransactionEnded):
            if self._txn is not None:
                self.hosted.flush_soon(operations.abort(self._txn))
            elif self._handing is not None:
                operations.handings.undo(self._handing)


async def reserve(
    hosted: HostedSpace,
    holder: str,
    template: Any,
    *,
    wait: float | None = 0,
    many: bool = False,
    limit: int | None = None,
    order: Order | None = None,
    if_exists: bool = False,
    only: Accept | None = None,
    actor: Actor | None = None,
) -> Reservation | None:
    """Take what matches out of the space, to be delivered to the holder. The log will say that it
    was this actor, or else the host itself."""
    how = (True, wait, many, limit, order, if_exists)
    if not hosted.durable:
        entries = await found(hosted, template, *how, only=only, actor=actor)
        return _in_hand(hosted, entries) if entries else None
    with hosted.operations.acting(actor):
        branch = hosted.operations.begin_branch(None, None, holder)
    txn = Transaction(hosted.operations, branch, hosted.door._flusher)
    try:
        entries = await found(hosted, template, *how, txn=txn, only=only, actor=actor)
        if entries:
            await txn.prepare()
            return Reservation(hosted, entries, None, txn._state)
        await txn.abort()
        return None
    except BaseException:
        with suppress(TupeloError):
            hosted.operations.abort(txn._state)
        raise


def _in_hand(hosted: HostedSpace, entries: list[Entry]) -> Reservation:
    handing = hosted.operations.handings.hand(entries, True, None, None)
    return Reservation(hosted, entries, handing, None)


def reserve_now(hosted: HostedSpace, entry: Entry) -> Reservation:
    """Of an entry that was just taken in reserve, from a space in memory."""
    return _in_hand(hosted, [entry])


async def found(
    hosted: HostedSpace,
    template: Any,
    take: bool,
    wait: float | None,
    many: bool,
    limit: int | None,
    order: Order | None = None,
    if_exists: bool = False,
    *,
    txn: Transaction | None = None,
    session: Any = None,
    only: Accept | None = None,
    actor: Actor | None = None,
) -> list[Entry]:
    """The entries that are found here, in time; what is taken outside a transaction is reserved."""
    operations, door = hosted.operations, hosted.door
    reserving = take and txn is None
    with operations.acting(actor):
        if many or only is not None:
            answer, position = operations.get_all(
                template,
                TaskSignal,
                take,
                wait,
                limit if many else 1,
                txn,
                order,
                session,
                if_exists,
                known=False,
                only=only,
                reserve=reserving,
            )
        else:
            one, position = operations.get(
                template,
                TaskSignal,
                take,
                wait,
                txn,
                order,
                if_exists,
                session,
                known=False,
                reserve=reserving,
            )
            answer = one if isinstance(one, Waiter) else [] if one is None else [one]
    if isinstance(answer, Waiter):
        waiter = answer
        answer, position = await door._await(waiter, wait, reserving)
        if many and if_exists and not waiter.done:  # Patience is at an end: what is there now?
            return await found(hosted, template, take, 0, many, limit, order, txn=txn, actor=actor)
    if position and not take:
        await hosted.flush(position)
    return answer


def choosing(seen: Seen | None, agent: str | None) -> Accept:
    """Which entries are asked for: not those that were seen, only those of this agent."""
    return lambda entry: (
        (agent is None or (entry.to or entry.origin) == agent)
        and (seen is None or entry not in seen)
    )


async def unread(
    hosted: HostedSpace,
    session: SessionState,
    template: Any,
    limit: int | None,
    order: Order | None,
    agent: str | None,
    actor: Actor | None,
    bytes_max: int | None = None,
) -> tuple[list[Entry], bool]:
    """What is here that a session has not seen, and whether there is more than has room in so many
    bytes. It is for the reader to say that it has seen it."""
    operations = hosted.operations
    if order is not None or operations.core.order is not None:
        only = choosing(session.seen, agent)
        return await some(hosted, template, limit, order, only, actor, bytes_max)
    with operations.acting(actor):
        entries, cut, position = operations.unread(template, session, limit, agent, bytes_max)
    if position:
        await hosted.flush(position)
    return entries, cut


async def some(
    hosted: HostedSpace,
    template: Any,
    limit: int | None,
    order: Order | None,
    only: Accept | None,
    actor: Actor | None,
    bytes_max: int | None,
) -> tuple[list[Entry], bool]:
    """What is read here, and whether there is more than has room in so many bytes."""
    cut = False
    if bytes_max is not None and limit != 1:
        limit, cut = hosted.operations.room_for(template, limit, False, order, only, bytes_max)
    entries = await found(hosted, template, False, 0, True, limit, order, only=only, actor=actor)
    return entries, cut


def confirm(held: Held) -> None:
    """Its taker has it. If the space was closed before, it will be told again."""
    with suppress(SpaceClosed, TransactionEnded):
        held.keep()


def forget(held: Held) -> None:
    """Its taker has it, and will not vanish any more."""
    if isinstance(held, Forgettable):
        held.forget()


def give_back(held: Held) -> None:
    """Its taker does not have it. Whatever goes wrong is no concern of the others'."""
    try:
        held.give_back()
    except (SpaceClosed, TransactionEnded):
        pass
    except Exception:
        logger.exception("what was taken from %r could not be given back", held.hosted.name)


class Doubts:
    """All that was delivered and not confirmed by those who are away, by who took it."""

    def __init__(self, hosted: Callable[[], Iterable[HostedSpace]]) -> None:
        self._hosted = hosted
        self._away: dict[str, dict[int, Held]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def recover(self) -> None:
        """What the spaces have kept in doubt from the last life of this host."""
        for hosted in self._hosted():
            self.recover_space(hosted)

    def recover_space(self, hosted: HostedSpace) -> None:
        for txn in hosted.operations.in_doubt():
            prefix, _, rest = txn.id.partition(":")
            holder, _, number = rest.rpartition(":")
            if prefix == _PREFIX and number.isdecimal():
                txn.actor = _actor_of(holder)
                reservation = Reservation(hosted, list(txn.taken), None, txn)
                if holder.startswith(f"{HERE}:"):  # It died with this host, and had nothing yet.
                    reservation.give_back()
                else:
                    self.leave(holder, {int(number): reservation})

    def leave(self, holder: str, held: dict[int, Held], reason: str = "") -> None:
        """This holder is away and has not confirmed these. If it said goodbye, it never will."""
        if reason == "goodbye":
            for reservation in held.values():
                give_back(reservation)
            return
        if not held or self._closed:
            return
        self._away.setdefault(holder, {}).update(held)
        if holder not in self._timers:
            seconds = max(reservation.hosted.doubt.seconds for reservation in held.values())
            loop = asyncio.get_running_loop()
            self._timers[holder] = loop.call_later(seconds, self._give_up, holder)

    def back(self, holder: str, received: Iterable[int]) -> None:
        """This holder is back, and says what it has received; the rest returns to the spaces."""
        timer = self._timers.pop(holder, None)
        if timer is not None:
            timer.cancel()
        has = set(received)
        for number, reservation in self._away.pop(holder, {}).items():
            if number in has:
                self._confirm(reservation)
            else:
                give_back(reservation)

    def of(self, holder: str) -> dict[int, Held]:
        return self._away.get(holder, {})

    def forget(self, holder: str, number: int) -> None:
        """This one is settled."""
        held = self._away.get(holder, {})
        held.pop(number, None)
        if not held:
            self.back(holder, ())

    def holders(self) -> list[str]:
        return list(self._away)

    def _give_up(self, holder: str) -> None:
        """It never came back: the policy of each space says what becomes of its entries."""
        self._timers.pop(holder, None)
        for number, reservation in self._away.pop(holder, {}).items():
            then = reservation.hosted.doubt.then
            logger.warning(
                "%s did not come back to confirm what it took from %r (call %d): %s",
                holder,
                reservation.hosted.name,
                number,
                "it returns" if then == "return" else "it is forgotten",
            )
            if then == "return":
                give_back(reservation)
            else:
                self._confirm(reservation)

    @staticmethod
    def _confirm(held: Held) -> None:
        try:
            confirm(held)
        except Exception:
            logger.exception("what was taken from %r could not be settled", held.hosted.name)

    def close(self) -> None:
        """What is in doubt stays so where it is durable. What was in memory goes with it: nobody
        else may get it now, for its taker may have it."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._away.clear()


def client_holder(agent: str, session: str) -> str:
    """The name under which a client holds reservations: nobody else can come back to them."""
    return f"client:{agent}:{session}"


def host_holder(host_id: str, incarnation: str) -> str:
    """The name under which a host holds reservations at another."""
    return f"host:{host_id}:{incarnation}"


def _actor_of(holder: str) -> Actor | None:
    """Who it was that took something, as far as the name of its holder says."""
    kind, _, rest = holder.partition(":")
    agent = rest.rpartition(":")[0]
    return Actor(agent) if agent and kind in ("client", "host") else None


def holder_name(holder: str, call: int) -> str:
    """The id of the transaction that keeps a reservation."""
    return f"{_PREFIX}:{holder}:{call}"
