"""Experiments: settings, sweeps, the commands, and the claims of the papers on small worlds."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
from inspect import signature
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import tupelo
from tupelo import lab
from tupelo.errors import BadArgument
from tupelo.federation.hosts.core import HostCore
from tupelo.lab.commands import app
from tupelo.lab.experiment import COMMON, Share, Sweep, experiments, load
from tupelo.lab.paradigms import PARADIGMS
from tupelo.lab.report import write_report
from tupelo.lab.summary import interval, summarize
from tupelo.lab.world import ANSWER_SECONDS


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


def test_a_world_of_twenty_hosts_scales(tmp_path: Path) -> None:
    found = figures("scale", hosts=20, duration=15.0, folder=str(tmp_path / "hosts"))
    assert found["seen"] > 1
    assert found["messages_a_host_and_second"] < 100
    assert 0.5 < found["engage_seconds"] < 5
    files = [file for file in (tmp_path / "hosts").rglob("*") if file.is_file()]
    assert found["bytes_at_rest"] == sum(file.stat().st_size for file in files) / 20


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


LAB = (Path(__file__).parents[2] / "docs" / "LAB.md").read_text("utf-8")
(MINE,) = (
    block for block in re.findall(r"```python\n(.*?)```", LAB, re.DOTALL) if "DEFAULTS" in block
)
"""The experiment of the documentation."""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_experiment_of_the_documentation_is_run_swept_and_reported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    level = logging.getLogger("tupelo").level
    run = invoke("run", tmp_path / "mine.py", "--loss", 0.3, "--set", "entries=2")
    assert run.exit_code == 0, run.output
    taken, latency, messages = map(json.loads, run.output.splitlines())
    assert (taken["figure"], taken["median"]) == ("taken", 1.0)
    assert 0 < latency["median"] < 0.1
    assert messages["median"] > 2
    assert logging.getLogger("tupelo").level == level, "the log is as before"
    for other in ("one", "two"):
        more = "--set", f"spacing={20 * len(other)}", "--to", tmp_path / other
        swept = invoke("sweep", tmp_path / "mine.py", "--seeds", 2, "--over", "loss=0,0.4", *more)
        assert swept.exit_code == 0, swept.output
    (kept,) = (tmp_path / "one" / "runs").glob("loss=0.4 seed=2/run.json")
    settings = json.loads(kept.read_text())["settings"]
    assert (settings["loss"], settings["seed"], settings["spacing"]) == (0.4, 2, 60.0)
    assert settings["values"] == {"entries": 20}
    assert invoke("report", tmp_path).exit_code == 0
    page = (tmp_path / "report.html").read_text()
    assert "A paper, table 1" in page
    assert "above 0.99" in page


def test_the_documentation_lists_the_common_settings() -> None:
    def shown(value: Any) -> str:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return f"{value:,.10g}" if is_number else {None: "none", False: "no"}.get(value, value)

    for name, setting in COMMON.items():
        unit, meaning = setting.metadata["unit"], setting.metadata["meaning"]
        told = shown(setting.default), f"{unit} " if unit else "", meaning
        assert "| `{}` | {} | {}| {} |".format(name, *told) in LAB


START = """
from tupelo.lab.experiment import Claim
DEFAULTS = {"network": "wired", "hosts": 1, "duration": 1.0, "words": 3}
def run(settings): return settings.world().run(seconds=settings["duration"])
def figures(result): return {"messages": result.messages}
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("del DEFAULTS", "DEFAULTS is missing"),
        ("DEFAULTS = [1]", "DEFAULTS must be a dict"),
        ("DEFAULTS['area'] = (200, 200)", "DEFAULTS['area'] must be a number"),
        ("DEFAULTS['speed'] = (1, 2)", "DEFAULTS['speed'] must be a number"),
        ("DEFAULTS['folder'] = 3", "DEFAULTS['folder'] must be the path"),
        ("DEFAULTS['runs'] = 3", "DEFAULTS must be a text other than figure, runs"),
        ("DEFAULTS['network'] = 'string'", "DEFAULTS['network'] must be radio, wired or ns3"),
        ("DEFAULTS['duration'] = 0", "DEFAULTS['duration'] must be a positive number"),
        ("DEFAULTS['mobility'] = 'no.txt'; DEFAULTS['network'] = 'radio'", "DEFAULTS['mobility']"),
        ("run = 3", "run must be a function"),
        ("async def run(settings): pass", "run must be a function, and not async"),
        ("def run(settings): pass", "run(settings) must return a Result, as World.run() does"),
        ("def run(settings): settings['lenght']", "settings[...] must be one of the settings area"),
        ("def figures(result): pass", "figures(result) must return a dict of numbers, not None"),
        ("def figures(result): return [1]", "figures(result) must return a dict of numbers"),
        ("def figures(result): return {'a': 'b'}", "figures(result)['a'] must be a number"),
        ("def figures(result): return {1: 2}", "figures(result)[1] must have a text"),
        ("def figures(result): return {'seed': 2}", "figures(result)['seed'] is a setting"),
        ("SWEEP = ['loss']", "SWEEP must be a dict"),
        ("SWEEP = {'loss': 0.1}", "SWEEP['loss'] must be a list of values"),
        ("SWEEP = {'loss': []}", "SWEEP['loss'] must be a list of values"),
        ("SWEEP = {'los': [1]}", "SWEEP['los'] is not one of the settings area"),
        ("SWEEP = {'words': ['x']}", "SWEEP['words'] must be a number like 3"),
        ("SWEEP = {'seed': [1]}", "SWEEP['seed'] must not be there"),
        ("PAPER = Claim('a', {}, 'messages', 1)", "PAPER must be a list of Claim"),
        ("PAPER = [('a', {}, 'messages', 1)]", "PAPER[0] must be a Claim"),
        ("PAPER = [Claim('a', [], 'messages', 1)]", "PAPER[0].setting must be a dict"),
        ("PAPER = [Claim('a', {'los': 1}, 'messages', 1)]", "PAPER[0].setting['los'] is not one"),
        ("PAPER = [Claim('a', {}, None, 1)]", "PAPER[0].figure must be a text"),
        ("PAPER = [Claim('a', {}, 'messages', '1')]", "PAPER[0].value must be a number"),
        ("PAPER = [Claim('a', {}, 'messages', 1, '', '~')]", "PAPER[0].relation must be"),
        ("DEFAULTS =", "line 6: invalid syntax"),
    ],
)
def test_an_error_names_the_file_and_the_field(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(START + line)
    run = invoke("run", file)
    assert isinstance(run.exception, SystemExit), "no traceback"
    assert run.output.startswith(f"tupelo: {file}: ")
    assert said in run.output
    assert len(run.output.splitlines()) == 1


def test_a_file_may_have_dataclasses(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"from __future__ import annotations\nfrom dataclasses import dataclass{START}"
        "@dataclass\nclass Job:\n    size: int = 1\n"
    )
    assert invoke("run", tmp_path / "mine.py").exit_code == 0


@pytest.mark.parametrize("part", [0, 1, 7, 29, 30])
def test_the_interval_of_a_share_stays_between_0_and_1(part: int) -> None:
    for shares in ([Share(part, 30)] * 10, [Share(part, 30), Share(30 - part, 30)]):
        low, high = interval(list(shares))
        mean = sum(shares) / len(shares)
        assert 0 <= low <= mean <= high <= 1
        assert high - low > 0
    # Runs that differ more than their trials say are fewer trials.
    apart, alike = [Share(30, 30), Share(0, 30)] * 5, [Share(15, 30)] * 10
    widths = [high - low for low, high in (interval(list(apart)), interval(list(alike)))]
    assert widths[0] > 3 * widths[1]


def test_intervals_agree_with_tables() -> None:
    # Wilson: 10 of 10 in one trial each, by the quantile of Student for 9 degrees of freedom.
    assert interval([Share(1, 1)] * 10) == pytest.approx((10 / (10 + 2.26216**2), 1.0), abs=1e-5)
    assert interval([0.0, 0.0, 3.0]) == pytest.approx((0.0, 1 + 4.30265), abs=1e-4)
    assert interval([-1.0, 1.0])[0] < -1, "Student's t, where a run was below 0"
    assert isnan(Share(0, 0))
    with pytest.raises(BadArgument, match="part"):
        Share(3, 2)


def test_sweeps_are_reported_on_one_page_beside_the_paper(tmp_path: Path) -> None:
    over = ["--over", "size=10,1000", "--over", "paradigm=pubsub,rpc"]
    swept = invoke("sweep", "overhead", *over, "--seeds", 2, "--to", tmp_path / "overhead")
    assert swept.exit_code == 0, swept.output
    assert len(swept.output.splitlines()) == 2 * 2 * 4
    told = invoke("report", tmp_path)
    assert told.exit_code == 0, told.output
    page = (tmp_path / "report.html").read_text()
    assert "MELON table 3.2" in page
    assert "571" in page
    assert page.count("<svg") == 3
    assert "The same in all runs: delivered 1." in page
    assert "://" not in page
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "overhead" / "figures.parquet").to_pydict()
    assert sorted(set(table["size"])) == [10, 1000]
    assert len(list((tmp_path / "overhead" / "runs").iterdir())) == 8


def test_a_report_names_what_differs_from_other_sweeps_and_from_the_paper(tmp_path: Path) -> None:
    def swept(folder: str, late: float, **settings: Any) -> None:
        claim = {"source": "Doe", "figure": "late", "remark": "", "why": "a faster network"}
        claims = [
            claim | {"setting": {"hosts": 2}, "value": 2.0},
            claim | {"setting": {"hosts": 3}, "value": 2.0, "relation": ">"},
            claim | {"setting": {}, "value": 15.0, "relation": "max"},
            claim | {"setting": {"hosts": 4}, "value": 1.0},
        ]
        rows = [{"hosts": hosts, "seed": 1, "late": late * hosts} for hosts in (2, 3)]
        about = {"experiment": "mine", "title": "Mine", "over": {"hosts": [2, 3]}, "seeds": [1]}
        told = {"settings": {"values": settings}, "paper": claims}
        (tmp_path / folder).mkdir()
        text = json.dumps(about | told | {"summary": summarize(rows, ["hosts"])})
        (tmp_path / folder / "sweep.json").write_text(text)

    swept("a", 0.6, poll=1, size=7)
    swept("b", 2.0, poll=2, size=7)
    page = write_report(tmp_path).read_text()
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", page) == ["mine: poll 1", "mine: poll 2"]
    cells = (f'<td data-of="{title}">(.*?)</td>' for title in ("differs", "why"))
    assert re.findall("".join(cells), page) == [
        ("-40 %", "a faster network"),
        ("-10 %", "a faster network"),
        ("× 0.12", "a faster network"),
        ("not in this sweep", ""),
        ("× 2", "a faster network"),
        ("no", ""),
        ("× 0.4", "a faster network"),
        ("not in this sweep", ""),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nothing"], "tupelo: NAME must be the path of a .py file, or one of collect"),
        (["run", "overhead", "--set", "size"], "key=value"),
        (["run", "overhead", "--set", "size=big"], "tupelo: --set size must be a number"),
        (["run", "overhead", "--set", "hosts=1e999"], "tupelo: --set hosts must be an integer"),
        (["run", "overhead", "--loss", "0.5"], "tupelo: --loss must be 0 in a wired network"),
        (["run", "whiteboard", "--duration", "-1"], "tupelo: --duration must be a positive"),
        (["run", "overhead", "--duration", "9"], "tupelo: --duration must be 121 or more"),
        (["sweep", "overhead", "--over", "size=a"], "tupelo: --over size must be a number"),
        (["sweep", "overhead", "--over", "size=1,1.0"], "tupelo: --over size must be different"),
        (["sweep", "whiteboard", "--set", "network=wired"], "SWEEP['loss'] must be 0 in a wired"),
        (["sweep", "all", "--seeds", "1"], "--to"),
        (["report", "nowhere"], "tupelo: DIR must be a folder in which"),
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


def test_the_same_seed_gives_the_same_logs_in_two_processes(tmp_path: Path) -> None:
    """Of all experiments: messages, records, and the files of the hosts."""

    def replayed(hash_seed: str) -> list[str]:
        program = Path(__file__).with_name("replays.py")
        answer = subprocess.run(
            [sys.executable, str(program), str(tmp_path / hash_seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return answer.stdout.splitlines()

    first = replayed("1")
    assert len(first) == len(list(experiments())) - 1
    assert replayed("2") == first


def test_hosts_wait_as_long_for_answers_as_those_of_the_product() -> None:
    async def program(host: Any) -> None:
        space = host.space("jobs")
        if host.name == "h1":
            await space.write(("job",))
        else:
            await asyncio.sleep(10)
            if await space.read(("job",), wait=0):
                lab.record("read", after=lab.now() - 10)

    world = lab.World(2, network=lab.Wired(delay=(1.5, 1.5)))
    (after,) = world.run(program, seconds=20).values("read", "after")
    assert after == pytest.approx(3, abs=0.1)
    defaults = signature(HostCore).parameters
    assert [ANSWER_SECONDS, world.heartbeat] == [
        defaults[name].default for name in ("answer_seconds", "heartbeat")
    ]


def test_an_area_or_speed_that_is_no_pair_is_refused() -> None:
    for wrong in ({"area": 200}, {"area": (1, 2, 3)}, {"speed": 2}):
        with pytest.raises(BadArgument, match=f"{next(iter(wrong))}= must be a pair"):
            lab.RandomWaypoint(**wrong)
