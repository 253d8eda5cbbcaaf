"""Lookup services are found in the network by their groups. Real multicast, on the loopback."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import pytest
from zeroconf import ServiceInfo, Zeroconf

import tupelo
from tests.conftest import until_true
from tupelo.errors import BadArgument, CannotReach, DiscoveryFailed
from tupelo.models.javaspaces import (
    LookupDiscovery,
    LookupLocator,
    LookupService,
    ServiceItem,
    announce,
    offer,
)
from tupelo.models.javaspaces.remote.multicast import SERVICE_TYPE, FoundLookup

LOOPBACK = ["127.0.0.1"]


@pytest.fixture
def host():
    with tupelo.Host("town", listen="127.0.0.1:0") as host:
        yield host


@pytest.fixture
def group():
    """A group of this test alone: others may be in the same network."""
    return f"group {uuid4().hex}"


def found_by(discovery: LookupDiscovery) -> list[str]:
    return [found.service_id for found in discovery.found]


def test_a_lookup_service_is_found_by_its_group_and_used(host, group):
    with (
        LookupService(groups=["another", group]) as lookup,
        announce(host, lookup, interfaces=LOOPBACK),
        LookupDiscovery([group], interfaces=LOOPBACK) as discovery,
    ):
        offer(host, lookup)
        found = discovery.find(10)
        assert found.service_id == lookup.service_id and found.groups == ("another", group)
        assert LookupLocator(f"tupelo://{host.address}") in found.locators
        with discovery.get_registrar() as registrar:
            registrar.register(ServiceItem(None, "a service"), 60)
            assert lookup.lookup() == "a service" and registrar.groups == ("another", group)


def test_others_groups_are_not_found(host, group):
    with (
        LookupService(groups=[group]) as lookup,
        announce(host, lookup, interfaces=LOOPBACK),
        LookupDiscovery([f"not {group}"], interfaces=LOOPBACK) as others,
        LookupDiscovery(None, interfaces=LOOPBACK) as all_groups,
        LookupDiscovery([group], interfaces=LOOPBACK) as ours,
    ):
        assert ours.find(10).service_id == lookup.service_id
        until_true(lambda: lookup.service_id in found_by(all_groups))
        assert others.found == []
        with pytest.raises(DiscoveryFailed):
            others.find(0)
        with pytest.raises(DiscoveryFailed):
            others.get_registrar(0.05)


def test_comings_and_goings_are_told(host, group):
    events: list[FoundLookup] = []
    with LookupDiscovery([group], events.append, interfaces=LOOPBACK) as discovery:
        for _ in range(2):
            events.clear()
            with LookupService(groups=[group]) as lookup:
                announcement = announce(host, lookup, interfaces=LOOPBACK)
                until_true(lambda: len(events) == 1, "it is found")
                assert events[0].service_id == lookup.service_id and not events[0].gone
                announcement.close()
                until_true(lambda: len(events) == 2, "it is gone")
                assert events[1].service_id == lookup.service_id and events[1].gone
        assert discovery.found == []


def test_a_listener_that_raises_harms_nothing(host, group, caplog):
    def raises(found: FoundLookup) -> None:
        raise RuntimeError("a bad listener")

    with (
        LookupDiscovery([group], raises, interfaces=LOOPBACK) as discovery,
        LookupService(groups=[group]) as lookup,
        announce(host, lookup, interfaces=LOOPBACK),
    ):
        assert discovery.find(10).service_id == lookup.service_id
        until_true(lambda: "a bad listener" in caplog.text)


def test_one_that_does_not_answer_is_no_registrar(group):
    lookup = LookupService(groups=[group])
    with tupelo.Host("short", listen="127.0.0.1:0") as host:
        announcement = announce(host, lookup, interfaces=LOOPBACK)
    with (
        announcement,
        LookupDiscovery([group], interfaces=LOOPBACK) as discovery,
        pytest.raises(DiscoveryFailed, match="tupelo://127"),
    ):
        discovery.get_registrar(10)
    lookup.close()


def test_from_a_coroutine(host, group):
    async def main() -> None:
        with (
            LookupService(groups=[group]) as lookup,
            announce(host, lookup, interfaces=LOOPBACK),
            LookupDiscovery([group], interfaces=LOOPBACK) as discovery,
        ):
            offer(host, lookup)
            async with await discovery.get_registrar_async(10) as registrar:
                assert registrar.is_async and registrar.service_id == lookup.service_id
                assert await registrar.lookup() is None

    asyncio.run(main())


def test_a_closed_discovery_finds_nothing(group):
    discovery = LookupDiscovery([group], interfaces=LOOPBACK)
    discovery.close()
    with pytest.raises(DiscoveryFailed, match="closed"):
        discovery.find(5)


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("liar", {"id": "another", "version": "1"}),
        ("newer", {"id": "newer", "version": "2"}),
        ("silent", {}),
        ("garbled", {"id": "garbled", "version": b"\xff\xfe"}),
        ("nameless", {"id": "nameless", "version": "1", "g0": "a\nb"}),
    ],
)
def test_what_is_not_understood_is_ignored(group, caplog, name, properties):
    caplog.set_level(logging.WARNING)
    name = f"{name}-{uuid4().hex}"
    given = dict(properties)
    if given.get("id") == name.partition("-")[0]:
        given["id"] = name
    info = ServiceInfo(
        SERVICE_TYPE,
        f"{name}.{SERVICE_TYPE}",
        port=7,
        properties=given,
        parsed_addresses=LOOPBACK,
    )
    with LookupDiscovery(None, interfaces=LOOPBACK) as discovery:
        network = Zeroconf(interfaces=LOOPBACK)
        try:
            network.register_service(info, cooperating_responders=True)
            until_true(lambda: name in caplog.text, "it is noted in the log")
            assert "is ignored" in caplog.text and name not in found_by(discovery)
        finally:
            network.unregister_service(info)
            network.close()


def test_bad_arguments_are_named(host):
    lookup = LookupService()
    crowd = LookupService(groups=[f"{n}" for n in range(17)])
    silent = tupelo.Host("silent")
    cases: list[tuple[str, Any]] = [
        ("host", lambda: announce("host", lookup)),  # type: ignore[arg-type]
        ("host", lambda: announce(silent, lookup)),
        ("lookup", lambda: announce(host, "lookup")),  # type: ignore[arg-type]
        ("lookup", lambda: announce(host, crowd, interfaces=LOOPBACK)),
        ("interfaces", lambda: announce(host, lookup, interfaces=["kitchen"])),
        ("interfaces", lambda: LookupDiscovery(interfaces=["kitchen"])),
        ("groups", lambda: LookupDiscovery("public")),
        ("listener", lambda: LookupDiscovery(listener=5)),  # type: ignore[arg-type]
    ]
    for argument, call in cases:
        with pytest.raises(BadArgument, match=f"^{argument}="):
            call()
    for call in (
        lambda: announce(host, lookup, interfaces=["203.0.113.1"]),
        lambda: LookupDiscovery(interfaces=["203.0.113.1"]),
    ):
        with pytest.raises(CannotReach):
            call()
    with (
        LookupDiscovery(interfaces=LOOPBACK) as discovery,
        pytest.raises(BadArgument, match="wait="),
    ):
        discovery.find(-1)
    for thing in (lookup, crowd, silent):
        thing.close()
