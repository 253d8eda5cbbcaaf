"""Locations: the part of a federated space that an operation searches (table I of the paper).

Every tuple has a current location, the agent that is responsible for it, and a destination: the
agent that it was written for, or else its writer. An operation can be limited to tuples whose
current location is an agent, or any agent at a host, and whose destination is an agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tupelo.errors import BadArgument
from tupelo.values.entry import Entry
from tupelo.values.kind import entry


@entry("tupelo.lime.AgentLocation")
@dataclass(frozen=True, slots=True)
class AgentLocation:
    """An agent, by its id, wherever it is."""

    id: str

    def __post_init__(self) -> None:
        _check_id(self.id)


@entry("tupelo.lime.HostLocation")
@dataclass(frozen=True, slots=True)
class HostLocation:
    """A host, by its id, with every agent there."""

    id: str

    def __post_init__(self) -> None:
        _check_id(self.id)


Location = AgentLocation | HostLocation

Current = Location | None
Destination = AgentLocation | None
UNSPECIFIED: Final = None
"""Any location."""


def _check_id(id: object) -> None:
    """Raise BadArgument for an id that could not be sent or stored."""
    if not isinstance(id, str):
        raise BadArgument("id", "a text", id)
    try:
        id.encode()
    except UnicodeEncodeError as error:
        raise BadArgument("id", "a text without half a surrogate pair", id) from error


def check_current(current: object) -> Location | None:
    if current is not None and not isinstance(current, (AgentLocation, HostLocation)):
        raise BadArgument("current", "an AgentLocation, a HostLocation or UNSPECIFIED", current)
    return current


def check_destination(destination: object) -> AgentLocation | None:
    if destination is not None and not isinstance(destination, AgentLocation):
        raise BadArgument("destination", "an AgentLocation or UNSPECIFIED", destination)
    return destination


def home_of(entry: Entry) -> str:
    """The id of the agent that a tuple is for: its destination, or else its writer."""
    return entry.origin if entry.to is None else entry.to
