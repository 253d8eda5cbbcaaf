"""The command `tupelo jobs`: the job queues in a space, for their owner."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

import tupelo
from tupelo.apps.shell import (
    NO_MATCH,
    PASSWORD_HELP,
    SPACE_HELP,
    aligned,
    clear_errors,
    complain,
    examples,
    in_json,
    json_option,
    json_text,
    say,
    space_argument,
    trust_option,
)
from tupelo.apps.spaces import PAGE, URL, opened
from tupelo.errors import without_password
from tupelo.queue import DeadLetter, Job, JobQueue, queue_names
from tupelo.queue.jobs import WaitingJob, submitted_at
from tupelo.values.entry import Typed, freeze
from tupelo.values.text import as_json, entry_text, one_line

ACTIONS = ("waiting", "dead", "retry", "cancel")
A_NAME = tupelo.Exactly(str) & tupelo.Not("")
Row = dict[str, Any]


@click.command(
    epilog=examples(
        f"tupelo jobs {URL}/jobs",
        "tupelo jobs jobs.tupelo waiting --queue pictures",
        f"tupelo jobs {URL}/jobs dead",
        f"tupelo jobs {URL}/jobs retry --all",
        "tupelo jobs jobs.tupelo cancel 019a9635e6f57c3e8b1f0c2d4a5b6c7d",
        notes=f"{SPACE_HELP} {PASSWORD_HELP} Without an ACTION it prints the number of jobs of"
        " each queue. ACTION waiting lists the jobs that no worker has begun; dead lists the jobs"
        " that have failed for good; retry ID puts dead jobs into the queue again; cancel ID"
        " removes waiting jobs, including delayed ones. Exit code 3: a job ID was not found.",
    )
)
@space_argument
@click.argument("action", metavar="[ACTION]", required=False, type=click.Choice(ACTIONS))
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--all", "all_", is_flag=True, help="With retry: all dead jobs. With cancel: all waiting jobs."
)
@click.option("--queue", metavar="NAME", help="Only the jobs of this queue.")
@json_option
@trust_option
def jobs(
    space: str,
    action: str | None,
    ids: tuple[str, ...],
    all_: bool,
    queue: str | None,
    json: bool | None,
    trust: str | None,
) -> None:
    """Print the jobs of queues: ready, delayed, in hand, done and dead; retry or cancel jobs."""
    changes = action in ("retry", "cancel")
    if changes and all_ == bool(ids):
        raise click.UsageError(f"{action} needs the ID of a job, or --all")
    if not changes and (ids or all_):
        raise click.UsageError("an ID or --all needs retry or cancel")
    with clear_errors(), opened(space, trust) as target:
        if action is None:
            _print_status(target, queue, in_json(json))
        elif action == "waiting":
            _print_jobs(_waiting(target, queue), in_json(json))
        elif action == "dead":
            _print_jobs(
                ((one, None) for one in _pages(target, _of(DeadLetter, queue))), in_json(json)
            )
        else:
            _change(target, action, queue, ids)


def _print_status(space: tupelo.SpaceLike, queue: str | None, as_lines: bool) -> None:
    names = [queue] if queue is not None else queue_names(space)
    statuses = [JobQueue(space, name).status() for name in names]
    rows = [vars(status) | {"in_hand": _by_taker(status.in_hand)} for status in statuses]
    others: Any = A_NAME & tupelo.Not(tupelo.OneOf("", *names))
    if queue is None and (held := _by_taker(space.in_hand(WaitingJob(others)))):
        rows.append({"queue": None, "in_hand": held})  # Their queues have nothing else.
    if as_lines:
        for row in rows:
            print(json_text(row), flush=True)
        return
    if not rows:
        print("No jobs are here." if queue is None else f"The queue {one_line(queue)!r} is empty.")
        return
    now = time.time()
    lines: list[tuple[str, ...]] = [
        ("queue", "ready", "delayed", "in hand", "done", "dead", "oldest", "next")
    ]
    for row in rows:
        oldest, next_ = row.get("oldest"), row.get("next")
        lines.append(
            (
                one_line(row["queue"] or "-"),
                *(str(row.get(name, "-")) for name in ("ready", "delayed")),
                str(sum(one["jobs"] for one in row["in_hand"])),
                *(str(row.get(name, "-")) for name in ("done", "dead")),
                "-" if oldest is None else f"{max(0.0, now - oldest):.0f} s ago",
                "-" if next_ is None else f"in {max(0.0, next_ - now):.0f} s",
            )
        )
    titles, *shown = aligned(lines)
    print(titles)
    for line, row in zip(shown, rows, strict=True):
        print(line)
        for held in row["in_hand"]:
            print(f"  in hand: {held['jobs']} of {one_line(held['name'] or held['id'])}")


def _by_taker(held: Iterable[tupelo.InHand]) -> list[Row]:
    jobs: Counter[tuple[str, str]] = Counter()
    for one in held:
        jobs[one.agent_name, one.agent] += one.entries
    return [{"name": name, "id": id_, "jobs": count} for (name, id_), count in jobs.items()]


def _waiting(space: tupelo.SpaceLike, queue: str | None) -> Iterator[tuple[Any, float | None]]:
    """The ready jobs, and then the delayed jobs with the times at which they become ready."""
    for job in _pages(space, _of(WaitingJob, queue)):
        yield job, None
    for visible, job in space.delayed(_of(WaitingJob, queue)).entries:
        yield job, visible


def _of(kind: Any, queue: str | None) -> Any:
    """The template of jobs. Other programs may have written entries with other types."""
    return kind(A_NAME if queue is None else queue, A_NAME)


def _pages(space: tupelo.SpaceLike, template: Any) -> Iterator[Any]:
    with space.session() as session:
        while page := session.read_all(template, limit=PAGE, wait=0):
            yield from page


def _print_jobs(found: Iterable[tuple[Any, float | None]], as_lines: bool) -> None:
    now = time.time()
    for job, visible in found:
        shape, fields = freeze(job)
        assert shape.kind is not None
        if as_lines:
            row = as_json(Typed(shape.kind, fields)) | {"submitted": submitted_at(job.id)}
            if isinstance(job, WaitingJob):
                row["visible"] = visible
            print(json_text(row), flush=True)
            continue
        what = entry_text(*freeze((job.task, job.arguments, job.options)))
        notes = [f"failures {job.failures!r}"] if job.failures else []
        notes += [] if visible is None else [f"in {max(0.0, visible - now):.0f} s"]
        if isinstance(job, DeadLetter):
            notes += [without_password(one_line(line)) for line in str(job.error).splitlines()[-1:]]
        print("  ".join((one_line(job.id), one_line(job.queue), what, *notes)), flush=True)


def _change(space: tupelo.SpaceLike, action: str, queue: str | None, ids: tuple[str, ...]) -> None:
    """Retry or cancel these jobs, or all. Exits with NO_MATCH if a named job does not exist."""
    do: Callable[[JobQueue, str], bool]
    if action == "retry":
        do, missing = JobQueue.retry, "no dead letter"
        found = {job.id: job.queue for job in _pages(space, _of(DeadLetter, queue))}
    else:
        do, missing = lambda of, id_: Job(of, id_).cancel(), "no waiting job; it may be in hand"
        found = {job.id: job.queue for job, _ in _waiting(space, queue)}
    done = 0
    absent = []
    for id_ in ids or found:
        if id_ in found and do(JobQueue(space, found[id_]), id_):
            done += 1
        elif ids:  # With --all, others may have been faster.
            absent.append(id_)
    say(f"{done} {'in the queue again' if action == 'retry' else 'cancelled'}")
    for id_ in absent:
        complain(f"{one_line(id_)} is {missing}")
    if absent:
        sys.exit(NO_MATCH)
