"""Fair waiting: whoever waits at a host is served in the order in which it came, at every door."""

import asyncio
from typing import Any

import pytest

import tupelo
from tests.federation.company import meet
from tests.laws.doors import Door

DOORS = ("space", "here", "client", "aio client")
ROTATIONS = [DOORS[n:] + DOORS[:n] for n in range(len(DOORS))]
SHARE = 200


class Queue:
    """A host with a space "jobs", whose takers are parked one after the other."""

    def __init__(self, company: Any, loop_thread: Any, path: Any, until: Any, later: Any) -> None:
        self.host = company.host("home", path=path)
        self.space = self.host.space("jobs")
        self.url = f"tupelo://{self.host.address}/jobs"
        self._loop = loop_thread
        self._until = until
        self._later = later
        self._clients: list[Any] = []

    def at(self, door: str) -> Any:
        """The space, at this door; a new connection each time for a client."""
        if door == "space":
            return self.space
        if door == "here":
            return self.space.here
        if door == "client":
            client: Any = tupelo.connect(self.url)
        else:
            client = Door(self._loop.call(tupelo.aio.connect, self.url), self._loop)
        self._clients.append(client)
        return client

    @property
    def parked(self) -> list[Any]:
        waiters: list[Any] = self.host.core.spaces["jobs"].port.under_way()["waiters"]
        return waiters

    def park(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Call it in a thread, and come back when it waits behind all others."""
        before = len(self.parked)
        call = self._later(operation, *args, **kwargs)
        self._until(lambda: len(self.parked) > before or not call.waits, "the call waits")
        assert call.waits
        return call

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture(params=["memory", "durable"])
def queue(request, company, loop_thread, tmp_path, until, later):
    path = tmp_path / "home" if request.param == "durable" else None
    queue = Queue(company, loop_thread, path, until, later)
    yield queue
    queue.close()


@pytest.mark.parametrize("doors", ROTATIONS, ids=" ".join)
def test_takers_at_all_doors_are_served_in_the_order_in_which_they_came(queue, doors):
    takers = [queue.park(queue.at(door).take, ("job", int)) for door in doors]
    for n, taker in enumerate(takers):
        queue.space.write(("job", n))
        assert taker.result() == ("job", n)


def test_many_entries_in_one_step_are_shared_in_order(queue):
    takers = [queue.park(queue.at(door).take, ("job", int)) for door in DOORS * 2]
    queue.space.write_all([("job", n) for n in range(len(takers))])
    assert [taker.result() for taker in takers] == [("job", n) for n in range(len(takers))]


def test_a_host_and_two_clients_that_wait_in_turn_get_jobs_in_turn(queue):
    """The share of each is a third, whatever the door: [0, 100, 100] was unfair."""
    spaces = [queue.at(door) for door in ("space", "client", "client")]
    got: list[list[Any]] = [[], [], []]
    waiting = [queue.park(space.take, ("job", int)) for space in spaces]
    for n in range(SHARE):
        turn = n % len(spaces)
        queue.space.write(("job", n))
        got[turn].append(waiting[turn].result())
        if n < SHARE - len(spaces):
            waiting[turn] = queue.park(spaces[turn].take, ("job", int))
    assert got == [[("job", n) for n in range(turn, SHARE, 3)] for turn in range(3)]


def test_readers_are_served_before_takers_that_came_first(queue):
    takers = [queue.park(queue.at(door).take, ("job", int)) for door in DOORS]
    readers = [queue.park(queue.at(door).read, ("job", int)) for door in DOORS[1:]]
    queue.space.write(("job", 1))
    assert [reader.result() for reader in readers] == [("job", 1)] * len(readers)
    assert takers[0].result() == ("job", 1)
    assert all(taker.waits for taker in takers[1:])
    queue.space.write_all([("job", n) for n in range(2, 2 + len(takers) - 1)])
    assert [taker.result() for taker in takers[1:]] == [("job", 2), ("job", 3), ("job", 4)]


@pytest.mark.parametrize("door", DOORS)
def test_a_taker_whose_time_is_over_leaves_its_place_to_the_next(queue, door):
    first = queue.park(queue.at(door).take, ("job", int), wait=0.3)
    second = queue.park(queue.at("client").take, ("job", int))
    third = queue.park(queue.at("space").take, ("job", int))
    assert first.result() is None
    queue.space.write(("job", 1))
    assert second.result() == ("job", 1)
    queue.space.write(("job", 2))
    assert third.result() == ("job", 2)
    assert queue.space.count() == 0


@pytest.mark.parametrize("when", ["before", "at once", "after"])
def test_a_cancelled_taker_loses_nothing_and_holds_up_nobody(queue, loop_thread, until, when):
    """The taker is a task of this program at a client: it is cancelled before a job comes, in the
    same step of its loop, or when the job is on its way."""
    client = loop_thread.call(tupelo.aio.connect, queue.url)

    async def begin() -> Any:
        return asyncio.ensure_future(client.take(("job", int)))

    task = loop_thread.call(begin)
    until(lambda: len(queue.parked) == 1, "the task waits")
    second = queue.park(queue.at("space").take, ("job", int))
    if when == "before":
        loop_thread.call(task.cancel)
    if when == "at once":
        writer = loop_thread.call(tupelo.aio.connect, queue.url)

        async def write_and_cancel() -> None:
            writing = asyncio.ensure_future(writer.write(("job", 1)))
            await asyncio.sleep(0)
            task.cancel()
            await writing

        loop_thread.call(write_and_cancel)
        loop_thread.call(writer.close)
    else:
        queue.space.write(("job", 1))
    if when == "after":
        loop_thread.call(task.cancel)

    async def outcome() -> Any:
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    got = loop_thread.call(outcome)
    if got is not None:
        assert got == ("job", 1)
        queue.space.write(("job", 2))
    assert second.result() == ("job", 1 if got is None else 2)
    assert queue.space.count() == 0
    loop_thread.call(client.close)


@pytest.mark.parametrize("door", ["client", "aio client"])
def test_a_taker_whose_client_is_closed_holds_up_nobody(queue, door, until):
    space = queue.at(door)
    first = queue.park(space.take, ("job", int))
    second = queue.park(queue.at("here").take, ("job", int))
    third = queue.park(queue.at("client").take, ("job", int))
    space.close()
    with pytest.raises(tupelo.TupeloError):
        first.result()
    until(lambda: len(queue.parked) == 2, "the host hears that the client is gone")
    queue.space.write_all([("job", 1), ("job", 2)])
    assert [second.result(), third.result()] == [("job", 1), ("job", 2)]


@pytest.mark.parametrize("door", ["client", "aio client"])
def test_what_goes_to_a_client_that_was_just_closed_is_not_lost(queue, door):
    """The host may not know yet that the client is gone: the job comes back to the others."""
    space = queue.at(door)
    first = queue.park(space.take, ("job", int))
    others = [queue.park(queue.at(door).take, ("job", int)) for door in ("here", "client")]
    space.close()
    with pytest.raises(tupelo.TupeloError):
        first.result()
    queue.space.write_all([("job", 1), ("job", 2)])
    assert sorted(other.result() for other in others) == [("job", 1), ("job", 2)]
    assert queue.space.count() == 0


@pytest.mark.parametrize("doors", ROTATIONS, ids=" ".join)
def test_whoever_waited_before_another_host_engaged_keeps_its_place(queue, company, doors):
    early = [queue.park(queue.at(door).take, ("job", int)) for door in doors]
    guest = company.host("guest")
    meet(queue.host, guest)
    late = [queue.park(queue.at(door).take, ("job", int)) for door in reversed(doors)]
    for n, taker in enumerate([*early, *late]):
        queue.space.write(("job", n))
        assert taker.result() == ("job", n)
    assert queue.space.count() == 0


def test_a_taker_elsewhere_gets_what_nobody_waits_for_here(queue, company, later):
    guest = company.host("guest")
    meet(queue.host, guest)
    near = [queue.park(queue.at(door).take, ("job", int)) for door in DOORS]
    far = later(guest.space("jobs").take, ("job", int))
    queue.space.write_all([("job", n) for n in range(len(DOORS) + 1)])
    assert [taker.result() for taker in near] == [("job", n) for n in range(len(DOORS))]
    assert far.result() == ("job", len(DOORS))
