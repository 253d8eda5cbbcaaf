"""What an operator runs: backup, restore, repair, doctor, identity and top."""

import json
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tupelo as package
from tupelo import Access, Host, Space


def lines(result: subprocess.CompletedProcess[str]) -> list[Any]:
    assert (result.returncode, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def host(tmp_path):
    with Host("kitchen", listen="127.0.0.1:0", path=tmp_path / "kitchen") as host:
        host.space("jobs").write_all([("job", 1), ("job", 2)])
        host.space("news/today", access=Access(password="tea")).write(("news", 1))
        yield host


def spoil(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("UPDATE change SET payload = x'00' WHERE position = 2")
    db.close()


# Backup, restore and repair


@pytest.mark.parametrize("by", ["url", "folder"])
def test_a_host_is_backed_up_while_it_runs_and_restored_elsewhere(by, host, tupelo, tmp_path):
    source = host.url if by == "url" else tmp_path / "kitchen"
    copied = lines(tupelo("backup", source, tmp_path / "monday"))
    assert {Path(one["file"]).name for one in copied} >= {"jobs.tupelo", "news%2Ftoday.tupelo"}
    host.space("jobs").take_all()
    lines(tupelo("restore", tmp_path / "monday", tmp_path / "again"))
    for file in (tmp_path / "again").glob("*.tupelo"):
        assert tupelo("check", file).returncode == 0
    with Host("kitchen", listen="127.0.0.1:0", path=tmp_path / "again") as restored:
        assert restored.id == host.id
        assert restored.space("jobs").read_all() == [("job", 1), ("job", 2)]
        with pytest.raises(package.errors.NotAllowed):  # Its password is not in its file.
            package.connect(restored.url + "news%2Ftoday")
    assert stat.S_IMODE((tmp_path / "again").stat().st_mode) == 0o700


def test_one_space_of_a_host_is_backed_up(host, tupelo, tmp_path):
    [copied] = lines(tupelo("backup", host.url + "jobs", tmp_path / "jobs.tupelo"))
    assert copied["file"] == str(tmp_path / "jobs.tupelo")
    assert tupelo("count", tmp_path / "jobs.tupelo").stdout == "2\n"


def test_nothing_is_overwritten(host, tupelo, tmp_path):
    (tmp_path / "monday").mkdir()
    for command in ("backup", "restore"):
        result = tupelo(command, tmp_path / "kitchen", tmp_path / "monday")
        assert result.returncode == 1 and result.stdout == ""
        assert result.stderr.startswith("tupelo: TO must be a name that is free; ")
    assert list((tmp_path / "monday").iterdir()) == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("absent.tupelo", "absent.tupelo does not exist"),
        ("tupelo://127.0.0.1:1", "cannot be reached"),
        ("empty", "must be the folder of a host"),
    ],
)
def test_what_cannot_be_backed_up_is_said_in_one_line(source, said, tupelo, tmp_path):
    (tmp_path / "empty").mkdir()
    result = tupelo("backup", source, "to")
    assert (result.returncode, result.stdout) == (1, "")
    assert said in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "to").exists()


def test_a_host_in_memory_cannot_be_backed_up(tupelo):
    with Host("kitchen", listen="127.0.0.1:0") as host:
        result = tupelo("backup", host.url, "to")
    assert result.returncode == 1 and "keeps its spaces in memory" in result.stderr


def test_a_damaged_space_of_a_running_host_is_repaired(tmp_path, start, tupelo):
    folder = tmp_path / "kitchen"
    with Host("kitchen", path=folder) as host:
        for name in ("jobs", "news"):
            host.space(name).write_all([("n", 1), ("n", 2)])
    spoil(folder / "jobs.tupelo")
    running = start("kitchen", "--listen", "127.0.0.1:0", "--path", str(folder))
    assert tupelo("count", running.url + "news").stdout == "2\n"
    result = tupelo("count", running.url + "jobs")
    assert result.returncode == 1 and "is set aside" in result.stderr
    [found] = [
        json.loads(line)
        for line in tupelo("doctor", running.url).stdout.splitlines()
        if running.url in line
    ]
    assert found["state"] == "bad" and "jobs: " in found["found"]
    states = {Path(one["file"]).name: one for one in lines(tupelo("repair", folder))}
    assert states["jobs.tupelo"]["state"] == "repaired" and len(states["jobs.tupelo"]["lost"]) == 1
    assert states["news.tupelo"]["state"] == "in use"
    assert tupelo("count", running.url + "jobs").stdout == "1\n"
    assert (folder / "jobs.tupelo.damaged-1").exists()


def test_repair_leaves_good_and_foreign_files_alone(tmp_path, tupelo):
    good, foreign = tmp_path / "good.tupelo", tmp_path / "foreign.tupelo"
    with Space("good", path=good) as space:
        space.write(("n", 1))
    before = good.read_bytes()
    assert lines(tupelo("repair", good)) == [{"file": str(good), "state": "good", "lost": []}]
    foreign.write_text("Dear diary")
    result = tupelo("repair", tmp_path)
    assert result.returncode == 1 and "is not a Tupelo journal" in result.stderr
    assert good.read_bytes() == before and foreign.read_text() == "Dear diary"
    assert tupelo("repair", tmp_path / "absent").returncode == 1


# This machine, and a host


def test_doctor_says_what_works_and_how_to_get_the_rest(tupelo, run, host):
    found = {one["what"]: one for one in lines(tupelo("doctor", host.url))}
    assert found["python"]["state"] == "ok" and found[host.url]["state"] == "ok"
    assert {"hosts", "console", "pipeline", "java", "chromium", "clock"} <= set(found)
    assert all(one["fix"] for one in found.values() if one["state"] != "ok")
    hidden = "import sys; sys.modules['zeroconf'] = sys.modules['pyspark'] = None;"
    text = run("-c", f"{hidden} from tupelo.apps.cli import main; main()", "doctor", "--text")
    assert text.returncode == 0
    assert 'pip install "tupelo[hosts]"' in text.stdout
    assert 'pip install "tupelo[pipeline]"' in text.stdout


def test_doctor_says_that_a_host_does_not_answer(tupelo):
    result = tupelo("doctor", "tupelo://127.0.0.1:1")
    assert result.returncode == 1 and result.stderr == ""
    assert json.loads(result.stdout.splitlines()[-1])["state"] == "bad"


def test_an_identity_is_made_once_and_shown(tupelo, tmp_path):
    home = {"TUPELO_HOME": str(tmp_path / "home")}
    result = tupelo("identity", **home)
    assert result.returncode == 1 and "--create makes an identity there" in result.stderr
    [made] = lines(tupelo("identity", "--create", **home))
    assert made["file"] == str(tmp_path / "home" / "identity.pem")
    assert lines(tupelo("identity", "--create", **home)) == [made]
    assert tupelo("identity", "--text", **home).stdout == made["identity"] + "\n"
    (tmp_path / "known").write_text(made["identity"] + "\n")
    assert tupelo("count", "absent", "--trust", tmp_path / "known", **home).returncode == 1
    (tmp_path / "spoiled").write_text("no key")
    result = tupelo("identity", tmp_path / "spoiled")
    assert result.returncode == 1 and result.stderr.count("\n") == 1


def test_top_counts_what_goes_on(host, tupelo, until):
    command = [sys.executable, "-m", "tupelo", "top", host.url, "--interval", "0.1"]
    jobs = host.space("jobs")
    with (
        package.connect(host.url + "jobs") as remote,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top,
        remote.transaction() as txn,
    ):
        remote.take(("job", 1), txn=txn)
        jobs.write(("more", 1))
        assert top.stdout is not None
        seen: dict[str, Any] = {}
        for line in top.stdout:
            said = json.loads(line)
            seen = {one["space"]: one for one in said["spaces"]}
            if seen["jobs"]["changes/s"] is not None and seen["jobs"]["transactions"]:
                break
        top.terminate()
    assert said["host"] == "kitchen" and said["clients"] >= 1
    assert seen["jobs"]["transactions"] == 1 and seen["jobs"]["health"] == "ok"
    assert "password" in seen["news/today"]["refused"]


def test_top_shows_a_table_and_stops(host, tupelo):
    result = tupelo("top", host.url, "--text", "--count", 2, "--interval", 0.1)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("kitchen at ") == 2 and "refused" in result.stdout
    assert tupelo("top", host.url, "--interval", 0).returncode == 2
    assert tupelo("top", "tupelo://127.0.0.1:1").returncode == 1
