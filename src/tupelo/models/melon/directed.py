"""Directed messages: sealed for one identity, and carried by every host of the same name.

They are entries of the space `name.sealed`, and so are the receipts by which an addressee says, and
signs, that it has taken one. Both are copied to every host; a host that carries them can neither
read nor take them. When a receipt comes to where the message was stored, the message is removed
there, so its copies go as well; and with them the receipt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyroaring import BitMap64

from tupelo.errors import BadArgument, TupeloError
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.federation.identity.keys import Identity, check_key, verify
from tupelo.federation.identity.sealing import seal, unseal
from tupelo.federation.replication.carrier import replication_of
from tupelo.federation.replication.feed import host_of
from tupelo.federation.replication.placing import Everything
from tupelo.models.melon.private import Private, Taken
from tupelo.space.tasks import TaskSignal
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import Entry, freeze, require_known
from tupelo.values.kind import kind_of
from tupelo.values.template import as_template

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore

logger = logging.getLogger("tupelo")

_SIGNED = "tupelo melon receipt"


@dataclass
class Sealed:
    """A message for one identity, under a number that its host gives only once."""

    to: str
    number: int
    seal: bytes


@dataclass
class Receipt:
    """The identity `by` has taken what is this item of a stream, and was sealed by this number."""

    source: str
    item: int
    by: str
    number: int
    signature: bytes


@dataclass
class Letter:
    """A message that was opened, and not taken yet."""

    sender: str
    source: str
    item: int
    number: int
    entry: Entry

    @property
    def stream(self) -> str:
        # Who has sealed it is part of it: nobody else can use up a number.
        return f"{self.sender} {host_of(self.source)}"


class Directed:
    """The directed messages at one host. Without an identity it carries those of others."""

    def __init__(
        self,
        core: HostCore,
        name: str,
        sealed: HostedSpace,
        private: Private,
        identity: Identity | None,
        arrived: Callable[[], object],
    ) -> None:
        self.refused = 0
        self._core = core
        self._name = name
        self._sealed = sealed
        self._private = private
        self._identity = identity
        self._arrived = arrived
        self._number = 0
        self._letters: dict[tuple[str, int], Letter] = {}
        self._looked: dict[str, int] = {}  # up to which item of each stream
        self._receipts: dict[Entry, Receipt] = {}
        self._taken: dict[str, tuple[BitMap64, list[Entry]]] = {}
        for record, entry in private.all(Taken):
            numbers, kept = self._taken.setdefault(record.stream, (BitMap64(), []))
            numbers |= BitMap64.deserialize(record.numbers)
            kept.append(entry)
        for entry in list(sealed.operations.core.store):
            found = _read(entry)
            if isinstance(found, Receipt):
                self._receipts[entry] = found
            elif found is not None:
                self._number = max(self._number, found.number)
        self._feed = replication_of(core).feed(sealed.name, Everything())
        self._feed.listeners.append(self.look)
        self.look()

    # Sending

    def seal(self, message: object, to: str) -> Sealed:
        """The message as it is to be stored, at once."""
        if self._identity is None:
            raise BadArgument("to", "left out: this host has no identity of its own", to)
        check_key(to, "to")
        plain = encode_entry(*freeze(message))
        self._number = max(self._number + 1, int(self._core.clock.now() * 1_000_000))
        context = (self._name, self._core.id, to, self._number)
        return Sealed(to, self._number, seal(self._identity, to, plain, context))

    # Receiving

    def look(self) -> None:
        """What has come, and what has gone?"""
        letters = len(self._letters)
        for source, item, entry in self._news():
            found = _read(entry)
            if isinstance(found, Sealed):
                self._open(source, item, found)
            elif found is not None:
                self._heed(found)
        for entry, receipt in list(self._receipts.items()):
            stream = self._feed.stream(receipt.source)
            is_told = stream is not None and receipt.item <= stream.upto
            if is_told and stream is not None and receipt.item not in stream.alive:
                del self._receipts[entry]
                self._remove(entry)
        if len(self._letters) > letters:
            self._arrived()

    def _news(self) -> Iterator[tuple[str, int, Entry]]:
        for source in list(self._feed.marks):
            stream = self._feed.stream(source)
            if stream is None or stream.upto <= self._looked.get(source, 0):
                continue
            for item in list(stream.alive.iter_equal_or_larger(self._looked.get(source, 0) + 1)):
                entry = stream.items.get(item)
                if item <= stream.upto and entry is not None:
                    yield source, item, entry
            self._looked[source] = stream.upto

    def _open(self, source: str, item: int, sealed: Sealed) -> None:
        identity = self._identity
        if identity is None or sealed.to != identity.key:
            return
        context = (self._name, host_of(source), sealed.to, sealed.number)
        try:
            sender, plain = unseal(identity, sealed.seal, context)
            shape, fields = decode_entry(plain)
        except (TupeloError, ValueError, TypeError) as error:
            self.refused += 1
            logger.warning("a message for us from %s cannot be opened: %s", source, error)
            return
        # The copies' own identity is not needed any more: it is given to one taker only.
        entry = Entry(fields, shape, source, sealed.number, item)
        letter = Letter(sender, source, item, sealed.number, entry)
        taken, _ = self._taken.get(letter.stream, (BitMap64(), []))
        if sealed.number in taken:
            known = any(one.item == item for one in self._receipts.values())
            if not known:
                self._acknowledge(letter)
        else:
            self._letters.setdefault((letter.stream, letter.number), letter)

    # Taking

    def matching(self, template: Any, many: bool, sender: str | None = None) -> list[Letter]:
        """The letters that match: the first, or all."""
        asked = as_template(template)
        found: list[Letter] = []
        for letter in self._letters.values():
            binding = asked.bind(letter.entry.shape)
            is_from = sender is None or letter.sender == sender
            if is_from and binding is not None and binding.test(letter.entry.fields):
                found.append(letter)
                if not many:
                    break
        return found

    async def take(self, template: Any, many: bool, sender: str | None = None) -> list[Entry]:
        """The letters that match, here and now; they are not given to anyone else."""
        found = self.matching(template, many, sender)
        if not found:
            return []
        for letter in found:
            require_known(letter.entry)
        before = dict(self._letters)
        for letter in found:
            del self._letters[letter.stream, letter.number]
        position = self._note(found, True)
        try:
            await self._private.flush(position)
        except BaseException:
            # They are as they were, in their order.
            self._note(found, False)
            come = [key for key in self._letters if key not in before]
            old = [key for key in before if key in self._letters or before[key] in found]
            self._letters = {key: before[key] for key in old} | {
                key: self._letters[key] for key in come
            }
            self._arrived()
            raise
        for letter in found:
            self._acknowledge(letter)
        return [letter.entry for letter in found]

    def _note(self, letters: list[Letter], taken: bool) -> int:
        """These are taken, or not after all; the position at which that is durable."""
        position = 0
        for stream in dict.fromkeys(letter.stream for letter in letters):
            numbers, kept = self._taken.setdefault(stream, (BitMap64(), []))
            for letter in letters:
                if letter.stream == stream:
                    (numbers.add if taken else numbers.discard)(letter.number)
            numbers.run_optimize()
            entry, position = self._private.keep(Taken(stream, numbers.serialize()))
            for old in kept:
                position = self._private.forget(old)
            kept[:] = [entry]
        return position

    # Receipts

    def _acknowledge(self, letter: Letter) -> None:
        identity = self._identity
        assert identity is not None
        receipt = Receipt(letter.source, letter.item, identity.key, letter.number, b"")
        receipt.signature = identity.sign(_signed(self._name, receipt))
        with suppress(TupeloError):  # It is full: the message stays where it was stored.
            written, position = self._sealed.operations.write(
                receipt, None, None, None, TaskSignal, 0
            )
            assert isinstance(written, list)
            self._receipts[written[0].thing] = receipt
            self._sealed.flush_soon(position)

    def _heed(self, receipt: Receipt) -> None:
        """If it is for a message of this host, and its addressee says so, the message goes."""
        if receipt.source != self._feed.source:
            return
        entry = self._feed.original(receipt.item)
        sealed = None if entry is None else _read(entry)
        if (
            entry is not None
            and isinstance(sealed, Sealed)
            and (sealed.to, sealed.number) == (receipt.by, receipt.number)
            and verify(receipt.by, _signed(self._name, receipt), receipt.signature)
        ):
            self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        with suppress(TupeloError):
            self._sealed.flush_soon(self._sealed.operations.cancel(entry))


def _signed(name: str, receipt: Receipt) -> bytes:
    return msgspec.msgpack.encode(
        (_SIGNED, name, receipt.source, receipt.item, receipt.by, receipt.number)
    )


def _read(entry: Entry) -> Sealed | Receipt | None:
    """None if it is something else, or none that can be."""
    if entry.shape.kind not in (kind_of(Sealed), kind_of(Receipt)):
        return None
    types = tuple(map(type, entry.fields))
    if types == (str, int, bytes):
        return Sealed(*entry.fields)
    return Receipt(*entry.fields) if types == (str, int, str, int, bytes) else None


def addressee_of(entry: Entry) -> str | None:
    """For whom this message is, if it is one."""
    found = _read(entry)
    return found.to if isinstance(found, Sealed) else None
