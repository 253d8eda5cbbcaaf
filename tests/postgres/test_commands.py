"""The commands on a space in a database, and what their errors show."""

import json
from contextvars import copy_context
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from click.testing import CliRunner

import tupelo
from tests.kinds import database_url, space_url
from tupelo.apps import doctor
from tupelo.apps.commands import app
from tupelo.errors import BadArgument
from tupelo.postgres.voting import prepared_name
from tupelo.queue import JobQueue


@pytest.fixture
def url():
    return space_url(f"commands {uuid4()}")


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    # In a context of its own: commands build entries of unknown classes as stand-ins.
    result = copy_context().run(CliRunner().invoke, app, list(arguments), env=environment)
    return result.exit_code, result.stdout, result.stderr


def test_the_commands_of_spaces_take_the_url_of_a_database(url):
    code, _, said = run("count", url)
    assert code == 1 and "there is no space" in said and "in the database" in said
    assert run("write", url, '("job", 1)', '("job", 2)', TUPELO_PASSWORD="of a host")[0] == 0
    assert run("count", url) == (0, "2\n", "")
    assert run("take", url, '("job", int)') == (0, '{"fields":["job",1]}\n', "")
    code, shown, _ = run("show", url, "--text")
    assert code == 0 and "('job', 2)" in shown
    code, log, _ = run("log", url)
    kinds = [json.loads(line)["kind"] for line in log.splitlines()]
    assert (code, kinds) == (0, ["written", "written", "taken"])


def test_the_jobs_of_a_queue_in_a_database_are_counted_while_one_is_in_hand(url):
    with tupelo.connect(url) as space, tupelo.connect(url) as worker:
        queue = JobQueue(space)
        for n in range(2):
            queue.submit("resize", n)
        with worker.transaction() as txn:
            assert worker.take(txn=txn) is not None
            status = queue.status()  # No entry has the shape of a dead letter yet.
            assert (status.ready, status.done, status.dead) == (1, 0, 0)
            assert status.in_hand == [tupelo.InHand(worker.agent, "", 1, txn.id)]
            code, row, _ = run("jobs", url)
            counts = json.loads(row)
            assert (code, counts["ready"]) == (0, 1)
            assert counts["in_hand"] == [{"name": "", "id": worker.agent, "jobs": 1}]
        assert queue.status().in_hand == []


def test_a_backup_of_a_database_is_left_to_its_own_tools(url, tmp_path):
    code, _, said = run("backup", url, str(tmp_path / "copy"))
    assert code == 1 and "pg_dump" in said


def test_doctor_tries_a_database(url):
    assert json.loads(run("doctor", url)[1].splitlines()[-1])["state"] == "bad"
    tupelo.connect(url).close()
    assert json.loads(run("doctor", url)[1].splitlines()[-1])["state"] == "ok"


def test_doctor_lists_what_is_prepared_and_old(url, monkeypatch):
    with tupelo.connect(url) as space:
        txn = space.transaction()
        space.write(("a", 1), txn=txn)
        txn.prepare()
        name = prepared_name([space.id], txn.id)  # type: ignore[attr-defined]

        def rows() -> list[str]:
            return [row for row in run("doctor", url)[1].splitlines() if name in row]

        assert rows() == []
        monkeypatch.setattr(doctor, "PREPARED_SECONDS_MAX", 0.0)
        (row,) = rows()
        assert json.loads(row)["state"] == "bad" and "ROLLBACK PREPARED" in row
        txn.abort()
        assert rows() == []


def test_the_commands_of_the_pipeline_take_the_url_of_a_database(url, tmp_path):
    run("write", url, '("job", 1)', '("job", 2)', '("job", 3)')
    run("take", url, '("job", 1)')
    by = ("--on", url, "--engine", "duckdb", "--format", "json")
    asked = "select kind, count(*) as c from changes group by kind order by kind"
    code, rows, _ = run("sql", asked, *by)
    assert code == 0
    assert json.loads(rows) == [{"kind": "taken", "c": 1}, {"kind": "written", "c": 3}]
    code, rows, _ = run("sql", "select fields from entries order by position", *by)
    assert (code, [row["fields"] for row in json.loads(rows)]) == (0, ['["job",2]', '["job",3]'])
    code, told, _ = run("pipeline", "audit", url, "--engine", "duckdb")
    assert code == 0 and "3 entries: 2 are there still" in told and "no fault was found" in told
    sealed = ("pipeline", "archive", url, "--to", str(tmp_path))
    code, told, _ = run(*sealed)
    assert code == 0 and "4 changes in 1 segments, sealed up to 4" in told
    with tupelo.connect(url) as space:
        space.take(("job", 2))
        space.trim(before=5)
    assert "1 changes in 1 segments, sealed up to 5" in run(*sealed)[1]
    code, told, _ = run("pipeline", "audit", url, "--engine", "duckdb", "--archive", str(tmp_path))
    assert code == 0 and "3 entries: 1 are there still" in told
    with tupelo.connect(url) as space:
        space.take(("job", 3))
        space.trim(before=7)
        space.write(("job", 4))
    code, _, said = run(*sealed)
    assert code == 1 and "is sealed up to 5, but its log begins at 7" in said


def test_a_database_is_not_checked_like_a_file():
    code, _, said = run("check", "postgresql://ada:pa55word@127.0.0.1/work?space=jobs")
    assert code == 1 and "tupelo pipeline audit" in said and "pa55word" not in said


def test_other_urls_and_new_files_are_told_from_files(tmp_path):
    code, _, said = run("read", "redis://127.0.0.1/0")
    assert code == 1 and "SPACE must be a file, tupelo://" in said
    code, _, said = run("write", str(tmp_path / "new.tupelo"), '("job", 1)')
    assert code == 1 and "does not exist: --create makes it" in said


def test_errors_do_not_show_the_password():
    secret = "pa55word"
    for query in ({}, {"space": ["a", "b"]}, {"space": "a", "sslmod": "x"}):
        address = f"postgresql://ada:{secret}@127.0.0.1:1/work?{urlencode(query, doseq=True)}"
        with pytest.raises(BadArgument) as raised:
            tupelo.connect(address)
        assert secret not in str(raised.value)
        assert secret not in "".join(run("doctor", address)[1:])
    assert secret not in "".join(run("doctor", f"{database_url()}&password={secret}")[1:])


@pytest.mark.parametrize(
    "command",
    [
        ("spaces",),
        ("peers",),
        ("top",),
        ("doctor",),
        ("jobs",),
        ("count",),
        ("show",),
        ("check",),
        ("restore", "copy"),
        ("read", "ANY", "too many"),
        ("sql", "select 1"),
        ("sql", "select 1", "--on"),
        ("pipeline", "audit"),
        ("pipeline", "audit", "--limit"),
        (),
    ],
)
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:{}@127.0.0.1:1/work?space=jobs",
        "postgresql://127.0.0.1:1/work?space=jobs&password={}",
        "postgresql://ada:%zz{}@127.0.0.1:1/work?space=jobs",
        "postgresql://ada:is/{}@127.0.0.1:1/work?space=jobs",
        "postgresql://ada:{}@[::1/work?space=jobs",
        "https://ada:{}@127.0.0.1:1/work",
        "tupelo://ada:{}@127.0.0.1:1/work",
    ],
)
def test_no_command_shows_the_password_of_a_url(command, url):
    code, shown, said = run(*command, url.format("pa55word"))
    assert code != 0
    assert "pa55word" not in shown + said


def test_a_url_is_shown_with_stars_for_its_password():
    assert "'https://ada:***@127.0.0.1:1/work'" in run("count", "https://ada:x@127.0.0.1:1/work")[2]
    (*_, found) = run("doctor", "postgresql://ada:x@127.0.0.1:1/work?space=jobs")[1].splitlines()
    assert json.loads(found)["what"] == "postgresql://ada:***@127.0.0.1:1/work?space=jobs"
