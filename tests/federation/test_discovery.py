"""Hosts find each other on the loopback interface, whatever others announce there."""

import asyncio
import logging
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from tupelo.errors import BadArgument, CannotReach
from tupelo.federation.hosts import discovery
from tupelo.federation.hosts.discovery import SERVICE_TYPE, Discovery
from tupelo.federation.links.address import Address, is_loopback

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
if sys.platform != "win32":
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop

LOOPBACK = ["127.0.0.1"]
KEY = "ed25519:" + "a" * 64
SECONDS = 30.0


def some_id() -> str:
    """Other tests may speak on the same interface at the same time."""
    return uuid.uuid4().hex


class Listener:
    """What one host was told."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, list[Address], str | None]] = {}
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_found(self, host_id: str, name: str, addresses: list[Address], key: str | None) -> None:
        self.found[host_id] = (name, addresses, key)
        self._wake()

    def on_gone(self, host_id: str) -> None:
        del self.found[host_id]
        self._wake()

    def _wake(self) -> None:
        task = asyncio.get_running_loop().create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(condition)


@asynccontextmanager
async def host(host_id: str, listener: Listener, **other: Any) -> AsyncIterator[Discovery]:
    arguments = {"name": "kitchen", "port": 7700, "version": 1, "interfaces": LOOPBACK, **other}
    started = Discovery(
        host_id=host_id, found=listener.on_found, gone=listener.on_gone, **arguments
    )
    await started.start()
    try:
        yield started
    finally:
        await started.stop()


def run(story: Callable[[], Any], loop: str = "asyncio") -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS):
            await story()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(bounded())


@pytest.mark.parametrize("loop", LOOPS)
def test_hosts_find_each_other_and_notice_who_leaves(loop):
    async def story() -> None:
        one, two = some_id(), some_id()
        at_one, at_two = Listener(), Listener()
        async with host(one, at_one, name="Küche 1", port=7701, key=KEY):
            async with host(two, at_two, name="hall", port=7702):
                await at_one.until(lambda: two in at_one.found)
                await at_two.until(lambda: one in at_two.found)
                assert at_one.found[two] == ("hall", [Address("127.0.0.1", 7702)], None)
                assert at_two.found[one] == ("Küche 1", [Address("127.0.0.1", 7701)], KEY)
                assert one not in at_one.found
                assert two not in at_two.found
            await at_one.until(lambda: two not in at_one.found)

    run(story, loop)


def test_a_host_that_comes_back_is_found_again_as_it_is_now():
    async def story() -> None:
        one, two = some_id(), some_id()
        at_one, at_two = Listener(), Listener()
        async with host(one, at_one):
            async with host(two, at_two, name="before", port=7702):
                await at_one.until(lambda: two in at_one.found)
            await at_one.until(lambda: two not in at_one.found)
            async with host(two, at_two, name="after", port=7703):
                await at_one.until(lambda: two in at_one.found)
                assert at_one.found[two] == ("after", [Address("127.0.0.1", 7703)], None)

    run(story)


def test_a_host_that_announces_something_else_is_told_again():
    async def story() -> None:
        one, other = some_id(), some_id()
        at_one = Listener()
        async with host(one, at_one), AsyncZeroconf(interfaces=LOOPBACK) as network:
            before = announcement(other)
            await (await network.async_register_service(before, cooperating_responders=True))
            await at_one.until(lambda: other in at_one.found)
            after = announcement(other, properties={**said(other), "name": "renamed"})
            await (await network.async_update_service(after))
            await at_one.until(lambda: at_one.found[other][0] == "renamed")

    run(story)


def said(host_id: str) -> dict[str | bytes, Any]:
    return {"id": host_id, "name": "hall", "version": "1"}


def announcement(
    label: str, properties: dict[str | bytes, Any] | bytes | None = None, port: int = 1
) -> AsyncServiceInfo:
    return AsyncServiceInfo(
        SERVICE_TYPE,
        f"{label}.{SERVICE_TYPE}",
        port=port,
        properties=said(label) if properties is None else properties,
        parsed_addresses=LOOPBACK,
        server=f"{label}.{SERVICE_TYPE}",
    )


class Ignored(logging.Handler):
    """Collects which announcements were noted as ignored."""

    def __init__(self, wanted: set[str]) -> None:
        super().__init__()
        self._missing = set(wanted)
        self.lines: list[str] = []
        self.complete = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        self.lines.append(line)
        self._missing -= {label for label in self._missing if label in line}
        if not self._missing:
            self.complete.set()


def test_what_is_not_understood_is_ignored_and_logged():
    async def story() -> None:
        ids = [some_id() for _ in range(11)]
        victim = some_id()
        strange = [
            announcement(ids[0], {}),
            announcement(ids[1], {**said(ids[1]), "name": b"\xff\xfe"}),
            announcement(ids[2], {**said(ids[2]), "version": "2"}),
            announcement(ids[3], {**said(ids[3]), "key": "ed25519:oops"}),
            announcement(ids[4], {**said(ids[4]), "name": "a\nrefused: nobody"}),
            announcement(ids[5], {**said(ids[5]), **{f"x{n}": "x" * 200 for n in range(6)}}),
            announcement(ids[6], {**said(ids[6]), "id": victim}),
            announcement(ids[7], {**said(ids[7]), "name": "x" * 240}),
            announcement(ids[8], {"id": ids[8], "name": None, "version": "1"}),
            announcement(ids[9], b"\xffid=" + ids[9].encode()),
            announcement(ids[10], port=0),
        ]
        one, good = some_id(), some_id()
        at_one = Listener()
        ignored = Ignored(set(ids))
        logger = logging.getLogger("tupelo")
        logger.addHandler(ignored)
        try:
            async with host(one, at_one), AsyncZeroconf(interfaces=LOOPBACK) as network:
                for info in strange:
                    await network.async_register_service(info, cooperating_responders=True)
                await ignored.complete.wait()
                # And it goes on to find those who make sense.
                async with host(good, Listener()):
                    await at_one.until(lambda: good in at_one.found)
                assert not {*ids, victim} & {*at_one.found}
                assert not any("\n" in line for line in ignored.lines)
        finally:
            logger.removeHandler(ignored)

    run(story)


def test_only_so_many_hosts_are_kept_in_mind(monkeypatch):
    monkeypatch.setattr(discovery, "HOSTS_MAX", 0)

    async def story() -> None:
        one, two = some_id(), some_id()
        at_one = Listener()
        ignored = Ignored({two})
        logger = logging.getLogger("tupelo")
        logger.addHandler(ignored)
        try:
            async with host(one, at_one), host(two, Listener()):
                await ignored.complete.wait()
                assert not at_one.found
        finally:
            logger.removeHandler(ignored)

    run(story)


class Failing(Listener):
    """One whose callbacks raise, after they have noted what they were told."""

    def on_found(self, host_id: str, name: str, addresses: list[Address], key: str | None) -> None:
        super().on_found(host_id, name, addresses, key)
        raise ZeroDivisionError

    def on_gone(self, host_id: str) -> None:
        super().on_gone(host_id)
        raise ZeroDivisionError


def test_a_callback_that_raises_stops_nothing(caplog):
    async def story() -> None:
        one, two, three = some_id(), some_id(), some_id()
        at_one = Failing()
        async with host(one, at_one):
            async with host(two, Listener()):
                await at_one.until(lambda: two in at_one.found)
            await at_one.until(lambda: two not in at_one.found)
            async with host(three, Listener()):
                await at_one.until(lambda: three in at_one.found)

    run(story)
    assert "ZeroDivisionError" in caplog.text


def test_one_who_was_stopped_can_start_again():
    async def story() -> None:
        one, two = some_id(), some_id()
        at_one, at_two = Listener(), Listener()
        async with host(one, at_one), host(two, at_two) as second:
            await at_one.until(lambda: two in at_one.found)
            await second.stop()
            await at_one.until(lambda: two not in at_one.found)
            at_two.found.clear()
            await second.start()
            await at_one.until(lambda: two in at_one.found)
            await at_two.until(lambda: one in at_two.found)

    run(story)


def test_nothing_is_told_after_the_stop_and_a_second_stop_is_none():
    async def story() -> None:
        one, two, three = some_id(), some_id(), some_id()
        at_one, at_three = Listener(), Listener()
        async with host(three, at_three), host(one, at_one) as first:
            await at_one.until(lambda: three in at_one.found)
            await first.stop()
            await first.stop()
            async with host(two, Listener()):
                await at_three.until(lambda: two in at_three.found)
            await at_three.until(lambda: two not in at_three.found)
            assert two not in at_one.found
            assert three in at_one.found

    run(story)


def test_who_was_never_started_can_be_stopped():
    def ignore(*_: object) -> None: ...

    async def story() -> None:
        never = Discovery(host_id="a", name="a", port=1, version=1, found=ignore, gone=ignore)
        await never.stop()

    run(story)


def test_a_network_that_is_not_there_cannot_be_reached():
    async def story() -> None:
        with pytest.raises(CannotReach, match="hosts cannot be looked for"):
            async with host(some_id(), Listener(), interfaces=["203.0.113.1"]):
                pass

    run(story)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("host_id", ""),
        ("host_id", "a.b"),
        ("host_id", "x" * 64),
        ("host_id", None),
        ("name", ""),
        ("name", "x" * 201),
        ("name", "a\nb"),
        ("name", None),
        ("port", 0),
        ("port", 65536),
        ("port", "1"),
        ("key", "ed25519:"),
        ("key", ""),
        ("interfaces", ["kitchen"]),
        ("interfaces", "127.0.0.1"),
        ("interfaces", []),
    ],
)
def test_what_cannot_be_announced_is_refused_by_name(argument, value):
    def ignore(*_: object) -> None: ...

    arguments: dict[str, Any] = {"host_id": "a", "name": "a", "port": 1, "version": 1}
    with pytest.raises(BadArgument, match=rf"^{argument}="):
        Discovery(**arguments | {argument: value}, found=ignore, gone=ignore)


def test_a_host_of_all_interfaces_names_addresses_that_mean_something_to_others():
    addresses = discovery._own_addresses()
    assert addresses
    assert len({is_loopback(address) for address in addresses}) == 1, addresses
