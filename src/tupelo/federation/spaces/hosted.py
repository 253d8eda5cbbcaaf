"""One space of a host with its access rules, and deliveries that are in doubt.

A delivery is in doubt if its holder, a program or another host, is away and has not confirmed it.
The holder settles it when it is back. If it does not come back, or comes back as a new run that
does not know the delivery, the `Doubt` of the space decides. Entries that a host has taken for one
of its clients are settled by that client, which outlives the host: when it connects to the next run
of the host, it reports which entries it has received.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Set
from contextlib import suppress
from typing import Literal, Protocol

import msgspec

from tupelo.errors import BadArgument, JournalError, SpaceClosed, TransactionEnded
from tupelo.federation.identity.access import Access
from tupelo.federation.names import is_reserved
from tupelo.space import asynchronous, blocking
from tupelo.space.delivery import Delivery
from tupelo.space.port import port_of
from tupelo.space.session import Seen
from tupelo.values.entry import Entry
from tupelo.values.holder import ClientCall, Holder
from tupelo.values.lease import check_lease

logger = logging.getLogger("tupelo")


class Doubt(msgspec.Struct, frozen=True):
    """What happens to an entry that was delivered and not confirmed, if its taker is not back
    within `seconds`: "return" puts it back into the space, "forget" counts it as taken. A returned
    entry is taken twice if the taker did receive it; None waits for the taker for ever.

    Tuples of LIME, and entries that move to their agents, go between hosts that may be disconnected
    for hours: `apart_seconds` applies to them, and by default waits for ever.
    """

    seconds: float | None = 30.0
    then: Literal["return", "forget"] = "return"
    apart_seconds: float | None = None


class HostedSpace:
    """One space of a host: `space` is its blocking API, `door` its async API, and `port` the access
    to its engine for the other parts of the host.

    With `serves` it is a companion, in which a model keeps more for that space. The access rules
    and the password of that space apply to the companion too, besides its own `access`. `former` is
    the name of the companion in earlier versions, which records on disk may contain.
    """

    def __init__(
        self,
        space: blocking.Space,
        access: Access,
        doubt: Doubt,
        *,
        commit_in_place: bool,
        serves: HostedSpace | None = None,
        former: str | None = None,
    ) -> None:
        self.space = space
        self.port = port_of(space)
        self.name = space.name
        self.access = access
        self.serves = serves
        self._is_system = serves is None and is_reserved(self.name)
        self.former = former
        self.is_hidden = False
        """Whether it is hidden from other hosts, whatever its access rules say."""
        self.doubt = doubt
        self.clock = self.port.clock
        self.durable = self.port.durable
        self.flush = self.port.flushed
        self.flush_soon = self.port.flush_soon
        self.door = asynchronous.Space(space)
        if commit_in_place:
            self.port.commit_in_place()
        self.unsendable = Seen()
        """Entries that cannot be sent to other hosts."""

    def check(self, operation: str, who: str | None, passwords_given: Container[str] = ()) -> None:
        """Raise WrongPassword or NotAllowed if `who` may not do this here: see `Access.check`.
        `passwords_given` has the names of the spaces whose passwords `who` has given."""
        if self.serves is not None:
            self.serves.check(operation, who, passwords_given)
        self.access.check(operation, self.name, who, self.name in passwords_given)

    def allows_host(self, operation: str, host_id: str) -> bool:
        """Whether the host with this id may do this here. See `Access.allows_host`."""
        served = self.serves is None or self.serves.allows_host(operation, host_id)
        return served and self.access.allows_host(operation, host_id)

    @property
    def protected(self) -> bool:
        """Whether this space, or the one that it serves, has a password."""
        return self.access.protected or (self.serves is not None and self.serves.protected)

    @property
    def shared(self) -> bool:
        """Whether other hosts see it: not if it has a password, or belongs to the host itself."""
        return not (self.protected or self._is_system or self.is_hidden)

    def pass_over(self, entry: Entry, reason: object) -> None:
        """Skip an entry that cannot be sent: other hosts get the next one instead."""
        with self.port.atomic():
            is_known = entry in self.unsendable
            self.unsendable.add(entry)
        if not is_known:
            self.port.remember(self.unsendable)
            logger.warning("other hosts do not get an entry of %r: %s", self.name, reason)


def check_doubt(doubt: object) -> Doubt:
    """The argument `doubt=`, or the default for None. BadArgument if it is no `Doubt`."""
    if doubt is None:
        return Doubt()
    if not isinstance(doubt, Doubt) or doubt.then not in ("return", "forget"):
        raise BadArgument("doubt", 'a Doubt(seconds, "return" or "forget")', doubt)
    check_lease(doubt.seconds, "doubt")
    check_lease(doubt.apart_seconds, "doubt")
    return doubt


class DeliveringSpace(Protocol):
    """A space whose deliveries may be in doubt: a HostedSpace, or a tuple store of LIME."""

    doubt: Doubt

    def flush_soon(self, position: int) -> None: ...


def confirm(hosted: DeliveringSpace | None, delivery: Delivery) -> int:
    """Confirm a delivery, and return the position to flush. If the space is closed, or its disk has
    failed, the taker confirms again later."""
    with suppress(SpaceClosed, JournalError, TransactionEnded):
        position = delivery.confirm()
        if hosted is not None:
            hosted.flush_soon(position)
        return position
    return 0


def give_back(hosted: DeliveringSpace | None, delivery: Delivery) -> None:
    """Return the entries of a delivery to the space. Errors are only logged, since other deliveries
    must be given back too."""
    try:
        position = delivery.give_back()
        if hosted is not None:
            hosted.flush_soon(position)
    except (SpaceClosed, TransactionEnded):
        pass
    except Exception:
        logger.exception("what was taken from %r could not be given back", delivery.space)


RETURNED_MAX = 10_000
"""For how many returned clients the calls that they have received are remembered."""
RECEIVED_MAX = 200_000
"""How many calls are remembered for all of them together."""


APART = frozenset({"move", "lime-take", "lime-move"})
"""The kinds of holders for which `Doubt.apart_seconds` applies."""


def _holder_of(delivery: Delivery) -> Holder | None:
    return getattr(delivery, "holder", None)


def _client_of(delivery: Delivery) -> ClientCall | None:
    """The client for which another host has taken this, or None."""
    holder = _holder_of(delivery)
    return None if holder is None else holder.client


class DoubtfulDeliveries:
    """The unconfirmed deliveries of holders that are away: by owner and by number of the call."""

    def __init__(self, space_of: Callable[[str], DeliveringSpace | None]) -> None:
        self._space_of = space_of
        self._away: dict[Hashable, dict[int, Delivery]] = {}
        self._timers: dict[Hashable, dict[float, asyncio.TimerHandle]] = {}
        self._returned: dict[Hashable, frozenset[int]] = {}
        self._received = 0  # the calls in there
        self._closed = False

    def leave(self, owner: Hashable, held: dict[int, Delivery], reason: str = "") -> None:
        """A holder is away and has not confirmed these deliveries. After a goodbye it never will;
        but a client of it may still do so."""
        if self._closed and reason != "goodbye":
            return
        received = self._returned.get(owner)
        if received is not None:  # They were recovered after the holder had come back.
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
        """Whether the client for which this was taken has come back, and reported what it has
        received. If so, settle the delivery now."""
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
        """For how many seconds its taker may be away; None for ever."""
        policy, holder = self._policy(delivery), _holder_of(delivery)
        apart = holder is not None and holder.kind in APART
        return policy.apart_seconds if apart else policy.seconds

    def back(self, owner: Hashable, received: Iterable[int]) -> None:
        """A holder is back and reports the calls that it has received; the other deliveries return
        to the spaces."""
        for timer in self._timers.pop(owner, {}).values():
            timer.cancel()
        self._settle(self._away.pop(owner, {}), set(received))

    def client_back(self, owner: Hashable, received: Iterable[int]) -> None:
        """A client of this or another host is back. Its received calls are remembered: a space or
        service that is opened later may have deliveries to it in doubt since before a crash, and so
        may another host."""
        calls = frozenset(received)
        self._received += len(calls) - len(self._returned.pop(owner, ()))
        self._returned[owner] = calls
        while len(self._returned) > RETURNED_MAX or self._received > RECEIVED_MAX:
            self._received -= len(self._returned.pop(next(iter(self._returned))))
        self.back(owner, calls)
        for holder in self.owners():
            for number, delivery in list(self.of(holder).items()):
                if self._is_settled_by_client(delivery):
                    self.forget(holder, number)

    def clients_returned(self) -> dict[Hashable, frozenset[int]]:
        """The clients that have come back, and the calls that they have received."""
        return self._returned

    def new_life(self, owner: Hashable) -> None:
        """The holder has restarted and does not know these deliveries. Those for its clients wait
        for the clients; for the others the policy of each space decides now."""
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
        """The deliveries of one holder, by number."""
        return self._away.get(owner, {})

    def forget(self, owner: Hashable, number: int) -> None:
        """One delivery is settled."""
        held = self._away.get(owner, {})
        held.pop(number, None)
        if not held:
            self.back(owner, ())

    def owners(self) -> list[Hashable]:
        return list(self._away)

    def _waited(self, owner: Hashable, seconds: float) -> None:
        """A holder was away for so long: decide the deliveries with this patience."""
        del self._timers[owner][seconds]
        for number, delivery in list(self.of(owner).items()):
            if self._patience(delivery) == seconds:
                self.forget(owner, number)
                self._decide(owner, number, delivery)

    def waiting(self) -> Iterator[tuple[Hashable, int, Delivery, Holder]]:
        """The deliveries in doubt that have a holder: owner, number, delivery, holder."""
        for owner in self.owners():
            for number, delivery in list(self.of(owner).items()):
                if (holder := _holder_of(delivery)) is not None:
                    yield owner, number, delivery, holder

    def give_up(self, who: str) -> int:
        """A program or host will not come back: the policy of each space decides. Returns the
        number of entries."""
        entries = 0
        for owner, number, delivery, holder in self.waiting():
            if holder.who == who:
                entries += len(delivery.entries)
                self.forget(owner, number)
                self._decide(owner, number, delivery)
        return entries

    def _decide(self, owner: Hashable, number: int, delivery: Delivery) -> None:
        """The holder will not confirm: the policy of the space decides."""
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
        """Stop deciding. Durable deliveries stay in doubt; those in memory are lost with the space,
        since their takers may have them."""
        self._closed = True
        for timers in self._timers.values():
            for timer in timers.values():
                timer.cancel()
        self._timers.clear()
        self._away.clear()
