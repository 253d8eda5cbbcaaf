"""Random programs of every API on one space: JavaSpaces, Linda, XVSM and tupelo itself.

Whatever the door, the answer is the naive model's, and what is done at one door is seen at the
others; with transactions of every door, leases and a clock that is moved by hand. These are the
programs of `test_stateful`, which go through all doors. `TUPELO_EXAMPLES=2000` runs that many.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

import tupelo
from tests.conftest import core_of
from tests.simulation import domain, model
from tests.simulation.domain import Asking, Ordering
from tests.simulation.test_stateful import (
    EXAMPLES,
    OTHER,
    REACTIONS_MAX,
    START,
    Begin,
    End,
    Programs,
    Request,
    Write,
    begins,
    deeds,
    ends,
    flag,
    fraction,
    pauses,
    pick,
    profile,
    requests,
    seconds,
    seldom,
    writes,
)
from tupelo.errors import (
    CannotAbort,
    CannotCommit,
    CannotJoin,
    CountNotMet,
    MatchSetInvalid,
    TupeloError,
)
from tupelo.models.javaspaces import FOREVER, NO_WAIT, JavaSpace05, TransactionManager
from tupelo.models.javaspaces import Transaction as JavaTransaction
from tupelo.models.linda import TupleSpace
from tupelo.models.xvsm import (
    COUNT_MAX,
    INFINITE,
    INFINITE_TIMEOUT,
    TRY_ONCE,
    AsyncCapi,
    Capi,
    LindaCoordinator,
    LindaSelector,
)
from tupelo.space.shared import SharedTransaction

if EXAMPLES:
    pytestmark = pytest.mark.timeout(0)

SHARED = 0.625  # Shared transactions end at a fraction of a second of their own.
JOBS = [entry for entry in domain.ENTRIES if isinstance(entry, domain.Job)]


@dataclass(frozen=True)
class Collect(domain.Printed):
    """Linda: all matches are taken and written again, or written a second time."""

    asking: Asking
    copied: bool


@dataclass(frozen=True)
class EitherOf(domain.Printed):
    """JavaSpace05, XVSM: take what matches one of two templates, at most so many."""

    first: Asking
    second: Asking
    limit: int
    txn: int | None


doors = st.sampled_from(["space", "javaspaces", "linda", "linda", "xvsm", "xvsm"])
templates = st.sampled_from(domain.POPULAR_TEMPLATES) | st.sampled_from(domain.TEMPLATES)
job_writes = st.builds(
    Write,
    st.lists(st.sampled_from(JOBS), min_size=1, max_size=3),
    lease=seconds,
    txn=st.sampled_from([None, 0, 1]),
)
collects = st.builds(Collect, templates, copied=flag)
eithers = st.builds(
    EitherOf, templates, templates, limit=st.sampled_from([0, 1, 2]), txn=st.sampled_from([None, 0])
)
often = [requests] * 8 + [writes, job_writes] * 3 + [begins] * 2
rarely = [ends, pauses, collects, eithers]
works = st.sampled_from(often + rarely).flatmap(lambda strategy: strategy)
Deed = Any


class Twin(model.Space):
    """The model, which also remembers what was taken for good, as match sets do."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.taken_for_good: list[model.Item] = []

    def _acquire(
        self, item: model.Item, take: bool, txn: model.Txn | None, session: model.Session | None
    ) -> None:
        super()._acquire(item, take, txn, session)
        if take and txn is None:
            self.taken_for_good.append(item)

    def _settle(self, txn: model.Txn) -> None:
        self.taken_for_good += [item for item in txn.takes if item.writer is None]
        super()._settle(txn)


class ManyDoors(Programs):
    """The programs of one space, at its doors. `contained`: it is the space of a container."""

    contained: ClassVar[bool] = False
    at = "space"
    other = False  # Where a door offers two ways, it is the other one.

    # Opening and closing

    @initialize(
        order=st.sampled_from([domain.FIFO, *domain.ORDERS]),
        capacity=st.sampled_from([None, None, None, 5]),
        small=flag,
        route=st.lists(st.tuples(doors, flag), min_size=1, max_size=40),
    )
    def open(
        self,
        order: Ordering,
        capacity: int | None,
        small: bool,
        route: list[tuple[str, bool]],
    ) -> None:
        self.route = cycle(route)
        self.capacity = capacity
        order = domain.FIFO if self.contained else order
        super().open(order=order, capacity=capacity, evict=None, longest=None, small=small)
        self.twin: Twin = Twin(START, order.arrange, capacity, None, None, REACTIONS_MAX)

    def connect(self) -> None:
        super().connect()
        self.capi: Any = None
        if self.contained:
            self.space.close()
            self.enter_the_container()
        self.javaspace: Any = JavaSpace05(self.space)
        self.awaited_javaspace: Any = JavaSpace05(self.door)
        self.linda = TupleSpace(self.space)
        self.manager = TransactionManager(clock=self.clock)

    def enter_the_container(self) -> None:
        """The space of all doors is that of an XVSM container."""
        folder = self.folder / "xvsm"
        is_new = not folder.exists()
        self.capi = Capi(folder if self.kept == "on disk" else None, clock=self.clock)
        self.awaited_capi = AsyncCapi(self.capi)
        if is_new:
            size = INFINITE if self.capacity is None else self.capacity
            self.cref = self.capi.create_container(None, None, "c", size, LindaCoordinator())
        else:
            self.cref = self.capi.lookup_container(None, None, "c")
        self.space = self.cref.space
        core_of(self.space).reactions_max = REACTIONS_MAX
        self.door = self.cref.aio

    def close(self) -> None:
        super().close()
        self.manager.close()
        if self.capi is not None:
            self.capi.close()

    # Doing something at a door

    @rule(work=st.lists(works, min_size=1, max_size=12))
    def work_at_the_doors(self, work: list[Deed]) -> None:
        self.do(work)

    def do(self, deeds: list[Deed]) -> None:
        """One thing at this door, the next at that."""
        for deed in deeds:
            self.at, self.other = next(self.route)
            if self.at == "xvsm" and not self.contained:
                self.at = "javaspaces"
            match deed:
                case Collect():
                    self.collect(deed)
                case EitherOf():
                    self.take_either(deed)
                case Request():
                    super().do([self.as_asked_here(deed)])
                case _:
                    super().do([deed])
        self.at, self.other = "space", False

    def as_asked_here(self, deed: Request) -> Request:
        """Orders and sessions are tupelo's; Linda has no transactions, and waits in a thread."""
        if self.at == "space":
            return deed
        deed = replace(deed, order=None, session=None)
        if self.at == "linda":
            deed = replace(deed, waits=False, awaited=False, txn=None, limit=deed.limit and 0)
        return deed

    # Writing

    def write(self, deed: Write) -> None:
        txn, twin = pick(self.txns, deed.txn)
        door, only = self.at, deed.entries[0] if len(deed.entries) == 1 else None
        mixed = [deed.lease, *[None] * (len(deed.entries) - 1)]
        real: Callable[[], Any]
        if door == "javaspaces" and all(isinstance(entry, domain.Job) for entry in deed.entries):
            lease = FOREVER if deed.lease is None else deed.lease
            if only is not None:
                entry = self.javaspace.snapshot(only) if self.other else only
                real = lambda: [self.javaspace.write(entry, txn, lease)]  # noqa: E731
            elif self.other and deed.lease is not None:
                leases = [FOREVER if one is None else one for one in mixed]
                self.written(
                    lambda: self.javaspace.write(deed.entries, txn, leases),
                    lambda: self.write_each(deed.entries, mixed, twin),
                )
                return
            else:
                real = lambda: self.javaspace.write(deed.entries, txn, lease)  # noqa: E731
        elif door == "linda" and only is not None and deed.lease is None and txn is None:
            self.both(lambda: self.linda.out(only), lambda: self.twin.write_all([only]))
            return
        elif door == "xvsm" and deed.lease is None and not isinstance(txn, tupelo.Transaction):
            real = lambda: self.capi.write(self.cref, TRY_ONCE, txn, *deed.entries)  # noqa: E731
        else:
            super().write(deed)
            return
        self.written(real, lambda: self.twin.write_all(deed.entries, deed.lease, twin))

    def written(self, real: Callable[[], Any], twin: Callable[[], list[model.Item]]) -> None:
        granted, items = self.both(real, twin)
        if granted is not None:
            bare = [getattr(lease, "granted", lease) for lease in granted]
            self.leases += zip(bare, items, strict=True)
            del self.leases[:-30]

    def write_each(
        self, values: list[Any], leases: list[float | None], txn: model.Txn | None
    ) -> list[model.Item]:
        """They appear together, and end one by one."""
        items = self.twin.write_all(values, None, txn)
        for item, lease in zip(items, leases, strict=True):
            item.expires = None if lease is None else self.twin.now + lease
        return items

    # Reading and taking

    def blocking(self, deed: Request, options: dict[str, Any]) -> Any:
        if self.at == "space":
            return super().blocking(deed, options)
        txn, other = options.get("txn"), self.other
        door, template = self.at, deed.asking.template
        if self.java_can(deed.asking):
            return self.at_javaspaces(deed, self.java_template(template), txn)
        if door == "linda":
            return self.at_linda(deed, template, other)
        if self.xvsm_can(deed.asking, txn):
            return self.at_xvsm(deed, txn)
        return super().blocking(deed, options)

    def java_can(self, *askings: Asking) -> bool:
        """There a template is an entry, and no tuple is one."""
        return self.at == "javaspaces" and not any(
            isinstance(asking.template, tuple) for asking in askings
        )

    def java_template(self, template: Any) -> Any:
        """None is anything, and a snapshot stands for its entry."""
        if template is tupelo.ANY:
            return None
        is_typed = isinstance(template, domain.Job)
        return self.javaspace.snapshot(template) if is_typed and self.other else template

    def at_javaspaces(self, deed: Request, template: Any, txn: Any) -> Any:
        space, other, most = self.javaspace, self.other, deed.limit or None
        if deed.limit is None:
            if deed.take:
                return (space.take_if_exists if other else space.take)(template, txn, NO_WAIT)
            return (space.read_if_exists if other else space.read)(template, txn, NO_WAIT)
        if deed.take:
            return space.take([template], txn, NO_WAIT, most)
        return list(space.contents([template], txn, FOREVER, most))

    def at_linda(self, deed: Request, template: Any, other: bool) -> Any:
        linda = self.linda
        if deed.limit is not None:
            return linda.ing(template) if deed.take else linda.rdg(template)
        if other and self.twin.find(deed.asking.means, None, deed.take):
            return linda.in_(template) if deed.take else linda.rd(template)  # It need not wait.
        return linda.inp(template) if deed.take else linda.rdp(template)

    def xvsm_can(self, asking: Asking, txn: Any) -> bool:
        """There None stands for anything in a tuple, too."""
        asks_for_none = type(asking.template) is tuple and None in asking.template
        return (
            self.at == "xvsm"
            and not asks_for_none
            and (txn is None or isinstance(txn, SharedTransaction))
        )

    def at_xvsm(self, deed: Request, txn: Any) -> Any:
        selector = selector_of(deed.limit, deed.asking.template)
        get = self.capi.take if deed.take else self.capi.read
        try:
            found = get(self.cref, TRY_ONCE, txn, selector)
        except CountNotMet:
            found = []
        return (found[0] if found else None) if deed.limit is None else found

    def awaiting(
        self, deed: Request, options: dict[str, Any], wait: float | None
    ) -> Coroutine[Any, Any, Any]:
        if self.at == "space":
            return super().awaiting(deed, options, wait)
        txn, if_exists = options.get("txn"), options.get("if_exists", False)
        space = self.awaited_javaspace
        timeout = FOREVER if wait is None else wait
        answer: Coroutine[Any, Any, Any]
        if self.java_can(deed.asking) and (deed.limit is None or deed.take):
            template = self.java_template(deed.asking.template)
            if deed.limit is not None:
                answer = space.take([template], txn, timeout, deed.limit or None)
            elif if_exists:
                get = space.take_if_exists if deed.take else space.read_if_exists
                answer = get(template, txn, timeout)
            else:
                answer = (space.take if deed.take else space.read)(template, txn, timeout)
            return answer
        if deed.limit is None and not if_exists and self.xvsm_can(deed.asking, txn):
            return self.awaiting_xvsm(deed, txn, INFINITE_TIMEOUT if wait is None else wait)
        return super().awaiting(deed, options, wait)

    async def awaiting_xvsm(self, deed: Request, txn: Any, timeout: float) -> Any:
        get = self.awaited_capi.take if deed.take else self.awaited_capi.read
        try:
            found = await get(self.cref, timeout, txn, selector_of(None, deed.asking.template))
        except CountNotMet:
            return None
        return found[0]

    def take_either(self, deed: EitherOf) -> None:
        txn, twin = pick(self.txns, deed.txn)
        both = [deed.first, deed.second]
        limit = deed.limit or None

        def real() -> Any:
            if all(self.xvsm_can(one, txn) for one in both):
                asked = [one.template for one in both]
                try:
                    return self.capi.take(self.cref, 0, txn, selector_of(deed.limit, *asked))
                except CountNotMet:
                    return []
            if self.java_can(*both):
                templates = [self.java_template(one.template) for one in both]
                return self.javaspace.take(templates, txn, NO_WAIT, limit)
            either = tupelo.Template.any_of(one.template for one in both)
            return self.space.take_all(either, limit=limit, txn=txn)

        got, items = self.both(
            real,
            lambda: self.twin.get(
                lambda value: any(one.means(value) for one in both), deed.limit, True, twin
            ),
        )
        if items is not None:
            assert repr(got) == repr([item.value for item in items])

    def collect(self, deed: Collect) -> None:
        """Into the space itself."""
        asked, means = deed.asking.template, deed.asking.means

        def moved() -> int:
            step = self.twin.begin()
            try:
                found = [item.value for item in self.twin.get(means, 0, True, step)]
                self.twin.write_all(found, None, step)
            except TupeloError:
                self.twin.abort(step)
                raise
            self.twin.commit(step)
            return len(found)

        def copied() -> int:
            found = [item.value for item in self.twin.get(means, 0, False)]
            self.twin.write_all(found)
            return len(found)

        if deed.copied and self.twin.count(means) > 8:
            return  # or there would be ever more
        collect = self.linda.copy_collect if deed.copied else self.linda.collect
        got, expected = self.both(
            lambda: collect(self.linda, asked), copied if deed.copied else moved
        )
        assert got == expected
        assert self.linda.count(asked) == self.twin.count(means)

    # Transactions

    def begin(self, deed: Begin) -> None:
        above, twin = pick(self.txns, deed.parent)
        door = self.at
        if isinstance(above, tupelo.Transaction) or (above is None and door in ("space", "linda")):
            super().begin(deed)
            return
        lease = None if deed.lease is None else deed.lease + SHARED

        def real() -> Any:
            if above is not None:
                return above.transaction(lease=lease)
            if door == "xvsm":
                return self.capi.create_transaction(
                    None, INFINITE_TIMEOUT if lease is None else lease
                )
            return self.manager.create(FOREVER if lease is None else lease).transaction

        def modelled() -> model.Txn:
            if isinstance(above, JavaTransaction) and twin.state != "active":
                raise CannotJoin(above.id, twin.state)
            return self.twin.begin(lease, twin)

        txn, begun = self.both(real, modelled)
        if txn is not None:
            if above is not None:
                # The space learns of it when it is first used. Those that are nested in one are
                # aborted in the order in which it did, and the model knows but one order.
                self.space.count(txn=txn)
            self.txns.insert(0, (txn, begun))
            self.leases.append((txn.lease, begun))

    def end(self, deed: End) -> None:
        txn, twin = pick(self.txns, deed.txn)
        if not isinstance(txn, SharedTransaction):
            super().end(deed)
            return
        commits = deed.how != "abort"

        def real() -> None:
            try:
                if self.at == "xvsm":
                    capi = self.capi
                    (capi.commit_transaction if commits else capi.rollback_transaction)(txn)
                else:
                    (txn.commit if commits else txn.abort)()
            except CannotCommit as error:
                raise error.__cause__ or error from None

        def modelled() -> None:
            # XVSM's words are stricter: there it is an error in any case.
            if isinstance(txn, JavaTransaction) and twin.state != "active" and self.at != "xvsm":
                outcome = "committed" if commits else "aborted"
                if twin.state == outcome:  # Asking for what has happened is no error.
                    return
                raise CannotCommit(txn.id, "", "model") if commits else CannotAbort(txn.id)
            (self.twin.commit if commits else self.twin.abort)(twin)

        self.both(real, modelled)
        assert txn.state == twin.state

    @precondition(lambda self: self.leases)
    @rule(before=deeds, which=st.integers(0, 50), lease=seconds, cancelled=seldom)
    def change_lease(
        self, before: list[Any], which: int, lease: float | None, cancelled: bool
    ) -> None:
        self.do(before)
        granted, thing = pick(self.leases, which)
        if lease is not None:
            shared = isinstance(granted.landlord, SharedTransaction)
            lease += SHARED if shared else fraction(thing)
        if cancelled:
            self.both(granted.cancel, lambda: self.twin.cancel(thing))
        else:
            self.both(lambda: granted.renew(lease), lambda: self.twin.renew(thing, lease))
        self.let_tasks_run()

    # Match sets

    @rule(
        before=st.lists(works, max_size=5),
        asking=templates,
        most=st.sampled_from([None, None, 2]),
        lease=seconds,
        first=st.integers(0, 2),
        after=st.lists(works, max_size=5),
    )
    def look_at_the_contents(
        self,
        before: list[Deed],
        asking: Asking,
        most: int | None,
        lease: float | None,
        first: int,
        after: list[Deed],
    ) -> None:
        """A match set is read bit by bit, while others go on."""
        self.do(before)
        if lease is not None:
            lease += OTHER
        template = asking.template
        if isinstance(template, tuple):
            template = tupelo.Template(template)
        found, items = self.both(
            lambda: self.javaspace.contents(
                [template], None, FOREVER if lease is None else lease, most
            ),
            lambda: self.twin.get(asking.means, most or 0, False),
        )
        until = None if lease is None else self.twin.now + lease
        self.twin.taken_for_good = []
        expected = items[:first]
        assert repr([found.next() for _ in expected]) == repr([item.value for item in expected])
        self.do(after)
        self.let_tasks_run()
        rest = items[len(expected) :]
        is_over = until is not None and until <= self.twin.now
        if items and not rest:  # All are handed out: nothing that happens later changes that.
            assert found.next() is None
            return
        if is_over or any(item in self.twin.taken_for_good for item in rest):
            with pytest.raises(MatchSetInvalid):
                found.next()
            return
        for item in rest:
            if item.taker is not None:
                break
            if item in self.twin.items:
                assert repr(found.next()) == repr(item.value)
        else:
            assert found.next() is None
            return
        with pytest.raises(MatchSetInvalid):
            found.next()


def selector_of(limit: int | None, *templates: Any) -> LindaSelector:
    """The selector of as many as a request asks for: one, at most so many, or all."""
    if limit is None:
        return LindaSelector(*templates)
    if limit == 0:
        return LindaSelector(*templates, count=COUNT_MAX)
    return LindaSelector(*templates, count=limit, min_count=0, max_count=limit)


class InMemory(ManyDoors):
    pass


class Durable(ManyDoors):
    kept = "on disk"


class Contained(ManyDoors):
    contained = True


class ContainedDurable(ManyDoors):
    contained = True
    kept = "on disk"


TestInMemory = InMemory.TestCase
TestInMemory.settings = profile(5)
TestDurable = Durable.TestCase
TestDurable.settings = profile(4)
TestContained = Contained.TestCase
TestContained.settings = profile(5)
TestContainedDurable = ContainedDurable.TestCase
TestContainedDurable.settings = profile(4)
