"""What bad input gets: an error of Tupelo that names the argument, and nothing is changed."""

from collections import namedtuple
from typing import Any

import pytest

import tupelo
from tests.conftest import shown
from tests.laws.doors import Door, LoopThread
from tests.laws.talk import state_of
from tupelo import Between, Capacity, Fifo, Key, Lifo, Named, OneOf, Random, Template, Vector
from tupelo.errors import BadArgument, BadEntry, BadInput, BadTemplate

NAN = float("nan")
Pair = namedtuple("Pair", "a b")

BAD_WAITS: list[Any] = [-1, -0.5, "1", NAN, True, False, [], object(), 10**400, 1e300]
BAD_LEASES: list[Any] = [0, -1, "1", NAN, True, False, [], object(), 10**400]
BAD_LIMITS: list[Any] = [0, -1, 1.0, "1", True, [], NAN]
BAD_TXNS: list[Any] = ["txn", 1, True, object(), tupelo.Space().transaction()]
BAD_ORDERS: list[Any] = ["fifo", 1, Lifo, Fifo, True, Vector()]
BAD_TEMPLATES: list[Any] = [
    *(None, 1, "text", b"x", [1], {"a": 1}, {1}, object(), Between(1, 2), OneOf(1, 2), 3.5),
    *((1, {2}), (object(),), ((1, {2}),), ("a", Template(("b",))), ("a", Named(x=1)), Pair(1, 2)),
]
BAD_ENTRIES: list[Any] = [
    None,
    1,
    "text",
    [1],
    {"a": 1},
    object(),
    int,
    (1, {2}),
    (object(),),
    Pair(1, 2),
]
BAD_FUNCTIONS: list[Any] = [1, "print", [print]]
BAD_BACKLOGS: list[Any] = [0, -1, 1.5, "3", None, True, []]


@pytest.fixture(scope="module")
def loop_thread():
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(params=["blocking", "async"])
def space(request, loop_thread, clock):
    options: dict[str, Any] = {"clock": clock, "log_keep": 1_000}
    if request.param == "blocking":
        made: Any = tupelo.Space("bad", **options)
    else:
        made = Door(loop_thread.call(tupelo.aio.Space, "bad", **options), loop_thread)
    made.write_all([("kept", i) for i in range(3)])
    yield made
    made.close()


def refuse(space: Any, error: type[BadInput], named: str, attempts: list[Any]) -> None:
    """Each attempt raises this error, which names the argument; and nothing has changed."""
    before = state_of(space)
    core = space._port._core
    numbers = len(core.transactions), len(core.subscriptions.watchers), len(core.reactions)
    for i, attempt in enumerate(attempts):
        try:
            answer = attempt()
        except error as refused:
            assert named in str(refused), f"attempt {i}: {refused} does not name {named}"
        except Exception as other:
            raise AssertionError(f"attempt {i} raised {other!r}") from other
        else:
            raise AssertionError(f"attempt {i} was answered: {answer!r}")
    assert state_of(space) == before
    assert len(list(core.waiting)) == 0
    now = len(core.transactions), len(core.subscriptions.watchers), len(core.reactions)
    assert now == numbers


@pytest.mark.parametrize("wait", BAD_WAITS, ids=lambda value: repr(value)[:12])
def test_a_bad_wait(space, wait):
    session, subscription = space.session(), space.subscribe(("x",))
    attempts = [
        lambda: space.read(("x",), wait=wait),
        lambda: space.take(("x",), wait=wait),
        lambda: space.read(("kept", 0), wait=wait),
        lambda: space.take(("kept", 0), wait=wait),
        lambda: space.read_all(("x",), wait=wait),
        lambda: space.take_all(("x",), wait=wait),
        lambda: session.read(("x",), wait=wait),
        lambda: session.read_all(("x",), wait=wait),
        lambda: subscription.get(wait=wait),
    ]
    refuse(space, BadArgument, "wait=", attempts)


@pytest.mark.parametrize("lease", BAD_LEASES, ids=lambda value: repr(value)[:12])
def test_a_bad_lease(space, lease):
    txn, session, kept = space.transaction(), space.session(), space.write(("leased",), lease=9)
    attempts = [
        lambda: space.write(("a",), lease=lease),
        lambda: space.write(("a",), lease=lease, txn=txn),
        lambda: space.write_all([("a",)], lease=lease),
        lambda: space.transaction(lease=lease),
        lambda: txn.transaction(lease=lease),
        lambda: space.session(lease=lease),
        lambda: session.clone(lease=lease),
        lambda: space.subscribe(("a",), lease=lease),
        lambda: kept.renew(lease),
        lambda: txn.lease.renew(lease),
    ]
    refuse(space, BadArgument, "lease=", attempts)
    assert kept.remaining == 9 and txn.lease.expires is None


@pytest.mark.parametrize("limit", BAD_LIMITS, ids=shown)
def test_a_bad_limit(space, limit):
    session = space.session()
    attempts = [
        lambda: space.read_all(limit=limit),
        lambda: space.take_all(limit=limit),
        lambda: session.read_all(limit=limit),
        lambda: space.changes(limit=limit),
    ]
    refuse(space, BadArgument, "limit=", attempts)


@pytest.mark.parametrize("txn", BAD_TXNS, ids=lambda value: type(value).__name__)
def test_a_bad_txn(space, txn):
    attempts = [
        lambda: space.write(("a",), txn=txn),
        lambda: space.write_all([("a",)], txn=txn),
        lambda: space.read(txn=txn),
        lambda: space.take(txn=txn),
        lambda: space.read(("x",), wait=0, txn=txn),
        lambda: space.read_all(txn=txn),
        lambda: space.take_all(txn=txn),
        lambda: space.count(txn=txn),
        lambda: space.subscribe(txn=txn),
    ]
    refuse(space, BadArgument, "txn=", attempts)


@pytest.mark.parametrize("order", BAD_ORDERS, ids=shown)
def test_a_bad_order(space, order):
    attempts = [
        lambda: space.read(order=order),
        lambda: space.take(order=order),
        lambda: space.read(wait=0, order=order),
        lambda: space.read_all(order=order),
        lambda: space.take_all(order=order),
    ]
    refuse(space, BadArgument, "order=", attempts)


@pytest.mark.parametrize("template", BAD_TEMPLATES, ids=lambda value: shown(value)[:30])
def test_a_bad_template(space, template):
    session, txn = space.session(), space.transaction()
    attempts = [
        lambda: space.read(template),
        lambda: space.read(template, wait=0),
        lambda: space.take(template),
        lambda: space.take(template, wait=0, txn=txn),
        lambda: space.read(template, if_exists=True),
        lambda: space.read_all(template),
        lambda: space.take_all(template),
        lambda: space.count(template),
        lambda: space.count(template, txn=txn),
        lambda: session.read(template),
        lambda: session.read_all(template),
        lambda: space.subscribe(template),
        lambda: space.react(template, print),
    ]
    refuse(space, BadTemplate, "template", attempts)


@pytest.mark.parametrize("entry", BAD_ENTRIES, ids=lambda value: shown(value)[:30])
def test_a_bad_entry(space, entry):
    txn = space.transaction()
    attempts = [
        lambda: space.write(entry),
        lambda: space.write(entry, lease=5),
        lambda: space.write(entry, txn=txn),
        lambda: space.write_all([entry]),
        lambda: space.write_all([("fine",), entry]),
        lambda: space.write_all([("fine",), entry], txn=txn),
    ]
    refuse(space, BadEntry, "", attempts)
    assert space.count(txn=txn) == 3


@pytest.mark.parametrize("entries", [None, 1, "text", b"bytes", {"a": 1}, object()])
def test_what_is_no_list_of_entries(space, entries):
    refuse(space, BadArgument, "entries=", [lambda: space.write_all(entries)])


@pytest.mark.parametrize("backlog_max", BAD_BACKLOGS, ids=shown)
def test_a_bad_backlog(space, backlog_max):
    attempt = lambda: space.subscribe(("a",), backlog_max=backlog_max)  # noqa: E731
    refuse(space, BadArgument, "backlog_max=", [attempt])


@pytest.mark.parametrize("function", BAD_FUNCTIONS, ids=shown)
def test_a_bad_function(space, function):
    refuse(space, BadArgument, "callback=", [lambda: space.subscribe(("a",), function)])
    refuse(space, BadArgument, "function=", [lambda: space.react(("a",), function)])


def test_a_coroutine_function_cannot_be_called_by_a_thread():
    async def hear(notice: Any) -> None:
        pass

    space = tupelo.Space()
    with pytest.raises(BadArgument, match="callback="):
        space.subscribe(("a",), hear)
    assert len(space._port._core.subscriptions.watchers) == 0


@pytest.mark.parametrize("position", ["1", 1.5, True, None, -1, []], ids=shown)
def test_a_bad_position(space, position):
    refuse(space, BadArgument, "since=", [lambda: space.changes(since=position)])
    refuse(space, BadArgument, "before=", [lambda: space.trim(before=position)])


@pytest.mark.parametrize("at", [-1, 1.5, "0", True, 99])
def test_a_bad_place(at):
    space = tupelo.Space(order=Vector(), log_keep=10)
    space.write(("kept", 0))
    txn = space.transaction()
    attempts = [lambda: space.write(("a",), at=at), lambda: space.write(("a",), at=at, txn=txn)]
    refuse(space, BadArgument, "at=", attempts)


def test_what_is_no_transaction_is_told_before_anything_else_is_done(space):
    """Several bad arguments at once: one of them is named, and nothing is done."""
    with pytest.raises(BadInput):
        space.write(("a", {1}), lease=-1, txn="no")
    with pytest.raises(BadInput):
        space.take([1], wait=-1, order="x", txn=1)
    assert space.count() == 3


# Making a space

PLACES: list[Any] = [tupelo.Space, tupelo.aio.Space]


BAD_OPTIONS: dict[str, list[Any]] = {
    "name": ["", 1, b"x", True, ["x"]],
    "path": ["", b"x", 1, True, [], "nul\x00byte"],
    "durability": ["fast", 1, True, [], "", "FULL"],
    "order": ["fifo", Lifo, 1, []],
    "capacity": [10, "10", Capacity, {"entries": 1}],
    "lease_policy": [10, "longest", 2.5],
    "log_keep": [-1, 1.5, True, "some", []],
    "reactions_max": [0, -1, 1.5, "many", True, None],
    "agent": ["", 1, b"me"],
    "clock": [1, "noon", object()],
}


@pytest.mark.parametrize("make", PLACES, ids=["blocking", "async"])
@pytest.mark.parametrize(
    ("argument", "value"), [(name, value) for name, bad in BAD_OPTIONS.items() for value in bad]
)
def test_a_space_that_cannot_be_made(make, argument, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {argument: value}
    if argument == "durability":
        options["path"] = "x.tupelo"
    with pytest.raises(BadArgument, match=f"{argument}="):
        make(**options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("durability", ["full", "process"])
def test_what_is_durable_needs_a_file(durability):
    with pytest.raises(BadArgument, match="path="):
        tupelo.Space(durability=durability)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Capacity(entries=0), "entries="),
        (lambda: Capacity(entries="1"), "entries="),  # type: ignore[arg-type]
        (lambda: Capacity(size_bytes=-1), "size_bytes="),
        (lambda: Capacity(size_bytes=True), "size_bytes="),
        (lambda: Capacity(entries=1, evict="random"), "evict="),  # type: ignore[arg-type]
        (lambda: Capacity(entries=1, evict=[]), "evict="),  # type: ignore[arg-type]
        (lambda: Random(7), "generator="),  # type: ignore[arg-type]
        (lambda: Key(1.5), "of="),  # type: ignore[arg-type]
        (lambda: Key(True), "of="),
        (lambda: Key(None), "of="),  # type: ignore[arg-type]
        (lambda: tupelo.longest("5"), "seconds="),  # type: ignore[arg-type]
        (lambda: tupelo.longest(0), "seconds="),
        (lambda: tupelo.entry(""), "name="),
        (lambda: tupelo.entry(1), "name="),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_cannot_be_made(make, named):
    with pytest.raises(BadArgument, match=named):
        make()


@pytest.mark.parametrize("answer", ["5", 0, -1, NAN, True, [], 10**400])
def test_a_policy_that_grants_nonsense_is_told_by_name(answer):
    space = tupelo.Space(lease_policy=lambda kind, asked: answer)
    for attempt in (
        lambda: space.write(("a",), lease=5),
        lambda: space.write_all([("a",)]),
        lambda: space.transaction(),
        lambda: space.session(),
        lambda: space.subscribe(("a",)),
    ):
        with pytest.raises(BadArgument, match="lease_policy="):
            attempt()
    assert space.count() == 0


def test_every_error_says_whose_fault_it_was():
    for name in dir(tupelo.errors):
        error = getattr(tupelo.errors, name)
        if isinstance(error, type) and issubclass(error, Exception):
            assert issubclass(error, tupelo.TupeloError) and error.__doc__
