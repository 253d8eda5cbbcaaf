"""Locations: which part of a federated space an operation looks at (table I of the paper).

Every tuple has a current location, the agent that is responsible for it, and a destination, the
agent that it is for, which is its writer if none was named. An operation may ask for tuples whose
current location is an agent, or any agent of a host, and whose destination is an agent.
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
    """An agent, wherever it is."""

    id: str

    def __post_init__(self) -> None:
        _check_id(self.id)


@entry("tupelo.lime.HostLocation")
@dataclass(frozen=True, slots=True)
class HostLocation:
    """A host, and every agent that is there."""

    id: str

    def __post_init__(self) -> None:
        _check_id(self.id)


Location = AgentLocation | HostLocation

Current = Location | None
Destination = AgentLocation | None
UNSPECIFIED: Final = None
"""Any location will do."""


def _check_id(id: object) -> None:
    """What is no text could be written here, but not be sent, nor kept."""
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
    """The agent that this is for: its writer, if none was named."""
    return entry.origin if entry.to is None else entry.to
