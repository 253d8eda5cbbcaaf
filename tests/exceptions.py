"""The exceptions of docs/SPACES.md: which law does not hold on which kind of space.

A row of the table names laws (tests, or a module for all of its tests), the kinds of space that do
not keep them, and what happens instead. "remote" or "spanning" means every store of that kind.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.kinds import KINDS

PAGE = Path(__file__).parents[1] / "docs" / "SPACES.md"
HEADING = "## Exceptions"
SKIPS_MAX = 375
"""So many skips, over all kinds and doors, are too many."""

_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Exemption:
    """One row of the table."""

    laws: tuple[str, ...]
    kept: tuple[str, ...]  # laws of a module that hold all the same
    kinds: tuple[str, ...]
    reason: str

    def covers(self, module: str, law: str, kind: str) -> bool:
        """`module` is the name of its file, `law` that of the test, `kind` a key of KINDS."""
        return (
            (law in self.laws or (module in self.laws and law not in self.kept))
            and (kind in self.kinds or KINDS[kind].where in self.kinds)
        )  # fmt: skip


@cache
def exemptions() -> tuple[Exemption, ...]:
    """The rows, as the page has them."""
    _, _, after = PAGE.read_text("utf-8").partition(HEADING)
    rows = []
    for line in after.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 3 or not _CODE.search(cells[0]):
            continue
        all_of, _, but = cells[0].partition(" except ")
        kinds = tuple(kind.strip() for kind in cells[1].split(","))
        rows.append(
            Exemption(tuple(_CODE.findall(all_of)), tuple(_CODE.findall(but)), kinds, cells[2])
        )
    return tuple(rows)


def reason_against(module: str, law: str, kind: str) -> str | None:
    """Why this law does not hold on this kind of space, if it does not."""
    for row in exemptions():
        if row.covers(module, law, kind):
            return row.reason
    return None


def skip_exception(request: pytest.FixtureRequest) -> None:
    """Skip a law on the kind of space, its parameter `place`, that the table lists for it."""
    callspec = getattr(request.node, "callspec", None)
    place = callspec.params.get("place") if callspec is not None else None
    if place is not None:
        reason = reason_against(request.path.name, request.node.originalname, place[1])
        if reason is not None:
            pytest.skip(reason)
