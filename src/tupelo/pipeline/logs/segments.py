"""Segments: the archive of a log, as Parquet files that are never changed, and a manifest.

    <archive>/host=<id>/space=<name>/day=2026-11-16/<first>-<last>.parquet
    <archive>/host=<id>/space=<name>/_manifest.json

The manifest lists the segments and the last sealed position. It is replaced atomically when a
segment is complete and on disk, and readers use only the segments in it, so they see no torn file.
Names are encoded for use as folders. Spark ignores files that begin with "_", so the archive can
also be read without Tupelo.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tupelo.errors import CorruptSegment, LogTrimmed, PipelineError, WrongSchema
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.schema import (
    CHANGES,
    SCHEMA_VERSION,
    SINCE,
    TYPED,
    about_entries,
    check_columns,
)
from tupelo.store.filelock import FileLock, sync_folder
from tupelo.values.codec import BadBytes

MANIFEST = "_manifest.json"
POSITION_MAX = 2**53
"""Larger than the position of any log; others are refused."""

_FILE = re.compile(r"day=-?\d+-\d\d-\d\d/\d+-\d+\.parquet", re.ASCII)


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One file of an archive: `file` is its path within the log's folder. The first and last time
    are microseconds since 1970; `kinds` counts the changes of each kind."""

    file: str
    first: int
    last: int
    first_time: int
    last_time: int
    rows: int
    bytes: int
    kinds: dict[str, int]

    @property
    def range(self) -> str:
        return f"{self.first}-{self.last}"


class Manifest(msgspec.Struct, kw_only=True):
    """The segments of one log; `sealed` is the last sealed position."""

    schema: int = SCHEMA_VERSION
    host: str
    space: str
    id: str
    first: int
    sealed: int
    segments: list[Segment]
    replaced: dict[str, float] = {}
    """Files that were joined to larger ones, and when (seconds since 1970): who has begun to read
    them may finish."""


def folder_of(archive: Path, host: str, space: str) -> Path:
    """The folder of a log in an archive."""
    return archive / f"host={quote(host, safe='')}" / f"space={quote(space, safe='')}"


def load(folder: Path) -> Manifest | None:
    path = folder / MANIFEST
    with damage_of(path):
        if not path.exists():
            return None
        if not path.is_file():  # To read a pipe or a device might never end.
            raise CorruptSegment(str(path), "it is not a file")
        encoded = path.read_bytes()
        version = msgspec.json.decode(encoded, type=_Versioned).schema
        if not 1 <= version <= SCHEMA_VERSION:
            raise WrongSchema(str(path), version, SCHEMA_VERSION)
        manifest = msgspec.json.decode(encoded, type=Manifest)
    if folder != folder_of(folder.parent.parent, manifest.host, manifest.space):
        raise CorruptSegment(str(path), f"it is of {manifest.space!r} of {manifest.host!r}")
    if manifest.first < 1 or manifest.sealed > POSITION_MAX:
        raise CorruptSegment(str(path), f"no log goes from {manifest.first} to {manifest.sealed}")
    expected = manifest.first
    for segment in manifest.segments:
        if not _FILE.fullmatch(segment.file) or Path(segment.file).stem != segment.range:
            raise CorruptSegment(str(path), f"{segment.file!r} is not the name of a segment of it")
        counts = segment.kinds.values()
        if sum(counts) != segment.rows or any(count < 1 for count in counts):
            raise CorruptSegment(str(path), f"the kinds of {segment.file} are not {segment.rows}")
        if segment.first != expected or segment.rows != segment.last - segment.first + 1:
            raise CorruptSegment(str(path), f"{segment.file} does not begin at {expected}")
        expected = segment.last + 1
    if not manifest.segments or expected != manifest.sealed + 1:
        raise CorruptSegment(str(path), f"nothing reaches {manifest.sealed}")
    return manifest


class _Versioned(msgspec.Struct):
    schema: int


@contextmanager
def damage_of(path: Path) -> Iterator[None]:
    """Errors in this block are reported as damage of this file."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptSegment(str(path), "it is gone") from error
    except (OSError, pa.ArrowException, BadBytes, ValueError) as error:
        raise CorruptSegment(str(path), str(error)) from error


ROWS_MAX = 262_144
"""The default largest number of changes in a segment."""
REPLACED_SECONDS = 3_600.0
"""How long files stay that were joined to larger ones."""
GROUP_ROWS, GROUP_BYTES = 65_536, 64 * 2**20
LOCK = "_seal.lock"
DRAFT = ".new"

_VERSION = b"tupelo.schema"
_DAY = 86_400_000_000  # in microseconds
_FEW = ["host", "space", "kind", "origin", "agent", "agent_name", "session", "to", "type", "shape"]
_IDENTIFYING = ["time", "kind", "arrival", "n"]  # which identify a change


# Reading


class Archive:
    """A folder with the sealed logs of any number of hosts."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def logs(self) -> list[ArchivedLog]:
        """The logs in the archive, as they are now."""
        manifests = sorted(self.path.glob(f"host=*/space=*/{MANIFEST}"))
        return [ArchivedLog(file.parent) for file in manifests]

    def log(self, host: str, space: str) -> ArchivedLog | None:
        """The log of this space; None if none of it is sealed."""
        folder = self.folder_of(host, space)
        return ArchivedLog(folder) if (folder / MANIFEST).exists() else None

    def folder_of(self, host: str, space: str) -> Path:
        return folder_of(self.path, host, space)


class ArchivedLog(Log):
    """The sealed part of one log, by its manifest at the time of creation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = load(folder)
        if manifest is None:
            raise CorruptSegment(str(folder / MANIFEST), "it is gone")
        self.host = manifest.host
        self.space = manifest.space
        self.id = manifest.id
        self.first = manifest.first
        self.last = manifest.sealed
        self.segments = manifest.segments

    def bounds(self) -> tuple[int, int]:
        return self.first, self.last

    def files(self) -> list[Path]:
        """The files of the segments. Raises CorruptSegment for one that is missing or has another
        size."""
        return [self._file(segment) for segment in self.segments]

    def _file(self, segment: Segment) -> Path:
        path = self.folder / segment.file
        with damage_of(path):
            size = path.stat().st_size
        if not path.is_file():  # To read a pipe or a device might never end.
            raise CorruptSegment(str(path), "it is not a file")
        if size != segment.bytes:
            raise CorruptSegment(str(path), f"it has {size} bytes of {segment.bytes}")
        return path

    def _read(
        self, first: int, last: int, columns: Sequence[str], entry: Declared | None
    ) -> Iterator[pa.RecordBatch]:
        if first < self.first:
            raise LogTrimmed(
                f"{self.folder}: the change at {first} was asked for, but what is sealed of"
                f" {self.space!r} begins at {self.first}",
                self.first,
            )
        for segment in self.segments:
            if segment.last >= first and segment.first <= last:
                yield from self.read(segment, columns, entry, first, last)

    def read(
        self,
        segment: Segment,
        columns: Sequence[str] | None = None,
        entry: Declared | None = None,
        first: int = 0,
        last: int = 2**63 - 1,
    ) -> Iterator[pa.RecordBatch]:
        """The changes of one segment, optionally between two positions."""
        columns = check_columns(columns, entry)
        path = self._file(segment)
        with damage_of(path):
            file = pq.ParquetFile(path, memory_map=True, page_checksum_verification=True)
        with file:
            with damage_of(path):
                _check_schema(path, file.schema_arrow)
                if file.metadata.num_rows != segment.rows:
                    raise CorruptSegment(str(path), f"{file.metadata.num_rows} rows")
                self._check_own(path, file, segment)
            cut = first > segment.first or last < segment.last
            named = [name for name in columns if name != TYPED]
            needed = list(dict.fromkeys([*named, *(["position"] if cut or not named else [])]))
            if entry is not None and TYPED in columns and "payload" not in needed:
                needed.append("payload")
            kept = [name for name in needed if name in file.schema_arrow.names]
            found = file.iter_batches(
                batch_size=GROUP_ROWS,
                row_groups=_groups(file, first, last),
                columns=kept or ["position"],
            )
            while True:
                with damage_of(path):
                    batch = next(found, None)
                    if batch is None:
                        return
                    if cut:
                        place = batch.column("position")
                        batch = batch.filter(
                            pc.and_(pc.greater_equal(place, first), pc.less_equal(place, last))
                        )
                    for name in needed:
                        if name not in kept:
                            absent = pa.nulls(batch.num_rows, CHANGES.field(name).type)
                            batch = batch.append_column(CHANGES.field(name), absent)
                    batch = _with_typed(batch, entry, columns)
                if batch.num_rows:
                    yield batch

    def _check_own(self, path: Path, file: pq.ParquetFile, segment: Segment) -> None:
        """Check that the rows belong to this log and these positions."""
        due = {
            "host": (self.host, self.host),
            "space": (self.space, self.space),
            "position": (segment.first, segment.last),
        }
        for name, (low, high) in due.items():
            place = file.schema_arrow.get_field_index(name)
            for number in range(file.num_row_groups):
                known = file.metadata.row_group(number).column(place).statistics
                if known is None or not known.has_min_max:
                    continue
                if not low <= known.min <= known.max <= high:
                    raise CorruptSegment(str(path), f"its {name} is {known.min!r}")

    def __repr__(self) -> str:
        return f"ArchivedLog({str(self.folder)!r})"


def _with_typed(
    batch: pa.RecordBatch, entry: Declared | None, columns: Sequence[str]
) -> pa.RecordBatch:
    if entry is not None and TYPED in columns:
        about = about_entries(batch.column("payload"), [TYPED], entry)
        batch = batch.append_column(pa.field(TYPED, entry.type), about[TYPED])
    return batch.select(list(columns)).replace_schema_metadata(None)


def _groups(file: pq.ParquetFile, first: int, last: int) -> list[int]:
    """The row groups with positions between these."""
    place = file.schema_arrow.get_field_index("position")
    groups = []
    for number in range(file.num_row_groups):
        known = file.metadata.row_group(number).column(place).statistics
        if known is None or (known.max >= first and known.min <= last):
            groups.append(number)
    return groups


def _check_schema(path: Path, schema: pa.Schema) -> None:
    version = int((schema.metadata or {}).get(_VERSION, b"0"))
    if not 1 <= version <= SCHEMA_VERSION:
        raise WrongSchema(str(path), version, SCHEMA_VERSION)
    due = CHANGES
    for name, since in SINCE.items():
        if version < since:
            due = due.remove(due.get_field_index(name))
    if not schema.remove_metadata().equals(due):
        raise CorruptSegment(str(path), "its columns are not those of changes")


# Sealing


def seal(
    log: Log,
    archive: str | Path,
    *,
    upto: int | None = None,
    rows_max: int = ROWS_MAX,
    completed: Callable[[Segment], object] = lambda segment: None,
) -> list[Segment]:
    """Seal the durable changes up to a position that are not sealed yet. Returns the new segments;
    `completed` is called with each as soon as it is complete.

    Raises PipelineError if another log of this name is sealed there, if another program is sealing
    it, or if sealed changes differ from the log; LogTrimmed if changes that should be sealed next
    are no longer kept.
    """
    folder = Archive(archive).folder_of(log.host, log.space)
    with _writing(folder):
        segments = []
        for segment in _seal(log, folder, upto, rows_max):
            segments.append(segment)
            completed(segment)
        return segments


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """For the only program that writes to the folder of this log."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        if not lock.acquire():
            raise PipelineError(f"{folder} is being sealed by another program")
        try:
            yield
        finally:
            lock.release()
    except OSError as error:
        raise PipelineError(f"{folder} cannot be written: {error.strerror}") from error


def sealed_upto(log: Log, archive: str | Path) -> int:
    """The last sealed position of this log. Raises PipelineError if another log of this name is
    sealed there; LogTrimmed if changes that should be sealed next are no longer kept."""
    return _begun(log, Archive(archive).folder_of(log.host, log.space)).sealed


def _begun(log: Log, folder: Path) -> Manifest:
    first, _ = log.bounds()
    manifest = load(folder)
    if manifest is None:
        return Manifest(
            host=log.host, space=log.space, id=log.id, first=first, sealed=first - 1, segments=[]
        )
    check_continues(log, ArchivedLog(folder))
    if manifest.sealed + 1 < first:
        raise LogTrimmed(
            f"{log.space!r} is sealed up to {manifest.sealed}, but its log begins at {first}:"
            " what was between is lost; seal what is left elsewhere",
            first,
        )
    manifest.id = log.id  # An older log without an id got one when it was opened again.
    return manifest


def check_continues(log: Log, sealed: ArchivedLog) -> None:
    """Raise PipelineError if this is not the log that is sealed there, or if it has lost its end
    since, by a power failure or because the file is an older copy: then later positions are of
    other changes than the sealed ones."""
    another = PipelineError(
        f"{sealed.folder} is the archive of another log of this name; seal this one elsewhere"
    )
    if sealed.id not in ("", log.id):
        raise another
    ends = log.bounds()[1]
    try:
        here = _identity(log.batches(sealed.last, sealed.last)) if ends >= sealed.last else None
    except LogTrimmed:  # Sealed changes need not be kept.
        if not sealed.id:
            raise another from None
        return
    if here != _identity(sealed.batches(sealed.last, sealed.last, _IDENTIFYING)):
        if not sealed.id:
            raise another
        raise PipelineError(
            f"the log of {log.space!r} has lost changes that are sealed in {sealed.folder}, up to"
            f" {sealed.last}; it ends at {ends} now: seal it elsewhere, under another name"
        )


def _identity(batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
    row: dict[str, Any] = next(batches).select(_IDENTIFYING).to_pylist()[0]
    return row


def _seal(log: Log, folder: Path, upto: int | None, rows_max: int) -> Iterator[Segment]:
    manifest = _begun(log, folder)
    _sweep(folder, manifest)
    begin, (_, last) = manifest.sealed + 1, log.bounds()
    last = last if upto is None else min(last, upto)
    draft: _Draft | None = None
    try:
        for batch in log.batches(begin, last):
            rest = batch
            while rest.num_rows:
                if draft is None:
                    draft = _Draft(folder, rest, rows_max)
                rest = rest.slice(draft.add(rest))
                if draft.full or rest.num_rows:
                    done, draft = draft, None
                    yield _publish(folder, manifest, done)
        if draft is not None:
            done, draft = draft, None
            yield _publish(folder, manifest, done)
    finally:
        if draft is not None:
            draft.abandon()


class _Draft:
    """A segment that is being written, under another name: at most so many changes, of one day. A
    change with an earlier time than those before it (an expiry noticed late) goes with them."""

    def __init__(self, folder: Path, begin: pa.RecordBatch, rows_max: int) -> None:
        self._folder = folder
        self._first = begin.column("position")[0].as_py()
        self._day = int(_micros(begin.slice(0, 1))[0]) // _DAY
        self._rows = 0
        self._rows_max = rows_max
        self._waiting: list[pa.RecordBatch] = []
        self._earliest, self._latest = 2**63 - 1, -(2**63)
        self._kinds: dict[str, int] = {}
        self._place = folder / f"day={np.datetime64(self._day, 'D')}"
        self._is_new = not self._place.exists()
        self._place.mkdir(exist_ok=True)
        self._path = self._place / f".{self._first}{DRAFT}"
        self._file: BinaryIO = self._path.open("wb")
        schema = CHANGES.with_metadata({_VERSION: str(SCHEMA_VERSION)})
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            use_dictionary=_FEW,
            write_page_checksum=True,
        )

    @property
    def full(self) -> bool:
        return self._rows >= self._rows_max

    def add(self, batch: pa.RecordBatch) -> int:
        """Add as many changes of this batch as fit. Returns their number."""
        micros = _micros(batch)
        days = np.maximum.accumulate(micros // _DAY)
        same = int(np.searchsorted(days, self._day, side="right"))
        count = min(same, self._rows_max - self._rows)
        if count:
            batch = batch.slice(0, count)
            self._earliest = min(self._earliest, int(micros[:count].min()))
            self._latest = max(self._latest, int(micros[:count].max()))
            for counted in pc.value_counts(batch.column("kind")).to_pylist():
                kind = counted["values"]
                self._kinds[kind] = self._kinds.get(kind, 0) + counted["counts"]
            self._rows += count
            self._waiting.append(batch)
            if (
                sum(waiting.num_rows for waiting in self._waiting) >= GROUP_ROWS
                or sum(waiting.nbytes for waiting in self._waiting) >= GROUP_BYTES
            ):
                self._write()
        return count

    def _write(self) -> None:
        """As one row group: many small ones are slow to read."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting).combine_chunks())
            self._waiting = []

    def finish(self) -> Segment:
        """Complete the file: sync it and give it its name."""
        self._write()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        last = self._first + self._rows - 1
        path = self._place / f"{self._first}-{last}.parquet"
        self._path.replace(path)
        sync_folder(self._place)
        if self._is_new:
            sync_folder(self._folder)
        return Segment(
            file=path.relative_to(self._folder).as_posix(),
            first=self._first,
            last=last,
            first_time=self._earliest,
            last_time=self._latest,
            rows=self._rows,
            bytes=size,
            kinds=self._kinds,
        )

    def abandon(self) -> None:
        with suppress(Exception):
            self._writer.close()
        self._file.close()
        self._path.unlink(missing_ok=True)


def _micros(batch: pa.RecordBatch) -> Any:
    return batch.column("time").cast(pa.int64()).to_numpy()


def _publish(folder: Path, manifest: Manifest, draft: _Draft) -> Segment:
    """Add this segment to the manifest, for readers."""
    try:
        segment = draft.finish()
    except BaseException:
        draft.abandon()
        raise
    manifest.segments.append(segment)
    manifest.sealed = segment.last
    _save(folder, manifest)
    return segment


def _save(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, for readers."""
    manifest.schema = SCHEMA_VERSION
    path = folder / (MANIFEST + DRAFT)
    with path.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    path.replace(folder / MANIFEST)
    sync_folder(folder)


def _sweep(folder: Path, manifest: Manifest) -> None:
    """Remove files that no manifest names, of an interrupted sealing, and replaced ones after a
    time. The manifest forgets these when it is saved the next time."""
    until = time.time() - REPLACED_SECONDS
    manifest.replaced = {file: at for file, at in manifest.replaced.items() if at > until}
    named = {folder / segment.file for segment in manifest.segments}
    named |= {folder / file for file in manifest.replaced}
    for file in [*folder.glob("day=*/*.parquet"), *folder.glob(f"day=*/.*{DRAFT}")]:
        if file not in named:
            file.unlink()


# Compaction


def compact(
    log: ArchivedLog,
    *,
    rows_max: int = ROWS_MAX,
    completed: Callable[[Segment], object] = lambda segment: None,
) -> list[Segment]:
    """Join small segments of one day that follow each other to segments of at most so many changes.
    Returns the new ones; `completed` is called with each. The files of the joined ones are removed
    by the next sealing or compaction that comes an hour later, so that readers may finish.

    Raises PipelineError if another program is sealing the log, and CorruptSegment if a segment is
    damaged, which then stays as it is.
    """
    folder = log.folder
    with _writing(folder):
        log = ArchivedLog(folder)  # as it is now
        manifest = load(folder)
        assert manifest is not None
        _sweep(folder, manifest)
        joined = []
        for group in _small(manifest.segments, rows_max):
            segment = _join(log, group, rows_max)
            place = manifest.segments.index(group[0])
            manifest.segments[place : place + len(group)] = [segment]
            now = time.time()
            manifest.replaced |= {old.file: now for old in group}
            _save(folder, manifest)
            joined.append(segment)
            completed(segment)
        return joined


def _small(segments: Sequence[Segment], rows_max: int) -> list[list[Segment]]:
    """Small segments that follow each other, in groups."""
    groups: list[list[Segment]] = []
    rows, day = rows_max + 1, ""
    for segment in segments:
        if segment.rows * 2 > rows_max:
            rows = rows_max + 1  # It is large enough, and parts those before from those behind.
        elif rows + segment.rows <= rows_max and Path(segment.file).parts[0] == day:
            groups[-1].append(segment)
            rows += segment.rows
        else:
            groups.append([segment])
            rows, day = segment.rows, Path(segment.file).parts[0]
    return [group for group in groups if len(group) > 1]


def _join(log: ArchivedLog, group: Sequence[Segment], rows_max: int) -> Segment:
    draft: _Draft | None = None
    try:
        for segment in group:
            for batch in log.read(segment):
                if draft is None:
                    draft = _Draft(log.folder, batch, rows_max)
                if draft.add(batch) < batch.num_rows:
                    path = str(log.folder / segment.file)
                    raise CorruptSegment(path, "it has changes of another day")
        assert draft is not None
        return draft.finish()
    except BaseException:
        if draft is not None:
            draft.abandon()
        raise
