"""Reactions: inside the atomic step, to a fixed point, all or nothing."""

from typing import Any

import pytest

from tests.laws.talk import drained, entries_of, refused, state_of
from tupelo import ANY, HERE, Capacity, Key, Not, Where
from tupelo.errors import (
    BadArgument,
    BadInput,
    BadTemplate,
    Livelock,
    ReactionFailed,
    SpaceFull,
    TransactionEnded,
)


def nothing(entry: Any, step: Any) -> None:
    pass


def react_here(space: Any, template: Any, function: Any, **how: Any) -> Any:
    """A reaction to the entries of this host, which every kind but a remote space has."""
    return space.react(template, function, scope=HERE, **how)


# Inside the step


def test_a_reaction_is_part_of_the_write(space):
    react_here(space, ("in", int), lambda entry, step: step.write(("out", entry[1] * 2)))
    space.write(("in", 21))
    assert space.read_all() == [("in", 21), ("out", 42)]


def test_a_reaction_gets_the_entry_and_may_take_it_before_anyone_sees_it(space, park):
    waiter = park(space, space.take, ("in", int))
    listener = space.subscribe(("in", int))
    react_here(space, ("in", ANY), lambda entry, step: step.take(entry))
    space.write(("in", 1))
    assert waiter.waits and space.count() == 0 and drained(listener) == []
    space.write(("in", "other"))
    assert space.count() == 0


def test_a_step_reads_takes_and_counts_what_the_space_holds(space):
    seen = {}

    def look(entry, step):
        seen["count"] = step.count(("n", int))
        seen["read"] = step.read(("n", 2))
        seen["none"] = step.read(("m", int)), step.take(("m", int))
        seen["all"] = step.read_all(("n", int))
        seen["some"] = step.read_all(("n", int), limit=2)
        seen["taken"] = step.take_all(("n", int), limit=2)
        seen["any"] = step.take()
        step.write(("left", step.count()), lease=5)

    space.write_all([("n", i) for i in range(4)])
    react_here(space, ("go",), look)
    space.write(("go",))
    assert seen == {
        "count": 4,
        "read": ("n", 2),
        "none": (None, None),
        "all": [("n", i) for i in range(4)],
        "some": [("n", 0), ("n", 1)],
        "taken": [("n", 0), ("n", 1)],
        "any": ("n", 2),
    }
    assert space.read_all() == [("n", 3), ("go",), ("left", 2)]


def test_what_a_reaction_writes_may_be_leased(space, clock, until):
    react_here(space, ("in",), lambda entry, step: step.write(("out",), lease=5))
    space.write(("in",))
    until(lambda: space.count() == 2)
    clock.advance(5)
    assert space.read_all() == [("in",)]


def test_a_write_of_many_is_one_step(space):
    counts = []
    react_here(space, ("n", int), lambda entry, step: counts.append(step.count(("n", int))))
    space.write_all([("n", i) for i in range(3)])
    assert counts == [3, 3, 3]


def test_what_one_reaction_removes_the_next_does_not_see(space):
    reacted = []

    def take_all(entry, step):
        reacted.append(entry)
        step.take_all(("n", int))

    react_here(space, ("n", int), take_all)
    space.write_all([("n", i) for i in range(3)])
    assert reacted == [("n", 0)] and space.count() == 0


def test_reactions_are_called_in_the_order_in_which_they_were_made(space):
    called = []
    for name in ("first", "second", "third"):
        react_here(space, ("go",), lambda entry, step, name=name: called.append(name))
    space.write(("go",))
    assert called == ["first", "second", "third"]


def test_a_reaction_only_gets_what_its_template_matches(space, until):
    got = []
    react_here(space, ("n", Not(2)), lambda entry, step: got.append(entry))
    space.write_all([("n", 1), ("n", 2), ("m", 3), ("n", "x")])
    until(lambda: got == [("n", 1), ("n", "x")])


def test_a_reaction_gets_a_copy(space, until):
    changed = []

    def change(entry, step):
        entry[1].append("changed")
        changed.append(entry)

    react_here(space, ("list", list), change)
    space.write(("list", [1]))
    until(lambda: changed == [("list", [1, "changed"])])
    assert space.read_all() == [("list", [1])]


# How often


def test_a_reaction_is_called_once_for_every_entry(space, until):
    got = []
    react_here(space, ("n", int), lambda entry, step: got.append(entry[1]))
    space.write(("n", 1))
    space.write(("n", 1))
    txn = space.transaction()
    space.take(("n", 1), wait=0, txn=txn)
    txn.abort()  # The same entry becomes visible again.
    space.write(("n", 2))
    until(lambda: 2 in got)
    assert got == [1, 1, 2]


def test_once_is_once(space, until):
    got = []
    reaction = react_here(space, ("n", int), lambda entry, step: got.append(entry[1]), once=True)
    assert reaction.active
    space.write_all([("n", 1), ("n", 2)])
    space.write(("n", 3))
    until(lambda: not reaction.active)
    assert got == [1]


def test_a_cancelled_reaction_is_called_no_more(space, until):
    got = []
    reaction = react_here(space, ("n", int), lambda entry, step: got.append(entry[1]))
    space.write(("n", 1))
    until(lambda: got == [1])
    reaction.cancel()
    reaction.cancel()
    space.write(("n", 2))
    assert got == [1] and not reaction.active


def test_a_reaction_reacts_to_what_is_already_there(space):
    space.write_all([("n", i) for i in range(3)])
    got = []

    def move(entry, step):
        got.append(entry[1])
        step.take(entry)
        step.write(("m", entry[1]))

    react_here(space, ("n", int), move)
    assert got == [0, 1, 2]
    assert space.read_all() == [("m", 0), ("m", 1), ("m", 2)]
    space.write(("n", 3))
    assert got == [0, 1, 2, 3]


def test_unless_it_is_told_not_to(space, until):
    space.write(("n", 0))
    got = []
    react_here(space, ("n", int), lambda entry, step: got.append(entry[1]), existing=False)
    space.write(("n", 1))
    until(lambda: got)
    assert got == [1]


def test_once_and_already_there(space, until):
    space.write_all([("n", 0), ("n", 1)])
    got = []
    reaction = react_here(space, ("n", int), lambda entry, step: got.append(entry[1]), once=True)
    until(lambda: not reaction.active)
    assert got == [0]


def test_the_waiters_get_what_a_new_reaction_writes(space, park):
    space.write(("n", 1))
    waiter = park(space, space.take, ("m", int))
    react_here(space, ("n", int), lambda entry, step: step.write(("m", entry[1])))
    assert waiter.result() == ("m", 1)


# To a fixed point


def test_reactions_react_to_what_reactions_write(space, until):
    def count_down(entry, step):
        return step.write(("n", entry[1] - 1)) if entry[1] > 0 else None

    react_here(space, ("n", int), count_down)
    space.write(("n", 5))
    until(lambda: space.read_all() == [("n", i) for i in (5, 4, 3, 2, 1, 0)])


def test_two_reactions_feed_each_other_until_they_come_to_rest(space, until):
    react_here(
        space, ("ping", int), lambda e, step: step.write(("pong", e[1] + 1)) if e[1] < 4 else None
    )
    react_here(
        space, ("pong", int), lambda e, step: step.write(("ping", e[1] + 1)) if e[1] < 4 else None
    )
    space.write(("ping", 0))
    rest = [("ping", 0), ("pong", 1), ("ping", 2), ("pong", 3), ("ping", 4)]
    until(lambda: space.read_all() == rest)


def test_a_livelock_ends_in_an_error_and_is_undone(make_space):
    space = make_space(reactions_max=50)
    space.write(("before",))
    listener = space.subscribe()
    calls = []

    def feed(entry, step):
        calls.append(entry)
        step.take(("before",))
        step.write(("n", entry[1] + 1))

    reaction = react_here(space, ("n", int), feed)
    before = state_of(space)
    with pytest.raises(Livelock, match="50") as livelock:
        space.write(("n", 0))
    assert livelock.value.bound == 50 and len(calls) == 50
    assert state_of(space) == before and drained(listener) == []
    assert reaction.active  # The space can go on.
    space.write(("other",))
    assert space.read_all() == [("before",), ("other",)]


def test_the_bound_counts_each_step_anew(make_space):
    space = make_space(reactions_max=3)
    react_here(space, ("n", int), nothing)
    for i in range(10):
        space.write(("n", i))
    assert space.count() == 10


# All or nothing


class Oh(Exception):
    pass


def test_a_failing_reaction_undoes_the_step(space, park):
    space.write_all([("keep", 1), ("keep", 2)])

    def break_it(entry, step):
        step.take(("keep", 1))
        step.write(("half", 1))
        step.read(("keep", 2))
        raise Oh("no")

    reaction = react_here(space, ("go", int), break_it)
    listener = space.subscribe()
    waiter = park(space, space.take, ("half", int))
    before = state_of(space)
    with pytest.raises(ReactionFailed, match=r"break_it.*Oh.*no.*undone") as failed:
        space.write_all([("go", 1), ("innocent", 1)])
    assert isinstance(failed.value.__cause__, Oh)
    assert isinstance(reaction.error, Oh) and reaction.active
    assert state_of(space) == before
    assert drained(listener) == [] and waiter.waits
    assert space.take_all(("keep", int)) == [("keep", 1), ("keep", 2)]  # No lock is left behind.


def test_a_failure_undoes_what_other_reactions_did_in_the_step(space):
    done = []

    def first(entry, step):
        done.append("first")
        step.write(("first", entry[1]))

    def second(entry, step):
        if entry[1] < 3:
            raise Oh

    once = react_here(space, ("n", int), first, once=True)
    react_here(space, ("n", int), second)
    for i in (1, 2):
        with pytest.raises(ReactionFailed):
            space.write(("n", i))
    assert space.count() == 0 and once.active
    space.write(("n", 3))
    assert space.read_all() == [("n", 3), ("first", 3)]
    assert done == ["first"] * 3 and not once.active


def test_a_reaction_that_fails_on_what_is_there_is_not_made(space):
    space.write_all([("n", 1), ("n", 0)])
    before = state_of(space)

    def divide(entry, step):
        step.take(entry)
        step.write(("quotient", 1 / entry[1]))

    with pytest.raises(ReactionFailed, match="ZeroDivisionError"):
        react_here(space, ("n", int), divide)
    assert state_of(space) == before
    space.write(("n", 0))
    assert space.count() == 3


def test_bad_input_inside_a_reaction_is_the_cause_of_its_failure(space):
    attempts: list[Any] = [
        (lambda step: step.write(("a", {1})), "field 1"),
        (lambda step: step.write([1]), "an entry is"),
        (lambda step: step.write(("a",), lease=-1), "lease="),
        (lambda step: step.write(("a",), lease="5"), "lease="),
        (lambda step: step.read([1]), "template"),
        (lambda step: step.take(1), "template"),
        (lambda step: step.read_all(limit=0), "limit="),
        (lambda step: step.take_all(limit=-1), "limit="),
        (lambda step: step.take_all(limit="x"), "limit="),
        (lambda step: step.count(1), "template"),
    ]
    for attempt, says in attempts:
        reaction = react_here(space, ("go",), lambda entry, step, attempt=attempt: attempt(step))
        with pytest.raises(ReactionFailed) as failed:
            space.write(("go",))
        assert isinstance(failed.value.__cause__, BadInput) and says in str(failed.value.__cause__)
        reaction.cancel()
    assert space.count() == 0


def test_a_failing_reaction_evicts_nobody(make_space):
    space = make_space(capacity=Capacity(entries=2, evict="fifo"))
    space.write_all([("old", 1), ("old", 2)])

    def refuse(entry, step):
        raise Oh

    react_here(space, ("new", int), refuse)
    before = state_of(space)
    with pytest.raises(ReactionFailed):
        space.write(("new", 1))
    assert state_of(space) == before


def test_a_reaction_that_finds_the_space_full_undoes_the_step(make_space):
    space = make_space(capacity=Capacity(entries=2))
    react_here(space, ("in", int), lambda entry, step: step.write(("out", entry[1])))
    space.write(("in", 1))
    before = state_of(space)
    with pytest.raises(SpaceFull):
        space.write(("in", 2))
    space.take(("out", 1), wait=0)
    with pytest.raises(ReactionFailed) as failed:
        space.write(("in", 2))
    assert isinstance(failed.value.__cause__, SpaceFull)
    space.write(("out", 1))
    assert state_of(space)[0] == before[0]


# The space itself is out of bounds


def uses_of(space: Any) -> dict[str, Any]:
    lease = space.write(("lease",), lease=1_000)
    txn = space.transaction()
    session = space.session()
    subscription = space.subscribe(("x",))
    uses: dict[str, Any] = {
        "write": lambda: space.write(("x",)),
        "write_all": lambda: space.write_all([("x",)]),
        "read": lambda: space.read(wait=0),
        "take": lambda: space.take(wait=0),
        "take and wait": lambda: space.take(("never",)),
        "read_all": lambda: space.read_all(),
        "take_all": lambda: space.take_all(),
        "count": lambda: space.count(),
        "transaction": lambda: space.transaction(),
        "commit": lambda: txn.commit(),
        "abort": lambda: txn.abort(),
        "prepare": lambda: txn.prepare(),
        "session": lambda: space.session(),
        "session.read": lambda: session.read(wait=0),
        "clone": lambda: session.clone(),
        "subscribe": lambda: space.subscribe(),
        "get": lambda: subscription.get(wait=0),
        "react": lambda: react_here(space, ("y",), nothing),
        "renew": lambda: lease.renew(5),
        "cancel": lambda: lease.cancel(),
        "close": lambda: space.close(),
    }
    return uses


def test_a_reaction_may_not_use_the_space_itself(space):
    current: list[Any] = []
    errors = {}

    def use(entry, step):
        try:
            current[0]()
        except BadInput as error:
            errors[entry[1]] = str(error)

    uses = uses_of(space)
    react_here(space, ("go", str), use)
    for name, attempt in uses.items():
        current[:] = [attempt]
        space.write(("go", name))
    assert errors.keys() == uses.keys()
    assert all("a reaction's function" in text and "space" in text for text in errors.values())
    assert space.count(("go", str)) == len(uses) and space.count() == len(uses) + 1


def test_a_template_may_not_use_the_space(space):
    space.write(("go", "x"))
    for name, use in uses_of(space).items():

        def asked(value: Any, use: Any = use) -> Any:
            return use() or True

        with pytest.raises(BadTemplate, match="a template's function") as refusal:
            space.read(("go", Where(asked)), wait=0, scope=HERE)
        assert isinstance(refusal.value.__cause__, BadInput), name
    assert space.count(("go", "x")) == 1


def test_a_template_may_not_use_the_space_however_it_is_asked(space, park):
    refusals: list[str] = []

    def use(value):
        try:
            space.write(("sneaked in",))
        except BadInput as error:
            refusals.append(str(error))
        return True

    template = ("go", Where(use))
    space.write(("go", 0))
    txn = space.transaction()
    asks: dict[str, Any] = {
        "read": lambda: space.read(template, wait=0, scope=HERE),
        "read_all": lambda: space.read_all(template, scope=HERE),
        "count": lambda: space.count(template, scope=HERE),
        "take_all": lambda: (space.take_all(template, txn=txn), txn.abort()),
        "session": lambda: space.session().read(template, wait=0, scope=HERE),
        "subscribe": lambda: (space.subscribe(template, scope=HERE), space.write(("go", 1))),
        "react": lambda: (react_here(space, template, nothing), space.write(("go", 2))),
        "key": lambda: space.read(order=Key(use), wait=0, scope=HERE),
    }
    for name, ask in asks.items():
        refusals.clear()
        ask()
        assert refusals, name
    waiter = park(space, space.take, ("wait", Where(use)), scope=HERE)
    refusals.clear()
    space.write(("wait", 1))
    assert waiter.result() == ("wait", 1) and refusals
    with space.transaction() as holder:
        space.write(("held", 1), txn=holder)
        refusals.clear()
        blocked = park(space, space.take, ("held", Where(use)), if_exists=True)
        assert refusals
    assert blocked.result() == ("held", 1)
    assert space.count(("sneaked in",)) == 0


def test_a_step_is_over_when_it_is_over(space):
    kept = []
    react_here(space, ("go",), lambda entry, step: kept.append(step))
    space.write(("go",))
    (step,) = kept
    refused(
        TransactionEnded,
        "is committed",
        lambda: step.write(("late",)),
        lambda: step.read(),
        lambda: step.take(),
        lambda: step.count(),
    )
    assert space.read_all() == [("go",)]


# In transactions


def test_reactions_to_what_a_transaction_writes_run_at_its_commit(space, until):
    got = []

    def react(entry, step):
        got.append(entry[1])
        return step.write(("out", entry[1]))

    react_here(space, ("in", int), react)
    with space.transaction() as txn:
        space.write(("in", 1), txn=txn)
        assert got == []
    until(lambda: space.read_all() == [("in", 1), ("out", 1)])
    assert got == [1]


def test_nothing_reacts_to_what_is_called_off(space):
    got = []
    react_here(space, ("in", int), lambda entry, step: got.append(entry))
    txn = space.transaction()
    space.write(("in", 1), txn=txn)
    txn.abort()
    with space.transaction() as txn:
        space.write(("in", 2), txn=txn)
        space.take(("in", 2), wait=0, txn=txn)
    assert got == []


def test_a_reaction_that_fails_at_commit_aborts_the_transaction(space):
    space.write(("old",))
    before = state_of(space)

    def refuse(entry, step):
        raise Oh

    react_here(space, ("new",), refuse)
    txn = space.transaction()
    space.take(("old",), wait=0, txn=txn)
    space.write(("new",), txn=txn)
    with pytest.raises(ReactionFailed):
        txn.commit()
    assert txn.state == "aborted"
    assert state_of(space) == before
    with pytest.raises(TransactionEnded, match="a reaction stopped it"):
        txn.commit()


def test_reactions_to_a_nested_commit_run_when_all_is_committed(space, until):
    got = []
    react_here(space, ("in", int), lambda entry, step: got.append(entry[1]))
    with space.transaction() as outer:
        with outer.transaction() as inner:
            space.write(("in", 1), txn=inner)
        assert got == []
    until(lambda: got == [1])


def test_reactions_run_when_a_transaction_is_prepared_for_it_may_not_fail_after(space):
    got = []

    def react(entry, step):
        got.append(entry[1])
        step.write(("out", entry[1]))

    react_here(space, ("in", int), react)
    txn = space.transaction()
    space.write(("in", 1), txn=txn)
    txn.prepare()
    assert got == [1] and space.count() == 0
    txn.commit()
    assert got == [1] and space.read_all() == [("in", 1), ("out", 1)]


def test_a_reaction_that_fails_at_prepare_aborts_the_transaction(space):
    def refuse(entry, step):
        raise Oh

    react_here(space, ("new",), refuse)
    txn = space.transaction()
    space.write(("new",), txn=txn)
    with pytest.raises(ReactionFailed):
        txn.prepare()
    assert txn.state == "aborted" and space.in_doubt() == [] and space.count() == 0


def test_a_reaction_whose_where_raises_is_ended_and_the_writer_goes_on(space):
    reaction = react_here(space, ("n", Where(lambda v: 1 / v)), nothing)
    space.write(("n", 0))
    assert space.count() == 1
    assert not reaction.active and isinstance(reaction.error, BadTemplate)


def test_a_reaction_leaves_alone_what_a_transaction_holds(space):
    space.write_all([("stock", 1), ("stock", 2)])
    txn = space.transaction()
    space.take(("stock", 1), wait=0, txn=txn)
    space.read(("stock", 2), wait=0, txn=txn)
    got = []
    react_here(space, ("go",), lambda entry, step: got.append(step.take_all(("stock", int))))
    space.write(("go",))
    assert got == [[]]
    txn.abort()
    assert space.count(("stock", int)) == 2


def test_a_space_with_many_reactions_and_entries_forgets_what_is_gone(space):
    react_here(space, ("n", int), lambda entry, step: step.take(entry))
    space.write_all([("n", i) for i in range(1_500)])
    listener = entries_of(drained(space.subscribe()))
    assert space.count() == 0 and listener == []


@pytest.mark.parametrize("function", [None, 1, "f"])
def test_what_is_no_function_is_refused(space, function):
    with pytest.raises(BadArgument, match="function="):
        react_here(space, ("a",), function)


def test_a_coroutine_function_is_refused_for_a_step_cannot_await(space):
    async def later(entry, step):
        pass

    with pytest.raises(BadArgument, match="function="):
        react_here(space, ("a",), later)
