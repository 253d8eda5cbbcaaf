"""The manifest of a sealed log: which segments there are, and what is in them. It may have been
altered, or come from elsewhere: what cannot be true is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
import pyarrow as pa

from tupelo.errors import CorruptSegment, WrongSchema
from tupelo.pipeline.schema import SCHEMA_VERSION
from tupelo.values.codec import BadBytes

MANIFEST = "_manifest.json"
POSITION_MAX = 2**53
"""No log gets there; who says that it has is not believed."""

_FILE = re.compile(r"day=-?\d+-\d\d-\d\d/\d+-\d+\.parquet", re.ASCII)


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One file of an archive: `file` is its path within the log's folder. Times are microseconds
    since 1970, the earliest and the latest; `kinds` says how many changes there are of each."""

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
    """What there is of one log; `sealed` is the high-water mark."""

    schema: int = SCHEMA_VERSION
    host: str
    space: str
    id: str
    first: int
    sealed: int
    segments: list[Segment]


def folder_of(archive: Path, host: str, space: str) -> Path:
    """The folder of a log in an archive."""
    return archive / f"host={quote(host, safe='')}" / f"space={quote(space, safe='')}"


def load(folder: Path) -> Manifest | None:
    path = folder / MANIFEST
    try:
        encoded = path.read_bytes()
    except FileNotFoundError:
        return None
    with whole(path):
        version = msgspec.json.decode(encoded, type=_Versioned).schema
        if version != SCHEMA_VERSION:
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
        if segment.first != expected or segment.rows != segment.last - segment.first + 1:
            raise CorruptSegment(str(path), f"{segment.file} does not begin at {expected}")
        expected = segment.last + 1
    if not manifest.segments or expected != manifest.sealed + 1:
        raise CorruptSegment(str(path), f"nothing reaches {manifest.sealed}")
    return manifest


class _Versioned(msgspec.Struct):
    schema: int


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """What goes wrong in here is the fault of this file."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptSegment(str(path), "it is gone") from error
    except (OSError, pa.ArrowException, BadBytes, ValueError) as error:
        raise CorruptSegment(str(path), str(error)) from error
