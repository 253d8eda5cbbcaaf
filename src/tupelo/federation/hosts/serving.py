"""Serving a client: the calls, writes and deliveries of one connected program. When its link is
lost, its waiting calls, transactions, sessions and subscriptions end at once; deliveries that it
has not confirmed are in doubt."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tupelo.errors import (
    AccessError,
    AnswerTooLarge,
    BadArgument,
    BadFrame,
    JournalError,
    LimitReached,
    SpaceClosed,
    TransactionEnded,
    TupeloError,
    WrongPassword,
)
from tupelo.federation.hosts.client_resources import ClientResources, require_few
from tupelo.federation.hosts.stored import StoredCall, StoredDelivery, StoredServing
from tupelo.federation.links import wire
from tupelo.federation.links.calls import Handlers, InboundCalls
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.links.encoding import (
    ENCODED_AT_ONCE,
    encode_change,
    encode_fields,
    encode_in_slices,
    encode_leases,
    encode_whole,
    read_encoded_entry,
    read_order,
)
from tupelo.federation.spaces.hosted import HostedSpace, give_back
from tupelo.federation.spaces.stored import StoredSpace, in_database
from tupelo.federation.spanning.federated import adopt
from tupelo.federation.spanning.question import FederatedResult
from tupelo.space.delivery import Delivery
from tupelo.space.log import Actor
from tupelo.space.query import Query, deadline_of
from tupelo.space.tasks import TaskSignal, alarm_at, turn
from tupelo.space.waiting import Items, Waiter, WriteOutcome, Writer
from tupelo.values.entry import Entry, about_bytes
from tupelo.values.holder import Holder
from tupelo.values.lease import Lease, check_lease
from tupelo.values.template_encoding import template_from_wire

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore

logger = logging.getLogger("tupelo")


RUN_BYTES = 32
"""The most bytes of an encoded run of leases, except of leases that do not expire together: those
were as long in the request."""


class ClientWrites:
    """The writes of one client."""

    def __init__(self, host: HostCore, serving: ClientServer) -> None:
        self._host = host
        self._serving = serving
        self._shapes_max = host.limits.shapes
        self._waiting: dict[int, tuple[HostedSpace, Writer]] = {}

    def write(self, message: wire.Write) -> None:
        serving = self._serving
        hosted = serving.hosted(message.space, "write")
        entries = message.entries
        if len(hosted.port.shapes) >= self._shapes_max:
            self._require_known_shapes(hosted, entries)
        if (
            len(entries) == 1
            and message.txn is None
            and message.lease is None
            and message.at is None
            and message.to is None
            and message.wait == 0
            and message.delay is None
            and message.leases
            and type(entries[0]) is list
        ):
            lease = hosted.port.write_fast(tuple(entries[0]), serving.actor)
            if lease is not None:
                self._wrote(message.call, hosted, [lease], lease.thing.arrival)
                return
        if len(entries) > wire.BULK_MAX:
            raise BadArgument(
                "entries", f"at most {wire.BULK_MAX:,} at a time", f"{len(entries):,}"
            )
        if len(entries) > ENCODED_AT_ONCE:
            serving.requests.spawn(message.call, self._write_many(message, hosted))
            return
        items = [read_encoded_entry(entry) for entry in entries]
        if message.wait != 0:
            serving.requests.require_new(message.call)
        outcome, position = self._write_items(message, hosted, items)
        if isinstance(outcome, Writer):
            serving.requests.spawn(message.call, self._await(hosted, message, outcome))
            return
        self._wrote(message.call, hosted, self._wanted(hosted, message, outcome), position)

    async def _write_many(self, message: wire.Write, hosted: HostedSpace) -> list[list[Any]]:
        """Decode the entries in several turns of the loop, and write them in one step."""
        items: Items = []
        for start in range(0, len(message.entries), ENCODED_AT_ONCE):
            async with turn():
                some = message.entries[start : start + ENCODED_AT_ONCE]
                items += [read_encoded_entry(entry) for entry in some]
                await asyncio.sleep(0)
        outcome, position = self._write_items(message, hosted, items)
        if isinstance(outcome, Writer):
            return await self._await(hosted, message, outcome)
        await asyncio.sleep(0)  # The step was long, and so is the answer.
        return await self._flush(hosted, self._wanted(hosted, message, outcome), position)

    def _write_items(
        self, message: wire.Write, hosted: HostedSpace, items: Items
    ) -> tuple[list[Lease] | Writer, int]:
        """Returns the leases, or a writer that waits for room; and the position to make durable."""
        serving = self._serving
        leases = message.lease
        if isinstance(leases, list):
            asked: Any = [check_lease(seconds) for seconds in leases]
            if len(asked) != len(items):
                raise BadFrame("a lease for each entry, or one for all")
        else:
            asked = check_lease(leases)
        if message.at is not None and len(message.at) != len(items):
            raise BadFrame("a place for each entry")
        txn = serving.resources.transaction(hosted, message.txn)
        with hosted.port.acting(serving.actor):
            outcome, position = hosted.port.write_items(
                items,
                asked,
                txn,
                message.at,
                TaskSignal,
                message.wait,
                WriteOutcome(origin=serving.agent, to=message.to),
                message.delay,
            )
        if isinstance(outcome, Writer):
            self._waiting[message.call] = hosted, outcome
        return outcome, position

    def _require_known_shapes(self, hosted: HostedSpace, entries: list[Any]) -> None:
        """Raise LimitReached if an entry has a shape that is new in the space: a space never
        forgets a shape."""
        shapes = hosted.port.shapes
        if any(read_encoded_entry(entry)[0] not in shapes for entry in entries):
            raise LimitReached(f"shapes of entries in {hosted.name!r}", self._shapes_max)

    def _wanted(self, hosted: HostedSpace, message: wire.Write, leases: list[Lease]) -> list[Lease]:
        """The leases that are sent to the client: all or none, as it has asked."""
        if message.txn is None and message.to is not None:
            self._host.mover.move_soon()
        if not message.leases:
            return []
        if message.txn is not None:
            self._serving.resources.wrote(hosted, leases)
        return leases

    def _wrote(self, call: int, hosted: HostedSpace, leases: list[Lease], position: int) -> None:
        if hosted.durable and position:
            self._serving.requests.spawn(call, self._flush(hosted, leases, position))
        else:
            self._serving.talk.say(wire.Answer(call, _answer(leases)))

    async def _flush(
        self, hosted: HostedSpace, leases: list[Lease], position: int
    ) -> list[list[Any]]:
        await hosted.flush(position)
        return _answer(leases)

    async def _await(
        self, hosted: HostedSpace, message: wire.Write, writer: Writer
    ) -> list[list[Any]]:
        try:
            leases, position = await hosted.port.writing_of(writer, message.wait)
        finally:
            self._waiting.pop(message.call, None)
        return await self._flush(hosted, self._wanted(hosted, message, leases), position)

    def stop(self, call: int) -> None:
        """Cancel a waiting write. The writer is removed here and not by its task, which may not
        have begun: otherwise an entry could still be written for a caller that is gone."""
        hosted, writer = self._waiting.pop(call, (None, None))
        if hosted is not None and writer is not None:
            hosted.port.stop_writing(writer)

    def stop_all(self) -> None:
        for call in list(self._waiting):
            self.stop(call)


def _answer(leases: list[Lease]) -> list[list[Any]]:
    """The leases, as they are sent. Raises AnswerTooLarge if they do not fit in a frame."""
    things = [lease.thing for lease in leases]
    if len(things) == 1:  # as most are
        return [[things[0].n, things[0].arrival, things[0].expires]]
    runs = encode_leases((one.n, one.arrival, one.expires) for one in things)
    if len(runs) * RUN_BYTES > wire.FRAME_MAX:
        raise AnswerTooLarge(
            f"all {len(leases):,} entries were written, but their leases do not fit in an answer "
            f"of {wire.FRAME_MAX:,} bytes; write fewer at a time, to renew or cancel them"
        )
    return runs


GOT_MAX = 64
"""Reads and takes in transactions and sessions that are remembered for each client."""
CONFIRMED_MAX = 256
"""Confirmed takes that are remembered for each client."""
ENTRIES_MAX = 1_000
"""Entries of either kind that are remembered, beside those of the last call."""
REMEMBERED_BYTES = 16 * 2**20
"""Bytes of the entries of either kind that are remembered, beside those of the last call."""


class _WithEntries(Protocol):
    entries: list[Entry]


T = TypeVar("T", bound=_WithEntries)


class ClientDeliveries:
    """The entries that one client was given, by call. Taken entries are held until the client
    confirms them. Entries that were taken in a transaction, read in a session, or confirmed, belong
    to the client at once; but its user may have been interrupted before receiving them. So the last
    of these are remembered, and returned if the client cancels the call in time."""

    def __init__(self, space_of: Callable[[str], HostedSpace | None]) -> None:
        self._space_of = space_of
        self._held: dict[int, Delivery] = {}
        self._got: RecentByCall[Delivery] = RecentByCall(GOT_MAX, lambda got: None)
        self._confirmed: RecentByCall[Delivery] = RecentByCall(
            CONFIRMED_MAX, lambda delivery: delivery.forget()
        )

    def __contains__(self, call: int) -> bool:
        """Whether entries can be returned for this call."""
        return call in self._held or call in self._got.calls or call in self._confirmed.calls

    def hold(self, call: int, delivery: Delivery) -> None:
        self._held[call] = delivery

    def got(self, call: int, got: Delivery) -> None:
        if got.entries:
            self._got.add(call, got)

    def confirm(self, call: int) -> None:
        """The entries have reached the client: remove them."""
        delivery = self._held.pop(call, None)
        if delivery is None:
            return
        try:
            position = delivery.confirm()
        except (SpaceClosed, JournalError, TransactionEnded):  # The space took it back before.
            return
        self._confirmed.add(call, delivery)
        hosted = self._space_of(delivery.space)
        if hosted is not None:
            hosted.flush_soon(position)

    def give_back(self, call: int) -> None:
        """The entries have not reached the user: return them."""
        delivery: Delivery | None = self._held.pop(call, None) or self._got.pop(call)
        if delivery is not None:
            give_back(self._space_of(delivery.space), delivery)
            return
        confirmed = self._confirmed.pop(call)
        if isinstance(confirmed, StoredDelivery):
            confirmed.put_back()
            return
        hosted = None if confirmed is None else self._space_of(confirmed.space)
        if confirmed is not None and hosted is not None:
            adopt(hosted, confirmed.entries)

    def leave(self) -> dict[int, Delivery]:
        """The client is gone: returns the deliveries that it has not confirmed."""
        held, self._held = self._held, {}
        self._got.clear()
        self._confirmed.clear()
        return held


class RecentByCall(Generic[T]):
    """The most recent deliveries by call, limited in number and bytes; the last one is always kept.
    `dropped` is called with each that is forgotten."""

    def __init__(self, count_max: int, dropped: Callable[[T], None]) -> None:
        self.calls: dict[int, tuple[T, int]] = {}
        self._count_max = count_max
        self._dropped = dropped
        self._entries = 0
        self._size = 0

    def add(self, call: int, thing: T) -> None:
        self.pop(call)
        size = sum(about_bytes(entry.fields) for entry in thing.entries)
        self.calls[call] = thing, size
        self._entries += len(thing.entries)
        self._size += size
        while len(self.calls) > 1 and (
            len(self.calls) > self._count_max
            or self._entries > ENTRIES_MAX
            or self._size > REMEMBERED_BYTES
        ):
            self._drop(next(iter(self.calls)))

    def pop(self, call: int) -> T | None:
        thing, size = self.calls.pop(call, (None, 0))
        if thing is not None:
            self._entries -= len(thing.entries)
            self._size -= size
        return thing

    def _drop(self, call: int) -> None:
        thing = self.pop(call)
        if thing is not None:
            self._dropped(thing)

    def clear(self) -> None:
        for call in list(self.calls):
            self._drop(call)


AnswerDone = Callable[[list[Entry], Exception | None], None]


class AnsweredCalls:
    """Parked calls of a host that were answered on its loop and have not sent the answer yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parked: deque[ParkedCall] = deque()

    def add(self, parked: ParkedCall) -> None:
        if not self._parked:
            self._loop.call_soon(self.answer)
        self._parked.append(parked)

    def answer(self) -> None:
        """Send the answers now, without waiting for the next turn of the loop."""
        while self._parked:
            self._parked.popleft().end()


class ParkedCall:
    """A waiting read or take of a client that has no task, so that thousands can wait. It is the
    signal of its waiter, wakes on the loop of the host, and ends at the deadline."""

    __slots__ = (
        "_cancel_alarm",
        "_done",
        "_hosted",
        "_loop",
        "_over",
        "_thread",
        "_waiter",
        "_woken",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, answered: AnsweredCalls) -> None:
        self._loop = loop
        self._woken = answered
        self._thread = get_ident()
        self._over = False
        self._hosted: HostedSpace | None = None
        self._waiter: Waiter | None = None
        self._done: AnswerDone | None = None
        self._cancel_alarm: Callable[[], None] | None = None

    def wait(self, hosted: HostedSpace, waiter: Waiter, done: AnswerDone) -> None:
        self._hosted = hosted
        self._waiter = waiter
        self._done = done
        deadline = waiter.query.deadline
        if waiter.done:
            self._loop.call_soon(self.end)
        elif deadline is not None:
            self._cancel_alarm = alarm_at(self._loop, hosted.clock, deadline, self.end)

    def wake(self) -> bool:
        """The waiter was answered, on any thread, under the lock of the space."""
        try:
            if get_ident() == self._thread:
                self._woken.add(self)
            else:
                self._loop.call_soon_threadsafe(self.end)
        except RuntimeError:  # The loop is closed.
            return False
        return True

    def end(self) -> None:
        """The waiter was answered, or its deadline has passed: call `done` with the entries."""
        if self._over or self._hosted is None or self._waiter is None or self._done is None:
            return
        self._stop()
        port = self._hosted.port
        entries: list[Entry] = []
        failure: TupeloError | None = None
        try:
            if port.give_up(self._waiter):
                entries, _ = port.collect(self._waiter, reserve=True)
        except TupeloError as error:
            failure = error
        self._done(entries, failure)

    def vanish(self) -> int | None:
        """Stop waiting; an entry that was just found returns to the space. Returns the ticket of
        the waiter, so that another request can keep its position in the queue."""
        if self._over or self._hosted is None or self._waiter is None:
            return None
        self._stop()
        self._hosted.flush_soon(self._hosted.port.vanish(self._waiter))
        return self._waiter.ticket

    def _stop(self) -> None:
        self._over = True
        if self._cancel_alarm is not None:
            self._cancel_alarm()
            self._cancel_alarm = None


@dataclass
class LocalWait:
    """A call that waits at this host only."""

    hosted: HostedSpace
    message: wire.Get
    query: Query
    continues: bool = False
    """Whether the call was cancelled to go on as a search over all hosts."""


class ClientServer:
    """One client at a host. `agent` is the id under which it writes; `who` is its proved identity,
    None for a program on this machine without one, "" for a program elsewhere without one.
    `address` is its IP address, for counting wrong passwords; `name` is the name that it has given
    itself; `message_max` is the longest message that it accepts; `level` is that of its Hello."""

    def __init__(
        self,
        host: HostCore,
        agent: str,
        who: str | None,
        session: str,
        address: str,
        name: str,
        message_max: int,
        level: int,
    ) -> None:
        self.agent = agent
        self._level = level
        self.message_max = message_max
        self.name = name
        self.actor = Actor(agent, None, name)
        self.who = who
        self.session = session
        self._address = address
        self.holder = Holder("client", agent, session, name=name)
        self.talk: Conversation
        self.resources = ClientResources(
            self.actor, who, host.limits, host.held, message_max, level
        )
        self._host = host
        self._allowed: dict[tuple[str, str], HostedSpace | StoredSpace] = {}
        self._passwords_given: set[str] = set()
        self.requests: InboundCalls[ClientServer] = InboundCalls(
            self,
            host.from_clients,
            calls_max=host.limits.calls,
            working_max=host.limits.working,
            turns=host.turns,
            hold=lambda held: self.talk.hold(held),
        )
        self._new_parked = partial(ParkedCall, asyncio.get_running_loop(), host.answered)
        self._given = ClientDeliveries(host.spaces.get)
        self.writing = ClientWrites(host, self)
        self.stored = StoredServing(host, self, message_max, level)
        self._local_waits: dict[int, LocalWait] = {}
        self._over = False

    @staticmethod
    def register(handlers: Handlers[ClientServer]) -> None:
        """Add the handlers of the messages about spaces; ClientResources adds the others."""
        handlers.now |= {
            wire.Write: ClientServer.write,
            wire.Get: ClientServer.get,
            wire.Confirm: ClientServer.confirm,
            wire.Cancel: ClientServer.cancel,
        }
        handlers.later |= {
            wire.Open: ClientServer.open,
            wire.CountRequest: ClientServer.count,
            wire.Changes: ClientServer.changes,
            wire.ReadLog: ClientServer.log,
            wire.Trim: ClientServer.trim,
        }

    def serve(self, message: wire.Message) -> None:
        """Handle a message; those about a space in a database have handlers of their own."""
        if (
            isinstance(message, wire.SpaceCall)
            and message.space not in self._host.spaces
            and self._host.is_stored(message.space)
        ):
            message = StoredCall(message.call, getattr(message, "wait", 0), message)
        self.requests.serve(message)

    # As a caller

    @property
    def label(self) -> str:
        return f"the client {self.agent}"

    def holds(self, call: int) -> bool:
        return call in self._given

    def give_back(self, call: int) -> None:
        self._given.give_back(call)

    def hosted(self, space: str, operation: str) -> HostedSpace:
        """The space, if this client may do this in it; else NotAllowed or WrongPassword. Refused if
        it is in a database."""
        found = self._allowed.get((space, operation)) or self.allowed(space, operation)
        if isinstance(found, StoredSpace):
            raise in_database(space)
        return found

    def allowed(self, space: str, operation: str) -> HostedSpace | StoredSpace:
        """The space, if this client may do this in it; else NotAllowed or WrongPassword."""
        found = self._allowed.get((space, operation))
        if found is None:
            found = self._host.served(space, self.who)
            found.check(operation, self.who, self._passwords_given)
            self._allowed[space, operation] = found
        return found

    def still_may(self, name: str) -> bool:
        """The rules of this space have changed: may this client still do what it has done there? It
        must show a password again."""
        self._passwords_given.discard(name)
        used = [one for one in self._allowed if one[0] == name]
        try:
            for one in used:
                del self._allowed[one]
                self.allowed(*one)
        except AccessError:
            return False
        return True

    async def open(self, message: wire.Open) -> list[Any]:
        hosted = await self.check_password(message)
        assert isinstance(hosted, HostedSpace)
        now = self._host.clock.now()
        return [hosted.durable, hosted.port.id, self.agent, self._host.id, now]

    async def check_password(self, message: wire.Open) -> HostedSpace | StoredSpace:
        """The space that is to be opened, if its password is right; else WrongPassword."""
        hosted = self._host.served(message.space, self.who, message.create)
        if hosted.protected:
            if not message.password:  # No guess: it may only want to know whether it needs one.
                raise WrongPassword(message.space)
            matches = partial(hosted.access.matches_password, message.password)
            if not await self._host.guesses.check(self._address, matches):
                logger.warning(
                    "%s at %s showed a wrong password for %r: %d from there",
                    self.agent,
                    self._address,
                    message.space,
                    self._host.guesses.wrong_from(self._address),
                )
                raise WrongPassword(message.space)
            self._passwords_given.add(message.space)
        return hosted

    # Writing, reading and taking

    def write(self, message: wire.Write) -> None:
        """Write entries; clients that wait for them get them in the same turn of the loop."""
        self.writing.write(message)
        self._host.answered.answer()

    def get(self, message: wire.Get) -> None:
        call = message.call
        self.requests.require_new(call)
        hosted = self.hosted(message.space, "take" if message.take else "read")
        query = self._query(hosted, message)
        slow = (
            message.many
            or message.txn is not None
            or message.session is not None
            or message.order is not None
            or message.coverage
            or (hosted.durable and (message.take or message.wait != 0))
            or hosted.port.is_long(query)
        )
        anywhere = message.txn is None and not message.if_exists
        waits = anywhere and message.wait != 0 and message.scope is None
        # A take that waits on the slow path keeps its place when hosts engage later.
        if anywhere and (
            self._host.spans(hosted, message.scope) or (slow and waits and message.take)
        ):
            self.requests.spawn(call, self._get_anywhere(hosted, message, query))
            return
        if slow:
            local = LocalWait(hosted, message, query)
            if waits:
                self._local_waits[call] = local
            work = self._get_as_task(hosted, message, query)
            self.requests.spawn(call, work, partial(self._local_wait_ended, call, local))
            return
        found, position = hosted.port.get(query, self._new_parked, reserve=message.take)
        if isinstance(found, Waiter):
            parked = found.signal
            assert isinstance(parked, ParkedCall)
            self.requests.parked[call] = parked
            self._local_waits[call] = LocalWait(hosted, message, query)
            parked.wait(
                hosted,
                found,
                lambda entries, error: self._got(hosted, message, query, entries, error),
            )
        elif not found:
            self.talk.say(wire.Answer(call, []))
        elif position and hosted.durable:
            self.requests.spawn(call, self._flush_read(hosted, message, found[0], position))
        else:
            self._deliver(hosted, message, query, found[0])

    def _query(self, hosted: HostedSpace, message: wire.Get) -> Query:
        """The request of a client as a Query, with a deadline on the clock of the space."""
        txn = self.resources.transaction(hosted, message.txn)
        session = self.resources.session(hosted, message.session)
        return Query(
            template_from_wire(message.template),
            message.take,
            deadline_of(hosted.clock, message.wait),
            message.many,
            message.limit if message.many else 1,
            read_order(message.order),
            None if txn is None else txn.core_state,
            session,
            message.if_exists,
            message.scope,
            self.actor if session is None else Actor(self.agent, session.id, self.name),
            known=False,
            in_slices=True,
        )

    def _deliver(self, hosted: HostedSpace, message: wire.Get, query: Query, entry: Entry) -> None:
        call = message.call
        if message.take:
            self._given.hold(call, hosted.port.reserved_now(entry, query))
        try:
            encoded = self._encoder(message)(entry) if message.whole else encode_fields(entry)
            self.talk.say(wire.Answer(call, [encoded]))
        except TupeloError:
            self._given.give_back(call)
            raise

    def _got(
        self,
        hosted: HostedSpace,
        message: wire.Get,
        query: Query,
        entries: list[Entry],
        error: Exception | None,
    ) -> None:
        """Send the answer of a parked call."""
        self.requests.parked.pop(message.call, None)
        self._local_waits.pop(message.call, None)
        if error is not None:
            self.requests.fail(message.call, error)
        elif not entries:
            self.talk.say(wire.Answer(message.call, []))
        else:
            try:
                self._deliver(hosted, message, query, entries[0])
            except TupeloError as unsayable:
                self.requests.fail(message.call, unsayable)

    async def _flush_read(
        self, hosted: HostedSpace, message: wire.Get, entry: Entry, position: int
    ) -> list[Any]:
        await hosted.flush(position)
        return [self._encoder(message)(entry)]

    async def _get_as_task(self, hosted: HostedSpace, message: wire.Get, query: Query) -> Any:
        call = message.call
        await self._require_few(hosted, message, query)
        if message.take and message.txn is None:
            delivery = await hosted.port.reserve(query, self.holder.of_call(call))
            if delivery is None:
                return await self._answer(message, [])
            self._given.hold(call, delivery)
            return await self._answer(message, delivery.entries)
        entries = await hosted.port.fetch(query)
        if message.session is not None or (message.take and message.txn is not None):
            self._given.got(call, hosted.port.delivered_at_once(entries, query))
        return await self._answer(message, entries)

    async def _require_few(self, hosted: HostedSpace, message: wire.Get, query: Query) -> None:
        """Raise CannotSend if more entries match than one request may take."""
        txn = self.resources.transaction(hosted, message.txn)
        await require_few(message, partial(hosted.port.count_in_slices, query.template, txn))

    async def _get_anywhere(self, hosted: HostedSpace, message: wire.Get, query: Query) -> Any:
        call = message.call
        await self._require_few(hosted, message, query)
        taken = await self._host.federation.get(
            hosted, query, partial=message.coverage, holder=self.holder.of_call(call)
        )
        if message.take and taken.entries:
            self._given.hold(call, taken)
        elif query.session is not None:
            self._given.got(call, hosted.port.delivered_at_once(taken.entries, query))
        return await self._answer(message, taken.entries, taken)

    async def _answer(
        self, message: wire.Get, entries: list[Entry], taken: FederatedResult | None = None
    ) -> Any:
        encoded = await encode_in_slices(entries, self._encoder(message))
        if not message.coverage:
            return encoded
        if taken is None:
            return [encoded, [self._host.name], []]
        return [encoded, list(taken.covered), list(taken.missing)]

    def _encoder(self, message: wire.Get) -> Callable[[Entry], Any]:
        return partial(encode_whole, level=self._level) if message.whole else encode_fields

    def confirm(self, message: wire.Confirm) -> None:
        for call in message.calls:
            self._given.confirm(call)

    def cancel(self, message: wire.Cancel) -> None:
        for call in message.calls:
            self._local_waits.pop(call, None)
            self.writing.stop(call)
            self.requests.cancel(call)

    # Hosts that engage while clients wait

    def engaged(self) -> None:
        """A host was engaged: calls that wait at this host only go on as searches over all hosts,
        and keep their position in the queue here."""
        for call, local in list(self._local_waits.items()):
            message = local.message
            if local.hosted.shared and message.scope is None and not message.if_exists:
                parked = self.requests.parked.pop(call, None)
                if isinstance(parked, ParkedCall):
                    local.query = local.query.replace(ticket=parked.vanish())
                    self._continue_elsewhere(call, local)
                elif call in self.requests.tasks:
                    local.continues = True
                    self.requests.tasks[call].cancel()  # It goes on when it has let go.

    def _local_wait_ended(self, call: int, local: LocalWait, task: asyncio.Task[None]) -> None:
        """A call that waited at this host only has ended, or goes on as a search: see `engaged`."""
        if self._local_waits.get(call) is local:
            if task.cancelled() and local.continues:
                self._continue_elsewhere(call, local)
            else:
                del self._local_waits[call]

    def _continue_elsewhere(self, call: int, local: LocalWait) -> None:
        del self._local_waits[call]
        work = self._get_anywhere(local.hosted, local.message, local.query)
        self.requests.spawn(call, work)

    # The rest

    def hold(self, call: int, delivery: Delivery) -> None:
        """The answer of this call carries a delivery."""
        self._given.hold(call, delivery)

    def got(self, call: int, delivery: Delivery) -> None:
        """The answer of this call carries entries that are the client's at once."""
        self._given.got(call, delivery)

    async def count(self, message: wire.CountRequest) -> Any:
        hosted = self.hosted(message.space, "read")
        template = template_from_wire(message.template)
        if self._host.spans(hosted, message.scope) and message.txn is None:
            federation = self._host.federation
            if not message.coverage:
                return await federation.count(hosted, template, message.scope)
            taken = FederatedResult(hosted)
            number = await federation.count(hosted, template, message.scope, taken)
            return [number, list(taken.covered), list(taken.missing)]
        txn = self.resources.transaction(hosted, message.txn)
        number = await hosted.port.count_in_slices(template, txn)
        return [number, [self._host.name], []] if message.coverage else number

    async def changes(self, message: wire.Changes) -> list[Any]:
        door = self.hosted(message.space, "read").door
        changes = await door.changes(since=message.since, limit=message.limit)
        return [encode_change(change, self._level) for change in changes]

    async def log(self, message: wire.ReadLog) -> list[Any]:
        port = self.hosted(message.space, "read").port
        asked = partial(port.log_columns, message.names, message.first, message.last)
        first, last, columns = await asyncio.to_thread(asked)
        return [port.agent, port.id, first, last, columns]

    async def trim(self, message: wire.Trim) -> None:
        door = self.hosted(message.space, "administer").door
        if message.before is None:
            await door.compact()
        else:
            await door.trim(before=message.before)

    # The end

    def end(self, reason: str) -> None:
        """The link is lost: free everything except unconfirmed deliveries, which are in doubt."""
        if self._over:
            return
        self._over = True
        self._local_waits.clear()
        self.requests.stop()
        self.writing.stop_all()
        self.resources.free()
        self.stored.leave()
        self._host.services.left(self)
        self._host.doubts.leave(self.holder.owner, self._given.leave(), reason)
