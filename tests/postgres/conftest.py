"""Servers beside the one that most tests share, which some tests stop and kill."""

from collections.abc import Iterator

import pytest

from tests.postgres.servers import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One that does not vote in two phases, as by default."""
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Server]:
    """One that votes."""
    server = Server(votes=True)
    yield server
    server.close()
