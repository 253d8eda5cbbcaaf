"""Mutual TLS over real sockets: both ends prove their keys, or nothing is said."""

import asyncio
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.federation.forger import forge
from tupelo.errors import Stranger
from tupelo.federation.identity.keys import Identity
from tupelo.federation.identity.tls import (
    _AUTHORITY_SEED,
    _authority_certificate,
    client_context,
    key_of,
    server_context,
)

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
if sys.platform != "win32":
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop

SECONDS = 20.0


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection over the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        calling = socket.create_connection(listening.getsockname(), timeout=SECONDS)
        called, _ = listening.accept()
    called.settimeout(SECONDS)
    with calling, called:
        yield calling, called


def answer(called: socket.socket, context: ssl.SSLContext) -> str:
    """The called end: who calls? It answers once."""
    with context.wrap_socket(called, server_side=True) as secure:
        caller = key_of(secure)
        assert secure.recv(100) == b"question"
        secure.sendall(b"answer")
        return caller


def ask(calling: socket.socket, context: ssl.SSLContext) -> str:
    with context.wrap_socket(calling) as secure:
        secure.sendall(b"question")
        assert secure.recv(100) == b"answer"
        return key_of(secure)


def test_both_ends_of_a_blocking_line_prove_their_keys(line, later):
    host, client = Identity.new(), Identity.new()
    called = later(answer, line[1], server_context(host))
    assert ask(line[0], client_context(client)) == host.key
    assert called.result() == client.key


def test_only_the_newest_tls_is_spoken_and_nothing_is_resumed(line, later):
    server = server_context(Identity.new())
    called = later(answer, line[1], server)
    with client_context(Identity.new()).wrap_socket(line[0]) as secure:
        assert secure.version() == "TLSv1.3"
        secure.sendall(b"question")
        assert secure.recv(100) == b"answer"
        assert secure.session is None or not secure.session.has_ticket
    called.result()


def stranger(certificate: bytes | None = None, private: bytes | None = None) -> ssl.SSLContext:
    """A client that knows our authority and shows what it is given, or nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=_authority_certificate().decode())
    if certificate is not None and private is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "both.pem")
            path.write_bytes(private + certificate)
            context.load_cert_chain(path)
    return context


def refused(line: Any, later: Any, client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """The called end refuses, and the calling end is told so."""
    called = later(answer, line[1], server)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(line[0], client)
    with pytest.raises(ssl.SSLError):
        called.result()


def test_a_client_without_a_certificate_is_refused(line, later):
    refused(line, later, stranger(), server_context(Identity.new()))


def test_a_client_with_the_certificate_of_another_is_refused(line, later):
    alice, eve = Identity.new(), Identity.new()
    called = later(caller_of, line[1], server_context(Identity.new()))
    forge(line[0], shown=alice, signer=eve)
    with pytest.raises(ssl.SSLError, match=r"(?i)signature"):
        called.result()


def test_a_client_with_its_own_certificate_is_met_even_if_its_tls_was_written_by_hand(line, later):
    alice = Identity.new()
    called = later(caller_of, line[1], server_context(Identity.new()))
    forge(line[0], shown=alice, signer=alice)
    assert called.result() == alice.key


def caller_of(called: socket.socket, context: ssl.SSLContext) -> str:
    with context.wrap_socket(called, server_side=True) as secure:
        return key_of(secure)


def test_a_client_with_a_certificate_of_another_authority_is_refused(line, later):
    certificate, private = issued_for("ed25519", by_ours=False)
    refused(line, later, stranger(certificate, private), server_context(Identity.new()))


def test_a_client_that_speaks_older_tls_only_is_refused(line, later):
    client = client_context(Identity.new())
    client.minimum_version = ssl.TLSVersion.TLSv1_2
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    refused(line, later, client, server_context(Identity.new()))


def test_a_server_with_a_certificate_of_another_authority_is_refused(line, later):
    certificate, private = issued_for("ed25519", by_ours=False)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "both.pem")
        path.write_bytes(private + certificate)
        server.load_cert_chain(path)
    called = later(answer, line[1], server)
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(line[0], client_context(Identity.new()))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        called.result()


def test_a_key_of_another_kind_is_no_identity(line, later):
    certificate, private = issued_for("p256", by_ours=True)
    called = later(answer, line[1], server_context(Identity.new()))
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        ask(line[0], stranger(certificate, private))
    with pytest.raises(Stranger, match="another kind"):
        called.result()


def test_a_server_that_asks_for_no_certificate_knows_nobody(line, later):
    lax = server_context(Identity.new())
    lax.verify_mode = ssl.CERT_NONE
    called = later(answer, line[1], lax)
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        ask(line[0], stranger())
    with pytest.raises(Stranger, match="not shown"):
        called.result()


def issued_for(kind: str, *, by_ours: bool) -> tuple[bytes, bytes]:
    """A certificate and its private key, as others could make them."""
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    own: Any
    if kind == "p256":
        own = ec.generate_private_key(ec.SECP256R1())
    else:
        own = ed25519.Ed25519PrivateKey.generate()
    authority = ed25519.Ed25519PrivateKey.from_private_bytes(_AUTHORITY_SEED)
    if not by_ours:
        authority = ed25519.Ed25519PrivateKey.generate()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "eve")]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tupelo")]))
        .public_key(own.public_key())
        .serial_number(2)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2999, 1, 1, tzinfo=UTC))
        .sign(authority, algorithm=None)
    )
    return certificate.public_bytes(Encoding.PEM), own.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


def test_strict_verification_accepts_our_certificates(line, later):
    host, client = Identity.new(), Identity.new()
    server, caller = server_context(host), client_context(client)
    for context in (server, caller):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    called = later(answer, line[1], server)
    assert ask(line[0], caller) == host.key
    assert called.result() == client.key


@pytest.mark.parametrize("memory", [True, False])
def test_no_private_key_is_left_behind(tmp_path, monkeypatch, line, later, memory):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    before = open_files()
    host, client = Identity.new(), Identity.new()
    called = later(answer, line[1], server_context(host))
    assert ask(line[0], client_context(client)) == host.key
    assert called.result() == client.key
    assert list(tmp_path.iterdir()) == []
    assert open_files() <= before


def open_files() -> set[str]:
    """What this process has open, apart from sockets and the like. Empty where it is unknown."""
    folder = Path("/proc/self/fd")
    found = set()
    for handle in folder.iterdir() if folder.exists() else ():
        try:
            target = str(handle.readlink())
        except FileNotFoundError:  # the handle by which the folder itself was read
            continue
        if "memfd" in target or target.startswith(tempfile.gettempdir()):
            found.add(target)
    return found


class End(asyncio.Protocol):
    """One end of a line in an event loop. The caller asks, and at the answer both turn to TLS."""

    def __init__(self, context: ssl.SSLContext, *, called: bool) -> None:
        loop = asyncio.get_running_loop()
        self._context = context
        self._called = called
        self.secure: asyncio.Transport | None = None
        self.heard = loop.create_future()
        self.lost = loop.create_future()
        self.turned = loop.create_future()
        self._plain: Any = None
        self._turning: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        if self._plain is None:
            self._plain = transport
            if not self._called:
                transport.write(b"?")

    async def _turn(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            secure = await loop.start_tls(transport, self, self._context, server_side=self._called)
        except Exception as error:
            transport.abort()
            self.turned.set_result(error)
            return
        assert secure is not None
        self.secure = secure
        secure.write(b"hello")
        self.turned.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._turning is None:
            if self._called:
                self._plain.write(b"!")
            self._turning = asyncio.get_running_loop().create_task(self._turn(self._plain))
        elif not self.heard.done():
            self.heard.set_result(data)

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self.heard, self.lost):
            if not future.done():
                future.set_result(error)

    @property
    def other(self) -> str:
        assert self.secure is not None
        return key_of(self.secure.get_extra_info("ssl_object"))


async def meet(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> tuple[list[str], list[BaseException]]:
    """Both ends' keys as the other end saw them, caller's view first; or their errors."""
    loop = asyncio.get_running_loop()
    called_end: asyncio.Future[End] = loop.create_future()

    def accept() -> End:
        end = End(server, called=True)
        called_end.set_result(end)
        return end

    async with asyncio.timeout(SECONDS):
        listening = await loop.create_server(accept, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        _, calling = await loop.create_connection(
            lambda: End(client, called=False), "127.0.0.1", port
        )
        called = await called_end
        ends = (calling, called)
        turned = [await end.turned for end in ends]
        errors = [error for error in turned if error is not None]
        heard = [await end.heard for end in ends if end.secure is not None]
        keys = []
        if not errors and heard == [b"hello", b"hello"]:
            keys = [end.other for end in ends]
        for end in ends:
            if end.secure is not None:
                end.secure.close()
                await end.lost
        listening.close()
        await listening.wait_closed()
        await asyncio.sleep(0)  # the last callbacks of the closed transports
    return keys, errors


@pytest.mark.parametrize("loop", LOOPS)
def test_both_ends_in_an_event_loop_prove_their_keys(loop):
    host, client = Identity.new(), Identity.new()
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        keys, errors = runner.run(meet(server_context(host), client_context(client)))
    assert not errors
    assert keys == [host.key, client.key]


@pytest.mark.parametrize("loop", LOOPS)
def test_an_event_loop_refuses_who_shows_no_certificate(loop):
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        keys, errors = runner.run(meet(server_context(Identity.new()), stranger()))
    assert not keys
    assert any(isinstance(error, ssl.SSLError) for error in errors)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_blocking_client_meets_a_host_in_an_event_loop(loop, later):
    host, client = Identity.new(), Identity.new()

    async def serve() -> tuple[str, str]:
        running = asyncio.get_running_loop()
        end = End(server_context(host), called=True)
        async with asyncio.timeout(SECONDS):
            listening = await running.create_server(lambda: end, "127.0.0.1", 0)
            port = listening.sockets[0].getsockname()[1]
            call = later(greet, port, client_context(client))
            assert await end.heard == b"hi"
            seen = end.other
            await end.lost
            listening.close()
            await listening.wait_closed()
            await asyncio.sleep(0)
        return seen, call.result()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        assert runner.run(serve()) == (client.key, host.key)


def greet(port: int, context: ssl.SSLContext) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as plain:
        plain.sendall(b"?")
        assert plain.recv(1) == b"!"
        with context.wrap_socket(plain) as secure:
            secure.sendall(b"hi")
            assert secure.recv(100) == b"hello"
            return key_of(secure)
