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
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tupelo.errors import BadFrame, HostClosed, NotAllowed, TupeloError
from tupelo.federation.groups.group import group_of
from tupelo.federation.groups.membership import Membership
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.replication.broadcast import Broadcast, FeedCursor
from tupelo.federation.replication.feed import Feed
from tupelo.federation.replication.token import KeptToken, Token, TokenState
from tupelo.federation.spaces.hosted import HostedSpace
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
