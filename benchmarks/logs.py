"""Logs to measure the pipeline with, made as fast as the parts of the pipeline can write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tupelo.pipeline.schema import CHANGES, COLUMNS, build

SPACE = "jobs"
Fields = tuple[str, int, float, str]
TYPES = (str, int, float, str)

_WHAT = ("resize", "rotate", "crop", "sharpen", "print", "send", "keep", "forget")
_AGENTS = 20
_ROWS = 65_536
_LAG = 1_000
"""So many entries are written before the first of them is taken."""
_BEGIN = 1_794_800_000.0  # in November 2026
_A_SECOND = 500


def fields(i: int) -> Fields:
    """An entry: some of it is always the same, and some never."""
    return _WHAT[i % len(_WHAT)], i, i * 2_654_435_761 % 2**32 / 7, f"image-{i}.png"


class MadeLog:
    """The log of a host that never was: entries are written, and taken a little later in the same
    order. It is sealed as any other log is."""

    def __init__(self, host: str, count: int) -> None:
        self.host = host
        self.space = SPACE
        self.id = f"made for {host}"
        self._count = count

    def bounds(self) -> tuple[int, int]:
        return 1, self._count

    def batches(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        for start in range(first, last + 1, _ROWS):
            yield self._batch(np.arange(start, min(last, start + _ROWS - 1) + 1))

    def _batch(self, position: Any) -> pa.RecordBatch:
        # After the first of them, writes are at odd positions and takes at even ones.
        taken = (position % 2 == 0) & (position > 2 * _LAG)
        arrival = np.where(taken, position - 2 * _LAG + 1, position)
        encode = msgspec.msgpack.Encoder().encode
        nothing = pa.nulls(len(position), pa.string())
        who = pa.array([f"{self.host}/{side}-{n}" for side in "wt" for n in range(_AGENTS)])
        raw = {
            "position": pa.array(position, pa.int64()),
            "arrival": pa.array(arrival, pa.int64()),
            "time": _BEGIN + position / _A_SECOND,
            "kind": pa.array(["written", "taken"]).take(pa.array(taken.astype(np.int8))),
            "origin": pa.repeat(self.host, len(position)),
            "n": pa.array(arrival, pa.int64()),
            "agent": who.take(pa.array(taken * _AGENTS + position % _AGENTS)),
            "session": nothing,
            "txn": nothing,
            "to": nothing,
            "waited": pa.array(np.where(taken, position % 100 / 1e3, 0.0)),
            "expires": pa.nulls(len(position), CHANGES.field("expires").type),
            "payload": [encode(fields(i)) for i in arrival.tolist()],
        }
        return build(self.host, self.space, len(position), raw, COLUMNS)
