"""Spanning: subscriptions over every engaged host, also those that engage later.

Each entry is told of once, as far as this host remembers: one that a host brings when it engages,
or engages again, is told of then if it was not before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tupelo.errors import BadFrame, CannotSend, TupeloError
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_seen, read_whole
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.federation.spanning.peers import EngagedPeer
from tupelo.federation.spanning.question import nobody
from tupelo.federation.spanning.telling import RemoteWatch
from tupelo.space.session import Seen
from tupelo.space.tasks import alarm_at
from tupelo.values.change import Notice
from tupelo.values.entry import Entry
from tupelo.values.template_encoding import template_to_wire

if TYPE_CHECKING:
    from tupelo.federation.spanning.federated import Federation

logger = logging.getLogger("tupelo")


class FederatedSubscription:
    """Notices of what becomes visible anywhere, in the order of each source.

    At most `backlog_max` wait; then the oldest is dropped, and the next one says how many were.
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
        self._encoded = None if wanted is nobody else template_to_wire(template)
        self._existing = existing
        self._available = available
        self._returned = returned
        self._handback = handback
        self._backlog: deque[Notice] = deque()
        self._backlog_max = backlog_max
        self._missed = 0
        self._told = Seen()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._watches: dict[str, tuple[EngagedPeer, int]] = {}
        self._wanted = wanted
        self._standing: set[asyncio.Future[Any]] = set()
        self._here: RemoteWatch | None = None
        if here:
            watch = wire.WatchRequest(0, hosted.name, None, 0, existing, available, returned)
            self._here = RemoteWatch(hosted, template, watch, None, self._heard_here)
        federation.subscriptions[self] = None
        try:
            for peer in list(federation.host.peers.values()):
                self._install(peer, existing)
        except CannotSend:
            self.end()
            raise

    # Where it listens

    def engaged(self, peer: EngagedPeer) -> None:
        """What a host brings becomes visible now."""
        before = self._watches.get(peer.id)
        if before is None or before[0] is not peer:
            try:
                self._install(peer, True)
            except CannotSend as error:
                logger.warning("the host %r cannot be asked to tell us: %s", peer.name, error)

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
            encode_seen(self._told) if existing else None,
        )
        standing = peer.talk.call(message, "subscribe")
        self._watches[peer.id] = (peer, number)
        peer.hints[number] = lambda hint: self._heard(peer, hint)
        standing.add_done_callback(_say_refusal)
        standing.add_done_callback(self._standing.discard)
        standing.add_done_callback(self._pass_over)
        self._standing.add(standing)

    def _pass_over(self, standing: asyncio.Future[Any]) -> None:
        """What was there before us is not told of, also not when its host engages again."""
        passed = None if standing.cancelled() or standing.exception() else standing.result()
        if isinstance(passed, dict):
            with suppress(ValueError, TypeError):  # The host talks nonsense.
                for origin, data in passed.items():
                    self._told.merge(origin, data)

    async def stands(self) -> None:
        """Wait until every host that is engaged now tells of its entries, or does not answer."""
        if self._standing:
            await asyncio.wait(list(self._standing), timeout=self._federation.host.answer_seconds)

    def _heard_here(self, kind: str, entry: Entry, missed: int) -> None:
        self._missed += missed
        self._tell(kind, entry)
        if self._here is not None:
            self._here.arrived(1)

    def _heard(self, peer: EngagedPeer, hint: wire.Hint) -> None:
        self._missed += hint.missed
        now = self._hosted.clock.now()
        for told in hint.entries:
            if type(told) is not list or len(told) != 2:
                raise BadFrame("a hint tells of a kind and an entry")
            self._tell(told[0], read_whole(told[1], now))
        peer.talk.say(wire.HintAck(hint.watch, len(hint.entries)))

    def _tell(self, how: str, entry: Entry) -> None:
        if self.ended:
            return
        kind: Literal["visible", "available"] = "available" if how == "available" else "visible"
        if kind == "visible":
            if entry in self._told:
                return
            self._told.add(entry)
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

    # The one who listens

    async def get(self, wait: float | None) -> Notice | None:
        """The next notice; None if none came in time, or if there will be no more."""
        loop = asyncio.get_running_loop()
        cancel: Callable[[], None] = lambda: None  # noqa: E731
        late: asyncio.Future[None] = loop.create_future()
        caught_up = False
        if wait:
            clock = self._hosted.clock
            cancel = alarm_at(loop, clock, clock.now() + wait, lambda: _done(late))
        try:
            if wait == 0 and self._here is not None:  # What came here before is in the backlog.
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
            notice = Notice(
                notice.event_id,
                notice.sequence,
                notice.kind,
                notice.subject,
                notice.handback,
                self._missed,
            )
            self._missed = 0
        return notice

    def stop(self) -> None:
        """From any thread: what comes here from now on is not told of."""
        if self._here is not None:
            self._here.stop()

    async def finish(self) -> None:
        """Tell of what came before `stop`, and end."""
        if self._here is not None:
            await asyncio.wait([self._here.task])
        self.end()

    def end(self) -> None:
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
                peer.talk.call(message, "subscribe").add_done_callback(_say_refusal)
        self._watches.clear()
        for waiter in self._waiting:
            _done(waiter)


def _wake_late(waiter: asyncio.Future[None], _: object) -> None:
    _done(waiter)


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _say_refusal(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled() and isinstance(error := answer.exception(), TupeloError):
        logger.info("a host does not tell us of its entries: %s", error)
