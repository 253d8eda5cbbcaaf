"""Discovery by address: a lookup service in this process, or at a host elsewhere.

`jini://127.0.0.1:4160`, or the same without a scheme, is an address in this process, where nothing
opens a socket. `tupelo://host:7700` is a host that offers a lookup service to programs elsewhere
(`offer`). By multicast they are found by LookupDiscovery.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tupelo.errors import BadArgument, CannotReach, DiscoveryFailed, UnknownService
from tupelo.federation.links.address import DEFAULT_PORT

if TYPE_CHECKING:
    from tupelo.models.javaspaces.lookup import LookupService

PORT = 4160
_PORTS = {"jini": PORT, "tupelo": DEFAULT_PORT}

_claimed: dict[LookupLocator, LookupService] = {}
_claiming = threading.Lock()


class LookupLocator:
    """The address of a lookup service: "tupelo://host:7700", or one in this process such as
    "jini://127.0.0.1:4160" or "127.0.0.1:4160".

    Addresses are compared as they are encoded: "localhost" is not "127.0.0.1".
    """

    def __init__(self, address: str) -> None:
        expected = 'an address such as "tupelo://host:7700" or "jini://127.0.0.1:4160"'
        if not isinstance(address, str):
            raise BadArgument("address", expected, address)
        try:
            parts = urlsplit(address if "://" in address else f"jini://{address}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise BadArgument("address", expected, address) from None
        more = parts.username or parts.path.strip("/") or parts.query or parts.fragment
        if parts.scheme not in _PORTS or not host or " " in host or port == 0 or more:
            raise BadArgument("address", expected, address)
        self.scheme = parts.scheme
        self.host = host
        self.port = _PORTS[self.scheme] if port is None else port

    @property
    def elsewhere(self) -> bool:
        """Is it at a host, and not in this process?"""
        return self.scheme == "tupelo"

    def get_registrar(self, **options: Any) -> Any:
        """The lookup service at this address: a LookupService of this process, or a
        RemoteLookupService, to which it connects by the options of `tupelo.connect`.
        DiscoveryFailed if there is none."""
        if self.elsewhere:
            try:
                return _remote().connect(str(self), **options)
            except (CannotReach, UnknownService) as error:
                raise DiscoveryFailed(str(self)) from error
        if options:
            raise BadArgument(next(iter(options)), "left out for an address in this process", "it")
        with _claiming:
            found = _claimed.get(self)
        if found is None:
            raise DiscoveryFailed(str(self))
        return found

    async def get_registrar_async(self, **options: Any) -> Any:
        """`get_registrar`, for tasks of the running loop."""
        if not self.elsewhere:
            return self.get_registrar(**options)
        try:
            return await _remote().connect_async(str(self), **options)
        except (CannotReach, UnknownService) as error:
            raise DiscoveryFailed(str(self)) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LookupLocator) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash((self.host, self.port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"LookupLocator({str(self)!r})"


def claim(locator: LookupLocator, lookup: LookupService) -> None:
    """From now on the lookup service is found there."""
    if locator.elsewhere:
        what = "one in this process: a host offers a lookup service by offer(host, lookup)"
        raise BadArgument("address", what, str(locator))
    with _claiming:
        if locator in _claimed:
            raise BadArgument("address", "free: a lookup service has it already", str(locator))
        _claimed[locator] = lookup


def free(locator: LookupLocator, lookup: LookupService) -> None:
    with _claiming:
        if _claimed.get(locator) is lookup:
            del _claimed[locator]


def _remote() -> Any:
    module = import_module("tupelo.models.javaspaces.remote.services")  # It imports this one.
    return module.RemoteLookupService
