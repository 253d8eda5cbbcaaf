"""A client at its host: what it is refused, what it leaves behind, and what goes back."""

import threading
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.federation.client.hosting import Hosting
from tests.federation.raw import Raw, encoded
from tests.laws.kinds import Job
from tupelo.federation.client.connect import connect
from tupelo.federation.hosts import client_resources, serving
from tupelo.federation.identity.access import ANYONE, Access
from tupelo.federation.links import wire
from tupelo.federation.spaces import hosted
from tupelo.values.template_encoding import template_to_wire

PATIENCE = 60.0
UNSAYABLE = ("s", "\ud800")
"""An entry that a space in memory accepts, and no frame does."""
MEBI = 2**20
ANY_ENTRY = template_to_wire(tupelo.ANY)


class Desk:
    """A host, and programs that say what a test wants."""

    def __init__(self, company: Any) -> None:
        self._company = company
        self._raws: list[Raw] = []
        self.host: Any = None

    def at(self, path: Path | None = None, **limits: int) -> Any:
        """The host's own space "jobs"; durable if there is a path."""
        self.host = self._company.host(
            "home", heartbeat=30.0, path=path, limits=tupelo.Limits(**limits)
        )
        return self.host.space("jobs")

    def client(self, **hello: Any) -> Raw:
        raw = Raw.met(self.host.address, **hello)
        self._raws.append(raw)
        return raw

    def close(self) -> None:
        for raw in self._raws:
            raw.close()


@pytest.fixture
def desk(threads):
    desk = Desk(threads)
    yield desk
    desk.close()


@pytest.fixture(params=["memory", "durable"])
def path(request, tmp_path):
    return tmp_path if request.param == "durable" else None


@pytest.fixture
def hosting():
    hosting = Hosting()
    yield hosting
    hosting.close()


@pytest.fixture
def guest(hosting):
    """A client of that host."""
    raw = Raw.met(hosting.core.address)
    yield raw
    raw.close()


def is_served(client: Raw) -> bool:
    """It is answered; so everything that it has said before was heard."""
    return isinstance(client.call(wire.CountRequest, "jobs", ANY_ENTRY), wire.Answer)


# Whose entry it is


def test_to_cancel_an_entry_does_not_touch_that_of_another_space(desk, tmp_path):
    desk.at(tmp_path)
    with connect(f"tupelo://{desk.host.address}/here") as here, here.space("there") as there:
        with here.transaction() as txn:
            here.write(("here",), txn=txn)
        there.write(("there",)).cancel()
        assert here.read_all() == [("here",)]
        assert there.read_all() == []


def test_the_leases_of_what_a_transaction_wrote_are_kept_while_it_lives(desk, monkeypatch):
    monkeypatch.setattr(client_resources, "WRITTEN_MIN", 4)
    jobs = desk.at()
    with connect(f"tupelo://{desk.host.address}/jobs") as space:
        leases = []
        for n in range(20):
            with space.transaction() as txn:
                leases.append(space.write((n,), txn=txn))
            if n % 2:
                space.take((n,))
        for lease in leases[::2]:
            lease.cancel()
        assert jobs.read_all() == []


# Writes that nobody waits for


def test_who_does_not_want_the_leases_is_not_told_of_them(desk):
    jobs = desk.at()
    client = desk.client()
    for leases in (False, True):
        answer = client.call(wire.Write, "jobs", [["a", 1], ["b", 2]], leases=leases)
        assert len(answer.value) == (1 if leases else 0)  # one run of two
    assert client.call(wire.Write, "jobs", [["c", 3]], leases=False).value == []
    assert sorted(jobs.read_all()) == [("a", 1), ("a", 1), ("b", 2), ("b", 2), ("c", 3)]


@pytest.mark.parametrize("leaving", [wire.Cancel([7]), wire.Goodbye()], ids=["cancel", "goodbye"])
def test_a_write_whose_writer_left_at_once_is_not_done_later(desk, leaving):
    desk.at()
    small = desk.host.space("small", capacity=tupelo.Capacity(1))
    small.write(("first",))
    client = desk.client()
    client.say(wire.Write(7, "small", [["late"]], wait=None), leaving)
    if isinstance(leaving, wire.Goodbye):
        client.is_hung_up()
    else:
        assert is_served(client)
    assert small.take(("first",), wait=0) == ("first",)
    assert small.read_all() == []


# How many calls


def test_calls_that_were_cancelled_at_once_do_not_count(desk, tmp_path):
    desk.at(tmp_path, calls=5)
    client = desk.client()
    for call in range(100, 120):
        client.say(
            wire.Get(call, "jobs", ANY_ENTRY, True, None),
            wire.Cancel([call]),
        )
        client.ping()
        assert is_served(client)


@pytest.mark.parametrize(
    "waiting",
    [
        lambda call: wire.Get(call, "small", encoded("none"), True, None, order="lifo"),
        lambda call: wire.Get(call, "small", encoded("none"), True, None),
        lambda call: wire.Write(call, "small", [["late"]], wait=None),
    ],
    ids=["slow get", "get", "write"],
)
def test_no_more_calls_wait_than_may(desk, waiting):
    desk.at(calls=3)
    small = desk.host.space("small", capacity=tupelo.Capacity(1))
    small.write(("first",))
    client = desk.client()
    client.say(*(waiting(call) for call in range(101, 105)))
    refusal = client.answer(104)
    assert (refusal.kind, refusal.data["limit"]) == ("LimitReached", 3)
    client.say(wire.Cancel([101, 102, 103]))
    client.say(waiting(105), wire.Cancel([105]))
    client.ping()
    assert isinstance(client.call(wire.CountRequest, "small", ANY_ENTRY), wire.Answer)


def test_who_waits_when_a_host_engages_is_answered_even_if_its_task_has_not_begun(hosting, guest):
    waiting = wire.Get(1, "jobs", ANY_ENTRY, True, None, order="lifo")

    def at_once() -> None:
        (client,) = hosting.core.servings.values()
        client.requests.serve(wire.decode(wire.encode(waiting)))
        client.engaged()

    hosting._loop.call(at_once)
    hosting.space.write(("job", 1))
    answer = guest.answer(1)
    assert isinstance(answer, wire.Answer), answer
    assert answer.value == [["job", 1]]


# Notices


def listen(client: Raw) -> str:
    return str(client.call(wire.Subscribe, "jobs", ANY_ENTRY).value[0])


def test_notices_that_fill_more_than_a_frame_come_in_several(desk):
    jobs = desk.at()
    client = desk.client()
    subscription = listen(client)
    for n in range(18):
        jobs.write((n, "x" * MEBI))
    heard: list[Any] = []
    while len(heard) < 18:
        answer = client.call(wire.Next, "jobs", subscription, PATIENCE, 64)
        assert isinstance(answer, wire.Answer), answer
        assert answer.value
        heard += answer.value
    assert [entry[0][0] for _, _, _, entry, _ in heard] == list(range(18))
    assert [missed for *_, missed in heard] == [0] * 18


def test_a_notice_that_cannot_be_sent_is_counted_as_missed(desk):
    jobs = desk.at()
    client = desk.client()
    subscription = listen(client)
    jobs.write(("before",))
    jobs.write(("large", "x" * 17 * MEBI))
    jobs.write(UNSAYABLE)
    jobs.write(("after",))
    answer = client.call(wire.Next, "jobs", subscription, PATIENCE, 64)
    assert [(entry[0], missed) for _, _, _, entry, missed in answer.value] == [
        (["before"], 0),
        (["after"], 2),
    ]


def test_after_a_notice_that_cannot_be_sent_the_next_is_waited_for(desk):
    jobs = desk.at()
    client = desk.client()
    subscription = listen(client)
    client.say(wire.Next(100, "jobs", subscription, PATIENCE, 1))
    assert is_served(client)
    jobs.write(UNSAYABLE)
    assert is_served(client)
    jobs.write(("after",))
    ((_, sequence, _, entry, missed),) = client.answer(100).value
    assert (sequence, entry[0], missed) == (2, ["after"], 1)


# Rights


def test_who_may_only_read_renews_and_ends_what_it_has(desk):
    desk.at()
    desk.host.space("shown", access=Access(write=(), take=()))
    with connect(f"tupelo://{desk.host.address}/shown") as space:
        session = space.session(lease=60)
        session.lease.renew(120)
        session.lease.cancel()
        subscription = space.subscribe(lease=60)
        subscription.lease.renew(120)
        subscription.lease.cancel()
        assert not subscription.active


def test_who_may_only_subscribe_ends_its_subscription(desk):
    desk.at()
    desk.host.space("told", access=Access(read=(), write=(), take=(), subscribe=ANYONE))
    with connect(f"tupelo://{desk.host.address}/told") as space:
        subscription = space.subscribe()
        assert subscription.active
        subscription.close()
        with pytest.raises(tupelo.errors.NotAllowed):
            space.read(wait=0)


# What cannot be sent


@pytest.mark.parametrize("take", [False, True], ids=["read", "take"])
@pytest.mark.parametrize("how", [{}, {"many": True}, {"order": "lifo"}], ids=str)
def test_an_answer_that_cannot_be_sent_fails_its_call_only(desk, take, how):
    jobs = desk.at()
    jobs.write(UNSAYABLE)
    client = desk.client()
    refusal = client.call(wire.Get, "jobs", ANY_ENTRY, take, 0.0, **how)
    assert refusal.kind == "CannotSend"
    assert is_served(client)
    assert jobs.read_all() == [UNSAYABLE]


@pytest.mark.parametrize("take", [False, True], ids=["read", "take"])
@pytest.mark.parametrize("order", [None, "lifo"])
def test_who_waits_for_what_cannot_be_sent_is_told(desk, take, order):
    jobs = desk.at()
    client, other = desk.client(), desk.client()
    client.say(wire.Get(100, "jobs", ANY_ENTRY, take, None, order=order))
    assert is_served(client)
    other.call(wire.Write, "jobs", [["job", "x" * MEBI]])
    assert client.answer(100).value
    client.say(wire.Confirm([100]))
    client.say(wire.Get(101, "jobs", encoded("s", str), take, None, order=order))
    assert is_served(client)
    jobs.write(UNSAYABLE)
    assert client.answer(101).kind == "CannotSend"
    assert is_served(client)
    assert jobs.read_all(("s", str)) == [UNSAYABLE]


def test_an_error_that_cannot_be_said_as_it_is_is_told_all_the_same(hosting, guest):
    def refuse(entry: Any, step: Any) -> None:
        raise tupelo.errors.BadEntry("\ud800", where="\ud800", found=str)

    hosting.space.react(("job",), refuse)
    refusal = guest.call(wire.Write, "jobs", [["job"]])
    assert refusal.kind == "ReactionFailed"
    assert is_served(guest)


# What goes back


def begin(client: Raw) -> str:
    return str(client.call(wire.Begin, "jobs").value[0])


def remember(client: Raw) -> str:
    return str(client.call(wire.OpenSession, "jobs").value[0])


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_what_a_transaction_took_and_was_not_sent_is_not_taken(desk, many):
    jobs = desk.at()
    client = desk.client()
    jobs.write(UNSAYABLE)
    txn = begin(client)
    refusal = client.call(wire.Get, "jobs", ANY_ENTRY, True, 0.0, many, txn=txn)
    assert refusal.kind == "CannotSend"
    assert jobs.read_all() == [UNSAYABLE]
    assert client.call(wire.End, "jobs", txn, "commit").value[1] == "committed"
    assert jobs.read_all() == [UNSAYABLE]


def test_what_together_is_too_large_for_a_frame_is_not_taken(desk, tmp_path):
    jobs = desk.at(tmp_path)
    client = desk.client()
    for n in range(2):
        jobs.write((n, "x" * 9 * MEBI))
    txn = begin(client)
    refusal = client.call(wire.Get, "jobs", ANY_ENTRY, True, 0.0, True, txn=txn)
    assert refusal.kind == "CannotSend"
    client.call(wire.End, "jobs", txn, "commit")
    assert jobs.count() == 2


def test_what_a_session_was_not_sent_it_has_not_seen(desk):
    jobs = desk.at()
    client = desk.client()
    jobs.write(UNSAYABLE)
    session = remember(client)
    for _ in range(2):
        refusal = client.call(wire.Get, "jobs", ANY_ENTRY, False, 0.0, session=session)
        assert refusal.kind == "CannotSend"
    assert client.call(wire.State, "jobs", "session", session).value[2] == 0


def test_a_take_in_a_transaction_may_be_called_off_while_that_is_active(desk, path):
    jobs = desk.at(path)
    client = desk.client()
    jobs.write(("job", 1))
    txn = begin(client)
    client.say(wire.Get(100, "jobs", ANY_ENTRY, True, 0.0, txn=txn))
    assert client.answer(100).value == [["job", 1]]
    client.say(wire.Cancel([100]))
    assert is_served(client)
    assert jobs.read_all() == [("job", 1)]
    client.call(wire.End, "jobs", txn, "commit")
    assert jobs.take(wait=0) == ("job", 1)


def test_a_take_in_a_transaction_that_has_committed_stays(desk, path):
    jobs = desk.at(path)
    client = desk.client()
    jobs.write(("job", 1))
    txn = begin(client)
    client.say(wire.Get(100, "jobs", ANY_ENTRY, True, 0.0, txn=txn))
    assert client.answer(100).value == [["job", 1]]
    client.call(wire.End, "jobs", txn, "commit")
    client.say(wire.Cancel([100]))
    assert is_served(client)
    assert jobs.count() == 0


def test_a_read_in_a_session_may_be_called_off(desk, path):
    jobs = desk.at(path)
    client = desk.client()
    jobs.write(("job", 1))
    session = remember(client)
    for call in (100, 101):
        client.say(wire.Get(call, "jobs", ANY_ENTRY, False, 0.0, session=session))
        assert client.answer(call).value == [["job", 1]]
        client.say(wire.Cancel([call]))
    assert jobs.read_all() == [("job", 1)]


def test_a_take_that_was_confirmed_may_be_called_off(desk, path):
    jobs = desk.at(path)
    client = desk.client()
    jobs.write(("job", 1))
    (before,) = client.call(wire.Get, "jobs", ANY_ENTRY, False, 0.0, whole=True).value
    client.say(wire.Get(100, "jobs", ANY_ENTRY, True, 0.0))
    assert client.answer(100).value == [["job", 1]]
    client.say(wire.Confirm([100]))
    assert is_served(client)
    assert jobs.count() == 0
    client.say(wire.Cancel([100]), wire.Cancel([100]))
    (after,) = client.call(wire.Get, "jobs", ANY_ENTRY, False, 0.0, True, whole=True).value
    assert after[:3] == before[:3], "it is the same entry"


def test_only_the_last_takes_may_be_called_off(desk, monkeypatch):
    monkeypatch.setattr(serving, "CONFIRMED_MAX", 2)
    monkeypatch.setattr(serving, "REMEMBERED_BYTES", 100)
    jobs = desk.at()
    client = desk.client()

    def take(*entry: Any) -> None:
        jobs.write(entry)
        client.say(wire.Get(entry[0], "jobs", ANY_ENTRY, True, 0.0), wire.Confirm([entry[0]]))
        assert client.answer(entry[0]).value == [list(entry)]

    for n in (101, 102, 103):
        take(n)
    client.say(wire.Cancel([101, 102, 103]))
    assert is_served(client)
    assert jobs.take_all() == [(102,), (103,)]
    take(104)
    take(105, "x" * 200)
    client.say(wire.Cancel([104, 105]))
    assert is_served(client)
    assert jobs.take_all() == [(105, "x" * 200)]


class Parcel:
    """Something on its way to a taker."""

    space = "jobs"

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.fate = ""

    def confirm(self) -> int:
        self.fate = "confirmed"
        return 0

    def give_back(self) -> int:
        self.fate = "given back"
        return 0

    def forget(self) -> None:
        """Nothing was put aside."""


@pytest.mark.parametrize("limit", ["RETURNED_MAX", "RECEIVED_MAX"])
def test_what_is_recovered_when_its_taker_is_back_already_is_settled_at_once(
    desk, monkeypatch, limit
):
    monkeypatch.setattr(hosted, limit, 4)
    desk.at()
    core = desk.host.core
    parcels = {call: Parcel() for call in (1, 2, 3)}
    for _ in range(2):
        core.doubts.client_back("client:a:s", [2])
    core.doubts.leave("client:a:s", {1: parcels[1], 2: parcels[2]})
    assert (parcels[1].fate, parcels[2].fate) == ("given back", "confirmed")
    for number in range(4):
        core.doubts.client_back(f"client:a:{number}", [7])
    done = threading.Event()

    def leave() -> None:  # It is not remembered for ever: then it is waited for.
        core.doubts.leave("client:a:s", {3: parcels[3]})
        done.set()

    desk.host.soon(leave)
    assert done.wait(PATIENCE) and not parcels[3].fate
    assert core.doubts.owners() == ["client:a:s"]


def test_a_dataclass_that_cannot_be_sent_is_told_to_whom_it_concerns(desk):
    jobs = desk.at()
    client = desk.client()
    subscription = listen(client)
    jobs.write_all([Job("\ud800"), Job("fine")])
    heard = client.call(wire.Next, "jobs", subscription, PATIENCE, 64).value
    assert [missed for *_, missed in heard] == [1]
    job = template_to_wire(Job())
    for take in (False, True):
        assert client.call(wire.Get, "jobs", job, take, 0.0).kind == "CannotSend"
        assert client.call(wire.Get, "jobs", job, take, 0.0, whole=True).kind == "CannotSend"
        assert client.call(wire.Get, "jobs", job, take, 0.0, many=True).kind == "CannotSend"
    assert jobs.take_all() == [Job("\ud800"), Job("fine")]


@pytest.mark.parametrize(
    ("level", "entry_cells", "change_cells"), [(0, 6, 13), (wire.LEVEL, 7, 17)]
)
def test_a_client_that_announces_no_level_gets_no_more_than_it_expects(
    desk, tmp_path, level, entry_cells, change_cells
):
    """Clients of older versions refuse entries and changes with more cells."""
    jobs = desk.at(tmp_path)
    client = desk.client(level=level)
    subscription = listen(client)
    with connect(desk.host.url + "jobs", name="worker") as named:
        named.write(("job", 1), delay=0.001)
        assert named.read(("job", 1), wait=PATIENCE) == ("job", 1)
        txn = named.transaction()
        assert named.take(("job", 1), wait=0, txn=txn) == ("job", 1)
        txn.abort()
    (whole,) = client.call(wire.Get, "jobs", ANY_ENTRY, False, 0.0, whole=True).value
    notices = client.call(wire.Next, "jobs", subscription, PATIENCE, 64).value
    changes = client.call(wire.Changes, "jobs", 0).value
    assert len(whole) == entry_cells
    assert {len(entry) for _, _, _, entry, _ in notices} <= {6, entry_cells}
    assert max(len(change) for change in changes) == change_cells
    assert [change[2] for change in changes] == ["delayed", "written", "released"]
    assert jobs.changes()[0].agent_name == "worker"
