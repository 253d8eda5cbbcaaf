"""The interface of links: connections to other programs that carry messages until they are lost.

`tcp` implements it for sockets, the lab for its virtual network. `conversation` uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Link(Protocol):
    """A connection to one other program.

    `label` names the other end in logs and errors; `identity` is the key that it has proved to
    have, or None; `here` says whether it is on this machine; `message_max` is the longest message
    that it accepts. Before `admit`, a link delivers a single frame, of at most HELLO_MAX bytes.
    """

    label: str
    identity: str | None
    here: bool
    message_max: int

    def admit(self, message_max: int) -> None:
        """The other end was recognised: long messages are accepted from it, and sent to it up to
        `message_max` bytes."""
        ...

    def send(self, content: bytes, *, overtake: bool = False) -> None:
        """Send a message of at most `message_max` bytes, without blocking: what the other end does
        not take is kept. With `overtake` the message may arrive before, or after, other messages
        that may overtake, if one of them is long."""
        ...

    @property
    def waiting(self) -> int:
        """How many bytes are kept because the other end does not take them."""
        ...

    @property
    def in_pieces(self) -> int:
        """How many of these belong to the long message that is being sent in pieces."""
        ...

    def pause(self) -> None:
        """Stop reading until `resume`."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None:
        """Close the link after sending what is waiting, if the other end takes it soon."""
        ...

    def abort(self) -> None:
        """Close the link at once."""
        ...


class FrameReceiver(Protocol):
    """The owner of a link: receives its messages, and once the news that the link is lost."""

    def heard(self, contents: list[bytes]) -> None:
        """These messages have arrived, in this order. An empty list: a part of one has."""
        ...

    def eased(self) -> None:
        """The other end takes again what is sent to it."""
        ...

    def lost(self, reason: str) -> None:
        """The link has ended, and not by our `close` or `abort`."""
        ...


class LinkListener(Protocol):
    """An address at which a host accepts links."""

    address: str

    def close(self) -> None:
        """Accept no more links; those that were accepted go on."""
        ...


Answering = Callable[[Link], FrameReceiver]
"""Called with each new link; returns its owner."""


class Network(Protocol):
    """Makes links."""

    async def listen(self, address: str, answer: Answering) -> LinkListener:
        """Accept links at this address. Raises CannotReach if it cannot be listened at."""
        ...

    async def dial(self, address: str, answer: Answering) -> Link:
        """Connect to this address. Raises CannotReach if nobody answers there."""
        ...
