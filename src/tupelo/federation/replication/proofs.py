"""Proofs: what a host with an identity signs of its streams, and how others check it.

The id of such a host is a part of its key, so the name of a stream says who must have signed it,
and nothing else has to be known to check it. The stream of a host without an identity has no proof.

The source signs each parcel that it sends (a chunk: the digests of its items), and each message
about removals. Others keep what was signed and pass it on as it is.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from msgspec.msgpack import Decoder, Encoder

from tupelo.federation.identity.keys import Identity, id_of, key_bytes, key_text, verify
from tupelo.federation.replication.messages import Chunk, Statement, Tombstones
from tupelo.federation.replication.sources import host_of

KEY_BYTES = 32

_encode = Encoder().encode
encode_statement = _encode
decode_statement = Decoder(Statement).decode


def digest_of(content: bytes) -> bytes:
    return sha256(content).digest()


def sign(identity: Identity, feed: str, source: str, statement: Statement) -> bytes:
    """The signature of a statement about a stream: the key of its source, and what that signed."""
    return key_bytes(identity.key) + identity.sign(_signed(feed, source, statement))


def is_proved(feed: str, source: str, statement: Statement) -> bool:
    """Whether the source of this stream has signed this statement."""
    key = key_text(statement.signature[:KEY_BYTES])
    return id_of(key) == host_of(source) and verify(
        key, _signed(feed, source, statement), statement.signature[KEY_BYTES:]
    )


def _signed(feed: str, source: str, statement: Statement) -> bytes:
    said: tuple[Any, ...]
    if isinstance(statement, Chunk):
        digests = [*statement.digests.items()]
        said = ("items", statement.after, statement.upto, statement.lease, digests)
    elif isinstance(statement, Tombstones):
        said = ("removed", statement.before, statement.numbers)
    else:
        one = statement
        said = ("living", one.known, one.tombstones, one.living, one.dead)
    return _encode(("tupelo stream", feed, source, said))
