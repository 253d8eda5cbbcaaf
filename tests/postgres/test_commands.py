"""The commands on a space in a database, and what their errors show."""

import json
from contextvars import copy_context
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from click.testing import CliRunner

import tupelo
from tests.kinds import database_url, space_url
from tupelo.apps.commands import app
from tupelo.errors import BadArgument, UnknownSpace
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
            code, row, _ = run("jobs", url)
            assert (code, json.loads(row)["ready"]) == (0, 1)


@pytest.mark.parametrize("turned", [False, True])
def test_a_move_with_a_database_is_refused_before_it_begins(url, tmp_path, turned):
    file = str(tmp_path / "jobs.tupelo")
    with tupelo.Space("jobs", path=file) as space:
        space.write(("job", 1))
    code, _, said = run("move", *((url, file) if turned else (file, url)))
    assert code == 1 and "a database does not vote" in said
    assert run("count", file)[1] == "1\n"
    with pytest.raises(UnknownSpace):
        tupelo.connect(url, create=False)


def test_a_backup_of_a_database_is_left_to_its_own_tools(url, tmp_path):
    code, _, said = run("backup", url, str(tmp_path / "copy"))
    assert code == 1 and "pg_dump" in said


def test_doctor_tries_a_database(url):
    assert json.loads(run("doctor", url)[1].splitlines()[-1])["state"] == "bad"
    tupelo.connect(url).close()
    assert json.loads(run("doctor", url)[1].splitlines()[-1])["state"] == "ok"


def test_the_log_in_a_database_is_not_for_the_pipeline(url):
    code, _, said = run("sql", "select 1", "--on", url)
    assert code == 1 and "tupelo.changes" in said


def test_other_urls_and_new_files_are_told_from_files(tmp_path):
    code, _, said = run("read", "redis://127.0.0.1/0")
    assert code == 1 and "SPACE must be a file, tupelo://" in said
    code, _, said = run("write", str(tmp_path / "new.tupelo"), '("job", 1)')
    assert code == 1 and "does not exist: tupelo.Space" in said


def test_errors_do_not_show_the_password():
    secret = "pa55word"
    for query in ({}, {"space": ["a", "b"]}, {"space": "a", "sslmod": "x"}):
        address = f"postgresql://ada:{secret}@127.0.0.1:1/work?{urlencode(query, doseq=True)}"
        with pytest.raises(BadArgument) as raised:
            tupelo.connect(address)
        assert secret not in str(raised.value)
        assert secret not in "".join(run("doctor", address)[1:])
    assert secret not in "".join(run("doctor", f"{database_url()}&password={secret}")[1:])
