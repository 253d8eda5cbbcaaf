"""The common parts of the commands: arguments, options, output and errors.

On a terminal the commands with the option `--json` print text, in a pipe one JSON object per line;
`--json` and `--text` override that.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from tupelo.errors import BadArgument, SpaceInUse, TupeloError, WrongPassword, without_password

FAILED = 1
"""Exit code of a command that could not do its work; the reason is on stderr. Wrong usage is 2."""
NO_MATCH = 3
"""Exit code of `read` and `take` if there is no match."""
CLIENT_NAME = "tupelo command"
DATABASES = ("postgresql://", "postgres://")
"""How the URLs of spaces in databases begin."""

space_argument = click.argument("space", metavar="SPACE")
template_argument = click.argument("template", metavar="TEMPLATE")
any_template = click.argument("template", metavar="[TEMPLATE]", default="ANY")
url_argument = click.argument("url", metavar="URL")
file_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
limit_option = click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="At most N results."
)
json_option = click.option(
    "--json/--text",
    "json",
    default=None,
    help="JSON objects, one per line (default in a pipe), or text.",
)
trust_option = click.option(
    "--trust",
    metavar="HOW",
    help='Trusted hosts on other machines: "first-use", "anyone", or a file with identities.',
)

SPACE_HELP = (
    "SPACE is the file of a durable space, or a URL: tupelo://127.0.0.1:7700/jobs, or"
    " postgresql://host/database?space=jobs."
)
TEMPLATE_HELP = "TEMPLATE selects entries: '(\"job\", int, ANY)' or 'job(size=Between(1, 9))'."
PASSWORD_HELP = "TUPELO_PASSWORD is the password of a space at a host."


def examples(*lines: str, notes: str = "") -> str:
    """The end of a command's help: notes, and commands to copy."""
    shown = "\n".join(f"  {line}" for line in lines)
    return f"{notes}\n\n\b\nExamples:\n{shown}"


def combined(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several arguments and options as one decorator, in the order of the help."""

    def decorate(function: Any) -> Any:
        for one in reversed(decorators):
            function = one(function)
        return function

    return decorate


def in_json(choice: bool | None) -> bool:
    return not sys.stdout.isatty() if choice is None else choice


def json_text(record: Any) -> str:
    return msgspec.json.encode(record).decode()


def print_row(row: dict[str, Any], json: bool | None) -> None:
    if in_json(json):
        print(json_text(row), flush=True)
    else:
        print("  ".join("-" if value is None else str(value) for value in row.values()))


def print_rows(rows: Sequence[dict[str, Any]], json: bool | None) -> None:
    """Print rows as JSON, or as a table: a row has a cell for each of its keys, which are titles.
    Rows with other titles are a table of their own."""
    if in_json(json):
        for row in rows:
            print_row(row, json)
        return
    for titles, group in groupby(rows, tuple):
        lines = [titles, *(tuple("-" if v is None else str(v) for v in r.values()) for r in group)]
        print("\n".join(aligned(lines)))


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells as text in columns, numbers to the right. The first line has the titles."""
    columns = []
    for column in zip(*lines, strict=True):
        width = max(map(len, column))
        is_number = all(re.fullmatch(r"[\d,.]+|-", cell) for cell in column[1:])
        columns.append([cell.rjust(width) if is_number else cell.ljust(width) for cell in column])
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def say(what: object) -> None:
    """Print something on a terminal; print nothing in a pipe."""
    if sys.stdout.isatty():
        print(what)


def complain(what: object) -> None:
    print(f"tupelo: {without_password(str(what))}", file=sys.stderr)


def fail(what: object) -> NoReturn:
    complain(what)
    sys.exit(FAILED)


@contextmanager
def clear_errors(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Print errors as one line, in the words of the command line, instead of a traceback. `names`
    are those of arguments in the help, where they differ from the names of the options."""
    try:
        yield
    except (TupeloError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise  # The pipe was closed, as in `tupelo log FILE | head`.
        fail(in_words(error, names))


_OTHER_NAMES = {"url": "SPACE", "path": "LOG", "asOf": "--as-of"}
"""The names in the help for arguments of functions that have no option of the same name."""


def in_words(error: Exception, names: Mapping[str, str] | None = None) -> str:
    """The text of an error; the argument of a function is named as the option of the command."""
    if isinstance(error, BadArgument):
        forever = ", or -1 for ever" if error.argument == "wait" else ""
        said = re.sub(", or None( for ever)?", forever, str(error).partition("= ")[2])
        name = (names or {}).get(error.argument) or _option_of(error.argument)
        return f"{name} {said}"
    if isinstance(error, SpaceInUse):
        return f"{error}: stop that program, or, if it is a host, name the space by its URL"
    if isinstance(error, WrongPassword):
        if "TUPELO_PASSWORD" in os.environ:
            return f"{error}: correct TUPELO_PASSWORD"
        return f"the space {error.space!r} has a password: set TUPELO_PASSWORD"
    return str(error)


def _option_of(argument: str) -> str:
    context = click.get_current_context(silent=True)
    params = [] if context is None else context.command.params
    for param in params:
        if param.name == argument and isinstance(param, click.Option):
            return param.opts[-1]
        if param.name == argument:
            return (param.metavar or "").strip("[]")
    # The commands of the layers above have parameters of their own, which are not seen here.
    is_option = not params and argument.islower()
    return _OTHER_NAMES.get(argument, f"--{argument}" if is_option else argument)


def credentials(trust: str | None) -> dict[str, Any]:
    """Arguments to connect. A missing host is an error at once."""
    given: dict[str, Any] = {"name": CLIENT_NAME, "reconnect": 0}
    if password := os.environ.get("TUPELO_PASSWORD"):
        given["password"] = password
    if trust is not None:
        from tupelo.apps.hosting import trust_of

        given["trust"] = trust_of(trust)
    return given
