"""`tupelo lab torture`: what it prints, what it keeps, and its exit code."""

from __future__ import annotations

import logging
import sys
from collections import Counter

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Invoked

from tupelo.lab.commands import TORTURED, app
from tupelo.lab.torture import campaign
from tupelo.lab.torture.checker import Violation
from tupelo.lab.torture.round import RoundResult
from tupelo.lab.torture.workloads import CLIENTS, MEMBERS


@pytest.fixture(autouse=True)
def level_of_the_log():
    """The command silences the log of its process, which here is that of all tests."""
    log = logging.getLogger("tupelo")
    before = log.level
    yield
    log.setLevel(before)


def torture(*arguments: object) -> Invoked:
    return CliRunner().invoke(app, ["torture", *map(str, arguments)])


def test_every_model_has_clients():
    assert set(TORTURED) == {*CLIENTS, *MEMBERS, "journal"}


def test_a_model_that_is_not_there_is_refused():
    result = torture("--model", "nothing")
    assert result.exit_code == 2
    assert "--model" in result.output


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "a").touch()
    result = torture("--keep", tmp_path)
    assert result.exit_code == 2
    assert "--keep" in result.output


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals to stop processes")
def test_without_anomalies_the_exit_code_is_0_and_histories_are_kept(tmp_path):
    folder = tmp_path / "kept"
    result = torture("--model", "journal", "--minutes", 0.02, "--seed", 7, "--keep", folder)
    assert result.exit_code == 0, result.output
    assert "journal" in result.output
    assert (folder / "journal-7" / "writer.history").stat().st_size > 0


def test_anomalies_are_told_with_the_seed_and_the_exit_code_is_1(tmp_path, monkeypatch):
    def run_round(plan, told):
        plan.folder.mkdir(parents=True)
        violation = Violation("taken twice", "a-1")
        return RoundResult(Counter(ok=5), Counter(), Counter(kill=2), [violation])

    monkeypatch.setattr(campaign, "run_round", run_round)
    folder = tmp_path / "kept"
    result = torture("--model", "space", "--minutes", 0.01, "--seed", 3, "--keep", folder)
    assert result.exit_code == 1
    assert "taken twice: a-1" in result.output
    assert "seed 3" in result.output
    assert "(kill " in result.output
