"""`tupelo jobs`, as the owner of a queue runs it, on a live host and on a file."""

import json
import subprocess
from typing import Any

import pytest

import tupelo as package
from tupelo.queue import JobCancelled, JobQueue
from tupelo.queue.jobs import DeadLetter, WaitingJob

HOUR = 3600


@pytest.fixture
def host():
    with package.Host("office", listen=0) as host:
        yield host


@pytest.fixture
def url(host):
    return f"{host.url}jobs"


@pytest.fixture
def space(url):
    with package.connect(url, name="worker-1") as space:
        yield space


@pytest.fixture
def queue(space):
    return JobQueue(space, "pictures")


def lines(result: subprocess.CompletedProcess[str]) -> list[Any]:
    assert (result.returncode, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def fail(text: str) -> None:
    raise OSError(f"no {text}")


def test_the_jobs_of_every_queue_are_counted(url, space, queue, tupelo):
    queue.task(name="upper")(str.upper)
    queue.task(name="fail", retries=0)(fail)
    queue.submit("upper", "a")
    queue.submit("fail", "disk")
    queue.submit("upper", "b", delay=HOUR)
    queue.work(until_empty=True, leave_delayed=True)
    queue.submit("upper", "c")
    queue.submit("upper", "d")
    sounds = JobQueue(space, "sounds")
    sounds.submit("play", delay=HOUR)
    with space.transaction() as txn:
        assert space.take(WaitingJob("pictures"), txn=txn) is not None
        pictures, others = lines(tupelo("jobs", url))
        (held,) = pictures.pop("in_hand")
        text = tupelo("jobs", url, "--text").stdout.splitlines()
        assert lines(tupelo("jobs", url, "--queue", "sounds")) == [others]
    assert (held["name"], held["id"], held["jobs"]) == ("worker-1", space.agent, 1)
    assert pictures.pop("oldest") == pytest.approx(pictures.pop("next") - HOUR, abs=HOUR / 2)
    counts = {"ready": 1, "delayed": 1, "done": 1, "dead": 1}
    assert pictures == {"queue": "pictures", **counts}
    assert (others["queue"], others["delayed"], others["oldest"]) == ("sounds", 1, None)
    assert " ".join(text[0].split()) == "queue ready delayed in hand done dead oldest next"
    assert text[1].split()[:6] == ["pictures", "1", "1", "1", "1", "1"]
    assert text[2] == "  in hand: 1 of worker-1"


def test_a_queue_whose_jobs_are_all_in_hand_is_counted(url, space, queue, tupelo):
    queue.submit("upper", "a")
    with space.transaction() as txn:
        assert space.take(txn=txn) is not None
        (row,) = lines(tupelo("jobs", url))
    assert row["queue"] is None and [one["jobs"] for one in row["in_hand"]] == [1]


def test_waiting_jobs_are_listed_and_cancelled(url, queue, tupelo):
    ready, delayed = queue.submit("upper", "a", size=1), queue.submit("upper", "b", delay=HOUR)
    first, second = lines(tupelo("jobs", url, "waiting"))
    assert (first["id"], first["arguments"], first["options"]) == (ready.id, ["a"], {"size": 1})
    assert first["visible"] is None and second["id"] == delayed.id
    assert second["visible"] - second["submitted"] == pytest.approx(HOUR, abs=HOUR / 2)
    assert (
        f"{ready.id}  pictures  ('upper', ['a'], {{'size': 1}})\n"
        in tupelo("jobs", url, "waiting", "--text").stdout
    )

    assert tupelo("jobs", url, "cancel", delayed.id).returncode == 0
    with pytest.raises(JobCancelled):
        delayed.result(0)
    again = tupelo("jobs", url, "cancel", delayed.id)
    assert (again.returncode, again.stdout) == (3, "")
    assert again.stderr == f"tupelo: {delayed.id} is no waiting job; it may be in hand\n"
    assert lines(tupelo("jobs", url, "cancel", "--all")) == []
    with pytest.raises(JobCancelled):
        ready.result(0)
    assert lines(tupelo("jobs", url, "waiting")) == []


def test_dead_letters_are_listed_and_retried(tupelo, tmp_path):
    path = tmp_path / "jobs.tupelo"
    with package.Space("jobs", path=path) as space:
        queue = JobQueue(space, "pictures")
        queue.task(name="fail", retries=0)(fail)
        jobs = [queue.submit("fail", text) for text in ("disk", "fan", "lamp")]
        queue.work(until_empty=True)
    found = lines(tupelo("jobs", path, "dead"))
    assert [one["id"] for one in found] == [job.id for job in jobs]
    assert found[0]["error"].endswith("OSError: no disk\n")
    text = tupelo("jobs", path, "dead", "--text").stdout.splitlines()
    assert (
        text[0] == f"{jobs[0].id}  pictures  ('fail', ['disk'], {{}})  failures 1  OSError: no disk"
    )

    assert tupelo("jobs", path, "retry", jobs[1].id).returncode == 0
    missing = tupelo("jobs", path, "retry", jobs[1].id)
    assert (missing.returncode, missing.stderr) == (3, f"tupelo: {jobs[1].id} is no dead letter\n")
    assert tupelo("jobs", path, "retry", "--all", "--queue", "other").returncode == 0
    assert len(lines(tupelo("jobs", path, "dead"))) == 2
    assert tupelo("jobs", path, "retry", "--all").returncode == 0
    with package.Space("jobs", path=path) as space:
        queue = JobQueue(space, "pictures")
        assert len(queue) == 3 and queue.dead() == []
        queue.task(name="fail")(str.upper)
        queue.work(until_empty=True)
        assert [queue.job(job.id).result(0) for job in jobs] == ["DISK", "FAN", "LAMP"]


def test_what_no_queue_has_written_harms_nothing(url, space, queue, tupelo):
    odd: Any = ["\x1b[31m"]
    for entry in (
        WaitingJob("\x1b[31m", "\x1b[32m", odd),
        WaitingJob(odd, odd),
        WaitingJob(),
        DeadLetter("", "id"),
        DeadLetter("\x1b[31m", "id", error=""),
    ):
        space.write(entry)
        space.write(entry, delay=HOUR)
    for action in ([], ["waiting"], ["dead"]):
        shown = tupelo("jobs", url, *action, "--text")
        assert (shown.returncode, shown.stderr) == (0, "") and "\x1b" not in shown.stdout
        assert "x1b[31m" in shown.stdout and lines(tupelo("jobs", url, *action))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["retry"], "retry needs the ID of a job, or --all"),
        (["cancel", "some", "--all"], "cancel needs the ID of a job, or --all"),
        (["dead", "some"], "an ID or --all needs retry or cancel"),
        (["burn"], "'burn' is not one of 'waiting'"),
    ],
)
def test_wrong_usage_is_said(arguments, said, tupelo):
    result = tupelo("jobs", "jobs.tupelo", *arguments)
    assert result.returncode == 2 and said in " ".join(result.stderr.split())


def test_a_queue_that_is_not_there_is_said(host, tupelo):
    missing = tupelo("jobs", f"{host.url}nothing")
    assert missing.returncode == 1 and "there is no space 'nothing'" in missing.stderr
    assert "does not exist" in tupelo("jobs", "nothing.tupelo").stderr
    host.space("empty")
    assert lines(tupelo("jobs", f"{host.url}empty")) == []


def test_delayed_entries_are_counted_and_shown(url, space, tupelo):
    space.write_all([("a", 1), ("a", 2), ("b", 3)], delay=HOUR)
    space.write(("a", 4))
    assert tupelo("count", url).stdout == "1\n"
    assert tupelo("count", url, "--delayed").stdout == "3\n"
    assert tupelo("count", url, '("a", int)', "--delayed").stdout == "2\n"
    assert "\ndelayed  3, the first until 2" in tupelo("show", url, "--text").stdout


def test_show_says_how_often_an_entry_came_back(url, space, tupelo):
    space.write_all([("a", 1), ("a", 2)])
    with space.transaction() as txn:
        space.take(("a", 1), txn=txn)
        txn.abort()
    assert '("a", 1)  (came back once)\n' in tupelo("show", url, "--text").stdout.replace("'", '"')
    told = [json.loads(line) for line in tupelo("show", url, "--json").stdout.splitlines()]
    assert {(*one["fields"],): one.get("deliveries", 0) for one in told} == {
        ("a", 1): 1,
        ("a", 2): 0,
    }
