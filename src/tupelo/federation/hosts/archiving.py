"""Archiving: a host has the logs of its spaces sealed, and trims them only after that.

How a log is sealed is the business of a layer above this one, which is found by its entry point.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tupelo.errors import BadArgument, PipelineError
from tupelo.store.sqlite import SqliteJournal

GROUP = "tupelo.archivers"


class Archiving(msgspec.Struct, frozen=True):
    """Where the logs of a host are sealed, and when: each that has so many changes more, or any
    after so many seconds."""

    folder: str | Path
    changes: int = 100_000
    seconds: float = 300.0


class Archiver(Protocol):
    """Seals logs, on a thread of its own."""

    def keep(self, journal: SqliteJournal) -> None:
        """Seal the log of this space from now on; till then, nothing of it is forgotten."""

    def close(self) -> None:
        """Seal what is left."""


def check_archive(archive: object, path: object) -> Archiving | None:
    """What a user asks for: a folder, or where and when."""
    if archive is None:
        return None
    if isinstance(archive, (str, Path)) and str(archive):
        archive = Archiving(archive)
    if not isinstance(archive, Archiving) or not str(archive.folder):
        raise BadArgument("archive", "the name of a folder, or an Archiving(...)", archive)
    if not (_is_number(archive.changes) and archive.changes >= 1):
        raise BadArgument("archive", "an Archiving of some changes", archive)
    if not (_is_number(archive.seconds) and 0 < archive.seconds < 1e9):
        raise BadArgument("archive", "an Archiving of some seconds", archive)
    if path is None:
        raise BadArgument("path", "given, for a host with an archive", path)
    return archive


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def archiver_for(archiving: Archiving) -> Archiver:
    """Whoever seals logs, in this folder. PipelineError if nobody can."""
    for found in entry_points(group=GROUP):
        try:
            made: Any = found.load()
        except ModuleNotFoundError as error:
            raise PipelineError(
                f'an archive needs the package {error.name}: pip install "tupelo[pipeline]"'
            ) from error
        archiver: Archiver = made(archiving)
        return archiver
    raise PipelineError("an archive needs the pipeline, which is not installed with this Tupelo")
