"""The commands of `tupelo`. The module of a command is loaded when the command runs, so that each
command starts quickly. The list of commands loads no module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import tupelo
from tupelo.errors import without_password

COMMANDS = {
    "Spaces": {
        "read": ("spaces", "Print a matching entry without removing it."),
        "take": ("spaces", "Remove a matching entry, and print it."),
        "write": ("spaces", "Write entries: all of them or none."),
        "count": ("spaces", "Print the number of matching entries."),
        "watch": ("spaces", "Print new entries as they are written."),
        "show": ("spaces", "Print the contents of a space."),
        "log": ("spaces", "Print the changes of a space."),
        "move": ("moving", "Move all entries of a space to another space."),
    },
    "Hosts": {
        "host": ("hosting", "Run a host: a server that keeps spaces for programs."),
        "console": ("hosting", "Serve the console of a running host."),
        "spaces": ("spaces", "Print the spaces of a host."),
        "peers": ("spaces", "Print the hosts and programs connected to a host."),
        "jobs": ("jobs", "Print the jobs of job queues; retry or cancel jobs."),
        "work": ("working", "Run a worker of a job queue that a Python module defines."),
        "top": ("top", "Show spaces, rates, waiting calls and open transactions of a host."),
        "store": ("storing", "Create, migrate and inspect the tables of spaces in a database."),
        "identity": ("identity", "Print your identity, for the --trust file of others."),
    },
    "Files": {
        "check": ("files", "Check the file of a space, and report damage."),
        "backup": ("files", "Copy a space, or all spaces of a host, while they are in use."),
        "restore": ("files", "Restore a backup to a new file or folder."),
        "repair": ("files", "Replace damaged files by their undamaged part."),
    },
    "This machine": {
        "doctor": ("doctor", "Report what works on this machine, and what is missing."),
        "tour": ("commands", "Show the product in two minutes."),
    },
}
"""The commands with their modules and summaries, in the order of the help."""
OTHERS = {
    "lab": "Run experiments in virtual time, and test hosts under faults.",
    "pipeline": "Archive and analyse the log of changes.",
    "sql": "Query changes and present entries in SQL, at a host or in an archive.",
}
"""Summaries of commands of the layers above, which declare them as entry points."""
EXIT_CODES = (
    "Exit codes: 0 done; 1 an error or damage, reported on stderr; 2 wrong usage; 3 no match"
    " (read, take, jobs). `tupelo COMMAND -h` shows examples."
)
_MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}


class Commands(click.Group):
    """Finds a command by its name: a command of this layer, or an entry point of a layer above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_MODULES, *sorted(_entry_points())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if module := _MODULES.get(cmd_name):
            found: click.Command = getattr(import_module(f"tupelo.apps.{module}"), cmd_name)
            return found
        point = _entry_points().get(cmd_name)
        return None if point is None else OtherCommand(cmd_name, point)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), 1)
            if not near:
                raise
            text = f"{error.message} Did you mean {near[0]!r}?"
            raise click.UsageError(text, ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise  # It shows the help of a group of commands.
        except click.UsageError as error:
            said = without_password(error.format_message())
            raise click.UsageError(said, error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = {name: ("", OTHERS.get(name, "")) for name in sorted(_entry_points())}
        for title, group in {**COMMANDS, "More": others}.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in group.items()])


class OtherCommand(click.Command):
    """A command of a layer above: a Typer application, or a function of a Typer command. The
    application parses the arguments."""

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
        usage_error: Any = typer.BadParameter.__base__  # Typer has a click of its own.
        try:
            code = command.main(ctx.args, prog_name=ctx.command_path, standalone_mode=False)
        except usage_error as error:
            error.message = without_password(error.message)
            error.show()
            code = error.exit_code
        except typer.Abort:
            raise click.Abort from None
        ctx.exit(code or 0)


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
        help=f"{help} SHELL is bash, zsh or fish; the default is the shell in $SHELL.",
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
@completion_option(
    "--install-completion", install_completion, "Install completion of commands in the shell."
)
@completion_option("--show-completion", print_completion, "Print the completion script.")
def app() -> None:
    """Programs share spaces: they write entries, and find entries by content."""


@click.command(epilog="Example: tupelo tour --fast")
@click.option(
    "--seed",
    default=1,
    show_default=True,
    help="Determines the jobs, and the moment of the crash.",
)
@click.option(
    "--short", is_flag=True, help="Show only the part with a space in a file (half a minute)."
)
@click.option("--fast", is_flag=True, help="Short jobs, and no pauses for reading.")
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keep the files and the report in this directory.",
)
def tour(seed: int, short: bool, fast: bool, keep: Path | None) -> None:
    """Show the product in two minutes: producers, workers, a crash and recovery at a host with its
    console; three hosts that connect and disconnect; and a report of the log by Spark.

    On a terminal the console runs until Ctrl-C.
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
