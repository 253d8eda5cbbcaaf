"""The command line as a user types it: good files are shown, others get one clear line."""

import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest

import tupelo as package
from tupelo import Host, Space, connect


@dataclass
class Parcel:
    """A class that the command line does not know."""

    to: str
    grams: int


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A file in which something has happened."""
    path = tmp_path / "jobs.tupelo"
    with Space("jobs", path=path) as space:
        space.write(("job", 1, "[bold]resize"))
        space.write(("job", 2, "crop \N{SNOWMAN}"))
        space.write(Parcel("ben", 250))
        with space.transaction() as txn:
            space.take(("job", 1, str), txn=txn)
            space.write(("done", 1, [Parcel("ada", 5)]), txn=txn)
    return path


# Good files


def test_log_prints_every_change(jobs, tupelo):
    result = tupelo("log", "--text", jobs)
    assert (result.returncode, result.stderr) == (0, "")
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["position", "time", "kind", "by", "waited", "txn", "entry"]
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=6) for line in lines]
    assert [(position, kind, entry) for position, _, kind, _, _, _, entry in rows] == [
        ("1", "written", "('job', 1, '[bold]resize')"),
        ("2", "written", "('job', 2, 'crop \N{SNOWMAN}')"),
        ("3", "written", f"{__name__}.Parcel(to='ben', grams=250)"),
        ("4", "taken", "('job', 1, '[bold]resize')"),
        ("5", "written", f"('done', 1, [{__name__}.Parcel(to='ada', grams=5)])"),
    ]
    assert [txn == "-" for *_, txn, _ in rows] == [True, True, True, False, False]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", row[1]) for row in rows)


def test_log_prints_a_part(jobs, tupelo):
    result = tupelo("log", "--text", jobs, "--since", 1, "--limit", 2)
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["2", "3"]


def test_log_says_how_long_a_taker_waited(tmp_path, tupelo):
    path = tmp_path / "slow.tupelo"
    with Space("slow", path=path) as space:
        Timer(0.1, space.write, [("late",)]).start()
        space.take(("late",), wait=10)
    taken = tupelo("log", "--text", path).stdout.splitlines()[-1]
    assert re.search(r"taken .* 0\.\d{3} s", taken)


def test_log_of_a_trimmed_log_begins_where_it_does(jobs, tupelo):
    with Space("jobs", path=jobs) as space:
        space.trim(before=4)
    result = tupelo("log", "--text", jobs)
    assert result.returncode == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["4", "5"]
    assert result.stderr == "tupelo: changes before position 4 are not kept\n"
    result = tupelo("log", "--text", jobs, "--since", 1)
    assert result.returncode == 1
    assert result.stderr == (
        "tupelo: changes after position 1 were asked for, but the log begins at 4\n"
    )


def test_log_may_be_cut_short_by_its_reader(tmp_path, run):
    path = tmp_path / "many.tupelo"
    with Space("many", path=path) as space:
        space.write_all([("n", i, "x" * 100) for i in range(5_000)])
    result = run("-c", CUT, path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split()[0] == "position"


CUT = """
import subprocess, sys
command = [sys.executable, "-m", "tupelo.apps.cli", "log", "--text", sys.argv[1]]
with subprocess.Popen(command, stdout=subprocess.PIPE) as log:
    print(log.stdout.readline().decode(), flush=True)
    log.stdout.close()
"""


def test_write_makes_the_file_of_a_space_if_told(tmp_path, tupelo):
    path = tmp_path / "new.tupelo"
    refused = tupelo("write", path, '("job", 1)')
    assert (refused.returncode, refused.stderr) == (
        1,
        f"tupelo: {path} does not exist: --create makes it\n",
    )
    assert tupelo("write", path, '("job", 1', "--create").returncode == 1
    assert not path.exists()
    assert tupelo("write", path, '("job", 1)', "--create").returncode == 0
    assert tupelo("write", path, '("job", 2)', "--create").returncode == 0
    with Space(path=path) as space:
        assert (space.name, space.count()) == ("new", 2)


def test_log_says_who_did_it(tmp_path, tupelo):
    with Host("kitchen", listen="127.0.0.1:0", path=tmp_path) as host:
        for name in ("worker-1", "a worker with a long name"):
            with connect(host.url + "jobs", name=name) as space:
                space.write(("job", 1))
    lines = tupelo("log", "--text", tmp_path / "jobs.tupelo").stdout.splitlines()
    by = lines[0].index("by")
    assert [line[by : by + 15].rstrip() for line in lines] == ["by", "worker-1", "a worker with…"]


def test_a_mistyped_command_gets_a_hint(tupelo):
    said = tupelo("shwo", "jobs.tupelo")
    assert said.returncode == 2
    assert said.stderr.endswith("Error: No such command 'shwo'. Did you mean 'show'?\n")


def test_a_group_of_commands_shows_its_help(tupelo):
    said = tupelo("store")
    assert said.returncode == 2
    assert said.stderr.startswith("Usage: ")
    assert said.stderr.count("Usage: ") == 1


def test_show_tells_name_shapes_and_the_first_entries(jobs, tupelo):
    result = tupelo("show", "--text", jobs)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "space    'jobs'",
        "entries  3",
        "        1  (str, int, str)",
        f"        1  {__name__}.Parcel(to: str, grams: int)",
        "        1  (str, int, list)",
        "first",
        "           ('job', 2, 'crop \N{SNOWMAN}')",
        f"           {__name__}.Parcel(to='ben', grams=250)",
        f"           ('done', 1, [{__name__}.Parcel(to='ada', grams=5)])",
    ]


def test_show_works_where_nothing_but_ascii_does(jobs, tupelo):
    result = tupelo("show", "--text", jobs, PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert r"'crop \u2603'" in result.stdout


def test_what_has_expired_is_not_shown(tmp_path, tupelo):
    path = tmp_path / "brief.tupelo"
    with Space("brief", path=path) as space:
        space.write(("gone",), lease=0.001)
        space.write(("here",), lease=1_000)
    assert tupelo("show", "--text", path).stdout.splitlines()[1] == "entries  1"


def test_looking_loses_nothing(jobs, tupelo):
    for command in ("show", "log", "show"):
        tupelo(command, jobs)
    with Space("jobs", path=jobs) as space:
        assert len(space.changes()) == 5
        assert space.take(("job", int, str), wait=0) == ("job", 2, "crop \N{SNOWMAN}")
        assert space.take(Parcel, wait=0) == Parcel("ben", 250)


# Others


def missing(path: Path) -> str:
    path.unlink()
    return "does not exist"


def empty(path: Path) -> str:
    path.write_bytes(b"")
    return "is empty, and not a Tupelo journal"


def foreign_text(path: Path) -> str:
    path.write_text("Dear diary")
    return "is not a Tupelo journal; it was left as it was"


def foreign_database(path: Path) -> str:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    return "is the database of another program; it was left as it was"


def newer(path: Path) -> str:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    return "has format 99, and this Tupelo knows up to 7; it was left as it was"


def torn(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:5_000])
    return "is torn: 5000 bytes of "


def spoiled_entries(path: Path) -> str:
    with sqlite3.connect(path) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'change'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    db.close()
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : page * size] = b"\xa5" * size
    path.write_bytes(content)
    return "is damaged (database disk image is malformed); it was left as it was"


def directory(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "is not a file"


def test_odd_values_are_shown(tmp_path, tupelo):
    path = tmp_path / "odd.tupelo"
    with Space("\N{LATIN SMALL LETTER E WITH ACUTE}" * 40, path=path) as space:
        space.write_all([("odd", 10**30_000), ("odd", -(2**63)), ("odd", [2**64])])
    for command in ("show", "log", "check"):
        result = tupelo(command, path)
        assert (result.returncode, result.stderr) == (0, ""), command
        if command != "check":
            assert '["odd","<an integer of 99658 bits>"]' in result.stdout
            text = tupelo(command, path, "--text").stdout
            assert "('odd', <an integer of 99658 bits>)" in text
            assert "('odd', -9223372036854775808)" in text
            assert "('odd', [18446744073709551616])" in text


def test_check_finds_a_good_file_good(jobs, tupelo):
    before = jobs.read_bytes()
    result = tupelo("check", jobs)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "space    'jobs', format 7",
        "changes  5 good, from 1",
        "entries  3 good",
        "Nothing is damaged.",
    ]
    assert jobs.read_bytes() == before and [file.name for file in jobs.parent.iterdir()] == [
        jobs.name
    ]


def test_check_names_what_is_lost_and_saves_the_rest(jobs, tupelo):
    with sqlite3.connect(jobs) as db:
        db.execute("UPDATE change SET payload = x'00' WHERE position = 2")
    db.close()
    damage = "damage   the change at 2 (written) with its entry: the checksum of its entry is wrong"
    result = tupelo("check", jobs)
    assert result.returncode == 1 and damage in result.stdout.splitlines()
    saved = jobs.with_name("saved.tupelo")
    result = tupelo("check", jobs, "--salvage", saved)
    assert result.returncode == 1 and damage in result.stdout.splitlines()
    assert f"What is good was written to {saved}." in result.stdout
    assert tupelo("check", saved).returncode == 0
    assert "entries  2" in tupelo("show", "--text", saved).stdout
    result = tupelo("check", jobs, "--salvage", saved)
    assert result.stderr == f"tupelo: {saved} exists already\n"
    assert f"tupelo: {jobs} is damaged" in tupelo("show", "--text", jobs).stderr


@pytest.mark.parametrize("command", ["log", "show"])
@pytest.mark.parametrize(
    "spoil",
    [
        missing,
        empty,
        foreign_text,
        foreign_database,
        newer,
        torn,
        spoiled_entries,
        directory,
    ],
)
def test_a_file_that_cannot_be_shown_gets_one_clear_line(command, spoil, jobs, tupelo):
    reason = spoil(jobs)
    before = jobs.read_bytes() if jobs.is_file() else None
    result = tupelo(command, jobs)
    assert result.returncode == 1
    assert result.stderr.startswith(f"tupelo: {jobs} {reason}")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
    assert (jobs.read_bytes() if jobs.is_file() else None) == before


@pytest.mark.parametrize("command", ["log", "show"])
def test_a_file_in_use_gets_one_clear_line(command, jobs, tupelo):
    with Space("jobs", path=jobs) as space:
        result = tupelo(command, jobs)
        space.write(("still", "good"))
    assert result.returncode == 1
    assert result.stderr == (
        f"tupelo: {jobs} is open in another space, here or in another process: stop that program,"
        " or, if it is a host, name the space by its URL\n"
    )


@pytest.mark.parametrize("spoil", ["kind = 99", "txn = CAST(x'ff' AS TEXT)"])
def test_a_spoiled_log_gets_one_clear_line(spoil, jobs, tupelo):
    with sqlite3.connect(jobs) as db:
        db.execute(f"UPDATE change SET {spoil} WHERE position = 2")
    db.close()
    result = tupelo("log", "--text", jobs)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith(f"tupelo: {jobs} is damaged")


# The command itself


def test_it_says_its_version(tupelo):
    assert tupelo("--version").stdout == f"tupelo {package.__version__}\n"


@pytest.mark.parametrize("arguments", [["jump"], ["log"], ["log", "f", "--since", "-1"]])
def test_wrong_usage_is_exit_code_2(arguments, tupelo):
    result = tupelo(*arguments)
    assert result.returncode == 2
    assert "Usage: tupelo" in result.stderr


@pytest.mark.parametrize(
    ("module", "command"), [("click", "--version"), ("typer", "lab"), ("rich", "tour")]
)
def test_without_its_packages_it_says_how_to_get_them(module, command, run, tmp_path):
    result = run("-c", f"import sys; sys.modules['{module}'] = None; {START}", command)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"tupelo: the command line needs {module}, which is not installed:"
        ' pip install "tupelo[cli]"\n'
    )


START = "from tupelo.apps.cli import main; main()"
