"""The logs at a path or an address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from tupelo.errors import BadArgument, LinkError, LogTrimmed, PipelineError, WrongPassword
from tupelo.federation.hosts.folder import SPACE_FILE
from tupelo.federation.links.address import is_database, parse_url
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.logs.database import PostgresLog, spaces_in
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.logs.remote import RemoteLog, Way, hosts_around, spaces_at
from tupelo.pipeline.logs.segments import POSITION_MAX, Archive, ArchivedLog, check_continues
from tupelo.pipeline.source.options import ReadOptions

_URL = "tupelo://"


class JoinedLog(Log):
    """A log with an archive for its older part: no change is read twice."""

    def __init__(self, live: Log, archive: Path) -> None:
        self.live = live
        self.archive = archive
        self.host, self.space, self.id = live.host, live.space, live.id

    def sealed(self) -> ArchivedLog | None:
        """The sealed part, as it is now."""
        found = Archive(self.archive).log(self.host, self.space)
        if found is not None and found.id not in ("", self.id):
            raise PipelineError(
                f"what is sealed of {self.space!r} in {self.archive} is of another log"
            )
        return found

    def bounds(self) -> tuple[int, int]:
        sealed = self.sealed()  # First: what is trimmed before the next line was sealed.
        first, last = self.live.bounds()
        if sealed is not None:
            check_continues(self.live, sealed)
            first = min(first, sealed.first)
        return first, last

    def _read(
        self, first: int, last: int, columns: Sequence[str], entry: Declared | None
    ) -> Iterator[pa.RecordBatch]:
        while first <= last:
            sealed = self.sealed()
            if sealed is not None and sealed.first <= first <= sealed.last:
                until = min(last, sealed.last)
                yield from sealed.batches(first, until, columns, entry)
                first = until + 1
                continue
            try:
                for batch in self.live.batches(first, last, columns, entry):
                    yield batch
                    first += batch.num_rows
                return
            except LogTrimmed:  # trimmed while it was read, so it is sealed now
                sealed = self.sealed()
                if sealed is None or not sealed.first <= first <= sealed.last:
                    raise

    def __repr__(self) -> str:
        return f"JoinedLog({self.live!r}, {str(self.archive)!r})"


@dataclass(frozen=True)
class LogPart:
    """A part of a log between two positions, both included."""

    log: Log
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first + 1

    def batches(
        self, columns: Sequence[str] | None = None, entry: Declared | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All its rows. Raises PipelineError if the log ends too early."""
        rows = 0
        for batch in self.log.batches(self.first, self.last, columns, entry):
            rows += batch.num_rows
            yield batch
        if rows != self.rows:
            raise PipelineError(
                f"{self.log!r} was to be read from {self.first} to {self.last}, and had {rows}"
                f" changes of {self.rows}"
            )


def bounds_of(log: Log) -> tuple[int, int]:
    """The bounds of a log, checked, because they may come from a host."""
    first, last = log.bounds()
    if not 1 <= first <= last + 1 <= POSITION_MAX + 1:
        raise PipelineError(f"{log!r} says that it goes from {first} to {last}")
    return first, last


def name_of(log: Log) -> str:
    """The name of a log in the offsets of a stream."""
    return f"{quote(log.host, safe='')}/{quote(log.space, safe='')}"


def resolve(options: ReadOptions, missing: list[str] | None = None) -> list[Log]:
    """The logs of these options. A host that does not answer is an error, or is added to `missing`
    if that is given."""
    found: dict[tuple[str, str, str], list[Log]] = {}
    for location in options.locations:
        for log in _at(location, options, missing):
            if options.hosts is None or log.host in options.hosts:
                found.setdefault((log.host, log.space, log.id), []).append(log)
    for key in [key for key in found if not key[2]]:
        others = [other for other in found if other[:2] == key[:2] and other[2]]
        if len(others) == 1 and all(isinstance(log, ArchivedLog) for log in found[key]):
            found[others[0]] += found.pop(key)  # It was sealed before it had an id.
    archive = None if options.archive is None else Path(options.archive).resolve()
    if archive is not None and not archive.is_dir():
        raise BadArgument("archive", "a folder that is there", options.archive)
    return [log for key in sorted(found) for log in _joined(found[key], archive)]


def _joined(found: list[Log], archive: Path | None) -> list[Log]:
    """One log from its parts: the live part continues where the archive ends."""
    sealed = list({log.folder: log for log in found if isinstance(log, ArchivedLog)}.values())
    live = next((log for log in found if not isinstance(log, ArchivedLog)), None)
    if live is None and _are_apart(sealed):
        return list(sealed)
    if len(sealed) > 1:
        folders = " and in ".join(str(log.folder) for log in sealed)
        raise PipelineError(f"one log is sealed in {folders}; read it from one of them")
    assert live is not None
    if sealed:
        archive = sealed[0].folder.parent.parent
    return [live if archive is None else JoinedLog(live, archive)]


def _are_apart(sealed: list[ArchivedLog]) -> bool:
    ordered = sorted(sealed, key=lambda log: log.first)
    return all(one.last < other.first for one, other in pairwise(ordered))


def by_name(logs: Sequence[Log]) -> dict[str, Log]:
    """The logs by name."""
    named = {name_of(log): log for log in logs}
    if len(named) < len(logs):
        several = next(log for log in logs if named[name_of(log)] is not log)
        raise PipelineError(
            f"there are several logs {name_of(several)}: one was made anew; name one of them"
        )
    return named


def _at(location: str, options: ReadOptions, missing: list[str] | None) -> Iterator[Log]:
    if location[: len(_URL)].lower() == _URL:
        yield from _at_hosts(location, options, missing)
        return
    if options.federation:
        raise BadArgument("federation", "false: it is asked for at a host's address", "true")
    if is_database(location):
        yield from _in_database(location, options, missing)
        return
    logs: list[Log] = list(_in_files(Path(location.removeprefix("file:")).resolve()))
    yield from (log for log in logs if _is_wanted(log.space, options))


def _in_files(path: Path) -> Iterator[Log]:
    if path.is_file():
        yield JournalLog(path)
        return
    if not path.is_dir():
        raise BadArgument("path", "a space's file, a host's folder or an archive", str(path))
    logs = Archive(path).logs()
    yield from logs
    files = [file for file in sorted(path.glob("*" + SPACE_FILE)) if file.stat().st_size]
    if not files and not logs:
        raise BadArgument("path", "a folder with spaces or sealed logs in it", str(path))
    for file in files:
        log = JournalLog(file)
        if not is_internal(log.space):
            yield log


def _in_database(url: str, options: ReadOptions, missing: list[str] | None) -> Iterator[Log]:
    """The log of the space that the URL names, or those of all spaces of the database."""
    from tupelo.postgres.connect import split_url

    conninfo, space = split_url(url)
    try:
        there = spaces_in(conninfo)
        if space is not None and space not in there:
            known = ", ".join(there)
            raise BadArgument("path", f"one that names a space of this database: {known}", space)
        names = [name for name in there if _is_wanted(name, options)]
        for name in names if space is None else [space]:
            yield PostgresLog(conninfo, name, options.way.reconnect)
    except LinkError as error:
        _excuse("the database", error, missing)


def _at_hosts(url: str, options: ReadOptions, missing: list[str] | None) -> Iterator[Log]:
    address, space = parse_url(url)
    hosts = [str(address)]
    try:
        if options.federation:
            hosts = hosts_around(str(address), options.way)
    except LinkError as error:
        _excuse(str(address), error, missing)
        return
    for host in hosts:
        named = host == str(address)
        # A password is only for the host that was named, not for those that it is engaged with.
        way = options.way if named else replace(options.way, password=None)
        try:
            yield from _at_host(host, space, options, way)
        except LinkError as error:
            _excuse(host, error, missing)
        except WrongPassword as error:
            if named or options.way.password is None:
                raise
            raise PipelineError(
                f"the space {error.space!r} at {host} is protected, and with federation=true the "
                f"password is shown at {address} alone: name that host in paths= as well, or "
                "say with space= which ones to read"
            ) from error


def _at_host(address: str, space: str | None, options: ReadOptions, way: Way) -> list[Log]:
    if space is not None and not options.federation:
        there = spaces_at(address, way)
        if space not in there:  # Asking for its log would create it.
            known = ", ".join(name for name in there if not is_internal(name))
            raise BadArgument("path", f"one that names a space of this host: {known}", space)
        return [RemoteLog(address, space, way)]
    logs: list[Log] = []
    for name in spaces_at(address, way):
        if (space is None or name == space) and not is_internal(name):
            if not _is_wanted(name, options):
                continue
            try:
                logs.append(RemoteLog(address, name, way))
            except LogTrimmed:
                if space is not None or options.spaces is not None:
                    raise  # It was requested by name; otherwise a space without a log is skipped.
    return logs


def _excuse(address: str, error: LinkError, missing: list[str] | None) -> None:
    if missing is None:
        raise error
    missing.append(address)


def _is_wanted(space: str, options: ReadOptions) -> bool:
    return options.spaces is None or space in options.spaces


def is_internal(space: str) -> bool:
    """Whether hosts keep this space for themselves. The presence space is public."""
    return space.startswith("tupelo.") and space != PRESENCE
