"""Entries as JSON lines: what is printed is read back with the same types."""

from typing import Any

import msgspec
from hypothesis import given

from tests.values.strategies import entries
from tupelo.values.codec import encode_entry
from tupelo.values.entry import freeze
from tupelo.values.text import entry_json, read_entry


@given(entries)
def test_an_entry_is_the_same_after_json(entry: Any) -> None:
    line = msgspec.json.encode(entry_json(*freeze(entry))).decode()
    assert encode_entry(*freeze(read_entry(line))) == encode_entry(*freeze(entry))


def test_json_is_left_alone_where_it_loses_nothing() -> None:
    plain = ("job", 7, 1.5, None, True, ["a", {"b": [2**70]}])
    assert entry_json(*freeze(plain)) == {"fields": list(plain)}
    assert "exact" in entry_json(*freeze(("job", b"7")))
