"""All doors on one federation, as docs/DOORS.md says: every cell of its table is tried here.

Three hosts are engaged over real sockets. Something is added at the first (`here`); every door then
looks from each of them. What a cell says is waited for; what it does not say is asked for together
with something that the door is sure to find, so that nobody waits for what never comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.conftest import Call, until_true
from tupelo import ANY, Identity, Named, Trust
from tupelo.errors import BadArgument, CountNotMet, NotAllAnswered, NotAllowed
from tupelo.federation.names import companion_name
from tupelo.models import lime
from tupelo.models.event_heap import Event, EventHeap
from tupelo.models.javaspaces import NO_WAIT, JavaSpace05
from tupelo.models.lime import ONCE_PER_TUPLE, LimeTupleSpace, UbiquitousReaction
from tupelo.models.linda import TupleSpace
from tupelo.models.melon import Copies, Melon
from tupelo.models.pubsub import PubSub
from tupelo.models.xvsm import (
    INFINITE,
    TRY_ONCE,
    AnySelector,
    Capi,
    FifoCoordinator,
)

PAGE = Path(__file__).parents[2] / "docs" / "DOORS.md"
PATIENCE_SECONDS = 30.0
PLACES = ("here", "there", "beyond")
WORDS = ("see", "wait", "take", "react")
CONTROL = ("control", 0)


@tupelo.entry("tests.doors.note")
@dataclass
class Note:
    """A typed entry that every door can write."""

    topic: str | None = None
    number: int | None = None


# The federation


class Farm:
    """Three hosts with all doors, and agents of LIME."""

    def __init__(self, stack: ExitStack) -> None:
        identities = [Identity.new() for _ in PLACES]
        trust = Trust.known([one.key for one in identities])
        self.hosts: dict[str, tupelo.Host] = {}
        for place, identity in zip(PLACES, identities, strict=True):
            peers = [host.address for host in self.hosts.values()]
            host = tupelo.Host(place, listen=0, peers=peers, identity=identity, trust=trust)
            self.hosts[place] = stack.enter_context(host)
        until_true(lambda: all(len(host.engaged) == 2 for host in self.hosts.values()), "engaged")
        self.lime = {
            place: stack.enter_context(lime.Host(host)) for place, host in self.hosts.items()
        }
        self.agents = {place: host.agent(place) for place, host in self.lime.items()}
        self.pubsub = {
            place: stack.enter_context(PubSub(host)) for place, host in self.hosts.items()
        }
        self.capis = {place: Capi() for place in PLACES}
        self.containers = {}
        for place, capi in self.capis.items():
            stack.callback(capi.shutdown, None)
            self.containers[place] = capi.create_container(
                None, None, "field", INFINITE, FifoCoordinator()
            )
        self._heaps: dict[tuple[str, str], EventHeap] = {}
        for place in PLACES:
            self.melon(place)

    def melon(self, place: str) -> Melon:
        """A process that has read nothing."""
        return Melon(self.hosts[place], "field")

    def heap(self, place: str, name: str) -> EventHeap:
        if (place, name) not in self._heaps:
            self._heaps[place, name] = EventHeap(self.hosts[place], name)
        return self._heaps[place, name]

    def shared(self, place: str, name: str, agent: lime.Agent | None = None) -> LimeTupleSpace:
        space = LimeTupleSpace(name, agent or self.lime[place].agent("guest"))
        space.set_shared(True)
        return space


# What is added, and where


class Added:
    """One row of the table: what is added, at the first host."""

    space = "field"
    """Where doors look for it; "container" for the space of a container of XVSM."""
    shown = "`field`"
    """Where it is, as the page says."""

    def __init__(self, farm: Farm) -> None:
        self.farm = farm

    @property
    def name(self) -> str:
        return "field" if self.space == "container" else self.space

    def add(self) -> None:
        raise NotImplementedError

    def is_it(self, value: Any) -> bool:
        return bool(value == ("x", 1))


class LindaOut(Added):
    def add(self) -> None:
        TupleSpace(self.farm.hosts["here"].space("field")).out(("x", 1))


class SpaceWrite(Added):
    def add(self) -> None:
        self.farm.hosts["here"].space("field").write(Note("x", 1))

    def is_it(self, value: Any) -> bool:
        return bool(value == Note("x", 1))


class JavaSpacesWrite(SpaceWrite):
    def add(self) -> None:
        JavaSpace05(self.farm.hosts["here"].space("field")).write(Note("x", 1))


class LimeOut(Added):
    def add(self) -> None:
        self.farm.shared("here", "field", self.farm.agents["here"]).out(("x", 1))


class LimeOutTo(Added):
    def add(self) -> None:
        space = self.farm.shared("here", "field", self.farm.agents["here"])
        self.farm.shared("there", "field", self.farm.agents["there"])
        space.out(("x", 1), destination=self.farm.agents["there"].location)


class LimeOutPrivate(Added):
    shown = "–"

    def add(self) -> None:
        LimeTupleSpace("field", self.farm.lime["here"].agent("hermit")).out(("x", 1))


class MelonStore(Added):
    def add(self) -> None:
        self.farm.melon("here").store(("x", 1))


class MelonStoreTo(Added):
    shown = "–"

    def add(self) -> None:
        self.farm.melon("here").store(("x", 1), to=self.farm.hosts["there"].identity)

    def is_it(self, value: Any) -> bool:
        return value == ("x", 1) or type(value).__name__ == "Sealed"


class MelonWrite(Added):
    shown = "–"

    def add(self) -> None:
        self.farm.melon("here").write(("x", 1))


class HeapPut(Added):
    def add(self) -> None:
        self.farm.heap("here", "field").put(Event("x", n=1))

    def is_it(self, value: Any) -> bool:
        return bool(value == Event("x", n=1))


class HeapPutTyped(SpaceWrite):
    def add(self) -> None:
        self.farm.heap("here", "field").put(Note("x", 1))


class HeapView(Added):
    shown = "–"

    def add(self) -> None:
        self.farm.heap("here", "field").view(order="source")

    def is_it(self, value: Any) -> bool:
        return type(value).__name__ == "ViewMade"


class PubSubPublish(Added):
    shown = "–"

    def add(self) -> None:
        self.farm.pubsub["here"].publish(("x", 1))


class PubSubOffer(Added):
    shown = "–"

    def add(self) -> None:
        self.farm.pubsub["here"].offer(("x", 1))


class XvsmWrite(Added):
    space = "container"
    shown = "`container.space`"

    def add(self) -> None:
        self.farm.capis["here"].write(self.farm.containers["here"], TRY_ONCE, None, ("x", 1))


class LindaOutInContainer(Added):
    space = "container"
    shown = "`container.space`"

    def add(self) -> None:
        TupleSpace(self.farm.containers["here"].space).out(("x", 1))


ROWS: dict[str, type[Added]] = {
    "Linda `out`": LindaOut,
    "a space `write(dataclass)`": SpaceWrite,
    "JavaSpaces `write`": JavaSpacesWrite,
    "LIME `out`": LimeOut,
    "LIME `out` for an agent": LimeOutTo,
    "LIME `out`, not shared": LimeOutPrivate,
    "MELON `store`": MelonStore,
    "MELON `write`": MelonWrite,
    "MELON `store(to=)`": MelonStoreTo,
    "Event Heap `put(Event)`": HeapPut,
    "Event Heap `put(dataclass)`": HeapPutTyped,
    "Event Heap: its records": HeapView,
    "pubsub `publish`": PubSubPublish,
    "pubsub `offer`": PubSubOffer,
    "XVSM `write`": XvsmWrite,
    "Linda `out` in a container": LindaOutInContainer,
}


# Who looks, and how


class Looker:
    """One door at one host. What it cannot do at all is not defined."""

    see: Callable[[], Any] | None = None
    wait: Callable[[], Any] | None = None
    take: Callable[[float], Any] | None = None
    react: Callable[[list[Any]], Any] | None = None

    def __init__(self, farm: Farm, place: str, added: Added) -> None:
        self.farm = farm
        self.place = place
        self.host = farm.hosts[place]
        self.name = added.name
        if added.space == "container":
            self.space = farm.containers[place].space
        else:
            self.space = self.host.space(self.name)
        self.open()

    def open(self) -> None:
        pass

    def control(self) -> None:
        """Add something that this door is sure to find."""
        self.space.write(CONTROL)


class PlainSpace(Looker):
    def see(self) -> Any:
        return self.space.read(wait=0)

    def wait(self) -> Any:
        return self.space.read(wait=PATIENCE_SECONDS)

    def take(self, wait: float) -> Any:
        return self.space.take(wait=wait)

    def react(self, told: list[Any]) -> Any:
        return self.space.subscribe(ANY, lambda notice: told.append(notice.entry))


class Linda(Looker):
    def open(self) -> None:
        self.tuples = TupleSpace(self.space)

    def see(self) -> Any:
        return self.tuples.rdp(ANY)

    def wait(self) -> Any:
        return self.tuples.rd(ANY)

    def take(self, wait: float) -> Any:
        return self.tuples.in_(ANY) if wait else self.tuples.inp(ANY)


class JavaSpaces(Looker):
    def open(self) -> None:
        self.java = JavaSpace05(self.space)

    def see(self) -> Any:
        return self.java.read(None, None, NO_WAIT)

    def wait(self) -> Any:
        return self.java.read(None, None, PATIENCE_SECONDS)

    def take(self, wait: float) -> Any:
        return self.java.take(None, None, wait)

    def react(self, told: list[Any]) -> Any:
        return self.java.register_for_availability_event(
            [None], None, True, lambda event: told.append(event.entry)
        )


class Lime(Looker):
    def open(self) -> None:
        self.tuples = self.farm.shared(self.place, self.name)

    def see(self) -> Any:
        return self.tuples.rdp(ANY)

    def wait(self) -> Any:
        return self.farm.shared(self.place, self.name).rd(ANY, wait=PATIENCE_SECONDS)

    def take(self, wait: float) -> Any:
        tuples = self.farm.shared(self.place, self.name)
        return tuples.in_(ANY, wait=wait) if wait else tuples.inp(ANY)

    def react(self, told: list[Any]) -> Any:
        return self.tuples.add_weak_reaction(
            UbiquitousReaction(ANY, lambda event: told.append(event.tuple), ONCE_PER_TUPLE)
        )

    def control(self) -> None:
        self.tuples.out(CONTROL)


class MelonRead(Looker):
    def see(self) -> Any:
        return self.farm.melon(self.place).read(ANY, wait=0)

    def wait(self) -> Any:
        return self.farm.melon(self.place).read(ANY, PATIENCE_SECONDS)

    def control(self) -> None:
        self.farm.melon(self.place).write(CONTROL)


class MelonTake(Looker):
    """Whoever waits by it takes, so both words are tried at once."""

    def take(self, wait: float) -> Any:
        return self.farm.melon(self.place).take(ANY, wait)


class Heap(Looker):
    def open(self) -> None:
        self.heap = self.farm.heap(self.place, self.name)

    def see(self) -> Any:
        return self.heap.snoop()

    def wait(self) -> Any:
        return self.heap.wait(wait=PATIENCE_SECONDS)

    def take(self, wait: float) -> Any:
        return self.heap.wait_to_remove(wait=wait)

    def react(self, told: list[Any]) -> Any:
        return self.heap.query(ANY, told.append)

    def control(self) -> None:
        self.heap.put(CONTROL)


class Pubsub(Looker):
    def open(self) -> None:
        self.broker = self.farm.pubsub[self.place]

    def see(self) -> Any:
        replies = self.broker.collect(ANY, "probing", "all").replies
        return next((item for reply in replies for item in reply.items), None)

    def wait(self) -> Any:
        reply = self.broker.collect(ANY, "single", "any").get(wait=PATIENCE_SECONDS)
        return reply.items[0] if reply else None

    def react(self, told: list[Any]) -> Any:
        return self.broker.subscribe(ANY, lambda reply: told.extend(reply.items))

    def control(self) -> None:
        self.broker.offer(CONTROL)


class Xvsm(Looker):
    def open(self) -> None:
        self.capi, self.container = self.farm.capis[self.place], self.farm.containers[self.place]

    def see(self) -> Any:
        try:
            return self.capi.read(self.container, TRY_ONCE, None, AnySelector())[0]
        except CountNotMet:
            return None

    def wait(self) -> Any:
        return self.capi.read(self.container, PATIENCE_SECONDS, None, AnySelector())[0]

    def take(self, wait: float) -> Any:
        return self.capi.take(self.container, wait, None, AnySelector())[0]

    def react(self, told: list[Any]) -> Any:
        return self.capi.create_notification(
            self.container, lambda _, operation, entries: told.extend(entries), "write"
        )

    def control(self) -> None:
        self.capi.write(self.container, TRY_ONCE, None, CONTROL)


COLUMNS: dict[str, Callable[[Farm, str, Added], Looker]] = {
    "a space": PlainSpace,
    "Linda": Linda,
    "JavaSpaces": JavaSpaces,
    "LIME": Lime,
    "MELON read": MelonRead,
    "MELON take": MelonTake,
    "Event Heap": Heap,
    "pubsub": Pubsub,
    "XVSM": Xvsm,
}


# What the page says


def table() -> tuple[list[str], dict[str, list[str]]]:
    """The heads of the first table of the page, and its rows by their first cells."""
    lines = PAGE.read_text("utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    lines = list(takewhile(lambda line: line.startswith("|"), lines[first:]))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return cells[0], {row[0]: row[1:] for row in cells[2:]}


HEAD, SAID = table()


def words_at(place: str, cell: str) -> set[str]:
    """What a cell says of one of the hosts: "see wait; here: take"."""
    found: set[str] = set()
    for part in cell.split(";") if cell != "–" else ():
        prefix, _, rest = part.rpartition(":")
        if prefix.strip() in ("", {"here": "here", "there": "addressee"}.get(place)):
            found.update(rest.split())
    assert found <= set(WORDS), f"{cell!r} has words that nobody knows"
    return found


def test_the_page_has_a_row_and_a_column_for_everything_that_is_tried_here():
    assert ["added by", "in the space", *COLUMNS] == HEAD
    assert list(SAID) == list(ROWS)
    for row, (space, *_) in SAID.items():
        assert space == ROWS[row].shown
        assert all(re.fullmatch(r"–|[a-z :;]+", cell) for cell in SAID[row][1:])


@pytest.fixture
def farm() -> Iterator[Farm]:
    with ExitStack() as stack:
        yield Farm(stack)


@dataclass
class Trial:
    """What a looker should find, and how it is asked."""

    looker: Looker
    place: str
    column: str
    expected: set[str]
    waiting: Call | None = None
    told: list[Any] | None = None

    def __str__(self) -> str:
        return f"{self.column} at {self.place}"


def clear(farm: Farm, added: Added) -> None:
    for place in PLACES:
        for name in {"field", added.name}:
            farm.hosts[place].space(name).here.take_all()
        for kind in ("written", "sealed"):
            kept = farm.hosts[place].core.spaces.get(companion_name(kind, "field"))
            if kept is not None:
                kept.space.take_all()
        farm.containers[place].space.take_all()
        farm.pubsub[place].withdraw(ANY)


@pytest.mark.parametrize("row", ROWS)
def test_each_door_sees_what_the_page_says(farm, row):
    added = ROWS[row](farm)
    trials = [
        Trial(looker(farm, place, added), place, column, words_at(place, cell))
        for (column, looker), cell in zip(COLUMNS.items(), SAID[row][1:], strict=True)
        for place in PLACES
    ]
    wrong = [*look(added, trials), *take(farm, added, trials)]
    assert not wrong, "\n".join(wrong)


def is_seen(see: Callable[[], Any], added: Added) -> bool:
    return added.is_it(see())


def is_told(told: list[Any], added: Added) -> bool:
    return any(map(added.is_it, told))


def look(added: Added, trials: list[Trial]) -> list[str]:
    """See, wait and react: what is not as it was said."""
    wrong = []
    kept = []
    for trial in trials:
        if trial.looker.wait is not None:
            trial.waiting = Call(trial.looker.wait)
        if trial.looker.react is not None:
            trial.told = []
            kept.append(trial.looker.react(trial.told))
    added.add()

    for trial in trials:  # what must come
        if "wait" in trial.expected and trial.waiting is not None:
            got = trial.waiting.result()
            if not added.is_it(got):
                wrong.append(f"{trial} waits in vain: {got!r}")
        if "react" in trial.expected and trial.told is not None:
            until_true(partial(is_told, trial.told, added), f"{trial} reacts")
        if "see" in trial.expected and trial.looker.see is not None:
            until_true(partial(is_seen, trial.looker.see, added), f"{trial} sees it")
    for trial in trials:  # what must not come
        if "see" not in trial.expected and trial.looker.see is not None:
            got = trial.looker.see()
            if got is not None:
                wrong.append(f"{trial} sees {got!r}")
    for trial in trials:
        waits = trial.waiting is not None and "wait" not in trial.expected
        reacts = trial.told is not None and "react" not in trial.expected
        if waits or reacts:
            trial.looker.control()
        if waits and trial.waiting is not None and added.is_it(trial.waiting.result()):
            wrong.append(f"{trial} waits for it and gets it")
        if reacts and trial.told is not None:
            until_true(partial(len, trial.told), f"{trial} is told at all")
            if is_told(trial.told, added):
                wrong.append(f"{trial} reacts to it")
    for one in kept:
        end = getattr(one, "cancel", None) or getattr(one, "close", None)
        if end is not None and not isinstance(one, lime.RegisteredReaction):
            end()
    return wrong


def take(farm: Farm, added: Added, trials: list[Trial]) -> list[str]:
    """Who may take waits for it; who may not tries when it is surely there."""
    wrong = []
    seen_at = {
        trial.place: trial.looker.see
        for trial in trials
        if isinstance(trial.looker, PlainSpace) and "see" in trial.expected
    }
    for trial in trials:
        if trial.looker.take is None:
            continue
        clear(farm, added)
        if "take" in trial.expected:
            taking = Call(trial.looker.take, PATIENCE_SECONDS)
            added.add()
            got = taking.result()
            if not added.is_it(got):
                wrong.append(f"{trial} takes {got!r}")
            continue
        added.add()
        see = trial.looker.see if "see" in trial.expected else seen_at.get(trial.place)
        if see is not None:
            until_true(partial(is_seen, see, added), f"it is seen at {trial.place}")
        try:
            got = trial.looker.take(0)
        except (CountNotMet, NotAllAnswered, NotAllowed):
            continue
        if got is not None:
            wrong.append(f"{trial} takes {got!r}")
    return wrong


# What the page says beside its table


def test_one_out_is_seen_by_every_door_under_its_own_rules(farm):
    """Linda writes at one host; MELON, LIME, JavaSpaces and the Event Heap look from others."""
    reacted: list[Any] = []
    notified: list[Any] = []
    java = JavaSpace05(farm.hosts["here"].space("field"))
    java.register_for_availability_event(
        [None], None, True, lambda event: notified.append(event.entry)
    )
    farm.shared("here", "field")
    farm.shared("there", "field").add_weak_reaction(
        UbiquitousReaction(("x", int), lambda event: reacted.append(event.tuple), ONCE_PER_TUPLE)
    )
    farm.heap("here", "field")
    view = farm.heap("beyond", "field").view(order="total")
    same_view = farm.heap("there", "field").view(view.id, wait=PATIENCE_SECONDS)

    linda = TupleSpace(farm.hosts["here"].space("field"))
    linda.out(("x", 1))
    linda.out(("x", 2))

    until_true(lambda: reacted == notified == [("x", 1), ("x", 2)], "all are told, in its order")
    for one in (view, same_view):
        assert [one.wait(wait=PATIENCE_SECONDS) for _ in range(2)] == [("x", 1), ("x", 2)]
    taken = [farm.melon("there").take(("x", int), PATIENCE_SECONDS) for _ in range(2)]
    assert taken == [("x", 1), ("x", 2)]  # the oldest first, and for one only:
    assert farm.melon("beyond").take(("x", int), wait=0) is None
    assert linda.inp(("x", int)) is None
    until_true(lambda: not farm.heap("beyond", "field").snoop_all(), "it is gone from the heap")
    assert view.replay() == []


def test_a_total_view_orders_what_all_doors_write(farm):
    views = [farm.heap("here", "field").view()]
    views += [
        farm.heap(place, "field").view(views[0].id, wait=PATIENCE_SECONDS) for place in PLACES[1:]
    ]
    TupleSpace(farm.hosts["here"].space("field")).out(("x", 1))
    farm.shared("there", "field", farm.agents["there"]).out(("x", 2))
    farm.melon("beyond").store(("x", 3))
    JavaSpace05(farm.hosts["there"].space("field")).write(Note("x", 4))
    views[2].put(Event("x", n=5))
    orders = [[view.wait(wait=PATIENCE_SECONDS) for _ in range(5)] for view in views]
    assert orders[0] == orders[1] == orders[2]
    for one in (("x", 1), ("x", 2), ("x", 3), Note("x", 4), Event("x", n=5)):
        assert one in orders[0]


def test_each_door_finds_by_content_what_another_has_written(farm):
    space = farm.hosts["there"].space("field")
    heap = farm.heap("there", "field")
    java = JavaSpace05(farm.hosts["here"].space("field"))
    written, event = Note("tea", 4), Event("tea", n=4)

    java.write(written)
    farm.heap("here", "field").put(event)
    heap.wait(Event("tea"), wait=PATIENCE_SECONDS)
    farm.shared("here", "field")
    lime_space = farm.shared("there", "field")

    for find in (space.read, lime_space.rd, heap.wait):
        assert find(Note("tea"), wait=PATIENCE_SECONDS) == written
    assert heap.snoop(Named(number=4)) == lime_space.rdp(Named(number=4)) == written
    assert space.read(Named(type="tea"), wait=0) == lime_space.rdp(Named(type="tea")) == event
    assert heap.snoop(Event("tea", n=int)) == event

    any_tea: Any = Event("tea")
    any_tea.fields = None
    assert java.read(any_tea, None, NO_WAIT) == event
    assert farm.melon("there").take(Note("tea"), PATIENCE_SECONDS) == written
    assert farm.melon("there").take(Named(type="tea"), PATIENCE_SECONDS) == event


def test_lime_looks_where_an_agent_shares_the_space(farm):
    mine = farm.shared("there", "field")
    farm.hosts["here"].space("field").write(("x", 1))
    assert mine.rdp(ANY) is None
    farm.shared("here", "field")
    assert mine.rd(ANY, wait=PATIENCE_SECONDS) == ("x", 1)


def test_a_heap_has_what_is_written_where_there_is_one(farm):
    heap = farm.heap("there", "field")
    farm.hosts["here"].space("field").write(("x", 1))
    assert heap.get() is None
    farm.heap("here", "field")
    assert heap.wait(wait=PATIENCE_SECONDS) == ("x", 1)


def test_what_was_written_for_reading_is_taken_by_no_other_host(farm):
    farm.melon("here").write(("x", 1))
    for place in ("there", "beyond"):
        assert farm.melon(place).read(ANY, PATIENCE_SECONDS) == ("x", 1)
        assert farm.melon(place).take(ANY, 0) is None
    assert farm.hosts["there"].space("field").count() == 0


def test_what_models_keep_is_in_no_space_that_anyone_can_open(farm):
    writer = Melon(farm.hosts["here"], "news", copies=Copies(hosts=2))
    Melon(farm.hosts["there"], "news", copies=Copies())
    writer.write(("x", 1))
    farm.heap("here", "field").put(("x", 1))
    assert farm.heap("there", "field").wait(wait=PATIENCE_SECONDS) == ("x", 1)
    kept = ("melon.news", "written.news", "sealed.news", "system.field")
    copies = ("copies.field", "copies.tupelo.written.news", "copies.tupelo.system.field")
    for name in (f"tupelo.{one}" for one in kept + copies):
        for place in ("here", "there"):
            host = farm.hosts[place]
            assert host.presence.read(tupelo.SpacePresence(name=name), wait=0) is None
            for opened in (host.space, partial(EventHeap, host), partial(Melon, host)):
                with pytest.raises(BadArgument):
                    opened(name)
            with pytest.raises(BadArgument):
                farm.shared(place, name)
    assert farm.hosts["there"].space("field").read_all() == [("x", 1)]  # The copy does not count.
    assert Melon(farm.hosts["beyond"], "news").read(ANY, PATIENCE_SECONDS) == ("x", 1)
