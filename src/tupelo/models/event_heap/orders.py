"""The total orders of a heap, at one host: who adds to them, and what becomes of one whose owner is
gone.

The order of a view is told by records, each written by whoever owned the view then. To own it is to
have its token. The owner gives a place to every event that it gets; whoever wants to put an event
through the view gets the token first, and with it what it lacks of the order, which it tells again
in its own name, since the giver may be gone before others have heard of it.

A view is orphaned when its owner has not been in the group for some seconds. Then, once there is an
event to be placed, the one of its users in the group that has the lowest id collects what the
others know of the order, and makes a clone: a view of a new id, which begins with all of it but the
events that nobody has. The users in that group go on with the clone, and are told.

If the owner comes back, or those who have made another clone, there are several orders of what was
one view. Each gives places to all events; so all but one of those in use are merged into that one,
which is the nearest to the first view: who owns a clone ends it, and says with which view its users
go on. They are told, as they were of the clone, and get in the order of that view what they have
not seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tupelo.errors import BadFrame, LeaseLost, TokenAway, TupeloError
from tupelo.federation.groups.membership import MembershipId
from tupelo.models.event_heap.records import Folded, Placed, ViewMade, is_sound, read_places
from tupelo.models.event_heap.total import TotalOrder

if TYPE_CHECKING:
    from tupelo.models.event_heap.replica import Replica

logger = logging.getLogger("tupelo")


@dataclass(frozen=True)
class ViewCloned:
    """The owner of a view is gone, or is back: another view is used in its place, from now on."""

    old: str
    new: str


class ViewUser(Protocol):
    """Whoever uses an order at this host."""

    def switch(self, order: TotalOrder, cloned: ViewCloned) -> None:
        """Use this one from now on."""
        ...

    def end(self) -> None:
        """The view has ended."""
        ...


class TotalOrders:
    """All orders of a heap that are known at this host, and the views here that use them."""

    def __init__(self, replica: Replica) -> None:
        self.made: dict[str, ViewMade] = {}
        self.used: dict[str, list[ViewUser]] = {}
        """Who uses which view here."""
        self._replica = replica
        self.orders: dict[str, TotalOrder] = {}
        self._clones: dict[str, set[str]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._metadata_version = 0
        self._closed = False

    def order(self, view: str) -> TotalOrder:
        found = self.orders.get(view)
        if found is None:
            found = self.orders[view] = TotalOrder(self._replica, view)
        return found

    async def make(
        self,
        view: str,
        order: str,
        lease: float | None = None,
        parent: TotalOrder | None = None,
        horizon: int | None = None,
    ) -> None:
        """A new view. All events that are here have a place in it at once, first those that have
        one in its `parent`, in that order."""
        made = ViewMade(view, order, host=self._replica.me, lease=lease, horizon=horizon)
        if order == "total":
            total = self.order(view)
            total.horizon = horizon
            if parent is not None:
                places = parent.known  # More may come meanwhile.
                before = self.made.get(parent.id, ViewMade())
                made.parent, made.length = parent.id, len(places)
                made.root, made.depth = before.root or parent.id, (before.depth or 0) + 1
                await total.tell(0, places)
            await self._replica.tokens.create(f"view {view}", luggage=total)
            await total.place_if_owned()
        await self._replica.record(made)

    def use(self, order: TotalOrder, user: ViewUser) -> None:
        order.token.abandoned = False
        order.successor = None
        self.used.setdefault(order.id, []).append(user)
        self._replica.uses.changed(order.id)
        self.look()

    def leave(self, order: TotalOrder, user: ViewUser) -> None:
        users = self.used.get(order.id, [])
        if user in users:
            users.remove(user)
            if not users:
                del self.used[order.id]
                self._rest(order)
                self._replica.uses.changed(order.id)

    def forget(self, view: str, into: str | None) -> None:
        """It has ended: whoever uses it here is told, and may go on with another one."""
        if into is not None and into != view and into not in self._replica.uses.ended:
            self._merge(view, into)
        made = self.made.pop(view, None)
        if made is not None and made.parent in self._clones:
            self._clones[made.parent].discard(view)
        self._clones.pop(view, None)
        order = self.orders.pop(view, None)
        users = self.used.pop(view, [])
        is_served = order is not None and order.begun and order.successor is not None
        for what in ("place", "clone", "ask", *([] if is_served else ["put"])):
            if (task := self._tasks.pop(f"{what} {view}", None)) is not None:
                task.cancel()
        if order is not None:
            self._rest(order)
            if order.successor is None:
                order.end(LeaseLost("this view has ended"), waiting=True)
        for user in users:
            user.end()

    def _merge(self, view: str, into: str) -> None:
        """Who uses the one here uses the other. What waits to be put is put through that; what was
        put gets its place there."""
        order = self.order(view)
        if view in self.used:
            self._switch(order, self.order(into))
            order.give_up_waiting()

    def close(self) -> None:
        self._closed = True
        for order in self.orders.values():
            self._rest(order)
            order.end(self._replica.closing, waiting=True)
        for task in self._tasks.values():
            task.cancel()

    def _rest(self, order: TotalOrder) -> None:
        if order.timer is not None:
            order.timer.cancel()
            order.timer = None
        order.orphaned = order.wanted_elsewhere = False
        order.told = None

    def metadata_changed(self) -> None:
        self._metadata_version += 1
        self._start(f"metadata {self._metadata_version}", self._replica.renew)

    def serve(self, order: TotalOrder) -> None:
        """There is something to be put through it."""
        self._start(f"put {order.id}", order.serve)
        self.look()

    def serve_no_more(self, order: TotalOrder) -> None:
        """Nobody waits any more: the token can stay where it is."""
        serving = self._tasks.pop(f"put {order.id}", None)
        if serving is not None:
            serving.cancel()

    def _start(self, name: str, work: Callable[[], Any]) -> None:
        """Run `work` unless a task of this name is running; look for more when it has ended."""
        running = self._tasks.get(name)
        # A task that has returned looks at nothing any more, though its callback may not have run.
        if self._closed or (running is not None and not running.done()):
            return
        task = self._tasks[name] = asyncio.ensure_future(work())

        def ended(task: asyncio.Task[None]) -> None:
            if self._tasks.get(name) is task:
                del self._tasks[name]
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                self.look()
            elif not isinstance(error, TupeloError):
                logger.error("a view of %r failed", self._replica.name, exc_info=error)

        task.add_done_callback(ended)

    # What is told

    def heard(self, record: ViewMade | Placed | Folded) -> None:
        if record.view in self._replica.uses.ended:
            return
        if isinstance(record, ViewMade):
            if is_sound(record):
                self.made[record.view or ""] = record
                self._replica.uses.made(record.view or "", record.lease)
                if record.order == "total":
                    self.order(record.view or "").horizon = record.horizon
                if record.parent is not None:
                    self._clones.setdefault(record.parent, set()).add(record.view or "")
            return
        try:
            if isinstance(record, Folded):
                order = self.order(record.view or "")
                if order.heard_folded(record):
                    self._replica.forget_places(order.id, order.ordering.base)
                return
            places = read_places(record)
        except BadFrame as error:
            logger.info("a record of %r was passed over: %s", self._replica.name, error)
            return
        self.order(record.view or "").ordering.receive(record.start or 0, places)

    def pack(self, view: str, length: int) -> Any:
        """What is known here of an order after so many places, and how much of its events."""
        order = self.order(view)
        return [order.pack(length), order.marks]

    def lets_put(self, view: str, host: str) -> bool:
        """Has this host the view's token, and does it let another put?"""
        return view in self.orders and self.orders[view].lets_put(host)

    # What is to be done

    def look(self) -> None:
        if self._closed:
            return
        for view in self._replica.uses.used:  # What nobody uses can wait for its places.
            order = self.orders.get(view)
            if order and order.token.here and not order.token.busy and order.unplaced:
                self._start(f"place {order.id}", order.place_if_owned)
            if order and order.token.here and (home := self._home_of(order)) is not None:
                self._start(f"merge {order.id}", partial(self._go_home, order, home))
        for view in list(self.used):
            self._look_after(self.order(view))

    def _look_after(self, order: TotalOrder) -> None:
        if not order.token.is_away:
            self._rest(order)
            return
        clone = self._clone_of(order)
        if clone is not None:
            self._switch(order, clone)
        elif order.orphaned:
            first = self._users(order)[0]
            if first == self._replica.me:
                if order.waiting or order.wanted_elsewhere or order.unplaced:
                    self._start(f"clone {order.id}", lambda: self._clone(order))
            elif order.waiting and order.told != (first, self._replica.membership.id):
                order.told = first, self._replica.membership.id
                self._start(f"ask {order.id}", lambda: self._ask_for_clone(order, first))
        elif order.timer is None:
            loop = asyncio.get_running_loop()
            order.timer = loop.call_later(self._replica.patience, self._orphan, order)

    def _orphan(self, order: TotalOrder) -> None:
        order.timer = None
        order.orphaned = True
        self.look()

    def _clone_of(self, order: TotalOrder) -> TotalOrder | None:
        """A clone that was made by someone who is here."""
        members = self._replica.membership.members
        for view in sorted(self._clones.get(order.id, ())):
            made = self.made[view]
            if made.host in members and len(self.order(view).ordering) >= (made.length or 0):
                return self.order(view)
        return None

    def _home_of(self, order: TotalOrder) -> str | None:
        """The view to which the users of a clone go back, if it is used and owned by someone within
        reach."""
        made = self.made.get(order.id)
        if made is None or made.root is None:
            return None
        best = made.depth or 0, order.id
        for view in self._replica.uses.used:
            other = self.made.get(view)
            if other is not None and made.root in (other.root, view):
                token = self.order(view).token
                is_owned = token.here or (token.holder is not None and not token.is_away)
                if is_owned and other.order == "total":
                    best = min(best, (other.depth or 0, view))
        return None if best[1] == order.id else best[1]

    async def _go_home(self, order: TotalOrder, home: str) -> None:
        """It must not be used meanwhile: what it has put has its place in it."""
        with suppress(TokenAway):
            async with order.token.held(ask=False):
                if self._home_of(order) == home:
                    await self._replica.uses.end(order.id, home)

    def _users(self, order: TotalOrder) -> list[str]:
        part = f"event heap {self._replica.name}"
        members = self._replica.membership.members.values()
        others = [one.host for one in members if order.id in (one.metadata_of.get(part) or [])]
        return sorted({self._replica.me, *others})

    async def _ask_for_clone(self, order: TotalOrder, host: str) -> None:
        await self._replica.voice.ask(host, ["clone", order.id])

    def asked_for_clone(self, view: str) -> None:
        """Someone of its users wants to put something through it."""
        if view in self.used:
            self.order(view).wanted_elsewhere = True
            self.look()

    async def _clone(self, order: TotalOrder) -> None:
        """Collect what those within reach know of the order, and wait for what they have of its
        events. What none of them has may be lost, and has no place in the clone; it gets one later
        if it turns up. Nobody here has read beyond that."""
        replica, membership = self._replica, self._replica.membership.id
        marks: dict[str, int] = {}
        for host in replica.others:
            more = True
            while more and replica.membership.id == membership:
                before = len(order.ordering)
                answer = await replica.voice.ask(host, ["order", order.id, before])
                if answer is None:
                    break
                (start, places), there = order.read_known(answer)
                order.ordering.receive(start, places)
                for source, upto in there.items():
                    marks[source] = max(marks.get(source, 0), upto)
                if start > len(order.ordering):  # It is folded there, which we have not heard yet.
                    await replica.until(partial(self._has_heard, order, start, membership))
                more = len(order.ordering) > before
        await replica.until(lambda: order.reaches(marks) or replica.membership.id != membership)
        if replica.membership.id != membership:
            return  # Some of them may be gone, or others here: it is looked again.
        if order.orphaned and self._clone_of(order) is None:
            lease, horizon = replica.uses.leases.get(order.id), order.horizon
            await self.make(replica.core.new_id(), "total", lease, order, horizon)

    def _has_heard(self, order: TotalOrder, length: int, membership: MembershipId) -> bool:
        """Is so much of it known here, or has the group changed?"""
        return len(order.ordering) >= length or self._replica.membership.id != membership

    def _switch(self, old: TotalOrder, new: TotalOrder) -> None:
        """Who uses the old one here uses the new one."""
        self._rest(old)
        users = self.used.pop(old.id)
        old.successor, new.successor = new, None
        old.token.abandoned, new.token.abandoned = True, False
        self._replica.tokens.broadcast.ring()
        self.used.setdefault(new.id, []).extend(users)
        for user in users:
            user.switch(new, ViewCloned(old.id, new.id))
        self._replica.uses.changed(old.id)
        self._replica.uses.changed(new.id)
