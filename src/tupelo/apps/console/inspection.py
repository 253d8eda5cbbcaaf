"""The service "inspection" of a host: the state of its spaces and links, for the console.

A client learns only about spaces in which it may read. The service is found by its entry point.
"""

from __future__ import annotations

from typing import Any

from tupelo.errors import AccessError, BadArgument
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.services import Caller
from tupelo.federation.links import wire
from tupelo.federation.names import is_reserved
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.log import Actor
from tupelo.space.port import TransactionSummary, WaiterSummary

SERVICE = "inspection"
LISTED_MAX = 200
"""At most so many waiting operations and transactions of a space are listed."""


class InspectionService:
    """Answers `spaces()`, `space(name)` and `host()` on the loop of the host."""

    def __init__(self, core: HostCore) -> None:
        self._core = core

    async def invoke(self, caller: Caller, message: wire.Invoke) -> Any:
        """The answer to one call of a client; BadArgument if there is no such method."""
        match message.method, message.args:
            case "spaces", []:
                return self._spaces(caller)
            case "space", [str() as name]:
                return self._space(caller, name)
            case "host", []:
                return self._host()
        raise BadArgument("method", "spaces(), space(name) or host()", message.method)

    def left(self, caller: Caller) -> None:
        """Nothing is kept for a client."""

    def _spaces(self, caller: Caller) -> list[dict[str, Any]]:
        found = []
        for name in sorted(self._core.spaces):
            if is_reserved(name):
                continue
            try:
                hosted = caller.hosted(name, "read")
            except AccessError as error:
                found.append({"name": name, "refused": str(error)})
            else:
                found.append(self._summary(hosted))
        return found

    def _summary(self, hosted: HostedSpace) -> dict[str, Any]:
        port = hosted.port
        begun = port.under_way()
        return {
            "name": hosted.name,
            "entries": port.entry_count,
            "position": port.position,
            "waiting": len(begun["waiters"]),
            "subscriptions": len(begun["subscriptions"]),
            "transactions": len(begun["transactions"]),
            "in_doubt": len(port.deliveries_in_doubt()),
            "durable": hosted.durable,
            "shared": hosted.shared,
            "password": hosted.protected,
            "health": port.health,
        }

    def _space(self, caller: Caller, name: str) -> dict[str, Any]:
        if name not in self._core.spaces or is_reserved(name):
            raise BadArgument("space", "a space of this host", name)
        hosted = caller.hosted(name, "read")
        now = hosted.clock.now()
        waiters, transactions = hosted.port.summary(LISTED_MAX)
        return self._summary(hosted) | {
            "waiters": [self._waiter(one, now) for one in waiters],
            "open_transactions": [self._transaction(one, now) for one in transactions],
            "doubts": [
                {
                    "holder": holder.who,
                    "name": holder.name or self._name(holder.who),
                    "entries": entries,
                }
                for holder, entries in self._doubts(hosted)
            ],
        }

    def _waiter(self, waiter: WaiterSummary, now: float) -> dict[str, Any]:
        return {
            "template": waiter.template,
            "take": waiter.take,
            **self._actor(waiter.actor),
            "seconds": round(now - waiter.since, 3),
        }

    def _transaction(self, txn: TransactionSummary, now: float) -> dict[str, Any]:
        return {
            "id": txn.id,
            "state": txn.state,
            **self._actor(txn.actor),
            "taken": txn.taken,
            "written": txn.written,
            "read": txn.read,
            "expires_in": None if txn.expires is None else round(txn.expires - now, 3),
        }

    def _doubts(self, hosted: HostedSpace) -> list[tuple[Any, int]]:
        return [
            (holder, len(delivery.entries))
            for doubts in self._core.all_doubts
            for _, _, delivery, holder in doubts.waiting()
            if delivery.space == hosted.name
        ][:LISTED_MAX]

    def _host(self) -> dict[str, Any]:
        core = self._core
        return {
            "id": core.id,
            "name": core.name,
            "address": core.address,
            "peers": [
                {
                    "id": peer.id,
                    "name": peer.name,
                    "address": peer.address,
                    "spaces": sorted(peer.spaces),
                    "agents": len(peer.agents),
                }
                for peer in core.peers.values()
            ],
            "clients": [
                {"agent": serving.agent, "name": serving.name} for serving in core.servings.values()
            ],
        }

    def _actor(self, actor: Actor | None) -> dict[str, Any]:
        if actor is None:
            return {"agent": None, "name": ""}
        return {"agent": actor.agent, "name": actor.name or self._name(actor.agent)}

    def _name(self, agent: str) -> str:
        """The name under which a client or host is known here, or the names of all connections of
        one program; empty if it has none."""
        if agent == self._core.id:
            return self._core.name
        names = {one.name for one in self._core.servings.values() if one.agent == agent}
        if names:
            return ", ".join(sorted(names))
        peer = self._core.peers.get(agent)
        return peer.name if peer is not None else ""
