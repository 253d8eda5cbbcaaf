"""Trust: anyone, a list of known identities, or who came first under a name."""

import logging
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupelo.errors import BadArgument, IdentityChanged, IdentityUnusable, Stranger
from tupelo.federation.identity import trust
from tupelo.federation.identity.trust import Trust

NOW = 1_000.0
ALICE, BOB, EVE = ("ed25519:" + digit * 64 for digit in "abe")


def test_anyone_is_anyone():
    Trust.anyone().check("kitchen", ALICE, NOW)
    Trust.anyone().check("kitchen", EVE, NOW)


def test_only_known_identities_may_be_met(caplog):
    known = Trust.known([ALICE, BOB])
    known.check("kitchen", ALICE, NOW)
    known.check("hall", BOB, NOW)
    with (
        caplog.at_level(logging.WARNING, "tupelo"),
        pytest.raises(Stranger, match=f"'cellar' has the identity {EVE}"),
    ):
        known.check("cellar", EVE, NOW)
    assert EVE in caplog.text


def test_nobody_is_known_by_an_empty_list():
    with pytest.raises(Stranger):
        Trust.known([]).check("kitchen", ALICE, NOW)


@pytest.mark.parametrize("keys", [ALICE, ["kitchen"], [None], [ALICE, ""]])
def test_a_list_of_what_are_no_identities_is_refused(keys):
    with pytest.raises(BadArgument, match=r"^keys="):
        Trust.known(keys)


def test_the_first_under_a_name_is_remembered(tmp_path, caplog):
    path = tmp_path / "home" / "known"
    Trust.on_first_use(path).check("kitchen:7700", ALICE, NOW)
    again = Trust.on_first_use(path)
    again.check("kitchen:7700", ALICE, NOW)
    again.check("hall:7700", BOB, NOW)
    with (
        caplog.at_level(logging.WARNING, "tupelo"),
        pytest.raises(IdentityChanged) as refused,
    ):
        again.check("kitchen:7700", EVE, NOW)
    for word in (ALICE, EVE, "kitchen:7700", str(path), "remove the line"):
        assert word in str(refused.value)
    assert EVE in caplog.text
    again.check("kitchen:7700", ALICE, NOW)
    assert path.read_text("utf-8") == f"kitchen:7700 {ALICE}\nhall:7700 {BOB}\n"


def test_who_has_a_new_identity_is_met_again_when_its_line_is_removed(tmp_path):
    path = tmp_path / "known"
    remembers = Trust.on_first_use(path)
    remembers.check("kitchen", ALICE, NOW)
    remembers.check("hall", BOB, NOW)
    path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[1:]), "utf-8")
    remembers.check("kitchen", EVE, NOW)
    remembers.check("hall", BOB, NOW)
    with pytest.raises(IdentityChanged):
        remembers.check("kitchen", ALICE, NOW)


def test_a_file_may_be_written_by_hand(tmp_path):
    path = tmp_path / "known"
    path.touch(0o600)
    path.write_text(f"# ours\n\n  küche   {ALICE}  \r\nhall {BOB}", "utf-8")  # and no line end
    remembers = Trust.on_first_use(path)
    remembers.check("küche", ALICE, NOW)
    with pytest.raises(IdentityChanged):
        remembers.check("küche", EVE, NOW)
    remembers.check("cellar", EVE, NOW)
    remembers.check("hall", BOB, NOW)
    with pytest.raises(IdentityChanged):
        remembers.check("cellar", BOB, NOW)


@pytest.mark.skipif(os.name != "posix", reason="needs the modes of POSIX files")
def test_the_file_is_private_and_not_used_if_others_may_write_it(tmp_path):
    path = tmp_path / "home" / "known"
    remembers = Trust.on_first_use(path)
    remembers.check("kitchen", ALICE, NOW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(IdentityUnusable, match=f"chmod 600 {path}"):
            remembers.check("kitchen", ALICE, NOW)


@pytest.mark.parametrize(
    "line",
    [
        b"kitchen",
        b"kitchen ed25519:aa",
        f"a b {ALICE}".encode(),
        b"\x00\xff\xfe",
        b"x" * 9000,
        f"{'x' * 5000} {ALICE}".encode(),
    ],
)
def test_a_damaged_file_is_not_used_and_left_as_it_was(tmp_path, line):
    path = tmp_path / "known"
    path.touch(0o600)
    content = f"hall {BOB}\n".encode() + line + b"\n"
    path.write_bytes(content)
    for name in ("kitchen", "hall"):
        with pytest.raises(IdentityUnusable, match=f"line 2 of {path}"):
            Trust.on_first_use(path).check(name, BOB, NOW)
    assert path.read_bytes() == content


def test_a_place_where_no_file_can_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "known"):
        with pytest.raises(IdentityUnusable, match=str(path)):
            Trust.on_first_use(path).check("kitchen", ALICE, NOW)


@pytest.mark.parametrize("name", ["", "x" * 256, "\ud800", None, 3])
def test_a_name_that_cannot_be_remembered_is_refused(tmp_path, name):
    path = tmp_path / "known"
    with pytest.raises(BadArgument, match=r"^name="):
        Trust.on_first_use(path).check(name, ALICE, NOW)
    assert not path.exists()


def test_what_is_no_identity_is_not_remembered(tmp_path):
    path = tmp_path / "known"
    with pytest.raises(BadArgument, match=r"^key="):
        Trust.on_first_use(path).check("kitchen", f"x\nhall {EVE}", NOW)
    assert not path.exists()


def test_nobody_can_fill_the_disk_with_names(tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "NAMES_MAX", 3)
    remembers = Trust.on_first_use(tmp_path / "known")
    for name in ("a", "b", "c"):
        remembers.check(name, ALICE, NOW)
    with pytest.raises(Stranger, match="3 names already"):
        remembers.check("d", ALICE, NOW)
    remembers.check("c", ALICE, NOW)


@given(
    names=st.lists(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=255), min_size=1, unique=True
    )
)
def test_no_name_is_taken_for_another(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("trust") / "known"
    remembers = Trust.on_first_use(path)
    keys = {name: f"ed25519:{number:064x}" for number, name in enumerate(names)}
    for name, key in keys.items():
        remembers.check(name, key, NOW)
    for name, key in keys.items():
        remembers.check(name, key, NOW)
        with pytest.raises(IdentityChanged):
            remembers.check(name, EVE, NOW)


def test_of_those_who_come_at_once_under_one_name_one_is_remembered(tmp_path, later):
    for turn in range(20):
        path = tmp_path / str(turn)
        barrier = threading.Barrier(3, timeout=10)

        def meet(key: str, path: Path = path, barrier: threading.Barrier = barrier) -> str | None:
            barrier.wait()
            try:
                Trust.on_first_use(path).check("kitchen", key, NOW)
            except IdentityChanged:
                return None
            return key

        calls = [later(meet, key) for key in (ALICE, BOB, EVE)]
        (met,) = filter(None, [call.result() for call in calls])
        Trust.on_first_use(path).check("kitchen", met, NOW)


def test_several_processes_may_remember_at_once(tmp_path, program):
    path = tmp_path / "known"
    code = """
import sys
from pathlib import Path
from tupelo.federation.identity.trust import Trust
for number in range(50):
    key = f"ed25519:{number:064x}"
    Trust.on_first_use(Path(sys.argv[1])).check(f"{sys.argv[2]}-{number}", key, 0.0)
    Trust.on_first_use(Path(sys.argv[1])).check(f"shared-{number}", key, 0.0)
"""
    programs = [program(code, path, name) for name in ("one", "two", "three")]
    assert [one.output() for one in programs] == [[], [], []]
    for name in ("one", "two", "three", "shared"):
        for number in range(50):
            with pytest.raises(IdentityChanged):
                Trust.on_first_use(path).check(f"{name}-{number}", EVE, NOW)
