"""Answers that are larger than a message may be: nothing is taken that is not delivered, and no
error says that nothing was done if something was."""

from __future__ import annotations

import pytest

import tupelo
from tests.federation.company import meet
from tupelo.errors import AnswerTooLarge, BadFrame, CannotSend
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_leases, read_leases

MEBI = 2**20
SMALL_MESSAGE = 4_096
MANY = 1_500
"""So many small entries fit in a small message, and so many leases, each by itself, do not."""
BIG = wire.MESSAGE_MAX // MEBI
"""So many entries of a mebibyte do not fit in a message."""


@pytest.fixture
def connected(threads):
    """A host, and its space as a client has it."""
    host = threads.host("first")
    with tupelo.connect(f"tupelo://{host.address}/jobs") as space:
        yield host, space


@pytest.fixture
def small_messages(monkeypatch):
    monkeypatch.setattr(wire, "FRAME_MAX", SMALL_MESSAGE)
    monkeypatch.setattr(wire, "MESSAGE_MAX", SMALL_MESSAGE)


def test_the_leases_of_many_entries_fit_in_an_answer(small_messages, connected):
    host, space = connected
    leases = space.write_all([(1,)] * MANY)
    assert len(leases) == MANY
    leases[-1].cancel()
    leases[0].renew(1_000.0)
    assert host.space("jobs").here.count() == MANY - 1
    with space.transaction() as txn:
        within = space.write_all([(2,)] * MANY, txn=txn)
        within[7].cancel()
    assert host.space("jobs").here.count((2,)) == MANY - 1


def test_a_lease_for_each_entry_comes_back_for_each(connected):
    _, space = connected
    granted = space.write_all([(n,) for n in range(9)], lease=[10.0 * (n + 1) for n in range(9)])
    begins = [lease.expires - 10.0 * (n + 1) for n, lease in enumerate(granted)]
    assert max(begins) - min(begins) < 1e-3
    granted[4].cancel()
    assert sorted(space.read_all((int,))) == [(n,) for n in range(9) if n != 4]


def test_an_error_after_the_fact_says_so(connected, monkeypatch):
    host, space = connected
    monkeypatch.setattr("tupelo.federation.hosts.serving.RUN_BYTES", wire.FRAME_MAX + 1)
    with pytest.raises(AnswerTooLarge, match="all 2 entries were written"):
        space.write_all([("job", 1), ("other", 2)], lease=[1_000.0, 2_000.0])
    assert host.space("jobs").here.count() == 2


@pytest.mark.parametrize(
    "leases",
    [
        [],
        [(7, 9, None)],
        [(7, 9, None), (8, 10, None), (9, 11, None)],
        [(7, 9, 1.0), (8, 10, 2.0), (9, 11, 1.0), (10, 12, None)],
        [(7, 0, None), (8, 0, None), (9, 0, None)],
        [(7, 9, 1.0), (9, 10, 1.0), (10, 11, 1.0), (11, 13, 2.0), (3, 3, 2.0), (4, 3, 2.0)],
    ],
)
def test_leases_in_runs_are_what_they_were(leases):
    assert read_leases(encode_leases(leases), len(leases)) == leases


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        5,
        [5],
        [[]],
        [[1, 1]],
        [[1, 1, None]],
        [[1, 1, None, 3, 1]],
        [[1, 1, None, -1, 1]],
        [[1, 1, [None], 2, 1]],
        [[1, 1, None, 10**12, 1]],
        [["a", 1, None, 2, 1]],
        [[1, 1, None, 2]],
    ],
)
def test_leases_that_are_garbage_are_a_bad_frame(garbage):
    with pytest.raises(BadFrame):
        read_leases(garbage, 2)


@pytest.mark.parametrize("how", ["take", "read", "take in a transaction", "read in a session"])
def test_what_does_not_fit_in_an_answer_stays_where_it_is(connected, how):
    host, space = connected
    here = host.space("jobs").here
    here.write_all([("big", n, b"x" * MEBI) for n in range(BIG)])
    template = ("big", int, bytes)
    with space.transaction() as txn, space.session() as session, pytest.raises(CannotSend):
        if how == "take":
            space.take_all(template, wait=0)
        elif how == "read":
            space.read_all(template, wait=0)
        elif how == "take in a transaction":
            space.take_all(template, wait=0, txn=txn)
        else:
            session.read_all(template, wait=0)
    assert [number for _, number, _ in here.read_all(template)] == list(range(BIG))
    assert len(space.take_all(template, limit=3, wait=0)) == 3
    with space.match_set(template) as found:
        assert sum(1 for _ in found) == BIG - 3


@pytest.mark.parametrize("durable", [True, False])
def test_what_another_host_has_delivered_returns_there(threads, until, tmp_path, durable):
    first = threads.host("first")
    second = threads.host("second", path=tmp_path if durable else None)
    owned = second.space("jobs").here
    owned.write_all([("big", n, b"x" * MEBI) for n in range(BIG)])
    meet(first, second)
    template = ("big", int, bytes)
    with tupelo.connect(f"tupelo://{first.address}/jobs") as space:
        with pytest.raises(CannotSend):
            space.take_all(template, wait=0)
        until(lambda: owned.count() == BIG, "all are there again")
        assert [number for _, number, _ in owned.read_all(template)] == list(range(BIG))
        assert first.space("jobs").here.count() == 0
