"""The commands of `tupelo`. A command's module is loaded when the command is used, so that each
starts quickly; the list of commands loads none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import tupelo

COMMANDS = {
    "Spaces": {
        "read": ("spaces", "Print an entry that matches, and leave it there."),
        "take": ("spaces", "Remove an entry that matches, and print it."),
        "write": ("spaces", "Write entries, all of them or none."),
        "count": ("spaces", "Print how many entries match."),
        "watch": ("spaces", "Print every entry that is written from now on."),
        "show": ("spaces", "Print what a space holds."),
        "log": ("spaces", "Print what has happened in a space."),
        "move": ("moving", "Move all entries of a space to another, of any kind."),
    },
    "Hosts": {
        "host": ("hosting", "Run a host: programs connect to its spaces."),
        "console": ("hosting", "Serve the console of a host that runs already."),
        "spaces": ("spaces", "Print the spaces of a host."),
        "peers": ("spaces", "Print the hosts and programs connected to a host."),
        "jobs": ("jobs", "Print the jobs of queues; retry or cancel some."),
        "work": ("working", "Do the jobs of a queue that a module defines."),
        "top": ("top", "Watch a host: spaces, rates, waiting calls, open transactions."),
        "identity": ("identity", "Print the identity by which others know you, for --trust."),
    },
    "Files": {
        "check": ("files", "Check the file of a space, and say what is lost."),
        "backup": ("files", "Copy a space, or all spaces of a host, while they are in use."),
        "restore": ("files", "Bring back a backup, at a place where nothing is."),
        "repair": ("files", "Replace damaged files by what is good of them."),
    },
    "This machine": {
        "doctor": ("doctor", "Say what works on this machine, and what is missing."),
        "tour": ("commands", "See the product in two minutes."),
    },
}
"""The commands with their modules and summaries, in the order of the help."""
OTHERS = {
    "lab": "Run hosts under faults, and check the histories of clients.",
    "pipeline": "The log of what happened, as tables.",
    "sql": "Ask in SQL what has happened, and what is there, at a host or in an archive.",
}
"""Summaries of commands of the layers above, which declare them as entry points."""
EXIT_CODES = (
    "Exit codes: 0 done; 1 an error, or damage, which is said on stderr; 2 wrong usage; 3 no match"
    " (read, take, jobs). `tupelo COMMAND -h` shows examples."
)
_MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}


class Commands(click.Group):
    """Finds a command by its name: one of ours, or an entry point of a layer above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_MODULES, *sorted(_entry_points())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if module := _MODULES.get(cmd_name):
            found: click.Command = getattr(import_module(f"tupelo.apps.{module}"), cmd_name)
            return found
        point = _entry_points().get(cmd_name)
        return None if point is None else OtherCommand(cmd_name, point)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = {name: ("", OTHERS.get(name, "")) for name in sorted(_entry_points())}
        for title, group in {**COMMANDS, "More": others}.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in group.items()])


class OtherCommand(click.Command):
    """A command of a layer above: a Typer application, or a function for one. It reads its own
    arguments."""

    def __init__(self, name: str, point: Any) -> None:
        super().__init__(name, help=OTHERS.get(name))
        self._point = point

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return ctx.args

    def invoke(self, ctx: click.Context) -> None:
        import typer
        from typer.main import get_command, get_group

        found = self._point.load()
        if isinstance(found, typer.Typer):
            found.rich_markup_mode = None  # as the other commands; and Rich takes a while to load
            command: Any = get_group(found)
        else:
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.command()(found)
            command = get_command(single)
        command.context_settings["help_option_names"] = ["-h", "--help"]
        command.main(ctx.args, prog_name=ctx.command_path)


def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group="tupelo.commands")}
    return {name: point for name, point in found.items() if name not in _MODULES}


def print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"tupelo {tupelo.__version__}")
        ctx.exit()


def print_completion(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        from tupelo.apps.completion import script

        print(script(shell), end="")
        ctx.exit()


def install_completion(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        from tupelo.apps.completion import install

        print(f"Installed in {install(shell)}; it works in new shells.")
        ctx.exit()


def completion_option(
    name: str, callback: Any, help: str
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    return click.option(
        name,
        is_flag=False,
        flag_value="",
        metavar="[SHELL]",
        expose_value=False,
        is_eager=True,
        callback=callback,
        help=f"{help} SHELL is bash, zsh or fish; if not given, that of $SHELL.",
    )


@click.group(
    cls=Commands,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=print_version,
    help="Print the version.",
)
@completion_option("--install-completion", install_completion, "Complete commands in the shell.")
@completion_option("--show-completion", print_completion, "Print the script that completes.")
def app() -> None:
    """Programs meet in spaces: they write entries, and find them by content."""


@click.command(epilog="Example: tupelo tour --fast")
@click.option(
    "--seed",
    default=1,
    show_default=True,
    help="Which jobs there are, and when the crash comes.",
)
@click.option("--short", is_flag=True, help="Only the half minute with a space in a file.")
@click.option("--fast", is_flag=True, help="No pauses to read, and short jobs.")
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keep the files and the report there.",
)
def tour(seed: int, short: bool, fast: bool, keep: Path | None) -> None:
    """The product in two minutes: producers, workers, a crash and recovery at a host with its
    console; three hosts that meet and part; and the log of all this on Spark.

    On a terminal the console stays until Ctrl-C.
    """
    from rich.console import Console

    from tupelo.apps.shell import clear_errors
    from tupelo.apps.tour import WIDTH, Tour, place_in

    with clear_errors(), directory(keep) as folder:
        place = place_in(folder, short=short)
        if Path(place.path).exists():
            raise click.BadParameter(f"{place.path} exists already", param_hint="--keep")
        console = Console(highlight=False)
        console.width = min(console.width, WIDTH)
        if not Tour(console, place, seed, fast=fast).run():
            raise SystemExit(1)
        if keep is not None:
            print(f"  What was kept: tupelo show {place.log}")


@contextmanager
def directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="tupelo-tour-") as temporary:
        yield Path(temporary)
