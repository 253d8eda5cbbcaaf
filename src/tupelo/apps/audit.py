"""The audit of the tour: what the workshop was told against what the file has kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tupelo import Space
from tupelo.apps.workshop import JOB, RESULT, TALLY


@dataclass
class Heard:
    """What the producers and workers have told, each thing after it was acknowledged to them."""

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
    """What a space holds, and what its log says has happened in it."""

    written: Counter[int]
    taken: Counter[int]
    waiting: Counter[int]
    results: Counter[int]
    tally: int
    changes: int

    def lost(self, promised: set[int]) -> set[int]:
        """Jobs that were promised, or written, and are neither waiting nor done."""
        return (promised | set(self.written)) - set(self.waiting) - set(self.results)

    @property
    def repeated(self) -> set[int]:
        """Jobs that were done twice, or that are done and wait to be done again."""
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


def examine(heard: Heard, found: FileFacts) -> list[tuple[str, bool]]:
    """What must hold at any time, and whether it does."""
    return [
        (
            "every write that a producer saw acknowledged is in the log",
            heard.written <= set(found.written),
        ),
        (
            "every job that a worker saw acknowledged as finished has its result",
            heard.finished <= set(found.results),
        ),
        ("no job is lost: each one is waiting or done", not found.lost(heard.written)),
        ("no job is repeated: none is done twice, or done and waiting", not found.repeated),
        (
            "the tally that the reaction keeps equals the number of results",
            found.tally == found.results.total(),
        ),
    ]
