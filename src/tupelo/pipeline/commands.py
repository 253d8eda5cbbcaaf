"""The commands of `tupelo pipeline`. They are found by their entry point: no layer below knows
them. What they need is loaded when one of them is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from tupelo.apps.commands import clear_errors
from tupelo.errors import BadArgument
from tupelo.pipeline.prompt import packages

app = typer.Typer(no_args_is_help=True, help="The log of what happened, as tables.")


@app.callback()
def pipeline() -> None:
    """With one command only, its name would be left out."""


@app.command()
def archive(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="The file of a durable space, the folder of a host, or the address of one.",
        ),
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="The archive.")],
) -> None:
    """Seal logs into an archive of Parquet files; their spaces may be in use meanwhile."""
    with clear_errors(), packages():
        from tupelo.pipeline.options import ReadOptions
        from tupelo.pipeline.segments import ArchivedLog, Segment, seal, sealed_upto
        from tupelo.pipeline.sources import resolve

        found = resolve(ReadOptions(tuple(logs)))
        if any(isinstance(log, ArchivedLog) for log in found):
            raise BadArgument("LOG", "a log that lives (what an archive has is sealed)", logs)
        console = Console(highlight=False, soft_wrap=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            for log in found:
                before = sealed_upto(log, to)
                bar = progress.add_task(f"{log.space!r}", total=max(0, log.bounds()[1] - before))

                def told(segment: Segment, bar: int = bar) -> None:
                    progress.advance(bar, segment.rows)  # type: ignore[arg-type]

                segments = seal(log, to, told=told)
                rows = sum(segment.rows for segment in segments)
                upto = segments[-1].last if segments else before
                progress.print(
                    f"{log.space!r} of {log.host}: {rows} changes in {len(segments)} segments,"
                    f" sealed up to {upto}",
                    markup=False,
                )
