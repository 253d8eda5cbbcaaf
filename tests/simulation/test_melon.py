"""MELON in virtual time: hosts part, meet and crash, processes store, write, send, take and read;
the invariants of messages hold. The checker finds planted bugs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.simulation.seeds import check_replay, check_seeds
from tests.simulation.seeds import found as find
from tests.simulation.test_federation import settle_early
from tupelo.federation.identity.keys import Identity
from tupelo.federation.replication.feeds import replication_of
from tupelo.federation.replication.placement import CopyAll, CopyKeeper
from tupelo.models.melon import directed
from tupelo.models.melon.broadcast import MessageSignal
from tupelo.models.melon.collecting import PinnedCapacity
from tupelo.models.melon.directed import DirectedMessages
from tupelo.models.melon.message_store import MessageStore
from tupelo.models.melon.reading import MessageReader, UnreachableCopies

SEEDS = 3
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # coroutines of killed programs


def test_melon_keeps_its_promises():
    check_seeds("melon", SEEDS)


def test_a_seed_replays_exactly():
    check_replay("melon", 2)


def test_a_seed_with_full_disks_replays_exactly():
    check_replay("melon", 9024, disks=True)


# Planted bugs


found = partial(find, "melon", seeds=12)


def test_a_reader_that_gives_up_and_loses_what_it_had_is_noticed(monkeypatch):
    monkeypatch.setattr(MessageReader, "undo", lambda reader, entries: None)
    found("not read", "overlooked", first=1)


def test_copies_that_are_read_backwards_are_noticed(monkeypatch):
    def look(copies: UnreachableCopies, template: Any, key: Any, many: bool) -> Any:
        return original(copies, template, key, many)[::-1]

    original = UnreachableCopies.look
    monkeypatch.setattr(UnreachableCopies, "look", look)
    found("out of order", first=2)


def test_one_who_waits_and_is_not_woken_is_noticed(monkeypatch):
    def notify(broadcast: MessageSignal) -> None:
        if broadcast.is_closed:
            original(broadcast)

    original = MessageSignal.notify
    monkeypatch.setattr(MessageSignal, "notify", notify)
    found("not woken")


def test_what_is_collected_without_a_word_is_noticed(monkeypatch):
    monkeypatch.setattr(MessageStore, "_tell_collected", lambda store, kind, entries: None)
    found("lost", first=4)


def test_a_pin_that_does_not_hold_is_noticed(monkeypatch):
    monkeypatch.setattr(PinnedCapacity, "pin", lambda room, entry: None)
    found("collected", first=4)


def test_a_second_carrier_that_gets_nothing_is_noticed(monkeypatch):
    """Nobody reads, so that it needs no copies for itself."""
    monkeypatch.setattr(CopyKeeper, "consider", lambda keeper: None)
    monkeypatch.setattr(MessageStore, "begin_pulling", lambda store: None)
    found("not carried", first=9)


def test_what_is_stored_and_copied_is_noticed(monkeypatch):
    def begin(store: MessageStore, core: Any, name: str, *args: Any) -> None:
        original(store, core, name, *args)
        replication_of(core).feed(name, CopyAll())

    original = MessageStore.__init__
    monkeypatch.setattr(MessageStore, "__init__", begin)
    found("copied")


def test_a_seal_that_everyone_can_open_is_noticed(monkeypatch):
    def seal(identity: Identity, to: str, plain: bytes, context: Any) -> bytes:
        return identity.key.encode() + plain

    def unseal(identity: Identity, sealed: bytes, context: Any) -> tuple[str, bytes]:
        size = len(identity.key)
        return sealed[:size].decode(), sealed[size:]

    monkeypatch.setattr(directed, "seal", seal)
    monkeypatch.setattr(directed, "unseal", unseal)
    found("opened")


def test_a_take_that_does_not_wait_for_the_record_of_the_one_before_is_noticed(monkeypatch):
    async def flush_late(messages: DirectedMessages) -> None:
        await asyncio.sleep(5.0)
        await messages._private.flush(record(messages))

    record = DirectedMessages._record
    monkeypatch.setattr(DirectedMessages, "_record", lambda messages: 0)
    monkeypatch.setattr(DirectedMessages, "_flush_records", flush_late)
    found("taken twice", first=26)


def test_a_message_that_is_delivered_and_not_reserved_is_noticed(monkeypatch):
    settle_early(monkeypatch, lambda delivery: delivery.give_back())
    found("taken twice")
