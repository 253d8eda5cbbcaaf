"""What all tests share: a clock that is moved by hand, and calls that wait in threads of their own.

Hypothesis plays the same examples in every run; `HYPOTHESIS_PROFILE=explore` looks for new ones.
`TUPELO_SEEDS=1000` makes so many random runs of each simulation, instead of a few.
"""

import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import tupelo
from tests.laws.doors import LoopThread
from tupelo.space.port import port_of

settings.register_profile("replay", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "replay"))

# A shell lets what it starts in the background ignore Ctrl-C, which some tests send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where Python may not write bytecode beside the sources, each worker would compile all tests again,
# and each process that a test starts all of Tupelo.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(tempfile.gettempdir(), "tupelo-tests-bytecode"))
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# Spark runs for seconds in a test: its optimizing compiler would cost more than it gains.
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

PATIENCE_SECONDS = 60.0

TOGETHER = re.compile(
    r"(?P<cluster>tests/pipeline/test_cluster)"
    r"|(?P<spark>tests/pipeline/(jobs/|test_(connect|database_on|engines|lasting|pushdown|recording"
    r"|report|sink_on|source_on|sql|starting))|test_a_program_runs.*\bpipeline\b|test_examples.*\bsensors\b)"
    r"|(?P<browser>tests/apps/console/test_(page|whiteboard|jigsaw|history))"
    r"|(?P<fuzz>tests/apps/console/test_fuzz)",
    re.IGNORECASE,
)
"""Tests that share what takes long to start."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> object:
    """Where tests run side by side, those that share a Spark or a browser stay together. The
    largest group begins first: those on Spark. The cluster has processes of its own, and would
    make that group the last to end."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            shared = TOGETHER.search(nodeid)
            return str(shared.lastgroup) if shared else nodeid

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            super().mark_test_complete(node, item_index, duration)
            # Else every test looks through all that were run before it: minutes, for 20,000.
            scope = self._split_scope(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][scope].values()):
                del self.assigned_work[node][scope]

    return Scheduling(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before workers that run side by side collect the tests, each compiles its share of them:
    else each would compile all of them, since they go through them in step."""
    folder = Path(__file__).parent
    share = getattr(session.config, "workerinput", None)
    if share is None or [Path(name).resolve() for name in session.config.args] != [folder]:
        return
    first, step = int(share["workerid"].removeprefix("gw")), share["workercount"]
    for file in sorted(folder.rglob("test_*.py"))[first::step]:
        name = ".".join(file.relative_to(session.config.rootpath).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):  # The collection will tell.
            import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Nothing of what is collected is garbage: it is not looked for then, nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Each test runs in a context of its own: what a command or a model sets there (stand-ins for
    unknown classes, the agent that acts) does not reach the next test."""
    for item in items:
        if isinstance(item, pytest.Function):
            item.obj = _in_its_context(item.obj)


def _in_its_context(test: Callable[..., object]) -> Callable[..., object]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> object:
        return copy_context().run(test, *args, **kwargs)

    return run


def pytest_unconfigure() -> None:
    gc.unfreeze()


class HandClock(tupelo.ManualClock):
    """A manual clock that counts who has gone to sleep on it, so that a test need not guess."""

    def __init__(self) -> None:
        super().__init__()
        self.sleepers = 0

    def call_at(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        cancel = super().call_at(when, callback)
        if getattr(callback, "__name__", "") != "_on_alarm":  # The space's own: for its leases.
            self.sleepers += 1
        return cancel


class Call(threading.Thread):
    """One call in a thread of its own; `result()` is its answer or raises its error."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(daemon=True)
        self._work: Callable[[], Any] = lambda: function(*args, **kwargs)
        self._answer: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._answer = self._work()
        except BaseException as error:
            self._error = error

    @property
    def waits(self) -> bool:
        return self.is_alive()

    def result(self) -> Any:
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive(), "the call still waits"
        if self._error is not None:
            raise self._error
        return self._answer


def until_true(condition: Callable[[], object], what: str = "it happens") -> None:
    """Look again and again until the condition holds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.0005)


def seeds(count: int) -> range:
    """The seeds of random runs: so many, or `TUPELO_SEEDS`."""
    return range(int(os.environ.get("TUPELO_SEEDS", count)))


def shown(value: object) -> str:
    """The name of a case: what it looks like, but not where it is in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def core_of(space: Any) -> Any:
    """The core of a space in this program, to see that nothing is left in it."""
    return port_of(space)._core


def parked_at(core: Any) -> int:
    """How many wait at a space, to read, take or write."""
    return len(list(core.waiting)) + len(list(core.waiting.writers))


def waiting_at(space: Any) -> int:
    """How many wait at a space of any kind. A session that spans hosts waits as a search."""
    with space._port.atomic():
        federation = getattr(space, "_federation", None)
        searches = [] if federation is None else list(federation.searches)
        reads = sum(search._question.session is not None for search in searches)
        return parked_at(space._port._core) + reads


def parked_call(space: Any, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    """Start an operation in a thread and come back when it has begun to wait at the space."""
    clock = space._port.clock
    waiting, sleepers = waiting_at(space), getattr(clock, "sleepers", 0)
    call = Call(operation, *args, **kwargs)

    def parked() -> bool:
        count = waiting_at(space)
        timed = kwargs.get("wait") is not None and hasattr(clock, "sleepers")
        return not call.waits or (
            count > waiting and (not timed or getattr(clock, "sleepers", 0) > sleepers)
        )

    until_true(parked, "the call waits")
    assert call.waits, f"the call did not wait: {call.result()!r}"
    return call


class Program(subprocess.Popen[str]):
    """Another Python program: its code, or arguments of the interpreter such as `["-m", module]`.
    It may be told lines, and says lines; it is killed at the end of a `with` block."""

    def __init__(self, code: str | list[str], *args: object) -> None:
        run = ["-c", textwrap.dedent(code)] if isinstance(code, str) else code
        super().__init__(
            [sys.executable, *run, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )

    def line(self) -> str:
        """The next line that it says."""
        assert self.stdout is not None
        line = self.stdout.readline()
        if not line:
            _, errors = self.communicate()
            raise AssertionError(f"the program ended: {errors}")
        return line.strip()

    def rest(self) -> list[str]:
        """The lines that it said before its end and that were not read."""
        assert self.stdout is not None
        return self.stdout.read().splitlines()

    def tell(self, line: str = "") -> None:
        print(line, file=self.stdin, flush=True)

    def output(self) -> list[str]:
        """The lines that it says until it ends, without an error."""
        out, errors = self.communicate(timeout=PATIENCE_SECONDS)
        assert self.returncode == 0, errors
        return out.splitlines()

    def __exit__(self, *error: object) -> None:
        self.kill()
        self.communicate()


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory, where that can be: few tests ask how long a disk takes."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture(scope="session")
def loop_thread():
    """A loop in a thread, for what is of the async door."""
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def host_thread():
    """A loop in a thread, for hosts elsewhere."""
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def folder():
    with memory_folder() as path:
        yield path


@pytest.fixture
def later():
    """`later(function, ...)` calls it in a thread."""
    return Call


@pytest.fixture
def park():
    """`park(space, space.take, template)` starts a call and returns when it waits."""
    return parked_call


@pytest.fixture
def until():
    return until_true


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """`program(code, *args)` starts one; those still running at the end are killed."""
    with ExitStack() as started:
        yield lambda *args: started.enter_context(Program(*args))


DISK_BYTES = 96 * 2**20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system can only be made by root, on Linux")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def leave_free(disk: Path, free: int) -> Path:
    """Fill the disk with a file, which is returned, until so many bytes are left."""
    ballast = disk / "ballast"
    with ballast.open("ab") as file:
        status = os.statvfs(disk)
        file.write(bytes(max(0, status.f_bavail * status.f_frsize - free)))
    return ballast
