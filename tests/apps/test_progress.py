"""The progress bar of long commands: on a terminal, and nowhere else."""

import os
import subprocess
import sys

import pytest

import tupelo

PROGRAM = """
import sys
from tupelo.apps import progress
from tupelo.apps.cli import main
progress.SHOWN_AFTER_SECONDS = 0.0  # else only work that takes two seconds has a bar
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("command", ["check", "backup", "restore", "repair"])
def test_a_bar_is_shown_on_a_terminal_only(command, tmp_path):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("n", number) for number in range(10_000)])
    there = {"check": [], "repair": []}.get(command, [str(tmp_path / "one")])
    on_terminal = run([command, str(path), *there], terminal=True)
    assert "jobs.tupelo" in on_terminal and "%" in on_terminal
    there = {"check": [], "repair": []}.get(command, [str(tmp_path / "two")])
    assert run([command, str(path), *there], terminal=False) == ""


def run(arguments: list[str], terminal: bool) -> str:
    """Run a command; returns what it wrote to stderr."""
    reading, writing = os.openpty() if terminal else os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=writing,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(writing)
        said = b""
        try:
            while part := os.read(reading, 65_536):
                said += part
        except OSError:  # the end of a pseudo-terminal
            pass
        os.close(reading)
    assert process.returncode == 0, said
    return said.decode()
