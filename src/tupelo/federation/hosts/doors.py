"""Hosts as users see them: `tupelo.Host` for threads, `tupelo.aio.Host` for coroutines. The
blocking one runs its host on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

from tupelo.errors import BadArgument, BadInput, HostClosed
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.discovery import Discovery
from tupelo.federation.hosts.folder import Archiving, archiver_for, check_archive
from tupelo.federation.hosts.limits import Limits
from tupelo.federation.hosts.services import Service
from tupelo.federation.identity.access import Access, check_access
from tupelo.federation.identity.keys import Identity, default_folder, id_of
from tupelo.federation.identity.trust import Trust
from tupelo.federation.links.address import Address, is_loopback
from tupelo.federation.links.tcp import LinkSecurity, TcpNetwork
from tupelo.federation.links.wire import VERSION
from tupelo.federation.spaces.hosted import Doubt, HostedSpace, check_doubt
from tupelo.federation.spaces.stored import LazySpace, StoredSpace, check_store
from tupelo.federation.spanning.space import (
    AsyncFederatedSpaceLike,
    FederatedSpace,
    FederatedSpaceLike,
)
from tupelo.space import asynchronous, blocking
from tupelo.space.bridge import LoopBridge
from tupelo.space.clock import Clock, system_clock
from tupelo.space.dual_api import run_coroutine
from tupelo.space.tasks import Tasks
from tupelo.values.checks import check_bool, check_text, is_number
from tupelo.values.lease import check_lease
from tupelo.values.text import html_table

IDENTITY_FILE = "identity.pem"
ID_FILE = "host.id"


def own_identity(name: str, folder: Path | None) -> Identity:
    """The identity of the host of this name, in its folder or among the files of the user; it is
    made at the first use."""
    file = IDENTITY_FILE if folder else f"host-{quote(name, safe='')}.pem"
    return Identity.at((folder or default_folder()) / file)


@dataclass
class HostConfig:
    """The checked arguments of a host, of which the `options` go to its HostCore; starts and stops
    it on the loop on which it runs."""

    name: str
    path: Path | None
    discover: bool
    identity: Identity | None
    archiving: Archiving | None
    limits: Limits
    spaces: Mapping[str, Mapping[str, Any]]
    options: dict[str, Any]
    _discovery: Discovery | None = field(default=None, init=False)

    async def start(self) -> HostCore:
        """Start the host on the running loop."""
        limits = self.limits.resolved()
        self._network = TcpNetwork(
            self._security(),
            handshakes_max=limits.handshakes,
            partial_bytes_max=limits.partial_bytes,
            message_max=limits.message_bytes,
        )
        core = HostCore(
            self.name,
            host_id=id_of(self.identity.key) if self.identity else _kept_id(self.path),
            network=self._network,
            rng=Random(),
            new_id=lambda: uuid4().hex,
            path=self.path,
            archiver=None if self.archiving is None else archiver_for(self.archiving),
            limits=limits,
            **self.options,
        )
        core.identity = self.identity
        try:
            await core.start(self.spaces)
            if self.discover:
                await self._start_discovery(core)
        except BaseException:
            await self.stop(core)
            raise
        return core

    def _security(self) -> LinkSecurity:
        if self.identity is None:
            return LinkSecurity()
        from tupelo.federation.identity.tls import client_context, key_of, server_context

        return LinkSecurity(
            server_context(self.identity),
            client_context(self.identity),
            require_tls=True,
            key_of=key_of,
        )

    async def _start_discovery(self, core: HostCore) -> None:
        place = Address.parse(core.address)
        found: dict[str, list[str]] = {}

        def meet(host_id: str, name: str, addresses: list[Address], key: str | None) -> None:
            found[host_id] = [str(address) for address in addresses]
            for address in found[host_id][:1]:
                core.dial(address)

        def part(host_id: str) -> None:
            for address in found.pop(host_id, []):
                core.undial(address)

        self._discovery = Discovery(
            host_id=core.id,
            name=core.name,
            port=place.port,
            version=VERSION,
            key=self.identity.key if self.identity else None,
            interfaces=None if place.host in ("0.0.0.0", "::") else [place.host],
            found=meet,
            gone=part,
        )
        await self._discovery.start()

    async def stop(self, core: HostCore) -> None:
        """Stop the host, and wait until its links have ended."""
        if self._discovery is not None:
            await self._discovery.stop()
        await core.stop()
        await self._network.close()


def _kept_id(folder: Path | None) -> str:
    """The id of a host without an identity: always the same if it has a folder."""
    if folder is None:
        return uuid4().hex
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ID_FILE
    if not file.exists():
        draft = folder / f"{ID_FILE}.{uuid4().hex}"
        try:
            draft.write_text(uuid4().hex)
            draft.replace(file)
        except OSError as error:
            draft.unlink(missing_ok=True)
            error.filename = str(file)  # A full disk does not name it.
            raise
    return file.read_text().strip()


CLOSING_SECONDS = 10.0
"""How long closing waits for the loop to close its links."""

T = TypeVar("T")


class HostDoor:
    """What both kinds of host have in common: how work gets to the loop of the host."""

    is_async: bool
    _bridge: LoopBridge
    _core: HostCore
    _plan: HostConfig

    def __init__(
        self,
        name: str,
        *,
        listen: str | int | None = None,
        path: str | Path | None = None,
        discover: bool = False,
        peers: Iterable[str] = (),
        identity: Identity | None = None,
        trust: Trust | None = None,
        access: Access | None = None,
        doubt: Doubt | None = None,
        heartbeat: float = 1.0,
        clock: Clock | None = None,
        archive: str | Path | Archiving | None = None,
        local_trust: bool = True,
        limits: Limits | None = None,
        spaces: Mapping[str, Mapping[str, Any]] | None = None,
        create_spaces: bool = True,
        store: str | None = None,
    ) -> None:
        check_text("name", name)
        if isinstance(peers, (str, bytes)) or not isinstance(peers, Iterable):
            raise BadArgument("peers", 'a list of addresses such as "192.0.2.7:7700"', peers)
        addresses = [str(Address.parse(peer, "peers")) for peer in peers]
        if listen is None and discover:
            listen = "0.0.0.0:0"
        place = None if listen is None else Address.parse(listen, "listen")
        if identity is not None and not isinstance(identity, Identity):
            raise BadArgument("identity", "an Identity", identity)
        if trust is not None and not isinstance(trust, Trust):
            raise BadArgument("trust", "a Trust such as Trust.known([...])", trust)
        if access is not None:
            check_access(access)
        if path is not None and (not isinstance(path, (str, Path)) or not str(path)):
            raise BadArgument("path", "the name of a folder", path)
        if not is_number(heartbeat) or not 0 < heartbeat < 1e6:
            raise BadArgument("heartbeat", "a number of seconds above 0", heartbeat)
        if limits is not None and not isinstance(limits, Limits):
            raise BadArgument("limits", "a Limits(...)", limits)
        if spaces is not None and not (
            isinstance(spaces, Mapping) and all(isinstance(one, Mapping) for one in spaces.values())
        ):
            raise BadArgument("spaces", "the options of spaces by their names", spaces)
        check_bool("create_spaces", create_spaces)
        folder = None if path is None else Path(path)
        if folder is not None and folder.exists() and not folder.is_dir():
            raise BadArgument("path", "the name of a folder", path)
        beyond = [a for a in ([place] if place else []) if not is_loopback(a.host)]
        beyond += [a for a in map(Address.parse, addresses) if not is_loopback(a.host)]
        check_bool("local_trust", local_trust)
        if identity is None and (beyond or not local_trust):
            identity = own_identity(name, folder)
        if trust is None and identity is not None:
            trust = Trust.known([])  # Strangers are refused, unless told otherwise.
        self._plan = HostConfig(
            name,
            folder,
            bool(discover),
            identity,
            check_archive(archive, path),
            limits or Limits(),
            spaces or {},
            {
                "listen": None if place is None else str(place),
                "peers": addresses,
                "trust": trust,
                "access": access,
                "doubt": check_doubt(doubt),
                "heartbeat": float(heartbeat),
                "clock": clock or system_clock,
                "local_trust": local_trust,
                "create_spaces": create_spaces,
                "store": check_store(store, is_default=True),
            },
        )
        self._begin()

    def _begin(self) -> None:
        """Called when the arguments were checked."""
        raise NotImplementedError

    def __repr__(self) -> str:
        core = getattr(self, "_core", None)
        if core is None:
            return f"<the host {self._plan.name!r}, not started>"
        return f"<the host {core.name!r} at {core.address or 'no address'}>"

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the spaces with their entries, and the engaged hosts."""
        core = getattr(self, "_core", None)
        if core is None:
            return None
        spaces = [
            ("space", name, f"{hosted.port.entry_count} entries")
            for name, hosted in sorted(core.spaces.items())
        ]
        return html_table(repr(self), [*spaces, *(("host", name, "") for name in self.engaged)])

    @property
    def name(self) -> str:
        """The name of the host, for people; it need not be unique."""
        return self._core.name

    @property
    def id(self) -> str:
        """The unique id of the host, also used by `scope=`; also the id of its own agent."""
        return self._core.id

    @property
    def address(self) -> str:
        """The address at which the host listens, "host:port"; empty if it does not listen."""
        return self._core.address

    @property
    def url(self) -> str:
        """The URL of the host for `tupelo.connect`, to which the name of a space is added."""
        return f"tupelo://{self._core.address}/"

    @property
    def identity(self) -> str | None:
        """The public key of the host; None if it has no identity."""
        return self._plan.identity.key if self._plan.identity is not None else None

    @property
    def health(self) -> dict[str, str]:
        """Problems of the spaces of this host by name, such as a full disk; empty if there are
        none."""
        return self.core.health()

    @property
    def engaged(self) -> list[str]:
        """The names of the engaged hosts."""
        return [peer.name for peer in list(self._core.peers.values())]

    @property
    def core(self) -> HostCore:
        """The host itself, for models; it is used on its own loop."""
        return self._core

    # Who is let in, and what is withdrawn

    def trust(self, key: str, *, lease: float | None = None) -> None:
        """Accept this identity from now on: for `lease` seconds, or until `untrust`."""
        seconds = check_lease(lease)
        self._at_once(lambda: self._core.trust_key(key, seconds))

    def untrust(self, key: str) -> None:
        """Refuse this identity from now on, and close its connections. With `Trust.on_first_use`
        the file records it; a list for `Trust.known` must be changed by the program."""
        self._at_once(lambda: self._core.untrust_key(key))

    def set_trust(self, trust: Trust) -> None:
        """Replace the trust of this host, and close the connections of identities that are no
        longer trusted."""
        if not isinstance(trust, Trust):
            raise BadArgument("trust", "a Trust such as Trust.known([...])", trust)
        self._at_once(lambda: self._core.set_trust(trust))

    def change_access(self, space: str, access: Access) -> None:
        """Replace the access rules of a space of this host, and of its companion spaces.
        Connections that have used a right which they no longer have, or have sent the password,
        are closed."""
        self._at_once(lambda: self._core.change_access(space, access))

    @property
    def in_doubt(self) -> dict[str, int]:
        """The number of entries in doubt for each host or agent (by id) that has taken entries, has
        not confirmed them, and is disconnected."""
        return self._at_once(self._core.in_doubt)

    def give_up(self, host: str) -> int:
        """Stop waiting for the host with this id (see `in_doubt`): the entries that it has taken
        and not confirmed return to the space or are removed, as the `Doubt` of each space says.
        Returns their number. If the host does come back, it may have used some of them."""
        if not isinstance(host, str) or not host:
            raise BadArgument("host", "the id of a host", host)
        return self._at_once(lambda: self._core.give_up(host))

    def _at_once(self, work: Callable[[], T]) -> T:
        async def do() -> T:
            return work()

        return self.now(do())

    def offer(
        self,
        name: str,
        make: Callable[[HostCore], Service],
        *,
        access: Access | None = None,
        doubt: Doubt | None = None,
        offered: Callable[[HostedSpace], object] | None = None,
    ) -> None:
        """For models: offer a service to clients. It is made on the loop of the host; then
        `offered` is called there with the hidden space that has the rules of the service: see
        `HostCore.offer`."""
        core = getattr(self, "_core", None)
        if core is None:
            raise BadInput("the host has not started: use it as `async with`")

        async def begin() -> None:
            hosted = core.offer(name, make(core), access, doubt)
            if offered is not None:
                offered(hosted)

        self.now(begin())

    async def on_loop(
        self, work: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None
    ) -> T:
        """Run the coroutine `work` on the loop of the host and return its result. If the waiting
        thread is interrupted while the result is on its way, `undo` is called with it on the
        loop."""
        raise NotImplementedError

    def now(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine `work`, which never waits, on the loop of the host."""
        raise NotImplementedError

    def soon(self, function: Callable[..., object], *args: Any) -> bool:
        """Call a function on the loop of the host, without waiting for it. False if the loop is
        closed."""
        return self._bridge.soon(function, *args)

    def run_apart(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine function `work` in a thread, or a task, of its own."""
        raise NotImplementedError


class Host(blocking.ClosingHandle, HostDoor):
    """A process that keeps spaces, serves clients, and shares its spaces with connected hosts.

    - `listen`: the address for clients and hosts, "127.0.0.1:7700", or a port; 0 for a free one.
    - `path`: a folder for its spaces; without it they are in memory.
    - `peers`: the addresses of hosts to connect to; `discover`: find hosts in the local network.
    - `identity`, `trust`: the key of this host, and the keys that it accepts. Connections to other
      machines use TLS, and unknown keys are refused by default.
    - `local_trust=False`: programs on this machine need a trusted key too. Use it behind a tunnel
      or a proxy, where every connection seems to come from this machine. See docs/SECURITY.md.
    - `access`, `doubt`: the defaults for its spaces.
    - `heartbeat`: seconds between heartbeats; a peer is dropped after three missed ones.
    - `archive`: a folder to which the logs of its spaces are copied before they are trimmed.
    - `limits`: how much clients may use.
    - `spaces`: spaces that are made before clients can connect: the arguments of `space` by name.
    - `create_spaces=False`: clients can open only spaces that exist.
    - `store`: the URL of a database, postgresql://host/database, in which its spaces are; see
      docs/POSTGRES.md.
    - `clock`: the clock of its spaces, by default the system's.
    """

    is_async = False

    def _begin(self) -> None:
        self._loop = _new_loop()
        self._bridge = LoopBridge(self._loop)
        self._thread = threading.Thread(
            target=self._run, name=f"tupelo-{self._plan.name}", daemon=True
        )
        self._thread.start()
        self._closed = False
        try:
            self._core = self._await(self._plan.start())
        except BaseException:
            self._stop_loop()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        with suppress(RuntimeError):
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def space(
        self,
        name: str,
        *,
        access: Access | None = None,
        doubt: Doubt | None = None,
        create: bool = True,
        **options: Any,
    ) -> FederatedSpaceLike:
        """Open a space that spans this host and all engaged hosts. If this host has no space of
        this name, it is created with these options of `tupelo.Space`; unless `create`, then
        UnknownSpace is raised. With `store`, the URL of a database, the space is there, and the
        same for all its hosts."""

        async def make() -> Any:
            found = self._core.declared(name, access, doubt, create, **options)
            return found if isinstance(found, StoredSpace) else FederatedSpace(self, found, False)

        made = self.now(make())
        if isinstance(made, StoredSpace):
            made = run_coroutine(made.open(is_async=False, label=self.name, create=create))
        found: FederatedSpaceLike = made
        return found

    @property
    def presence(self) -> blocking.Space:
        """A space with a HostPresence, AgentPresence or SpacePresence entry for each known host,
        agent and space, to read, wait for and subscribe to."""
        return self._core.presence.space

    def engage(self, address: str) -> None:
        """Connect to the host at this address, and reconnect whenever the connection is lost."""
        if not self.soon(self._core.dial, str(Address.parse(address))):
            raise HostClosed("the host was closed")

    def close(self) -> None:
        """Tell clients and hosts that this host leaves, and close its spaces."""
        if self._closed:
            return
        self._closed = True
        try:
            self._await(self._plan.stop(self._core))
        finally:
            self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSING_SECONDS)  # uvloop may wait for ever for a handshake half done.

    # How work gets to the loop

    def _await(self, work: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None) -> T:
        if self._bridge.is_here:
            work.close()
            raise BadInput("this runs on the host's own thread, which may not wait for itself")
        if self._loop.is_closed():
            work.close()
            raise HostClosed("the host was closed")
        return self._bridge.run(work, undo)

    async def on_loop(
        self, work: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None
    ) -> T:
        return self._await(work, undo)

    def now(self, work: Coroutine[Any, Any, T]) -> T:
        return self._await(work)

    def run_apart(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        def run() -> None:
            with suppress(HostClosed):
                run_coroutine(work())

        threading.Thread(target=run, name="tupelo-notices", daemon=True).start()


class AsyncHost(asynchronous.AsyncClosing, HostDoor):
    """`tupelo.Host` for coroutines: it lives on the loop that starts it. Use it as `async with`."""

    is_async = True

    def _begin(self) -> None:
        self._tasks = Tasks()

    async def start(self) -> Self:
        """Start the host on the running loop; `async with` calls this. Raises CannotReach if it
        cannot listen at its address."""
        self._bridge = LoopBridge()
        self._core = await self._plan.start()
        return self

    def space(
        self,
        name: str,
        *,
        access: Access | None = None,
        doubt: Doubt | None = None,
        create: bool = True,
        **options: Any,
    ) -> AsyncFederatedSpaceLike:
        """Open a space that spans this host and all engaged hosts. If this host has no space of
        this name, it is created with these options of `tupelo.Space`; unless `create`, then
        UnknownSpace is raised. With `store`, the URL of a database, the space is there, and the
        same for all its hosts; it is opened at its first operation."""
        hosted = self._core.declared(name, access, doubt, create, **options)
        made: Any
        if isinstance(hosted, StoredSpace):
            made = LazySpace(name, partial(hosted.open, label=self.name, create=create))
        else:
            made = FederatedSpace(self, hosted, True)
        awaited: AsyncFederatedSpaceLike = made
        return awaited

    @property
    def presence(self) -> asynchronous.Space:
        """A space with a HostPresence, AgentPresence or SpacePresence entry for each known host,
        agent and space, to read, wait for and subscribe to."""
        return asynchronous.Space(self._core.presence.space)

    def engage(self, address: str) -> None:
        """Connect to the host at this address, and reconnect whenever the connection is lost."""
        self._core.dial(str(Address.parse(address)))

    async def close(self) -> None:
        """Tell clients and hosts that this host leaves, and close its spaces."""
        self._tasks.cancel()
        await self._plan.stop(self._core)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def on_loop(
        self, work: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None
    ) -> T:
        return await work

    def now(self, work: Coroutine[Any, Any, T]) -> T:
        return run_coroutine(work)

    def soon(self, function: Callable[..., object], *args: Any) -> bool:
        if not self._bridge.is_here:  # a clock's thread, when a lease runs out
            return super().soon(function, *args)
        function(*args)
        return True

    def run_apart(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.start(work())


class RunningHost(AsyncHost):
    """The async API of a host that runs already, on its own loop: for services, and for the lab."""

    def __init__(self, core: HostCore) -> None:
        self._core = core
        self._bridge = LoopBridge()
        self._begin()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on this system
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
