"""Spaces of each kind, on which queues and adapters are tried."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tupelo

KINDS = ("memory", "file", "host", "spanning")


@pytest.fixture(params=KINDS)
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tupelo.SpaceLike]:
    match request.param:
        case "memory":
            with tupelo.Space("jobs") as space:
                yield space
        case "file":
            with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
                yield space
        case "host":
            with (
                tupelo.Host("office", listen=0) as host,
                tupelo.connect(f"{host.url}jobs") as space,
            ):
                yield space
        case "spanning":
            with tupelo.Host("office", listen=0) as host:
                yield host.space("jobs")
