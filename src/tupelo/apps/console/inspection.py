"""The service "inspection" of a host: the state of its spaces and links, for the console.

A client learns only about spaces in which it may read, and only a client that may administer the
host's presence, a program on its machine, can part it from other hosts. The service is found by its
entry point.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from tupelo.errors import AccessError, BadArgument, JournalError, LinkError, TupeloError
from tupelo.federation.groups.group import CHANNEL as GROUP
from tupelo.federation.groups.group import Group
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.peer import Peer
from tupelo.federation.hosts.services import Caller
from tupelo.federation.links import wire
from tupelo.federation.names import PRESENCE, is_reserved
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.federation.spaces.stored import StoredSpace
from tupelo.space.log import Actor
from tupelo.space.port import TransactionSummary, WaiterSummary

SERVICE = "inspection"
LISTED_MAX = 200
"""At most so many waiting operations and transactions of a space are listed."""
NEWS_MAX = 100
"""At most so many comings and goings of hosts are remembered."""
LATENCY_SECONDS = 1.0


class InspectionService:
    """Answers `spaces()`, `space(name)`, `host()`, `disengage()` and `reengage()` on the loop of
    the host."""

    def __init__(self, core: HostCore) -> None:
        self._core = core
        self._news: deque[dict[str, Any]] = deque(maxlen=NEWS_MAX)
        self._group: list[str] = []
        core.extensions[SERVICE] = self

    async def invoke(self, caller: Caller, message: wire.Invoke) -> Any:
        """The answer to one call of a client; BadArgument if there is no such method."""
        match message.method, message.args:
            case "spaces", []:
                return await self._spaces(caller)
            case "space", [str() as name]:
                return await self._space(caller, name)
            case "host", []:
                return await self._host()
            case "disengage", []:
                caller.hosted(PRESENCE, "administer")
                return self._core.disengage()
            case "reengage", []:
                caller.hosted(PRESENCE, "administer")
                return await self._core.reengage()
        raise BadArgument("method", "one of the service, with its arguments", message.method)

    def left(self, caller: Caller) -> None:
        """Nothing is kept for a client."""

    # As an extension of the host, it is told who comes and goes.

    def engaged(self, peer: Peer) -> None:
        """Another host is engaged."""
        self._note("engaged", peer.name)

    def departed(self, peer: Peer) -> None:
        """Another host has departed."""
        self._note("departed", peer.name)

    async def stop(self) -> None:
        """Nothing is open."""

    def _note(self, kind: str, name: str) -> None:
        self._news.append({"time": self._core.clock.now(), "kind": kind, "name": name})

    async def _spaces(self, caller: Caller) -> list[dict[str, Any]]:
        found = []
        for name in sorted([*self._core.spaces, *self._core.stored]):
            if is_reserved(name):
                continue
            try:
                hosted = caller.allowed(name, "read")
                if isinstance(hosted, StoredSpace):
                    found.append(await self._stored_summary(hosted))
                else:
                    found.append(self._summary(hosted))
            except (AccessError, LinkError, JournalError) as error:
                found.append({"name": name, "refused": str(error)})
        return found

    async def _stored_summary(self, stored: StoredSpace) -> dict[str, Any]:
        """What is known here of a space in a database; of its programs, only those of this host."""
        space: Any = await stored.own(self._core.name)
        return {
            "name": stored.name,
            "entries": await space.count(),
            "position": await space.log.position(),
            "waiting": len(space.database.listener.waiting(space.id)),
            "subscriptions": 0,
            "transactions": len(await space.in_hand()),
            "in_doubt": len(self._doubts(stored)),
            "durable": True,
            "shared": False,
            "password": stored.protected,
            "health": "ok",
            "access": stored.access.rules(),
            "store": stored.where,
        }

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
            "access": hosted.access.rules(),
        }

    async def _space(self, caller: Caller, name: str) -> dict[str, Any]:
        if is_reserved(name):
            raise BadArgument("space", "a space of this host", name)
        self._core.require_space(name)
        hosted = caller.allowed(name, "read")
        waiters: list[WaiterSummary] = []
        transactions: list[TransactionSummary] = []
        now = 0.0
        if isinstance(hosted, StoredSpace):
            summary = await self._stored_summary(hosted)
        else:
            summary = self._summary(hosted)
            waiters, transactions = hosted.port.summary(LISTED_MAX)
            now = hosted.clock.now()
        return summary | {
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
            "holds": txn.holds,
            "expires_in": None if txn.expires is None else round(txn.expires - now, 3),
        }

    def _doubts(self, hosted: HostedSpace | StoredSpace) -> list[tuple[Any, int]]:
        return [
            (holder, len(delivery.entries))
            for doubts in self._core.all_doubts
            for _, _, delivery, holder in doubts.waiting()
            if delivery.space == hosted.name
        ][:LISTED_MAX]

    async def _host(self) -> dict[str, Any]:
        core = self._core
        peers = list(core.peers.values())
        latencies = await asyncio.gather(*map(self._latency, peers))
        members = self._members()
        if members != self._group:
            self._group = members
            self._note("group", ", ".join(members))
        return {
            "id": core.id,
            "name": core.name,
            "address": core.address,
            "identity": None if core.identity is None else core.identity.key,
            "disengaged": core.disengaged,
            "group": members,
            "news": list(self._news),
            "peers": [
                {
                    "id": peer.id,
                    "name": peer.name,
                    "address": peer.address,
                    "spaces": sorted(peer.spaces),
                    "agents": len(peer.agents),
                    "identity": peer.who or None,
                    "latency": latency,
                    "sent": peer.talk.bytes_sent,
                    "received": peer.talk.bytes_received,
                }
                for peer, latency in zip(peers, latencies, strict=True)
            ],
            "clients": [
                {
                    "agent": serving.agent,
                    "name": serving.name,
                    "identity": serving.who or None,
                    "sent": serving.talk.bytes_sent,
                    "received": serving.talk.bytes_received,
                }
                for serving in core.servings.values()
            ],
        }

    async def _latency(self, peer: Peer) -> float | None:
        """Seconds until the host has answered a message; None if it has not within a second."""
        began = self._core.clock.now()
        try:
            async with asyncio.timeout(LATENCY_SECONDS):
                await peer.talk.call(wire.DescribeHost(self._core.next_call(), brief=True), "ping")
        except (TimeoutError, TupeloError):
            return None
        return max(0.0, self._core.clock.now() - began)

    def _members(self) -> list[str]:
        """The names of the hosts of the group, if a model has formed one here."""
        group = self._core.extensions.get(GROUP)
        if not isinstance(group, Group):
            return []
        return sorted(one.name for one in group.membership.members.values())

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
