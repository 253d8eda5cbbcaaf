"""Client certificates in place of the token, over real TLS connections."""

import asyncio
import http.client
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import tupelo
from tupelo.apps.console import Console
from tupelo.errors import BadArgument, Stranger
from tupelo.federation.client.services import connect_to_host_async
from tupelo.federation.identity.tls import client_context

JOBS = "/api/spaces/jobs"
ALICE, BOB, MALLORY = (tupelo.Identity.new() for _ in range(3))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tupelo.Host]:
    own = tupelo.Identity.new()
    known = tupelo.Trust.known([own.key, ALICE.key, BOB.key])
    with tupelo.Host("kitchen", listen="127.0.0.1:0", identity=own, trust=known) as made:
        made.space("jobs", access=tupelo.Access(take=[ALICE.key]))
        yield made


@pytest.fixture
def console(host: tupelo.Host) -> Iterator[Console]:
    own = host.core.identity
    assert own is not None
    trust = tupelo.Trust.known([own.key])
    with Console(host.url, identity=own, trust=trust, certificates=True) as made:
        yield made


def call(
    console: Console, identity: tupelo.Identity | None, path: str, body: object, **headers: str
) -> tuple[int, dict[str, Any]]:
    """A request with this client certificate, or with none."""
    context = client_context(identity or ALICE)
    if identity is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(console.address, timeout=60, context=context)
    try:
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_certificate_has_the_rights_of_its_key(console, host):
    host.space("jobs").write_all([("job", 1), ("job", 2)])
    for who in (ALICE, BOB):
        assert call(console, who, f"{JOBS}/read", {}) == (200, {"entry": ["job", 1]})
    status, said = call(console, BOB, f"{JOBS}/take", {})
    assert (status, said["error"]) == (403, "NotAllowed")
    assert call(console, ALICE, f"{JOBS}/take", {}) == (200, {"entry": ["job", 1]})
    clients = {one.who for one in host.core.servings.values()}
    assert {ALICE.key, BOB.key} <= clients


def test_a_transaction_is_only_for_the_identity_that_began_it(console, host):
    txn = call(console, ALICE, "/api/transactions", {"space": "jobs"})[1]["txn"]
    for path, body in ((f"{JOBS}/write", {"entry": ["x"], "txn": txn}),):
        assert call(console, BOB, path, body)[0] == 400
        assert call(console, ALICE, path, body)[0] == 201


def test_an_identity_that_the_host_does_not_trust_is_refused(console, host):
    status, said = call(console, MALLORY, f"{JOBS}/read", {})
    assert (status, said["error"]) == (403, "Stranger")
    host.trust(MALLORY.key)
    assert call(console, MALLORY, f"{JOBS}/count", {}) == (200, {"count": 0})
    host.untrust(MALLORY.key)
    status, said = call(console, MALLORY, f"{JOBS}/count", {})
    assert (status, said["error"]) == (403, "Stranger")


def test_without_certificate_the_token_is_needed(console):
    status, said = call(console, None, f"{JOBS}/count", {})
    assert (status, said["error"]) == (401, "WrongToken")
    for who in (None, ALICE):
        given = f"Bearer {console.token}"
        assert call(console, who, f"{JOBS}/count", {}, Authorization=given)[0] == 200
        status, said = call(console, who, f"{JOBS}/count", {}, Authorization="Bearer wrong")
        assert (status, said["error"]) == (401, "WrongToken")


def test_a_certificate_of_another_authority_is_refused_by_tls(console, tmp_path):
    foreign = _self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(foreign)
    connection = http.client.HTTPSConnection(console.address, timeout=60, context=context)
    with pytest.raises(OSError):
        connection.request("POST", f"{JOBS}/count", "{}")
        connection.getresponse()
    connection.close()


def test_another_site_cannot_use_the_certificate_of_a_browser(console):
    for origin, expected in (("https://evil.example", 403), (f"https://{console.address}", 200)):
        assert call(console, ALICE, f"{JOBS}/count", {}, Origin=origin)[0] == expected


def test_only_the_identity_of_the_host_may_act_for_others(host, console):
    async def pretend() -> None:
        trust = tupelo.Trust.known([host.identity])
        await connect_to_host_async(host.url, identity=BOB, trust=trust, on_behalf=ALICE.key)

    with pytest.raises(Stranger, match="identity of this host"):
        asyncio.run(pretend())


def test_a_program_uses_the_files_of_the_command_line(tmp_path):
    tupelo_ = [sys.executable, "-m", "tupelo"]
    home = os.environ | {"TUPELO_HOME": str(tmp_path / "home")}

    def said(*arguments: str) -> str:
        return subprocess.check_output([*tupelo_, *arguments], env=home, text=True)

    key = said("identity", "--create", "--text")
    (tmp_path / "known").write_text(key)
    (tmp_path / "my.crt").write_text(said("identity", "--certificate"))
    command = [*tupelo_, "host", "kitchen", "--path", tmp_path / "kitchen", "--console-tls"]
    for option, value in (("listen", ":0"), ("console", ":0"), ("trust", tmp_path / "known")):
        command += [f"--{option}", value if option == "trust" else f"127.0.0.1{value}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=home) as running:
        assert running.stdout is not None
        address = next(one for one in running.stdout if one.startswith("console")).split("/")[2]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(tmp_path / "my.crt", tmp_path / "home" / "identity.pem")
        connection = http.client.HTTPSConnection(address, timeout=60, context=context)
        connection.request("GET", "/api/host")
        clients = json.loads(connection.getresponse().read())["clients"]
        connection.close()
        running.terminate()
    assert key.strip() in [one["identity"] for one in clients]


def test_certificates_need_the_identity_of_the_host(host):
    with pytest.raises(BadArgument, match="identity="):
        Console(host.url, certificates=True)


def _self_signed(folder: Path) -> Path:
    """A certificate that its owner has signed, and the key."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "foreign")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2999, 1, 1, tzinfo=UTC))
        .sign(key, algorithm=None)
    )
    file = folder / "foreign.pem"
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(pem + made.public_bytes(Encoding.PEM))
    return file


def test_the_report_of_all_spaces_needs_the_token(console):
    status, said = call(console, ALICE, "/api/report", None)
    assert (status, said["error"]) == (403, "NotAllowed")
    bearer = {"Authorization": f"Bearer {console.token}"}
    assert call(console, None, "/api/report", None, **bearer) == (200, {"report": None})
