"""Confidence intervals, against tables of Student's t and by trial."""

from random import Random
from statistics import StatisticsError

import pytest

from tupelo.pipeline.intervals import interval, t_quantile


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [
        (1, 12.70620),
        (2, 4.30265),
        (3, 3.18245),
        (9, 2.26216),
        (10, 2.22814),
        (30, 2.04227),
        (99, 1.98422),
        (10**6, 1.9623),
    ],
)
def test_the_quantiles_are_those_of_the_tables(freedom, expected):
    assert t_quantile(freedom) == pytest.approx(expected, abs=5e-5)


def test_a_single_value_has_no_interval():
    assert interval([3.0]) == (3.0, None, None)
    assert interval([3.0, 3.0]) == (3.0, 3.0, 3.0)
    with pytest.raises(StatisticsError):
        interval([])


def test_19_of_20_intervals_contain_the_mean():
    rng, hits = Random(5), 0
    for _ in range(4_000):
        _, low, high = interval([rng.gauss(7, 2) for _ in range(4)])
        assert low is not None and high is not None
        hits += low <= 7 <= high
    assert hits / 4_000 == pytest.approx(0.95, abs=0.01)
