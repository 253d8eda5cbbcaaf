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
    `admit` the other end, it delivers a single frame, of at most HELLO_MAX bytes.
    """

    label: str
    identity: str | None
    here: bool

    def admit(self) -> None:
        """The other end was recognised: from now on its frames may be as long as any."""
        ...

    def send(self, content: bytes) -> None:
        """Send a frame. It never blocks: what the other end does not take is kept."""
        ...

    @property
    def waiting(self) -> int:
        """How many bytes are kept because the other end does not take them."""
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
