"""What brokers say to their neighbours in the tree.

Patterns, updates and items are encoded by msgpack once, by whoever makes them, and pass through
other brokers as bytes. A message is a short array that begins with its number.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tupelo.errors import BadFrame

Extent = Literal["any", "all"]
Duration = Literal["single", "persistent"]
Kind = Literal["single any", "single all", "persistent any"]
"""The collects that stand in the tables of other brokers one by one. A persistent collect of all is
a subscription and a probe."""


class BrokerMessage(msgspec.Struct, array_like=True, gc=False):
    """Anything that a broker says."""


class HostResult(msgspec.Struct, array_like=True, frozen=True):
    """What one host has for a pattern: its state, or an update of it. The `number` is that of the
    update, or of the last one before the state that may concern it; 0 where nobody needs it."""

    host: str
    items: list[bytes]
    is_update: bool = False
    number: int = 0


class SubscribeTo(BrokerMessage, tag=1):
    """Tell me of updates that match this pattern."""

    pattern: bytes


class UnsubscribeFrom(BrokerMessage, tag=2):
    """No more of these."""

    pattern: bytes


class PublishedUpdate(BrokerMessage, tag=3):
    """A host has published this, as its update of this `number`. If it has a `hop`, the sender's
    branch is not empty any more for the keys that are `revoked`. Answer then: Told, when nobody
    beyond believes that it is."""

    hop: int
    host: str
    body: bytes
    revoked: list[str] = []
    number: int = 0


class RevokePromise(BrokerMessage, tag=4):
    """The same, for one who does not want the update."""

    hop: int
    keys: list[str]


class UpdateAck(BrokerMessage, tag=5):
    """The answer to an Update or a Revoke with this `hop`."""

    hop: int


class ProbeRequest(BrokerMessage, tag=6):
    """What have you, and the hosts beyond you, for this pattern now? Perhaps only these hosts."""

    number: int
    pattern: bytes
    extent: Extent
    only: list[str] | None = None


class ProbeAnswer(BrokerMessage, tag=7):
    """The answer, perhaps in several messages; the hosts that could not be asked; and whether the
    branch promises to say when it is empty no more."""

    number: int
    found: list[HostResult] = []
    lost: list[str] = []
    promise: bool = False
    more: bool = False


class ProbeCancel(BrokerMessage, tag=8):
    """The question needs no answer any more."""

    number: int


class CollectRequest(BrokerMessage, tag=9):
    """This collect of a host stands from now on. Some hosts may have answered it already."""

    host: str
    number: int
    kind: Kind
    pattern: bytes
    answered: list[str] = []


class CollectResult(BrokerMessage, tag=10):
    """What was found for a collect. `last` if no more will come from this branch."""

    host: str
    number: int
    found: HostResult
    last: bool = False
    more: bool = False


class CollectCancel(BrokerMessage, tag=11):
    """The collect is over, or needs nothing from this branch."""

    host: str
    number: int


AnySaid = (
    SubscribeTo
    | UnsubscribeFrom
    | PublishedUpdate
    | RevokePromise
    | UpdateAck
    | ProbeRequest
    | ProbeAnswer
    | ProbeCancel
    | CollectRequest
    | CollectResult
    | CollectCancel
)

encode = msgspec.msgpack.Encoder().encode


def read_value(encoded: bytes) -> Any:
    """A pattern, an update or an item; BadFrame if it is none."""
    try:
        return msgspec.msgpack.decode(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFrame(f"this is no value: {error}") from error
