"""Appendix B.1: the service is registered and found, with the ids of the thesis.

A transaction service is registered as well, as the appendix assumes, and must not be mistaken for
the JavaSpace; an HTTP server has nothing to do here, where no code is downloaded.
"""

# ruff: noqa: N802 (the ids are encoded as in the thesis)

from typing import Any

import pytest

from tests.models.javaspaces.doors import SimpleEntry, bare, drain
from tupelo.models.javaspaces import NO_WAIT, JavaSpace, JavaSpace05, TransactionManager
from tupelo.models.javaspaces.lookup import LookupLocator, LookupService
from tupelo.models.javaspaces.service_items import ServiceItem, ServiceTemplate
from tupelo.models.javaspaces.space_service import JavaSpaceService, XVSMService

ADDRESS = "jini://127.0.0.1:4754"
ENTRY = SimpleEntry(1, "one", True)


@pytest.fixture
def lookup(world, clock):
    """A lookup service, with a transaction service registered."""
    with LookupService(ADDRESS, clock) as service:
        service.register(ServiceItem("transactions", bare(world.manager)))
        yield LookupLocator(ADDRESS).get_registrar()


@pytest.fixture
def start(world, lookup, tmp_path):
    """`start()` starts the service, always on the same space: a durable one is opened again."""
    options = {"path": tmp_path / "jaxs.tupelo"} if world.is_durable else {}
    running: list[JavaSpaceService] = []

    def started() -> JavaSpaceService:
        space = bare(world.space("jaxs", **options))
        running.append(JavaSpaceService(space, lookup))
        return running[-1]

    yield started
    for service in running:
        service.shutdown()


def registered(lookup: LookupService, cls: type) -> list[Any]:
    """All services of this class."""
    found = lookup.lookup_all(ServiceTemplate(types=[cls]))
    assert found.total_matches == len(found.items)
    return found.items


def works(world: Any, service: JavaSpaceService, found: Any) -> bool:
    """Is it a reference to the running service, for use by a client?"""
    client, owner = world.door(found), world.door(service)
    client.write(ENTRY)
    return bool(owner.take(SimpleEntry(), None, NO_WAIT) == ENTRY)


def test_appendix_b_S_1_the_service_is_registered_when_it_starts(lookup, start):
    assert registered(lookup, JavaSpace) == []
    service = start()
    assert service.registered
    items = registered(lookup, JavaSpace)
    assert [(item.service_id, item.service) for item in items] == [(service.service_id, service)]
    assert lookup.lookup_all().total_matches == 2, "it and the transaction service"
    assert isinstance(
        lookup.lookup(ServiceTemplate(types=[TransactionManager])), TransactionManager
    )


def test_appendix_b_S_2_the_service_is_found_as_a_javaspace(world, lookup, start):
    service = start()
    found = lookup.lookup(ServiceTemplate(types=[JavaSpace]))
    assert isinstance(found, JavaSpace)
    assert works(world, service, found)


def test_appendix_b_S_3_the_service_is_found_as_a_javaspace05(world, lookup, start):
    service = start()
    found = lookup.lookup(ServiceTemplate(types=[JavaSpace05]))
    assert isinstance(found, JavaSpace05)
    assert works(world, service, found)


def test_appendix_b_S_4_the_service_is_found_as_an_xvsm_service(world, lookup, start):
    service = start()
    found = lookup.lookup(ServiceTemplate(types=[XVSMService]))
    assert isinstance(found, XVSMService)
    assert works(world, service, found)


def test_appendix_b_S_5_the_service_is_registered_once_after_a_restart(world, lookup, start):
    first = start()
    world.door(first).write(ENTRY)
    first.shutdown()
    assert registered(lookup, JavaSpace) == []
    world.door(first).close()
    second = start()
    (item,) = registered(lookup, JavaSpace)
    assert (item.service_id, item.service) == (first.service_id, second)
    assert drain(world.door(item.service)) == ([ENTRY] if world.is_durable else [])
    # And if nobody could shut it down: it crashed.
    world.door(second.space).close()
    third = start()
    assert [item.service for item in registered(lookup, JavaSpace)] == [third]
    assert third.service_id == first.service_id
    assert not second.registered
    first.shutdown()  # Who was replaced cannot take the other's registration away.
    second.shutdown()
    assert [item.service for item in registered(lookup, JavaSpace)] == [third]
