"""The commands of `tupelo lab`, found by their entry point: lower layers do not import them."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
    from tupelo.lab.experiment import Experiment, Sweep
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
    no_args_is_help=True,
    help="Run experiments in virtual time, and test hosts under faults.",
)


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of an experiment, or the path of its file.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Another setting; `tupelo lab list` shows them."
    ),
]


@app.command("list")
def list_command() -> None:
    """Print the experiments and their settings."""
    from tupelo.lab.experiment import COMMON, FOLDER, experiments

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    for one in experiments():
        console.print(f"[bold]{one.name}[/bold]  {one.title}")
        common = {name: one.defaults[name] for name in COMMON}
        for name, value in {**common, **one.defaults.values}.items():
            if name not in COMMON or value != COMMON[name].default:
                console.print(f"    {name}={value!r}", markup=False)
    console.print("\n[bold]Settings of all experiments[/bold], unless another value stands above")
    for name, setting in COMMON.items():
        value = f"{setting.default!r} {setting.metadata['unit']}".strip()
        console.print(f"    {name}={value}  {setting.metadata['meaning']}", markup=False)
    console.print(f"\nThe files are in {FOLDER}", markup=False)
    console.print("Copy one and run your own: tupelo lab run ./mine.py --hosts 20 --to results")


@app.command("run")
def run_command(
    name: NameArgument,
    hosts: Annotated[int | None, typer.Option(min=1, help="Number of hosts.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 1,
    duration: Annotated[float | None, typer.Option(help="Virtual seconds of the run.")] = None,
    mobility: Annotated[
        str | None, typer.Option(help="still, line, waypoint, or a trace file (ns-2, BonnMotion).")
    ] = None,
    range_: Annotated[
        float | None, typer.Option("--range", help="Range of the radio, in metres.")
    ] = None,
    loss: Annotated[
        float | None, typer.Option(help="Probability that a hop loses a packet.")
    ] = None,
    delay: Annotated[float | None, typer.Option(help="Seconds per packet and hop.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Bits per second.")] = None,
    real: Annotated[
        bool,
        typer.Option(
            "--real", help="Run hosts as processes behind a radio hub, in real time; needs root."
        ),
    ] = False,
    set_: SetOption = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the records and figures to this folder."),
    ] = None,
) -> None:
    """Run an experiment once, in virtual time, and print its figures.

    The same seed and settings give the same run, to the last message, except with --real.
    Example: tupelo lab run whiteboard --loss 0.3 --set paradigm=pubsub
    """
    from tupelo.lab.experiment import Sweep, load

    given = {
        "hosts": hosts,
        "duration": duration,
        "mobility": mobility,
        "range": range_,
        "loss": loss,
        "delay": delay,
        "bandwidth": bandwidth,
        "real": real or None,
    }
    with clear_errors({"name": "NAME"}):
        experiment = load(name)
    changes = {key: value for key, value in given.items() if value is not None}
    pairs = _pairs(set_)
    options = {key: f"--{key}" for key in changes} | {key: f"--set {key}" for key in pairs}
    with clear_errors(_names(experiment, options)):
        settings = experiment.defaults.with_changes({**changes, **pairs})
        _run_sweep(Sweep(experiment, settings, {}, [seed]), to)


@app.command("sweep")
def sweep_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The name of an experiment, the path of its file, or all."
        ),
    ],
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,C",
            help="A setting and its values; repeatable. Default: the values in the experiment.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Run seeds 1 to N.")] = 10,
    set_: SetOption = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the records and figures to this folder."),
    ] = None,
) -> None:
    """Run an experiment for each combination of values and seeds; print medians and confidence
    intervals.

    `all` runs all experiments that come with Tupelo, each into a folder: minutes for each seed.
    Example: tupelo lab sweep whiteboard --over loss=0,0.1,0.3 --over paradigm=melon,pubsub
    """
    from tupelo.lab.experiment import Sweep, experiments, load, parse_values

    with clear_errors({"name": "NAME"}):
        chosen = list(experiments()) if name == "all" else [load(name)]
    if name == "all" and (over or set_ or to is None):
        wanted = "only with --to and --seeds: each experiment has its own settings"
        raise typer.BadParameter(wanted, param_hint="all")
    pairs = _pairs(set_)
    texts = {key: text.split(",") for key, text in _split(over or [], "--over")}
    for experiment in chosen:
        axes = {key: [parse_values(one) for one in values] for key, values in texts.items()}
        swept = {key: f"--over {key}" for key in axes}
        if not axes:
            axes = experiment.sweep
            swept = {key: f"{experiment.path}: SWEEP[{key!r}]" for key in axes}
        if not axes:
            wanted = f"needed: {experiment.path} has no SWEEP"
            raise typer.BadParameter(wanted, param_hint="--over")
        folder = to if to is None or name != "all" else to / experiment.name
        with clear_errors(_names(experiment, {key: f"--set {key}" for key in pairs} | swept)):
            settings = experiment.defaults.with_changes(pairs)
            _run_sweep(Sweep(experiment, settings, axes, range(1, seeds + 1)), folder)


def _names(experiment: Experiment, given: Mapping[str, str]) -> dict[str, str]:
    """Where the settings of an experiment have their values from, for errors: from the options
    that were given, or from its file."""
    from tupelo.lab.experiment import COMMON

    known = (*COMMON, *experiment.defaults.values)
    names = {key: f"{experiment.path}: DEFAULTS[{key!r}]" for key in known} | dict(given)
    # As `World.run` and `Trace` name them:
    others = {"seconds": names["duration"], "path": names["mobility"]}
    return names | others | {"settings": f"{experiment.path}: settings[...]"}


def _run_sweep(sweep: Sweep, to: Path | None) -> None:
    """Run all points, with a progress bar; print the figures, and write them to the folder."""
    from tupelo.lab.experiment import label
    from tupelo.lab.loop import LabError
    from tupelo.lab.report import save_sweep
    from tupelo.lab.summary import summarize
    from tupelo.lab.world import PROGRESS, Row

    if to is not None and to.exists() and any(to.iterdir()):
        raise typer.BadParameter(f"{to} is not empty", param_hint="--to")
    for point in sweep.points():
        sweep.settings.with_changes(point).world()  # A wrong value is reported before all runs.
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    bars = Console(stderr=True)
    rows: list[Row] = []
    running = Progress(console=bars, transient=True, disable=not bars.is_terminal)
    try:
        with _without_logs(), running as progress:
            bar = progress.add_task(sweep.experiment.name, total=sweep.count)

            def show(seconds: float) -> None:
                share = min(1.0, seconds / sweep.settings.duration)
                progress.update(bar, completed=len(rows) + share)

            if bars.is_terminal:
                PROGRESS.set(show)
            for point, result, row in sweep.runs():
                rows.append(row)
                if to is not None:
                    result.save(to / "runs" / label(point, row["seed"]))
                progress.update(bar, completed=len(rows))
    except LabError as error:
        complain(str(error))
        raise typer.Exit(1) from error
    table = summarize(rows, sweep.over)
    if to is not None:
        save_sweep(to, sweep, rows, table)
    if not sys.stdout.isatty():
        for row in table:
            print(json.dumps(row))
        return
    shown = Table(*sweep.over, "figure", "median", "95 % interval of the mean", "runs")
    for row in table:
        interval = f"{row['low']:.4g} to {row['high']:.4g}" if row["runs"] > 1 else ""
        where = [str(row[key]) for key in sweep.over]
        shown.add_row(*where, row["figure"], f"{row['median']:.4g}", interval, str(row["runs"]))
    console.print(shown)


@app.command("report")
def report_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The --to folder of one or more sweeps.")
    ],
    spark: Annotated[
        bool | None,
        typer.Option(
            "--spark/--no-spark",
            help="Compute from the records, by Spark, how messages reached each host."
            " [default: if Spark and Java are installed]",
        ),
    ] = None,
) -> None:
    """Write one page with the figures of all sweeps in a folder, beside the figures of the papers.

    DIR has the results of one sweep, or one folder for each sweep.
    """
    from tupelo.lab.report import write_report

    running = Console(stderr=True).status("computing the report")
    with clear_errors({"folder": "DIR"}), packages(), running:
        page = write_report(folder, spark=spark)
    print(page)


@contextmanager
def _without_logs() -> Iterator[None]:
    """Hosts in virtual time would log every lost host."""
    logger = logging.getLogger("tupelo")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _pairs(texts: list[str] | None) -> dict[str, object]:
    from tupelo.lab.experiment import parse_values

    return {key: parse_values(value) for key, value in _split(texts or [], "--set")}


def _split(texts: list[str], option: str) -> list[tuple[str, str]]:
    for text in texts:
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not of the form key=value", param_hint=option)
    return [(key, value) for key, _, value in (text.partition("=") for text in texts)]


@app.command("simulate")
def simulate_command(
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds to run.")] = 200,
    first: Annotated[int, typer.Option(min=0, metavar="S", help="The first seed.")] = 0,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print every message and event; needs --seeds 1.")
    ] = False,
    model: Annotated[
        Model | None,
        typer.Option(
            help="Spaces that span hosts (federation), or a model on them. [default: federation;"
            " with --hours all in turn]"
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="H", help="Run seeds for H hours, instead of --seeds."),
    ] = None,
    disks: Annotated[
        bool, typer.Option("--disks", help="Also let the disks of durable hosts fill and fail.")
    ] = False,
) -> None:
    """Run federations in virtual time, with partitions, crashes and slow links, and check them.

    All models for a night: tupelo lab simulate --hours 8 --disks
    """
    from tupelo.lab.simulate import MODELS, simulate, simulate_for, simulate_many

    logging.getLogger("tupelo").setLevel(logging.CRITICAL)  # It would report every lost host.
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    name = (model or Model.FEDERATION).value
    if trace:
        if seeds != 1:
            raise typer.BadParameter("must be 1 with --trace", param_hint="--seeds")
        report = simulate(first, name, trace=True, disks=disks)
        console.print("\n".join(report.trace), markup=False)
        console.print(f"digest {report.digest}")
        running: Iterable[Report] = [report]
    elif hours is not None:
        models = list(MODELS) if model is None else [name]
        running = simulate_for(3_600 * hours, first, os.cpu_count() or 1, models, disks=disks)
        running = track(running, "running", console=console, transient=True)
    else:
        processes = min(seeds, os.cpu_count() or 1)
        running = simulate_many(range(first, first + seeds), processes, name, disks=disks)
        running = track(running, "running", total=seeds, console=console, transient=True)
    totals: dict[str, Counter[str]] = {}
    for report in running:
        if report.faults:
            _print_faults(console, report)
        faulty = {"seeds with faults": int(bool(report.faults))}
        total = totals.setdefault(report.model, Counter())
        total.update({"seeds": 1, "operations": report.acts, "s": report.seconds} | faulty)
    for one, total in totals.items():
        simulated = f"{total.pop('s') / 3_600:.2f} simulated hours"
        counts = ", ".join(f"{count} {what}" for what, count in total.items())
        console.print(f"{one}: {counts}, {simulated}")
    if any(total["seeds with faults"] for total in totals.values()):
        raise typer.Exit(1)


def _print_faults(console: Console, report: Report) -> None:
    console.print(f"{report.model}, seed {report.seed}")
    for fault in report.faults[:FAULTS_SHOWN]:
        console.print(f"  {fault}", markup=False)
    if len(report.faults) > FAULTS_SHOWN:
        console.print(f"  and {len(report.faults) - FAULTS_SHOWN} more")
    which = f"--model {report.model}{' --disks' if report.disks else ''}"
    replay = f"tupelo lab simulate {which} --seeds 1 --first {report.seed} --trace"
    console.print(f"  replay it: {replay}")


@app.command("record")
def record_command(
    to: Annotated[Path, typer.Option(metavar="DIR", help="An empty or new folder for the logs.")],
    changes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of changes to record.")
    ] = 100_000,
    hosts: Annotated[int, typer.Option(min=2, metavar="H", help="Number of hosts.")] = 3,
    kills: Annotated[
        int, typer.Option(min=0, metavar="K", help="Number of times that a host is killed.")
    ] = 10,
    cuts: Annotated[
        int, typer.Option(min=0, metavar="C", help="Number of times that links are cut.")
    ] = 10,
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="The seed of the faults.")] = 0,
) -> None:
    """Run a federation of processes, kill its hosts and cut its links, and keep the logs.

    Use the folder of each host as LOG of `tupelo pipeline`.
    """
    from tupelo.lab.recording.record import RecordingConfig, kinds_in, record
    from tupelo.lab.torture.processes import TortureFailed

    console = Console(highlight=False, soft_wrap=True, emoji=False)
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
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(TORTURED)}; or all.")
    ] = "all",
    minutes: Annotated[
        float, typer.Option(min=0.01, metavar="M", help="Duration; each model runs at least once.")
    ] = 5.0,
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="The seed of the faults.")] = 0,
    hosts: Annotated[int, typer.Option(min=2, metavar="N", help="Number of hosts.")] = 3,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS for all links.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep histories and logs in this empty or new folder."),
    ] = None,
) -> None:
    """Run hosts and clients as processes, break their links, kill and pause them, fill their disks,
    and check the answers of the hosts against the entries in the spaces.

    If there are contradictions (violations), the exit code is 1, and the histories are kept.
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
    console = Console(highlight=False, soft_wrap=True, emoji=False)
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
                if not result.violations:
                    continue
                bad.append(f"{name}: seed {round_seed}, histories in {place}")
                for violation in result.violations[:FAULTS_SHOWN]:
                    console.print(f"{name} {violation}", markup=False)
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
    table = Table("model", "rounds", "operations", "failed", "in doubt", "faults", "violations")
    for name, one in totals.items():
        in_doubt = one.operations["unknown"] + one.operations["pending"]
        operations = one.operations.total(), one.operations["fail"], in_doubt
        numbers = one.rounds, *operations, one.faults.total(), len(one.violations)
        table.add_row(name, *map(str, numbers))
    return table


def _print_counts(console: Console, what: str, counts: Mapping[str, int]) -> None:
    shown = ", ".join(f"{name} {count}" for name, count in Counter(counts).most_common())
    console.print(f"{what}: {sum(counts.values())}{f' ({shown})' if shown else ''}", markup=False)
