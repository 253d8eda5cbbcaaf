"""The command `tupelo identity`: the public key that identifies a program or a host."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tupelo.apps.shell import clear_errors, examples, fail, in_json, json_option, print_row


@click.command(
    epilog=examples(
        "tupelo identity",
        "tupelo identity --create",
        "tupelo identity kitchen/identity.pem",
        "tupelo identity --json",
        "tupelo identity --certificate > identity.crt",
        notes="FILE is the identity of a host (identity.pem in its folder). Default: the identity"
        " of your own programs. Another host trusts it if its --trust file has the printed text"
        " as a line. Exit code 1: there is no identity.",
    )
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--create", is_flag=True, help="Create an identity if there is none.")
@click.option(
    "--certificate",
    is_flag=True,
    help="Print the certificate of the identity, for curl --cert and the like.",
)
@json_option
def identity(file: Path | None, create: bool, certificate: bool, json: bool | None) -> None:
    """Print an identity (a public key); create it with --create."""
    from tupelo.federation.identity.keys import Identity, default_folder, id_of

    with clear_errors():
        place = file or default_folder() / "identity.pem"
        if not (create or os.path.lexists(place)):
            fail(f"{place} does not exist; --create makes an identity there")
        found = Identity.at(place)
        key = found.key
        if certificate:
            from tupelo.federation.identity.tls import certificate_for

            print(certificate_for(found.public).decode(), end="")
        elif in_json(json):
            print_row({"identity": key, "id": id_of(key), "file": str(place)}, json)
        else:
            print(key)
