"""Transactions that span hosts: all or nothing, whoever is lost, and nobody in doubt for ever."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.federation.company import Company, meet, port_number
from tests.federation.field import Field, played
from tupelo.errors import (
    BadArgument,
    CannotCommit,
    NotAllowed,
    OutcomeUnknown,
    PeerLost,
    TransactionEnded,
    TupeloError,
)
from tupelo.federation.hosts import decisions
from tupelo.federation.hosts.decisions import (
    COORDINATOR,
    TransactionDecisions,
    branch_id,
    spanning_id,
)
from tupelo.federation.hosts.doors import Host
from tupelo.federation.links import wire
from tupelo.federation.transactions import (
    BranchElsewhere,
    DeciderElsewhere,
    transaction,
)
from tupelo.space.dual_api import run_coroutine
from tupelo.space.port import Port, port_of
from tupelo.space.shared import Branch
from tupelo.space.twophase import DecisionLog

PATIENCE_SECONDS = 60.0
TOKEN = ("token", 1)
ANY_TOKEN = ("token", int)


@pytest.fixture
def connect():
    """`connect(host, ...)`: a blocking space at it."""
    made = []

    def call(host: Any, space: str = "jobs", **options: Any) -> Any:
        made.append(tupelo.connect(f"tupelo://{host.address}/{space}", **options))
        return made[-1]

    yield call
    for space in made:
        space.close()


@pytest.fixture
def threads():
    """Hosts that ask every so often for the outcome of a transaction: with each heartbeat."""
    company = Company(heartbeat=0.3)
    yield company
    company.close()


@pytest.fixture
def hosts(threads, tmp_path):
    """`hosts("a", "b")`: durable hosts in this process."""

    def call(*names: str) -> list[Host]:
        return [threads.host(name, path=tmp_path / name) for name in names]

    return call


def cut(host: Host) -> None:
    """Cut the links of all clients of this host."""

    def abort() -> None:
        for serving in list(host.core.servings.values()):
            serving.talk.link.abort()

    host.soon(abort)


def lose_clients(host: Host, until: Any) -> None:
    """Cut them, and come back when the host has noticed."""
    before = set(host.core.servings)
    cut(host)
    until(lambda: not before & set(host.core.servings), "the link is lost")


def here(host: Host) -> Any:
    return host.space("jobs").here


def settled(until: Any, *found: Host) -> list[list[Any]]:
    """The tokens of each host, once nobody is in doubt."""
    until(lambda: not any(here(host).in_doubt() for host in found), "nobody is in doubt")
    return [here(host).read_all(ANY_TOKEN) for host in found]


def kept_for(host: Host) -> set[str]:
    """The participants for which a host keeps decisions."""
    return {found[2] for found in host.core.deciding.space.read_all()}


def decisions_at(host: Host) -> set[str]:
    return host.core.deciding._log.decided()


class At:
    """Does something before or after a method of one branch, once."""

    def __init__(self, monkeypatch: Any, owner: type, name: str) -> None:
        self._monkeypatch = monkeypatch
        self._owner = owner
        self._name = name

    def do(self, work: Any, *, after: bool, where: Any = lambda one: True) -> None:
        method = getattr(self._owner, self._name)
        done: list[bool] = []

        def call(one: Any, *args: Any) -> Any:
            now = not done and where(one)
            if now:
                done.append(True)
            if now and not after:
                work()
            answer = method(one, *args)
            if now and after:
                work()
            return answer

        self._monkeypatch.setattr(self._owner, self._name, call)


@pytest.fixture
def at(monkeypatch):
    return lambda owner, name: At(monkeypatch, owner, name)


def is_at(host: Any) -> Any:
    """Is this branch at this host?"""
    return lambda branch: branch._space.peer == host.address


# What everybody sees


def test_all_of_it_or_nothing(hosts, connect):
    left, right = map(connect, hosts("left", "right"))
    left.write(TOKEN)
    with transaction(left, right) as txn:
        right.write(left.take(ANY_TOKEN, wait=0, txn=txn), txn=txn)
        assert left.read(ANY_TOKEN, wait=0) is None and right.read(ANY_TOKEN, wait=0) is None
        assert right.count(ANY_TOKEN, txn=txn) == 1
    assert txn.state == "committed" and txn.untold == []
    assert left.read(ANY_TOKEN, wait=0) is None and right.read(ANY_TOKEN, wait=0) == TOKEN
    with pytest.raises(ZeroDivisionError), transaction(left, right) as txn:
        left.write(right.take(ANY_TOKEN, wait=0, txn=txn), txn=txn)
        1 / 0  # noqa: B018
    assert txn.state == "aborted"
    assert left.read(ANY_TOKEN, wait=0) is None and right.read(ANY_TOKEN, wait=0) == TOKEN
    with pytest.raises(TransactionEnded):
        left.write(TOKEN, txn=txn)


def test_nothing_is_kept_of_what_everyone_knows(hosts, connect, until):
    here_, there = hosts("here", "there")
    left, right = connect(here_), connect(there)
    with transaction(left, right) as txn:
        left.write(TOKEN, txn=txn)
        right.write(TOKEN, txn=txn)
    until(lambda: not decisions_at(here_), "the decision is forgotten")
    assert not decisions_at(there)


def test_spaces_of_every_kind(threads, hosts, connect, tmp_path):
    (elsewhere,) = hosts("elsewhere")
    remote, ours = connect(elsewhere), threads.host("ours").space("jobs")
    with (
        tupelo.Space("memory") as memory,
        tupelo.Space("disk", path=tmp_path / "disk.tupelo") as disk,
    ):
        spaces = [memory, disk, ours, remote]
        with transaction(*spaces, *spaces) as txn:
            for space in spaces:
                space.write(TOKEN, txn=txn)
        assert [space.take(ANY_TOKEN, wait=0) for space in spaces] == [TOKEN] * 4
        txn = transaction(*spaces)
        for space in spaces:
            space.write(TOKEN, txn=txn)
        txn.abort()
        assert [space.count(ANY_TOKEN) for space in spaces] == [0] * 4


def test_local_spaces_alone_need_no_host(tmp_path):
    with (
        tupelo.Space("one") as one,
        tupelo.Space("two") as two,
        tupelo.Space("log", path=tmp_path / "log.tupelo") as log,
    ):
        with transaction(one, two, decisions=DecisionLog(log)) as txn:
            one.write(TOKEN, txn=txn)
            two.write(TOKEN, txn=txn)
        assert one.count(ANY_TOKEN) == two.count(ANY_TOKEN) == 1


@pytest.mark.parametrize("spaces", [(), (1,), ("jobs",), (None,)])
def test_only_spaces_can_take_part(spaces):
    with pytest.raises(BadArgument, match="spaces="):
        transaction(*spaces)


def test_bad_arguments_are_named(hosts, connect):
    remote = connect(*hosts("host"))
    with tupelo.Space("one") as one:
        with pytest.raises(BadArgument, match="spaces="):
            transaction(one, tupelo.aio.Space(one))
        with pytest.raises(BadArgument, match="lease="):
            transaction(one, lease=-1)
        with pytest.raises(BadArgument, match="decisions="):
            transaction(one, decisions=one)  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="decisions="):
            transaction(remote, decisions=DecisionLog(one))
        with pytest.raises(BadArgument, match="txn="):
            remote.write(TOKEN, txn=transaction(one))


def test_two_links_to_the_same_space(hosts, connect):
    (host,) = hosts("host")
    one, other = connect(host), connect(host)
    with transaction(one, other) as txn:
        one.write(TOKEN, txn=txn)
        other.write(TOKEN, txn=txn)
    assert one.count(ANY_TOKEN) == 2


def test_a_space_that_was_opened_twice_over_one_link_has_one_branch(hosts, connect):
    one = connect(*hosts("host"))
    with one.space("jobs") as other, transaction(one, other) as txn:
        one.write(TOKEN, txn=txn)
        assert other.take(ANY_TOKEN, wait=0, txn=txn) == TOKEN


def test_nested(hosts, connect):
    left, right = map(connect, hosts("left", "right"))
    with transaction(left, right) as txn:
        left.write(TOKEN, txn=txn)
        with txn.transaction() as inner:
            right.write(left.take(ANY_TOKEN, wait=0, txn=inner), txn=inner)
        assert left.count(ANY_TOKEN, txn=txn) == 0 and right.count(ANY_TOKEN, txn=txn) == 1
        with pytest.raises(ZeroDivisionError), txn.transaction() as inner:
            right.take(ANY_TOKEN, wait=0, txn=inner)
            1 / 0  # noqa: B018
        assert right.count(ANY_TOKEN) == 0
    assert left.count(ANY_TOKEN) == 0 and right.count(ANY_TOKEN) == 1


def test_a_lease_ends_it_everywhere(hosts, connect):
    left, right = map(connect, hosts("left", "right"))
    with tupelo.Space("local") as local:
        for space in (left, right, local):
            space.write(TOKEN)
        txn = transaction(left, right, local, lease=60.0)
        for space in (left, right, local):
            space.take(ANY_TOKEN, wait=0, txn=txn)
        txn.lease.renew(0.2)
        for space in (left, right, local):
            assert space.read(ANY_TOKEN, wait=PATIENCE_SECONDS) == TOKEN
        with pytest.raises(TransactionEnded):
            txn.commit()


def test_a_lease_is_renewed_everywhere(hosts, connect):
    left, right = map(connect, hosts("left", "right"))
    with transaction(left, right, lease=60.0) as txn:
        left.write(TOKEN, txn=txn)
        right.write(TOKEN, txn=txn)
        txn.lease.renew(1.0)
        txn.lease.renew(60.0)
        # Longer than the lease was: nothing of this kind comes.
        assert left.take(("never",), wait=1.2) is None
    assert left.count(ANY_TOKEN) == right.count(ANY_TOKEN) == 1


def test_who_waits_in_it_hears_of_its_end(hosts, connect, later, until):
    left, right = map(connect, hosts("left", "right"))
    txn = transaction(left, right)
    left.write(TOKEN, txn=txn)
    call = later(right.take, ANY_TOKEN, txn=txn)
    until(lambda: len(txn._members) == 2 and txn._members[1].txn is not None)
    txn.abort()
    with pytest.raises(TransactionEnded):
        call.result()


def test_many_threads_begin_one_branch(hosts, connect, later):
    left, right = map(connect, hosts("left", "right"))
    with transaction(left, right) as txn:
        calls = [later(space.write, TOKEN, txn=txn) for space in (left, right) for _ in range(5)]
        for call in calls:
            call.result()
    assert left.count(ANY_TOKEN) == right.count(ANY_TOKEN) == 5


def test_a_host_that_refuses(hosts, connect, until):
    one, other = hosts("one", "other")
    left, right = connect(one), connect(other)

    def refuse(entry: Any, step: Any) -> None:
        raise ValueError("not here")

    here(other).react(ANY_TOKEN, refuse)
    with pytest.raises(CannotCommit), transaction(left, right) as txn:
        left.write(TOKEN, txn=txn)
        right.write(TOKEN, txn=txn)
    assert settled(until, one, other) == [[], []]


# The async door


def test_the_async_door(hosts, until):
    one, other = hosts("one", "other")

    async def play() -> None:
        async with (
            await tupelo.aio.connect(one.url + "jobs") as left,
            await tupelo.aio.connect(other.url + "jobs") as right,
        ):
            local = tupelo.aio.Space(tupelo.Space("local"))
            async with transaction(left, right, local) as txn:
                await left.write(TOKEN, txn=txn)
                await right.write(TOKEN, txn=txn)
                await local.write(TOKEN, txn=txn)
            assert await left.count() == await right.count() == await local.count() == 1
            with pytest.raises(ZeroDivisionError):
                async with transaction(left, right) as txn:
                    await left.take(ANY_TOKEN, wait=0, txn=txn)
                    await right.take(ANY_TOKEN, wait=0, txn=txn)
                    1 / 0  # noqa: B018
            txn = transaction(left, right)
            await left.take(ANY_TOKEN, wait=0, txn=txn)
            await right.take(ANY_TOKEN, wait=0, txn=txn)
            await txn.abort()
            assert await left.count() == await right.count() == 1
            with pytest.raises(TypeError, match="async with"), transaction(left, right):
                pass
            lapsed = transaction(left, right, lease=1.0)
            await left.take(ANY_TOKEN, wait=0, txn=lapsed)
            await right.take(ANY_TOKEN, wait=0, txn=lapsed)
            assert await left.read(ANY_TOKEN, wait=PATIENCE_SECONDS) == TOKEN
            assert await right.read(ANY_TOKEN, wait=PATIENCE_SECONDS) == TOKEN
            with pytest.raises(TransactionEnded):
                await right.write(TOKEN, txn=lapsed)
            await local.close()

    asyncio.run(asyncio.wait_for(play(), PATIENCE_SECONDS))
    assert settled(until, one, other) == [[TOKEN], [TOKEN]]


def test_one_who_is_cancelled_while_a_branch_begins(hosts, until):
    one, other = hosts("one", "other")

    async def play() -> None:
        async with (
            await tupelo.aio.connect(one.url + "jobs") as left,
            await tupelo.aio.connect(other.url + "jobs") as right,
            transaction(left, right) as txn,
        ):
            await left.write(TOKEN, txn=txn)
            assert await right.count(txn=txn) == 0
            async with txn.transaction() as inner:
                first = asyncio.ensure_future(right.write(("lost", 1), txn=inner))
                for _ in range(3):
                    await asyncio.sleep(0)  # It is asked, and what is asked is sent.
                # The host has begun it, and we hear nothing.
                until(lambda: len(port_of(here(other)).summary(3)[1]) == 2)
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
                await right.write(TOKEN, txn=inner)

    asyncio.run(asyncio.wait_for(play(), PATIENCE_SECONDS))
    assert settled(until, one, other) == [[TOKEN], [TOKEN]]
    assert not here(other).count(("lost", int))


def test_an_async_host_decides(tmp_path):
    async def play() -> None:
        async with (
            tupelo.aio.Host("ours", listen=0, path=tmp_path / "ours", heartbeat=5.0) as ours,
            tupelo.aio.Host("other", listen=0, heartbeat=5.0) as other,
        ):
            other.space("jobs")
            async with await tupelo.aio.connect(other.url + "jobs") as remote:
                async with transaction(ours.space("jobs"), remote) as txn:
                    await ours.space("jobs").write(TOKEN, txn=txn)
                    await remote.write(TOKEN, txn=txn)
                assert ours.id in txn.id
                assert await remote.count() == await ours.space("jobs").count() == 1

    asyncio.run(asyncio.wait_for(play(), PATIENCE_SECONDS))


# Links that are lost


def moving(left: Any, right: Any, *others: Any) -> Any:
    """A transaction that has taken the token on the left and written it on the right."""
    txn = transaction(*others, left, right)
    right.write(left.take(ANY_TOKEN, wait=0, txn=txn), txn=txn)
    return txn


@pytest.mark.parametrize("lost", ["one", "other", "decider"])
@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (BranchElsewhere, "prepare", False),
        (BranchElsewhere, "prepare", True),
        (TransactionDecisions, "decide", False),
        (TransactionDecisions, "decide", True),
        (BranchElsewhere, "commit", False),
        (BranchElsewhere, "commit", True),
    ],
)
@pytest.mark.parametrize("engaged", [False, True])
def test_a_link_is_lost(hosts, connect, at, until, lost, owner, name, after, engaged):
    one, other, decider = found = hosts("one", "other", "decider")
    if engaged:
        meet(*found)
    here(one).write(TOKEN)
    txn = moving(connect(one), connect(other), connect(decider))
    victim = dict(zip(("one", "other", "decider"), found, strict=True))[lost]

    def lose() -> None:
        if owner is TransactionDecisions:  # It is not to be kept waiting.
            cut(victim)
        else:
            lose_clients(victim, until)

    at(owner, name).do(lose, after=after)
    try:
        txn.commit()
        outcome = "committed"
    except CannotCommit:
        outcome = "aborted"
    assert settled(until, one, other) == (
        [[], [TOKEN]] if outcome == "committed" else [[TOKEN], []]
    )
    if name == "commit" or (name == "decide" and after):
        assert outcome == "committed"


def test_the_answer_of_the_decider_is_lost_and_it_does_not_come_back(
    hosts, connect, at, until, monkeypatch
):
    one, other, decider = hosts("one", "other", "decider")
    here(one).write(TOKEN)
    txn = moving(connect(one), connect(other), connect(decider, reconnect=0))
    at(TransactionDecisions, "decide").do(lambda: cut(decider), after=True)
    with pytest.raises(OutcomeUnknown):
        txn.commit()
    assert settled(until, one, other) == [[], [TOKEN]]  # They have asked it.
    until(lambda: kept_for(decider) == {COORDINATOR}, "it is kept for the coordinator only")
    monkeypatch.setattr(decisions, "COORDINATOR_SECONDS", 0.0)
    until(lambda: not decisions_at(decider), "the decision is forgotten")


def test_the_answer_of_the_decider_is_lost_until_everyone_else_knows(
    hosts, connect, at, until, monkeypatch
):
    """The participants have asked the decider, and it has forgotten them, when the coordinator can
    ask at last."""
    one, other, decider = hosts("one", "other", "decider")
    here(one).write(TOKEN)
    txn = moving(connect(one), connect(other), connect(decider))
    learn = DeciderElsewhere._learn

    def late(self: DeciderElsewhere, failure: TupeloError) -> bool:
        lose_clients(one, until)
        lose_clients(other, until)
        until(lambda: kept_for(decider) == {COORDINATOR}, "the participants are told")
        return learn(self, failure)

    monkeypatch.setattr(DeciderElsewhere, "_learn", late)
    at(TransactionDecisions, "decide").do(lambda: cut(decider), after=True)
    txn.commit()
    assert txn.state == "committed"
    assert settled(until, one, other) == [[], [TOKEN]]
    until(lambda: not decisions_at(decider), "the coordinator has said that it knows")


def test_nobody_says_for_another_that_it_knows_the_outcome(hosts, connect, at, until):
    """A participant knows the id of its own branch, and so that of the transaction, but not those
    of the other branches; and the names of spaces are no secret."""
    one, other, decider = hosts("one", "other", "decider")
    here(one).write(TOKEN)
    txn = moving(connect(one), connect(other), connect(decider))
    names = {connect(host).engine_id for host in (one, other)}
    stranger = connect(decider)

    def forge() -> None:
        """It is decided, and nobody was told yet."""
        for name in (*names, COORDINATOR):
            for said in (txn.id, *(branch_id(txn.id, number) for number in range(4))):
                run_coroutine(stranger.ask(wire.Forget(0, said, name)))
        assert kept_for(decider) >= names
        for host in (one, other):
            lose_clients(host, until)

    at(BranchElsewhere, "commit").do(forge, after=False)
    txn.commit()
    assert settled(until, one, other) == [[], [TOKEN]]  # They have asked, and were told the truth.
    until(lambda: not decisions_at(decider), "they have said themselves that they know")


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_decider_on_disk_knows_that_nothing_was_decided(threads, connect, tmp_path, durable):
    """In memory it may have been decided, and lost, in an earlier life of that host."""
    decider = threads.host("decider", path=tmp_path / "decider" if durable else None)
    txn = spanning_id(decider.id, decider.address, "a lost session", "1")
    given_up = run_coroutine(connect(decider).ask(wire.Decide(0, txn, [])))
    assert given_up is (True if durable else None)


def test_an_abort_that_is_not_heard(hosts, connect, at, until):
    """Who has promised learns from the decider, which the coordinator has told."""
    one, other, decider = hosts("one", "other", "decider")
    here(one).write(TOKEN)
    txn = moving(connect(one), connect(other), connect(decider))

    def refuse() -> None:
        lose_clients(one, until)
        raise PeerLost("it", "a prepare")

    at(BranchElsewhere, "prepare").do(refuse, after=False, where=is_at(other))
    with pytest.raises(CannotCommit):
        txn.commit()
    assert settled(until, one, other) == [[TOKEN], []]


def test_hosts_here_that_ask_for_themselves(threads, hosts, connect, at, until):
    """The link to the decider is lost when it is decided, and a host here, in memory, asks before
    it is told."""
    (decider,) = hosts("decider")
    one, other = threads.host("one"), threads.host("other")
    txn = transaction(connect(decider), one.space("jobs"), other.space("jobs"))
    for host in (one, other):
        host.space("jobs").write(TOKEN, txn=txn)

    def ask() -> None:
        lose_clients(decider, until)
        settled(until, one, other)

    at(Branch, "commit").do(ask, after=False)
    txn.commit()
    assert settled(until, one, other) == [[TOKEN], [TOKEN]]


def test_a_branch_whose_link_was_lost_is_over(hosts, connect, until):
    one, other = hosts("one", "other")
    left, right = connect(one), connect(other)
    here(one).write(TOKEN)
    txn = moving(left, right)
    lose_clients(other, until)
    with pytest.raises((PeerLost, TransactionEnded)):
        right.write(TOKEN, txn=txn)
    with pytest.raises(CannotCommit):
        txn.commit()
    assert settled(until, one, other) == [[TOKEN], []]


@pytest.mark.parametrize("decided", [False, True])
def test_the_coordinator_is_interrupted(hosts, connect, monkeypatch, until, decided):
    """Somebody presses Ctrl-C while the decider is asked."""
    one, other = hosts("one", "other")
    here(one).write(TOKEN)
    txn = moving(connect(one), connect(other))
    decide = DeciderElsewhere._decide

    async def interrupted(decider: Any, told: Any, within: Any = None) -> bool:
        monkeypatch.setattr(DeciderElsewhere, "_decide", decide)
        if decided:
            await decide(decider, told, within)
        raise KeyboardInterrupt

    monkeypatch.setattr(DeciderElsewhere, "_decide", interrupted)
    with pytest.raises(KeyboardInterrupt):
        txn.commit()
    assert txn.state == ("committed" if decided else "aborted")
    assert settled(until, one, other) == ([[], [TOKEN]] if decided else [[TOKEN], []])


def test_nobody_decides_for_another(hosts, connect):
    (host,) = hosts("host")
    ours, theirs = connect(host), connect(host)
    with transaction(ours) as txn:
        ours.write(TOKEN, txn=txn)

        def ask(told: list[tuple[str, str]]) -> Any:
            return run_coroutine(theirs.ask(wire.Decide(0, txn.id, told)))

        assert ask([(txn.id, "somebody")]) is False
        with pytest.raises(NotAllowed):
            ask([])
        assert run_coroutine(theirs.ask(wire.AskOutcome(0, txn.id))) is None
    assert ours.count(ANY_TOKEN) == 1


def test_only_the_decider_is_believed(
    threads, hosts, connect, at, until, tmp_path, caplog, monkeypatch
):
    """Another host at its address knows nothing, and so would say that it was aborted."""
    caplog.set_level("INFO", "tupelo")
    one, other = hosts("one", "other")
    here(one).write(TOKEN)
    decider = Host("decider", listen=0, path=tmp_path / "decider", heartbeat=0.2)
    txn = moving(connect(one, reconnect=0), connect(other), connect(decider, reconnect=0))
    port = port_number(decider.address)
    settle, is_closed = TransactionDecisions._settle, list[bool]()

    async def settle_later(self: TransactionDecisions, *args: Any) -> None:
        if is_closed:  # Before, it would answer who asks early.
            await settle(self, *args)

    monkeypatch.setattr(TransactionDecisions, "_settle", settle_later)

    def lose() -> None:
        decider.close()
        is_closed.append(True)
        lose_clients(one, until)

    at(BranchElsewhere, "commit").do(lose, after=False, where=is_at(one))
    txn.commit()
    with Host("impostor", listen=port, heartbeat=0.2):
        until(lambda: f"it is not the host {decider.id}" in caplog.text, "it was asked")
        assert len(here(one).in_doubt()) == 1
    threads.host("decider", listen=port, path=tmp_path / "decider")
    assert settled(until, one, other) == [[], [TOKEN]]


# Coordinators that are killed


def run_coordinator(step: int, *found: Host | str) -> subprocess.CompletedProcess[bytes]:
    program = Path(__file__).with_name("transaction_child.py")
    urls = [host if isinstance(host, str) else f"{host.url}jobs" for host in found]
    return subprocess.run(
        [sys.executable, str(program), str(step), *urls],
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("step", range(11))
@pytest.mark.parametrize("apart", [False, True], ids=["one of them decides", "a third decides"])
def test_the_coordinator_is_killed(hosts, until, step, apart):
    names = ("one", "other", "decider") if apart else ("one", "other")
    one, other, *_ = found = hosts(*names)
    here(one).write(TOKEN)
    ended = run_coordinator(step, *found)
    assert (ended.stdout == b"done\n") == (step == 10), ended.stderr.decode()
    decided = step > 4
    assert settled(until, one, other) == ([[], [TOKEN]] if decided else [[TOKEN], []])
    # One who was told, by a coordinator that then said no more, may be kept on record.
    kept = 1 if step in (7, 9) else 0
    decider = found[-1] if apart else one
    until(lambda: len(decisions_at(decider)) <= kept, "the decision is forgotten")


@pytest.mark.parametrize("step", [3, 5, 6])
def test_spaces_in_memory_ask_too(threads, until, step):
    one, other = threads.host("one"), threads.host("other")
    here(one).write(TOKEN)
    run_coordinator(step, one, other)
    assert settled(until, one, other) == ([[], [TOKEN]] if step > 4 else [[TOKEN], []])


@pytest.mark.parametrize("step", range(11))
def test_a_host_that_coordinates_and_decides_is_killed(threads, until, tmp_path, step):
    other = threads.host("other")
    with Host("ours", listen=0, path=tmp_path / "ours") as ours:
        here(ours).write(TOKEN)
        port = port_number(ours.address)
    ended = run_coordinator(step, f"{port}:{tmp_path / 'ours'}", other)
    assert (ended.stdout == b"done\n") == (step == 10), ended.stderr.decode()
    ours = threads.host("ours", listen=port, path=tmp_path / "ours")
    assert settled(until, ours, other) == ([[], [TOKEN]] if step > 4 else [[TOKEN], []])


# Hosts that are killed


def child_tokens(child: Any) -> Any:
    return [tuple(token) for token in child.do("here", "token")]


@pytest.mark.parametrize(
    ("name", "after"),
    [("prepare", False), ("prepare", True), ("commit", False), ("commit", True)],
)
def test_a_host_that_takes_part_is_killed(
    threads, hosts, connect, at, until, tmp_path, name, after
):
    one, decider = hosts("one", "decider")
    here(one).write(TOKEN)
    other = threads.child("other", path=str(tmp_path / "child"))
    txn = moving(connect(one), connect(other, reconnect=0), connect(decider))
    at(BranchElsewhere, name).do(other.kill, after=after, where=is_at(other))
    try:
        txn.commit()
        outcome = "committed"
    except CannotCommit:
        outcome = "aborted"
    assert outcome == ("aborted" if (name, after) == ("prepare", False) else "committed")
    again = threads.child("other", path=str(tmp_path / "child"))
    (left,) = settled(until, one)
    assert left == ([] if outcome == "committed" else [TOKEN])
    until(lambda: child_tokens(again) == ([TOKEN] if outcome == "committed" else []))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["record", "prepare", "commit"])
def test_the_decider_is_killed_and_comes_back(
    threads, hosts, connect, at, until, tmp_path, name, after
):
    one, other = hosts("one", "other")
    here(one).write(TOKEN)
    options = {"path": str(tmp_path / "child")}
    decider = threads.child("decider", **options)
    txn = moving(connect(one), connect(other), connect(decider))

    def restart() -> None:
        decider.kill()
        threads.child("decider", listen=port_number(decider.address), **options)

    at(DeciderElsewhere if name == "record" else BranchElsewhere, name).do(restart, after=after)
    try:
        txn.commit()
        outcome = "committed"
    except CannotCommit:
        outcome = "aborted"
    assert outcome == (
        "committed"
        if (name, after) in [("record", True), ("commit", False), ("commit", True)]
        else "aborted"
    )
    assert settled(until, one, other) == (
        [[], [TOKEN]] if outcome == "committed" else [[TOKEN], []]
    )


def test_everyone_is_killed_after_the_decision(threads, tmp_path, connect, at, until):
    options = {name: {"path": str(tmp_path / name)} for name in ("one", "other", "decider")}
    one, *_ = children = [threads.child(name, **options[name]) for name in options]
    one.do("write", ["token", 1])
    txn = moving(*[connect(child, reconnect=0) for child in children])

    def kill() -> None:
        for child in children:
            child.kill()

    at(BranchElsewhere, "commit").do(kill, after=False)
    txn.commit()
    one, other, _ = [
        threads.child(name, listen=port_number(child.address), **options[name])
        for name, child in zip(options, children, strict=True)
    ]
    until(lambda: (child_tokens(one), child_tokens(other)) == ([], [TOKEN]))


# Spaces that are no host's


def test_a_space_of_its_own_is_settled_when_it_is_used_again(hosts, connect, at, tmp_path, until):
    (host,) = hosts("host")
    remote = connect(host)
    path = tmp_path / "own.tupelo"
    own = tupelo.Space("own", path=path)
    own.write(TOKEN)
    txn = moving(own, remote)
    at(BranchElsewhere, "commit").do(own.close, after=False)
    at(Branch, "commit").do(own.close, after=False)
    txn.commit()
    assert txn.untold and here(host).count(ANY_TOKEN) == 1
    with tupelo.Space("own", path=path) as own:
        assert len(own.in_doubt()) == 1
        with transaction(own, remote):
            pass
        assert not own.in_doubt() and not own.count(ANY_TOKEN)
    until(lambda: not decisions_at(host), "the decision is forgotten")


def test_a_heartbeat_looks_only_into_spaces_with_transactions(monkeypatch):
    looked: list[Port] = []
    in_doubt = Port.in_doubt

    def noted(port: Port) -> Any:
        looked.append(port)
        return in_doubt(port)

    async def scene(field: Field) -> None:
        monkeypatch.setattr(Port, "in_doubt", noted)
        await asyncio.sleep(10)
        assert looked == []
        jobs = field.spaces[0].here
        async with jobs.transaction() as txn:
            await jobs.write(TOKEN, txn=txn)
            await asyncio.sleep(10)
        assert looked

    played(scene)
