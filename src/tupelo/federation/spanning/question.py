"""Questions: what is asked over the federation, and what was got for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, Literal

from tupelo.errors import SpaceClosed, TransactionEnded
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.federation.hosts.peer import Peer
from tupelo.federation.links import wire
from tupelo.federation.links.spelled import read_answer, spell_order
from tupelo.federation.spanning.handover import Held, choosing, forget, found, give_back, unread
from tupelo.federation.spanning.records import Record
from tupelo.space.log import Actor
from tupelo.space.order import Order
from tupelo.space.session import SessionState
from tupelo.store.index import Accept
from tupelo.values.entry import Entry
from tupelo.values.spelling import template_to_wire

Settling = Callable[[Peer, list[Entry]], Awaitable[None]]
"""Called with what a host has delivered, before it is ours; if it raises, that goes back."""


def nobody(peer: Peer) -> bool:
    """Of a scope: it is here, and no other host is in it."""
    return False


def may_ask(peer: Peer, hosted: HostedSpace) -> bool:
    """Is this space, as it is there, a part of the one here?"""
    return hosted.shared and hosted.name in peer.spaces


class Question:
    """What is asked: of which space, by which template, in which order, leaving out what a session
    has seen; and how many are wanted. What is `sent` must have a spelling. Who asks is the host
    itself, or `actor`."""

    def __init__(
        self,
        hosted: HostedSpace,
        template: Any,
        *,
        take: bool,
        order: Order | None,
        agent: str | None,
        session: SessionState | None = None,
        holder: str | None = None,
        many: bool = False,
        limit: int | None = None,
        sent: bool = True,
        actor: Actor | None = None,
        accept: Settling | None = None,
    ) -> None:
        self.actor = actor
        self.accept = accept
        self.hosted = hosted
        self.template = template
        self.take = take
        self.order = order
        self.agent = agent
        self.session = session
        self.record = _record_of(session)
        self.lock = hosted.engine.lock
        self.holder = holder
        self.many = many
        self.limit = limit if many else 1
        self.spelled = template_to_wire(template) if sent else None
        self.spelled_order = spell_order(order) if sent else None

    def only(self) -> Accept | None:
        """Which of the matches here are wanted; None for all."""
        if self.record is None and self.agent is None:
            return None
        return choosing(self.record, self.agent)

    async def read_here(self, limit: int | None) -> list[Entry]:
        hosted, template, order = self.hosted, self.template, self.order
        if self.session is not None:
            entries, _ = await unread(
                hosted, self.session, template, limit, order, self.agent, self.actor
            )
            return entries
        return await found(
            hosted,
            template,
            False,
            0,
            self.many,
            limit,
            order,
            only=self.only(),
            actor=self.actor,
        )

    def ask(
        self,
        peer: Peer,
        call: int,
        how: Literal["read", "take", "peek"],
        limit: int | None,
        watch: int | None,
    ) -> wire.Ask:
        """The question, for this host, which is to be sent at once."""
        notes, actor = None, self.actor
        if self.record is not None:
            with self.lock:
                reads = how == "read"
                notes = self.record.notes_for(peer, call) if reads else self.record.all_notes()
            if notes.since:  # It knows who we are.
                actor = None
        return wire.Ask(
            call,
            self.hosted.name,
            self.spelled,
            how,
            limit,
            self.spelled_order,
            self.agent,
            notes,
            watch,
            actor.agent if actor else None,
            actor.session if actor else None,
        )

    def read_answer(
        self, peer: Peer, message: wire.Ask, answer: Any
    ) -> tuple[list[Entry], bool] | None:
        """What was read there, and whether there is more; None if it is to be asked again. BadFrame
        if it cannot be."""
        if self.record is not None and message.seen is not None:
            with self.lock:
                answer = self.record.read_answer(peer, message.seen, answer)
            if answer is None:
                return None
        return read_answer(answer, self.hosted.clock.now())

    def going_on(self, entries: list[Entry]) -> Question:
        """The same question, but for what was read; in a session of its own, if it is in none."""
        if self.session is not None:
            return self
        question = copy(self)
        question.record = Record()
        question.session = SessionState("", question.record, None)
        question.record.choose(entries, None)
        return question

    @contextmanager
    def held(self) -> Iterator[None]:
        """While entries are in hand that are yet to be chosen from, the session forgets none."""
        if self.record is None:
            yield
            return
        with self.lock:
            self.record.hold()
        try:
            yield
        finally:
            with self.lock:
                self.record.release()

    def choose(self, entries: list[Entry], limit: int | None) -> list[Entry]:
        """Those that the one who asked gets: of a session's, what is new to it."""
        if self.record is None:
            return entries[:limit]
        with self.lock:
            return self.record.choose(entries, limit)


def _record_of(session: SessionState | None) -> Record | None:
    seen = None if session is None else session.seen
    assert seen is None or isinstance(seen, Record)
    return seen


class Taken:
    """What an operation got, from where, and whom it reached; of a session's, what is noted in its
    `record`."""

    def __init__(self, hosted: HostedSpace, record: Record | None = None) -> None:
        self.hosted = hosted
        self._record = record
        self.entries: list[Entry] = []
        self.covered: dict[str, None] = {}
        self.missing: dict[str, None] = {}
        self.cut: set[str] = set()  # ids of hosts that have more than they could answer
        self._held: list[Held] = []

    def is_cut(self, peer: Peer) -> bool:
        return peer.id in self.cut

    def add(self, held: Held) -> None:
        self.entries += held.entries
        self._held.append(held)

    def keep(self) -> int:
        """The one who asked has them, but for those that a space took back when it was closed;
        SpaceClosed or TransactionEnded if that is all of them."""
        position = 0
        kept, refused = [], None
        for held in self._held:
            try:
                position = max(position, held.keep())
                kept += held.entries
            except (SpaceClosed, TransactionEnded) as error:
                refused = error
        if refused is not None:
            self.entries = kept
            if not kept:
                raise refused
        return position

    def forget(self) -> None:
        """The one who asked has them, and will not vanish any more."""
        for held in self._held:
            forget(held)

    def give_back(self) -> None:
        """The one who asked has vanished."""
        for held in self._held:
            give_back(held)
        if self._record is not None and not self._held:
            with self.hosted.engine.lock:
                self._record.discard_all(self.entries)

    def join(self, more: Taken) -> None:
        """What another operation got, later."""
        self.entries += more.entries
        self._held += more._held
        self.covered = {k: None for k in self.covered if k not in more.missing} | more.covered
        self.missing = {k: None for k in self.missing if k not in more.covered} | more.missing
