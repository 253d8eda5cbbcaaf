"""Encodings of entries with their identity, of changes, errors, orders and leases in messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Annotated, Any

import msgspec
from pyroaring import BitMap64

from tupelo import errors
from tupelo.errors import BadArgument, BadFrame, CannotSend, TupeloError
from tupelo.federation.links.wire import LEVEL, MESSAGE_MAX, Numbers
from tupelo.space.order import Fifo, Key, Lifo, Order, Queue, Stack
from tupelo.space.session import Seen
from tupelo.space.tasks import turn
from tupelo.values.change import Change
from tupelo.values.codec import BadBytes, encode_value, entry_to_wire, read_entry, read_value
from tupelo.values.entry import DELIVERIES_MAX, NATIVE, Entry, freeze, freeze_value, thaw_value

REST_BYTES = 64 * 1024
"""A message needs less than this beside its entries."""
ENTRIES_BYTES_MAX = MESSAGE_MAX - REST_BYTES
"""The most bytes of the entries of one message."""

ENCODED_AT_ONCE = 500
"""Entries of a long answer, or a long write, that are encoded or decoded in one slice."""

_ARRAY = b"\xdd"  # msgpack: an array, whose length follows in four bytes
_FEW = 8
_ORDERS: dict[str, type[Order]] = {"fifo": Fifo, "lifo": Lifo, "queue": Queue, "stack": Stack}
_encode = msgspec.msgpack.Encoder().encode


def encode_fields(entry: Entry | Change) -> Any:
    """An entry without its identity. Raises CannotSend if a dataclass has a text that is not valid
    Unicode; other such texts are found when the message is encoded."""
    assert entry.shape is not None and entry.fields is not None
    try:
        return entry_to_wire(entry.shape, entry.fields)
    except UnicodeEncodeError as error:
        raise _not_unicode(error) from error


def _not_unicode(error: UnicodeEncodeError) -> CannotSend:
    return CannotSend(f"a text is not valid Unicode: {error}")


def encode_whole(entry: Entry, now: float = 0.0, level: int = LEVEL) -> list[Any]:
    """An entry with its identity: fields, origin, n, arrival, expires, the agent that it is for,
    and how often it came back, if it did and the receiver has a level.

    Between hosts, whose clocks may differ, the lease is given in seconds from `now`.
    """
    encoded = [
        encode_fields(entry),
        entry.origin,
        entry.n,
        entry.arrival,
        None if entry.expires is None else entry.expires - now,
        entry.to,
    ]
    if entry.deliveries and level:
        encoded.append(entry.deliveries)
    return encoded


def read_whole(encoded: Any, now: float = 0.0) -> Entry:
    try:
        fields, origin, n, arrival, expires, to, *rest = encoded
        (deliveries,) = rest or (0,)
    except (TypeError, ValueError) as error:
        raise BadFrame(f"this is no entry: {error}") from error
    if not (
        type(origin) is str
        and type(n) is int
        and 0 <= n < 2**63
        and type(arrival) is int
        and (expires is None or (type(expires) is float and isfinite(expires)))
        and type(to) in (str, type(None))
        and type(deliveries) is int
        and 0 <= deliveries <= DELIVERIES_MAX
    ):
        raise BadFrame("this is no entry: its identity cannot be")
    shape, values = read_encoded_entry(fields)
    until = None if expires is None else expires + now
    return Entry(values, shape, origin, n, arrival, until, to=to, deliveries=deliveries)


def check_sendable(entry: object) -> int:
    """How many bytes an entry needs in a message. Raises CannotSend if it is too long, or not valid
    Unicode; BadEntry if it is not an entry."""
    shape, fields = freeze(entry)
    return len(_encoded(encode_fields(Entry(fields, shape, "", 0, 0))))


def encode_answer(entries: list[Entry], now: float, cut: bool, message_max: int) -> msgspec.Raw:
    """The answer to an Ask: entries, and with `cut` that there are more. Raises CannotSend if it is
    too long for a message of `message_max` bytes, or contains text that is not valid Unicode."""
    encoded: list[Any] = [encode_whole(entry, now) for entry in entries]
    return msgspec.Raw(_encoded([*encoded, None] if cut else encoded, message_max - REST_BYTES))


async def encode_in_slices(
    entries: list[Entry], encode: Callable[[Entry], Any]
) -> list[Any] | msgspec.Raw:
    """The entries of an answer, encoded. If they are many, this takes several turns of the loop.
    Raises CannotSend if they are too long for a message."""
    if len(entries) <= ENCODED_AT_ONCE:
        return [encode(entry) for entry in entries]
    size, parts = 0, [_ARRAY + len(entries).to_bytes(4)]
    for start in range(0, len(entries), ENCODED_AT_ONCE):
        async with turn():
            some = entries[start : start + ENCODED_AT_ONCE]
            part = b"".join([_encoded(encode(entry)) for entry in some])
            await asyncio.sleep(0)
        size += len(part)
        if size > ENTRIES_BYTES_MAX:
            raise CannotSend(
                f"these {len(entries):,} entries need more than the {ENTRIES_BYTES_MAX:,} bytes "
                "that can be sent at a time; ask for fewer with limit="
            )
        parts.append(part)
    return msgspec.Raw(b"".join(parts))


def _encoded(encoded: Any, bytes_max: int | None = None) -> bytes:
    bytes_max = min(bytes_max or ENTRIES_BYTES_MAX, ENTRIES_BYTES_MAX)
    try:
        content = _encode(encoded)
    except UnicodeEncodeError as error:
        raise _not_unicode(error) from error
    if len(content) > bytes_max:
        raise CannotSend(
            f"this needs {len(content):,} bytes, and {bytes_max:,} can be sent at a time"
        )
    return content


def read_answer(answer: Any, now: float) -> tuple[list[Entry], bool]:
    """The entries in the answer to an Ask, and whether there are more. Raises BadFrame if it is not
    such an answer."""
    if type(answer) is not list:
        raise BadFrame(f"entries expected, not a {type(answer).__name__}")
    cut = len(answer) > 1 and answer[-1] is None
    if cut:
        answer.pop()
    return [read_whole(encoded, now) for encoded in answer], cut


def read_encoded_entry(encoded: Any) -> tuple[Any, tuple[Any, ...]]:
    try:
        return read_entry(encoded)
    except BadBytes as error:
        raise BadFrame(str(error)) from error


def encode_any(value: Any, name: str = "value") -> Any:
    """One value of the closed set, as a message carries it. BadEntry, with the name of the
    argument, if it is no such value."""
    return encode_value(freeze_value(value, name, 1))


def read_any(encoded: Any) -> Any:
    """The value that `encode_any` encoded. BadFrame if it is none; UnknownType if its class is not
    known in this program."""
    try:
        return thaw_value(read_value(encoded))
    except BadBytes as error:
        raise BadFrame(str(error)) from error


def encode_change(change: Change, level: int = LEVEL) -> list[Any]:
    """A change, for a receiver of this level."""
    entry = None if change.shape is None else encode_fields(change)
    encoded = [
        change.position,
        change.time,
        change.kind,
        change.arrival,
        change.origin,
        change.n,
        change.agent,
        change.txn,
        change.waited,
        change.expires,
        entry,
        change.to,
        change.session,
    ]
    if level:
        newer = change.agent_name, change.deliveries, change.visible, change.delayed
        encoded += _without_defaults(*newer)
    return encoded


_CHANGE_DEFAULTS: tuple[Any, ...] = ("", 0, None, None)


def _without_defaults(*values: Any) -> tuple[Any, ...]:
    """The values up to the last one that is not its default."""
    given = [i for i, value in enumerate(values) if value != _CHANGE_DEFAULTS[i]]
    return values[: given[-1] + 1] if given else ()


class _EncodedChange(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    position: int
    time: float
    kind: str
    arrival: int
    origin: str
    n: int
    agent: str
    txn: str | None
    waited: float
    expires: float | None
    entry: Any
    to: str | None
    session: str | None
    agent_name: str = ""
    deliveries: Annotated[int, msgspec.Meta(ge=0, le=DELIVERIES_MAX)] = 0
    visible: float | None = None
    delayed: int | None = None


def read_change(encoded: Any) -> Change:
    """Decode `encode_change`. Raises BadFrame for anything else."""
    try:
        cells = msgspec.structs.asdict(msgspec.convert(encoded, _EncodedChange))
    except msgspec.ValidationError as error:
        raise BadFrame(f"this is no change: {error}") from error
    entry = cells.pop("entry")
    shape, fields = (None, None) if entry is None else read_encoded_entry(entry)
    return Change(**cells, shape=shape, fields=fields)


def encode_error(error: BaseException) -> tuple[str, str, dict[str, Any]]:
    """The class name, message and attributes of an error; of a class that is not ours, those of its
    nearest base class that is."""
    kind = type(error).__name__
    if not isinstance(error, TupeloError) or getattr(errors, kind, None) is not type(error):
        kind = next(
            (cls.__name__ for cls in type(error).__mro__ if vars(errors).get(cls.__name__) is cls),
            "TupeloError",
        )
    data = {name: value for name, value in vars(error).items() if _is_plain(value)}
    return kind, str(error), data


def read_error(kind: str, message: str, data: dict[str, Any]) -> TupeloError:
    """The error that was encoded; a TupeloError if its class is not known here."""
    cls = vars(errors).get(kind)
    if not (isinstance(cls, type) and issubclass(cls, TupeloError)):
        cls = TupeloError
    error = cls.__new__(cls)
    error.args = (message,)
    for name, value in data.items():
        if not (name.startswith("_") or hasattr(cls, name)):
            setattr(error, name, value)
    return error


def _is_plain(value: Any) -> bool:
    if type(value) is list:
        return all(type(one) in NATIVE for one in value)
    return type(value) in NATIVE


def encode_order(order: Order | None) -> Any:
    """An order as it is sent. Raises BadArgument for an order that is code."""
    if order is None:
        return None
    for name, kind in _ORDERS.items():
        if type(order) is kind:
            return name
    if type(order) is Key and not callable(order.of):
        if isinstance(order.of, int) and not -(2**63) <= order.of < 2**63:
            raise BadArgument("order", "the Key of a field whose position fits in 64 bits", order)
        return ["key", order.of, order.reverse]
    raise BadArgument(
        "order",
        "Fifo(), Lifo(), Queue(), Stack() or the Key of a field, at a host elsewhere: code is not "
        "sent",
        order,
    )


def read_order(encoded: Any) -> Order | None:
    match encoded:
        case None:
            return None
        case str() if encoded in _ORDERS:
            return _ORDERS[encoded]()
        case ["key", (int() | str()) as of, bool() as reverse]:
            return Key(of, reverse=reverse)
    raise BadFrame(f"{encoded!r} is no order")


def encode_seen(seen: Seen) -> dict[str, bytes]:
    return {origin: encode_bits(bits) for origin, bits in seen.bits.items()}


def encode_numbers(numbers: dict[str, BitMap64]) -> Numbers:
    """Numbers of entries by origin, a few of them as a list: a bitmap of one number would be four
    times as long."""
    return {
        origin: list(bits) if len(bits) <= _FEW else encode_bits(bits)
        for origin, bits in numbers.items()
        if bits
    }


def read_numbers(encoded: Any) -> dict[str, BitMap64]:
    """Decode `encode_numbers`. Raises BadFrame for anything else."""
    if type(encoded) is not dict or not all(type(origin) is str for origin in encoded):
        raise BadFrame("the numbers of entries have an origin")
    if any(type(data) is list and len(data) > _FEW for data in encoded.values()):
        raise BadFrame(f"more than {_FEW} numbers are spelled as a bitmap")
    try:
        return {
            origin: BitMap64(data) if type(data) is list else BitMap64.deserialize(data)
            for origin, data in encoded.items()
        }
    except (ValueError, TypeError, OverflowError) as error:
        raise BadFrame(f"these are no numbers of entries: {error}") from error


def encode_bits(bits: BitMap64) -> bytes:
    copy = BitMap64(bits)
    copy.run_optimize()
    return copy.serialize()


# Leases

Granted = tuple[int, int, float | None]
"""The lease of a written entry: n, arrival, expires."""


def encode_leases(leases: Iterable[Granted]) -> list[list[Any]]:
    """The leases of one write, as runs of consecutive numbers. A run is [n, arrival, expires,
    count, step]: the values of its first entry, and for how many entries n grows by 1 and arrival
    by the step; the last two are left out for a single entry. `expires` is a list if the entries do
    not expire together. So an answer is never much larger than the request."""
    runs: list[list[Any]] = []
    expiries: list[list[float | None]] = []
    for n, arrival, expires in leases:
        run = runs[-1] if runs else None
        if run is not None and n == run[0] + run[3]:
            step = arrival - run[1] if run[3] == 1 else run[4]
            if step in (0, 1) and arrival == run[1] + step * run[3]:
                run[3] += 1
                run[4] = step
                expiries[-1].append(expires)
                continue
        runs.append([n, arrival, expires, 1, 1])
        expiries.append([expires])
    for run, expiry in zip(runs, expiries, strict=True):
        if expiry.count(run[2]) < run[3]:
            run[2] = expiry
        if run[3] == 1:
            del run[3:]
    return runs


def read_leases(runs: Any, count: int) -> list[Granted]:
    """Decode `encode_leases`. Raises BadFrame unless they are the leases of `count` entries."""
    try:
        if count == 1 and len(runs) == 1 and len(runs[0]) == 3 and type(runs[0][2]) is not list:
            n, arrival, expires = runs[0]
            return [(n, arrival, expires)]
        leases: list[Granted] = []
        for n, arrival, expires, *rest in runs:
            length, step = rest or (1, 1)
            if not 0 < length <= count - len(leases):
                raise BadFrame("a lease for each entry that was written was expected")
            expiry = expires if type(expires) is list else [expires] * length
            if len(expiry) != length:
                raise BadFrame("an expiry for each lease was expected")
            leases += [(n + i, arrival + step * i, one) for i, one in enumerate(expiry)]
    except (TypeError, ValueError) as error:
        raise BadFrame(f"leases were expected as the answer: {error}") from error
    if len(leases) != count:
        raise BadFrame("a lease for each entry that was written was expected")
    return leases
