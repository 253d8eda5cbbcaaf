"""Identities: made on first use, kept private, one for all programs of a folder."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupelo.errors import BadArgument, IdentityUnusable
from tupelo.federation.identity.keys import Identity, check_key, default_folder, key_text, verify

POSIX_ONLY = pytest.mark.skipif(os.name != "posix", reason="needs the modes of POSIX files")

WITHOUT_PACKAGES = """
import sys
sys.modules["cryptography"] = sys.modules["zeroconf"] = None  # as if they were not installed
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def run(code: str, *args: str) -> str:
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_every_new_identity_is_another():
    assert Identity.new().key != Identity.new().key


def test_an_identity_is_made_on_first_use_and_found_again(tmp_path):
    path = tmp_path / "deep" / "down" / "identity.pem"
    made = Identity.at(path)
    assert Identity.at(path).key == Identity.at(str(path)).key == made.key
    assert verify(made.key, b"data", Identity.at(path).sign(b"data"))
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.pem"]


@POSIX_ONLY
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_the_file_and_its_folder_are_private(tmp_path, umask):
    path = tmp_path / "home" / "identity.pem"
    before = os.umask(umask)
    try:
        Identity.at(path)
    finally:
        os.umask(before)
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700


@POSIX_ONLY
@pytest.mark.parametrize("open_mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_is_open_to_others_is_not_used(tmp_path, open_mode):
    path = tmp_path / "identity.pem"
    key = Identity.at(path).key
    path.chmod(open_mode)
    with pytest.raises(IdentityUnusable, match=f"chmod 600 {path}"):
        Identity.at(path)
    assert mode(path) == open_mode
    path.chmod(0o600)
    assert Identity.at(path).key == key


RSA_KEY = "an RSA key"


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b"torn", RSA_KEY])
def test_a_damaged_file_is_refused_and_left_as_it_was(tmp_path, damage):
    path = tmp_path / "identity.pem"
    pem = Identity.at(path).private_pem()
    content = {b"torn": pem[:70], RSA_KEY: rsa_pem()}.get(damage, damage)
    path.write_bytes(content)
    with pytest.raises(IdentityUnusable, match=str(path)):
        Identity.at(path)
    assert path.read_bytes() == content


def rsa_pem() -> bytes:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_a_key_behind_a_password_is_refused(tmp_path):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
    )

    path = tmp_path / "identity.pem"
    encrypted = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    path.touch(0o600)
    path.write_bytes(encrypted)
    with pytest.raises(IdentityUnusable, match=str(path)):
        Identity.at(path)


def test_a_place_where_no_file_can_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(IdentityUnusable, match="cannot be used"):
        Identity.at(tmp_path / "file" / "identity.pem")
    with pytest.raises(IdentityUnusable, match=str(tmp_path)):
        Identity.at(tmp_path)


def test_processes_that_start_at_once_agree_on_one_identity(tmp_path, program):
    path = tmp_path / "home" / "identity.pem"
    code = """
import sys
from pathlib import Path
from tupelo.federation.identity.keys import Identity
Identity.new()  # what takes long is over before the start
print("ready", flush=True)
sys.stdin.readline()
print(Identity.at(Path(sys.argv[1])).key)
"""
    programs = [program(code, path) for _ in range(4)]
    assert [one.line() for one in programs] == ["ready"] * 4
    for one in programs:
        one.tell("go")
    assert {one.line() for one in programs} == {Identity.at(path).key}
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.pem"]


def test_threads_that_start_at_once_agree_on_one_identity(tmp_path, later):
    for turn in range(20):
        path = tmp_path / str(turn) / "identity.pem"
        barrier = threading.Barrier(4, timeout=10)

        def make(path: Path = path, barrier: threading.Barrier = barrier) -> str:
            barrier.wait()
            return Identity.at(path).key

        calls = [later(make) for _ in range(4)]
        assert {call.result() for call in calls} == {Identity.at(path).key}


def test_a_signature_counts_for_its_key_and_data_only():
    one, other = Identity.new(), Identity.new()
    signature = one.sign(b"data")
    assert verify(one.key, b"data", signature)
    assert not verify(other.key, b"data", signature)
    assert not verify(one.key, b"other data", signature)
    assert not verify(one.key, b"data", signature[:-1])
    assert not verify(one.key, b"data", b"")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ed25519:",
        "ed25519:zz",
        "rsa:" + "0" * 64,
        "ed25519:" + "A" * 64,
        "ed25519:" + "0" * 63,
        "ed25519:" + "0" * 64 + "\n",
        "ed25519:" + "٣" * 64,
        None,
        b"x",
        3,
    ],
)
def test_what_is_no_key_verifies_nothing_and_is_refused_by_name(key):
    assert not verify(key, b"data", b"\0" * 64)
    with pytest.raises(BadArgument, match=r"^peer= must be an identity"):
        check_key(key, "peer")


@given(st.binary(min_size=32, max_size=32))
def test_every_public_key_has_a_text(public):
    text = key_text(public)
    assert check_key(text) == text
    assert not verify(text, b"data", b"")


@given(st.text(max_size=100))
def test_any_other_text_is_no_key(text):
    assert not verify(text, b"data", b"")
    with pytest.raises(BadArgument):
        check_key(text)


def test_the_private_key_is_not_shown():
    identity = Identity.new()
    assert repr(identity) == f"Identity({identity.key!r})"


def test_the_folder_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TUPELO_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert default_folder() == tmp_path / ".config" / "tupelo"
    monkeypatch.setenv("XDG_CONFIG_HOME", "not/absolute")
    assert default_folder() == tmp_path / ".config" / "tupelo"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert default_folder() == tmp_path / "xdg" / "tupelo"
    monkeypatch.setenv("TUPELO_HOME", "~/mine")
    assert default_folder() == tmp_path / "mine"


def test_without_the_optional_packages_a_program_is_told_what_to_install(tmp_path):
    path = tmp_path / "identity.pem"
    Identity.at(path)
    code = """
import asyncio
from pathlib import Path
from tupelo.errors import CannotReach, IdentityUnusable
from tupelo.federation.identity import access
from tupelo.federation.links import address
from tupelo.federation.hosts import discovery
from tupelo.federation.identity import keys as identity
from tupelo.federation.identity import tls
from tupelo.federation.identity import trust
def found(*args): ...
network = discovery.Discovery(
    host_id="a", name="a", port=1, version=1, found=found, gone=found
)
for attempt in (
    identity.Identity.new,
    lambda: identity.Identity.at(Path(sys.argv[1])),
    lambda: identity.verify("ed25519:" + "0" * 64, b"", b""),
    lambda: asyncio.run(network.start()),
):
    try:
        attempt()
    except (CannotReach, IdentityUnusable) as error:
        print(error)
access.Access(write=["ed25519:" + "0" * 64]).check("read", "jobs", None, False)
trust.Trust.anyone().check("kitchen", "ed25519:" + "0" * 64, 0.0)
print("done")
"""
    lines = run(WITHOUT_PACKAGES + code, str(path)).splitlines()
    assert len(lines) == 5
    assert all('pip install "tupelo[hosts]"' in line for line in lines[:-1])
    assert lines[-1] == "done"
