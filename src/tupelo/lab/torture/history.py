"""Histories: the operations that each client of a round has begun, and their outcomes.

Each process writes a file of JSON lines, one for the beginning of an operation and one for its end,
each written to the file before the operation goes on: a killed client leaves its history. The last
line of an operation is the one that counts. Times are of the monotonic clock, which all processes
of a machine share.
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
from typing import Any, Literal

import msgspec

from tupelo import errors
from tupelo.errors import PeerLost, TimeoutExpired, TransactionEnded, TupeloError

CallOutcome = Literal["ok", "fail", "unknown", "pending"]
"""`fail`: the operation was certainly not done; `unknown`: it may have been; `pending`: it has no
end in the history."""

Verb = Literal["write", "take", "read", "once", "ordered", "transfer"]
"""`once` reads in a session that gives no value twice, `ordered` in a view with one order for all;
`transfer` takes and writes in one transaction."""

NOTHING_DONE = (
    errors.AspectVeto,
    errors.BadInput,
    errors.CannotCommit,
    errors.CannotJoin,
    errors.CannotReach,
    errors.CannotSend,
    errors.ContainerError,
    errors.CountNotMet,
    errors.Deadlock,
    errors.NotAllAnswered,
    errors.Refused,
    errors.SourceAway,
    errors.TokenAway,
    errors.UnknownHost,
    errors.UnknownTransaction,
)
"""Errors of an operation that was certainly not done."""
OUTCOME_OF_STATE: dict[str, Literal["ok", "fail"]] = {"committed": "ok", "aborted": "fail"}
ERROR_CHARS_MAX = 300


class ClientOperation(msgspec.Struct, omit_defaults=True):
    """An operation from its beginning to its end, as its client saw it.

    `number` counts the operations of a process; 0 says that the client has ended. `key` is the
    class of values that it is about, `where` the host through which it was asked, `reader` the
    session or view of a read, `to` the host that a message is directed to. `many` says that it may
    take more than one value, `spans` that other hosts may have answered, `commits` that it is no
    transaction, or one whose commit has begun.
    """

    client: str
    number: int
    verb: Verb = "read"
    key: str = ""
    where: str = ""
    began: float = 0.0
    ended: float = inf
    outcome: CallOutcome = "pending"
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

    def put(self, operation: ClientOperation) -> None:
        with self._lock:
            os.write(self._file, msgspec.json.encode(operation) + b"\n")

    def close(self) -> None:
        os.close(self._file)

    def end(self, client: str) -> None:
        """Record that a client has ended."""
        self.put(ClientOperation(client, 0))

    def begin(self, client: str, verb: Verb, key: str, where: str, **facts: Any) -> Begun:
        """Record that an operation begins; `facts` are other fields of it."""
        number, now = next(self._numbers), time.monotonic()
        one = ClientOperation(client, number, verb, key, where, now, **facts)
        one.commits = verb != "transfer"
        self.put(one)
        return Begun(self, one)


class Begun:
    """An operation that has begun. Call one of `told`, `undone` and `failed` when it ends."""

    def __init__(self, log: HistoryLog, operation: ClientOperation) -> None:
        self._log = log
        self._one = operation

    @property
    def has_written(self) -> bool:
        return bool(self._one.wrote)

    def doing(self, got: Iterable[str], wrote: Iterable[str] = ()) -> None:
        """Note the values that the transaction has taken and written so far."""
        self._one.got, self._one.wrote = list(got), list(wrote)

    def committing(self) -> None:
        """Record that the commit of the transaction begins."""
        self._one.commits = True
        self._log.put(self._one)

    def told(self, got: Iterable[str] = ()) -> None:
        """Record that the operation was done and returned these values."""
        self._one.got = list(got) or self._one.got
        self._end("ok")

    def undone(self, reason: str) -> None:
        """Record that the client has aborted the operation."""
        self._end("fail", reason)

    def failed(self, error: TupeloError) -> None:
        """Record an error. A transaction whose commit has not begun is not committed."""
        outcome = outcome_of(error) if self._one.commits else "fail"
        self._end(outcome, f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX])

    def _end(self, outcome: CallOutcome, error: str = "") -> None:
        one = self._one
        one.outcome, one.error, one.ended = outcome, error, time.monotonic()
        self._log.put(one)


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
    operations: dict[tuple[str, int], ClientOperation] = {}
    for file in files:
        for text in file.read_bytes().split(b"\n"):
            if text:
                with suppress(msgspec.DecodeError):
                    one = msgspec.json.decode(text, type=ClientOperation)
                    operations[one.client, one.number] = one
    for one in operations.values():
        if one.outcome == "pending" and not one.commits:
            one.outcome = "fail"  # Its client was killed before the commit began.
    ended = {client for client, number in operations if not number}
    return TortureHistory([one for one in operations.values() if one.number], ended)
