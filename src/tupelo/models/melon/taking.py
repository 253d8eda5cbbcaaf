"""Taking: what was stored for anyone, at all hosts, and what is directed to us, which is here.

Of one host's messages the oldest comes first, of whichever sort it is. A directed message says
after which of the others it was stored; and a host tells what it has directed to us before it
answers with anything that was stored later. So before one that is here is taken, its host is asked
whether it has one that is sooner; and what is delivered is kept only if none that is here is
sooner, else it goes back to its place.

What is under way to a taker is not there for others. If that one falls silent, younger ones may be
taken before it comes back. When the process has run on with what it took, that is confirmed: to the
host that has delivered it, and of a directed message on disk, with a receipt. Who is killed before
that has not taken it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from tupelo.errors import SpaceClosed, TupeloError
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.federation.spanning.federated import adopt
from tupelo.federation.spanning.peers import EngagedPeer
from tupelo.federation.spanning.question import FederatedResult
from tupelo.models.melon.broadcast import PostBroadcast, race
from tupelo.models.melon.directed import DirectedMessages
from tupelo.models.melon.sealed import Letter, Opened
from tupelo.space.query import NOW, Query, deadline_of
from tupelo.space.tasks import timeout_at
from tupelo.values.entry import Entry, require_known
from tupelo.values.scope import Scope

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore


class EarliestFirst(Exception):
    """A letter was stored before what was delivered, at the same host."""

    def __init__(self, letter: Letter) -> None:
        super().__init__(letter)
        self.letter = letter


class Taking:
    """What the processes at one host take."""

    def __init__(
        self,
        core: HostCore,
        stored: HostedSpace,
        directed: DirectedMessages,
        broadcast: PostBroadcast,
    ) -> None:
        self._core = core
        self._stored = stored
        self._directed = directed
        self._broadcast = broadcast
        self._handed: dict[Entry, FederatedResult] = {}  # from other hosts, and not confirmed yet

    async def take(
        self, template: Any, wait: float | None, many: bool, sender: str | None = None
    ) -> list[Entry]:
        """One message that matches, or all; with a `sender`, of those that it has directed."""
        if sender is not None:
            return await self._await_letters(template, wait, many, sender)
        deadline = deadline_of(self._stored.clock, wait)
        if self._directed.identity is None:  # Nothing can be directed to us.
            return await self._ask(template, deadline, many)
        if many:
            return await self._take_all(template, deadline)
        while True:
            try:
                return await self._take_one(template, deadline)
            except EarliestFirst as sooner:
                if found := await self._directed.take([sooner.letter]):
                    return found

    async def _ask(
        self, template: Any, deadline: float | None, many: bool, asked: TakeRequest | None = None
    ) -> list[Entry]:
        """Of those who are engaged. Who does not answer is passed over."""
        federation = self._core.federation
        limit = None if many else 1
        query = Query(template, True, deadline, many, limit, known=False)
        got = await federation.get(self._stored, query, partial=True, accept=asked)
        try:
            for entry in got.entries:
                require_known(entry)
            if asked is not None:
                asked.check_here(got.entries)
        except (TupeloError, EarliestFirst):
            got.give_back()
            raise
        await federation.hand(got, return_to_place)
        if got.is_brought:
            self._handed.update(dict.fromkeys(got.entries, got))
        return got.entries

    async def _ask_wholly(
        self, template: Any, deadline: float | None, many: bool, asked: TakeRequest
    ) -> list[Entry]:
        """If it is cancelled it goes on, once something is ours: what we would not take then could
        not go back to its place."""
        asked.is_settled = False
        asking = asyncio.ensure_future(self._ask(template, deadline, many, asked))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if asked.is_settled:
                await asyncio.wait([asking], timeout=self._core.answer_seconds)
            asking.cancel()
            await asyncio.wait([asking])
            if asking.cancelled():
                await self._core.federation.refused()  # else we would pass by what returns
                raise
            return asking.result()

    def put_back(self, entries: list[Entry]) -> None:
        """Nobody waits for them any more. What was directed to us is not for others."""
        here = [one for one in entries if not isinstance(one, Opened) and one not in self._handed]
        for got in self._got(entries):
            got.undo(return_to_place)
        return_to_place(self._stored, here)
        if opened := [one for one in entries if isinstance(one, Opened)]:
            self._directed.untake(opened)

    def is_unconfirmed(self, entries: list[Entry]) -> bool:
        return any(isinstance(one, Opened) or one in self._handed for one in entries)

    def confirm(self, entries: list[Entry]) -> None:
        """The process that took these has them."""
        for got in self._got(entries):
            got.confirm_brought()
        if opened := [one for one in entries if isinstance(one, Opened)]:
            self._directed.confirm(opened)

    def _got(self, entries: list[Entry]) -> list[FederatedResult]:
        """What these are of; they are under way no more."""
        got = [self._handed.pop(one) for one in entries if one in self._handed]
        return list(dict.fromkeys(got))

    async def _race(
        self,
        template: Any,
        many: bool,
        asked: TakeRequest,
        look: Callable[[], Awaitable[list[Entry]]],
        deadline: float | None,
    ) -> list[Entry]:
        return await race(
            lambda: self._ask_wholly(template, deadline, many, asked),
            lambda: self._first_letter(template) is not None,
            look,
            self.put_back,
            self._broadcast,
        )

    async def _take_one(self, template: Any, deadline: float | None) -> list[Entry]:
        asked = TakeRequest(self._core.id, self._directed, template, many=False)

        async def look() -> list[Entry]:
            while (letter := self._first_letter(template)) is not None:
                found: list[Entry] = []
                if await self._has_sooner(template, letter):
                    found = await self._ask(template, NOW, False, asked)
                if found := found or await self._directed.take([letter]):
                    return found
            return await self._ask(template, NOW, False, asked)

        if deadline == NOW:
            return await look() or (await look() if await self._is_more_here(template) else [])
        return await self._race(template, False, asked, look, deadline)

    async def _is_more_here(self, template: Any) -> bool:
        """Is there a letter, when all are here that were told of before we asked?"""
        await self._directed.in_step_with_all()
        return self._first_letter(template) is not None

    def _first_letter(self, template: Any) -> Letter | None:
        return next(self._directed.letters.matching(template), None)

    async def _has_sooner(self, template: Any, letter: Letter) -> bool:
        """Has the host of this letter something that was stored before it, for anyone?"""
        host = letter.host
        if host != self._core.id and host not in self._core.peers:
            return False
        query = Query(template, scope=Scope("host", host), known=False)
        got = await self._core.federation.get(self._stored, query, partial=True)
        return any(not self._directed.is_sooner(letter, host, one.arrival) for one in got.entries)

    async def _take_all(self, template: Any, deadline: float | None) -> list[Entry]:
        asked = TakeRequest(self._core.id, self._directed, template, many=True)
        is_complete = False

        async def look() -> list[Entry]:
            letters = set(self._directed.letters.matching(template))
            return await complete(await self._ask(template, NOW, True, asked), letters)

        async def complete(found: list[Entry], before: set[Letter]) -> list[Entry]:
            """With the letters that were here before we asked, and those that are sooner than
            something that was got. Of others there may be something sooner that was not."""
            nonlocal is_complete
            try:
                await asked.in_step()
                letters = list(self._directed.letters.matching(template))
                sooner = asked.before(found, letters)
                letters = [one for one in letters if one in before or one in sooner]
                taken = set(await self._directed.take(letters))
            except BaseException:
                self.put_back(found)
                raise
            merged = asked.merged(found, [letter for letter in letters if letter.entry in taken])
            is_complete = bool(merged)
            return merged

        found = await look()
        if not found and deadline == NOW and await self._is_more_here(template):
            found = await look()
        if not found and deadline != NOW:
            found = await self._race(template, True, asked, look, deadline)
            if not is_complete:
                found = await complete(found, set())
        return found

    async def _await_letters(
        self, template: Any, wait: float | None, many: bool, sender: str
    ) -> list[Entry]:
        """No other message has a sender that is known."""
        clock = self._stored.clock
        deadline = deadline_of(clock, wait)
        stirred = self._broadcast.enter()
        try:
            while True:
                stirred.clear()
                letters = self._directed.letters.matching(template, sender)
                found = await self._directed.take(list(islice(letters, None if many else 1)))
                if found or deadline == NOW:
                    return found
                try:
                    async with timeout_at(clock, deadline):
                        await stirred.wait()
                except TimeoutError:
                    deadline = NOW  # Once more.
                self._broadcast.require_open()
        finally:
            self._broadcast.leave(stirred)


class TakeRequest:
    """One question, and which host has answered with what."""

    def __init__(self, here: str, directed: DirectedMessages, template: Any, *, many: bool) -> None:
        self._here = here
        self._directed = directed
        self._template = template
        self._many = many
        self._hosts: dict[Entry, str] = {}
        self.is_settled = False

    async def __call__(self, peer: EngagedPeer, entries: list[Entry]) -> None:
        """This was delivered. Sooner, if it is to go back."""
        self._hosts.update(dict.fromkeys(entries, peer.id))
        if not self._many:
            await self._directed.in_step(peer.id)
            self._check(entries)
        self.is_settled = True

    def check_here(self, entries: list[Entry]) -> None:
        """This was got. Sooner, if it is of this host and is to go back."""
        if not self._many:
            self._check([entry for entry in entries if entry not in self._hosts])
        self.is_settled = bool(entries)

    def _check(self, entries: list[Entry]) -> None:
        for entry in entries:
            for letter in self._directed.letters.matching(self._template):
                if self._is_sooner(letter, entry):
                    raise EarliestFirst(letter)

    def _is_sooner(self, letter: Letter, entry: Entry) -> bool:
        host = self._hosts.get(entry, self._here)
        return self._directed.is_sooner(letter, host, entry.arrival)

    # Of many

    def before(self, entries: list[Entry], letters: list[Letter]) -> set[Letter]:
        """The letters that are sooner than one of these."""
        last: dict[str, Entry] = {}
        for entry in entries:
            host = self._hosts.get(entry, self._here)
            if host not in last or last[host].arrival < entry.arrival:
                last[host] = entry
        return {
            letter
            for letter in letters
            if letter.host in last and self._is_sooner(letter, last[letter.host])
        }

    async def in_step(self) -> None:
        for host in set(self._hosts.values()):
            await self._directed.in_step(host)

    def merged(self, entries: list[Entry], letters: list[Letter]) -> list[Entry]:
        """Both, those of each host in its order."""
        by_host: dict[str, deque[Letter]] = {}
        for letter in letters:
            by_host.setdefault(letter.host, deque()).append(letter)
        merged: list[Entry] = []
        for entry in entries:
            of_host = by_host.get(self._hosts.get(entry, self._here), deque())
            while of_host and self._is_sooner(of_host[0], entry):
                merged.append(of_host.popleft().entry)
            merged.append(entry)
        return merged + [letter.entry for rest in by_host.values() for letter in rest]


def return_to_place(hosted: HostedSpace, entries: list[Entry]) -> None:
    """These were taken for good, and nobody has got them. What was stored here is in its place
    again; what has come from elsewhere has none there any more, and lives here."""
    # What has come was never in a store; and where an order keeps books, it has closed them.
    port = hosted.port
    own = {one: None for one in entries if one.gone and not port.keeps_books}
    try:
        hosted.flush_soon(port.unget(list(own), Query(take=True)))
    except SpaceClosed:
        own.clear()
    adopt(hosted, [one for one in entries if one not in own])
