"""Tokens: named objects of which each exists once, at one host at a time.

A token has a name, an epoch that grows with every hand-over, and a state. A host that wants the
token asks the holder, which it knows from records in a feed (`TokenAt`) or from earlier holders.
The holder keeps the token until another host asks for it.

A hand-over leaves no doubt. The giver first records, on disk if it is durable, that the token
belongs to the receiver. If the answer is lost, the giver reminds the receiver whenever the group
changes; the receiver asks again and gets the same answer until it has confirmed. So a token may be
nowhere for a while, but is never at two hosts.

A host that leaves hands over its tokens whose payload says so (`moves_on_leave`). A holder without
a folder that crashes loses its tokens: hosts that want one get `TokenAway`.

A user who knows that a holder is gone for good may have a token with `patience` replaced: the host
with the lowest id creates a new token from what the hosts of the group know. The old token may come
back, or another part of the group may have replaced it too. So before such a token is used in a new
membership, its holder asks all hosts there: they drop their own and report what they know, unless
theirs was replaced more often.
"""

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
    DiskFull,
    HostClosed,
    NotAllowed,
    PeerLost,
    TokenAway,
    TupeloError,
    UnknownHost,
)
from tupelo.federation.groups.group import GroupPart, group_of
from tupelo.federation.groups.membership import Membership, MembershipId
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.replication.feeds import Broadcast, Feed, FeedCursor
from tupelo.space.tasks import Tasks, timeout_at, when_room
from tupelo.values.entry import thaw
from tupelo.values.kind import entry, kind_of

RETRY_SECONDS = 1.0
"""Interval of the requests to replace a lost token."""
EPOCHS_END = 2**62
"""No token has changed hands so often: such an epoch is ignored."""
TokenClaim = tuple[int, int, str]
"""How often a token was replaced, its epoch and its holder; the highest claim wins."""


@entry("tupelo.token kept")
@dataclass
class KeptToken:
    """A token on disk: held here, or given `to` a host that may not have confirmed it."""

    feed: str | None = None
    token: str | None = None
    epoch: int | None = None
    state: bytes | None = None
    to: str | None = None
    confirmed: bool | None = None


class TokenState(Protocol):
    """The payload that travels with a token."""

    moves_on_leave: bool = False
    """Whether a host that leaves hands the token to any other host."""

    losses: int = 0
    """How often the token was replaced, as far as is known here."""

    @property
    def lost(self) -> list[str]:
        """The hosts with which the token was lost, if it is here."""
        return []

    def state(self) -> bytes:
        """The state of the token for the next holder."""
        ...

    def known_here(self) -> Any:
        """What this host knows of the payload; sent with the request for the token."""
        ...

    def can_pack(self, known_there: Any) -> bool:
        """Whether the rest of the payload fits in one answer for a host that knows this. If not,
        the host asks again when it knows more. BadFrame if the argument is invalid."""
        ...

    def pack(self, known_there: Any) -> Any:
        """The part of the payload that the receiver lacks. BadFrame if the argument is invalid."""
        ...

    async def unpack(self, packed: Any) -> None:
        """Apply the payload, before the token counts as received."""
        ...

    async def ready(self) -> None:
        """Wait until the whole payload is here and other hosts have what they need of it."""
        ...

    def revive(self, holder: str | None) -> bytes:
        """The state of a replacement of a token that was lost with `holder`; None: of a token whose
        claim has won."""
        return b""


class TokenPlace(NamedTuple):
    """Where a token is in an epoch. The holder may not have heard of the hand-over by `giver` yet.
    `life`: the incarnation of a holder without a folder, which loses the token with it; if the
    token is on its way to this host, that of such a giver."""

    epoch: int
    holder: str | None
    giver: str | None = None
    life: str | None = None


class Token:
    """One token, as known at this host."""

    def __init__(self, tokens: Tokens, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.state = b""
        self.here = False
        self.payload: TokenState | None = None
        self.abandoned = False
        """Whether waiters at this host give up."""
        self.patience: float | None = None
        """Seconds for which a holder without a folder may be out of the group before its token
        counts as lost; None: waiters wait for ever."""
        self._tokens = tokens
        self._lock = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._taking_up: asyncio.Task[None] | None = None
        self._given: str | None = None  # the receiver, until it confirms
        self._to: str | None = None
        self._noting: asyncio.Task[None] | None = None
        self._where = TokenPlace(0, None)
        self._volatile_holder: str | None = None  # loses the token in a crash
        self._lost_at: float | None = None
        self._sole_in: MembershipId | None = (
            None  # the membership in which all hosts have accepted our claim
        )
        self._claim: TokenClaim = (0, 0, "")  # the highest one received

    @property
    def holder(self) -> str | None:
        """The holder, as far as is known here."""
        return self._where.holder

    @property
    def _keeper(self) -> str | None:
        """The host that loses the token with its `life`: the holder, or the giver."""
        _, holder, giver, life = self._where
        return giver if holder == self._tokens.me and giver and life else holder

    @property
    def busy(self) -> bool:
        """Whether the token is in use here, or is being handed over."""
        return self._lock.locked()

    @property
    def is_away(self) -> bool:
        """Whether the known holder is not in the group, does not use the token, or has lost it."""
        holder, life = self._keeper, self._where.life
        if self.here or holder is None:
            return False
        member = self._tokens.membership.members.get(holder)
        if member is None or self._tokens.part not in member.metadata_of:
            return True
        return life is not None and member.incarnation != life

    @property
    def is_lost(self) -> bool:
        """Whether the holder had no folder and came back without the token, or has been away for
        longer than `patience`."""
        return self._is_given_up(0.0)

    @property
    def is_lost_with_life(self) -> bool:
        """Whether the holder had no folder and came back without the token."""
        life = self._where.life
        member = self._tokens.membership.members.get(self._keeper or "")
        return (
            not self.here
            and life is not None
            and member is not None
            and (member.incarnation != life)
        )

    def _is_given_up(self, hope: float) -> bool:
        holder = self._keeper
        if self.here or self.patience is None:
            return False
        if holder in self._tokens.membership.members:
            return self.is_lost_with_life
        left = self._left(hope)
        return left is not None and left <= 0

    def _left(self, hope: float) -> float | None:
        """Seconds until the token counts as lost, at least until the moment `hope`; None if it is
        not away."""
        if self._lost_at is None:
            return None
        return max(self._lost_at, hope) - asyncio.get_running_loop().time()

    def look(self) -> None:
        """Note whether the holder is in the group, and whether it loses the token in a crash."""
        holder, life = self._keeper, self._where.life
        member = self._tokens.membership.members.get(holder or "")
        if life is not None or (member and member.metadata_of.get(self._tokens.part) is False):
            self._volatile_holder = holder
        if self.here or member is not None or holder is None or holder != self._volatile_holder:
            self._lost_at = None
        elif self._lost_at is None and self.patience is not None:
            self._lost_at = asyncio.get_running_loop().time() + self.patience

    def seen_at(
        self, epoch: int, holder: str, giver: str | None = None, life: str | None = None
    ) -> None:
        where = self._where
        if epoch >= EPOCHS_END:
            return
        if epoch > where.epoch or (epoch == where.epoch and where.life is None):
            if giver is not None and giver == where.holder and holder == self._tokens.me:
                life = where.life
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
        """Hold the token exclusively while the context is open. TokenAway if it does not come
        within `patience` seconds, or before the deadline on the clock of the host.

        A changed `state` is stored at the end; it is restored if the caller is cancelled meanwhile.
        Without `ask`, the token must be here. A token that may be lost is waited for at least
        `hope` seconds. `replace`: if the holder is out of reach it is gone for good, and the token
        is replaced with what the group knows.
        """
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
        """Restore the state of a cancelled holder, before the lock is released."""
        try:
            await asyncio.wait([keeping])
            self.state = before
            await self._tokens._keep(self)
        finally:
            self._lock.release()

    # Requesting

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
            count = tokens.broadcast.count
            before = self._where
            with suppress(PeerLost, UnknownHost):
                if is_replaced and tokens.first == tokens.me:
                    await self._replace()
                else:
                    await self._ask(tokens.first if is_replaced else None)
            if not self.here and self._where is before:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS if is_replaced else self._left(hope)):
                        await tokens.broadcast.wait(count)

    async def _ask(self, instead: str | None = None) -> None:
        """Ask the holder; or the giver, if the token was given to this host; or `instead`, the host
        that replaces it. A caller that times out does not cancel the request: the answer may be the
        token."""
        if self._asking is None or self._asking.done():
            self._asking = self._tokens._begin(self._ask_once(instead))
        await asyncio.shield(self._asking)

    async def _ask_once(self, instead: str | None) -> None:
        tokens = self._tokens
        where = self._where
        host = instead or (where.giver if where.holder == tokens.me else where.holder)
        if host is None or host == tokens.me:
            return
        known_there = self.payload.known_here() if self.payload else None
        known = [where.epoch, where.holder, where.giver]
        question = ["take", self.name, self.epoch, known_there, known, instead is not None]
        match await tokens.sender.ask(host, question):
            case ["given", int(epoch), bytes(state), packed, is_sole]:
                try:
                    await self._receive(host, epoch, state, packed)
                except DiskFull:  # It is nowhere until it is fetched again.
                    self.take_up_soon()
                    raise
                if self.here and is_sole == list(tokens.membership.id):
                    self._sole_in = tokens.membership.id
            case ["moved", int(epoch), str(holder), (str() | None) as giver]:
                if epoch > where.epoch:
                    self.seen_at(epoch, holder, giver)

    async def _receive(self, giver: str, epoch: int, state: bytes, packed: Any) -> None:
        tokens = self._tokens
        if not self.epoch < epoch < EPOCHS_END:
            return
        if self.payload is None:
            self.payload = tokens.payload_of(self.name)
        if self.payload is not None:
            await self.payload.unpack(packed)
        await tokens._keep(self, KeptToken(tokens.feed, self.name, epoch, state, None, True))
        self.epoch, self.state = epoch, state
        self._sole_in = None
        await self._have()
        tokens._confirm(giver, self)

    async def _have(self) -> None:
        """The token is here, unless another host has claimed it meanwhile."""
        self._given = self._to = None
        self._where = TokenPlace(self.epoch, self._tokens.me)
        try:
            await self._tokens._tell(self)
        except DiskFull:  # It is kept here: others learn of it later.
            self._tokens._begin(when_room(self._tell_if_here))
        self.here = True
        if self._claim > self._own_claim:
            await self._drop(self._claim[2])

    async def _tell_if_here(self) -> None:
        if self.here:
            await self._tokens._tell(self)

    # Replacing

    @property
    def _own_claim(self) -> TokenClaim:
        losses = len(self.payload.lost) if self.payload is not None else 0
        return losses, self.epoch, self._tokens.me

    @property
    def is_contested(self) -> bool:
        """Whether a host that is in the group now may have replaced this token, or hold the
        replaced one. Only tokens with `patience` can be."""
        return self.patience is not None and self._sole_in != self._tokens.membership.id

    async def _replace(self) -> None:
        """Replace the token, if no host of the group knows a newer holder. The knowledge of the
        other hosts is added when the new token is claimed."""
        tokens, membership, payload = self._tokens, self._tokens.membership, self.payload
        assert payload is not None  # Only tokens with payload have patience.
        for host in tokens.others:
            match await tokens.sender.ask(host, ["where", self.name]):
                case [int(epoch), str(holder), (str() | None) as giver] if (
                    epoch > self._where.epoch
                ):
                    self.seen_at(epoch, holder, giver)
                    return
        if tokens.membership.id != membership.id or not self.is_away:
            return
        lost = self._keeper
        logger.warning("%s was lost with the host %s, and is replaced", self.name, lost)
        self.state = payload.revive(lost)
        await self._renew(self._where.epoch)

    async def _renew(self, epoch: int) -> None:
        """Start an epoch after all others."""
        tokens, epoch = self._tokens, max(self.epoch, epoch) + 1
        # First on disk: if that is full, the token may still come in an epoch that was given away.
        await tokens._keep(self, KeptToken(tokens.feed, self.name, epoch, self.state, None, True))
        self.epoch = epoch
        await self._have()

    async def _settle_claims(self) -> None:
        """Until no other host of the group has this token, or it is not here. The caller must hold
        the lock."""
        while self.here and self.is_contested:
            count = self._tokens.broadcast.count
            with suppress(PeerLost, UnknownHost):
                await self._claim_it()
            if self.here and self.is_contested:
                await self._tokens.broadcast.wait(count)

    async def _claim_it(self) -> None:
        """Claim the token: the one that was replaced most often wins. Hosts that drop theirs report
        their payload."""
        tokens, membership, payload = self._tokens, self._tokens.membership, self.payload
        assert payload is not None
        question = ["mine", self.name, *self._own_claim[:2]]
        others = tokens.others
        answers = await asyncio.gather(*[tokens.sender.ask(one, question) for one in others])
        epochs, found = [self._where.epoch], []
        refused: dict[str, str | None] = {}
        for host, answer in zip(others, answers, strict=True):
            match answer:
                case ["no", (str() | None) as holder]:
                    refused[host] = holder
                case ["yours", int(epoch), packed] if packed is not None and epoch < EPOCHS_END:
                    epochs.append(epoch)
                    found.append(packed)
        if refused:
            # First those that have it; others may only know that this token was replaced.
            having = [host for host, holder in refused.items() if holder is None]
            known = [holder for holder in refused.values() if holder not in (None, tokens.me)]
            if rivals := [*having, *known]:
                await self._drop(rivals[0])
            return
        if tokens.membership.id != membership.id:
            return
        for packed in found:
            await payload.unpack(packed)
        if found:
            self.state = payload.revive(None)
            await self._renew(max(epochs))
            if self.here:
                await payload.ready()
        if self.here:
            self._sole_in = membership.id

    async def claimed(self, source: str, losses: int, epoch: int) -> Any:
        """Answer the claim of another host, whose token was replaced `losses` times."""
        claim = losses, epoch, source
        if self.here and self._own_claim > claim:
            return ["no", None]
        if self._claim[0] > losses or (self.payload is not None and self.payload.losses > losses):
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
        packed = self.payload.pack(None) if losses and self.payload is not None else None
        return ["yours", max(self.epoch, self._where.epoch), packed]

    async def _drop(self, host: str) -> None:
        """Drop the token in favour of another host."""
        self.here = False
        self._to, self._given, self.state = host, None, b""
        if host != self._where.holder or self._where.epoch <= self.epoch:
            self._where = TokenPlace(max(self.epoch, self._where.epoch) + 1, host)
        # Otherwise the place is known; the token may have been lost with the life of its holder.
        await when_room(partial(self._tokens._keep, self), flushes=True)

    # Handing over

    async def asked(self, source: str, epoch: int, known_there: Any, replace: bool = False) -> Any:
        if replace and self.payload is not None and self.is_away:
            async with self._lock:
                if self.is_away:
                    await self._replace()
        if not self.here and self._where.holder == self._tokens.me:
            async with self._lock:  # Given to this host, which has not heard of it.
                if not self.here:
                    await self._ask()
        if self.here:
            async with self._lock:
                await self._settle_claims()
                if self.here:
                    if self.payload is not None and not self.payload.can_pack(known_there):
                        return None
                    self._give(source)
        if not await self._is_noted():
            return None
        if self._given == source:
            if epoch >= self.epoch:
                self.confirmed(source, epoch)
            else:
                packed = self.payload.pack(known_there) if self.payload else None
                return ["given", self.epoch, self.state, packed, self._sole_in]
        where = self._where
        return ["moved", where.epoch, where.holder, where.giver] if where.holder else None

    def _give(self, source: str) -> None:
        self.here = False
        self.epoch += 1
        if self.payload is not None:
            self.state = self.payload.state()
        self._to = self._given = source
        self._where = TokenPlace(self.epoch, source, self._tokens.me)
        self.look()
        keep = partial(self._tokens._keep, self)
        self._noting = self._tokens._begin(when_room(keep, flushes=True))

    async def hand_to(self, host: str) -> None:
        """Give the token to a host that has not asked for it, and wait for the confirmation (of
        another host, if it was given there before)."""
        async with self._lock:
            await self._settle_claims()
            if self.here:
                self._give(host)
        if await self._is_noted():
            if self._given == host:
                self._tokens._remind_of(self, host)
            await self._tokens.broadcast.until(lambda: self._given is None)

    async def _is_noted(self) -> bool:
        """Whether the hand-over is stored. A cancelled caller does not stop that."""
        noting = self._noting
        if noting is None:
            return True
        if not noting.done():
            await asyncio.wait([noting])
        return not noting.cancelled() and noting.exception() is None

    @property
    def given(self) -> str | None:
        """The host that was given the token and has not confirmed it."""
        return self._given

    def take_up_soon(self) -> None:
        """Fetch the token, which was given to this host; while the disk is full, try again."""
        if self._taking_up is None or self._taking_up.done():
            self._taking_up = self._tokens._begin(when_room(self._take_up, flushes=True))

    async def _take_up(self) -> None:
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
"""The private space in which a host stores its tokens."""
TOKENS_MAX = 100_000
"""Most tokens that a host knows."""


@entry("tupelo.token at")
@dataclass
class TokenAt:
    """Record in the feed: a host has got a token. `life`: its incarnation, if it has no folder and
    loses the token with it."""

    token: str | None = None
    epoch: int | None = None
    host: str | None = None
    life: str | None = None


class Tokens(GroupPart):
    """The tokens of a feed at one host. Its part in the group is named after the feed."""

    def __init__(
        self,
        core: HostCore,
        feed: Feed,
        payload_of: Callable[[str], TokenState | None] = lambda name: None,
    ) -> None:
        self.me = core.id
        self.payload_of = payload_of
        """Creates the payload of a token that is given to this host before it is used here."""
        self.part = f"tokens {feed.name}"
        self.feed = feed.space.former or feed.name  # as it stands on disk
        self.broadcast = Broadcast()
        self._core = core
        self.clock = core.clock
        self._feed = feed
        self.tokens: dict[str, Token] = {}
        self._tasks = Tasks()
        self._closed = False
        self._leaving = False
        self._following = FeedCursor(feed)
        self._group = group_of(core)
        self._space = core.private_space(SPACE)
        if self._space.durable:
            for kept in self._space.space.read_all(KeptToken(feed=self.feed)):
                if kept.token is not None:
                    self.token(kept.token).restore(kept)
        feed.watchers.append(self._look)
        self._look()
        self.sender = self._group.part(self.part, self)
        core.extensions.leaving.append(self._leave)

    @property
    def membership(self) -> Membership:
        return self._group.membership

    @property
    def others(self) -> list[str]:
        """The other hosts of the group that use these tokens."""
        members = self.membership.members.values()
        return sorted(
            one.host for one in members if one.host != self.me and self.part in one.metadata_of
        )

    @property
    def first(self) -> str:
        """The host that replaces lost tokens."""
        return min([self.me, *self.others])

    def token(self, name: str) -> Token:
        """The token of this name, wherever it is."""
        found = self.tokens.get(name)
        if found is None:
            found = self.tokens[name] = Token(self, name)
        return found

    async def create(
        self, name: str, state: bytes = b"", payload: TokenState | None = None
    ) -> Token:
        """Create a token, held here. The name must never be used again."""
        token = self.token(name)
        token.epoch, token.state, token.payload, token.here = 1, state, payload, True
        token.seen_at(1, self.me)
        await self._keep(token)
        await self._tell(token)
        return token

    def forget(self, name: str) -> None:
        """Delete a token that has ended everywhere; its waiters get TokenAway."""
        token = self.tokens.pop(name, None)
        if token is not None:
            token.abandoned = True
            token.here = False
            if self._space.durable:
                self._begin(self._unkeep(name))
            self.broadcast.notify()

    async def _unkeep(self, name: str) -> None:
        await self._space.door.take_all(KeptToken(feed=self.feed, token=name), wait=0)

    def close(self) -> None:
        self._closed = True
        if self._leave in self._core.extensions.leaving:
            self._core.extensions.leaving.remove(self._leave)
        if self._look in self._feed.watchers:
            self._feed.watchers.remove(self._look)
        self._tasks.cancel()
        self.broadcast.notify()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.start(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, TupeloError):
            logger.error("a token of %r failed", self._feed.name, exc_info=error)

    def _require_open(self) -> None:
        if self._closed or self._leaving or self._feed.closed:
            raise HostClosed("the host has closed these tokens")

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
        self.broadcast.notify()

    def _saw(self, said: TokenAt) -> None:
        if said.token in self.tokens or len(self.tokens) < TOKENS_MAX:
            token = self.token(said.token or "")
            token.seen_at(said.epoch or 0, said.host or "", life=said.life)

    async def _keep(self, token: Token, kept: KeptToken | None = None) -> None:
        """Store a token, or this record of it."""
        if self._space.durable:
            door = self._space.door
            async with door.transaction() as txn:
                old = KeptToken(feed=self.feed, token=token.name)
                await door.take_all(old, wait=0, txn=txn)
                await door.write(kept or token.encode(), txn=txn)

    async def _tell(self, token: Token) -> None:
        """Announce in the feed that the token is here."""
        life = None if self._space.durable else self._core.incarnation
        await self._say(TokenAt(token.name, token.epoch, self.me, life))

    async def _say(self, at: TokenAt) -> None:
        """Replace this host's TokenAt record of the token."""
        door = self._feed.space.door
        async with door.transaction() as txn:
            await door.take_all(TokenAt(token=at.token), wait=0, txn=txn)
            await door.write(at, txn=txn)

    def _confirm(self, giver: str, token: Token) -> None:
        self.sender.send(giver, ["got", token.name, token.epoch])

    def _remind(self) -> None:
        """Remind hosts that have not confirmed a token. If such a host is gone, announce that it
        has the token."""
        for token in self.tokens.values():
            to = token.given
            if to is not None and not self._closed:
                if to in self.membership.members:
                    self._remind_of(token, to)
                else:
                    self._begin(self._say(TokenAt(token.name, token.epoch, to)))

    def _remind_of(self, token: Token, to: str) -> None:
        self.sender.send(to, ["yours", token.name, token.epoch])

    # Leaving

    async def _leave(self) -> None:
        """Before the host stops: hand its tokens to a host that stays."""
        self._leaving = True
        self.broadcast.notify()
        chosen = [
            token
            for token in self.tokens.values()
            if (token.payload is None or token.payload.moves_on_leave)
            and (token.here or token.busy or token.given)
        ]
        if chosen:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._core.answer_seconds):
                    successor = await self._successor()
                    if successor is not None:
                        await asyncio.gather(*[token.hand_to(successor) for token in chosen])

    async def _successor(self) -> str | None:
        """A host that stays, or None. Asks again if the group changes meanwhile."""
        while True:
            membership, is_answered = self.membership, True
            for host, member in membership.members.items():
                if host != self.me and self.part in member.metadata_of:
                    try:
                        if await self.sender.ask(host, ["stays"]):
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
        """Whether tokens survive a crash of this host."""
        return self._space.durable

    def install(self, membership: Membership) -> None:
        for token in self.tokens.values():
            token.look()
        self.broadcast.notify()
        asyncio.get_running_loop().call_soon(self._remind)

    def _may(self, neighbour: str, source: str) -> bool:
        """Whether a host takes part in the feed, and so may use its tokens."""
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
                    self.broadcast.notify()
            case ["yours", str(name), int(epoch)]:
                self._heard_yours(source, name, epoch)
            case _:
                raise BadFrame("unknown message about tokens")

    def _heard_yours(self, giver: str, name: str, epoch: int) -> None:
        if self._closed or (name not in self.tokens and len(self.tokens) >= TOKENS_MAX):
            return
        token = self.token(name)
        if token.epoch >= epoch:
            self._confirm(giver, token)
        else:
            token.seen_at(epoch, self.me, giver)
            self.broadcast.notify()  # for waiters
            token.take_up_soon()

    async def asked(self, neighbour: str, source: str, body: Any) -> Any:
        if not self._may(neighbour, source):
            raise NotAllowed("write", self._feed.name, f"the host {source}")
        match body:
            case ["stays"]:
                return not (self._closed or self._leaving)
            case [
                "take",
                str(name),
                int(epoch),
                known_there,
                [int(at), holder, giver],
                bool(replace),
            ]:
                token = self.tokens.get(name)
                if token is None or self._closed or self._feed.closed:
                    return None
                if isinstance(holder, str) and at > token._where.epoch:
                    token.seen_at(at, holder, giver if isinstance(giver, str) else None)
                return await token.asked(source, epoch, known_there, replace)
            case ["where", str(name)]:
                return list(self.tokens[name]._where[:3]) if name in self.tokens else None
            case ["mine", str(name), int(losses), int(epoch)]:
                if name not in self.tokens and len(self.tokens) >= TOKENS_MAX:
                    return None
                return await self.token(name).claimed(source, losses, epoch)
        raise BadFrame("unknown request about tokens")


_AT = kind_of(TokenAt)
