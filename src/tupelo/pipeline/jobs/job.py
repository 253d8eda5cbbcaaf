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
    is one line for people, and `order` are the columns by which they read the answer."""

    name: str
    title: str
    run: Callable[[DataFrame], DataFrame]
    order: tuple[str, ...]
