"""Whole federations in virtual time: whatever fails, nothing is lost, doubled or left behind. The
checker finds planted bugs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.simulation.seeds import check_replay, check_seeds
from tests.simulation.seeds import found as find
from tupelo.federation.hosts.client_resources import ClientResources
from tupelo.federation.hosts.decisions import TransactionDecisions
from tupelo.federation.spanning.federated import Federation
from tupelo.lab.simulate import simulate
from tupelo.space.delivery import Delivery
from tupelo.space.port import Port
from tupelo.space.query import Query
from tupelo.values.holder import Holder

SEEDS = 20
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # coroutines of killed programs


def test_federations_keep_their_promises():
    check_seeds("federation", SEEDS)


@pytest.mark.parametrize("seed", [3, 8])
def test_a_seed_replays_exactly(seed):
    check_replay("federation", seed)


def test_seeds_differ():
    assert simulate(2).digest != simulate(4).digest


# Planted bugs


found = partial(find, "federation", seeds=60)


class Settled:
    """A delivery that was settled before its time."""

    def __init__(self, delivery: Delivery) -> None:
        self.entries = list(delivery.entries)
        self.space = delivery.space

    def confirm(self) -> int:
        return 0

    def give_back(self) -> int:
        return 0

    def forget(self) -> None:
        pass


def settle_early(monkeypatch: Any, settle: Callable[[Delivery], object]) -> None:
    """Deliveries to other hosts are settled at once."""
    original = Port.reserve

    async def reserve(port: Port, query: Query, holder: Holder) -> Delivery | None:
        delivery = await original(port, query, holder)
        if delivery is None or holder.kind != "host":
            return delivery
        settled = Settled(delivery)
        settle(delivery)
        return settled

    monkeypatch.setattr(Port, "reserve", reserve)


def test_a_removal_that_is_confirmed_before_delivery_is_noticed(monkeypatch):
    settle_early(monkeypatch, lambda delivery: delivery.confirm())
    found("lost", first=4)


def test_a_delivery_without_a_reservation_is_noticed(monkeypatch):
    settle_early(monkeypatch, lambda delivery: delivery.give_back())
    found("taken twice")


def test_an_owner_that_is_told_before_the_taker_has_it_is_noticed(monkeypatch):
    """The fetching host may be killed in between, and has it in memory only."""
    claim = Federation.claim

    async def claiming(federation: Federation, *args: Any) -> Any:
        brought = await claim(federation, *args)
        if brought is not None and brought.entries:
            brought.confirm()
            while federation.all_unsettled():  # until its owner has agreed, as it was
                await asyncio.sleep(0.01)
        return brought

    monkeypatch.setattr(Federation, "claim", claiming)
    found("lost", first=8)


def test_a_waiter_that_is_not_moved_to_a_new_host_is_noticed(monkeypatch):
    def engaged(federation: Federation, host: Any) -> None:
        searches, federation.searches = federation.searches, {}
        original(federation, host)
        federation.searches = searches

    original = Federation.engaged
    monkeypatch.setattr(Federation, "engaged", engaged)
    found("not served")


def test_a_lock_that_outlives_its_client_is_noticed(monkeypatch):
    monkeypatch.setattr(ClientResources, "free", lambda possessions: None)
    found("left behind", first=9)


def test_a_commit_that_is_not_logged_is_noticed(monkeypatch):
    monkeypatch.setattr(TransactionDecisions, "decide", lambda deciding, txn, told, speaker: True)
    found("half done", first=10)
