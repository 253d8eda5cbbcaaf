"""What the hosts of a group say to each other.

They agree by a wave: Probe runs to everyone, Echo comes back with who was found, Commit brings the
new roster to all, Flush drives before it what was said in the old one, Done comes back, and Resume
lets everyone go on. What parts say to each other travels along the tree of the roster in force.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tupelo.errors import BadFrame
from tupelo.federation.groups.roster import Member

Round = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Id = tuple[Round, str]


class Message(msgspec.Struct, array_like=True):
    """Anything that is said in a group."""


# Meeting and parting


class Here(Message, tag=1):
    """I take part, in this life; this roster is in force here. `late`: we were engaged already, and
    I have not heard what you said before."""

    incarnation: str
    roster: Id
    late: bool = False


class Gone(Message, tag=2):
    """I take part no more."""


# The wave


class Probe(Message, tag=3):
    """A wave is under way: halt, pass it on, and tell me who is behind you."""

    wave: Id


class Found(msgspec.Struct, array_like=True):
    """A host that the wave has found, through its `parent`, which has this roster in force."""

    member: Member
    parent: str | None
    was: Id


class Echo(Message, tag=4):
    """These are the hosts behind me, and me. Nothing is under way there."""

    wave: Id
    found: list[Found]


class Commit(Message, tag=5):
    """These are all: the new roster."""

    wave: Id
    found: list[Found]


class Flush(Message, tag=6):
    """Nothing that was said in the old roster comes to you from here any more."""

    wave: Id


class Done(Message, tag=7):
    """The new roster is in force here and behind me, and all is settled."""

    wave: Id


class Resume(Message, tag=8):
    """All is settled everywhere: go on."""

    wave: Id


# Along the tree of a roster


class Cut(Message, tag=9):
    """These hosts cannot be reached through me any more."""

    roster: Id
    hosts: list[str]


class Said(Message, tag=10):
    """From a part to the same part of a neighbour."""

    roster: Id
    part: str
    body: Any


class Sent(Message, tag=11):
    """From a part to the same part of any host."""

    roster: Id
    part: str
    source: str
    target: str
    body: Any


class Asked(Message, tag=12):
    """The same, and an answer is wanted."""

    roster: Id
    part: str
    source: str
    target: str
    call: int
    body: Any


class Answered(Message, tag=13):
    roster: Id
    source: str
    target: str
    call: int
    value: Any


class Failed(Message, tag=14):
    """The answer is an error of this class, with these attributes."""

    roster: Id
    source: str
    target: str
    call: int
    kind: str
    message: str
    data: dict[str, Any]


Routed = Sent | Asked | Answered | Failed
OfRoster = Said | Cut | Routed
OfWave = Here | Gone | Probe | Echo | Commit | Flush | Done | Resume


def read(body: Any) -> OfWave | OfRoster:
    """The message of this body. BadFrame if it is none."""
    try:
        message: OfWave | OfRoster = msgspec.convert(body, OfWave | OfRoster)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadFrame(f"a group cannot understand this: {error}") from error
    return message
