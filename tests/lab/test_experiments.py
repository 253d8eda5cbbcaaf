"""Experiments: settings, sweeps, the commands, and the claims of the papers on small worlds."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tupelo
from tupelo import lab
from tupelo.errors import BadArgument
from tupelo.lab.commands import app
from tupelo.lab.experiment import Sweep, experiments, load
from tupelo.lab.paradigms import PARADIGMS
from tupelo.lab.summary import summarize


def figures(name: str, **changes: Any) -> dict[str, float]:
    experiment = load(name)
    return experiment.figures(experiment.run(experiment.defaults.with_changes(changes)))


SMALL = {"hosts": 4, "duration": 60.0, "updates": 40, "mobility": "still", "spacing": 60.0}


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_every_paradigm_shares_a_whiteboard_where_nothing_is_lost(paradigm: str) -> None:
    found = figures("whiteboard", paradigm=paradigm, **SMALL)
    assert found["delivered"] == 1.0
    assert found["host_disordered"] == 0.0


def test_melon_delivers_everything_in_order_per_host_at_30_percent_loss() -> None:
    """The dissertation, 7.1.5: only MELON promises it."""
    found = figures("whiteboard", paradigm="melon", loss=0.3, **SMALL)
    assert (found["delivered"], found["host_disordered"]) == (1.0, 0.0)


def test_publish_subscribe_is_the_fastest_and_tuple_spaces_read_again_and_again() -> None:
    by = {
        one: figures("whiteboard", paradigm=one, **SMALL) for one in ("pubsub", "tuples", "melon")
    }
    assert by["pubsub"]["latency_median"] < by["melon"]["latency_median"]
    assert by["melon"]["latency_median"] < by["tuples"]["latency_median"]
    assert by["tuples"]["bytes_per_update"] > 3 * by["pubsub"]["bytes_per_update"]


def test_publish_subscribe_loses_what_is_published_while_a_host_is_away_and_melon_does_not(
    tmp_path: Path,
) -> None:
    # The second host is out of range from 15 s to 40 s.
    (tmp_path / "trace").write_text("0 0 0\n0 50 0 15 50 0 16 900 0 40 900 0 41 50 0\n")
    away = {"hosts": 2, "duration": 70.0, "mobility": str(tmp_path / "trace"), "range": 100.0}
    some = {**away, "routing": "direct", "messages": 40, "rate": 1.0, "answers": False}
    assert figures("messages", paradigm="melon", **some)["delivered"] == 1.0
    assert 0.3 < figures("messages", paradigm="pubsub", **some)["delivered"] < 0.9


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_receivers_answer_in_every_paradigm(paradigm: str) -> None:
    found = figures("messages", paradigm=paradigm, duration=30.0, messages=10)
    assert (found["delivered"], found["answered"]) == (1.0, 1.0)
    assert found["round_trip_median"] > found["latency_median"] > 0


def test_the_payload_is_carried_once_and_the_overhead_does_not_grow_with_it() -> None:
    small, large = (figures("overhead", paradigm="pubsub", size=size) for size in (10, 10_000))
    assert large["overhead"] == pytest.approx(small["overhead"], abs=20)
    assert -20 < small["overhead"] < 357, "less than the dissertation's publish/subscribe"


def test_a_world_of_twenty_hosts_scales() -> None:
    found = figures("scale", hosts=20, duration=15.0)
    assert found["seen"] > 1
    assert found["messages_a_host_and_second"] < 100


@pytest.mark.parametrize("where", ["branches", "anywhere"])
def test_pruning_never_changes_what_is_collected_and_saves_messages(where: str) -> None:
    """LIME over REDS, 7.4. Entries are offered between the collects."""
    experiment, saved = load("collect"), 0.0
    for seed in range(4):
        some = {"seed": seed, "hosts": 12, "where": where, "offers": 1, "duration": 40.0}
        plain, pruned, not_standing = (
            experiment.run(experiment.defaults.with_changes({**some, **how}))
            for how in ({"prune": False}, {"prune": True}, {"prune": True, "standing": False})
        )
        assert plain.values("collected", "found") == pruned.values("collected", "found")
        assert plain.values("collected", "found") == not_standing.values("collected", "found")
        assert sum(pruned.values("collected", "lost")) == 0
        counts = [experiment.figures(one)["messages"] for one in (pruned, plain, not_standing)]
        assert counts[0] <= counts[1] == counts[2] == 2 * 11, "a standing collect is needed"
        saved += counts[1] - counts[0]
    assert saved > 0


def test_the_sequence_of_messages_is_recorded_with_types_and_sizes() -> None:
    experiment = load("sequence")
    result = experiment.run(experiment.defaults.with_changes({"paradigm": "tuples"}))
    told = [(row["by"], row["kind"]) for row in result.rows if row["name"] == "message"]
    assert told == [("receiver", "Ask"), ("sender", "Answer")]
    sizes = {one: figures("sequence", paradigm=one)["bytes"] for one in ("pubsub", "rpc")}
    assert 1_000 < sizes["pubsub"] < sizes["rpc"] < 1_571, "as in table 3.2, and less"


def test_a_request_does_not_grow_with_what_was_read() -> None:
    few, many = (figures("tracking", messages=count) for count in (100, 5_000))
    assert few["request"] == pytest.approx(many["request"], abs=8)
    assert many["bits"] < 1.6, "MELON 5.7.1"
    assert figures("tracking", messages=5_000, mine=0.5)["bits"] < 20


def test_local_operations_are_timed_beside_a_linear_store() -> None:
    for store in ("melon", "linear"):
        found = figures("local", store=store, messages=200, operations=50)
        assert {"write_us", "read_us", "take_us"} == set(found)
        assert all(value > 0 for value in found.values())
    with pytest.raises(BadArgument, match="store"):
        figures("local", store="tape")


def test_one_host_presents_to_others_over_routes() -> None:
    """MELON delivers all, also while hosts walk; tuple spaces need more bytes."""
    short = {"duration": 60.0, "updates": 10, "hosts": 4}
    for scenario in ("single", "multihop", "mobile"):
        found = figures("presentation", scenario=scenario, routing="dsr", **short)
        assert (found["delivered"], found["host_disordered"]) == (1.0, 0.0)
    with pytest.raises(BadArgument, match="scenario"):
        figures("presentation", scenario="space")


def test_no_piece_of_the_jigsaw_is_lost_while_players_part_and_meet() -> None:
    for seed in range(3):
        found = figures("jigsaw", seed=seed, duration=120.0, columns=3, rows=3)
        assert (found["lost"], found["doubled"]) == (0, 0)
        assert found["trays_whole"] > 0


def test_the_maps_of_red_rover_show_ghosts_and_only_the_team_is_told() -> None:
    found = figures("red_rover", duration=100.0)
    assert found["ghosts_right"] > 0.9
    assert found["error_median"] < 3, "in metres: they walk up to 2 m in a second"
    assert (found["told"], found["opponents_told"]) == (1.0, 0)


def test_views_of_hosts_that_were_apart_become_one_and_nothing_is_lost() -> None:
    apart = figures("views", duration=60.0, apart=10.0)
    assert (apart["agreed"], apart["lost"], apart["clones"]) == (1.0, 0, 1.0)
    assert 0 < apart["to_one_order"] < 5
    together = figures("views", duration=60.0, apart=0.5)
    assert (together["agreed"], together["clones"], together["moved"]) == (1.0, 0, 0)


# Settings, sweeps and commands


def test_every_experiment_has_a_title_and_its_own_file() -> None:
    names = [one.name for one in experiments()]
    assert {"messages", "overhead", "scale", "whiteboard"} <= set(names)
    for one in experiments():
        assert one.title
        points = Sweep(one, one.defaults, one.sweep, [1]).points()
        assert len(points) > 1
        for point in points:
            one.defaults.with_changes(point)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hosts": 2.5}, "hosts"),
        ({"hosts": "many"}, "hosts"),
        ({"loss": True}, "loss"),
        ({"paradigm": 3}, "paradigm"),
        ({"colour": "red"}, "one of the settings"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        load("whiteboard").defaults.with_changes(changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"network": "string"}, "network"),
        ({"network": "wired", "loss": 0.1}, "loss"),
        ({"mobility": "nowhere.txt"}, "mobility"),
        ({"paradigm": "smoke"}, "paradigm"),
    ],
)
def test_a_world_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    experiment = load("messages")
    settings = experiment.defaults.with_changes(changes)
    with pytest.raises(BadArgument, match=said):
        list(Sweep(experiment, settings, {}, [1]).runs())


def test_a_sweep_has_medians_and_intervals_over_the_seeds() -> None:
    rows = [{"loss": 0, "seed": seed, "late": float(seed)} for seed in (1, 2, 3)]
    rows += [{"loss": 1, "seed": 1, "late": 5.0}, {"loss": 1, "seed": 2, "late": float("nan")}]
    none, one = summarize(rows, ["loss"])
    assert (none["median"], none["mean"], none["runs"]) == (2.0, 2.0, 3)
    assert none["high"] - none["mean"] == pytest.approx(4.302653 * (1 / 3) ** 0.5)
    assert (one["low"], one["high"]) == (5.0, 5.0)
    experiment = load("overhead")
    sweep = Sweep(experiment, experiment.defaults, {"size": [1, 2], "poll": [0.5]}, [1, 2])
    assert sweep.points() == [{"size": 1, "poll": 0.5}, {"size": 2, "poll": 0.5}]
    assert sweep.count == 4


MINE = '''
"""My own: how long a message is on its way"""
import asyncio
from tupelo import lab

DEFAULTS = {"hosts": 2, "network": "wired", "duration": 10.0, "words": 3}

def run(settings):
    async def program(host):
        space = host.space("words")
        if host.name == "h1":
            for number in range(settings["words"]):
                await asyncio.sleep(1)
                await space.write((number, lab.now()))
        else:
            while True:
                _, sent = await space.take((int, float))
                lab.record("took", latency=lab.now() - sent)
    return settings.world().run(program, seconds=settings.duration)

def figures(result):
    return {"taken": result.count("took"), "latency": max(result.values("took", "latency"))}
'''


def test_an_experiment_of_ones_own_runs_by_the_same_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    level = logging.getLogger("tupelo").level
    run = CliRunner().invoke(app, ["run", str(tmp_path / "mine.py"), "--set", "words=2"])
    assert run.exit_code == 0, run.output
    taken, latency = map(json.loads, run.output.splitlines())
    assert (taken["figure"], taken["median"]) == ("taken", 2.0)
    assert 0 < latency["median"] < 0.1
    assert logging.getLogger("tupelo").level == level, "the log is as before"


def test_sweeps_are_reported_on_one_page_beside_the_paper(tmp_path: Path) -> None:
    over = ["--over", "size=10,1000", "--over", "paradigm=pubsub,rpc"]
    swept = CliRunner().invoke(
        app, ["sweep", "overhead", *over, "--seeds", "2", "--to", str(tmp_path / "overhead")]
    )
    assert swept.exit_code == 0, swept.output
    assert len(swept.output.splitlines()) == 2 * 2 * 4
    told = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert told.exit_code == 0, told.output
    page = (tmp_path / "report.html").read_text()
    assert "MELON table 3.2" in page
    assert "571" in page
    assert page.count("<svg") == 4
    assert "http" not in page.replace("http://www.w3.org", "")
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "overhead" / "figures.parquet").to_pydict()
    assert sorted(set(table["size"])) == [10, 1000]
    assert len(list((tmp_path / "overhead" / "runs").iterdir())) == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nothing"], "one of"),
        (["run", "overhead", "--set", "size"], "key=value"),
        (["run", "overhead", "--set", "size=big"], "size"),
        (["run", "overhead", "--loss", "0.5"], "loss"),
        (["sweep", "all", "--seeds", "1"], "--to"),
        (["report", "nowhere"], "sweep.json"),
    ],
)
def test_wrong_arguments_are_told(arguments: list[str], said: str) -> None:
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code != 0
    assert said in run.output
    assert run.exception is None or isinstance(run.exception, SystemExit)


def test_the_list_names_the_settings() -> None:
    told = CliRunner().invoke(app, ["list"])
    assert "whiteboard" in told.output
    assert "paradigm='melon'" in told.output


def test_a_run_leaves_the_change_logs_of_its_hosts(tmp_path: Path) -> None:
    async def program(host: Any) -> None:
        await host.space("jobs").write(("job", host.name))

    lab.World(["a", "b"], folder=tmp_path).run(program, seconds=5)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    (file,) = (tmp_path / "a").rglob("jobs*.tupelo")
    with tupelo.Space("jobs", path=file) as space:
        assert space.read_all() == [("job", "a")]
