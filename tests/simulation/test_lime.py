"""LIME in virtual time: groups part and merge, hosts crash, agents move and react; the
invariants of tuples, agents and reactions hold. The checker finds planted bugs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.simulation.seeds import check_replay, check_seeds
from tests.simulation.seeds import found as find
from tupelo.errors import PeerLost
from tupelo.federation.brokers.broker import Broker
from tupelo.federation.groups.group import Gate, Group
from tupelo.models.lime.agent import Agent, AgentRuntime
from tupelo.models.lime.messages import FoundTuple
from tupelo.models.lime.migrating import Migrations
from tupelo.models.lime.reactions import ReactionRecord
from tupelo.models.lime.transfer import TupleTransfer

SEEDS = 8
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # coroutines of killed programs


def test_lime_keeps_its_promises():
    check_seeds("lime", SEEDS)


def test_a_seed_replays_exactly():
    check_replay("lime", 5)


# Planted bugs


found = partial(find, "lime", seeds=100)


def test_a_watchdog_that_is_missing_at_a_new_member_is_noticed(monkeypatch):
    """Who comes into a group does not look out for what its members want to hear of."""
    met: dict[Broker, set[str]] = {}

    def install(broker: Broker, membership: Any) -> None:
        met[broker] = set(broker._epoch.tree.hosts)
        original_install(broker, membership)

    def install_metadata(broker: Broker, now: Any, host: str, metadata: Any) -> None:
        if host in met[broker]:
            original_install_metadata(broker, now, host, metadata)

    original_install, original_install_metadata = Broker.install, Broker._install_metadata
    monkeypatch.setattr(Broker, "install", install)
    monkeypatch.setattr(Broker, "_install_metadata", install_metadata)
    found("not reacted")


def test_a_group_that_does_not_halt_is_noticed(monkeypatch):
    async def enter(gate: Gate) -> None:
        gate.enter_now()

    monkeypatch.setattr(Gate, "enter", enter)
    found("half a group", "half engaged", first=142)


def test_a_group_that_goes_on_before_it_has_settled_is_noticed(monkeypatch):
    """Operations do not wait for the misplaced tuples that are under way."""
    late: set[asyncio.Task[None]] = set()

    async def settle_late(group: Group, membership: Any) -> None:
        await asyncio.sleep(0.05)
        await original(group, membership)

    async def settle(group: Group, membership: Any) -> None:
        late.add(asyncio.ensure_future(settle_late(group, membership)))

    original = Group._settle
    monkeypatch.setattr(Group, "_settle", settle)
    found("not seen", "agent lost", first=5)


def test_an_agent_that_is_left_behind_is_noticed(monkeypatch):
    """Where it was it goes on, as if it had not moved."""

    async def migrate(agent: Any, host: Any) -> None:
        life = agent._alive
        await life.host.migrations.leave(life, host, "run")

    monkeypatch.setattr(Agent, "migrate", migrate)
    monkeypatch.setattr(AgentRuntime, "end", lambda life, caller=None: None)
    found("two of one")


def test_an_agent_that_leaves_for_a_host_that_does_not_answer_is_noticed(monkeypatch):
    """In seed 66 that host crashes when the agent is parked there, and its answer is lost."""

    async def send(migrations: Migrations, token: str, agent: Any, host: str, package: Any) -> None:
        try:
            await original(migrations, token, agent, host, package)
        except PeerLost:
            migrations.decisions[token] = migrations._decision(host, go=True)

    original = Migrations._send_package
    monkeypatch.setattr(Migrations, "_send_package", send)
    found("agent lost", first=66)


def test_a_once_reaction_that_fires_twice_is_noticed(monkeypatch):
    def detected(registered: ReactionRecord, found: FoundTuple) -> None:
        mode, registered.mode = registered.mode, "once per tuple"
        original(registered, found)
        registered.mode = mode

    original = ReactionRecord.detected
    monkeypatch.setattr(ReactionRecord, "detected", detected)
    found("reacted twice")


def test_a_reaction_that_forgets_what_it_has_seen_is_noticed(monkeypatch):
    def detected(registered: ReactionRecord, found: FoundTuple) -> None:
        original(registered, found)
        registered.forget()

    original = ReactionRecord.detected
    monkeypatch.setattr(ReactionRecord, "detected", detected)
    found("reacted twice")


def test_a_misplaced_tuple_that_is_not_moved_is_noticed(monkeypatch):
    monkeypatch.setattr(TupleTransfer, "gather", lambda transfer: [])
    found("misplaced", "half engaged", first=2)
