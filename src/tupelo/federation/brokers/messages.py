"""The messages between brokers that are neighbours in the tree.

Patterns, updates and items are encoded by msgpack once, at their source, and pass through other
brokers as bytes. A message is an array that begins with the tag of its type.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tupelo.errors import BadFrame

Extent = Literal["any", "all"]
Duration = Literal["single", "persistent"]
Kind = Literal["single any", "single all", "persistent any"]
"""The collects that have an entry in the tables of other brokers. A persistent collect of all has
none: it is a subscription and a probe."""


class BrokerMessage(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages of brokers."""


class HostResult(msgspec.Struct, array_like=True, frozen=True):
    """The state of one host for a pattern, or an update of it. `number` is that of the update, or
    of the last update before the state that may concern the pattern; 0 where it is not needed."""

    host: str
    items: list[bytes]
    is_update: bool = False
    number: int = 0


class SubscribeTo(BrokerMessage, tag=1):
    """Send the sender the updates that match this pattern."""

    pattern: bytes


class UnsubscribeFrom(BrokerMessage, tag=2):
    """Send no more of these updates."""

    pattern: bytes


class PublishedUpdate(BrokerMessage, tag=3):
    """An update that a host has published, with its number there. If there is a `hop`, the sender
    revokes its promises for the keys `revoked`; the receiver answers with UpdateAck when all hosts
    beyond have revoked theirs."""

    hop: int
    host: str
    body: bytes
    revoked: list[str] = []
    number: int = 0


class RevokePromise(BrokerMessage, tag=4):
    """Revoked promises, for a neighbour that has not subscribed to the update."""

    hop: int
    keys: list[str]


class UpdateAck(BrokerMessage, tag=5):
    """The answer to a PublishedUpdate or RevokePromise with this `hop`."""

    hop: int


class ProbeRequest(BrokerMessage, tag=6):
    """Asks for the current state of the receiver and the hosts beyond it, or `only` of some."""

    number: int
    pattern: bytes
    extent: Extent
    only: list[str] | None = None


class ProbeAnswer(BrokerMessage, tag=7):
    """The answer to a ProbeRequest: the states, the hosts that could not be asked (`lost`), and
    whether the branch is empty and promises to report its next match. `more` messages may
    follow."""

    number: int
    found: list[HostResult] = []
    lost: list[str] = []
    promise: bool = False
    more: bool = False


class ProbeCancel(BrokerMessage, tag=8):
    """The probe of this number needs no answer any more."""

    number: int


class CollectRequest(BrokerMessage, tag=9):
    """A collect of a host begins; the hosts in `answered` need not answer."""

    host: str
    number: int
    kind: Kind
    pattern: bytes
    answered: list[str] = []


class CollectResult(BrokerMessage, tag=10):
    """A result for a collect. `last` if no other result will come from this branch."""

    host: str
    number: int
    found: HostResult
    last: bool = False
    more: bool = False


class CollectCancel(BrokerMessage, tag=11):
    """The collect is over, or needs no more results from this branch."""

    host: str
    number: int


AnyBrokerMessage = (
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
    """Decode a pattern, an update or an item; raises BadFrame if it is no msgpack."""
    try:
        return msgspec.msgpack.decode(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFrame(f"this is no value: {error}") from error
