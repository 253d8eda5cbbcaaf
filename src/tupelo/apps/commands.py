"""The commands of `tupelo`: take the tour, run a host, look into the file of a durable space."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

import tupelo
from tupelo import Change, Space, TupeloError
from tupelo.apps.files import check_file, entry_text, living_entries, open_space, shape_text
from tupelo.apps.hosting import LISTEN, run_host
from tupelo.apps.tour import FILE_NAME, WIDTH, Tour
from tupelo.errors import LogTrimmed
from tupelo.store.checking import examine
from tupelo.store.checking import salvage as salvage_to
from tupelo.store.checksums import CHECKED_SINCE

PAGE = 1_000
SHOWN = 5

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of a durable space.")]


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"tupelo {tupelo.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Say which version."),
    ] = False,
) -> None:
    """Programs meet in spaces: they write entries, and find them by content."""


def add_groups() -> None:
    """The commands of layers above this one: they say that they are there, by an entry point."""
    for found in sorted(entry_points(group="tupelo.commands"), key=lambda point: point.name):
        commands = found.load()
        if isinstance(commands, typer.Typer):
            app.add_typer(commands, name=found.name)
        else:
            app.command(found.name)(commands)


@app.command()
def tour(
    seed: Annotated[int, typer.Option(help="Which jobs there are, and when the crash comes.")] = 1,
    fast: Annotated[
        bool, typer.Option("--fast", help="No pauses to read, and short jobs.")
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the space's file in this directory.")
    ] = None,
) -> None:
    """Half a minute with a durable space: producers, workers, a crash, and recovery."""
    with clear_errors(), directory(keep) as place:
        path = place / FILE_NAME
        if path.exists():
            raise typer.BadParameter(f"{path} exists already", param_hint="--keep")
        console = Console(highlight=False)
        console.width = min(console.width, WIDTH)
        if not Tour(console, path, seed, fast=fast).run():
            raise typer.Exit(1)
        if keep is not None:
            print(f"  What was kept: tupelo show {path}")


@app.command()
def host(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What other hosts call it.")],
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where it can be reached; port 0 is any.")
    ] = LISTEN,
    path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep its spaces in this directory.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="A host to look for; repeatable.")
    ] = None,
    discover: Annotated[
        bool, typer.Option("--discover", help="Find hosts in the local network, and be found.")
    ] = False,
    trust: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help='Who is let in from beyond this machine: "first-use", "anyone", or a file with'
            " an identity on each line, perhaps with a moment until which it is trusted."
            " Without it nobody is. SIGHUP makes the host read the file again.",
        ),
    ] = None,
    local_trust: Annotated[
        bool,
        typer.Option(
            "--local-trust/--no-local-trust",
            help="Whether programs on this machine need no identity. Not behind a tunnel or a"
            " proxy, where everyone seems to be one.",
        ),
    ] = True,
    heartbeat: Annotated[
        float, typer.Option(metavar="SECONDS", help="Lost is who is silent for three of these.")
    ] = 1.0,
    archive: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Seal the logs of its spaces here, before they are cut."),
    ] = None,
) -> None:
    """Run a host: programs connect to its spaces, and it shares them with other hosts."""
    with clear_errors():
        run_host(
            name,
            listen=listen,
            path=path,
            discover=discover,
            peers=peer or (),
            trust=trust,
            heartbeat=heartbeat,
            archive=archive,
            local_trust=local_trust,
        )


@app.command()
def log(
    file: File,
    since: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only what happened after position N.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most N changes.")
    ] = None,
) -> None:
    """Print what has happened in a space, oldest first."""
    with clear_errors(), open_space(file) as space:
        print(f"{'position':>8}  {'time':23}  {'kind':9}  {'waited':>8}  {'txn':8}  entry")
        for change in islice(changes(space, since), limit):
            print(change_text(change))


@app.command()
def show(file: File) -> None:
    """Print what a space holds."""
    with clear_errors():
        with open_space(file) as space:  # Opening it ends what has expired.
            name, in_doubt = space.name, len(space.in_doubt())
        count: Counter[str] = Counter()
        first: list[str] = []
        for shape, fields in living_entries(file):
            count[shape_text(shape)] += 1
            if len(first) < SHOWN:
                first.append(entry_text(shape, fields))
        print(f"space    {name!r}\nentries  {count.total()}")
        if in_doubt:
            print(f"in doubt {in_doubt} prepared transactions")
        for text, number in count.most_common():
            print(f"{number:>9}  {text}")
        if first:
            print("first")
        for text in first:
            print(f"           {text}")


@app.command()
def check(
    file: File,
    salvage: Annotated[
        Path | None,
        typer.Option(metavar="TO", help="Write what is good to this new file."),
    ] = None,
) -> None:
    """Check every change and entry of a space's file, and say what is lost. Changes nothing."""
    with clear_errors():
        check_file(file)
        examination = examine(file) if salvage is None else salvage_to(file, salvage)
        print(f"space    {examination.name!r}, format {examination.format}")
        print(f"changes  {examination.changes} good, from {examination.first}")
        print(f"entries  {examination.entries} good")
        if examination.format < CHECKED_SINCE:
            print(f"Format {examination.format} has no checksums; opening the space adds them.")
        for damage in examination.found:
            print(f"damage   {damage}")
        if salvage is not None:
            print(f"What is good was written to {salvage}.")
        if examination.found:
            raise typer.Exit(1)
        print("Nothing is damaged.")


def changes(space: Space, since: int | None) -> Iterator[Change]:
    """The changes of a space, read page by page; from the first that is kept, if not told."""
    try:
        page = space.changes(since=since or 0, limit=PAGE)
    except LogTrimmed as trimmed:
        if since is not None:
            raise
        complain(f"changes before position {trimmed.first} are not kept")
        page = space.changes(since=trimmed.first - 1, limit=PAGE)
    while page:
        yield from page
        page = space.changes(since=page[-1].position, limit=PAGE)


def change_text(change: Change) -> str:
    try:
        moment = datetime.fromtimestamp(change.time).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):  # A clock may be set to any time.
        moment = f"{change.time:<23g}"
    waited = f"{change.waited:.3f} s" if change.waited else "-"
    entry = "-"
    if change.shape is not None and change.fields is not None:
        entry = entry_text(change.shape, change.fields)
    txn = (change.txn or "-")[:8]
    return f"{change.position:>8}  {moment}  {change.kind:9}  {waited:>8}  {txn:8}  {entry}"


def complain(what: object) -> None:
    print(f"tupelo: {what}", file=sys.stderr)


@contextmanager
def clear_errors() -> Iterator[None]:
    """What stands in the way is said in one line, not in a traceback."""
    try:
        yield
    except (TupeloError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise  # The reader has seen enough, as in `tupelo log FILE | head`.
        complain(error)
        raise typer.Exit(1) from error


@contextmanager
def directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with TemporaryDirectory(prefix="tupelo-tour-") as temporary:
        yield Path(temporary)
