"""What the logs of files, archives, hosts and databases have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from tupelo.pipeline.declared import Declared
from tupelo.pipeline.schema import check_columns

BATCH_BYTES = 16 * 2**20
"""About the largest number of bytes in a batch."""


class Log:
    """The log of one space; it can be pickled, for the task that reads it. `host` is the id of the
    host that keeps it, of the database, or the agent of a space without a host. `id` distinguishes
    it from other logs with the same names."""

    host: str
    space: str
    id: str

    def bounds(self) -> tuple[int, int]:
        """The first position that is kept, and the last durable one; one less than the first if
        none is."""
        raise NotImplementedError

    def batches(
        self,
        first: int,
        last: int,
        columns: Sequence[str] | None = None,
        entry: Declared | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The changes between two positions, both included. Raises LogTrimmed if they are not all
        kept, or are trimmed during the iteration."""
        return self._read(first, last, check_columns(columns, entry), entry)

    def _read(
        self, first: int, last: int, columns: Sequence[str], entry: Declared | None
    ) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def before(self, columns: Sequence[str], entry: Declared | None) -> pa.RecordBatch | None:
        """The entries that were written before the log begins and existed then: the rows of their
        writing. None if the log does not know them."""
        return None


def in_batches(
    read: Callable[[int, int], pa.RecordBatch], first: int, last: int, rows: int, rows_max: int
) -> Iterator[pa.RecordBatch]:
    """The changes from `first` to `last`, by `read(first, last)` of a part of them at a time. The
    first part has `rows` changes; the sizes of the others follow the size of the entries."""
    rows = max(1, rows)
    while first <= last:
        batch = read(first, min(last, first + rows - 1))
        if not batch.num_rows:
            return
        yield batch
        first += batch.num_rows
        fitting = batch.num_rows * BATCH_BYTES // max(1, batch.nbytes)
        rows = max(1, min(rows_max, fitting, rows * 8))
