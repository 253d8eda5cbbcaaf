"""The two engines of `tupelo sql`: the same answers, and which of them is asked."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyarrow import parquet

import tupelo
from tests.conftest import HandClock
from tests.federation.company import Company
from tupelo.errors import BadArgument, CorruptSegment, LogTrimmed, PipelineError
from tupelo.pipeline.declared import fields_of, typed
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import seal
from tupelo.pipeline.schema import COLUMNS, MEANINGS
from tupelo.pipeline.sql import engines
from tupelo.pipeline.sql.duck import DuckDB, _parts
from tupelo.pipeline.sql.engines import EngineName, chosen
from tupelo.pipeline.sql.on_spark import Spark
from tupelo.pipeline.sql.statements import as_duckdb, is_complete, on_one_line
from tupelo.pipeline.sql.tables import Tables


@dataclass(frozen=True)
class Job:
    name: str
    size: int | float
    tags: tuple[str, ...] = ()
    due: datetime | None = None


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A file, a folder, an archive and a live host, with entries of several shapes."""
    folder = tmp_path_factory.mktemp("logs")
    clock = HandClock()
    with tupelo.Space(
        "jobs", path=folder / "jobs.tupelo", agent="me", clock=clock, log_reads=True
    ) as space:
        for number in range(30):
            space.write(("job", number, number / 4), lease=10.0 if number % 7 == 0 else None)
            clock.advance(0.75)
        space.write_all([Job(f"j{size}", size, ("a",) * size) for size in range(5)])
        space.write(Job("half", 0.5, due=datetime(2026, 11, 18, 9, tzinfo=UTC)))
        space.write((UUID(int=7), Decimal("1.5"), b"x", None, 2**70), to="you")
        space.read_all(("job", int, float), limit=4)
        space.take_all(("job", int, float), limit=9)
        with space.transaction() as txn:
            space.take(Job("j3", 3, ("a",) * 3), txn=txn)
    with tupelo.Space("odd, `isn't` it", path=folder / "odd.tupelo", agent="me") as space:
        space.write(("note", "a 'b' \"c\" `d`"))
    seal(JournalLog(folder / "jobs.tupelo"), folder / "archive")
    company = Company()
    try:
        host = company.host("ada", path=folder / "ada")
        host.space("jobs").write_all([("job", number, 0.5) for number in range(3)])
        yield {
            "file": [str(folder / "jobs.tupelo")],
            "folder": [str(folder)],
            "archive": [str(folder / "archive")],
            "host": [host.url],
            "both": [host.url, str(folder / "archive")],
        }
    finally:
        company.close()


EVERYWHERE = [
    # documented
    "select kind, count(*) from jobs group by kind order by kind",
    "select * from changes where space = 'jobs' order by host, position desc limit 5",
    "select fields, expires from jobs order by host, position",
    # others
    "select * from jobs order by host, position",
    "select * from entries where space = 'jobs' order by host, position",
]
"""Asked of each kind of log; the other statements of two kinds, since they see only tables."""
STATEMENTS = [
    *EVERYWHERE,
    "select type, shape, count(*), sum(bytes), avg(bytes) from jobs group by all order by 1, 2",
    "select f._1, f._2 from entries where space = 'jobs' and f._2 is not null order by 1, 2",
    "select position, expires from jobs order by expires, position, host",
    "select position, expires from jobs order by expires desc, position, host",
    "select date_trunc('minute', time) as at, count(*) from jobs group by 1 order by 1",
    "select max(time) - min(time) > interval '1' second from jobs",
    "select year(time), hour(time) from jobs order by time, host, position limit 3",
    "select count(distinct arrival), min(n), max(n), sum(n) / 2 from jobs where n is not null",
    "select `to`, count(*) from jobs where `to` is not null group by `to`",
    "with w as (select arrival, time from jobs where kind = 'written'), t as"
    " (select arrival, time from jobs where kind = 'taken')"
    " select w.arrival, t.time >= w.time from w join t on w.arrival = t.arrival order by 1, 2",
    "select position, lag(position) over (partition by host order by position) from jobs"
    " order by host, position",
    "select get_json_object(fields, '$[1]') as number from jobs where type is null"
    " order by host, position",
    "select agent, case when waited > 0 then 'late' else 'at once' end, count(*) from jobs"
    " where kind in ('read', 'taken') group by 1, 2 order by 1, 2",
    "select upper(kind), length(fields), substring(fields, 2, 3), fields like '%job%' from jobs"
    " order by host, position limit 9",
    "select payload, bytes, coalesce(txn, 'none') is null from jobs order by host, position",
    "select count(*) from jobs a, jobs b where a.position = b.arrival and a.host = b.host",
    "select unix_micros(max(time)) > 0, cast(max(position) as string) from jobs",
    "select 'a;b', -1, 7 / 2, 7 % 4, round(2.5), null, true and null",
    "values (1, 'a'), (2, 'b')",
]


def answers(engine: Any, statement: str, tables: Tables) -> list[tuple[Any, ...]]:
    """The rows: names of columns without a name of their own are the engine's."""
    found: pa.Table = engine.ask(statement, tables)
    return [tuple(map(plain, row.values())) for row in renumbered(found).to_pylist()]


def renumbered(table: pa.Table) -> pa.Table:
    return table.rename_columns([str(place) for place in range(table.num_columns)])


def plain(value: Any) -> Any:
    """Numbers of different types as one."""
    if isinstance(value, Decimal):
        return float(value)
    return value


@pytest.fixture(scope="module")
def both(spark: Any) -> Any:
    duck = DuckDB()
    yield Spark(spark), duck
    duck.close()


@pytest.mark.parametrize("where", ["file", "folder", "archive", "host", "both"])
def test_the_engines_answer_alike(both, logs, where):
    tables = Tables(logs[where], {})
    spark, duck = both
    for statement in STATEMENTS if where in ("folder", "both") else EVERYWHERE:
        assert answers(duck, statement, tables) == answers(spark, statement, tables), statement


def test_the_engines_answer_alike_with_options(both, logs):
    spark, duck = both
    for options, statement in [
        (
            {"entry": "name string, size double"},
            "select f.size, count(*) from jobs group by all order by 1",
        ),
        (
            {"entry": "name string, size double"},
            "select f.name, f.size from entries order by position",
        ),
        ({"asOf": "12"}, "select position, fields from jobs order by 1"),
        ({"asOf": "12"}, "select position, fields from entries order by 1"),
        ({"asOf": "2100-01-01T00:00"}, "select position, expires from jobs order by 1"),
    ]:
        tables = Tables(logs["file"], options)
        assert answers(duck, statement, tables) == answers(spark, statement, tables), statement
    quoted = "select fields from `odd, ``isn't`` it`"
    tables = Tables(logs["folder"], {})
    assert answers(duck, quoted, tables) == answers(spark, quoted, tables) != []


def test_the_columns_are_those_of_the_schema(both, logs):
    tables = Tables(logs["file"], {})
    for table in ("jobs", "changes", "entries"):
        for engine in both:
            found = engine.ask(f"select * from {table} limit 0", tables)
            assert found.schema.equals(tables.schema_of(table)), engine.name


def test_every_column_is_described(logs):
    tables = Tables(logs["file"], {})
    assert tables.described("jobs").column("column").to_pylist() == list(COLUMNS) == list(MEANINGS)
    described = {row["column"]: row["type"] for row in tables.described("entries").to_pylist()}
    assert (described["time"], described["f.size"]) == ("timestamp", "double")
    assert tables.listed().column("table").to_pylist() == ["changes", "entries", "jobs"]


def test_tables_are_listed_with_the_names_of_their_hosts(tmp_path):
    with tupelo.Host("kitchen", path=tmp_path / "kitchen") as host:
        host.space("jobs").write_all([("job", 1), ("job", 2)])
    place = str(tmp_path / "kitchen")
    listed = {row["table"]: row for row in Tables([place], {}).listed().to_pylist()}
    assert listed["jobs"] == {"table": "jobs", "changes": 2, "hosts": "kitchen", "logs": place}
    assert listed["changes"]["changes"] > 2 and listed["entries"]["changes"] is None


# Entries


def test_entries_are_what_is_there_now_with_their_fields(logs):
    duck = DuckDB()
    tables = Tables(logs["file"], {})
    rows = duck.ask("select f.name, f.size, f.tags, f.due from entries order by position", tables)
    jobs = [row for row in rows.to_pylist() if row["name"] is not None]
    assert [row["name"] for row in jobs] == ["j0", "j1", "j2", "j4", "half"]
    assert [row["size"] for row in jobs] == [0.0, 1.0, 2.0, 4.0, 0.5]
    assert [row["tags"] for row in jobs[:3]] == ["[]", '["a"]', '["a","a"]']
    assert jobs[-1]["due"] == datetime(2026, 11, 18, 9, tzinfo=UTC)
    columns = "f._1, f._2, f._3, f._4, f._5"
    (odd,) = duck.ask(f"select {columns} from entries where `to` = 'you'", tables).to_pylist()
    assert list(odd.values()) == [str(UUID(int=7)), "1.5", "eA==", None, None]  # beyond 64 bits
    left = duck.ask("select f._2 as n from entries where f._1 = 'job' order by position", tables)
    # Nine were taken, and the leases are over.
    assert left.column("n").to_pylist() == [str(n) for n in range(11, 30) if n % 7]
    duck.close()


def test_entries_of_a_host_that_runs(tmp_path):
    company = Company()
    duck = DuckDB()
    try:
        host = company.host("ada", path=tmp_path / "ada")
        space = host.space("jobs")
        statement = "select f._2 as n from entries where space = 'jobs' order by 1"
        for number in range(3):
            space.write(("job", number))
            found = duck.ask(statement, Tables([host.url], {})).to_pylist()
            assert [row["n"] for row in found] == list(range(number + 1))
        short = host.space("short", log_keep=1)
        short.write_all([("a",), ("b",), ("c",)])
        with pytest.raises(LogTrimmed, match="'short'"):
            duck.ask(statement, Tables([host.url], {}))
        found = duck.ask("select 1 from jobs", Tables([host.url], {}))
        assert found.num_rows == 3
    finally:
        duck.close()
        company.close()


def test_the_fields_of_shapes():
    shapes = ["(str, int)", "(str, float, None)", "(name: str, size: int)", "(name: list)", "()"]
    assert fields_of(shapes) == [
        ("name", "json"),
        ("size", "long"),
        ("_1", "string"),
        ("_2", "double"),
        ("_3", "json"),
    ]
    declared = typed("any(_1 long, name string, _2 json)")
    assert declared.column([[1, "a"], ["x", [1]], [2**70], None]).to_pylist() == [
        {"_1": 1, "name": None, "_2": "a"},
        {"_1": None, "name": None, "_2": "[1]"},
        {"_1": None, "name": None, "_2": None},
        None,
    ]
    for wrong in ("any()", "any(name)", "any(name string, name long)"):
        with pytest.raises(BadArgument, match="entry"):
            typed(wrong)


# DuckDB


def test_a_statement_reads_logs_and_nothing_else(logs, tmp_path):
    duck = DuckDB()
    tables = Tables(logs["file"], {})
    file = tmp_path / "secret.csv"
    file.write_text("a,b\n1,2\n")
    for statement in [
        f"select * from read_csv('{file}')",
        f"select * from '{file}'",
        "select 1; select 2",
        "set enable_external_access = true",
        f"copy (select 1) to '{tmp_path}/x.csv'",
    ]:
        with pytest.raises(PipelineError):
            duck.ask(statement, tables)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.csv"]
    duck.close()


def test_an_error_of_the_log_is_ours(logs, tmp_path):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo", agent="me") as space:
        space.write_all([("job", n) for n in range(100)])
    seal(JournalLog(tmp_path / "jobs.tupelo"), tmp_path / "archive")
    (segment,) = (tmp_path / "archive").rglob("*.parquet")
    column = parquet.read_metadata(segment).row_group(0).column(0)
    data = bytearray(segment.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 255
    segment.write_bytes(data)
    duck = DuckDB()
    with pytest.raises(CorruptSegment):
        duck.ask("select * from jobs", Tables([str(tmp_path / "archive")], {}))
    assert duck.ask("select 1 as one", Tables(logs["file"], {})).to_pylist() == [{"one": 1}]
    duck.close()


def test_only_the_columns_that_are_needed_are_read(logs, monkeypatch):
    asked: list[list[str]] = []
    batches = JournalLog.batches

    def noted(self: Any, first: int, last: int, columns: Any = None, entry: Any = None) -> Any:
        asked.append(list(columns))
        return batches(self, first, last, columns, entry)

    monkeypatch.setattr(JournalLog, "batches", noted)
    duck = DuckDB()
    duck.ask("select kind, count(*) from jobs where n > 3 group by kind", Tables(logs["file"], {}))
    assert [sorted(columns) for columns in asked] == [["kind", "n"]]
    duck.close()


def test_neither_pandas_nor_spark_is_imported(logs):
    """In a process of its own, which ends in peace though the statement had enough rows early."""
    program = (
        "import atexit, sys\n"
        "from tupelo.apps.cli import main\n"
        "looked = {'pandas', 'pyspark', 'duckdb', 'tupelo.federation.client'}\n"
        "atexit.register(lambda: print(sorted(looked & set(sys.modules))))\n"
        "main()\n"
    )
    statement = "select position from jobs limit 1"
    done = subprocess.run(
        [sys.executable, "-c", program, "sql", statement, "--on", *logs["file"]],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[-2] == "['duckdb']"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("jobs", ["jobs"]),
        ("jobs AS b", ["jobs"]),
        ('"a ""b"" AS c" AS d', ['a "b" AS c']),
        ('tupelo."a.b" AS e', ["tupelo", "a.b"]),
        ("tupelo.presence", ["tupelo", "presence"]),
    ],
)
def test_names_as_duckdb_qualifies_them(name, parts):
    assert _parts(name) == parts


# Which engine


def test_auto_is_duckdb_unless_spark_is_named_or_there_is_much(monkeypatch):
    many = engines.ROWS_MAX + 1
    assert chosen(EngineName.AUTO, None, engines.ROWS_MAX) is EngineName.DUCKDB
    assert chosen(EngineName.AUTO, None, many) is EngineName.SPARK
    assert chosen(EngineName.AUTO, "local[2]", 0) is EngineName.SPARK
    assert chosen(EngineName.SPARK, None, 0) is EngineName.SPARK
    assert chosen(EngineName.DUCKDB, None, many) is EngineName.DUCKDB
    with pytest.raises(BadArgument, match="engine= must be spark or auto"):
        chosen(EngineName.DUCKDB, "local[2]", 0)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    assert chosen(EngineName.AUTO, None, 0) is EngineName.SPARK


@pytest.mark.parametrize(
    ("statement", "in_duckdb"),
    [
        ("select `to` from jobs", 'select "to" from jobs'),
        ("select '`' -- `a`", "select '`' -- `a`"),
        ('select * from `a``b"c`', 'select * from "a`b""c"'),
    ],
)
def test_names_in_backticks(statement, in_duckdb):
    assert as_duckdb(statement) == in_duckdb


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("select 1;", True),
        ("select 1; -- that is all", True),
        ("select 1", False),
        ("select 'a;", False),
        ("select 'a;';\n", True),
        ("select 1 /* ; */", False),
        ("select 1 /* ;", False),
        ("select 1 -- ;", False),
    ],
)
def test_where_a_statement_ends(text, complete):
    assert is_complete(text) is complete
    assert on_one_line("select 1, -- one\n  'a -- b'\n;") == "select 1,     'a -- b' ;"


@pytest.mark.timeout(900)
def test_auto_is_spark_above_the_size_also_where_pandas_was_kept_out(tmp_path):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo", agent="me") as space:
        space.write_all([("job", n) for n in range(7)])
    program = (
        "from tupelo.pipeline.sql import engines; engines.ROWS_MAX = 6\n"
        "from tupelo.apps.cli import main; main()"
    )
    statement = "select count(*) as c, typeof(count(*)) as t from jobs"  # DuckDB says BIGINT
    words = ["sql", statement, "--on", str(tmp_path / "jobs.tupelo"), "--format", "csv"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=800
    )
    assert (done.returncode, done.stdout) == (0, "c,t\n7,bigint\n"), done.stderr
