"""A run against a naive list."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tupelo.store.index import EntryRun
from tupelo.values.entry import Entry, shape_of

SHAPE = shape_of(None, (int,))


class RunMachine(RuleBasedStateMachine):
    """Entries come at the end, go from anywhere, and come back to their places."""

    def __init__(self) -> None:
        super().__init__()
        self.run_ = EntryRun()
        self.arrivals = 0
        self.living: list[Entry] = []
        self.gone: list[Entry] = []

    @rule(count=st.integers(1, 150))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.arrivals += 1
            entry = Entry((self.arrivals,), SHAPE, "here", self.arrivals, self.arrivals)
            self.run_.items.append(entry)
            self.living.append(entry)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), count=st.integers(1, 120))
    def remove(self, data: st.DataObject, count: int) -> None:
        start = data.draw(st.integers(0, len(self.living) - 1))
        for entry in self.living[start : start + count]:
            entry.gone = True
            self.run_.removed()
        self.gone += self.living[start : start + count]
        del self.living[start : start + count]

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), count=st.integers(1, 60))
    def restore(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.gone))):
            entry = self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1)))
            entry.gone = False
            self.run_.restored(entry)
            self.living.append(entry)
        self.living.sort(key=lambda entry: entry.arrival)

    @rule()
    def first(self) -> None:
        assert self.run_.first() is (self.living[0] if self.living else None)

    @rule()
    def forwards(self) -> None:
        assert list(self.run_) == self.living

    @rule()
    def backwards(self) -> None:
        assert list(reversed(self.run_)) == self.living[::-1]

    @invariant()
    def counted(self) -> None:
        assert len(self.run_) == len(self.living)

    def teardown(self) -> None:
        assert list(self.run_) == self.living
        assert list(reversed(self.run_)) == self.living[::-1]


TestRun = RunMachine.TestCase
TestRun.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_queue_does_not_keep_what_has_gone():
    run = EntryRun()
    for i in range(1, 5_001):
        run.items.append(Entry((i,), SHAPE, "here", i, i))
        if i > 10:
            first = run.first()
            assert first is not None and first.arrival == i - 10
            first.gone = True
            run.removed()
    assert len(run) == 10 and len(run.items) < 1_000


def test_entries_may_go_while_one_looks():
    run = EntryRun()
    entries = [Entry((i,), SHAPE, "here", i, i) for i in range(1, 400)]
    run.items.extend(entries)
    seen = []
    for entry in run:
        seen.append(entry.arrival)
        entry.gone = True
        run.removed()
    assert seen == list(range(1, 400)) and len(run) == 0
