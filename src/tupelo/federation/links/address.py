"""Where a host is: a name or IP address and a port, and the URLs of the spaces there."""

from __future__ import annotations

import ipaddress
import re
from typing import Self
from urllib.parse import unquote_to_bytes

import msgspec

from tupelo.errors import BadArgument
from tupelo.values.checks import is_int

DEFAULT_PORT = 7700
LOOPBACK = "127.0.0.1"

_SCHEME = "tupelo://"
_EXPECTED_URL = "of the form tupelo://host:7700/space"
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HOST_MAX = 253


class Address(msgspec.Struct, frozen=True):
    """A host name or an IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, given: str | int, name: str = "address") -> Self:
        """The address in "host:port", "host", ":port" or a port.

        Without a host it is the loopback address of this machine; 0.0.0.0 or [::] stands for all
        its addresses. Port 0 is any that is free.
        """
        if is_int(given) and 0 <= given <= 0xFFFF:
            return cls(LOOPBACK, given)
        expected = "an address such as host:7700, [::1]:7700 or :7700, or a port from 0 to 65535"
        try:
            if isinstance(given, str) and given:
                host, port = _split(given)
                return cls(host or LOOPBACK, port)
        except ValueError as error:
            expected += f" ({error})"
        raise BadArgument(name, expected, given)


def is_database(url: object) -> bool:
    """Whether this is the URL of a PostgreSQL database."""
    return isinstance(url, str) and url.startswith(("postgresql://", "postgres://"))


def parse_url(url: str) -> tuple[Address, str | None]:
    """The address of a host and the name of a space there, None if the URL names no space."""
    if not isinstance(url, str) or url[: len(_SCHEME)].lower() != _SCHEME:
        raise BadArgument("url", _EXPECTED_URL, url)
    place, _, path = url[len(_SCHEME) :].partition("/")
    if "@" in place:
        # It is not shown: there may be a password before the @.
        raise BadArgument("url", f"{_EXPECTED_URL}, without a user or password")
    try:
        host, port = _split(place)
        if not host:
            raise ValueError("there is no host")
        if not port:
            raise ValueError("nobody listens at port 0")
        return Address(host, port), _space_name(path) or None
    except ValueError as error:
        raise BadArgument("url", f"{_EXPECTED_URL} ({error})", url) from error


def is_loopback(host: str) -> bool:
    """Whether this name or IP address can be reached from this machine only."""
    if host.lower().removesuffix(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _split(text: str) -> tuple[str, int]:
    """The host, which may be empty, and the port. ValueError says what is wrong."""
    if text.startswith("["):
        inside, bracket, rest = text[1:].partition("]")
        if not bracket:
            raise ValueError("the bracket is not closed")
        if rest and not rest.startswith(":"):
            raise ValueError("a port stands behind a colon")
        # A URL encodes the % before an interface's name as %25.
        host = str(ipaddress.IPv6Address(inside.replace("%25", "%")))
        return host, _port(rest[1:]) if rest else DEFAULT_PORT
    host, colon, port = text.partition(":")
    if ":" in port:
        raise ValueError("an IPv6 address stands in brackets")
    return _host(host), _port(port) if colon else DEFAULT_PORT


def _host(text: str) -> str:
    host = text.lower()
    labels = host.removesuffix(".").split(".")
    if host and (len(host) > _HOST_MAX or not all(map(_LABEL.fullmatch, labels))):
        raise ValueError("this is no name of a host")
    return host


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 0xFFFF):
        raise ValueError("the port is a number up to 65535")
    return int(text)


def _space_name(path: str) -> str:
    for sign in "/?#":
        if sign in path:
            raise ValueError(f"in the name of a space, {sign} is spelled %{ord(sign):02X}")
    if _BAD_PERCENT.search(path):
        raise ValueError("a % is spelled %25")
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeError as error:
        raise ValueError("the name of the space is no UTF-8") from error
