"""A copy of logs as a Delta table, read back by deltalake, DuckDB and pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

import tupelo
from tests.pipeline.jobs.recorded import RandomRun, rows_of
from tupelo.errors import BadArgument, LogTrimmed, PipelineError
from tupelo.pipeline.commands.pipeline import app
from tupelo.pipeline.logs import delta
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.schema import CHANGES, MEANINGS


def run(*words: object) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


def rows_in(table: Path, version: int | None = None) -> list[dict[str, Any]]:
    found = DeltaTable(str(table), version=version).to_pyarrow_table().select(CHANGES.names)
    order = [(name, "ascending") for name in ("host", "space", "position")]
    rows: list[dict[str, Any]] = found.cast(CHANGES).sort_by(order).to_pylist()
    return rows


def test_a_table_has_what_the_logs_have_and_grows_with_them(tmp_path, monkeypatch):
    monkeypatch.setattr(delta, "ROWS_PER_COMMIT", 100)
    table, file = tmp_path / "table", tmp_path / "a.tupelo"
    RandomRun(file, 1).play(100)
    with tupelo.Space("other/ä", path=tmp_path / "b.tupelo", agent="me") as space:
        space.write(("job", 1))
    first = rows_of(file)
    assert len(first) > 100
    assert run("export", file, tmp_path / "b.tupelo", "--to", table).exit_code == 0
    assert len(rows_in(table)) == len(first) + 1
    before = DeltaTable(str(table)).version()
    RandomRun(file, 2).play(100)
    told = run("export", file, tmp_path / "b.tupelo", "--to", table)
    assert "'other/ä' of me: 0 changes added" in told.stdout
    expected = [*rows_of(file), *rows_of(tmp_path / "b.tupelo")]
    expected.sort(key=lambda row: (row["host"], row["space"], row["position"]))
    assert rows_in(table) == expected
    assert len(rows_in(table, before)) == len(first) + 1  # the past of the table
    duck = duckdb.from_arrow(DeltaTable(str(table)).to_pyarrow_dataset())
    assert duck.count("*").fetchall() == [(len(expected),)]
    assert len(DeltaTable(str(table)).to_pandas()) == len(expected)
    comments = {
        field.name: field.metadata["comment"] for field in DeltaTable(table).schema().fields
    }
    assert comments == MEANINGS


def test_what_does_not_fit_the_table_is_refused(tmp_path):
    file, table = tmp_path / "jobs.tupelo", tmp_path / "table"
    with tupelo.Space("jobs", path=file, agent="me", log_keep=5) as space:
        space.write_all([("job", n) for n in range(3)])
        assert delta.export(JournalLog(file), table) == 3
        space.write_all([("job", n) for n in range(100)])
        space.compact()
        with pytest.raises(LogTrimmed, match="has 'jobs' up to 3, but its log begins"):
            delta.export(JournalLog(file), table)
    file.unlink()
    with tupelo.Space("jobs", path=file, agent="me") as space:
        space.write(("job", 1))
    with pytest.raises(PipelineError, match="has another log of 'jobs' of me"):
        delta.export(JournalLog(file), table)
    for place, content in ((tmp_path / "file", None), (tmp_path / "full", "x")):
        if content is None:
            place.write_text("x")
        else:
            place.mkdir()
            (place / "a").write_text(content)
        with pytest.raises(BadArgument, match="to= must be a Delta table, or a new folder"):
            delta.export(JournalLog(file), place)
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "else"), pa.table({"n": [1]}))
    with pytest.raises(BadArgument, match="a Delta table of changes"):
        delta.export(JournalLog(file), tmp_path / "else")
    (log,) = (table / "_delta_log").glob("*.json")
    log.write_text("{")
    with pytest.raises(PipelineError, match="cannot be"):
        delta.export(JournalLog(file), table)
