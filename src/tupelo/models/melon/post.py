"""The post of one name at a host: what all its processes that use this name have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument, BadFrame, TupeloError
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.federation.identity.access import Access
from tupelo.federation.replication.carrier import replication_of
from tupelo.federation.replication.feed import Feed, host_of
from tupelo.federation.spanning.adopting import adopt
from tupelo.models.melon.collecting import Bound
from tupelo.models.melon.copying import Copies
from tupelo.models.melon.racing import Stirring
from tupelo.values.entry import Entry, require_known

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.peer import Peer


def post_of(core: HostCore, name: str, bound: Bound | None, copies: Copies | None) -> Post:
    """The post of this name, which is made if there is none."""
    found = core.carriers.get(f"melon {name}")
    if not isinstance(found, Post):
        return Post(core, name, bound, copies)
    for argument, given, is_so in (("bound", bound, found.bound), ("copies", copies, found.copies)):
        if given is not None and given != is_so:
            raise BadArgument(argument, f"{is_so}, as it is at this host by now", given)
    return found


class Post:
    """The message store of a host."""

    def __init__(
        self, core: HostCore, name: str, bound: Bound | None, copies: Copies | None
    ) -> None:
        self.core = core
        self.name = name
        self.bound = bound
        self.copies = copies
        self.stirring = Stirring()
        """Something has come that nobody asked for: copies, or what is directed."""
        self.stored = core.make_space(name)
        self.written = _made(core, f"{name}.written", Access(take=()))
        self.feed: Feed | None = None
        self._pulling = False
        if copies is not None:
            self.feed = replication_of(core).feed(self.written.name, copies.policy)
            self.feed.listeners.append(self._heard_of_copies)
        core.carriers[f"melon {name}"] = self

    # Taking

    async def take(self, template: Any, wait: float | None, many: bool) -> list[Entry]:
        """Of those who are engaged. Who does not answer is passed over."""
        federation = self.core.federation
        got = await federation.get(
            self.stored, template, take=True, wait=wait, many=many, partial=True
        )
        try:
            for entry in got.entries:
                require_known(entry)
        except TupeloError:
            got.give_back()
            raise
        await federation.hand(got)
        return got.entries

    def put_back(self, entries: list[Entry]) -> None:
        """Nobody waits for them any more."""
        adopt(self.stored, entries)

    # Copies

    def _heard_of_copies(self) -> None:
        if self._pulling:
            self._pull()
            self.stirring.stir()

    def begin_pulling(self) -> None:
        """From now on what is out of reach is copied here from those who have it: it is read."""
        if not self._pulling:
            self._pulling = True
            self._pull()

    def _pull(self) -> None:
        feed = self.feed
        assert feed is not None
        near = self._near()
        for source in feed.offered:
            if source not in near and feed.stream(source) is None:
                feed.hold(source)

    def _near(self) -> set[str]:
        """The streams of the hosts that are engaged, and of this one."""
        feed = self.feed
        assert feed is not None
        return {feed.source, *(far.source for far in feed.exchange.far.values())}

    def out_of_reach(self) -> Iterator[str]:
        """The streams that are here, and whose hosts cannot be asked themselves."""
        feed = self.feed
        assert feed is not None
        near = self._near()
        for source in feed.marks:
            if source not in near and not self._is_coming(host_of(source), feed):
                yield source

    def _is_coming(self, host: str, feed: Feed) -> bool:
        """Is it engaged, but has not said yet what it has?"""
        peer = self.core.peers.get(host)
        return peer is not None and host not in feed.partners and self.written.name in peer.spaces

    async def in_step(self) -> None:
        """Wait until what is out of reach is here, as far as someone who is engaged has it."""
        feed = self.feed
        assert feed is not None
        stirred = self.stirring.enter()
        try:
            async with asyncio.timeout(self.core.answer_seconds):
                while self._lacks(feed):
                    stirred.clear()
                    await stirred.wait()
        except TimeoutError:
            pass
        finally:
            self.stirring.leave(stirred)

    def _lacks(self, feed: Feed) -> bool:
        near = self._near()
        for far in feed.exchange.far.values():
            for source, mark in far.has.items():
                stream = None if source in near else feed.stream(source)
                if stream is not None and stream.lacks(mark):
                    return True
        return False

    def source_of(self, entry: Entry) -> str | None:
        """In which stream is it, that was read at its host just now?"""
        feed = self.feed
        if feed is None:
            return None
        far = feed.exchange.far.get(entry.origin.rpartition("@")[2])
        return None if far is None else far.source

    # For the host

    def engaged(self, peer: Peer) -> None:
        pass

    def departed(self, peer: Peer) -> None:
        pass

    def heard(self, peer: Peer, body: Any) -> None:
        raise BadFrame("nothing is said on this channel")

    async def stop(self) -> None:
        pass


def _made(core: HostCore, name: str, access: Access) -> HostedSpace:
    if name not in core.spaces:
        return core.make_space(name, access)
    hosted = core.spaces[name]
    hosted.access = access
    return hosted
