"""Links: a line to one other program. Whole frames, in order, until it is lost.

A link is an interface. `tcp` has the one that people use, the lab has one that a seed rules. What
is said over a link is the business of `conversation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Link(Protocol):
    """A line to one other program.

    `label` says where it leads, for people; `identity` is the key that the other end has proved to
    hold, if it has; `here` says whether the other end is on this machine. Until it is told to
    `admit` the other end, it delivers a single frame, of at most HELLO_MAX bytes. `message_max` is
    the longest message that the other end accepts.
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
        """Hear nothing for now: what arrives is left in the line."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None:
        """Hang up; what was sent before still goes out, if the other end takes it soon."""
        ...

    def abort(self) -> None:
        """Hang up at once."""
        ...


class FrameReceiver(Protocol):
    """Whoever a link belongs to: it is told what arrives, and once that the link is lost."""

    def heard(self, contents: list[bytes]) -> None:
        """These frames arrived, in order."""
        ...

    def eased(self) -> None:
        """The other end takes what is sent again."""
        ...

    def lost(self, reason: str) -> None: ...


class Listener(Protocol):
    """A place where a host can be dialled."""

    address: str

    def close(self) -> None: ...


Answering = Callable[[Link], FrameReceiver]
"""Who answers a link that comes in."""


class Network(Protocol):
    """How links come to be."""

    async def listen(self, address: str, answer: Answering) -> Listener: ...

    async def dial(self, address: str, answer: Answering) -> Link:
        """CannotReach if nobody answers there."""
        ...
