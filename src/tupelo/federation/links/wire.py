"""The wire format: messages between programs, as frames of msgpack.

A frame is a length of four bytes (big endian) and one message. Every message is a short array that
begins with its number; its types are checked as it is read, and what does not fit is a BadFrame.
Entries and templates are encoded as `values` encodes them; nothing is ever unpickled, and code
never travels.

A long message goes in pieces, if the receiver has announced `message_max` in its Hello or Welcome:

    bit 31 of the length is set | length of the rest, 31 bits | bytes left, 32 bits | data

"Bytes left" counts the bytes of this message that follow in later pieces; the piece with 0 left is
the last one. One message at a time is sent in pieces over a link, in each direction; whole frames
may come between its pieces. `conversation` says which messages may overtake a long one.

A call has a number, chosen by the caller, and gets one Answer or one Failure (see `calls`). What is
taken stays reserved under the number of its call until it is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Literal, Union

import msgspec
from msgspec.msgpack import Decoder, Encoder

from tupelo.errors import BadFrame, CannotSend
from tupelo.values.codec import BadBytes
from tupelo.values.holder import ClientCall
from tupelo.values.scope import Scope
from tupelo.values.template_encoding import read_wire_extension

VERSION = 2
FRAME_MAX = 16 * 2**20
"""The longest frame that is sent or accepted, in bytes, and the longest message for programs that
do not accept pieces."""
MESSAGE_MAX = 64 * 2**20
"""The longest message, in bytes."""
PIECE_BYTES = 256 * 1024
"""Messages with more bytes go in pieces with so much data each."""
HELLO_MAX = 12 * 1024
"""The longest frame that is accepted from a program that has not said who it is, in bytes: five
names of the longest kind, and some bytes around them."""

BULK_MAX = 100_000
"""So many entries may one request of a client write or take. That is one step of the space, during
which the host serves nobody else."""

Thing = Literal["entry", "transaction", "session", "subscription", "match set"]


class Message(msgspec.Struct, array_like=True, gc=False):
    """Anything that is said. The number of each is its tag."""


# Meeting and parting


class Hello(Message, tag=1):
    """The first word of whoever dials, in at most HELLO_MAX bytes: it is read before anybody knows
    whose it is, so it has no lists. `incarnation` tells one life of a program from the next, and
    `resume` is the session that a client had before its link was lost. If there is `more`, an
    Arrival follows. `message_max` is the longest message that the program accepts in pieces, in
    bytes; 0 if it accepts no pieces, as older versions do not."""

    version: int
    role: Literal["client", "host"]
    id: str
    name: str
    incarnation: str
    address: str = ""
    resume: str = ""
    more: bool = False
    message_max: int = 0


class Welcome(Message, tag=2):
    """The answer of the host that was dialled, in at most HELLO_MAX bytes. If there is `more`, an
    Arrival follows. `message_max` is as in Hello."""

    version: int
    id: str
    name: str
    incarnation: str
    session: str
    heartbeat: float
    more: bool = False
    message_max: int = 0


class HelloDetails(Message, tag=6):
    """The second word of a program that has more to say of itself, heard once it was recognised.
    Of a client: the calls of the session that it resumes whose takings have reached its user. Of a
    host: its spaces, and the calls that it has yet to settle."""

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
    agent that the caller is there, id of the host, the time there]."""

    call: int
    space: str
    password: str | None = None


class Write(Message, tag=23):
    """Answer: a list of the leases, as `encode_leases` encodes them; nothing if nobody wants the
    `leases`."""

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
    """Read or take; one entry unless `many`. Answer: a list of entries, encoded, or of `whole` ones
    (see `encode_whole`). With `coverage` an answer of part of the hosts will do, and it is [that
    list, the names of the hosts that were reached, and of those that were not]."""

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
    scope: Scope | None = None
    whole: bool = False
    coverage: bool = False


class CountRequest(Message, tag=25):
    call: int
    space: str
    template: Any
    txn: str | None = None
    scope: Scope | None = None
    coverage: bool = False


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


class ListPrepared(Message, tag=28):
    """Answer: the ids of the transactions that are prepared and not decided."""

    call: int
    space: str


class OpenSession(Message, tag=29):
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


class CancelLease(Message, tag=35):
    """Cancel a lease."""

    call: int
    space: str
    thing: Thing
    id: str


class Match(Message, tag=41):
    """Open a match set. Answer: [id, expires]."""

    call: int
    space: str
    template: Any
    limit: int | None = None
    txn: str | None = None
    lease: float | None = None


class NextMatches(Message, tag=42):
    """The next entries of a match set; an empty list at its end. Answer: [a list of entries,
    encoded, a list of [origin, n, reason] of those that were left out so far]."""

    call: int
    space: str
    match_set: str
    limit: int = 1


class Changes(Message, tag=36):
    """Answer: a list of changes (see `encode_change`)."""

    call: int
    space: str
    since: int = 0
    limit: int | None = None


class Trim(Message, tag=37):
    """Forget the changes before a position; None: by the space's own policy."""

    call: int
    space: str
    before: int | None = None


class ReadLog(Message, tag=39):
    """These columns (see `store.tail`) of the changes from one position to another, or of the first
    of them. Answer: [agent and identity of the space, its first and last position, the columns]."""

    call: int
    space: str
    names: list[str] = []
    first: int = 1
    last: int = 0


class Invoke(Message, tag=40):
    """Call a method of a service that the host offers. The service says what the arguments and the
    answer are. `again` marks a call that does no harm if it is done twice: it is asked again when
    the link was lost. `space` is the space that the call is about, or "" if it is about none."""

    call: int
    service: str
    method: str
    space: str = ""
    args: list[Any] = []
    wait: float | None = 0.0
    again: bool = False


class DescribeHost(Message, tag=38):
    """Answer: what the host says of itself, as a dict; or None, if it is only asked `brief`ly
    whether it answers calls at all. A host answers another with None, once it has heard all that
    was said to it before."""

    call: int
    brief: bool = False


# Between hosts


class PresenceUpdate(Message, tag=50):
    """The spaces and agents at this host now, all of them."""

    spaces: list[str]
    agents: list[str]


Numbers = dict[str, bytes | list[int]]
"""Of entries: origin → roaring bitmap, or a few numbers as they are."""


class SessionDelta(msgspec.Struct, array_like=True, gc=False):
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
    until the asker says Settle; if it takes for a `client` of its own, that may outlive it.

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
    seen: SessionDelta | None = None
    watch: int | None = None
    by: str | None = None
    session: str | None = None
    client: ClientCall | None = None


class ForgetSession(Message, tag=63):
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


class Returned(Message, tag=70):
    """These clients of the host that says so have come back to it, perhaps after it has crashed:
    [agent, the session that it had before, the calls of it whose takings have reached its user].
    What was taken for other calls of the session has not."""

    clients: list[tuple[str, str, list[int]]]


class WatchRequest(Message, tag=53):
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


class UnwatchRequest(Message, tag=54):
    """End a watch. Answer: how often it would have hinted, for one that stood since an Ask."""

    call: int
    watch: int


class Hint(Message, tag=55):
    """There may be a match for this watch, which was not there before; or, for one that is to be
    told, these entries: [kind, whole entry]; so many were missed because there was no room."""

    watch: int
    entries: list[Any] = msgspec.field(default_factory=list)
    missed: int = 0


class HintAck(Message, tag=56):
    """The hints of this watch have arrived, up to this many entries: there is room for more."""

    watch: int
    entries: int


class MoveEntry(Message, tag=57):
    """An entry goes to the agent that it is for. Answer: was it taken in?"""

    call: int
    space: str
    entry: Any


class PartNotice(Message, tag=58):
    """What a part of one host says to the same part of another, which knows how to read it. Who has
    no such part ignores it."""

    part: str
    body: msgspec.Raw

    def __repr__(self) -> str:
        return f"Notice({self.part!r}, {_in_words(self.body)})"


class PartRequest(Message, tag=59):
    """The same, and an answer is wanted."""

    call: int
    part: str
    body: msgspec.Raw

    def __repr__(self) -> str:
        return f"Request({self.call}, {self.part!r}, {_in_words(self.body)})"


class Routed(Message, tag=64):
    """What the host `source` says to `target`, along the tree of this membership of their group."""

    membership: tuple[int, str]
    source: str
    target: str
    message: PartNotice | PartRequest | Answer | Failure


def _in_words(body: msgspec.Raw) -> str:
    try:
        return repr(msgspec.msgpack.decode(body))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return f"<{error}>"


class Decide(Message, tag=60):
    """Record that a transaction is committed, and who must be told: [id, participant]; or that it
    is given up, if that is nobody. Answer: does this stand? Not if the opposite does; None if that
    is not known."""

    call: int
    txn: str
    told: list[tuple[str, str]]


class AskOutcome(Message, tag=61):
    """What became of this transaction? Answer: "committed", "aborted", or None: not decided yet."""

    call: int
    txn: str


class Forget(Message, tag=62):
    """This participant knows that the branch `txn` of the transaction was committed."""

    call: int
    txn: str
    participant: str


# Reading and writing

_length = Struct(">I").unpack_from
_encode = Encoder().encode
_PIECE_BIT = 2**31
_piece_head = Struct(">II").pack


def encode(message: Any, message_max: int = MESSAGE_MAX) -> bytes:
    """The bytes of a message. Raises CannotSend if they are more than `message_max`, and
    UnicodeEncodeError if a text in it is not valid Unicode."""
    content = _encode(message)
    if len(content) > message_max:
        raise CannotSend(
            f"this needs {len(content):,} bytes, and {message_max:,} can be sent at a time; "
            "write smaller entries, or ask for fewer with limit="
        )
    return content


def agreed_max(announced: int) -> int:
    """The longest message for a program that has announced this `message_max`."""
    return max(FRAME_MAX, min(announced, MESSAGE_MAX))


def body(message: Any) -> msgspec.Raw:
    """What a part says, as the body of a Notice or Request. CannotSend if it cannot be said."""
    try:
        return msgspec.Raw(encode(message))
    except UnicodeEncodeError as error:
        raise CannotSend(f"a text is not valid Unicode: {error}") from error


def reader(kind: Any) -> Callable[[bytes | memoryview | msgspec.Raw], Any]:
    """A function that reads what is of this type, such as a union of messages. It raises BadFrame
    if something is not, and nothing else."""
    decode = Decoder(kind, ext_hook=read_wire_extension).decode

    def read(content: bytes | memoryview | msgspec.Raw) -> Any:
        try:
            return decode(content)
        except (msgspec.DecodeError, BadBytes, ValueError, TypeError, ArithmeticError) as error:
            raise BadFrame(f"this frame cannot be understood: {error}") from error
        except RecursionError as error:
            raise BadFrame("this frame is nested too deeply") from error

    return read


decode: Callable[[bytes | memoryview], Message] = reader(Union[tuple(Message.__subclasses__())])  # noqa: UP007
_decode_first: Callable[[bytes], Message] = Decoder(
    Union[Hello, Welcome, Refusal, Goodbye]  # noqa: UP007
).decode


def decode_first(content: bytes) -> Message:
    """The first word of a program that is not known yet: Hello, Welcome, Refusal or Goodbye.
    BadFrame if it is anything else. No code of ours runs on what is in it: extensions are not
    read, and nothing is remembered."""
    if len(content) > HELLO_MAX:
        raise BadFrame(f"a first frame of {len(content)} bytes; {HELLO_MAX} may be")
    try:
        return _decode_first(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadFrame(f"the first frame cannot be understood: {error}") from error


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def pieces(content: bytes) -> Iterator[bytes]:
    """The frames that carry a long message."""
    for start in range(0, len(content), PIECE_BYTES):
        data = content[start : start + PIECE_BYTES]
        left = len(content) - start - len(data)
        yield _piece_head(_PIECE_BIT | (4 + len(data)), left) + data


class Frames:
    """Cuts received bytes into frames and joins pieces. It never holds more than one allowed frame,
    one allowed message in pieces, and the bytes that were received together with them.

    `one_at_a_time` and a small `frame_max` are for a program that is not known yet: each `feed`
    returns a single frame. After `admit`, messages up to `message_max` may come in pieces.
    """

    def __init__(
        self, frame_max: int = FRAME_MAX, *, one_at_a_time: bool = False, message_max: int = 0
    ) -> None:
        self._frame_max = frame_max
        self._one_at_a_time = one_at_a_time
        self._message_max = message_max
        self._held = bytearray()
        self._needed = 4  # how much must be there before it is looked at again
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._left = 0  # bytes of the message that are to come in later pieces

    def admit(self, message_max: int) -> None:
        """Accept frames of every size, and messages up to `message_max` in pieces."""
        self._frame_max, self._one_at_a_time = FRAME_MAX, False
        self._message_max = message_max

    @property
    def held(self) -> int:
        """How many bytes of incomplete frames and messages are kept."""
        return len(self._held) + self._pieces_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete now. Raises BadFrame if one is too long, or if a piece
        does not continue its message."""
        held = self._held
        if held:
            held += data
            if len(held) < self._needed:
                return []
            data = bytes(held)
        contents = []
        start, end = 0, len(data)
        single = self._one_at_a_time
        while end - start >= 4:
            (length,) = _length(data, start)
            is_piece = length > self._frame_max
            if is_piece:
                length = self._length_of_piece(length)
            if end - start - 4 < length:
                self._needed = 4 + length
                break
            start += 4
            if not is_piece:
                contents.append(data[start : start + length])
            elif (message := self._join(data, start, length)) is not None:
                contents.append(message)
            start += length
            if single:
                self._needed = 4
                break
        else:
            self._needed = 4
        self._held = bytearray(data[start:])
        return contents

    def _length_of_piece(self, announced: int) -> int:
        length = announced - _PIECE_BIT
        if length < 0 or not self._message_max:
            raise BadFrame(f"a frame of {announced} bytes is announced; {self._frame_max} may be")
        if not 4 < length <= 4 + PIECE_BYTES:
            raise BadFrame(f"a piece of {length} bytes is announced; 5 to {4 + PIECE_BYTES} may be")
        return length

    def _join(self, data: bytes, start: int, length: int) -> bytes | None:
        """Add a piece to the message that is under way; return the message after its last piece."""
        (left,) = _length(data, start)
        size = length - 4
        if self._left:
            if left != self._left - size:
                raise BadFrame(
                    f"a piece leaves {left} bytes of its message; {self._left - size} were expected"
                )
        elif left + size > self._message_max:
            raise BadFrame(
                f"a message of {left + size} bytes is announced; {self._message_max} may be"
            )
        self._pieces.append(data[start + 4 : start + length])
        self._pieces_bytes += size
        self._left = left
        if left:
            return None
        content = b"".join(self._pieces)
        self._pieces, self._pieces_bytes = [], 0
        return content
