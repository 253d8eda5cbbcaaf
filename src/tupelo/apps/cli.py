"""The entry point of the command `tupelo`, which names the packages that are not installed."""

from __future__ import annotations

import sys
from io import TextIOWrapper

NEEDED = ("click", "rich", "typer")


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # Some terminals cannot show all characters.
            stream.reconfigure(errors="backslashreplace")
    try:
        from tupelo.apps.commands import app

        app(prog_name="tupelo")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in NEEDED:
            raise
        sys.stderr.write(
            f"tupelo: the command line needs {package}, which is not installed:"
            ' pip install "tupelo[cli]"\n'
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
