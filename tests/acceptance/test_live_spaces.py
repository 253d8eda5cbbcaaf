"""The command line with a space of a live host: read, write, take, count, watch, log, show."""

import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from threading import Timer
from typing import Any
from uuid import UUID

import pytest

import tupelo as package
from tupelo import Access, Host, SpaceLike
from tupelo.errors import UnknownSpace
from tupelo.values.codec import encode_entry
from tupelo.values.entry import freeze


@dataclass
class Parcel:
    """A class that the command line does not know."""

    to: str | None
    grams: int | None


@dataclass
class Letter(Parcel):
    """One with a base class, which templates of that class match."""

    content: Any


@pytest.fixture
def host(tmp_path):
    with Host("kitchen", listen="127.0.0.1:0", path=tmp_path / "kitchen") as host:
        yield host


@pytest.fixture
def url(host):
    host.space("jobs")
    return host.url + "jobs"


def lines(result: subprocess.CompletedProcess[str]) -> list[Any]:
    assert (result.returncode, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_what_is_written_can_be_read_counted_and_taken(url, host, tupelo):
    written = tupelo("write", url, '("job", 7, "resize")', '["job", 8, null]', "job(size=3)")
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
    assert host.space("jobs").count() == 3
    assert lines(tupelo("read", url, '("job", int, ANY)', "--all")) == [
        {"fields": ["job", 7, "resize"]},
        {"fields": ["job", 8, None]},
    ]
    assert tupelo("read", url, '("job", 8, ANY)', "--text").stdout == "('job', 8, None)\n"
    assert tupelo("count", url, '("job", int, ANY)').stdout == "2\n"
    assert lines(tupelo("take", url, "job(size=int)")) == [{"kind": "job", "fields": {"size": 3}}]
    assert tupelo("count", url).stdout == "2\n"


def test_a_name_alone_is_a_dataclass(url, tupelo):
    tupelo("write", url, '("job", 7)', "task(size=3)", '("at", true)')
    assert tupelo("count", url, "task").stdout == "1\n"
    assert lines(tupelo("read", url, '("at", true)')) == [{"fields": ["at", True]}]
    said = 'tupelo: no job is here: it is read as a dataclass; a text is ("job",)\n'
    result = tupelo("read", url, "job")
    assert (result.returncode, result.stdout, result.stderr) == (3, "", said)
    result = tupelo("count", url, "job")
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", said)


def test_no_match_is_exit_code_3(url, tupelo):
    for command in ("read", "take"):
        result = tupelo(command, url, '("job", int)')
        assert (result.returncode, result.stdout, result.stderr) == (3, "", "")


def test_a_take_waits_for_its_entry(url, host, tupelo):
    Timer(0.3, host.space("jobs").write, [("job", 1)]).start()
    assert lines(tupelo("take", url, '("job", int)', "--wait", 60)) == [{"fields": ["job", 1]}]


def test_entries_of_unknown_classes_are_shown_by_name(url, host, tupelo):
    name = f"{__name__}.Parcel"
    host.space("jobs").write(Parcel("ben", 250))
    assert tupelo("show", "--text", url).stdout.splitlines()[2:] == [
        f"        1  {name}(to: str, grams: int)",
        "first",
        f"           {name}(to='ben', grams=250)",
    ]
    taken = lines(tupelo("take", url, f"{name}(grams=Between(1, 999))"))
    assert taken == [{"kind": name, "fields": {"to": "ben", "grams": 250}}]


def test_patterns_in_templates(url, host, tupelo):
    host.space("jobs").write_all([("a.png",), ("b.png",), ("b.txt",)])
    assert tupelo("count", url, '(Suffix(".png"),)').stdout == "2\n"
    assert lines(tupelo("take", url, r'(Prefix("b") & Regex(r"\w\.png"),)')) == [
        {"fields": ["b.png"]}
    ]
    refused = tupelo("count", url, '(Regex("(a"),)')
    assert refused.returncode != 0 and "Regex('(a')" in refused.stderr


def test_more_than_a_page_is_shown(url, host, tupelo):
    host.space("jobs").write_all([("n", number) for number in range(1_234)])
    assert [line["fields"][1] for line in lines(tupelo("show", url))] == list(range(1_234))
    assert "entries  1234" in tupelo("show", "--text", url).stdout


def test_the_log_of_a_live_space(url, host, tupelo):
    space = host.space("jobs")
    space.write(("job", 1))
    space.take(("job", 1))
    said = lines(tupelo("log", url, "--kind", "taken"))
    assert [(one["position"], one["kind"], one["entry"]) for one in said] == [
        (2, "taken", ["job", 1])
    ]
    text = tupelo("log", "--text", url, "--since", 1).stdout.splitlines()
    assert re.match(r"\s+2  .*  taken .*\('job', 1\)$", text[1])


def test_watch_and_follow_tell_of_what_happens_next(url, host, until):
    space = host.space("jobs")
    command = [sys.executable, "-m", "tupelo.apps.cli"]
    watch = [*command, "watch", url, "--limit", "1"]
    follow = [*command, "log", url, "--follow", "--limit", "2"]
    with (
        subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching,
        subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as following,
    ):
        assert watching.stdout is not None and following.stdout is not None
        until(lambda: _written_once_more(space, watching, following))
        assert json.loads(watching.stdout.read()) == {"fields": ["job", 1]}
        kinds = [json.loads(line)["kind"] for line in following.stdout]
        assert kinds == ["written", "written"]


def _written_once_more(space: SpaceLike, *programs: subprocess.Popen[str]) -> bool:
    """Write until these programs have seen enough: only they know when they listen."""
    space.write(("job", 1), lease=600)
    return all(program.poll() is not None for program in programs)


def test_spaces_and_peers_tell_names(host, url, tupelo):
    host.space("jobs").write(("job", 1))
    host.space("secret", access=Access(password="tea"))
    with package.connect(url, name="worker-1"):
        said = lines(tupelo("peers", host.url))
        assert [one["client"] for one in said] == ["worker-1"]
    found = {one["space"]: one for one in lines(tupelo("spaces", host.url))}
    assert found["jobs"] == {"space": "jobs", "entries": 1}
    assert found["secret"]["entries"] is None
    assert "password" in found["secret"]["refused"]
    assert "tupelo.presence" not in found
    table = tupelo("spaces", host.url, "--all", "--text").stdout.splitlines()
    assert [line.split() for line in table[:3]] == [
        ["space", "entries"],
        ["jobs", "1"],
        ["tupelo.presence", table[2].split()[1]],
    ]


def test_the_url_of_spaces_may_name_a_space(host, url, tupelo):
    host.space("50% off").write((1,))
    said = lines(tupelo("spaces", url))
    assert said == lines(tupelo("spaces", host.url))
    assert {"space": "50% off", "entries": 1} in said and {"space": "jobs", "entries": 0} in said


def test_a_password_comes_from_the_environment(host, tupelo):
    host.space("secret", access=Access(password="tea")).write(("x", 1))
    url = host.url + "secret"
    assert tupelo("count", url).returncode == 1
    assert tupelo("count", url, TUPELO_PASSWORD="tea").stdout == "1\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["write", "URL", '("job", int)'], "int is no value: a text has quotes"),
        (["write", "URL", "7"], "is no entry"),
        (["write", "URL", '("job"'], "cannot be read"),
        (["write", "URL", '{"fields": ["job"]'], "cannot be read"),
        (["write", "URL", '{"kind": "job", "fields": ["job"]}'], 'an object has "fields"'),
        (["write", "URL", '{"exact": "kqNqb2I="}'], "do not encode an entry"),
        (["write", "URL", '{"exact": "?"}'], "cannot be read"),
        (["write", "URL", "(1,)", "--delay", "-1"], "--delay must be"),
        (["write", "URL", "(1,)", "--delay", "1", "--to", "someone"], "--delay must be"),
        (["read", "URL", '("job"'], "cannot be read"),
        (["read", "URL", '(__import__("os"),)'], "names its fields"),
        (["read", "tupelo://127.0.0.1:1/jobs"], "cannot be reached"),
        (["read", "tupelo://127.0.0.1:1"], "SPACE must be one that names a space"),
        (
            ["spaces", "127.0.0.1:7700"],
            "URL must be of the form tupelo://host:7700/space, not '127",
        ),
        (
            ["read", "URL", "--wait", "-2"],
            "--wait must be a number of seconds from 0 to 1e+09, or -1 for ever, not -",
        ),
        (
            ["write", "URL", "('a',)", "--lease", "0"],
            "--lease must be a number of seconds above 0, n",
        ),
        (["write", "URL", "('a', b)"], 'b is no value: a text has quotes, "b"'),
        (["backup", "postgresql://db/work", "x"], "a space in a database is copied by pg_dump"),
        (
            ["sql", "select 1", "--on", "nothing"],
            "LOG must be a space's file, a host's folder or an",
        ),
        (
            ["sql", "select 1", "--on", "URL", "--archive", "x"],
            "--archive must be a folder that is",
        ),
        (["read", "nothing.tupelo"], "does not exist\n"),
        (["read", "127.0.0.1:7700/jobs"], "a space at a host is tupelo://127.0.0.1:7700/jobs\n"),
        (["log", "here:1/jobs", "--follow"], "a space at a host is tupelo://here:1/jobs\n"),
        (["read", "URL", '("job", Betwen(1, 9))'], "unknown: Betwen; did you mean Between?"),
        (
            ["read", "URL", "job, 7"],
            'job is no type: a text has quotes, "job"; a dataclass is job()',
        ),
        (["count", "URL", '("job", Not(render))'], 'a text has quotes, "render"'),
        (["watch", "URL", "job(name=render.a)"], 'a text has quotes, "render.a"'),
        (["take", "URL", '("job", 7)', "--wait", "-2"], "wait"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, said, url, tupelo):
    result = tupelo(*[url if one == "URL" else one for one in arguments])
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("tupelo: ") and said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["read", "take", "count", "show", "log", "watch"])
def test_a_misspelt_space_is_not_made(command, host, url, tupelo):
    template = ["ANY"] if command == "take" else []
    result = tupelo(command, host.url + "jbos", *template, *["--follow"] * (command == "log"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "tupelo: there is no space 'jbos' at this host; there is 'jobs'\n"
    with pytest.raises(UnknownSpace):
        host.space("jbos", create=False)


HOSTILE: list[Any] = [
    (b"\x00\xff", '\x1b[31m\u2028\r\n"{}', datetime(2026, 11, 18, 12, 0, 0, 1, UTC)),
    (1, 1.0, True, -0.0, 2**70, math.inf, None, "1"),
    ((1, (2,)), [1, [2]], {1: "a", "1": "b", (1,): b"c"}, {"$kind": "x", "exact": "?"}),
    (UUID(int=7), Decimal("1.50"), datetime(1, 1, 1), 1 << 20_000, ""),
    (),
    Parcel("<b>ben</b>", 250),
    Letter("a", 1, (b"b", [Parcel("c", 2)])),
]


def test_what_read_prints_can_be_written_with_the_same_types(host, url, tupelo, tmp_path):
    host.space("jobs").write_all(HOSTILE)
    printed = tupelo("read", url, "--all")
    with package.Space("copy", path=tmp_path / "copy.tupelo"):
        pass
    assert tupelo("write", "copy.tupelo", "-", said=printed.stdout).stderr == ""
    assert tupelo("read", "copy.tupelo", "--all").stdout == printed.stdout
    with package.Space("copy", path=tmp_path / "copy.tupelo") as copy:
        assert [encode_entry(*freeze(entry)) for entry in copy.read_all()] == [
            encode_entry(*freeze(entry)) for entry in HOSTILE
        ]
        assert copy.count(Parcel(None, None)) == 2  # A letter is a parcel.


def test_a_wrong_line_is_named_and_nothing_is_written(host, url, tupelo):
    host.space("jobs")
    result = tupelo("write", url, "-", said='{"fields": ["job", 1]}\n\n{"fields": 7}\n')
    assert result.returncode == 1 and """'{"fields": 7}""" in result.stderr
    assert host.space("jobs").count() == 0
    strict = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    result = tupelo("write", url, "-", said='("é",)', **strict)
    assert result.returncode == 1 and "standard input cannot be read" in result.stderr
    assert "SPACE comes first" in tupelo("write", "-", url).stderr


def test_an_entry_is_written_with_a_delay(host, url, tupelo):
    assert tupelo("write", url, '("job", 7)', "--delay", 3600).returncode == 0
    assert host.space("jobs").count() == 0
    assert [entry for _, entry in host.space("jobs").delayed().entries] == [("job", 7)]


def test_write_makes_a_space(host, tupelo):
    assert tupelo("write", host.url + "new", "(1,)").returncode == 0
    assert host.space("new", create=False).count() == 1
