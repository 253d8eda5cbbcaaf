"""The wire: what programs say to each other, as frames of msgpack.

A frame is four bytes of length and one message. Every message is a short array that begins with
its number; its types are checked as it is read, and what does not fit is a BadFrame. Entries and
templates are spelled as `values` spells them; nothing is ever unpickled, and code never travels.

A call has a number, chosen by the caller, and gets one Answer or one Failure. What is taken stays
reserved under the number of its call until it is confirmed (see `handover`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec.msgpack import Decoder, Encoder

from tupelo.errors import BadFrame
from tupelo.values.codec import BadBytes
from tupelo.values.spelling import read_wire_extension

VERSION = 1
FRAME_MAX = 16 * 2**20
"""The longest frame that is sent or accepted, in bytes."""

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
    """Answer: for each entry [n, arrival, expires]."""

    call: int
    space: str
    entries: list[Any]
    lease: float | list[float | None] | None = None
    txn: str | None = None
    at: list[Any] | None = None
    wait: float | None = 0.0
    to: str | None = None


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


class Tell(Message, tag=38):
    """Answer: what the host says of itself, as a dict."""

    call: int


# Between hosts


class Presence(Message, tag=50):
    """The spaces and agents at this host now, all of them."""

    spaces: list[str]
    agents: list[str]


class Ask(Message, tag=51):
    """A host asks for one of its agents what matches here and now: to read it, to take it, or only
    whether there is something ("peek"). It may leave out what was `seen` (origin → roaring bitmap),
    or all but the entries of one agent. If nothing is found, and a `watch` is given, it stands from
    that same moment on. Answer: a list of whole entries, or of None for a peek. What is taken is
    reserved until the asker says Settle."""

    call: int
    space: str
    template: Any
    how: Literal["read", "take", "peek"]
    limit: int | None = 1
    order: Any = None
    agent: str | None = None
    seen: dict[str, bytes] | None = None
    watch: int | None = None


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
    not `seen`, if that is asked for. Answer: None, once the watch stands."""

    call: int
    space: str
    template: Any
    watch: int
    existing: bool = False
    available: bool = False
    returned: bool = True
    seen: dict[str, bytes] | None = None


class Unwatch(Message, tag=54):
    """End a watch. Answer: how often it would have hinted, for one that stood since an Ask."""

    call: int
    watch: int


class Hint(Message, tag=55):
    """There may be a match for this watch, which was not there before; or, for one that is to be
    told, these entries: [kind, whole entry]; so many were missed because there was no room."""

    watch: int
    entries: list[Any] = []
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


class Decide(Message, tag=60):
    """Record that a transaction is committed, and who must be told: [id, participant]. Answer: does
    the decision stand? It does not if the transaction was given up before."""

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


Call = (
    Open
    | Write
    | Get
    | Count
    | Begin
    | End
    | Doubts
    | Remember
    | Subscribe
    | Next
    | State
    | Close
    | Renew
    | Revoke
    | Changes
    | Trim
    | Tell
    | Ask
    | Settle
    | Watch
    | Unwatch
    | Move
    | Decide
    | Outcome
    | Forget
)
Said = (
    Hello
    | Welcome
    | Refusal
    | Ping
    | Goodbye
    | Answer
    | Failure
    | Cancel
    | Confirm
    | Presence
    | Hint
    | Told
    | Call
)

_encoder = Encoder()
_encode = _encoder.encode
_decode: Callable[[bytes | memoryview], Said] = Decoder(Said, ext_hook=read_wire_extension).decode


def encode(message: Message) -> bytes:
    """A message as a frame's content. BadFrame if it is too long to be sent."""
    content = _encode(message)
    if len(content) > FRAME_MAX:
        raise BadFrame(f"{len(content)} bytes are more than a frame may have ({FRAME_MAX})")
    return content


def decode(content: bytes | memoryview) -> Said:
    """The message of a frame. BadFrame if it is none; nothing else is ever raised."""
    try:
        return _decode(content)
    except (msgspec.DecodeError, BadBytes, ValueError, TypeError, ArithmeticError) as error:
        raise BadFrame(f"this frame cannot be understood: {error}") from error
    except RecursionError as error:
        raise BadFrame("this frame is nested too deeply") from error


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


class Frames:
    """Cuts what arrives into frames. It never holds more than one that is allowed."""

    def __init__(self, frame_max: int = FRAME_MAX) -> None:
        self._frame_max = frame_max
        self._held = bytearray()
        self._needed = 4  # how much must be there before it is looked at again

    @property
    def begun(self) -> bool:
        """Is there a part of a frame?"""
        return bool(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """The contents of the frames that are whole now. BadFrame if one claims to be too long."""
        held = self._held
        if held:
            held += data
            if len(held) < self._needed:
                return []
            data = bytes(held)
        contents = []
        start, end = 0, len(data)
        while end - start >= 4:
            length = int.from_bytes(data[start : start + 4], "big")
            if length > self._frame_max:
                raise BadFrame(f"a frame of {length} bytes is announced; {self._frame_max} may be")
            if end - start - 4 < length:
                self._needed = 4 + length
                break
            start += 4
            contents.append(data[start : start + length])
            start += length
        else:
            self._needed = 4
        self._held = bytearray(data[start:])
        return contents
