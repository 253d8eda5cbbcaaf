"""Building a host from what a user asks for: its identity, its network, its folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from urllib.parse import quote
from uuid import uuid4

from tupelo.errors import BadArgument
from tupelo.federation.hosts.archiving import Archiving, archiver_for, check_archive
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.discovery import Discovery
from tupelo.federation.hosts.limits import Limits
from tupelo.federation.identity.access import Access
from tupelo.federation.identity.ids import id_of
from tupelo.federation.identity.keys import Identity, default_folder
from tupelo.federation.identity.trust import Trust
from tupelo.federation.links.address import Address, is_loopback
from tupelo.federation.links.tcp import LinkSecurity, TcpNetwork
from tupelo.federation.links.wire import VERSION
from tupelo.federation.spaces.hosted import Doubt, check_doubt
from tupelo.space.clock import Clock, SystemClock

IDENTITY_FILE = "identity.pem"
ID_FILE = "host.id"


@dataclass
class HostConfig:
    """A host to be: it is started and stopped on the loop on which it will live."""

    name: str
    listen: str | None
    path: Path | None
    discover: bool
    peers: list[str]
    identity: Identity | None
    trust: Trust | None
    access: Access | None
    doubt: Doubt
    heartbeat: float
    clock: Clock
    archiving: Archiving | None
    local_trust: bool
    limits: Limits
    _discovery: Discovery | None = field(default=None, init=False)

    async def start(self) -> HostCore:
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
            clock=self.clock,
            rng=Random(),
            new_id=lambda: uuid4().hex,
            listen=self.listen,
            path=self.path,
            peers=self.peers,
            trust=self.trust,
            access=self.access,
            doubt=self.doubt,
            heartbeat=self.heartbeat,
            archiver=None if self.archiving is None else archiver_for(self.archiving),
            local_trust=self.local_trust,
            limits=limits,
        )
        core.identity = self.identity
        try:
            await core.start()
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
        if self._discovery is not None:
            await self._discovery.stop()
        await core.stop()
        await self._network.close()


def plan_host(
    name: str,
    listen: str | int | None,
    path: str | Path | None,
    discover: bool,
    peers: Iterable[str],
    identity: Identity | None,
    trust: Trust | None,
    access: Access | None,
    doubt: Doubt | None,
    heartbeat: float,
    clock: Clock | None,
    archive: str | Path | Archiving | None = None,
    local_trust: bool = True,
    limits: Limits | None = None,
) -> HostConfig:
    """Check what was asked for, and settle what was not."""
    if not isinstance(name, str) or not name:
        raise BadArgument("name", "a text that is not empty", name)
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
    if access is not None and not isinstance(access, Access):
        raise BadArgument("access", "an Access(...)", access)
    if path is not None and (not isinstance(path, (str, Path)) or not str(path)):
        raise BadArgument("path", "the name of a folder", path)
    number = isinstance(heartbeat, (int, float)) and not isinstance(heartbeat, bool)
    if not (number and 0 < heartbeat < 1e6):
        raise BadArgument("heartbeat", "a number of seconds above 0", heartbeat)
    if limits is not None and not isinstance(limits, Limits):
        raise BadArgument("limits", "a Limits(...)", limits)
    folder = None if path is None else Path(path)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise BadArgument("path", "the name of a folder", path)
    beyond = [a for a in ([place] if place else []) if not is_loopback(a.host)]
    beyond += [a for a in map(Address.parse, addresses) if not is_loopback(a.host)]
    if not isinstance(local_trust, bool):
        raise BadArgument("local_trust", "True or False", local_trust)
    if identity is None and (beyond or not local_trust):
        file = IDENTITY_FILE if folder else f"host-{quote(name, safe='')}.pem"
        identity = Identity.at((folder or default_folder()) / file)
    if trust is None and identity is not None:
        trust = Trust.known([])  # Strangers are refused, unless told otherwise.
    return HostConfig(
        name,
        None if place is None else str(place),
        folder,
        bool(discover),
        addresses,
        identity,
        trust,
        access,
        check_doubt(doubt),
        float(heartbeat),
        clock or SystemClock(),
        check_archive(archive, path),
        local_trust,
        limits or Limits(),
    )


def _kept_id(folder: Path | None) -> str:
    """The id of a host without an identity: the same every time, if it has a folder."""
    if folder is None:
        return uuid4().hex
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ID_FILE
    if not file.exists():
        draft = folder / f"{ID_FILE}.{uuid4().hex}"
        draft.write_text(uuid4().hex)
        draft.replace(file)
    return file.read_text().strip()
