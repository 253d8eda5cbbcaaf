"""The commands of `tupelo lab`, found by their entry point: lower layers do not import them."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from tupelo.apps.shell import clear_errors, complain
from tupelo.pipeline.commands.prompt import packages

# Every command of `tupelo` loads this module, also one that only runs a host. The rest of the lab
# imports all models, so a command imports it when it runs.
if TYPE_CHECKING:
    from tupelo.lab.simulation import Report
    from tupelo.lab.torture.round import RoundResult

FAULTS_SHOWN = 5


class Model(Enum):
    """The models of `tupelo lab simulate`, as in `tupelo.lab.simulate.MODELS`."""

    FEDERATION = "federation"
    LIME = "lime"
    MELON = "melon"
    EVENT_HEAP = "event-heap"


TORTURED = (
    "space",
    "linda",
    "javaspaces",
    "xvsm",
    "melon",
    "event-heap",
    "lime",
    "pubsub",
    "journal",
)
"""The models of `tupelo lab torture`."""

app = typer.Typer(
    no_args_is_help=True, help="Run hosts under faults, and check the histories of clients."
)


@app.command("simulate")
def simulate_command(
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="How many seeds to run.")] = 200,
    first: Annotated[int, typer.Option(min=0, metavar="S", help="The first of them.")] = 0,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print every message and event; for one seed.")
    ] = False,
    model: Annotated[
        Model, typer.Option(help="Spaces that span hosts, or a model on them.")
    ] = Model.FEDERATION,
) -> None:
    """Run federations in virtual time, with partitions, crashes and slow links, and check them."""
    from tupelo.lab.simulate import simulate, simulate_many

    logging.getLogger("tupelo").setLevel(logging.CRITICAL)  # It would report every lost host.
    console = Console(highlight=False, soft_wrap=True)
    if trace:
        if seeds != 1:
            raise typer.BadParameter("must be 1 with --trace", param_hint="--seeds")
        reports = [simulate(first, model.value, trace=True)]
        console.print("\n".join(reports[0].trace), markup=False)
        console.print(f"digest {reports[0].digest}")
    else:
        processes = min(seeds, os.cpu_count() or 1)
        running = simulate_many(range(first, first + seeds), processes, model.value)
        reports = list(track(running, "running", total=seeds, console=console, transient=True))
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
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="The seed of the faults.")] = 0,
) -> None:
    """Run a federation of processes, kill its hosts and cut its links, and keep the logs.

    The folder of each host is a log for `tupelo pipeline`.
    """
    from tupelo.lab.recording.record import RecordingConfig, kinds_in, record
    from tupelo.lab.torture.processes import TortureFailed

    console = Console(highlight=False, soft_wrap=True)
    with clear_errors(), packages():
        import_module("tupelo.pipeline.source.locations")  # A missing package is reported at once.
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("recording", total=changes)
            try:
                done = record(
                    RecordingConfig(to, changes, hosts, kills, cuts, seed),
                    lambda count: progress.update(bar, completed=count),
                )
            except TortureFailed as failure:
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


@app.command("torture")
def torture_command(
    model: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(TORTURED)}; or all of them.")
    ] = "all",
    minutes: Annotated[
        float, typer.Option(min=0.01, metavar="M", help="How long to go on; each model once.")
    ] = 5.0,
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="The seed of the faults.")] = 0,
    hosts: Annotated[int, typer.Option(min=2, metavar="N", help="How many hosts.")] = 3,
    tls: Annotated[bool, typer.Option("--tls", help="All links under TLS.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep histories and logs here: empty, or new."),
    ] = None,
) -> None:
    """Run hosts and clients as processes, break their links, kill and pause them, fill their disks,
    and compare the answers to the clients with the entries that are there.

    With anomalies the exit code is 1, and the histories are kept.
    """
    from tupelo.lab.torture.campaign import run_campaign
    from tupelo.lab.torture.processes import TortureFailed
    from tupelo.lab.torture.round import RoundResult

    if sys.platform == "win32":
        complain("torture needs a system that can stop processes and fork them, such as Linux")
        raise typer.Exit(2)
    if model != "all" and model not in TORTURED:
        raise typer.BadParameter(f"all, or one of {', '.join(TORTURED)}", param_hint="--model")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise typer.BadParameter(f"{keep} is not empty", param_hint="--keep")
    logging.getLogger("tupelo").setLevel(logging.CRITICAL)  # It would report every lost host.
    console = Console(highlight=False, soft_wrap=True)
    models = TORTURED if model == "all" else (model,)
    folder = keep or Path(tempfile.mkdtemp(prefix="tupelo-torture-"))
    totals: dict[str, RoundResult] = defaultdict(lambda: RoundResult(rounds=0))
    bad: list[str] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("torture", total=1.0)

        def told(name: str, share: float) -> None:
            progress.update(bar, description=f"torture {name}", completed=share)

        rounds = run_campaign(folder, models, 60 * minutes, seed, hosts, tls, told)
        try:
            for name, round_seed, place, result in rounds:
                totals[name].add(result)
                if not result.anomalies:
                    continue
                bad.append(f"{name}: seed {round_seed}, histories in {place}")
                for anomaly in result.anomalies[:FAULTS_SHOWN]:
                    console.print(f"{name} {anomaly}", markup=False)
        except TortureFailed as failure:
            complain(f"{failure}; the logs are in {folder}")
            raise typer.Exit(1) from failure
    console.print(_torture_table(totals))
    for what in ("faults", "errors"):
        every = sum((getattr(one, what) for one in totals.values()), Counter[str]())
        _print_counts(console, what, every)
    if bad:
        for line in bad:
            console.print(line, markup=False)
        raise typer.Exit(1)
    if keep is None:
        shutil.rmtree(folder)


def _torture_table(totals: Mapping[str, RoundResult]) -> Table:
    table = Table("model", "rounds", "operations", "failed", "in doubt", "faults", "anomalies")
    for name, one in totals.items():
        in_doubt = one.operations["unknown"] + one.operations["pending"]
        operations = one.operations.total(), one.operations["fail"], in_doubt
        numbers = one.rounds, *operations, one.faults.total(), len(one.anomalies)
        table.add_row(name, *map(str, numbers))
    return table


def _print_counts(console: Console, what: str, counts: Mapping[str, int]) -> None:
    shown = ", ".join(f"{name} {count}" for name, count in Counter(counts).most_common())
    console.print(f"{what}: {sum(counts.values())}{f' ({shown})' if shown else ''}", markup=False)
