"""Deciders: where the decision about a transaction that spans hosts is recorded, as its coordinator
sees it: a host in this process, or the host of a remote space."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn
from uuid import uuid4

from tupelo.errors import (
    BadInput,
    CannotCommit,
    LinkError,
    OutcomeUnknown,
    SpaceClosed,
    TupeloError,
)
from tupelo.federation.client.reach import RemoteOperations
from tupelo.federation.commits.deciding import COORDINATOR, Told, branch_id, spanning_id
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.links import wire
from tupelo.space.dual_api import run_coroutine
from tupelo.space.twophase import Outcome


class LoopBridge:
    """How a thread that commits gets its work done where a remote space lives."""

    def __init__(self, space: RemoteOperations) -> None:
        self._loop = asyncio.get_running_loop() if space.is_async else None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            return run_coroutine(work)
        if self.is_here() or self._loop.is_closed():
            work.close()
            raise BadInput("an event loop cannot wait for itself, nor can one that is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def soon(self, function: Any, *args: Any) -> None:
        if self._loop is None:
            function(*args)
        else:
            self._loop.call_soon_threadsafe(function, *args)

    def is_here(self) -> bool:
        """Are we on the loop, which must not wait for itself?"""
        try:
            return self._loop is not None and asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False


class Decider(ABC):
    """The host that decides one transaction: the `Decisions` of its coordinator."""

    id: str

    @abstractmethod
    def record(self, told: Told) -> None: ...

    @abstractmethod
    def recorded(self, told: Told) -> bool: ...

    @abstractmethod
    def forget(self, txn_id: str, participant: str) -> None: ...

    @abstractmethod
    async def forget_there(self, txn_id: str, participant: str) -> None:
        """`forget`, where the host lives."""

    @abstractmethod
    async def give_up(self) -> None:
        """It was aborted, and someone who may have promised could not be told."""

    @abstractmethod
    async def outcome(self, txn_id: str) -> Outcome | None:
        """What became of an earlier transaction that is decided there."""


class DeciderHere(Decider):
    """A host in this process."""

    def __init__(self, host: HostCore) -> None:
        self._host = host
        self.id = spanning_id(host.id, host.address, host.incarnation, uuid4().hex)

    def _decide(self, told: Told) -> bool | None:
        return self._host.deciding.decide(self.id, told, self._host.incarnation)

    def record(self, told: Told) -> None:
        try:
            stands = self._decide(told)
        except SpaceClosed as error:
            raise CannotCommit(self.id, f"the host {self._host.name!r}", str(error)) from error
        if not stands:
            raise CannotCommit(self.id, f"the host {self._host.name!r}", "it was given up")

    def recorded(self, told: Told) -> bool:
        return not self._decide([])

    def forget(self, txn_id: str, participant: str) -> None:
        self._host.deciding.forget(txn_id, participant)

    async def forget_there(self, txn_id: str, participant: str) -> None:
        self.forget(txn_id, participant)

    async def give_up(self) -> None:
        self._decide([])

    async def outcome(self, txn_id: str) -> Outcome | None:
        return self._host.deciding.outcome(txn_id)


class DeciderElsewhere(Decider):
    """The host of a remote space."""

    def __init__(self, space: RemoteOperations) -> None:
        self._space = space
        self._channel = space.channel
        self._hop = LoopBridge(space)
        self._refused = False
        if not space.is_async and self._channel.awaits_link:
            run_coroutine(space.told())  # Which comes with the next link, and so does our session.
        self._serial = self._channel.serial
        self.id = spanning_id(space.host_id, space.peer, self._channel.session, uuid4().hex)
        self._own = branch_id(self.id, uuid4().hex)  # a secret, as those of the branches are

    def record(self, told: Told) -> None:
        if self._channel.serial != self._serial or self._channel.closed:
            self._refuse("the link to it was lost, and with it the transaction")
        try:
            stands = self._hop.run(self._decide([*told, (self._own, COORDINATOR)], self._serial))
        except TupeloError as error:
            stands = self._learn(error)
        if not stands:
            self._refuse("it has given the transaction up")
        # If this is lost, the record is kept for a while.
        self._hop.soon(self._channel.tell, wire.Forget(0, self._own, COORDINATOR))

    def _refuse(self, reason: str) -> NoReturn:
        self._refused = True
        raise CannotCommit(self.id, f"the host at {self._space.peer}", reason)

    def _learn(self, failure: TupeloError) -> bool:
        """The answer was lost. The host knows, and if need be waits for us no more."""
        try:
            return self.recorded([])
        except TupeloError as error:
            label = f"the host at {self._space.peer}"
            raise OutcomeUnknown(self.id, label, f"{failure}; then {error}") from error

    def recorded(self, told: Told) -> bool:
        if self._refused:
            return False
        given_up = self._hop.run(self._decide([]))
        if given_up is None:
            label = f"the host at {self._space.peer}"
            raise OutcomeUnknown(self.id, label, "it may have lost its record of it")
        return not given_up

    async def _decide(self, told: Told, within: int | None = None) -> bool | None:
        # Not by way of the space, which may be closed meanwhile.
        message = wire.Decide(0, self.id, told)
        answer: bool | None = (await self._channel.ask(message, self._space, within)).value
        return answer

    def forget(self, txn_id: str, participant: str) -> None:
        message = wire.Forget(0, txn_id, participant)
        if not self._hop.is_here():
            with suppress(LinkError):
                self._hop.run(self._channel.ask(message, self._space, self._serial))
                return
        # On the next link, for which nobody waits.
        later = partial(self.forget_there, txn_id, participant)
        self._hop.soon(self._channel.start, later, "tupelo-forget")

    async def forget_there(self, txn_id: str, participant: str) -> None:
        # If there is no next link, a record too many is kept.
        with suppress(LinkError, SpaceClosed):
            await self._channel.ask(wire.Forget(0, txn_id, participant), self._space)

    async def give_up(self) -> None:
        with suppress(LinkError, SpaceClosed):  # Without our session it is given up anyway.
            await self._decide([], self._serial)

    async def outcome(self, txn_id: str) -> Outcome | None:
        outcome: Outcome | None = await self._space.ask(wire.AskOutcome(0, txn_id))
        return outcome
