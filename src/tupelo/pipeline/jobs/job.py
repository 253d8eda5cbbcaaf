"""A job: a question that is asked of a log, and its answer as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Job:
    """`run` makes a table of changes into the table that is the answer; it starts nothing. `title`
    is one line for people. `order` are the columns by which people read it, those with a minus
    from the last to the first. `plot` says how it is drawn, if it is: "lines" over the first
    column, "bars" of a column for each row, or "spans" from one time to another."""

    name: str
    title: str
    run: Callable[[DataFrame], DataFrame]
    order: tuple[str, ...] = ()
    plot: str | None = None
