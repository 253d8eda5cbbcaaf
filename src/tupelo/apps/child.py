"""The workshop's process as the tour sees it: started, listened to, and killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from tupelo import Space
from tupelo.apps import workshop
from tupelo.apps.audit import Heard
from tupelo.apps.workshop import Pace, WorkshopEvent

SILENCE_MAX_SECONDS = 30.0
EVENT = (str, int, str)


class TourFailed(Exception):
    """The tour cannot go on, or found something that must not be."""


class Child:
    """A process of its own that owns the space's file. What it reports goes to `heard`."""

    def __init__(self, path: Path, seed: int, pace: Pace, heard: Heard) -> None:
        arguments = [str(path), str(seed), msgspec.json.encode(pace).decode()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", workshop.__name__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._heard = heard
        self._inbox = Space("inbox")
        self._listener = workshop.start(self._listen)

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # It has ended; the next event says so.
            self._process.stdin.write(f"{command}\n".encode())
            self._process.stdin.flush()

    def events(self) -> Iterator[tuple[str, int, str]]:
        """What it reports, as it comes."""
        return events(self._inbox, self._heard)

    def kill(self) -> int:
        """SIGKILL, and hear what it had still said before that. The answer is its exit code."""
        self._process.kill()
        code = self._process.wait()
        self._listener.join()
        for event in self._inbox.take_all(EVENT):
            self._heard.note(*event)
        return code

    def _listen(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                event = msgspec.json.decode(line, type=WorkshopEvent)
                self._inbox.write((event.what, event.job, event.by))
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._inbox.write(("ended", self._process.wait(), ""))


def events(inbox: Space, heard: Heard) -> Iterator[tuple[str, int, str]]:
    """What comes into the inbox, noted as heard."""
    while True:
        event = inbox.take(EVENT, wait=SILENCE_MAX_SECONDS)
        if event is None:
            raise TourFailed(f"the workshop has said nothing for {SILENCE_MAX_SECONDS:.0f} s")
        what, job, by = event
        if what == "ended":
            raise TourFailed(f"the workshop's process ended by itself, with exit code {job}")
        heard.note(what, job, by)
        yield what, job, by
