"""Sessions: never the same entry twice."""

import pytest

from tupelo.errors import LeaseLost


def test_a_session_never_gives_the_same_entry_twice(space):
    session = space.session()
    space.write_all([("n", i) for i in range(3)])
    assert [session.read(("n", int), wait=0) for _ in range(4)] == [
        ("n", 0),
        ("n", 1),
        ("n", 2),
        None,
    ]
    space.write(("n", 3))
    assert session.read(("n", int), wait=0) == ("n", 3)
    assert space.count() == 4


def test_equal_entries_are_different_entries(space):
    session = space.session()
    space.write_all([("a",), ("a",)])
    assert session.read(("a",), wait=0) == session.read(("a",), wait=0) == ("a",)
    assert session.read(("a",), wait=0) is None


def test_read_all_gives_what_is_new(space):
    session = space.session()
    space.write_all([("n", i) for i in range(3)])
    assert session.read_all(("n", int), limit=2) == [("n", 0), ("n", 1)]
    assert session.read_all() == [("n", 2)]
    assert session.read_all() == []
    space.write(("n", 3))
    assert session.read_all() == [("n", 3)]


def test_different_templates_share_one_memory(space):
    session = space.session()
    space.write(("a", 1))
    assert session.read(("a", int), wait=0) == ("a", 1)
    assert session.read(wait=0) is None


def test_sessions_do_not_mind_each_other_nor_plain_readers(space):
    one, other = space.session(), space.session()
    space.write(("a",))
    assert one.read(wait=0) == other.read(wait=0) == space.read(wait=0) == ("a",)


def test_a_session_waits_for_something_new(space, park):
    session = space.session()
    space.write(("n", 0))
    session.read(("n", int), wait=0)
    waiter = park(space, session.read, ("n", int))
    space.write(("n", 1))
    assert waiter.result() == ("n", 1)
    assert session.read(wait=0) is None


def test_a_session_waits_with_patience(space, park, clock):
    session = space.session()
    waiter = park(space, session.read, ("n", int), wait=2)
    clock.advance(2)
    assert waiter.result() is None
    waiter = park(space, session.read_all, ("n", int), wait=2)
    space.write_all([("n", 1), ("n", 2)])
    assert waiter.result() == [("n", 1), ("n", 2)]


def test_an_entry_that_is_given_back_is_not_new(space):
    session = space.session()
    space.write(("a",))
    session.read(wait=0)
    txn = space.transaction()
    space.take(("a",), wait=0, txn=txn)
    txn.abort()
    assert session.read(wait=0) is None


def test_a_clone_has_seen_the_same_and_goes_its_own_way(space):
    session = space.session()
    space.write_all([("n", i) for i in range(3)])
    session.read(wait=0)
    clone = session.clone()
    assert clone.read_all() == [("n", 1), ("n", 2)]
    assert session.read_all() == [("n", 1), ("n", 2)]
    space.write(("n", 3))
    assert clone.read(wait=0) == session.read(wait=0) == ("n", 3)


def test_a_clone_has_a_lease_of_its_own(space, clock):
    session = space.session(lease=5)
    clone = session.clone(lease=50)
    space.write(("a",))
    clock.advance(5)
    assert clone.read(wait=0) == ("a",)
    with pytest.raises(LeaseLost):
        session.read(wait=0)


def test_those_who_share_a_session_share_the_work(space, later):
    session = space.session()
    space.write_all([("n", i) for i in range(40)])
    readers = [later(lambda: [session.read(wait=0)[1] for _ in range(10)]) for _ in range(4)]
    got = [n for reader in readers for n in reader.result()]
    assert sorted(got) == list(range(40))


def test_one_entry_goes_to_one_of_those_who_wait_in_a_shared_session(space, park):
    session = space.session()
    waiters = [park(space, session.read, ("n", int)) for _ in range(3)]
    space.write(("n", 0))
    assert waiters[0].result() == ("n", 0)
    assert waiters[1].waits and waiters[2].waits
    space.write_all([("n", 1), ("n", 2)])
    assert [waiters[1].result(), waiters[2].result()] == [("n", 1), ("n", 2)]


def test_a_session_forgets_what_is_gone(space):
    session = space.session()
    space.write(("stays",))
    for _ in range(3):
        space.write_all([("n", i) for i in range(1_000)])
        assert len(session.read_all(("n", int))) == 1_000
        space.take_all(("n", int))
    session.read_all()
    assert session.seen < 2_500
    assert session.read(("stays",), wait=0) is None


def test_a_session_counts_what_it_remembers(space):
    session = space.session()
    space.write_all([("n", i) for i in range(3)])
    session.read_all(limit=2)
    assert session.seen == 2


def test_a_closed_session_reads_no_more(space, park):
    with space.session() as session:
        waiter = park(space, session.read, ("a",))
    for attempt in (waiter.result, session.read, session.read_all):
        with pytest.raises(LeaseLost):
            attempt()


def test_a_session_reads_nothing_that_others_may_not_see(space):
    session = space.session()
    txn = space.transaction()
    space.write(("a",), txn=txn)
    assert session.read(wait=0) is None
    txn.commit()
    assert session.read(wait=0) == ("a",)
    assert session.read(wait=0) is None
