"""Messages between the hosts of LIME: numbers that no space can keep are refused. A durable space
that accepted one would be closed, or damaged when it is opened again."""

from typing import Any

import msgspec
import pytest

from tupelo.errors import BadFrame
from tupelo.models.lime.messages import MoveTuples, ReceivedQuery, read
from tupelo.models.lime.migrating import Packed

NAN, INFINITE = float("nan"), float("inf")


def moved(n: int, seconds: float | None = None) -> tuple[Any, Any]:
    return MoveTuples, ["move", 1, "s", [[b"tuple", "origin", n, seconds, None]]]


def asked(n: int) -> tuple[Any, Any]:
    return ReceivedQuery, ["which", [], [[1, "life", "s", "origin", n]]]


def packed(number: int) -> tuple[Any, Any]:
    return Packed, ["id", "name", None, "here", number, [], [], []]


def sent(body: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(body))


@pytest.mark.parametrize(
    ("kind", "body"), [moved(0), moved(2**63 - 1, -0.5), moved(1, 1e300), asked(7), packed(7)]
)
def test_good_numbers_are_read(kind, body):
    assert isinstance(read(sent(body), kind), kind)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        *(moved(n) for n in (-1, 2**63, 2**64 - 1)),
        *(moved(1, seconds) for seconds in (NAN, INFINITE, -INFINITE)),
        *(asked(n) for n in (-1, 2**63)),
        *(packed(n) for n in (-1, 2**63 - 1, 2**63)),
    ],
)
def test_numbers_that_cannot_be_kept_are_refused(kind, body):
    with pytest.raises(BadFrame):
        read(sent(body), kind)
