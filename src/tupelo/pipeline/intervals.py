"""Confidence intervals of means."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import cos, pi, sin, sqrt, tan
from statistics import fmean, stdev

LEVEL = 0.95


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The mean of some independent values, and the bounds of its confidence interval of 95 % by
    Student's t. The bounds of a single value are None. Raises StatisticsError without values."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, None, None
    half = t_quantile(len(values) - 1) * stdev(values, mean) / sqrt(len(values))
    return mean, mean - half, mean + half


@cache
def t_quantile(freedom: int) -> float:
    """The t that a value of Student's distribution exceeds in neither direction in 95 % of cases.
    Beyond 1,000 degrees of freedom, that for 1,000 (0.1 % more than the limit)."""
    freedom = min(freedom, 1_000)
    low, high = 0.0, pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < LEVEL else (low, angle)
    return tan(low) * sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """The probability of values up to tan(angle) * sqrt(freedom) in both directions (Abramowitz and
    Stegun, 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for step in range(1 + odd, freedom, 2):
        total += term
        term *= cos(angle) ** 2 * step / (step + 1)
    total *= sin(angle)
    return 2 / pi * (angle + total) if odd else total
