"""The history of a space: lives of entries, rates and latencies, from real logs."""

import os
import re
from pathlib import Path

from playwright.sync_api import expect

import tupelo
from tests.apps.console.conftest import Http
from tupelo.apps.console import Console
from tupelo.apps.console.history import BUCKETS_MAX, CHANGES_MAX, EVENTS_MAX, LIVES_MAX, history_of
from tupelo.values.template import as_template

JOBS = "/api/spaces/jobs"


def test_the_life_of_an_entry_from_write_to_take(http, host):
    with tupelo.connect(host.url + "jobs", name="worker-1") as worker:
        worker.write(("job", 1), lease=600).renew(900)
        host.space("jobs").write(("job", 2))
        with worker.transaction() as txn:
            worker.take(("job", 1), txn=txn)
    said = http.ok(f"{JOBS}/history", {"template": '("job", int)'})
    assert [one["entry"] for one in said["lives"]] == [["job", 1], ["job", 2]]
    life = said["lives"][0]
    assert [one["kind"] for one in life["events"]] == ["written", "renewed", "taken"]
    assert {one["name"] for one in life["events"]} == {"worker-1"}
    assert life["events"][-1]["txn"]
    assert life["seconds"] >= 0
    assert said["lives"][1]["seconds"] is None
    assert sum(said["chart"]["rates"]["written"]) * said["chart"]["seconds"] == 2


def test_rates_and_latencies_are_those_of_the_log():
    clock = tupelo.ManualClock()
    space = tupelo.Space("jobs", clock=clock, log_keep=10_000)
    for n in range(600):
        space.write(("job", n))
        clock.advance(1)
        if n >= 9:
            space.take(("job", n - 9))
    said = history_of(space.changes(), as_template(("job", 7)))
    [life] = said["lives"]
    assert life["seconds"] == 10
    chart = said["chart"]
    assert (len(chart["rates"]["written"]), chart["seconds"]) == (BUCKETS_MAX, 10)
    assert chart["rates"]["written"][1:-1] == [1.0] * (BUCKETS_MAX - 2)
    assert chart["latencies"]["entries stayed"][2] == 10
    assert set(chart["latencies"]["takers waited"][1:]) == {0.0}


def test_an_empty_log_has_an_empty_history(http):
    http.ok(f"{JOBS}/count", {})
    said = http.ok(f"{JOBS}/history", {})
    assert (said["changes"], said["lives"], said["chart"]["rates"]) == (0, [], {})


def test_history_has_bounds(http, host):
    jobs = host.space("jobs")
    lease = jobs.write(("first",), lease=600)
    jobs.write_all([("job", n) for n in range(CHANGES_MAX + 500)])
    for _ in range(EVENTS_MAX + 10):
        lease.renew(600)
    said = http.ok(f"{JOBS}/history", {})
    assert (said["changes"], len(said["lives"])) == (CHANGES_MAX, LIVES_MAX)
    first = said["lives"][0]
    assert (first["entry"], len(first["events"])) == (["first"], EVENTS_MAX)


def test_a_space_without_a_log_has_no_history():
    with tupelo.Host("memory", listen="127.0.0.1:0") as host, Console(host.url) as console:
        http = Http(console)
        http.ok(f"{JOBS}/write", {"entry": ["x"]})
        status, said = http.call("POST", f"{JOBS}/history", {})
        assert (status, said["error"]) == (410, "LogTrimmed")


def test_the_page_shows_charts_and_lives(console, host, open_page, tmp_path):
    jobs = host.space("jobs")
    for n in range(40):
        jobs.write(("job", n, "resize"))
        if n % 2:
            jobs.take(("job", n, str))
    page = open_page(console.url, viewport={"width": 900, "height": 700})
    page.get_by_role("link", name="jobs").click()
    page.get_by_role("link", name="History").click()
    expect(page.get_by_role("img")).to_have_count(2)
    expect(page.get_by_role("img").first).to_have_attribute(
        "aria-label", re.compile("Changes per second. written: last .*; taken: last .*")
    )
    lives = page.locator(".lives > li")
    expect(lives).to_have_count(40)
    page.get_by_label("Template").fill('("job", 7, ANY)')
    page.get_by_role("button", name="Show").click()
    expect(lives).to_have_count(1)
    lives.first.locator("summary").click()
    expect(lives.first.locator("ol li").nth(1)).to_contain_text("taken by kitchen")
    folder = Path(os.environ.get("TUPELO_ARTEFACTS", tmp_path))
    page.screenshot(path=folder / "history.png")
