"""The folder of a host: the files of its spaces, which of them are opened by its program only, and
the archive of their logs.

A host with an archive trims logs only after they were sealed. Sealing is done by a layer above this
one, which is found by its entry point.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

import msgspec

from tupelo.errors import BadArgument, PipelineError
from tupelo.federation.names import RESERVED, is_reserved
from tupelo.store.sqlite import SqliteJournal
from tupelo.values.checks import is_number

SPACE_FILE = ".tupelo"
OWN_FILE = ".own"
SPACE_NAME_MAX = 80
"""The longest name of a space, in bytes: with each byte encoded as three characters it is still a
valid file name."""


class Folder:
    """The files of the spaces of one host."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path.absolute())

    def file_of(self, name: str) -> Path:
        """The file of a space; the folder is made if it does not exist."""
        self._path.mkdir(parents=True, exist_ok=True)
        return self._path / (quote(name, safe="") + SPACE_FILE)

    def claim(self, name: str) -> None:
        """From now on only the program of the host opens this space, because it has rules or
        options that are not in its file."""
        self.file_of(name).with_suffix(OWN_FILE).touch()

    def is_claimed(self, name: str) -> bool:
        """Whether only the program of the host opens this space."""
        return self.file_of(name).with_suffix(OWN_FILE).exists()

    def names(self) -> list[str]:
        """The spaces in this folder that the host opens by itself."""
        files = sorted(self._path.glob("*" + SPACE_FILE))
        names = [unquote(file.name.removesuffix(SPACE_FILE)) for file in files]
        return [n for n in names if not (is_reserved(n) or self.is_claimed(n))]

    def file_of_either(self, name: str, former: str) -> Path:
        """The file of a space that a model keeps; the file under its `former` name if that exists.
        A file of that name that clients could open is not used."""
        file, before = self.file_of(name), self.file_of(former)
        is_kept = is_reserved(former) or self.is_claimed(former)
        return before if is_kept and before.exists() and not file.exists() else file


def check_space_name(name: object) -> str:
    if not isinstance(name, str) or not name or is_reserved(name):
        expected = f"a text that does not begin with {RESERVED!r}: such spaces are the host's own"
        raise BadArgument("name", expected, name)
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise BadArgument("name", "valid Unicode", name) from None
    if length > SPACE_NAME_MAX:
        raise BadArgument("name", f"a text of at most {SPACE_NAME_MAX} bytes", name[:50])
    return name


GROUP = "tupelo.archivers"


class Archiving(msgspec.Struct, frozen=True):
    """The archive of a host: the folder, and when a log is sealed there: after `changes` new
    changes, or `seconds` after the last time."""

    folder: str | Path
    changes: int = 100_000
    seconds: float = 300.0


class LogArchiver(Protocol):
    """Seals logs, on a thread of its own."""

    def keep(self, journal: SqliteJournal) -> None:
        """Seal the log of this space from now on; nothing of it is trimmed before."""

    def close(self) -> None:
        """Seal what is left."""


def check_archive(archive: object, path: object) -> Archiving | None:
    """The `archive=` argument of a host as an Archiving. Raises BadArgument."""
    if archive is None:
        return None
    if isinstance(archive, (str, Path)) and str(archive):
        archive = Archiving(archive)
    if not isinstance(archive, Archiving) or not str(archive.folder):
        raise BadArgument("archive", "the name of a folder, or an Archiving(...)", archive)
    if not (is_number(archive.changes) and archive.changes >= 1):
        raise BadArgument("archive", "an Archiving of some changes", archive)
    if not (is_number(archive.seconds) and 0 < archive.seconds < 1e9):
        raise BadArgument("archive", "an Archiving of some seconds", archive)
    if path is None:
        raise BadArgument("path", "given, for a host with an archive", path)
    return archive


def archiver_for(archiving: Archiving) -> LogArchiver:
    """An archiver for this folder. Raises PipelineError if the pipeline is not installed."""
    for found in entry_points(group=GROUP):
        try:
            made: Any = found.load()
        except ModuleNotFoundError as error:
            raise PipelineError(
                f'an archive needs the package {error.name}: pip install "tupelo[pipeline]"'
            ) from error
        archiver: LogArchiver = made(archiving)
        return archiver
    raise PipelineError("an archive needs the pipeline, which is not installed with this Tupelo")
