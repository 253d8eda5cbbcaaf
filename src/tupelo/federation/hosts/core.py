"""A host: keeps spaces, serves clients and meets other hosts.

`HostCore` runs on one event loop. Its clock, random numbers and network are arguments, so that the
lab can run many hosts on virtual ones. The classes for users are in `doors`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tupelo.errors import (
    BadArgument,
    DamagedFile,
    ForeignFile,
    HostClosed,
    JournalError,
    JournalFailed,
    LimitReached,
    NotAllowed,
    Stranger,
    TupeloError,
    UnknownSpace,
)
from tupelo.federation.hosts.client_resources import ClientResources
from tupelo.federation.hosts.decisions import TransactionDecisions
from tupelo.federation.hosts.discovery import Dialler
from tupelo.federation.hosts.folder import Folder, LogArchiver, check_space_name
from tupelo.federation.hosts.limits import AGENTS_MAX, Budget, Limits
from tupelo.federation.hosts.peer import Extensions, Peer
from tupelo.federation.hosts.presence import PresenceBoard
from tupelo.federation.hosts.services import Service, Services
from tupelo.federation.hosts.serving import AnsweredCalls, ClientServer
from tupelo.federation.hosts.stored import AT_WORK_MAX, StoredServing
from tupelo.federation.identity.access import NOBODY, Access, PasswordGuard, check_access
from tupelo.federation.identity.keys import Identity, check_key, require_proved
from tupelo.federation.identity.trust import Trust
from tupelo.federation.links import wire
from tupelo.federation.links.calls import Handlers, TurnScheduler
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.links.link import Link, LinkListener, Network
from tupelo.federation.links.reception import SPACES_MAX, Greeting, Reception, require_names
from tupelo.federation.names import DECISIONS, PRESENCE, companion_name, is_reserved
from tupelo.federation.spaces.hosted import (
    Doubt,
    DoubtfulDeliveries,
    HostedSpace,
    check_doubt,
    give_back,
)
from tupelo.federation.spaces.stored import StoredSpace, check_store, in_database
from tupelo.federation.spanning.federated import Federation
from tupelo.federation.spanning.moving import EntryMover
from tupelo.space import blocking
from tupelo.space.clock import Clock
from tupelo.space.log import Actor
from tupelo.space.port import port_of
from tupelo.store.format import is_locked
from tupelo.values.holder import Holder
from tupelo.values.scope import Scope

logger = logging.getLogger("tupelo")

PRESENCE_SECONDS = 0.01
NO_SPACES: Mapping[str, Mapping[str, Any]] = {}
NEAR_MAX = 5
"""Names of spaces that the refusal of an unknown one lists."""
TRUST_REVIEW_SECONDS = 3_600.0
"""The longest time between two checks whether trust in an identity has ended."""


_UNUSABLE = (DamagedFile, ForeignFile, JournalFailed)  # of the file of a space


class SetAside(NamedTuple):
    """A space in the folder that could not be opened: why, with which options, and the state of its
    file then; None if the file may be good, and could only not be used."""

    reason: str
    options: Mapping[str, Any]
    state: tuple[int, ...] | None


class HostCore:
    """One host, on the loop that starts it."""

    def __init__(
        self,
        name: str,
        *,
        host_id: str,
        network: Network,
        clock: Clock,
        rng: Random,
        new_id: Callable[[], str],
        listen: str | None = None,
        path: Path | None = None,
        peers: Iterable[str] = (),
        trust: Trust | None = None,
        access: Access | None = None,
        doubt: Doubt | None = None,
        heartbeat: float = 1.0,
        answer_seconds: float = 5.0,
        commit_in_place: bool = False,
        durability: Any = None,
        archiver: LogArchiver | None = None,
        local_trust: bool = True,
        limits: Limits | None = None,
        create_spaces: bool = True,
        store: str = "",
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.id = host_id
        self.identity: Identity | None = None
        """The key pair of the host, or None; set when the host is built."""
        self.incarnation = new_id()
        self.clock = clock
        self.rng = rng
        self.new_id = new_id
        self.answer_seconds = answer_seconds
        self.listening: LinkListener | None = None
        self.spaces: dict[str, HostedSpace] = {}
        self.stored: dict[str, StoredSpace] = {}
        """The spaces in databases."""
        self.set_aside: dict[str, SetAside] = {}
        self.peers: dict[str, Peer] = {}
        self.servings: dict[str, ClientServer] = {}
        self.from_clients: Handlers[ClientServer] = Handlers()
        self.from_hosts: Handlers[Peer] = Handlers()
        self.extensions = Extensions()
        self.services = Services(self)
        self.doubts = DoubtfulDeliveries(
            lambda name: self.spaces.get(name) or self.stored.get(name)
        )
        self.all_doubts = {self.doubts}
        """Also those of the models."""
        self.answered = AnsweredCalls(loop)
        self.limits = (limits or Limits()).resolved()
        self.turns = TurnScheduler(loop, self.limits.working_in_all)
        self.held = Budget(
            "open transactions, sessions, subscriptions and match sets at this host",
            self.limits.held_in_all,
        )
        self.guesses = PasswordGuard(loop)
        self.mover = EntryMover(self)
        self.federation = Federation(self)
        self.heartbeat = heartbeat
        self.network = network
        self._listen = listen
        self._folder = None if path is None else Folder(path)
        self._trust = trust
        self._trusts_here = local_trust
        self._trust_ends: asyncio.TimerHandle | None = None
        self._access = access or Access()
        self._doubt = check_doubt(doubt)
        self._durability = durability
        self._archiver = archiver
        self.commits_in_place = commit_in_place
        self.creates_spaces = create_spaces
        self.stores_at_work = asyncio.Semaphore(AT_WORK_MAX)
        self._store = store
        self.with_stored: set[StoredServing] = set()
        """The clients that use spaces in databases."""
        self._calls = 0
        self._dialler = Dialler(host_id, self._greet, self._has, rng)
        self.dial = self._dialler.dial
        self.undial = self._dialler.undial
        self._first_peers = list(peers)
        self._closed = False
        self.disengaged = False
        """Whether this host keeps away from all others, until `reengage`."""
        self._left: list[str] = []
        self._started = False
        self._presence_timer: asyncio.TimerHandle | None = None
        # Not each time on disk: it is kept for its log, and must not hold up those who come.
        kept = {} if path is None else {"durability": durability or "process"}
        system = self.open_space(PRESENCE, kept)
        self.presence = PresenceBoard(clock, system)
        self._reading = Access(write=(), take=())  # Nobody but the host itself writes there.
        self.spaces[PRESENCE] = HostedSpace(
            system, self._reading, self._doubt, commit_in_place=commit_in_place
        )
        try:
            decisions = self.open_space(DECISIONS, {})
        except BaseException:
            system.close()
            if archiver is not None:
                archiver.close()
            raise
        self.deciding = TransactionDecisions(self, decisions)
        self._register()

    def _register(self) -> None:
        """Set the handlers of the messages of clients and hosts; services and groups add theirs."""

        async def tell(client: ClientServer, message: wire.DescribeHost) -> dict[str, Any] | None:
            if message.brief:
                return None
            found = self.describe()
            if client.who is None:  # on this machine
                found["health"] = self.health()
                if self._folder is not None:
                    found["folder"] = str(self._folder)
            return found

        async def hear(peer: Peer, message: wire.DescribeHost) -> None:
            """The answer shows that all earlier messages of the peer were handled."""

        ClientServer.register(self.from_clients)
        StoredServing.register(self.from_clients)
        ClientResources.register(self.from_clients)
        self.deciding.register(self.from_clients, lambda client: client.session)
        self.from_clients.later[wire.DescribeHost] = tell
        Peer.register(self.from_hosts)
        self.deciding.register(self.from_hosts, lambda peer: peer.holder.id)
        self.from_hosts.later[wire.MoveEntry] = self.mover.accept
        self.from_hosts.later[wire.DescribeHost] = hear
        self.from_hosts.now[wire.PartNotice] = self.extensions.heard

    # Coming and going

    async def start(self, spaces: Mapping[str, Mapping[str, Any]] = NO_SPACES) -> None:
        """Open the spaces in the folder and these, with their options; then listen."""
        self._started = True
        for hosted in self.spaces.values():  # that were opened before
            self._recover(hosted)
        for name, options in spaces.items():
            self._open_or_set_aside(name, options)
        for name in self._folder.names() if self._folder else []:
            if name not in self.spaces and name not in self.set_aside:
                self._open_or_set_aside(name, {"store": ""})
        if self._listen is not None:
            self.listening = await self.network.listen(self._listen, self._answer)
        self.presence.engaged(self.id, self.name, self.address)
        self._announce_presence()
        self.deciding.start()
        self._review_trust()
        for address in self._first_peers:
            self.dial(address)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def address(self) -> str:
        return self.listening.address if self.listening is not None else ""

    async def stop(self, reason: str = "") -> None:
        """Send Goodbye on all links, and close the spaces. If the disk refuses the last changes of
        some, JournalError is raised when all are closed."""
        if self._closed:
            return
        self._closed = True
        for timer in (self._presence_timer, self._trust_ends):
            if timer is not None:
                timer.cancel()
        if self.listening is not None:
            self.listening.close()
        await self._dialler.stop()
        refused: list[JournalError] = []
        try:
            self.deciding.stop()
        except JournalError as error:
            refused.append(error)
        await self.federation.settle_all()
        await self.extensions.stop()
        for peer in list(self.peers.values()):
            peer.talk.goodbye(reason)
        for serving in list(self.servings.values()):
            serving.talk.goodbye(reason)
        await self.federation.stop()
        self.doubts.close()
        self.guesses.close()
        self.presence.end()
        await asyncio.sleep(0)
        for client in list(self.with_stored):
            await client.stop()
        for stored in self.stored.values():
            await stored.close()
        for hosted in self.spaces.values():
            try:
                if self.commits_in_place:
                    hosted.port.close()
                else:
                    await hosted.door.close()
            except JournalError as error:
                refused.append(error)
        if self._archiver is not None:
            await asyncio.to_thread(self._archiver.close)
        if refused:
            raise refused[0]

    # Spaces

    def make(
        self,
        name: str,
        access: Access | None = None,
        doubt: Doubt | None = None,
        store: str | None = None,
        **options: Any,
    ) -> HostedSpace | StoredSpace:
        """The space of this name, in the database `store` or in that of the host, if it has one and
        `store` is not ""; otherwise see `make_space`."""
        own = bool(options) or access is not None or doubt is not None or store is not None
        if name in self.stored:
            if own:
                raise BadArgument("options", f"left out: the space {name!r} is there already", own)
            return self.stored[name]
        where = self._store if store is None else check_store(store)
        if not where or name in self.spaces or name in self.set_aside or "path" in options:
            if store and name in self.spaces:
                raise BadArgument("store", f"left out: the space {name!r} is there already", store)
            return self.make_space(name, access, doubt, kept_here=True, **options)
        check_space_name(name)
        if access is not None:
            check_access(access)
        policy = self._doubt if doubt is None else check_doubt(doubt)
        made = StoredSpace(name, where, access or self._access, policy, options)
        self.stored[name] = made
        return made

    def declared(
        self,
        name: str,
        access: Access | None,
        doubt: Doubt | None,
        create: bool,
        **options: Any,
    ) -> HostedSpace | StoredSpace:
        """The space of this name, for the program of the host."""
        if not create and not (options.get("store") or self.is_stored(name)):
            self.require_space(name)
        found = self.make(name, access, doubt, **options)
        if isinstance(found, StoredSpace):
            found.declared = True
        return found

    def is_stored(self, name: str) -> bool:
        """Whether the space of this name is in a database, or would be if it was made now."""
        return name in self.stored or (
            bool(self._store)
            and not is_reserved(name)
            and name not in self.spaces
            and name not in self.set_aside
        )

    def forget_stored(self, stored: StoredSpace) -> None:
        """The database has no such space, and was not to make it."""
        if self.stored.get(stored.name) is stored and not stored.declared:
            del self.stored[stored.name]

    def make_space(
        self,
        name: str,
        access: Access | None = None,
        doubt: Doubt | None = None,
        kept_here: bool = False,
        **options: Any,
    ) -> HostedSpace:
        """The space of this name; it is made with these options if it does not exist yet. One that
        was set aside keeps the options that it was given, also now, unless others replace them.
        Raises BadArgument if options are given for an existing space, and Refused if it is, or
        would be, in a database, unless it is to be `kept_here`."""
        check_space_name(name)
        if name in self.stored or (self.is_stored(name) and not kept_here):
            raise in_database(name)
        if name in self.set_aside:  # The rules that it was given hold also after its repair.
            kept = dict(self.set_aside[name].options)
            rules, policy = kept.pop("access", None), kept.pop("doubt", None)
            access = rules if access is None else access
            doubt = policy if doubt is None else doubt
            options = kept | options
        own = bool(options) or access is not None or doubt is not None
        if name in self.spaces:
            if own:
                given = ", ".join([*options, *(["access"] if access else []), "doubt"][:3])
                raise BadArgument(given, f"left out: the space {name!r} is there already")
            return self.spaces[name]
        if access is not None:
            check_access(access)
        policy = self._doubt if doubt is None else check_doubt(doubt)
        try:
            space = self.open_space(name, options)
            hosted = HostedSpace(
                space, access or self._access, policy, commit_in_place=self.commits_in_place
            )
            if own and self._folder is not None:
                self._folder.claim(name)
            self._add_space(hosted)
        except _UNUSABLE:
            if name in self.set_aside:
                self._remember(name, {**options, "access": access, "doubt": doubt})
            raise
        return hosted

    def _remember(self, name: str, options: Mapping[str, Any]) -> None:
        """A space that is set aside gets these options when it is opened."""
        self.set_aside[name] = self.set_aside[name]._replace(options=options)

    def _open_or_set_aside(self, name: str, options: Mapping[str, Any]) -> None:
        """Open a space; if its file cannot be used, the host goes on without it."""
        try:
            given = {"access": None, "doubt": None, "create": True, **options}
            self.declared(name, **given)
        except _UNUSABLE as error:
            if self._folder is None:
                raise
            passing = isinstance(error, JournalFailed)
            state = None if passing else _file_state(self._folder.file_of(name))
            own = {option: value for option, value in options.items() if option != "store"}
            self.set_aside[name] = SetAside(str(error), own, state)
            logger.error(
                "the space %r is set aside, and the others are served: %s; %s it is opened when it"
                " is next used",
                name,
                error,
                "when that has passed," if passing else "repair it with `tupelo repair`, and",
            )

    def _reopen(self, name: str) -> None:
        """Open a space that was set aside, if its file has changed since, or if it was only not
        usable then. Raises DamagedFile or JournalFailed."""
        aside = self.set_aside[name]
        if self._folder is not None:
            file = self._folder.file_of(name)
            # Opening a locked file would hold up the host until the lock is released.
            tried = is_locked(file) if aside.state is None else _file_state(file) == aside.state
            if not tried:
                self._open_or_set_aside(name, aside.options)
        if name in self.set_aside:
            aside = self.set_aside[name]
            if aside.state is None:
                raise JournalFailed(f"the space {name!r} is set aside at this host: {aside.reason}")
            raise DamagedFile(
                f"the space {name!r} is set aside at this host, because its file cannot be used;"
                " `tupelo repair` saves what is good of it"
            )

    def companion(self, served: HostedSpace, kind: str, access: Access) -> HostedSpace:
        """The companion of this `kind` of the space `served`: a hidden space in which a model keeps
        more for it, under the rules of that space and `access`. Clients cannot open it, since its
        name is reserved. A file `<name>.<kind>` of an earlier version is used if there is one."""
        name, former = companion_name(kind, served.name), f"{served.name}.{kind}"
        found = self.spaces.get(name)
        if found is None:
            found = HostedSpace(
                self.open_space(name, {}, former),
                access,
                served.doubt,
                commit_in_place=self.commits_in_place,
                serves=served,
                former=former,
            )
            self._add_space(found)
        return found

    def private_space(self, name: str, former: str | None = None) -> HostedSpace:
        """A space of a reserved name that only this host uses."""
        found = self.spaces.get(name)
        if found is None:
            found = self.spaces[name] = HostedSpace(
                self.open_space(name, {}, former),
                NOBODY,
                Doubt(),
                commit_in_place=self.commits_in_place,
            )
        return found

    def _add_space(self, hosted: HostedSpace) -> None:
        try:
            self.mover.load_accepted(hosted)
        except BaseException:
            hosted.port.close()
            raise
        self.spaces[hosted.name] = hosted
        if self.set_aside.pop(hosted.name, None) is not None:
            logger.warning("the space %r was repaired, and is served again", hosted.name)
        if self._started:
            self._recover(hosted)
        self.mover.recover(hosted)
        if hosted.shared:
            for peer in self.peers.values():
                peer.space_created(hosted)
        self._announce_presence()

    def _recover(self, hosted: HostedSpace) -> None:
        """Handle the deliveries that were open when this host ended the last time."""
        for delivery in hosted.port.deliveries_in_doubt():
            holder = delivery.holder
            if holder.kind == "here":  # Its taker died with this host, and had nothing yet.
                give_back(hosted, delivery)
            elif holder.kind in ("client", "host"):
                delivery.txn.actor = Actor(holder.who, None, holder.name)
                self.doubts.leave(holder.owner, {holder.call: delivery})

    def offer(
        self,
        name: str,
        service: Service,
        access: Access | None = None,
        doubt: Doubt | None = None,
    ) -> HostedSpace:
        """Offer a service to clients by this name; it replaces an earlier one of the same name.

        Returns a hidden, empty space, `tupelo.<name>`, that has the rules of the service:
        `caller.hosted(hidden.name, operation)` checks whether a client may do something, and its
        `Doubt` decides about a `HandOver` that names it.
        """
        hidden = f"tupelo.{name}"
        if access is not None:
            check_access(access)
        before = self.spaces.get(hidden)
        self.spaces[hidden] = hosted = HostedSpace(
            blocking.Space(hidden, clock=self.clock) if before is None else before.space,
            access or self._access,
            self._doubt if doubt is None else check_doubt(doubt),
            commit_in_place=self.commits_in_place,
        )
        self.services[name] = service
        if before is not None:
            self._review_access(hidden)
        return hosted

    def open_space(
        self, name: str, options: dict[str, Any], former: str | None = None
    ) -> blocking.Space:
        """Open a space that is not one of `spaces` yet: in the folder of the host, if it has one;
        there under its `former` name, if a file of that name exists and is not open."""
        options = {"clock": self.clock, "agent": self.id, "new_id": self.new_id, **options}
        if self._folder is not None and "path" not in options:
            options["path"] = (
                self._folder.file_of(name)
                if former is None or former in self.spaces
                else self._folder.file_of_either(name, former)
            )
            if self._durability is not None:
                options.setdefault("durability", self._durability)
        space = blocking.Space(name, **options)
        port = port_of(space)
        port.name_agent(self.name)
        saved = port.saved
        if self._archiver is not None and saved is not None and name != DECISIONS:
            try:
                self._archiver.keep(saved)
            except BaseException:
                space.close()
                raise
        if saved is None:
            # In memory it would count from 1 in every life, and a new entry would be taken for one
            # that was told of before.
            port.count_from(int(self.clock.now() * 1_000_000))
        return space

    def require_space(self, name: str) -> None:
        """Raise UnknownSpace, with the names that are spelt alike, if there is no such space."""
        if not (name in self.spaces or name in self.set_aside or name in self.stored):
            every = sorted([*self.spaces, *self.stored])
            known = [one for one in every if not is_reserved(one)]
            raise UnknownSpace(name, get_close_matches(name, known, NEAR_MAX))

    def served(
        self, name: str, who: str | None = None, create: bool = True
    ) -> HostedSpace | StoredSpace:
        """The space of this name, for a client with the identity `who`. It is made if it does not
        exist, `create` and the host allow that, and the client may write in spaces with the rules
        of the host."""
        if name in self.stored:
            return self.stored[name]
        found = self.spaces.get(name)
        if found is None or found.serves is not None:
            check_space_name(name)
        if found is None and name in self.set_aside:
            self._reopen(name)
            found = self.spaces[name]
        if found is None:
            # Whether a database has the space is known when it is opened there.
            if not (self._store or (create and self.creates_spaces)):
                self.require_space(name)
            self._access.check("write", name, who, False)
            if self._folder is not None and self._folder.is_claimed(name):
                raise NotAllowed("use, before its program has opened it,", name, who or "an agent")
            self._require_room_for_space()
            return self.make(name)
        return found

    def may(self, operation: str, name: str, neighbour: str, source: str) -> bool:
        """Whether the host `source` may do this in the space of this name, if the host `neighbour`
        has passed on its request? Both must be allowed. A space that is not here has the rules of
        new spaces."""
        peer = self.peers.get(neighbour)
        if peer is None:
            return False
        found = self.spaces.get(name)
        if found is None:
            access = self._access
            return access.allows(operation, peer.who) and access.allows_host(operation, source)
        return peer.may(operation, found) and found.allows_host(operation, source)

    def _require_room_for_space(self) -> None:
        """Raise LimitReached if programs elsewhere may not make one more space here."""
        limits = self.limits
        if len(self.spaces) + len(self.stored) >= limits.spaces:
            raise LimitReached("spaces at this host", limits.spaces)
        assert limits.durable_spaces is not None
        durable = sum(hosted.durable for hosted in self.spaces.values())
        if self._folder is not None and durable >= limits.durable_spaces:
            raise LimitReached("durable spaces at this host", limits.durable_spaces)

    def spans(self, hosted: HostedSpace, scope: Scope | None) -> bool:
        """Whether an operation with this scope asks other hosts."""
        if scope is not None:
            return scope.kind == "agent" or (
                scope.kind == "host" and scope.name not in (self.id, self.name)
            )
        return bool(self.peers) and hosted.shared

    @property
    def agents(self) -> list[str]:
        return [agent for agent, _ in self._named_agents]

    @property
    def _named_agents(self) -> list[tuple[str, str]]:
        """The agents at this host, each with the name that it has given itself."""
        clients = self.servings.values()
        return [(self.id, self.name), *((one.agent, one.name) for one in clients)]

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "address": self.address,
            "spaces": sorted([*self.spaces, *self.stored]),
            "agents": self.agents,
            "clients": {serving.agent: serving.name for serving in self.servings.values()},
            "hosts": {peer.name: peer.id for peer in self.peers.values()},
            "now": self.clock.now(),
        }

    def health(self) -> dict[str, str]:
        """Problems of spaces by their names: a full disk, or a damaged file."""
        found = {name: aside.reason for name, aside in list(self.set_aside.items())}
        found |= {name: hosted.port.health for name, hosted in list(self.spaces.items())}
        return {name: health for name, health in found.items() if health != "ok"}

    def under_way(self) -> dict[str, list[Any]]:
        """Open calls, deliveries and other work of this host, for the lab and for debugging."""
        found = self.federation.under_way() | {
            "holders in doubt": list(self.doubts.owners()),
            "clients": list(self.servings),
            "moves": self.mover.under_way(),
        }
        for peer in self.peers.values():
            for name, things in peer.under_way().items():
                found.setdefault(f"{name} of peers", []).extend(things)
        return found

    def in_doubt(self) -> dict[str, int]:
        """How many entries are in doubt, by the id of the program or host that has taken them."""
        found: Counter[str] = Counter()
        for doubts in self.all_doubts:
            for *_, delivery, holder in doubts.waiting():
                found[holder.who] += len(delivery.entries)
        return dict(found)

    def give_up(self, who: str) -> int:
        """The program or host with this id will not come back: decide about the entries that it has
        not confirmed. Returns how many there were."""
        if who in self.peers:
            raise BadArgument("host", "the id of a host that is away", who)
        return sum(doubts.give_up(who) for doubts in self.all_doubts)

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def _announce_presence(self) -> None:
        """Send the spaces and agents of this host to all peers; several changes together."""
        self.presence.set_contents(self.id, self.shared_spaces(), self._named_agents)
        self._send_presence_soon()

    def _send_presence_soon(self) -> None:
        if self.peers and self._presence_timer is None:
            loop = asyncio.get_running_loop()
            self._presence_timer = loop.call_later(PRESENCE_SECONDS, self._send_presence)

    def _send_presence(self) -> None:
        self._presence_timer = None
        for peer in self.peers.values():
            peer.talk.say(self._presence_update())

    def _presence_update(self) -> wire.PresenceUpdate:
        agents, names = zip(*self._named_agents, strict=True)
        return wire.PresenceUpdate(self.shared_spaces(), list(agents), list(names))

    def shared_spaces(self) -> list[str]:
        """The names of the spaces that hosts share; those with a password are not shared."""
        return [name for name, hosted in self.spaces.items() if hosted.shared]

    # Links that come in

    def _answer(self, link: Link) -> Reception:
        return Reception(link, self._recognise_caller, self._admit)

    def _recognise_caller(self, link: Link, hello: wire.Hello) -> str | None:
        if self._closed:
            raise HostClosed("the host is leaving")
        who = self._recognise(link, hello.name, hello.role)
        if hello.on_behalf:
            if who is None or self.identity is None or who != self.identity.key:
                raise Stranger("only a program with the identity of this host may act for others")
            who = check_key(hello.on_behalf, "on_behalf")
            if self._trust is not None:
                self._trust.check(who, who, self.clock.now())
        if hello.role == "host":
            require_proved(who, hello.id)
            if self.disengaged:
                raise Stranger("this host has disengaged from all others for now")
            if hello.id == self.id:
                raise Stranger("that is the id of the host that was dialled")
        return who

    def _admit(
        self, link: Link, hello: wire.Hello, details: wire.HelloDetails, who: str | None
    ) -> Conversation:
        if self._closed:
            raise HostClosed("the host is leaving")
        if hello.role == "client":
            return self._admit_client(link, hello, details, who)
        peer = self._new_peer(
            link,
            hello.id,
            hello.name,
            hello.incarnation,
            hello.address,
            who,
            hello.level,
            dialled=False,
        )
        if not self._may_engage(peer):
            peer.talk.forget()
            raise Stranger("we are engaged over another link already")
        link.send(wire.encode(self._welcome("", more=True)))
        received = self.federation.unsettled(hello.id)
        link.send(wire.encode(wire.HelloDetails(self.shared_spaces(), received)))
        self._engage(peer, details)
        return peer.talk

    def _recognise(self, link: Link, name: str, role: str) -> str | None:
        """The identity of the other end; None for a program on this machine without one. Raises
        Stranger if it is not trusted."""
        if link.identity is None:
            if link.here and self._trusts_here:
                return None
            if self._trust is not None:
                raise Stranger(
                    "an identity is wanted here: connect with tls=True, or on the command line with"
                    " --trust first-use; the host must trust what `tupelo identity` prints"
                )
            return ""
        if self._trust is not None:
            # Who gives itself no name is known by its key alone.
            called = f"{role} {name}" if name else link.identity
            self._trust.check(called, link.identity, self.clock.now())
        return link.identity

    # Trust and access rules that change

    def trust_key(self, key: str, lease: float | None) -> None:
        """Accept this identity from now on, for so many seconds or for good."""
        until = None if lease is None else self.clock.now() + lease
        self._trust = (self._trust or Trust.anyone()).plus(key, until)
        self._review_trust()

    def untrust_key(self, key: str) -> None:
        """Refuse this identity from now on, and end its links."""
        self.set_trust((self._trust or Trust.anyone()).minus(key))

    def set_trust(self, trust: Trust) -> None:
        """Replace the trust of this host. The links of identities that are no longer trusted
        end."""
        self._trust = trust
        self._review_trust()

    def _review_trust(self) -> None:
        """End the links of identities that are no longer trusted, and schedule the next check."""
        if self._trust_ends is not None:
            self._trust_ends.cancel()
            self._trust_ends = None
        if self._trust is None:
            return
        now = self.clock.now()
        for one in self._others():
            if one.who and self._trust.is_over(one.who, now):
                logger.warning("%s is trusted no more: its link is closed", one.label)
                one.talk.goodbye("this identity is trusted no more")
        end = self._trust.next_end(now)
        if end is not None and not self._closed:
            seconds = min(end - now, TRUST_REVIEW_SECONDS)
            loop = asyncio.get_running_loop()
            self._trust_ends = loop.call_later(seconds, self._review_trust)

    def change_access(self, name: str, access: Access) -> None:
        """Give a space other rules, or another password. The links of programs that use it and may
        not do so any more, or have shown the old password, end."""
        check_access(access)
        stored = self.stored.get(check_space_name(name))
        if stored is not None:
            stored.access = access
            self._review_access(name)
            return
        hosted = self.spaces.get(name)
        if hosted is None and name in self.set_aside:
            self._remember(name, {**self.set_aside[name].options, "access": access})
            return
        if hosted is None:
            raise BadArgument("space", "the name of a space of this host", name)
        was_shared, hosted.access = hosted.shared, access
        if was_shared != hosted.shared:
            self._announce_presence()
        self._review_access(name)

    def _others(self) -> list[ClientServer | Peer]:
        """The clients and hosts at the other ends of all links."""
        return [*self.servings.values(), *self.peers.values()]

    def _review_access(self, name: str) -> None:
        for one in self._others():
            if not one.still_may(name):
                logger.warning("%s may not use %r any more: its link is closed", one.label, name)
                one.talk.goodbye(f"the rules of the space {name!r} have changed")

    def _admit_client(
        self, link: Link, hello: wire.Hello, details: wire.HelloDetails, who: str | None
    ) -> Conversation:
        assert self.limits.connections is not None
        if len(self.servings) >= self.limits.connections:
            raise LimitReached("connections to this host", self.limits.connections)
        agent = f"{who or 'local:' + hello.id}@{self.id}"
        before = self.servings.get(hello.resume)
        if before is not None and before.agent == agent:
            before.talk.end("its client is back on another link")
        session = self.new_id()
        address = link.label.rpartition(":")[0]
        serving = ClientServer(
            self, agent, who, session, address, hello.name, link.message_max, hello.level
        )

        def ended(reason: str) -> None:
            if self.servings.pop(session, None) is not None:
                serving.end(reason)
                logger.info("the agent %s has left: %s", agent, reason)
                if not self._closed and (agent, hello.name) not in self._named_agents:
                    self.presence.agent_left(self.id, agent, hello.name)
                    self._send_presence_soon()

        serving.talk = Conversation(
            link,
            serve=serving.serve,
            ended=ended,
            next_call=self.next_call,
            heartbeat=self.heartbeat,
            turns=self.turns,
        )
        if hello.resume:
            owner = Holder("client", agent, hello.resume).owner
            self.doubts.client_back(owner, details.received)
            # Other hosts may hold what an earlier life of this one has taken for it.
            returned = wire.Returned([(agent, hello.resume, details.received)])
            for peer in self.peers.values():
                peer.talk.say(returned)
        link.send(wire.encode(self._welcome(session)))
        self.servings[session] = serving
        self.presence.agent_joined(self.id, agent, hello.name)
        self._send_presence_soon()
        self.mover.move_soon()
        return serving.talk

    def _welcome(self, session: str, *, more: bool = False) -> wire.Welcome:
        return wire.Welcome(
            wire.VERSION,
            self.id,
            self.name,
            self.incarnation,
            session,
            self.heartbeat,
            more,
            self.limits.message_bytes,
            wire.LEVEL,
        )

    # Other hosts

    def disengage(self) -> None:
        """End the links to all other hosts, and accept and make none until `reengage`. Clients
        stay."""
        if not self.disengaged:
            self.disengaged = True
            self._left = [peer.address for peer in self.peers.values() if peer.address]
        for peer in list(self.peers.values()):
            peer.talk.goodbye("this host has disengaged")

    async def reengage(self) -> None:
        """Accept and make links to other hosts again. Those that were engaged before are dialled
        once; who does not answer has to dial, as at the start."""
        self.disengaged = False
        self._dialler.departed()
        left, self._left = self._left, []
        for address in left:
            if not self._has("", address):
                with suppress(TupeloError):
                    await self._greet(address)

    def _has(self, host_id: str, address: str) -> bool:
        """Whether there is no need to dial: a host of this id, or at this address, is engaged."""
        return (
            self.disengaged
            or host_id in self.peers
            or any(p.address == address for p in self.peers.values())
        )

    async def _greet(self, address: str) -> str:
        """Connect to a host and engage it; returns its id."""
        greeting = await Greeting.dial(self.network, address)
        link = greeting.link
        try:
            if link.identity is not None and self._trust is not None:
                self._trust.check(address, link.identity, self.clock.now())
            details = wire.HelloDetails(self.shared_spaces(), self.federation.all_unsettled())
            welcome = await greeting.welcome(self._hello(), details)
            require_proved(link.identity, welcome.id)
        except BaseException:
            link.abort()
            raise
        if welcome.id == self.id:
            link.abort()
            return self.id
        who = link.identity
        if who is None and not (link.here and self._trusts_here):
            who = ""
        peer = self._new_peer(
            link,
            welcome.id,
            welcome.name,
            welcome.incarnation,
            address,
            who,
            welcome.level,
            dialled=True,
        )
        if self._may_engage(peer):
            self._engage(peer, greeting.details)
            greeting.go_on(peer.talk)  # What it said since is newer than its welcome.
        else:
            peer.talk.goodbye("we are engaged over another link already")
        return welcome.id

    def _hello(self) -> wire.Hello:
        return wire.Hello(
            wire.VERSION,
            "host",
            self.id,
            self.name,
            self.incarnation,
            self.address,
            more=True,
            message_max=self.limits.message_bytes,
            level=wire.LEVEL,
        )

    def _new_peer(
        self,
        link: Link,
        peer_id: str,
        name: str,
        incarnation: str,
        address: str,
        who: str | None,
        level: int,
        *,
        dialled: bool,
    ) -> Peer:
        peer = Peer(self, peer_id, name, incarnation, address, who, level)
        peer.dialled_by = self.id if dialled else peer_id
        peer.talk = Conversation(
            link,
            serve=peer.requests.serve,
            ended=lambda reason: self._lost(peer, reason),
            next_call=self.next_call,
            heartbeat=self.heartbeat,
        )
        peer.talk.label = f"the host {name!r}"
        return peer

    def _may_engage(self, peer: Peer) -> bool:
        """Whether this link may be used. Two hosts that connect to each other at the same time keep
        one link, the same at both ends. A link that this host has dialled is in use at the other
        end too: the Hello of another one may be older than what has arrived there since."""
        if self.disengaged:
            return False
        before = self.peers.get(peer.id)
        if before is None or before.talk.over:
            return True
        first = before.dialled_by
        is_preferred = first < peer.dialled_by if peer.dialled_by == self.id else first == self.id
        stays = before.incarnation == peer.incarnation and is_preferred
        if not stays:
            before.replaced = True
            before.talk.end("closed")
        return not stays

    def _engage(self, peer: Peer, details: wire.HelloDetails) -> None:
        peer.spaces = set(details.spaces)
        self.peers[peer.id] = peer
        self._settle_doubts(peer, details.received)
        peer.talk.say(self._presence_update())
        if returned := self._returned():
            peer.talk.say(wire.Returned(returned))
        self.presence.engaged(peer.id, peer.name, peer.address)
        self.presence.set_contents(peer.id, details.spaces, [])
        logger.info("%s engaged with the host %r", self.name, peer.name)
        # Whoever waits for something waits for it there as well.
        self.federation.engaged(peer)
        for serving in list(self.servings.values()):
            serving.engaged()
        self.mover.move_soon()
        self.extensions.engaged(peer)

    def _returned(self) -> list[tuple[str, str, list[int]]]:
        """The clients that have reconnected to this host, and the calls that they have received."""
        return [
            (owner[1], owner[2], list(received))
            for owner, received in self.doubts.clients_returned().items()
            if isinstance(owner, tuple) and owner[1].endswith(f"@{self.id}")
        ]

    def _settle_doubts(self, peer: Peer, unsettled: list[int]) -> None:
        """A host has announced its unsettled calls: deliveries to it that are not among them never
        arrived there, and are returned. It does not know what it took before it was restarted."""
        for owner in self.doubts.owners():
            if owner == peer.holder.owner:
                for call in set(self.doubts.of(owner)) - set(unsettled):
                    delivery = self.doubts.of(owner)[call]
                    give_back(self.spaces.get(delivery.space), delivery)
                    self.doubts.forget(owner, call)
            elif isinstance(owner, tuple) and owner[:2] == ("host", peer.id):
                self.doubts.new_life(owner)

    def _lost(self, peer: Peer, reason: str) -> None:
        peer.end(reason)
        if self.peers.get(peer.id) is not peer:
            return
        del self.peers[peer.id]
        self._dialler.departed()
        how = reason if reason in ("goodbye", "silent") else "closed"
        if not self._closed:
            logger.info("%s lost the host %r: %s", self.name, peer.name, reason)
            if not peer.replaced:
                self.presence.departed(peer.id, peer.name, peer.address, how)
        self.federation.departed(peer)
        self.extensions.departed(peer)

    def update_presence(self, peer: Peer, spaces: list[str], agents: list[tuple[str, str]]) -> None:
        """A peer has announced its spaces, and its agents with their names."""
        require_names(spaces, SPACES_MAX)
        require_names([agent for agent, _ in agents], AGENTS_MAX)
        require_names([name for _, name in agents], AGENTS_MAX)
        peer.spaces = set(spaces)
        peer.agents = {agent for agent, _ in agents}
        self.presence.set_contents(peer.id, spaces, agents)
        self.mover.move_soon()


def _file_state(file: Path) -> tuple[int, ...]:
    """Differs if the file was changed or replaced."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
