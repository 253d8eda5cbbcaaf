"""The tour: producers, workers, a worker that dies, a process that is killed, and recovery.

All figures are measured. A child process (the workshop) owns a durable space and reports the
operations that were acknowledged; the tour kills it, opens the file, and compares the two.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from secrets import token_urlsafe
from shutil import which
from socket import socket

from msgspec.json import decode, encode
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from tupelo import Host, Space, TupeloError
from tupelo.apps import workshop
from tupelo.apps.workshop import (
    DOOMED,
    JOB,
    PRODUCERS,
    RESULT,
    TALLY,
    WORKERS,
    Pace,
    WorkshopEvent,
    WorkshopPlace,
)
from tupelo.errors import BadInput
from tupelo.models import lime
from tupelo.models.lime import LimeTupleSpace, UbiquitousReaction

SILENCE_MAX_SECONDS = 30.0
EVENT = (str, int, str)
PICTURE = ("picture", str, str)  # of the rover or the drone, of a place


class TourFailed(Exception):
    """The tour cannot continue, or found an inconsistency."""


class Child:
    """A process that owns the space. The reports of the process are added to `reports`."""

    def __init__(self, place: WorkshopPlace, seed: int, pace: Pace, reports: Reports) -> None:
        arguments = [encode(place).decode(), str(seed), encode(pace).decode()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", workshop.__name__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._reports = reports
        self._inbox = Space("inbox")
        self._listener = workshop.start(self._listen)

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # It has ended, which the next event says.
            self._process.stdin.write(f"{command}\n".encode())
            self._process.stdin.flush()

    def events(self) -> Iterator[tuple[str, int, str]]:
        """The reports of the process, as they arrive."""
        return events(self._inbox, self._reports)

    def kill(self) -> int:
        """Send SIGKILL, and read the remaining reports. Returns the exit code."""
        self._process.kill()
        code = self._process.wait()
        self._listener.join()
        for event in self._inbox.take_all(EVENT):
            self._reports.note(*event)
        return code

    def _listen(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                event = decode(line, type=WorkshopEvent)
                self._inbox.write((event.what, event.job, event.by))
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._inbox.write(("ended", self._process.wait(), ""))


def events(inbox: Space, reports: Reports) -> Iterator[tuple[str, int, str]]:
    """The reports in the inbox, also added to `reports`."""
    while True:
        event = inbox.take(EVENT, wait=SILENCE_MAX_SECONDS)
        if event is None:
            raise TourFailed(f"the workshop has said nothing for {SILENCE_MAX_SECONDS:.0f} s")
        what, job, by = event
        if what == "ended":
            raise TourFailed(f"the workshop's process ended by itself, with exit code {job}")
        reports.note(what, job, by)
        yield what, job, by


@dataclass
class Reports:
    """The reports of producers and workers, each made after the acknowledgement."""

    written: set[int] = field(default_factory=set)
    begun: Counter[int] = field(default_factory=Counter)
    finished: set[int] = field(default_factory=set)
    died: dict[int, str] = field(default_factory=dict)
    in_hand: dict[int, str] = field(default_factory=dict)

    def note(self, what: str, job: int, by: str) -> None:
        match what:
            case "written":
                self.written.add(job)
            case "begun":
                self.begun[job] += 1
                self.in_hand[job] = by
            case "finished":
                self.finished.add(job)
                self.in_hand.pop(job, None)
            case "died":
                self.died[job] = by
                self.in_hand.pop(job, None)


@dataclass(frozen=True)
class FileFacts:
    """The content of a space, and of its log."""

    written: Counter[int]
    taken: Counter[int]
    waiting: Counter[int]
    results: Counter[int]
    tally: int
    changes: int

    def lost(self, promised: set[int]) -> set[int]:
        """Jobs whose write was acknowledged, and which are neither waiting nor done."""
        return (promised | set(self.written)) - set(self.waiting) - set(self.results)

    @property
    def repeated(self) -> set[int]:
        """Jobs that were done twice, or are done and waiting."""
        counts = (self.taken, self.results, self.waiting + self.results)
        return {job for count in counts for job, times in count.items() if times > 1}


def look(space: Space) -> FileFacts:
    log = space.changes()
    jobs = [(change.kind, change.entry[1]) for change in log if (change.entry or "?")[0] == "job"]
    return FileFacts(
        written=Counter(job for kind, job in jobs if kind == "written"),
        taken=Counter(job for kind, job in jobs if kind == "taken"),
        waiting=Counter(job for _, job, _, _ in space.read_all(JOB)),
        results=Counter(job for _, job, _, _ in space.read_all(RESULT)),
        tally=sum(tally for _, tally in space.read_all(TALLY)),
        changes=log[-1].position if log else 0,
    )


def examine(reports: Reports, found: FileFacts) -> list[tuple[str, bool]]:
    """The invariants, and whether they hold."""
    return [
        (
            "every write that a producer saw acknowledged is in the log",
            reports.written <= set(found.written),
        ),
        (
            "every job that a worker saw acknowledged as finished has its result",
            reports.finished <= set(found.results),
        ),
        ("no job is lost: each one is waiting or done", not found.lost(reports.written)),
        ("no job is repeated: none is done twice, or done and waiting", not found.repeated),
        (
            "the tally that the reaction keeps equals the number of results",
            found.tally == found.results.total(),
        ),
    ]


FILE_NAME = "tour.tupelo"
WIDTH = 88
CALM = Pace(job_min=0.7, job_max=1.5, write_every=0.9, lease=3.0)
FAST = Pace(job_min=0.08, job_max=0.18, write_every=0.08, lease=0.8)
NOTICES = 8


NEXT = (
    "Write your own: job_queue.py, chat.py and async_workers.py in examples/",
    "Look into a file: tupelo show FILE, tupelo log FILE (README, 'Command line')",
    "Templates, leases, transactions, reactions: docs/TUTORIAL.md",
)


def place_in(folder: Path, *, short: bool) -> WorkshopPlace:
    """A folder for the tour below this folder. Without `short`, also free ports for a host and its
    console. Raises BadInput if a package for the host or the console is not installed."""
    if short:
        return WorkshopPlace(str(folder / FILE_NAME))
    for package in ("uvicorn", "pyspark"):
        if find_spec(package) is None:
            extras = 'pip install "tupelo[console,pipeline]", or tupelo tour --short'
            raise BadInput(f"the whole tour needs {package}: {extras}")
    with socket() as one, socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        listen, console = (f"127.0.0.1:{free.getsockname()[1]}" for free in (one, other))
    return WorkshopPlace(str(folder / workshop.HOST), listen, console, token_urlsafe(24))


class Tour:
    """The tour. If the space is at a host, three hosts meet after it, and Spark reads the logs."""

    def __init__(self, console: Console, place: WorkshopPlace, seed: int, *, fast: bool) -> None:
        self.console = console
        self.place = place
        self.seed = seed
        self.pace = FAST if fast else CALM
        self.pause_seconds = 0.0 if fast else 1.5
        self.reports = Reports()
        self.began = time.monotonic()

    def run(self) -> bool:
        """Run the tour. Returns False if an invariant does not hold."""
        self._welcome()
        try:
            with self._child() as child:
                self._produce(child)
                self._work(child)
                self._lose_a_worker(child)
                self._lose_the_process(child)
            with self.place.open() as (space, host):
                after_crash = self._reopen(space)
                self._finish(space, after_crash)
                at_end = look(space)
                self._check(at_end)
                self._summarise(after_crash, at_end)
                if host is not None:
                    self._meet(host)
                    self._analyse()
                self._point_on()
                if host is not None:
                    self._stay(host)
        except (TourFailed, TupeloError) as failure:
            self.console.print(f"\nTHE TOUR FAILED: {failure}", style="bold red", markup=False)
            return False
        return True

    @contextmanager
    def _child(self) -> Iterator[Child]:
        child = Child(self.place, self.seed, self.pace, self.reports)
        try:
            yield child
        finally:
            child.kill()

    # Parts

    def _welcome(self) -> None:
        if self.place.listen is not None:
            self._say("The console of the tour's host, to watch all this:")
            self._say(f"  {self.place.console_url}", "bold")
        text = (
            "Programs meet in a space: they write entries and find them by content. Here,"
            " producers and workers share a durable one. A worker dies in mid-job, then the whole"
            " process is killed, and we look at what the file still knows."
        )
        self.console.print(Panel(text, title="A tour of Tupelo", title_align="left"))
        self._say(f"The file: {self.place.path} (seed {self.seed})")

    def _produce(self, child: Child) -> None:
        self._part(
            "1. Producers write jobs",
            f"A child process (pid {child.pid}) opens the space. {len(PRODUCERS)} producers,"
            ' threads in it, write jobs such as ("job", 1001, "resize", 0.9). A write returns when'
            " the job is on disk.",
        )
        child.tell("produce")
        stocked = 0
        for what, count, by in child.events():
            if what == "stocked":
                stocked += 1
                self._say(f"  {by} has written {count} jobs in one step, and goes on writing")
            if stocked == len(PRODUCERS):
                break

    def _work(self, child: Child) -> None:
        self._part(
            "2. Workers do them",
            f"{len(WORKERS)} workers take a job, do it, and write its result, in one transaction."
            " A subscription tells us of each result; a reaction counts them inside the same"
            " atomic step.",
        )
        child.tell("work")
        seen = 0
        for what, job, by in child.events():
            seen += self._show_notice(what, job, by)
            if seen == NOTICES:
                break

    def _lose_a_worker(self, child: Child) -> None:
        self._part(
            "3. A worker dies in mid-job",
            f"{DOOMED} takes a job and dies: no commit, no abort, no word. While the lease of his"
            f" transaction ({self.pace.lease:g} s) runs, the job is his; after that, anyone's.",
        )
        child.tell("fail")
        held, since = 0, 0.0
        for what, job, by in child.events():
            self._show_notice(what, job, by)
            if by == DOOMED and what == "begun":
                held, since = job, time.monotonic()
                self._say(f"  {DOOMED} has begun job {job}")
            elif by == DOOMED and what == "died":
                self._say(f"  {DOOMED} is dead, and holds job {job}", "yellow")
            elif job == held and what == "begun":
                waited = time.monotonic() - since
                self._say(f"  the lease ran out: after {waited:.1f} s {by} has job {job}", "yellow")
            elif job == held and what == "finished":
                break

    def _lose_the_process(self, child: Child) -> None:
        reports = self.reports
        self._part(
            "4. The process dies",
            "Now the child is killed, with SIGKILL, in the middle of its work.",
        )
        goal = len(reports.finished) + random.Random(self.seed).randint(3, 6)
        for what, job, by in child.events():
            self._show_notice(what, job, by)
            if len(reports.finished) >= goal and len(reports.in_hand) >= 2:
                break
        code = child.kill()
        hands = ", ".join(f"{by} {job}" for job, by in sorted(reports.in_hand.items()))
        self._say(f"  killed pid {child.pid} (exit code {code})", "yellow")
        told = f"{len(reports.written)} jobs written and {len(reports.finished)} finished"
        self._say(f"  it had told us of {told},")
        self._say(f"  and in hand: {hands or 'none'}")

    def _reopen(self, space: Space) -> FileFacts:
        self._part(
            "5. The file is opened again",
            "What was acknowledged must be there; what was finished must not come back; a job that"
            " was in someone's hands must be free again: its transaction died with the process.",
        )
        found = look(space)
        back = set(self.reports.in_hand) & set(found.waiting)
        self._say(
            f"  {found.written.total()} jobs in the log, {found.results.total()} results,"
            f" {found.waiting.total()} jobs waiting, {len(back)} of which were in hand"
        )
        unreported = len(set(found.written) - self.reports.written)
        unreported += len(set(found.results) - self.reports.finished)
        if unreported:
            self._say(f"  {unreported} more reached the disk, but nobody lived to hear of it")
        self._check(found)
        return found

    def _finish(self, space: Space, found: FileFacts) -> None:
        self._part("6. The rest is done", "New workers, in this process, finish what is left.")
        inbox = Space("inbox")
        # The existing results were counted in the steps that wrote them.
        space.react(workshop.RESULT, workshop.count_result, existing=False)

        def report(what: str, job: int, by: str) -> None:
            inbox.write((what, job, by))

        columns = TextColumn("  jobs"), BarColumn(30), MofNCompleteColumn()
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task("jobs", total=found.waiting.total())
            for name in WORKERS:
                workshop.start(workshop.work, space, name, self.pace, report, to_the_end=True)
            working = len(WORKERS)
            for what, _, _ in events(inbox, self.reports):
                progress.advance(task, what == "finished")
                working -= what == "left"
                if not working:
                    break
        self._say("The same checks, now that all is done:")

    def _meet(self, base: Host) -> None:
        self._part(
            "7. Three hosts meet, part and meet again",
            "A rover and a drone come into range of this host. With LIME their tuples are one space"
            " while they are engaged; when they part, each keeps its own and works on.",
        )
        folder = Path(self.place.path).parent
        listen, peers = "127.0.0.1:0", [base.address]
        with (
            lime.Host(base) as at_base,
            lime.Host("rover", path=folder / "rover", listen=listen, peers=peers) as rover,
            lime.Host("drone", path=folder / "drone", listen=listen, peers=peers) as drone,
        ):
            agents = [host.agent(host.name) for host in (at_base, rover, drone)]
            here, away, above = (LimeTupleSpace("site", agent) for agent in agents)
            for space in (here, away, above):
                space.set_shared(True)
            at_rover = agents[1].location
            heard = Space("heard")
            here.add_weak_reaction(
                UbiquitousReaction(
                    PICTURE, lambda event: heard.write(event.tuple), lime.ONCE_PER_TUPLE
                )
            )

            def hear(*pictures: tuple[str, str, str]) -> None:
                for picture in pictures:
                    if heard.take(picture, wait=SILENCE_MAX_SECONDS) is None:
                        raise TourFailed(f"base has not heard of {picture}")
                    self._say(f"  base hears of {picture}")

            away.out(("picture", "rover", "north gate"))
            above.out(("picture", "drone", "roof"))
            hear(("picture", "rover", "north gate"), ("picture", "drone", "roof"))
            rover.disengage()
            pictures = [("picture", "rover", gate) for gate in ("south gate", "west gate")]
            for picture in pictures:
                away.out(picture)
            seen = len(here.rdg(PICTURE))
            self._say(f"  rover is out of range, and takes 2 pictures more; base sees {seen}")
            here.out(("task", "east gate"), destination=at_rover)
            self._say("  base writes a task for rover, which waits at base")
            rover.engage()
            hear(*pictures)
            task = away.ing(("task", str), current=at_rover)
            seen = len(here.rdg(PICTURE))
            self._say(f"  rover is back, and has {task}; base sees {seen} pictures")
            if (task, seen) != ([("task", "east gate")], 4) or heard.count(PICTURE):
                raise TourFailed("after the hosts had met again, a tuple was lost or doubled")

    def _analyse(self) -> None:
        folder = Path(self.place.path).parent
        hosts = [str(folder / name) for name in (workshop.HOST, "rover", "drone")]
        report = self.place.report
        self._part(
            "8. Spark reads the logs of all this",
            "Everything that happened is a change in a log. The pipeline audits the logs of the"
            " three hosts, from write to take, and writes a report. This takes a while:",
        )
        command = ["pipeline", "report", *hosts, "--to", str(report)]
        self._say(f"  tupelo {' '.join(command)}")
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "tupelo", *command])
        if done.returncode:
            raise TourFailed("the audit found a fault, or the pipeline could not run: see above")
        self._say(
            f"  the audit found no fault; {time.monotonic() - began:.0f} s, the report:"
            f" {report / 'report.html'}",
            "green",
        )

    def _stay(self, host: Host) -> None:
        self._say("The console, with the report:")
        self._say(f"  {self.place.console_url}", "bold")
        if self.console.is_terminal:
            command = "tupelo" if which("tupelo") else sys.argv[0]
            self._say("It stays until Ctrl-C. Meanwhile, in another terminal:")
            self._say(f"  {command} show {host.url}{workshop.SPACE}", "bold")
            with suppress(KeyboardInterrupt):
                while True:
                    time.sleep(3600)

    # Output

    def _check(self, found: FileFacts) -> None:
        wrong = 0
        for text, holds in examine(self.reports, found):
            self._say(
                f"  ok    {text}" if holds else f"  WRONG {text}", "green" if holds else "red"
            )
            wrong += not holds
        if wrong:
            raise TourFailed(
                f"{wrong} of these must hold and do not; take the tour again with --keep DIR"
                " to look at the file"
            )

    def _summarise(self, after_crash: FileFacts, at_end: FileFacts) -> None:
        reports = self.reports
        recovered = set(after_crash.waiting) & set(at_end.results)
        table = Table(title="Summary", title_justify="left", box=box.SIMPLE, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for label, figure in (
            ("Jobs written", at_end.written.total()),
            ("Jobs finished", at_end.results.total()),
            ("Lost", len(at_end.lost(reports.written))),
            ("Done twice", len(at_end.repeated)),
            ("Begun more than once", sum(times > 1 for times in reports.begun.values())),
            ("Recovered from a dead worker", len(set(reports.died) & set(at_end.results))),
            ("Recovered after the crash", len(recovered)),
            ("Changes in the log", at_end.changes),
            ("Time", f"{time.monotonic() - self.began:.1f} s"),
        ):
            table.add_row(label, str(figure))
        self.console.print()
        self.console.print(table)

    def _point_on(self) -> None:
        self._say("Where to go next:")
        for line in NEXT:
            self._say(f"  {line}")

    def _show_notice(self, what: str, job: int, by: str) -> bool:
        if what == "notice":
            self._say(f"  result of job {job}, by {by}")
        return what == "notice"

    def _part(self, title: str, text: str) -> None:
        self._pause()
        self.console.print()
        self.console.rule(title, align="left", characters="-", style="bold")
        self._say(text)
        self._pause()

    def _say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, highlight=False)

    def _pause(self) -> None:
        time.sleep(self.pause_seconds)
