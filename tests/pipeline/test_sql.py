"""SQL at the prompt, as a user types it: on files, on an archive, at a host."""

from __future__ import annotations

import csv
import io
import json
import os
from datetime import datetime
from typing import Any

import click
import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

import tupelo
from tests.federation.company import Company
from tupelo import pipeline
from tupelo.apps import commands
from tupelo.pipeline.commands import sqlprompt
from tupelo.pipeline.commands.prompt import Format, show
from tupelo.pipeline.commands.sqlprompt import sql
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import seal
from tupelo.pipeline.schema import MEANINGS
from tupelo.pipeline.spark import in_a_line
from tupelo.pipeline.sql.statements import is_question
from tupelo.pipeline.sql.tables import Tables

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(sql)

COUNTED = "select kind, count(*) as c from jobs group by kind order by kind"


@pytest.fixture
def company():
    company = Company()
    yield company
    company.close()


@pytest.fixture(params=["spark", "duckdb"])
def engine(request, monkeypatch):
    """Each engine in turn. Spark is that of all tests; what a statement makes into tables there are
    none afterwards."""
    monkeypatch.setenv("TUPELO_TEST_ENGINE", request.param)
    if request.param == "duckdb":
        yield "duckdb"
        return
    spark = request.getfixturevalue("spark")
    monkeypatch.setattr("tupelo.pipeline.session", lambda master, **options: spark)
    spark.catalog.dropTempView("changes")  # Another's.
    before = spark.catalog.listTables()
    yield "spark"
    assert spark.catalog.listTables() == before


@pytest.fixture
def folder(tmp_path):
    """Two spaces and an odd one."""
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo", agent="me") as space:
        space.write_all([("job", n) for n in range(10)])
        space.take_all(("job", int), limit=4)
    with tupelo.Space("odd, isn't it", path=tmp_path / "odd.tupelo", agent="me") as space:
        space.write(("note", "a\x1b[2Jb"))
    return tmp_path


def run(*arguments: object) -> Any:
    engine = os.environ.get("TUPELO_TEST_ENGINE", "auto")
    given = [*map(str, arguments), "--engine", engine]
    return CliRunner().invoke(app, given)


def asked(*arguments: object) -> list[list[str]]:
    result = run(*arguments, "--format", "csv")
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return list(csv.reader(io.StringIO(result.stdout)))[1:]


@pytest.mark.usefixtures("engine")
def test_a_space_is_a_table_by_its_name(folder):
    assert asked(COUNTED, "--on", folder) == [["taken", "4"], ["written", "10"]]
    everything = "select space, count(*) from changes group by space order by space"
    assert asked(everything, "--on", folder) == [["jobs", "14"], ["odd, isn't it", "1"]]
    typed = "select sum(f.n) from Jobs where kind = 'taken'"
    assert asked(typed, "--on", folder / "jobs.tupelo", "--entry", "what string, n long") == [["6"]]
    moment = "select max(position) from jobs"
    assert asked(moment, "--on", folder, "--as-of", "7") == [["7"]]


@pytest.mark.usefixtures("engine")
def test_only_the_spaces_that_are_named_are_read(folder, monkeypatch):
    made: list[str] = []
    options_of = Tables.options_of

    def noted(self: Tables, name: str) -> dict[str, str]:
        made.append(name)
        return options_of(self, name)

    monkeypatch.setattr(Tables, "options_of", noted)
    counted = "with few as (select * from `odd, isn't it`) select count(*), max(space) from few"
    assert asked(counted, "--on", folder) == [["1", "odd, isn't it"]]
    assert made == ["odd, isn't it"]


@pytest.mark.usefixtures("engine")
def test_an_archive_and_a_host_are_asked_alike(folder, tmp_path, company):
    seal(JournalLog(folder / "jobs.tupelo"), tmp_path / "archive")
    assert asked(COUNTED, "--on", tmp_path / "archive") == [["taken", "4"], ["written", "10"]]
    host = company.host("ada", path=tmp_path / "ada")
    host.space("jobs").write(("job", 1))
    both = asked(COUNTED, "--on", host.url, "--on", folder / "jobs.tupelo")
    assert both == [["taken", "4"], ["written", "11"]]


@pytest.mark.usefixtures("engine")
def test_rows_as_json_and_as_a_table(folder):
    statement = "select time, fields, payload, txn from jobs where position <= 2 order by position"
    result = run(statement, "--on", folder, "--format", "json")
    first, second = json.loads(result.stdout)
    assert (first["fields"], second["fields"], first["txn"]) == ('["job",0]', '["job",1]', None)
    assert datetime.fromisoformat(first["time"]).utcoffset() is not None
    result = run("select position from jobs order by position", "--on", folder, "--limit", 3)
    assert result.stdout.split()[-3:] == ["1", "2", "3"]
    assert result.stderr == "tupelo: there are more than these 3 rows; see --limit\n"
    result = run("select fields from `odd, isn't it`", "--on", folder)
    assert "note" in result.stdout and "\x1b" not in result.stdout
    assert "odd, isn't it" in run("show tables", "--on", folder).stdout


def test_what_is_wrong_is_said_in_a_line(folder, engine):
    syntax = {"spark": "Syntax error at or near", "duckdb": "syntax error at or near"}
    column = {"spark": "`nothing` cannot be resolved", "duckdb": '"nothing" not found'}
    dotted = {"spark": "is quoted: `tupelo.presence`", "duckdb": "no table 'tupelo.presence'"}
    for arguments, said in [
        (["selec 1"], "STATEMENT must be a question"),
        (["select count( from jobs"], syntax[engine]),
        (["select * from job"], "there is no table 'job': there are changes, entries, jobs, odd"),
        (["describe job"], "there is no table 'job': there are changes, entries, jobs, odd"),
        (["select * from tupelo.presence"], dotted[engine]),
        (["select nothing from jobs"], column[engine]),
        (["select * from jobs", "--as-of", "99"], "must be at most 14"),
        (["select * from jobs", "--as-of", "soon"], "--as-of must be a position"),
        (["select * from jobs", "--entry", "what"], "entry"),
        (["select kind, kind from jobs", "--format", "json"], "two columns have one name"),
    ]:
        result = run(*arguments, "--on", folder)
        assert result.exit_code == 1 and said in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1 and not result.stdout


def test_where_nothing_is_nothing_is_asked(tmp_path, monkeypatch):
    result = run("select 1", "--on", tmp_path / "nowhere")
    assert (
        result.exit_code == 1 and "a space's file, a host's folder or an archive" in result.stderr
    )
    monkeypatch.setattr(sqlprompt, "LISTEN", "127.0.0.1:1")
    result = run("select 1")
    assert result.exit_code == 1
    assert "127.0.0.1:1 cannot be reached" in result.stderr and "--on" in result.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "create table q as select 1",
        "insert into jobs values (1)",
        "drop table jobs",
        "from jobs insert into q select *",
        "from jobs insert/**/into q select *",
        "(with a as (select 1) insert into q select * from a)",
        "with a as (select r'\\') insert into q select ' '",
        "with a as (select 1) --\rinsert into q select 1",
        "with a as (select 1) delete from q",
        "with a as (select 1) merge into q using a on true when matched then delete",
        "with a as (select 1) update q set x = 1",
        "select reflect('java.lang.System', 'setProperty', 'a', 'b')",
        "select java_method('java.lang.System', 'clearProperty', 'a')",
        "with a as (select 1) insert overwrite q select * from a",
        "",
    ],
)
def test_what_would_write_is_refused(statement, tmp_path):
    answer = run(statement, "--on", tmp_path)
    assert answer.exit_code == 1
    assert "STATEMENT" in answer.stderr
    assert "a question" in answer.stderr


@pytest.mark.parametrize("statement", ["SELECT 1", " (select 1)", "show tables", "with a as (x) y"])
def test_what_asks_is_a_question(statement):
    assert is_question(statement)


def test_spaces_that_sql_cannot_tell_apart(tmp_path):
    for place, name in enumerate(["jobs", "Jobs", "a.b", "Entries"]):
        tupelo.Space(name, path=tmp_path / f"{place}.tupelo", agent="me").close()
    tables = Tables([str(tmp_path)], {})
    with pytest.raises(tupelo.errors.PipelineError, match="changes where space = 'JOBS'"):
        tables.named(["JOBS"])
    with pytest.raises(tupelo.errors.UnknownTable, match=r"write it as `a\.b`"):
        tables.named(["a", "b"])
    assert tables.named(["ENTRIES"]) == "entries"


def test_any_value_can_be_shown(capsys):
    rows = pa.table(
        {
            "bytes": [b"\x00\x01", None],
            "nested": [{"a": [1, None]}, {"a": []}],
            "number": [float("nan"), 0.5],
        }
    )
    show(rows, Format.CSV)
    assert capsys.readouterr().out == (
        'bytes,nested,number\nAAE=,"{""a"":[1,null]}",nan\n,"{""a"":[]}",0.5\n'
    )
    show(rows, Format.JSON)
    assert json.loads(capsys.readouterr().out)[0] == {
        "bytes": "AAE=",
        "nested": {"a": [1, None]},
        "number": None,
    }
    show(pa.table({"text": ["x" * 300]}), Format.TABLE)
    assert "x" * 300 in capsys.readouterr().out


def test_a_table_that_is_wider_than_the_terminal_is_shown_by_value(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    show(
        pa.table({"who": ["a" * 30, None], "number": [1, 2], "what": ["b" * 30] * 2}), Format.TABLE
    )
    assert capsys.readouterr().out.split("\n") == [
        f"who     {'a' * 30}",
        "number  1",
        f"what    {'b' * 30}",
        "",
        "number  2",
        f"what    {'b' * 30}",
        "",
        "",
    ]


def test_a_long_complaint_in_a_line():
    said = in_a_line("[X.Y] It is bad. SQLSTATE: 42703; line 1 pos 7;\n'Project\n")
    assert said == "It is bad.; line 1 pos 7"
    trace = "Failed: Traceback (most recent call last):\n  File\nValueError: no\n SQLSTATE: 1"
    assert in_a_line(trace) == "ValueError: no"
    java = (
        "An error occurred while calling o1.getResult.\n"
        ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n\tat a.b(C)\n"
        "Caused by: org.apache.spark.SparkException: [A.B] Cannot read file:/x.  SQLSTATE: KD001\n"
        "\tat a.b(C.scala:1)\n"
        "Caused by: org.apache.parquet.io.ParquetDecodingException: it is damaged\n\t... 28 more\n"
    )
    assert in_a_line(java) == "Cannot read file:/x: it is damaged"
    assert in_a_line("Error\n: java.lang.OutOfMemoryError: Java heap space\n") == "Java heap space"


def test_the_command_is_found_by_its_entry_point():
    group = commands.app
    assert "sql" not in group.commands
    listed = group.list_commands(click.Context(group))
    assert len(listed) == len(set(listed))
    assert {"lab", "pipeline", "sql", "read"} <= set(listed)


def test_spaces_are_tables_of_a_notebook_with_comments(spark, tmp_path):
    for name in ("jobs", "my notes"):
        with tupelo.Space(name, path=tmp_path / f"{name}.tupelo", agent="me") as space:
            space.write_all([("job", n) for n in range(3)])
            space.take(("job", 0))
    files = [str(file) for file in sorted(tmp_path.glob("*.tupelo"))]
    assert pipeline.tables(spark, *files) == ["changes", "entries", "jobs", "my notes"]
    try:
        assert spark.table("changes").count() == 8
        assert spark.table("`my notes`").count() == 4
        rows = spark.sql("select f._2 from entries where space = 'jobs' order by 1").collect()
        assert [row[0] for row in rows] == [1, 2]
        for name in ("changes", "entries"):
            comments = {c.name: c.description for c in spark.catalog.listColumns(name)}
            assert comments["position"] == MEANINGS["position"]
    finally:
        for name in ("changes", "entries", "jobs", "my notes"):
            spark.catalog.dropTempView(name)
