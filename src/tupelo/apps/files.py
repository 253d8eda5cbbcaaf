"""The commands about the files of durable spaces: check."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tupelo.apps.shell import FAILED, clear_errors, examples, file_argument
from tupelo.apps.spaces import check_file
from tupelo.store import checking
from tupelo.store.format import CHECKED_SINCE


@click.command(
    epilog=examples(
        "tupelo check jobs.tupelo",
        "tupelo check jobs.tupelo --salvage saved.tupelo",
        notes="FILE is the file of a durable space that is not in use. Exit code 1: it is damaged.",
    )
)
@file_argument
@click.option(
    "--salvage",
    metavar="TO",
    type=click.Path(path_type=Path),
    help="Write what is good to this new file.",
)
def check(file: Path, salvage: Path | None) -> None:
    """Check every change and entry of a space's file, and say what is lost. Changes nothing."""
    with clear_errors():
        check_file(file)
        examination = checking.salvage(file, salvage) if salvage else checking.examine(file)
        print_examination(examination)
        if salvage is not None:
            print(f"What is good was written to {salvage}.")
        if examination.found:
            sys.exit(FAILED)
        print("Nothing is damaged.")


def print_examination(examination: checking.Examination) -> None:
    print(f"space    {examination.name!r}, format {examination.format}")
    print(f"changes  {examination.changes} good, from {examination.first}")
    print(f"entries  {examination.entries} good")
    if examination.format < CHECKED_SINCE:
        print(f"Format {examination.format} has no checksums; opening the space adds them.")
    for damage in examination.found:
        print(f"damage   {damage}")
