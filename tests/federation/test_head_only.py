"""Head-only orders over hosts: whoever waits for the next head is woken, at whichever door.

Of a space that spans hosts, each host shows the head of what it has itself."""

from typing import Any

import pytest

import tupelo
from tests.federation.company import await_space
from tests.laws.test_orders import VisibleLine
from tupelo import ANY, Fifo, Order, Queue, Stack
from tupelo.models import linda

NAME = "line"
PATIENCE = 60.0


class Doors:
    """Two hosts with a space each, and the doors to it."""

    def __init__(self, company: Any, order: Any, folder: Any) -> None:
        self.hosts = [company.host(name, space=False) for name in ("first", "second")]
        self.spaces = []
        for host in self.hosts:
            path = None if folder is None else folder / f"{host.name}.tupelo"
            self.spaces.append(host.space(NAME, order=order(), path=path))
        self._clients: list[Any] = []

    def meet(self) -> None:
        first, second = self.hosts
        first.engage(second.address)
        await_space(first, second.id, NAME)
        await_space(second, first.id, NAME)

    def at(self, door: str) -> Any:
        """The door to the first host's space, or the space of the second."""
        if door == "space":
            return self.spaces[0]
        if door == "here":
            return self.spaces[0].here
        if door == "elsewhere":
            return self.spaces[1]
        client = tupelo.connect(f"tupelo://{self.hosts[0].address}/{NAME}")
        self._clients.append(client)
        return linda.TupleSpace(client) if door == "linda" else client

    def waits(self) -> bool:
        """Does anyone wait at the first host for a match that an order leaves out?"""
        space = getattr(self.spaces[0], "_inner", self.spaces[0])
        return bool(space._port._core.waiting.choosing.count)

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture(params=["memory", "file"])
def make_doors(request, company, tmp_path):
    made: list[Doors] = []

    def make(order: Any) -> Doors:
        made.append(Doors(company, order, tmp_path if request.param == "file" else None))
        return made[-1]

    yield make
    for doors in made:
        doors.close()


@pytest.mark.parametrize(
    ("door", "leaving", "order"),
    [
        (door, leaving, (Queue, VisibleLine)[(n + m) % 2])  # each at every door, in turn
        for n, door in enumerate(["space", "here", "client", "linda", "elsewhere"])
        for m, leaving in enumerate(["space", "here", "client", "elsewhere"])
    ],
)
def test_who_waits_for_the_next_head_is_woken_at_every_door(
    make_doors, later, until, order, door, leaving
):
    doors = make_doors(order)
    if "elsewhere" in (door, leaving):
        doors.meet()
    doors.at("here").write_all([("a",), ("b",), ("c",)])
    space = doors.at(door)
    read, take = (space.rd, space.in_) if door == "linda" else (space.read, space.take)
    reader = later(read, ("b",))
    until(doors.waits)
    assert doors.at(leaving).take(("a",), wait=0) == ("a",)
    assert reader.result() == ("b",)
    taker = later(take, ("c",))
    until(doors.waits)
    assert doors.at(leaving).take(ANY, wait=0) == ("b",)
    assert taker.result() == ("c",)
    assert doors.spaces[0].here.count() == 0


@pytest.mark.parametrize(("order", "first"), [(Queue, 0), (Stack, 2)])
@pytest.mark.parametrize("door", ["space", "here", "client", "elsewhere"])
def test_a_head_only_order_may_be_an_operations(make_doors, later, until, door, order, first):
    doors = make_doors(Fifo)
    if door == "elsewhere":
        doors.meet()
    doors.at("here").write_all([("n", i) for i in range(3)])
    space = doors.at(door)
    assert space.read(("n", 1), wait=0, order=order()) is None
    assert space.read(ANY, wait=0, order=order()) == ("n", first)
    assert space.read_all(order=order()) == [("n", first)]
    taker = later(space.take, ("n", 1), order=order())
    until(doors.waits)
    assert doors.at("client").take(ANY, wait=0, order=order()) == ("n", first)
    assert taker.result() == ("n", 1)


def test_each_host_shows_the_head_of_what_it_has(make_doors):
    doors = make_doors(Queue)
    doors.meet()
    here, elsewhere = doors.spaces
    here.write_all([("a", 1), ("a", 2)])
    elsewhere.write_all([("b", 1), ("b", 2)])
    assert sorted(here.read_all()) == [("a", 1), ("b", 1)]
    assert here.take(("b", int), wait=0) == ("b", 1)
    assert elsewhere.take(("a", int), wait=0) == ("a", 1)
    assert here.take(("a", 1), wait=0) is None
    assert sorted(elsewhere.take_all()) == [("a", 2), ("b", 2)]


def test_a_transaction_that_ends_lets_one_elsewhere_have_the_head(make_doors, later, until):
    doors = make_doors(Queue)
    doors.meet()
    here, elsewhere = doors.spaces
    here.write_all([("a",), ("b",)])
    txn = getattr(here.here, "_inner", here.here).transaction()
    assert here.here.take(("a",), wait=0, txn=txn) == ("a",)
    taker = later(elsewhere.take, ("a",))
    until(doors.waits)
    settle = txn.abort()
    if settle is not None:
        here._loop.call(lambda: settle)
    assert taker.result() == ("a",)


def test_a_subscription_tells_of_every_entry_whatever_the_order_shows(make_doors):
    doors = make_doors(Queue)
    doors.meet()
    here, elsewhere = doors.spaces
    here.write_all([("a",), ("b",)])
    told = elsewhere.subscribe(ANY)
    here.write_all([("c",), ("d",)])
    assert [told.get(wait=PATIENCE).entry for _ in range(2)] == [("c",), ("d",)]


def test_a_reaction_of_a_client_meets_every_entry_that_is_there(make_doors, until):
    doors = make_doors(Queue)
    doors.at("here").write_all([("a",), ("b",)])
    met: list[Any] = []
    doors.at("client").react(ANY, lambda entry, step: met.append(entry))
    until(lambda: len(met) == 2)
    assert met == [("a",), ("b",)]


class Unsent(Order):
    def arrange(self, found):
        return found[:1]


@pytest.mark.parametrize("order", [Unsent(), type("Mine", (Queue,), {})()])
def test_an_order_of_ones_own_is_not_sent(make_doors, order):
    doors = make_doors(Fifo)
    doors.at("here").write(("a",))
    with pytest.raises(tupelo.errors.BadArgument, match=r"order=.*Queue\(\), Stack\(\)"):
        doors.at("client").take(wait=0, order=order)
    assert doors.spaces[0].here.count() == 1
