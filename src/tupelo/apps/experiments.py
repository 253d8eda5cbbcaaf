"""Experiments: programs that run on many hosts, start together, and report to one place.

This is the coordination framework of section 6.4 of MELON's dissertation, with the messages of its
table 6.1. Each host runs a `Client`. An `ExperimentCoordinator` at any host sends each kind of
client its program, waits until all are ready, starts them, collects their output in order, and
stops them.

A client runs programs, so it obeys one coordinator only, by its identity, and the coordinator
accepts messages from the identities of its clients only: all messages between them are directed.
Only the start signal, or its cancellation, is for all at once, and contains a name that is secret
until then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from uuid import uuid4

from tupelo.errors import BadArgument, HostClosed, TupeloError
from tupelo.federation.identity.keys import check_key
from tupelo.models.melon import Melon
from tupelo.space.query import check_wait
from tupelo.values.checks import check_text

STOP_SECONDS = 5.0
"""Seconds that a program has to end after the request to end; then it is killed."""
_LOOK_SECONDS = 0.02

# One experiment after another, each with a name of its own; the words are those of the table.
COMMAND = "command"  # experiment, client, for each kind: itself, program, arguments, ready
CONFIRM = "confirm"  # experiment, client, 0
GO = "go"  # experiment
RESULT = "result"  # experiment, client, line
DONE = "done"  # experiment, client, exit code
FINISHED = "finished"  # experiment, client; for all, in place of GO: experiment
DISMISSED = ""  # in place of a program


@dataclass(frozen=True)
class Program:
    """The program of a client. With a `ready` line, the program is started before the others,
    prints this line when it is ready, and gets a line "go" at the start of the experiment.
    Without it, the program is started at the start of the experiment."""

    arguments: Sequence[str]
    ready: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.arguments, str) or not _are_texts(self.arguments) or not self.arguments:
            wanted = "the program and its arguments: a list of texts"
            raise BadArgument("arguments", wanted, self.arguments)
        if not isinstance(self.ready, str):
            raise BadArgument("ready", "a line, or nothing", self.ready)


@dataclass
class ProgramResult:
    """The result of the program of one client: its output and exit code; None if the client did not
    answer."""

    lines: list[str] = field(default_factory=list)
    code: int | None = None
    stopped: bool = False
    """Whether the program was stopped because the time was over."""


class ExperimentCoordinator:
    """Runs experiments with `clients`: their names, and the identities of their hosts."""

    def __init__(self, melon: Melon, clients: Mapping[str, str]) -> None:
        _check_melon(melon)
        if not isinstance(clients, Mapping) or not _are_texts(clients):
            raise BadArgument("clients", "a dict of names and identities", clients)
        for key in clients.values():
            check_key(key, "clients")
        self._melon = melon
        self._clients = dict(clients)

    def run(
        self,
        programs: Mapping[str, Program],
        *,
        wait: float | None = None,
        ready_wait: float | None = None,
    ) -> dict[str, ProgramResult]:
        """Run the program of each kind of client, and return the outcomes. Programs that have not
        ended after `wait` seconds are stopped; clients that are not ready after `ready_wait`
        seconds are left out."""
        if not isinstance(programs, Mapping) or not all(
            isinstance(program, Program) for program in programs.values()
        ):
            raise BadArgument("programs", "a dict of kinds and their Program(...)", programs)
        check_wait(wait)
        check_wait(ready_wait, "ready_wait")
        experiment = uuid4().hex
        outcomes = {client: ProgramResult() for client in self._clients}
        gone = False
        try:
            self._command(experiment, programs)
            ready = self._await(CONFIRM, experiment, self._clients, ready_wait)
            self._melon.write((GO, experiment))
            gone = True
            done = self._await(DONE, experiment, ready, wait)
        finally:
            for client, key in self._clients.items():
                self._melon.store((FINISHED, experiment, client), to=key)
            if not gone:
                self._melon.write((FINISHED, experiment))
        late = [client for client in ready if client not in done]
        done |= self._await(DONE, experiment, late, 2 * STOP_SECONDS)
        for client, code in done.items():
            outcomes[client].code = code
            outcomes[client].stopped = client in late
        # Each client stored its lines before DONE, and the oldest come first.
        for client, key in self._clients.items():
            results = self._melon.take_all((RESULT, experiment, client, str), wait=0, sender=key)
            outcomes[client].lines += [line for *_, line in results]
        return outcomes

    def _command(self, experiment: str, programs: Mapping[str, Program]) -> None:
        parts = [
            [kind, program.arguments[0], list(program.arguments[1:]), program.ready]
            for kind, program in programs.items()
        ]
        for client, key in self._clients.items():
            self._melon.store((COMMAND, experiment, client, parts), to=key)

    def _await(
        self, word: str, experiment: str, clients: Iterable[str], wait: float | None
    ) -> dict[str, int]:
        """The messages of these clients that arrive in time."""
        until = None if wait is None else monotonic() + wait
        answers: dict[str, int] = {}
        for client in clients:
            left = None if until is None else max(0.0, until - monotonic())
            template = (word, experiment, client, int)
            found = self._melon.take(template, wait=left, sender=self._clients[client])
            if found is not None:
                answers[client] = found[3]
        return answers

    def dismiss(self, *kinds: str) -> None:
        """End the clients of these kinds."""
        self._command(uuid4().hex, {kind: Program([DISMISSED]) for kind in kinds})


class Client:
    """Runs at one host the programs for its kind, as the `coordinator` with this identity
    commands."""

    def __init__(self, melon: Melon, name: str, kind: str = "client", *, coordinator: str) -> None:
        _check_melon(melon)
        check_text("name", name)
        check_text("kind", kind)
        self._melon = melon
        self._coordinator = check_key(coordinator, "coordinator")
        self.name = name
        self.kind = kind

    def serve(self) -> int:
        """Take part in one experiment after the other, until the coordinator dismisses this client
        or its host is closed. Returns the number of experiments."""
        count = 0
        with suppress(HostClosed):
            while True:
                template = (COMMAND, str, self.name, list)
                command = self._melon.take(template, sender=self._coordinator)
                _, experiment, _, parts = command
                mine = [part[1:] for part in parts if part[0] == self.kind]
                if mine and mine[0][0] == DISMISSED:
                    break
                for program, arguments, ready in mine:
                    self._take_part(experiment, [program, *arguments], ready)
                    count += 1
        return count

    def _take_part(self, experiment: str, arguments: list[str], ready: str) -> None:
        part = ProgramRun(arguments, ready)

        def heed() -> None:
            with suppress(TupeloError):
                template = (FINISHED, experiment, self.name)
                self._melon.take(template, sender=self._coordinator)
            part.end()

        threading.Thread(target=heed, name="tupelo-experiment", daemon=True).start()
        try:
            part.get_ready()
            self._say(CONFIRM, experiment, 0)
            word, _ = self._melon.read((str, experiment))
            if word != GO:
                part.end()
            for line in part.go():
                self._say(RESULT, experiment, line)
        finally:
            code = part.close()
        self._say(DONE, experiment, code)

    def _say(self, word: str, experiment: str, what: int | str) -> None:
        self._melon.store((word, experiment, self.name, what), to=self._coordinator)


class ProgramRun:
    """One run of a program, which can be ended before its start."""

    def __init__(self, arguments: list[str], ready: str) -> None:
        self._arguments = arguments
        self._ready = ready
        self._running: subprocess.Popen[str] | None = None
        self._failure = ""
        self._code = -1
        self._lock = threading.Lock()
        self._over = False

    def get_ready(self) -> None:
        """Start the program, if it has a `ready` line, and wait for this line."""
        try:
            if self._ready:
                _await_line(self._start(subprocess.PIPE), self._ready)
        except OSError as error:
            self._failure = str(error)

    def go(self) -> Iterable[str]:
        """The output of the program, line by line."""
        try:
            if not self._ready:
                self._start(subprocess.DEVNULL)
            elif self._running is not None and not self._failure:
                _say_go(self._running)
        except OSError as error:
            self._failure = str(error)
        if self._failure:
            yield f"it cannot run: {self._failure}"
        elif self._running is not None and self._running.stdout is not None:
            for line in self._running.stdout:
                yield line.rstrip("\n")
            self._code = self._running.wait()

    def _start(self, stdin: int) -> subprocess.Popen[str]:
        with self._lock:
            if self._over:
                raise OSError("it is over")
            self._running = _start(self._arguments, stdin)
            return self._running

    def end(self) -> None:
        """End the program, or prevent its start."""
        with self._lock:
            self._over = True
            running = self._running
        if running is not None:
            _end(running)

    def close(self) -> int:
        """Ends the program if it is running. Returns its exit code, -1 if it did not run."""
        with self._lock:
            # A later `end` must not signal this process id, which may be another's by then.
            running, self._running = self._running, None
        if running is not None:
            _end(running)
            _close(running)
        return self._code


def _check_melon(melon: object) -> None:
    if not isinstance(melon, Melon) or melon.is_async or melon.identity is None:
        raise BadArgument("melon", "a Melon of a blocking host that has an identity", melon)


def _are_texts(given: object) -> bool:
    return isinstance(given, Iterable) and all(isinstance(one, str) for one in given)


def _start(arguments: list[str], stdin: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # It ends together with its children.
    )


def _await_line(running: subprocess.Popen[str], ready: str) -> None:
    assert running.stdout is not None
    for line in running.stdout:
        if line.rstrip("\n") == ready:
            return
    raise OSError(f"it ended before it said {ready!r}")


def _say_go(running: subprocess.Popen[str]) -> None:
    assert running.stdin is not None
    with suppress(BrokenPipeError):  # It has ended; its output is sent in any case.
        running.stdin.write("go\n")
        running.stdin.flush()


def _end(running: subprocess.Popen[str]) -> None:
    """Ask the process and its children to end, then kill them."""
    until = monotonic() + STOP_SECONDS
    _signal(running, kill=False)
    with suppress(subprocess.TimeoutExpired):
        running.wait(STOP_SECONDS)
        while _has_group(running) and monotonic() < until:
            sleep(_LOOK_SECONDS)
    _signal(running, kill=True)
    running.wait()


if sys.platform == "win32":

    def _signal(running: subprocess.Popen[str], *, kill: bool) -> None:
        """Without process groups the children are not ended."""
        (running.kill if kill else running.terminate)()

    def _has_group(running: subprocess.Popen[str]) -> bool:
        return False

else:

    def _signal(running: subprocess.Popen[str], *, kill: bool) -> None:
        with suppress(ProcessLookupError, PermissionError):  # None of them is running.
            os.killpg(running.pid, signal.SIGKILL if kill else signal.SIGTERM)

    def _has_group(running: subprocess.Popen[str]) -> bool:
        """Whether a child of the process is running."""
        try:
            os.killpg(running.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _close(running: subprocess.Popen[str]) -> None:
    for stream in (running.stdin, running.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
