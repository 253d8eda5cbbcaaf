"""The protocol of a space: every kind of space has these operations, with these parameters.

A space in memory or in a file (`tupelo.Space`), at a host elsewhere (`tupelo.connect`), spanning
hosts (`host.space`) and the part at one host (`host.space(...).here`) are all `SpaceLike`, and the
models use nothing else of a space. An operation that a kind of space cannot do raises a clear
error; docs/SPACES.md lists these exceptions.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any, Protocol, Self, TypeVar

from tupelo.errors import TupeloError
from tupelo.space.dual_api import (
    async_one,
    like,
    many,
    many_like,
    matches,
    matches_like,
    one,
    one_like,
)
from tupelo.space.matchset import Skipped
from tupelo.space.order import Order
from tupelo.space.transaction import PrepareVote, TransactionState
from tupelo.values.change import Change, Notice
from tupelo.values.entry import About, freeze
from tupelo.values.holder import Delayed, InHand
from tupelo.values.lease import AsyncLease, Lease
from tupelo.values.parts import ANY
from tupelo.values.scope import HERE, Coverage, Scope
from tupelo.values.text import entry_text, html_table

T_co = TypeVar("T_co", covariant=True)

NOT_AT_ALL = 0  # compared by `is`, which is faster


def takes_longer(template: object, take: bool) -> Any:
    """`_get_fast` of a kind of space without a fast path."""
    return NotImplemented


def takes_longer_to_write(entry: object) -> Any:
    """`_write_fast` of a kind of space without a fast path."""
    return None


DISPLAYED = 5
"""How many entries a notebook shows of a space."""


class SpaceLike(Protocol):
    """A space of any kind, for threads. The operations have these parameters:

    | parameter | meaning |
    | --- | --- |
    | `entry` | a tuple, or an instance of a dataclass |
    | `template` | selects entries: a tuple of values, types and parts such as `ANY`, a dataclass |
    | `wait` | seconds to wait for a match: None for ever, 0 not at all |
    | `lease` | lifetime in seconds: None for ever |
    | `txn` | the transaction that the operation is part of |
    | `order` | an `Order`: which of several matches comes first |
    | `limit` | the maximum number of matches |
    | `if_exists` | wait only while the end of an open transaction could provide a match |
    | `scope` | a `Scope`: the hosts and agents to search |
    | `coverage` | a `Coverage()`, which the operation fills with the hosts that it has reached |
    | `about` | a list to which the operation adds an `About` for each returned entry |
    | `at` | an index, for orders with positions |
    | `to` | the agent that an entry is for |
    | `delay` | seconds until a written entry becomes visible |
    | `handback` | a value that the notices of a subscription return as their `handback` |
    """

    # A kind of space derives from this class and implements the methods with an underscore, whose
    # results the operations return; in the async API these are awaitable.

    _get: Callable[..., Any]
    """(template, take, wait, many, limit, txn, order, if_exists, scope, coverage, about): a match
    or None; if `many`, a list."""
    _count: Callable[..., int]
    """(template, txn, scope, coverage)."""
    _match_set: Callable[..., MatchSetLike[Any]]
    """(template, limit, txn, lease)."""
    _write: Callable[..., Lease]
    """(entry, lease, txn, at, wait, to, delay): its lease."""
    _write_all: Callable[..., list[Lease]]
    """(entries, lease, txn, at, wait, to, delay): a list of leases."""
    _subscribe: Callable[..., SubscriptionLike]
    """(template, callback, lease, txn, handback, backlog_max, available, returned, removed,
    scope)."""
    _react: Callable[..., ReactionLike]
    """(template, function, once, existing, scope)."""
    # No defaults: class attributes would slow down the access to instance attributes.
    _get_fast: Callable[[Any, bool], Any]
    """(template, take): the fast path of `Port.get_fast`, or `takes_longer`."""
    _write_fast: Callable[[object], Lease | None]
    """(entry): the fast path of `Port.write_fast`, or `takes_longer_to_write`."""

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the number of entries here, and the first of them. None, which
        means the usual text, if the space cannot be read, or must be awaited."""
        if getattr(self, "is_async", False):
            return None
        try:
            count = self.count(scope=HERE)
            first = self.read_all(limit=DISPLAYED, scope=HERE)
        except TupeloError:
            return None
        return html_table(f"{self!r}: {count} entries", [[entry_text(*freeze(e))] for e in first])

    @property
    def name(self) -> str:
        """The name of the space."""
        ...

    def write(
        self,
        entry: object,
        *,
        lease: float | None = None,
        txn: Any = None,
        at: Any = None,
        wait: float | None = NOT_AT_ALL,
        to: str | None = None,
        delay: float | None = None,
    ) -> Lease:
        """Write an entry: a tuple, or an instance of a dataclass. The space keeps a copy.

        `at` is for orders with places. If the space is full, or its order refuses the entry, the
        write waits for `wait` seconds until entries leave; then the refusal is raised. `to` is the
        agent that the entry is for; in a space that spans hosts the entry moves to the agent's
        host.

        With `delay` the entry is there at once, durable and counted in the capacity, and after so
        many seconds it becomes visible as if it was written then: waiting operations are served,
        subscriptions notified, and it comes behind the entries that were visible before, so that a
        scheduled entry does not overtake those that are waiting already. Its lease begins when it
        becomes visible. `delay` cannot be combined with `to`.
        """
        if (
            lease is None
            and txn is None
            and at is None
            and wait is NOT_AT_ALL
            and to is None
            and delay is None
        ):
            granted = self._write_fast(entry)
            if granted is not None:
                return granted
        return self._write(entry, lease, txn, at, wait, to, delay)

    def write_all(
        self,
        entries: Iterable[object],
        *,
        lease: float | list[float | None] | None = None,
        txn: Any = None,
        at: Sequence[Any] | None = None,
        wait: float | None = 0,
        to: str | None = None,
        delay: float | None = None,
    ) -> list[Lease]:
        """Write many entries in one step: they become visible together, or none is written. `lease`
        may be a list, with one for each.

        `at` has a place for each, for orders with places; `wait`, `to` and `delay` are as for
        `write`.
        """
        return self._write_all(entries, lease, txn, at, wait, to, delay)

    @one
    def read(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Any = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
        about: list[About] | None = None,
    ) -> Any:
        """Return a copy of a matching entry, or None if there is none in time.

        With `if_exists`, wait only while an open transaction holds a match that it may release. In
        a space that spans hosts, NotAllAnswered is raised if there was no match and some hosts did
        not answer.
        """
        if (
            (wait is None or (wait == 0 and wait is not False))
            and txn is None
            and order is None
            and scope is None
            and coverage is None
            and about is None
        ):
            fields = self._get_fast(template, False)
            if fields is not NotImplemented and (fields is not None or wait == 0):
                return fields
        return self._get(
            template, False, wait, False, 1, txn, order, if_exists, scope, coverage, about
        )

    @one
    def take(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Any = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
        about: list[About] | None = None,
    ) -> Any:
        """Remove a matching entry and return it, or None if there is none in time."""
        if (
            (wait is None or (wait == 0 and wait is not False))
            and txn is None
            and order is None
            and scope is None
            and coverage is None
            and about is None
        ):
            fields = self._get_fast(template, True)
            if fields is not NotImplemented and (fields is not None or wait == 0):
                return fields
        return self._get(
            template, True, wait, False, 1, txn, order, if_exists, scope, coverage, about
        )

    @many
    def read_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        txn: Any = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
        about: list[About] | None = None,
    ) -> list[Any]:
        """Return copies of all matching entries, at most `limit`. With `wait`, wait for the first
        match; with `if_exists` only while a transaction may still reveal or release a match, and
        then return the matches, perhaps none. In a space that spans hosts, of the hosts that
        answer."""
        found: list[Any] = self._get(
            template, False, wait, True, limit, txn, order, if_exists, scope, coverage, about
        )
        return found

    @many
    def take_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        txn: Any = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
        about: list[About] | None = None,
    ) -> list[Any]:
        """Remove and return all matching entries, at most `limit`, in one step; in a space that
        spans hosts, of the hosts that answer: `coverage` lists them."""
        found: list[Any] = self._get(
            template, True, wait, True, limit, txn, order, if_exists, scope, coverage, about
        )
        return found

    def count(
        self,
        template: object = ANY,
        *,
        txn: Any = None,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
    ) -> int:
        """The number of entries that match now."""
        return self._count(template, txn, scope, coverage)

    @matches
    def match_set(
        self,
        template: object = ANY,
        *,
        limit: int | None = None,
        txn: Any = None,
        lease: float | None = None,
    ) -> MatchSetLike[Any]:
        """The present matches, to be read one by one. The match set becomes invalid when one of its
        entries is taken; entries at other hosts are copied."""
        return self._match_set(template, limit, txn, lease)

    def transaction(self, *, lease: float | None = None) -> TransactionLike:
        """Begin a transaction, to be passed as `txn=`. It aborts when its lease runs out. In a
        space that spans hosts it covers the entries at this host."""
        ...

    def in_doubt(self) -> Sequence[TransactionLike]:
        """The transactions that are prepared and not decided, also from before a crash."""
        ...

    def in_hand(self, template: object = ANY) -> Sequence[InHand]:
        """The matches that are neither here nor gone: taken by open transactions, or on their way
        to their takers, by taker. In a space that spans hosts, those of this host."""
        ...

    def delayed(
        self, template: object = ANY, *, limit: int | None = None, cancel: bool = False
    ) -> Delayed:
        """The matches that are not visible yet because of their `delay`: how many there are, and
        those that become visible first, at most `limit`. With `cancel`, they are removed, and the
        answer has only their number. In a space that spans hosts, those of this host."""
        ...

    def session(self, *, lease: float | None = None) -> SessionLike:
        """Open a session, which returns each entry at most once. It ends with its `lease`."""
        ...

    def subscribe(
        self,
        template: object = ANY,
        callback: Callable[[Notice], object] | None = None,
        *,
        lease: float | None = None,
        txn: Any = None,
        handback: Any = None,
        backlog_max: int = 1_000,
        available: bool = False,
        returned: bool = True,
        removed: bool = False,
        scope: Scope | None = None,
    ) -> SubscriptionLike:
        """Get notices of entries that become visible; with `available`, also of entries that are
        available again because a transaction released its read lock or a taker was lost; without
        `returned`, not of entries that a transaction had taken and returns.

        With `removed`, also get notices of matching entries that leave the space: their `kind` is
        "taken" (also when a transaction with the take commits), "expired", "cancelled", "evicted"
        or "moved". If the taker is lost, a notice of the kind "available" follows. Of entries at
        other hosts there are no such notices, so a space that spans hosts needs scope=HERE.

        Iterate over the subscription, or pass a callback, which is called by its own thread or
        task. If `backlog_max` notices are waiting, the oldest is dropped; the next notice tells the
        number of dropped ones. A space that spans hosts notifies once of every entry that becomes
        visible anywhere, also because its host engages; within a transaction, or with scope=HERE,
        only of entries here.
        """
        return self._subscribe(
            template,
            callback,
            lease,
            txn,
            handback,
            backlog_max,
            available,
            returned,
            removed,
            scope,
        )

    def react(
        self,
        template: object,
        function: Callable[[Any, Any], object],
        *,
        once: bool = False,
        existing: bool = True,
        scope: Scope | None = None,
    ) -> ReactionLike:
        """Call `function(entry, step)` inside the atomic step in which a match becomes visible.

        It is called once for every entry (with `once`, for the first only), also for existing
        entries unless `existing` is False. Its operations on `step` are part of the step: they
        happen before the entry is visible to others, and are undone with it if a function raises.

        A space at another host, or one that spans hosts without scope=HERE, calls the function
        after the step, on its own thread or task. Its operations on `step` are then one
        transaction, which commits when the function returns; if it raises, the error is the
        reaction's `error`.
        """
        return self._react(template, function, once, existing, scope)

    def changes(self, *, since: int = 0, limit: int | None = None) -> list[Change]:
        """The changes after position `since`, oldest first, at most `limit`."""
        ...

    def trim(self, *, before: int) -> None:
        """Delete the changes `before` this position from the log. Entries are not affected."""
        ...

    def compact(self) -> None:
        """Trim the log by the space's policy, and shrink the file."""
        ...

    def close(self) -> None:
        """Close the space: waiting operations raise SpaceClosed. A durable space can be opened
        again; a space at a host continues there, but handles from this object end."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...


class TransactionLike(Protocol):
    """A transaction. A `with` block commits at its end, or aborts on an error."""

    @property
    def id(self) -> str:
        """The id of the transaction."""
        ...

    @property
    def state(self) -> TransactionState:
        """active, voting, prepared, committed, aborted or unknown."""
        ...

    @property
    def lease(self) -> Lease:
        """Its lease; the transaction aborts when it ends."""
        ...

    def commit(self) -> None:
        """Make all its changes visible, or raise CannotCommit or TransactionEnded."""
        ...

    def abort(self) -> None:
        """Undo all its changes."""
        ...

    def prepare(self) -> PrepareVote:
        """First phase of a two-phase commit. "not changed": there is nothing to commit."""
        ...

    def transaction(self, *, lease: float | None = None) -> TransactionLike:
        """Begin a nested transaction: it sees what this one sees, and commits into it."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...


class SessionLike(Protocol):
    """Returns each entry at most once. `clone` makes another that has seen the same entries."""

    _read: Callable[..., Any]
    """(template, wait, many, limit, scope, coverage, about): a match or None; if `many`, a
    list."""

    @one
    def read(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
        about: list[About] | None = None,
    ) -> Any:
        """Return a copy of a match that was not seen before, or None if there is none in time."""
        return self._read(template, wait, False, 1, scope, coverage, about)

    @many
    def read_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
        about: list[About] | None = None,
    ) -> list[Any]:
        """Return copies of all matches that were not seen before, at most `limit`."""
        found: list[Any] = self._read(template, wait, True, limit, scope, coverage, about)
        return found

    def clone(self, *, lease: float | None = None) -> SessionLike:
        """A new session that has seen the same entries."""
        ...

    @property
    def seen(self) -> int:
        """The number of remembered entries; removed entries are forgotten after a while."""
        ...

    @property
    def lease(self) -> Lease:
        """Its lease; the session ends with it."""
        ...

    def close(self) -> None:
        """End the session."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...


class SubscriptionLike(Protocol):
    """Notices in order: iterate, or call `get`."""

    def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None after the timeout or at the end."""
        ...

    def __iter__(self) -> Iterator[Notice]: ...

    @property
    def active(self) -> bool:
        """Whether more notices can come than those in the backlog."""
        ...

    @property
    def error(self) -> Exception | None:
        """The error that ended the subscription, if any."""
        ...

    @property
    def event_id(self) -> int:
        """Identifies the event; equal for subscriptions with equal templates."""
        ...

    @property
    def sequence(self) -> int:
        """The sequence number of the last notice for this event."""
        ...

    @property
    def lease(self) -> Lease:
        """Its lease; the subscription ends with it."""
        ...

    def close(self) -> None:
        """End the subscription; notices in the backlog can still be read."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...


class MatchSetLike(Protocol[T_co]):
    """A snapshot of matches in order of arrival: iterate, or call `next`."""

    def next(self) -> T_co | None:
        """The next entry, or None at the end."""
        ...

    def __iter__(self) -> Iterator[T_co]: ...

    @property
    def skipped(self) -> list[Skipped]:
        """The entries that were left out so far, with the reasons."""
        ...

    @property
    def lease(self) -> Lease:
        """Its lease; the match set ends with it."""
        ...

    def close(self) -> None:
        """End the match set."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...


class ReactionLike(Protocol):
    """A registered reaction."""

    @property
    def active(self) -> bool:
        """Whether the reaction still reacts."""
        ...

    @property
    def error(self) -> Exception | None:
        """The last error that its function raised."""
        ...

    def cancel(self) -> Any:
        """End the reaction."""
        ...


class AsyncSpaceLike(Protocol):
    """A space of any kind, for coroutines: see `SpaceLike`. `transaction`, `session` and
    `subscribe` are awaited, or used by `async with`.

    A method that is `like` one of `SpaceLike` is the same function: it has the same parameters, and
    returns what the method with an underscore returns, which is awaitable here.
    """

    _get: Callable[..., Coroutine[Any, Any, Any]]
    _count: Callable[..., Coroutine[Any, Any, int]]
    _match_set: Callable[..., Coroutine[Any, Any, AsyncMatchSetLike[Any]]]
    _write: Callable[..., Coroutine[Any, Any, AsyncLease]]
    _write_all: Callable[..., Coroutine[Any, Any, list[AsyncLease]]]
    _subscribe: Callable[..., Opening[AsyncSubscriptionLike]]
    _react: Callable[..., Awaitable[ReactionLike]]

    @property
    def name(self) -> str: ...

    def write(
        self,
        entry: object,
        *,
        lease: float | None = None,
        txn: Any = None,
        at: Any = None,
        wait: float | None = 0,
        to: str | None = None,
        delay: float | None = None,
    ) -> Coroutine[Any, Any, AsyncLease]:
        return self._write(entry, lease, txn, at, wait, to, delay)

    @like(SpaceLike.write_all)
    def write_all(self) -> Coroutine[Any, Any, list[AsyncLease]]:
        return self._write_all()

    @async_one
    def read(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Any = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
        about: list[About] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        return self._get(
            template, False, wait, False, 1, txn, order, if_exists, scope, coverage, about
        )

    @async_one
    def take(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Any = None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
        about: list[About] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        return self._get(
            template, True, wait, False, 1, txn, order, if_exists, scope, coverage, about
        )

    @many_like(SpaceLike.read_all)
    def read_all(self) -> Any:
        return self._get()

    @many_like(SpaceLike.take_all)
    def take_all(self) -> Any:
        return self._get()

    @like(SpaceLike.count)
    def count(self) -> Coroutine[Any, Any, int]:
        return self._count()

    @matches_like(SpaceLike.match_set)
    def match_set(self) -> Any:
        return self._match_set()

    def transaction(self, *, lease: float | None = None) -> Opening[AsyncTransactionLike]: ...

    async def in_doubt(self) -> Sequence[AsyncTransactionLike]: ...

    async def in_hand(self, template: object = ANY) -> Sequence[InHand]: ...

    async def delayed(
        self, template: object = ANY, *, limit: int | None = None, cancel: bool = False
    ) -> Delayed: ...

    def session(self, *, lease: float | None = None) -> Opening[AsyncSessionLike]: ...

    @like(SpaceLike.subscribe)
    def subscribe(self) -> Opening[AsyncSubscriptionLike]:
        return self._subscribe()

    @like(SpaceLike.react)
    def react(self) -> Awaitable[ReactionLike]:
        return self._react()

    async def changes(self, *, since: int = 0, limit: int | None = None) -> list[Change]: ...

    async def trim(self, *, before: int) -> None: ...

    async def compact(self) -> None: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: Any) -> None: ...


class AsyncTransactionLike(Protocol):
    """A transaction for coroutines. `async with` commits at its end, or aborts on an error."""

    @property
    def id(self) -> str: ...

    @property
    def state(self) -> TransactionState: ...

    @property
    def lease(self) -> AsyncLease: ...

    async def commit(self) -> None: ...

    async def abort(self) -> None: ...

    async def prepare(self) -> PrepareVote: ...

    def transaction(self, *, lease: float | None = None) -> Opening[AsyncTransactionLike]: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: Any) -> None: ...


class AsyncSessionLike(Protocol):
    """A session for coroutines: returns each entry at most once."""

    _read: Callable[..., Coroutine[Any, Any, Any]]

    @one_like(SessionLike.read)
    def read(self) -> Any:
        return self._read()

    @many_like(SessionLike.read_all)
    def read_all(self) -> Any:
        return self._read()

    def clone(self, *, lease: float | None = None) -> Opening[AsyncSessionLike]: ...

    @property
    def seen(self) -> int: ...

    @property
    def lease(self) -> AsyncLease: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: Any) -> None: ...


class AsyncSubscriptionLike(Protocol):
    """Notices in order, for coroutines."""

    async def get(self, *, wait: float | None = None) -> Notice | None: ...

    def __aiter__(self) -> AsyncIterator[Notice]: ...

    @property
    def active(self) -> bool: ...

    @property
    def error(self) -> Exception | None: ...

    @property
    def event_id(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    @property
    def lease(self) -> AsyncLease: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: Any) -> None: ...


class AsyncMatchSetLike(Protocol[T_co]):
    """A snapshot of matches in order of arrival, for coroutines."""

    async def next(self) -> T_co | None: ...

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    @property
    def skipped(self) -> list[Skipped]: ...

    @property
    def lease(self) -> AsyncLease: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: Any) -> None: ...


class Opening(Protocol[T_co]):
    """An object of the async API that is awaited, or used by `async with`."""

    def __await__(self) -> Generator[Any, Any, T_co]: ...

    async def __aenter__(self) -> T_co: ...

    async def __aexit__(self, *error: Any) -> None: ...


for _blocking, _async in (
    (SpaceLike, AsyncSpaceLike),
    (TransactionLike, AsyncTransactionLike),
    (SessionLike, AsyncSessionLike),
    (SubscriptionLike, AsyncSubscriptionLike),
    (MatchSetLike, AsyncMatchSetLike),
):
    for _name, _member in vars(_async).items():
        if not _name.startswith("_"):  # The docstrings are the same, but for `await`.
            _member.__doc__ = vars(_blocking)[_name].__doc__

OPERATIONS: tuple[str, ...] = tuple(
    name for name in vars(SpaceLike) if not name.startswith("_") and name != "name"
)
"""The names of all operations of a space."""


def is_space(thing: object) -> bool:
    """Whether this is a space of any kind."""
    return all(callable(getattr(thing, name, None)) for name in OPERATIONS)


def names_of(protocol: type, *more: str) -> list[str]:
    """`__dir__` of an implementation: the public operations."""
    return sorted([*(name for name in vars(protocol) if not name.startswith("_")), *more])
