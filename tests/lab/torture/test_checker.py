"""The checker, on histories made by hand: each violation is found, and excused cases are not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tupelo.errors import (
    BadArgument,
    CannotCommit,
    OutcomeUnknown,
    PeerLost,
    SpaceClosed,
    SpaceFull,
    TimeoutExpired,
    TransactionEnded,
)
from tupelo.lab.torture.checker import Facts, check, may_mend
from tupelo.lab.torture.history import (
    ClientOperation,
    HistoryLog,
    TortureHistory,
    outcome_of,
    read_history,
)


class Book:
    """A history that is written by hand; each operation begins after the one before has ended."""

    def __init__(self, *killed: str) -> None:
        self._ticks = itertools.count(1)
        self._killed = set(killed)
        self.operations: list[ClientOperation] = []
        self.facts = Facts({"h1", "h2"})

    def add(self, verb: Any, client: str, outcome: Any = "ok", **facts: Any) -> ClientOperation:
        facts.setdefault("key", "space:job")
        facts.setdefault("where", "h1")
        began, ended = float(next(self._ticks)), float(next(self._ticks))
        one = ClientOperation(
            client, len(self.operations) + 1, verb, began=began, ended=ended, **facts
        )  # fmt: skip
        one.outcome = outcome
        self.operations.append(one)
        return one

    def write(self, *values: str, outcome: Any = "ok", **facts: Any) -> ClientOperation:
        return self.add("write", "writer", outcome, wrote=list(values), **facts)

    def take(self, *values: str, client: str = "taker", **facts: Any) -> ClientOperation:
        return self.add("take", client, facts.pop("outcome", "ok"), got=list(values), **facts)

    def drain(self, *values: str, **facts: Any) -> ClientOperation:
        return self.take(*values, client="drain", **facts)

    def transfer(
        self, got: list[str], wrote: list[str], outcome: Any = "ok", **facts: Any
    ) -> ClientOperation:
        return self.add("transfer", "banker", outcome, got=got, wrote=wrote, **facts)

    def once(self, *values: str, reader: str = "r", key: str = "space:news") -> ClientOperation:
        return self.add("once", "reader", got=list(values), reader=reader, key=key)

    def found(self) -> list[str]:
        clients = {one.client for one in self.operations}
        history = TortureHistory(self.operations, clients - self._killed)
        return sorted({violation.kind for violation in check(history, self.facts)})


def test_what_is_written_is_taken_once_or_there_at_the_end():
    book = Book()
    book.write("a")
    book.write("b", "c")
    book.take("a")
    book.drain("b", "c")
    assert book.found() == []


def test_what_nobody_has_written_is_invented():
    book = Book()
    book.take("a")
    assert book.found() == ["invented"]


def test_what_is_seen_before_it_is_written_is_invented():
    book = Book()
    book.add("read", "reader", got=["a"])
    book.write("a")
    book.drain("a")
    assert book.found() == ["invented"]


def test_a_value_with_a_flipped_bit_is_invented_and_the_true_one_is_lost():
    book = Book()
    book.write("value-1")
    book.drain("value-3")
    assert book.found() == ["invented", "lost"]


def test_a_write_that_failed_and_is_seen_was_told_wrong():
    book = Book()
    book.write("a", outcome="fail")
    assert book.found() == []
    book.drain("a")
    assert book.found() == ["told wrong"]


def test_a_transaction_that_was_aborted_and_had_committed_was_told_wrong():
    book = Book()
    book.write("a")
    book.transfer(["a"], ["b"], "fail")
    book.drain("b")
    assert "told wrong" in book.found()


@pytest.mark.parametrize("seen", [True, False])
def test_a_write_in_doubt_may_have_been_done_or_not(seen):
    book = Book("writer")
    book.write("a", outcome="unknown")
    book.write("b", outcome="pending")
    if seen:
        book.drain("a", "b")
    assert book.found() == []


def test_taken_twice():
    book = Book()
    book.write("a")
    book.take("a", client="one")
    book.take("a", client="other")
    assert book.found() == ["taken twice"]


def test_what_was_taken_and_is_there_at_the_end_is_taken_twice():
    book = Book()
    book.write("a")
    book.take("a")
    book.drain("a")
    assert book.found() == ["taken twice"]


def test_what_a_killed_client_has_not_confirmed_returns():
    book = Book("taker")
    book.write("a")
    book.take("a")
    book.drain("a")
    assert book.found() == []


def test_lost():
    book = Book()
    book.write("a", "b")
    book.drain("a")
    assert book.found() == ["lost"]


def test_what_was_read_once_and_is_gone_is_lost():
    book = Book()
    book.write("a")
    book.add("read", "reader", got=["a"])
    assert book.found() == ["lost"]


def test_what_a_reader_of_the_end_sees_is_there():
    book = Book()
    book.write("a")
    book.add("read", "drain.1", got=["a"])
    assert book.found() == []


@pytest.mark.parametrize(
    ("key", "outcome", "where", "lost"),
    [
        ("event-heap:event", "unknown", "h2", []),
        ("event-heap:event", "unknown", "h1", ["lost"]),
        ("event-heap:event", "ok", "h2", ["lost"]),
        ("event-heap:event", "fail", "h2", ["lost"]),
        ("space:job", "unknown", "h2", ["lost"]),
    ],
)
def test_a_removal_in_doubt_takes_one_event_of_another_host_with_it(key, outcome, where, lost):
    book = Book()
    book.write("a", key=key)
    book.take(outcome=outcome, key=key, where=where)
    assert book.found() == lost
    book.write("b", key=key)
    assert book.found() == ["lost"]


@pytest.mark.parametrize(("host", "found"), [("h1", ["lost"]), ("memory", [])])
def test_a_host_in_memory_loses_what_it_has_when_it_is_killed(host, found):
    book = Book()
    written = book.write("a", where=host)
    book.facts.kills[host] = [written.ended + 0.5]
    assert book.found() == found


def test_a_host_in_memory_that_was_killed_before_loses_nothing():
    book = Book()
    written = book.write("a", where="memory")
    book.facts.kills["memory"] = [written.began - 0.5]
    assert book.found() == ["lost"]


def test_a_killed_taker_takes_no_directed_message_with_it():
    book = Book("taker")
    book.write("a", key="melon:directed")
    book.take(outcome="pending", key="melon:directed")
    assert book.found() == ["lost"]


def test_a_killed_taker_takes_one_value_with_it():
    book = Book("taker")
    book.write("a")
    book.take(outcome="pending")
    assert book.found() == []
    book.write("b")
    assert book.found() == ["lost"]


@pytest.mark.parametrize(
    ("key", "after"), [("lime:tuple", []), ("space:job", ["lost"]), ("melon:stored", ["lost"])]
)
def test_a_host_that_was_killed_while_it_fetched_takes_no_value_of_a_space_with_it(key, after):
    book = Book()
    book.write("a", where="h2", key=key)
    taking = book.take(spans=True, key=key)
    assert book.found() == ["lost"]
    book.facts.kills["h1"] = [(taking.began + taking.ended) / 2]
    assert book.found() == after


def test_what_is_published_is_kept_by_nobody():
    book = Book()
    book.write("a", key="pubsub:told")
    assert book.found() == []


def test_a_read_after_the_take_sees_a_ghost():
    book = Book()
    book.write("a")
    book.take("a")
    book.add("read", "reader", got=["a"])
    assert book.found() == ["ghost"]


# Transactions


def two_accounts(book: Book) -> None:
    book.write("ada@1=100", key="space:account")
    book.write("ben@1=100", key="space:account")


BEFORE = ["ada@1=100", "ben@1=100"]
AFTER = ["ada@2=90", "ben@2=110"]


@pytest.mark.parametrize(
    ("outcome", "left", "found"),
    [
        ("ok", AFTER, []),
        ("fail", BEFORE, []),
        ("unknown", AFTER, []),
        ("unknown", BEFORE, []),
        ("pending", AFTER, []),
        # Half of it was done.
        ("ok", [AFTER[0]], ["half done", "sum"]),
        ("unknown", [AFTER[0]], ["half done", "sum"]),
        ("unknown", [AFTER[0], BEFORE[1]], ["half done", "sum"]),
        ("unknown", [*BEFORE, *AFTER], ["half done", "sum"]),
        ("unknown", [], ["half done", "sum"]),
        # It was committed, and the decision forgotten.
        ("ok", BEFORE, ["half done", "lost"]),
        # It was called off, and told wrong.
        ("fail", AFTER, ["half done", "told wrong"]),
        ("fail", [BEFORE[0]], ["half done", "sum"]),
    ],
)
def test_a_transfer_is_done_as_a_whole_or_not_at_all(outcome, left, found):
    book = Book("banker")
    two_accounts(book)
    book.transfer(BEFORE, AFTER, outcome, key="space:account")
    book.drain(*left, key="space:account")
    assert set(found) <= set(book.found())
    assert bool(found) == bool(book.found())


def test_transfers_in_doubt_are_settled_by_those_that_follow():
    book = Book()
    two_accounts(book)
    book.transfer(BEFORE, AFTER, "unknown", key="space:account")
    book.transfer(AFTER, ["ada@3=80", "ben@3=120"], "unknown", key="space:account")
    book.drain("ada@3=80", "ben@3=120", key="space:account")
    assert book.found() == []


def test_accounts_keep_their_sum():
    book = Book()
    two_accounts(book)
    book.transfer(BEFORE, ["ada@2=90", "ben@2=111"], key="space:account")
    book.drain("ada@2=90", "ben@2=111", key="space:account")
    assert book.found() == ["sum"]


# Readers


def test_a_session_gives_nothing_twice():
    book = Book()
    book.write("a", key="space:news")
    book.once("a")
    book.once("a", reader="other")
    book.drain("a", key="space:news")
    assert book.found() == []
    book.once("a")
    assert book.found() == ["seen twice"]


def test_a_session_keeps_the_order_of_a_source():
    book = Book()
    for value in "abc":
        book.write(value, key="space:news")
    book.once("a")
    book.once("c", "b")
    book.drain("a", "b", "c", key="space:news")
    assert book.found() == ["out of order"]


def test_of_two_sources_there_is_no_order():
    book = Book()
    book.write("a", key="space:news", where="h1")
    book.write("b", key="space:news", where="h2")
    book.once("b", "a")
    book.drain("a", "b", key="space:news")
    assert book.found() == []


@pytest.mark.parametrize(("second", "found"), [("ab", []), ("bc", []), ("ca", ["two orders"])])
def test_a_view_has_one_order(second, found):
    book = Book()
    for value in "abc":
        book.write(value, key="event-heap:viewed")
    for reader, values in (("v/one", "abc"), ("v/other", second)):
        for value in values:
            book.add("ordered", reader, got=[value], reader=reader, key="event-heap:viewed")
    book.add("read", "drain", got=list("abc"), key="event-heap:viewed")
    assert book.found() == found


def test_a_directed_message_is_for_one_host():
    book = Book()
    book.write("a", key="melon:directed", to="h2")
    book.take("a", key="melon:directed", where="h2")
    assert book.found() == []
    book.write("b", key="melon:directed", to="h2")
    book.take("b", key="melon:directed", where="h1")
    assert book.found() == ["misdirected"]


def test_an_operation_that_does_not_end_is_stuck():
    book = Book("killed")
    book.add("read", "killed", "pending")
    assert book.found() == []
    book.add("read", "living", "pending")
    assert book.found() == ["stuck"]


def test_time_mends_only_what_was_not_seen_yet():
    book = Book()
    book.write("a", "b")
    book.take("a", client="one")
    book.take("a", client="other")
    clients = {one.client for one in book.operations}
    found = check(TortureHistory(book.operations, clients), book.facts)
    assert {one.kind: may_mend(one) for one in found} == {"taken twice": False, "lost": True}


# Histories


def test_errors_say_whether_something_was_done():
    assert outcome_of(PeerLost("h1", "write", in_doubt=True)) == "unknown"
    assert outcome_of(PeerLost("h1", "write")) == "fail"
    assert outcome_of(SpaceFull()) == "fail"
    assert outcome_of(BadArgument("wait", "a number", "x")) == "fail"
    assert outcome_of(CannotCommit("t", "h1", "it refused")) == "fail"
    assert outcome_of(OutcomeUnknown("t", "h1", "it is gone")) == "unknown"
    assert outcome_of(TimeoutExpired("t", "committed", [])) == "ok"
    assert outcome_of(TransactionEnded("t", "aborted")) == "fail"
    assert outcome_of(SpaceClosed()) == "unknown"


def test_a_killed_client_leaves_its_history(tmp_path):
    file = tmp_path / "a.history"
    log = HistoryLog(file)
    log.begin("a", "write", "space:job", "h1", wrote=["a-1"]).told()
    log.begin("a", "take", "space:job", "h1")
    log.close()
    file.write_bytes(file.read_bytes() + b'{"client": "a", "numb')
    history = read_history([file])
    assert [one.outcome for one in history.operations] == ["ok", "pending"]
    assert history.operations[0].wrote == ["a-1"]
    assert history.ended == set()


@pytest.mark.parametrize(("commits", "outcome"), [(True, "pending"), (False, "fail")])
def test_what_was_never_told_to_commit_is_not_committed(tmp_path, commits, outcome):
    log = HistoryLog(tmp_path / "a.history")
    begun = log.begin("a", "transfer", "space:account", "h1")
    begun.doing(["x"], ["y"])
    if commits:
        begun.committing()
    log.close()
    (one,) = read_history([tmp_path / "a.history"]).operations
    assert one.outcome == outcome


def test_a_transfer_that_fails_before_its_commit_is_aborted(tmp_path):
    log = HistoryLog(tmp_path / "a.history")
    begun = log.begin("a", "transfer", "space:account", "h1")
    begun.doing(["x"], ["y"])
    begun.failed(PeerLost("h1", "write", in_doubt=True))
    log.close()
    (one,) = read_history([tmp_path / "a.history"]).operations
    assert (one.outcome, one.got, one.wrote) == ("fail", ["x"], ["y"])
