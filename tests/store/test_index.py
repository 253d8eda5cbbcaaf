"""The index against a naive scan: the same entries, in the same order, whatever was indexed."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.values.strategies import Leaf
from tupelo import ANY, Between, Named, Not, OneOf, Template, Where
from tupelo.store.index import REJECTIONS_BEFORE_INDEX, Store
from tupelo.values.entry import Entry, freeze
from tupelo.values.parts import INDEXABLE

NAN = float("nan")
# Few values, so that they meet; such as are easily mistaken for each other.
fields = st.sampled_from(
    [0, 1, 2, 0.0, 1.0, True, False, None, "a", "b", b"a", NAN, (1,), [1], "1"]
)
leaves = st.builds(Leaf, fields)
entries = st.tuples() | st.tuples(fields) | st.tuples(fields, fields) | leaves
parts = st.one_of(
    fields,
    st.sampled_from([ANY, int, float, bool, str, object, tuple, list, int | str]),
    st.sampled_from([Between(0, 1), OneOf(1, "a"), Not(1), Where(lambda v: v == 1)]),
)
templates = st.one_of(
    st.just(ANY),
    st.just(tuple),
    st.just(Leaf),
    st.tuples(),
    st.tuples(parts),
    st.tuples(parts, parts),
    st.builds(Leaf, parts),
    parts.map(lambda part: Named(value=part)),
    st.tuples(parts, parts).map(Template),
    st.tuples(parts).map(lambda t: ~Template(t)),
    st.tuples(st.tuples(parts, parts), st.tuples(parts, ANY_PARTS := st.just(ANY))).map(
        lambda pair: Template(pair[0]) | pair[1]
    ),
    st.tuples(st.tuples(parts, ANY_PARTS), st.tuples(ANY_PARTS, parts)).map(
        lambda pair: Template(pair[0]) & pair[1]
    ),
)


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.arrivals = 0
        self.living: list[tuple[Any, Entry]] = []
        self.gone: list[tuple[Any, Entry]] = []

    @rule(raw=entries, times=st.sampled_from([1, 1, 2, REJECTIONS_BEFORE_INDEX + 2, 100]))
    def add(self, raw: Any, times: int) -> None:
        shape, frozen = freeze(raw)
        for _ in range(times):
            self.arrivals += 1
            entry = Entry(frozen, shape, "here", self.arrivals, self.arrivals)
            self.store.add(entry)
            self.living.append((raw, entry))

    @rule(template=templates)
    def ask(self, template: Any) -> None:
        wanted = self.matching(template)
        found = list(self.store.matches(self.store.question(template)))
        assert found == wanted
        backwards = list(self.store.matches(self.store.question(template), reverse=True))
        assert backwards == wanted[::-1]
        assert self.store.count(self.store.question(template)) == len(wanted)
        first = self.store.first(self.store.question(template))
        assert first is (wanted[0] if wanted else None)
        plain = self.store.first_fast(template, take=False)
        assert plain is NotImplemented or plain is first

    @rule(template=templates, parity=st.integers(0, 1))
    def ask_for_some(self, template: Any, parity: int) -> None:
        def accept(entry: Entry) -> bool:
            return entry.arrival % 2 == parity

        wanted = [entry for entry in self.matching(template) if accept(entry)]
        assert list(self.store.matches(self.store.question(template), accept)) == wanted
        first = self.store.first(self.store.question(template), accept)
        assert first is (wanted[0] if wanted else None)

    @rule(template=templates, limit=st.integers(1, 120))
    def remove_matching(self, template: Any, limit: int) -> None:
        for entry in self.matching(template)[:limit]:
            self.store.remove(entry)
            self.move(entry, self.living, self.gone)

    @rule(template=templates)
    def take_fast(self, template: Any) -> None:
        wanted = self.matching(template)
        taken = self.store.first_fast(template, take=True)
        if taken is not NotImplemented:
            assert taken is (wanted[0] if wanted else None)
            if taken is not None:
                assert taken.gone
                self.move(taken, self.living, self.gone)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def remove_any(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.living))[1]
        self.store.remove(entry)
        self.move(entry, self.living, self.gone)

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), times=st.integers(1, 40))
    def restore(self, data: st.DataObject, times: int) -> None:
        for _ in range(min(times, len(self.gone))):
            entry = self.gone[data.draw(st.integers(0, len(self.gone) - 1))][1]
            self.store.restore(entry)
            self.move(entry, self.gone, self.living)
        self.living.sort(key=lambda pair: pair[1].arrival)

    @rule(data=st.data(), count=st.integers(1, 60))
    def grow_an_index(self, data: st.DataObject, count: int) -> None:
        """A part of it, as a search in slices does."""
        lacking = [
            (bucket, position)
            for shape, bucket in self.store.buckets.items()
            for position, cls in enumerate(shape.types)
            if cls in INDEXABLE and position not in bucket.indexes
        ]
        if lacking:
            bucket, position = data.draw(st.sampled_from(lacking))
            assert bucket.grow_index(position, count) == (position in bucket.indexes)

    def matching(self, template: Any) -> list[Entry]:
        compiled = Template(template) if not isinstance(template, Template) else template
        return [entry for raw, entry in self.living if compiled.matches(raw)]

    def move(self, entry: Entry, home: list[Any], target: list[Any]) -> None:
        (pair,) = [pair for pair in home if pair[1] is entry]
        home.remove(pair)
        target.append(pair)

    def teardown(self) -> None:
        assert list(self.store) == [entry for _, entry in self.living]
        assert len(self.store) == len(self.living)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=80, stateful_step_count=30)


def filled(count: int, make: Any) -> Store:
    store = Store()
    for i in range(1, count + 1):
        shape, frozen = freeze(make(i))
        store.add(Entry(frozen, shape, "here", i, i))
    return store


def indexes_of(store: Store) -> list[int]:
    return [position for bucket in store.buckets.values() for position in bucket.indexes]


def ask(store: Store, template: Any) -> list[Any]:
    return [entry.fields for entry in store.matches(store.question(template))]


def test_a_queue_never_pays_for_an_index():
    store = filled(500, lambda i: ("job", i, "x"))
    for _ in range(500):
        entry = store.first(store.question(("job", int, str)))
        assert entry is not None
        store.remove(entry)
    assert indexes_of(store) == []


def test_a_field_gets_an_index_when_a_value_is_sought_there():
    store = filled(500, lambda i: ("job", i, "x"))
    assert ask(store, ("job", 400, str)) == [("job", 400, "x")]
    assert indexes_of(store) == [1]
    assert ask(store, ("job", 7, ANY)) == [("job", 7, "x")]


def test_few_entries_need_no_index():
    store = filled(20, lambda i: ("job", i))
    assert ask(store, ("job", 20)) == [("job", 20)]
    assert indexes_of(store) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=200), st.booleans())
def test_an_index_built_in_the_middle_of_a_search_gives_each_match_once(pairs, reverse):
    store = Store()
    for i, pair in enumerate(pairs, start=1):
        shape, frozen = freeze(pair)
        store.add(Entry(frozen, shape, "here", i, i))
    for template in ((3, 3), (ANY, 2), (1, ANY), (0, 1)):
        wanted = [p for p in pairs if all(t in (ANY, v) for t, v in zip(template, p, strict=True))]
        found = [e.fields for e in store.matches(store.question(template), reverse=reverse)]
        assert found == (wanted[::-1] if reverse else wanted)


def test_plans_are_forgotten_without_harm():
    store = filled(10, lambda i: ("n", i))
    for i in range(2_000):
        assert ask(store, Template(("n", Between(1, i % 9 + 1))))[-1] == ("n", i % 9 + 1)
