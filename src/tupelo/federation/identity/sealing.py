"""Sealed messages: for one identity, from another, carried by anyone.

The address is the addressee's key itself: nothing else has to be fetched or believed before
something is sealed. What carries a message can neither read it, nor alter it, nor give it to
another, nor pass it off as another message; it does not even learn who sent it.

An Ed25519 key and an X25519 key are points of the same curve in two encodings, so the identity's
own key serves for the exchange as well. That one key pair may do both is shown by E. Thormarker,
"On using the same key pair for Ed25519 and an X25519 based KEM" (2021); the two never hash the
same input, for what is signed here and what is derived here begin with different words.

Sealed bytes: a version, the addressee (32), a key made for this message (32), and what
ChaCha20-Poly1305 makes of sender (32), signature (64) and plain text: 177 bytes more than those.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from tupelo.errors import BadArgument, BadSeal, NotForUs
from tupelo.federation.identity.keys import Identity, check_key, key_bytes, key_text, verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

Context = tuple[str | int, ...]
"""What the message belongs to, such as its space and its number. Who opens it names the same."""

OVERHEAD: Final = 177
"""So many bytes is a sealed message longer than its plain text."""

_VERSION = b"\x01"
_SIGNED = b"tupelo sealed message, signed"
_DERIVED = b"tupelo sealed message, key"
# The key is new with every message, so it needs no other nonce.
_NONCE = bytes(12)

_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)


def seal(identity: Identity, to: str, plain: bytes, context: Context) -> bytes:
    """Only `to` can open this, and only in the same context; it will know that we sent it."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    addressee = key_bytes(check_key(to, "to"))
    point = _exchange_point(addressee)
    if point is None:
        raise BadArgument("to", "an identity that somebody can have", to)
    once = X25519PrivateKey.from_private_bytes(identity.draw())
    public = once.public_key().public_bytes_raw()
    head = _VERSION + addressee + public
    bound = _bind(head, context)
    sender = key_bytes(identity.key)
    signature = identity.sign(_signed(bound, sender, plain))
    shared = once.exchange(X25519PublicKey.from_public_bytes(point))
    return head + _cipher(shared, bound).encrypt(_NONCE, sender + signature + plain, bound)


def unseal(identity: Identity, sealed: bytes, context: Context) -> tuple[str, bytes]:
    """Who sealed this for us, and what it says.

    NotForUs if it is addressed to another. BadSeal if it was altered, comes from another context,
    or was not sealed by the one it names.
    """
    from cryptography.exceptions import InvalidTag

    if len(sealed) < OVERHEAD or sealed[:1] != _VERSION:
        raise BadSeal("this is no sealed message")
    head, addressee, public = sealed[:65], sealed[1:33], sealed[33:65]
    if addressee != key_bytes(identity.key):
        raise NotForUs(key_text(addressee))
    bound = _bind(head, context)
    try:
        opened = _cipher(identity.agree(public), bound).decrypt(_NONCE, sealed[65:], bound)
    except (InvalidTag, ValueError) as error:
        raise BadSeal("the message was altered, or belongs elsewhere") from error
    raw, signature, plain = opened[:32], opened[32:96], opened[96:]
    sender = key_text(raw)
    # A point of small order "signs" whatever anybody likes.
    if _exchange_point(raw) is None or not verify(sender, _signed(bound, raw, plain), signature):
        raise BadSeal("the message was not sealed by the one it names")
    return sender, plain


def _bind(head: bytes, context: Context) -> bytes:
    """What the message belongs to, encoded so that no two contexts look alike."""
    for part in context:
        if type(part) not in (str, int):
            raise BadArgument("context", "texts and numbers", part)
    try:
        return head + msgspec.msgpack.encode(context)
    except (OverflowError, UnicodeEncodeError) as error:
        raise BadArgument("context", "proper texts, and numbers of 64 bits", context) from error


def _signed(bound: bytes, sender: bytes, plain: bytes) -> bytes:
    # The addressee is in it: it cannot seal this anew for a third, as if the sender had.
    return _SIGNED + sender + hashlib.sha512(bound).digest() + plain


def _cipher(shared: bytes, bound: bytes) -> ChaCha20Poly1305:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    kdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=_DERIVED + bound)
    return ChaCha20Poly1305(kdf.derive(shared))


@lru_cache(maxsize=1_024)
def _exchange_point(public: bytes) -> bytes | None:
    """The X25519 key of an Ed25519 key: u = (1 + y) / (1 - y). None if it is no point of the
    curve, or one with which everybody would agree on the same secret."""
    y = int.from_bytes(public, "little") & (2**255 - 1)
    if y >= _P or y == 1:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    if square and pow(square, (_P - 1) // 2, _P) != 1:
        return None
    u = (1 + y) * pow(1 - y, -1, _P) % _P
    return None if u in _SMALL_ORDER else u.to_bytes(32, "little")
