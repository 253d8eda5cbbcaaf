"""Every command where something is wrong: an unknown option, a host that is not there, a busy port,
a full disk. It says so in a line, and its exit code tells."""

import socket
import subprocess
from contextvars import copy_context
from pathlib import Path

import pytest
from click.testing import CliRunner

import tupelo as package
from tests.conftest import leave_free
from tupelo.apps.commands import COMMANDS, OTHERS, app
from tupelo.queue import JobQueue

NAMES = [name for group in COMMANDS.values() for name in group]
NO_HOST = "tupelo://127.0.0.1:1"
AT_A_HOST = {
    "read": [f"{NO_HOST}/jobs"],
    "take": [f"{NO_HOST}/jobs", "ANY"],
    "write": [f"{NO_HOST}/jobs", "(1,)"],
    "count": [f"{NO_HOST}/jobs"],
    "watch": [f"{NO_HOST}/jobs"],
    "show": [f"{NO_HOST}/jobs"],
    "log": [f"{NO_HOST}/jobs"],
    "jobs": [f"{NO_HOST}/jobs"],
    "move": [f"{NO_HOST}/jobs", "to.tupelo"],
    "console": [NO_HOST],
    "spaces": [NO_HOST],
    "peers": [NO_HOST],
    "top": [NO_HOST],
    "backup": [NO_HOST, "to"],
    "doctor": [NO_HOST],
    "sql": ["select 1 from changes", "--on", f"{NO_HOST}/jobs"],
}
AT_NO_HOST = {"host", "work", "identity", "check", "restore", "repair", "store", "tour"}
PORT = "127.0.0.1:{port}"


def said_in_one_line(result: subprocess.CompletedProcess[str], *parts: str) -> bool:
    """Whether the command has failed, and printed one line that contains these parts."""
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("tupelo: ") and result.stderr.count("\n") == 1, result.stderr
    return all(part in result.stderr for part in parts)


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
def test_an_unknown_option_is_wrong_usage(name):
    result = copy_context().run(CliRunner().invoke, app, [name, "--nonsense"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "No such option" in result.stderr and "--nonsense" in result.stderr
    assert "Traceback" not in result.stderr


def test_every_command_that_meets_a_host_is_tried():
    assert set(AT_A_HOST) | AT_NO_HOST == {*NAMES, "sql"}


@pytest.mark.parametrize("name", AT_A_HOST)
def test_a_host_that_is_not_there(name, tupelo):
    result = tupelo(name, *AT_A_HOST[name])
    if name == "doctor":  # It goes on with what it finds.
        assert result.returncode == 1 and "cannot be reached" in result.stdout
    else:
        assert said_in_one_line(result, "127.0.0.1:1", "cannot be reached")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["host", "kitchen", "--listen", PORT], "choose another --listen"),
        (
            ["host", "kitchen", "--listen", "127.0.0.1:0", "--console", PORT],
            "--console must be an address that is free",
        ),
        (["console", "URL", "--listen", PORT], "--listen must be an address that is free"),
    ],
    ids=["host", "console of a host", "console"],
)
def test_a_busy_port(arguments, said, tupelo):
    with socket.create_server(("127.0.0.1", 0)) as taken, package.Host("h", listen=0) as host:
        port = taken.getsockname()[1]
        given = [host.url if one == "URL" else one.format(port=port) for one in arguments]
        assert said_in_one_line(tupelo(*given), f"127.0.0.1:{port}", said)


@pytest.fixture
def full(disk):
    """A full disk with a space, in which a job has failed for good."""
    with package.Space("jobs", path=disk / "jobs.tupelo") as space:
        queue = JobQueue(space)
        queue.task(name="fail", retries=0)(divmod)
        queue.submit("fail", 1, 0)
        queue.work(until_empty=True)
        space.write(("n", 1))
    return disk


@pytest.mark.parametrize("left_bytes", [0, 2**20])
@pytest.mark.parametrize(
    "arguments",
    [
        ["write", "DISK/jobs.tupelo", '("n", 2)'],
        ["take", "DISK/jobs.tupelo", "ANY"],
        ["jobs", "DISK/jobs.tupelo", "retry", "--all"],
        ["backup", "other.tupelo", "DISK/copy.tupelo"],
        ["restore", "other.tupelo", "DISK/copy.tupelo"],
        ["check", "other.tupelo", "--salvage", "DISK/copy.tupelo"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_full_disk(arguments, left_bytes, full, tupelo, tmp_path):
    with package.Space("other", path=tmp_path / "other.tupelo") as other:
        other.write_all([("n", n, "x" * 1000) for n in range(2000)])
    ballast = leave_free(full, left_bytes)
    before = files_in(full)
    result = tupelo(*[one.replace("DISK", str(full)) for one in arguments])
    lines = result.stderr.splitlines()  # The log of the space may come first.
    assert result.returncode == 1 and lines[-1].startswith("tupelo: ")
    assert all("disk is full" in line for line in lines)
    assert files_in(full) == before
    ballast.unlink()
    with package.Space(path=full / "jobs.tupelo") as space:
        assert space.count((str, int)) == 1
    assert len(tupelo("jobs", full / "jobs.tupelo", "dead").stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["identity", "--create", "DISK/new/key"], "new/key"),
        (["host", "kitchen", "--listen", "127.0.0.1:0", "--path", "DISK/kitchen"], "kitchen"),
    ],
    ids=["identity", "host"],
)
def test_no_room_for_a_small_file(arguments, file, full, tupelo):
    leave_free(full, 0)
    before = files_in(full)
    result = tupelo(*[one.replace("DISK", str(full)) for one in arguments])
    assert said_in_one_line(result, "No space left on device", str(full / file))
    assert files_in(full) == before


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
