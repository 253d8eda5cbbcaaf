"""Linearizability: could every operation have taken effect at one moment between call and return?

A history is a list of operations. Each belongs to a class: the entries that one template matches.
Classes are checked one by one, which is equivalent to all at once and much cheaper. The search is
Wing and Gong's with Lowe's memoization: place an operation that may come next, go on, and backtrack
when none can. Most placements need no search:

- An operation that changes nothing (a read of an entry that is there, no match where there is none)
  is placed at once.
- A write is placed at once, unless an operation that found nothing could come before it.
- A take is placed at once, unless a read of the same entry could come before it.

An operation with an unknown outcome returns at `inf`: it took effect at some time after its call,
or never. Such a write is placed where an operation needs its entry, such a take where an operation
found nothing although an entry was left."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

Kind = Literal["write", "read", "take"]
CheckResult = Literal["yes", "no", "undecided"]

SHOWN_MAX = 10


class TimedOperation(NamedTuple):
    """One operation on one entry; one on many entries is recorded as many.

    `call` and `ret` are in any unit of time; where they are equal, either may have come first.
    `entry` was written, read or taken; None means no match. Whether a read or take would have
    waited makes no difference: no match means that there was a moment without one."""

    call: float
    ret: float
    kind: Kind
    key: Hashable
    entry: Hashable | None
    process: str = ""

    def __str__(self) -> str:
        if self.ret == inf and self.entry is None:
            said = "unknown"
        else:
            said = "no match" if self.entry is None else repr(self.entry)
        return f"{self.process or 'someone'}: {self.kind} {said}, {self.call:g} to {self.ret:g}"


@dataclass(frozen=True)
class LinearizeVerdict:
    """The result: `undecided` if the budget ended first; `why` explains a "no"."""

    answer: CheckResult
    why: str = ""
    steps: int = 0


def check(operations: Iterable[TimedOperation], budget: int = 1_000_000) -> LinearizeVerdict:
    """Check whether a history is linearizable. After `budget` placements no more search is begun;
    classes that need no search are checked all the same."""
    classes: dict[Hashable, list[TimedOperation]] = {}
    for operation in operations:
        classes.setdefault(operation.key, []).append(operation)
    steps, undecided = 0, []
    for key, history in classes.items():
        search = _Search(history, budget - steps)
        answer = search.run()
        steps += search.steps
        if answer == "no":
            return LinearizeVerdict("no", f"class {key!r}: {search.explain()}", steps)
        if answer == "undecided":
            undecided.append(key)
    if undecided:
        return LinearizeVerdict("undecided", f"the budget of {budget} was not enough", steps)
    return LinearizeVerdict("yes", "", steps)


class _Placed(NamedTuple):
    """A placed operation, with the unknown operations that were placed just before it."""

    number: int
    written: Hashable | None = None
    removed: tuple[Hashable, ...] = ()


@dataclass
class _DeadEnd:
    """The farthest point that the search has reached, for the explanation."""

    placed: list[int]
    candidates: list[int]
    present: list[Hashable]


class _Search:
    """The search in one class. The operations that are not placed yet are a linked list by call."""

    def __init__(self, history: list[TimedOperation], budget: int) -> None:
        self.steps = 0
        self._budget = budget
        self._operations = sorted((o for o in history if o.ret != inf), key=lambda o: o.call)
        unknown = sorted((o for o in history if o.ret == inf), key=lambda o: o.call)
        self._unknown_takes = [o.call for o in unknown if o.kind == "take"]
        self._unknown_writes: dict[Hashable, list[float]] = {}
        for operation in unknown:
            if operation.kind == "write":
                self._unknown_writes.setdefault(operation.entry, []).append(operation.call)
        self._writes = Counter(o.entry for o in history if o.kind == "write")
        self._blockers = self._find_blockers()

        count = self._head = len(self._operations)
        self._next = [*range(1, count + 1), 0]
        self._previous = [count, *range(count)]
        self._is_placed = bytearray(count)
        self._trail: list[tuple[_Placed, int, int]] = []
        # All operations before base are placed; each later one has a bit in the mask.
        self._base = self._mask = 0
        self._present: Counter[Hashable] = Counter()
        self._size = 0
        self._used: Counter[Hashable] = Counter()  # unknown writes
        self._removed: Counter[Hashable] = Counter()  # by unknown takes
        self._dead_end = _DeadEnd([], [], [])

    def _find_blockers(self) -> list[list[int]]:
        """The operations that might have to come first: for each write the overlapping operations
        that found nothing, for each take the overlapping reads of its entry."""
        operations = self._operations
        blockers: list[list[int]] = [[] for _ in operations]
        active: list[int] = []
        for index, operation in enumerate(operations):
            active = [other for other in active if operations[other].ret >= operation.call]
            for other in active:
                if _blocks(operations[other], operation):
                    blockers[index].append(other)
                elif _blocks(operation, operations[other]):
                    blockers[other].append(index)
            active.append(index)
        return blockers

    def run(self) -> CheckResult:
        seen: set[Hashable] = set()
        branches: list[tuple[int, list[_Placed]]] = []
        while True:
            moves = self._advance()
            if self._next[self._head] == self._head:
                return "yes"
            position = self._position()
            if position not in seen:
                seen.add(position)
                branches.append((len(self._trail), moves))
            while branches:
                depth, moves = branches[-1]
                while len(self._trail) > depth:
                    self._take_back()
                if moves and self.steps >= self._budget:
                    return "undecided"
                if moves:
                    self._place(moves.pop())
                    break
                branches.pop()
            else:
                return "no"

    def _position(self) -> Hashable:
        """The key of the memoization: the entries that are there follow from it."""
        if not self._used and not self._removed:
            return (self._base, self._mask)
        used, removed = frozenset(self._used.items()), frozenset(self._removed.items())
        return (self._base, self._mask, used, removed)

    # Candidates

    def _advance(self) -> list[_Placed]:
        """Place all operations that need no search. Returns the candidates after that, the best one
        last: takes come before writes, for the sake of operations that found nothing."""
        while True:
            candidates, deadline = self._candidates()
            before = len(self._trail)
            for index in candidates:
                placed = self._at_once(index, deadline)
                if placed is not None:
                    self._place(placed)
            if len(self._trail) == before:
                break
        moves = [move for index in candidates if (move := self._possible(index, deadline))]
        if not moves and candidates and len(self._trail) >= len(self._dead_end.placed):
            self._dead_end = _DeadEnd(
                [placed.number for placed, _, _ in self._trail],
                candidates,
                list(self._present.elements()),
            )
        moves.sort(key=self._preference, reverse=True)
        return moves

    def _candidates(self) -> tuple[list[int], float]:
        """The operations that were called before the first remaining return, and this return."""
        operations, following = self._operations, self._next
        candidates = []
        deadline = inf
        index = following[self._head]
        while index != self._head and operations[index].call <= deadline:
            candidates.append(index)
            deadline = min(deadline, operations[index].ret)
            index = following[index]
        while candidates and operations[candidates[-1]].call > deadline:
            candidates.pop()
        return candidates, deadline

    def _at_once(self, index: int, deadline: float) -> _Placed | None:
        """Place an operation without a search, if no other operation could have to come first."""
        kind, entry = self._operations[index].kind, self._operations[index].entry
        if entry is None:
            return _Placed(index) if not self._size else None
        if kind == "read":
            return _Placed(index) if entry in self._present else None
        if not all(self._is_placed[other] for other in self._blockers[index]):
            return None
        if kind == "write":
            return _Placed(index)
        return self._possible(index, deadline) if self._writes[entry] == 1 else None

    def _possible(self, index: int, deadline: float) -> _Placed | None:
        kind, entry = self._operations[index].kind, self._operations[index].entry
        if entry is None:
            free = bisect_right(self._unknown_takes, deadline) - self._removed.total()
            if self._size <= free:
                return _Placed(index, removed=tuple(self._present.elements()))
            return None
        if kind == "write" or entry in self._present:
            return _Placed(index)
        calls = self._unknown_writes.get(entry, ())
        if bisect_right(calls, deadline) > self._used[entry]:
            return _Placed(index, written=entry)
        return None

    def _preference(self, move: _Placed) -> tuple[int, float]:
        operation = self._operations[move.number]
        order = 0 if operation.kind == "take" else 1 if operation.kind == "read" else 2
        return (3 if move.removed else order, operation.ret)

    # Forward and back

    def _place(self, placed: _Placed) -> None:
        self.steps += 1
        index = placed.number
        self._trail.append((placed, self._base, self._mask))
        self._change(placed, 1)
        self._is_placed[index] = 1
        before, after = self._previous[index], self._next[index]
        self._next[before], self._previous[after] = after, before
        mask = self._mask | 1 << index - self._base
        ones = (~mask & mask + 1).bit_length() - 1  # how many stand at the low end
        self._mask = mask >> ones
        self._base += ones

    def _take_back(self) -> None:
        placed, self._base, self._mask = self._trail.pop()
        index = placed.number
        self._next[self._previous[index]] = self._previous[self._next[index]] = index
        self._is_placed[index] = 0
        self._change(placed, -1)

    def _change(self, placed: _Placed, sign: int) -> None:
        """Apply a placed operation to the entries, or undo it."""
        if placed.written is not None:
            _add(self._used, placed.written, sign)
            self._put(placed.written, sign)
        for entry in placed.removed:
            _add(self._removed, entry, sign)
            self._put(entry, -sign)
        operation = self._operations[placed.number]
        if operation.kind != "read" and operation.entry is not None:
            self._put(operation.entry, sign if operation.kind == "write" else -sign)

    def _put(self, entry: Hashable, count: int) -> None:
        self._size += count
        _add(self._present, entry, count)

    # Explanation

    def explain(self) -> str:
        end = self._dead_end
        there = ", ".join(repr(entry) for entry in end.present[:SHOWN_MAX]) or "nothing"
        more = ", …" if len(end.present) > SHOWN_MAX else ""
        lines = [
            f"{len(end.placed)} of {len(self._operations)} operations can be placed; then there is "
            f"{there}{more}, and none of these can come next:"
        ]
        for index in end.candidates[:SHOWN_MAX]:
            operation = self._operations[index]
            lines.append(f"  {operation} ({self._reason(operation, end)})")
        return "\n".join(lines)

    def _reason(self, operation: TimedOperation, end: _DeadEnd) -> str:
        if operation.entry is None:
            return "something is there"
        mine = [o for o in self._operations if o.entry == operation.entry]
        if not self._writes[operation.entry]:
            return "it was never written"
        placed = {self._operations[index] for index in end.placed}
        taken = [o for o in mine if o.kind == "take" and o in placed]
        if taken:
            return f"it was taken before, by {taken[-1]}"
        later = [o for o in mine if o.kind == "write" and o not in placed]
        return f"it was written later, by {later[0]}" if later else "it was gone"


def _blocks(first: TimedOperation, second: TimedOperation) -> bool:
    if second.kind == "write":
        return first.entry is None
    return second.kind == "take" and first.kind == "read" and first.entry == second.entry


def _add(counter: Counter[Hashable], entry: Hashable, count: int) -> None:
    """Add to a counter, and drop zeros: counters with zeros do not compare as equal."""
    counter[entry] += count
    if not counter[entry]:
        del counter[entry]
