"""What cannot be used is refused by name, by every operation of both interfaces, and changes
nothing."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.models.javaspaces.doors import Parked, SimpleEntry, core_of
from tupelo.errors import BadArgument, BadEntry, BadInput, BadTemplate
from tupelo.models.javaspaces import FOREVER, NO_WAIT, JavaSpace, JavaSpace05, Retry

ENTRY = SimpleEntry(1, "one", True)
BLANK = SimpleEntry()

# Each operation with arguments that would do, but for those that are given.
SINGLE: dict[str, Callable[..., Any]] = {
    "read": lambda js, **given: js.read(**{"template": BLANK, **given}),
    "read_if_exists": lambda js, **given: js.read_if_exists(**{"template": BLANK, **given}),
    "take": lambda js, **given: js.take(**{"template": BLANK, **given}),
    "take_if_exists": lambda js, **given: js.take_if_exists(**{"template": BLANK, **given}),
}
MANY: dict[str, Callable[..., Any]] = {
    "take of many": lambda js, **given: js.take(**{"template": [BLANK], **given}),
}
SETS: dict[str, Callable[..., Any]] = {
    "contents": lambda js, **given: js.contents(**{"templates": [BLANK], **given}),
}
WRITES: dict[str, Callable[..., Any]] = {
    "write": lambda js, **given: js.write(**{"entry": ENTRY, **given}),
    "write of many": lambda js, **given: js.write(**{"entry": [ENTRY, ENTRY], **given}),
}
LEASED: dict[str, Callable[..., Any]] = {
    "write of many with leases": lambda js, **given: js.write(
        **{"entry": [ENTRY, ENTRY], "lease": [10, 20], **given}
    ),
}
NOTIFY: dict[str, Callable[..., Any]] = {
    "notify": lambda js, **given: js.notify(
        **{"template": BLANK, "txn": None, "listener": print, **given}
    ),
}
REGISTER: dict[str, Callable[..., Any]] = {
    "register": lambda js, **given: js.register_for_availability_event(
        **{
            "templates": [BLANK],
            "txn": None,
            "visibility_only": True,
            "listener": print,
            **given,
        }
    ),
}
ALL = {**SINGLE, **MANY, **SETS, **WRITES, **LEASED, **NOTIFY, **REGISTER}

BAD: dict[str, tuple[dict[str, Callable[..., Any]], list[Any]]] = {
    "timeout": ({**SINGLE, **MANY}, [-1, True, "5", math.nan, -math.inf, [1]]),
    "lease": (
        {**SETS, **WRITES, **NOTIFY, **REGISTER},
        [-2, True, "5", None, math.nan, -math.inf],
    ),
    "max_entries": ({**MANY, **SETS}, [0, -1, True, 1.5, "3"]),
    "txn": (ALL, ["transaction", 5, True, object()]),
    "templates": ({**SETS, **REGISTER}, [[], (), BLANK, None, "text", 5]),
    "listener": ({**NOTIFY, **REGISTER}, [None, 5, "listener", object()]),
    "visibility_only": (REGISTER, [None, 1, "yes"]),
}
CASES = [
    pytest.param(argument, attempt, values, id=f"{argument} of {name}")
    for argument, (attempts, values) in BAD.items()
    for name, attempt in attempts.items()
]


@pytest.fixture
def unchanged(javaspace):
    """The JavaSpace; afterwards nothing has changed in it and nobody waits or listens."""
    javaspace.write(ENTRY)
    yield javaspace
    core = core_of(javaspace)
    assert list(core.waiting) == []
    assert len(list(core.subscriptions.watchers)) == 0
    assert core.match_sets == {}
    assert list(core.transactions) == []
    assert list(javaspace.contents([None])) == [ENTRY]


@pytest.mark.parametrize(("argument", "attempt", "values"), CASES)
def test_a_bad_argument_is_refused_by_name(unchanged, argument, attempt, values):
    for value in values:
        with pytest.raises(BadArgument, match=f"^{argument}=") as raised:
            attempt(unchanged, **{argument: value})
        assert raised.value.argument == argument


@pytest.mark.parametrize("name", [*SETS, *REGISTER])
def test_a_lease_of_0_is_refused_where_the_specification_does(unchanged, name):
    with pytest.raises(BadArgument, match=r"^lease="):
        ALL[name](unchanged, lease=0)


@pytest.mark.parametrize("name", [*SINGLE, *NOTIFY])
def test_a_bad_template_is_refused(unchanged, name):
    lists = [] if name == "take" else [[BLANK]]  # JavaSpace05 takes lists.
    for value in [5, "text", {"number": 1}, *lists]:
        with pytest.raises(BadTemplate, match="template"):
            ALL[name](unchanged, template=value)


@pytest.mark.parametrize("name", [*SETS, *REGISTER])
def test_a_bad_template_among_others_is_refused(unchanged, name):
    with pytest.raises(BadTemplate, match="template"):
        ALL[name](unchanged, templates=[BLANK, "text"])


def test_a_list_of_no_templates_is_refused(unchanged):
    with pytest.raises(BadArgument, match=r"^template="):
        unchanged.take([], None, NO_WAIT)
    with pytest.raises(BadTemplate, match="template"):
        unchanged.take([BLANK, 5], None, NO_WAIT)


def test_max_entries_is_for_lists(unchanged):
    with pytest.raises(BadArgument, match=r"^max_entries="):
        unchanged.take(BLANK, None, NO_WAIT, 3)


def test_a_bad_entry_is_refused(unchanged):
    bad_field: Any = {1, 2}
    for value in (None, 5, "text", ("a", "tuple"), {"n": 1}, SimpleEntry, SimpleEntry(bad_field)):
        for entry, lease in ((value, FOREVER), ([ENTRY, value], FOREVER), ([ENTRY, value], [1, 2])):
            with pytest.raises(BadEntry):
                unchanged.write(entry, None, lease)


def test_only_an_entry_can_be_a_snapshot(unchanged):
    for value in (5, "text", ("a", "tuple"), [ENTRY], SimpleEntry):
        with pytest.raises(BadInput, match="entry"):
            unchanged.snapshot(value)


def test_leases_that_do_not_fit_the_entries(unchanged):
    for leases in ([], [10], [10, 20, 30], [10, -2], [10, "x"], [10, None]):
        with pytest.raises(BadArgument, match=r"^lease="):
            unchanged.write([ENTRY, ENTRY], None, leases)


def test_a_list_of_leases_is_for_a_list_of_entries(unchanged):
    with pytest.raises(BadArgument, match=r"^lease="):
        unchanged.write(ENTRY, None, [10])


@pytest.mark.parametrize("name", [*ALL])
def test_a_transaction_of_another_space_is_refused(world, unchanged, name):
    elsewhere = world.javaspace("elsewhere").space.transaction()
    with pytest.raises(BadArgument, match=r"^txn="):
        ALL[name](unchanged, txn=elsewhere)


def test_a_very_long_timeout_is_as_good_as_forever(javaspace, clock):
    """Programs of other languages say Long.MAX_VALUE for FOREVER."""
    waiter = Parked(javaspace, javaspace.take, BLANK, None, 2**63 - 1)
    clock.advance(1e9)
    javaspace.write(ENTRY)
    assert waiter.result() == ENTRY


def test_a_lease_is_renewed_for_a_number_of_seconds(world, clock):
    javaspace = world.javaspace()
    lease = javaspace.write(ENTRY, None, 10)
    for value in (-2, True, "x", None, math.nan):
        with pytest.raises(BadArgument, match=r"^duration="):
            lease.renew(value)
        with pytest.raises(BadArgument, match=r"^duration="):
            lease.create_lease_map(value)
    assert lease.expiration == clock.now() + 10
    lease.renew(FOREVER)
    assert lease.expiration == FOREVER


@pytest.mark.parametrize("kind", [JavaSpace, JavaSpace05])
def test_what_a_javaspace_is_made_of(kind):
    for value in (None, 5, object()):
        with pytest.raises(BadArgument, match=r"^space="):
            kind(value)
    with pytest.raises(BadArgument, match=r"^retry="):
        kind("name", retry=3)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
def test_a_retry_has_a_number_of_tries(value):
    with pytest.raises(BadArgument, match=r"^tries="):
        Retry(tries=value)


@pytest.mark.parametrize("value", [-1, True, "3", math.nan])
def test_a_retry_has_a_number_of_seconds(value):
    with pytest.raises(BadArgument, match=r"^first_seconds="):
        Retry(first_seconds=value)
