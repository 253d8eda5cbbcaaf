"""Which engine answers: DuckDB where Spark would take longer to start than DuckDB to answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import Enum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument

if TYPE_CHECKING:
    from tupelo.pipeline.sql.tables import SqlEngine

ROWS_MAX = 2_000_000
"""Above so many changes, Spark: see docs/decisions/0051."""


class EngineName(Enum):
    AUTO = "auto"
    DUCKDB = "duckdb"
    SPARK = "spark"


def chosen(wanted: EngineName, master: str | None, rows: int) -> EngineName:
    """DuckDB or Spark, for so many changes."""
    if wanted is EngineName.DUCKDB and master is not None:
        raise BadArgument("engine", "spark or auto: --master is Spark's", wanted.value)
    if wanted is not EngineName.AUTO:
        return wanted
    if master is not None or find_spec("duckdb") is None:
        return EngineName.SPARK
    if rows > ROWS_MAX and find_spec("pyspark") is not None:
        return EngineName.SPARK
    return EngineName.DUCKDB


@contextmanager
def started(name: EngineName, master: str | None) -> Iterator[SqlEngine]:
    """The engine, ready for statements."""
    engine: SqlEngine
    if name is EngineName.DUCKDB:
        from tupelo.pipeline.sql.duck import DuckDB

        engine = DuckDB()
    else:
        from tupelo.pipeline import session
        from tupelo.pipeline.sql.on_spark import Spark

        engine = Spark(session(master))
    with closing(engine):
        yield engine


class _NoPandas:
    """Finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def keep_pandas_out() -> None:
    """Arrow imports pandas with its first array, which takes longer than most statements and is
    not used here. For a process that does nothing else: Arrow asks once, and remembers."""
    if "pandas" not in sys.modules:
        finder: Any = _NoPandas
        sys.meta_path.insert(0, finder)
        try:
            import pyarrow as pa

            pa.array([0])
        finally:
            sys.meta_path.remove(finder)
