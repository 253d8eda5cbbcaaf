"""docs/PIPELINE.md says of every column, kind, option and job what it is."""

import re
from pathlib import Path
from typing import get_args

import pytest

from tupelo import errors
from tupelo.pipeline import sink
from tupelo.pipeline.jobs import JOBS
from tupelo.pipeline.schema import COLUMNS, TYPED
from tupelo.pipeline.source import options
from tupelo.pipeline.sql.engines import ROWS_MAX
from tupelo.values.change import ChangeKind

PAGE = (Path(__file__).parents[2] / "docs" / "PIPELINE.md").read_text("utf-8")


def rows(heading: str) -> set[str]:
    """The names in the first column of the tables below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_column_and_kind():
    assert rows("The schema, version 3") == {*COLUMNS, TYPED, *get_args(ChangeKind)}


def test_every_option_of_a_reader():
    assert rows("Batch") == set(options._KNOWN)


def test_every_option_of_a_sink():
    of_spark = {"checkpointLocation", "queryName"}
    assert rows("Sink") == set(sink._KNOWN) - of_spark


def test_up_to_which_size_duckdb_answers():
    assert f"DuckDB up to {ROWS_MAX:,} changes" in PAGE


def test_every_job():
    assert rows("Jobs") == set(JOBS)


@pytest.mark.parametrize("error", errors.PipelineError.__subclasses__(), ids=lambda e: e.__name__)
def test_every_error(error):
    assert any(error.__name__ in name for name in rows("Errors"))
