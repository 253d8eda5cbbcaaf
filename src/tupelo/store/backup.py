"""Copies of journals, also of those that are in use: what is durable at one moment.

A folder of a host is copied with all of its spaces, its id and its identity. The moments of its
spaces differ by as little as it takes to open them; a transaction over several spaces that commits
meanwhile may be prepared in one copy and committed in another.
"""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from tupelo.errors import BadArgument, DamagedFile, JournalFailed
from tupelo.store.checking import BESIDE, Progress, connect, examine
from tupelo.store.filelock import FileLock, draft_of, sync_folder
from tupelo.store.format import check_header, is_damage

SPACE_FILES = "*.tupelo"
OTHER_FILES = ("*.own", "host.id", "identity.pem")
"""Files of a host's folder beside those of its spaces; the identity is a secret."""
_PAGES = 1_000  # copied in one step

ReportProgress = Callable[[Path], Progress | None]
"""Called with each file that is copied; returns what is called with its progress."""


def copy(source: Path, to: Path, report: ReportProgress = lambda file: None) -> list[Path]:
    """Copy the file of a space, or the folder of a host, to a new place, and check the copies.

    Returns the new files of spaces. BadArgument if `to` exists or nothing is to be copied,
    DamagedFile if a copy is damaged, as its source is; then there is no copy.
    """
    source, to = source.absolute(), to.absolute()
    for ending in BESIDE:
        if (there := to.with_name(to.name + ending)).exists():
            raise BadArgument("to", f"a name that is free; {there} exists")
    draft = draft_of(to)
    _remove(draft)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            copied = _copy_folder(source, draft, report)
        else:
            with _snapshot(source) as db:
                _write(db, source, draft, report)
            copied = [draft]
        draft.rename(to)
        sync_folder(to.parent)
    except OSError as error:
        _remove(draft)
        raise JournalFailed(f"{source} cannot be copied to {to}: {error}") from error
    except BaseException:
        _remove(draft)
        raise
    return [to / file.relative_to(draft) if source.is_dir() else to for file in copied]


def _copy_folder(source: Path, to: Path, report: ReportProgress) -> list[Path]:
    to.mkdir(mode=0o700)
    files = sorted(source.glob(SPACE_FILES))
    if not files:
        raise BadArgument("source", "the folder of a host, with spaces in it", str(source))
    with ExitStack() as opened:
        snapshots = [(file, opened.enter_context(_snapshot(file))) for file in files]
        for pattern in OTHER_FILES:
            for file in source.glob(pattern):
                shutil.copy2(file, to / file.name)
        for file, db in snapshots:
            _write(db, file, to / file.name, report)
    return [to / file.name for file in files]


@contextmanager
def _snapshot(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection that sees what is durable now, whatever is written later. A file that is not in
    use stays so until the end."""
    lock = FileLock(file.with_name(file.name + ".lock"))
    try:
        check_header(file)
        uri = f"{file.as_uri()}?mode=ro"
        with closing(
            connect(file)
            if _is_at_rest(lock)
            else sqlite3.connect(uri, uri=True, isolation_level=None)
        ) as db:
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM meta").fetchone()
            yield db
    except OSError as error:
        raise JournalFailed(f"{file} cannot be read: {error.strerror}") from error
    except sqlite3.Error as error:
        if is_damage(error):
            raise DamagedFile(f"{file} is damaged ({error}); `tupelo check` says more") from error
        raise JournalFailed(f"{file} cannot be copied: {error}") from error
    finally:
        lock.release()


def _is_at_rest(lock: FileLock) -> bool:
    """Whether no space has the file open; with the lock, none can open it."""
    try:
        return lock.acquire()
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return True


def _write(db: sqlite3.Connection, source: Path, to: Path, report: ReportProgress) -> None:
    """Write the copy of one space, and check it."""
    progress = report(source)

    def copied(status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, 2 * total)

    def checked(done: int, total: int) -> None:
        if progress is not None:
            progress(total + done, 2 * total)

    with closing(sqlite3.connect(to)) as new:
        db.backup(new, pages=_PAGES, progress=copied, sleep=0)
    if found := examine(to, checked).found:
        listed = "; ".join(map(str, found[:3]))
        raise DamagedFile(f"{source} is damaged, and was not copied: {listed}", found)


def _remove(draft: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        shutil.rmtree(draft)
    for ending in BESIDE:
        draft.with_name(draft.name + ending).unlink(missing_ok=True)
