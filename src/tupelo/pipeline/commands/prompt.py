"""What the commands on Spark share: how logs are named, and what is said when it goes wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from tupelo.errors import PipelineError

Logs = Annotated[
    list[str],
    typer.Argument(
        metavar="LOG...",
        help="The file of a durable space, the folder or the address of a host, or an archive.",
    ),
]
Archive = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where the past of these logs is sealed.")
]
Federation = Annotated[
    bool, typer.Option("--federation", help="At the hosts that this one is engaged with, too.")
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Spark's master, or sc://... for Spark Connect; else this machine."
    ),
]
Password = Annotated[
    str | None,
    typer.Option(metavar="WORD", envvar="TUPELO_PASSWORD", help="Of the spaces at a host."),
]
Tls = Annotated[bool | None, typer.Option(help="Whether hosts are met under TLS.")]

_OURS = re.compile(r"^tupelo\.errors(?:\.\w+)+: (.+)$", re.MULTILINE)
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception)\b.*$", re.MULTILINE)
_CONDITION = re.compile(r"^\[[\w.]+\] | SQLSTATE: \w+|;$")


def reading(
    archive: str | None = None,
    federation: bool = False,
    password: str | None = None,
    tls: bool | None = None,
    **others: str | None,
) -> dict[str, str]:
    """The options of a reader that were given."""
    given: Mapping[str, str | None] = {
        "archive": archive,
        "federation": "true" if federation else None,
        "password": password,
        "tls": None if tls is None else str(tls).lower(),
        **others,
    }
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def packages() -> Iterator[None]:
    """What is not installed is named, with how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise PipelineError(
            f'the pipeline needs the package {error.name}: pip install "tupelo[pipeline]"'
        ) from error


@contextmanager
def complaints() -> Iterator[None]:
    """What Spark complains of at length is said in a line."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(in_a_line(str(error))) from error


def in_a_line(complaint: str) -> str:
    """What we said ourselves, inside of Spark; or what its worker raised; or its first line."""
    ours = _OURS.findall(complaint)
    if ours:
        return str(ours[-1])
    if "Traceback (most recent call last)" in complaint:
        raised = _RAISED.findall(complaint)
        if raised:
            return str(raised[-1])
    first = complaint.strip().partition("\n")[0]
    return _CONDITION.sub("", first).strip()
