"""What only hosts say to each other, and what is said about transactions that span them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tupelo.federation.links.wire.calls import Message


class Presence(Message, tag=50):
    """The spaces and agents at this host now, all of them."""

    spaces: list[str]
    agents: list[str]


Numbers = dict[str, bytes | list[int]]
"""Of entries: origin → roaring bitmap, or a few numbers as they are."""


class Notes(msgspec.Struct, array_like=True, gc=False):
    """What a session there has seen from one version of its record up to another. If it goes on
    from what is known here under its `number`, it is added to that; if it is `since` 0 it is all,
    and replaces it. What was `seen` is not asked for; what is `unseen` was, but did not reach the
    reader, and is asked for again; what is `gone` need not be remembered. Number 0: this is all,
    and need not be kept."""

    number: int
    since: int
    upto: int
    seen: Numbers
    unseen: Numbers = {}
    gone: Numbers = {}


class Ask(Message, tag=51):
    """A host asks, `by` order of one of its agents and in its `session`, what matches here and now:
    to read it, to take it, or only whether there is something ("peek"). It may leave out what was
    `seen`, or all but the entries of one agent. If nothing is found, and a `watch` is given, it
    stands from that same moment on. Answer: a list of whole entries, or of None for a peek; a None
    after the last says that there are more than have room in an answer. What is taken is reserved
    until the asker says Settle.

    Who goes on in a session need not say again who asks. If what was seen is to be kept here, the
    answer is such a list and the Numbers of what is gone from here for good, or None: what came
    before is not known, tell me all of it."""

    call: int
    space: str
    template: Any
    how: Literal["read", "take", "peek"]
    limit: int | None = 1
    order: Any = None
    agent: str | None = None
    seen: Notes | None = None
    watch: int | None = None
    by: str | None = None
    session: str | None = None


class Unnote(Message, tag=63):
    """The session of this number is over: nothing need be kept of it."""

    number: int


class Settle(Message, tag=52):
    """Keep for good what call `of` was given, in this space and in that incarnation of the host, or
    give it back. Answer: was it kept?"""

    call: int
    of: int
    keep: bool
    space: str
    incarnation: str


class Watch(Message, tag=53):
    """Tell me of every entry that becomes visible from now on, and of those that are there but were
    not `seen`, if that is asked for. Answer, once the watch stands: what is there and is not told
    of (origin → roaring bitmap), or None."""

    call: int
    space: str
    template: Any
    watch: int
    existing: bool = False
    available: bool = False
    returned: bool = True
    seen: dict[str, bytes] | None = None


class Unwatch(Message, tag=54):
    """End a watch. Answer: how often it would have hinted, for one that stood since an Ask; none if
    the call is 0."""

    call: int
    watch: int


class Hint(Message, tag=55):
    """There may be a match for this watch, which was not there before; or, for one that is to be
    told, these entries: [kind, whole entry]; so many were missed because there was no room."""

    watch: int
    entries: list[Any] = msgspec.field(default_factory=list)
    missed: int = 0


class Told(Message, tag=56):
    """The hints of this watch have arrived, up to this many entries: there is room for more."""

    watch: int
    entries: int


class Move(Message, tag=57):
    """An entry goes to the agent that it is for. Answer: was it taken in?"""

    call: int
    space: str
    entry: Any


class Carry(Message, tag=58):
    """What a part of one host says to the same part of another. Who has no such part ignores it."""

    channel: str
    body: Any


class Decide(Message, tag=60):
    """Record that a transaction is committed, and who must be told: [id, participant]; or that it
    is given up, if that is nobody. Answer: does this stand? Not if the opposite does."""

    call: int
    txn: str
    told: list[tuple[str, str]]


class Outcome(Message, tag=61):
    """What became of this transaction? Answer: "committed", "aborted", or None: not decided yet."""

    call: int
    txn: str


class Forget(Message, tag=62):
    """This participant knows that the transaction was committed."""

    call: int
    txn: str
    participant: str
