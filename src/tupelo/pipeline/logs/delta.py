"""A copy of logs as one Delta table, for other engines.

The table says up to which position it has each log, in the same commit as the changes, so that a
copy that is repeated or was interrupted adds nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tupelo.errors import BadArgument, LogTrimmed, PipelineError
from tupelo.pipeline.schema import CHANGES, MEANINGS
from tupelo.pipeline.source.locations import LogPart, bounds_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from tupelo.pipeline.logs.log import Log

ROWS_PER_COMMIT = 1_000_000
_SCHEMA = pa.schema([field.with_metadata({"comment": MEANINGS[field.name]}) for field in CHANGES])


def export(log: Log, to: Path) -> int:
    """Add the changes of this log that the table does not have yet. Returns their number.

    Raises PipelineError if the table has another log of this name or cannot be written, LogTrimmed
    if changes that come next are no longer kept, and BadArgument if there is something else."""
    from deltalake import CommitProperties, Transaction, write_deltalake
    from deltalake.exceptions import DeltaError

    table = _table(to)
    app = json.dumps(["tupelo", log.host, log.space])
    first, last = bounds_of(log)
    begin = _begin(table, app, log, first)
    for start in range(begin, last + 1, ROWS_PER_COMMIT):
        until = min(last, start + ROWS_PER_COMMIT - 1)
        rows = pa.RecordBatchReader.from_batches(_SCHEMA, _batches(LogPart(log, start, until)))
        try:
            write_deltalake(
                str(to),
                rows,
                mode="append",
                partition_by=["space"] if table is None else None,
                schema_mode=None if table is None else "merge",
                name="changes",
                description="the change log of Tupelo",
                commit_properties=CommitProperties(
                    custom_metadata={"tupelo.log": log.id, "tupelo.upto": str(until)},
                    app_transactions=[Transaction(app, until), Transaction(_life(app, log.id), 1)],
                ),
            )
        except (DeltaError, OSError) as error:
            raise PipelineError(f"{to} cannot be written: {_in_a_line(error)}") from error
        table = _table(to)
    return max(0, last - begin + 1)


def _table(to: Path) -> DeltaTable | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if to.exists() and not to.is_dir():
        raise BadArgument("to", "a Delta table, or a new folder", str(to))
    try:
        if not DeltaTable.is_deltatable(str(to)):
            if to.exists() and any(to.iterdir()):
                raise BadArgument("to", "a Delta table, or a new folder", str(to))
            return None
        table = DeltaTable(str(to))
        missing = {"host", "space", "position"} - {field.name for field in table.schema().fields}
    except (DeltaError, OSError) as error:
        raise PipelineError(f"{to} cannot be read: {_in_a_line(error)}") from error
    if missing:
        raise BadArgument("to", "a Delta table of changes, or a new folder", str(to))
    return table


def _in_a_line(error: Exception) -> str:
    """Without the stack of the program in Rust, which may follow."""
    return str(error).partition("\n")[0]


def _begin(table: DeltaTable | None, app: str, log: Log, first: int) -> int:
    """The first position that the table does not have."""
    upto = None if table is None else table.transaction_version(app)
    if table is None or upto is None:
        return first
    # An older log has no id until it is opened again.
    if all(table.transaction_version(_life(app, id)) is None for id in (log.id, "")):
        raise PipelineError(
            f"the table has another log of {log.space!r} of {log.host}: export this one elsewhere"
        )
    if upto + 1 < first:
        raise LogTrimmed(
            f"the table has {log.space!r} up to {upto}, but its log begins at {first}: what was"
            " between is no longer kept; name its archive as well",
            first,
        )
    return upto + 1


def _life(app: str, id: str) -> str:
    """What marks that the table has the log with this id."""
    return f"{app} {id}"


def _batches(part: LogPart) -> Iterator[pa.RecordBatch]:
    for batch in part.batches():
        yield batch.cast(_SCHEMA)
