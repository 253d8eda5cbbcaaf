"""Two-phase commit across hosts, at the host that decides and at those that have promised.

The id of a transaction over several hosts names its decider, the host that records the decision,
and its coordinator there: the session of a client, or one run of that host. A decision to commit
takes effect once it is recorded. Only the coordinator can make it, and only while the decider knows
the coordinator; so once the coordinator is gone, a transaction without a record is aborted. A
participant that has promised to commit and hears nothing more asks the decider.

The decision is recorded once for each participant, until that has committed, and once for a remote
coordinator, until it has received the answer: the answer may be lost, and all participants
informed, before it asks again. Each record is kept under the id of a branch, which is a secret, so
that nobody can remove the record of another participant.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tupelo.errors import (
    BadFrame,
    CannotReach,
    NotAllowed,
    TransactionEnded,
    TupeloError,
)
from tupelo.federation.identity.keys import id_of
from tupelo.federation.links import wire
from tupelo.federation.links.calls import Handlers, RemoteCaller
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.links.reception import Greeting
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space import blocking
from tupelo.space.port import port_of
from tupelo.space.transaction import Txn
from tupelo.space.twophase import DecisionLog, Outcome

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore

logger = logging.getLogger("tupelo")

T = TypeVar("T")
C = TypeVar("C", bound=RemoteCaller)
Participants = list[tuple[str, str]]
"""The branches and participants that must learn of a decision."""
DecisionRequest = wire.AskOutcome | wire.Forget
_PREFIX = "shared"
COORDINATOR = "coordinator"
"""The name under which a decision is recorded for the coordinator itself."""
COORDINATOR_SECONDS = 24 * 3600.0
"""How long a decision is kept for a coordinator that is gone, and may come back and ask."""


def spanning_id(host_id: str, address: str, coordinator: str, number: str) -> str:
    """The id of a transaction with this decider and coordinator."""
    return "|".join((_PREFIX, host_id, address, coordinator, number))


def branch_id(txn: str, key: str | int) -> str:
    """The id of one branch of a transaction. A host may have several, over several links. The key
    is a secret of branch, coordinator and decider: see `TransactionDecisions.forget`."""
    return f"{txn}|{key}"


def is_spanning(txn: str) -> bool:
    """Whether this is the id of a transaction over several hosts, or of a branch of one."""
    return bool(_part(txn, 1))


def decider_of(txn: str) -> str:
    """The id of the host that decides this transaction or branch; empty if there is none."""
    return _part(txn, 1)


class TransactionDecisions:
    """The decisions recorded at this host, and the prepared transactions here that wait for a
    decision."""

    def __init__(self, host: HostCore, space: blocking.Space) -> None:
        self._host = host
        self.space = space
        self._port = port_of(space)
        self._log = DecisionLog(space)
        # Serialises decisions with the answers that there is none.
        self._lock = threading.Lock()
        self._given_up: dict[str, set[str]] = {}  # transactions, by coordinator
        self._gone_since: dict[str, float] = {}  # transactions whose coordinators were lost
        self._unacknowledged: set[tuple[str, str]] = set()  # of commits here, to their deciders
        self._may_have_decided = True  # also before this run of the host
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
        """Handle the messages of coordinators and participants; `coordinator_of` names the
        coordinator as which a caller speaks."""

        async def decide(caller: C, message: wire.Decide) -> bool | None:
            sender = coordinator_of(caller)
            return await self._in_thread(lambda: self.decide(message.txn, message.told, sender))

        async def outcome(caller: C, message: wire.AskOutcome) -> Outcome | None:
            return await self._in_thread(lambda: self.outcome(message.txn))

        def forget(caller: C, message: wire.Forget) -> None:
            # At once: a client that leaves sends this just before its Goodbye.
            self.forget(message.txn, message.participant)
            caller.talk.say(wire.Answer(message.call))

        handlers.later |= {wire.Decide: decide, wire.AskOutcome: outcome}
        handlers.now[wire.Forget] = forget

    def _answer(self, message: DecisionRequest) -> Any:
        if isinstance(message, wire.AskOutcome):
            return self.outcome(message.txn)
        return self.forget(message.txn, message.participant)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run this in a thread if it may wait for the disk."""
        if not self.durable or self._host.commits_in_place:
            return work()
        return await asyncio.to_thread(work)

    def decide(self, txn: str, told: Participants, sender: str) -> bool | None:
        """Record that a transaction is committed, with the participants in `told`; if `told` is
        empty, that it is given up. False if the opposite was decided before; None if that is not
        known."""
        if decider_of(txn) != self._host.id or any(
            transaction_of(branch) != txn for branch, _ in told
        ):
            raise BadFrame("a decision is about one transaction that is decided here")
        coordinator = _part(txn, 3)
        with self._lock:
            known = self._is_known(coordinator)
            if told:
                if not known or sender != coordinator or txn in self._given_up_by(coordinator):
                    return False
                try:
                    self._log.record(told)
                finally:
                    self._may_have_decided = True
                return True
            if known and sender != coordinator:
                raise NotAllowed("decide a transaction of another", self.space.name, sender)
            if txn in map(transaction_of, self._log.decided()):
                self._log.flush()
                return False
            if known:  # Otherwise nobody can commit it any more.
                self._given_up.setdefault(coordinator, set()).add(txn)
            # A record in memory may have been lost with an earlier run of this host.
            return True if known or self.durable else None

    def outcome(self, txn: str) -> Outcome | None:
        """The outcome of this branch; None while its coordinator may still decide."""
        coordinator = _part(txn, 3)
        with self._lock:
            if self._log.committed(txn):
                self._log.flush()
                return "committed"
            if self._is_known(coordinator) and transaction_of(txn) not in self._given_up_by(
                coordinator
            ):
                return None
            return "aborted"

    def forget(self, txn: str, participant: str) -> None:
        """Remove the record for a participant that has committed its branch. The caller proves its
        right by the id of the branch, a secret of the participant, its coordinator and this host.
        Does not wait for the disk: after a crash a record too many is kept."""
        self._log.forget_soon(txn, participant)
        self._has_forgotten = True

    def _is_known(self, coordinator: str) -> bool:
        """Whether this coordinator may still decide. A lost one never comes back under the same
        name."""
        return coordinator in self._host.servings or coordinator == self._host.incarnation

    def _given_up_by(self, coordinator: str) -> set[str]:
        return self._given_up.get(coordinator, set())

    def _clean_up(self) -> None:
        """Forget what lost coordinators gave up, and, after `COORDINATOR_SECONDS`, the decisions
        that they have not asked for."""
        with self._lock:
            self._given_up = {c: t for c, t in self._given_up.items() if self._is_known(c)}
        now = self._port.clock.now()
        gone = {txn for txn in self._log.untold(COORDINATOR) if not self._is_known(_part(txn, 3))}
        self._gone_since = {txn: self._gone_since.get(txn, now) for txn in gone}
        for txn, since in self._gone_since.items():
            if now - since >= COORDINATOR_SECONDS:
                self.forget(txn, COORDINATOR)

    # Prepared transactions at this host

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._host.heartbeat)
            try:
                await self._settle_all()
            except Exception:
                logger.exception("what is in doubt could not be settled; it is tried again")

    async def _settle_all(self) -> None:
        # Every heartbeat: where there is nothing to settle, this must cost next to nothing.
        if self._may_have_decided:
            self._may_have_decided = False
            if self.space.count():
                self._may_have_decided = True
        if self._given_up or self._may_have_decided:
            await self._in_thread(self._clean_up)
        for hosted in list(self._host.spaces.values()):
            if not hosted.port.has_transactions:
                continue
            with suppress(TupeloError):  # It was closed.
                prepared = [txn for txn in hosted.port.in_doubt() if decider_of(txn.id)]
                await asyncio.gather(*(self._settle(hosted, txn) for txn in prepared))
        for txn_id, participant in list(self._unacknowledged):
            await self._acknowledge(txn_id, participant)
        if self._has_forgotten:
            self._has_forgotten = False
            await self._in_thread(self._log.flush)

    async def _settle(self, hosted: HostedSpace, txn: Txn) -> None:
        """Ask for the outcome of a transaction that is prepared in this space, and carry it out."""
        try:
            async with asyncio.timeout(self._host.answer_seconds):
                outcome = await self._ask(wire.AskOutcome(self._host.next_call(), txn.id))
        except (TupeloError, TimeoutError) as error:
            logger.info("the decider of %s does not answer: %s", txn.id, error)
            return
        if outcome not in ("committed", "aborted"):
            return
        logger.info("transaction %s in %r was %s", txn.id, hosted.name, outcome)
        end = hosted.port.commit if outcome == "committed" else hosted.port.abort
        with suppress(TransactionEnded):  # The coordinator has ended it meanwhile.
            end(txn)
        await hosted.flush(hosted.port.position)
        if outcome == "committed":
            await self._acknowledge(txn.id, hosted.port.id)

    async def _acknowledge(self, txn: str, participant: str) -> None:
        """Tell the decider that the commit is on disk here, now or at the next round."""
        self._unacknowledged.add((txn, participant))
        with suppress(TupeloError):
            await self._ask(wire.Forget(self._host.next_call(), txn, participant))
            self._unacknowledged.discard((txn, participant))

    async def _ask(self, question: DecisionRequest) -> Any:
        decider, address = decider_of(question.txn), _part(question.txn, 2)
        if decider == self._host.id:
            return await self._in_thread(lambda: self._answer(question))
        peer = self._host.peers.get(decider)
        if peer is not None:
            return await peer.talk.call(question, "a question")
        if not address:
            raise CannotReach(decider, "it has no address, and we are not engaged")
        return await self._ask_at(address, decider, question)

    async def _ask_at(self, address: str, decider: str, question: DecisionRequest) -> Any:
        """Ask a host that is not engaged, over a new link."""
        host = self._host
        greeting = await Greeting.dial(host.network, address)
        link = greeting.link
        try:
            hello = wire.Hello(wire.VERSION, "client", host.id, host.name, host.incarnation)
            welcome = await greeting.welcome(hello)
            # Another host would not know the transaction, and answer that it was aborted.
            proven = welcome.id if link.identity is None else id_of(link.identity)
            if (welcome.id, proven) != (decider, decider):
                raise CannotReach(address, f"it is not the host {decider}")
            talk = Conversation(
                link,
                serve=lambda message: None,
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


def transaction_of(branch: str) -> str:
    """The id of the transaction to which a branch belongs."""
    return "|".join(branch.split("|")[:5])


def _part(txn: str, place: int) -> str:
    parts = txn.split("|")
    return parts[place] if parts[0] == _PREFIX and len(parts) in (5, 6) else ""
