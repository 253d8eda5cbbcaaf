"""A progress bar for work that takes longer than two seconds on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

SHOWN_AFTER_SECONDS = 2.0


class ProgressBar:
    """Context manager that shows a bar on stderr after two seconds of work. Call it with the amount
    of finished work and the total. Without a terminal it shows nothing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begin = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def about(self, what: str) -> Self:
        """Set the name of the next part of the work."""
        self._what = what
        return self

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if not sys.stderr.isatty() or time.monotonic() < self._begin + SHOWN_AFTER_SECONDS:
                return
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("")
            self._bar.start()
        self._bar.update(self._task, description=self._what, completed=done, total=total)
