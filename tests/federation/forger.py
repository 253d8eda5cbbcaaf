"""A client that shows one's certificate and signs with another's key: TLS 1.3 by hand (RFC 8446).

No library of TLS can be made to do so, and a server must be seen to refuse it. It looks at
nothing that the server proves.
"""

import hashlib
import hmac
import os
import socket
import ssl
from collections.abc import Iterator
from typing import BinaryIO

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tupelo.federation.identity.keys import Identity
from tupelo.federation.identity.tls import certificate_for

CHANGE_CIPHER, HANDSHAKE, APPLICATION = 20, 22, 23
SERVER_HELLO, FINISHED = 2, 20
KEY_SHARE = 0x33


def forge(line: socket.socket, shown: Identity, signer: Identity) -> None:
    """The client's side of a handshake: the certificate of `shown`, proved by `signer`."""
    with line.makefile("rb") as stream:
        _shake_hands(line, stream, shown, signer)


def _shake_hands(line: socket.socket, stream: BinaryIO, shown: Identity, signer: Identity) -> None:
    own = X25519PrivateKey.generate()
    hello = _message(1, _hello(own.public_key().public_bytes_raw()))
    line.sendall(b"\x16\x03\x01" + _sized(hello, 2))
    _, server_hello = next(_records(stream))
    transcript = hello + server_hello
    shared = own.exchange(X25519PublicKey.from_public_bytes(_share(server_hello)))
    early = _extract(bytes(32), bytes(32))
    secret = _extract(_derive(early, "derived", b""), shared)
    ours = _derive(secret, "c hs traffic", transcript)
    theirs = _derive(secret, "s hs traffic", transcript)

    flight = b""
    for number, (header, record) in enumerate(_records(stream)):
        inner = _seal(theirs, number, record, header)
        flight += inner.rstrip(b"\0")[:-1]
        if FINISHED in _kinds(flight):
            break
    transcript += flight

    certificate = ssl.PEM_cert_to_DER_cert(certificate_for(shown.public).decode())
    transcript += (first := _message(11, b"\0" + _sized(_sized(certificate, 3) + b"\0\0", 3)))
    content = b" " * 64 + b"TLS 1.3, client CertificateVerify\0" + _hash(transcript)
    transcript += (second := _message(15, b"\x08\x07" + _sized(signer.sign(content), 2)))
    key = _expand(ours, "finished", b"", 32)
    third = _message(FINISHED, hmac.digest(key, _hash(transcript), "sha256"))
    plain = first + second + third + bytes([HANDSHAKE])
    header = bytes([APPLICATION, 3, 3]) + (len(plain) + 16).to_bytes(2)
    line.sendall(header + _seal(ours, 0, plain, header, encrypt=True))


def _hello(share: bytes) -> bytes:
    extensions = {
        0x2B: b"\x02\x03\x04",  # TLS 1.3
        0x0A: b"\0\x02\0\x1d",  # x25519
        0x0D: b"\0\x02\x08\x07",  # Ed25519
        KEY_SHARE: _sized(b"\0\x1d" + _sized(share, 2), 2),
    }
    listed = b"".join(kind.to_bytes(2) + _sized(said, 2) for kind, said in extensions.items())
    return b"\x03\x03" + os.urandom(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + _sized(listed, 2)


def _share(server_hello: bytes) -> bytes:
    assert server_hello[0] == SERVER_HELLO
    rest = server_hello[4 + 2 + 32 + 1 + 2 + 1 + 2 :]  # no session id was given, so none is back
    while int.from_bytes(rest[:2]) != KEY_SHARE:
        rest = rest[4 + int.from_bytes(rest[2:4]) :]
    return rest[8 : 8 + 32]


def _records(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    while True:
        header = stream.read(5)
        record = stream.read(int.from_bytes(header[3:5]))
        if header[0] != CHANGE_CIPHER:  # sent for the sake of old machines in between
            yield header, record


def _kinds(flight: bytes) -> set[int]:
    """The kinds of the messages that are there whole."""
    kinds = set()
    while len(flight) >= 4 and len(flight) >= (size := 4 + int.from_bytes(flight[1:4])):
        kinds.add(flight[0])
        flight = flight[size:]
    return kinds


def _seal(secret: bytes, number: int, data: bytes, header: bytes, encrypt: bool = False) -> bytes:
    """One record, encrypted, or (the other way) decrypted."""
    start = int.from_bytes(_expand(secret, "iv", b"", 12))
    cipher = AESGCM(_expand(secret, "key", b"", 16))
    work = cipher.encrypt if encrypt else cipher.decrypt
    return work((start ^ number).to_bytes(12), data, header)


def _derive(secret: bytes, label: str, transcript: bytes) -> bytes:
    return _expand(secret, label, _hash(transcript), 32)


def _extract(salt: bytes, material: bytes) -> bytes:
    return hmac.digest(salt, material, "sha256")


def _expand(secret: bytes, label: str, context: bytes, size: int) -> bytes:
    info = size.to_bytes(2) + _sized(f"tls13 {label}".encode(), 1) + _sized(context, 1)
    return hmac.digest(secret, info + b"\x01", "sha256")[:size]


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _message(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + _sized(body, 3)


def _sized(data: bytes, width: int) -> bytes:
    return len(data).to_bytes(width) + data
