"""The exceptions of docs/SPACES.md are of laws that exist, and there are few of them."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.exceptions import PAGE, SKIPS_MAX, exemptions, reason_against
from tests.kinds import KINDS, PLACES

ROOT = PAGE.parents[1]
LAWS = [
    path
    for place in (
        "laws/test_*.py",
        "models/test_linda.py",
        "models/test_pubsub.py",
        "models/melon/test_laws.py",
        "models/event_heap/test_laws.py",
        "models/javaspaces/test_*.py",
    )
    for path in sorted((ROOT / "tests").glob(place))
    if path != Path(__file__)
]
"""The modules whose tests run on the kinds of space."""
ITEM = re.compile(r"^tests/(?:\w+/)+(?P<module>\w+\.py)::(?P<law>\w+)\[(?P<params>.*)\]$")


def known_laws() -> set[str]:
    """The names of all laws, and of their modules."""
    known = {path.name for path in LAWS}
    for path in LAWS:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                known.add(node.name)
    return known


def test_every_exception_names_laws_and_kinds_that_exist():
    known = known_laws()
    places = {kind.where for kind in KINDS.values()} | set(KINDS)
    assert exemptions(), "the table was not found"
    for row in exemptions():
        assert row.laws and set(row.laws) | set(row.kept) <= known, row
        assert row.kinds and set(row.kinds) <= places, row
        assert row.reason, row
    named = Counter((law, kind) for row in exemptions() for law in row.laws for kind in row.kinds)
    assert max(named.values()) == 1, "an exception is listed twice"


def test_the_exceptions_are_few():
    """Collect all laws, and count those that are skipped. Every row must be of use."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *LAWS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    places = sorted((f"{door}-{kind}" for door, kind in PLACES), key=len, reverse=True)
    skipped: list[tuple[str, str, str]] = []
    for found in filter(None, map(ITEM.match, listed)):
        place = next((one for one in places if one in found["params"]), None)
        if place is not None:
            law = found["module"], found["law"], place.partition("-")[2]
            skipped += [law] if reason_against(*law) else []
    assert 0 < len(skipped) < SKIPS_MAX
    for row in exemptions():
        for kind in row.kinds:
            assert any(
                row.covers(*law) and kind in (law[2], KINDS[law[2]].where) for law in skipped
            ), f"no law is skipped by {row}"
