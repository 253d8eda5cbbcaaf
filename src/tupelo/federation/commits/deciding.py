"""Deciding: two-phase commit across hosts.

A transaction that spans hosts names one of them in its id, where its decision is recorded: the
decider; and its coordinator there, a client's session or a life of that host. A decision to commit
stands once it is recorded, and only the coordinator can make it, while it is known at the decider.
So once it is gone, what is not recorded never will be, and was aborted. Whoever has promised to
commit and hears nothing more asks the decider.

A record is kept for each participant until that has committed, and for a coordinator elsewhere
until it has heard of its own decision: the answer may be lost, and all participants told, before it
asks. Each of them is kept under the id of a branch, which is a secret: no participant, and nobody
else, can say that another one knows what was decided.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from tupelo.errors import (
    BadFrame,
    CannotReach,
    NotAllowed,
    TransactionEnded,
    TupeloError,
)
from tupelo.federation.commits.host import DecidingHost
from tupelo.federation.identity.keys import id_of
from tupelo.federation.links import wire
from tupelo.federation.links.calls import Handlers, RemoteCaller
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.links.reception import Greeting
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space import blocking
from tupelo.space.decisions import DecisionLog
from tupelo.space.port import port_of
from tupelo.space.transaction import Txn
from tupelo.space.twophase import Outcome

logger = logging.getLogger("tupelo")

T = TypeVar("T")
C = TypeVar("C", bound=RemoteCaller)
Told = list[tuple[str, str]]
Question = wire.AskOutcome | wire.Forget
_PREFIX = "shared"
COORDINATOR = "coordinator"
"""The name under which a decision is recorded for the coordinator itself."""
COORDINATOR_SECONDS = 24 * 3600.0
"""So long is it kept for a coordinator that is gone, and may come back and ask."""


def spanning_id(host_id: str, address: str, coordinator: str, number: str) -> str:
    """The id of a transaction that is decided at this host, by this coordinator."""
    return "|".join((_PREFIX, host_id, address, coordinator, number))


def branch_id(txn: str, key: str | int) -> str:
    """The id of one branch. A host may have several of the same transaction, over several links.
    The key is a secret of the branch, its coordinator and the decider; see
    `TransactionDecisions.forget`."""
    return f"{txn}|{key}"


def is_spanning(txn: str) -> bool:
    """Is this the id of a transaction that spans hosts, or of its branch in one place?"""
    return bool(_part(txn, 1))


def decider_of(txn: str) -> str:
    """The id of the host that decides this transaction, or branch; empty if none does."""
    return _part(txn, 1)


class TransactionDecisions:
    """The decisions that are recorded at one host, and those that it waits for."""

    def __init__(self, host: DecidingHost, space: blocking.Space) -> None:
        self._host = host
        self.space = space
        self._port = port_of(space)
        self._log = DecisionLog(space)
        # A decision, and the answer that none was made, must not cross each other.
        self._lock = threading.Lock()
        self._given_up: dict[str, set[str]] = {}
        self._gone_since: dict[str, float] = {}  # transactions whose coordinators were lost
        self._unsaid: set[tuple[str, str]] = set()
        self._has_forgotten = False
        self._task: asyncio.Task[None] | None = None

    @property
    def durable(self) -> bool:
        return self._port.durable

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.space.close()

    # The decider

    def register(self, handlers: Handlers[C], coordinator_of: Callable[[C], str]) -> None:
        """Answer callers that speak as such a coordinator, or take part."""

        async def decide(caller: C, message: wire.Decide) -> bool | None:
            speaker = coordinator_of(caller)
            return await self._in_thread(lambda: self.decide(message.txn, message.told, speaker))

        async def outcome(caller: C, message: wire.AskOutcome) -> Outcome | None:
            return await self._in_thread(lambda: self.outcome(message.txn))

        def forget(caller: C, message: wire.Forget) -> None:
            # At once: a client that leaves says this just before its goodbye.
            self.forget(message.txn, message.participant)
            caller.talk.say(wire.Answer(message.call))

        handlers.later |= {wire.Decide: decide, wire.AskOutcome: outcome}
        handlers.now[wire.Forget] = forget

    def _answer(self, message: Question) -> Any:
        if isinstance(message, wire.AskOutcome):
            return self.outcome(message.txn)
        return self.forget(message.txn, message.participant)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """The disk is waited for elsewhere, where there is one."""
        if not self.durable or self._host.commits_in_place:
            return work()
        return await asyncio.to_thread(work)

    def decide(self, txn: str, told: Told, speaker: str) -> bool | None:
        """Record that it is committed, and who must be told; or, if that is nobody, that it is
        given up. False if this cannot be, since the opposite stands; None if that is not known."""
        if decider_of(txn) != self._host.id or any(_whole(branch) != txn for branch, _ in told):
            raise BadFrame("a decision is about one transaction that is decided here")
        coordinator = _part(txn, 3)
        with self._lock:
            known = self._is_known(coordinator)
            if told:
                if not known or speaker != coordinator or txn in self._given_up_by(coordinator):
                    return False
                self._log.record(told)
                return True
            if known and speaker != coordinator:
                raise NotAllowed("decide a transaction of another", self.space.name, speaker)
            if txn in map(_whole, self._log.decided()):
                self._log.flush()
                return False
            if known:  # Else nobody can commit it any more, and that need not be kept.
                self._given_up.setdefault(coordinator, set()).add(txn)
            # A record that is not on disk may have been lost, with an earlier life of this host.
            return True if known or self.durable else None

    def outcome(self, txn: str) -> Outcome | None:
        """What became of this branch; None while its coordinator may yet decide."""
        coordinator = _part(txn, 3)
        with self._lock:
            if self._log.committed(txn):
                self._log.flush()
                return "committed"
            if self._is_known(coordinator) and _whole(txn) not in self._given_up_by(coordinator):
                return None
            return "aborted"

    def forget(self, txn: str, participant: str) -> None:
        """This participant knows that its branch was committed. Whoever says so has named the
        branch, whose id is a secret of the participant, its coordinator and this host; the other
        participants know only their own. The disk is not waited for: if we crash before, a record
        too many is kept."""
        self._log.forget_soon(txn, participant)
        self._has_forgotten = True

    def _is_known(self, coordinator: str) -> bool:
        """May it yet decide? One that is gone never comes back under the same name."""
        return coordinator in self._host.servings or coordinator == self._host.incarnation

    def _given_up_by(self, coordinator: str) -> set[str]:
        return self._given_up.get(coordinator, set())

    def _let_go(self) -> None:
        """Of coordinators that are gone it need not be kept what they gave up; nor for ever what
        was decided, if they never ask."""
        with self._lock:
            self._given_up = {c: t for c, t in self._given_up.items() if self._is_known(c)}
        now = self._port.clock.now()
        gone = {txn for txn in self._log.untold(COORDINATOR) if not self._is_known(_part(txn, 3))}
        self._gone_since = {txn: self._gone_since.get(txn, now) for txn in gone}
        for txn, since in self._gone_since.items():
            if now - since >= COORDINATOR_SECONDS:
                self.forget(txn, COORDINATOR)

    # Those who have promised

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._host.heartbeat)
            try:
                await self._settle_all()
            except Exception:
                logger.exception("what is in doubt could not be settled; it is tried again")

    async def _settle_all(self) -> None:
        if self._given_up or self.space.count():
            await self._in_thread(self._let_go)
        for hosted in list(self._host.spaces.values()):
            with suppress(TupeloError):  # It was closed.
                asked = [txn for txn in hosted.port.in_doubt() if decider_of(txn.id)]
                await asyncio.gather(*(self._settle(hosted, txn) for txn in asked))
        for txn_id, participant in list(self._unsaid):
            await self._say_told(txn_id, participant)
        if self._has_forgotten:
            self._has_forgotten = False
            await self._in_thread(self._log.flush)

    async def _settle(self, hosted: HostedSpace, txn: Txn) -> None:
        """Ask what became of a transaction in which this space has promised to commit."""
        try:
            async with asyncio.timeout(self._host.answer_seconds):
                outcome = await self._ask(wire.AskOutcome(self._host.next_call(), txn.id))
        except (TupeloError, TimeoutError) as error:
            logger.info("who decides %s cannot be asked: %s", txn.id, error)
            return
        if outcome not in ("committed", "aborted"):
            return
        logger.info("transaction %s in %r was %s", txn.id, hosted.name, outcome)
        end = hosted.port.commit if outcome == "committed" else hosted.port.abort
        with suppress(TransactionEnded):  # Its coordinator was faster.
            end(txn)
        await hosted.flush(hosted.port.position)
        if outcome == "committed":
            await self._say_told(txn.id, hosted.port.id)

    async def _say_told(self, txn: str, participant: str) -> None:
        """The decider may forget us, since what we did is on disk: tell it, now or later."""
        self._unsaid.add((txn, participant))
        with suppress(TupeloError):
            await self._ask(wire.Forget(self._host.next_call(), txn, participant))
            self._unsaid.discard((txn, participant))

    async def _ask(self, question: Question) -> Any:
        decider, address = decider_of(question.txn), _part(question.txn, 2)
        if decider == self._host.id:
            return await self._in_thread(lambda: self._answer(question))
        peer = self._host.peers.get(decider)
        if peer is not None:
            return await peer.talk.call(question, "a question")
        if not address:
            raise CannotReach(decider, "it has no address, and we are not engaged")
        return await self._ask_at(address, decider, question)

    async def _ask_at(self, address: str, decider: str, question: Question) -> Any:
        """Of a host with which we are not engaged."""
        host = self._host
        greeting = await Greeting.dial(host.network, address)
        link = greeting.link
        try:
            hello = wire.Hello(wire.VERSION, "client", host.id, host.name, host.incarnation)
            welcome = await greeting.welcome(hello)
            # Another one knows nothing of it, and would say that it was aborted.
            shown = welcome.id if link.identity is None else id_of(link.identity)
            if (welcome.id, shown) != (decider, decider):
                raise CannotReach(address, f"it is not the host {decider}")
            talk = Conversation(
                link,
                serve=lambda said: None,
                ended=lambda reason: None,
                next_call=host.next_call,
                heartbeat=welcome.heartbeat,
            )
            greeting.go_on(talk)
            try:
                return await talk.call(question, "a question")
            finally:
                talk.goodbye()
        finally:
            link.close()


def _whole(branch: str) -> str:
    """The transaction of which this is a branch."""
    return "|".join(branch.split("|")[:5])


def _part(txn: str, place: int) -> str:
    parts = txn.split("|")
    return parts[place] if parts[0] == _PREFIX and len(parts) in (5, 6) else ""
