"""How we measure: two programs side by side, in turns, and the medians of their rounds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, ParamSpec, TypeVar

ROUNDS_MIN = 5
ROUNDS = 9

P = ParamSpec("P")
T = TypeVar("T")
Fields = tuple[str, int, float, bool]
Sample = Callable[[], float]

TYPES = (str, int, float, bool)
"""The template that every entry of these benchmarks matches, by its types alone."""


def fields(i: int) -> Fields:
    """An entry: the thesis' tuple, but with a float of its own."""
    return ("Tuple", i, 3.14159 * i, True)


@dataclass(frozen=True)
class Settings:
    """How often to measure, by how much to cut the sizes, and which jobs of the pipeline (all of
    them if none is named)."""

    rounds: int = ROUNDS
    cut: int = 1
    only: tuple[str, ...] = ()

    def size(self, full: int) -> int:
        return max(1, full // self.cut)


@dataclass(frozen=True)
class Target:
    """The bound that the ratio, or our own figure, should keep."""

    sign: Literal["≥", "≤"]
    bound: float
    of: Literal["ratio", "ours"] = "ratio"


@dataclass(frozen=True)
class Line:
    """One line of the table: our figure, theirs, and the target, with all samples. If there is
    nothing to compare with, `absent` says why."""

    what: str
    against: str
    unit: str
    target: Target
    ours_samples: list[float]
    theirs_samples: list[float]
    absent: str = ""

    @property
    def ours(self) -> float:
        return median(self.ours_samples)

    @property
    def theirs(self) -> float | None:
        return median(self.theirs_samples) if self.theirs_samples else None

    @property
    def ratio(self) -> float | None:
        """The median of the ratios of the rounds: if the machine slows down, it slows both
        sides."""
        if not self.theirs_samples:
            return None
        pairs = zip(self.ours_samples, self.theirs_samples, strict=True)
        return median(ours / theirs for ours, theirs in pairs)

    @property
    def measured(self) -> float | None:
        """The figure that is compared with the target."""
        return self.ratio if self.target.of == "ratio" else self.ours

    @property
    def reached(self) -> bool:
        if self.measured is None:
            return False
        if self.target.sign == "≥":
            return self.measured >= self.target.bound
        return self.measured <= self.target.bound


def compare(
    what: str,
    against: str,
    unit: str,
    target: Target,
    ours: Sample,
    theirs: Sample | None,
    rounds: int,
    *,
    warm_up: bool = True,
    absent: str = "",
) -> Line:
    """Sample ours, theirs, ours, theirs, …; with `warm_up` the first pair is thrown away. If
    `theirs` is None only ours is sampled, and `absent` says why."""
    if theirs is None:
        if warm_up:
            ours()
        return Line(what, against, unit, target, [ours() for _ in range(rounds)], [], absent)
    if warm_up:
        ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return Line(what, against, unit, target, [a for a, _ in pairs], [b for _, b in pairs])


def in_fresh_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of a module in a new process, without the heap of other benchmarks."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *args, **kwargs).result()


@dataclass(frozen=True)
class Table:
    """Figures without a target, and how they were measured."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    how: str = ""


@dataclass(frozen=True)
class Plot:
    """A figure to draw: `draw` writes the data into an image file."""

    title: str
    draw: Callable[[Any, Path], None]
    data: Any


@dataclass
class Findings:
    """What a section has measured."""

    lines: list[Line] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plot: Plot | None = None


class NotEqualWork(Exception):
    """One of the two sides did not do the work that the line describes."""


def require(holds: bool, otherwise: str) -> None:
    """NotEqualWork, with this text, unless the condition holds."""
    if not holds:
        raise NotEqualWork(otherwise)
