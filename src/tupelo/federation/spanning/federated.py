"""The federation, as one host sees it: operations over all engaged hosts.

A take at another host is confirmed end to end: the owner of the entry reserves and delivers it, the
taker gets it, and then this host sends the owner a Settle message. Until the owner receives that,
it keeps the entry in doubt, in its journal if the space is durable. If the link is lost in between,
the take is settled when the owner is back. If this host is killed, its clients report which entries
they have received; for the other entries the `Doubt` of the space decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tupelo.errors import (
    BadFrame,
    DiskFull,
    HostClosed,
    NotAllAnswered,
    PeerLost,
    TupeloError,
    UnknownHost,
)
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import read_answer
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.federation.spanning.peers import EngagedPeer, ThisHost
from tupelo.federation.spanning.question import (
    FederatedQuery,
    FederatedResult,
    ForeignDelivery,
    Settling,
    no_peer,
)
from tupelo.federation.spanning.searching import Search, gather, ignore_error
from tupelo.space.query import NOW, Query
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder
from tupelo.values.scope import Scope
from tupelo.values.template_encoding import template_to_wire

if TYPE_CHECKING:
    from tupelo.federation.spanning.handles import FederatedSubscription

logger = logging.getLogger("tupelo")

CONFIRMED_MAX = 10_000
"""How many confirmed deliveries are remembered, for takers that ask again."""


def adopt(hosted: HostedSpace, entries: list[Entry]) -> None:
    """Write entries again, under their own identity, after their taker has vanished."""
    for entry in entries:
        entry.count_delivery()
    hosted.flush_soon(hosted.port.adopt(entries))


class UnsettledDelivery:
    """A delivery of another host that is not confirmed to it yet. `handed`: a program of this host
    is getting it; `is_confirmed`: it has it; `answer` is the owner's answer to the confirmation;
    `when_returned` is called if the owner had taken the entries back before."""

    def __init__(self, peer: EngagedPeer, space: str) -> None:
        self.peer_id = peer.id
        self.peer_name = peer.name
        self.incarnation = peer.incarnation
        self.space = space
        self.handed = False
        self.is_confirmed = False
        self.answer: asyncio.Future[Any] | None = None
        self.when_returned: Callable[[], object] = lambda: None


class Federation:
    """The reads, takes and subscriptions over several hosts that begin at this host."""

    def __init__(self, host: ThisHost) -> None:
        self.host = host
        self.searches: dict[Search, None] = {}
        self.resting: dict[Search, None] = {}
        self.subscriptions: dict[FederatedSubscription, None] = {}
        self._unsettled: dict[int, UnsettledDelivery] = {}
        self._confirmed: OrderedDict[Holder, None] = OrderedDict()
        self._refusing: set[asyncio.Future[Any]] = set()
        self._leaving = False

    # Hosts come and go

    def engaged(self, peer: EngagedPeer) -> None:
        """A host has engaged: settle deliveries with it, and ask it too."""
        for call, unsettled in list(self._unsettled.items()):
            if unsettled.is_confirmed and unsettled.peer_id == peer.id:
                self._send_confirmation(peer, call, unsettled)
        for search in list(self.searches):
            search.engaged(peer)
        for subscription in list(self.subscriptions):
            subscription.engaged(peer)

    def departed(self, peer: EngagedPeer) -> None:
        for search in list(self.searches):
            search.departed(peer)
        for subscription in list(self.subscriptions):
            subscription.departed(peer)

    async def settle_all(self) -> None:
        """Before this host leaves: confirm to other hosts what programs here have got, and wait for
        their answers. From now on programs get no entries of other hosts, since they could not be
        confirmed."""
        self._leaving = True
        for call, unsettled in list(self._unsettled.items()):
            if unsettled.handed:
                self.keep(call)
        answers = [
            one.answer
            for one in self._unsettled.values()
            if one.answer is not None and not one.answer.done()
        ]
        if answers:
            await asyncio.wait(answers, timeout=self.host.answer_seconds)

    async def stop(self) -> None:
        """End all searches and subscriptions; waiting callers get HostClosed."""
        for search in [*self.searches, *self.resting]:
            search.stop()
        for subscription in list(self.subscriptions):
            subscription.end()
        for search in list(self.searches):
            await search.ended.wait()

    # Reading and taking

    def resolve_scope(
        self, scope: Scope | None
    ) -> tuple[bool, Callable[[EngagedPeer], bool], str | None]:
        """Resolve a scope: does it include this host, which peers does it include, and to which
        agent is it limited, if to one? UnknownHost if it names a host that is not engaged."""
        if scope is None:
            return True, lambda peer: True, None
        kind, name = scope.kind, scope.name
        host = self.host
        if kind == "here" or (kind == "host" and name in (host.id, host.name)):
            return True, no_peer, None
        if kind == "host":
            if not any(name in (peer.id, peer.name) for peer in list(host.peers.values())):
                raise UnknownHost(name)
            return False, lambda peer: name in (peer.id, peer.name), None
        return True, lambda peer: True, name

    async def get(
        self,
        hosted: HostedSpace,
        query: Query,
        *,
        partial: bool = False,
        holder: Holder | None = None,
        accept: Settling | None = None,
        ahead: bool = False,
    ) -> FederatedResult:
        """Read or take over all hosts in the scope of the query. Taken entries must then be
        confirmed or given back, by `holder` if it is not a program of this host. `accept` is called
        with each delivery of another host, and rejects it by raising. With `ahead`, a read may
        return an entry that was fetched some seconds before.

        If nothing is found and some hosts have not answered, raises NotAllAnswered (PeerLost for a
        scope of one host), unless `partial`.
        """
        here, wanted, agent = self.resolve_scope(query.scope)
        question = FederatedQuery(
            hosted,
            query,
            includes_here=here,
            includes=wanted,
            agent=agent,
            holder=holder or self.holder_here(),
            accept=accept,
            ahead=ahead,
        )
        if query.many:
            result = await gather(self, question, query.limit)
            if not result.entries and query.deadline != NOW:
                result = await self._await_some(question)
        else:
            result = await Search.of(self, question).run()
        if result.missing and not result.entries and not partial:
            raise self._missing(query.verb, result, query.scope)
        return result

    async def _await_some(self, question: FederatedQuery) -> FederatedResult:
        """Wait until one host has a match, then get the matches of the others as well."""
        search = Search.of(self, question)
        result = await search.run()
        left = None if question.limit is None else question.limit - len(result.entries)
        if result.entries and (left is None or left > 0):
            try:
                # A reservation at this host cannot be extended: it has one holder.
                if question.take and search.found_here:
                    question = question.replace(includes_here=False)
                anew = not question.take and question.record is None
                more = await gather(self, question, question.limit if anew else left)
            except BaseException:
                result.give_back()
                raise
            if anew:  # The first matches are read again, if they are still there.
                known = {(entry.origin, entry.n) for entry in result.entries}
                more.entries = [one for one in more.entries if (one.origin, one.n) not in known]
                more.entries = more.entries[:left]
            result.join(more)
        return result

    async def hand(
        self, taken: FederatedResult, put_back: Callable[[HostedSpace, list[Entry]], object] = adopt
    ) -> None:
        """Confirm the entries of this host, for a program here that gets them; call
        `taken.received` when it has them. If the program vanishes during the wait for the disk, or
        the disk is full, `put_back` restores the entries of this host, and the others return to
        their owners."""
        if self._leaving and taken.has_foreign:
            taken.give_back()
            raise HostClosed("the host was closed")
        taken.handed()
        position = taken.confirm_here()
        if position:
            try:
                await taken.hosted.flush(position)
            except asyncio.CancelledError:
                taken.undo(put_back)
                raise
            except DiskFull as error:
                taken.undo(put_back)
                raise taken.hosted.port.no_room() from error
        taken.forget()

    def _missing(self, during: str, result: FederatedResult, scope: Scope | None) -> TupeloError:
        missing = list(result.missing)
        if scope is not None and scope.kind == "host":
            return PeerLost(missing[0], during)
        return NotAllAnswered(during, list(result.covered), missing)

    def peers_for(
        self, hosted: HostedSpace, wanted: Callable[[EngagedPeer], bool]
    ) -> list[EngagedPeer]:
        """The engaged hosts to ask: also those not known to have the space, which may have created
        it just now."""
        return list(filter(wanted, self.host.peers.values())) if hosted.shared else []

    async def count(
        self,
        hosted: HostedSpace,
        template: Any,
        scope: Scope | None,
        partial: FederatedResult | None = None,
    ) -> int:
        """How many entries match at all hosts in the scope. With `partial` it records which hosts
        have answered; otherwise a missing answer raises NotAllAnswered or PeerLost."""
        here, wanted, agent = self.resolve_scope(scope)
        result = partial or FederatedResult(hosted)
        total = 0
        if agent is not None:
            query = Query(template, many=True, limit=None, scope=scope, known=False, in_slices=True)
            result.join(await self.get(hosted, query, partial=True))
            total, here, wanted = len(result.entries), False, no_peer
        if here:
            total = await hosted.port.count_in_slices(template, None)
            result.covered[self.host.name] = None

        async def ask(peer: EngagedPeer) -> int:
            message = wire.CountRequest(
                self.host.next_call(), hosted.name, template_to_wire(template)
            )
            answer = peer.talk.call(message, "count")
            with suppress(TupeloError, TimeoutError):
                async with asyncio.timeout(self.host.answer_seconds):
                    number = await answer
                if type(number) is int:
                    result.covered[peer.name] = None
                    return number
            result.missing[peer.name] = None
            return 0

        total += sum(await asyncio.gather(*map(ask, self.peers_for(hosted, wanted))))
        if result.missing and partial is None:
            raise self._missing("count", result, scope)
        return total

    # Deliveries of other hosts to this one

    def holder_here(self) -> Holder:
        """A new holder: a program of this host."""
        return Holder("here", "", self.host.incarnation, self.host.next_call())

    async def claim(
        self, peer: EngagedPeer, question: FederatedQuery, message: wire.Ask
    ) -> ForeignDelivery | None:
        """Ask a host to take and deliver entries. None if it was lost, refuses, or does not answer
        in time: a late delivery is given back to it."""
        hosted = question.hosted
        answer = peer.talk.call(message, "take")
        try:
            async with asyncio.timeout(self.host.answer_seconds):
                encoded = await asyncio.shield(answer)
        except TimeoutError:
            self._refuse_later(peer, hosted, message.call, answer)
            return None
        except TupeloError as error:
            question.failure = error
            return None
        except BaseException:  # cancelled
            self._refuse_later(peer, hosted, message.call, answer)
            raise
        try:
            entries, cut = read_answer(encoded, hosted.clock.now())
        except BadFrame:
            return None
        if entries and question.accept is not None:
            try:
                await question.accept(peer, entries)
            except BaseException:
                self._refuse_later(peer, hosted, message.call, answer)
                raise
        if entries:
            self._unsettled[message.call] = UnsettledDelivery(peer, hosted.name)
        return ForeignDelivery(self, message.call, hosted.name, entries, cut)

    def _refuse_later(
        self, peer: EngagedPeer, hosted: HostedSpace, call: int, answer: asyncio.Future[Any]
    ) -> None:
        """Give back the delivery when it comes."""

        def refuse(done: asyncio.Future[Any]) -> None:
            self._refusing.discard(done)
            if not done.cancelled() and done.exception() is None and done.result():
                self._refuse(peer, call, hosted.name, peer.incarnation)

        self._refusing.add(answer)
        answer.add_done_callback(refuse)

    def _refuse(self, peer: EngagedPeer, call: int, space: str, incarnation: str) -> None:
        settle = wire.Settle(self.host.next_call(), call, False, space, incarnation)
        refusal = peer.talk.call(settle, "take")
        self._refusing.add(refusal)
        refusal.add_done_callback(self._refusing.discard)
        refusal.add_done_callback(ignore_error)

    async def refused(self) -> None:
        """Wait until the hosts have acknowledged what was given back to them, as far as they
        answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.host.answer_seconds):
                while self._refusing:
                    await asyncio.wait(self._refusing)

    def keep(self, call: int) -> None:
        """The taker has the delivery of this call: confirm it to the owner, now or when the owner
        is back."""
        unsettled = self._unsettled.get(call)
        if unsettled is not None and not unsettled.is_confirmed:
            unsettled.is_confirmed = True
            peer = self.host.peers.get(unsettled.peer_id)
            if peer is not None:
                self._send_confirmation(peer, call, unsettled)

    def _send_confirmation(
        self, peer: EngagedPeer, call: int, unsettled: UnsettledDelivery
    ) -> None:
        def answered(done: asyncio.Future[Any]) -> None:
            if done.cancelled() or done.exception() is not None:
                return  # It is sent again when the owner is back.
            if self._unsettled.pop(call, None) is not None and not done.result():
                logger.warning(
                    "%r had waited too long for us to confirm what we took from %r (call %d): "
                    "it may be taken twice",
                    peer.name,
                    unsettled.space,
                    call,
                )
                unsettled.when_returned()

        settle = wire.Settle(
            self.host.next_call(), call, True, unsettled.space, unsettled.incarnation
        )
        unsettled.answer = peer.talk.call(settle, "take")
        unsettled.answer.add_done_callback(answered)

    def release(self, call: int) -> None:
        """The taker does not get the delivery of this call: it returns to its owner. An owner that
        is away learns it at the next Hello, which does not list the call any more."""
        unsettled = self._unsettled.get(call)
        if unsettled is None or unsettled.is_confirmed:
            return
        del self._unsettled[call]
        peer = self.host.peers.get(unsettled.peer_id)
        if peer is not None:
            self._refuse(peer, call, unsettled.space, unsettled.incarnation)

    def handed(self, call: int) -> None:
        """A program of this host is getting the delivery of this call."""
        if call in self._unsettled:
            self._unsettled[call].handed = True

    def when_returned(self, call: int, function: Callable[[], object]) -> None:
        """Call this if the owner has taken the delivery of this call back before it is
        confirmed."""
        if call in self._unsettled:
            self._unsettled[call].when_returned = function

    def unsettled(self, peer_id: str) -> list[int]:
        """The calls whose deliveries are not confirmed to this peer yet."""
        return [call for call, one in self._unsettled.items() if one.peer_id == peer_id]

    def under_way(self) -> dict[str, list[Any]]:
        """The searches, subscriptions and deliveries that have not ended, for the lab."""
        return {
            "searches": list(self.searches),
            "subscriptions": list(self.subscriptions),
            "unsettled hand-overs": [f"from {one.peer_name}" for one in self._unsettled.values()],
        }

    def all_unsettled(self) -> list[int]:
        """The calls whose deliveries are not confirmed to their owners yet."""
        return list(self._unsettled)

    # Deliveries of this host to others

    def remember_confirmed(self, holder: Holder) -> None:
        """Remember that this delivery was confirmed."""
        self._confirmed[holder] = None
        if len(self._confirmed) > CONFIRMED_MAX:
            self._confirmed.popitem(last=False)

    def was_confirmed(self, peer: EngagedPeer, message: wire.Settle) -> bool:
        """Whether this delivery, which is not outstanding any more, was confirmed to the taker."""
        holder = peer.holder.of_call(message.of)
        if holder in self._confirmed:
            return True
        hosted = self.host.spaces.get(message.space)
        if hosted is not None and hosted.durable:
            return hosted.port.was_committed(holder)
        # Entries in memory were lost with the previous run of this host: the taker has them.
        return message.incarnation != self.host.incarnation
