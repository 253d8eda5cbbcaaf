"""Histories: the operations that each client of a round has begun, and their outcomes.

Each process writes a file of JSON lines, one for the beginning of an operation and one for its end,
each written to the file before the operation goes on: a killed client leaves its history. Times are
of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Literal

import msgspec

from tupelo.errors import (
    AspectVeto,
    BadInput,
    CannotCommit,
    CannotJoin,
    CannotReach,
    CannotSend,
    ContainerError,
    CountNotMet,
    Deadlock,
    NotAllAnswered,
    PeerLost,
    Refused,
    SourceAway,
    TimeoutExpired,
    TokenAway,
    TransactionEnded,
    TupeloError,
    UnknownHost,
    UnknownTransaction,
)

Outcome = Literal["ok", "fail", "unknown", "pending"]
"""`fail`: the operation was certainly not done; `unknown`: it may have been; `pending`: it has no
end in the history."""

Verb = Literal["write", "take", "read", "once", "ordered", "transfer"]
"""`once` reads in a session that gives no value twice, `ordered` in a view with one order for all;
`transfer` takes and writes in one transaction."""

NOTHING_DONE = (
    AspectVeto,
    BadInput,
    CannotCommit,
    CannotJoin,
    CannotReach,
    CannotSend,
    ContainerError,
    CountNotMet,
    Deadlock,
    NotAllAnswered,
    Refused,
    SourceAway,
    TokenAway,
    UnknownHost,
    UnknownTransaction,
)
"""Errors of an operation that was certainly not done."""
OUTCOME_OF_STATE: dict[str, Literal["ok", "fail"]] = {"committed": "ok", "aborted": "fail"}
ERROR_CHARS_MAX = 300


class HistoryLine(msgspec.Struct, omit_defaults=True):
    """A line of a history. `number` counts the operations of a client; 0 is the client itself."""

    client: str
    number: int
    phase: Literal["invoke", "commit", "ok", "fail", "unknown", "end"]
    at: float
    verb: Verb = "read"
    key: str = ""
    where: str = ""
    wrote: list[str] = []
    got: list[str] = []
    reader: str = ""
    to: str = ""
    many: bool = False
    spans: bool = False
    error: str = ""


class ClientOperation(msgspec.Struct):
    """An operation from its beginning to its end, as its client saw it.

    `key` is the class of values that it is about, `where` the host through which it was asked,
    `reader` the session or view of a read, `to` the host that a message is directed to. `many`
    says that it may take more than one value, `spans` that other hosts may have answered.
    """

    client: str
    number: int
    verb: Verb
    key: str
    where: str
    began: float
    ended: float = inf
    outcome: Outcome = "pending"
    wrote: list[str] = []
    got: list[str] = []
    reader: str = ""
    to: str = ""
    many: bool = False
    spans: bool = False
    error: str = ""
    commits: bool = False

    def __str__(self) -> str:
        parts = [f"{self.client}#{self.number} {self.verb} {self.key} at {self.where}"]
        parts += [f"wrote {', '.join(self.wrote)}"] * bool(self.wrote)
        parts += [f"got {', '.join(self.got)}"] * bool(self.got)
        parts.append(f"{self.outcome}{f' ({self.error})' if self.error else ''}")
        return ": ".join(parts)


class TortureHistory(msgspec.Struct):
    """The operations of all clients, and the clients that have ended."""

    operations: list[ClientOperation]
    ended: set[str]


class HistoryLog:
    """The history file of a process; threads may share it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def put(self, line: HistoryLine) -> None:
        with self._lock:
            os.write(self._file, msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        os.close(self._file)

    def end(self, client: str) -> None:
        """Record that a client has ended."""
        self.put(HistoryLine(client, 0, "end", time.monotonic()))

    def begin(
        self,
        client: str,
        verb: Verb,
        key: str,
        where: str,
        *,
        wrote: Iterable[str] = (),
        reader: str = "",
        to: str = "",
        many: bool = False,
        spans: bool = False,
    ) -> Begun:
        number = next(self._numbers)
        line = HistoryLine(
            client, number, "invoke", time.monotonic(), verb, key, where, list(wrote)
        )
        line.reader, line.to, line.many, line.spans = reader, to, many, spans
        self.put(line)
        return Begun(self, client, number, transfers=verb == "transfer")


class Begun:
    """An operation that has begun. Call one of `told`, `undone` and `failed` when it ends."""

    def __init__(self, log: HistoryLog, client: str, number: int, *, transfers: bool) -> None:
        self._log = log
        self._client = client
        self._number = number
        self._commits = not transfers
        self._got: list[str] = []
        self._wrote: list[str] = []

    def doing(self, got: Iterable[str], wrote: Iterable[str] = ()) -> None:
        """Record the values that the transaction has taken and written so far."""
        self._got, self._wrote = list(got), list(wrote)

    def committing(self) -> None:
        """Record that the commit of the transaction begins."""
        self._commits = True
        self._put("commit", self._got)

    def told(self, got: Iterable[str] = ()) -> None:
        """Record that the operation was done and returned these values."""
        self._put("ok", list(got) or self._got)

    def undone(self, reason: str) -> None:
        """Record that the client has aborted the operation."""
        self._put("fail", self._got, reason)

    def failed(self, error: TupeloError) -> None:
        """Record an error. A transaction whose commit has not begun is not committed."""
        outcome = outcome_of(error) if self._commits else "fail"
        self._put(outcome, self._got, f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX])

    def _put(
        self,
        phase: Literal["commit", "ok", "fail", "unknown"],
        got: Iterable[str] = (),
        error: str = "",
    ) -> None:
        line = HistoryLine(self._client, self._number, phase, time.monotonic(), error=error)
        line.got, line.wrote = list(got), self._wrote
        self._log.put(line)


def outcome_of(error: TupeloError) -> Literal["ok", "fail", "unknown"]:
    """The outcome of an operation that raised this error."""
    if isinstance(error, PeerLost):
        return "unknown" if error.in_doubt else "fail"
    if isinstance(error, TimeoutExpired | TransactionEnded):
        return OUTCOME_OF_STATE.get(error.state, "unknown")
    return "fail" if isinstance(error, NOTHING_DONE) else "unknown"


def read_history(files: Iterable[Path]) -> TortureHistory:
    """Read the operations in these files. The last line of a killed client may be incomplete: it is
    left out, and its operation has no end."""
    lines: list[HistoryLine] = []
    for file in files:
        for text in file.read_bytes().split(b"\n"):
            if text:
                with suppress(msgspec.DecodeError):
                    lines.append(msgspec.json.decode(text, type=HistoryLine))
    return history_of(lines)


def history_of(lines: Iterable[HistoryLine]) -> TortureHistory:
    operations: dict[tuple[str, int], ClientOperation] = {}
    ended: set[str] = set()
    for line in lines:
        key = line.client, line.number
        if line.phase == "end":
            ended.add(line.client)
        elif line.phase == "invoke":
            operations[key] = ClientOperation(
                line.client, line.number, line.verb, line.key, line.where, line.at,
                wrote=line.wrote, reader=line.reader, to=line.to, many=line.many, spans=line.spans,
            )  # fmt: skip
        elif key in operations:
            one = operations[key]
            one.wrote, one.got = line.wrote or one.wrote, line.got or one.got
            if line.phase == "commit":
                one.commits = True
            else:
                one.ended, one.outcome, one.error = line.at, line.phase, line.error
    for one in operations.values():
        if one.verb == "transfer" and one.outcome == "pending" and not one.commits:
            one.outcome = "fail"  # Its client was killed before the commit began.
    return TortureHistory(list(operations.values()), ended)
