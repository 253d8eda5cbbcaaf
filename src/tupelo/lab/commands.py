"""The commands of `tupelo lab`. They are found by their entry point: no layer below knows them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from enum import Enum
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from tupelo.lab.lime.simulate import simulate as simulate_lime
from tupelo.lab.simulate import Report, simulate, simulate_many

FAULTS_SHOWN = 5


class Model(Enum):
    """What is simulated."""

    FEDERATION = "federation"
    LIME = "lime"


PLAYS: dict[Model, Callable[[int], Report]] = {
    Model.FEDERATION: simulate,
    Model.LIME: simulate_lime,
}

app = typer.Typer(no_args_is_help=True, help="Look for what cannot be, in worlds ruled by seeds.")


@app.callback()
def lab() -> None:
    """With one command only, its name would be left out."""


@app.command("simulate")
def simulate_command(
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="How many seeds to play.")] = 200,
    first: Annotated[int, typer.Option(min=0, metavar="S", help="The first of them.")] = 0,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print all that happens; for one seed.")
    ] = False,
    model: Annotated[
        Model, typer.Option(help="Spaces that span hosts, or the agents and groups of LIME.")
    ] = Model.FEDERATION,
) -> None:
    """Play federations in virtual time, with partitions, crashes and slow links, and judge them."""
    logging.getLogger("tupelo").setLevel(logging.CRITICAL)  # Every loss would be told there.
    console = Console(highlight=False, soft_wrap=True)
    if trace:
        if seeds != 1:
            raise typer.BadParameter("with --trace it is 1", param_hint="--seeds")
        reports = [PLAYS[model](first)]
        console.print("\n".join(reports[0].trace), markup=False)
        console.print(f"digest {reports[0].digest}")
    else:
        processes = min(seeds, os.cpu_count() or 1)
        played = simulate_many(range(first, first + seeds), processes, PLAYS[model])
        shown = track(played, "playing", total=seeds, console=console, transient=True)
        reports = list(shown)
    bad = [report for report in reports if report.faults]
    for report in bad:
        _print_faults(console, report, model)
    acts = sum(report.acts for report in reports)
    console.print(f"{len(reports)} seeds, {acts} operations, {len(bad)} seeds with faults")
    if bad:
        raise typer.Exit(1)


def _print_faults(console: Console, report: Report, model: Model) -> None:
    console.print(f"seed {report.seed}")
    for fault in report.faults[:FAULTS_SHOWN]:
        console.print(f"  {fault}", markup=False)
    if len(report.faults) > FAULTS_SHOWN:
        console.print(f"  and {len(report.faults) - FAULTS_SHOWN} more")
    which = "" if model is Model.FEDERATION else f" --model {model.value}"
    replay = f"tupelo lab simulate{which} --seeds 1 --first {report.seed} --trace"
    console.print(f"  replay it: {replay}")
