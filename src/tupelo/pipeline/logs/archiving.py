"""Archiving: the logs of open spaces are sealed by a policy, and trimmed only after that."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from tupelo.errors import PipelineError, TupeloError
from tupelo.federation.hosts.folder import Archiving
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import seal, sealed_upto
from tupelo.store.sqlite import SqliteJournal

logger = logging.getLogger("tupelo")

LOOK_SECONDS = 0.5
AGAIN_SECONDS = 10.0
"""Seconds until sealing is tried again after a failure."""


class Archiver:
    """Seals its logs on a thread of its own, by the policy."""

    def __init__(self, archiving: Archiving) -> None:
        self._archiving = archiving
        self._kept: list[_Kept] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, journal: SqliteJournal) -> None:
        """Seal the log of this space from now on; nothing of it is trimmed before it is sealed.

        Raises PipelineError if another log of this name is sealed there; LogTrimmed if changes that
        should be sealed next are no longer kept.
        """
        kept = _Kept(journal, self._archiving)
        journal.kept_from = kept.first_unsealed
        self._kept.append(kept)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tupelo-archive", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        look = min(LOOK_SECONDS, self._archiving.seconds / 2)
        while not self._stop.wait(look):
            for kept in list(self._kept):
                if kept.is_due and not self._stop.is_set():
                    kept.seal()

    def close(self) -> None:
        """Seal the rest."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for kept in self._kept:
            kept.seal()


class _Kept:
    """A log, and how far it is sealed."""

    def __init__(self, journal: SqliteJournal, archiving: Archiving) -> None:
        self._journal = journal
        self._archiving = archiving
        self._log = JournalLog(journal.path)
        self._sealed = sealed_upto(self._log, archiving.folder)
        self._since = time.monotonic()
        self._complaint = ""

    def first_unsealed(self) -> int:
        return self._sealed + 1

    @property
    def is_due(self) -> bool:
        more = self._journal.durable - self._sealed
        waited = time.monotonic() - self._since
        if self._complaint and waited < AGAIN_SECONDS:
            return False
        return more >= self._archiving.changes or (more > 0 and waited >= self._archiving.seconds)

    def seal(self) -> None:
        """Seal the log. Any error is logged once, and sealing is tried again later: other logs must
        be sealed, and the host must be able to close."""
        self._since = time.monotonic()
        try:
            _sync(self._journal.path)
            seal(self._log, self._archiving.folder)
            self._sealed = sealed_upto(self._log, self._archiving.folder)
            self._complaint = ""
        except Exception as error:
            complaint = str(error) if isinstance(error, TupeloError) else repr(error)
            if complaint != self._complaint:
                self._complaint = complaint
                logger.warning("the log of %r is not sealed: %s", self._log.space, complaint)


def _sync(path: Path) -> None:
    """Sync the log before sealing: after a power failure, later changes would otherwise get
    positions that are sealed already. The segment itself is synced when it is written."""
    try:
        with Path(f"{path}-wal").open("rb") as file:
            os.fsync(file.fileno())
    except FileNotFoundError:
        return  # Everything is in the file.
    except OSError as error:
        raise PipelineError(f"{path} cannot be synced: {error.strerror}") from error
