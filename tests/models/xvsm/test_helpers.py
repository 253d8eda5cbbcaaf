"""Programs elsewhere that share the work of an ActiveCoordinator, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.conftest import PATIENCE_SECONDS, Program, until_true
from tupelo import Access
from tupelo.errors import BadArgument, CannotReach, NotAllowed, PeerLost
from tupelo.lab.torture.proxy import LinkFault, Proxy
from tupelo.models.xvsm import (
    INFINITE,
    INFINITE_TIMEOUT,
    ActiveCoordinator,
    ActiveEntry,
    ActiveError,
    ActiveSelector,
    AsyncCapi,
    Capi,
    FifoCoordinator,
    FifoSelector,
    current,
)
from tupelo.space.port import port_of


class Desk:
    """Where tasks wait, each until it is let go."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.here: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.left: Counter[str] = Counter()  # how many tasks were computed

    def wait(self, who: str) -> None:
        with self.lock:
            self.here[who] += 1
            self.most[who] = max(self.most[who], self.here[who])
        assert self.gate.wait(PATIENCE_SECONDS)
        with self.lock:
            self.here[who] -= 1
            self.left[who] += 1


desk = Desk()


def where() -> str:
    """Who computes this: the program of the site, or the helper of this number of workers."""
    capi, _ = current()
    return "site" if capi.embedded.site is not None else "helper"


def at_the_desk(number: int) -> tuple[int, str]:
    who = where()
    desk.wait(who)
    return number, who


def square(number: int) -> int:
    return number * number


def fails(number: int) -> int:
    raise ArithmeticError(f"no {number}")


def too_large(number: int) -> bytes:
    return bytes(64 * 2**20)


def writes_more(number: int) -> int:
    """Subdivides: it uses the container that it works for, from wherever it is."""
    capi, cref = current()
    capi.write(cref, 0, None, Work("square", [number]))
    return number


FUNCTIONS = {f.__name__: f for f in (at_the_desk, square, fails, too_large, writes_more)}


@dataclass
class Work(ActiveEntry):
    function: str = ""
    numbers: list[int] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    def evaluate(self) -> list[Any]:
        return [(FUNCTIONS[self.function], number) for number in self.numbers]

    def finalize(self, results: list[Any]) -> None:
        self.results = results


class Site:
    """A program with a container whose work is shared."""

    def __init__(self, path: Path | None, workers: int, **options: Any) -> None:
        self.host = tupelo.Host("site", listen="127.0.0.1:0", heartbeat=0.5)
        self.capi = Capi(path)
        kinds = (ActiveCoordinator(workers), FifoCoordinator())
        self.cref = self.capi.create_container(None, None, "sums", INFINITE, *kinds)
        self.uri = self.capi.offer(self.host, **options)

    def done(self, count: int = 1) -> list[Any]:
        found: list[Any] = self.capi.take(self.cref, INFINITE_TIMEOUT, None, ActiveSelector(count))
        return found

    def close(self) -> None:
        desk.gate.set()
        self.capi.close()
        self.host.close()


@pytest.fixture(params=["memory", "folder"])
def make_site(request: Any, folder: Path) -> Iterator[Any]:
    global desk
    desk = Desk()
    made: list[Site] = []

    def make(workers: int = 1, **options: Any) -> Site:
        path = folder / f"space-{len(made)}" if request.param == "folder" else None
        made.append(Site(path, workers, **options))
        return made[-1]

    yield make
    for site in made:
        site.close()


def test_programs_share_the_work_by_their_capacity(make_site):
    site = make_site(workers=1)
    with Capi(site=site.uri) as capi:
        cref = capi.lookup_container(None, None, "sums")
        with (
            capi.work_for(cref, at_the_desk, workers=2) as two,
            capi.work_for(f"{site.uri}/sums", at_the_desk, workers=3) as three,
        ):
            site.capi.write(site.cref, 0, None, Work("at_the_desk", list(range(20))))
            until_true(lambda: sum(desk.here.values()) == 6, "all workers are busy")
            desk.gate.set()
            (work,) = site.done()
            assert [number for number, _ in work.results] == list(range(20))
            assert desk.most == {"site": 1, "helper": 5}
            helped = sum(who == "helper" for _, who in work.results)
            until_true(lambda: two.done + three.done == helped, "they know of all that they did")
            assert two.done >= 2 and three.done >= 3


def test_an_async_program_helps(make_site):
    site = make_site(workers=1)

    async def help() -> list[Any]:
        async with AsyncCapi(site=site.uri) as capi:
            cref = await capi.lookup_container(None, None, "sums")
            async with await capi.work_for(cref, at_the_desk, square, workers=1) as helper:
                await capi.write(cref, 0, None, Work("at_the_desk", [1, 2]))
                while sum(desk.here.values()) < 2:
                    await asyncio.sleep(0.01)
                desk.gate.set()
                found: list[Any] = await capi.take(cref, INFINITE_TIMEOUT, None, ActiveSelector())
                while not helper.done:
                    await asyncio.sleep(0.01)
                assert helper.active and helper.error is None
            assert not helper.active
            return found

    (work,) = asyncio.run(help())
    assert sorted(work.results) in ([(1, "helper"), (2, "site")], [(1, "site"), (2, "helper")])


def test_only_what_a_helper_names_is_computed_there(make_site):
    site = make_site(workers=1)
    with Capi(site=site.uri) as capi, capi.work_for(f"{site.uri}/sums", square) as helper:
        site.capi.write(site.cref, 0, None, Work("at_the_desk", [1]))
        until_true(lambda: desk.here["site"] == 1, "the only worker of the site is busy")
        site.capi.write(site.cref, 0, None, Work("square", [2, 3]))
        desk.gate.set()
        found = {work.function: work.results for work in site.done(2)}
        assert found == {"at_the_desk": [(1, "site")], "square": [4, 9]}
        assert helper.active


def test_what_a_task_raises_elsewhere_comes_back_as_an_entry(make_site):
    site = make_site(workers=1)
    site.capi.write(site.cref, 0, None, Work("at_the_desk", [0]))
    until_true(lambda: desk.here["site"] == 1, "the only worker of the site is busy")
    with (
        Capi(site=site.uri) as capi,
        capi.work_for(f"{site.uri}/sums", fails, too_large, writes_more) as helper,
    ):
        # Entries are planned by the worker of the site, which is let go for that.
        until_true(lambda: port_of(site.cref.active.work).under_way()["waiters"], "it helps")
        site.capi.write(site.cref, 0, None, Work("fails", [7]))
        desk.gate.set()
        site.done()
        (error,) = site.done()
        assert isinstance(error, ActiveError) and error.reason == "ArithmeticError: no 7"
        until_true(lambda: helper.done == 1)
        site.capi.write(site.cref, 0, None, Work("writes_more", [5]))
        found = {work.function: work.results for work in site.done(2)}
        assert found == {"writes_more": [5], "square": [25]}
        assert helper.active


def test_a_result_that_cannot_be_sent_is_an_error(make_site):
    site = make_site(workers=1)
    site.capi.write(site.cref, 0, None, Work("at_the_desk", [0]))
    until_true(lambda: desk.here["site"] == 1, "the only worker of the site is busy")
    with Capi(site=site.uri) as capi, capi.work_for(f"{site.uri}/sums", too_large) as helper:
        work = site.cref.active.work
        work.write_all(
            [
                ("waiting", "x", Work("too_large", [1]), None, None, None),
                ("task", "x", 0, f"{__name__}:too_large", (1,)),
                ("left", "x", 1),
            ]
        )
        until_true(lambda: helper.done == 1)
        desk.gate.set()
        errors = [one for one in site.done(2) if isinstance(one, ActiveError)]
        assert len(errors) == 1 and "CannotSend" in str(errors[0].reason)


def test_a_helper_that_is_closed_gives_its_tasks_to_others(make_site):
    site = make_site(workers=1)
    with Capi(site=site.uri) as capi:
        first = capi.work_for(f"{site.uri}/sums", at_the_desk, workers=3)
        site.capi.write(site.cref, 0, None, Work("at_the_desk", [1, 2, 3, 4]))
        until_true(lambda: sum(desk.here.values()) == 4)
        first.close()
        with capi.work_for(f"{site.uri}/sums", at_the_desk, workers=3):
            until_true(lambda: sum(desk.here.values()) == 7, "the tasks are at the second")
            desk.gate.set()
            (work,) = site.done()
    assert [number for number, _ in work.results] == [1, 2, 3, 4]
    assert first.done == 0


def test_the_tasks_of_a_helper_that_is_killed_are_done_by_others(make_site):
    site = make_site(workers=1)
    with Program(["-m", "tests.models.xvsm.helper_child"], site.uri) as child:
        assert child.line() == "helping"
        site.capi.write(site.cref, 0, None, Work("at_the_desk", [1, 2, 3]))
        assert [child.line() for _ in range(2)] == ["computing"] * 2
    desk.gate.set()
    (work,) = site.done()
    assert work.results == [(number, "site") for number in (1, 2, 3)]


@pytest.fixture
def make_proxy(host_thread: Any) -> Iterator[Any]:
    made: list[Proxy] = []

    def make(site: Site) -> tuple[str, Callable[..., None]]:
        """The URI of a site behind a proxy, and a function that calls a method of the proxy."""

        async def start() -> Proxy:
            proxy = Proxy()
            await proxy.start()
            proxy.lead_to(site.host.address)
            return proxy

        proxy: Proxy = host_thread.call(start)
        made.append(proxy)

        def tell(method: str, *args: Any) -> None:
            async def call() -> None:
                getattr(proxy, method)(*args)

            host_thread.call(call)

        return f"xvsm://{proxy.address}", tell

    yield make
    for proxy in made:
        host_thread.call(proxy.close)


def leftovers(site: Site) -> list[Any]:
    """What the work of the site still consists of."""
    return [entry for entry in site.cref.active.work.read_all() if entry != ("look",)]


FAULTS = [
    LinkFault("reset"),
    LinkFault("cut"),
    LinkFault("truncate", "there"),
    LinkFault("truncate", "back"),
    LinkFault("swallow", "there"),
    LinkFault("swallow", "back"),
    LinkFault("hold"),
]


@pytest.mark.parametrize("moment", ["computing", "finishing"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind} {fault.direction}")
def test_a_link_that_fails_loses_no_task_and_records_each_result_once(
    make_site, make_proxy, fault, moment
):
    site = make_site(workers=1)
    uri, proxy = make_proxy(site)
    numbers = list(range(6))
    with Capi(site=uri) as capi, capi.work_for(f"{uri}/sums", at_the_desk, workers=2) as helper:
        site.capi.write(site.cref, 0, None, Work("at_the_desk", numbers))
        until_true(lambda: sum(desk.here.values()) == 3, "all workers are busy")
        if moment == "finishing":
            proxy("fail", fault)
            desk.gate.set()
            until_true(lambda: desk.left["helper"] >= 2, "its results are computed")
            proxy("heal")
        else:
            proxy("fail", fault)
            proxy("heal")
            desk.gate.set()
        proxy("fail", LinkFault("reset"))
        (work,) = site.done()
        assert [number for number, _ in work.results] == numbers
        until_true(lambda: not leftovers(site), "all of its work is gone")
        # What was computed and is not known to be recorded is told.
        helped = sum(who == "helper" for _, who in work.results)
        until_true(lambda: helper.done + helper.unconfirmed == desk.left["helper"])
        assert helper.done <= helped <= helper.done + helper.unconfirmed
        assert sum(desk.left.values()) >= len(numbers)
        # It goes on helping.
        assert helper.active and helper.error is None
        desk.gate.clear()
        site.capi.write(site.cref, 0, None, Work("at_the_desk", numbers))
        until_true(lambda: desk.here["helper"] == 2, "it helps again")
        desk.gate.set()
        assert [number for number, _ in site.done()[0].results] == numbers
        none = ActiveSelector(min_count=0, max_count=1)
        assert site.capi.take(site.cref, 0, None, none) == []
        capi.lookup_container(None, None, "sums")  # Nobody dials while the proxy is closed.


def test_a_helper_that_is_cut_off_for_good_says_so_and_its_tasks_are_done_by_others(
    make_site, make_proxy
):
    site = make_site(workers=1)
    uri, proxy = make_proxy(site)
    with Capi(site=uri, reconnect=0) as capi:
        helper = capi.work_for(f"{uri}/sums", at_the_desk, workers=2)
        site.capi.write(site.cref, 0, None, Work("at_the_desk", [1, 2, 3]))
        until_true(lambda: sum(desk.here.values()) == 3, "all workers are busy")
        proxy("fail", LinkFault("cut"))
        desk.gate.set()
        (work,) = site.done()
        assert work.results == [(number, "site") for number in (1, 2, 3)]
        until_true(lambda: not helper.active and helper.unconfirmed == 2)
        assert isinstance(helper.error, PeerLost | CannotReach) and helper.done == 0


def test_work_is_for_those_who_may_take_and_write(make_site):
    for access in (Access(take=()), Access(write=())):
        site = make_site(access=access)
        with Capi(site=site.uri) as capi:
            helper = capi.work_for(f"{site.uri}/sums", square)
            until_true(lambda: not helper.active)  # noqa: B023
            assert isinstance(helper.error, NotAllowed)
        site.close()


def test_a_helper_shows_the_password_of_its_capi(make_site):
    site = make_site(access=Access(password="open sesame"))
    with Capi(site=site.uri, password="open sesame") as capi:
        helper = capi.work_for(f"{site.uri}/sums", at_the_desk)
        site.capi.write(site.cref, 0, None, Work("at_the_desk", [1, 2]))
        until_true(lambda: desk.here["helper"] == 1)
        desk.gate.set()
        assert len(site.done()) == 1
        until_true(lambda: helper.done == 1)
    until_true(lambda: not helper.active)  # It is closed with its Capi.
    assert helper.error is None


def test_helpers_that_make_no_sense_are_refused(make_site):
    site = make_site()
    with Capi(site=site.uri) as capi:
        cref = capi.lookup_container(None, None, "sums")
        for wrong in ((), (lambda: 1,), ("square",), (None,)):
            with pytest.raises(BadArgument, match="functions="):
                capi.work_for(cref, *wrong)
        unfit: list[Any] = [0, True, "2"]
        for workers in unfit:
            with pytest.raises(BadArgument, match="workers="):
                capi.work_for(cref, square, workers=workers)
        with pytest.raises(BadArgument, match="cref="):
            site.capi.work_for(site.cref, square)
        plain = capi.create_container(None, None, "plain", INFINITE, FifoCoordinator())
        helper = capi.work_for(plain, square)
        until_true(lambda: not helper.active)
        assert isinstance(helper.error, BadArgument)
        with pytest.raises(BadArgument, match="current="):
            where()
    assert site.capi.read(site.cref, 0, None, FifoSelector(min_count=0, max_count=1)) == []
