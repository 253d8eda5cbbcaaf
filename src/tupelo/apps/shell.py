"""What the commands share: arguments, options, output and errors.

On a terminal the commands print text, in a pipe one JSON object per line; `--json` and `--text`
override that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from tupelo.errors import BadArgument, TupeloError, WrongPassword

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
limit_option = click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N.")
json_option = click.option(
    "--json/--text", "json", default=None, help="One JSON object a line, as in a pipe; or text."
)
trust_option = click.option(
    "--trust",
    metavar="HOW",
    help='Which hosts to believe beyond this machine: "first-use", "anyone", or a file of'
    " identities.",
)

SPACE_HELP = (
    "SPACE is the file of a durable space, or a URL: tupelo://127.0.0.1:7700/jobs, or"
    " postgresql://host/database?space=jobs."
)
TEMPLATE_HELP = "TEMPLATE says which entries: '(\"job\", int, ANY)' or 'job(size=Between(1, 9))'."
PASSWORD_HELP = "The password of a space at a host is read from TUPELO_PASSWORD."


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


def say(what: object) -> None:
    """Print something for people: nothing in a pipe."""
    if sys.stdout.isatty():
        print(what)


def complain(what: object) -> None:
    print(f"tupelo: {what}", file=sys.stderr)


def fail(what: object) -> NoReturn:
    complain(what)
    sys.exit(FAILED)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Print errors as one line, in the words of the command line, instead of a traceback."""
    try:
        yield
    except (TupeloError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise  # The pipe was closed, as in `tupelo log FILE | head`.
        fail(_in_words(error))


def _in_words(error: Exception) -> str:
    """The text of an error; the argument of a function is named as the option of the command."""
    context = click.get_current_context(silent=True)
    if isinstance(error, BadArgument) and context is not None:
        for param in context.command.params:
            if param.name == error.argument:
                named = (
                    param.opts[-1]
                    if isinstance(param, click.Option)
                    else (param.metavar or "").strip("[]")
                )
                return f"{named} {str(error).partition('= ')[2]}"
    if isinstance(error, WrongPassword):
        is_set = "TUPELO_PASSWORD" in os.environ
        return f"{error}: {'correct' if is_set else 'set'} TUPELO_PASSWORD"
    return str(error)


def credentials(trust: str | None) -> dict[str, Any]:
    """Arguments to connect: fail at once if the host is not there."""
    given: dict[str, Any] = {"name": CLIENT_NAME, "reconnect": 0}
    if password := os.environ.get("TUPELO_PASSWORD"):
        given["password"] = password
    if trust is not None:
        from tupelo.apps.hosting import trust_of

        given["trust"] = trust_of(trust)
    return given
