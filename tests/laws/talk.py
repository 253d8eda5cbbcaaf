"""Small words that the laws are told with."""

from collections.abc import Callable
from typing import Any

import pytest

import tupelo


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
    """All that an onlooker can see of a space: its entries, and its log where it has one."""
    entries = [repr(entry) for entry in space.read_all()]
    log = space.changes() if space._operations.engine.journal is not None else []
    return entries, [(change.position, change.kind, repr(change.entry)) for change in log]


def refused(error: type[Exception], match: str, *attempts: Callable[[], Any]) -> None:
    """Each of these raises this error."""
    for attempt in attempts:
        with pytest.raises(error, match=match):
            attempt()
