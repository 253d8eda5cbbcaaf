"""Tokens: of each there is one, and one host has it at a time.

A token has a name, an epoch that grows whenever it changes hands, and a state. Who wants it asks
the one who has it; where that is, is told by records in a feed (`TokenAt`), and by those who had it
before, who know to whom they gave it. Whoever has it keeps it until it is asked for it.

It is handed over so that nobody has to decide in doubt. The giver first notes, on disk if it has
one, that the token is the other's; from then on it is nobody else's. If its answer is lost, the
giver reminds the other whenever the group changes, and the other asks again and is given the same
again, until it has confirmed. So there may be a time in which nobody has it, but never do two.

A host that leaves hands its tokens to another before, unless their luggage is heavy. A holder
without a folder that crashes takes its tokens with it: whoever wants one is told so (`TokenAway`).

Whoever knows that the holder is gone for good may say so, if the token has patience. Then the host
with the lowest id makes another token in its place, with what the hosts of the group know. The old
one may turn up again, or others may have replaced it too. So before such a token is used in a new
membership, all hosts there are asked: they let go of theirs and say what they know, unless they
have one that was replaced more often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from tupelo.errors import (
    BadFrame,
    HostClosed,
    NotAllowed,
    PeerLost,
    TokenAway,
    TupeloError,
    UnknownHost,
)
from tupelo.federation.groups.group import group_of
from tupelo.federation.groups.membership import Membership, MembershipId
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.replication.feeds import Broadcast, Feed, FeedCursor
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.tasks import timeout_at
from tupelo.values.entry import thaw
from tupelo.values.kind import entry, kind_of

RETRY_SECONDS = 1.0
"""So long whoever replaces a token waits before it asks again for that."""
Claim = tuple[int, int, str]
"""How often a token was lost and replaced, its epoch, and its holder: the highest one holds."""


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


class TokenState(Protocol):
    """What else goes with a token."""

    is_light: bool = False
    """Whether it can be handed to any host, however little that knows: a host that leaves does."""

    losses: int = 0
    """How often the token was lost and replaced, as far as is known here."""

    @property
    def lost(self) -> list[str]:
        """The hosts with which it was lost, if it is here."""
        return []

    def state(self) -> bytes:
        """The state that it has for the next who holds it."""
        ...

    def wish(self) -> Any:
        """What the one who asks must say, so that it can be packed."""
        ...

    def is_near(self, wish: Any) -> bool:
        """Has one who says this so much that the rest can be packed? Else it asks again when it has
        heard more. BadFrame if nobody can say this."""
        ...

    def pack(self, wish: Any) -> Any:
        """For one who has said this. BadFrame if it cannot be."""
        ...

    async def unpack(self, packed: Any) -> None:
        """The token is here when this is done."""
        ...

    async def ready(self) -> None:
        """Until all that goes with it is here, and known to those who need it."""
        ...

    def revive(self, holder: str | None) -> bytes:
        """The state of a token that replaces the one that was lost with this host; or, if it is
        None, of one that is the only one again. Only a token that has patience is replaced."""
        return b""


class TokenPlace(NamedTuple):
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
        self.luggage: TokenState | None = None
        self.abandoned = False
        """Whether nobody here waits for it any more."""
        self.patience: float | None = None
        """Given if nobody waits for it once it is lost: for how many seconds a holder that has no
        folder may be out of the group, before it counts as lost."""
        self._tokens = tokens
        self._lock = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._given: str | None = None  # to whom, if it has not confirmed yet
        self._to: str | None = None
        self._noting: asyncio.Task[None] | None = None
        self._where = TokenPlace(0, None)
        self._fleeting: str | None = None  # the holder, if it has no folder
        self._lost_at: float | None = None  # unless the holder comes back before
        self._sole_in: MembershipId | None = None  # Nobody else has it in this membership.
        self._claim: Claim = (0, 0, "")  # the highest that was heard

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
        member = self._tokens.membership.members.get(holder)
        if member is None or self._tokens.part not in member.metadata_of:
            return True
        return life is not None and member.incarnation != life

    @property
    def is_lost(self) -> bool:
        """Has its holder, which keeps it in no folder, come back without it, or not come back for
        as long as is waited for it?"""
        return self._is_given_up(0.0)

    @property
    def is_lost_with_life(self) -> bool:
        """Has its holder, which keeps it in no folder, come back without it?"""
        life = self._where.life
        member = self._tokens.membership.members.get(self._where.holder or "")
        return (
            not self.here
            and life is not None
            and member is not None
            and (member.incarnation != life)
        )

    def _is_given_up(self, hope: float) -> bool:
        holder = self._where.holder
        if self.here or self.patience is None:
            return False
        if holder in self._tokens.membership.members:
            return self.is_lost_with_life
        left = self._left(hope)
        return left is not None and left <= 0

    def _left(self, hope: float) -> float | None:
        """How many seconds are left until it is given up, if it may be lost; not before the one who
        wants it has lost hope."""
        if self._lost_at is None:
            return None
        return max(self._lost_at, hope) - asyncio.get_running_loop().time()

    def look(self) -> None:
        """Something has changed: is its holder in the group, and will it be lost with it?"""
        holder, life = self._where.holder, self._where.life
        member = self._tokens.membership.members.get(holder or "")
        if life is not None or (member and member.metadata_of.get(self._tokens.part) is False):
            self._fleeting = holder
        if self.here or member is not None or holder is None or holder != self._fleeting:
            self._lost_at = None
        elif self._lost_at is None and self.patience is not None:
            self._lost_at = asyncio.get_running_loop().time() + self.patience

    def seen_at(
        self, epoch: int, holder: str, giver: str | None = None, life: str | None = None
    ) -> None:
        where = self._where
        if epoch > where.epoch or (epoch == where.epoch and where.life is None):
            self._where = TokenPlace(epoch, holder, giver, life)
            self.look()

    @asynccontextmanager
    async def held(
        self,
        patience: float | None = None,
        *,
        deadline: float | None = None,
        ask: bool = True,
        hope: float = 0.0,
        replace: bool = False,
    ) -> AsyncIterator[Token]:
        """Have it here for a while, alone; TokenAway if it does not come within `patience` seconds
        or before the deadline on the host's clock. What is made of its `state` is kept when that
        ends; who is cancelled meanwhile has not changed it. Without `ask`, only if it is here
        already. One that may be lost is waited for so long as there is `hope` that it is not. If
        its holder is out of reach, `replace` says that this is for good: another takes its place,
        of which the luggage is what is known in the group."""
        try:
            async with asyncio.timeout(patience), timeout_at(self._tokens.clock, deadline):
                await self._lock.acquire()
                try:
                    if not (ask or self.here):
                        raise TokenAway(self.name, self.holder)
                    hope += asyncio.get_running_loop().time()
                    await self._obtain(hope, ask, replace)
                except BaseException:
                    self._lock.release()
                    raise
        except TimeoutError:
            raise TokenAway(self.name, self.holder) from None
        before = self.state
        try:
            yield self
        finally:
            await self._end(before)

    async def _end(self, before: bytes) -> None:
        if self.state == before:
            self._lock.release()
            return
        keeping = self._tokens._begin(self._tokens._keep(self))
        try:
            await asyncio.shield(keeping)
        except asyncio.CancelledError:
            self._tokens._begin(self._take_back(keeping, before))
            raise
        except BaseException:
            self._lock.release()
            raise
        self._lock.release()

    async def _take_back(self, keeping: asyncio.Task[None], before: bytes) -> None:
        """Nobody else has it until this is done."""
        try:
            await asyncio.wait([keeping])
            self.state = before
            await self._tokens._keep(self)
        finally:
            self._lock.release()

    # Getting it

    async def _obtain(self, hope: float, ask: bool, replace: bool) -> None:
        tokens = self._tokens
        while True:
            await self._settle_claims()
            if self.here:
                return
            tokens._require_open()
            self.look()
            is_replaced = replace and self.is_away
            if self.abandoned or not ask:
                raise TokenAway(self.name, self.holder)
            if self._is_given_up(hope) and not is_replaced:
                raise TokenAway(self.name, self.holder)
            rings = tokens.broadcast.rings
            before = self._where
            with suppress(PeerLost, UnknownHost):
                if is_replaced and tokens.first == tokens.me:
                    await self._replace()
                else:
                    await self._ask(tokens.first if is_replaced else None)
            if not self.here and self._where is before:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS if is_replaced else self._left(hope)):
                        await tokens.broadcast.wait(rings)

    async def _ask(self, instead: str | None = None) -> None:
        """Ask the one that should have it; or who has given it to us, and was not heard; or, if it
        is to be replaced, the one that does so. Who loses patience meanwhile does not take back the
        question: the answer may be the token."""
        if self._asking is None or self._asking.done():
            self._asking = self._tokens._begin(self._ask_once(instead))
        await asyncio.shield(self._asking)

    async def _ask_once(self, instead: str | None) -> None:
        tokens = self._tokens
        where = self._where
        host = instead or (where.giver if where.holder == tokens.me else where.holder)
        if host is None or host == tokens.me:
            return
        wish = self.luggage.wish() if self.luggage else None
        known = [where.epoch, where.holder, where.giver]
        question = ["take", self.name, self.epoch, wish, known, instead is not None]
        match await tokens._voice.ask(host, question):
            case ["given", int(epoch), bytes(state), packed, is_sole]:
                await self._receive(host, epoch, state, packed)
                if self.here and is_sole == list(tokens.membership.id):
                    self._sole_in = tokens.membership.id
            case ["moved", int(epoch), str(holder), (str() | None) as giver]:
                if epoch > where.epoch:
                    self.seen_at(epoch, holder, giver)

    async def _receive(self, giver: str, epoch: int, state: bytes, packed: Any) -> None:
        tokens = self._tokens
        if epoch <= self.epoch:
            return
        if self.luggage is None:
            self.luggage = tokens.luggage_of(self.name)
        if self.luggage is not None:
            await self.luggage.unpack(packed)
        await tokens._keep(self, KeptToken(tokens.feed, self.name, epoch, state, None, True))
        self.epoch, self.state = epoch, state
        self._sole_in = None
        await self._have()
        tokens._confirm(giver, self)

    async def _have(self) -> None:
        """It is here, unless another has claimed it meanwhile."""
        self._given = self._to = None
        self._where = TokenPlace(self.epoch, self._tokens.me)
        await self._tokens._tell(self)
        self.here = True
        if self._claim > self._own_claim:
            await self._drop(self._claim[2])

    # Replacing it

    @property
    def _own_claim(self) -> Claim:
        losses = len(self.luggage.lost) if self.luggage is not None else 0
        return losses, self.epoch, self._tokens.me

    @property
    def is_contested(self) -> bool:
        """May it have been replaced, or have replaced another, which is at a host that is in the
        group now? Only one that has patience may."""
        return self.patience is not None and self._sole_in != self._tokens.membership.id

    async def _replace(self) -> None:
        """It is gone for good. If nobody in the group knows where it has gone, another one takes
        its place, with what is known here; what the others know comes when it is claimed."""
        tokens, membership, luggage = self._tokens, self._tokens.membership, self.luggage
        assert luggage is not None  # Only tokens with luggage have patience.
        for host in tokens.others:
            match await tokens._voice.ask(host, ["where", self.name]):
                case [int(epoch), str(holder), (str() | None) as giver] if (
                    epoch > self._where.epoch
                ):
                    self.seen_at(epoch, holder, giver)
                    return
        if tokens.membership.id != membership.id or not self.is_away:
            return
        lost = self._where.holder
        logger.warning("%s was lost with the host %s, and is replaced", self.name, lost)
        self.state = luggage.revive(lost)
        await self._renew(self._where.epoch)

    async def _renew(self, epoch: int) -> None:
        """It is the only one, in an epoch after all others."""
        self.epoch = max(self.epoch, epoch) + 1
        self._given = self._to = None
        await self._tokens._keep(self)
        await self._have()

    async def _settle_claims(self) -> None:
        """If it is here, until nobody else in the group has it; or it is not ours. Only whoever has
        the lock may call this."""
        while self.here and self.is_contested:
            rings = self._tokens.broadcast.rings
            with suppress(PeerLost, UnknownHost):
                await self._claim_it()
            if self.here and self.is_contested:
                await self._tokens.broadcast.wait(rings)

    async def _claim_it(self) -> None:
        """Ask the hosts of the group whether it was replaced, or whether they have the one that it
        has replaced: the one that was replaced most often is kept. Those that have lost theirs, and
        those that may have used it, say what they know."""
        tokens, membership, luggage = self._tokens, self._tokens.membership, self.luggage
        assert luggage is not None
        question = ["mine", self.name, *self._own_claim[:2]]
        others = tokens.others
        answers = await asyncio.gather(*[tokens._voice.ask(one, question) for one in others])
        epochs, found = [self._where.epoch], []
        for host, answer in zip(others, answers, strict=True):
            match answer:
                case ["no", (str() | None) as holder]:
                    await self._drop(holder or host)
                    return
                case ["yours", int(epoch), packed] if packed is not None:
                    epochs.append(epoch)
                    found.append(packed)
        if tokens.membership.id != membership.id:
            return
        for packed in found:
            await luggage.unpack(packed)
        if found:
            self.state = luggage.revive(None)
            await self._renew(max(epochs))
            if self.here:
                await luggage.ready()
        if self.here:
            self._sole_in = membership.id

    async def claimed(self, source: str, losses: int, epoch: int) -> Any:
        """Another host says that it has this token, which has replaced so many that were lost."""
        claim = losses, epoch, source
        if self.here and self._own_claim > claim:
            return ["no", None]
        if self._claim[0] > losses or (self.luggage is not None and self.luggage.losses > losses):
            return ["no", self._where.holder]
        self._claim = max(self._claim, claim)
        if self.here:
            async with self._lock:
                if self.here and self._own_claim > claim:
                    return ["no", None]
                if self.here:
                    await self._drop(source)
        elif self._given is not None:
            await self._drop(source)
        packed = self.luggage.pack(None) if losses and self.luggage is not None else None
        return ["yours", max(self.epoch, self._where.epoch), packed]

    async def _drop(self, host: str) -> None:
        """It is that of another host."""
        self.here = False
        self._to, self._given, self.state = host, None, b""
        self._where = TokenPlace(max(self.epoch, self._where.epoch) + 1, host)
        await self._tokens._keep(self)

    # Giving it away

    async def asked(self, source: str, epoch: int, wish: Any, replace: bool = False) -> Any:
        if replace and self.luggage is not None and self.is_away:
            async with self._lock:
                if self.is_away:
                    await self._replace()
        if not self.here and self._where.holder == self._tokens.me:
            async with self._lock:  # It was given to us, and we have not heard of that.
                if not self.here:
                    await self._ask()
        if self.here:
            async with self._lock:
                await self._settle_claims()
                if self.here:
                    if self.luggage is not None and not self.luggage.is_near(wish):
                        return None
                    self._give(source)
        if not await self._is_noted():
            return None
        if self._given == source:
            if epoch >= self.epoch:
                self.confirmed(source, epoch)
            else:
                packed = self.luggage.pack(wish) if self.luggage else None
                return ["given", self.epoch, self.state, packed, self._sole_in]
        where = self._where
        return ["moved", where.epoch, where.holder, where.giver] if where.holder else None

    def _give(self, source: str) -> None:
        self.here = False
        self.epoch += 1
        if self.luggage is not None:
            self.state = self.luggage.state()
        self._to = self._given = source
        self._where = TokenPlace(self.epoch, source, self._tokens.me)
        self.look()
        self._noting = self._tokens._begin(self._tokens._keep(self))

    async def hand_to(self, host: str) -> None:
        """Give it to one who has not asked for it, and wait until it has it. If someone else was
        given it, that one."""
        async with self._lock:
            await self._settle_claims()
            if self.here:
                self._give(host)
        if await self._is_noted():
            if self._given == host:
                self._tokens._remind_of(self, host)
            await self._tokens.broadcast.until(lambda: self._given is None)

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

    def encode(self) -> KeptToken:
        feed, is_confirmed = self._tokens.feed, self._given is None
        return KeptToken(feed, self.name, self.epoch, self.state, self._to, is_confirmed)

    def restore(self, kept: KeptToken) -> None:
        self.epoch, self.state, self._to = kept.epoch or 0, kept.state or b"", kept.to
        self.here = kept.to is None
        self._given = None if kept.confirmed else kept.to
        me = self._tokens.me
        self.seen_at(self.epoch, kept.to or me, None if self.here else me)


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


class Tokens:
    """The tokens of a feed, at one host. Its part in the group is named after the feed."""

    def __init__(
        self,
        core: HostCore,
        feed: Feed,
        luggage_of: Callable[[str], TokenState | None] = lambda name: None,
    ) -> None:
        self.me = core.id
        self.luggage_of = luggage_of
        """Makes the luggage of a token that is given to this host before it was used here."""
        self.part = f"tokens {feed.name}"
        self.feed = feed.space.former or feed.name  # as it stands on disk
        self.broadcast = Broadcast()
        self._core = core
        self.clock = core.clock
        self._feed = feed
        self.tokens: dict[str, Token] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._leaving = False
        self._following = FeedCursor(feed)
        self._group = group_of(core)
        self._shelf = _shelf_of(core)
        if self._shelf.durable:
            for kept in self._shelf.space.read_all(KeptToken(feed=self.feed)):
                if kept.token is not None:
                    self.token(kept.token).restore(kept)
        feed.watchers.append(self._look)
        self._look()
        self._voice = self._group.part(self.part, self)
        core.extensions.leaving.append(self._leave)

    @property
    def membership(self) -> Membership:
        return self._group.membership

    @property
    def others(self) -> list[str]:
        """The other hosts of the group that have these tokens."""
        members = self.membership.members.values()
        return sorted(
            one.host for one in members if one.host != self.me and self.part in one.metadata_of
        )

    @property
    def first(self) -> str:
        """The host that replaces what is lost."""
        return min([self.me, *self.others])

    def token(self, name: str) -> Token:
        """The token of this name, wherever it is."""
        found = self.tokens.get(name)
        if found is None:
            found = self.tokens[name] = Token(self, name)
        return found

    async def create(
        self, name: str, state: bytes = b"", luggage: TokenState | None = None
    ) -> Token:
        """A new token, which is here. Nobody else may ever make one of this name."""
        token = self.token(name)
        token.epoch, token.state, token.luggage, token.here = 1, state, luggage, True
        token.seen_at(1, self.me)
        await self._keep(token)
        await self._tell(token)
        return token

    def forget(self, name: str) -> None:
        """Nobody needs this token any more, anywhere: whoever waits for it here is told."""
        token = self.tokens.pop(name, None)
        if token is not None:
            token.abandoned = True
            token.here = False
            if self._shelf.durable:
                self._begin(self._unkeep(name))
            self.broadcast.ring()

    async def _unkeep(self, name: str) -> None:
        await self._shelf.door.take_all(KeptToken(feed=self.feed, token=name), wait=0)

    def close(self) -> None:
        self._closed = True
        if self._leave in self._core.extensions.leaving:
            self._core.extensions.leaving.remove(self._leave)
        if self._look in self._feed.watchers:
            self._feed.watchers.remove(self._look)
        for task in self._tasks:
            task.cancel()
        self.broadcast.ring()

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
        if self._closed or self._leaving or self._feed.closed:
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
        self.broadcast.ring()

    def _saw(self, said: TokenAt) -> None:
        if said.token in self.tokens or len(self.tokens) < TOKENS_MAX:
            token = self.token(said.token or "")
            token.seen_at(said.epoch or 0, said.host or "", life=said.life)

    async def _keep(self, token: Token, kept: KeptToken | None = None) -> None:
        """As it is, or as it will be once this is done."""
        if self._shelf.durable:
            door = self._shelf.door
            async with door.transaction() as txn:
                old = KeptToken(feed=self.feed, token=token.name)
                await door.take_all(old, wait=0, txn=txn)
                await door.write(kept or token.encode(), txn=txn)

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
        for token in self.tokens.values():
            to = token.given
            if to is not None and not self._closed:
                if to in self.membership.members:
                    self._remind_of(token, to)
                else:
                    self._begin(self._say(TokenAt(token.name, token.epoch, to)))

    def _remind_of(self, token: Token, to: str) -> None:
        self._voice.send(to, ["yours", token.name, token.epoch])

    # Leaving

    async def _leave(self) -> None:
        """The host is about to be stopped: hand what is here to one that stays."""
        self._leaving = True
        self.broadcast.ring()
        chosen = [
            token
            for token in self.tokens.values()
            if (token.luggage is None or token.luggage.is_light)
            and (token.here or token.busy or token.given)
        ]
        if chosen:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._core.answer_seconds):
                    heir = await self._heir()
                    if heir is not None:
                        await asyncio.gather(*[token.hand_to(heir) for token in chosen])

    async def _heir(self) -> str | None:
        """One that stays. If the group changes while they are asked, they are asked again."""
        while True:
            membership, is_answered = self.membership, True
            for host, member in membership.members.items():
                if host != self.me and self.part in member.metadata_of:
                    try:
                        if await self._voice.ask(host, ["stays"]):
                            return host
                    except TupeloError:
                        is_answered = False
            if is_answered:
                return None
            await self.broadcast.until(partial(self._has_changed_since, membership))

    def _has_changed_since(self, membership: Membership) -> bool:
        return self.membership.id != membership.id

    # As a part of the group

    def metadata(self) -> Any:
        """Whether what is here outlives this host."""
        return self._shelf.durable

    def install(self, membership: Membership) -> None:
        for token in self.tokens.values():
            token.look()
        self.broadcast.ring()
        asyncio.get_running_loop().call_soon(self._remind)

    async def settle(self, membership: Membership) -> None:
        pass

    def cut(self, hosts: frozenset[str]) -> None:
        pass

    def _may(self, neighbour: str, source: str) -> bool:
        """Tokens are for those who take part in the feed."""
        ruling = self._feed.space.serves or self._feed.space
        return all(
            self._core.may(operation, ruling.name, neighbour, source)
            for operation in ("read", "write")
        )

    def heard(self, neighbour: str, source: str, body: Any) -> None:
        if not self._may(neighbour, source):
            return
        match body:
            case ["got", str(name), int(epoch)]:
                if name in self.tokens:
                    self.tokens[name].confirmed(source, epoch)
                    self.broadcast.ring()
            case ["yours", str(name), int(epoch)]:
                self._heard_yours(source, name, epoch)
            case _:
                raise BadFrame("nobody says this about tokens")

    def _heard_yours(self, giver: str, name: str, epoch: int) -> None:
        if self._closed or (name not in self.tokens and len(self.tokens) >= TOKENS_MAX):
            return
        token = self.token(name)
        if token.epoch >= epoch:
            self._confirm(giver, token)
        else:
            token.seen_at(epoch, self.me, giver)
            self.broadcast.ring()  # Someone may wait for it already.
            self._begin(token.take_up())

    async def asked(self, neighbour: str, source: str, body: Any) -> Any:
        if not self._may(neighbour, source):
            raise NotAllowed("write", self._feed.name, f"the host {source}")
        match body:
            case ["stays"]:
                return not (self._closed or self._leaving)
            case ["take", str(name), int(epoch), wish, [int(at), holder, giver], bool(replace)]:
                token = self.tokens.get(name)
                if token is None or self._closed or self._feed.closed:
                    return None
                if isinstance(holder, str) and at > token._where.epoch:
                    token.seen_at(at, holder, giver if isinstance(giver, str) else None)
                return await token.asked(source, epoch, wish, replace)
            case ["where", str(name)]:
                return list(self.tokens[name]._where[:3]) if name in self.tokens else None
            case ["mine", str(name), int(losses), int(epoch)]:
                if name not in self.tokens and len(self.tokens) >= TOKENS_MAX:
                    return None
                return await self.token(name).claimed(source, losses, epoch)
        raise BadFrame("nobody asks this about tokens")


_AT = kind_of(TokenAt)


def _shelf_of(core: HostCore) -> HostedSpace:
    """The space of this host in which it keeps its tokens."""
    return core.private_space(SPACE)
