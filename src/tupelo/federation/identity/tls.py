"""Mutual TLS between programs that know each other by their keys alone.

Each end shows a certificate and proves that it holds its private key. Whether that key is welcome
is decided afterwards, by `Trust` and by the rules of each space.

Python's ssl offers no place to ask "is this key welcome?" during the handshake: it either accepts
no certificate that is not issued by an authority it knows, or does not look at certificates at
all. So all our certificates are issued by one authority whose private key stands below, for all
to see. **That authority vouches for nothing.** Anybody can have a certificate from it, for their
own key. It only lets the handshake go on to where the other end has proved that the key in its
certificate is its own, and this proof does not depend on who issued the certificate. Names and
dates in certificates mean nothing either.
"""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tupelo.errors import Stranger
from tupelo.federation.identity.keys import Identity, key_text

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

_AUTHORITY_SEED = b"tupelo: this key is no secret..."  # 32 bytes; see above
_AUTHORITY_NAME = "tupelo"

# A clock that was never set is no reason to refuse anybody.
_FROM = datetime(1970, 1, 1, tzinfo=UTC)
_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def server_context(identity: Identity, *, optional: bool = False) -> ssl.SSLContext:
    """For the end that was called. It refuses callers that prove no key, unless that is
    `optional`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Who resumes an earlier conversation proves nothing again; so there is no resuming.
    context.num_tickets = 0
    _prepare(context, identity)
    if optional:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(identity: Identity) -> ssl.SSLContext:
    """For the end that calls. Servers are known by their keys, not by their names.

    A server that refuses our certificate says so after our side of the handshake is over: the
    first read fails.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return _prepare(context, identity)


def key_of(connection: ssl.SSLObject | ssl.SSLSocket) -> str:
    """The identity that the other end of a finished handshake has proved."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    certificate = connection.getpeercert(binary_form=True)
    if certificate is None:
        raise Stranger("the other end has not shown who it is")
    try:
        public = x509.load_der_x509_certificate(certificate).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Stranger(f"the other end shows a certificate that cannot be read: {error}") from error
    if not isinstance(public, Ed25519PublicKey):
        raise Stranger("the other end shows a key of another kind; an identity is an Ed25519 key")
    return key_text(public.public_bytes_raw())


def certificate_for(public: Ed25519PublicKey) -> bytes:
    """A certificate for this key, as PEM. It says nothing but that the key is this key."""
    return _issue("tupelo identity", public, authority=False)


def _prepare(context: ssl.SSLContext, identity: Identity) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=_authority_certificate().decode())
    with _private_file(identity.private_pem() + certificate_for(identity.public)) as path:
        context.load_cert_chain(path)
    return context


@cache
def _authority_certificate() -> bytes:
    return _issue(_AUTHORITY_NAME, _authority_key().public_key(), authority=True)


def _authority_key() -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(_AUTHORITY_SEED)


def _issue(subject: str, public: Ed25519PublicKey, *, authority: bool) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    issuer = _authority_key()
    # OpenSSL can be told to be strict, and then wants all of these.
    usage = x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(_AUTHORITY_NAME))
        .public_key(public)
        .serial_number(1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False
        )
        .sign(issuer, algorithm=None)
    )
    return certificate.public_bytes(Encoding.PEM)


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """The name of a file with this content, for as long as it takes to read it.

    ssl reads private keys from files only. Where there is memory with a file's name, the key does
    not touch the disk.
    """
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        handle = os.memfd_create("identity", os.MFD_CLOEXEC)
        with os.fdopen(handle, "wb") as memory:
            path = Path(f"/proc/self/fd/{handle}")
            if path.exists():
                memory.write(content)
                memory.flush()
                yield str(path)
                return
    handle, temporary = tempfile.mkstemp()  # its mode: 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        yield temporary
    finally:
        Path(temporary).unlink()
