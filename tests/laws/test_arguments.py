"""Arguments that make no sense are refused by name, alike on every kind of space."""

from typing import Any

import pytest

from tupelo.errors import BadArgument

GIVEN = ("a",)
BAD: dict[str, tuple[list[str], list[Any]]] = {
    "wait": (["read", "take", "read_all", "take_all", "write"], [-1, "1", True]),
    "limit": (["read_all", "take_all", "match_set"], [0, -1, 1.5, True]),
    "order": (["read", "take", "read_all", "take_all"], ["fifo", 1]),
    "scope": (["read", "take", "read_all", "take_all", "count", "subscribe"], ["here", 1]),
    "coverage": (["read", "take", "read_all", "take_all", "count"], [1, "all"]),
    "txn": (
        ["read", "take", "read_all", "take_all", "count", "write", "match_set", "subscribe"],
        [1, "t"],
    ),
    "lease": (["write", "transaction", "session", "subscribe", "match_set"], [-1, "1", True]),
    "to": (["write"], [1, ""]),
    "backlog_max": (["subscribe"], [0, "3"]),
    "callback": (["subscribe"], [1]),
    "at": (["write_all"], [0, [1, 2]]),
    "since": (["changes"], [-1, "0"]),
    "before": (["trim"], [-1, "0"]),
}
WITHOUT_TEMPLATE = ("transaction", "session", "changes", "trim")


@pytest.mark.parametrize("argument", BAD)
def test_a_bad_argument_is_refused_by_name(make_space, argument):
    space = make_space()
    operations, values = BAD[argument]
    for operation in operations:
        given = (
            []
            if operation in WITHOUT_TEMPLATE
            else [[GIVEN] if operation == "write_all" else GIVEN]
        )
        for value in values:
            with pytest.raises(BadArgument, match=f"{argument}=") as refused:
                getattr(space, operation)(*given, **{argument: value})
            assert refused.value.argument == argument, (operation, value)
    assert space.count() == 0
