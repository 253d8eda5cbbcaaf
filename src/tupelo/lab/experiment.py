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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from inspect import iscoroutinefunction
from itertools import product
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

from tupelo.errors import BadArgument, BadInput
from tupelo.lab.mobility import Mobility, RandomWaypoint, Still, Trace
from tupelo.lab.ns3 import Ns3
from tupelo.lab.radio import SENDS_MAX, Radio, Routing
from tupelo.lab.summary import SUMMARY, Share
from tupelo.lab.world import Result, Row, Wired, World

__all__ = ["BadExperiment", "Claim", "Experiment", "Settings", "Share", "Sweep", "load"]

FOLDER = Path(__file__).parent / "experiments"


class BadExperiment(BadInput):
    """The file of an experiment cannot be used: `field` is the part of it that is wrong."""

    def __init__(self, file: Path, field: str, wanted: str, got: object = ...) -> None:
        shown = "" if got is ... else f", not {got!r}"
        super().__init__(f"{file}: {field} {wanted}{shown}")
        self.file = file
        self.field = field


def _setting(default: Any, unit: str, meaning: str) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an experiment is run with. All experiments have these settings; `values` are those of
    the experiment itself. `settings[name]` is the value of either."""

    hosts: int = _setting(7, "", "number of hosts; their names are h1, h2, ...")
    seed: int = _setting(1, "", "decides all random choices; --seed of run, --seeds of sweep")
    duration: float = _setting(60.0, "s", "virtual time of the run")
    network: str = _setting("radio", "", "radio, wired or ns3")
    mobility: str = _setting(
        "still",
        "",
        "still (a square grid), line (a row), waypoint, or the path of a trace",
    )
    range: float = _setting(250.0, "m", "range of the radio")
    loss: float = _setting(0.0, "", "probability that a hop loses a packet; wired: 0")
    delay: float = _setting(
        0.0005, "s", "of a packet on a hop; wired: of a message, from this to twice this"
    )
    sends: int = _setting(SENDS_MAX, "", "how often a packet is sent on a hop at most")
    bandwidth: float = _setting(11e6, "bit/s", "of the air; wired: of each direction of a link")
    routing: Routing = _setting("direct", "", "direct (no routes), aodv or dsr")  # noqa: RUF009
    spacing: float = _setting(50.0, "m", "distance of neighbours, if hosts stand still")
    area: float = _setting(1_000.0, "m", "side of the square in which hosts walk (waypoint)")
    speed: float = _setting(
        1.0, "m/s", "highest speed (waypoint); each leg has one between 0.1 and this"
    )
    pause: float = _setting(30.0, "s", "rest at each point (waypoint)")
    heartbeat: float = _setting(1.0, "s", "a host is missed after three")
    folder: str | None = _setting(None, "", "new folder for durable hosts and their logs")
    real: bool = _setting(False, "", "hosts are processes, in real time")
    embedded: bool = _setting(False, "", "real: hosts are in the processes of their programs")
    values: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        if name not in COMMON:
            raise BadArgument("settings", f"one of the settings {self._known()}", name)
        return getattr(self, name)

    def _known(self) -> str:
        return ", ".join(sorted({*COMMON, *self.values}))

    def with_changes(self, changes: Mapping[str, Any]) -> Settings:
        """These settings with some of them changed. Raises BadArgument for an unknown name, and for
        a value of another type."""
        values = dict(self.values)
        changed: dict[str, Any] = {}
        for name, value in changes.items():
            if name in COMMON:
                changed[name] = _like(name, getattr(self, name), value)
            elif name in values:
                values[name] = _like(name, values[name], value)
            else:
                raise BadArgument(name, f"one of the settings {self._known()}", name)
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


COMMON = {one.name: one for one in fields(Settings) if one.name != "values"}
"""The settings of all experiments, with their `unit` and `meaning` as metadata."""

Relation: TypeAlias = Literal["=", "<", ">", "max"]


@dataclass(frozen=True)
class Claim:
    """A figure of a paper: of which setting, which figure, and its value there.

    `relation` tells how ours is compared with it: with "<" or ">" the paper says only that it is
    below or above `value`, with "max" the value is that of the worst case, so that our highest is
    compared. `why` is the reason if ours differs.
    """

    source: str
    setting: dict[str, Any]
    figure: str
    value: float
    remark: str = ""
    relation: Relation = "="
    why: str = ""


@dataclass(frozen=True)
class Experiment:
    """An experiment that was loaded from its file."""

    name: str
    title: str
    path: Path
    defaults: Settings
    run: Callable[[Settings], Result]
    figures: Callable[[Result], dict[str, float]]
    paper: tuple[Claim, ...] = ()
    sweep: dict[str, list[Any]] = field(default_factory=dict)

    def measure(self, settings: Settings) -> tuple[Result, dict[str, float]]:
        """Run it, and compute its figures. Raises BadExperiment if its functions return anything
        else."""
        try:
            result = self.run(settings)
        except ExceptionGroup as group:  # of the programs at the hosts
            refused = [one for one in group.exceptions if isinstance(one, BadArgument)]
            if not refused:
                raise
            raise refused[0] from group
        if not isinstance(result, Result):
            wanted = "must return a Result, as World.run() does"
            raise BadExperiment(self.path, "run(settings)", wanted, result)
        found = self.figures(result)
        result.parameters |= {"experiment": self.name, "settings": asdict(settings)}
        if not isinstance(found, dict):
            wanted = "must return a dict of numbers"
            raise BadExperiment(self.path, "figures(result)", wanted, found)
        for figure, value in found.items():
            where = f"figures(result)[{figure!r}]"
            if not isinstance(figure, str):
                raise BadExperiment(self.path, where, "must have a text as its key", figure)
            if not _is_figure(value):
                raise BadExperiment(self.path, where, "must be a number or None", value)
        return result, found


def load(name: str) -> Experiment:
    """The experiment of this name, or in this file. Raises BadArgument if there is none, and
    BadExperiment if the file is none."""
    path = Path(name) if name.endswith(".py") else FOLDER / f"{name}.py"
    if not path.is_file():
        known = ", ".join(one.stem for one in _files())
        raise BadArgument("name", f"the path of a .py file, or one of {known}", name)
    spec = importlib.util.spec_from_file_location(f"tupelo_experiment_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # where dataclasses look their names up
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise BadExperiment(path, f"line {error.lineno}:", str(error.msg)) from error
    return _experiment(path, module)


def _experiment(path: Path, module: ModuleType) -> Experiment:
    for needed in ("DEFAULTS", "run", "figures"):
        if not hasattr(module, needed):
            raise BadExperiment(path, needed, "is missing")
    for name in ("run", "figures"):
        function = getattr(module, name)
        if not callable(function) or iscoroutinefunction(function):
            raise BadExperiment(path, name, "must be a function, and not async")
    title = (module.__doc__ or "").strip() or path.stem
    settings = _defaults(path, module.DEFAULTS)
    return Experiment(
        path.stem,
        title.splitlines()[0],
        path,
        settings,
        module.run,
        module.figures,
        _paper(path, settings, getattr(module, "PAPER", ())),
        _sweep(path, settings, getattr(module, "SWEEP", {})),
    )


def _defaults(path: Path, given: Any) -> Settings:
    if not isinstance(given, dict):
        raise BadExperiment(path, "DEFAULTS", "must be a dict of settings", given)
    for name in given:
        if not isinstance(name, str) or name in SUMMARY:
            wanted = f"must be a text other than {', '.join(SUMMARY)}"
            raise BadExperiment(path, "a key of DEFAULTS", wanted, name)
    values = {name: value for name, value in given.items() if name not in COMMON}
    common = {name: value for name, value in given.items() if name in COMMON}
    return _changed(path, "DEFAULTS", Settings(values=values), common)


def _sweep(path: Path, settings: Settings, given: Any) -> dict[str, list[Any]]:
    if not isinstance(given, dict):
        raise BadExperiment(path, "SWEEP", "must be a dict of settings and their values", given)
    for name, values in given.items():
        where = f"SWEEP[{name!r}]"
        if name == "seed":
            raise BadExperiment(path, where, "must not be there: sweep has --seeds")
        if not isinstance(values, list | tuple) or not values:
            raise BadExperiment(path, where, "must be a list of values", values)
        for value in values:
            _changed(path, "SWEEP", settings, {name: value})
    return {name: list(values) for name, values in given.items()}


def _paper(path: Path, settings: Settings, given: Any) -> tuple[Claim, ...]:
    if not isinstance(given, list | tuple):
        raise BadExperiment(path, "PAPER", "must be a list of Claim", given)
    for number, claim in enumerate(given):
        where = f"PAPER[{number}]"
        if not isinstance(claim, Claim):
            raise BadExperiment(path, where, "must be a Claim", claim)
        if not isinstance(claim.setting, dict):
            raise BadExperiment(path, f"{where}.setting", "must be a dict", claim.setting)
        _changed(path, f"{where}.setting", settings, claim.setting)
        if not isinstance(claim.figure, str):
            raise BadExperiment(path, f"{where}.figure", "must be a text", claim.figure)
        if claim.value is None or not _is_figure(claim.value):
            raise BadExperiment(path, f"{where}.value", "must be a number", claim.value)
        if claim.relation not in ("=", "<", ">", "max"):
            raise BadExperiment(path, f"{where}.relation", "must be =, <, > or max", claim.relation)
    return tuple(given)


def _changed(path: Path, where: str, settings: Settings, changes: dict[str, Any]) -> Settings:
    for name, value in changes.items():
        if name not in COMMON and name not in settings.values:
            wanted = f"is not one of the settings {settings._known()}"
            raise BadExperiment(path, f"{where}[{name!r}]", wanted)
        try:
            settings = settings.with_changes({name: value})
        except BadArgument as error:
            wanted = f"must be {error.expected}"
            if name in COMMON and (meaning := COMMON[name].metadata["meaning"]):
                unit = COMMON[name].metadata["unit"]
                wanted += f" ({meaning}{unit and f', in {unit}'})"
            raise BadExperiment(path, f"{where}[{name!r}]", wanted, value) from None
    return settings


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
        for name, values in self.over.items():
            if any(value in values[:place] for place, value in enumerate(values)):
                raise BadArgument(name, "different values", values)

    def runs(self) -> Iterator[tuple[dict[str, Any], Result, Row]]:
        """Run them: the point, the result, and a row with the point, the seed and the figures."""
        for point in self.points():
            for seed in self.seeds:
                changes = {**point, "seed": seed}
                if self.settings.folder is not None:
                    changes["folder"] = str(Path(self.settings.folder, label(point, seed)))
                settings = self.settings.with_changes(changes)
                result, found = self.experiment.measure(settings)
                for figure in found:
                    if figure == "seed" or figure in point:
                        where, wanted = f"figures(result)[{figure!r}]", "is a setting of the sweep"
                        raise BadExperiment(self.experiment.path, where, wanted)
                row = {**point, "seed": seed, **found}
                yield point, result, row


def label(point: Mapping[str, Any], seed: int) -> str:
    """The name of the folder of a run."""
    words = [f"{key}={value}" for key, value in {**point, "seed": seed}.items()]
    return " ".join(words).replace("/", "_")


def _is_figure(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def parse_values(text: str) -> Any:
    """A value of `--set` or `--over`, as JSON if it is, otherwise as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _like(name: str, old: Any, new: Any) -> Any:
    if name == "folder" and not isinstance(new, str | None):
        raise BadArgument(name, "the path of a folder", new)
    if old is None or (isinstance(old, bool | str | dict) and type(new) is type(old)):
        return new
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return type(old)(new)
    if isinstance(old, bool) or not isinstance(old, int | float):
        raise BadArgument(name, f"a value like {old!r}", new)
    if isinstance(new, bool) or not isinstance(new, int | float):
        raise BadArgument(name, f"a number like {old!r}", new)
    if isinstance(old, int) and not (isfinite(new) and new == int(new)):
        raise BadArgument(name, f"an integer like {old!r}", new)
    return type(old)(new)
