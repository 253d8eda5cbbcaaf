"""The prompt of `tupelo sql`, as someone types at it: on a terminal, and in a pipe."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tupelo

PATIENCE_SECONDS = 240.0  # Spark starts slowly on a busy machine.
COMMAND = [sys.executable, "-m", "tupelo.apps.cli", "sql"]


@pytest.fixture
def file(tmp_path):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo", agent="me") as space:
        space.write_all([("job", n) for n in range(7)])
        space.take_all(("job", int), limit=3)
    return tmp_path / "jobs.tupelo"


class Terminal:
    """A prompt at a terminal of its own."""

    def __init__(self, *arguments: object, state: Path, command: Sequence[str] = COMMAND) -> None:
        self._end, other = pty.openpty()
        environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "dumb"}
        self._child = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdin=other,
            stdout=other,
            stderr=other,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # for Ctrl-C
        )
        os.close(other)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._all = self._shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.kill()
        self._child.wait()
        os.close(self._end)

    def until(self, text: str) -> str:
        """Wait for this text; returns what was shown up to it, and goes on after it."""
        end = time.monotonic() + PATIENCE_SECONDS
        while text not in self._shown:
            assert self._read(end), f"it ended before {text!r}; shown so far:\n{self._all}"
        before, _, self._shown = self._shown.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def code(self) -> int:
        end = time.monotonic() + PATIENCE_SECONDS
        while self._read(end):
            pass
        return self._child.wait()

    def _read(self, end: float) -> bool:
        """Take what is shown next; whether there was something."""
        ready, _, _ = select.select([self._end], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"nothing more was shown in time; so far:\n{self._all}"
        try:
            read = self._decoder.decode(os.read(self._end, 65_536))
        except OSError:  # all that could write have ended
            return False
        self._all += read
        self._shown += read
        return True


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_a_conversation(file, tmp_path, engine):
    state = tmp_path / "state"
    with Terminal("--on", file, "--engine", engine, state=state) as terminal:
        terminal.until("3 tables, 10 changes")
        terminal.until("sql> ")
        terminal.type("select kind, count(*) as c\n")
        terminal.until("...> ")
        terminal.type("from jobs group by kind order by kind;\n")
        answer = terminal.until("sql> ")
        assert [
            line.split() for line in answer.splitlines() if "taken" in line or "written" in line
        ] == [
            ["taken", "3"],
            ["written", "7"],
        ]
        terminal.type(".tables\n")
        assert "entries" in terminal.until("sql> ")
        terminal.type(".schema jobs\n")
        assert "the entry as JSON" in terminal.until("sql> ")
        terminal.type("select nothing from jobs;\n")
        assert "tupelo: " in terminal.until("sql> ")
        terminal.type(".nonsense\n")
        assert ".tables, .schema, .help or .quit" in terminal.until("sql> ")
        terminal.type("select what was\n")
        terminal.until("...> ")
        terminal.type("\x03")  # Ctrl-C
        terminal.until("sql> ")
        terminal.type("\x04")  # Ctrl-D
        assert terminal.code() == 0
    kept = (state / "tupelo" / "sql_history").read_text().splitlines()
    assert kept[0] == "select kind, count(*) as c from jobs group by kind order by kind;"
    assert kept[1:] == [".tables", ".schema jobs", "select nothing from jobs;", ".nonsense"]


INTERRUPTED = """
import ctypes, functools, readline
# Called between the prompt and the wait for a key.
readline.set_pre_input_hook(functools.partial(ctypes.CDLL(None)["raise"], 2))
import runpy
runpy.run_module("tupelo.apps.cli", run_name="__main__")
"""


def test_no_interrupt_is_overlooked(file, tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, "sql"]
    with Terminal("--on", file, state=tmp_path / "state", command=command) as terminal:
        for _ in range(5):
            terminal.until("sql> ")


def test_what_was_asked_before_comes_back(file, tmp_path):
    for typed in ("select 40 + 2 as answer;\n", "\x10\n"):  # Ctrl-P
        with Terminal("--on", file, state=tmp_path / "state") as terminal:
            terminal.until("sql> ")
            terminal.type(typed)
            assert "42" in terminal.until("sql> ")
            terminal.type(".quit\n")
            assert terminal.code() == 0


def piped(text: str, *arguments: object) -> Any:
    given = [*COMMAND, *map(str, arguments)]
    return subprocess.run(given, input=text, capture_output=True, text=True)


def test_statements_in_a_pipe(file):
    done = piped(
        "select count(*) as c\nfrom jobs;\n\n-- the last\nselect count(*) as c from entries",
        *("--on", file, "--format", "csv"),
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "c\n10\nc\n4\n")
    done = piped("select 1 as a;\nselec 2;\nselect 3;\n", "--on", file, "--format", "csv")
    assert (done.returncode, done.stdout) == (1, "a\n1\n")
    assert "STATEMENT must be a question" in done.stderr
