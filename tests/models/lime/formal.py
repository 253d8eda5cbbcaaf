"""LIME's formal semantics, sections 3.1 and 3.2 of the paper, as a program.

It is meant to be read next to the paper, and keeps its names: a tuple has the fields ID, CUR and
DEST; an agent has a location λ (here `at`) and a variable a.T for each of its tuple spaces; κ says
who is connected; statements are followed by the reactive program, executed to fixed point. What the
paper assigns non-deterministically (x := x'.Q) is left to `choose`, which is given everything that
Q allows. So the same text says what is allowed, and follows one run of those that are.

Of section 2.2.4 it keeps that a strong reaction fires only for a tuple at the host of its agent,
and of section 4.1 that a space is private until it is shared. Everything is as simple as it can be,
and nothing is fast.
"""

# ruff: noqa: N803, N806, SIM300 (the paper's names, and its order)

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

ROUNDS_MAX = 200
"""It is the specifier's task that the reactive program ends (note 11)."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class Tuple:
    """A tuple as createTuple makes it: what the specifier wrote, and three fields that only the
    semantics see."""

    data: tuple[Any, ...]
    ID: int
    CUR: str
    DEST: str


@dataclass(frozen=True)
class On:
    """The subtype ⟨AgentID i : i.λ = host⟩: any agent at this host."""

    host: str


Location = str | On | None
"""An agent's identifier, any agent at a host, or the formal AgentID: any agent."""

ONCE = "ONCE"
ONCEPERTUPLE = "ONCEPERTUPLE"


class NotAllowed(Exception):
    """A choice that the semantics do not have."""


@dataclass(eq=False)
class Agent:
    """A program of the system: its location λ, its variables of type TupleSpace, its reactions."""

    id: str
    at: str
    spaces: dict[str, frozenset[Tuple]] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Reaction:
    """ρ :: s(τ) strongReaction[x, y](T, p, mode), or weakReaction, with the variables that carry
    ρ as their subscript."""

    label: str
    statement: Callable[[Tuple], None]
    agent: Agent
    T: str
    p: tuple[Any, ...]
    mode: str
    x: Location
    y: Location
    is_weak: bool
    enabled: bool = True
    reacted_set: set[int] = field(default_factory=set)
    events: list[Tuple] = field(default_factory=list)

    def is_owed(self, theta: Tuple) -> bool:
        """The mode's part of the guard."""
        if self.mode == ONCE:
            return not self.reacted_set
        return theta.ID not in self.reacted_set


@dataclass(frozen=True)
class Migration:
    """The statement of the Interactions section that moves the misplaced tuple θ to b."""

    theta: Tuple
    b: Agent
    T: str


@dataclass(frozen=True)
class Firing:
    """The reactive statement of the reaction ρ, with θ bound to τ."""

    reaction: Reaction
    theta: Tuple


Statement = Migration | Firing


def first_of(what: str, allowed: list[Any]) -> Any:
    """The simplest way to choose. A misplaced tuple goes home before anyone reacts to it."""
    return min(allowed, key=lambda one: isinstance(one, Firing))


def is_match(theta: Tuple, p: tuple[Any, ...]) -> bool:
    """M(θ, p), without the fields for locations. A type in the pattern is a formal."""
    return len(theta.data) == len(p) and all(
        type(value) is part if isinstance(part, type) else value == part
        for value, part in zip(theta.data, p, strict=True)
    )


class System:
    """A system of components: the hosts and their links, the agents, and what they share."""

    def __init__(
        self, hosts: Iterable[str] = (), choose: Callable[[str, list[Any]], Any] = first_of
    ) -> None:
        self.hosts: dict[str, bool] = dict.fromkeys(hosts, True)
        """Every host, and whether it takes part: one that has disengaged is alone."""
        self.links: set[frozenset[str]] = set()
        self.agents: dict[str, Agent] = {}
        self.reactions: dict[str, Reaction] = {}
        self.choose = choose
        self._last_id = 0
        self._is_reacting = False

    # Components and connectivity

    def group(self, host: str) -> frozenset[str]:
        """The hosts that this one reaches, directly or through others, and itself."""
        found, new = {host}, {host}
        while new:
            reached = {
                other
                for link in self.links
                if link & new and all(self.hosts.get(end) for end in link)
                for other in link
            }
            new = reached - found
            found |= new
        return frozenset(found)

    def is_connected(self, a: Agent, b: Agent) -> bool:
        """a κ b"""
        return b.at in self.group(a.at)

    def is_shared(self, a: Agent, b: Agent, T: str) -> bool:
        """a.T ≈ b.T: they are one variable now."""
        if a is b:
            return T in a.spaces
        return T in a.shared and T in b.shared and self.is_connected(a, b)

    # Changes of κ, from outside of the specification

    def add_host(self, host: str) -> None:
        self.hosts[host] = True

    def crash(self, host: str) -> None:
        """A host is gone, with its agents and all that they were responsible for."""
        for agent in [one for one in self.agents.values() if one.at == host]:
            self._drop(agent)
        self.links = {link for link in self.links if host not in link}
        del self.hosts[host]
        self._connectivity_changed()

    def relink(self, links: Iterable[Iterable[str]]) -> None:
        """These are the links now."""
        self.links = {frozenset(link) for link in links}
        self._connectivity_changed()

    def engage(self, host: str) -> None:
        self.hosts[host] = True
        self._connectivity_changed()

    def disengage(self, host: str) -> None:
        self.hosts[host] = False
        self._connectivity_changed()

    # Agents

    def add_agent(self, id: str, host: str) -> Agent:
        agent = self.agents[id] = Agent(id, host)
        self._connectivity_changed()
        return agent

    def end_agent(self, a: Agent) -> None:
        """It is disengaged, and goes with its spaces."""
        self._drop(a)
        self._connectivity_changed()

    def migrate(self, a: Agent, host: str) -> None:
        """λ := host. Its spaces are disengaged before and engaged after that (4.2)."""
        shared = set(a.shared)
        self.set_shared(a, shared, False)
        a.at = host
        self.set_shared(a, shared, True)

    def _drop(self, a: Agent) -> None:
        del self.agents[a.id]
        self.reactions = {label: one for label, one in self.reactions.items() if one.agent is not a}

    # Transient sharing of tuple spaces

    def set_shared(self, a: Agent, spaces: Iterable[str], is_shared: bool) -> None:
        """Several spaces in one step. Sharing is what makes a.T ≈ b.T possible (4.1)."""
        if is_shared:
            a.shared.update(spaces)
        else:
            a.shared.difference_update(spaces)
        self._connectivity_changed()

    def make_space(self, a: Agent, T: str) -> None:
        a.spaces.setdefault(T, frozenset())

    def _connectivity_changed(self) -> None:
        """engage a.T ∪ b.T, disengage ⟨∪ c : c κ a :: c.T ↓ c⟩: after either, a variable holds what
        those are responsible for who share it now."""
        agents = list(self.agents.values())
        values = {
            (a.id, T): frozenset().union(
                *(down(c.spaces[T], c) for c in agents if self.is_shared(a, c, T))
            )
            for a in agents
            for T in a.spaces
        }
        for (id, T), value in values.items():
            self.agents[id].spaces[T] = value
        self._react()

    def _assign(self, a: Agent, T: str, value: frozenset[Tuple]) -> None:
        """a.T := value; whoever shares it has the same variable."""
        for b in self.agents.values():
            if self.is_shared(a, b, T):
                b.spaces[T] = value

    # Linda's constructs, with location parameters

    def out(self, a: Agent, T: str, t: tuple[Any, ...], d: str | None = None) -> Tuple:
        """out[d](T, t) ≜ out(T, [CUR: a, DEST: d] ⊕ t); out(T, t) ≜ T := T ∪ {[ID: newId()] ⊕ t}"""
        self._last_id += 1
        theta = Tuple(t, self._last_id, a.id, a.id if d is None else d)
        self._assign(a, T, a.spaces[T] | {theta})
        self._react()
        return theta

    def matching(
        self, a: Agent, T: str, p: tuple[Any, ...], x: Location = None, y: Location = None
    ) -> frozenset[Tuple]:
        """⟨set θ : θ ∈ a.T ∧ M(θ, [ID: ID, CUR: x, DEST: y] ⊕ p)⟩"""
        return frozenset(
            theta
            for theta in a.spaces[T]
            if is_match(theta, p) and self._is_at(theta.CUR, x) and self._is_at(theta.DEST, y)
        )

    def match_exists(
        self, a: Agent, T: str, p: tuple[Any, ...], x: Location = None, y: Location = None
    ) -> bool:
        return bool(self.matching(a, T, p, x, y))

    def in_(
        self, a: Agent, T: str, p: tuple[Any, ...], x: Location = None, y: Location = None
    ) -> Tuple | None:
        """t := in[x, y](T, p) ≜ t := remove(T, p) if matchExists(T, p). Else it is skipped: it is
        as if its agent were blocked."""
        return self.inp(a, T, p, x, y)

    def rd(
        self, a: Agent, T: str, p: tuple[Any, ...], x: Location = None, y: Location = None
    ) -> Tuple | None:
        """t := rd[x, y](T, p) ≜ t := copy(T, p) if matchExists(T, p)"""
        return self.rdp(a, T, p, x, y)

    def inp(
        self, a: Agent, T: str, p: tuple[Any, ...], x: Location = None, y: Location = None
    ) -> Tuple | None:
        """The same with t := ε if ¬matchExists(T, p)"""
        theta = self.rdp(a, T, p, x, y)
        if theta is not None:
            self._assign(a, T, a.spaces[T] - {theta})
            self._react()
        return theta

    def rdp(
        self, a: Agent, T: str, p: tuple[Any, ...], x: Location = None, y: Location = None
    ) -> Tuple | None:
        found = self.matching(a, T, p, x, y)
        return self._choose("a tuple", found) if found else None

    def ing(
        self, a: Agent, T: str, p: tuple[Any, ...], x: Location = None, y: Location = None
    ) -> frozenset[Tuple]:
        found = self.matching(a, T, p, x, y)
        self._assign(a, T, a.spaces[T] - found)
        self._react()
        return found

    def rdg(
        self, a: Agent, T: str, p: tuple[Any, ...], x: Location = None, y: Location = None
    ) -> frozenset[Tuple]:
        return self.matching(a, T, p, x, y)

    def _is_at(self, value: str, location: Location) -> bool:
        """Does an agent's identifier match this field of a pattern?"""
        if isinstance(location, On):
            return value in self.agents and self.agents[value].at == location.host
        return location is None or value == location

    # Strong and weak reactions

    def add_reaction(
        self,
        label: str,
        statement: Callable[[Tuple], None],
        a: Agent,
        T: str,
        p: tuple[Any, ...],
        mode: str,
        x: Location = None,
        y: Location = None,
        *,
        is_weak: bool,
    ) -> Reaction:
        """The initial state is isEnabled(ρ)."""
        reaction = Reaction(label, statement, a, T, p, mode, x, y, is_weak)
        self.reactions[label] = reaction
        self._react()
        return reaction

    def remove_reaction(self, rho: Reaction) -> None:
        del self.reactions[rho.label]

    def enable(self, rho: Reaction) -> None:
        """enableReaction(ρ) ≜ (enabled := true ∥ reactedSet := {}) if ¬enabled"""
        if not rho.enabled:
            rho.enabled = True
            rho.reacted_set = set()
        self._react()

    def disable(self, rho: Reaction) -> None:
        """disableReaction(ρ) ≜ enabled := false"""
        rho.enabled = False

    def deliver(self, rho: Reaction, theta: Tuple) -> None:
        """The second statement of a weak reaction: events := events - {θ} ∥ s{τ/θ}"""
        if theta not in rho.events:
            raise NotAllowed(f"{rho.label} has not detected {theta}")
        rho.events.remove(theta)
        rho.statement(theta)

    # The reactive program

    def _react(self) -> None:
        """Every reactive statement, executed to fixed point. What a reaction does is part of it."""
        if self._is_reacting:
            return
        self._is_reacting = True
        try:
            for _ in range(ROUNDS_MAX):
                enabled = self.enabled_statements()
                if not enabled:
                    return
                self._execute(self._choose("a reactive statement", enabled))
        finally:
            self._is_reacting = False
        raise NotAllowed("the reactive program does not reach its fixed point")

    def enabled_statements(self) -> list[Statement]:
        migrations = [
            Migration(theta, b, T)
            for b in self.agents.values()
            for T, value in b.spaces.items()
            for theta in _sorted(value)
            if theta.CUR != b.id and theta.DEST == b.id
        ]
        firings = [
            Firing(rho, theta)
            for rho in self.reactions.values()
            if rho.enabled
            for theta in _sorted(self.matching(rho.agent, rho.T, rho.p, rho.x, rho.y))
            if rho.is_owed(theta) and (rho.is_weak or self._is_here(theta, rho.agent))
        ]
        return [*migrations, *firings]

    def _is_here(self, theta: Tuple, a: Agent) -> bool:
        """Is it at the host of this agent? Strong reactions fire for no others (2.2.4)."""
        return self.agents[theta.CUR].at == a.at

    def _execute(self, statement: Statement) -> None:
        theta = statement.theta
        if isinstance(statement, Migration):
            b, T = statement.b, statement.T
            self._assign(b, T, b.spaces[T] - {theta} | {replace(theta, CUR=b.id)})
            return
        rho = statement.reaction
        rho.reacted_set.add(theta.ID)
        if rho.is_weak:
            rho.events.append(theta)
        else:
            rho.statement(theta)

    def _choose(self, what: str, allowed: Iterable[Value]) -> Value:
        """x := x'.Q, with all x' that Q allows"""
        values = list(allowed)
        if isinstance(values[0], Tuple):
            values = _sorted(values)  # type: ignore[arg-type, assignment]
        chosen: Value = self.choose(what, values)
        if chosen not in values:
            raise NotAllowed(f"{chosen} is not {what} of {values}")
        return chosen

    # LimeSystem

    def lime_system(self, host: str) -> frozenset[tuple[str, ...]]:
        """What a host knows of its group: hosts, agents and where they are, and which spaces they
        share."""
        group = self.group(host)
        agents = [a for a in self.agents.values() if a.at in group]
        return frozenset(
            [
                *(("host", one) for one in group),
                *(("agent", a.id, a.at) for a in agents),
                *(("space", T, a.id, a.at) for a in agents for T in a.shared),
            ]
        )


def down(value: frozenset[Tuple], a: Agent) -> frozenset[Tuple]:
    """T ↓ a: the tuples for which a is responsible."""
    return frozenset(theta for theta in value if theta.CUR == a.id)


def _sorted(tuples: Iterable[Tuple]) -> list[Tuple]:
    return sorted(tuples, key=lambda theta: theta.ID)
