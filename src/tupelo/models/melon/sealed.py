"""Sealed messages and receipts, as they are stored in the companion space "sealed" and replicated;
and letters: messages that were decrypted at the host of their addressee."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tupelo.federation.identity.keys import Identity, is_key, verify
from tupelo.federation.identity.sealing import Context
from tupelo.federation.replication.streams import base_of, host_of, lane_of
from tupelo.values.entry import Entry, Shape
from tupelo.values.kind import kind_of
from tupelo.values.template import Binding, as_template

_SIGNED = "tupelo melon receipt"
_HOST_MAX = 200
_PARTS = frozenset("/>")


@dataclass
class Sealed:
    """A message that is encrypted for the identity `to`. Its host uses each `number` once. `after`
    is the arrival of the last stored message of that host before it."""

    to: str
    number: int
    after: int
    seal: bytes

    def context(self, name: str, host: str) -> Context:
        """The data that the seal authenticates: the name of the Melon, the host that stored the
        message, and the fields of the message."""
        return (name, host, self.to, self.number, self.after)


@dataclass
class Receipt:
    """A signed statement: the identity `by` has taken this item of a stream, a message of this
    number."""

    source: str
    item: int
    by: str
    number: int
    signature: bytes

    @classmethod
    def signed(cls, name: str, source: str, item: int, number: int, by: Identity) -> Receipt:
        receipt = cls(source, item, by.key, number, b"")
        receipt.signature = by.sign(receipt._words(name))
        return receipt

    def is_valid(self, name: str) -> bool:
        """Whether the receipt is signed, by the addressee of the stream."""
        by_addressee = lane_of(self.source) == self.by
        return by_addressee and verify(self.by, self._words(name), self.signature)

    def _words(self, name: str) -> bytes:
        return msgspec.msgpack.encode((_SIGNED, name, self.source, self.item, self.by, self.number))


class Letter(Entry, gc=False, eq=False, kw_only=True):
    """A decrypted message. Its origin is the stream in which it came, its arrival the number of the
    item there, and `n` the number of the sealed message, whose `after` it has."""

    sender: str
    after: int

    @property
    def host(self) -> str:
        return host_of(self.origin)

    @property
    def base(self) -> str:
        """The stream of its host's incarnation in which it was stored."""
        return base_of(self.origin)

    @property
    def stream(self) -> str:
        """Identifies the sequence of its number. The sender is part of it, so that no other sender
        can use up a number."""
        return f"{self.sender} {self.host}"

    @property
    def key(self) -> tuple[str, int]:
        """Equal for all copies of the message."""
        return self.stream, self.n


def read_item(entry: Entry) -> Sealed | Receipt | None:
    """The sealed message or receipt of an entry; None if it is neither, or malformed."""
    if entry.shape.kind not in (kind_of(Sealed), kind_of(Receipt)):
        return None
    types = tuple(map(type, entry.fields))
    if types == (str, int, int, bytes):
        sealed = Sealed(*entry.fields)
        return sealed if is_key(sealed.to) else None
    if types == (str, int, str, int, bytes):
        receipt = Receipt(*entry.fields)
        host = host_of(receipt.source)  # the name of its lane
        can_be = 0 < len(host) <= _HOST_MAX and not _PARTS & set(host)
        return receipt if can_be and is_key(receipt.by) else None
    return None


def addressee_of(entry: Entry) -> str | None:
    """The addressee of a sealed message; None if the entry is none."""
    found = read_item(entry)
    return found.to if isinstance(found, Sealed) else None


class Letters:
    """The letters that were not taken yet, those of each host in the order of their numbers. After
    a take the host of the letter moves to the end, so that all hosts get their turn."""

    def __init__(self) -> None:
        self._hosts: dict[str, OrderedDict[tuple[str, int], Letter]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._hosts.values()))

    def __iter__(self) -> Iterator[Letter]:
        for letters in self._hosts.values():
            yield from letters.values()

    def __contains__(self, letter: Letter) -> bool:
        letters = self._hosts.get(letter.host)
        return letters is not None and letters.get(letter.key) is letter

    def add(self, added: Iterable[Letter]) -> None:
        """Add letters; a copy of one that is here already is ignored."""
        for letter in added:
            letters = self._hosts.setdefault(letter.host, OrderedDict())
            last = next(reversed(letters.values())) if letters else letter
            letters.setdefault(letter.key, letter)
            if letter.n < last.n:
                by_number = sorted(letters.items(), key=lambda item: item[1].n)
                self._hosts[letter.host] = OrderedDict(by_number)

    def remove(self, removed: Iterable[Letter]) -> None:
        for letter in removed:
            letters = self._hosts.pop(letter.host)
            del letters[letter.key]
            if letters:
                self._hosts[letter.host] = letters

    def matching(self, template: Any, sender: str | None = None) -> Iterator[Letter]:
        """The letters that match, of one sender if it is given. Do not add or remove letters while
        iterating."""
        wanted = as_template(template)
        bindings: dict[Shape, Binding | None] = {}
        for letter in self:
            shape = letter.shape
            if shape not in bindings:
                bindings[shape] = wanted.bind(shape)
            binding = bindings[shape]
            is_from = sender is None or letter.sender == sender
            if is_from and binding is not None and binding.test(letter.fields):
                yield letter
