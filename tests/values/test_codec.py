"""The codec: what is encoded in bytes is read back the same; other bytes are refused."""

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values.strategies import Branch, Leaf, entries, positional
from tupelo.errors import BadEntry
from tupelo.values.codec import BadBytes, decode_entry, encode_entry
from tupelo.values.entry import DEPTH_MAX, SCALARS, Typed, freeze, thaw


def round_trip(entry: Any) -> Any:
    return thaw(*decode_entry(encode_entry(*freeze(entry))))


def is_value(value: Any) -> bool:
    """Is this, as it is kept, a value of the closed set all the way down?"""
    if type(value) in SCALARS:
        return True
    if type(value) in (tuple, list):
        return all(map(is_value, value))
    if type(value) is dict:
        return all(is_key(k) and is_value(v) for k, v in value.items())
    if type(value) is Typed:
        return len(value.values) == len(value.kind.names) and all(map(is_value, value.values))
    return False


def is_key(key: Any) -> bool:
    return type(key) in SCALARS or (type(key) is tuple and all(map(is_key, key)))


@given(entries)
def test_every_entry_comes_back_the_same(entry):
    assert repr(round_trip(entry)) == repr(entry)


@given(entries)
def test_the_shape_comes_back_the_same(entry):
    shape, fields = freeze(entry)
    assert decode_entry(encode_entry(shape, fields))[0] is shape


@given(entries)
def test_the_encoding_is_the_same_each_time(entry):
    encoded = encode_entry(*freeze(entry))
    assert encode_entry(*decode_entry(encoded)) == encoded


@pytest.mark.parametrize(
    "value",
    [
        *(2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**1_000, -(10**1_000)),
        *(math.inf, -math.inf, math.nan, -0.0, 5e-324),
        *(
            Decimal("NaN"),
            Decimal("sNaN"),
            Decimal("-Infinity"),
            Decimal("1E+999999"),
            Decimal("-0"),
        ),
        *(datetime.min, datetime.max, datetime(2024, 1, 1, tzinfo=UTC)),
        datetime(2024, 1, 1, 0, 0, 0, 1, timezone(timedelta(seconds=1, microseconds=1))),
        datetime(2024, 1, 1, tzinfo=timezone(-timedelta(hours=23, minutes=59))),
        *(UUID(int=2**128 - 1), "\x00", "a" * 2**17, b"\xff" * 2**17, "𝄞"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_values_at_the_edges_come_back(value):
    for entry in ((value,), ([value], (value,), {"k": value}), Leaf(value)):
        assert repr(round_trip(entry)) == repr(entry)


def test_1_and_1_0_and_true_are_encoded_differently():
    encodings = {encode_entry(*freeze((value,))) for value in (1, 1.0, True, "1", b"1")}
    assert len(encodings) == 5


def test_a_tuple_is_no_list():
    assert repr(round_trip(((1, [2, (3,)]), [(4,)]))) == "((1, [2, (3,)]), [(4,)])"


def test_what_nests_as_deep_as_allowed_comes_back():
    deep: Any = 1
    for _ in range(DEPTH_MAX - 1):
        deep = [deep]
    assert round_trip((deep,)) == (deep,)
    for _ in range(2):
        deep = [deep]
    with pytest.raises(BadEntry, match="deeper"):
        freeze((deep,))


def test_deep_tuples_and_dataclasses_come_back():
    deep: Any = 1
    for _ in range(DEPTH_MAX // 4 - 1):
        deep = (Leaf([{1: deep}]),)
    assert round_trip((deep,)) == (deep,)


def test_a_text_that_is_no_unicode_is_refused():
    with pytest.raises(BadEntry, match="Unicode"):
        encode_entry(*freeze(("fine", "\ud800")))


# Bytes from elsewhere


@given(st.binary(max_size=200))
def test_random_bytes_are_an_entry_or_refused(payload):
    read_or_refuse(payload)


@given(positional | entries, st.data())
def test_mutated_bytes_are_an_entry_or_refused(entry, data):
    encoded = bytearray(encode_entry(*freeze(entry)))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(encoded)))
        kind = data.draw(st.sampled_from(["change", "insert", "delete", "cut"]))
        if kind == "change" and place < len(encoded):
            encoded[place] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            encoded[place:place] = data.draw(st.binary(min_size=1, max_size=4))
        elif kind == "delete":
            del encoded[place : place + 1]
        elif kind == "cut":
            del encoded[place:]
    read_or_refuse(bytes(encoded))


Ext = msgspec.msgpack.Ext
encode = msgspec.msgpack.encode
extensions = st.tuples(st.integers(-128, 127), st.binary(max_size=8)).map(lambda e: Ext(*e))


def msgpack_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.integers(-5, 5) | st.text(max_size=3), inner, max_size=3),
        st.tuples(st.integers(1, 7), inner).map(lambda e: Ext(e[0], encode(e[1]))),
        extensions,
    )


small = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.binary(max_size=5),
)
msgpack = st.recursive(small, msgpack_of, max_leaves=8)


@given(msgpack)
def test_any_msgpack_is_an_entry_or_refused(value):
    read_or_refuse(encode(value))


def read_or_refuse(payload: bytes) -> None:
    try:
        shape, fields = decode_entry(payload)
    except BadBytes as refused:
        assert str(refused)
        return
    assert all(map(is_value, fields))
    assert shape.types == tuple(map(type, fields))
    again, same = decode_entry(encode_entry(shape, fields))
    assert again is shape and repr(same) == repr(fields)


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"\xc1", b"\x01", b"\xc0", b"\xa1a", b"\x80", b"\x93\x01", b"\x91\x01\x01"),
        *(b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\x91" * 100_000, b"\x91\xdb\xff\xff\xff\xff"),
        encode([Ext(99, b"")]),
        encode([Ext(1, b"")]),
        encode([Ext(2, b"\x93\x01\x02\x03")]),
        encode([Ext(4, b"yesterday")]),
        encode([Ext(5, b"short")]),
        encode([Ext(6, b"one")]),
        encode([Ext(7, encode([[[1], 2]]))]),
        encode([Ext(7, encode([[{}, 2]]))]),
        encode(Ext(2, encode(["n", ["a", "b"], [], [1]]))),
        encode(Ext(2, encode(["n", ["a", "a"], [], [1, 2]]))),
    ],
    ids=lambda payload: payload[:12].hex(),
)
def test_these_bytes_are_no_entry(payload):
    with pytest.raises(BadBytes):
        decode_entry(payload)


def test_a_dataclass_as_a_key_is_refused():
    leaf = encode_entry(*freeze(Leaf(1)))
    pairs = b"\x91\x92" + leaf + b"\x01"
    with pytest.raises(BadBytes):
        decode_entry(encode([Ext(7, pairs)]))


def test_bytes_never_run_code():
    payload = encode_entry(*freeze((b"cos\nsystem\n(S'echo hi'\ntR.", "__import__('os')")))
    assert decode_entry(payload)[1] == (b"cos\nsystem\n(S'echo hi'\ntR.", "__import__('os')")


def test_a_nested_entry_names_its_class_and_fields():
    shape, fields = decode_entry(encode_entry(*freeze(Branch(1, 2, Leaf(3)))))
    assert shape.kind is not None
    assert shape.kind.name == f"{Branch.__module__}.Branch"
    assert shape.kind.names == ("value", "left", "right")
    assert shape.kind.lineage[1:] == (f"{Leaf.__module__}.Leaf",)
    assert fields[2].values == (3,)


@pytest.mark.parametrize("depth", [DEPTH_MAX + 2, 300, 900, 5_000])
def test_bytes_that_nest_deeper_than_an_entry_may_are_refused(depth):
    for payload in (b"\x91" * depth + b"\x01", b"\x91" + b"\x81\xa1k" * depth + b"\x01"):
        with pytest.raises(BadBytes, match="deeper"):
            decode_entry(payload)
