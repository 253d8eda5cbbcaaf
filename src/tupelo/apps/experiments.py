"""Experiments: programs that run on many hosts, begin at once, and report to one place.

This is the coordination framework of section 6.4 of MELON's dissertation, by the messages of its
table 6.1. At each host stands a `Client`; a `Coordinator` anywhere among them says what each kind
of client is to run, waits until all are ready, lets them go, collects what they print in its order,
and stops them. Whoever starts a client lets everyone run programs there who can write to its Melon.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from uuid import uuid4

from tupelo.errors import BadArgument, HostClosed, TupeloError
from tupelo.models.melon import Melon

STOP_SECONDS = 5.0
"""So long a program has to end after it was told to; then it is killed."""

# One experiment after another, each with a name of its own; the words are those of the table.
COMMAND = "command"  # experiment, kind, program, arguments, the line by which it says it is ready
CONFIRM = "confirm"  # experiment, client
GO = "go"  # experiment
RESULT = "result"  # experiment, client, line
DONE = "done"  # experiment, client, exit code
FINISHED = "finished"  # experiment
DISMISSED = ""  # in place of a program


@dataclass(frozen=True)
class Program:
    """What a client runs. If it says when it is `ready`, by this line, it is started before the
    others go and gets a line, "go", when they do; else it is started then."""

    arguments: Sequence[str]
    ready: str = ""


@dataclass
class Outcome:
    """What came of the program of one client: what it printed, and its exit code; None if the
    client has not answered."""

    lines: list[str] = field(default_factory=list)
    code: int | None = None
    stopped: bool = False
    """Was it told to end, because time was up?"""


class Coordinator:
    """Runs experiments with the clients of these names."""

    def __init__(self, melon: Melon, clients: Iterable[str]) -> None:
        if not isinstance(melon, Melon) or melon.is_async:
            raise BadArgument("melon", "a Melon of a blocking host", melon)
        self._melon = melon
        self._clients = list(dict.fromkeys(clients))

    def run(
        self,
        programs: Mapping[str, Program],
        *,
        wait: float | None = None,
        ready_wait: float | None = None,
    ) -> dict[str, Outcome]:
        """Run for each kind of client its program, and see what comes of it. Those that have not
        ended after `wait` seconds are stopped; if after `ready_wait` seconds not all are ready,
        those that are go without the others."""
        experiment = uuid4().hex
        outcomes = {client: Outcome() for client in self._clients}
        for kind, program in programs.items():
            name, *arguments = program.arguments
            command = (COMMAND, experiment, kind, name, arguments, program.ready)
            self._melon.write(command)
        try:
            ready = self._await(CONFIRM, experiment, self._clients, ready_wait)
            self._melon.write((GO, experiment))
            done = self._await(DONE, experiment, ready, wait)
        finally:
            self._melon.write((FINISHED, experiment))
        late = [client for client in ready if client not in done]
        done |= self._await(DONE, experiment, late, 2 * STOP_SECONDS)
        for client, code in done.items():
            outcomes[client].code = code
            outcomes[client].stopped = client in late
        # Each has stored its lines before it was done, and the oldest come first.
        for _, _, client, line in self._melon.take_all((RESULT, experiment, str, str), wait=0):
            if client in outcomes:
                outcomes[client].lines.append(line)
        return outcomes

    def _await(
        self, word: str, experiment: str, clients: Iterable[str], wait: float | None
    ) -> dict[str, int]:
        """What these say, as far as they do in time."""
        until = None if wait is None else monotonic() + wait
        said: dict[str, int] = {}
        for client in clients:
            left = None if until is None else max(0.0, until - monotonic())
            found = self._melon.take((word, experiment, client, int), wait=left)
            if found is not None:
                said[client] = found[3]
        return said

    def dismiss(self, *kinds: str) -> None:
        """Let the clients of these kinds go home."""
        for kind in kinds:
            self._melon.write((COMMAND, uuid4().hex, kind, DISMISSED, [], ""))


class Client:
    """Runs at one host what clients of its kind are told to."""

    def __init__(self, melon: Melon, name: str, kind: str = "client") -> None:
        if not isinstance(melon, Melon) or melon.is_async:
            raise BadArgument("melon", "a Melon of a blocking host", melon)
        for argument, given in (("name", name), ("kind", kind)):
            if not isinstance(given, str) or not given:
                raise BadArgument(argument, "a text that is not empty", given)
        self._melon = melon
        self.name = name
        self.kind = kind

    def serve(self) -> int:
        """Take part in one experiment after the other, until it is dismissed or its host is
        closed; how many there were."""
        count = 0
        with suppress(HostClosed):
            while True:
                command = self._melon.read((COMMAND, str, self.kind, str, list, str))
                _, experiment, _, program, arguments, ready = command
                if program == DISMISSED:
                    break
                # It may be over since long: what was written stays.
                if self._melon.read((FINISHED, experiment), wait=0) is None:
                    self._take_part(experiment, [program, *arguments], ready)
                    count += 1
        return count

    def _take_part(self, experiment: str, arguments: list[str], ready: str) -> None:
        running: subprocess.Popen[str] | None = None
        code, failure = -1, ""
        try:
            try:
                if ready:
                    running = _start(arguments, subprocess.PIPE)
                    _await_line(running, ready)
            except OSError as error:
                failure = str(error)
            self._melon.store((CONFIRM, experiment, self.name, 0))
            self._melon.read((GO, experiment))
            try:
                if not ready:
                    running = _start(arguments, subprocess.DEVNULL)
                elif running is not None and not failure:
                    _say_go(running)
            except OSError as error:
                failure = str(error)
            if failure:
                self._tell(experiment, f"it cannot run: {failure}")
            elif running is not None:
                code = self._report(experiment, running)
        finally:
            if running is not None:
                _end(running)
                _close(running)
        self._melon.store((DONE, experiment, self.name, code))

    def _tell(self, experiment: str, line: str) -> None:
        self._melon.store((RESULT, experiment, self.name, line))

    def _report(self, experiment: str, running: subprocess.Popen[str]) -> int:
        """Tell what it prints, line by line, until it has ended or must."""

        def heed() -> None:
            with suppress(TupeloError):
                self._melon.read((FINISHED, experiment))
            _end(running)

        threading.Thread(target=heed, name="tupelo-experiment", daemon=True).start()
        assert running.stdout is not None
        for line in running.stdout:
            self._tell(experiment, line.rstrip("\n"))
        return running.wait()


def _start(arguments: list[str], stdin: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )


def _await_line(running: subprocess.Popen[str], ready: str) -> None:
    assert running.stdout is not None
    for line in running.stdout:
        if line.rstrip("\n") == ready:
            return
    raise OSError(f"it ended before it said {ready!r}")


def _say_go(running: subprocess.Popen[str]) -> None:
    assert running.stdin is not None
    with suppress(BrokenPipeError):  # It has ended; what it said is told all the same.
        running.stdin.write("go\n")
        running.stdin.flush()


def _end(running: subprocess.Popen[str]) -> None:
    """Ask it to end, and make it."""
    running.terminate()
    try:
        running.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def _close(running: subprocess.Popen[str]) -> None:
    for stream in (running.stdin, running.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
