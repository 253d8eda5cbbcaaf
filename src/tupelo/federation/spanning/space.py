"""A space of a host, as programs use it there: it spans every engaged host that has a space of
that name. One text for both doors.

Writes stay here, with their agent. Reads and takes look here first, and then everywhere else, as
far as `scope=` reaches; those that wait also hear of what is written elsewhere, and of hosts that
engage later. Operations within a transaction look here only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument, TupeloError
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.federation.spanning.adopting import adopt
from tupelo.federation.spanning.handles import (
    Coverage,
    FederatedListening,
    FederatedSession,
    check_coverage,
)
from tupelo.federation.spanning.question import Taken
from tupelo.federation.spanning.records import Record
from tupelo.federation.spanning.scope import Scope, spell_scope
from tupelo.federation.spanning.subscription import FederatedSubscription
from tupelo.federation.spanning.weak import WeakFunction, WeakReaction
from tupelo.space import asynchronous, blocking
from tupelo.space.checks import check_count, check_limit, check_order, check_wait
from tupelo.space.either import either, settled
from tupelo.space.handles import ThreadSignal
from tupelo.space.holdings import Transactional
from tupelo.space.operations import value_of
from tupelo.space.order import Order
from tupelo.space.tasks import TaskSignal
from tupelo.space.writers import Mark
from tupelo.values.entry import Entry, require_known
from tupelo.values.lease import Lease
from tupelo.values.notice import Notice
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.federation.hosts.doors import HostDoor


class FederatedSpace:
    """One space of a host, and of all that are engaged with it."""

    def __init__(self, host: HostDoor, hosted: HostedSpace, is_async: bool) -> None:
        self.is_async = is_async
        self._host = host
        self._core = host._core
        self._hosted = hosted
        self._operations = hosted.operations
        self._local: Any = hosted.door if is_async else hosted.space
        self._federation = self._core.federation

    @property
    def name(self) -> str:
        return self._hosted.name

    # Writing

    @either
    async def write(
        self,
        entry: object,
        *,
        lease: float | None = None,
        txn: Transactional | None = None,
        at: Any = None,
        wait: float | None = 0,
        to: str | None = None,
    ) -> Lease:
        """Write an entry. It stays here, unless it is for an agent: `to` that agent it goes, when
        the agent is engaged; until then it is here, misplaced."""
        if to is None:
            written: Lease = await settled(
                self._local.write(entry, lease=lease, txn=txn, at=at, wait=wait)
            )
            return written
        if not isinstance(to, str) or not to:
            raise BadArgument("to", "the id of an agent", to)
        if wait != 0:
            raise BadArgument("wait", "left out, for an entry that is for an agent", wait)
        signal = TaskSignal if self.is_async else ThreadSignal
        outcome, position = self._operations.write(entry, lease, txn, at, signal, 0, Mark(to=to))
        assert isinstance(outcome, list)
        await settled(self._local._flush(position))
        self._host._soon(self._core.mover.arrived)
        return outcome[0]

    def write_all(
        self,
        entries: Iterable[object],
        *,
        lease: float | list[float | None] | None = None,
        txn: Transactional | None = None,
        at: Sequence[Any] | None = None,
        wait: float | None = 0,
    ) -> Any:
        """Write many entries in one step, here."""
        return self._local.write_all(entries, lease=lease, txn=txn, at=at, wait=wait)

    # Reading and taking

    @either
    async def read(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
    ) -> Any:
        """A copy of a matching entry from any engaged host; None if there is none in time.

        NotAllAnswered if there was none where it was asked, and some hosts did not answer.
        """
        return await self._one(template, False, wait, txn, order, if_exists, scope, coverage)

    @either
    async def take(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
    ) -> Any:
        """Remove a matching entry, wherever it is, and get it; nobody else will."""
        return await self._one(template, True, wait, txn, order, if_exists, scope, coverage)

    async def _one(
        self,
        template: object,
        take: bool,
        wait: float | None,
        txn: Transactional | None,
        order: Order | None,
        if_exists: bool,
        scope: Scope | None,
        coverage: Coverage | None,
    ) -> Any:
        check_wait(wait)
        check_coverage(coverage)
        self._require_here(txn, scope)
        verb = self._local.take if take else self._local.read
        if txn is not None or if_exists or self._is_here(scope):
            self._covers_here(coverage)
            return await settled(
                verb(template, wait=wait, txn=txn, order=order, if_exists=if_exists)
            )
        if scope is None:
            found = await settled(verb(template, wait=0, order=order))
            if found is not None or (wait == 0 and not self._spans()):
                self._covers_here(coverage)
                return found
        values = await self._anywhere(
            coverage, template, take=take, wait=wait, order=order, scope=spell_scope(scope)
        )
        return values[0] if values else None

    @either
    async def read_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
    ) -> list[Any]:
        """Copies of all matching entries of every host that answers: `coverage` says which."""
        return await self._all(template, False, wait, limit, txn, order, if_exists, scope, coverage)

    @either
    async def take_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
    ) -> list[Any]:
        """Remove all matching entries, of every host that answers: `coverage` says which."""
        return await self._all(template, True, wait, limit, txn, order, if_exists, scope, coverage)

    async def _all(
        self,
        template: object,
        take: bool,
        wait: float | None,
        limit: int | None,
        txn: Transactional | None,
        order: Order | None,
        if_exists: bool,
        scope: Scope | None,
        coverage: Coverage | None,
    ) -> list[Any]:
        check_wait(wait)
        check_limit(limit)
        check_coverage(coverage)
        self._require_here(txn, scope)
        alone = scope is None and wait == 0 and not self._spans()
        if txn is not None or if_exists or alone or self._is_here(scope):
            self._covers_here(coverage)
            verb = self._local.take_all if take else self._local.read_all
            found: list[Any] = await settled(
                verb(template, wait=wait, limit=limit, txn=txn, order=order, if_exists=if_exists)
            )
            return found
        return await self._anywhere(
            coverage,
            template,
            take=take,
            wait=wait,
            many=True,
            limit=limit,
            order=order,
            scope=spell_scope(scope),
        )

    async def _anywhere(self, coverage: Coverage | None, template: Any, **how: Any) -> list[Any]:
        """Ask the federation, on the host's loop, and keep what it brings."""
        check_coverage(coverage)
        if how.get("order") is not None:
            check_order(how["order"])

        async def get() -> list[Entry]:
            taken = await self._federation.get(
                self._hosted, template, partial=coverage is not None, **how
            )
            if coverage is not None:
                coverage.fill(taken)
            try:
                for entry in taken.entries:
                    require_known(entry)
            except TupeloError:
                taken.give_back()
                raise
            await self._federation.hand(taken)
            return taken.entries

        def undo(entries: list[Entry]) -> None:
            if how["take"]:
                adopt(self._hosted, entries)
            elif how.get("session") is not None:
                with self._hosted.engine.lock:
                    how["session"].seen.discard_all(entries)

        found: list[Entry] = await self._host._on_loop(get(), undo)
        return [value_of(entry) for entry in found]

    @either
    async def count(
        self,
        template: object = ANY,
        *,
        txn: Transactional | None = None,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
    ) -> int:
        """How many entries match, at all hosts together."""
        check_coverage(coverage)
        if txn is not None or self._is_here(scope) or (scope is None and not self._spans()):
            self._covers_here(coverage)
            return self._operations.count(template, txn)
        taken = Taken(self._hosted) if coverage is not None else None
        number: int = await self._host._on_loop(
            self._federation.count(self._hosted, template, spell_scope(scope), taken)
        )
        if coverage is not None and taken is not None:
            coverage.fill(taken)
        return number

    def _require_here(self, txn: Transactional | None, scope: Scope | None) -> None:
        if txn is not None and scope is not None and not self._is_here(scope):
            raise BadArgument("scope", "left out or HERE, within a transaction", scope)

    def _is_here(self, scope: Scope | None) -> bool:
        spelled = spell_scope(scope)
        return spelled is not None and not self._core.spans(self._hosted, spelled)

    def _spans(self) -> bool:
        return self._core.spans(self._hosted, None)

    def _covers_here(self, coverage: Coverage | None) -> None:
        if coverage is not None:
            coverage.covered, coverage.missing = [self._core.name], []

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Any:
        """All or nothing, here: pass it as `txn=`."""
        return self._local.transaction(lease=lease)

    def in_doubt(self) -> Any:
        return self._local.in_doubt()

    def session(self) -> FederatedSession:
        """A reader that never sees the same entry twice, wherever it meets it."""
        return FederatedSession(self, Record())

    # Subscriptions, reactions

    def subscribe(
        self,
        template: object = ANY,
        callback: Callable[[Notice], object] | None = None,
        *,
        handback: Any = None,
        backlog_max: int = 1_000,
        available: bool = False,
        scope: Scope | None = None,
    ) -> FederatedListening:
        """Be told once of every entry that becomes visible anywhere, also because its host engages.

        Iterate over it, or give a callback, which is called on a thread of its own (or a task).
        """
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function of a notice", callback)
        check_count(backlog_max, "backlog_max")
        subscription = self._subscribed(
            template, scope, handback=handback, backlog_max=backlog_max, available=available
        )
        return FederatedListening(self, subscription, callback)

    def _subscribed(
        self, template: object, scope: Scope | None, **how: Any
    ) -> FederatedSubscription:
        here, wanted, _ = self._federation.reach(spell_scope(scope))

        async def make() -> FederatedSubscription:
            return FederatedSubscription(
                self._federation, self._hosted, template, here=here, wanted=wanted, **how
            )

        made: FederatedSubscription = self._host._now(make())
        if not self.is_async:
            self._host._now(made.stands())
        return made

    def react(
        self,
        template: object,
        function: WeakFunction,
        *,
        once: bool = False,
        existing: bool = True,
        scope: Scope | None = None,
    ) -> WeakReaction:
        """Call `function(entry, step)` once for every entry that is or becomes visible anywhere.

        It is weak: it is called after the step, on a thread of its own (or a task), and `step` is a
        transaction here. If it raises, what it did is undone, and the reaction's `error` says why.
        For a reaction inside the step, at this host, see `here`.
        """
        if not callable(function):
            raise BadArgument("function", "a function of an entry and a step", function)
        subscription = self._subscribed(template, scope, existing=existing, backlog_max=1_000_000)
        reaction = WeakReaction(
            self, FederatedListening(self, subscription, None), function, bool(once)
        )
        self._host._start(reaction.run)
        return reaction

    # Here

    @property
    def here(self) -> blocking.Space | asynchronous.Space:
        """What is at this host, as a space of its own: with reactions inside the step, leases on
        sessions and subscriptions, and transactions."""
        local: blocking.Space | asynchronous.Space = self._local
        return local

    def changes(self, *, since: int = 0, limit: int | None = None) -> Any:
        """What happened here after position `since`, oldest first."""
        return self._local.changes(since=since, limit=limit)

    def trim(self, *, before: int) -> Any:
        """Forget the changes here before a position."""
        return self._local.trim(before=before)

    def compact(self) -> Any:
        """Trim the log here by the space's policy and give the room back to the disk."""
        return self._local.compact()

    def __repr__(self) -> str:
        return f"<the space {self.name!r} of the host {self._core.name!r}>"
