"""Logs at other hosts, read over the network. The client is imported when a host is asked: logs in
files do not need it, and it takes as long to import as a short query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tupelo.errors import BadArgument, LogTrimmed, PipelineError, WrongPassword
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.schema import build, needed_for
from tupelo.values.codec import BadBytes

if TYPE_CHECKING:
    from tupelo.federation.client.space import RemoteSpace

RECONNECT_SECONDS = 10.0
"""The default number of seconds that a task waits for a host that is away."""

_Answer = tuple[str, str, int, int, list[list[Any]]]
"""The host and id of the log, its first and last position, and the requested columns."""
_TRUE, _FALSE = {"true", "1", "yes"}, {"false", "0", "no", ""}


@dataclass(frozen=True)
class Way:
    """How to reach hosts, besides their addresses. A host that was there when a query was planned
    may be away for a moment: tasks wait for it for `reconnect` seconds."""

    password: str | None = None
    tls: bool | None = None
    reconnect: float = RECONNECT_SECONDS

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Way:
        """From the options `password`, `tls` and `reconnect`."""
        tls, reconnect = given.get("tls"), given.get("reconnect")
        return cls(
            given.get("password"),
            None if tls is None else flag("tls", tls),
            RECONNECT_SECONDS if reconnect is None else _seconds("reconnect", reconnect),
        )

    def connect(self, address: str, space: str, *, patiently: bool = False) -> RemoteSpace:
        """Connect to a space at a host; `patiently` waits until the host is back."""
        from tupelo.federation.client.connect import connect

        made = connect(
            f"tupelo://{address}/{quote(space, safe='')}",
            password=None if space == PRESENCE else self.password,
            tls=self.tls,
            name="pipeline",
            reconnect=self.reconnect if patiently else 0,
        )
        return cast("RemoteSpace", made)


def flag(name: str, value: str) -> bool:
    """Parse an option that is true or false."""
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise BadArgument(name, "true or false", value)


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise BadArgument(name, "a number of seconds, 0 or more", value)
    return seconds


class RemoteLog(Log):
    """The log of one space of a host. Raises LogTrimmed if the space keeps no log."""

    def __init__(self, address: str, space: str, way: Way) -> None:
        self.address = address
        self.space = space
        self.way = replace(way, password=None)  # only sent to a space that requires one
        try:
            self.host, self.id, *_ = self._ends()
        except WrongPassword:
            if way.password is None:
                raise
            self.way = way
            self.host, self.id, *_ = self._ends()

    def bounds(self) -> tuple[int, int]:
        _, _, first, last = self._ends()
        return first, last

    def _ends(self) -> tuple[str, str, int, int]:
        with closing(self.way.connect(self.address, self.space)) as there:
            host, life, first, last, _ = _ask(there, self.space, [], 1, 0)
        return host, life, first, last

    def _read(
        self, first: int, last: int, columns: Sequence[str], entry: Declared | None
    ) -> Iterator[pa.RecordBatch]:
        names = sorted(needed_for(columns) | {"arrival", "position"})
        with (
            closing(self.way.connect(self.address, self.space, patiently=True)) as there,
            ThreadPoolExecutor(1, "tupelo-log") as ahead,
        ):
            # The next answer is on its way while the rows of this one are used.
            asked = ahead.submit(_ask, there, self.space, names, first, last)
            while first <= last:
                _, life, _, end, found = asked.result()
                if life != self.id:
                    raise PipelineError(
                        f"the log of {self.space!r} at {self.address} is another one now"
                    )
                count = len(found[0])
                if not count:
                    raise PipelineError(
                        f"the log of {self.space!r} at {self.address} ends at {end}; the change at"
                        f" {first} was asked for"
                    )
                begin, first = first, first + count
                if first <= last:
                    asked = ahead.submit(_ask, there, self.space, names, first, last)
                yield self._batch(dict(zip(names, found, strict=True)), begin, columns, entry)

    def _batch(
        self, raw: dict[str, Any], first: int, columns: Sequence[str], entry: Declared | None
    ) -> pa.RecordBatch:
        """An answer as a batch, checked, because a host may send anything."""
        count = len(raw["position"])
        if raw["position"] != [*range(first, first + count)]:
            raise _nonsense(self.address, self.space, f"it has not the changes from {first} on")
        try:
            return build(self.host, self.space, count, self._raw(raw), columns, entry)
        except (ValueError, TypeError, ArithmeticError, BadBytes) as error:
            raise _nonsense(self.address, self.space, str(error)) from error

    def _raw(self, raw: dict[str, Any]) -> dict[str, Any]:
        """With the host's own id where the answer omits it."""
        if "agent" in raw:
            raw["agent"] = pc.fill_null(pa.array(raw["agent"], pa.string()), self.host)
        if "origin" in raw:
            about = pc.is_valid(pa.array(raw["arrival"], pa.int64()))
            own = pc.if_else(about, self.host, pa.scalar(None, pa.string()))
            raw["origin"] = pc.coalesce(pa.array(raw["origin"], pa.string()), own)
        return raw

    def __repr__(self) -> str:
        return f"RemoteLog({self.address!r}, {self.space!r})"


def spaces_at(address: str, way: Way) -> list[str]:
    """The spaces of a host, including its presence."""
    with closing(way.connect(address, PRESENCE)) as presence:
        return list(presence.host["spaces"])


def hosts_around(address: str, way: Way) -> list[str]:
    """The addresses of a host and of the hosts that it is engaged with."""
    from tupelo.federation.hosts.presence import HostPresence

    with closing(way.connect(address, PRESENCE)) as presence:
        hosts = presence.read_all(HostPresence(state="engaged"))
        own = presence.host["id"]
    return [address, *sorted(h.address for h in hosts if h.address and h.id != own)]


def _ask(there: RemoteSpace, space: str, names: list[str], first: int, last: int) -> list[Any]:
    """Request a part of the log. Errors name the address."""
    from tupelo.federation.links import wire
    from tupelo.space.dual_api import run_sync

    try:
        answer = run_sync(partial(there.ask, wire.ReadLog(0, space, names, first, last)))
    except LogTrimmed as error:
        raise LogTrimmed(f"{there.peer}, space {space!r}: {error}", error.first) from error
    try:
        host, life, begin, end, found = msgspec.convert(answer, _Answer)
    except msgspec.ValidationError as error:
        raise _nonsense(there.peer, space, str(error)) from error
    count = len(found[0]) if found else 0
    if len(found) != len(names) or any(len(column) != count for column in found):
        raise _nonsense(there.peer, space, "it has not the columns that were asked for")
    return [host, life, begin, end, found]


def _nonsense(address: str, space: str, why: str) -> PipelineError:
    return PipelineError(f"what {address} answers is no part of the log of {space!r}: {why}")
