"""Completion of commands, options and file names in bash, zsh and fish."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

RC_FILES = {"bash": ".bashrc", "zsh": ".zshrc"}
"""The start file of each shell, which loads the script; fish loads scripts from a folder."""


def script(shell: str) -> str:
    """The completion script for this shell, or for $SHELL if empty. Raises UsageError."""
    from tupelo.apps.commands import app

    name = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(name)
    if found is None:
        raise click.UsageError(f"{name!r} is no shell that can complete: name bash, zsh or fish")
    return found(app, {}, "tupelo", "_TUPELO_COMPLETE").source()


def install(shell: str) -> Path:
    """Write the completion script, and make the shell load it. Returns the changed file."""
    text = script(shell)
    name = shell or Path(os.environ["SHELL"]).name
    if name == "fish":
        file = Path.home() / ".config/fish/completions/tupelo.fish"
        _write(file, text)
        return file
    file = Path.home() / f".config/tupelo/completion.{name}"
    _write(file, text)
    rc = Path.home() / RC_FILES[name]
    line = f'. "{file}"'
    before = rc.read_text() if rc.exists() else ""
    if line not in before.splitlines():
        rc.write_text(f"{before.rstrip()}\n{line}\n".lstrip())
    return rc


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
