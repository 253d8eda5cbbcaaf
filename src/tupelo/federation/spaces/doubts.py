"""Deliveries in doubt: entries that were delivered to a program or host that is away, and of which
it is not known whether they arrived. The holder settles them when it is back; if it does not come
back, or comes back as a new life that knows nothing of them, the `Doubt` of each space decides.

What a host has taken for one of its clients is settled by that client, which outlives the host:
when it comes back to the host's next life, it says what it has received.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from contextlib import suppress
from typing import Protocol

from tupelo.errors import SpaceClosed, TransactionEnded
from tupelo.federation.spaces.hosted import Doubt
from tupelo.space.delivery import Delivery
from tupelo.values.holder import ClientCall, Holder

logger = logging.getLogger("tupelo")


class DeliveringSpace(Protocol):
    """A space whose deliveries may be in doubt: a HostedSpace, or a tuple store of LIME."""

    doubt: Doubt

    def flush_soon(self, position: int) -> None: ...


def confirm(hosted: DeliveringSpace | None, delivery: Delivery) -> int:
    """The taker has the entries; the position at which that is durable. If the space was closed
    before, the taker will say so again."""
    with suppress(SpaceClosed, TransactionEnded):
        position = delivery.confirm()
        if hosted is not None:
            hosted.flush_soon(position)
        return position
    return 0


def give_back(hosted: DeliveringSpace | None, delivery: Delivery) -> None:
    """The taker does not have the entries. What goes wrong here is only logged: the others that are
    given back do not depend on it."""
    try:
        position = delivery.give_back()
        if hosted is not None:
            hosted.flush_soon(position)
    except (SpaceClosed, TransactionEnded):
        pass
    except Exception:
        logger.exception("what was taken from %r could not be given back", delivery.space)


RETURNED_MAX = 10_000
"""Of so many clients that came back it is remembered what they had received."""
RECEIVED_MAX = 200_000
"""So many calls are remembered for all of them together."""


APART = frozenset({"move", "lime-take", "lime-move"})
"""Deliveries between hosts that may be apart for long: `Doubt.apart_seconds` counts for them."""


def _holder_of(delivery: Delivery) -> Holder | None:
    holder: Holder | None = getattr(delivery, "holder", None)
    return holder


def _client_of(delivery: Delivery) -> ClientCall | None:
    """The client for which another host has taken this, if it was for one."""
    holder = _holder_of(delivery)
    return None if holder is None else holder.client


class DoubtfulDeliveries:
    """All that was delivered to holders that are away, and not confirmed by them."""

    def __init__(self, space_of: Callable[[str], DeliveringSpace | None]) -> None:
        self._space_of = space_of
        self._away: dict[Hashable, dict[int, Delivery]] = {}
        self._timers: dict[Hashable, dict[float, asyncio.TimerHandle]] = {}
        self._returned: dict[Hashable, frozenset[int]] = {}
        self._received = 0  # the calls in there
        self._closed = False

    def leave(self, owner: Hashable, held: dict[int, Delivery], reason: str = "") -> None:
        """This holder is away and has not confirmed these. If it said goodbye, it never will; but
        a client of it may yet do so."""
        if self._closed and reason != "goodbye":
            return
        received = self._returned.get(owner)
        if received is not None:  # These were recovered after the holder had come back.
            self._settle(held, received)
            return
        held = {n: one for n, one in held.items() if not self._is_settled_by_client(one)}
        if reason == "goodbye":
            for number in [n for n, one in held.items() if _client_of(one) is None]:
                delivery = held.pop(number)
                give_back(self._space_of(delivery.space), delivery)
        if not held or self._closed:  # The spaces keep it in doubt.
            return
        self._away.setdefault(owner, {}).update(held)
        timers = self._timers.setdefault(owner, {})
        for seconds in {self._patience(delivery) for delivery in held.values()}:
            if seconds is not None and seconds not in timers:
                loop = asyncio.get_running_loop()
                timers[seconds] = loop.call_later(seconds, self._waited, owner, seconds)

    def _is_settled_by_client(self, delivery: Delivery) -> bool:
        """Has the client for which this was taken come back and said whether it has it? If so,
        this is settled now."""
        client = _client_of(delivery)
        received = None if client is None else self._returned.get(client.owner)
        if client is None or received is None:
            return False
        self._settle({client.call: delivery}, received)
        return True

    def _policy(self, delivery: Delivery) -> Doubt:
        hosted = self._space_of(delivery.space)
        return Doubt() if hosted is None else hosted.doubt

    def _patience(self, delivery: Delivery) -> float | None:
        """For how many seconds its taker may be away; None, for ever."""
        policy, holder = self._policy(delivery), _holder_of(delivery)
        apart = holder is not None and holder.kind in APART
        return policy.apart_seconds if apart else policy.seconds

    def back(self, owner: Hashable, received: Iterable[int]) -> None:
        """This holder is back, and says what it has received; the rest returns to the spaces."""
        for timer in self._timers.pop(owner, {}).values():
            timer.cancel()
        self._settle(self._away.pop(owner, {}), set(received))

    def client_back(self, owner: Hashable, received: Iterable[int]) -> None:
        """A client of this host, or of another, is back. What it has received is remembered: a
        space or a service that is opened only now may still have deliveries to it in doubt from
        before a crash, and so may another host."""
        has = frozenset(received)
        self._received += len(has) - len(self._returned.pop(owner, ()))
        self._returned[owner] = has
        while len(self._returned) > RETURNED_MAX or self._received > RECEIVED_MAX:
            self._received -= len(self._returned.pop(next(iter(self._returned))))
        self.back(owner, has)
        for holder in self.owners():
            for number, delivery in list(self.of(holder).items()):
                if self._is_settled_by_client(delivery):
                    self.forget(holder, number)

    def clients_returned(self) -> dict[Hashable, frozenset[int]]:
        """The clients that have come back, and what they have received."""
        return self._returned

    def new_life(self, owner: Hashable) -> None:
        """The holder is back in a new life, which knows nothing of these. What it took for clients
        waits for them; for the rest, the policy of each space decides now."""
        for number, delivery in list(self.of(owner).items()):
            if _client_of(delivery) is None:
                self.forget(owner, number)
                self._decide(owner, number, delivery)

    def _settle(self, held: dict[int, Delivery], received: Set[int]) -> None:
        for number, delivery in held.items():
            if number in received:
                self._confirm(delivery)
            else:
                give_back(self._space_of(delivery.space), delivery)

    def of(self, owner: Hashable) -> dict[int, Delivery]:
        return self._away.get(owner, {})

    def forget(self, owner: Hashable, number: int) -> None:
        """This one is settled."""
        held = self._away.get(owner, {})
        held.pop(number, None)
        if not held:
            self.back(owner, ())

    def owners(self) -> list[Hashable]:
        return list(self._away)

    def _waited(self, owner: Hashable, seconds: float) -> None:
        """It did not come back for so long: what would wait no longer is decided."""
        del self._timers[owner][seconds]
        for number, delivery in list(self.of(owner).items()):
            if self._patience(delivery) == seconds:
                self.forget(owner, number)
                self._decide(owner, number, delivery)

    def waiting(self) -> Iterator[tuple[Hashable, int, Delivery, Holder]]:
        """All that is in doubt and has a holder: by owner and number."""
        for owner in self.owners():
            for number, delivery in list(self.of(owner).items()):
                if (holder := _holder_of(delivery)) is not None:
                    yield owner, number, delivery, holder

    def give_up(self, who: str) -> int:
        """This program or host will not come back: the policy of each space decides. How many
        entries it was about."""
        entries = 0
        for owner, number, delivery, holder in self.waiting():
            if holder.who == who:
                entries += len(delivery.entries)
                self.forget(owner, number)
                self._decide(owner, number, delivery)
        return entries

    def _decide(self, owner: Hashable, number: int, delivery: Delivery) -> None:
        """Nobody will confirm this any more: the policy of its space decides."""
        then = self._policy(delivery).then
        logger.warning(
            "%s did not come back to confirm what it took from %r (call %d): %s",
            owner,
            delivery.space,
            number,
            "it returns" if then == "return" else "it is forgotten",
        )
        if then == "return":
            give_back(self._space_of(delivery.space), delivery)
        else:
            self._confirm(delivery)

    def _confirm(self, delivery: Delivery) -> None:
        try:
            confirm(self._space_of(delivery.space), delivery)
        except Exception:
            logger.exception("what was taken from %r could not be settled", delivery.space)

    def close(self) -> None:
        """What is in doubt stays so where it is durable. What was in memory goes with it: nobody
        else may get it now, for its taker may have it."""
        self._closed = True
        for timers in self._timers.values():
            for timer in timers.values():
                timer.cancel()
        self._timers.clear()
        self._away.clear()
