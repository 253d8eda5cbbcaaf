"""Deciding: two-phase commit across hosts.

A transaction that spans hosts names one of them in its id, where its decision is recorded: the
decider. Whoever has promised to commit and hears nothing more asks there. A decision to commit
stands once it is recorded. If none is, and the coordinator is not known at the decider any more,
the transaction is given up, and that is recorded too, so that it cannot be committed later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tupelo.errors import BadFrame, LinkError, TransactionEnded, TupeloError
from tupelo.federation import wire
from tupelo.federation.conversation import Conversation
from tupelo.federation.hosted import HostedSpace
from tupelo.federation.link import Link
from tupelo.federation.reception import Greeting
from tupelo.space import blocking
from tupelo.space.decisions import DecisionLog
from tupelo.space.transaction import Txn
from tupelo.space.twophase import Outcome

if TYPE_CHECKING:
    from tupelo.federation.host import HostCore

logger = logging.getLogger("tupelo")

T = TypeVar("T")
_PREFIX = "shared"
_GIVEN_UP = "given up"
GIVEN_UP_SECONDS = 86_400.0
"""So long it is remembered that a transaction was given up."""


def spanning_id(host_id: str, address: str, coordinator: str, number: str) -> str:
    """The id of a transaction that is decided at this host, by this coordinator."""
    return "|".join((_PREFIX, host_id, address, coordinator, number))


class Deciding:
    """The decisions that are recorded at one host, and those that it waits for."""

    def __init__(self, host: HostCore, space: blocking.Space) -> None:
        self._host = host
        self._space = space
        self._log = DecisionLog(space)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._space.close()

    # The decider

    async def serve(
        self, message: wire.Decide | wire.Outcome | wire.Forget | Any, coordinator: str
    ) -> Any:
        if isinstance(message, wire.Decide):
            return await self._in_thread(lambda: self.decide(message.txn, message.told))
        if isinstance(message, wire.Outcome):
            return await self._in_thread(lambda: self.outcome(message.txn))
        if isinstance(message, wire.Forget):
            return await self._in_thread(lambda: self._log.forget(message.txn, message.participant))
        raise BadFrame(f"{type(message).__name__} decides nothing")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """The disk is waited for elsewhere, where there is one."""
        if self._space._operations.engine.saved is None or self._host.commits_in_place:
            return work()
        return await asyncio.to_thread(work)

    def decide(self, txn: str, told: list[tuple[str, str]]) -> bool:
        """Record that it is committed. False if it was given up before."""
        if any(txn_id != txn for txn_id, _ in told):
            raise BadFrame("a decision is about one transaction")
        with self._space.transaction() as step:
            if self._space.read((_GIVEN_UP, txn), wait=0, txn=step) is not None:
                return False
            self._space.write_all([("committed", txn_id, name) for txn_id, name in told], txn=step)
        return True

    def outcome(self, txn: str) -> Outcome | None:
        """What became of it; None while its coordinator may yet decide."""
        if self._log.committed(txn):
            return "committed"
        if self._space.read((_GIVEN_UP, txn), wait=0) is not None:
            return "aborted"
        coordinator = _part(txn, 3)
        if coordinator in self._host.servings or coordinator == self._host.incarnation:
            return None
        self._space.write((_GIVEN_UP, txn), lease=GIVEN_UP_SECONDS)
        return "aborted"

    # Those who have promised

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._host.heartbeat)
            for hosted in list(self._host.spaces.values()):
                with suppress(TupeloError):
                    await self._settle(hosted)

    async def _settle(self, hosted: HostedSpace) -> None:
        """Ask what became of the transactions in which this space has promised to commit."""
        for txn in hosted.operations.in_doubt():
            if not txn.id.startswith(f"{_PREFIX}|"):
                continue
            coordinator = _part(txn.id, 3)
            if coordinator in self._host.servings or coordinator == self._host.incarnation:
                continue  # It will tell.
            try:
                outcome = await self._ask(txn.id)
            except LinkError as error:
                logger.info("who decides %s cannot be asked: %s", txn.id, error)
                continue
            if outcome is not None:
                self.end(hosted, txn, outcome)

    def end(self, hosted: HostedSpace, txn: Txn, outcome: Outcome) -> None:
        logger.info("transaction %s in %r was %s", txn.id, hosted.name, outcome)
        operations = hosted.operations
        with suppress(TransactionEnded):
            if outcome == "committed":
                hosted.flush_soon(operations.commit(txn))
            elif outcome == "aborted":
                hosted.flush_soon(operations.abort(txn))

    async def _ask(self, txn: str) -> Outcome | None:
        decider, address = _part(txn, 1), _part(txn, 2)
        if decider == self._host.id:
            return await self._in_thread(lambda: self.outcome(txn))
        message = wire.Outcome(self._host.next_call(), txn)
        peer = self._host.peers.get(decider)
        if peer is not None:
            return _known(await peer.talk.call(message, "outcome"))
        if not address:
            return None
        return _known(await self._ask_at(address, message))

    async def _ask_at(self, address: str, message: wire.Outcome) -> Any:
        """Of a host with which we are not engaged."""
        greeting = Greeting()

        def answer(link: Link) -> Greeting:
            greeting.link = link
            return greeting

        host = self._host
        link = await host.network.dial(address, answer)
        try:
            hello = wire.Hello(wire.VERSION, "client", host.id, host.name, host.incarnation)
            welcome = await greeting.welcome(hello)
            talk = Conversation(
                link,
                serve=lambda said: None,
                ended=lambda reason: None,
                next_call=host.next_call,
                heartbeat=welcome.heartbeat,
            )
            greeting.go_on(talk)
            try:
                return await talk.call(message, "outcome")
            finally:
                talk.goodbye()
        finally:
            link.close()


def _known(outcome: Any) -> Outcome | None:
    return outcome if outcome in ("committed", "aborted") else None


def _part(txn: str, place: int) -> str:
    parts = txn.split("|")
    return parts[place] if len(parts) == 5 else ""
