"""Reactions: functions that run inside the atomic step in which an entry becomes visible.

The entries of the step are processed one after the other, including those that reactions write,
until no reaction wants another one. Before that nothing is visible to others. If a function raises,
or reactions trigger each other endlessly, the whole step is undone.

Weak reactions (`fetching`) run after the step; each call is one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tupelo.errors import Livelock, ReactionError, ReactionFailed
from tupelo.space import transaction
from tupelo.space.query import Query, check_limit
from tupelo.space.session import Seen
from tupelo.store.index import Accept
from tupelo.store.plan import Question
from tupelo.values.entry import Entry, freeze, thaw
from tupelo.values.lease import check_lease
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.order import Order
    from tupelo.space.transaction import Txn
    from tupelo.space.waiting import WriteOutcome


Function = Callable[[Any, "Step"], object]


class ReactionState:
    """The state of a reaction in the core; `fired` are the entries that it has reacted to. It
    reacts to matches that `only` accepts, and is called with the `whole` entry or with its
    value."""

    __slots__ = (
        "ended",
        "error",
        "fired",
        "function",
        "once",
        "only",
        "question",
        "ticket",
        "whole",
    )

    def __init__(
        self,
        question: Question,
        ticket: int,
        function: Function,
        once: bool,
        only: Accept | None = None,
        whole: bool = False,
        fired: Seen | None = None,
    ) -> None:
        self.question = question
        self.ticket = ticket
        self.function = function
        self.once = once
        self.only = only
        self.whole = whole
        self.fired = Seen() if fired is None else fired
        self.ended = False
        self.error: Exception | None = None


class Step:
    """The operations for the function of a reaction, within the step. They never wait."""

    def __init__(self, core: Core, txn: Txn) -> None:
        self._core = core
        self._txn = txn
        self.added: list[ReactionState] = []
        self.agenda: list[tuple[Entry, ReactionState]] = []
        """Entries that added reactions have yet to process."""
        self.listeners: list[Callable[[bool], object]] = []

    def __repr__(self) -> str:
        return f"<Step of a reaction, {len(self.added)} reactions added>"

    def write(self, entry: object, *, lease: float | None = None) -> None:
        """Write an entry."""
        self._core.write_all([freeze(entry)], check_lease(lease), self._txn)

    def read(self, template: object = ANY) -> Any:
        """A copy of a match, or None."""
        return self._one(template, False)

    def take(self, template: object = ANY) -> Any:
        """Remove a match and return it, or None."""
        return self._one(template, True)

    def read_all(self, template: object = ANY, *, limit: int | None = None) -> list[Any]:
        """Copies of all matches, at most `limit`."""
        return self._all(template, False, limit)

    def take_all(self, template: object = ANY, *, limit: int | None = None) -> list[Any]:
        """Remove and return all matches, at most `limit`."""
        return self._all(template, True, limit)

    def count(self, template: object = ANY) -> int:
        """The number of matches."""
        return self._core.count(template, self._txn)

    def write_marked(self, entry: object, mark: WriteOutcome) -> None:
        """Write on behalf of an agent, or for one."""
        self._core.write_all([freeze(entry)], None, self._txn, mark=mark)

    def get(
        self,
        template: object,
        *,
        take: bool,
        limit: int | None,
        only: Accept | None = None,
        order: Order | None = None,
    ) -> list[Any]:
        """The matches within the step that `only` accepts."""
        query = Query(template, take, many=True, limit=limit, order=order, txn=self._txn, only=only)
        return [thaw(entry.shape, entry.fields) for entry in self._core.get(query)]

    def add_reaction(
        self,
        template: object,
        function: Function,
        once: bool,
        only: Accept | None = None,
        whole: bool = False,
        fired: Seen | None = None,
    ) -> ReactionState:
        """Register a reaction, which is undone with the step. It reacts within the step, after the
        function that registers it, to existing and new entries."""
        self._txn.require("active")
        core = self._core
        with core.user_code("a template"):
            there = [
                entry
                for store in (core.store, self._txn.store)
                for entry in store.matches(store.question(template))
            ]
        state = _begin(core, template, function, once, only, whole, fired)
        self.added.append(state)
        self.agenda += [(entry, state) for entry in there]
        return state

    def when_over(self, listener: Callable[[bool], object]) -> None:
        """Call this function under the lock when the step ends: with True if it was committed, with
        False if it was undone."""
        self._txn.require("active")
        self.listeners.append(listener)

    def _one(self, template: object, take: bool) -> Any:
        found = self._core.get(Query(template, take, txn=self._txn))
        return thaw(found[0].shape, found[0].fields) if found else None

    def _all(self, template: object, take: bool, limit: int | None) -> list[Any]:
        check_limit(limit)
        return self.get(template, take=take, limit=limit)


def register(
    core: Core,
    raw: Any,
    function: Function,
    once: bool,
    existing: bool,
    only: Accept | None = None,
    whole: bool = False,
    fired: Seen | None = None,
) -> ReactionState:
    """Register a reaction; it reacts to existing entries in the same step. `fired` may be given by
    a caller that keeps it: then entries that may return are not forgotten."""
    core.expire()
    state = _begin(core, raw, function, once, only, whole, fired)
    try:
        with core.user_code("a template"):
            there = list(core.store.matches(state.question)) if existing else []
        if there:
            react_to(core, there, state)
    except BaseException:
        core.end_reaction(state)
        raise
    return state


def _begin(
    core: Core,
    raw: Any,
    function: Function,
    once: bool,
    only: Accept | None,
    whole: bool,
    fired: Seen | None,
) -> ReactionState:
    question, ticket = core.store.question(raw), core.waiting.ticket()
    state = ReactionState(question, ticket, function, once, only, whole, fired)
    core.reactions.add(state)
    core.watched += 1
    if fired is None:
        core.pruning.memories[state.fired] = None
    return state


def react_to(core: Core, entries: list[Entry], only: ReactionState | None = None) -> None:
    """Run the reactions, or `only` this one, for entries that are in the space."""
    step = transaction.Txn("")
    run(core, step, entries, transaction.abort, only)
    transaction.commit(core, step)


def catch_up(core: Core, entries: list[Entry]) -> None:
    """Run the reactions for entries that stay in any case. A reaction that fails keeps its error;
    other reactions and entries are not affected."""
    try:
        react_to(core, entries)
    except ReactionError:
        for entry in entries if len(entries) > 1 else ():
            if not entry.gone:
                with suppress(ReactionError):
                    react_to(core, [entry])


def wanted(core: Core, entries: Iterable[Entry]) -> list[ReactionState]:
    """The reactions that want one of these entries. One whose own template fails is ended."""
    with core.user_code("a template"):
        found = [state for entry in entries for state in core.reactions.wanting(entry)]
    while core.reactions.failures:
        state, error = core.reactions.failures.pop()
        state.error = error
        core.end_reaction(state)
    return found


def run(
    core: Core,
    txn: Txn,
    entries: Iterable[Entry],
    undo: Callable[[Core, Txn, str], None],
    only: ReactionState | None = None,
) -> None:
    """Run the reactions, or `only` one that is new, until none wants another entry."""
    if not core.reactions:
        return
    agenda: list[tuple[Entry, ReactionState | None]] = [(entry, only) for entry in entries]
    taken_before = set(txn.taken)
    fired: list[tuple[ReactionState, Entry]] = []
    txn.agenda = []
    step = Step(core, txn)
    try:
        while agenda:
            entry, chosen = agenda.pop(0)
            for reaction in [chosen] if chosen else wanted(core, [entry]):
                if entry.gone:
                    break
                if reaction.ended or entry in reaction.fired:
                    continue
                if reaction.only is not None and not reaction.only(entry):
                    continue
                if len(fired) >= core.reactions_max:
                    raise Livelock(core.reactions_max)
                fired.append((reaction, entry))
                reaction.fired.add(entry)
                reaction.ended = reaction.once
                _call(core, reaction, entry, step)
                if txn.agenda and core.log.on and not txn.id:
                    causes = txn.causes = txn.causes or {}
                    causes.update(dict.fromkeys(txn.agenda, entry))
                agenda.extend((written, None) for written in txn.agenda)
                txn.agenda.clear()
                agenda += step.agenda
                step.agenda.clear()
    except BaseException as error:
        for reaction in step.added:
            core.end_reaction(reaction)
        for reaction, entry in fired:
            reaction.fired.discard(entry)
            reaction.ended = reaction not in core.reactions
        txn.agenda = None
        for entry in [entry for entry in txn.taken if entry not in taken_before]:
            core.give_back(entry, txn.taken.pop(entry))  # its absence was not visible
        undo(core, txn, f"a reaction stopped it: {error}")
        for over in step.listeners:
            over(False)
        raise
    txn.agenda = None
    for reaction, _ in fired:
        if reaction.ended:
            core.end_reaction(reaction)
    for over in step.listeners:
        over(True)


def _call(core: Core, reaction: ReactionState, entry: Entry, step: Step) -> None:
    before, core.running = core.running, "a reaction"
    try:
        value = entry if reaction.whole else thaw(entry.shape, entry.fields)
        reaction.function(value, step)
    except Exception as error:
        reaction.error = error
        name = getattr(reaction.function, "__name__", reaction.function)
        raise ReactionFailed(
            f"the reaction {name!r} raised {type(error).__name__}: {error}; the step was undone"
        ) from error
    finally:
        core.running = before


WeakFunction = Callable[[Any, "WeakStep"], object]


class WeakStep:
    """The operations for the function of a weak reaction, in one transaction. They never wait; in
    the async API they are awaited."""

    def __init__(self, space: Any, txn: Any) -> None:
        self._space = space
        self._txn = txn

    def write(self, entry: object, *, lease: float | None = None) -> Any:
        """Write an entry."""
        return self._space.write(entry, lease=lease, txn=self._txn)

    def read(self, template: object = ANY) -> Any:
        """A copy of a match, or None."""
        return self._space.read(template, wait=0, txn=self._txn)

    def take(self, template: object = ANY) -> Any:
        """Remove a match and return it, or None."""
        return self._space.take(template, wait=0, txn=self._txn)

    def read_all(self, template: object = ANY, *, limit: int | None = None) -> Any:
        """Copies of all matches, at most `limit`."""
        return self._space.read_all(template, limit=limit, txn=self._txn)

    def take_all(self, template: object = ANY, *, limit: int | None = None) -> Any:
        """Remove and return all matches, at most `limit`."""
        return self._space.take_all(template, limit=limit, txn=self._txn)

    def count(self, template: object = ANY) -> Any:
        """The number of matches."""
        return self._space.count(template, txn=self._txn)
