"""Standing collects: single ones until they are satisfied, and persistent ones of any host.

A collect spreads over the tree, and each broker keeps an entry for it with the way back to the host
that began it. A single collect of any host ends everywhere at its first result, as the result
travels back. One of all hosts ends at each broker when this host and all hosts beyond have
answered. A persistent collect of any host settles, at each broker, on the first branch with a
result, and cancels the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tupelo.errors import BadFrame
from tupelo.federation.brokers.messages import (
    CollectCancel,
    CollectRequest,
    CollectResult,
    HostResult,
    Kind,
)
from tupelo.federation.brokers.tables import (
    EncodedPattern,
    LocalApplication,
    Matching,
    PruningPromises,
    SendTo,
    Tree,
    check_answer,
    split_items,
)

DeliverResult = Callable[[int, HostResult, bool], None]
"""Called with the number of a collect of this host, a result, and whether the collect is over."""


class CollectId(NamedTuple):
    host: str
    number: int


class CollectState:
    """The entry for a collect at one broker."""

    def __init__(
        self, id: CollectId, kind: Kind, pattern: EncodedPattern, toward: str | None
    ) -> None:
        self.id = id
        self.kind = kind
        self.pattern = pattern
        self.toward = toward
        """The edge toward the host that began it; None at that host."""
        self.away: dict[str, None] = {}
        """The edges over which the collect was sent on."""
        self.withheld: dict[str, None] = {}
        """The edges over which it was not sent, since the branch has promised to be empty."""
        self.answered: set[str] = set()
        """The hosts that have answered, as far as is known here, if it is of all hosts."""
        self.chosen: str | None = None
        """The edge, or this host, on which a persistent collect has settled."""
        self.parts: dict[str, list[bytes]] = {}

    @property
    def is_over(self) -> bool:
        return not self.away and not self.withheld


class Collecting:
    """The standing collects at one broker, in one membership."""

    def __init__(
        self,
        tree: Tree,
        promises: PruningPromises,
        local: LocalApplication,
        send: SendTo,
        deliver: DeliverResult,
        asks_again: bool,
    ) -> None:
        self._tree = tree
        self._promises = promises
        self._local = local
        self._send = send
        self._deliver = deliver
        self._asks_again = asks_again
        self._entries: dict[CollectId, CollectState] = {}
        self._of: Counter[str] = Counter()
        self._cut: set[str] = set()

    @property
    def is_idle(self) -> bool:
        return not self._entries

    # Begin and end

    def begin(
        self, number: int, kind: Kind, pattern: EncodedPattern, answered: Iterable[str]
    ) -> None:
        """Begin a collect of this host."""
        self._open(CollectId(self._tree.me, number), kind, pattern, None, answered)

    def heard_collect(self, edge: str, message: CollectRequest, pattern: EncodedPattern) -> None:
        self._tree.check_beyond(edge, [message.host])
        collect_id = CollectId(message.host, message.number)
        self._tree.check_room(edge, self._of[edge])
        if collect_id in self._entries:
            raise BadFrame(f"the collect {collect_id} twice")
        self._open(collect_id, message.kind, pattern, edge, message.answered)

    def _open(
        self,
        collect_id: CollectId,
        kind: Kind,
        pattern: EncodedPattern,
        toward: str | None,
        answered: Iterable[str],
    ) -> None:
        entry = self._enter(collect_id, kind, pattern, toward)
        entry.answered.update(answered)
        items = self._here(entry)
        if kind == "single all" or not items:
            self._spread(entry)
        if items:
            self._found_here(entry, HostResult(self._tree.me, items))

    def _enter(
        self, collect_id: CollectId, kind: Kind, pattern: EncodedPattern, toward: str | None
    ) -> CollectState:
        entry = self._entries[collect_id] = CollectState(collect_id, kind, pattern, toward)
        if toward is not None:
            self._of[toward] += 1
        return entry

    def _spread(self, entry: CollectState) -> None:
        for edge in self._tree.neighbours:
            if edge == entry.toward or edge in self._cut or self._is_answered(entry, edge):
                continue
            if not self._concerns(edge, entry.pattern):
                continue
            if self._promises.is_empty(edge, entry.pattern.key):
                entry.withheld[edge] = None
            else:
                self._send_on(entry, edge)

    def _send_on(self, entry: CollectState, edge: str) -> None:
        entry.away[edge] = None
        answered = sorted(entry.answered & self._tree.beyond(edge))
        self._send(edge, CollectRequest(*entry.id, entry.kind, entry.pattern.encoded, answered))

    def _concerns(self, edge: str, pattern: EncodedPattern) -> bool:
        """Whether hosts beyond this edge can have matches."""
        host = self._local.only_at(pattern)
        return host is None or host in self._tree.beyond(edge)

    def _is_answered(self, entry: CollectState, edge: str) -> bool:
        return entry.kind == "single all" and self._tree.beyond(edge) <= entry.answered

    def end(self, number: int) -> None:
        """End a collect of this host."""
        entry = self._entries.get(CollectId(self._tree.me, number))
        if entry is not None:
            self._remove(entry)

    def heard_cancel(self, edge: str, message: CollectCancel) -> None:
        entry = self._entries.get(CollectId(message.host, message.number))
        if entry is not None and entry.toward == edge:
            self._remove(entry)

    def _remove(self, entry: CollectState, without: str | None = None) -> None:
        """Remove an entry, and cancel it over the edges that it was sent on, but for one edge."""
        if self._entries.pop(entry.id, None) is None:
            return
        if entry.toward is not None:
            self._of[entry.toward] -= 1
        for edge in entry.away:
            if edge != without:
                self._send(edge, CollectCancel(*entry.id))

    # Results

    def _here(self, entry: CollectState) -> list[bytes]:
        """The state of this host for a collect; empty if this host has answered or must not
        tell."""
        if self._tree.me in entry.answered:
            return []
        return self._local.state_for(entry.toward or self._tree.me, entry.pattern) or []

    def _may_tell(self, entry: CollectState) -> bool:
        return self._local.may_tell(entry.toward or self._tree.me, entry.pattern)

    def _found_here(self, entry: CollectState, found: HostResult) -> None:
        me = self._tree.me
        if entry.kind == "single any":
            self._remove(entry)
        elif entry.kind == "single all":
            entry.answered.add(me)
        elif entry.chosen is None:
            self._settle(entry, me)
        self._pass_on(entry, found)

    def heard_result(self, edge: str, message: CollectResult) -> None:
        self._tree.check_beyond(edge, [message.found.host])
        entry = self._entries.get(CollectId(message.host, message.number))
        if entry is None or edge not in entry.away:
            return  # the collect has ended here
        found = message.found
        parts = entry.parts.setdefault(edge, [])
        parts += found.items
        check_answer([HostResult(found.host, parts)])
        if message.more:
            return
        found = HostResult(found.host, entry.parts.pop(edge), found.is_update)
        if not found.items:
            raise BadFrame("a result without items")
        self._found_beyond(entry, edge, found, message.last)

    def _found_beyond(self, entry: CollectState, edge: str, found: HostResult, last: bool) -> None:
        if entry.kind == "single any":
            self._remove(entry, without=edge)  # It has ended there.
        elif entry.kind == "single all":
            if last:
                entry.away.pop(edge, None)
            entry.answered.add(found.host)
            if self._is_answered(entry, edge):
                entry.withheld.pop(edge, None)
        elif entry.chosen is None:
            self._settle(entry, edge)
        elif entry.chosen != edge:
            entry.away.pop(edge, None)
            self._send(edge, CollectCancel(*entry.id))
            return
        self._pass_on(entry, found)

    def _settle(self, entry: CollectState, branch: str) -> None:
        """A persistent collect settles on a branch, or on this host."""
        entry.chosen = branch
        entry.withheld.clear()
        for edge in [edge for edge in entry.away if edge != branch]:
            del entry.away[edge]
            self._send(edge, CollectCancel(*entry.id))

    def _pass_on(self, entry: CollectState, found: HostResult) -> None:
        """Send a result on the way back, or deliver it if the collect is of this host."""
        last = entry.kind == "single any" or (
            entry.kind == "single all" and entry.is_over and self._tree.me in entry.answered
        )
        if last:
            self._remove(entry)
        if entry.toward is None:
            self._deliver(entry.id.number, found, last)
            return
        chunks = split_items(found.items)
        for place, items in enumerate(chunks, start=1):
            more = place < len(chunks)
            part = HostResult(found.host, items, found.is_update)
            self._send(entry.toward, CollectResult(*entry.id, part, last and not more, more))

    # Events during a collect

    def published_here(self, found: HostResult, matching: Matching) -> None:
        """This host has published an update: answer the collects that it concerns."""
        for entry in list(self._entries.values()):
            if self._tree.me in entry.answered or not self._may_tell(entry):
                continue
            matches = matching(entry.pattern)
            if entry.kind == "persistent any" and entry.chosen is not None:
                if matches and entry.chosen == self._tree.me:
                    self._found_here(entry, found)
            elif matches and entry.kind != "persistent any":
                self._found_here(entry, found)
            elif matches or self._asks_again:
                items = self._here(entry)
                if items:
                    self._found_here(entry, HostResult(self._tree.me, items))

    def passing(self, edge: str, found: HostResult, matches: Matching) -> None:
        """An update comes from a branch that was empty. For a collect that was not sent there, the
        update is the result that the branch would have sent."""
        for entry in list(self._entries.values()):
            if (
                edge in entry.withheld
                and entry.kind != "persistent any"
                and found.host not in entry.answered
                and matches(entry.pattern)
            ):
                self._found_beyond(entry, edge, found, False)

    def released(self, edge: str, keys: list[str]) -> None:
        """A promise of a branch has ended: send the withheld collects there."""
        for entry in list(self._entries.values()):
            if edge in entry.withheld and entry.pattern.key in keys:
                del entry.withheld[edge]
                self._send_on(entry, edge)

    def cut(self, hosts: frozenset[str]) -> None:
        """These hosts are out of reach; the next membership decides what this means for
        collects."""
        self._cut |= hosts
        for entry in list(self._entries.values()):
            if entry.id.host in hosts:
                self._remove(entry)
            for edge in hosts:
                entry.away.pop(edge, None)
                entry.withheld.pop(edge, None)

    # A new membership

    def install(
        self,
        collect_id: CollectId,
        kind: Kind,
        pattern: EncodedPattern,
        answered: Iterable[str],
        chosen: str | None,
    ) -> None:
        """Add a collect from the metadata of its host, which all brokers know."""
        me = self._tree.me
        toward = self._tree.toward(collect_id.host)
        target = self._local.only_at(pattern)
        passes_by = target is None or target == me or toward is None
        if not passes_by and self._tree.toward(target or me) in (None, toward):
            return
        if chosen is not None and chosen in self._tree.hosts:
            branch = self._tree.toward(chosen)
            if branch is None or branch != toward:  # else this host is not on its path
                entry = self._enter(collect_id, kind, pattern, toward)
                entry.chosen = branch or me
                if branch is not None:
                    entry.away[branch] = None
            return
        entry = self._enter(collect_id, kind, pattern, toward)
        entry.answered.update(answered)
        for edge in self._tree.neighbours:
            if (
                edge != toward
                and not self._is_answered(entry, edge)
                and self._concerns(edge, pattern)
            ):
                entry.away[edge] = None
        if kind == "single all" and entry.is_over and me in entry.answered:
            self._remove(entry)

    def answer(self, collect_id: CollectId, again: bool) -> None:
        """Answer a collect in a new membership; one that has settled here only `again` if results
        may have been lost."""
        entry = self._entries.get(collect_id)
        if entry is None or (
            entry.chosen is not None and (entry.chosen != self._tree.me or not again)
        ):
            return
        items = self._here(entry)
        if items:
            self._found_here(entry, HostResult(self._tree.me, items))
