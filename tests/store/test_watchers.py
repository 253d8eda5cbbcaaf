"""Watchers: which of those who wait want this entry? Those whose template matches, oldest first."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.store.test_index import entries, templates
from tupelo import ANY, Template, Where
from tupelo.store.index import Store
from tupelo.store.plan import Question
from tupelo.store.watchers import Watchers
from tupelo.values.entry import Entry, freeze


class Watch:
    def __init__(self, question: Question, ticket: int, template: Any = None) -> None:
        self.question = question
        self.ticket = ticket
        self.template = template


class Place:
    """A store that makes plans, and the watchers that go by them."""

    def __init__(self) -> None:
        self.store = Store()
        self.watchers: Watchers[Watch] = Watchers(self.store.shapes)
        self.arrivals = 0
        self.tickets = 0

    def watch(self, template: Any) -> Watch:
        self.tickets += 1
        watch = Watch(self.store.question(template), self.tickets, template)
        self.watchers.add(watch)
        return watch

    def wanting(self, raw: Any) -> list[Watch]:
        shape, frozen = freeze(raw)
        self.arrivals += 1
        self.store.know(shape)
        entry = Entry(frozen, shape, "here", self.arrivals, self.arrivals)
        return list(self.watchers.wanting(entry))


@given(st.lists(templates, max_size=12), st.lists(entries, max_size=8), st.randoms())
def test_the_same_as_asking_each(asked, coming, random):
    place = Place()
    watches = []
    for raw in coming:
        if asked:
            watches.append(place.watch(asked.pop()))
        if watches and random.random() < 0.2:
            place.watchers.discard(watches.pop(random.randrange(len(watches))))
        wanted = [w for w in watches if _as_template(w.template).matches(raw)]
        assert place.wanting(raw) == wanted
    assert list(place.watchers) == watches
    for watch in watches:
        assert place.watchers.discard(watch) and watch not in place.watchers
    assert len(place.watchers) == 0 and not any(map(place.wanting, coming))


def _as_template(raw: Any) -> Template:
    return raw if isinstance(raw, Template) else Template(raw)


def test_the_oldest_comes_first_whatever_it_asks_for():
    place = Place()
    place.store.know(freeze(("a", 1))[0])
    watches = [place.watch(t) for t in (("a", 1), ANY, (ANY, 1), ("a", int), ("a", 1), tuple)]
    assert place.wanting(("a", 1)) == watches
    place.watchers.discard(watches[1])
    assert place.wanting(("a", 1)) == [watches[0], *watches[2:]]


def test_many_others_do_not_matter():
    place = Place()
    watches = [place.watch(("key", i)) for i in range(1_000)]
    assert place.wanting(("key", 500)) == [watches[500]]
    assert place.wanting(("key", 500.0)) == []


def test_a_watch_that_fails_is_set_aside_and_the_others_are_asked():
    place = Place()
    broken = place.watch(("a", Where(lambda v: 1 / 0)))
    sound = place.watch(("a", int))
    assert place.wanting(("a", 1)) == [sound]
    ((failed, error),) = place.watchers.failures
    assert failed is broken and "ZeroDivisionError" in str(error)


def test_discarding_a_stranger_is_harmless():
    place = Place()
    assert not place.watchers.discard(Watch(place.store.question(ANY), 1))
