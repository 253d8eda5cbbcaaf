"""docs/CONFORMANCE.md names a test for every method of the specifications, and each is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tupelo.models.event_heap import EventHeap, Session, View
from tupelo.models.javaspaces import JavaSpace, JavaSpace05
from tupelo.models.lime import (
    Agent,
    Host,
    LimeSystemTupleSpace,
    LimeTupleSpace,
    RegisteredReaction,
)
from tupelo.models.linda import TupleSpace
from tupelo.models.melon import Melon
from tupelo.models.pubsub import PubSub, Replies
from tupelo.models.rpc import Invocation, RemoteGroup, RemoteObject, Rpc
from tupelo.models.xvsm import Capi

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "CONFORMANCE.md").read_text()
ROWS = re.findall(r"^\| `(\w+)\.(\w+)` \|.*\| (.+) \|$", PAGE, re.MULTILINE)
NAMED = set(re.findall(r"`(test_\w+)`", PAGE))
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
}


def _methods(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))}


@pytest.mark.parametrize(
    "cls",
    [
        *(JavaSpace, JavaSpace05, Capi, Melon, EventHeap, Session, View),
        *(TupleSpace, PubSub, Rpc, RemoteGroup, RemoteObject, Invocation),
        *(LimeTupleSpace, LimeSystemTupleSpace, RegisteredReaction, Agent, Host),
    ],
)
def test_every_method_has_a_row(cls: type) -> None:
    shown = {method for name, method, _ in ROWS if name == cls.__name__}
    base = {
        JavaSpace05: JavaSpace,
        View: Session,
        RemoteObject: RemoteGroup,
        Invocation: Replies,
    }.get(cls)
    inherited = _methods(base) - set(vars(cls)) if base is not None else set()
    assert shown == _methods(cls) - inherited


def test_a_row_names_a_test() -> None:
    without = [row[:2] for row in ROWS if not re.findall(r"`test_\w+`", row[2])]
    assert without == []


def test_every_test_that_is_named_is_there() -> None:
    assert NAMED <= TESTS
