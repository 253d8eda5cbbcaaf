"""Probing: the current state for a pattern, of any host or of all hosts.

A probe goes down the tree, and the answers are combined on the way back; no timeout is involved.
Updates that match, and pass a broker after their host has answered and before the broker has, are
part of its answer, as in a distributed snapshot. Over one edge at most one probe for the same
pattern is under way; probes that begin meanwhile wait for it, and share the next one. So an answer
is never older than the question, and one search serves many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tupelo.errors import BadFrame
from tupelo.federation.brokers.messages import (
    Extent,
    HostResult,
    ProbeAnswer,
    ProbeCancel,
    ProbeRequest,
)
from tupelo.federation.brokers.tables import (
    ANSWER_BYTES_MAX,
    EncodedPattern,
    LocalApplication,
    Matching,
    PruningPromises,
    Routes,
    SendTo,
    Tree,
    check_answer,
    length_of,
    merged,
    split_results,
)

Only = frozenset[str] | None
ProbeDone = Callable[["ProbeEvaluation"], None]
LineKey = tuple[str, bytes, Extent, Only]


class ProbeEvaluation:
    """One probe at one broker: the edges that it waits for, and the results so far."""

    def __init__(
        self, asker: str, pattern: EncodedPattern, extent: Extent, only: Only, done: ProbeDone
    ) -> None:
        self.asker = asker
        self.pattern = pattern
        self.extent = extent
        self.only = only
        self.done = done
        self.waiting: dict[str, EdgeProbe] = {}
        self.found: list[HostResult] = []
        self.lost: set[str] = set()
        self.over = False

    @property
    def is_satisfied(self) -> bool:
        return self.extent == "any" and bool(self.found)


class EdgeProbe:
    """The probes over one edge for one pattern: those that wait for the current answer (`now`), and
    those that wait for the next."""

    def __init__(self, key: LineKey, pattern: EncodedPattern) -> None:
        self.key = key
        self.pattern = pattern
        self.number = 0
        self.now: dict[ProbeEvaluation, None] = {}
        self.next: dict[ProbeEvaluation, None] = {}
        self.found: list[HostResult] = []
        self.trusts = True
        """Whether a promise in the answer counts: not if the subscription ended meanwhile."""

    @property
    def edge(self) -> str:
        return self.key[0]


class Probing:
    """The probes that run at one broker, in one membership."""

    def __init__(
        self,
        tree: Tree,
        routes: Routes,
        promises: PruningPromises,
        local: LocalApplication,
        send: SendTo,
        prune: bool,
    ) -> None:
        self._tree = tree
        self._routes = routes
        self._promises = promises
        self._local = local
        self._send = send
        self._prune = prune
        self._numbers = 0
        self._cut: set[str] = set()
        self._running: dict[ProbeEvaluation, None] = {}
        self._asked: dict[tuple[str, int], ProbeEvaluation] = {}  # by neighbours, by their numbers
        self._of: Counter[str] = Counter()  # how many of each neighbour
        self._lines: dict[LineKey, EdgeProbe] = {}
        self._by_number: dict[int, EdgeProbe] = {}

    def under_way(self) -> list[ProbeEvaluation]:
        """The probes that are not answered."""
        return list(self._running)

    @property
    def is_idle(self) -> bool:
        return not self._running

    # A probe, from its beginning to its answer

    def ask(
        self, pattern: EncodedPattern, extent: Extent, only: Only, done: ProbeDone
    ) -> ProbeEvaluation:
        """Begin a probe of this host; `done` may be called before this returns."""
        evaluation = ProbeEvaluation(self._tree.me, pattern, extent, only, done)
        self._begin(evaluation)
        return evaluation

    def heard_question(self, edge: str, message: ProbeRequest, pattern: EncodedPattern) -> None:
        number = message.number
        self._tree.check_room(edge, self._of[edge])
        if (edge, number) in self._asked:
            raise BadFrame(f"the probe {number} twice")
        only = None if message.only is None else frozenset(message.only)

        def done(evaluation: ProbeEvaluation) -> None:
            self._asked.pop((edge, number), None)
            self._of[edge] -= 1
            self._answer(edge, number, evaluation)

        evaluation = ProbeEvaluation(edge, pattern, message.extent, only, done)
        self._asked[edge, number] = evaluation
        self._of[edge] += 1
        self._begin(evaluation)

    def _begin(self, evaluation: ProbeEvaluation) -> None:
        self._running[evaluation] = None
        if evaluation.only is None or self._tree.me in evaluation.only:
            self._look_here(evaluation)
        if not evaluation.is_satisfied:
            for edge in self._tree.neighbours:
                if edge != evaluation.asker and not self._promises.is_empty(
                    edge, evaluation.pattern.key
                ):
                    self._ask_over(edge, evaluation)
        self._finish_if_ready(evaluation)

    def _look_here(self, evaluation: ProbeEvaluation) -> None:
        local, pattern = self._local, evaluation.pattern
        items = local.state_for(evaluation.asker, pattern)
        if items is None:
            evaluation.lost.add(self._tree.me)
        elif items:
            # `only` some hosts are asked by a collect that may know their state from before.
            number = local.number if evaluation.only is None else local.last_update(pattern)
            evaluation.found.append(HostResult(self._tree.me, items, number=number))

    def _finish_if_ready(self, evaluation: ProbeEvaluation) -> None:
        if evaluation.over or (evaluation.waiting and not evaluation.is_satisfied):
            return
        self._give_up(evaluation)
        evaluation.done(evaluation)

    def _give_up(self, evaluation: ProbeEvaluation) -> None:
        """End a probe, and cancel the requests over edges that only it waits for."""
        evaluation.over = True
        self._running.pop(evaluation, None)
        waiting, evaluation.waiting = evaluation.waiting, {}
        for line in waiting.values():
            if evaluation in line.next:
                del line.next[evaluation]
            else:
                del line.now[evaluation]
                if not line.now:
                    self._send(line.edge, ProbeCancel(line.number))
                    self._go_on(line)

    def quit(self, evaluation: ProbeEvaluation) -> None:
        """Cancel a probe."""
        if not evaluation.over:
            self._give_up(evaluation)

    def heard_cancel(self, edge: str, message: ProbeCancel) -> None:
        evaluation = self._asked.pop((edge, message.number), None)
        if evaluation is not None:
            self._of[edge] -= 1
            self.quit(evaluation)

    def _answer(self, edge: str, number: int, evaluation: ProbeEvaluation) -> None:
        """Send the answer to a neighbour."""
        promise = self._may_promise(edge, evaluation)
        if promise:
            self._promises.promise(edge, evaluation.pattern)
        found: list[HostResult] = []
        room = ANSWER_BYTES_MAX
        for one in evaluation.found[:1] if evaluation.extent == "any" else evaluation.found:
            room -= length_of([one])
            if room >= 0:
                found.append(one)
            else:
                evaluation.lost.add(one.host)
        chunks = split_results(found)
        for chunk in chunks[:-1]:
            self._send(edge, ProbeAnswer(number, chunk, more=True))
        self._send(edge, ProbeAnswer(number, chunks[-1], sorted(evaluation.lost), promise))

    def _may_promise(self, edge: str, evaluation: ProbeEvaluation) -> bool:
        pattern = evaluation.pattern
        return (
            self._prune
            and evaluation.only is None
            and not evaluation.found
            and not evaluation.lost
            and self._routes.is_wanted_by(edge, pattern.key)
            and all(
                other == edge or self._promises.is_empty(other, pattern.key)
                for other in self._tree.neighbours
            )
            and self._local.may_promise(edge, pattern)
        )

    # Probes over one edge

    def _ask_over(self, edge: str, evaluation: ProbeEvaluation) -> None:
        beyond = self._tree.beyond(edge)
        only = evaluation.only
        if only is not None:
            only &= beyond
            if not only:
                return
        if edge in self._cut:
            evaluation.lost |= beyond if only is None else only
            return
        key = (edge, evaluation.pattern.encoded, evaluation.extent, only)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = EdgeProbe(key, evaluation.pattern)
        evaluation.waiting[edge] = line
        line.next[evaluation] = None
        if not line.now:
            self._go_on(line)

    def _go_on(self, line: EdgeProbe) -> None:
        """Send the next probe over an edge, if any evaluations wait for one."""
        self._by_number.pop(line.number, None)
        line.now, line.next = line.next, {}
        line.found = []
        if not line.now:
            del self._lines[line.key]
            return
        self._numbers += 1
        line.number = self._numbers
        self._by_number[line.number] = line
        edge, encoded, extent, only = line.key
        line.trusts = self._routes.is_asked_of(edge, line.pattern.key)
        self._send(
            edge, ProbeRequest(line.number, encoded, extent, None if only is None else sorted(only))
        )

    def heard_answer(self, edge: str, message: ProbeAnswer) -> None:
        line = self._by_number.get(message.number)
        if line is None or line.edge != edge:
            return  # it was cancelled
        self._tree.check_beyond(edge, (one.host for one in message.found))
        self._tree.check_beyond(edge, message.lost)
        if not all(one.items for one in message.found):
            raise BadFrame("an answer without items")
        line.found += message.found
        check_answer(line.found)
        if message.more:
            return
        promise = message.promise and line.trusts
        self._resolve(line, merged(line.found), frozenset(message.lost), promise)

    def _resolve(
        self, line: EdgeProbe, found: list[HostResult], lost: frozenset[str], promise: bool
    ) -> None:
        if promise:
            self._promises.remember(line.edge, line.pattern.key)
        answered, line.now = list(line.now), {}
        self._go_on(line)
        self._hand_out(line.edge, answered, found, lost)

    def _hand_out(
        self,
        edge: str,
        answered: list[ProbeEvaluation],
        found: list[HostResult],
        lost: frozenset[str],
    ) -> None:
        for evaluation in answered:
            del evaluation.waiting[edge]
        for evaluation in answered:
            evaluation.found += found
            evaluation.lost |= lost
            self._finish_if_ready(evaluation)

    # Events during a probe

    def passing(self, came_from: str, found: HostResult, matches: Matching) -> None:
        """An update passes this broker. It is added to the probes for which its branch has answered
        already; for the others, the answer of the branch will contain it."""
        me = self._tree.me
        for evaluation in list(self._running):
            if (
                not evaluation.over
                and came_from not in evaluation.waiting
                and (came_from == me or came_from != evaluation.asker)
                and (came_from != me or self._local.may_tell(evaluation.asker, evaluation.pattern))
                and (evaluation.only is None or found.host in evaluation.only)
                and matches(evaluation.pattern)
            ):
                evaluation.found.append(found)
                self._finish_if_ready(evaluation)

    def asks_no_more(self, edge: str, key: str) -> None:
        """Ignore promises for this key in answers that are under way."""
        for line in self._by_number.values():
            if line.edge == edge and line.pattern.key == key:
                line.trusts = False

    def cut(self, hosts: frozenset[str]) -> None:
        """These hosts are out of reach: cancel their probes, and do not wait for their answers."""
        self._cut |= hosts
        for (edge, number), evaluation in list(self._asked.items()):
            if edge in hosts:
                del self._asked[edge, number]
                self.quit(evaluation)
        for line in list(self._lines.values()):
            if line.edge in hosts:
                self._lose(line)

    def _lose(self, line: EdgeProbe) -> None:
        only = line.key[3]
        lost = self._tree.beyond(line.edge) if only is None else only
        waiting = [*line.now, *line.next]
        line.now, line.next = {}, {}
        self._by_number.pop(line.number, None)
        self._lines.pop(line.key, None)
        self._hand_out(line.edge, waiting, [], lost)

    def end(self) -> None:
        """The membership is over: end the probes of this host with the results so far."""
        for evaluation in self._asked.values():
            evaluation.done = lambda ended: None
        for line in list(self._lines.values()):
            self._lose(line)
