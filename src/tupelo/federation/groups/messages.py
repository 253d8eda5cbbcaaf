"""What the hosts of a group say to each other.

They agree by a round: Probe runs to everyone, Echo comes back with who was found, Commit brings the
new membership to all, Flush drives before it what was said in the old one, Done comes back, and
Resume lets everyone go on. What parts say to each other is Routed (see `links.wire`) along the tree
of the membership in force."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tupelo.federation.groups.membership import Member

Round = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Id = tuple[Round, str]


class GroupMessage(msgspec.Struct, array_like=True):
    """Anything that is said in a group."""


# Meeting and parting


class Join(GroupMessage, tag=1):
    """I take part, in this life; this membership is in force here. `late`: we were engaged already,
    and I have not heard what you said before."""

    incarnation: str
    membership: Id
    late: bool = False


class Leave(GroupMessage, tag=2):
    """I take part no more."""


# The round


class Probe(GroupMessage, tag=3):
    """A round is under way: halt, pass it on, and tell me who is behind you."""

    protocol: Id


class FoundHost(msgspec.Struct, array_like=True):
    """A host that the round has found, through its `parent`, which has this membership in force."""

    member: Member
    parent: str | None
    was: Id


class Echo(GroupMessage, tag=4):
    """These are the hosts behind me, and me. Nothing is under way there."""

    protocol: Id
    found: list[FoundHost]


class Commit(GroupMessage, tag=5):
    """These are all: the new membership."""

    protocol: Id
    found: list[FoundHost]


class Flush(GroupMessage, tag=6):
    """Nothing that was said in the old membership comes to you from here any more."""

    protocol: Id


class Settled(GroupMessage, tag=7):
    """The new membership is in force here and behind me, and all is settled."""

    protocol: Id


class Resume(GroupMessage, tag=8):
    """All is settled everywhere: go on."""

    protocol: Id


# In a membership


class Unreachable(GroupMessage, tag=9):
    """These hosts cannot be reached through me any more."""

    membership: Id
    hosts: list[str]


OfWave = Join | Leave | Probe | Echo | Commit | Flush | Settled | Resume
Said = OfWave | Unreachable
