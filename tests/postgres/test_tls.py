"""TLS between a program and PostgreSQL. The server of the tests is built without it, so a small
proxy with a certificate of its own stands before it, as pgbouncer would."""

import select
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import tupelo
from tests.kinds import database_url
from tupelo.errors import CannotReach

SSL_REQUEST = bytes.fromhex("0000000804d2162f")


def make_certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """The files of a certificate for this host, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tupelo test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), False)
        .sign(key, hashes.SHA256())
    )
    file, secret = folder / f"{host}.crt", folder / f"{host}.key"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file, secret


class Proxy:
    """Answers on 127.0.0.1, with TLS if it has a certificate, and passes everything on."""

    def __init__(self, target: str, certificate: tuple[Path, Path] | None = None) -> None:
        self._target = target
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(*certificate)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.ciphers: list[str] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self._listening.accept()
                thread = threading.Thread(target=self._serve, args=(link,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, link: socket.socket) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as server:
            server.connect(self._target)
            first = link.recv(8)
            if first != SSL_REQUEST:
                server.sendall(first)
            elif self._context is None:
                link.sendall(b"N")
            else:
                link.sendall(b"S")
                link = sealed = self._context.wrap_socket(link, server_side=True)
                self.ciphers.append(str(sealed.version()))
            self._forward(link, server)
        link.close()

    @staticmethod
    def _forward(link: socket.socket, server: socket.socket) -> None:
        while True:
            is_pending = isinstance(link, ssl.SSLSocket) and link.pending()
            ready = [link] if is_pending else select.select([link, server], [], [])[0]
            for one in ready:
                data = one.recv(65_536)
                if not data:
                    return
                (server if one is link else link).sendall(data)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def target():
    folder = parse_qs(urlsplit(database_url()).query)["host"][0]
    return f"{folder}/.s.PGSQL.5432"


def url(proxy: Proxy, **options: object) -> str:
    given = "&".join(f"{key}={value}" for key, value in options.items())
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?space=tls-{uuid4()}&{given}"


def test_a_certificate_is_checked(tmp_path, target):
    certificate = make_certificate(tmp_path, "127.0.0.1")
    other, _ = make_certificate(tmp_path, "127.0.0.2")
    proxy = Proxy(target, certificate)
    try:
        checked = url(proxy, sslmode="verify-full", sslrootcert=certificate[0])
        with tupelo.connect(checked) as space:
            space.write_all([("job", n) for n in range(500)])
            assert space.take(("job", int)) == ("job", 0)
            assert space.count() == 499
        assert proxy.ciphers and set(proxy.ciphers) <= {"TLSv1.2", "TLSv1.3"}
        with pytest.raises(CannotReach, match="certificate"):
            tupelo.connect(url(proxy, sslmode="verify-full", sslrootcert=other))
    finally:
        proxy.close()


def test_a_certificate_of_another_host_is_refused(tmp_path, target):
    certificate = make_certificate(tmp_path, "127.0.0.2")
    proxy = Proxy(target, certificate)
    try:
        with pytest.raises(CannotReach, match="does not match host name"):
            tupelo.connect(url(proxy, sslmode="verify-full", sslrootcert=certificate[0]))
    finally:
        proxy.close()


def test_a_server_without_tls_is_refused_where_tls_is_wanted(target):
    proxy = Proxy(target)
    try:
        with pytest.raises(CannotReach, match="SSL"):
            tupelo.connect(url(proxy, sslmode="require"))
        with tupelo.connect(url(proxy, sslmode="prefer")) as space:
            assert space.count() == 0
    finally:
        proxy.close()
