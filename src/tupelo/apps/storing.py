"""The command `tupelo store`: the tables of spaces in a database."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from tupelo.apps.shell import (
    aligned,
    clear_errors,
    examples,
    in_json,
    json_option,
    json_text,
    print_row,
    url_argument,
)
from tupelo.errors import BadInput
from tupelo.federation.links.address import is_database
from tupelo.values.text import one_line

NOTES = (
    "URL is the URL of a database: postgresql://host/database. Other users of this machine can"
    " read a password in the URL; use PGPASSWORD or ~/.pgpass."
)


@click.group(
    no_args_is_help=True,
    epilog=examples("tupelo store status postgresql://db.example/work", notes=NOTES),
)
def store() -> None:
    """Create, migrate and inspect the tables of spaces in a database."""


@store.command(
    epilog=examples(
        "tupelo store init postgresql://admin@db.example/work --role workers",
        "tupelo store init postgresql://admin@db.example/work --role worker --space jobs",
        notes=f"{NOTES} With --space, the role sees only the named spaces.",
    )
)
@url_argument
@click.option(
    "--role",
    "roles",
    metavar="ROLE",
    multiple=True,
    help="Grant ROLE the use of the spaces; repeatable.",
)
@click.option(
    "--space",
    "spaces",
    metavar="NAME",
    multiple=True,
    help="Limit the roles to this space; repeatable.",
)
@json_option
def init(url: str, roles: tuple[str, ...], spaces: tuple[str, ...], json: bool | None) -> None:
    """Create the tables, and grant a role the privileges that programs need."""
    if spaces and not roles:
        raise click.UsageError("--space needs --role: whom to let use it")
    with clear_errors():
        before, now = _administration(url).init_store(url, roles, spaces)
        _print_versions(before, now, json)


@store.command(epilog=examples("tupelo store migrate postgresql://db.example/work", notes=NOTES))
@url_argument
@json_option
def migrate(url: str, json: bool | None) -> None:
    """Update the tables of an older version of Tupelo. Running programs wait until it is done."""
    with clear_errors():
        before, now = _administration(url).migrate_store(url)
        _print_versions(before, now, json)


@store.command(epilog=examples("tupelo store status postgresql://db.example/work", notes=NOTES))
@url_argument
@json_option
def status(url: str, json: bool | None) -> None:
    """Print the version, spaces, sizes, dead rows, prepared transactions and connections."""
    with clear_errors():
        found = _administration(url).store_status(url)
        if in_json(json):
            print(json_text(found), flush=True)
            return
    known = "" if found.version == found.known_version else f", known here: {found.known_version}"
    print(f"PostgreSQL {found.server} at {found.where}")
    print(f"version {found.version or 'none: run `tupelo store init`'}{known}")
    print(
        f"{found.connections} of {found.connections_max} connections,"
        f" {found.prepared_transactions} prepared transactions"
    )
    _print_table([msgspec.structs.asdict(one) for one in found.spaces])
    now = time.time()
    for table in found.tables:
        table.vacuumed = None if table.vacuumed is None else now - table.vacuumed
    _print_table([msgspec.structs.asdict(one) for one in found.tables])
    for role, names in found.roles.items():
        print(f"role {one_line(role)}: {', '.join(map(one_line, names)) or 'all spaces'}")


def _administration(url: str) -> Any:
    if not is_database(url):
        raise BadInput(f"URL must be that of a database: postgresql://host/database, not {url!r}")
    from tupelo.postgres import administration

    return administration


def _print_versions(before: int, now: int, json: bool | None) -> None:
    if in_json(json):
        print_row({"before": before, "version": now}, True)
    elif before == now:
        print(f"version {now}, as before")
    else:
        print(f"version {now}, made new" if before == 0 else f"version {now}, before {before}")


def _print_table(rows: list[dict[str, Any]]) -> None:
    """Rows as columns, with the keys above them."""
    if not rows:
        return
    lines = [[key.replace("_", " ") for key in rows[0]]]
    lines += [[_cell(key, value) for key, value in row.items()] for row in rows]
    print("\n".join(aligned(lines)))


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "never"
    if key == "vacuumed":
        return f"{value:,.0f} s ago"
    return f"{value:,}" if isinstance(value, int) else one_line(value)
