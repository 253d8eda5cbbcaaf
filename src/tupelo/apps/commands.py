"""The commands of `tupelo`: the tour, a host, and checking the file of a durable space."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

import tupelo
from tupelo.apps import spaces
from tupelo.apps.hosting import LISTEN, opened_console, run_host
from tupelo.apps.spaces import HostUrl, TrustHow, check_file, clear_errors, credentials

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of a durable space.")]


class Commands(TyperGroup):
    """Our commands, and those of the layers above, which declare them as entry points. The latter
    are loaded to list all commands, or if a command is not one of ours."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._load_others()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            self._load_others()
        return super().get_command(ctx, cmd_name)

    def _load_others(self) -> None:
        from importlib.metadata import entry_points

        others = typer.Typer()
        for found in sorted(entry_points(group="tupelo.commands"), key=lambda point: point.name):
            if found.name in self.commands:
                continue
            commands = found.load()
            if isinstance(commands, typer.Typer):
                others.add_typer(commands, name=found.name)
            else:
                others.command(found.name)(commands)
        self.commands.update(get_group(others).commands)


app = typer.Typer(
    cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
)


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


@app.command()
def tour(
    short: Annotated[
        bool, typer.Option("--short", help="Only the half minute with a space in a file.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Which jobs there are, and when the crash comes.")] = 1,
    fast: Annotated[
        bool, typer.Option("--fast", help="No pauses to read, and short jobs.")
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the files and the report there.")
    ] = None,
) -> None:
    """The product in two minutes: producers, workers, a crash and recovery at a host with its
    console; three hosts that meet and part; and the log of all this on Spark.

    On a terminal the console stays until Ctrl-C.
    """
    from rich.console import Console

    from tupelo.apps.tour import WIDTH, Tour, place_in

    with clear_errors(), directory(keep) as folder:
        place = place_in(folder, short=short)
        if Path(place.path).exists():
            raise typer.BadParameter(f"{place.path} exists already", param_hint="--keep")
        console = Console(highlight=False)
        console.width = min(console.width, WIDTH)
        if not Tour(console, place, seed, fast=fast).run():
            raise typer.Exit(1)
        if keep is not None:
            print(f"  What was kept: tupelo show {place.log}")


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
        float,
        typer.Option(
            metavar="SECONDS", help="Heartbeat interval; a peer is dropped after three misses."
        ),
    ] = 1.0,
    archive: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Seal the logs of its spaces here, before they are cut."),
    ] = None,
    console: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Serve the console and the HTTP API here, such as 127.0.0.1:7780.",
        ),
    ] = None,
) -> None:
    """Run a host: programs connect to its spaces, and it shares them with other hosts.

    Example: tupelo host kitchen --path kitchen --console 127.0.0.1:7780
    """
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
            console=console,
        )


@app.command()
def console(
    url: HostUrl,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where the page is served; port 0 is any.")
    ] = "127.0.0.1:7780",
    remote: Annotated[
        bool,
        typer.Option(
            "--remote", help="Allow an address beyond this machine. Put a proxy with TLS before it."
        ),
    ] = False,
    trust: TrustHow = None,
) -> None:
    """Serve the console and the HTTP API of a host that runs already, until Ctrl-C.

    TUPELO_CONSOLE_TOKEN sets the token; else one is made, and printed.

    Example: tupelo console tupelo://127.0.0.1:7700
    """
    options = credentials(trust) | {"name": "console", "reconnect": 30.0}
    with clear_errors(), opened_console(url, listen, remote, **options) as page:
        print(f"console {page.url}", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


for command in ("read", "write", "take", "count", "watch", "show", "log", "spaces", "peers"):
    app.command()(getattr(spaces, command))


@app.command()
def check(
    file: File,
    salvage: Annotated[
        Path | None,
        typer.Option(metavar="TO", help="Write what is good to this new file."),
    ] = None,
) -> None:
    """Check every change and entry of a space's file, and say what is lost. Changes nothing."""
    from tupelo.store import checking
    from tupelo.store.format import CHECKED_SINCE

    with clear_errors():
        check_file(file)
        examination = checking.salvage(file, salvage) if salvage else checking.examine(file)
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


@contextmanager
def directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with TemporaryDirectory(prefix="tupelo-tour-") as temporary:
        yield Path(temporary)
