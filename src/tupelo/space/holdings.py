"""Holdings: what a program holds of a space beyond its entries, and how a step is done.

Leases, transactions, sessions, subscriptions and reactions, for both doors. Arguments are checked,
the core is asked under the lock, the step is settled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from tupelo.errors import BadArgument, TupeloError
from tupelo.space import leases, matchset, reaction, session, subscription, transaction
from tupelo.space.checks import check_count, check_limit
from tupelo.space.engine import Engine
from tupelo.space.log import Actor
from tupelo.space.matchset import MatchSetState
from tupelo.space.order import Order
from tupelo.space.reaction import ReactionState
from tupelo.space.session import Seen, SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.space.transaction import Txn, Vote
from tupelo.space.waiting import Signal
from tupelo.store.index import Accept
from tupelo.values.change import ChangeKind
from tupelo.values.entry import Entry
from tupelo.values.lease import Lease, check_lease
from tupelo.values.notice import Notice
from tupelo.values.size import fitting

T = TypeVar("T")

_AS_EVER = nullcontext()


class TransactionHandle:
    """What a user holds of a transaction; both doors' transactions are one."""

    def __init__(self, operations: Holdings, state: Txn) -> None:
        self._operations = operations
        self._state = state

    @property
    def id(self) -> str:
        return self._state.id

    @property
    def state(self) -> transaction.State:
        """active, prepared, committed or aborted."""
        self._operations.expire()
        return self._state.state

    @property
    def lease(self) -> Lease:
        return Lease(self._operations, self._state)

    @property
    def must_commit(self) -> bool:
        """At the end of a `with` block: commit, or learn that its lease ran out?"""
        return self.state == "active" or self._state.reason == transaction.LEASE_RAN_OUT


class Spanning(ABC):
    """A transaction that may span several spaces; it has a branch in each that it was used in."""

    @abstractmethod
    def branch_at(self, operations: Holdings) -> Txn:
        """The branch in this space, which is begun when first asked for."""


Transactional = TransactionHandle | Spanning


class Holdings:
    """Everything leased in one space, of which it is the landlord; the ground of `Operations`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.core = engine.core
        self._lock = engine.lock

    def acting(self, actor: Actor | None) -> AbstractContextManager[None]:
        """While in there, it is this one who acts here and nobody else; None: the space's own."""
        return self._acting(actor) if actor and self.core.log.on else _AS_EVER

    @contextmanager
    def _acting(self, actor: Actor) -> Iterator[None]:
        with self._lock, self.core.log.by(actor):
            yield

    # Leases, transactions, sessions

    def expire(self) -> None:
        """End what has run out, so that what is asked next is answered as of now."""
        with self._lock:
            if not (self.core.closed or self.core.running):
                self._step(lambda: None)

    def now(self) -> float:
        return self.engine.clock.now()

    def renew_lease(self, thing: Any, seconds: float | None) -> None:
        self.engine.flush(self.renew(thing, seconds))

    def cancel_lease(self, thing: Any) -> None:
        self.engine.flush(self.cancel(thing))

    def renew(self, thing: Any, seconds: float | None) -> int:
        """Renew a lease; the position to make durable."""
        return self._step(lambda: leases.renew(self.core, thing, seconds))[1]

    def cancel(self, thing: Any) -> int:
        """Cancel a lease; the position to make durable."""
        return self._step(lambda: leases.cancel(self.core, thing))[1]

    def renew_leases(self, wanted: list[tuple[Any, float | None]]) -> list[TupeloError | None]:
        """Renew many leases in one step; for each, None or why it could not be."""

        def work() -> list[TupeloError | None]:
            return [_tried(leases.renew, self.core, thing, asked) for thing, asked in wanted]

        outcomes, position = self._step(work)
        self.engine.flush(position)
        return outcomes

    def cancel_leases(self, things: list[Any]) -> list[TupeloError | None]:
        """Cancel many leases in one step; for each, None or why it could not be."""

        def work() -> list[TupeloError | None]:
            return [_tried(leases.cancel, self.core, thing) for thing in things]

        outcomes, position = self._step(work)
        self.engine.flush(position)
        return outcomes

    def remark(self, kind: ChangeKind, entry: Entry) -> int:
        """Log what has happened to what this entry speaks of; the position to make durable."""
        return self._step(lambda: self.core.log.add(kind, entry))[1]

    def begin(self, lease: float | None, parent: Txn | None = None) -> Txn:
        lease = check_lease(lease)
        return self._step(
            lambda: transaction.begin(self.core, self.engine.new_id(), lease, parent)
        )[0]

    def begin_branch(self, lease: float | None, parent: Txn | None, txn_id: str) -> Txn:
        """A branch of a shared transaction, whose lease is its own and not for us to grant."""

        def work() -> Txn:
            branch = transaction.begin(self.core, txn_id, None, parent)
            branch.expires = None if lease is None else self.now() + lease
            self.core.deadlines.add(branch)
            return branch

        return self._step(work)[0]

    def renew_branch(self, branch: Txn, lease: float | None) -> None:
        def work() -> None:
            branch.require("active")
            branch.expires = None if lease is None else self.now() + lease
            self.core.deadlines.add(branch)

        self._step(work)

    def prepare(self, txn: Txn) -> tuple[Vote, int]:
        return self._step(lambda: transaction.prepare(self.core, txn))

    def commit(self, txn: Txn) -> int:
        return self._step(lambda: transaction.commit(self.core, txn))[1]

    def abort(self, txn: Txn) -> int:
        return self._step(lambda: transaction.abort(self.core, txn, "it was called off"))[1]

    def in_doubt(self) -> list[Txn]:
        return self._step(
            lambda: [txn for txn in self.core.transactions if txn.state == "prepared"]
        )[0]

    def open_session(
        self,
        lease: float | None,
        like: SessionState | None = None,
        seen: Seen | None = None,
    ) -> SessionState:
        """A session that has seen the same as another, or this."""
        lease = check_lease(lease)

        def work() -> SessionState:
            known = like.seen.copy() if like else seen
            return session.begin(self.core, self.engine.new_id(), lease, known)

        return self._step(work)[0]

    def remember(self, seen: Seen) -> None:
        """Let this forget, for as long as it is there, what is gone for good."""

        def work() -> None:
            self.core.pruning.memories[seen] = None

        self._step(work)

    def forget(self, seen: Seen) -> None:
        with self._lock:
            self.core.pruning.memories.pop(seen, None)

    def unread(
        self,
        template: Any,
        state: SessionState,
        limit: int | None,
        agent: str | None,
        bytes_max: int | None,
    ) -> tuple[list[Entry], bool, int]:
        """What a session has not seen, whether there is more than has room, and the position to
        make durable before it is shown."""

        def work() -> tuple[list[Entry], bool, int]:
            found, cut = session.unread(self.core, template, state, limit, agent, bytes_max)
            return found, cut, self.engine.position_for(found)

        return self._step(work)[0]

    def room_for(
        self,
        template: Any,
        limit: int | None,
        take: bool,
        order: Order | None,
        only: Accept | None,
        bytes_max: int,
    ) -> tuple[int | None, bool]:
        """How many of the matches, of so many that are asked for, have room in so many bytes; and
        whether that is not all of them."""

        def work() -> tuple[int | None, bool]:
            matches = self.core.find(template, limit, take, None, order, None, False, only)
            found, cut = fitting(matches, bytes_max)
            return (len(found), True) if cut else (limit, False)

        return self._step(work)[0]

    def end_session(self, state: SessionState) -> None:
        with self._lock:
            session.end(self.core, state)
            self.engine.settle()

    def open_match_set(
        self, template: Any, limit: int | None, txn: Transactional | None, lease: float | None
    ) -> MatchSetState:
        check_limit(limit)
        lease = check_lease(lease)
        state = self.state_of(txn)
        return self._step(lambda: matchset.begin(self.core, template, limit, state, lease))[0]

    def next_match(self, state: MatchSetState) -> tuple[Entry | None, int]:
        """The next entry of a match set, and the position to make durable before it is shown."""

        def work() -> tuple[Entry | None, int]:
            entry = state.next()
            return entry, 0 if entry is None else self.engine.position_for([entry])

        return self._step(work)[0]

    # Subscriptions and reactions

    def subscribe(
        self,
        template: Any,
        callback: object,
        lease: float | None,
        txn: Transactional | None,
        handback: Any,
        backlog_max: int,
        available: bool,
        returned: bool = True,
    ) -> SubscriptionState:
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function of a notice", callback)
        check_count(backlog_max, "backlog_max")
        lease = check_lease(lease)

        def work() -> SubscriptionState:
            return subscription.register(
                self.core,
                template,
                available=bool(available),
                returned=bool(returned),
                txn=self.state_of(txn),
                handback=handback,
                backlog_max=backlog_max,
                lease=lease,
            )

        return self._step(work)[0]

    def next_notice(
        self, state: SubscriptionState, signal: Callable[[], Signal], wait: float | None
    ) -> tuple[Notice | Signal | None, int]:
        """A notice; None if there is none and none to wait for; or a signal to wait for."""
        with self._lock:
            self.engine.refuse_inside()
            if self.core.deadlines.heap and not self.core.closed:
                self.core.expire()
                self.engine.settle()
            notice = state.next()
            if notice is not None:
                return notice, self.engine.position_for([notice.subject])
            if state.error is not None:
                raise state.error
            if state.ended or wait == 0:
                return None, 0
            waiting = signal()
            state.waiting.append(waiting)
            return waiting, 0

    def return_notice(self, state: SubscriptionState, notice: Notice) -> None:
        """The one who was given this notice vanished before it got it."""
        with self._lock:
            state.backlog.appendleft(notice)
            if state.waiting:
                state.waiting.popleft().wake()

    def forget_signal(self, state: SubscriptionState, signal: Signal) -> None:
        """The one who waited for a notice does so no more; the next one gets its turn."""
        with self._lock:
            if signal in state.waiting:
                state.waiting.remove(signal)
            elif state.backlog and state.waiting:
                state.waiting.popleft().wake()

    def end_subscription(self, state: SubscriptionState, error: Exception | None = None) -> None:
        with self._lock:
            self.core.end_subscription(state, error)
            self.engine.settle()

    def react(
        self,
        template: Any,
        function: reaction.Function,
        once: bool,
        existing: bool,
        only: Accept | None = None,
        whole: bool = False,
        fired: Seen | None = None,
    ) -> tuple[ReactionState, int]:
        if not callable(function):
            raise BadArgument("function", "a function of an entry and a step", function)
        if iscoroutinefunction(function):
            raise BadArgument("function", "a plain function: a step cannot await", function)

        def work() -> ReactionState:
            return reaction.register(
                self.core, template, function, bool(once), bool(existing), only, whole, fired
            )

        return self._step(work)

    def catch_up(self, entries: list[Entry]) -> int:
        """Let the reactions work on entries that they did not want before, but may now; the
        position to make durable."""
        return self._step(lambda: reaction.catch_up(self.core, entries))[1]

    def end_reaction(self, state: ReactionState) -> None:
        with self._lock:
            self.core.end_reaction(state)

    # Common ground

    def _step(self, work: Callable[[], T]) -> tuple[T, int]:
        """Do some work as one step; its answer, and the position to make durable."""
        with self._lock:
            self.engine.begin()
            before = self.core.log.position
            try:
                if self.core.deadlines.heap:
                    self.core.expire()
                answer = work()
            finally:
                self.engine.settle()
            position = self.core.log.position
            return answer, 0 if position == before else position

    def state_of(self, txn: Transactional | None) -> Txn | None:
        if txn is None:
            return None
        if isinstance(txn, Spanning):
            return txn.branch_at(self)
        if not isinstance(txn, TransactionHandle) or txn._operations.engine is not self.engine:
            raise BadArgument("txn", f"a transaction of the space {self.engine.name!r}", txn)
        return txn._state


def _tried(work: Callable[..., None], *args: Any) -> TupeloError | None:
    try:
        work(*args)
    except TupeloError as error:
        return error
    return None
