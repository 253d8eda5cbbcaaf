"""The command `tupelo pipeline report`. What it needs is loaded when it is run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tupelo.apps.spaces import clear_errors
from tupelo.errors import AuditFailed
from tupelo.pipeline.commands.prompt import (
    Archive,
    Federation,
    Logs,
    Master,
    Password,
    Tls,
    complaints,
    packages,
    reading,
)


def report(
    logs: Logs,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where the report shall be.")],
    skew: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="So much may the hosts' clocks differ."),
    ] = 0.0,
    archive: Archive = None,
    federation: Federation = False,
    master: Master = None,
    password: Password = None,
    tls: Tls = None,
) -> None:
    """Write what all jobs answer: Parquet tables, and one page with plots.

    Ends with code 1 if the audit finds a fault; the report is written all the same.
    """
    with clear_errors(), packages():
        from tupelo.pipeline import session
        from tupelo.pipeline.reports.report import PAGE, STEPS, place_for, write_report
        from tupelo.pipeline.source.locations import resolve
        from tupelo.pipeline.source.options import ReadOptions

        options = reading(archive, federation, password, tls)
        found = resolve(ReadOptions.read({**options, "paths": json.dumps(logs)}))
        console = Console(highlight=False, soft_wrap=True)
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        with place_for(to, found) as folder, progress, complaints():
            bar = progress.add_task("starting Spark", total=STEPS + 1)

            def told(step: str) -> None:
                progress.update(bar, description=step, advance=1)

            faults = write_report(
                session(master), logs, options, folder, datetime.now(UTC), skew, told
            )
        console.print(f"{to / PAGE}", markup=False)
        if faults:
            raise AuditFailed(faults)
