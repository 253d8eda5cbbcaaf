"""What is said: meeting and parting, calls and their answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Scope = tuple[Literal["here", "host", "agent"], str] | None
Thing = Literal["entry", "transaction", "session", "subscription"]


class Message(msgspec.Struct, array_like=True, gc=False):
    """Anything that is said."""


# Meeting and parting


class Hello(Message, tag=1):
    """The first word of whoever dials. `incarnation` tells one life of a program from the next;
    `resume` is the session that a client had before its link was lost, and `received` are the calls
    of it whose takings have reached its user; of a host, those that it has yet to settle."""

    version: int
    role: Literal["client", "host"]
    id: str
    name: str
    incarnation: str
    spaces: list[str] = []
    address: str = ""
    resume: str = ""
    received: list[int] = []


class Welcome(Message, tag=2):
    """The answer of the host that was dialled."""

    version: int
    id: str
    name: str
    incarnation: str
    session: str
    heartbeat: float
    spaces: list[str] = []
    received: list[int] = []


class Refusal(Message, tag=3):
    """The answer to someone who is not let in, and to a call of one who may not."""

    kind: str
    message: str
    data: dict[str, Any] = {}


class Ping(Message, tag=4):
    """I am still here."""


class Goodbye(Message, tag=5):
    """I am leaving, and not because something broke."""

    reason: str = ""


# Answers


class Answer(Message, tag=10):
    call: int
    value: Any = None


class Failure(Message, tag=11):
    """The call raised an error of this class, with these attributes."""

    call: int
    kind: str
    message: str
    data: dict[str, Any] = {}


# Calls


class Cancel(Message, tag=20):
    """The caller of these calls wants them no more. What was taken for them goes back."""

    calls: list[int]


class Confirm(Message, tag=21):
    """What was taken for these calls has reached the one who asked, and is gone for good."""

    calls: list[int]


class Open(Message, tag=22):
    """Use a space, showing its password if it has one. Answer: [durable, identity of the space, the
    agent that the caller is there, id of the host]."""

    call: int
    space: str
    password: str | None = None


class Write(Message, tag=23):
    """Answer: for each entry [n, arrival, expires]; nothing if nobody wants the `leases`."""

    call: int
    space: str
    entries: list[Any]
    lease: float | list[float | None] | None = None
    txn: str | None = None
    at: list[Any] | None = None
    wait: float | None = 0.0
    to: str | None = None
    leases: bool = True


class Get(Message, tag=24):
    """Read or take; one entry unless `many`. Answer: a list of entries, spelled, or of `whole` ones
    (see `spell_whole`)."""

    call: int
    space: str
    template: Any
    take: bool
    wait: float | None = None
    many: bool = False
    limit: int | None = None
    txn: str | None = None
    order: Any = None
    if_exists: bool = False
    session: str | None = None
    scope: Scope = None
    whole: bool = False


class Count(Message, tag=25):
    call: int
    space: str
    template: Any
    txn: str | None = None
    scope: Scope = None


class Begin(Message, tag=26):
    """Begin a transaction; `id` is given for a branch of one that spans several spaces. Answer:
    [id, expires]."""

    call: int
    space: str
    lease: float | None = None
    parent: str | None = None
    id: str | None = None


class End(Message, tag=27):
    """Bring a transaction on its way, or ask how it stands. Answer: [vote, state, reason,
    expires]."""

    call: int
    space: str
    txn: str
    how: Literal["commit", "abort", "prepare", "state"]


class Doubts(Message, tag=28):
    """Answer: the ids of the transactions that are prepared and not decided."""

    call: int
    space: str


class Remember(Message, tag=29):
    """Open a session, which has seen nothing, or what another has. Answer: [id, expires]."""

    call: int
    space: str
    lease: float | None = None
    like: str | None = None


class Subscribe(Message, tag=30):
    """Answer: [id, event id, expires]."""

    call: int
    space: str
    template: Any
    lease: float | None = None
    txn: str | None = None
    backlog_max: int = 1_000
    available: bool = False
    returned: bool = True


class Next(Message, tag=31):
    """The next notices of a subscription, at least one unless `wait` is over or it has ended.
    Answer: a list of [event id, sequence, kind, whole entry, missed]."""

    call: int
    space: str
    subscription: str
    wait: float | None = None
    limit: int = 1


class State(Message, tag=32):
    """How does a leased thing stand? Answer: [active, expires, number, error], where the number is
    what a session has seen, or a subscription's sequence, and the error [kind, message, data]."""

    call: int
    space: str
    thing: Thing
    id: str


class Close(Message, tag=33):
    """End a session or a subscription."""

    call: int
    space: str
    thing: Thing
    id: str


class Renew(Message, tag=34):
    """Renew a lease. An entry's id is "n:arrival". Answer: expires."""

    call: int
    space: str
    thing: Thing
    id: str
    lease: float | None = None


class Revoke(Message, tag=35):
    """Cancel a lease."""

    call: int
    space: str
    thing: Thing
    id: str


class Changes(Message, tag=36):
    """Answer: a list of changes (see `spell_change`)."""

    call: int
    space: str
    since: int = 0
    limit: int | None = None


class Trim(Message, tag=37):
    """Forget the changes before a position; None: by the space's own policy."""

    call: int
    space: str
    before: int | None = None


class Log(Message, tag=39):
    """These columns (see `store.tail`) of the changes from one position to another, or of the first
    of them. Answer: [agent and identity of the space, its first and last position, the columns]."""

    call: int
    space: str
    names: list[str] = []
    first: int = 1
    last: int = 0


class Tell(Message, tag=38):
    """Answer: what the host says of itself, as a dict."""

    call: int
