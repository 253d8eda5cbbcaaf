"""`tupelo move`: from every kind of space to every kind, killed at its steps, and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

import tupelo
from tests.conftest import until_true
from tests.kinds import space_url
from tests.postgres.servers import Server
from tupelo.apps.commands import app
from tupelo.apps.moving import move_entries
from tupelo.apps.spaces import open_space
from tupelo.errors import SpaceFull

JOBS = 15
STRIDE, DATABASE_STRIDE, SAME_DATABASE_STRIDE = 29, 17, 4


@dataclass
class Base:
    size: int


@dataclass
class Sub(Base):
    note: str


@pytest.fixture(scope="module")
def elsewhere():
    server = Server(votes=True)
    yield server
    server.close()


@pytest.fixture
def place(request, tmp_path):
    """`place("file", "a")`: what `tupelo move` is told, and a function that opens the space."""
    host = tupelo.Host("kitchen", listen="127.0.0.1:0", path=tmp_path / "kitchen")

    def of(kind, name):
        if kind == "file":
            told = str(tmp_path / f"{name}.tupelo")
            return (
                told,
                lambda: (
                    open_space(Path(told)) if Path(told).exists() else tupelo.Space(name, path=told)
                ),
            )
        if kind == "database":
            told = space_url(f"{name} {tmp_path}")
            return told, lambda: tupelo.connect(told)
        if kind == "elsewhere":
            server = request.getfixturevalue("elsewhere")
            told = server.url(space=str(tmp_path))
            return told, lambda: tupelo.connect(told)
        told = f"tupelo://{host.address}/{name}"
        return told, lambda: tupelo.connect(told)

    yield of
    host.close()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tupelo", "move", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


KINDS = [
    ("file", "file"),
    ("file", "host"),
    ("host", "file"),
    ("host", "host"),
    ("file", "database"),
    ("database", "file"),
    ("host", "database"),
    ("database", "host"),
    ("database", "database"),
    ("database", "elsewhere"),
]


@pytest.mark.parametrize(("before", "after"), KINDS)
def test_everything_moves(place, before, after):
    source, open_source = place(before, "a")
    target, open_target = place(after, "b")
    with open_source() as space:
        space.write_all([("job", n) for n in range(JOBS)])
        space.write(Sub(7, "<b>"), lease=500)
        space.write(("bytes", b"\0\xff", 1, 1.0, True, None, (2, "x")))
    done = run(source, target)
    assert (done.returncode, done.stdout) == (0, f'{{"moved":{JOBS + 2},"left":0}}\n'), done.stderr
    with open_source() as space:
        assert space.count() == 0
    with open_target() as space:
        assert space.read_all(("job", int)) == [("job", n) for n in range(JOBS)]
        about: list[tupelo.About] = []
        assert space.read_all(Base, about=about) == [Sub(7, "<b>")]
        assert about[0].expires is not None
        (found,) = space.read_all(("bytes", bytes, *[tupelo.ANY] * 5))
        assert list(map(type, found)) == [str, bytes, int, float, bool, type(None), tuple]


CHILD = """
import os, signal, sys
from tupelo.apps import moving
from tupelo.apps.cli import main
steps = {
    "prepare", "record", "commit", "forget", "forget_soon", "flush", "ask",
    "_commit_link", "_prepare", "_notify", "settle_prepared", "forget_decision",
}
left = int(os.environ["KILL_AT"])
def step(frame, event, argument):
    global left
    code = frame.f_code
    if event in ("call", "return") and code.co_name in steps and "tupelo" in code.co_filename:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
moving.BATCH = 10
sys.setprofile(step)
sys.argv[1:1] = ["move"]
main()
"""


def moves_all(source: str, target: str) -> bool:
    """Run the command in this process. It says what it has left: the server of a database may not
    have noticed yet that a killed program is gone, and with it what that program had taken."""
    done = copy_context().run(CliRunner().invoke, app, ["move", source, target])
    assert done.exit_code == 0, done.output
    told: dict[str, int] = json.loads(done.stdout)
    return told["left"] == 0


@pytest.mark.parametrize(("before", "after"), KINDS)
def test_a_move_that_is_killed_goes_on(place, before, after):
    source, open_source = place(before, "a")
    target, open_target = place(after, "b")
    killed = 0
    strides = {0: STRIDE, 1: DATABASE_STRIDE, 2: SAME_DATABASE_STRIDE}  # fewer steps there
    stride = strides[(before, after).count("database")]
    for kill_at in count(1, stride):
        with open_source() as space:
            space.write_all([("job", n, kill_at) for n in range(JOBS)])
        child = subprocess.run(
            [sys.executable, "-c", CHILD, source, target],
            env={**os.environ, "KILL_AT": str(kill_at)},
            capture_output=True,
            text=True,
        )
        if child.returncode != -signal.SIGKILL:
            assert child.returncode == 0, child.stderr
            break
        killed += 1
        until_true(partial(moves_all, source, target), "nothing is left")
        with open_target() as space:
            assert space.take_all() == [("job", n, kill_at) for n in range(JOBS)]
        with open_source() as space:
            assert (space.count(), list(space.in_doubt())) == (0, [])
    assert killed > 1


def test_what_others_hold_is_left_and_said(place):
    source, open_source = place("host", "a")
    target, _ = place("file", "b")
    with open_source() as space, space.transaction() as txn:
        space.write_all([("job", 1), ("job", 2)])
        space.take(("job", 1), txn=txn)
        done = run(source, target)
        assert done.stdout == '{"moved":1,"left":1}\n'
        assert "1 entries are in the hands of others" in done.stderr


def test_a_full_target_keeps_the_rest_where_it_is(place):
    _, open_source = place("file", "a")
    with open_source() as source, tupelo.Space("small", capacity=tupelo.Capacity(30)) as target:
        source.write_all([("job", n) for n in range(10)])
        begin = lambda: tupelo.transaction(source, target)  # noqa: E731
        assert move_entries(source, target, begin, lambda *_: None) == 10
        source.write_all([("job", n) for n in range(21)])
        with pytest.raises(SpaceFull):
            move_entries(source, target, begin, lambda *_: None)
        assert (source.count(), target.count()) == (21, 10)


def test_refusals(place, tmp_path):
    source, open_source = place("host", "a")
    with open_source() as space:
        space.write(("job", 1))
    same = run(source, source.replace("127.0.0.1", "localhost"))
    assert (same.returncode, same.stderr) == (
        1,
        f"tupelo: TO must be another space than FROM, not "
        f"{source.replace('127.0.0.1', 'localhost')!r}\n",
    )
    missing = run(str(tmp_path / "none.tupelo"), source)
    assert (missing.returncode, "does not exist" in missing.stderr) == (1, True)
    unknown = run(source.replace("/a", "/typo"), source)
    assert (unknown.returncode, "typo" in unknown.stderr) == (1, True)
    with open_source() as space:
        assert space.count() == 1
