"""Remote procedure calls at both doors, over real links, at hosts and at clients of them; and in
virtual time, while hosts part and crash."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from queue import Queue
from random import Random
from typing import Any

import pytest

import tupelo
from tests.conftest import Call, seeds, until_true
from tests.models.melon.world import MelonHost, MelonWorld, play
from tupelo import Access, Host, aio, entry
from tupelo.errors import (
    AccessError,
    AnswerTooLarge,
    BadArgument,
    BadEntry,
    BadFrame,
    BadInput,
    HostClosed,
    LimitReached,
    NoAnswer,
    NotAllowed,
    NotExported,
    PeerLost,
    RemoteError,
    TupeloError,
    UnknownHost,
)
from tupelo.federation.brokers.tables import ITEM_BYTES_MAX
from tupelo.models import rpc as module
from tupelo.models.rpc import GroupResult, Outcome, RemoteObject, Rpc, registry_of

WAIT = 30.0


@entry("tests.rpc.Point")
@dataclass
class Point:
    x: int | None = None
    y: int | None = None


class Shape:
    def area(self) -> int:
        return 0


class Stammering(Exception):
    def __str__(self) -> str:
        raise KeyError("text")


class Square(Shape):
    def __init__(self, side: int = 1) -> None:
        self.side = side
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.done = threading.Semaphore(0)

    def area(self) -> int:
        return self.side**2

    def corner(self, at: Point, by: int) -> Point:
        assert at.x is not None
        return Point(at.x + by, self.side)

    def fail(self, text: str) -> None:
        raise ValueError(text)

    def babble(self) -> None:
        raise ValueError("\ud800" + "x" * 20_000_000)

    def stammer(self) -> None:
        raise Stammering

    def leave(self) -> None:
        raise SystemExit("enough")

    def wait(self) -> int:
        self.begun.release()
        self.go_on.wait(WAIT)
        self.done.release()
        return self.side

    def itself(self) -> object:
        return self

    def much(self, size: int) -> bytes:
        return bytes(size)

    def _secret(self) -> int:
        return 7


class Row:
    """Hosts in a row, each engaged with the one before, and an Rpc at each."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.hosts: list[Host] = []

    def host(self, **options: Any) -> Host:
        peers = [self.hosts[-1].address] if self.hosts else []
        made = Host(
            f"host {len(self.hosts)}",
            **{"listen": "127.0.0.1:0", "peers": peers, "heartbeat": 10.0, **options},
        )
        self.hosts.append(self.stack.enter_context(made))
        return made

    def three(self) -> tuple[Rpc, Rpc, Rpc]:
        first, middle, last = (Rpc(self.host()) for _ in range(3))
        self.until_known(3)
        return first, middle, last

    def until_known(self, count: int) -> None:
        """Wait until all brokers know each other."""
        brokers = [registry_of(host.core, "rpc").broker for host in self.hosts]
        until_true(lambda: all(len(one.hosts) == count for one in brokers), "all take part")


@pytest.fixture
def row() -> Iterator[Row]:
    made = Row()
    with made.stack:
        yield made


def found(rpc: Rpc, cls: type | str = Square, name: str | None = None) -> RemoteObject:
    thing = rpc.find(cls, name, wait=WAIT)
    assert isinstance(thing, RemoteObject)
    return thing


# Finding


def test_an_object_is_found_by_its_class_and_called_through_a_host_between(row: Row) -> None:
    here, _, there = row.three()
    there.export(Square(3))
    for cls in (Square, "Square", Shape):
        square = found(here, cls)
        assert square.host == row.hosts[2].id
        assert square.invoke("area") == 9
    assert found(here) == found(here, "Shape")
    assert here.find("Circle", wait=0) is None


def test_an_object_is_found_by_its_name(row: Row) -> None:
    here, there, _ = row.three()
    there.export(Square(2), name="small")
    there.export(Square(9), name="large")
    assert found(here, Square, "large").invoke("area") == 81
    assert found(here, Shape, "small").name == "small"
    assert here.find(Square, "huge", wait=0) is None


def test_who_looks_for_an_object_waits_until_one_is_exported(row: Row) -> None:
    here, _, there = row.three()
    waiting = Call(here.find, "Square")
    assert here.find("Square", wait=0.01) is None
    there.export(Square(4))
    assert waiting.result().invoke("area") == 16


def test_objects_of_this_host_are_found_and_called_alike(row: Row) -> None:
    here = Rpc(row.host())
    here.export(Square(5))
    assert found(here).invoke("area") == 25
    with pytest.raises(RemoteError, match="raised ValueError at its host: no"):
        found(here).invoke("fail", "no")


# Calling


def test_arguments_and_results_are_values(row: Row) -> None:
    here, there, _ = row.three()
    there.export(Square(5))
    assert found(here).invoke("corner", Point(1, 2), 3) == Point(4, 5)


def test_what_cannot_be_sent_is_refused_by_its_name(row: Row) -> None:
    here, there, _ = row.three()
    there.export(square := Square(5))
    remote = found(here)
    with pytest.raises(BadEntry, match=r"args\[1\]"):
        remote.invoke("corner", Point(1, 2), object())
    with pytest.raises(TupeloError, match="args"):
        remote.invoke("fail", "\ud800")
    with pytest.raises(TupeloError, match=r"args has .* bytes"):
        remote.invoke("fail", "x" * ITEM_BYTES_MAX)
    with pytest.raises(BadArgument, match="method="):
        remote.invoke("")
    with pytest.raises(BadArgument, match="wait="):
        remote.invoke("area", wait=-1)
    assert square.side == 5


def test_what_a_method_raises_comes_as_an_error_with_its_text(row: Row) -> None:
    here, _, there = row.three()
    there.export(Square())
    remote = found(here)
    with pytest.raises(RemoteError) as raised:
        remote.invoke("fail", "no such colour")
    assert raised.value.kind == "ValueError"
    assert raised.value.text == "no such colour"
    assert raised.value.method == "Square.fail"
    assert str(raised.value) == "Square.fail raised ValueError at its host: no such colour"
    with pytest.raises(RemoteError, match="raised SystemExit at its host: enough"):
        remote.invoke("leave")
    with pytest.raises(RemoteError, match=r"TypeError.*positional"):
        remote.invoke("area", 1)
    with pytest.raises(RemoteError, match=r"ValueError at its host: \?xxx"):
        remote.invoke("babble")
    with pytest.raises(RemoteError, match=r"Stammering at its host: \(its text failed: KeyError"):
        remote.invoke("stammer")
    assert remote.invoke("area") == 1


def test_what_is_no_call_is_refused_and_harms_nobody(row: Row) -> None:
    here, there, _ = row.three()
    there.export(Square())
    remote = found(here)
    registry = registry_of(row.hosts[0].core, "rpc")
    for args in (b"", b"\xc1", b"\x07", b"\x91" * 100_000):
        invoke = module.InvokeRequest("call", remote._target.object, "area", args)
        with pytest.raises(BadFrame, match="a call cannot be read"):
            row.hosts[0].now(registry.sender.ask(remote.host, invoke))
    # Nor does an answer matter that nobody waits for.
    row.hosts[0].now(registry.sender.ask(remote.host, module.CallDone("some call")))
    assert remote.invoke("area") == 1


def test_a_result_that_cannot_be_sent_says_that_it_was_done(row: Row) -> None:
    here, there, _ = row.three()
    there.export(Square())
    for method, *args in (("itself",), ("much", ITEM_BYTES_MAX)):
        with pytest.raises(AnswerTooLarge, match=f"Square.{method} was done, but"):
            found(here).invoke(method, *args)


def test_only_exported_methods_are_called(row: Row) -> None:
    here, there, _ = row.three()
    there.export(Square(3), methods=["area"])
    remote = found(here)
    assert remote.invoke("area") == 9
    for method in ("corner", "_secret", "__init__", "side", "nothing"):
        with pytest.raises(NotExported, match=f"Square.{method} is not exported.*nothing was done"):
            remote.invoke(method)


def test_what_was_withdrawn_is_found_and_called_no_more(row: Row) -> None:
    here, there, _ = row.three()
    first, second = Square(1), Square(2)
    there.export(first)
    remote = found(here)
    there.export(second)
    assert there.withdraw(first)
    assert not there.withdraw(first)
    with pytest.raises(NotExported, match="nothing was done"):
        remote.invoke("area")
    assert found(here).invoke("area") == 4
    there.close()
    assert here.find(Square, wait=0) is None


@pytest.mark.parametrize("methods", [["nothing"], ["_secret"], [], "area", ["side"]], ids=str)
def test_what_is_no_method_cannot_be_exported(row: Row, methods: Any) -> None:
    rpc = Rpc(row.host())
    with pytest.raises(BadArgument, match="methods="):
        rpc.export(Square(), methods=methods)
    assert rpc.find(Square, wait=0) is None


def test_a_call_is_waited_for_no_longer_than_it_may_take(row: Row) -> None:
    here, there, _ = row.three()
    there.export(square := Square(6))
    remote = found(here)
    text = r"Square\.wait was not answered in time: it may have been"
    while not square.begun.acquire(blocking=False):  # On a busy machine it may not be made at all.
        with pytest.raises(NoAnswer, match=text):
            remote.invoke("wait", wait=0.05)
    # It goes on there; another call is answered meanwhile.
    assert remote.invoke("area") == 36
    square.go_on.set()
    assert square.done.acquire(timeout=WAIT)


def test_a_host_that_has_left_before_was_not_called(row: Row) -> None:
    here, _, there = row.three()
    there.export(Square())
    remote = found(here)
    row.hosts[2].close()
    row_known = registry_of(row.hosts[0].core, "rpc").broker
    until_true(lambda: len(row_known.hosts) == 2, "it has left")
    with pytest.raises(PeerLost, match="nothing was done") as raised:
        remote.invoke("area")
    assert not raised.value.in_doubt


def test_a_host_that_leaves_during_a_call_may_have_done_it(row: Row) -> None:
    here, _, there = row.three()
    there.export(square := Square())
    call = Call(found(here).invoke, "wait")
    assert square.begun.acquire(timeout=WAIT)
    row.hosts[2].close()
    with pytest.raises(PeerLost, match=r"a call of Square\.wait.*may have been done") as raised:
        call.result()
    assert raised.value.in_doubt
    square.go_on.set()


def test_a_call_outlives_a_change_of_the_group(row: Row) -> None:
    here, _, there = row.three()
    there.export(square := Square(8))
    call = Call(found(here).invoke, "wait")
    assert square.begun.acquire(timeout=WAIT)
    Rpc(row.host())
    row.until_known(4)
    square.go_on.set()
    assert call.result() == 8


def test_more_calls_than_a_host_works_on_are_refused(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALLS_MAX", 1)
    here, there, _ = row.three()
    there.export(square := Square(2))
    remote = found(here)
    begun = remote.start("wait")
    assert square.begun.acquire(timeout=WAIT)
    with pytest.raises(LimitReached, match="calls under way"):
        remote.invoke("area")
    square.go_on.set()
    assert begun.get(wait=WAIT).result() == 2
    assert remote.invoke("area") == 4


def test_who_waits_is_told_when_it_is_closed(row: Row) -> None:
    here, there, _ = row.three()
    there.export(square := Square())
    call = Call(found(here).invoke, "wait")
    looking = Call(here.find, "Circle")
    assert square.begun.acquire(timeout=WAIT)
    here.close()
    with pytest.raises(HostClosed, match="may have been done"):
        call.result()
    with pytest.raises(HostClosed):
        looking.result()
    square.go_on.set()
    with pytest.raises(HostClosed):
        here.find(Square)


def test_who_begins_a_call_while_it_is_closed_is_told(row: Row) -> None:
    _, there, _ = row.three()
    there.export(Square())
    for _ in range(30):
        here = Rpc(row.hosts[0])
        call = Call(found(here).invoke, "wait")
        here.close()
        with pytest.raises(HostClosed):
            call.result()


# Asynchronous calls


def test_who_does_not_wait_is_told_of_the_outcome(row: Row) -> None:
    here, _, there = row.three()
    there.export(square := Square(7))
    remote = found(here)
    told: Queue[Outcome] = Queue()
    begun = remote.start("wait", listener=told.put)
    failing = remote.start("fail", "no", listener=told.put)
    outcome = told.get(timeout=WAIT)
    assert outcome.object == remote and isinstance(outcome.error, RemoteError)
    assert not begun.is_over
    square.go_on.set()
    assert told.get(timeout=WAIT).result() == 7
    until_true(lambda: begun.is_over and failing.is_over, "both are over")


def test_an_outcome_is_got_later(row: Row) -> None:
    here, there, _ = row.three()
    there.export(square := Square(7))
    begun = found(here).start("wait")
    assert begun.get(wait=0.01) is None
    square.go_on.set()
    assert [outcome.result() for outcome in begun] == [7]
    assert begun.is_over
    late = found(here).start("area", wait=WAIT)
    assert late.get(wait=WAIT).value == 49
    with pytest.raises(BadArgument, match="listener="):
        found(here).start("area", listener=3)  # type: ignore[arg-type]


# Groups


def test_a_group_is_called_and_says_who_did_not_answer(row: Row) -> None:
    here, middle, there = row.three()
    for side, rpc in enumerate((here, middle, there), start=1):
        rpc.export(Square(side))
    group = here.find_all(Square)
    assert len(group.objects) == 3 and not group.lost
    result: GroupResult = group.invoke("area")
    assert sorted(result.results.values()) == [1, 4, 9]
    assert result.errors == {} and result.unanswered == []
    middle.export(Shape())
    result = here.find_all(Shape).invoke("corner")
    assert sorted(type(error).__name__ for error in result.errors.values()) == [
        "NotExported",  # by the one that is no Square
        *["RemoteError"] * 3,
    ]
    assert result.unanswered == []
    result = group.invoke("wait", wait=0.05)
    assert result.results == {} and set(result.unanswered) == set(group.objects)
    assert all(isinstance(error, NoAnswer) for error in result.errors.values())


def test_a_group_of_which_a_host_leaves_answers_without_it(row: Row) -> None:
    here, middle, there = row.three()
    there.export(leaving := Square(3))
    middle.export(staying := Square(2))
    call = Call(here.find_all(Square).invoke, "wait")
    assert leaving.begun.acquire(timeout=WAIT) and staying.begun.acquire(timeout=WAIT)
    row.hosts[2].close()
    staying.go_on.set()
    result = call.result()
    assert list(result.results.values()) == [2]
    (lost,) = result.unanswered
    assert lost.host == row.hosts[2].id and result.errors[lost].in_doubt
    leaving.go_on.set()


def test_each_outcome_of_a_group_is_told_as_it_comes(row: Row) -> None:
    here, middle, there = row.three()
    middle.export(late := Square(2))
    there.export(early := Square(3))
    told: Queue[Outcome] = Queue()
    here.find_all(Square).start("wait", listener=told.put)
    early.go_on.set()
    assert told.get(timeout=WAIT).value == 3
    late.go_on.set()
    assert told.get(timeout=WAIT).value == 2


def test_nobody_is_called_if_there_is_nobody(row: Row) -> None:
    here = Rpc(row.host())
    assert here.find_all(Square).invoke("area") == GroupResult()


# Doors


class Clock:
    """Methods of an async program."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def wait(self) -> str:
        await self.go_on.wait()
        return "noon"

    def say(self) -> str:
        return "tick"


def test_both_methods_of_an_async_program_are_called_from_either_door(row: Row) -> None:
    blocking = Rpc(row.host())
    address = row.hosts[0].address

    async def main() -> None:
        async with aio.Host("async", peers=[address], heartbeat=10.0) as host, Rpc(host) as rpc:
            await rpc.export(clock := Clock())
            remote = await asyncio.to_thread(found, blocking, Clock)
            assert await asyncio.to_thread(remote.invoke, "say") == "tick"
            call = asyncio.ensure_future(asyncio.to_thread(remote.invoke, "wait"))
            await asyncio.to_thread(blocking.export, Square(4))
            square = await rpc.find(Square, wait=WAIT)
            assert square is not None
            assert await square.invoke("area", wait=WAIT) == 16
            begun = await square.start("area")
            assert [outcome.value async for outcome in begun] == [16]
            everyone = await rpc.find_all(Shape)
            assert list((await everyone.invoke("area")).results.values()) == [16]
            told: asyncio.Queue[Outcome] = asyncio.Queue()
            await everyone.start("fail", "no", listener=told.put)
            assert isinstance((await told.get()).error, RemoteError)
            own = await rpc.find(Clock)
            assert own is not None
            giving_up = asyncio.ensure_future(own.invoke("wait"))
            awaited = registry_of(host.core, "rpc").awaited
            while not awaited:
                await asyncio.sleep(0)
            giving_up.cancel()
            while awaited:  # Nobody waits for it any more.
                await asyncio.sleep(0)
            clock.go_on.set()
            assert await call == "noon"
            assert await rpc.withdraw(clock)

    asyncio.run(main())


def test_coroutines_are_not_exported_at_a_blocking_host(row: Row) -> None:
    with pytest.raises(BadArgument, match=r"methods= must be no coroutines.*wait"):
        Rpc(row.host()).export(Clock())
    with pytest.raises(BadArgument, match="host="):
        Rpc("host")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="name="):
        Rpc(row.hosts[0], "")


def test_a_client_calls_what_its_host_finds(row: Row) -> None:
    _, _, there = row.three()
    there.export(square := Square(6))
    with Rpc(tupelo.connect(f"{row.hosts[0].url}rpc")) as client:
        remote = found(client)
        assert [remote.invoke("area") for _ in range(3)] == [36, 36, 36]
        assert list(client.find_all(Square).invoke("area").results.values()) == [36]
        with pytest.raises(RemoteError, match="ValueError at its host: no"):
            remote.invoke("fail", "no")
        with pytest.raises(NotExported):
            remote.invoke("_secret")
        with pytest.raises(NoAnswer):
            remote.invoke("wait", wait=0.05)
        square.go_on.set()
        assert client.find("Circle", wait=0) is None
        with pytest.raises(BadInput, match="a client exports nothing"):
            client.export(Square())
        service: Any = row.hosts[0].core.services["rpc"]
        (doors,) = service._doors.values()
        until_true(lambda: not any(door.backlogs for door in doors.values()), "nothing is kept")


def test_a_client_whose_host_is_lost_does_not_know_whether_it_was_done(row: Row) -> None:
    there = Rpc(row.host())
    there.export(square := Square())
    client = Rpc(tupelo.connect(f"{row.hosts[0].url}rpc"))
    call = Call(found(client).invoke, "wait")
    assert square.begun.acquire(timeout=WAIT)
    row.hosts[0].close()
    with pytest.raises(PeerLost, match="may have been done") as raised:
        call.result()
    assert raised.value.in_doubt
    square.go_on.set()
    client.close()


def test_the_async_door_of_a_client(row: Row) -> None:
    there = Rpc(row.host())
    there.export(Square(6))

    async def main() -> None:
        async with Rpc(await aio.connect(f"{row.hosts[0].url}rpc")) as client:
            remote = await client.find(Square, wait=WAIT)
            assert remote is not None and await remote.invoke("area") == 36

    asyncio.run(main())


# Access


def test_a_host_that_may_only_read_finds_and_does_not_call(row: Row) -> None:
    first = row.host()
    first.space("rpc", access=Access(write=()))
    there = Rpc(first)
    there.export(square := Square(2))
    here = Rpc(row.host())
    remote = found(here)
    with pytest.raises(NotAllowed, match="rpc"):
        remote.invoke("area")
    with Rpc(tupelo.connect(f"{first.url}rpc")) as client:
        remote = found(client)
        with pytest.raises(AccessError):
            remote.invoke("area")
    assert found(there).invoke("area") == 4
    assert square.side == 2


def test_a_host_that_may_not_read_finds_nothing(row: Row) -> None:
    first = row.host()
    first.space("rpc", access=Access(read=()))
    there = Rpc(first)
    there.export(Square(2))
    here = Rpc(row.host())
    row.until_known(2)
    assert here.find_all(Square).objects == []
    assert here.find(Square, wait=0.01) is None
    assert found(there).invoke("area") == 4


# While hosts part and crash

EDGES = ("ba", "cb", "dc", "da")


class Ledger:
    """Writes down what it was asked to; it takes a while before and after."""

    def __init__(self, entries: Counter[str], rng: Random) -> None:
        self.entries = entries
        self._rng = rng

    async def note(self, text: str) -> str:
        await asyncio.sleep(self._rng.choice((0, 0.01, 0.5)))
        self.entries[text] += 1
        await asyncio.sleep(self._rng.choice((0, 0.01, 0.5)))
        return text.upper()


@pytest.mark.parametrize("seed", seeds(2))
def test_a_call_is_made_once_or_says_what_is_known_of_it(seed: int) -> None:
    rng = Random(seed)
    entries: Counter[str] = Counter()
    outcomes: dict[str, Any] = {}

    async def open_rpc(member: MelonHost) -> Rpc:
        rpc = Rpc(member.host)
        await rpc.export(Ledger(entries, rng))
        return rpc

    async def caller(member: MelonHost, rpc: Rpc) -> None:
        life = member.lives
        for number in range(100):
            text = f"{member.name}{life}.{number}"
            await asyncio.sleep(rng.random())
            try:
                group = await rpc.find_all(Ledger)
                if group.objects:
                    remote = rng.choice(group.objects)
                    await asyncio.sleep(rng.choice((0, 0, 3)))  # It may be gone by then.
                    outcomes[text] = await remote.invoke("note", text, wait=rng.choice((None, 1)))
            except TupeloError as error:
                outcomes[text] = error

    async def scene(world: MelonWorld) -> None:
        callers = [
            member.do(caller(member, await member.do(open_rpc(member))))
            for member in world.hosts.values()
        ]
        for _ in range(12):
            await asyncio.sleep(rng.uniform(0.5, 4))
            match rng.choice(("part", "heal", "crash")):
                case "part":
                    names = [*world.hosts]
                    rng.shuffle(names)
                    world.network.partition(names[:2], names[2:])
                case "heal":
                    world.network.heal()
                case "crash":
                    member = world[rng.choice("abcd")]
                    await member.crash()
                    await member.start()
                    callers.append(member.do(caller(member, await member.do(open_rpc(member)))))
        world.network.heal()
        await asyncio.gather(*callers, return_exceptions=True)  # Some were killed.
        registries = [registry_of(member.core, "rpc") for member in world.hosts.values()]
        await world.until(lambda: all(not one.awaited for one in registries), "nobody waits")
        await world.until(lambda: all(one.running == 0 for one in registries), "nothing runs")
        await world.until(lambda: all(len(one.broker.hosts) == 4 for one in registries), "all meet")
        for member in world.hosts.values():
            assert member.life is not None
            rpc = member.life.call(partial(Rpc, member.host))
            group = await member.do(rpc.find_all(Ledger))
            result = await member.do(group.invoke("note", f"last of {member.name}"))
            assert len(result.results) == 4 and not result.errors

    play(scene, *EDGES, seed=seed + 1)
    kinds: Counter[str] = Counter()
    for text, outcome in outcomes.items():
        if isinstance(outcome, str):
            assert outcome == text.upper() and entries[text] == 1
        elif isinstance(outcome, NoAnswer) or getattr(outcome, "in_doubt", False):
            assert entries[text] <= 1
        else:
            assert isinstance(outcome, PeerLost | NotExported | UnknownHost), outcome
            assert entries[text] == 0
        kinds[type(outcome).__name__] += 1
    assert kinds["str"] > 100 and kinds["PeerLost"] > 0
    assert max(entries.values()) == 4  # of the last, at each host
