"""Containers: created, looked up, destroyed; written, read, taken, destroyed in, shifted."""

from dataclasses import dataclass
from typing import Any

import pytest

import tupelo
from tests.laws.talk import refused
from tupelo.errors import (
    BadArgument,
    BadSelector,
    ContainerExists,
    ContainerNotFound,
    CountNotMet,
    DuplicateKey,
    SpaceClosed,
    SpaceFull,
    TransactionEnded,
)
from tupelo.models.javaspaces import TransactionManager
from tupelo.models.linda import TupleSpace
from tupelo.models.xvsm import (
    COUNT_ALL,
    COUNT_MAX,
    INFINITE,
    INFINITE_TIMEOUT,
    TRY_ONCE,
    AnySelector,
    AtomicEntry,
    Capi,
    Entry,
    FifoCoordinator,
    FifoSelector,
    KeyCoordinator,
    KeySelector,
    LabelCoordinator,
    LabelSelector,
    LifoCoordinator,
    LindaCoordinator,
    LindaSelector,
    RandomSelector,
    VectorCoordinator,
    VectorSelector,
)


@dataclass
class Note:
    text: str | None = None
    size: int | None = None


@pytest.fixture
def queue(capi):
    return capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())


def everything(capi: Any, cref: Any, tx: Any = None) -> list[Any]:
    return list(capi.read(cref, TRY_ONCE, tx, AnySelector(COUNT_MAX)))


# Containers


def test_a_container_is_found_by_its_name(capi, queue):
    assert capi.lookup_container(None, None, "queue") is queue
    assert queue.name == "queue"
    with pytest.raises(ContainerNotFound, match="stack"):
        capi.lookup_container(None, None, "stack")


def test_a_name_is_unique(capi, queue):
    with pytest.raises(ContainerExists, match="queue"):
        capi.create_container(None, None, "queue", INFINITE)
    first, second = (capi.create_container(None, None, None, INFINITE) for _ in range(2))
    assert first.name != second.name


def test_a_destroyed_container_is_gone(capi, queue):
    capi.write(queue, 0, None, ("a",))
    capi.destroy_container(None, queue)
    refused(
        ContainerNotFound,
        "queue",
        lambda: capi.lookup_container(None, None, "queue"),
        lambda: capi.write(queue, 0, None, ("a",)),
        lambda: capi.read(queue, 0, None),
        lambda: capi.read(queue, 0, None, FifoSelector()),
        lambda: capi.destroy_container(None, queue),
    )
    again = capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())
    assert everything(capi, again) == []


def test_whoever_waits_at_a_container_that_is_destroyed_is_told(capi, queue, wait_at):
    taker = wait_at(queue, capi.take, queue, None, None, FifoSelector())
    capi.destroy_container(None, queue)
    with pytest.raises(ContainerNotFound):
        taker.result()


def test_containers_come_and_go_in_transactions(capi, queue):
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    made = capi.create_container(tx, None, "made", INFINITE)
    capi.write(made, 0, tx, ("a",))
    assert capi.lookup_container(tx, None, "made") is made
    with pytest.raises(ContainerNotFound):
        capi.lookup_container(None, None, "made")
    with pytest.raises(ContainerExists):
        capi.create_container(None, None, "made", INFINITE)
    capi.destroy_container(tx, queue)
    with pytest.raises(ContainerNotFound):
        capi.lookup_container(tx, None, "queue")
    capi.commit_transaction(tx)
    assert capi.lookup_container(None, None, "made") is made
    assert everything(capi, made) == [("a",)]
    with pytest.raises(ContainerNotFound):
        capi.lookup_container(None, None, "queue")


def test_a_rolled_back_container_never_was(capi, queue):
    capi.write(queue, 0, None, ("a",))
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    made = capi.create_container(tx, None, "made", INFINITE)
    capi.destroy_container(tx, queue)
    capi.rollback_transaction(tx)
    with pytest.raises(ContainerNotFound):
        capi.lookup_container(None, None, "made")
    with pytest.raises(ContainerNotFound):
        capi.write(made, 0, None, ("a",))
    assert capi.lookup_container(None, None, "queue") is queue
    assert everything(capi, queue) == [("a",)]


def test_clear_space_destroys_all_containers(capi, queue):
    other = capi.create_container(None, None, "other", INFINITE)
    capi.clear_space(None)
    for cref in (queue, other):
        with pytest.raises(ContainerNotFound):
            capi.write(cref, 0, None, ("a",))
    capi.create_container(None, None, "queue", INFINITE)


def test_shutdown_ends_everything(capi, queue, wait_at):
    taker = wait_at(queue, capi.take, queue, None, None)
    capi.shutdown(None)
    with pytest.raises(SpaceClosed):
        taker.result()
    refused(
        SpaceClosed,
        "closed",
        lambda: capi.write(queue, 0, None, ("a",)),
        lambda: capi.lookup_container(None, None, "queue"),
    )


def test_a_folder_is_opened_again(make_capi, place, clock):
    if place[1] == "memory":
        capi = make_capi()  # What is in memory ends with the program.
        capi.create_container(None, None, "a", INFINITE)
        capi.shutdown(None)
        return
    capi = make_capi()
    keyed = capi.create_container(
        None,
        None,
        "keyed",
        3,
        KeyCoordinator(name="k"),
        LabelCoordinator(),
        optional=[FifoCoordinator()],
    )
    capi.write(keyed, 0, None, Entry(("a", 1), KeySelector(1, name="k"), LabelSelector("x")))
    capi.write(
        keyed,
        0,
        None,
        Entry(Note("n"), KeySelector(2, name="k"), LabelSelector("y"), FifoSelector()),
    )
    capi.shutdown(None)
    capi = make_capi()
    keyed = capi.lookup_container(None, None, "keyed")
    assert capi.read(keyed, 0, None, KeySelector(1, name="k")) == [("a", 1)]
    assert capi.read(keyed, 0, None, FifoSelector(COUNT_ALL)) == [Note("n")]
    with pytest.raises(DuplicateKey):
        capi.write(keyed, 0, None, Entry(5, KeySelector(2, name="k"), LabelSelector("y")))
    capi.write(keyed, 0, None, Entry(5, KeySelector(3, name="k"), LabelSelector("y")))
    with pytest.raises(SpaceFull):
        capi.write(keyed, 0, None, Entry(5, KeySelector(4, name="k"), LabelSelector("y")))
    capi.shutdown(None, True)
    capi = make_capi()
    with pytest.raises(ContainerNotFound):
        capi.lookup_container(None, None, "keyed")


def test_a_container_is_a_space_for_the_other_models(capi):
    cref = capi.create_container(None, None, "c", INFINITE, LindaCoordinator(), FifoCoordinator())
    linda = TupleSpace(cref.space)
    capi.write(cref, 0, None, ("job", 1), Note("n", 2))
    assert linda.in_(("job", int)) == ("job", 1)
    assert cref.space.read(Note, wait=0) == Note("n", 2)
    linda.out(("done", 1))
    assert capi.take(cref, 0, None, LindaSelector(("done", None))) == [("done", 1)]


def test_values_that_are_no_tuples_come_back_as_they_were(capi, queue):
    values = [5, "text", None, [1, 2], {"a": 1}, Note("n"), (), ("t",)]
    capi.write(queue, 0, None, *values)
    assert capi.read(queue, 0, None, FifoSelector(COUNT_ALL)) == values
    assert queue.space.read_all(AtomicEntry, limit=1) == [AtomicEntry(5)]
    keyed = capi.create_container(None, None, None, INFINITE, KeyCoordinator())
    odd = [*values, (Note("in a tuple"),)]
    capi.write(keyed, 0, None, *[Entry(v, KeySelector(i)) for i, v in enumerate(odd)])
    assert [capi.read(keyed, 0, None, KeySelector(i)) for i in range(len(odd))] == [
        [v] for v in odd
    ]


@pytest.mark.parametrize(
    "site", ["there", 5, "http://there:80", "xvsm://", "xvsm://there:x", "xvsm://h/name", ""]
)
def test_a_site_that_is_none_is_refused(capi, site):
    refused(
        BadArgument,
        "site=",
        lambda: capi.shutdown(site),
        lambda: capi.clear_space(site),
        lambda: capi.lookup_container(None, site, "a"),
        lambda: capi.create_container(None, site, "a", 1),
        lambda: capi.create_transaction(site, 1),
    )


@pytest.mark.parametrize(
    ("name", "size", "coordinators", "argument"),
    [
        ("", INFINITE, [], "name"),
        (5, INFINITE, [], "name"),
        ("a", 0, [], "size"),
        ("a", 1.5, [], "size"),
        ("a", True, [], "size"),
        ("a", 1, [FifoSelector()], "coordinators"),
        ("a", 1, [FifoCoordinator(), FifoCoordinator()], "coordinators"),
    ],
)
def test_a_container_that_makes_no_sense_is_refused(capi, name, size, coordinators, argument):
    with pytest.raises(BadArgument, match=f"{argument}="):
        capi.create_container(None, None, name, size, *coordinators)
    capi.create_container(None, None, "a", 1)


def test_a_coordinator_serves_one_container(capi):
    fifo = FifoCoordinator()
    capi.create_container(None, None, "a", 1, fifo)
    with pytest.raises(BadArgument, match="one container"):
        capi.create_container(None, None, "b", 1, fifo)


def test_arguments_that_make_no_sense_are_refused(capi, queue, make_capi):
    for attempt, error, match in (
        (lambda: capi.read("queue", 0, None), BadArgument, "cref="),
        (lambda: capi.read(queue, -1, None), BadArgument, "timeout="),
        (lambda: capi.read(queue, "1", None), BadArgument, "timeout="),
        (lambda: capi.read(queue, 0, "tx"), BadArgument, "tx="),
        (lambda: capi.read(queue, 0, None, 5), BadSelector, "selector"),
        (lambda: capi.commit_transaction(None), BadArgument, "tx="),
        (lambda: capi.rollback_transaction("tx"), BadArgument, "tx="),
        (lambda: capi.write(queue, 0, None, {1, 2}), tupelo.errors.BadEntry, "set"),
        (lambda: capi.write(queue, 0, None, Entry(1, KeySelector(1))), BadSelector, "'key'"),
        (lambda: capi.write(queue, 0, None, Entry(1, *[FifoSelector()] * 2)), BadSelector, "two"),
    ):
        refused(error, match, attempt)
    assert everything(capi, queue) == []


# Waiting


def test_read_and_take_wait_for_what_they_want(capi, queue, wait_at):
    reader = wait_at(queue, capi.read, queue, INFINITE_TIMEOUT, None, FifoSelector(2))
    taker = wait_at(queue, capi.take, queue, None, None, FifoSelector(2))
    capi.write(queue, 0, None, 1)
    assert reader.waits and taker.waits
    capi.write(queue, 0, None, 2)
    assert reader.result() == taker.result() == [1, 2]
    assert everything(capi, queue) == []


def test_when_its_time_is_up_the_count_is_not_met(capi, queue, wait_at, clock):
    capi.write(queue, 0, None, 1)
    for verb in (capi.read, capi.take, capi.destroy):
        waiter = wait_at(queue, verb, queue, 5, None, FifoSelector(3), timed=True)
        clock.advance(5)
        with pytest.raises(CountNotMet, match=r"3 entries wanted by .*, 1 found") as short:
            waiter.result()
        assert (short.value.wanted, short.value.found) == (3, 1)
    assert everything(capi, queue) == [1]


def test_without_patience_the_count_is_not_met_at_once(capi, queue):
    with pytest.raises(CountNotMet, match="1 entry wanted"):
        capi.take(queue, TRY_ONCE, None)
    with pytest.raises(CountNotMet):
        capi.read(queue, 0, None, FifoSelector())


def test_a_write_waits_while_the_container_is_full(capi, wait_at, clock):
    cref = capi.create_container(None, None, "c", 1, FifoCoordinator())
    capi.write(cref, 0, None, 1)
    with pytest.raises(SpaceFull):
        capi.write(cref, 0, None, 2)
    writer = wait_at(cref, capi.write, cref, 5, None, 2, timed=True)
    clock.advance(5)
    with pytest.raises(SpaceFull):
        writer.result()
    writer = wait_at(cref, capi.write, cref, None, None, 2)
    assert capi.take(cref, 0, None) == [1]
    writer.result()
    assert everything(capi, cref) == [2]


def test_a_write_waits_while_its_key_is_taken(capi, wait_at):
    cref = capi.create_container(None, None, "c", INFINITE, KeyCoordinator())
    capi.write(cref, 0, None, Entry(("a", 1), KeySelector("k")))
    writer = wait_at(cref, capi.write, cref, None, None, Entry(("b", 2), KeySelector("k")))
    capi.write(cref, 0, None, Entry(("c", 3), KeySelector("l")))
    assert writer.waits
    assert capi.take(cref, 0, None, KeySelector("k")) == [("a", 1)]
    writer.result()
    assert capi.read(cref, 0, None, KeySelector("k")) == [("b", 2)]


def test_two_of_a_key_in_one_write_are_refused_at_once(capi):
    cref = capi.create_container(None, None, "c", INFINITE, KeyCoordinator())
    with pytest.raises(DuplicateKey):
        capi.write(cref, None, None, Entry(1, KeySelector("k")), Entry(2, KeySelector("k")))
    assert everything(capi, cref) == []


# Destroy and shift


def test_destroy_removes_without_reading(capi, queue):
    capi.write(queue, 0, None, 1, 2, 3)
    assert capi.destroy(queue, 0, None, FifoSelector(2)) == 2
    assert everything(capi, queue) == [3]
    assert capi.destroy(queue, 0, None, FifoSelector(COUNT_ALL)) == 1
    assert capi.destroy(queue, 0, None, FifoSelector(COUNT_MAX)) == 0


@pytest.mark.parametrize(
    ("coordinator", "left"),
    [(FifoCoordinator, [3, 4, 5]), (LifoCoordinator, [1, 2, 5]), (LabelCoordinator, [3, 4, 5])],
)
def test_shift_lets_give_way_what_the_coordinator_says(capi, coordinator, left):
    cref = capi.create_container(None, None, "c", 3, coordinator())

    def entry(value: int) -> Entry:
        return Entry(value, LabelSelector("x")) if coordinator is LabelCoordinator else Entry(value)

    for value in range(1, 6):
        capi.shift(cref, None, entry(value))
    assert everything(capi, cref) == left


def test_shift_replaces_the_entry_with_its_key(capi):
    cref = capi.create_container(None, None, "c", 2, KeyCoordinator())
    for i in (1, 2):
        capi.write(cref, 0, None, Entry(("v", i), KeySelector(i)))
    capi.shift(cref, None, Entry(("new", 2), KeySelector(2)))
    assert everything(capi, cref) == [("v", 1), ("new", 2)]
    capi.shift(cref, None, Entry(("new", 3), KeySelector(3)))
    assert everything(capi, cref) == [("new", 2), ("new", 3)]


def test_shift_replaces_what_stands_at_the_index(capi):
    cref = capi.create_container(None, None, "c", INFINITE, VectorCoordinator())
    capi.write(cref, 0, None, "a", "b", "c")
    capi.shift(cref, None, Entry("B", VectorSelector(1)))
    capi.shift(cref, None, Entry("end", VectorSelector(3)))
    assert capi.read(cref, 0, None, VectorSelector(0, 4)) == ["a", "B", "c", "end"]


def test_shift_never_waits_and_does_all_or_nothing(capi):
    cref = capi.create_container(None, None, "c", 2, KeyCoordinator())
    for i in (1, 2):
        capi.write(cref, 0, None, Entry(("v", i), KeySelector(i)))
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.read(cref, 0, tx, KeySelector(2))
    with pytest.raises(DuplicateKey):
        capi.shift(cref, None, Entry(("new", 1), KeySelector(1)), Entry(("new", 2), KeySelector(2)))
    assert everything(capi, cref) == [("v", 1), ("v", 2)]
    capi.read(cref, 0, tx, KeySelector(1))
    with pytest.raises(SpaceFull, match="nothing may give way"):
        capi.shift(cref, None, Entry(("new", 3), KeySelector(3)))
    capi.commit_transaction(tx)
    assert everything(capi, cref) == [("v", 1), ("v", 2)]


def test_shift_in_a_transaction_is_undone_with_it(capi):
    cref = capi.create_container(None, None, "c", 1, FifoCoordinator())
    capi.write(cref, 0, None, 1)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.shift(cref, tx, 2)
    assert everything(capi, cref, tx) == [2]
    capi.rollback_transaction(tx)
    assert everything(capi, cref) == [1]
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.shift(cref, tx, 3)
    capi.commit_transaction(tx)
    assert everything(capi, cref) == [3]


# Transactions


def test_a_transaction_spans_containers(capi, queue):
    other = capi.create_container(None, None, "other", INFINITE, LindaCoordinator())
    capi.write(queue, 0, None, ("job", 1), ("job", 2))
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    (job,) = capi.take(queue, 0, tx, FifoSelector())
    capi.write(other, 0, tx, job)
    assert everything(capi, other) == [] and everything(capi, queue) == [("job", 2)]
    capi.rollback_transaction(tx)
    assert everything(capi, other) == [] and everything(capi, queue) == [("job", 1), ("job", 2)]
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(other, 0, tx, *capi.take(queue, 0, tx, RandomSelector(2)))
    capi.commit_transaction(tx)
    assert sorted(everything(capi, other)) == [("job", 1), ("job", 2)]
    assert everything(capi, queue) == []


def test_a_transaction_rolls_itself_back_in_time(capi, queue, clock):
    tx = capi.create_transaction(None, 5)
    capi.write(queue, 0, tx, 1)
    clock.advance(5)
    assert everything(capi, queue) == []
    refused(
        TransactionEnded,
        "aborted",
        lambda: capi.write(queue, 0, tx, 1),
        lambda: capi.commit_transaction(tx),
    )


def test_a_key_is_free_within_the_transaction_that_took_it_and_taken_for_others(capi):
    cref = capi.create_container(None, None, "c", INFINITE, KeyCoordinator())
    capi.write(cref, 0, None, Entry(("old", 1), KeySelector("k")))
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.take(cref, 0, tx, KeySelector("k"))
    with pytest.raises(DuplicateKey, match="'k'"):
        capi.write(cref, 0, None, Entry(("other", 1), KeySelector("k")))
    capi.write(cref, 0, tx, Entry(("new", 1), KeySelector("k")))
    with pytest.raises(DuplicateKey):
        capi.write(cref, 0, tx, Entry(("newer", 1), KeySelector("k")))
    assert capi.read(cref, 0, tx, KeySelector("k")) == [("new", 1)]
    capi.rollback_transaction(tx)
    assert everything(capi, cref) == [("old", 1)]
    with pytest.raises(DuplicateKey):
        capi.write(cref, 0, None, Entry(("other", 1), KeySelector("k")))
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.take(cref, 0, tx, KeySelector("k"))
    capi.write(cref, 0, tx, Entry(("new", 1), KeySelector("k")))
    capi.commit_transaction(tx)
    with pytest.raises(DuplicateKey):
        capi.write(cref, 0, None, Entry(("other", 1), KeySelector("k")))
    assert capi.take(cref, 0, None, KeySelector("k")) == [("new", 1)]
    capi.write(cref, 0, None, Entry(("other", 1), KeySelector("k")))


def test_count_all_waits_for_other_transactions_and_count_max_does_not(capi, queue, wait_at):
    capi.write(queue, 0, None, 1)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(queue, 0, tx, 2)
    assert capi.read(queue, None, None, FifoSelector(COUNT_MAX)) == [1]
    waiter = wait_at(queue, capi.take, queue, None, None, FifoSelector(COUNT_ALL))
    capi.commit_transaction(tx)
    assert waiter.result() == [1, 2]
    assert capi.take(queue, None, None, FifoSelector(COUNT_ALL)) == []
    assert capi.take(queue, None, None, FifoSelector(COUNT_MAX)) == []


def test_several_doors_open_to_one_space(capi, make_capi):
    other = make_capi(capi)
    cref = capi.create_container(None, None, "c", INFINITE, FifoCoordinator())
    capi.write(cref, 0, None, 1)
    assert other.take(other.lookup_container(None, None, "c"), 0, None, FifoSelector()) == [1]


def test_a_transaction_of_another_model_will_do(capi, queue, until):
    heard: list[Any] = []
    capi.create_notification(queue, lambda *told: heard.append(told[1:]), "write")
    manager = TransactionManager(clock=queue.owner.clock)
    for end in ("abort", "commit"):
        tx = manager.create().transaction
        made = capi.create_container(tx, None, "made", INFINITE)
        capi.write(queue, 0, tx, end)
        capi.write(made, 0, tx, end)
        assert everything(capi, queue) == []
        getattr(tx, end)()
    assert everything(capi, queue) == ["commit"]
    assert everything(capi, capi.lookup_container(None, None, "made")) == ["commit"]
    until(lambda: heard)
    assert heard == [("write", ["commit"])]
    manager.close()


def test_what_was_decided_before_a_crash_is_done_after_it(folder, clock):
    with Capi(folder, clock=clock) as capi:
        crefs = [capi.create_container(None, None, name, INFINITE) for name in ("a", "b")]
        done, lost = (capi.create_transaction(None, INFINITE_TIMEOUT) for _ in range(2))
        for cref in crefs:
            capi.write(cref, 0, done, "done")
            capi.write(cref, 0, lost, "lost")
        for txn in (done, lost):
            for branch in txn._members:
                branch.prepare()
        told = [(branch.txn_id, branch.name) for branch in done._members]
        capi.embedded._decisions.record(told)
    with Capi(folder, clock=clock) as capi:
        for name in ("a", "b"):
            assert everything(capi, capi.lookup_container(None, None, name)) == ["done"]
        assert capi.embedded._log.count() == 0
