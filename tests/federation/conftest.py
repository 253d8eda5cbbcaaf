"""Hosts for the tests of the federation, at both doors."""

import pytest

from tests.federation.company import Company
from tests.laws.doors import LoopThread


@pytest.fixture(scope="session")
def loop_thread():
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(params=["blocking", "async"])
def company(request, loop_thread):
    """Hosts at either door, used like blocking ones."""
    company = Company(loop_thread if request.param == "async" else None)
    yield company
    company.close()


@pytest.fixture
def threads():
    """Hosts of the blocking door."""
    company = Company()
    yield company
    company.close()
