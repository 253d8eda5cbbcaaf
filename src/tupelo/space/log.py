"""The log of a space: the core adds changes, the engine collects them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from tupelo.values.change import Change, ChangeKind, Promise
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.space.transaction import Txn


class Actor(msgspec.Struct, frozen=True):
    """The agent that makes a change, its session if any, and the name that it has given itself."""

    agent: str
    session: str | None = None
    name: str = ""


class CoreLog:
    """Numbers the changes; `changes` are those not yet collected. `actor` makes the changes of this
    step: the space's own agent, unless the engine sets another."""

    def __init__(self, agent: str, now: Callable[[], float], on: bool, reads: bool) -> None:
        self.on = on
        self.reads = on and reads
        self.changes: list[Change] = []
        self.position = 0
        self.own = self.actor = Actor(agent)
        self._now = now

    def name_own(self, name: str) -> None:
        """Set the name of the space's own agent."""
        self.own = self.actor = msgspec.structs.replace(self.own, name=name)

    def by(self, actor: Actor | None) -> ActorStamp:
        """Within the block, this actor makes the changes; None leaves the actor as it is."""
        return ActorStamp(self, actor or self.actor)

    def add(
        self,
        kind: ChangeKind,
        entry: Entry,
        txn_id: str | None = None,
        waited: float = 0.0,
        payload: bytes | None = None,
        actor: Actor | None = None,
        session: str | None = None,
        time: float | None = None,
    ) -> None:
        if not self.on:
            return
        self.position = position = self.position + 1
        expires = entry.expires
        if kind == "expired":  # at its own time, without an actor
            actor, time = self.own, expires
        elif actor is None:
            actor = self.actor
        self.changes.append(
            Change(  # positional: this is called for every change
                position,
                time or self._now(),
                kind,
                entry.arrival,
                entry.origin,
                entry.n,
                actor.agent,
                txn_id or None,
                waited,
                expires,
                entry.shape,
                entry.fields,
                payload,
                None,
                entry.to,
                session or actor.session,
                actor.name,
                entry.deliveries,
                entry.visible if kind == "delayed" else None,
                entry.delayed if kind == "written" else None,
            )
        )

    def prepared(self, txn: Txn) -> None:
        """Log a prepared transaction with its content, so that it survives a crash."""
        taken = tuple([entry.arrival for entry, home in txn.taken.items() if home is None])
        read = tuple([entry.arrival for entry in txn.read])
        promise = Promise((*txn.store, *txn.delayed), taken, read, txn.holder)
        self._add_decision("prepared", txn, promise)

    def decided(self, kind: Literal["committed", "aborted"], txn: Txn) -> None:
        self._add_decision(kind, txn)

    def _add_decision(
        self,
        kind: Literal["prepared", "committed", "aborted"],
        txn: Txn,
        promise: Promise | None = None,
    ) -> None:
        if self.on:
            self.position += 1
            actor = txn.actor or self.actor
            self.changes.append(
                Change(
                    position=self.position,
                    time=self._now(),
                    kind=kind,
                    agent=actor.agent,
                    txn=txn.id,
                    promise=promise,
                    session=actor.session,
                    agent_name=actor.name,
                )
            )


class ActorStamp:
    """Context manager that sets another actor."""

    __slots__ = ("_actor", "_before", "_log")

    def __init__(self, log: CoreLog, actor: Actor) -> None:
        self._log = log
        self._actor = actor
        self._before = log.actor

    def __enter__(self) -> None:
        self._log.actor = self._actor

    def __exit__(self, *error: object) -> None:
        self._log.actor = self._before
