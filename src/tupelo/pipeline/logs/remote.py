"""Logs at hosts elsewhere, read straight from them by whoever needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from tupelo.errors import BadArgument, CannotReach, LogTrimmed, PeerLost, PipelineError
from tupelo.federation.client.connect import connect
from tupelo.federation.client.doors import at_once
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts.presence import SYSTEM, HostPresence
from tupelo.federation.links import wire
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.schema import build, check_columns, needed_for

RECONNECT_SECONDS = 10.0
"""So long a task waits for a host that is away, if nobody says otherwise."""

_PAUSE_SECONDS = 0.2
_TRUE, _FALSE = {"true", "1", "yes"}, {"false", "0", "no", ""}


@dataclass(frozen=True)
class Way:
    """How hosts are reached, beside their addresses. One who was there when a query was planned
    may be away for a moment: tasks wait for it, `reconnect` seconds."""

    password: str | None = None
    tls: bool | None = None
    reconnect: float = RECONNECT_SECONDS

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Way:
        """As options say it: `password`, `tls` and `reconnect`."""
        tls, reconnect = given.get("tls"), given.get("reconnect")
        return cls(
            given.get("password"),
            None if tls is None else flag("tls", tls),
            RECONNECT_SECONDS if reconnect is None else _seconds("reconnect", reconnect),
        )

    def connect(self, address: str, space: str, *, patiently: bool = False) -> RemoteSpace:
        """A space at a host; `patiently`, if need be when it is back."""
        until = monotonic() + self.reconnect
        while True:
            try:
                return connect(
                    f"tupelo://{address}/{quote(space, safe='')}",
                    password=None if space == SYSTEM else self.password,
                    tls=self.tls,
                    name="pipeline",
                    reconnect=self.reconnect,
                )
            except (CannotReach, PeerLost):
                if not patiently or monotonic() + _PAUSE_SECONDS > until:
                    raise
            sleep(_PAUSE_SECONDS)


def flag(name: str, value: str) -> bool:
    """An option that is true or false."""
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


class RemoteLog:
    """The log of one space of a host, at its address. LogTrimmed if that space keeps none."""

    def __init__(self, address: str, space: str, way: Way) -> None:
        self.address = address
        self.space = space
        self.way = way
        with closing(way.connect(address, space)) as there:
            self.host, self.id, *_ = _ask(there, space, [], 1, 0)

    def bounds(self) -> tuple[int, int]:
        with closing(self.way.connect(self.address, self.space)) as there:
            _, _, first, last, _ = _ask(there, self.space, [], 1, 0)
        return first, last

    def batches(
        self,
        first: int,
        last: int,
        columns: Sequence[str] | None = None,
        entry: Declared | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The changes from one position to another, both included. LogTrimmed if they are not, or
        while they are read are no longer, all kept."""
        columns = check_columns(columns, entry)
        names = sorted(needed_for(columns) | {"arrival"})
        with closing(self.way.connect(self.address, self.space, patiently=True)) as there:
            while first <= last:
                host, life, _, end, found = _ask(there, self.space, names, first, last)
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
                raw = self._raw(names, found)
                yield build(host, self.space, count, raw, columns, entry)
                first += count

    def _raw(self, names: Sequence[str], found: list[Any]) -> dict[str, Any]:
        raw: dict[str, Any] = dict(zip(names, found, strict=True))
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
    """The spaces of a host, its presence among them."""
    with closing(way.connect(address, SYSTEM)) as presence:
        return list(presence.host["spaces"])


def hosts_around(address: str, way: Way) -> list[str]:
    """The addresses of a host and of those that it is engaged with."""
    with closing(way.connect(address, SYSTEM)) as presence:
        hosts = presence.read_all(HostPresence(state="engaged"))
        own = presence.host["id"]
    return [address, *sorted(h.address for h in hosts if h.address and h.id != own)]


def _ask(there: RemoteSpace, space: str, names: list[str], first: int, last: int) -> list[Any]:
    """Ask for a part of the log. What is in the way is said with the address."""
    try:
        answer: list[Any] = at_once(partial(there.ask, wire.Log(0, space, names, first, last)))
        return answer
    except LogTrimmed as error:
        raise LogTrimmed(f"{there.peer}, space {space!r}: {error}", error.first) from error
