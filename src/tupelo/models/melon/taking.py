"""Takes of stored messages, at all hosts, and of letters, the messages directed to this host, which
have been replicated here.

The messages of one host are taken in the order in which they were stored, letters or not. A letter
says after which other message it was stored, and a host replicates its letters to us before it
answers with a message that was stored later. So before a letter is taken, its host is asked for an
earlier message; and a message that another host delivers is kept only if there is no earlier letter
of that host, else it returns to its place.

While a message is being delivered to a taker, other takers cannot see it. If the taker vanishes,
younger messages may be taken before this one is back. A take is confirmed once the program has run
on with the message: to the host that delivered it, and for a letter on disk and with a receipt. A
process that is killed before that has not taken it.
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
from tupelo.models.melon.broadcast import MessageSignal, race
from tupelo.models.melon.directed import DirectedMessages
from tupelo.models.melon.sealed import Letter
from tupelo.space.query import NOW, Query, deadline_of
from tupelo.space.tasks import timeout_at
from tupelo.values.entry import Entry, require_known
from tupelo.values.scope import Scope

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore


class EarlierLetter(Exception):
    """Raised if a message was delivered, and this letter was stored before it at the same host."""

    def __init__(self, letter: Letter) -> None:
        super().__init__(letter)
        self.letter = letter


class Taking:
    """The takes of all processes of one message store."""

    def __init__(
        self,
        core: HostCore,
        stored: HostedSpace,
        directed: DirectedMessages,
        broadcast: MessageSignal,
    ) -> None:
        self._core = core
        self._stored = stored
        self._directed = directed
        self._broadcast = broadcast
        self._handed: dict[Entry, FederatedResult] = {}  # by other hosts, not confirmed

    async def take(
        self, template: Any, wait: float | None, many: bool, sender: str | None = None
    ) -> list[Entry]:
        """One message that matches, or all; with a `sender`, only letters of that identity. Empty
        if there is none in time. `confirm` or `put_back` must be called with the result."""
        if sender is not None:
            return await self._await_letters(template, wait, many, sender)
        deadline = deadline_of(self._stored.clock, wait)
        if self._directed.identity is None:  # There are no letters.
            return await self._ask(template, deadline, many)
        if many:
            return await self._take_all(template, deadline)
        while True:
            try:
                return await self._take_one(template, deadline)
            except EarlierLetter as earlier:
                if found := await self._directed.take([earlier.letter]):
                    return found

    async def _ask(
        self,
        template: Any,
        deadline: float | None,
        many: bool,
        request: FederatedTake | None = None,
    ) -> list[Entry]:
        """Take from this host and the engaged ones. Hosts that do not answer are skipped."""
        federation = self._core.federation
        limit = None if many else 1
        query = Query(template, True, deadline, many, limit, known=False)
        got = await federation.get(self._stored, query, partial=True, accept=request)
        try:
            for entry in got.entries:
                require_known(entry)
            if request is not None:
                request.check_here(got.entries)
        except (TupeloError, EarlierLetter):
            got.give_back()
            raise
        await federation.hand(got, return_to_place)
        if got.has_foreign:
            self._handed.update(dict.fromkeys(got.entries, got))
        return got.entries

    async def _ask_to_the_end(
        self, template: Any, deadline: float | None, many: bool, request: FederatedTake
    ) -> list[Entry]:
        """`_ask`, which goes on when it is cancelled, if a message has been accepted by then: that
        could not return to its place any more."""
        request.is_settled = False
        asking = asyncio.ensure_future(self._ask(template, deadline, many, request))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if request.is_settled:
                await asyncio.wait([asking], timeout=self._core.answer_seconds)
            asking.cancel()
            await asyncio.wait([asking])
            if asking.cancelled():
                # A message that is on its way back would be passed over.
                await self._core.federation.refused()
                raise
            return asking.result()

    def put_back(self, entries: list[Entry]) -> None:
        """Return messages whose taker has vanished to their places; letters stay at this host."""
        here = [one for one in entries if not isinstance(one, Letter) and one not in self._handed]
        for got in self._got(entries):
            got.undo(return_to_place)
        return_to_place(self._stored, here)
        if letters := [one for one in entries if isinstance(one, Letter)]:
            self._directed.put_back(letters)

    def is_unconfirmed(self, entries: list[Entry]) -> bool:
        """Whether any of these needs a `confirm`: a letter, or a message of another host."""
        return any(isinstance(one, Letter) or one in self._handed for one in entries)

    def confirm(self, entries: list[Entry]) -> None:
        """The process has received these messages."""
        for got in self._got(entries):
            got.confirm_foreign()
        if letters := [one for one in entries if isinstance(one, Letter)]:
            self._directed.confirm(letters)

    def _got(self, entries: list[Entry]) -> list[FederatedResult]:
        """The deliveries that these messages came with; they are forgotten here."""
        got = [self._handed.pop(one) for one in entries if one in self._handed]
        return list(dict.fromkeys(got))

    async def _race(
        self,
        template: Any,
        many: bool,
        request: FederatedTake,
        look: Callable[[], Awaitable[list[Entry]]],
        deadline: float | None,
    ) -> list[Entry]:
        return await race(
            lambda: self._ask_to_the_end(template, deadline, many, request),
            lambda: self._first_letter(template) is not None,
            look,
            self.put_back,
            self._broadcast,
        )

    async def _take_one(self, template: Any, deadline: float | None) -> list[Entry]:
        request = FederatedTake(self._core.id, self._directed, template, many=False)

        async def look() -> list[Entry]:
            while (letter := self._first_letter(template)) is not None:
                found: list[Entry] = []
                if await self._has_earlier_message(template, letter):
                    found = await self._ask(template, NOW, False, request)
                if found := found or await self._directed.take([letter]):
                    return found
            return await self._ask(template, NOW, False, request)

        if deadline == NOW:
            return await look() or (await look() if await self._is_more_here(template) else [])
        return await self._race(template, False, request, look, deadline)

    async def _is_more_here(self, template: Any) -> bool:
        """Whether there is a letter, once all have arrived that engaged hosts have announced."""
        await self._directed.sync_all_letters()
        return self._first_letter(template) is not None

    def _first_letter(self, template: Any) -> Letter | None:
        return next(self._directed.letters.matching(template), None)

    async def _has_earlier_message(self, template: Any, letter: Letter) -> bool:
        """Whether the host of this letter has a stored message that is older than the letter."""
        host = letter.host
        if host != self._core.id and host not in self._core.peers:
            return False
        query = Query(template, scope=Scope("host", host), known=False)
        got = await self._core.federation.get(self._stored, query, partial=True)
        return any(not self._directed.is_earlier(letter, host, one.arrival) for one in got.entries)

    async def _take_all(self, template: Any, deadline: float | None) -> list[Entry]:
        request = FederatedTake(self._core.id, self._directed, template, many=True)
        is_complete = False

        async def look() -> list[Entry]:
            letters = set(self._directed.letters.matching(template))
            return await complete(await self._ask(template, NOW, True, request), letters)

        async def complete(found: list[Entry], before: set[Letter]) -> list[Entry]:
            """Add the letters that were here `before` the hosts were asked, and those that come
            before a message in `found`. Other letters stay: an earlier message may exist."""
            nonlocal is_complete
            try:
                await request.sync_letters()
                letters = list(self._directed.letters.matching(template))
                earlier = request.before(found, letters)
                letters = [one for one in letters if one in before or one in earlier]
                taken = set(await self._directed.take(letters))
            except BaseException:
                self.put_back(found)
                raise
            merged = request.merged(found, [letter for letter in letters if letter in taken])
            is_complete = bool(merged)
            return merged

        found = await look()
        if not found and deadline == NOW and await self._is_more_here(template):
            found = await look()
        if not found and deadline != NOW:
            found = await self._race(template, True, request, look, deadline)
            if not is_complete:
                found = await complete(found, set())
        return found

    async def _await_letters(
        self, template: Any, wait: float | None, many: bool, sender: str
    ) -> list[Entry]:
        """Take letters of one sender: no other message has a sender."""
        clock = self._stored.clock
        deadline = deadline_of(clock, wait)
        woken = self._broadcast.enter()
        try:
            while True:
                woken.clear()
                letters = self._directed.letters.matching(template, sender)
                found = await self._directed.take(list(islice(letters, None if many else 1)))
                if found or deadline == NOW:
                    return found
                try:
                    async with timeout_at(clock, deadline):
                        await woken.wait()
                except TimeoutError:
                    deadline = NOW  # Look once more.
                self._broadcast.require_open()
        finally:
            self._broadcast.leave(woken)


class FederatedTake:
    """One take over the federation: which host has delivered which message. It is called with each
    delivery, and raises EarlierLetter if the delivery must go back."""

    def __init__(self, here: str, directed: DirectedMessages, template: Any, *, many: bool) -> None:
        self._here = here
        self._directed = directed
        self._template = template
        self._many = many
        self._hosts: dict[Entry, str] = {}
        self.is_settled = False

    async def __call__(self, peer: EngagedPeer, entries: list[Entry]) -> None:
        """A peer has delivered these. EarlierLetter if a letter of that host comes before them."""
        self._hosts.update(dict.fromkeys(entries, peer.id))
        if not self._many:
            await self._directed.sync_letters(peer.id)
            self._check(entries)
        self.is_settled = True

    def check_here(self, entries: list[Entry]) -> None:
        """The take has got these. EarlierLetter if a letter comes before a message of this host."""
        if not self._many:
            self._check([entry for entry in entries if entry not in self._hosts])
        self.is_settled = bool(entries)

    def _check(self, entries: list[Entry]) -> None:
        for entry in entries:
            for letter in self._directed.letters.matching(self._template):
                if self._is_earlier(letter, entry):
                    raise EarlierLetter(letter)

    def _is_earlier(self, letter: Letter, entry: Entry) -> bool:
        host = self._hosts.get(entry, self._here)
        return self._directed.is_earlier(letter, host, entry.arrival)

    # Takes of many

    def before(self, entries: list[Entry], letters: list[Letter]) -> set[Letter]:
        """The letters that were stored before one of these messages, at the same host."""
        last: dict[str, Entry] = {}
        for entry in entries:
            host = self._hosts.get(entry, self._here)
            if host not in last or last[host].arrival < entry.arrival:
                last[host] = entry
        return {
            letter
            for letter in letters
            if letter.host in last and self._is_earlier(letter, last[letter.host])
        }

    async def sync_letters(self) -> None:
        """Wait until the letters of all hosts that have delivered something are here."""
        for host in set(self._hosts.values()):
            await self._directed.sync_letters(host)

    def merged(self, entries: list[Entry], letters: list[Letter]) -> list[Entry]:
        """Messages and letters, those of each host in the order in which they were stored."""
        by_host: dict[str, deque[Letter]] = {}
        for letter in letters:
            by_host.setdefault(letter.host, deque()).append(letter)
        merged: list[Entry] = []
        for entry in entries:
            of_host = by_host.get(self._hosts.get(entry, self._here), deque())
            while of_host and self._is_earlier(of_host[0], entry):
                merged.append(of_host.popleft())
            merged.append(entry)
        return merged + [letter for rest in by_host.values() for letter in rest]


def return_to_place(hosted: HostedSpace, entries: list[Entry]) -> None:
    """Undo a confirmed take that its process did not get. Messages of this host return to their
    places; those of other hosts, which have removed them, are written here."""
    # Messages of other hosts were never in this store; and an order with books cannot reopen them.
    port = hosted.port
    own = {one: None for one in entries if one.gone and not port.keeps_books}
    try:
        hosted.flush_soon(port.undo_get(list(own), Query(take=True)))
    except SpaceClosed:
        own.clear()
    adopt(hosted, [one for one in entries if one not in own])
