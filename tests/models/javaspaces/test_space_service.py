"""A JavaSpace as a service: registered, found, kept registered, and never registered twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tupelo import Space, aio
from tupelo.errors import BadArgument, DiscoveryFailed, LeaseLost, SpaceClosed
from tupelo.models.javaspaces.leases import FixedLeasePeriodPolicy, Lease
from tupelo.models.javaspaces.lookup import TRANSITION_NOMATCH_MATCH, LookupLocator, LookupService
from tupelo.models.javaspaces.service_items import ServiceTemplate
from tupelo.models.javaspaces.space import Entry, JavaSpace, JavaSpace05
from tupelo.models.javaspaces.space_service import JavaSpaceService, XVSMService
from tupelo.models.xvsm import AsyncCapi, Capi, FifoCoordinator, FifoSelector

INTERFACES = [JavaSpace, JavaSpace05, XVSMService]


@dataclass
class Name(Entry):
    name: str | None = None


@pytest.fixture
def lookup(clock):
    with LookupService(clock=clock) as lookup:
        yield lookup


@pytest.fixture
def space(clock):
    with Space("jobs", clock=clock) as space:
        yield space


def found(lookup: LookupService, interface: type = JavaSpace) -> list[Any]:
    return [one.service for one in lookup.lookup_all(ServiceTemplate(types=[interface])).items]


def crash(service: JavaSpaceService) -> None:
    """It does nothing more, and nobody was told."""
    service._renewals.close()


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_service_is_found_by_its_interfaces(lookup, space, interface):
    assert lookup.lookup(ServiceTemplate(types=[interface])) is None
    service = JavaSpaceService(space, lookup)
    assert service.registered
    there = lookup.lookup(ServiceTemplate(types=[interface]))
    assert there is service
    there.write(Name("a"))
    assert there.take(Name(), None, 0) == Name("a")


def test_a_service_is_found_by_its_attributes_and_id(lookup, space):
    service = JavaSpaceService(space, lookup, [Name("jobs")])
    assert lookup.lookup(ServiceTemplate(attributes=[Name("jobs")])) is service
    assert lookup.lookup(ServiceTemplate(attributes=[Name("others")])) is None
    assert lookup.lookup(ServiceTemplate(service.service_id)) is service
    assert service.registration.attributes == (Name("jobs"),)


@pytest.mark.parametrize("how", ["service", "locator", "address"])
def test_the_lookup_service_may_be_an_address(clock, space, how):
    with LookupService("127.0.0.1:4160", clock) as lookup:
        where: Any = {
            "service": lookup,
            "locator": LookupLocator("127.0.0.1"),
            "address": "jini://127.0.0.1:4160",
        }[how]
        service = JavaSpaceService(space, where)
        assert found(lookup) == [service]


def test_it_stays_registered_for_as_long_as_it_runs(lookup, space, clock):
    service = JavaSpaceService(space, lookup, lease=30)
    clock.advance(1000)
    assert found(lookup) == [service] and service.registered and service.error is None
    crash(service)
    clock.advance(30)
    assert found(lookup) == [] and not service.registered


def test_a_policy_may_shorten_its_lease(clock, space):
    policy = FixedLeasePeriodPolicy(10, 5)
    with LookupService(clock=clock, lease_policy=policy) as lookup:
        service = JavaSpaceService(space, lookup, lease=Lease.ANY)
        assert service.registration.lease.expiration == clock.now() + 5
        clock.advance(1000)
        assert found(lookup) == [service]


def test_shutdown_ends_the_registration_and_leaves_the_space(lookup, space, clock):
    with JavaSpaceService(space, lookup) as service:
        service.write(Name("a"))
        assert found(lookup) == [service]
    assert found(lookup) == [] and not service.registered
    service.shutdown()
    assert space.count() == 1
    clock.advance(1000)
    assert found(lookup) == []
    service.join()
    clock.advance(1000)
    assert found(lookup) == [service]


def test_closing_it_shuts_it_down(lookup, space):
    service = JavaSpaceService(space, lookup)
    service.close()
    assert found(lookup) == []
    with pytest.raises(SpaceClosed):
        space.count()


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("end", ["shutdown", "crash"])
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
def test_a_restart_registers_it_once_only(lookup, clock, tmp_path, interface, end, durable):
    def start() -> tuple[Space, JavaSpaceService]:
        space = Space("jobs", path=tmp_path / "jobs" if durable else None, clock=clock)
        return space, JavaSpaceService(space, lookup, [Name("jobs")])

    space, first = start()
    if end == "shutdown":
        first.shutdown()
        assert found(lookup, interface) == []
    else:
        crash(first)
        assert found(lookup, interface) == [first], "its lease lives still"
    space.close()
    space, second = start()
    assert found(lookup, interface) == [second]
    assert second.service_id == first.service_id
    clock.advance(1000)
    assert found(lookup, interface) == [second] and second.registered
    space.close()


def test_a_durable_space_keeps_its_id_under_any_file_name(lookup, clock, tmp_path):
    with Space("jobs", path=tmp_path / "a", clock=clock) as space:
        first = JavaSpaceService(space, lookup)
    (tmp_path / "a").rename(tmp_path / "b")
    with Space("jobs", path=tmp_path / "b", clock=clock) as space:
        second = JavaSpaceService(space, lookup)
        assert second.service_id == first.service_id and found(lookup) == [second]
    with Space("jobs", path=tmp_path / "c", clock=clock) as space:
        other = JavaSpaceService(space, lookup)
        assert other.service_id != first.service_id and len(found(lookup)) == 2


def test_durable_spaces_of_one_agent_are_several_services(lookup, clock, tmp_path):
    with (
        Space("a", path=tmp_path / "a", agent="me", clock=clock) as a,
        Space("b", path=tmp_path / "b", agent="me", clock=clock) as b,
    ):
        services = [JavaSpaceService(a, lookup), JavaSpaceService(b, lookup)]
        assert found(lookup) == services


def test_spaces_of_several_names_are_several_services(lookup, clock):
    with Space("a", clock=clock) as a, Space("b", clock=clock) as b:
        services = [JavaSpaceService(a, lookup), JavaSpaceService(b, lookup)]
        services.append(JavaSpaceService(b, lookup, service_id="another"))
        assert found(lookup) == services
        assert services[-1].service_id == "another"


def test_one_that_was_replaced_gives_way(lookup, space, clock):
    first = JavaSpaceService(space, lookup)
    second = JavaSpaceService(space, lookup)
    assert not first.registered and second.registered
    clock.advance(1000)
    assert isinstance(first.error, LeaseLost) and found(lookup) == [second]
    first.shutdown()
    assert found(lookup) == [second]


def test_one_whose_registration_is_lost_can_join_again(lookup, space, clock):
    service = JavaSpaceService(space, lookup)
    service.registration.lease.cancel()
    clock.advance(60)
    assert not service.registered and isinstance(service.error, LeaseLost)
    service.join()
    assert found(lookup) == [service] and service.error is None
    clock.advance(1000)
    assert service.registered


def test_its_arrival_is_told(lookup, space, until):
    events: list[Any] = []
    lookup.notify(ServiceTemplate(types=[JavaSpace]), TRANSITION_NOMATCH_MATCH, events.append)
    service = JavaSpaceService(space, lookup)
    until(lambda: events)
    assert events[0].item.service is service


def test_it_outlives_its_lookup_service(lookup, space, clock):
    service = JavaSpaceService(space, lookup)
    lookup.close()
    assert not service.registered
    clock.advance(100)
    assert isinstance(service.error, SpaceClosed)
    service.write(Name("a"))
    service.shutdown()
    assert space.count() == 1


def test_on_the_async_door(lookup, clock):
    async def program() -> None:
        async with aio.Space("jobs", clock=clock) as space:
            async with JavaSpaceService(space, lookup) as service:
                there = lookup.lookup(ServiceTemplate(types=[JavaSpace05]))
                assert there is service and there.is_async
                await there.write(Name("a"))
                assert await there.take(Name(), None, 0) == Name("a")
            assert found(lookup) == []

    asyncio.run(program())


def test_it_has_containers_too(lookup, space):
    service = JavaSpaceService(space, lookup)
    capi = lookup.lookup(ServiceTemplate(types=[XVSMService])).capi
    assert capi is service.capi and isinstance(capi, Capi)
    container = capi.create_container(None, None, "queue", None, FifoCoordinator())
    capi.write(container, 0, None, ("a", 1))
    service.shutdown()
    assert capi.take(container, 0, None, FifoSelector()) == [("a", 1)]
    service.close()
    with pytest.raises(SpaceClosed):
        capi.take(container, 0, None, FifoSelector())


def test_the_async_door_has_containers_to_be_awaited(lookup, clock):
    async def program() -> None:
        async with aio.Space("jobs", clock=clock) as space:
            service = JavaSpaceService(space, lookup)
            assert isinstance(service.capi, AsyncCapi)
            await service.capi.create_container(None, None, "queue", None, FifoCoordinator())
            await service.close()

    asyncio.run(program())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"space": 7}, "space="),
        ({"lookup": 7}, "lookup="),
        ({"lookup": "not an address"}, "address="),
        ({"lease": 0}, "lease="),
        ({"attributes": Name("a")}, "attributes="),
        ({"service_id": 7}, "service_id="),
        ({"retry": 7}, "retry="),
    ],
)
def test_bad_arguments_are_named(lookup, space, arguments, named):
    with pytest.raises(BadArgument, match=named):
        JavaSpaceService(**{"space": space, "lookup": lookup, **arguments})
    assert lookup.lookup() is None


def test_nobody_at_the_address(space):
    with pytest.raises(DiscoveryFailed):
        JavaSpaceService(space, "127.0.0.1:4160")
