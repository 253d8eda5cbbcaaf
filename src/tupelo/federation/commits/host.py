"""What deciding needs to know of the host that it is done at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tupelo.federation.links.link import Network
from tupelo.federation.spanning.peers import ThisHost


class DecidingHost(ThisHost, Protocol):
    network: Network
    heartbeat: float
    commits_in_place: bool

    @property
    def servings(self) -> Mapping[str, object]:
        """The clients that are connected, by session."""
        ...
