"""The commands about the files of durable spaces: check, backup, restore and repair."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click

from tupelo.apps.progress import ProgressBar
from tupelo.apps.shell import (
    DATABASES,
    FAILED,
    clear_errors,
    complain,
    credentials,
    examples,
    file_argument,
    json_option,
    print_row,
    say,
    trust_option,
)
from tupelo.apps.spaces import check_file, describe_host, is_url
from tupelo.errors import BadInput, JournalError, SpaceInUse
from tupelo.store import backup as copying
from tupelo.store import checking
from tupelo.store.format import CHECKED_SINCE

to_argument = click.argument("to", metavar="TO", type=click.Path(path_type=Path))


@click.command(
    epilog=examples(
        "tupelo check jobs.tupelo",
        "tupelo check jobs.tupelo --salvage saved.tupelo",
        notes="FILE is the file of a durable space that is not in use. Exit code 1: damage.",
    )
)
@file_argument
@click.option(
    "--salvage",
    metavar="TO",
    type=click.Path(path_type=Path),
    help="Write the undamaged part to this new file.",
)
def check(file: Path, salvage: Path | None) -> None:
    """Check every change and entry in the file of a space, and report damage. Changes nothing."""
    with clear_errors():
        if file.parts[0] in [url.rstrip("/") for url in DATABASES]:
            raise BadInput("a database is checked by pg_amcheck and `tupelo pipeline audit`")
        check_file(file)
        with ProgressBar(f"checking {file.name}") as bar:
            if salvage is None:
                examination = checking.examine(file, bar)
            else:
                examination = checking.salvage(file, salvage, bar)
        print_examination(examination)
        if salvage is not None:
            print(f"What is good was written to {salvage}.")
        if examination.found:
            sys.exit(FAILED)
        print("Nothing is damaged.")


@click.command(
    epilog=examples(
        "tupelo backup jobs.tupelo jobs-monday.tupelo",
        "tupelo backup kitchen /backup/kitchen-monday",
        "tupelo backup tupelo://127.0.0.1:7700 /backup/kitchen-monday",
        "tupelo backup tupelo://127.0.0.1:7700/jobs jobs-monday.tupelo",
        notes="FROM is the file of a space, the folder of a host, or the URL of a host on this"
        " machine or of a space there. The spaces may be in use: each copy has the state of a"
        " space at one moment, and is checked. The folder of a host contains the identity of the"
        " host, which is secret. TO is a new file or folder.",
    )
)
@click.argument("source", metavar="FROM")
@to_argument
@json_option
@trust_option
def backup(source: str, to: Path, json: bool | None, trust: str | None) -> None:
    """Copy a space, or all spaces of a host, while they are in use."""
    with clear_errors():
        if source.startswith(DATABASES):
            raise BadInput("a space in a database is copied by pg_dump, with its database")
        place = _place_of(source, trust) if is_url(source) else Path(source)
        _copy(place, to, json)


@click.command(
    epilog=examples(
        "tupelo restore jobs-monday.tupelo jobs.tupelo",
        "tupelo restore /backup/kitchen-monday kitchen",
        notes="FROM is a file or folder that `tupelo backup` has written. TO is a new file or"
        " folder; existing files are not overwritten.",
    )
)
@click.argument("source", metavar="FROM", type=click.Path(path_type=Path))
@to_argument
@json_option
def restore(source: Path, to: Path, json: bool | None) -> None:
    """Restore a backup to a new file or folder."""
    with clear_errors():
        _copy(source, to, json)


@click.command(
    epilog=examples(
        "tupelo repair jobs.tupelo",
        "tupelo repair kitchen",
        notes="FROM is the file of a space, or the folder of a host. The damaged file is kept as"
        " NAME.damaged-1, with a list of the losses in NAME.damaged-1.txt. Spaces in use are"
        " skipped. A running host opens a repaired space at its next use.",
    )
)
@click.argument("source", metavar="FROM", type=click.Path(path_type=Path))
@json_option
def repair(source: Path, json: bool | None) -> None:
    """Replace damaged files by their undamaged part, and keep the damaged files beside them."""
    with clear_errors(), ProgressBar("") as bar:
        if not source.is_dir():
            check_file(source)
        failed = False
        for file in sorted(source.glob(copying.SPACE_FILES)) if source.is_dir() else [source]:
            try:
                found = checking.salvage_in_place(file, bar.about(f"checking {file.name}"))
            except SpaceInUse:
                print_row({"file": str(file), "state": "in use"}, json)
            except JournalError as error:
                failed = True
                complain(error)
            else:
                state = "good" if found is None else "repaired"
                lost = [] if found is None else [str(damage) for damage in found.found]
                print_row({"file": str(file), "state": state, "lost": lost}, json)
        if failed:
            sys.exit(FAILED)


def _place_of(url: str, trust: str | None) -> Path:
    """The folder of the host at this URL, or the file of a space there."""
    from tupelo.federation.hosts.folder import Folder

    parts = urlsplit(url)
    about = describe_host(f"{parts.scheme}://{parts.netloc}", credentials(trust))
    if "folder" not in about:
        raise BadInput(
            f"{url} keeps its spaces in memory, or is not on this machine: run the command where"
            " its files are"
        )
    name = unquote(parts.path.strip("/"))
    return Folder(Path(about["folder"])).file_of(name) if name else Path(about["folder"])


def _copy(source: Path, to: Path, json: bool | None) -> None:
    if not source.is_dir():
        check_file(source)
    with ProgressBar("") as bar:
        copied = copying.copy(source, to, lambda file: bar.about(f"copying {file.name}"))
    for file in copied:
        print_row({"file": str(file), "bytes": file.stat().st_size}, json)
    say("Every copy was checked.")


def print_examination(examination: checking.Examination) -> None:
    print(f"space    {examination.name!r}, format {examination.format}")
    print(f"changes  {examination.changes} good, from {examination.first}")
    print(f"entries  {examination.entries} good")
    if examination.format < CHECKED_SINCE:
        print(f"Format {examination.format} has no checksums; opening the space adds them.")
    for damage in examination.found:
        print(f"damage   {damage}")
