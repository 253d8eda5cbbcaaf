"""Discovery by multicast (mDNS): lookup services announce themselves and their groups in the local
network, and programs find the lookup services of their groups.

Announcements are not authenticated: a result is a hint where to connect, and the host there must
prove its identity. Announcements that cannot be parsed are logged and ignored. The package
`zeroconf` is needed only here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument, CannotReach, DiscoveryFailed
from tupelo.federation.hosts.discovery import announced_addresses
from tupelo.federation.hosts.doors import HostDoor
from tupelo.federation.links.address import Address
from tupelo.models.javaspaces.lookup import PUBLIC_GROUP, LookupLocator, LookupService
from tupelo.models.javaspaces.service_items import check_groups
from tupelo.space.blocking import ClosingHandle
from tupelo.space.query import check_wait

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf

SERVICE_TYPE = "_tupelo-lookup._tcp.local."
VERSION = "1"
GROUPS_MAX = 16
GROUP_MAX_BYTES = 200
FOUND_MAX = 1_000
"""How many announcements are remembered."""
_ANSWER_MILLISECONDS = 3_000

logger = logging.getLogger("tupelo")


@dataclass(frozen=True)
class FoundLookup:
    """A lookup service in the network: its id, groups and location. `gone` if it has left, or has
    left these groups."""

    service_id: str
    groups: tuple[str, ...]
    locators: tuple[LookupLocator, ...]
    gone: bool = False


class Announcement(ClosingHandle):
    """Announces a lookup service that a host offers, until it is closed: see `announce`."""

    def __init__(self, zeroconf: Zeroconf, info: ServiceInfo) -> None:
        self._zeroconf = zeroconf
        self._info = info

    def close(self) -> None:
        """Withdraw the announcement."""
        self._zeroconf.unregister_service(self._info)
        self._zeroconf.close()


def announce(
    host: HostDoor, lookup: LookupService, *, interfaces: Sequence[str] | None = None
) -> Announcement:
    """Announce a lookup service that the host offers, in its groups, on these interfaces (IP
    addresses of this machine; None: all). The announcement ends when it is closed; it can be used
    by `with`.

    Announcing and closing take a moment: in a coroutine, use `asyncio.to_thread`.
    """
    if not isinstance(host, HostDoor) or not host.address:
        raise BadArgument("host", "a tupelo.Host that listens", host)
    if not isinstance(lookup, LookupService):
        raise BadArgument("lookup", "a LookupService", lookup)
    groups = lookup.groups
    if len(groups) > GROUPS_MAX or any(len(group.encode()) > GROUP_MAX_BYTES for group in groups):
        what = f"in at most {GROUPS_MAX} groups with names of {GROUP_MAX_BYTES} bytes"
        raise BadArgument("lookup", what, groups)
    zeroconf, addresses = _started(interfaces)
    named = {f"g{i}": group for i, group in enumerate(groups)}
    info = _zeroconf().ServiceInfo(
        SERVICE_TYPE,
        f"{lookup.service_id}.{SERVICE_TYPE}",
        port=Address.parse(host.address).port,
        properties={"id": lookup.service_id, "version": VERSION, **named},
        parsed_addresses=addresses,
    )
    try:
        # Ids are unique: no need to probe whether the name is free.
        zeroconf.register_service(info, cooperating_responders=True)
    except BaseException:
        zeroconf.close()
        raise
    return Announcement(zeroconf, info)


class LookupDiscovery(ClosingHandle):
    """Finds lookup services of some groups in the local network (None: of any group).

    A listener is a function of a FoundLookup. It is called from a thread when a lookup service
    appears and when it leaves. A lookup service that vanishes without a goodbye is reported some
    minutes later.
    """

    def __init__(
        self,
        groups: Sequence[str] | None = (PUBLIC_GROUP,),
        listener: Callable[[FoundLookup], object] | None = None,
        *,
        interfaces: Sequence[str] | None = None,
    ) -> None:
        self._groups = None if groups is None else frozenset(check_groups(groups))
        if listener is not None and not callable(listener):
            raise BadArgument("listener", "a function of a FoundLookup", listener)
        self._listener = listener
        self._found: dict[str, FoundLookup] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._zeroconf, _ = _started(interfaces)
        self._browser = _zeroconf().ServiceBrowser(
            self._zeroconf, SERVICE_TYPE, handlers=[self._on_change]
        )

    def __repr__(self) -> str:
        groups = "any group" if self._groups is None else ", ".join(sorted(self._groups))
        return f"<LookupDiscovery of {groups}, {len(self._found)} found>"

    @property
    def found(self) -> list[FoundLookup]:
        """The lookup services that are known now."""
        with self._changed:
            return list(self._found.values())

    def find(self, wait: float | None = 5.0) -> FoundLookup:
        """The lookup service that was found first; DiscoveryFailed if none is found within `wait`
        seconds."""
        check_wait(wait)
        with self._changed:
            if not self._changed.wait_for(lambda: self._found or self._closed, wait):
                raise DiscoveryFailed("any address in the local network")
            if self._closed:
                raise DiscoveryFailed("any address: the discovery was closed")
            return next(iter(self._found.values()))

    def get_registrar(self, wait: float | None = 5.0, **options: Any) -> Any:
        """Connect to the lookup service that was found first, with the options of `tupelo.connect`.
        DiscoveryFailed if none is found, or answers, within `wait` seconds."""
        found = self.find(wait)
        for locator in found.locators:
            with suppress(DiscoveryFailed):
                return locator.get_registrar(**options)
        raise DiscoveryFailed(", ".join(map(str, found.locators)))

    async def get_registrar_async(self, wait: float | None = 5.0, **options: Any) -> Any:
        """`get_registrar` for the async API."""
        found = await asyncio.to_thread(self.find, wait)
        for locator in found.locators:
            with suppress(DiscoveryFailed):
                return await locator.get_registrar_async(**options)
        raise DiscoveryFailed(", ".join(map(str, found.locators)))

    def close(self) -> None:
        """Stop searching."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._zeroconf.close()

    def _on_change(self, *, name: str, state_change: Any, **_: object) -> None:
        """Called on zeroconf's thread, which must not be blocked."""
        gone = state_change is _zeroconf().ServiceStateChange.Removed
        work = (lambda: self._lose(name)) if gone else (lambda: self._ask(name))
        threading.Thread(target=work, name="tupelo-discovery", daemon=True).start()

    def _ask(self, name: str) -> None:
        try:
            info = self._zeroconf.get_service_info(SERVICE_TYPE, name, _ANSWER_MILLISECONDS)
            if info is None:
                raise ValueError("no host answers for it")
            found = _understood(name, info)
        except Exception as error:  # whatever zeroconf raises for malformed announcements
            if not self._closed:
                logger.warning("the announcement %r is ignored: %s", name, error)
            return
        if self._groups is not None and not self._groups & set(found.groups):
            self._lose(name)
            return
        with self._changed:
            if self._closed or self._found.get(name) == found or len(self._found) >= FOUND_MAX:
                return
            self._found[name] = found
            self._changed.notify_all()
        self._tell(found)

    def _lose(self, name: str) -> None:
        with self._changed:
            lost = None if self._closed else self._found.pop(name, None)
        if lost is not None:
            self._tell(FoundLookup(lost.service_id, lost.groups, lost.locators, gone=True))

    def _tell(self, found: FoundLookup) -> None:
        if self._listener is not None:
            try:
                self._listener(found)
            except Exception:
                logger.exception("a listener of a lookup discovery raised")


def _understood(name: str, info: ServiceInfo) -> FoundLookup:
    """The announced lookup service. ValueError (also UnicodeError) if it cannot be parsed."""
    said = {
        key.decode(): value.decode() for key, value in info.properties.items() if value is not None
    }
    service_id = said.get("id", "")
    # Otherwise a host could announce, and withdraw, in the name of another.
    if name.lower() != f"{service_id}.{SERVICE_TYPE}".lower():
        raise ValueError("its id is not the one in its name")
    if said.get("version") != VERSION:
        raise ValueError(f"it speaks version {said.get('version')!r}")
    groups = [said[key] for key in (f"g{i}" for i in range(GROUPS_MAX)) if key in said]
    locators = [
        LookupLocator(f"tupelo://{Address(host, info.port)}")
        for host in info.parsed_scoped_addresses()
        if info.port
    ]
    if not locators:
        raise ValueError("it has no address")
    return FoundLookup(service_id, check_groups(groups), tuple(locators))


def _started(interfaces: Sequence[str] | None) -> tuple[Zeroconf, list[str]]:
    """Start multicast on these interfaces; returns also the addresses of this machine there.
    CannotReach if the network does not allow it."""
    module = _zeroconf()
    try:
        addresses = announced_addresses(interfaces)
        # On a thread of its own: with a running loop, zeroconf would use that loop.
        with ThreadPoolExecutor(1) as thread:
            choice = interfaces or module.InterfaceChoice.All
            return thread.submit(module.Zeroconf, interfaces=choice).result(), addresses
    except OSError as error:
        raise CannotReach("the network", f"multicast is not possible: {error}") from error


def _zeroconf() -> Any:
    try:
        import zeroconf
    except ImportError as error:
        raise CannotReach(
            "the network",
            "to find lookup services, the package zeroconf is needed, which is not here: "
            'pip install "tupelo[hosts]"',
        ) from error
    return zeroconf
