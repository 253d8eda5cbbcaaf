"""The command `tupelo`. What it does is in `commands`; this is what works without its packages."""

from __future__ import annotations

import sys
from io import TextIOWrapper

NEEDED = ("typer", "rich")


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # An entry may hold what a terminal cannot show.
            stream.reconfigure(errors="backslashreplace")
    try:
        from tupelo.apps.commands import add_groups, app

        add_groups()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in NEEDED:
            raise
        sys.stderr.write(
            f"tupelo: the command line needs {package}, which is not installed:"
            ' pip install "tupelo[cli]"\n'
        )
        sys.exit(2)
    app(prog_name="tupelo")


if __name__ == "__main__":
    main()
