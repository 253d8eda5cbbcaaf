"""Hypothesis strategies for the closed set of values, and for entries made of them."""

from dataclasses import dataclass
from datetime import timedelta, timezone
from typing import Any

from hypothesis import strategies as st


@dataclass
class Leaf:
    value: Any = None


@dataclass
class Branch(Leaf):
    left: Any = None
    right: Any = None


@dataclass
class Bare:
    pass


offsets = st.integers(-86_399, 86_399).map(lambda s: timezone(timedelta(seconds=s)))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# A fold says which of two equal times; it has no encoding.
moments = st.datetimes(timezones=st.none() | offsets).map(lambda time: time.replace(fold=0))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    texts,
    st.binary(max_size=20),
    moments,
    st.uuids(),
    st.decimals(),
)
hashables = scalars.filter(lambda v: not (hasattr(v, "is_snan") and v.is_snan()))
keys = hashables | st.tuples(hashables, hashables) | st.tuples(st.tuples(hashables))


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(texts, inner, max_size=4),
        st.builds(Leaf, inner),
        st.builds(Branch, inner, inner, inner),
        st.builds(Bare),
    )


values = st.recursive(scalars, nested, max_leaves=12)
plain_entries = st.lists(scalars, max_size=5).map(tuple)
positional = st.lists(values, max_size=5).map(tuple)
typed = st.builds(Leaf, values) | st.builds(Branch, values, values, values) | st.builds(Bare)
entries = plain_entries | positional | typed
