"""Finding other hosts: at the addresses that were given, again whenever one is lost (`Dialler`),
and by multicast DNS in the local network (`Discovery`).

A host announces its id, name, protocol version and identity. Anybody on the network can announce
anything: an announcement is only a hint where to connect, and the host there must prove its
identity. A malformed announcement is logged and ignored. The package `zeroconf` is needed for this
only.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument, CannotReach, TupeloError
from tupelo.federation.identity.keys import check_key, is_key
from tupelo.federation.links.address import Address, is_loopback

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

logger = logging.getLogger("tupelo")


SERVICE_TYPE = "_tupelo._tcp.local."

HOSTS_MAX = 1_000
"""The most hosts that are remembered; further ones are ignored until some are gone."""

ADDRESSES_MAX = 16
"""The most addresses of one host that are used."""

NAME_MAX_BYTES = 200
"""The longest announced name: a property of DNS has at most 255 bytes."""

_TEXT_MAX_BYTES = 1_000
_ANSWER_MILLISECONDS = 3_000
_HOST_ID = re.compile(r"[A-Za-z0-9_-]{1,63}")  # what may stand in a name of DNS


@dataclass(frozen=True)
class _Announced:
    host_id: str
    name: str
    addresses: list[Address]
    key: str | None


class Discovery:
    """Announces one host, and reports other hosts that are found or gone, until it is stopped.

    `found` is called again when a host changes its announcement. `interfaces` are IP addresses of
    this machine: the announcement is sent there, and names them as the addresses of the host.
    Without them it is sent on all interfaces. A host that crashes is gone when its announcement
    expires, some minutes later.
    """

    def __init__(
        self,
        *,
        host_id: str,
        name: str,
        port: int,
        version: int,
        key: str | None = None,
        interfaces: Sequence[str] | None = None,
        found: Callable[[str, str, list[Address], str | None], object],
        gone: Callable[[str], object],
    ) -> None:
        if not isinstance(host_id, str) or not _HOST_ID.fullmatch(host_id):
            raise BadArgument("host_id", "1 to 63 letters, digits, - or _", host_id)
        if not _is_name(name):
            raise BadArgument("name", f"a printable text of 1 to {NAME_MAX_BYTES} bytes", name)
        if not isinstance(port, int) or not 0 < port <= 0xFFFF:
            raise BadArgument("port", "a number from 1 to 65535", port)
        self._host_id = host_id
        self._port = port
        self._properties = {"id": host_id, "name": name, "version": str(version)}
        if key is not None:
            self._properties["key"] = check_key(key)
        self._interfaces = check_interfaces(interfaces)
        self._found = found
        self._gone = gone
        self._known: dict[str, _Announced] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._announcing: asyncio.Future[Any] | None = None

    async def start(self) -> None:
        """Announce and listen, on the running loop. Raises CannotReach if the network allows
        neither."""
        try:
            from zeroconf import Error, InterfaceChoice
            from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf
        except ImportError as error:
            raise CannotReach(
                "the network",
                "to find hosts, the package zeroconf is needed, which is not here: "
                'pip install "tupelo[hosts]"',
            ) from error
        try:
            addresses = announced_addresses(self._interfaces)
            self._zeroconf = AsyncZeroconf(interfaces=self._interfaces or InterfaceChoice.All)
            info = AsyncServiceInfo(
                SERVICE_TYPE,
                f"{self._host_id}.{SERVICE_TYPE}",
                port=self._port,
                properties=self._properties,
                parsed_addresses=addresses,
            )
            # Ids are unique, so nobody is asked whether the name is free: a host that comes back
            # after a crash would be told that it is not.
            self._announcing = asyncio.ensure_future(
                await self._zeroconf.async_register_service(info, cooperating_responders=True)
            )
            self._browser = AsyncServiceBrowser(
                self._zeroconf.zeroconf, SERVICE_TYPE, handlers=[self._on_change]
            )
        except (OSError, Error) as error:
            await self.stop()
            raise CannotReach("the network", f"hosts cannot be looked for: {error}") from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Withdraw the announcement. No function is called any more."""
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is None:
            return
        tasks = [*self._asking.values(), *filter(None, [self._announcing])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._browser is not None:
            await self._browser.async_cancel()
        await zeroconf.async_close()
        self._known.clear()
        self._browser = self._announcing = None

    def _on_change(self, *, name: str, state_change: Any, **_: object) -> None:
        from zeroconf import ServiceStateChange

        if self._zeroconf is None or name.lower() == f"{self._host_id}.{SERVICE_TYPE}".lower():
            return
        if earlier := self._asking.pop(name, None):
            earlier.cancel()
        if state_change is ServiceStateChange.Removed:
            if announced := self._known.pop(name, None):
                self._tell(self._gone, announced.host_id)
        elif name in self._known or len(self._known) + len(self._asking) < HOSTS_MAX:
            task = asyncio.get_running_loop().create_task(self._ask(self._zeroconf, name))
            self._asking[name] = task
        else:
            logger.warning("%d hosts are known; %r is ignored", HOSTS_MAX, name)

    async def _ask(self, zeroconf: AsyncZeroconf, service: str) -> None:
        """Look up an announced name, and report it if it is a host of ours."""
        from zeroconf import Error
        from zeroconf.asyncio import AsyncServiceInfo

        try:
            info = AsyncServiceInfo(SERVICE_TYPE, service)
            if not await info.async_request(zeroconf.zeroconf, _ANSWER_MILLISECONDS):
                raise ValueError("nobody answers for it")
            announced = self._understand(service, info)
        except (ValueError, Error) as error:
            logger.warning("the announcement %r is ignored: %s", service, error)
            return
        finally:
            if self._asking.get(service) is asyncio.current_task():
                del self._asking[service]
        if self._known.get(service) != announced:
            self._known[service] = announced
            self._tell(
                self._found,
                announced.host_id,
                announced.name,
                list(announced.addresses),
                announced.key,
            )

    def _understand(self, service: str, info: AsyncServiceInfo) -> _Announced:
        """Decode an announcement. Raises ValueError (UnicodeError is one) if it is malformed."""
        if len(info.text) > _TEXT_MAX_BYTES:
            raise ValueError(f"its text has more than {_TEXT_MAX_BYTES} bytes")
        said = {
            key: value.decode()
            for key, value in info.properties.items()
            if key in (b"id", b"name", b"version", b"key") and value is not None
        }
        host_id, name, key = said.get(b"id", ""), said.get(b"name", ""), said.get(b"key")
        # Else a host could speak in the name of another, and send it away.
        if service.lower() != f"{host_id}.{SERVICE_TYPE}".lower():
            raise ValueError("its id is not the one in its name")
        if not _HOST_ID.fullmatch(host_id) or not _is_name(name):
            raise ValueError("its id or its name is missing, or cannot be one")
        if said.get(b"version") != self._properties["version"]:
            raise ValueError(f"it speaks version {said.get(b'version')!r} of the protocol")
        if key is not None and not is_key(key):
            raise ValueError("its identity is none")
        hosts = info.parsed_scoped_addresses()[:ADDRESSES_MAX]
        addresses = [Address(host, info.port) for host in hosts if info.port]
        if not addresses:
            raise ValueError("it has no address")
        return _Announced(host_id, name, addresses, key)

    def _tell(self, callback: Callable[..., object], *what: object) -> None:
        try:
            callback(*what)
        except Exception:
            logger.exception("a change found on the network could not be reported")


def check_interfaces(interfaces: Sequence[str] | None) -> list[str] | None:
    """The interfaces as a list. Raises BadArgument if one is not an IP address."""
    if interfaces is not None and not (interfaces and all(map(_is_ip, interfaces))):
        raise BadArgument("interfaces", "IP addresses of this machine, or None", interfaces)
    return None if interfaces is None else list(interfaces)


def announced_addresses(interfaces: Sequence[str] | None) -> list[str]:
    """The addresses to announce: those of these interfaces, or all that others can reach. Raises
    OSError if this machine does not have one of them, BadArgument if one is not an IP address."""
    addresses = check_interfaces(interfaces) or _own_addresses()
    for address in addresses:
        _require_own(address)
    return addresses


def _is_name(name: object) -> bool:
    # What is not printable could pretend to be another line of a log.
    return (
        isinstance(name, str)
        and name.isprintable()
        and 0 < len(name.encode("utf-8", "replace")) <= NAME_MAX_BYTES
    )


def _is_ip(text: object) -> bool:
    try:
        ipaddress.ip_address(str(text))
    except ValueError:
        return False
    return True


def _require_own(address: str) -> None:
    """Raise OSError if this machine does not have the address: zeroconf would leave a socket
    open."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))


def _own_addresses() -> list[str]:
    """The IPv4 addresses of this machine that others can reach."""
    import ifaddr

    found = [
        ip.ip for adapter in ifaddr.get_adapters() for ip in adapter.ips if isinstance(ip.ip, str)
    ]
    return [ip for ip in found if not is_loopback(ip)] or found


BACK_OFF_SECONDS = (0.1, 5.0)
LASTING_SECONDS = 3.0
"""After an engagement of this length the next attempt is made at once."""


class Dialler:
    """Keeps connecting to hosts. `greet` connects to an address, engages the host there and returns
    its id; `has` says whether the host with this id, or at this address, is engaged."""

    def __init__(
        self,
        own_id: str,
        greet: Callable[[str], Awaitable[str]],
        has: Callable[[str, str], bool],
        rng: Random,
    ) -> None:
        self._own_id = own_id
        self._greet = greet
        self._has = has
        self._rng = rng
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._departed = asyncio.Event()
        self._stopped = False

    def dial(self, address: str) -> None:
        """Connect to the host at this address, and again whenever it is lost."""
        if address not in self._tasks and not self._stopped:
            self._tasks[address] = asyncio.ensure_future(self._keep_dialling(address))

    def undial(self, address: str) -> None:
        """Stop connecting to this address."""
        task = self._tasks.pop(address, None)
        if task is not None:
            task.cancel()

    def departed(self) -> None:
        """A host was lost; it may be one to connect to."""
        self._departed.set()

    async def stop(self) -> None:
        """Stop connecting to all addresses."""
        self._stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_dialling(self, address: str) -> None:
        pause, longest = BACK_OFF_SECONDS
        known = ""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                if not self._has(known, address):
                    known = await self._greet(address)
                if known == self._own_id:
                    return
                while self._has(known, address):
                    self._departed.clear()  # Another one may have departed before.
                    await self._departed.wait()
            except TupeloError as error:
                logger.info("%s: %s", address, error)
            if loop.time() - began > LASTING_SECONDS:
                pause = BACK_OFF_SECONDS[0]
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(longest, pause * 2)
