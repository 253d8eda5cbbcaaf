"""The engines that keep the tuples of LIME (figure 6 of the paper)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.models.lime.camp import ENGINES
from tests.models.lime.sqlite_engine import sqlite_engines


@pytest.fixture(params=["a space", "a table of SQLite"])
def each_engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test runs on the host's own spaces, and on another engine."""
    token = ENGINES.set(None if request.param == "a space" else sqlite_engines)
    yield
    ENGINES.reset(token)
