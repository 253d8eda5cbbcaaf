"""Models on every kind of space: see tests/kinds.py and docs/SPACES.md."""

import pytest

from tests.exceptions import skip_exception
from tests.models.neighbours import Neighbourhood


@pytest.fixture(scope="module")
def neighbourhood(loop_thread):
    """Hosts that the tests of a module share."""
    neighbourhood = Neighbourhood(loop_thread)
    yield neighbourhood
    neighbourhood.close()


@pytest.fixture(autouse=True)
def _exempt(request):
    """Skip what docs/SPACES.md says that this kind of space does not do."""
    skip_exception(request)
