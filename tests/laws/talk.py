"""Small words that the laws are told with."""

from collections.abc import Callable
from typing import Any

import pytest

import tupelo
from tupelo.errors import LogTrimmed
from tupelo.postgres.subscriptions import PostgresSubscription


def alike(one: object, other: object) -> bool:
    """Equal, and of the same types all the way down: repr tells 1, 1.0 and True apart, and finds
    NaN like NaN."""
    return repr(one) == repr(other)


def drained(subscription: Any) -> list[tupelo.Notice]:
    """The notices that wait in a subscription."""
    notices = []
    while (notice := subscription.get(wait=0)) is not None:
        notices.append(notice)
    return notices


def entries_of(notices: list[tupelo.Notice]) -> list[Any]:
    return [notice.entry for notice in notices]


def state_of(space: Any) -> tuple[list[str], list[tuple[int, str, str]]]:
    """What can be seen of a space: its entries, and its log where it has one, without the entries
    that aborted transactions have released."""
    entries = [repr(entry) for entry in space.read_all()]
    try:
        log = space.changes()
    except LogTrimmed:  # It keeps none.
        log = []
    kept = [change for change in log if change.kind != "released"]
    return entries, [(change.arrival, change.kind, repr(change.entry)) for change in kept]


def refused(error: type[Exception], match: str, *attempts: Callable[[], Any]) -> None:
    """Each of these raises this error."""
    for attempt in attempts:
        with pytest.raises(error, match=match):
            attempt()


def listeners_at(subscription: Any) -> int:
    """How many wait for a notice of this subscription, where it is kept."""
    spanning = getattr(subscription, "_subscription", None)
    if spanning is not None:
        return len(spanning._waiting)
    inner = getattr(subscription, "_inner", subscription)
    if isinstance(inner, PostgresSubscription):
        return len(list(inner.space._port._core.waiting))  # type: ignore[attr-defined]
    state = getattr(subscription, "_state", None)
    if state is None:  # It is kept at a host elsewhere.
        operations = subscription._space._port
        with operations.atomic():
            watching = list(operations._core.subscriptions.watchers)
        (state,) = [one for one in watching if one.event.id == subscription.event_id]
    return len(state.waiting)
