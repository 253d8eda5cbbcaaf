"""Scopes: the hosts and agents that an operation considers. The default is all engaged hosts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from tupelo.errors import BadArgument
from tupelo.values.checks import check_text


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """The hosts to search: `HERE`, `Scope.host(name)` or `Scope.agent(id)`."""

    kind: Literal["here", "host", "agent"]
    name: str = ""

    @staticmethod
    def host(name: str) -> Scope:
        """The entries at the host of this name."""
        return Scope("host", check_text("name", name))

    @staticmethod
    def agent(agent_id: str) -> Scope:
        """The entries for the agent with this id, at the agent's host."""
        return Scope("agent", check_text("agent_id", agent_id))


HERE = Scope("here")
"""Only the entries at the host that gets the request."""


def check_scope(scope: object) -> Scope | None:
    if scope is not None and not isinstance(scope, Scope):
        raise BadArgument("scope", "HERE, Scope.host(name), Scope.agent(id) or None", scope)
    return scope


class Coverage:
    """The result of an operation with a scope: the names of the hosts that it `covered`, and of the
    `missing` ones, which did not answer. Pass an empty one to the operation, which fills it."""

    def __init__(self) -> None:
        self.covered: list[str] = []
        self.missing: list[str] = []

    def fill(self, covered: Iterable[str], missing: Iterable[str] = ()) -> None:
        """Set the names of the hosts; called by the operation."""
        self.covered = list(covered)
        self.missing = list(missing)

    def __repr__(self) -> str:
        return f"Coverage(covered={self.covered}, missing={self.missing})"


def check_coverage(coverage: object) -> None:
    if coverage is not None and not isinstance(coverage, Coverage):
        raise BadArgument("coverage", "a Coverage(), or None", coverage)
