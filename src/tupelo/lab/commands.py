"""The commands of `tupelo lab`. They are found by their entry point: no layer below knows them."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, track

from tupelo.apps.commands import clear_errors, complain
from tupelo.lab.event_heap.simulate import simulate as simulate_event_heap
from tupelo.lab.lime.simulate import simulate as simulate_lime
from tupelo.lab.melon.simulate import simulate as simulate_melon
from tupelo.lab.recording.record import Plan, RecordingFailed, record
from tupelo.lab.simulate import Report, simulate, simulate_many
from tupelo.pipeline.commands.prompt import packages

FAULTS_SHOWN = 5


class Model(Enum):
    """What is simulated."""

    FEDERATION = "federation"
    LIME = "lime"
    MELON = "melon"
    EVENT_HEAP = "event-heap"


PLAYS: dict[Model, Callable[[int], Report]] = {
    Model.FEDERATION: simulate,
    Model.LIME: simulate_lime,
    Model.MELON: simulate_melon,
    Model.EVENT_HEAP: simulate_event_heap,
}

app = typer.Typer(no_args_is_help=True, help="Look for what cannot be, in worlds ruled by seeds.")


@app.command("simulate")
def simulate_command(
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="How many seeds to play.")] = 200,
    first: Annotated[int, typer.Option(min=0, metavar="S", help="The first of them.")] = 0,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print all that happens; for one seed.")
    ] = False,
    model: Annotated[
        Model, typer.Option(help="Spaces that span hosts, or what is built on them.")
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


@app.command("record")
def record_command(
    to: Annotated[Path, typer.Option(metavar="DIR", help="A folder for the logs: empty, or new.")],
    changes: Annotated[int, typer.Option(min=1, metavar="N", help="How many to record.")] = 100_000,
    hosts: Annotated[int, typer.Option(min=2, metavar="H", help="How many hosts.")] = 3,
    kills: Annotated[int, typer.Option(min=0, metavar="K", help="How often one is killed.")] = 10,
    cuts: Annotated[int, typer.Option(min=0, metavar="C", help="How often links are cut.")] = 10,
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="What rules chance.")] = 0,
) -> None:
    """Run a federation of processes, kill its hosts and cut its links, and keep the logs.

    The folder of each host is a log for `tupelo pipeline`.
    """
    console = Console(highlight=False, soft_wrap=True)
    with clear_errors(), packages():
        from tupelo.lab.recording.summary import kinds_in

        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("recording", total=changes)
            try:
                done = record(
                    Plan(to, changes, hosts, kills, cuts, seed),
                    lambda count: progress.update(bar, completed=count),
                )
            except RecordingFailed as failure:
                complain(failure)
                raise typer.Exit(1) from failure
        _print_counts(console, "killed", done.kills)
        _print_counts(console, "cut", done.cuts)
        _print_counts(console, "operations", done.told.done)
        _print_counts(console, "failed, or in doubt", done.told.failed)
        every = Counter[str]()
        for host, kinds in kinds_in(to).items():
            _print_counts(console, f"changes of {host}", kinds)
            every += kinds
        _print_counts(console, "changes", every)


def _print_counts(console: Console, what: str, counts: Mapping[str, int]) -> None:
    shown = ", ".join(f"{name} {count}" for name, count in Counter(counts).most_common())
    console.print(f"{what}: {sum(counts.values())}{f' ({shown})' if shown else ''}", markup=False)
