"""Discovery: how a lookup service is found by its address, within this process.

Other processes, and multicast, come with hosts; nothing here opens a socket.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tupelo.errors import BadArgument, DiscoveryFailed

if TYPE_CHECKING:
    from tupelo.models.javaspaces.lookup import LookupService

PORT = 4160

_claimed: dict[LookupLocator, LookupService] = {}
_claiming = threading.Lock()


class LookupLocator:
    """The address of a lookup service: "jini://127.0.0.1:4160", or "127.0.0.1:4160".

    Addresses are compared as they are spelled: "localhost" is not "127.0.0.1".
    """

    def __init__(self, address: str) -> None:
        expected = 'an address such as "127.0.0.1:4160" or "jini://127.0.0.1:4160"'
        if not isinstance(address, str):
            raise BadArgument("address", expected, address)
        try:
            parts = urlsplit(address if "://" in address else f"jini://{address}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise BadArgument("address", expected, address) from None
        more = parts.username or parts.path.strip("/") or parts.query or parts.fragment
        if parts.scheme != "jini" or not host or " " in host or port == 0 or more:
            raise BadArgument("address", expected, address)
        self.host = host
        self.port = PORT if port is None else port

    def get_registrar(self) -> LookupService:
        """The lookup service at this address; DiscoveryFailed if there is none."""
        with _claiming:
            found = _claimed.get(self)
        if found is None:
            raise DiscoveryFailed(str(self))
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LookupLocator) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash((self.host, self.port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"jini://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"LookupLocator({str(self)!r})"


def claim(locator: LookupLocator, lookup: LookupService) -> None:
    """From now on the lookup service is found there."""
    with _claiming:
        if locator in _claimed:
            raise BadArgument("address", "free: a lookup service has it already", str(locator))
        _claimed[locator] = lookup


def free(locator: LookupLocator, lookup: LookupService) -> None:
    with _claiming:
        if _claimed.get(locator) is lookup:
            del _claimed[locator]
