"""A history of LIME: what the agents of a world have done, what they were told, and what is excused
because it went down with a host."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from tupelo.errors import TupeloError
from tupelo.lab.judge import Fault
from tupelo.lab.life import ProgramLife

Tuple = tuple[Any, ...]
"""Its kind, and a number that no other has. A mark has its agent instead."""

MANY = 1_000
"""No operation that takes many tuples has had more."""


@dataclass
class LimeAct:
    """One operation of one agent. How it ended is said as in a history of the federation."""

    verb: str
    agent: str
    life: ProgramLife
    kind: str
    detail: str = ""
    how: Literal["killed", "done", "cancelled", "failed"] = "killed"
    tuples: list[Tuple] = field(default_factory=list)
    error: TupeloError | None = None
    is_cut_short: bool = False
    """Was it cancelled, and its host crashed before it could give back what it had?"""

    @property
    def takes(self) -> bool:
        return self.verb in ("in_", "inp", "ing")

    def __str__(self) -> str:
        said = repr(self.error) if self.error else " ".join(map(name_of, self.tuples)) or "-"
        return f"{self.agent}: {self.verb} {self.kind} {self.detail} {self.how}: {said}"


class LimeHistory:
    """All that was done in a world. What cannot be is said at once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.acts: list[LimeAct] = []
        self.faults: list[Fault] = []
        self.fired: dict[tuple[str, str], list[Tuple]] = defaultdict(list)
        """What a reaction has fired for since it was last enabled, by its agent and its name."""
        self.met: dict[str, set[str]] = defaultdict(set)
        """The hosts of which LimeSystem has told each agent."""
        self.sunk: set[Tuple] = set()
        """What a host held when it crashed, or an agent when it ended."""
        self.unsettled: set[Tuple] = set()
        """What was on its way to a host that crashed before it could say whether it has it."""
        self.gone: set[str] = set()
        """The agents that have ended, or were with a host that crashed."""
        self.claims: list[Callable[[], Fault | None]] = []
        """What can only be judged later."""
        self._note = note

    def fault(self, invariant: str, text: str) -> None:
        self._note(f"FAULT {invariant}: {text}")
        self.faults.append(Fault(invariant, text))

    async def record(self, act: LimeAct, work: Coroutine[Any, Any, Any]) -> Any:
        """Do it, and write down what comes of it. None if it fails."""
        self.acts.append(act)
        answer = None
        try:
            answer = await work
            act.how = "done"
            if act.verb != "out":
                act.tuples = (
                    answer if isinstance(answer, list) else [] if answer is None else [answer]
                )
        except asyncio.CancelledError:
            act.how = "killed" if act.life.leaving else "cancelled"
            raise
        except TupeloError as error:
            act.how = "killed" if act.life.leaving else "failed"
            act.error = error
        finally:
            self._note(str(act))
        return answer

    def written(self, kind: str) -> set[Tuple]:
        """What surely was, of a kind."""
        return {
            one
            for act in self.acts
            if act.verb == "out" and act.kind == kind and act.how == "done"
            for one in act.tuples
        }

    # Reactions

    def enabled(self, agent: str, name: str) -> None:
        """It has forgotten what it reacted to before."""
        self.fired[agent, name] = []

    def reacted(self, agent: str, name: str, to: Tuple, *, once: bool) -> None:
        self._note(f"{agent}: {name} reacts to {name_of(to)}")
        before = self.fired[agent, name]
        if to in before or (once and before):
            self.fault("reacted twice", f"{name} of {agent} to {name_of(to)}")
        before.append(to)

    # What may be taken for lost

    def lose_cancelled(self, life: ProgramLife) -> None:
        """A host crashes while something is under way that nobody waits for any more."""
        for act in self.acts:
            if act.life is life and act.how == "cancelled":
                act.is_cut_short = True

    def excuses(self) -> Counter[str]:
        """How many tuples of each kind may have gone with those who were about to have them."""
        excuses: Counter[str] = Counter()
        for act in self.acts:
            if act.takes and (act.how == "killed" or act.is_cut_short):
                excuses[act.kind] += MANY if act.verb == "ing" else 1
        return excuses


def name_of(entry: Tuple) -> str:
    return ":".join(map(str, entry))
