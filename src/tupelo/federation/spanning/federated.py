"""The federation, as one host sees it: operations that span every engaged host.

A take from elsewhere is settled end to end: its host reserves and delivers the entry, the one who
asked gets it, and then we tell the host that it is gone for good. Until it hears so the host keeps
the entry in doubt, in its journal if it is durable. If the link is lost in between, it is settled
when the host returns; if this host is killed, its clients say what they have received, and for the
rest the `Doubt` of the space decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadFrame, HostClosed, NotAllAnswered, PeerLost, TupeloError, UnknownHost
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import read_answer
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.federation.spanning.peers import EngagedPeer, ThisHost
from tupelo.federation.spanning.question import (
    FederatedQuery,
    FederatedResult,
    ForeignDelivery,
    Settling,
    nobody,
)
from tupelo.federation.spanning.searching import Search, gather, look_away
from tupelo.space.query import NOW, Query
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder
from tupelo.values.scope import Scope
from tupelo.values.template_encoding import template_to_wire

if TYPE_CHECKING:
    from tupelo.federation.spanning.handles import FederatedSubscription

logger = logging.getLogger("tupelo")

KEPT_MAX = 10_000
"""So many hand-overs are remembered as settled, for those who ask again."""


def adopt(hosted: HostedSpace, entries: list[Entry]) -> None:
    """Let entries live here that have no other place any more."""
    hosted.flush_soon(hosted.port.adopt(entries))


class UnsettledDeliveries:
    """What another host has delivered to us, and has yet to hear of. It is `handed` when a program
    of this host gets it, and `kept` when that host is told so; `said` is its answer."""

    def __init__(self, peer: EngagedPeer, space: str) -> None:
        self.peer_id = peer.id
        self.peer_name = peer.name
        self.incarnation = peer.incarnation
        self.space = space
        self.handed = False
        self.kept = False
        self.said: asyncio.Future[Any] | None = None


class Federation:
    """All that spans hosts, at one of them."""

    def __init__(self, host: ThisHost) -> None:
        self.host = host
        self.searches: dict[Search, None] = {}
        self.subscriptions: dict[FederatedSubscription, None] = {}
        self._unsettled: dict[int, UnsettledDeliveries] = {}
        self._kept: OrderedDict[Holder, None] = OrderedDict()
        self._refusing: set[asyncio.Future[Any]] = set()
        self._leaving = False

    # Hosts come and go

    def engaged(self, peer: EngagedPeer) -> None:
        for call, unsettled in list(self._unsettled.items()):
            if unsettled.kept and unsettled.peer_id == peer.id:
                self._say_kept(peer, call, unsettled)
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
        """Before we leave: tell hosts what programs here have got, and wait until they know. From
        now on programs get nothing from elsewhere: its owner could not be told any more."""
        self._leaving = True
        for call, unsettled in list(self._unsettled.items()):
            if unsettled.handed:
                self.keep(call)
        said = [
            one.said
            for one in self._unsettled.values()
            if one.said is not None and not one.said.done()
        ]
        if said:
            await asyncio.wait(said, timeout=self.host.answer_seconds)

    async def stop(self) -> None:
        for search in list(self.searches):
            search.stop()
        for subscription in list(self.subscriptions):
            subscription.end()
        for search in list(self.searches):
            await search.ended.wait()

    # Reading and taking

    def reach(self, scope: Scope | None) -> tuple[bool, Callable[[EngagedPeer], bool], str | None]:
        """Of a scope: is what is here in it, which peers are, and is it one agent's only?"""
        if scope is None:
            return True, lambda peer: True, None
        kind, name = scope.kind, scope.name
        host = self.host
        if kind == "here" or (kind == "host" and name in (host.id, host.name)):
            return True, nobody, None
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
    ) -> FederatedResult:
        """What matches, from wherever it is. What is taken must be confirmed or given back;
        `holder` is who will say so, if it is not a program of this host. What another host delivers
        must be to the liking of `accept`, or else goes back to its place.

        If nothing is found and not all hosts have answered, NotAllAnswered, unless a `partial`
        answer will do.
        """
        here, wanted, agent = self.reach(query.scope)
        question = FederatedQuery(
            hosted,
            query,
            agent=agent,
            holder=holder or self.holder_here(),
            sent=wanted is not nobody,
            accept=accept,
        )
        if query.many:
            result = await gather(self, question, here, wanted, query.limit)
            if not result.entries and query.deadline != NOW:
                result = await self._await_some(question, here, wanted)
        else:
            result = await Search(self, question, here, wanted).run()
        if result.missing and not result.entries and not partial:
            raise self._missing(query.verb, result, query.scope)
        return result

    async def _await_some(
        self,
        question: FederatedQuery,
        here: bool,
        wanted: Callable[[EngagedPeer], bool],
    ) -> FederatedResult:
        """Wait until one host has some, and get what the others have by then as well."""
        search = Search(self, question, here, wanted)
        result = await search.run()
        left = None if question.limit is None else question.limit - len(result.entries)
        if result.entries and (left is None or left > 0):
            try:
                # What is reserved here is so under one name: nothing is added to it.
                here = here and not (question.take and search.found_here)
                anew = not question.take and question.record is None
                more = await gather(self, question, here, wanted, question.limit if anew else left)
            except BaseException:
                result.give_back()
                raise
            if anew:  # Those that were found first are among them, if they are still there.
                known = {(entry.origin, entry.n) for entry in result.entries}
                more.entries = [one for one in more.entries if (one.origin, one.n) not in known]
                more.entries = more.entries[:left]
            result.join(more)
        return result

    async def hand(
        self, taken: FederatedResult, put_back: Callable[[HostedSpace, list[Entry]], object] = adopt
    ) -> None:
        """The one who asked, here, gets these; when it has them, say `taken.received`. If it
        vanishes while the disk is waited for, what was here is written again, under its own
        identity, or put back as is said; what was elsewhere returns there."""
        if self._leaving and taken.is_brought:
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
        taken.forget()

    def _missing(self, during: str, result: FederatedResult, scope: Scope | None) -> TupeloError:
        missing = list(result.missing)
        if scope is not None and scope.kind == "host":
            return PeerLost(missing[0], during)
        return NotAllAnswered(during, list(result.covered), missing)

    def asked(
        self, hosted: HostedSpace, wanted: Callable[[EngagedPeer], bool]
    ) -> list[EngagedPeer]:
        """Every engaged host of the scope, whether or not it is known to have the space: it may
        have made it just now."""
        return list(filter(wanted, self.host.peers.values())) if hosted.shared else []

    async def count(
        self,
        hosted: HostedSpace,
        template: Any,
        scope: Scope | None,
        partial: FederatedResult | None = None,
    ) -> int:
        """How many match, all hosts together."""
        here, wanted, agent = self.reach(scope)
        result = partial or FederatedResult(hosted)
        total = 0
        if agent is not None:
            query = Query(template, many=True, limit=None, scope=scope, known=False, in_slices=True)
            result.join(await self.get(hosted, query, partial=True))
            total, here, wanted = len(result.entries), False, nobody
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

        total += sum(await asyncio.gather(*map(ask, self.asked(hosted, wanted))))
        if result.missing and partial is None:
            raise self._missing("count", result, scope)
        return total

    # Hand-over, at the end of the one who takes

    def holder_here(self) -> Holder:
        """A program of this host."""
        return Holder("here", "", self.host.incarnation, self.host.next_call())

    async def claim(
        self, peer: EngagedPeer, question: FederatedQuery, message: wire.Ask
    ) -> ForeignDelivery | None:
        """Ask a host to reserve and deliver, and keep it. None if the host was lost, or is of
        another opinion."""
        hosted = question.hosted
        answer = peer.talk.call(message, "take")
        try:
            async with asyncio.timeout(self.host.answer_seconds):
                encoded = await asyncio.shield(answer)
        except TimeoutError:
            self._refuse_later(peer, hosted, message.call, answer)
            return None
        except TupeloError:
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
            self._unsettled[message.call] = UnsettledDeliveries(peer, hosted.name)
        return ForeignDelivery(self, message.call, hosted.name, entries, cut)

    def _refuse_later(
        self, peer: EngagedPeer, hosted: HostedSpace, call: int, answer: asyncio.Future[Any]
    ) -> None:
        """Whatever is delivered, nobody wants it any more."""

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
        refusal.add_done_callback(look_away)

    async def refused(self) -> None:
        """Wait until all that nobody wants any more is in its place again, at hosts that answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.host.answer_seconds):
                while self._refusing:
                    await asyncio.wait(self._refusing)

    def keep(self, call: int) -> None:
        """The one who asked has what this call was delivered: its host is told, now or when it is
        back."""
        unsettled = self._unsettled.get(call)
        if unsettled is not None and not unsettled.kept:
            unsettled.kept = True
            peer = self.host.peers.get(unsettled.peer_id)
            if peer is not None:
                self._say_kept(peer, call, unsettled)

    def _say_kept(self, peer: EngagedPeer, call: int, unsettled: UnsettledDeliveries) -> None:
        def answered(done: asyncio.Future[Any]) -> None:
            if done.cancelled() or done.exception() is not None:
                return  # It will be told again when it is back.
            if self._unsettled.pop(call, None) is not None and not done.result():
                logger.warning(
                    "%r had waited too long for us to confirm what we took from %r (call %d): "
                    "it may be taken twice",
                    peer.name,
                    unsettled.space,
                    call,
                )

        settle = wire.Settle(
            self.host.next_call(), call, True, unsettled.space, unsettled.incarnation
        )
        unsettled.said = peer.talk.call(settle, "take")
        unsettled.said.add_done_callback(answered)

    def release(self, call: int) -> None:
        """The one who asked does not get what this call was delivered: it returns to its place. A
        host that is away hears when we meet that we do not speak of it any more."""
        unsettled = self._unsettled.get(call)
        if unsettled is None or unsettled.kept:
            return
        del self._unsettled[call]
        peer = self.host.peers.get(unsettled.peer_id)
        if peer is not None:
            self._refuse(peer, call, unsettled.space, unsettled.incarnation)

    def handed(self, call: int) -> None:
        """A program of this host gets what this call was delivered."""
        if call in self._unsettled:
            self._unsettled[call].handed = True

    def unsettled(self, peer_id: str) -> list[int]:
        """The calls of which this host has yet to hear whether we keep what it delivered."""
        return [call for call, one in self._unsettled.items() if one.peer_id == peer_id]

    def under_way(self) -> dict[str, list[Any]]:
        """What has begun between this host and others, and has not ended: for the lab, and for
        whoever looks."""
        return {
            "searches": list(self.searches),
            "subscriptions": list(self.subscriptions),
            "unsettled hand-overs": [f"from {one.peer_name}" for one in self._unsettled.values()],
        }

    def all_unsettled(self) -> list[int]:
        return list(self._unsettled)

    # Hand-over, at the end of the one who gives

    def kept(self, holder: Holder) -> None:
        """This delivery was confirmed."""
        self._kept[holder] = None
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    def was_kept(self, peer: EngagedPeer, message: wire.Settle) -> bool:
        """Of a hand-over that is not under way any more: did it become theirs?"""
        holder = peer.holder.of_call(message.of)
        if holder in self._kept:
            return True
        hosted = self.host.spaces.get(message.space)
        if hosted is not None and hosted.durable:
            return hosted.port.was_committed(holder)
        # What was in memory went with our last life: nobody but they have it.
        return message.incarnation != self.host.incarnation
