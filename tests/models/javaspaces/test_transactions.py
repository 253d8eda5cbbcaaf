"""The transaction manager: every operation, waiting, failing and refused; at both doors, in memory
and durable."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tupelo
from tests.conftest import Call, until_true
from tests.models.javaspaces.doors import (
    SIMPLE,
    TIMEOUT,
    Listener,
    Parked,
    SimpleEntry,
    bare,
    drain,
    fill,
)
from tupelo import aio
from tupelo.errors import (
    BadArgument,
    CannotAbort,
    CannotCommit,
    CannotJoin,
    LeaseLost,
    OutcomeUnknown,
    SpaceClosed,
    TimeoutExpired,
    TransactionEnded,
    TransactionError,
    UnknownTransaction,
)
from tupelo.models.javaspaces import (
    ABORTED,
    ACTIVE,
    COMMITTED,
    FOREVER,
    NO_WAIT,
    NOTCHANGED,
    PREPARED,
    VOTING,
    AsyncTransactionManager,
    JavaSpace05,
    Lease,
    TransactionManager,
)
from tupelo.space.port import port_of

ENTRY = SimpleEntry(1, "one", True)
OTHER = SimpleEntry(2, "two", False)


class Guest:
    """A participant that is not a space. Answers may be votes, errors or functions."""

    def __init__(self, name: str = "guest", **answers: Any) -> None:
        self.name = name
        self.calls: list[str] = []
        self.ids: list[str] = []
        self.promises: list[str] = []
        self._answers = answers

    def _answer(self, what: str, txn_id: str) -> Any:
        self.calls.append(what)
        self.ids.append(txn_id)
        default = {"prepare": PREPARED, "prepare_and_commit": COMMITTED}.get(what)
        answer = self._answers.get(what, default)
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else default
        if isinstance(answer, BaseException):
            raise answer
        answer = answer() if callable(answer) else answer
        if answer == PREPARED:
            self.promises.append(txn_id)
        return answer

    def prepare(self, manager: Any, txn_id: str) -> Any:
        return self._answer("prepare", txn_id)

    def commit(self, manager: Any, txn_id: str) -> None:
        self._answer("commit", txn_id)
        self.promises.remove(txn_id)

    def abort(self, manager: Any, txn_id: str) -> None:
        self._answer("abort", txn_id)

    def prepare_and_commit(self, manager: Any, txn_id: str) -> Any:
        return self._answer("prepare_and_commit", txn_id)

    def in_doubt(self) -> list[str]:
        return list(self.promises)


def promise_after(work: Callable[[], object]) -> str:
    """A vote, after something has happened."""
    work()
    return PREPARED


@pytest.fixture
def manager(world):
    return world.manager


@pytest.fixture
def pair(world):
    return world.javaspace(), world.javaspace()


def decisions(manager: Any) -> list[Any]:
    log = bare(manager).log
    return [entry[1:] for entry in log.read_all() if entry[0] != "manager"]


def retried(clock: Any, seconds: float) -> None:
    """Let time pass, and those who were to be told later be told."""
    clock.advance(seconds)
    until_true(
        lambda: not [t for t in threading.enumerate() if t.name == "tupelo-decisions"],
        "they were told",
    )


# Creating


def test_a_transaction_is_created_with_a_lease(manager, clock):
    transaction, lease = manager.create(60)
    assert transaction.state == ACTIVE == manager.get_state(transaction.id)
    assert transaction.manager is bare(manager)
    assert isinstance(bare(lease), Lease) and lease.expiration == clock.now() + 60
    assert manager.create().lease.expiration == FOREVER
    assert manager.create(Lease.ANY).lease.expiration == FOREVER


def test_a_transaction_with_a_lease_of_0_is_aborted_at_once(manager, javaspace):
    transaction = manager.create(0).transaction
    assert transaction.state == ABORTED == manager.get_state(transaction.id)
    with pytest.raises(CannotCommit, match="lease"):
        transaction.commit()


@pytest.mark.parametrize("lease", [-5, "long", True, None, float("nan")])
def test_a_lease_that_is_none_is_refused(manager, lease):
    with pytest.raises(BadArgument, match="lease"):
        manager.create(lease)


@pytest.mark.parametrize("seconds", [0, -1, None, "long"])
def test_a_manager_needs_patience(seconds):
    with pytest.raises(BadArgument, match="vote_seconds"):
        TransactionManager(vote_seconds=seconds)


def test_a_parent_is_a_transaction_of_the_same_manager(manager, clock):
    with TransactionManager(clock=clock) as other:
        for parent in (other.create().transaction, "txn", 5):
            with pytest.raises(BadArgument, match="parent"):
                manager.create(FOREVER, parent)


def test_a_parent_that_has_ended_has_no_more_children(manager):
    parent = manager.create().transaction
    parent.commit()
    for nest in (lambda: manager.create(FOREVER, parent), parent.transaction):
        with pytest.raises(CannotJoin, match="committed"):
            nest()


def test_ids_are_the_managers_own(manager):
    ids = [manager.create().transaction.id for _ in range(3)]
    assert len(set(ids)) == 3 and all(txn_id.startswith(f"{manager.id}.") for txn_id in ids)


# States


def test_the_states_of_a_commit(manager, javaspace):
    seen: list[str] = []
    transaction = manager.create().transaction

    def vote() -> str:
        seen.append(manager.get_state(transaction.id))
        return COMMITTED

    transaction.join(Guest(prepare_and_commit=vote))
    seen.append(manager.get_state(transaction.id))
    manager.commit(transaction.id)
    seen.append(manager.get_state(transaction.id))
    assert seen == [ACTIVE, VOTING, COMMITTED]


def test_the_states_of_an_abort(manager):
    transaction = manager.create().transaction
    manager.abort(transaction.id)
    assert manager.get_state(transaction.id) == transaction.state == ABORTED


def test_the_state_after_the_lease_has_run_out(manager, clock):
    transaction = manager.create(5).transaction
    clock.advance(5)
    assert manager.get_state(transaction.id) == ABORTED


@pytest.mark.parametrize("txn_id", ["nobody", "", None, 7, ("a",)])
def test_an_unknown_id_is_refused(manager, txn_id):
    for use in (
        manager.get_state,
        manager.commit,
        manager.abort,
        lambda txn_id: manager.join(txn_id, Guest()),
    ):
        with pytest.raises(UnknownTransaction):
            use(txn_id)


@pytest.mark.parametrize("wait", [None, 0, 5])
def test_what_has_ended_cannot_end_otherwise(manager, javaspace, wait):
    done, lost = (manager.create().transaction for _ in range(2))
    for transaction in (done, lost):
        javaspace.write(ENTRY, transaction)
    done.commit()
    lost.abort()
    assert (manager.get_state(done.id), manager.get_state(lost.id)) == (COMMITTED, ABORTED)
    for _ in range(2):  # A caller that did not get the answer may ask again.
        manager.commit(done.id, wait)
        done.commit(wait)
        manager.abort(lost.id, wait)
        lost.abort(wait)
    with pytest.raises(CannotCommit, match="called off"):
        manager.commit(lost.id, wait)
    with pytest.raises(CannotCommit, match="called off"):
        lost.commit(wait)
    with pytest.raises(CannotAbort, match="committed"):
        manager.abort(done.id, wait)
    with pytest.raises(CannotAbort, match="committed"):
        done.abort(wait)
    for txn_id in (done.id, lost.id):
        with pytest.raises(CannotJoin, match="too late"):
            manager.join(txn_id, Guest())
    assert drain(javaspace) == [ENTRY]


def test_an_unknown_outcome_stays_unknown(manager):
    transaction = manager.create().transaction
    transaction.join(Guest(prepare_and_commit=OSError("the line went dead")))
    with pytest.raises(OutcomeUnknown):
        transaction.commit()
    for end in (transaction.commit, transaction.abort):
        with pytest.raises(OutcomeUnknown):
            end()
    for end_by_id in (manager.commit, manager.abort):
        with pytest.raises(OutcomeUnknown):
            end_by_id(transaction.id)


@pytest.mark.parametrize("wait", [-1, "long", True, float("nan")])
def test_a_time_to_wait_that_is_none_is_refused(manager, wait):
    transaction = manager.create().transaction
    for end in (transaction.commit, transaction.abort):
        with pytest.raises(BadArgument, match="wait"):
            end(wait)
    for end_by_id in (manager.commit, manager.abort):
        with pytest.raises(BadArgument, match="wait"):
            end_by_id(transaction.id, wait)
    assert transaction.state == ACTIVE


def test_only_so_many_outcomes_are_kept(clock):
    with TransactionManager(clock=clock) as manager:
        first = manager.create().transaction
        first.commit()
        for _ in range(1_100):
            manager.create().transaction.commit()
        with pytest.raises(UnknownTransaction):
            manager.get_state(first.id)
        assert len(manager._outcomes) <= 1_024 and not manager._live


# Over several spaces


def test_all_spaces_commit(pair, manager):
    first, second = pair
    fill(first, ENTRY)
    transaction = manager.create().transaction
    moved = first.take(ENTRY, transaction, NO_WAIT)
    second.write(moved, transaction)
    assert first.read(None, None, NO_WAIT) is None and second.read(None, None, NO_WAIT) is None
    transaction.commit()
    assert (drain(first), drain(second)) == ([], [ENTRY])
    assert decisions(manager) == []


def test_all_spaces_abort(pair, manager):
    first, second = pair
    fill(first, ENTRY)
    transaction = manager.create().transaction
    second.write(first.take(ENTRY, transaction, NO_WAIT), transaction)
    transaction.abort()
    assert (drain(first), drain(second)) == ([ENTRY], [])


def test_every_operation_of_a_javaspace_takes_part(world, javaspace, manager):
    fill(javaspace, *SIMPLE)
    transaction, listener = manager.create().transaction, Listener()
    registration = javaspace.notify(SimpleEntry(), transaction, listener)
    javaspace.write([ENTRY, OTHER], transaction, [60, FOREVER])
    assert len(listener.take(2)) == 2
    assert javaspace.read_if_exists(SimpleEntry(0), transaction) == SIMPLE[0]
    assert javaspace.read(SimpleEntry(1), transaction, TIMEOUT) == SIMPLE[1]
    assert javaspace.take_if_exists(SimpleEntry(2), transaction) == SIMPLE[2]
    assert len(javaspace.take([SimpleEntry(3), SimpleEntry(4)], transaction, NO_WAIT)) == 2
    contents = javaspace.contents([SimpleEntry(None, "two")], transaction)
    assert list(contents) == [OTHER]
    assert javaspace.take(SimpleEntry(None, "one"), transaction, TIMEOUT) == ENTRY
    snapshot = javaspace.snapshot(SimpleEntry(5))
    assert javaspace.take(snapshot, transaction, NO_WAIT) == SIMPLE[5]
    others = [entry.number for entry in drain(javaspace)]
    assert others == [6, 7, 8, 9], "what the transaction has read cannot be taken by others"
    transaction.commit()
    assert not registration.active
    assert drain(javaspace) == [SIMPLE[0], SIMPLE[1], OTHER]


def test_other_doors_take_part(world, javaspace, manager, clock):
    plain, awaited = tupelo.Space("plain", clock=clock), world.space("same door")
    transaction = manager.create().transaction
    javaspace.write(ENTRY, transaction)
    plain.write(("a",), txn=bare(transaction))
    awaited.write(("b",), txn=transaction)
    transaction.commit()
    assert (javaspace.take(None, None, NO_WAIT), plain.take(), awaited.take()) == (
        ENTRY,
        ("a",),
        ("b",),
    )
    plain.close()


def test_a_space_that_is_closed_spoils_it_for_all(world, manager):
    first, second = world.javaspace(), world.javaspace()
    transaction = manager.create().transaction
    first.write(ENTRY, transaction)
    second.write(ENTRY, transaction)
    first.close()
    with pytest.raises(CannotCommit):
        transaction.commit()
    assert manager.get_state(transaction.id) == ABORTED
    assert drain(second) == []


# Nested ones


def test_nested_transactions(javaspace, manager):
    parent = manager.create().transaction
    javaspace.write(ENTRY, parent)
    nested = manager.create(FOREVER, parent).transaction
    assert javaspace.take(ENTRY, nested, NO_WAIT) == ENTRY
    javaspace.write(OTHER, nested)
    with pytest.raises(TransactionError, match="nested"):
        parent.commit()
    manager.commit(nested.id)
    assert manager.get_state(nested.id) == COMMITTED
    assert javaspace.read(None, None, NO_WAIT) is None
    lost = parent.transaction(lease=60)
    assert javaspace.take(OTHER, lost, NO_WAIT) == OTHER
    manager.abort(lost.id)
    parent.commit()
    assert drain(javaspace) == [OTHER]


def test_aborting_the_parent_undoes_what_a_nested_one_has_committed(javaspace, manager):
    parent = manager.create().transaction
    with parent.transaction() as nested:
        javaspace.write(ENTRY, nested)
    still = parent.transaction()
    parent.abort()
    assert still.state == ABORTED == manager.get_state(still.id)
    assert drain(javaspace) == []


def test_a_guest_of_a_nested_one_is_promoted(manager, pair):
    parent = manager.create().transaction
    nested, lost = parent.transaction(), parent.transaction()
    guest, dropped = Guest("guest"), Guest("dropped")
    nested.join(guest)
    lost.join(dropped)
    nested.commit()
    lost.abort()
    assert (guest.calls, dropped.calls) == ([], ["abort"])
    pair[0].write(ENTRY, parent)
    parent.commit()
    assert (guest.calls, dropped.calls) == (["prepare", "commit"], ["abort"])
    assert len(set(guest.ids)) == 1
    assert decisions(manager) == []


def test_a_guest_of_parent_and_nested_one_commits_both_or_neither(manager):
    for end, last in (("commit", "commit"), ("abort", "abort")):
        parent = manager.create().transaction
        nested, guest = parent.transaction(), Guest()
        parent.join(guest)
        nested.join(guest)
        nested.commit()
        getattr(parent, end)()
        assert guest.calls[-1] == last
        assert guest.promises == []


def test_a_promoted_guest_that_missed_the_abort_is_told_by_recover(manager):
    parent = manager.create().transaction
    nested, guest = parent.transaction(), Guest(abort=[OSError("away")])
    nested.join(guest)
    nested.commit()
    parent.join(Guest("other", prepare=ABORTED, prepare_and_commit=ABORTED))
    with pytest.raises(CannotCommit):
        parent.commit()
    assert guest.calls == ["prepare", "abort"]
    (promise,) = guest.promises
    assert manager.get_state(promise) == ABORTED, "it asks what became of its promise"
    assert manager.recover(guest) == 1
    assert guest.calls == ["prepare", "abort", "abort"]


def test_a_promoted_guest_is_told_of_the_decision_after_a_crash(clock, tmp_path):
    guest = Guest(commit=[OSError("away"), OSError("away")])
    manager = TransactionManager(tmp_path / "log", clock=clock)
    space = tupelo.Space("s", path=tmp_path / "s", clock=clock)
    parent = manager.create().transaction
    with parent.transaction() as nested:
        nested.join(guest)
        space.write(("a",), txn=nested)
    parent.commit()
    assert guest.promises
    manager.close()
    with TransactionManager(tmp_path / "log", clock=clock) as again:
        guest._answers.clear()
        assert again.recover(guest) == 1
        assert guest.promises == [] and "abort" not in guest.calls
        assert again.recover(guest, space) == 0
        assert decisions(again) == []
    space.close()


# Guests


def test_the_only_guest_prepares_and_commits_at_once(manager):
    transaction, guest = manager.create().transaction, Guest()
    manager.join(transaction.id, guest)
    transaction.commit()
    assert guest.calls == ["prepare_and_commit"] and guest.ids == [transaction.id]


def test_the_last_who_has_something_to_commit_does_it_at_once(manager):
    transaction = manager.create().transaction
    idle, guest = Guest("idle", prepare=NOTCHANGED), Guest()
    for one in (idle, guest):
        transaction.join(one)
    transaction.commit()
    assert idle.calls == ["prepare"] and guest.calls == ["prepare_and_commit"]


def test_guests_and_spaces_commit_together(manager, javaspace):
    transaction, guest = manager.create().transaction, Guest()
    transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    transaction.commit()
    assert guest.calls == ["prepare", "commit"]
    assert drain(javaspace) == [ENTRY] and decisions(manager) == []


@pytest.mark.parametrize("vote", [ABORTED, "perhaps", None, 7, ValueError("no")])
def test_a_guest_that_does_not_promise_spoils_it_for_all(manager, javaspace, vote):
    for alone in (False, True):
        steps = {"prepare": vote, "prepare_and_commit": vote}
        guest, idle = Guest(**steps), Guest("idle", prepare=NOTCHANGED)
        transaction = manager.create().transaction
        transaction.join(idle)
        transaction.join(guest)
        if not alone:
            javaspace.write(ENTRY, transaction)
        unknown = alone and isinstance(vote, Exception)
        with pytest.raises(OutcomeUnknown if unknown else CannotCommit, match="guest"):
            transaction.commit()
        assert transaction.state == ("unknown" if unknown else ABORTED)
        assert manager.get_state(transaction.id) == transaction.state
        assert idle.calls == ["prepare"], "who has changed nothing is left alone"
        assert drain(javaspace) == [] and decisions(manager) == []


def test_a_guest_that_stalls_has_refused(manager, javaspace, clock):
    transaction, late = manager.create().transaction, threading.Event()
    guest = Guest(prepare=lambda: late.wait(20) and PREPARED)
    transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    before = set(clock.asleep)
    call = Call(transaction.commit)
    until_true(lambda: clock.asleep - before, "the manager waits")
    clock.advance(29)
    assert call.waits
    clock.advance(1)
    with pytest.raises(CannotCommit, match="30 s"):
        call.result()
    late.set()
    until_true(lambda: guest.promises, "it has promised")
    assert manager.get_state(transaction.id) == ABORTED and drain(javaspace) == []
    assert manager.recover(guest) == 1
    assert guest.calls == ["prepare", "abort", "abort"]


def test_the_only_guest_that_stalls_leaves_the_outcome_open(manager, clock):
    transaction, late = manager.create().transaction, threading.Event()
    transaction.join(Guest(prepare_and_commit=lambda: late.wait(20) and COMMITTED))
    before = set(clock.asleep)
    call = Call(transaction.commit)
    until_true(lambda: clock.asleep - before, "the manager waits")
    clock.advance(30)
    with pytest.raises(OutcomeUnknown):
        call.result()
    assert transaction.state == "unknown" == manager.get_state(transaction.id)
    late.set()


def test_a_guest_that_cannot_be_told_is_told_later(manager, javaspace, clock):
    transaction = manager.create().transaction
    guest = Guest(commit=[OSError("away")] * 3)
    transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    transaction.commit()
    assert drain(javaspace) == [ENTRY]
    assert decisions(manager) == [(transaction.id, "guest")]
    assert transaction.untold == ["guest"]
    retried(clock, 1)
    assert guest.calls.count("commit") == 2
    retried(clock, 2)
    retried(clock, 4)
    assert guest.calls.count("commit") == 4 and guest.promises == []
    assert decisions(manager) == [] and transaction.untold == []
    assert manager.get_state(transaction.id) == COMMITTED


def test_a_guest_that_comes_back_is_told_by_recover(manager, javaspace, clock):
    transaction = manager.create().transaction
    guest = Guest(commit=OSError("away"))
    transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    transaction.commit()
    again = Guest()
    again.promises = [transaction.id]
    assert manager.recover(again) == 1
    assert again.calls == ["commit"] and decisions(manager) == []
    retried(clock, 100)
    assert guest.calls.count("commit") == 1, "nobody is left to be told"


def test_a_guest_that_fails_in_abort_does_no_harm(manager, javaspace):
    transaction, guest = manager.create().transaction, Guest(abort=OSError("away"))
    transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    transaction.abort()
    assert guest.calls == ["abort"] and drain(javaspace) == []


def test_a_guest_that_stalls_does_not_hold_up_the_clock(manager, javaspace, clock):
    transaction, late = manager.create(5).transaction, threading.Event()
    transaction.join(Guest(abort=lambda: late.wait(20)))
    javaspace.write(ENTRY, transaction)
    Call(clock.advance, 5).result()
    assert transaction.state == ABORTED and drain(javaspace) == []
    late.set()


# Aborting while it votes


def test_a_transaction_is_aborted_while_it_votes(manager, javaspace):
    transaction, asked, go_on = manager.create().transaction, threading.Event(), threading.Event()

    def vote() -> str:
        asked.set()
        assert go_on.wait(20)
        return PREPARED

    first, second = Guest("first", prepare=vote), Guest("second")
    for guest in (first, second):
        transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    commit = Call(transaction.commit)
    assert asked.wait(20) and transaction.state == VOTING
    Call(transaction.abort).result()
    assert transaction.state == ABORTED == manager.get_state(transaction.id)
    assert commit.waits, "the vote of the first is under way"
    with pytest.raises(CannotJoin):
        transaction.join(Guest("late"))
    go_on.set()
    with pytest.raises(CannotCommit, match="called off"):
        commit.result()
    assert first.calls == ["prepare", "abort"]
    assert second.calls == ["abort"], "it was not asked any more"
    assert transaction.state == ABORTED and drain(javaspace) == []


def test_an_abort_comes_too_late_when_the_only_one_decides(manager):
    for vote in (COMMITTED, ABORTED):
        transaction = manager.create().transaction
        asked, go_on = threading.Event(), threading.Event()

        def decide(vote: str = vote, asked: Any = asked, go_on: Any = go_on) -> str:
            asked.set()
            assert go_on.wait(20)
            return vote

        transaction.join(Guest(prepare_and_commit=decide))
        commit = Call(transaction.commit)
        assert asked.wait(20)
        again, abort = Call(transaction.commit), Call(transaction.abort)
        assert abort.waits and again.waits, "the answer will say what they get"
        go_on.set()
        for call in (commit, again):
            if vote == COMMITTED:
                call.result()
            else:
                with pytest.raises(CannotCommit):
                    call.result()
        if vote == COMMITTED:
            with pytest.raises(CannotAbort):
                abort.result()
        else:
            abort.result()


# A time to wait


def test_commit_with_a_time_to_wait(manager, javaspace, clock):
    transaction, guest = manager.create().transaction, Guest()
    transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    manager.commit(transaction.id, 5)
    assert guest.calls == ["prepare", "commit"] and drain(javaspace) == [ENTRY]


def test_commit_says_that_not_all_were_told_in_time(manager, javaspace, clock):
    transaction = manager.create().transaction
    guest = Guest(commit=[OSError("away")] * 3)
    transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    before = set(clock.asleep)
    commit = Call(transaction.commit, 5)
    told_in_vain = lambda: bare(transaction).over and len(clock.asleep - before) == 2  # noqa: E731
    until_true(told_in_vain, "the caller waits, and the next try")
    assert commit.waits and transaction.state == COMMITTED
    retried(clock, 1)
    assert guest.calls == ["prepare", "commit", "commit"] and commit.waits
    until_true(told_in_vain, "the caller still waits")
    retried(clock, 4)
    with pytest.raises(TimeoutExpired, match="in time: guest") as expired:
        commit.result()
    assert expired.value.state == COMMITTED and expired.value.untold == ["guest"]
    assert drain(javaspace) == [ENTRY], "the decision stands"
    retried(clock, 100)
    assert guest.promises == []
    transaction.commit(0)


def test_commit_waits_until_all_were_told(manager, javaspace, clock):
    transaction = manager.create().transaction
    guest = Guest(commit=[OSError("away")])
    transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    before = set(clock.asleep)
    commit = Call(transaction.commit, 5)
    until_true(lambda: len(clock.asleep - before) == 2, "the caller waits, and the next try")
    assert commit.waits and bare(transaction).over
    retried(clock, 1)
    commit.result()
    assert guest.promises == []


@pytest.mark.parametrize(("end", "state"), [("commit", COMMITTED), ("abort", ABORTED)])
def test_a_slow_participant_holds_a_caller_no_longer_than_it_wants(
    manager, javaspace, clock, end, state
):
    transaction, late = manager.create().transaction, threading.Event()
    answers: dict[str, Any] = {end: lambda: late.wait(20)}
    transaction.join(Guest(**answers))
    javaspace.write(ENTRY, transaction)
    before = set(clock.asleep)
    call = Call(getattr(transaction, end), 2)
    until_true(lambda: len(clock.asleep - before) == 2, "the caller waits, and the manager")
    clock.advance(1)
    assert call.waits
    clock.advance(1)
    with pytest.raises(TimeoutExpired, match=state):
        call.result()
    assert transaction.state == state
    late.set()
    until_true(lambda: bare(transaction).over, "it was told")
    assert drain(javaspace) == ([ENTRY] if state == COMMITTED else [])


def test_time_does_not_run_out_before_the_decision(manager, javaspace, clock):
    transaction, go_on, late = manager.create().transaction, threading.Event(), threading.Event()
    guest = Guest(prepare=lambda: go_on.wait(20) and ABORTED, abort=lambda: late.wait(20))
    transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    before = set(clock.asleep)
    call = Call(transaction.commit, 1)
    until_true(lambda: clock.asleep - before, "it votes")
    clock.advance(10)
    assert call.waits and transaction.state == VOTING
    go_on.set()
    with pytest.raises(TimeoutExpired, match=ABORTED):
        call.result()
    late.set()
    until_true(lambda: bare(transaction).over, "it was told")


def test_an_abort_that_does_not_reach_all(manager, clock):
    transaction, guest = manager.create().transaction, Guest(abort=OSError("away"))
    transaction.join(guest)
    before = set(clock.asleep)
    abort = Call(transaction.abort, 3)
    until_true(lambda: bare(transaction).over and clock.asleep - before, "it waits")
    clock.advance(3)
    with pytest.raises(TimeoutExpired, match="in time: guest") as expired:
        abort.result()
    assert expired.value.state == ABORTED
    transaction.abort()


# Joining


def test_joining_twice_is_joining_once(manager):
    transaction, guest = manager.create().transaction, Guest()
    for _ in range(3):
        transaction.join(guest, 4)
    transaction.commit()
    assert guest.calls == ["prepare_and_commit"]


def test_a_guest_that_has_crashed_aborts_the_transaction(manager, javaspace):
    transaction, guest = manager.create().transaction, Guest()
    javaspace.write(ENTRY, transaction)
    transaction.join(guest, crash_count=1)
    with pytest.raises(CannotJoin, match="crashed"):
        transaction.join(guest, crash_count=2)
    assert transaction.state == ABORTED and guest.calls == ["abort"]
    assert drain(javaspace) == []


def test_joining_during_the_vote_is_too_late(manager):
    transaction, outcomes = manager.create().transaction, list[str]()

    def ask() -> str:
        for late in (Guest("late"), guest):
            try:
                bare(transaction).join(late, crash_count=1)
            except CannotJoin:
                outcomes.append("too late")
        return COMMITTED

    guest = Guest(prepare_and_commit=ask)
    transaction.join(guest)
    transaction.commit()
    assert outcomes == ["too late"] * 2


@pytest.mark.parametrize("guest", [None, "guest", object(), Guest(name=5)])  # type: ignore[arg-type]
def test_only_participants_join(manager, guest):
    transaction = manager.create().transaction
    with pytest.raises(BadArgument, match="participant"):
        transaction.join(guest)


def test_joining_when_the_lease_has_just_run_out(clock):
    with TransactionManager(clock=clock) as manager:
        outcomes: list[Exception] = []

        def join() -> None:  # before the transaction's own alarm comes
            try:
                transaction.join(Guest())
            except (CannotJoin, UnknownTransaction) as error:
                outcomes.append(error)

        clock.call_at(clock.now() + 5, join)
        transaction = manager.create(5).transaction
        Call(clock.advance, 5).result()
        assert len(outcomes) == 1
        assert manager.get_state(transaction.id) == ABORTED


# Leases


def test_a_lease_that_runs_out_lets_those_go_who_wait(javaspace, manager, clock):
    fill(javaspace, ENTRY)
    transaction = manager.create(10).transaction
    assert javaspace.take(ENTRY, transaction, NO_WAIT) == ENTRY
    within = Parked(javaspace, javaspace.take, OTHER, transaction)
    outside = Parked(javaspace, javaspace.take, ENTRY)
    clock.advance(9)
    assert within.waits and outside.waits
    clock.advance(1)
    with pytest.raises(TransactionEnded, match="lease"):
        within.result()
    assert outside.result() == ENTRY
    assert transaction.state == ABORTED


def test_renewing_reaches_the_branches(pair, manager, clock):
    transaction, lease = manager.create(10)
    for javaspace in pair:
        javaspace.write(ENTRY, transaction)
    clock.advance(9)
    lease.renew(20)
    clock.advance(19)
    assert transaction.state == ACTIVE
    transaction.commit()
    assert [drain(javaspace) for javaspace in pair] == [[ENTRY]] * 2
    with pytest.raises(LeaseLost):
        lease.renew(5)
    with pytest.raises(LeaseLost):
        lease.cancel()


def test_cancelling_aborts(pair, manager):
    transaction, lease = manager.create(10)
    for javaspace in pair:
        javaspace.write(ENTRY, transaction)
    lease.cancel()
    assert manager.get_state(transaction.id) == ABORTED
    assert [drain(javaspace) for javaspace in pair] == [[]] * 2


def test_leases_of_transactions_and_entries_are_renewed_together(javaspace, manager, clock):
    transaction, lease = manager.create(10)
    leases = lease.create_lease_map(50)
    entry = javaspace.write(ENTRY, None, 10)
    leases[entry] = 60
    lost = manager.create(10).lease
    lost.cancel()
    leases[lost] = 70
    outcome = leases.renew_all()
    assert set(outcome.renewed) == {*bare([lease, entry])}
    assert list(outcome.failed) == bare([lost])
    assert lease.expiration == clock.now() + 50 and entry.expiration == clock.now() + 60
    assert transaction.state == ACTIVE


# Closing and coming back


def test_closing_aborts_what_is_under_way(world, javaspace, manager):
    transaction = manager.create().transaction
    nested = transaction.transaction()
    javaspace.write(ENTRY, nested)
    bare(manager).close()
    assert transaction.state == nested.state == ABORTED
    assert drain(javaspace) == []
    with pytest.raises(SpaceClosed):
        manager.create()
    bare(manager).close()


def test_nobody_is_told_by_a_manager_that_is_closed(manager, javaspace, clock):
    transaction, guest = manager.create().transaction, Guest(commit=OSError("away"))
    transaction.join(guest)
    javaspace.write(ENTRY, transaction)
    transaction.commit()
    bare(manager).close()
    retried(clock, 100)
    assert guest.calls == ["prepare", "commit"]


def test_a_manager_keeps_its_name_and_its_decisions(clock, tmp_path):
    path = tmp_path / "log"
    with TransactionManager(path, clock=clock) as manager:
        name = manager.id
        transaction, guest = manager.create().transaction, Guest(commit=OSError("away"))
        transaction.join(guest)
        transaction.join(Guest("other"))
        transaction.commit()
    guest._answers.clear()
    with TransactionManager(path, clock=clock) as manager:
        assert manager.id == name
        assert manager.get_state(transaction.id) == COMMITTED
        assert manager.recover(guest) == 1
        assert guest.promises == []
        with pytest.raises(UnknownTransaction):
            manager.get_state(transaction.id)


def test_what_was_not_decided_is_aborted_when_a_guest_comes_back(clock, tmp_path):
    guest = Guest()
    with TransactionManager(tmp_path / "log", clock=clock) as manager:
        guest.promises = [f"{manager.id}.lost", "another manager's"]
        assert manager.recover(guest) == 1
    assert guest.calls == ["abort"] and guest.ids == [f"{manager.id}.lost"]


def test_a_transaction_under_way_is_not_settled(manager, javaspace):
    transaction, outcomes = manager.create().transaction, []
    javaspace.write(ENTRY, transaction)

    def ask() -> str:
        outcomes.append(manager.recover(guest, javaspace))
        return PREPARED

    guest = Guest(prepare=ask)
    guest.promises = [transaction.id]
    transaction.join(guest)
    javaspace.write(OTHER, transaction)
    transaction.commit()
    assert outcomes == [0]
    assert drain(javaspace) == [ENTRY, OTHER]


@pytest.mark.parametrize("door", ["blocking", "javaspace", "async"])
@pytest.mark.parametrize("manager_lives", [True, False])
def test_a_space_that_closes_between_the_phases_is_settled(clock, tmp_path, door, manager_lives):
    def open_space() -> tupelo.Space:
        return tupelo.Space("s", path=tmp_path / "s", clock=clock)

    manager = TransactionManager(tmp_path / "log", clock=clock)
    space, transaction = open_space(), manager.create().transaction
    space.write(("old",))
    space.take(("old",), txn=transaction)
    space.write(("new",), txn=transaction)
    transaction.join(Guest(prepare=lambda: promise_after(space.close)))
    transaction.commit()
    space = open_space()
    assert len(space.in_doubt()) == 1 and space.count() == 0
    if not manager_lives:
        manager.close()
        manager = TransactionManager(tmp_path / "log", clock=clock)
    doors: dict[str, Any] = {"blocking": space, "javaspace": JavaSpace05(space)}
    came_back = doors[door] if door in doors else aio.Space(space)
    assert manager.recover(came_back) == 1
    assert not space.in_doubt() and space.read_all() == [("new",)]
    assert decisions(manager) == []
    retried(clock, 100)
    assert manager.recover(came_back) == 0
    space.close()
    manager.close()


def test_spaces_of_one_agent_are_settled_each_for_itself(clock, tmp_path):
    def open_spaces() -> list[tupelo.Space]:
        return [tupelo.Space(name, path=tmp_path / name, clock=clock, agent="me") for name in "ab"]

    manager, spaces = TransactionManager(tmp_path / "log", clock=clock), open_spaces()
    transaction = manager.create().transaction
    for space in spaces:
        space.write(("a",), txn=transaction)

    def close() -> str:
        for space in spaces:
            space.close()
        return PREPARED

    transaction.join(Guest(prepare=close))
    transaction.commit()
    spaces = open_spaces()
    for space in spaces:
        assert manager.recover(space) == 1
    assert [space.read_all() for space in spaces] == [[("a",)]] * 2
    for space in spaces:
        space.close()
    manager.close()


# The log


class Interrupting:
    """Lets a call be made, or not, and then an error come."""

    def __init__(self, owner: Any, name: str, error: BaseException, does_it: bool) -> None:
        self._call = getattr(owner, name)
        self._error: BaseException | None = error
        self._does_it = does_it
        setattr(owner, name, self)

    def __call__(self, *args: Any) -> Any:
        if self._error is None:
            return self._call(*args)
        error, self._error = self._error, None
        if self._does_it:
            self._call(*args)
        raise error


def test_a_decision_that_was_recorded_stands(pair, manager):
    Interrupting(bare(manager)._decisions, "record", OSError("late"), does_it=True)
    transaction = manager.create().transaction
    for javaspace in pair:
        javaspace.write(ENTRY, transaction)
    transaction.commit()
    assert transaction.state == COMMITTED
    assert [drain(javaspace) for javaspace in pair] == [[ENTRY]] * 2
    assert decisions(manager) == []


def test_a_decision_that_was_not_recorded_was_not_made(pair, manager):
    Interrupting(bare(manager)._decisions, "record", OSError("full"), does_it=False)
    transaction = manager.create().transaction
    for javaspace in pair:
        javaspace.write(ENTRY, transaction)
    transaction.join(Guest())
    with pytest.raises(CannotCommit, match="log"):
        transaction.commit()
    assert transaction.state == ABORTED
    assert [drain(javaspace) for javaspace in pair] == [[]] * 2


def test_a_decision_is_on_the_disk_before_anyone_is_told(clock, tmp_path):
    """Ctrl-C while the log waits for its disk, and then a crash when the first has been told."""
    manager = TransactionManager(tmp_path / "log", clock=clock)
    spaces = [tupelo.Space(name, path=tmp_path / name, clock=clock) for name in "ab"]
    transaction = manager.create().transaction
    for space in spaces:
        space.write((space.name,), txn=transaction)
    log = manager.log
    durable: list[bool] = []
    Interrupting(log, "_flush", KeyboardInterrupt(), does_it=False)
    for member in transaction._members:
        commit = member.commit

        def told(commit: Any = commit) -> None:
            saved = port_of(log)._engine.saved
            assert saved is not None
            durable.append(not saved._pending)
            commit()

        member.commit = told  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        transaction.commit()
    if transaction.state == COMMITTED:
        assert durable == [True, True]
        assert [space.count() for space in spaces] == [1, 1]
    else:
        assert not durable
    for space in spaces:
        space.close()
    manager.close()


def test_if_the_log_is_gone_everyone_keeps_the_promise(clock, tmp_path):
    manager = TransactionManager(tmp_path / "log", clock=clock)
    spaces = [tupelo.Space(name, path=tmp_path / name, clock=clock) for name in "ab"]
    transaction = manager.create().transaction
    for space in spaces:
        space.write((space.name,), txn=transaction)
    transaction.join(Guest(prepare=lambda: promise_after(manager.log.close)))
    with pytest.raises(OutcomeUnknown, match="log"):
        transaction.commit()
    assert [len(space.in_doubt()) for space in spaces] == [1, 1]
    manager.close()
    with TransactionManager(tmp_path / "log", clock=clock) as manager:
        assert manager.recover(*spaces) == 2
    assert [space.count() for space in spaces] == [0, 0]
    for space in spaces:
        assert not space.in_doubt()
        space.close()


def test_one_who_was_told_is_forgotten_even_if_that_fails_once(pair, manager, clock):
    Interrupting(bare(manager)._decisions, "forget", OSError("busy"), does_it=False)
    transaction = manager.create().transaction
    for javaspace in pair:
        javaspace.write(ENTRY, transaction)
    transaction.commit()
    retried(clock, 1)
    assert decisions(manager) == []
    assert [drain(javaspace) for javaspace in pair] == [[ENTRY]] * 2


# As context managers, and the async door


def test_blocks(javaspace, manager):
    with manager.create().transaction as transaction:
        javaspace.write(ENTRY, transaction)
    assert transaction.state == COMMITTED
    with pytest.raises(KeyError), manager.create().transaction as lost:
        javaspace.take(ENTRY, lost, NO_WAIT)
        raise KeyError
    assert lost.state == ABORTED
    assert drain(javaspace) == [ENTRY]


def test_a_block_whose_lease_ran_out_says_so(javaspace, manager, clock):
    with (
        pytest.raises(CannotCommit, match="lease"),
        manager.create(5).transaction as transaction,
    ):
        javaspace.write(ENTRY, transaction)
        clock.advance(5)


def test_the_async_manager(clock, tmp_path):
    async def main() -> None:
        with AsyncTransactionManager(tmp_path / "log", clock=clock) as manager:
            first = JavaSpace05(aio.Space("a", path=tmp_path / "a", clock=clock))
            second = JavaSpace05(aio.Space("b", clock=clock))
            async with manager.create().transaction as transaction:
                await first.write(ENTRY, transaction)
                await second.write([ENTRY, OTHER], transaction, [5, FOREVER])
                async with transaction.transaction() as nested:
                    await second.take(OTHER, nested, NO_WAIT)
            assert transaction.state == COMMITTED
            moved = manager.create(60).transaction
            await second.write(await first.take(ENTRY, moved), moved)
            await manager.commit(moved.id)
            lost = manager.create().transaction
            await second.take(ENTRY, lost)
            await manager.abort(lost.id)
            assert await first.read(None, None, NO_WAIT) is None
            assert len(await second.take([SimpleEntry()], None, NO_WAIT)) == 2
            with pytest.raises(KeyError):
                async with manager.create().transaction as failed:
                    await first.write(ENTRY, failed)
                    raise KeyError
            assert failed.state == ABORTED
            await first.close()
            await second.close()

    asyncio.run(main())


def test_a_commit_that_is_slow_does_not_block_the_loop(clock):
    async def main() -> None:
        with AsyncTransactionManager(clock=clock) as manager:
            go_on = threading.Event()
            transaction = manager.create().transaction
            transaction.join(Guest(prepare_and_commit=lambda: go_on.wait(20) and COMMITTED))
            commit: asyncio.Task[None] = asyncio.create_task(manager.commit(transaction.id))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not commit.done()
            go_on.set()
            await commit
            assert transaction.state == COMMITTED

    asyncio.run(main())


def test_a_task_that_waits_within_is_told(clock):
    async def main() -> None:
        with AsyncTransactionManager(clock=clock) as manager:
            space = JavaSpace05(aio.Space("a", clock=clock))
            transaction = manager.create(5).transaction
            waiting = asyncio.create_task(space.take(ENTRY, transaction))
            await asyncio.sleep(0)
            clock.advance(5)
            with pytest.raises(TransactionEnded):
                await waiting
            await space.close()

    asyncio.run(main())


# Threads


def test_threads_share_one_transaction(javaspace, manager):
    transaction = manager.create().transaction

    def work(n: int) -> None:
        for m in range(10):
            javaspace.write(SimpleEntry(10 * n + m), transaction)
        assert javaspace.take(SimpleEntry(10 * n), transaction, NO_WAIT) is not None

    for call in [Call(work, n) for n in range(4)]:
        call.result()
    transaction.commit()
    numbers = sorted(entry.number for entry in drain(javaspace))
    assert numbers == [n for n in range(40) if n % 10]


def test_transfers_by_many_threads_lose_nothing(world, manager):
    """Transactions over the same spaces, each with its own entries, in both directions."""
    pair = world.javaspace(), world.javaspace()
    for n in range(6):
        pair[n % 2].write(SimpleEntry(n))

    def work(n: int) -> None:
        for hop in range(8):
            source, target = pair[(n + hop) % 2], pair[(n + hop + 1) % 2]
            with manager.create().transaction as transaction:
                target.write(source.take(SimpleEntry(n), transaction), transaction)

    for call in [Call(work, n) for n in range(6)]:
        call.result()
    found = [sorted(entry.number for entry in drain(javaspace)) for javaspace in pair]
    assert found == [[0, 2, 4], [1, 3, 5]]
    assert decisions(manager) == []
