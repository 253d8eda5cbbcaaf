"""What the command line says of itself: help, examples, completion and exit codes."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import tupelo as package
from tupelo.apps.commands import COMMANDS, OTHERS, Commands, app

OURS = [name for group in COMMANDS.values() for name in group]
CONTEXT = click.Context(app)


def test_python_m_tupelo_is_the_command(run):
    assert run("-m", "tupelo", "--version").stdout == f"tupelo {package.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["count"], ["lab"], ["lab", "simulate"], ["sql"]])
def test_h_is_help(arguments, tupelo):
    short, long = tupelo(*arguments, "-h"), tupelo(*arguments, "--help")
    assert (short.returncode, short.stderr) == (0, "")
    assert short.stdout == long.stdout
    assert short.stdout.startswith(f"Usage: {' '.join(['tupelo', *arguments])}")


@pytest.mark.parametrize("name", OURS)
def test_every_command_has_an_example_that_it_understands(name):
    command = app.get_command(CONTEXT, name)
    assert command is not None and command.help
    told = [line.strip() for line in (command.epilog or "").splitlines() if "tupelo " in line]
    typed = [line[line.index(f"tupelo {name}") :] for line in told if f"tupelo {name}" in line]
    assert typed, f"tupelo {name} -h has no example"
    for line in typed:
        command.make_context(name, shlex.split(line.partition(" >")[0])[2:])


def test_all_but_the_documented_commands_print_json_in_a_pipe():
    found = {name: app.get_command(CONTEXT, name) for name in OURS}
    in_text = {
        name
        for name, command in found.items()
        if command is not None
        and not isinstance(command, click.Group)
        and not any(param.name == "json" for param in command.params)
    }
    print_nothing_else = {"write", "host", "console", "work", "tour"}
    assert in_text == {"count", "check"} | print_nothing_else


def test_the_list_says_of_each_command_what_its_help_says(tupelo):
    printed = tupelo("--help").stdout
    listed = " ".join(printed.split())
    assert isinstance(app, Commands)
    for name, summary in OTHERS.items():
        assert f"{name} " in listed and summary in listed
        assert summary in " ".join(tupelo(name, "-h").stdout.split())
    for name in OURS:
        assert f"\n  {name} " in printed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_once(shell, tupelo, tmp_path):
    if shell == "bash" and not Path("/bin/bash").exists():
        pytest.skip("there is no bash")
    home = {"HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}
    shown = tupelo("--show-completion", **home)
    assert shown.returncode == 0 and "_TUPELO_COMPLETE" in shown.stdout
    for _ in range(2):
        assert tupelo("--install-completion", **home).returncode == 0
    written = {file: file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    assert shown.stdout in written.values()
    rest = [text for text in written.values() if text != shown.stdout]
    assert [text.count("completion.") for text in rest] == ([] if shell == "fish" else [1])


def test_commands_are_completed(tupelo):
    said = tupelo(_TUPELO_COMPLETE="bash_complete", COMP_WORDS="tupelo cou", COMP_CWORD="1").stdout
    assert said == "plain,count\n"


def test_an_unknown_shell_is_wrong_usage(tupelo):
    result = tupelo("--show-completion", "csh")
    assert result.returncode == 2 and "name bash, zsh or fish" in result.stderr


def test_the_kinds_of_changes_are_checked(tupelo, tmp_path):
    result = tupelo("log", tmp_path / "jobs.tupelo", "--kind", "eaten")
    assert result.returncode == 2 and "'eaten' is not one of 'written'" in result.stderr


def test_the_log_of_a_file_is_followed_while_it_is_in_use(tmp_path):
    path = tmp_path / "jobs.tupelo"
    command = [sys.executable, "-m", "tupelo", "log", path, "--follow", "--limit", "3"]
    with package.Space("jobs", path=path) as space:
        space.write(("job", 1))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as log:
            assert log.stdout is not None
            first = json.loads(log.stdout.readline())
            space.take(("job", 1))
            space.write(("job", 2))
            others = [json.loads(line) for line in log.stdout]
        changes = space.changes()
    assert [(one["position"], one["kind"]) for one in [first, *others]] == [
        (1, "written"),
        (2, "taken"),
        (3, "written"),
    ]
    assert [one["entry"] for one in others] == [["job", 1], ["job", 2]]
    assert {one["agent"] for one in others} == {change.agent for change in changes}
