"""Tokens: of each there is one, and one host has it at a time.

A token has a name, an epoch that grows whenever it changes hands, and a state. Who wants it asks
the one who has it; where that is, is told by records in a feed (`TokenAt`), and by those who had it
before, who know to whom they gave it. Whoever has it keeps it until it is asked for it.

It is handed over so that nobody has to decide in doubt. The giver first notes, on disk if it has
one, that the token is the other's; from then on it is nobody else's. If its answer is lost, the
giver reminds the other whenever the group changes, and the other asks again and is given the same
again, until it has confirmed. So there may be a time in which nobody has it, but never do two.

A holder without a folder that crashes takes its tokens with it: whoever wants one is told so
(`TokenAway`), and what then becomes of the thing that it stood for is not decided here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tupelo.errors import BadFrame, HostClosed, PeerLost, TokenAway, TupeloError, UnknownHost
from tupelo.federation.groups.group import group_of
from tupelo.federation.groups.roster import Roster
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.hosted import Doubt, HostedSpace
from tupelo.federation.identity.access import Access
from tupelo.federation.replication.feed import Feed
from tupelo.federation.replication.news import Bell, Following
from tupelo.values.entry import thaw
from tupelo.values.kind import entry, kind_of

logger = logging.getLogger("tupelo")

SPACE = "tupelo.tokens"
TOKENS_MAX = 100_000
"""Of so many tokens a host remembers where they are."""


@entry("tupelo.token at")
@dataclass
class TokenAt:
    """A host says, in the feed, that it got a token; and in which of its lives, if it loses it with
    that."""

    token: str | None = None
    epoch: int | None = None
    host: str | None = None
    life: str | None = None


@entry("tupelo.token kept")
@dataclass
class KeptToken:
    """A token as it is on disk: held here, or given `to` a host that may not have got it yet."""

    feed: str | None = None
    token: str | None = None
    epoch: int | None = None
    state: bytes | None = None
    to: str | None = None
    confirmed: bool | None = None


class Luggage(Protocol):
    """What else goes with a token."""

    def state(self) -> bytes:
        """The state that it has for the next who holds it."""
        ...

    def wish(self) -> Any:
        """What the one who asks must say, so that it can be packed."""
        ...

    def pack(self, wish: Any) -> Any:
        """For one who has said this. BadFrame if it cannot be."""
        ...

    async def unpack(self, packed: Any) -> None:
        """The token is here when this is done."""
        ...


class Where(NamedTuple):
    """Where a token is in an epoch: at its holder, unless that has not heard yet of what its giver
    says. If the holder has no folder, it is lost when that life of the holder ends."""

    epoch: int
    holder: str | None
    giver: str | None = None
    life: str | None = None


class Token:
    """One token, as it is known at this host."""

    def __init__(self, tokens: Tokens, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.state = b""
        self.here = False
        self.luggage: Luggage | None = None
        self.abandoned = False
        """Whether nobody here waits for it any more."""
        self.vital = False
        """Whether nobody waits for it once it is lost, since nothing replaces it."""
        self._tokens = tokens
        self._lock = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._given: str | None = None  # to whom, if it has not confirmed yet
        self._to: str | None = None
        self._noting: asyncio.Task[None] | None = None
        self._where = Where(0, None)

    @property
    def holder(self) -> str | None:
        """The host that has it, as far as is known here."""
        return self._where.holder

    @property
    def busy(self) -> bool:
        """Does someone hold it here, or hand it over?"""
        return self._lock.locked()

    @property
    def is_away(self) -> bool:
        """Is its holder known, and not in the group, or not in use there; or has it lost it?"""
        holder, life = self._where.holder, self._where.life
        if self.here or holder is None:
            return False
        member = self._tokens.roster.members.get(holder)
        if member is None or self._tokens.part not in member.cards:
            return True
        return life is not None and member.incarnation != life

    @property
    def is_lost(self) -> bool:
        """Has its holder crashed, and come back without it?"""
        holder, life = self._where.holder, self._where.life
        member = self._tokens.roster.members.get(holder or "")
        if self.here or member is None or life is None:
            return False
        return member.incarnation != life

    def seen_at(
        self, epoch: int, holder: str, giver: str | None = None, life: str | None = None
    ) -> None:
        where = self._where
        if epoch > where.epoch or (epoch == where.epoch and where.life is None):
            self._where = Where(epoch, holder, giver, life)

    @asynccontextmanager
    async def held(self, wait: float | None = None, *, ask: bool = True) -> AsyncIterator[Token]:
        """Have it here for a while, alone. What is made of its `state` is kept when that ends.
        Without `ask`, only if it is here already."""
        tokens = self._tokens
        try:
            async with asyncio.timeout(wait):
                await self._lock.acquire()
                try:
                    if not (ask or self.here):
                        raise TokenAway(self.name, self.holder)
                    await self._obtain()
                except BaseException:
                    self._lock.release()
                    raise
        except TimeoutError:
            raise TokenAway(self.name, self.holder) from None
        before = self.state
        try:
            yield self
        finally:
            try:
                if self.state != before:
                    await tokens._keep(self)
            finally:
                self._lock.release()

    # Getting it

    async def _obtain(self) -> None:
        tokens = self._tokens
        while not self.here:
            tokens._require_open()
            if self.abandoned or (self.vital and self.is_lost):
                raise TokenAway(self.name, self.holder)
            rings = tokens.bell.rings
            before = self._where
            with suppress(PeerLost, UnknownHost):
                await self._ask()
            if not self.here and self._where is before:
                await tokens.bell.wait(rings)

    async def _ask(self) -> None:
        """Ask the one that should have it; or who has given it to us, and was not heard. Who loses
        patience meanwhile does not take back the question: the answer may be the token."""
        if self._asking is None or self._asking.done():
            self._asking = self._tokens._begin(self._ask_once())
        await asyncio.shield(self._asking)

    async def _ask_once(self) -> None:
        tokens = self._tokens
        where = self._where
        host = where.giver if where.holder == tokens.me else where.holder
        if host is None or host == tokens.me:
            return
        wish = self.luggage.wish() if self.luggage else None
        question = ["take", self.name, self.epoch, wish, [where.epoch, where.holder, where.giver]]
        match await tokens._voice.ask(host, question):
            case ["given", int(epoch), bytes(state), packed]:
                await self._receive(host, epoch, state, packed)
            case ["moved", int(epoch), str(holder), (str() | None) as giver]:
                if epoch > where.epoch:
                    self.seen_at(epoch, holder, giver)

    async def _receive(self, giver: str, epoch: int, state: bytes, packed: Any) -> None:
        tokens = self._tokens
        if epoch <= self.epoch:
            return
        if self.luggage is not None:
            await self.luggage.unpack(packed)
        self.epoch, self.state = epoch, state
        self._given = self._to = None
        self._where = Where(epoch, tokens.me)
        await tokens._keep(self)
        await tokens._tell(self)
        self.here = True
        tokens._confirm(giver, self)

    # Giving it away

    async def asked(self, source: str, epoch: int, wish: Any) -> Any:
        if not self.here and self._where.holder == self._tokens.me:
            async with self._lock:  # It was given to us, and we have not heard of that.
                if not self.here:
                    await self._ask()
        if self.here:
            async with self._lock:
                if self.here:
                    self._give(source)
        if not await self._is_noted():
            return None
        if self._given == source:
            if epoch >= self.epoch:
                self.confirmed(source, epoch)
            else:
                packed = self.luggage.pack(wish) if self.luggage else None
                return ["given", self.epoch, self.state, packed]
        where = self._where
        return ["moved", where.epoch, where.holder, where.giver] if where.holder else None

    def _give(self, source: str) -> None:
        self.here = False
        self.epoch += 1
        if self.luggage is not None:
            self.state = self.luggage.state()
        self._to = self._given = source
        self.seen_at(self.epoch, source, self._tokens.me)
        self._noting = self._tokens._begin(self._tokens._keep(self))

    async def _is_noted(self) -> bool:
        """Is it on disk that it is the other's? Who asks may go; it is noted nevertheless."""
        noting = self._noting
        if noting is None:
            return True
        if not noting.done():
            await asyncio.wait([noting])
        return not noting.cancelled() and noting.exception() is None

    @property
    def given(self) -> str | None:
        """The host that it was given to, if that has not confirmed it yet."""
        return self._given

    async def take_up(self) -> None:
        """It was given to us."""
        async with self._lock:
            if not self.here:
                await self._ask()

    def confirmed(self, source: str, epoch: int) -> None:
        if self._given == source and epoch >= self.epoch:
            self._given = None
            self.state = b""

    # On disk

    def spell(self, feed: str) -> KeptToken:
        return KeptToken(feed, self.name, self.epoch, self.state, self._to, self._given is None)

    def restore(self, kept: KeptToken) -> None:
        self.epoch, self.state, self._to = kept.epoch or 0, kept.state or b"", kept.to
        self.here = kept.to is None
        self._given = None if kept.confirmed else kept.to
        me = self._tokens.me
        self.seen_at(self.epoch, kept.to or me, None if self.here else me)


class Tokens:
    """The tokens of a feed, at one host. Its part in the group is named after the feed."""

    def __init__(self, core: HostCore, feed: Feed) -> None:
        self.me = core.id
        self.part = f"tokens {feed.name}"
        self.bell = Bell()
        self._core = core
        self._feed = feed
        self._tokens: dict[str, Token] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._following = Following(feed)
        self._shelf = _shelf_of(core)
        if self._shelf.durable:
            for kept in self._shelf.space.read_all(KeptToken(feed=feed.name)):
                self.token(kept.token).restore(kept)
        feed.watchers.append(self._look)
        self._look()
        self._group = group_of(core)
        self._voice = self._group.part(self.part, self)

    @property
    def roster(self) -> Roster:
        return self._group.roster

    def token(self, name: str) -> Token:
        """The token of this name, wherever it is."""
        found = self._tokens.get(name)
        if found is None:
            found = self._tokens[name] = Token(self, name)
        return found

    async def create(self, name: str, state: bytes = b"", luggage: Luggage | None = None) -> Token:
        """A new token, which is here. Nobody else may ever make one of this name."""
        token = self.token(name)
        token.epoch, token.state, token.luggage, token.here = 1, state, luggage, True
        token.seen_at(1, self.me)
        await self._keep(token)
        await self._tell(token)
        return token

    def close(self) -> None:
        self._closed = True
        if self._look in self._feed.watchers:
            self._feed.watchers.remove(self._look)
        for task in self._tasks:
            task.cancel()
        self.bell.ring()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, TupeloError):
            logger.error("a token of %r failed", self._feed.name, exc_info=error)

    def _require_open(self) -> None:
        if self._closed or self._feed.closed:
            raise HostClosed("these tokens are not used here any more")

    def _look(self) -> None:
        for _, _, item in self._following.news():
            if item.shape.kind is _AT:
                said = thaw(item.shape, item.fields)
                if (
                    type(said.token) is str
                    and type(said.epoch) is int
                    and type(said.host) is str
                    and (said.life is None or type(said.life) is str)
                ):
                    self._saw(said)
        self.bell.ring()

    def _saw(self, said: TokenAt) -> None:
        if said.token in self._tokens or len(self._tokens) < TOKENS_MAX:
            token = self.token(said.token or "")
            token.seen_at(said.epoch or 0, said.host or "", life=said.life)

    async def _keep(self, token: Token) -> None:
        if self._shelf.durable:
            door = self._shelf.door
            async with door.transaction() as txn:
                old = KeptToken(feed=self._feed.name, token=token.name)
                await door.take_all(old, wait=0, txn=txn)
                await door.write(token.spell(self._feed.name), txn=txn)

    async def _tell(self, token: Token) -> None:
        """Say that it is here, and no more where it was here before."""
        life = None if self._shelf.durable else self._core.incarnation
        await self._say(TokenAt(token.name, token.epoch, self.me, life))

    async def _say(self, at: TokenAt) -> None:
        """This, in place of what we have said of the token before."""
        door = self._feed.space.door
        async with door.transaction() as txn:
            await door.take_all(TokenAt(token=at.token), wait=0, txn=txn)
            await door.write(at, txn=txn)

    def _confirm(self, giver: str, token: Token) -> None:
        self._voice.send(giver, ["got", token.name, token.epoch])

    def _remind(self) -> None:
        """Those who were given a token, and may not have heard of it. If they are gone, everyone
        must know that it is gone with them."""
        for token in self._tokens.values():
            to = token.given
            if to is not None and not self._closed:
                if to in self.roster.members:
                    self._voice.send(to, ["yours", token.name, token.epoch])
                else:
                    self._begin(self._say(TokenAt(token.name, token.epoch, to)))

    # As a part of the group

    def card(self) -> Any:
        return None

    def install(self, roster: Roster) -> None:
        self.bell.ring()
        asyncio.get_running_loop().call_soon(self._remind)

    async def settle(self, roster: Roster) -> None:
        pass

    def cut(self, hosts: frozenset[str]) -> None:
        pass

    def heard(self, neighbour: str, source: str, body: Any) -> None:
        match body:
            case ["got", str(name), int(epoch)]:
                if name in self._tokens:
                    self._tokens[name].confirmed(source, epoch)
            case ["yours", str(name), int(epoch)]:
                self._heard_yours(source, name, epoch)
            case _:
                raise BadFrame("nobody says this about tokens")

    def _heard_yours(self, giver: str, name: str, epoch: int) -> None:
        if self._closed or (name not in self._tokens and len(self._tokens) >= TOKENS_MAX):
            return
        token = self.token(name)
        if token.epoch >= epoch:
            self._confirm(giver, token)
        else:
            token.seen_at(epoch, self.me, giver)
            self._begin(token.take_up())

    async def asked(self, neighbour: str, source: str, body: Any) -> Any:
        match body:
            case ["take", str(name), int(epoch), wish, [int(at), holder, (str() | None) as giver]]:
                token = self._tokens.get(name)
                if token is None or self._closed or self._feed.closed:
                    return None
                if isinstance(holder, str) and at > token._where.epoch:
                    token.seen_at(at, holder, giver)
                return await token.asked(source, epoch, wish)
        raise BadFrame("nobody asks this about tokens")


_AT = kind_of(TokenAt)


def _shelf_of(core: HostCore) -> HostedSpace:
    """The space of this host in which it keeps its tokens."""
    found = core.spaces.get(SPACE)
    if found is None:
        nobody = Access(read=(), write=(), take=(), subscribe=(), administer=())
        found = core.spaces[SPACE] = HostedSpace(
            core._open(SPACE, {}), nobody, Doubt(), commit_in_place=core.commits_in_place
        )
    return found
