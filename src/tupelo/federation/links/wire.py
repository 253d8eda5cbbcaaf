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

A call has a number, chosen by the caller, and gets one Answer or one Failure (see `calls`). Taken
entries stay reserved under the number of their call until the caller confirms them.
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
LEVEL = 4
"""What this program understands beyond the first messages of its version; programs that do not
announce a level have 0. 1: `delay` of Write. 2: `removed` of Subscribe. 3: `create` of Open,
`template` of ListInHand, and ListDelayed. 4: `entry` of Ask."""
FRAME_MAX = 16 * 2**20
"""The longest frame that is sent or accepted, in bytes, and the longest message for programs that
do not accept pieces."""
MESSAGE_MAX = 64 * 2**20
"""The longest message, in bytes."""
PIECE_BYTES = 256 * 1024
"""Messages with more bytes go in pieces with so much data each."""
HELLO_MAX = 12 * 1024
"""The longest frame that is accepted before the Hello, in bytes: room for five names of the longest
kind."""

BULK_MAX = 100_000
"""The most entries that one request of a client may write or take. They are written or taken in one
step of the space, and the host serves nobody else meanwhile."""

Thing = Literal["entry", "transaction", "session", "subscription", "match set"]


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages. The tag of each class is its number on the wire."""


class SpaceCall(Message):
    """A call about one space."""

    call: int
    space: str


class LeaseCall(SpaceCall):
    """A call about something leased in one space."""

    thing: Thing
    id: str


# Connecting and disconnecting


class Hello(Message, tag=1):
    """The first message of the program that dials, in at most HELLO_MAX bytes. It is read before
    the program is identified, so it has no lists. `incarnation` differs for each run of a program;
    `resume` is the session that a client had before its link was lost. If `more` is set, a
    HelloDetails follows. `message_max` is the longest message that the program accepts in pieces,
    in bytes; 0 if it accepts no pieces, as older versions do not. `level` is the LEVEL of the
    program: to one that announces none, what it does not expect in entries and changes is not sent,
    and fields of messages that it would ignore are not sent either. A client
    that has proved the key of the host itself may act `on_behalf` of another key, which has been
    proved to it."""

    version: int
    role: Literal["client", "host"]
    id: str
    name: str
    incarnation: str
    address: str = ""
    resume: str = ""
    more: bool = False
    message_max: int = 0
    level: int = 0
    on_behalf: str = ""


class Welcome(Message, tag=2):
    """The answer of the host that was dialled, in at most HELLO_MAX bytes. If `more` is set, a
    HelloDetails follows. `message_max` is as in Hello. `level` is as in Hello."""

    version: int
    id: str
    name: str
    incarnation: str
    session: str
    heartbeat: float
    more: bool = False
    message_max: int = 0
    level: int = 0


class HelloDetails(Message, tag=6):
    """The second message of a program, read after it was identified. A client sends the calls of
    the resumed session whose taken entries have reached its user; a host sends its spaces, and the
    calls that it has yet to settle."""

    spaces: list[str] = []
    received: list[int] = []


class Refusal(Message, tag=3):
    """The answer to a Hello that is not accepted: the error class, its message and attributes."""

    kind: str
    message: str
    data: dict[str, Any] = {}


class Ping(Message, tag=4):
    """Heartbeat."""


class Goodbye(Message, tag=5):
    """The sender closes the link on purpose."""

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
    """The caller no longer wants these calls. Entries that were taken for them are returned."""

    calls: list[int]


class Confirm(Message, tag=21):
    """The entries that were taken for these calls have reached the caller, and are removed."""

    calls: list[int]


class Open(SpaceCall, tag=22):
    """Use a space, showing its password if it has one. Without `create`, it must exist. Answer:
    [durable, identity of the space, the agent that the caller is there, id of the host, the time
    there]."""

    password: str | None = None
    create: bool = True


class Write(SpaceCall, tag=23):
    """Answer: the leases, as `encode_leases` encodes them; an empty list unless `leases` is set."""

    entries: list[Any]
    lease: float | list[float | None] | None = None
    txn: str | None = None
    at: list[Any] | None = None
    wait: float | None = 0.0
    to: str | None = None
    leases: bool = True
    delay: float | None = None


class Get(SpaceCall, tag=24):
    """Read or take; one entry unless `many`. Answer: a list of entries, encoded, or of `whole` ones
    (see `encode_whole`). With `coverage` the answer may come from some of the hosts only, and is
    [that list, the names of the hosts that were reached, the names of those that were not]."""

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


class CountRequest(SpaceCall, tag=25):
    template: Any
    txn: str | None = None
    scope: Scope | None = None
    coverage: bool = False


class Begin(SpaceCall, tag=26):
    """Begin a transaction; `id` is given for a branch of one that spans several spaces. Answer:
    [id, expires]."""

    lease: float | None = None
    parent: str | None = None
    id: str | None = None


class End(SpaceCall, tag=27):
    """Prepare, commit or abort a transaction, or ask for its state. Answer: [vote, state, reason,
    expires]."""

    txn: str
    how: Literal["commit", "abort", "prepare", "state"]


class ListPrepared(SpaceCall, tag=28):
    """Answer: the ids of the transactions that are prepared and not decided."""


class ListInHand(SpaceCall, tag=43):
    """Answer: the entries in hand that match, as a list of InHand."""

    template: Any = None


class ListDelayed(SpaceCall, tag=44):
    """The entries that are not visible yet; or cancel them. Answer: [number of matches, list of
    [moment, encoded entry] of the first of them]."""

    template: Any
    limit: int | None = None
    cancel: bool = False


class OpenSession(SpaceCall, tag=29):
    """Open a session, as a copy of the session `like` if that is given. Answer: [id, expires]."""

    lease: float | None = None
    like: str | None = None


class Subscribe(SpaceCall, tag=30):
    """Answer: [id, event id, expires]."""

    template: Any
    lease: float | None = None
    txn: str | None = None
    backlog_max: int = 1_000
    available: bool = False
    returned: bool = True
    removed: bool = False


class Next(SpaceCall, tag=31):
    """The next notices of a subscription: at least one, unless `wait` has passed or the
    subscription has ended. Answer: a list of [event id, sequence, kind, whole entry, missed]."""

    subscription: str
    wait: float | None = None
    limit: int = 1


class State(LeaseCall, tag=32):
    """Ask for the state of a leased thing. Answer: [active, expires, number, error]; the number is
    how many entries a session has seen, or the sequence of a subscription; the error is [kind,
    message, data]."""


class Close(LeaseCall, tag=33):
    """End a session or a subscription."""


class Renew(LeaseCall, tag=34):
    """Renew a lease. An entry's id is "n:arrival". Answer: expires."""

    lease: float | None = None


class CancelLease(LeaseCall, tag=35):
    """Cancel a lease."""


class Match(SpaceCall, tag=41):
    """Open a match set. Answer: [id, expires]."""

    template: Any
    limit: int | None = None
    txn: str | None = None
    lease: float | None = None


class NextMatches(SpaceCall, tag=42):
    """The next entries of a match set; an empty list at its end. Answer: [list of encoded entries,
    list of [origin, n, reason] of the entries that were left out so far]."""

    match_set: str
    limit: int = 1


class Changes(SpaceCall, tag=36):
    """Answer: a list of changes (see `encode_change`)."""

    since: int = 0
    limit: int | None = None


class Trim(SpaceCall, tag=37):
    """Delete the changes before a position; None: as the policy of the space says."""

    before: int | None = None


class ReadLog(SpaceCall, tag=39):
    """Columns (see `store.tail`) of the changes between two positions, or of as many of the first
    as fit. Answer: [agent and identity of the space, its first and last position, the columns]."""

    names: list[str] = []
    first: int = 1
    last: int = 0


class Invoke(Message, tag=40):
    """Call a method of a service that the host offers. The service defines the arguments and the
    answer. `again` marks an idempotent call, which is repeated when the link was lost. `space` is
    the space that the call is about, or ""."""

    call: int
    service: str
    method: str
    space: str = ""
    args: list[Any] = []
    wait: float | None = 0.0
    again: bool = False


class DescribeHost(Message, tag=38):
    """Answer: a description of the host, as a dict. With `brief`, and always between hosts, the
    answer is None: it only shows that the host has read all earlier messages."""

    call: int
    brief: bool = False


# Between hosts


class PresenceUpdate(Message, tag=50):
    """All spaces and agents at the sending host, and the name that each agent has given itself."""

    spaces: list[str]
    agents: list[str]
    names: list[str] = []


Numbers = dict[str, bytes | list[int]]
"""Numbers of entries, by origin: a roaring bitmap, or a short list."""


class SessionDelta(msgspec.Struct, array_like=True, gc=False):
    """The change of a session's record from version `since` to version `upto`. The receiver adds it
    to its copy of the session with this `number`; a delta `since` 0 is the complete record and
    replaces the copy. `seen` entries are not wanted; `unseen` entries were sent before, did not
    reach the reader, and are wanted again; `gone` entries can be forgotten. Number 0: a complete
    record that need not be kept."""

    number: int
    since: int
    upto: int
    seen: Numbers
    unseen: Numbers = {}
    gone: Numbers = {}


class Ask(SpaceCall, tag=51):
    """A host asks for the current matches, for its agent `by`, which calls itself `name`, and that
    agent's `session`: to read
    them, to take them, or to learn whether there are any ("peek"). Entries that were `seen`, and
    with `agent` those of other agents, are left out. If there is no match, the `watch` begins in
    the same moment. Answer: a list of whole entries, or of None for a peek; a None at the end says
    that there are more matches than fit. Taken entries are reserved until the asker sends Settle;
    with `client` they were taken for a client of the asker, which may outlive it. `entry` is the
    identity of the only entry that is wanted.

    With a SessionDelta that is to be kept, the answer is [that list, the Numbers of entries that
    are gone for good], or None if the delta does not continue the copy that is known here: the
    asker then sends the complete record."""

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
    name: str = ""
    entry: tuple[str, int] | None = None


class ForgetSession(Message, tag=63):
    """The session with this number has ended."""

    number: int


class Settle(Message, tag=52):
    """Confirm or return the entries that call `of` has taken in this space, in that incarnation of
    the receiving host. Answer: were they confirmed?"""

    call: int
    of: int
    keep: bool
    space: str
    incarnation: str


class Returned(Message, tag=70):
    """Clients of the sending host have reconnected to it, perhaps after it has crashed: [agent, its
    former session, the calls of that session whose taken entries have reached the user]. Entries
    of other calls of the session have not reached it."""

    clients: list[tuple[str, str, list[int]]]


class WatchRequest(SpaceCall, tag=53):
    """Send a Hint for every entry that becomes visible from now on; with `existing`, also for the
    current entries that were not `seen`. Answer, once the watch is active: the current entries
    for which no Hint is sent (origin → roaring bitmap), or None."""

    template: Any
    watch: int
    existing: bool = False
    available: bool = False
    returned: bool = True
    seen: dict[str, bytes] | None = None


class UnwatchRequest(Message, tag=54):
    """End a watch. Answer: how many hits it had, if it began with an Ask."""

    call: int
    watch: int


class Hint(Message, tag=55):
    """There may be a match for this watch, which was not there before. For a read, `entries` are
    the whole entries that match; for a subscription they are pairs of [kind, whole entry], and
    `missed` is the number of entries that were dropped because there was no room."""

    watch: int
    entries: list[Any] = msgspec.field(default_factory=list)
    missed: int = 0


class HintAck(Message, tag=56):
    """So many entries of this watch have been processed: there is room for as many more."""

    watch: int
    entries: int


class MoveEntry(SpaceCall, tag=57):
    """Move an entry to the agent that it is for. Answer: was it accepted?"""

    entry: Any


class PartNotice(Message, tag=58):
    """A message from a part of one host to the same part of another, which decodes the body. A host
    without that part ignores it."""

    part: str
    body: msgspec.Raw

    def __repr__(self) -> str:
        return f"PartNotice({self.part!r}, {_in_words(self.body)})"


class PartRequest(Message, tag=59):
    """A PartNotice that wants an answer."""

    call: int
    part: str
    body: msgspec.Raw

    def __repr__(self) -> str:
        return f"PartRequest({self.call}, {self.part!r}, {_in_words(self.body)})"


class Routed(Message, tag=64):
    """A message from host `source` to host `target`, along the tree of this membership."""

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
    """Record that a transaction is committed, with the participants that must be told: [id,
    participant]; without participants, that it is aborted. Answer: True if this is recorded, False
    if the opposite is, None if that is not known."""

    call: int
    txn: str
    told: list[tuple[str, str]]


class AskOutcome(Message, tag=61):
    """Ask for the outcome of a transaction. Answer: "committed", "aborted", or None: undecided."""

    call: int
    txn: str


class Forget(Message, tag=62):
    """This participant knows that its branch `txn` was committed: the decision may be deleted."""

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
    """The body of a PartNotice or PartRequest. Raises CannotSend if it is too long or contains text
    that is not valid Unicode."""
    try:
        return msgspec.Raw(encode(message))
    except UnicodeEncodeError as error:
        raise CannotSend(f"a text is not valid Unicode: {error}") from error


def reader(kind: Any) -> Callable[[bytes | memoryview | msgspec.Raw], Any]:
    """A decoder for values of this type, such as a union of messages. It raises BadFrame for
    anything else, and no other error."""
    decode = Decoder(kind, ext_hook=read_wire_extension).decode

    def read(content: bytes | memoryview | msgspec.Raw) -> Any:
        try:
            return decode(content)
        except (msgspec.DecodeError, BadBytes, ValueError, TypeError, ArithmeticError) as error:
            raise BadFrame(f"this frame cannot be understood: {error}") from error
        except RecursionError as error:
            raise BadFrame("this frame is nested too deeply") from error

    return read


def _tagged(kind: type[Message]) -> list[type[Message]]:
    """The messages of this kind; a class without a tag is a base of others."""
    found = [kind] if kind.__struct_config__.tag else []
    return found + [one for below in kind.__subclasses__() for one in _tagged(below)]


decode: Callable[[bytes | memoryview], Message] = reader(Union[tuple(_tagged(Message))])  # noqa: UP007
_decode_first: Callable[[bytes], Message] = Decoder(
    Union[Hello, Welcome, Refusal, Goodbye]  # noqa: UP007
).decode


def decode_first(content: bytes) -> Message:
    """Decode the first message of a program that is not identified yet: Hello, Welcome, Refusal or
    Goodbye. Raises BadFrame for anything else. Extension types are not decoded, and nothing of the
    message is cached."""
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
