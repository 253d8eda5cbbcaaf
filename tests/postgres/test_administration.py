"""`tupelo store`: tables are made and migrated, roles get the least privileges."""

import json
from contextvars import copy_context
from functools import partial
from urllib.parse import urlencode, urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

import tupelo
from tests.kinds import database_url
from tupelo.apps.commands import app
from tupelo.errors import JournalError, NotAllowed
from tupelo.federation.hosts.decisions import branch_id, spanning_id
from tupelo.postgres import schema
from tupelo.space.dual_api import run_sync


def run(*arguments: str) -> tuple[int, str, str]:
    result = copy_context().run(CliRunner().invoke, app, ["store", *arguments])
    return result.exit_code, result.stdout, result.stderr


def as_role(url: str, role: str, space: str | None = None) -> str:
    """The URL of a database for another user; the server trusts local ones."""
    parts = urlsplit(url)
    query = "&".join(filter(None, (parts.query, urlencode({"space": space}) if space else "")))
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role}@{host}", query=query))


@pytest.fixture
def admin():
    with psycopg.connect(database_url(), autocommit=True) as link:
        yield link


@pytest.fixture
def url(admin):
    """A database of its own."""
    name = f"store_{uuid4().hex}"
    admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield urlunsplit(urlsplit(database_url())._replace(path=f"/{name}"))
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def roles(admin):
    """Two users without privileges."""
    names = [f"worker {uuid4()}", f'o"dd %s {uuid4()}']
    for name in names:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    yield names
    for name in names:
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def workers(roles, url):
    """The same, by the names that a URL needs."""
    yield roles
    with psycopg.connect(url, autocommit=True) as link:
        for name in roles:
            link.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))


def quoted(role: str) -> str:
    return urlencode({"": role}).removeprefix("=").replace("+", "%20")


def test_tables_are_made_once(url):
    assert run("init", url) == (0, f'{{"before":0,"version":{schema.VERSION}}}\n', "")
    version = schema.VERSION
    assert run("init", url) == (0, f'{{"before":{version},"version":{version}}}\n', "")
    assert run("init", url, "--text")[1] == f"version {version}, as before\n"


def test_a_database_of_version_1_is_migrated(url):
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(schema.FIRST)
        link.execute("INSERT INTO tupelo.version (version) VALUES (1)")
    space = f"{url}{'&' if '?' in url else '?'}space=jobs"
    with pytest.raises(JournalError, match="tupelo store migrate"):
        tupelo.connect(space)
    assert json.loads(run("migrate", url)[1]) == {"before": 1, "version": schema.VERSION}
    with tupelo.connect(space) as jobs:
        jobs.write(("job", 1))
        assert jobs.count() == 1


def test_tables_of_a_newer_tupelo_are_left_alone(url):
    assert run("init", url)[0] == 0
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("UPDATE tupelo.version SET version = 1000")
    for command in ("init", "migrate"):
        code, _, said = run(command, url)
        assert code == 1 and "use a newer Tupelo" in said
    with pytest.raises(JournalError, match="use a newer Tupelo"):
        tupelo.connect(f"{url}{'&' if '?' in url else '?'}space=jobs")


def test_there_is_nothing_to_migrate_in_an_empty_database(url):
    code, _, said = run("migrate", url)
    assert code == 1 and "with tables of Tupelo" in said


def test_the_status_counts(url):
    code, told, _ = run("status", url)
    assert code == 0 and json.loads(told)["version"] == 0
    space = f"{url}{'&' if '?' in url else '?'}space=jobs"
    with tupelo.connect(space) as jobs:
        jobs.write_all([("job", n) for n in range(10)])
        jobs.take(("job", int))
        code, told, _ = run("status", space)
        found = json.loads(told)
        assert (code, found["version"], found["known_version"]) == (0, *[schema.VERSION] * 2)
        assert found["spaces"] == [{"space": "jobs", "entries": 9, "log": 11, "unnumbered": 11}]
        assert found["connections"] > 1 and found["prepared_transactions"] == 0
        sizes = {table["table"]: table["size_bytes"] for table in found["tables"]}
        assert {"entries", "changes", "spaces", "shapes", "version"} <= set(sizes)
        assert sizes["entries"] > 0
        jobs.changes()
        assert json.loads(run("status", url)[1])["spaces"][0]["unnumbered"] == 0
    text = run("status", url, "--text")[1]
    assert f"version {schema.VERSION}\n" in text and "dead rows" in text and "jobs" in text


@pytest.mark.parametrize(
    "arguments",
    [["init", "tupelo://127.0.0.1:7700"], ["status", "jobs.tupelo"], ["migrate", "sqlite:///x"]],
)
def test_only_databases_have_tables(arguments):
    code, _, said = run(*arguments)
    assert code == 1 and "URL must be that of a database" in said


def test_a_role_gets_what_programs_need_and_no_more(url, workers):
    worker = workers[0]
    mine = as_role(url, quoted(worker), "jobs")
    with pytest.raises(NotAllowed):  # It has no CREATE.
        tupelo.connect(mine)
    code, _, said = run("init", url, "--role", "nobody there")
    assert code == 1 and "--role must be a role of the database" in said
    assert run("init", url, "--role", worker)[0] == 0
    with tupelo.connect(mine) as jobs:
        jobs.write_all([("job", n) for n in range(20)], lease=60)
        with jobs.transaction() as txn:
            assert jobs.take(("job", int), txn=txn) == ("job", 0)
        with jobs.subscribe(("job", int)) as notices:
            jobs.write(("job", 20))
            notice = notices.get(wait=30)
            assert notice is not None and notice.entry == ("job", 20)
        jobs.trim(before=5)
        assert jobs.count() == 20
    with psycopg.connect(as_role(url, quoted(worker)), autocommit=True) as link:
        for statement in (
            "DROP TABLE tupelo.entries",
            "DELETE FROM tupelo.spaces",
            "UPDATE tupelo.version SET version = 7",
            "INSERT INTO tupelo.grants VALUES ('me', 0)",
            "CREATE TABLE tupelo.mine (x int)",
            "TRUNCATE tupelo.changes",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                link.execute(statement)


def test_a_role_uses_only_the_spaces_that_are_granted_to_it(url, workers):
    one, other = workers
    spaces = ["a 'quoted' \"one\"", "jobs"]
    assert run("init", url, "--role", one, "--space", spaces[0], "--space", spaces[1])[0] == 0
    assert run("init", url, "--role", other, "--space", "mail")[0] == 0
    assert json.loads(run("status", url)[1])["roles"] == {
        one: spaces,
        other: ["mail"],
    }
    with (
        tupelo.connect(as_role(url, quoted(one), "jobs")) as jobs,
        tupelo.connect(as_role(url, quoted(other), "mail")) as mail,
    ):
        jobs.write_all([("job", n) for n in range(20)])
        mail.write(("letter", 1))
        assert jobs.take(("job", int)) == ("job", 0)
        assert (jobs.count(), mail.count()) == (19, 1)
        assert [change.kind for change in mail.changes()] == ["written"]
    for role, space in ((one, "mail"), (other, "jobs"), (one, "new")):
        with pytest.raises(NotAllowed):
            tupelo.connect(as_role(url, quoted(role), space))
    with psycopg.connect(as_role(url, quoted(other)), autocommit=True) as link:
        for table, count in (("spaces", 1), ("entries", 1), ("shapes", 1), ("changes", 1)):
            found = link.execute(sql.SQL("SELECT * FROM tupelo.{}").format(sql.Identifier(table)))
            assert len(found.fetchall()) == count, table
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            link.execute("INSERT INTO tupelo.shapes (space, number, signature) VALUES (1, 9, '')")
        assert link.execute("DELETE FROM tupelo.entries").rowcount == 1, "its own"
    with tupelo.connect(f"{url}{'&' if '?' in url else '?'}space=jobs") as jobs:
        assert jobs.count() == 19, "the owner of the tables sees all"


def test_roles_that_saw_all_spaces_go_on_to_do_so(url, workers):
    one, other = workers
    assert run("init", url, "--role", one)[0] == 0
    assert run("init", url, "--role", other, "--space", "mail")[0] == 0
    with tupelo.connect(as_role(url, quoted(one), "jobs")) as jobs:
        jobs.write(("job", 1))
        with tupelo.connect(as_role(url, quoted(one), "mail")) as mail:
            assert mail.count() == 0
    assert run("init", url, "--role", other)[0] == 0
    with tupelo.connect(as_role(url, quoted(other), "jobs")) as jobs:
        assert jobs.count() == 1


def test_what_another_user_has_left_prepared_holds_up_nobody(url, workers):
    assert run("init", url, *(part for role in workers for part in ("--role", role)))[0] == 0
    with (
        tupelo.connect(as_role(url, quoted(workers[0]), "jobs")) as jobs,
        tupelo.connect(as_role(url, quoted(workers[1]), "jobs")) as theirs,
    ):
        jobs.write(("job", 1))
        txn = jobs.transaction()
        jobs.take(("job", int), txn=txn)
        decider = spanning_id(jobs.database.identity, "", "", uuid4().hex)  # type: ignore[attr-defined]
        run_sync(partial(txn.vote, branch_id(decider, uuid4().hex)))  # type: ignore[attr-defined]
        with pytest.raises(NotAllowed):
            theirs.in_doubt()[0].abort()
        with tupelo.transaction(theirs) as both:
            theirs.write(("job", 2), txn=both)
        assert jobs.read_all() == [("job", 2)]
        with tupelo.transaction(jobs):
            assert jobs.in_doubt() == []
        assert jobs.count() == 2


def test_a_space_needs_a_role():
    code, _, said = run("init", database_url(), "--space", "jobs")
    assert code == 2 and "--space needs --role" in said
