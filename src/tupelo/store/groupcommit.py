"""Group commit: many callers share one commit, and one statement writes many rows."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any

_CHUNKS = (256, 64, 16, 4, 1)


class GroupCommit:
    """The first caller leads: it commits for all callers that have come by then.

    The others sleep, each on a lock of its own, until their position is durable, or until one of
    them is woken to lead the next round. So no later caller commits alone in between.
    """

    def __init__(self, commit: Callable[[], int]) -> None:
        self._commit = commit
        self._gate = threading.Lock()
        self._followers: list[tuple[int, threading.Lock]] = []
        self._led = False
        self._durable = 0

    def share(self, position: int) -> None:
        """Return when the commit up to this position is done, or has failed."""
        turn: threading.Lock | None = None
        durable = 0
        try:
            with self._gate:
                if self._durable >= position:
                    return
                if self._led:
                    turn = threading.Lock()
                    turn.acquire()
                    self._followers.append((position, turn))
                self._led = True
            if turn is not None:
                turn.acquire()
                if self._durable >= position:
                    return
            durable = self._commit()
        except BaseException:
            # Interrupted, for example by Ctrl-C: a follower leaves; a leader passes the lead on.
            with self._gate:
                followers = [f for f in self._followers if f[1] is not turn]
                leads = turn is None or len(followers) == len(self._followers)
                self._followers = followers
            if leads and (turn is None or self._durable < position):
                self._hand_on(durable)
            raise
        self._hand_on(durable)

    def _hand_on(self, durable: int) -> None:
        """Wake the callers whose changes are durable, and one of the others to lead the next
        round."""
        served = []
        with self._gate:
            self._durable = max(self._durable, durable)
            if self._followers:
                served = [turn for position, turn in self._followers if position <= durable]
                self._followers = [f for f in self._followers if f[0] > durable]
            self._led = bool(self._followers)
            if self._led:
                served.append(self._followers.pop(0)[1])
        for turn in served:
            turn.release()


def execute_many(db: sqlite3.Connection, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    """`executemany` with many rows in a statement: `{}` stands for the list of values.

    Python releases its global lock for every statement, and may wait long to get it back.
    """
    done, count = 0, len(rows)
    while done < count:
        size = next(chunk for chunk in _CHUNKS if chunk <= count - done) if count > 1 else 1
        values = chain.from_iterable(rows[done : done + size]) if size > 1 else rows[done]
        db.execute(_filled(statement, size, len(rows[0])), tuple(values))
        done += size


@cache
def _filled(statement: str, rows: int, columns: int) -> str:
    row = "(" + ", ".join("?" * columns) + ")"
    return statement.format(", ".join([row] * rows))
