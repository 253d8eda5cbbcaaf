"""The messages between the hosts of LIME: patterns, tuples and requests.

Tuples and templates are encoded as bytes: hosts that only pass them on need not know their types.
"""

from __future__ import annotations

from sys import float_info
from typing import Annotated, Any, NamedTuple

import msgspec

from tupelo.errors import BadEntry, BadFrame
from tupelo.federation.brokers.tables import ITEM_BYTES_MAX
from tupelo.models.lime.locations import AgentLocation, HostLocation, Location, home_of
from tupelo.values.codec import BadBytes, decode_entry, encode_entry
from tupelo.values.entry import Entry, Shape, shape_of, types_of
from tupelo.values.template import Template
from tupelo.values.template_encoding import encode_template, read_template

PAYLOAD_BYTES_MAX = ITEM_BYTES_MAX - 2**20
"""The longest tuple that is sent. `out` refuses longer ones in a shared space; those that another
door writes stay at their host."""
_TEMPLATES_MAX = 1_024
_TEMPLATE_BYTES_MAX = 1_024
"""Longer templates are not cached, so that other hosts cannot fill the memory."""
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=-float_info.max, le=float_info.max)]


class TuplePlace(msgspec.Struct, frozen=True, array_like=True):
    """The locations of an operation: the current one, ("agent" or "host", id), and the destination,
    the id of an agent; None for any."""

    current: tuple[str, str] | None = None
    destination: str | None = None

    @property
    def is_anywhere(self) -> bool:
        return self.current is None and self.destination is None

    def admits(self, entry: Entry, current: str, host: str) -> bool:
        """Whether a tuple that this agent (or host) holds, at this host, is in the locations."""
        if self.destination is not None and home_of(entry) != self.destination:
            return False
        if self.current is None:
            return True
        kind, name = self.current
        return name == (current if kind == "agent" else host)


ANYWHERE = TuplePlace()


def place_of(current: Location | None, destination: AgentLocation | None) -> TuplePlace:
    kind = "host" if isinstance(current, HostLocation) else "agent"
    return TuplePlace(
        None if current is None else (kind, current.id),
        None if destination is None else destination.id,
    )


class TuplePattern(msgspec.Struct, frozen=True, array_like=True):
    """A search: the template, the space and the locations; whether tuples are read or taken;
    whether `one` match is enough."""

    space: str
    template: bytes
    where: TuplePlace
    take: bool
    one: bool

    @property
    def key(self) -> str:
        """The key for brokers, the same for reads and takes: what cannot be read cannot be
        taken."""
        asked = (self.space, self.template, self.where)
        return msgspec.msgpack.encode(asked).decode("latin-1")

    def matches(self, entry: Entry) -> bool:
        return read_encoded_template(self.template).admits(entry.shape, entry.fields)


class CarriedTuple(msgspec.Struct, frozen=True, array_like=True):
    """A tuple with its identity, as it is sent; it expires after so many seconds."""

    payload: bytes
    origin: str
    n: Number
    seconds: Seconds | None
    to: str | None

    def read(self, now: float) -> Entry:
        try:
            shape, fields = decode_entry(self.payload)
        except BadBytes as error:
            raise BadFrame(str(error)) from error
        until = None if self.seconds is None else now + self.seconds
        return Entry(fields, shape, self.origin, self.n, 0, until, to=self.to)


class PlacedTuple(msgspec.Struct, frozen=True, array_like=True):
    """A tuple and its current location: the id of an agent, or of a host."""

    entry: CarriedTuple
    current: str

    def found(self, host: str, now: float) -> FoundTuple:
        return FoundTuple(self.entry.read(now), self.current, host)


class FoundTuple(NamedTuple):
    """A tuple that was found, its current location, and its host."""

    entry: Entry
    current: str
    host: str


class TupleUpdate(msgspec.Struct, frozen=True, array_like=True):
    """A tuple has become visible in a space of a host."""

    space: str
    host: str
    placed: PlacedTuple


class LookRequest(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    """Asks for copies of the matches of a pattern. The answer is a list of PlacedTuple, and whether
    there are more: the next request with the same number gets them."""

    number: int
    pattern: TuplePattern


class TakeRequest(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    """Asks to reserve the matches of a pattern under this token, and to send them. The answer is a
    list of PlacedTuple, and whether there are more: the next request with the same number and
    another token gets them."""

    token: int
    number: int
    pattern: TuplePattern


class ConfirmTake(msgspec.Struct, frozen=True, array_like=True, tag="confirm"):
    """The tuples that were reserved under this token have arrived."""

    token: int


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """Give back the tuples that were reserved under this token; or: end the listing with this
    number."""

    token: int


class MoveTuples(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """Moves tuples to the host of their agents. The answer: whether they were accepted."""

    token: int
    space: str
    entries: list[CarriedTuple]


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """A move in doubt: its token, the incarnation of the receiver, and one of its tuples."""

    token: int
    incarnation: str
    space: str
    origin: str
    n: Number


class ReceivedQuery(msgspec.Struct, frozen=True, array_like=True, tag="which"):
    """Asks which of these takes and moves have arrived. The answer is two lists of tokens."""

    taken: list[int]
    moved: list[Moved]


class QueryAnswers(msgspec.Struct, frozen=True, array_like=True, tag="answers"):
    """The matches for the published query with this number."""

    query: int
    found: list[PlacedTuple]


class MigrationRequest(msgspec.Struct, frozen=True, array_like=True, tag="journey"):
    """A request about a migrating agent: see `migrating`."""

    body: Any


class MetadataChanged(msgspec.Struct, frozen=True, array_like=True, tag="renewed"):
    """New metadata of the sender. The answer is False if a new membership is needed: the receiver
    does not know the sender, or has tuples that must move to one of its agents."""

    metadata: Any


class LoadDone(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """To the loading host: the outcome of a load is known, ask for it. From the loading host: it
    has the outcome."""

    token: str


LimeNotice = ConfirmTake | Release | QueryAnswers | LoadDone
LimeRequest = (
    LookRequest | TakeRequest | MoveTuples | ReceivedQuery | MigrationRequest | MetadataChanged
)


def encode(body: Any) -> Any:
    """A message as builtin values, for msgpack."""
    return msgspec.to_builtins(body, builtin_types=(bytes,))


def read(body: Any, as_type: Any) -> Any:
    try:
        return msgspec.convert(body, as_type)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadFrame(f"this is no message of LIME: {error}") from error


def encoded_template(template: Any) -> bytes:
    encoded = encode_template(template)
    return encode_entry(shape_of(None, types_of(encoded)), encoded)


_templates: dict[bytes, Template] = {}


def read_encoded_template(encoded: bytes) -> Template:
    """Decode a template, with a cache; raises BadFrame."""
    known = _templates.get(encoded)
    if known is None:
        try:
            known = read_template(decode_entry(encoded)[1])
        except BadBytes as error:
            raise BadFrame(str(error)) from error
        if len(encoded) <= _TEMPLATE_BYTES_MAX:
            if len(_templates) >= _TEMPLATES_MAX:
                _templates.clear()
            _templates[encoded] = known
    return known


def carried(entry: Entry, now: float) -> CarriedTuple:
    """A tuple as it is sent; raises BadEntry if it has no encoding or is too long."""
    payload = payload_of(entry.shape, entry.fields)
    expires = entry.expires
    seconds = None if expires is None else expires - now
    return CarriedTuple(payload, entry.origin, entry.n, seconds, entry.to)


def payload_of(shape: Shape, fields: tuple[Any, ...]) -> bytes:
    """The encoding of a tuple; raises BadEntry if there is none or it is too long."""
    payload = encode_entry(shape, fields)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise BadEntry(
            f"this tuple needs {len(payload):,} bytes, and {PAYLOAD_BYTES_MAX:,} is the most that "
            "can be sent to another host, as a tuple of a shared space must be"
        )
    return payload
