"""Entries whose class this program does not know: kept, carried, matched; refused when built."""

from dataclasses import dataclass
from typing import Any

import pytest

import tupelo
from tests.laws.kinds import Job
from tupelo import ANY, Named, Template, Where
from tupelo.errors import UnknownType

WRITER = """
import sys, tupelo
from dataclasses import dataclass
from typing import Any

@dataclass
class Strange:
    name: str
    size: int

@tupelo.entry("strangers.named")
@dataclass
class Other:
    name: str
    inner: Any = None

@tupelo.entry("strangers.base")
@dataclass
class Base:
    a: int = 0

@tupelo.entry("strangers.sub")
@dataclass
class Sub(Base):
    b: int = 0

with tupelo.Space("jobs", path=sys.argv[1]) as space:
    space.write(("plain", 1))
    space.write(Strange("x", 3))
    space.write(Other("y", [Strange("in", 1)]))
    space.write(("holds", Strange("z", 2)))
    space.write(Sub(1, 2))
    txn = space.transaction()
    space.write(Strange("promised", 4), txn=txn)
    if len(sys.argv) > 2:
        txn.prepare()
"""


@tupelo.entry("strangers.base")
@dataclass
class Base:
    a: int | None = None


@pytest.fixture
def space(program, path, open_space):
    program(WRITER, path).output()
    return open_space()


def test_it_is_kept_and_counted(space):
    assert space.count() == 5
    assert space.count(Named(name=str)) == 2
    assert space.count(("holds", ANY)) == 1


def test_it_is_matched_by_its_fields(space):
    assert space.count(Named(name="x")) == 1
    assert space.count(Named(name="x", size=3)) == 1
    assert space.count(Named(name="x", size=4)) == 0
    assert space.count(Template(Named(name=ANY)) & ~Template(Named(size=ANY))) == 1


def test_it_is_matched_by_the_name_of_a_class_above_it(space):
    assert space.count(Base(1)) == 1 and space.count(Base(2)) == 0
    assert space.count(Base) == 1 and space.count(Job) == 0


@pytest.mark.parametrize("verb", ["read", "take", "read_all", "take_all"])
@pytest.mark.parametrize("template", [Named(name="x"), Named(name="y"), ("holds", ANY), Base(1)])
def test_it_is_refused_when_it_would_have_to_be_built_and_stays(space, verb, template):
    with pytest.raises(UnknownType, match="known"):
        getattr(space, verb)(template, wait=0)
    assert space.count(template) == 1 and space.count() == 5
    assert [c.kind for c in space.changes()] == ["written"] * 5


def test_one_unknown_among_many_takes_none_of_them(space):
    with pytest.raises(UnknownType):
        space.take_all()
    assert space.count() == 5
    assert space.take(("plain", int), wait=0) == ("plain", 1)


def test_it_can_be_read_in_a_transaction_no_more_than_outside_and_leaves_no_lock(space):
    with space.transaction() as txn, pytest.raises(UnknownType):
        space.read_all(txn=txn)
    assert space.take(("plain", int), wait=0) == ("plain", 1)


def test_a_session_does_not_see_what_it_was_not_given(space):
    session = space.session()
    with pytest.raises(UnknownType):
        session.read_all()
    assert session.seen == 0
    assert session.read(tuple, wait=0) == ("plain", 1)


def test_a_function_is_not_asked_about_it(space):
    asked: list[Any] = []

    def is_plain(entry: Any) -> bool:
        asked.append(entry)
        return bool(entry == ("plain", 1))

    assert space.read_all(Where(is_plain)) == [("plain", 1)]
    assert asked == [("plain", 1)]
    assert space.count(("holds", Where(lambda value: True))) == 0


def test_its_lease_and_its_log_go_on(space, reopened):
    changes = space.changes()
    assert [change.kind for change in changes] == ["written"] * 5
    with pytest.raises(UnknownType):
        changes[1].entry  # noqa: B018
    assert changes[0].entry == ("plain", 1)
    space = reopened(space)
    assert space.count() == 5


def test_a_waiter_is_told_and_the_entry_stays(program, path, open_space, park):
    program(WRITER, path, "prepare").output()
    space = open_space()
    waiters = [
        park(space, space.take, Named(name="promised")),
        park(space, space.read, Named(size=4)),
        park(space, space.take, Where(lambda entry: entry == ("never",))),
    ]
    listener = space.subscribe(Named(name="promised"))
    (txn,) = space.in_doubt()
    txn.commit()
    for waiter in waiters[:2]:
        with pytest.raises(UnknownType):
            waiter.result()
    assert waiters[2].waits
    assert space.count(Named(name="promised")) == 1
    notice = listener.get(wait=0)
    with pytest.raises(UnknownType):
        notice.entry  # noqa: B018
    with pytest.raises(UnknownType):
        space.take(Named(name="promised"), wait=0)


def test_a_reaction_to_it_is_no_reason_to_break_a_promise(program, path, open_space):
    program(WRITER, path, "prepare").output()
    space = open_space()
    reaction = space.react(Named(name="promised"), lambda entry, step: step.take(ANY))
    (txn,) = space.in_doubt()
    txn.commit()
    assert space.count(Named(name="promised")) == 1
    assert reaction.active


def test_it_is_had_once_its_class_is_known(program, path, open_space):
    code = """
    import sys, tupelo
    from dataclasses import dataclass
    @tupelo.entry("strangers.coming")
    @dataclass
    class Coming:
        a: int
    with tupelo.Space("jobs", path=sys.argv[1]) as space:
        space.write(Coming(7))
    """
    program(code, path).output()
    space = open_space()
    with pytest.raises(UnknownType, match=r"@tupelo\.entry\('strangers\.coming'\)"):
        space.take(wait=0)

    @tupelo.entry("strangers.coming")
    @dataclass
    class Coming:
        a: int
        b: int = 5

    assert space.take(Coming, wait=0) == Coming(7, 5)
