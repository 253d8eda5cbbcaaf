"""Shared transactions: one over several spaces, at every door and on every store."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

import tupelo
from tests.conftest import Call, HandClock, parked_call
from tests.laws.doors import Door, LoopThread
from tupelo import aio
from tupelo.errors import (
    BadArgument,
    CannotCommit,
    CannotJoin,
    Deadlock,
    LeaseLost,
    OutcomeUnknown,
    ReactionFailed,
    TransactionEnded,
    TransactionError,
)
from tupelo.models.javaspaces import JavaSpace05
from tupelo.space.port import port_of
from tupelo.space.shared import SharedTransaction

PLACES = [(door, store) for door in ("blocking", "async") for store in ("memory", "durable")]


class JumpingClock(HandClock):
    """Time can have passed without anybody having been called yet, as on a busy machine."""

    def jump(self, seconds: float) -> None:
        self._now += seconds


class Lazy:
    """A participant that takes part in every way that it is told to."""

    name = label = "lazy"
    txn_id = "its own"
    lasting = True

    def __init__(self, **answers: Any) -> None:
        self.calls: list[str] = []
        self._answers = answers

    def _answer(self, what: str) -> Any:
        self.calls.append(what)
        answer = self._answers.get(what, "prepared" if what == "prepare" else "committed")
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer

    def prepare(self) -> Any:
        return self._answer("prepare")

    def commit(self) -> None:
        self._answer("commit")

    def abort(self) -> None:
        self._answer("abort")

    def prepare_and_commit(self) -> Any:
        return self._answer("prepare_and_commit")

    def has_committed(self) -> None:
        """It does not say."""


@pytest.fixture(scope="module")
def loop_thread():
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def make(loop_thread, clock, tmp_path):
    """`make(door, store)`: a new space."""
    made: list[Any] = []

    def make_it(door: str = "blocking", store: str = "memory", **options: Any) -> Any:
        options = {"clock": clock, "log_keep": "all", **options}
        if store == "durable":
            options.update(path=tmp_path / f"{len(made)}", durability="process")
        if door == "blocking":
            made.append(tupelo.Space(f"s{len(made)}", **options))
        else:
            inner = loop_thread.call(aio.Space, f"s{len(made)}", **options)
            made.append(Door(inner, loop_thread))
        return made[-1]

    yield make_it
    for space in made:
        space.close()


@pytest.fixture(params=PLACES, ids="-".join)
def space(request, make):
    """A space at every door and on every store."""
    return make(*request.param)


@pytest.fixture
def pair(make):
    return make(), make()


@pytest.fixture
def begin(clock):
    def begin_it(lease: float | None = None) -> SharedTransaction:
        return SharedTransaction(clock, lease)

    return begin_it


def kinds(space: Any) -> list[str]:
    return [change.kind for change in space.changes()]


# Every operation takes it


def test_what_is_written_is_seen_within_and_after_the_commit(space, begin):
    txn = begin()
    space.write(("a", 1), txn=txn)
    space.write_all([("a", 2), ("a", 3)], txn=txn)
    assert space.count(("a", int)) == 0
    assert space.read(("a", int), wait=0) is None
    assert space.read_all(("a", int)) == []
    assert space.count(("a", int), txn=txn) == 3
    assert space.read(("a", 1), txn=txn) == ("a", 1)
    assert space.read_all(("a", int), txn=txn) == [("a", 1), ("a", 2), ("a", 3)]
    txn.commit()
    assert space.take_all() == [("a", 1), ("a", 2), ("a", 3)]


def test_what_is_taken_is_out_of_sight_and_comes_back(space, begin):
    space.write_all([("a", n) for n in range(5)])
    txn = begin()
    assert space.take(("a", 0), txn=txn) == ("a", 0)
    assert space.take_all(("a", int), txn=txn, limit=2) == [("a", 1), ("a", 2)]
    assert space.read_all() == [("a", 3), ("a", 4)]
    assert space.read_all(txn=txn) == [("a", 3), ("a", 4)]
    txn.abort()
    assert space.read_all() == [("a", n) for n in range(5)]


def test_what_is_read_may_be_read_and_not_taken(space, begin):
    space.write(("a", 1))
    txn, other = begin(), begin()
    assert space.read(("a", int), txn=txn) == ("a", 1)
    assert space.read(("a", int), txn=other) == ("a", 1)
    assert space.take(("a", int), wait=0) is None
    assert space.take(("a", int), wait=0, txn=txn) is None
    other.abort()
    assert space.take(("a", int), wait=0, txn=txn) == ("a", 1)
    txn.commit()
    assert space.count() == 0


def test_reading_all_holds_all(space, begin):
    space.write_all([("a", 1), ("a", 2)])
    txn = begin()
    space.read_all(("a", int), txn=txn)
    assert space.take_all() == []
    txn.commit()
    assert space.take_all() == [("a", 1), ("a", 2)]


def test_a_subscription_within_hears_what_is_written_within_and_ends_with_it(space, begin):
    txn = begin()
    within = space.subscribe(("a", int), txn=txn)
    outside = space.subscribe(("a", int))
    space.write(("a", 1), txn=txn)
    assert within.get(wait=0).entry == ("a", 1)
    assert outside.get(wait=0) is None
    txn.commit()
    assert not within.active
    assert outside.get(wait=0).entry == ("a", 1)


def test_a_match_set_within_sees_what_is_written_within(make, begin):
    jobs = JavaSpace05(make())
    txn = begin()
    jobs.space.write(("a", 1), txn=txn)
    assert list(jobs.contents([None], txn)) == [("a", 1)]
    assert list(jobs.contents([None])) == []


def test_a_take_within_waits_for_what_is_written_within(make, begin):
    space, txn = make(), begin()
    call = parked_call(space, space.take, ("a", int), txn=txn)
    space.write(("a", 1), txn=txn)
    assert call.result() == ("a", 1)
    txn.commit()
    assert space.count() == 0


def test_a_commit_wakes_those_who_wait_in_all_spaces(pair, begin):
    txn = begin()
    calls = [parked_call(space, space.take, ("a", int)) for space in pair]
    for n, space in enumerate(pair):
        space.write(("a", n), txn=txn)
    assert all(call.waits for call in calls)
    txn.commit()
    assert [call.result() for call in calls] == [("a", 0), ("a", 1)]


def test_a_transaction_of_another_space_is_refused(make):
    with pytest.raises(BadArgument, match="txn"):
        make().write(("a",), txn=make().transaction())


@pytest.mark.parametrize("lease", [0, -1, "soon", True, float("nan")])
def test_a_lease_that_is_none_is_refused(clock, lease):
    with pytest.raises(BadArgument, match="lease"):
        SharedTransaction(clock, lease)


# Several spaces


def test_all_doors_and_stores_take_part_in_one(make, begin):
    spaces = [make(*place) for place in PLACES]
    for space in spaces:
        space.write(("old",))
    txn = begin()
    for space in spaces:
        space.take(("old",), txn=txn)
        space.write(("new",), txn=txn)
    txn.commit()
    assert txn.state == "committed"
    assert [space.read_all() for space in spaces] == [[("new",)]] * 4


def test_all_doors_and_stores_are_undone_together(make, begin):
    spaces = [make(*place) for place in PLACES]
    txn = begin()
    for space in spaces:
        space.write(("new",), txn=txn)
    txn.abort()
    assert [space.count() for space in spaces] == [0] * 4


def test_an_async_commit_and_abort(clock, tmp_path):
    async def main() -> None:
        spaces = [aio.Space("memory", clock=clock), aio.Space("durable", path=tmp_path / "s")]
        async with SharedTransaction(clock) as txn:
            for space in spaces:
                await space.write(("a",), txn=txn)
        assert [await space.count() for space in spaces] == [1, 1]
        lost = SharedTransaction(clock)
        for space in spaces:
            await space.take(txn=lost)
        await lost.abort_async()
        with pytest.raises(KeyError):
            async with SharedTransaction(clock) as failed:
                await spaces[0].take(txn=failed)
                raise KeyError
        assert failed.state == lost.state == "aborted"
        assert [await space.count() for space in spaces] == [1, 1]
        for space in spaces:
            await space.close()

    asyncio.run(main())


def test_one_space_commits_without_a_vote_and_several_with_one(make, begin):
    alone = make()
    with begin() as txn:
        alone.write(("a",), txn=txn)
    assert kinds(alone) == ["written"]
    spaces = [make(), make()]
    with begin() as txn:
        for space in spaces:
            space.write(("a",), txn=txn)
    assert [kinds(space) for space in spaces] == [["prepared", "written", "committed"]] * 2


def test_a_space_that_was_only_read_has_no_say(make, begin):
    read, written = make(), make()
    read.write(("a",))
    with begin() as txn:
        read.read(("a",), txn=txn)
        written.write(("b",), txn=txn)
    assert kinds(written) == ["written"]
    assert read.take(wait=0) == ("a",)


def test_one_that_was_not_used_commits(begin):
    txn = begin()
    txn.commit()
    assert txn.state == "committed"


def test_a_space_that_is_closed_spoils_it_for_all(pair, begin):
    first, second = pair
    txn = begin()
    first.write(("a",), txn=txn)
    second.write(("b",), txn=txn)
    second.close()
    with pytest.raises(CannotCommit) as caught:
        txn.commit()
    assert caught.value.txn_id == txn.id
    assert txn.state == "aborted"
    assert first.read_all() == [] and not first.in_doubt()


def test_a_reaction_that_fails_spoils_it_for_all(pair, begin):
    def refuse(entry, step):
        raise ValueError("no")

    first, second = pair
    second.react(("b",), refuse)
    for spaces in (pair, pair[::-1], [second]):
        txn = begin()
        for space in spaces:
            space.write(("a",) if space is first else ("b",), txn=txn)
        with pytest.raises(CannotCommit) as caught:
            txn.commit()
        assert isinstance(caught.value.__cause__, ReactionFailed)
        assert first.count() == second.count() == 0


def test_a_space_in_memory_that_closes_after_its_promise_takes_nothing_back(pair, begin):
    first, second = pair
    txn = begin()
    first.write(("a",), txn=txn)
    second.write(("b",), txn=txn)
    txn.enlist(Lazy(prepare_and_commit=0, prepare=lambda: (first.close(), "prepared")[1]))
    txn.commit()
    assert txn.state == "committed" and txn.untold == []
    assert second.read_all() == [("b",)]


def test_a_space_does_not_grant_less_than_the_transaction_has(make, begin, clock):
    """How long it lives is its own business: a branch that ends before would spoil it unseen."""

    def brief(kind: str, asked: float | None) -> float | None:
        return 5 if kind == "transaction" else asked

    short, long = make(lease_policy=brief), make()
    txn = begin(60)
    short.write(("a",), txn=txn)
    long.write(("b",), txn=txn)
    clock.advance(6)
    txn.lease.renew(60)
    clock.advance(59)
    assert short.count(txn=txn) == 1
    txn.commit()
    assert (short.count(), long.count()) == (1, 1)


def test_transactions_that_wait_for_each_other_are_told(make, begin):
    space = make()
    space.write_all([("a",), ("b",)])
    one, other = begin(), begin()
    space.take(("a",), txn=one)
    space.take(("b",), txn=other)
    call = parked_call(space, space.take, ("b",), txn=one)
    with pytest.raises(Deadlock):
        space.take(("a",), txn=other)
    other.abort()
    assert call.result() == ("b",)


def test_a_circle_that_a_cancelled_take_closes_is_told(clock):
    """What it was given goes back to the transaction that wrote it, and others depend on it."""

    async def main() -> None:
        blocking = tupelo.Space("s", clock=clock)
        space, one, other = aio.Space(blocking), SharedTransaction(clock), SharedTransaction(clock)
        await space.write(("x",), txn=one)
        waiting = []
        for entry, txn in ((("y",), one), (("x",), other), (("y",), other)):
            waiting.append(asyncio.create_task(space.take(entry, txn=txn)))
            await asyncio.sleep(0)
        first, second, cancelled = waiting
        blocking.write(("y",), txn=other)
        cancelled.cancel()
        with pytest.raises(Deadlock):
            await asyncio.wait_for(second, 5)
        other.commit()
        assert await first == ("y",)
        await space.close()

    asyncio.run(main())


# Others who take part


def test_the_only_one_is_asked_and_told_at_once(begin):
    lazy, txn = Lazy(), begin()
    txn.enlist(lazy)
    txn.commit()
    assert lazy.calls == ["prepare_and_commit"]


def test_one_who_has_not_changed_is_left_alone(make, begin):
    space = make()
    for refusal in (None, "aborted"):
        idle, other = Lazy(prepare="not changed"), Lazy(prepare_and_commit=refusal or "committed")
        txn = begin()
        txn.enlist(idle)
        txn.enlist(other)
        with suppress(CannotCommit):
            txn.commit()
        assert idle.calls == ["prepare"]
    txn = begin()
    idle = Lazy(prepare="not changed")
    txn.enlist(idle)
    space.write(("a",), txn=txn)
    txn.commit()
    assert kinds(space) == ["written"]


@pytest.mark.parametrize("vote", ["aborted", "perhaps", None, OSError("away")])
def test_one_who_does_not_promise_spoils_it_for_all(make, begin, vote):
    space, lazy, txn = make(), Lazy(prepare=vote), begin()
    txn.enlist(lazy)
    space.write(("a",), txn=txn)
    with pytest.raises(CannotCommit, match="lazy"):
        txn.commit()
    assert lazy.calls == ["prepare", "abort"]
    assert space.count() == 0 and txn.state == "aborted"


def test_if_the_only_one_does_not_answer_the_outcome_is_unknown(begin):
    lazy, txn = Lazy(prepare_and_commit=OSError("the line went dead")), begin()
    txn.enlist(lazy)
    with pytest.raises(OutcomeUnknown, match="lazy"):
        txn.commit()
    assert txn.state == "unknown" and txn.ended
    assert lazy.calls == ["prepare_and_commit"]
    with pytest.raises(TransactionEnded, match="unknown"):
        txn.commit()


def test_one_who_cannot_be_told_is_told_later(make, begin):
    space, txn, away = make(), begin(), [OSError("away")]
    lazy = Lazy(commit=lambda: away and (_ for _ in ()).throw(away.pop()))
    space.write(("a",), txn=txn)
    txn.enlist(lazy)
    txn.enlist(Lazy())
    txn.commit()
    assert txn.state == "committed" and space.count() == 1
    assert txn.untold == ["lazy"]
    assert txn.retry()
    assert txn.untold == [] and lazy.calls == ["prepare", "commit", "commit"]


def test_who_comes_during_the_vote_comes_too_late(make, begin):
    space, txn = make(), begin()

    def ask() -> str:
        assert txn.state == "voting"
        with pytest.raises(CannotJoin, match="too late"):
            txn.enlist(Lazy())
        with pytest.raises(TransactionEnded, match="voting"):
            space.write(("b",), txn=txn)
        with pytest.raises(TransactionEnded, match="voting"):
            txn.abort()
        with pytest.raises(TransactionEnded, match="voting"):
            txn.commit()
        with pytest.raises(TransactionEnded, match="voting"):
            txn.transaction()
        with pytest.raises(LeaseLost):
            txn.lease.renew(5)
        with pytest.raises(LeaseLost):
            txn.lease.cancel()
        return "committed"

    txn.enlist(Lazy(prepare_and_commit=ask))
    txn.commit()
    assert txn.state == "committed" and space.count() == 0


def test_after_its_promise_a_space_lets_it_do_nothing_more(make, begin):
    space, txn = make(), begin()
    space.write(("a",), txn=txn)

    def ask() -> str:
        with pytest.raises(TransactionEnded, match="prepared"):
            space.take(("a",), wait=0, txn=txn)
        with pytest.raises(TransactionEnded, match="prepared"):
            space.write(("b",), txn=txn)
        return "prepared"

    txn.enlist(Lazy(prepare=ask))
    txn.commit()
    assert space.read_all() == [("a",)]


# Nested ones


def test_a_nested_one_sees_what_its_parent_sees_and_commits_into_it(space, begin):
    space.write(("space",))
    txn = begin()
    space.write(("parent",), txn=txn)
    nested = txn.transaction()
    space.write(("nested",), txn=nested)
    assert space.read_all(txn=nested) == [("space",), ("parent",), ("nested",)]
    assert space.count(("nested",), txn=txn) == 0
    nested.commit()
    assert space.count(("nested",), txn=txn) == 1 and space.count(("nested",)) == 0
    txn.commit()
    assert space.count() == 3


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("kind", ["shared", "plain"])
def test_a_take_within_the_parent_is_served_when_a_nested_reader_ends(make, begin, kind, end):
    space = make()
    txn = begin() if kind == "shared" else space.transaction()
    space.write(("a",), txn=txn)
    nested = txn.transaction()
    assert space.read(("a",), txn=nested) == ("a",)
    call = parked_call(space, space.take, ("a",), txn=txn)
    getattr(nested, end)()
    assert call.result() == ("a",)


def test_aborting_a_nested_one_leaves_its_parent_alone(pair, begin):
    txn = begin()
    for space in pair:
        space.write(("parent",), txn=txn)
    nested = txn.transaction()
    for space in pair:
        space.take(("parent",), txn=nested)
        space.write(("nested",), txn=nested)
    nested.abort()
    assert txn.state == "active"
    txn.commit()
    assert [space.read_all() for space in pair] == [[("parent",)]] * 2


def test_aborting_the_parent_aborts_the_nested_ones(pair, begin):
    txn = begin()
    nested = txn.transaction()
    inner = nested.transaction()
    pair[0].write(("a",), txn=nested)
    pair[1].write(("b",), txn=inner)
    txn.abort()
    assert nested.state == inner.state == "aborted"
    assert [space.count() for space in pair] == [0, 0]
    with pytest.raises(TransactionEnded):
        inner.commit()


def test_aborting_parent_and_nested_ones_is_one_step_of_a_space(make, begin):
    """Who waits sees all that comes back, and gets the oldest."""
    space, txn = make(), begin()
    space.write_all([("a", 1), ("a", 2)])
    nested = txn.transaction()
    assert space.take(("a", 1), txn=txn) == ("a", 1)
    assert space.take(("a", 2), txn=nested) == ("a", 2)
    call = parked_call(space, space.take, ("a", int))
    txn.abort()
    assert call.result() == ("a", 1)


def test_a_parent_with_open_nested_ones_does_not_commit(make, begin):
    space, txn = make(), begin()
    space.write(("a",), txn=txn)
    nested = txn.transaction()
    with pytest.raises(TransactionError, match=nested.id):
        txn.commit()
    assert txn.state == nested.state == "active"
    nested.commit()
    txn.commit()
    assert space.count() == 1


def test_a_nested_one_may_bring_a_space_that_its_parent_does_not_know(pair, begin):
    txn = begin()
    pair[0].write(("a",), txn=txn)
    nested = txn.transaction()
    pair[1].write(("b",), txn=nested)
    nested.commit()
    assert pair[1].count() == 0
    txn.commit()
    assert pair[1].read_all() == [("b",)]


def test_who_takes_part_in_a_nested_one_takes_part_in_its_parent(make, begin):
    for end, calls in (("commit", ["prepare", "commit"]), ("abort", ["abort"])):
        lazy, txn = Lazy(), begin()
        nested = txn.transaction()
        nested.enlist(lazy)
        nested.commit()
        assert lazy.calls == []
        txn.enlist(Lazy())
        getattr(txn, end)()
        assert lazy.calls == calls


def test_a_nested_one_ends_with_its_own_lease(make, begin, clock):
    space, txn = make(), begin(100)
    space.write(("a",), txn=txn)
    nested = txn.transaction(lease=10)
    space.take(("a",), txn=nested)
    clock.advance(10)
    assert nested.state == "aborted" and txn.state == "active"
    txn.commit()
    assert space.count() == 1


def test_a_nested_one_ends_with_its_parents_lease(make, begin, clock):
    space, txn = make(), begin(10)
    nested = txn.transaction()
    space.write(("a",), txn=nested)
    clock.advance(10)
    assert nested.state == txn.state == "aborted"
    with pytest.raises(TransactionEnded):
        space.count(txn=nested)
    with pytest.raises(TransactionEnded):
        txn.transaction()


def test_a_nested_one_that_cannot_go_into_its_parent_aborts_it(pair, begin):
    txn = begin()
    nested = txn.transaction()
    for space in pair:
        space.write(("a",), txn=nested)
    pair[1].close()
    with pytest.raises(CannotCommit):
        nested.commit()
    assert nested.state == txn.state == "aborted"
    assert pair[0].count() == 0


# Leases


def test_a_lease_that_runs_out_aborts_everywhere(space, make, begin, clock):
    other, txn = make(), begin(10)
    space.write(("a",))
    space.take(("a",), txn=txn)
    other.write(("b",), txn=txn)
    clock.advance(9.5)
    assert txn.state == "active"
    clock.advance(0.5)
    assert txn.state == "aborted"
    assert space.read_all() == [("a",)] and other.count() == 0


def test_who_waits_within_is_told_and_who_waits_outside_is_served(make, begin, clock):
    space, txn = make(), begin(10)
    space.write(("a",))
    space.take(("a",), txn=txn)
    within = parked_call(space, space.take, ("b",), txn=txn)
    outside = parked_call(space, space.take, ("a",))
    clock.advance(10)
    with pytest.raises(TransactionEnded, match="lease"):
        within.result()
    assert outside.result() == ("a",)


def test_renewing_the_lease_reaches_all_branches(pair, begin, clock):
    txn = begin(10)
    for space in pair:
        space.write(("a",), txn=txn)
    clock.advance(9)
    txn.lease.renew(20)
    clock.advance(15)
    assert txn.state == "active" and txn.lease.expires == clock.now() + 5
    txn.commit()
    assert [space.count() for space in pair] == [1, 1]


def test_a_lease_may_be_made_shorter_or_be_taken_away(pair, begin, clock):
    txn, forever = begin(), begin(10)
    for space in pair:
        space.write(("a",), txn=txn)
        space.write(("b",), txn=forever)
    txn.lease.renew(5)
    forever.lease.renew(None)
    clock.advance(50)
    assert (txn.state, forever.state) == ("aborted", "active")
    assert forever.lease.expires is None
    forever.commit()
    assert [space.read_all() for space in pair] == [[("b",)]] * 2


def test_cancelling_the_lease_aborts_everywhere(pair, begin):
    txn = begin(10)
    for space in pair:
        space.write(("a",), txn=txn)
    txn.lease.cancel()
    assert txn.state == "aborted"
    with pytest.raises(LeaseLost):
        txn.lease.renew(5)
    with pytest.raises(TransactionEnded, match="cancelled"):
        txn.commit()


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_what_has_ended_has_no_lease(begin, end, clock):
    txn = begin(10)
    getattr(txn, end)()
    with pytest.raises(LeaseLost):
        txn.lease.renew(5)
    with pytest.raises(LeaseLost):
        txn.lease.cancel()
    clock.advance(20)
    assert txn.state == ("committed" if end == "commit" else "aborted")


def test_what_has_run_out_is_refused_before_the_alarm_comes(tmp_path):
    clock = JumpingClock()
    space, other = tupelo.Space("s", clock=clock), tupelo.Space("o", clock=clock)
    txn = SharedTransaction(clock, 10)
    space.write(("a",), txn=txn)
    clock.jump(11)
    for use in (space.count, other.count):
        with pytest.raises(TransactionEnded, match="lease"):
            use(txn=txn)
    assert txn.state == "aborted"


def test_transactions_that_have_run_out_may_be_used_from_two_spaces_at_once():
    clock = JumpingClock()
    spaces = [tupelo.Space(name, clock=clock) for name in "ab"]
    txns = [SharedTransaction(clock, 10) for _ in spaces]
    for txn in txns:
        for space in spaces:
            space.write(("x",), txn=txn)
    clock.jump(11)
    together = threading.Barrier(2)

    def use(space: tupelo.Space, txn: SharedTransaction) -> None:
        with port_of(space).atomic():  # as an operation does
            together.wait()
            with pytest.raises(TransactionEnded):
                space.take(wait=0, txn=txn)

    for call in [Call(use, *args) for args in zip(spaces, txns, strict=True)]:
        call.result()


# After the end


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_after_its_end_every_operation_refuses_it(space, make, begin, end):
    unused, txn = make(), begin()
    space.write(("a",), txn=txn)
    getattr(txn, end)()
    operations: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("write", (("b",),), {}),
        ("write_all", ([("b",), ("c",)],), {}),
        ("read", (), {}),
        ("take", (), {"wait": 0}),
        ("read_all", (), {}),
        ("take_all", (), {"wait": 5}),
        ("count", (), {}),
        ("subscribe", (), {}),
    ]
    for where in (space, unused):
        for name, args, options in operations:
            with pytest.raises(TransactionEnded) as caught:
                getattr(where, name)(*args, txn=txn, **options)
            assert caught.value.state == txn.state
    assert unused.count() == 0
    with pytest.raises(TransactionEnded):
        txn.transaction()
    with pytest.raises(CannotJoin):
        txn.enlist(Lazy())


def test_it_ends_once(begin):
    done, lost = begin(), begin()
    done.commit()
    lost.abort()
    lost.abort()  # which changes nothing
    for call in (done.commit, done.abort, lost.commit):
        with pytest.raises(TransactionEnded):
            call()
    assert (done.state, lost.state) == ("committed", "aborted")


# As a context manager


def test_a_block_commits_at_its_end_or_aborts_on_an_error(pair, begin):
    with begin() as txn:
        for space in pair:
            space.write(("a",), txn=txn)
    assert txn.state == "committed"
    with pytest.raises(KeyError), begin() as txn:
        for space in pair:
            space.take(txn=txn)
        raise KeyError
    assert txn.state == "aborted"
    assert [space.count() for space in pair] == [1, 1]


def test_a_block_may_end_it_itself(make, begin):
    space = make()
    with begin() as txn:
        space.write(("a",), txn=txn)
        txn.abort()
    assert txn.state == "aborted"
    with begin() as txn:
        space.write(("b",), txn=txn)
        txn.commit()
    assert space.read_all() == [("b",)]


def test_a_block_whose_time_was_over_says_so(make, begin, clock):
    space = make()
    with pytest.raises(TransactionEnded, match="lease"), begin(5) as txn:
        space.write(("a",), txn=txn)
        clock.advance(6)
    assert space.count() == 0


def test_a_block_that_fails_after_its_time_says_why_it_failed(make, begin, clock):
    with pytest.raises(KeyError), begin(5) as txn:
        make().write(("a",), txn=txn)
        clock.advance(6)
        raise KeyError


# Threads


def test_threads_share_one(make, begin):
    spaces, txn = [make() for _ in range(3)], begin()

    def work(n: int) -> None:
        for m in range(20):
            for space in spaces:
                space.write((n, m), txn=txn)

    for call in [Call(work, n) for n in range(4)]:
        call.result()
    txn.commit()
    every = sorted((n, m) for n in range(4) for m in range(20))
    assert [sorted(space.read_all()) for space in spaces] == [every] * 3


@pytest.mark.parametrize("end", ["commit", "abort"] * 10)
def test_whoever_was_in_time_is_in_it(pair, begin, end):
    """Threads write while another ends it: what was acknowledged is committed, nothing else."""
    txn, started = begin(), threading.Barrier(3)
    done: list[list[tuple[int, int]]] = [[], []]

    def work(n: int) -> None:
        started.wait()
        with suppress(TransactionEnded):
            for m in range(1_000):
                pair[m % 2].write((n, m), txn=txn)
                done[m % 2].append((n, m))

    calls = [Call(work, n) for n in range(2)]
    started.wait()
    getattr(txn, end)()
    for call in calls:
        call.result()
    for space, written in zip(pair, done, strict=True):
        assert sorted(space.read_all()) == (sorted(written) if end == "commit" else [])


@pytest.mark.parametrize("_", range(10))
def test_only_one_of_many_threads_ends_it(pair, begin, _):
    txn, outcomes = begin(), list[str]()
    for space in pair:
        space.write(("a",), txn=txn)

    def end(how: str) -> None:
        with suppress(TransactionEnded, CannotCommit):  # A vote may be called off.
            getattr(txn, how)()
            outcomes.append("committed" if how == "commit" else "aborted")

    for call in [Call(end, how) for how in ("commit", "abort", "commit")]:
        call.result()
    assert outcomes == [txn.state]
    assert [space.count() for space in pair] == [txn.state == "committed"] * 2


# Interrupts


def test_an_interrupt_in_the_vote_aborts(make, begin):
    space, txn = make(), begin()
    space.write(("a",), txn=txn)
    txn.enlist(Lazy(prepare=KeyboardInterrupt()))
    txn.enlist(Lazy())
    with pytest.raises(KeyboardInterrupt):
        txn.commit()
    assert txn.state == "aborted" and space.count() == 0 and not space.in_doubt()


def test_an_interrupt_in_phase_two_keeps_nobody_from_being_told(make, begin):
    space, txn, last = make(), begin(), Lazy()
    last.name = "last"
    txn.enlist(Lazy(commit=KeyboardInterrupt()))
    space.write(("a",), txn=txn)
    txn.enlist(last)
    with pytest.raises(KeyboardInterrupt):
        txn.commit()
    assert txn.state == "committed" and space.count() == 1
    assert last.calls == ["prepare", "commit"] and txn.untold == ["lazy"]


def test_an_interrupt_while_it_is_called_off_leaves_nobody_locked(make, begin):
    space, txn = make(), begin()
    space.write(("a",))
    txn.enlist(Lazy(abort=KeyboardInterrupt()))
    space.take(("a",), txn=txn)
    with pytest.raises(KeyboardInterrupt):
        txn.abort()
    assert txn.state == "aborted"
    assert space.take(("a",), wait=0) == ("a",)


def test_an_interrupt_while_the_only_space_waits_for_its_disk_is_no_abort(make, begin):
    space, txn = make(store="durable"), begin()
    space.write(("a",), txn=txn)
    engine = space._port._engine
    flush, interrupts = engine.flush, [KeyboardInterrupt()]

    def interrupted(position: int) -> None:
        if interrupts:
            raise interrupts.pop()
        flush(position)

    engine.flush = interrupted
    with pytest.raises(KeyboardInterrupt):
        txn.commit()
    assert space.read_all() == [("a",)]
    assert txn.state == "committed"


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_transaction_may_promise_before_it_ends(tmp_path, clock, end, count):
    spaces = [tupelo.Space(f"s{i}", path=tmp_path / f"{i}", clock=clock) for i in range(3)]
    for space in spaces:
        space.write(("old",))
    txn = SharedTransaction(clock, txn_id="promised")
    for space in spaces[:count]:
        assert space.take(("old",), txn=txn, wait=0) == ("old",)
    assert spaces[2].read(("none",), txn=txn, wait=0) is None  # It has nothing to promise.
    txn.promise()
    assert [[t.id for t in space.in_doubt()] for space in spaces] == [
        ["promised"] if i < count else [] for i in range(3)
    ]
    getattr(txn, end)()
    left = [] if end == "commit" else [("old",)]
    assert [space.read_all() for space in spaces] == [
        left if i < count else [("old",)] for i in range(3)
    ]
    assert not any(space.in_doubt() for space in spaces)
    for space in spaces:
        space.close()


def test_what_was_promised_is_in_doubt_after_a_crash(tmp_path, clock):
    with tupelo.Space("s", path=tmp_path / "s", clock=clock) as space:
        space.write(("old",))
        txn = SharedTransaction(clock, txn_id="promised")
        space.take(("old",), txn=txn)
        txn.promise()
    with tupelo.Space("s", path=tmp_path / "s", clock=clock) as space:
        (doubtful,) = space.in_doubt()
        assert doubtful.id == "promised" and space.read_all() == []
        doubtful.abort()
        assert space.read_all() == [("old",)]
