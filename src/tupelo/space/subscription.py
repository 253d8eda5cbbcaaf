"""Subscriptions: leased delivery of notices, after the step. Each has a bounded backlog; when it is
full the oldest notice is dropped, and the next one reports the number of dropped notices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tupelo.store.plan import Question
from tupelo.store.watchers import Watchers
from tupelo.values.change import ENDINGS, Notice, NoticeKind
from tupelo.values.entry import Entry
from tupelo.values.kind import is_typed, values_of
from tupelo.values.template import Combined, Template

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.transaction import Txn
    from tupelo.space.waiting import Signal


class PendingNotice:
    """The event of a subscription. Subscriptions to the same thing share its id and sequence."""

    __slots__ = ("id", "key", "sequence", "users")

    def __init__(self, event_id: int, key: Hashable) -> None:
        self.id = event_id
        self.key = key
        self.sequence = 0
        self.users = 0


class SubscriptionState:
    """The state of a subscription in the core. `waiting` are the signals of waiting callers."""

    __slots__ = (
        "available",
        "backlog",
        "backlog_max",
        "ended",
        "error",
        "event",
        "expires",
        "handback",
        "missed",
        "question",
        "removed",
        "returned",
        "ticket",
        "txn",
        "waiting",
    )

    def __init__(
        self,
        question: Question,
        ticket: int,
        event: PendingNotice,
        *,
        available: bool,
        returned: bool,
        removed: bool,
        txn: Txn | None,
        handback: Any,
        backlog_max: int,
        expires: float | None,
    ) -> None:
        self.question = question
        self.ticket = ticket
        self.event = event
        self.available = available
        self.returned = returned
        self.removed = removed
        self.txn = txn
        self.handback = handback
        self.backlog_max = backlog_max
        self.expires = expires
        self.backlog: deque[Notice] = deque()
        self.missed = 0
        self.waiting: deque[Signal] = deque()
        self.ended = False
        self.error: Exception | None = None

    def __repr__(self) -> str:
        return "<subscription>"

    def next(self) -> Notice | None:
        """The oldest notice that was not delivered."""
        if not self.backlog:
            return None
        notice = self.backlog.popleft()
        if self.missed:
            notice, self.missed = replace(notice, missed=self.missed), 0
        return notice


class Subscriptions:
    """All subscriptions of a space."""

    def __init__(self, core: Core) -> None:
        self.watchers: Watchers[SubscriptionState] = Watchers(core.store.shapes)
        self._core = core
        self._events: dict[Hashable, PendingNotice] = {}
        self._event_count = 0
        self.of_removals = 0  # the number of subscriptions to removals

    def event(
        self, raw: Any, available: bool, returned: bool, removed: bool, txn: Txn | None
    ) -> PendingNotice:
        key: Hashable = (template_key(raw), available, returned, removed, txn)
        try:
            event = self._events.get(key)
        except TypeError:  # a template with a list or a dict in it
            event, key = None, object()
        if event is None:
            self._event_count += 1
            event = self._events[key] = PendingNotice(self._event_count, key)
        event.users += 1
        return event

    def end(self, subscription: SubscriptionState, error: Exception | None = None) -> None:
        """End a subscription; notices in the backlog can still be read."""
        if subscription.ended:
            return
        subscription.ended = True
        subscription.error = error
        self.watchers.discard(subscription)
        self.of_removals -= subscription.removed
        subscription.event.users -= 1
        if not subscription.event.users:
            self._events.pop(subscription.event.key, None)
        self._core.woken.extend(subscription.waiting)
        subscription.waiting.clear()

    def notify(
        self,
        entry: Entry,
        kind: NoticeKind,
        txn: Txn | None = None,
        returned: bool = False,
    ) -> None:
        """Notify the subscriptions that match, of everybody or only of the transaction that can see
        the entry. A `returned` entry was announced before."""
        removal = kind in ENDINGS
        if not (self.of_removals if removal else self.watchers):
            return
        sequences: dict[PendingNotice, int] = {}
        with self._core.user_code("a template"):
            within: Callable[[SubscriptionState], bool] | None = None
            if removal:
                within = attrgetter("removed")
            elif txn is not None:
                within = lambda subscription: subscription.txn is txn  # noqa: E731
            wanting = list(self.watchers.wanting(entry, within))
        for subscription in wanting:
            if kind == "available" and not (
                subscription.available or (returned and subscription.removed)
            ):
                continue
            if returned and not subscription.returned:
                continue
            event = subscription.event
            if event not in sequences:
                event.sequence += 1
                sequences[event] = event.sequence
            if len(subscription.backlog) >= subscription.backlog_max:
                subscription.backlog.popleft()
                subscription.missed += 1
            subscription.backlog.append(
                Notice(event.id, sequences[event], kind, entry, subscription.handback)
            )
            if subscription.waiting:
                self._core.woken.append(subscription.waiting.popleft())
        while self.watchers.failures:
            self._core.end_subscription(*self.watchers.failures.pop())


def register(
    core: Core,
    raw: Any,
    *,
    available: bool,
    returned: bool,
    removed: bool,
    txn: Txn | None,
    handback: Any,
    backlog_max: int,
    lease: float | None,
    unleased: bool = False,
) -> SubscriptionState:
    """Begin a subscription to entries that become visible from now on."""
    now = core.expire()
    if txn is not None:
        txn.require("active")
    subscription = SubscriptionState(
        core.store.question(raw),
        core.waiting.ticket(),
        core.subscriptions.event(raw, available, returned, removed, txn),
        available=available,
        returned=returned,
        removed=removed,
        txn=txn,
        handback=handback,
        backlog_max=backlog_max,
        expires=None if unleased else core.grant("subscription", lease, now),
    )
    core.subscriptions.watchers.add(subscription)
    core.subscriptions.of_removals += removed
    core.watched += 1
    core.deadlines.add(subscription)
    return subscription


def template_key(raw: Any) -> Hashable:
    """A key that is equal for equal templates; the types distinguish 1, 1.0 and True."""
    if type(raw) is tuple:
        return tuple([(type(field), template_key(field)) for field in raw])
    if is_typed(raw):
        return type(raw), template_key(values_of(raw))
    if isinstance(raw, Template):
        return template_key(raw.raw)
    if isinstance(raw, Combined):
        return type(raw), *map(template_key, raw.parts)
    return raw  # type: ignore[no-any-return]  # Unhashable ones are caught by the caller.
