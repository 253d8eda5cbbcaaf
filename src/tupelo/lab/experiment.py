"""Experiments: files that anybody can copy, change and run with `tupelo lab run`.

An experiment is a Python file with

- a docstring, whose first line `tupelo lab list` shows;
- `DEFAULTS`, a dict: its `Settings`, and further values that `--set key=value` changes;
- `run(settings)`, which returns a `Result`: usually `settings.world().run(program, ...)`;
- `figures(result)`, which returns the measured values of one run, as a dict of numbers;
- perhaps `SWEEP`, a dict of settings and their values, for a sweep of which nothing else is said;
- perhaps `PAPER`, a list of `Claim`: what a paper reports, to stand beside ours.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from math import isnan
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from tupelo.errors import BadArgument
from tupelo.lab.mobility import Mobility, RandomWaypoint, Still, Trace
from tupelo.lab.ns3 import Ns3
from tupelo.lab.radio import SENDS_MAX, Radio, Routing
from tupelo.lab.world import Result, Row, Wired, World

FOLDER = Path(__file__).parent / "experiments"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an experiment is run with.

    `network` is "radio", "wired" or "ns3". `mobility` is "still" (a square grid), "line" (a row),
    "waypoint" (see `area`, `speed`, `pause`), or the path of a trace. `spacing` is the distance of
    hosts that stand still. With `real` the hosts are processes, see `tupelo.lab.real`, and with
    `embedded` these are the processes of the programs. `values` are those of the experiment itself.
    """

    hosts: int = 7
    seed: int = 1
    duration: float = 60.0
    network: str = "radio"
    mobility: str = "still"
    range: float = 250.0
    loss: float = 0.0
    delay: float = 0.0005
    sends: int = SENDS_MAX
    bandwidth: float = 11e6
    routing: Routing = "direct"
    spacing: float = 50.0
    area: float = 1_000.0
    speed: float = 1.0
    pause: float = 30.0
    heartbeat: float = 1.0
    folder: str | None = None
    real: bool = False
    embedded: bool = False
    values: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def with_changes(self, changes: Mapping[str, Any]) -> Settings:
        """These settings with some of them changed. Raises BadArgument for an unknown name, and for
        a value of another type."""
        own = {one.name for one in fields(self)} - {"values"}
        values = dict(self.values)
        changed: dict[str, Any] = {}
        for name, value in changes.items():
            if name in own:
                changed[name] = _like(name, getattr(self, name), value)
            elif name in values:
                values[name] = _like(name, values[name], value)
            else:
                known = ", ".join(sorted({*own, *values}))
                raise BadArgument(name, f"one of the settings {known}", name)
        return replace(self, **changed, values=values)

    def movement(self) -> Mobility:
        """How the hosts move."""
        if self.mobility in ("still", "line"):
            return Still(spacing=self.spacing, line=self.mobility == "line")
        if self.mobility == "waypoint":
            slowest = min(0.1, self.speed)
            area = (self.area, self.area)
            return RandomWaypoint(area, (slowest, self.speed), self.pause)
        if not Path(self.mobility).is_file():
            wanted = "still, line, waypoint, or the path of a trace"
            raise BadArgument("mobility", wanted, self.mobility)
        return Trace(self.mobility)

    def world(self, **options: Any) -> World:
        """The world of these settings; `options` go to `World`."""
        network: Radio | Wired | Ns3
        if self.network == "wired":
            if self.loss:
                raise BadArgument("loss", "0 in a wired network", self.loss)
            network = Wired(delay=(self.delay, 2 * self.delay), bandwidth=self.bandwidth / 8)
        elif self.network == "radio":
            network = Radio(
                range=self.range,
                mobility=self.movement(),
                loss=self.loss,
                delay=self.delay,
                sends=self.sends,
                bandwidth=self.bandwidth,
                routing=self.routing,
            )
        elif self.network == "ns3":
            if self.routing == "direct":
                raise BadArgument("routing", "aodv or dsr with ns-3", self.routing)
            network = Ns3(
                range=self.range,
                mobility=self.movement(),
                loss=self.loss,
                bandwidth=self.bandwidth,
                routing=self.routing,
            )
        else:
            raise BadArgument("network", "radio, wired or ns3", self.network)
        defaults = {
            "seed": self.seed,
            "heartbeat": self.heartbeat,
            "folder": self.folder,
            "real": self.real,
            "embedded": self.embedded,
        }
        return World(**{"hosts": self.hosts, "network": network, **defaults, **options})


@dataclass(frozen=True)
class Claim:
    """A figure of a paper: of which setting, which figure, and its value there."""

    source: str
    setting: dict[str, Any]
    figure: str
    value: float
    remark: str = ""


@dataclass(frozen=True)
class Experiment:
    """An experiment that was loaded from its file."""

    name: str
    title: str
    defaults: Settings
    run: Callable[[Settings], Result]
    figures: Callable[[Result], dict[str, float]]
    paper: tuple[Claim, ...] = ()
    sweep: dict[str, list[Any]] = field(default_factory=dict)


def load(name: str) -> Experiment:
    """The experiment of this name, or in this file. Raises BadArgument if there is none."""
    path = Path(name) if name.endswith(".py") else FOLDER / f"{name}.py"
    if not path.is_file():
        known = ", ".join(one.stem for one in _files())
        raise BadArgument("name", f"the path of a file, or one of {known}", name)
    spec = importlib.util.spec_from_file_location(f"tupelo_experiment_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return _experiment(path.stem, module)


def _experiment(name: str, module: ModuleType) -> Experiment:
    for needed in ("DEFAULTS", "run", "figures"):
        if not hasattr(module, needed):
            raise BadArgument("name", f"a file with {needed}", name)
    known = {one.name for one in fields(Settings)}
    given: dict[str, Any] = module.DEFAULTS
    own = {key: value for key, value in given.items() if key in known}
    values = {key: value for key, value in given.items() if key not in known}
    title = (module.__doc__ or name).strip().splitlines()[0]
    paper = tuple(getattr(module, "PAPER", ()))
    sweep = dict(getattr(module, "SWEEP", {}))
    settings = Settings(**own, values=values)
    return Experiment(name, title, settings, module.run, module.figures, paper, sweep)


def _files() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")


def experiments() -> Iterator[Experiment]:
    """All experiments that come with Tupelo."""
    return (load(path.stem) for path in _files())


@dataclass
class Sweep:
    """Runs of one experiment with several settings, each with several seeds."""

    experiment: Experiment
    settings: Settings
    over: dict[str, list[Any]]
    seeds: Sequence[int]

    @property
    def count(self) -> int:
        """How many runs it has."""
        return len(self.points()) * len(self.seeds)

    def points(self) -> list[dict[str, Any]]:
        """The combinations of the values."""
        return [
            dict(zip(self.over, combination, strict=True))
            for combination in product(*self.over.values())
        ]

    def __post_init__(self) -> None:
        if "seed" in self.over:
            raise BadArgument("over", "settings without the seed: there is --seeds", "seed")

    def runs(self) -> Iterator[tuple[dict[str, Any], Result, Row]]:
        """Run them: the point, the result, and a row with the point, the seed and the figures."""
        for point in self.points():
            for seed in self.seeds:
                changes = {**point, "seed": seed}
                if self.settings.folder is not None:
                    changes["folder"] = str(Path(self.settings.folder, label(point, seed)))
                settings = self.settings.with_changes(changes)
                try:
                    result = self.experiment.run(settings)
                except ExceptionGroup as group:  # of the programs at the hosts
                    refused = [one for one in group.exceptions if isinstance(one, BadArgument)]
                    if not refused:
                        raise
                    raise refused[0] from group
                found = self.experiment.figures(result)
                for figure, value in found.items():
                    if figure == "seed" or figure in point or not _is_figure(value):
                        wanted = "numbers, under names that no setting of the sweep has"
                        raise BadArgument("figures", wanted, {figure: value})
                row = {**point, "seed": seed, **found}
                yield point, result, row


def label(point: Mapping[str, Any], seed: int) -> str:
    """The name of the folder of a run."""
    words = [f"{key}={value}" for key, value in {**point, "seed": seed}.items()]
    return " ".join(words).replace("/", "_")


def summarize(rows: list[Row], over: Iterable[str]) -> list[Row]:
    """For each point of a sweep and each figure: the number of runs, the median over the seeds, and
    a 95 % confidence interval of the mean."""
    keys = list(over)
    points: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        points.setdefault(tuple(row[key] for key in keys), []).append(row)
    table = []
    for point, same in points.items():
        for figure in (key for key in same[0] if key not in (*keys, "seed")):
            numbers = [float(row[figure]) for row in same if row.get(figure) is not None]
            numbers = [number for number in numbers if not isnan(number)]
            if numbers:
                mean = sum(numbers) / len(numbers)
                half = _half_interval(numbers, mean)
                told = {"runs": len(numbers), "median": median(numbers), "mean": mean}
                bounds = {"low": mean - half, "high": mean + half}
                table.append(
                    dict(zip(keys, point, strict=True)) | {"figure": figure} | told | bounds
                )
    return table


_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""The 97.5 % quantiles of Student's t, for 1 degree of freedom and more."""


def _half_interval(numbers: list[float], mean: float) -> float:
    freedom = len(numbers) - 1
    if not freedom:
        return 0.0
    variance = sum((number - mean) ** 2 for number in numbers) / freedom
    quantile = _T_95[freedom - 1] if freedom <= len(_T_95) else 1.96
    return float(quantile * (variance / len(numbers)) ** 0.5)


def _is_figure(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def parse_values(text: str) -> Any:
    """A value of `--set` or `--over`, as JSON if it is, otherwise as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _like(name: str, old: Any, new: Any) -> Any:
    if isinstance(old, bool) or old is None or isinstance(old, str):
        if old is not None and type(new) is not type(old):
            raise BadArgument(name, f"a value like {old!r}", new)
        return new
    if isinstance(new, bool) or not isinstance(new, int | float):
        raise BadArgument(name, f"a number like {old!r}", new)
    if isinstance(old, int) and new != int(new):
        raise BadArgument(name, f"an integer like {old!r}", new)
    return type(old)(new)
