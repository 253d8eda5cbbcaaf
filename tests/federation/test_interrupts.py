"""A thread that is interrupted in a blocking call loses nothing, whenever it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tupelo
from tests.conftest import until_true
from tupelo.models.event_heap import Event, EventHeap
from tupelo.models.melon import Melon
from tupelo.space.bridge import ThreadCall

JOB = ("job", int)
JOB_EVENT = Event("job", n=1)


@pytest.fixture
def hosts() -> Iterator[tuple[tupelo.Host, tupelo.Host]]:
    with (
        tupelo.Host("ada", listen="127.0.0.1:0") as ada,
        tupelo.Host("ben", listen="127.0.0.1:0", peers=[ada.address]) as ben,
    ):
        ben.presence.read(tupelo.HostPresence(name="ada", state="engaged"), wait=20)
        yield ada, ben


@pytest.fixture(params=["under way", "answered"])
def interrupt(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], Any]], None]:
    """Call something, and interrupt it before it is answered, or when the answer has come."""
    wait = ThreadCall.wait

    def interrupted(call: ThreadCall[Any]) -> Any:
        if request.param == "answered":
            wait(call)
        raise KeyboardInterrupt

    def call(function: Callable[[], Any]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ThreadCall, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                function()

    return call


Interrupt = Callable[[Callable[[], Any]], None]
Hosts = tuple[tupelo.Host, tupelo.Host]


def test_a_take_from_another_host(hosts: Hosts, interrupt: Interrupt) -> None:
    ada, ben = hosts
    there = ada.space("jobs")
    here = ben.space("jobs")
    there.write(("job", 1))
    here.read(JOB, wait=20)
    interrupt(lambda: here.take(JOB))
    assert here.take(JOB, wait=20) == ("job", 1)
    assert here.take(JOB, wait=0) is None


def test_a_session_over_hosts(hosts: Hosts, interrupt: Interrupt) -> None:
    ada, ben = hosts
    ada.space("jobs").write(("job", 1))
    here = ben.space("jobs")
    here.read(JOB, wait=20)
    session = here.session()
    interrupt(lambda: session.read(JOB))
    assert session.read(JOB, wait=20) == ("job", 1)
    assert session.read(JOB, wait=0) is None


def test_a_take_of_melon(hosts: Hosts, interrupt: Interrupt) -> None:
    with Melon(hosts[0]) as ada, Melon(hosts[1]) as ben:
        ada.store(("job", 1))
        ada.store(("other", 1))
        assert ben.take(("other", int), wait=20)  # They know each other by now.
        interrupt(lambda: ben.take(JOB))
        assert ben.take(JOB, wait=20) == ("job", 1)
        assert ben.take(JOB, wait=0) is None


def test_a_read_of_melon(hosts: Hosts, interrupt: Interrupt) -> None:
    with Melon(hosts[0]) as ada, Melon(hosts[1]) as ben:
        ada.write(("job", 1))
        ada.write(("other", 1))
        assert ben.read(("other", int), wait=20)
        interrupt(lambda: ben.read(JOB))
        assert ben.read(JOB, wait=20) == ("job", 1)
        assert ben.read(JOB, wait=0) is None


def test_a_directed_message_stays_with_its_addressee(interrupt: Interrupt) -> None:
    who = {name: tupelo.Identity.new() for name in ("ada", "ben")}
    trust = tupelo.Trust.known([one.key for one in who.values()])
    with (
        tupelo.Host("ada", listen="127.0.0.1:0", identity=who["ada"], trust=trust) as one,
        tupelo.Host("ben", peers=[one.address], identity=who["ben"], trust=trust) as other,
        Melon(one) as ada,
        Melon(other) as ben,
    ):
        ada.store(("job", 1), to=who["ben"].key)
        ada.store(("other", 1), to=who["ben"].key)
        assert ben.take(("other", int), wait=20)
        interrupt(lambda: ben.take(JOB))
        assert ada.take(JOB, wait=0) is None
        assert one.space("melon").read_all(JOB) == []
        assert ben.take(JOB, wait=20, sender=who["ada"].key) == ("job", 1)
        assert ben.take(JOB, wait=0) is None


def test_an_event_heap(hosts: Hosts, interrupt: Interrupt) -> None:
    with EventHeap(hosts[0], "board") as ada, EventHeap(hosts[1], "board") as ben:
        ada.put(JOB_EVENT)
        assert ben.session().wait(Event("job"), wait=20)  # It is here by now.
        view = ben.view(order="total")
        shared = ben.session(ben.session().share())
        for get in (ben.get, view.get, shared.get):
            interrupt(get)
            assert until(get) == JOB_EVENT
            assert get() is None
        interrupt(ben.remove)
        assert until(ben.remove) == JOB_EVENT
        assert ben.remove() is None


def until(get: Callable[[], Any]) -> Any:
    """What it gets, as soon as there is something."""
    found: Any = None

    def is_there() -> bool:
        nonlocal found
        found = get()
        return found is not None

    until_true(is_there, "there is something")
    return found
