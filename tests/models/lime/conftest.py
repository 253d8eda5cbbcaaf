"""The engines that keep the tuples of LIME (figure 6 of the paper)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.lime.sqlite_engine import sqlite_engines
from tests.models.lime.world import ENGINES


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """What is tried at many moments is tried at each of them on one engine, in turn: the moments
    are those of the network, which is the same. With `TUPELO_SEEDS` nothing is left out."""
    if "TUPELO_SEEDS" in os.environ:
        return
    here = f"{Path(__file__).parent}{os.sep}"
    left_out = []
    for item in items:
        numbers = getattr(getattr(item, "callspec", None), "indices", {})
        is_tried = numbers.keys() >= {"each_engine", "moment"} and str(item.path).startswith(here)
        if is_tried and (numbers["each_engine"] + numbers["moment"]) % 2:
            left_out.append(item)
    gone = set(map(id, left_out))
    items[:] = [item for item in items if id(item) not in gone]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(params=["a space", "a table of SQLite"])
def each_engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test runs on the host's own spaces, and on another engine."""
    token = ENGINES.set(None if request.param == "a space" else sqlite_engines)
    yield
    ENGINES.reset(token)
