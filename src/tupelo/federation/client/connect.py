"""`tupelo.connect`: connect to a space at another host by its URL."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from msgspec.structs import replace

from tupelo.errors import BadArgument
from tupelo.federation.client.arguments import is_text
from tupelo.federation.client.async_channel import AsyncChannel
from tupelo.federation.client.blocking_channel import BlockingChannel
from tupelo.federation.client.channel import ConnectionConfig
from tupelo.federation.client.space import (
    AsyncRemoteSpaceLike,
    RemoteSpace,
    RemoteSpaceLike,
)
from tupelo.federation.links.address import Address, is_database, is_loopback, parse_url
from tupelo.federation.links.tcp import LinkSecurity, TcpNetwork
from tupelo.space.dual_api import run_sync
from tupelo.space.query import WAIT_MAX
from tupelo.values.checks import check_bool, is_number

if TYPE_CHECKING:
    from tupelo.federation.identity.keys import Identity
    from tupelo.federation.identity.trust import Trust

_default_name: ContextVar[str] = ContextVar("default_name", default="")


def name_connections(name: str) -> None:
    """From now on this is the name of connections that are given none, in this thread or task and
    in the tasks it creates. For tools that run the programs of others, such as `tupelo work`."""
    _default_name.set(name)


def connect(
    url: str,
    *,
    password: str | None = None,
    identity: Identity | None = None,
    trust: Trust | None = None,
    tls: bool | None = None,
    name: str | None = None,
    reconnect: float = 30.0,
    create: bool = True,
) -> RemoteSpaceLike:
    """Connect to the space at a URL such as tupelo://host:7700/jobs, and return it, with the
    methods of `tupelo.Space`.

    `password` is that of the space, and `name` a label under which the host lists this program.
    Links to other machines use TLS, unless `tls` says otherwise: this program proves its
    `identity`, and `trust` decides which hosts are accepted; by default both come from the files
    of this user. For up to `reconnect` seconds the client waits for a host that is not up yet, and
    reconnects after a lost link; with 0 neither. A space that does not exist is made, unless
    `create` is False: then UnknownSpace is raised, with the names that are spelt alike.

    A space in a database is opened by its URL, postgresql://host/database?space=jobs, which the
    driver reads; needs the extra `tupelo[postgres]`.

    Raises BadArgument, CannotReach, or the refusal of the host.
    """
    if is_database(url):
        _require_none(password=password, identity=identity, trust=trust, tls=tls)
        found: RemoteSpaceLike = run_sync(
            partial(_open_in_database, False, url, name, reconnect, create)
        )
        return found
    config, space = _config(url, identity, trust, tls, name, reconnect)
    config = replace(config, first_seconds=config.reconnect)
    channel = BlockingChannel(config, random.Random())
    opening = partial(RemoteSpace.opened, channel, space, password, create)
    return cast("RemoteSpaceLike", run_sync(opening))


async def connect_async(
    url: str,
    *,
    password: str | None = None,
    identity: Identity | None = None,
    trust: Trust | None = None,
    tls: bool | None = None,
    name: str | None = None,
    reconnect: float = 30.0,
    create: bool = True,
) -> AsyncRemoteSpaceLike:
    """Connect to the space at a URL, for tasks of the running loop, with the methods of
    `tupelo.aio.Space`. The arguments are those of `tupelo.connect`."""
    if is_database(url):
        _require_none(password=password, identity=identity, trust=trust, tls=tls)
        found: AsyncRemoteSpaceLike = await _open_in_database(True, url, name, reconnect, create)
        return found
    # In a thread, since it may read files.
    config, space = await asyncio.to_thread(_config, url, identity, trust, tls, name, reconnect)
    config = replace(config, first_seconds=config.reconnect)
    channel = await AsyncChannel.made(config, random.Random(), network_of(config))
    opened = await RemoteSpace.opened(channel, space, password, create)
    return cast("AsyncRemoteSpaceLike", opened)


def _require_none(**options: object) -> None:
    """The options for links to hosts are not for databases."""
    for option, value in options.items():
        if value is not None:
            raise BadArgument(option, "left out: the URL of a database has user, password and TLS")


async def _open_in_database(
    is_async: bool, url: str, name: str | None, reconnect: float, create: bool
) -> Any:
    _check_options(name, reconnect)
    check_bool("create", create)
    from tupelo.postgres.connect import open_space

    label = name or _default_name.get()
    return await open_space(url, is_async=is_async, label=label, reconnect=reconnect, create=create)


def _check_options(name: object, reconnect: object) -> None:
    if not is_number(reconnect) or not 0 <= reconnect <= WAIT_MAX:
        expected = f"a number of seconds from 0 (never) to {WAIT_MAX:.0e}"
        raise BadArgument("reconnect", expected, reconnect)
    if name is not None and not is_text(name):
        raise BadArgument("name", "a text, or None", name)


def _config(
    url: str,
    identity: Identity | None,
    trust: Trust | None,
    tls: bool | None,
    name: str | None,
    reconnect: float,
) -> tuple[ConnectionConfig, str]:
    address, space = parse_url(url)
    if space is None:
        raise BadArgument("url", "one that names a space: tupelo://host:7700/space", url)
    _check_options(name, reconnect)
    if tls not in (None, True, False):
        raise BadArgument("tls", "True, False or None", tls)
    known = identity is not None or trust is not None
    if tls is False and known:
        raise BadArgument("tls", "True if an identity or trust is given", tls)
    agent, context = _process_id(), None
    recognise: Callable[[str], None] = _accept_any
    if tls or known or (tls is None and not is_loopback(address.host)):
        agent, context, recognise = _credentials(address, identity, trust)
    label = name or _default_name.get()
    config = ConnectionConfig(
        address, agent, label, uuid4().hex, context, recognise, float(reconnect)
    )
    return config, space


def config_of(url: str, options: dict[str, Any]) -> tuple[ConnectionConfig, str | None]:
    """The config for a connection to a host, whose URL need not name a space, and the password.
    `options` are the keyword arguments of `tupelo.connect`; BadArgument for any other."""
    address, _ = parse_url(url)
    values: dict[str, Any] = {
        "identity": None,
        "trust": None,
        "tls": None,
        "name": None,
        "reconnect": 30.0,
        "password": None,
    }
    unknown = [option for option in options if option not in values]
    if unknown:
        raise BadArgument(unknown[0], f"left out: the options are {', '.join(values)}")
    values.update(options)
    password = values.pop("password")
    return _config(f"tupelo://{address}/-", **values)[0], password


def _credentials(
    address: Address, identity: Identity | None, trust: Trust | None
) -> tuple[str, ssl.SSLContext, Callable[[str], None]]:
    """The id of this program, its TLS context, and the check of a host's key; identity and trust
    are by default those in the files of this user."""
    from tupelo.federation.identity.keys import Identity, default_folder
    from tupelo.federation.identity.tls import client_context
    from tupelo.federation.identity.trust import Trust

    if identity is None:
        identity = Identity.at(default_folder() / "identity.pem")
    elif not isinstance(identity, Identity):
        raise BadArgument("identity", "an Identity", identity)
    if trust is None:
        trust = Trust.on_first_use(default_folder() / "known_hosts")
    elif not isinstance(trust, Trust):
        raise BadArgument("trust", "a Trust", trust)
    trusted = trust

    def check_host(key: str) -> None:
        trusted.check(str(address), key, time.time())

    return identity.key, client_context(identity), check_host


def network_of(config: ConnectionConfig) -> TcpNetwork:
    """The network over which an async channel dials with this config."""
    if config.context is None:
        return TcpNetwork()
    from tupelo.federation.identity.tls import key_of

    return TcpNetwork(LinkSecurity(client=config.context, require_tls=True, key_of=key_of))


def _accept_any(key: str) -> None:
    """Without TLS a host does not prove its identity."""


@cache
def _process_id() -> str:
    return uuid4().hex


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_process_id.cache_clear)
