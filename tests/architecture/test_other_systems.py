"""What a program does without the modules and functions that not every system has."""

import subprocess
import sys

import pytest

WITHOUT_UVLOOP = """
import sys
sys.modules["uvloop"] = None
"""
AS_ON_WINDOWS = """
import asyncio, os, select, signal, socket, subprocess, sys, tempfile, types
import click, uvicorn  # They have code of their own for Windows, which needs Windows.
for name in ("uvloop", "resource"):
    sys.modules[name] = None
import fcntl

def locking(handle, mode, count):  # as msvcrt has it: a file that is locked is an OSError
    real.flock(handle, real.LOCK_EX | real.LOCK_NB)

real = fcntl
sys.modules["fcntl"] = None
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
for module, names in (
    (os, "O_CLOEXEC memfd_create register_at_fork fork getuid geteuid killpg"),
    (select, "poll epoll"),
    (signal, "SIGHUP SIGKILL"),
):
    for name in names.split():
        delattr(module, name)
asyncio.ProactorEventLoop = asyncio.SelectorEventLoop  # which uvicorn takes on Windows
sys.platform = "win32"
"""
PROGRAM = """
import tupelo
from tupelo.apps.console import Console
from tupelo.queue import JobQueue

path = sys.argv[1]
with tupelo.Space("jobs", path=f"{path}/jobs.tupelo") as space:
    space.write(("a", 1))
    try:
        tupelo.Space("jobs", path=f"{path}/jobs.tupelo")
    except tupelo.errors.TupeloError as error:
        print(type(error).__name__)
with tupelo.Space("jobs", path=f"{path}/jobs.tupelo") as space:
    print(space.take(("a", int)))
identity = tupelo.Identity.at(f"{path}/key")
with (
    tupelo.Host("h", listen=0, path=f"{path}/h", identity=identity) as host,
    tupelo.connect(f"{host.url}jobs") as space,
    Console(host.url) as console,
):
    queue = JobQueue(space)
    queue.task(name="upper")(str.upper)
    job = queue.submit("upper", "b")
    queue.work(until_empty=True)
    print(job.result(0), console.url.startswith("http://127.0.0.1:"))
sys.argv = ["tupelo", "count", f"{path}/jobs.tupelo"]
from tupelo.apps.cli import main
main()
"""


@pytest.mark.parametrize("system", [WITHOUT_UVLOOP, AS_ON_WINDOWS], ids=["no uvloop", "Windows"])
def test_spaces_hosts_and_commands_need_no_module_of_one_system_only(system, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", system + PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split("\n"), done.stderr) == (
        ["SpaceInUse", "('a', 1)", "B True", "0", ""],
        "",
    )
