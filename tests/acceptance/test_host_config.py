"""`tupelo host --config host.toml`: a host as an operator configures it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tupelo as package
from tupelo.apps.hostfile import HostTable, SpaceTable, read_hostfile
from tupelo.apps.hosting import IN_INTERVAL
from tupelo.errors import NotAllowed, SpaceFull, WrongPassword

CONFIG = """
name = "kitchen"
listen = "127.0.0.1:0"
path = "data"
heartbeat = 10

[limits]
connections = 50

[spaces.jobs]
capacity = {entries = 2}
order = {key = 1, reverse = true}
log_keep = 3
durability = "process"

[spaces.secret.access]
password_file = "word"

[spaces.board.access]
take = []
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "word").write_text("tea\n")
    file = tmp_path / "host.toml"
    file.write_text(CONFIG)
    return file


def test_the_spaces_are_made_as_the_file_says(start, config):
    for _ in range(2):  # The second time their files exist already.
        host = start("--config", str(config))
        with package.connect(host.url + "jobs") as jobs:
            assert jobs.host["name"] == "kitchen"
            jobs.take_all(wait=0)
            jobs.write_all([("job", 1), ("job", 2)])
            with pytest.raises(SpaceFull):
                jobs.write(("job", 3))
            assert jobs.take(("job", int)) == ("job", 2)
        with package.connect(host.url + "board") as board:
            board.write(("note", 1))
            with pytest.raises(NotAllowed):
                board.take(("note", 1), wait=0)
        with pytest.raises(WrongPassword), package.connect(host.url + "secret") as secret:
            secret.count()
        with package.connect(host.url + "secret", password="tea") as secret:
            assert secret.count() == 0
        host.process.send_signal(signal.SIGTERM)
        assert "kitchen has left" in host.process.communicate()[0]
    kept = {file.name for file in (config.parent / "data").glob("*.tupelo")}
    assert {"board.tupelo", "jobs.tupelo", "secret.tupelo"} <= kept


def test_options_override_the_file(start, config, tmp_path):
    host = start("pantry", "--config", str(config), "--path", str(tmp_path / "other"))
    with package.connect(host.url + "jobs") as jobs:
        assert jobs.host["name"] == "pantry"
    assert (tmp_path / "other" / "jobs.tupelo").exists()
    host.stop(signal.SIGINT)


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('name = "kitchen"', 'nam = "kitchen"', "line 2: nam is no key of it; the keys are: name"),
        ("heartbeat = 10", 'heartbeat = "fast"', "line 5: heartbeat must be a number, not 'fast'"),
        ("connections = 50", "conections = 50", "line 8: conections in [limits] is no key"),
        ("connections = 50", "connections = 0", "line 8: connections in [limits] must be a whole"),
        ("entries = 2", "entrys = 2", "line 11: capacity.entrys in [spaces.jobs] is no key of it"),
        ("entries = 2", "entries = 0", "line 11: entries in [spaces.jobs] must be a whole number"),
        (
            '"process"',
            '"fast"',
            'line 14: durability in [spaces.jobs] must be "full" or "none" or "process", not',
        ),
        (
            "{entries = 2}",
            "2",
            "line 11: capacity in [spaces.jobs] must be a table with the keys entries, size_bytes,"
            " evict, not 2\n",
        ),
        (
            "key = 1, reverse",
            "reverse",
            'order in [spaces.jobs] must be "fifo" or "lifo" or "queue" or "stack" or'
            " \"vector\" or a table with the keys key, reverse, not {'reverse': True}\n",
        ),
        ("take = []", "take = [1]", "must be a text or a list of texts, not [1]\n"),
        ('file = "word"', 'file = "no"', "line 17: password_file in [spaces.secret.access] cannot"),
        ('password_file = "word"', 'password_env = "NO_WORD"', "line 17: password_env in [spaces."),
        ("take = []", 'take = ["me"]', "line 20: take in [spaces.board.access] must be ANYONE"),
        ("[limits]", "[limits", "is no TOML: "),
        ("path", "spaces = 1\npath", "is no TOML: "),
        ('"127.0.0.1:0"', '"a:b:c"', "--listen must be an address"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(config, tupelo, before, after, complaint):
    assert CONFIG.count(before) == 1
    config.write_text(CONFIG.replace(before, after))
    result = tupelo("host", "--config", config)
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert complaint in result.stderr


def test_a_file_that_is_missing_is_named(tupelo):
    result = tupelo("host", "--config", "absent.toml")
    assert (
        result.stderr == "tupelo: --config absent.toml cannot be read: No such file or directory\n"
    )
    result = tupelo("host")
    assert result.returncode == 2 and "Missing argument 'NAME'" in result.stderr


def test_a_password_comes_from_the_environment(start, config, monkeypatch):
    monkeypatch.setenv("WORD", "tea")
    config.write_text(CONFIG.replace('password_file = "word"', 'password_env = "WORD"'))
    host = start("--config", str(config))
    with package.connect(host.url + "secret", password="tea") as secret:
        assert secret.count() == 0
    host.stop(signal.SIGINT)


def test_a_busy_port_is_said_plainly(start, tupelo):
    host = start("kitchen", "--listen", "127.0.0.1:0")
    address = host.url.removeprefix("tupelo://").rstrip("/")
    result = tupelo("host", "pantry", "--listen", address)
    assert result.returncode == 1
    assert result.stderr == (
        f"tupelo: cannot listen at {address}: another program uses it: stop it, or choose another"
        " --listen\n"
    )
    host.stop(signal.SIGINT)


def test_a_wrong_password_is_said_plainly(start, config, tupelo):
    host = start("--config", str(config))
    said = tupelo("count", host.url + "secret").stderr
    assert said.endswith("has a password: set TUPELO_PASSWORD\n")
    said = tupelo("count", host.url + "secret", TUPELO_PASSWORD="coffee").stderr
    assert said.endswith("this is not its password: correct TUPELO_PASSWORD\n")


def test_repeated_refusals_are_logged_a_few_times(tmp_path):
    """With a time and a level, and no more than five of one sort at once."""
    command = [sys.executable, "-m", "tupelo", "host", "kitchen", "--listen", "127.0.0.1:0"]
    (tmp_path / "host.toml").write_text("[spaces.board.access]\ntake = []\n")
    command += ["--config", str(tmp_path / "host.toml")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as host:
        assert host.stdout is not None
        url = host.stdout.readline().split()[-1].removesuffix("SPACE")
        with package.connect(url + "board") as board:
            for _ in range(12):
                with pytest.raises(NotAllowed):
                    board.take(("note", 1), wait=0)
        host.send_signal(signal.SIGTERM)
        said = host.communicate()[1].splitlines()
    assert len(said) in range(1, 2 * IN_INTERVAL + 1)  # An interval may have ended in between.
    assert all(line.split()[2] == "WARNING" for line in said), said


def test_the_file_of_the_docs_can_be_read(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "HOSTS.md").read_text("utf-8")
    (tmp_path / "jobs.password").write_text("tea")
    (tmp_path / "host.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    given = read_hostfile(tmp_path / "host.toml")
    assert set(given) == set(HostTable.__struct_fields__) | {"limits", "access", "spaces"}
    assert set(given["spaces"]["jobs"]) == set(SpaceTable.__struct_fields__)
