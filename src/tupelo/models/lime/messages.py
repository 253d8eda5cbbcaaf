"""What hosts say to each other about LIME's spaces: patterns, tuples and requests.

Tuples and templates go as bytes: whoever only passes them on need not know what is in them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tupelo.errors import BadEntry, BadFrame
from tupelo.federation.brokers.tables import ITEM_BYTES_MAX
from tupelo.models.lime.locations import AgentLocation, HostLocation, Location, home_of
from tupelo.values.codec import BadBytes, decode_entry, encode_entry
from tupelo.values.entry import Entry, Shape, shape_of, types_of
from tupelo.values.template import Template
from tupelo.values.template_encoding import encode_template, read_template

PAYLOAD_BYTES_MAX = ITEM_BYTES_MAX - 2**20
"""The longest tuple that is sent. LIME writes no longer one in a shared space; what another door
writes there stays where it is."""
_TEMPLATES_MAX = 1_024
_TEMPLATE_BYTES_MAX = 1_024
"""So long may a template be that is remembered: who sends long ones shall not fill our memory."""


class TuplePlace(msgspec.Struct, frozen=True, array_like=True):
    """The locations that are asked for: the current one, ("agent" or "host", id), and the
    destination, an agent."""

    current: tuple[str, str] | None = None
    destination: str | None = None

    @property
    def is_anywhere(self) -> bool:
        return self.current is None and self.destination is None

    def admits(self, entry: Entry, current: str, host: str) -> bool:
        """Does it ask for a tuple that this agent (or host) holds, at this host?"""
        if self.destination is not None and home_of(entry) != self.destination:
            return False
        if self.current is None:
            return True
        kind, name = self.current
        return name == (current if kind == "agent" else host)


ANYWHERE = TuplePlace()


def where_of(current: Location | None, destination: AgentLocation | None) -> TuplePlace:
    kind = "host" if isinstance(current, HostLocation) else "agent"
    return TuplePlace(
        None if current is None else (kind, current.id),
        None if destination is None else destination.id,
    )


class TuplePattern(msgspec.Struct, frozen=True, array_like=True):
    """What is looked for: a template in a space, and where; what may be read, or what one may
    `take`; and whether `one` match will do."""

    space: str
    template: bytes
    where: TuplePlace
    take: bool
    one: bool

    @property
    def key(self) -> str:
        """The same for those who read and those who take: what nobody can read, nobody can take."""
        asked = (self.space, self.template, self.where)
        return msgspec.msgpack.encode(asked).decode("latin-1")

    def matches(self, entry: Entry) -> bool:
        return read_encoded_template(self.template).admits(entry.shape, entry.fields)


class CarriedTuple(msgspec.Struct, frozen=True, array_like=True):
    """A tuple with its identity, as it is sent; it expires so many seconds from now."""

    payload: bytes
    origin: str
    n: int
    seconds: float | None
    to: str | None

    def read(self, now: float) -> Entry:
        try:
            shape, fields = decode_entry(self.payload)
        except BadBytes as error:
            raise BadFrame(str(error)) from error
        until = None if self.seconds is None else now + self.seconds
        return Entry(fields, shape, self.origin, self.n, 0, until, to=self.to)


class PlacedTuple(msgspec.Struct, frozen=True, array_like=True):
    """A tuple, and who is responsible for it: an agent, or a host."""

    entry: CarriedTuple
    current: str


class TupleUpdate(msgspec.Struct, frozen=True, array_like=True):
    """A tuple has come into sight in a space."""

    space: str
    host: str
    placed: PlacedTuple


class Look(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    """What have you for this pattern? The answer is a list of Placed, and whether there are more:
    who wants them asks again under the same number."""

    number: int
    pattern: TuplePattern


class Take(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    """Reserve what you have for this pattern, and hand it to me under this token. The answer is a
    list of Placed, and whether there are more: who wants them asks again, by the same number of
    the listing and another token."""

    token: int
    number: int
    pattern: TuplePattern


class ConfirmTake(msgspec.Struct, frozen=True, array_like=True, tag="confirm"):
    """I have received what I took under this number."""

    token: int


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """I cannot use what I took under this number: put it back. Or: I need no more of this
    listing."""

    token: int


class MoveTuples(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """These tuples are at home with you. The answer says whether you have let them in."""

    token: int
    space: str
    entries: list[CarriedTuple]


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """A move in doubt: its number, the life of the host that it went to, and one of its tuples."""

    token: int
    incarnation: str
    space: str
    origin: str
    n: int


class Which(msgspec.Struct, frozen=True, array_like=True, tag="which"):
    """Which of what I have handed over have you received? The answer is two lists of numbers."""

    taken: list[int]
    moved: list[Moved]


class Answers(msgspec.Struct, frozen=True, array_like=True, tag="answers"):
    """What I have for the query that you have published under this number."""

    query: int
    found: list[PlacedTuple]


class Journey(msgspec.Struct, frozen=True, array_like=True, tag="journey"):
    """About an agent that migrates."""

    body: Any


class Renewed(msgspec.Struct, frozen=True, array_like=True, tag="renewed"):
    """This is my metadata from now on. The answer says whether all is in place: the receiver knows
    me, and has no tuples that must go to an agent of mine because of it."""

    metadata: Any


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """An agent that the addressee loads here was loaded, or was not: it may ask which. In answer:
    it knows."""

    token: str


Said = ConfirmTake | Release | Answers | Loaded
Asked = Look | Take | MoveTuples | Which | Journey | Renewed


def encode(body: Any) -> Any:
    """As it is sent: lists, texts, numbers and bytes."""
    return msgspec.to_builtins(body, builtin_types=(bytes,))


def read(body: Any, as_type: Any) -> Any:
    try:
        return msgspec.convert(body, as_type)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadFrame(f"this is nothing that hosts say about LIME: {error}") from error


def encoded_template(template: Any) -> bytes:
    encoded = encode_template(template)
    return encode_entry(shape_of(None, types_of(encoded)), encoded)


_read: dict[bytes, Template] = {}


def read_encoded_template(encoded: bytes) -> Template:
    """BadFrame if it is none. Each is read once, for it is asked again and again."""
    known = _read.get(encoded)
    if known is None:
        try:
            known = read_template(decode_entry(encoded)[1])
        except BadBytes as error:
            raise BadFrame(str(error)) from error
        if len(encoded) <= _TEMPLATE_BYTES_MAX:
            if len(_read) >= _TEMPLATES_MAX:
                _read.clear()
            _read[encoded] = known
    return known


def carried(entry: Entry, now: float) -> CarriedTuple:
    """BadEntry if it has no encoding, or one that is too long."""
    payload = payload_of(entry.shape, entry.fields)
    expires = entry.expires
    seconds = None if expires is None else expires - now
    return CarriedTuple(payload, entry.origin, entry.n, seconds, entry.to)


def payload_of(shape: Shape, fields: tuple[Any, ...]) -> bytes:
    """A tuple as it is sent; BadEntry if it has no encoding, or one that is too long."""
    payload = encode_entry(shape, fields)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise BadEntry(
            f"this tuple needs {len(payload):,} bytes, and {PAYLOAD_BYTES_MAX:,} is the most that "
            "can be sent to another host, as a tuple of a shared space must be"
        )
    return payload
