"""Services of a host: a client calls them over its link; what they hand over is never lost."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

import tupelo
from tests.conftest import until_true
from tupelo.errors import (
    BadArgument,
    CannotReach,
    NotAllowed,
    SpaceClosed,
    UnknownService,
    UnknownType,
    WrongPassword,
)
from tupelo.federation.client.services import (
    connect_to_host,
    connect_to_host_async,
    invoke,
)
from tupelo.federation.hosts.services import Caller, HandOver
from tupelo.federation.identity.access import Access
from tupelo.federation.links import wire
from tupelo.space.dual_api import run_sync


class Till:
    """Hands out numbers: what is not received is handed out again."""

    def __init__(self) -> None:
        self.free = [3, 2, 1]
        self.kept: list[int] = []
        self.gone: list[str] = []

    async def invoke(self, caller: Caller, message: wire.Invoke) -> Any:
        if message.method == "echo":
            return [caller.agent, *message.args]
        if message.method == "wait":
            await asyncio.Event().wait()
        if message.method == "take":
            number = self.free.pop()
            return HandOver(
                number,
                lambda: self.kept.append(number),
                lambda: self.free.append(number),
            )
        raise BadArgument("method", "echo, wait or take", message.method)

    def left(self, caller: Caller) -> None:
        self.gone.append(caller.agent)


@pytest.fixture
def till():
    with tupelo.Host("shop", listen="127.0.0.1:0") as host:
        till = Till()
        host.core.services["till"] = till
        yield host, till


def test_a_method_is_called_and_answers(till):
    host, service = till
    with connect_to_host(host.url) as shop:
        answer = run_sync(lambda: invoke(shop, "till", "echo", 1, "two", again=True))
        assert answer == [shop.agent, 1, "two"]
        with pytest.raises(BadArgument, match="method= must be echo"):
            run_sync(lambda: invoke(shop, "till", "sing"))
        with pytest.raises(UnknownService, match=f"{host.address} offers no 'bank' service"):
            run_sync(lambda: invoke(shop, "bank", "rob"))
    until_true(lambda: service.gone, "the service hears that the client left")


def test_what_is_handed_over_is_kept_when_it_has_arrived(till):
    host, service = till
    with connect_to_host(host.url) as shop:
        assert run_sync(lambda: invoke(shop, "till", "take", handed_over=True)) == 1
        until_true(lambda: service.kept == [1], "the answer is confirmed")
        assert service.free == [3, 2]


def test_what_is_handed_over_and_not_confirmed_goes_back(till):
    host, service = till
    with connect_to_host(host.url) as shop:
        # An answer that is not confirmed before a goodbye has not arrived.
        assert run_sync(lambda: invoke(shop, "till", "take")) == 1
        assert service.free == [3, 2]
    until_true(lambda: service.free == [3, 2, 1], "it is given back")
    assert not service.kept


def test_a_call_that_waits_ends_with_the_connection(till):
    host, _ = till
    shop = connect_to_host(host.url)
    ended: list[BaseException] = []

    def call() -> None:
        try:
            run_sync(lambda: invoke(shop, "till", "wait", wait=None))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    until_true(lambda: any(s.requests.tasks for s in host.core.servings.values()), "it waits")
    shop.__exit__(None, None, None)
    thread.join(10)
    assert isinstance(ended[0], SpaceClosed)


def test_a_cancelled_task_gives_back(till):
    host, service = till

    async def main() -> None:
        async with await connect_to_host_async(host.url) as shop:
            waiting = asyncio.ensure_future(
                invoke(shop, "till", "wait", wait=None, handed_over=True)
            )
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await invoke(shop, "till", "echo", again=True) == [shop.agent]

    asyncio.run(main())
    assert service.free == [3, 2, 1]


def test_a_service_is_offered_with_rules_of_its_own():
    def offer(host: tupelo.Host, **options: Any) -> Any:
        async def begin() -> Any:
            return host.core.offer("till", Till(), **options)

        return host.now(begin())

    with tupelo.Host("shop", listen="127.0.0.1:0") as host:
        hidden = offer(host, access=Access(take=[]))
        assert hidden.name == "tupelo.till" and not hidden.shared
        with connect_to_host(host.url) as shop:
            assert run_sync(lambda: invoke(shop, "till", "echo", again=True)) == [shop.agent]
        with pytest.raises(NotAllowed):
            hidden.access.check("take", "tupelo.till", None, True)
        offer(host, access=Access(password="open sesame"))
        with connect_to_host(host.url, about="tupelo.till", password="open sesame") as shop:
            assert run_sync(lambda: invoke(shop, "till", "echo", again=True)) == [shop.agent]
        with pytest.raises(WrongPassword):
            connect_to_host(host.url, about="tupelo.till", password="sesame")
        with pytest.raises(BadArgument, match="access="):
            offer(host, access="anyone")


def test_what_cannot_be_built_is_given_back(till):
    host, service = till

    def build(number: int) -> str:
        if number == 1:
            raise UnknownType("one")
        return f"number {number}"

    with connect_to_host(host.url) as shop:
        ask = partial(invoke, shop, "till", "take", handed_over=True, build=build)
        with pytest.raises(UnknownType):
            run_sync(ask)
        until_true(lambda: service.free == [3, 2, 1], "it is given back")
        service.free.remove(1)
        assert run_sync(ask) == "number 2"
        assert run_sync(lambda: invoke(shop, "till", "echo", build=len, again=True)) == 1


def test_bad_options_and_an_address_where_nobody_is():
    with pytest.raises(BadArgument, match="colour= must be left out"):
        connect_to_host("tupelo://127.0.0.1:1", colour="red")
    with pytest.raises(CannotReach):
        connect_to_host("tupelo://127.0.0.1:1")
