"""The schema of changes: every column says what the change says, for all that an entry can hold."""

import json
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.laws.kinds import Job, PrintJob
from tests.pipeline.rows import batch_of
from tests.values.strategies import entries
from tupelo import Change
from tupelo.errors import BadArgument
from tupelo.pipeline.declared import Declared, typed
from tupelo.pipeline.schema import CHANGES, COLUMNS, ddl_of, decode_many, schema_of
from tupelo.values.codec import BadBytes, decode_entry, encode_entry
from tupelo.values.entry import freeze
from tupelo.values.kind import name_of


def change_of(entry: object, position: int = 1, **more: Any) -> Change:
    shape, fields = freeze(entry)
    return Change(
        position, 1.5, "written", position, "me", position, "me", shape=shape, fields=fields, **more
    )


def row_of(change: Change, *columns: str, entry: Declared | None = None) -> dict[str, Any]:
    (row,) = batch_of("h", "s", [change], columns or None, entry).to_pylist()
    return row  # type: ignore[no-any-return]


def fields_of(entry: object) -> Any:
    return json.loads(row_of(change_of(entry), "fields")["fields"])


def test_a_change_is_a_row():
    shape, fields = freeze(("job", 7))
    payload = encode_entry(shape, fields)
    change = Change(
        position=12,
        time=1_000_000.25,
        kind="taken",
        arrival=9,
        origin="writer",
        n=4,
        agent="taker",
        txn="t1",
        waited=0.5,
        expires=1_000_060.0,
        shape=shape,
        fields=fields,
        to="someone",
        session="s1",
        agent_name="worker-1",
        deliveries=2,
        delayed=3,
    )
    assert row_of(change) == {
        "host": "h",
        "space": "s",
        "position": 12,
        "arrival": 9,
        "time": datetime(1970, 1, 12, 13, 46, 40, 250_000, UTC),
        "kind": "taken",
        "origin": "writer",
        "n": 4,
        "agent": "taker",
        "agent_name": "worker-1",
        "session": "s1",
        "txn": "t1",
        "to": "someone",
        "waited": 0.5,
        "expires": datetime(1970, 1, 12, 13, 47, 40, tzinfo=UTC),
        "deliveries": 2,
        "delayed": 3,
        "bytes": len(payload),
        "type": None,
        "shape": "(str, int)",
        "fields": '["job",7]',
        "payload": payload,
    }


def test_a_change_that_is_about_no_entry_has_none():
    row = row_of(Change(3, 1.0, "committed", agent="me", txn="t"))
    about_an_entry = ("arrival", "origin", "n", "bytes", "type", "shape", "fields", "payload")
    assert {row[name] for name in about_an_entry} == {None}
    assert (row["position"], row["kind"], row["txn"]) == (3, "committed", "t")


def test_a_dataclass_is_an_object_and_has_a_type():
    row = row_of(change_of(PrintJob("a.pdf", 3, None)))
    assert row["type"] == name_of(PrintJob)
    assert row["shape"] == "(name: str, size: int, pages: None)"
    assert json.loads(row["fields"]) == {"name": "a.pdf", "size": 3, "pages": None}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, None),
        (True, True),
        (2**63, 2**63),
        (10**40, 10**40),
        (-(10**40), -(10**40)),
        (1.5, 1.5),
        (float("nan"), None),
        (float("inf"), None),
        ("a\nb\u2028\x00ü", "a\nb\u2028\x00ü"),
        (b"\x00\xff", "AP8="),
        (datetime(2026, 11, 16, 7, 30), "2026-11-16T07:30:00"),
        (datetime(2026, 11, 16, 7, 30, tzinfo=UTC), "2026-11-16T07:30:00+00:00"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal("1.50"), "1.50"),
        ((1, (2, "x")), [1, [2, "x"]]),
        ([1, [2]], [1, [2]]),
        ({"a": (1,)}, {"a": [1]}),
        ({1: "x", (2, "y"): None}, {"1": "x", '[2,"y"]': None}),
        ({1: "x", "1": (2,)}, [[1, "x"], ["1", [2]]]),  # None is lost.
        (Job("n", 1), {"name": "n", "size": 1}),
        ([10**40, float("nan")], [10**40, None]),
    ],
)
def test_every_kind_of_value_can_be_read_as_json(value, said):
    assert fields_of(("v", value)) == ["v", said]


@settings(max_examples=60)
@given(entry=entries)
def test_whatever_an_entry_holds_its_payload_is_faithful_and_its_json_is_json(entry):
    row = row_of(change_of(entry))
    shape, fields = freeze(entry)
    assert row["payload"] == encode_entry(*decode_entry(row["payload"]))
    assert decode_entry(row["payload"])[0] is shape
    said = json.loads(row["fields"])
    assert len(said) == len(fields) and isinstance(said, list if shape.kind is None else dict)


def test_a_batch_may_mix_everything():
    mixed: list[object] = [("a", 1), Job("x", 2), ("a", 2), (), (1.5,), Job("y", None), ("a", [1])]
    changes = [change_of(entry, n) for n, entry in enumerate(mixed, 1)]
    changes.insert(3, Change(99, 1.0, "prepared", agent="me", txn="t"))
    batch = batch_of("h", "s", changes)
    assert batch.column("shape").to_pylist() == [
        "(str, int)",
        "(name: str, size: int)",
        "(str, int)",
        None,
        "()",
        "(float)",
        "(name: str, size: None)",
        "(str, list)",
    ]
    assert [text and json.loads(text) for text in batch.column("fields").to_pylist()] == [
        ["a", 1],
        {"name": "x", "size": 2},
        ["a", 2],
        None,
        [],
        [1.5],
        {"name": "y", "size": None},
        ["a", [1]],
    ]


def test_no_changes_are_a_batch_without_rows():
    batch = batch_of("h", "s", [])
    assert batch.num_rows == 0 and batch.schema == CHANGES


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_alone_is_what_it_is_among_all(name):
    changes = [change_of(("a", n), n + 1, to="x", session="y") for n in range(3)]
    whole = batch_of("h", "s", changes)
    alone = batch_of("h", "s", changes, [name])
    assert alone.schema.names == [name]
    assert alone.column(name) == whole.column(name)


def test_columns_come_in_the_order_in_which_they_are_asked_for():
    batch = batch_of("h", "s", [change_of(("a", 1))], ["kind", "position", "host"])
    assert batch.schema.names == ["kind", "position", "host"]


@pytest.mark.parametrize("columns", [[], ["nothing"], "position", ["f"]])
def test_columns_that_are_not_there_are_refused(columns):
    with pytest.raises(BadArgument, match="columns="):
        batch_of("h", "s", [change_of(("a", 1))], columns)


def test_a_lease_beyond_all_times_is_shown_as_the_last_of_them():
    change = change_of(("a", 1), expires=1e18)
    assert row_of(change, "expires")["expires"].year == 9999


def test_spark_has_a_name_for_every_type():
    assert ddl_of(schema_of()).startswith("`host` string, `space` string, `position` bigint,")
    declared = typed("a string, b long, c double, d boolean, e binary, g timestamp")
    assert ddl_of(schema_of(["f"], declared)) == (
        "`f` struct<`a`: string, `b`: bigint, `c`: double, `d`: boolean, `e`: binary,"
        " `g`: timestamp>"
    )


def test_what_is_torn_does_not_go_on_in_the_next_entry():
    torn = [b"\x92\x01", b"\x02\x91\x03"]  # joined: [1, 2] and [3]
    with pytest.raises(BadBytes):
        decode_many(pa.array(torn, pa.binary()))
    whole = [b"\x92\x01\x02", b"\x91\x03", b"\x91\x04"]
    assert decode_many(pa.array(whole, pa.binary())) == [[1, 2], [3], [4]]
    assert decode_many(pa.array(whole, pa.binary())[1:]) == [[3], [4]]


def test_bytes_that_encode_no_entry_are_refused():
    good = encode_entry(*freeze(("a", 1)))
    encoded = pa.array([good, good, good], pa.binary())
    assert decode_many(encoded) == [["a", 1]] * 3 and decode_many(encoded[1:2]) == [["a", 1]]
    assert decode_many(encoded[:0]) == []
    for bad in (b"", b"\x01", b"\xc1", good[:-1], good + good, b"\xa1x"):
        with pytest.raises(BadBytes):
            decode_many(pa.array([good, bad, good], pa.binary()))


# Declared shapes


@dataclass
class Reading:
    source: str
    value: float | None = None
    tags: list[str] | None = None


@dataclass
class Alert(Reading):
    level: int = 0


def typed_row(entry: object, declared: Declared) -> Any:
    return row_of(change_of(entry), "f", entry=pickle.loads(pickle.dumps(declared)))["f"]


@pytest.mark.parametrize(
    ("entry", "row"),
    [
        (("x", 1), {"name": "x", "size": 1}),
        ((None, None), {"name": None, "size": None}),
        (Job("x", 1), {"name": "x", "size": 1}),
        (PrintJob("x", 1, 2), {"name": "x", "size": 1}),
        ((UUID(int=1), 1), {"name": str(UUID(int=1)), "size": 1}),
        (("x", 10**30), {"name": "x", "size": None}),
        (("x",), None),
        (("x", 1, 2), None),
        (("x", 1.5), None),
        (("x", True), None),
        ((b"x", 1), None),
        (Reading("x", 1.0), None),
    ],
)
def test_what_fits_a_declared_shape_has_typed_columns(entry, row):
    assert typed_row(entry, typed("name string, size long")) == row


def test_every_type_can_be_declared():
    declared = typed("a: double, b boolean,c binary , d timestamp, e int")
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert typed_row((1, True, b"x", moment, 7), declared) == {
        "a": 1.0,
        "b": True,
        "c": b"x",
        "d": moment,
        "e": 7,
    }
    assert typed_row((10**400, None, None, None, None), declared)["a"] is None


def test_a_dataclass_declares_its_shape_for_its_subclasses_too():
    declared = typed(f"{__name__}:Reading")
    assert declared == typed(Reading)
    assert declared.fields == (("source", "string"), ("value", "double"))  # not the tags
    assert typed_row(Reading("s", 1.0, ["t"]), declared) == {"source": "s", "value": 1.0}
    assert typed_row(Alert("s", None, None, 3), declared) == {"source": "s", "value": None}
    assert typed_row(("s", 1.0), declared) is None
    assert typed_row(Job("s", 1), declared) is None
    assert typed_row(Reading("s", 1.0), typed(Alert)) is None


@pytest.mark.parametrize(
    "spec",
    ["", "  ", "name", "name text", "a string, a long", "no.such:Class", "json:loads", int, 5],
)
def test_a_declaration_that_makes_no_sense_is_refused(spec):
    with pytest.raises(BadArgument, match="entry="):
        typed(spec)


def test_many_rows_of_a_declared_shape():
    changes = [change_of(("n", n) if n % 3 else Job("j", n), n + 1) for n in range(1_000)]
    batch = batch_of("h", "s", changes, ["position", "f"], typed("what string, n long"))
    assert batch.column("f").field("n").to_pylist() == [n if n % 3 else None for n in range(1_000)]
    assert batch.column("f").null_count == 334
    assert pa.Table.from_batches([batch]).schema == schema_of(
        ["position", "f"], typed("what string, n long")
    )
