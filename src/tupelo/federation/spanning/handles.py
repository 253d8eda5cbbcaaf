"""The handles of `FederatedSpace`: sessions, subscriptions and match sets over several hosts."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec.structs import replace

from tupelo.errors import BadFrame, CannotSend, HostClosed, LeaseLost, TupeloError, UnknownType
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_seen, read_whole
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.federation.spanning.peers import EngagedPeer
from tupelo.federation.spanning.question import no_peer
from tupelo.federation.spanning.records import SeenRecord
from tupelo.federation.spanning.watching import RemoteWatch
from tupelo.space.dual_api import Closing, DualHandle, OpenedHandle, dual_api, maybe_await
from tupelo.space.fetching import FetchingSubscription
from tupelo.space.log import Actor
from tupelo.space.matchset import Skipped
from tupelo.space.port import Port, value_of
from tupelo.space.protocol import SessionLike, SubscriptionLike, names_of
from tupelo.space.query import check_limit, check_wait
from tupelo.space.session import Seen, SessionState
from tupelo.space.tasks import alarm_at
from tupelo.values.change import Notice
from tupelo.values.entry import About, Entry, check_about, require_known
from tupelo.values.lease import AsyncLease, Lease, check_lease
from tupelo.values.scope import Coverage, Scope, check_coverage, check_scope
from tupelo.values.template_encoding import template_to_wire

if TYPE_CHECKING:
    from tupelo.federation.spanning.federated import Federation
    from tupelo.federation.spanning.space import FederatedSpace


class FederatedSubscription:
    """A subscription over all engaged hosts, also those that engage later; it lives on the host's
    loop, and `FederatedNotices` is its handle.

    Notices keep the order of each host. An entry is reported once, as far as this host remembers:
    when it is written, or when a host engages that has it. If `backlog_max` notices wait the oldest
    is dropped, and the next one says how many were.
    """

    def __init__(
        self,
        federation: Federation,
        hosted: HostedSpace,
        template: Any,
        *,
        existing: bool = False,
        available: bool = False,
        returned: bool = True,
        handback: Any = None,
        backlog_max: int = 1_000,
        here: bool = True,
        wanted: Callable[[EngagedPeer], bool] = lambda peer: True,
    ) -> None:
        self.ended = False
        self.sequence = 0
        self.event_id = federation.host.next_call()
        self._federation = federation
        self._hosted = hosted
        self._encoded = None if wanted is no_peer else template_to_wire(template)
        self._available = available
        self._returned = returned
        self._handback = handback
        self._backlog: deque[Notice] = deque()
        self._backlog_max = backlog_max
        self._missed = 0
        self._reported = Seen()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._watches: dict[str, tuple[EngagedPeer, int]] = {}  # by the id of the peer
        self._wanted = wanted
        self._installing: set[asyncio.Future[Any]] = set()
        self._here: RemoteWatch | None = None
        if here:
            watch = wire.WatchRequest(0, hosted.name, None, 0, existing, available, returned)
            self._here = RemoteWatch(hosted, template, watch, None, self._notify_here)
        federation.subscriptions[self] = None
        try:
            for peer in list(federation.host.peers.values()):
                self._install(peer, existing)
        except CannotSend:
            self.end()
            raise

    # Watches at hosts

    def engaged(self, peer: EngagedPeer) -> None:
        """A host has engaged: its entries become visible now."""
        before = self._watches.get(peer.id)
        if before is None or before[0] is not peer:
            try:
                self._install(peer, True)
            except CannotSend as error:
                logger.warning("a subscription cannot be sent to the host %r: %s", peer.name, error)

    def departed(self, peer: EngagedPeer) -> None:
        before = self._watches.get(peer.id)
        if before is not None and before[0] is peer:
            del self._watches[peer.id]

    def _install(self, peer: EngagedPeer, existing: bool) -> None:
        hosted = self._hosted
        if self.ended or not self._wanted(peer) or not hosted.shared:
            return
        number = self._federation.host.next_call()
        message = wire.WatchRequest(
            self._federation.host.next_call(),
            hosted.name,
            self._encoded,
            number,
            existing,
            self._available,
            self._returned,
            encode_seen(self._reported) if existing else None,
        )
        answer = peer.talk.call(message, "subscribe")
        self._watches[peer.id] = (peer, number)
        peer.hints[number] = lambda hint: self._notify(peer, hint)
        answer.add_done_callback(_log_refusal)
        answer.add_done_callback(self._installing.discard)
        answer.add_done_callback(self._skip_existing)
        self._installing.add(answer)

    def _skip_existing(self, answer: asyncio.Future[Any]) -> None:
        """Never report the entries that were there before the subscription, which the host has
        listed; also not when the host engages again."""
        existing = None if answer.cancelled() or answer.exception() else answer.result()
        if isinstance(existing, dict):
            with suppress(ValueError, TypeError):  # a malformed answer
                for origin, data in existing.items():
                    self._reported.merge(origin, data)

    async def stands(self) -> None:
        """Wait until every engaged host has set up its watch, or does not answer in time."""
        if self._installing:
            await asyncio.wait(list(self._installing), timeout=self._federation.host.answer_seconds)

    def _notify_here(self, kind: str, entry: Entry, missed: int) -> None:
        self._missed += missed
        self._report(kind, entry)
        if self._here is not None:
            self._here.arrived(1)

    def _notify(self, peer: EngagedPeer, hint: wire.Hint) -> None:
        self._missed += hint.missed
        now = self._hosted.clock.now()
        for item in hint.entries:
            if type(item) is not list or len(item) != 2:
                raise BadFrame("a hint tells of a kind and an entry")
            self._report(item[0], read_whole(item[1], now))
        peer.talk.say(wire.HintAck(hint.watch, len(hint.entries)))

    def _report(self, how: str, entry: Entry) -> None:
        if self.ended:
            return
        kind: Literal["visible", "available"] = "available" if how == "available" else "visible"
        if kind == "visible":
            if entry in self._reported:
                return
            self._reported.add(entry)
        self.sequence += 1
        if len(self._backlog) >= self._backlog_max:
            self._backlog.popleft()
            self._missed += 1
        self._backlog.append(Notice(self.event_id, self.sequence, kind, entry, self._handback))
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    # The listener

    async def get(self, wait: float | None) -> Notice | None:
        """The next notice; None after `wait` seconds, or if the subscription has ended."""
        loop = asyncio.get_running_loop()
        cancel: Callable[[], None] = lambda: None  # noqa: E731
        late: asyncio.Future[None] = loop.create_future()
        caught_up = False
        if wait:
            clock = self._hosted.clock
            cancel = alarm_at(loop, clock, clock.now() + wait, lambda: _done(late))
        try:
            if wait == 0 and self._here is not None:  # Get the notices of this host first.
                await self._here.caught_up()
                caught_up = True
            while not self._backlog:
                if self.ended or wait == 0 or late.done():
                    if self._here is None or caught_up:
                        return None
                    await self._here.caught_up()
                    caught_up = True
                    continue
                waiter: asyncio.Future[None] = loop.create_future()
                self._waiting.append(waiter)
                late.add_done_callback(partial(_wake_late, waiter))
                try:
                    await waiter
                except BaseException:
                    if self._backlog:
                        self._wake()
                    raise
        finally:
            cancel()
        notice = self._backlog.popleft()
        if self._missed:
            notice, self._missed = replace(notice, missed=self._missed), 0
        return notice

    def stop(self) -> None:
        """From any thread: report nothing that is written here from now on."""
        if self._here is not None:
            self._here.stop()

    async def finish(self) -> None:
        """Report what came before `stop`, and end."""
        if self._here is not None:
            await asyncio.wait([self._here.task])
        self.end()

    def end(self) -> None:
        """End the subscription at all hosts; waiting callers get None."""
        if self.ended:
            return
        self.ended = True
        self._federation.subscriptions.pop(self, None)
        if self._here is not None:
            self._here.end()
        for peer, number in self._watches.values():
            peer.hints.pop(number, None)
            if not peer.talk.over:
                message = wire.UnwatchRequest(self._federation.host.next_call(), number)
                peer.talk.call(message, "subscribe").add_done_callback(_log_refusal)
        self._watches.clear()
        for waiter in self._waiting:
            _done(waiter)


def _wake_late(waiter: asyncio.Future[None], _: object) -> None:
    _done(waiter)


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _log_refusal(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled() and isinstance(error := answer.exception(), TupeloError):
        logger.info("a host refuses a subscription: %s", error)


class SpanningLease:
    """The lease of a session or subscription over several hosts. It is its own landlord, and the
    leased thing; `on_end` ends the session or subscription."""

    def __init__(
        self, port: Port, kind: str, seconds: float | None, on_end: Callable[[], object]
    ) -> None:
        self.expires: float | None = None
        self._ended = False
        self._port = port
        self._kind = kind
        self._clock = port.clock
        self._on_end = on_end
        self._cancel_alarm: Callable[[], None] = lambda: None
        self._grant(seconds)

    def __repr__(self) -> str:
        return f"<{self._kind}>"

    def _grant(self, seconds: float | None) -> None:
        self._cancel_alarm()
        self.expires = self._port.grant(self._kind, seconds)
        if self.expires is not None:
            self._cancel_alarm = self._clock.call_at(self.expires, self._check)

    @property
    def ended(self) -> bool:
        """Whether it was closed, or the lease has run out."""
        self._check()
        return self._ended

    def _check(self) -> None:
        if not self._ended and self.expires is not None and self.expires <= self._clock.now():
            self.end()
            self._on_end()

    def end(self) -> None:
        """End the lease, without calling `on_end`."""
        self._ended = True
        self._cancel_alarm()

    def now(self) -> float:
        return self._clock.now()

    def _require(self) -> None:
        if self.ended:
            raise LeaseLost("it is over: it was closed, or its lease ran out")

    def renew_lease(self, thing: object, seconds: float | None) -> None:
        self._require()
        self._grant(seconds)

    def cancel_lease(self, thing: object) -> None:
        self._require()
        self.end()
        self._on_end()

    async def renew_lease_async(self, thing: object, seconds: float | None) -> None:
        self.renew_lease(thing, seconds)

    async def cancel_lease_async(self, thing: object) -> None:
        self.cancel_lease(thing)


logger = logging.getLogger("tupelo")

SESSION_OVER = "this session is over: it was closed or its lease ran out"


class _FederatedHandle(OpenedHandle, DualHandle):
    """A handle of the blocking or the async API, until it is closed or its lease ends."""

    protocol: type
    _leased: SpanningLease

    def __dir__(self) -> list[str]:
        return names_of(self.protocol)

    @property
    def lease(self) -> Any:
        """The lease, to renew or cancel."""
        kind = AsyncLease if self.is_async else Lease
        return kind(self._leased, self._leased)

    @dual_api
    async def close(self) -> None:
        """End it at all hosts; notices that have come can still be fetched."""
        await self.leave(None)


class FederatedSession(_FederatedHandle, SessionLike):
    """A session over all hosts, also when they come and go: reads that never return the same entry
    twice. Tasks or threads may share it."""

    protocol = SessionLike

    def __init__(self, space: FederatedSpace, record: SeenRecord, lease: float | None) -> None:
        self.is_async = space.is_async
        self._space = space
        self._record = record
        core = space._core
        self._actor = Actor(core.id, core.new_id(), core.name)
        self._state = SessionState(self._actor.session or "", record, None)
        space._port.remember(record)
        self._leased = SpanningLease(space._port, "session", lease, self._end)
        space._handles.add(self)

    def __repr__(self) -> str:
        return f"<Session of {self._space.name!r}, {len(self._record)} entries seen>"

    @dual_api
    async def _read(
        self,
        template: object,
        wait: float | None,
        many: bool,
        limit: int | None,
        scope: Scope | None,
        coverage: Coverage | None,
        about: list[About] | None,
    ) -> Any:
        check_scope(scope)
        check_coverage(coverage)
        check_about(about)
        check_limit(limit)
        self._space._require_open()
        if self._leased.ended:
            raise LeaseLost(SESSION_OVER)
        query = self._space._query(
            template,
            False,
            wait,
            None,
            scope,
            many=many,
            limit=limit,
            session=self._state,
            actor=self._actor,
        )
        found = await self._space._anywhere(query, coverage, about)
        return found if many else found[0] if found else None

    def clone(self, *, lease: float | None = None) -> FederatedSession:
        """A new session that starts with what this one has seen."""
        self._space._require_open()
        if self._leased.ended:
            raise LeaseLost(SESSION_OVER)
        with self._space._port.atomic():
            return FederatedSession(self._space, self._record.copy(), check_lease(lease))

    @property
    def seen(self) -> int:
        """How many entries it remembers."""
        return len(self._record)

    async def leave(self, error: BaseException | None) -> None:
        self._leased.end()
        self._state.ended = True
        self._space._port.forget(self._record)

        async def end() -> None:
            self._end_readers()

        with suppress(TupeloError):
            await self._space._host.on_loop(end())

    def _end(self) -> None:
        """The lease has run out, or was cancelled."""
        self._state.ended = True
        self._space._port.forget(self._record)
        self._space._host.soon(self._end_readers)

    def _end_readers(self) -> None:
        self._record.close()
        for reader in list(self._record.readers):
            reader.stop(LeaseLost(SESSION_OVER))


class FederatedNotices(_FederatedHandle, FetchingSubscription):
    """A subscription over all hosts. Iterate (`async for` on the async API), or call `get`."""

    protocol = SubscriptionLike

    def __init__(
        self,
        space: FederatedSpace,
        subscription: FederatedSubscription,
        callback: Callable[[Notice], object] | None,
        lease: float | None,
    ) -> None:
        self.is_async = space.is_async
        self._space = space
        self._subscription = subscription
        self._error: Exception | None = None
        self._leased = SpanningLease(space._port, "subscription", lease, self._end)
        space._handles.add(self)
        if callback is not None:
            space._host.run_apart(partial(self.call, callback))

    def __repr__(self) -> str:
        return f"<Subscription of {self._space.name!r}, {'active' if self.active else 'ended'}>"

    @dual_api
    async def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None after `wait` seconds, or if the subscription has ended."""
        check_wait(wait)
        return await self._next(wait)

    async def fetch_next(self) -> Notice | None:
        with suppress(HostClosed):
            return await self._next(None)
        return None

    async def _next(self, wait: float | None) -> Notice | None:
        self._space._port.refuse_inside()
        return await self._space._host.on_loop(self._subscription.get(wait))

    @property
    def active(self) -> bool:
        """Whether more notices can come."""
        return not (self._subscription.ended or self._leased.ended)

    @property
    def error(self) -> Exception | None:
        """The exception of the callback that ended the subscription, or None."""
        return self._error

    @property
    def sequence(self) -> int:
        """The sequence number of the last notice."""
        return self._subscription.sequence

    @property
    def event_id(self) -> int:
        """The number of the subscription, which its notices carry."""
        return self._subscription.event_id

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._leased.end()
        self._end()

    async def leave(self, error: BaseException | None) -> None:
        self._leased.end()
        with suppress(TupeloError):
            self._subscription.stop()
            await self._space._host.on_loop(self._subscription.finish())

    def _end(self) -> None:
        """The lease has run out, or was cancelled."""
        with suppress(TupeloError):
            self._subscription.stop()
        self._space._host.soon(self._finish)

    def _finish(self) -> None:
        self._finishing = asyncio.ensure_future(self._subscription.finish())

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._subscription.stands().__await__()
        return self

    async def __aenter__(self) -> Self:
        await self._subscription.stands()
        return await super().__aenter__()


class FederatedMatchSet(Closing):
    """A match set over all hosts: that of this host, which a take invalidates, and copies of the
    matches of other hosts."""

    def __init__(
        self, space: FederatedSpace, here: Any, elsewhere: list[Entry], limit: int | None
    ) -> None:
        self.is_async = space.is_async
        self._here = here
        self._elsewhere = elsewhere
        self._left = limit
        self._skipped: list[Skipped] = []

    @dual_api
    async def next(self) -> Any:
        """The next entry, or None at the end. MatchSetInvalid if an entry of this host was
        taken."""
        if self._left == 0:
            return None
        value = await maybe_await(self._here.next())
        while value is None and self._elsewhere:
            entry = self._elsewhere.pop(0)
            try:
                require_known(entry)
                value = value_of(entry)
            except UnknownType as error:
                self._skipped.append(Skipped((entry.origin, entry.n), str(error)))
        if value is not None and self._left is not None:
            self._left -= 1
        return value

    @property
    def lease(self) -> Lease | AsyncLease:
        """The lease, to renew or cancel."""
        granted: Lease | AsyncLease = self._here.lease
        return granted

    @property
    def skipped(self) -> list[Skipped]:
        """The entries that were left out so far, with the reasons."""
        return [*self._here.skipped, *self._skipped]

    def close(self) -> Any:
        """End the match set."""
        self._elsewhere.clear()
        return self._here.close()

    def __iter__(self) -> Iterator[Any]:
        while (entry := self.next()) is not None:
            yield entry

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (entry := await self.next()) is not None:
            yield entry
