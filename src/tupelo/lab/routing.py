"""Routes through the hosts of a radio network, found on demand.

- `direct`: one hop only.
- `aodv` (RFC 3561): a request floods the network, the target answers, and the route is kept while
  it is in use: it expires after 3 seconds without a packet.
- `dsr` (RFC 4728): the target answers several copies of the request, and the sender keeps these
  routes until a packet finds one broken. Each packet carries its whole route.

Simplified: a request finds the shortest route (by hops) of the moment, and its packets are counted
and take airtime, but are never lost; hosts learn no routes from packets that they forward or
overhear; a broken hop is reported to the sender at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from tupelo.lab.radio import RadioNetwork

REQUEST_BYTES, ANSWER_BYTES, ERROR_BYTES = 48, 44, 40
HOP_SECONDS = 0.010
"""How long a host waits at most before it repeats a flooded request, so that not all do at once."""
AODV_LIFE_SECONDS = 3.0
DSR_ROUTES = 3
PAUSE_SECONDS = (1.0, 10.0)
"""The first and the longest pause before a host that was not found is looked for again."""

Route: TypeAlias = tuple[int, ...]
"""The hosts after the sender, with the target at the end."""


class Router(Protocol):
    """Finds routes for a radio network."""

    def route(self, source: int, target: int, now: float) -> tuple[Route, float] | None:
        """A route, and from when on it can be used. None: there is none now."""

    def broken(self, source: int, target: int, hop: tuple[int, int]) -> None:
        """A packet could not pass this hop."""

    def header_bytes(self, route: Route) -> int:
        """How many bytes each packet on this route carries for the router."""


def router(name: str, network: RadioNetwork) -> Router:
    """The router of this name."""
    kinds: dict[str, Callable[[RadioNetwork], Router]] = {
        "direct": Direct,
        "aodv": Aodv,
        "dsr": Dsr,
    }
    return kinds[name](network)


class Direct:
    """No forwarding: a route has one hop."""

    def __init__(self, network: RadioNetwork) -> None:
        self._network = network

    def route(self, source: int, target: int, now: float) -> tuple[Route, float] | None:
        return ((target,), now) if target in self._network.heard(source) else None

    def broken(self, source: int, target: int, hop: tuple[int, int]) -> None:
        pass

    def header_bytes(self, route: Route) -> int:
        return 0


class _OnDemand:
    """What the routers on demand share: the flood of a request, and the pause after a failure."""

    answers = 1

    def __init__(self, network: RadioNetwork) -> None:
        self._network = network
        self._not_before: dict[tuple[int, int], tuple[float, float]] = {}

    def discover(self, source: int, target: int, now: float) -> tuple[list[Route], float]:
        """Flood a request: the routes that were found, and when the first answer is there."""
        again, pause = self._not_before.get((source, target), (0.0, PAUSE_SECONDS[0]))
        if now < again:
            return [], now
        network = self._network
        routes: list[Route] = []
        barred: set[tuple[int, int]] = set()
        reached: list[int] = []
        for _ in range(self.answers):
            found, asked = _shortest(network, source, target, barred)
            reached = reached or asked
            if found is None:
                break
            routes.append(found)
            barred.add((found[-2] if len(found) > 1 else source, target))
        for host in reached:
            network.broadcast(host, REQUEST_BYTES, routing=True)
        for found in routes:
            network.control((*reversed(found), source), ANSWER_BYTES)
        if not routes:
            self._not_before[source, target] = now + pause, min(PAUSE_SECONDS[1], 2 * pause)
            return [], now
        self._not_before.pop((source, target), None)
        hops = len(routes[0])
        waits = sum(network.loop.rng.uniform(0, HOP_SECONDS) for _ in range(hops))
        return routes, now + waits + 2 * hops * network.airtime(REQUEST_BYTES)


class Aodv(_OnDemand):
    """Ad hoc on-demand distance vector routing."""

    def __init__(self, network: RadioNetwork) -> None:
        super().__init__(network)
        self._table: dict[tuple[int, int], tuple[Route, float]] = {}

    def route(self, source: int, target: int, now: float) -> tuple[Route, float] | None:
        known = self._table.get((source, target))
        ready = now
        if known is None or known[1] < now:
            routes, ready = self.discover(source, target, now)
            if not routes:
                return None
            known = routes[0], now
        self._table[source, target] = known[0], ready + AODV_LIFE_SECONDS
        return known[0], ready

    def broken(self, source: int, target: int, hop: tuple[int, int]) -> None:
        """The host before the hop tells the senders whose routes use it."""
        for (sender, to), (route, _) in list(self._table.items()):
            path = (sender, *route)
            if hop in zip(path, route, strict=False):
                del self._table[sender, to]
                self._network.control(path[path.index(hop[0]) :: -1], ERROR_BYTES)

    def header_bytes(self, route: Route) -> int:
        return 0


class Dsr(_OnDemand):
    """Dynamic source routing."""

    answers = DSR_ROUTES

    def __init__(self, network: RadioNetwork) -> None:
        super().__init__(network)
        self._cache: dict[tuple[int, int], list[Route]] = {}

    def route(self, source: int, target: int, now: float) -> tuple[Route, float] | None:
        ready = now
        if not self._cache.get((source, target)):
            routes, ready = self.discover(source, target, now)
            if not routes:
                return None
            self._cache[source, target] = routes
        return self._cache[source, target][0], ready

    def broken(self, source: int, target: int, hop: tuple[int, int]) -> None:
        """Only the sender is told; its other routes over this hop are forgotten too."""
        for (sender, to), routes in self._cache.items():
            if sender == source:
                for route in list(routes):
                    if hop in zip((sender, *route), route, strict=False):
                        routes.remove(route)
                        if to == target:
                            path = (sender, *route)
                            self._network.control(path[path.index(hop[0]) :: -1], ERROR_BYTES)

    def header_bytes(self, route: Route) -> int:
        return 4 + 4 * len(route)


def _shortest(
    network: RadioNetwork, source: int, target: int, barred: set[tuple[int, int]]
) -> tuple[Route | None, list[int]]:
    """The shortest route that avoids these hops, and the hosts that a flood reaches."""
    came_from: dict[int, int] = {source: source}
    waiting = deque([source])
    while waiting:
        here = waiting.popleft()
        for there in network.heard(here):
            if there not in came_from and (here, there) not in barred:
                came_from[there] = here
                waiting.append(there)
    if target not in came_from:
        return None, list(came_from)
    route = [target]
    while came_from[route[-1]] != source:
        route.append(came_from[route[-1]])
    return tuple(reversed(route)), list(came_from)
