"""The figures of several runs in one row: median, mean, and a 95 % confidence interval of the mean.

The runs of different seeds are independent; the messages of one run are not. So the spread of an
interval is that between the runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan, nan, sqrt
from statistics import median
from typing import Any, TypeAlias

from tupelo.errors import BadArgument
from tupelo.pipeline.intervals import t_quantile

Row: TypeAlias = dict[str, Any]

SUMMARY = ("figure", "runs", "median", "mean", "low", "high")
"""The columns of a summary, after the settings of the sweep."""


class Share(float):
    """A figure that is a share: `Share(9, 10)` is 0.9, and its interval stays between 0 and 1. It
    is nan if `whole` is 0. Raises BadArgument if `part` is not between 0 and `whole`."""

    part: float
    whole: float

    def __new__(cls, part: float, whole: float) -> Share:
        if not 0 <= part <= whole:
            raise BadArgument("part", f"a number from 0 to {whole!r}, which is the whole", part)
        share = super().__new__(cls, part / whole if whole else nan)
        share.part, share.whole = part, whole
        return share

    def __reduce__(self) -> tuple[type[Share], tuple[float, float]]:
        return type(self), (self.part, self.whole)


def summarize(rows: list[Row], over: Iterable[str]) -> list[Row]:
    """For each point of a sweep and each figure: the number of runs, the median over the seeds, the
    mean, and a 95 % confidence interval of the mean."""
    keys = list(over)
    points: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        points.setdefault(tuple(row[key] for key in keys), []).append(row)
    table = []
    for point, same in points.items():
        for figure in dict.fromkeys(key for row in same for key in row):
            if figure not in (*keys, "seed"):
                numbers = [row[figure] for row in same if row.get(figure) is not None]
                numbers = [number for number in numbers if not isnan(number)]
                if numbers:
                    mean = sum(numbers) / len(numbers)
                    told = figure, len(numbers), float(median(numbers)), mean, *interval(numbers)
                    table.append(dict(zip((*keys, *SUMMARY), (*point, *told), strict=True)))
    return table


def interval(numbers: list[float]) -> tuple[float, float]:
    """A 95 % confidence interval of the mean of these runs; one run has none.

    Of shares it is the score interval of Wilson, see `_wilson`. Of other figures it is Student's t,
    and does not go below 0 if no run did.
    """
    runs = len(numbers)
    mean = sum(numbers) / runs
    if runs == 1:
        return mean, mean
    error = sqrt(sum((number - mean) ** 2 for number in numbers) / (runs - 1) / runs)
    quantile = t_quantile(runs - 1)
    shares = [number for number in numbers if isinstance(number, Share)]
    if len(shares) == runs:
        return _wilson(mean, error, quantile, sum(share.whole for share in shares))
    low, high = mean - quantile * error, mean + quantile * error
    return (max(0.0, low) if min(numbers) >= 0 else low), high


def _wilson(share: float, error: float, quantile: float, trials: float) -> tuple[float, float]:
    """The interval of Wilson for so many independent trials as would have this standard error,
    which is that between the runs. There are not more of them than were counted."""
    if error:
        trials = min(trials, share * (1 - share) / error**2)
    square = quantile**2
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = sqrt(share * (1 - share) / trials + square / (4 * trials**2)) / (1 + square / trials)
    low, high = middle - quantile * half, middle + quantile * half
    # With the share itself, which rounding could leave out where it is 0 or 1.
    return max(0.0, min(low, share)), min(1.0, max(high, share))
