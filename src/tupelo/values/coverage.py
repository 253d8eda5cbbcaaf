"""Coverage: which hosts an operation has reached."""

from __future__ import annotations

from collections.abc import Iterable

from tupelo.errors import BadArgument


class Coverage:
    """Filled by the operation that it is given to: the names of the hosts that it `covered`, and of
    those that are `missing` because they did not answer."""

    def __init__(self) -> None:
        self.covered: list[str] = []
        self.missing: list[str] = []

    def fill(self, covered: Iterable[str], missing: Iterable[str] = ()) -> None:
        self.covered = list(covered)
        self.missing = list(missing)


def check_coverage(coverage: object) -> None:
    if coverage is not None and not isinstance(coverage, Coverage):
        raise BadArgument("coverage", "a Coverage(), or None", coverage)
