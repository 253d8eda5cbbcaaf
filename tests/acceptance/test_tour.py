"""The tour as a user takes it: what it says in its summary is what happened."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tupelo import Space
from tupelo.apps import tour, workshop
from tupelo.apps.commands import app
from tupelo.apps.tour import FileFacts, Reports, examine, look

PARTS = (
    "1. Producers write jobs",
    "2. Workers do them",
    "3. A worker dies in mid-job",
    "4. The process dies",
    "5. The file is opened again",
    "6. The rest is done",
)
LATER_PARTS = ("7. Three hosts meet", "8. Spark reads the logs")
LABELS = (
    "Jobs written",
    "Jobs finished",
    "Lost",
    "Done twice",
    "Begun more than once",
    "Recovered from a dead worker",
    "Recovered after the crash",
    "Changes in the log",
)


def figures(output: str) -> dict[str, int]:
    """The summary, by label."""
    summary = output.partition("Summary")[2]
    found = {label: re.search(rf"^\s*{label}\s+(\d+)\s*$", summary, re.M) for label in LABELS}
    assert all(found.values()), output
    return {label: int(match[1]) for label, match in found.items() if match}


@pytest.mark.parametrize("seed", [1, 2])
def test_the_tour_ends_well(seed, tupelo):
    result = tupelo("tour", "--short", "--fast", "--seed", seed)
    output = result.stdout
    assert (result.returncode, result.stderr) == (0, ""), output
    assert [part for part in PARTS if part not in output] == []
    assert "WRONG" not in output
    assert "killed pid" in output
    assert "the lease ran out" in output
    assert len(output.partition("Where to go next:\n")[2].splitlines()) == 3

    summary = figures(output)
    assert summary["Jobs finished"] == summary["Jobs written"] >= 20
    assert summary["Lost"] == summary["Done twice"] == 0
    assert summary["Recovered from a dead worker"] == 1
    assert summary["Recovered after the crash"] >= 1
    assert summary["Begun more than once"] >= 2


@pytest.mark.timeout(900)  # Spark on a busy machine
def test_the_whole_tour_goes_on_with_hosts_that_meet_and_with_spark(tupelo, tmp_path):
    result = tupelo("tour", "--fast", "--keep", "kept")
    output = result.stdout
    assert result.returncode == 0, output + result.stderr
    assert [part for part in (*PARTS, *LATER_PARTS) if part not in output] == []
    assert "WRONG" not in output
    assert "rover is back, and has [('task', 'east gate')]; base sees 4 pictures" in output
    assert "the audit found no fault" in output
    assert "Traceback" not in result.stderr
    assert (tmp_path / "kept" / "report" / "report.html").is_file()
    assert re.search(r"with the report:\n  http://127\.0\.0\.1:\d+/#token=\S+$", output, re.M)
    with Space("workshop", path=tmp_path / "kept" / "base" / "workshop.tupelo") as space:
        assert figures(output)["Jobs finished"] == len(look(space).results)


def test_the_summary_says_what_the_kept_file_says(tupelo, tmp_path):
    result = tupelo("tour", "--short", "--fast", "--keep", "kept")
    assert result.returncode == 0, result.stdout + result.stderr
    with Space("workshop", path=tmp_path / "kept" / "tour.tupelo") as space:
        found = look(space)
    summary = figures(result.stdout)
    assert summary["Jobs written"] == len(found.written)
    assert summary["Jobs finished"] == len(found.results)
    assert summary["Changes in the log"] == found.changes
    assert not found.waiting


def test_a_kept_file_is_not_overwritten(tupelo, tmp_path):
    (tmp_path / "tour.tupelo").write_text("mine")
    result = tupelo("tour", "--short", "--fast", "--keep", ".")
    assert result.returncode == 2
    assert "exists already" in result.stderr
    assert (tmp_path / "tour.tupelo").read_text() == "mine"


def test_the_tour_says_so_when_a_job_is_lost(monkeypatch):
    def look_away(space: Space) -> FileFacts:
        """Someone took a result, and nobody knows who."""
        space.take(("result", int, str, str))
        return look(space)

    monkeypatch.setattr(tour, "look", look_away)
    result = CliRunner().invoke(app, ["tour", "--short", "--fast"])
    assert result.exit_code == 1
    assert "WRONG no job is lost" in result.output
    assert "THE TOUR FAILED" in result.output
    assert "Summary" not in result.output


def test_the_tour_says_so_when_its_child_cannot_start(monkeypatch, capfd):
    monkeypatch.setattr(workshop, "__name__", "tupelo.apps.nothing")
    result = CliRunner().invoke(app, ["tour", "--short", "--fast"])
    assert result.exit_code == 1
    assert "ended by itself, with exit code 1" in result.output
    assert "No module named tupelo.apps.nothing" in capfd.readouterr().err


GOOD = FileFacts(
    written=Counter([1, 2, 3]),
    taken=Counter([1, 2]),
    waiting=Counter([3]),
    results=Counter([1, 2]),
    tally=2,
    changes=9,
)


@pytest.mark.parametrize(
    ("what", "heard", "found"),
    [
        ("every write that", Reports(written={4}), GOOD),
        ("every job that a worker", Reports(finished={3}), GOOD),
        ("no job is lost", Reports(), replace(GOOD, waiting=Counter())),
        ("no job is repeated", Reports(), replace(GOOD, results=Counter([1, 2, 2]), tally=3)),
        ("no job is repeated", Reports(), replace(GOOD, taken=Counter([1, 2, 2]))),
        ("no job is repeated", Reports(), replace(GOOD, waiting=Counter([2, 3]))),
        ("the tally", Reports(), replace(GOOD, tally=1)),
    ],
)
def test_the_audit_finds_what_must_not_be(what, heard, found):
    assert all(holds for _, holds in examine(Reports(written={1, 2, 3}, finished={1, 2}), GOOD))
    assert what in {text[: len(what)] for text, holds in examine(heard, found) if not holds}
