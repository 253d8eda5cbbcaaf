"""Random programs at a container with several coordinators, against a list that knows nothing; the
container is here, or at a site elsewhere."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tupelo
from tupelo.errors import CountNotMet, DuplicateKey, IndexOutOfRange, SpaceFull
from tupelo.models.xvsm import (
    COUNT_ALL,
    COUNT_MAX,
    Capi,
    Entry,
    FifoCoordinator,
    FifoSelector,
    KeyCoordinator,
    KeySelector,
    LabelCoordinator,
    LabelSelector,
    LifoCoordinator,
    LifoSelector,
    LindaCoordinator,
    LindaSelector,
    Selector,
    VectorCoordinator,
    VectorSelector,
)

SIZE = 6
KEYS, LABELS, NUMBERS = st.sampled_from("abcd"), st.sampled_from("xyz"), st.integers(0, 2)
COUNTS = st.sampled_from([1, 1, 2, 3, COUNT_ALL, COUNT_MAX])


class Item:
    """An entry as the model keeps it: its key, label and payload, and its age."""

    def __init__(self, key: str, label: str, payload: tuple[str, int], age: int) -> None:
        self.key, self.label, self.payload, self.age = key, label, payload, age


class Model:
    """One list by age, and one by place. A transaction is a copy of both."""

    def __init__(self) -> None:
        self.places: list[Item] = []
        self.age = 0

    def write(self, key: str, label: str, number: int, index: int | None) -> None:
        if len(self.places) >= SIZE:
            raise SpaceFull
        if any(item.key == key for item in self.places):
            raise DuplicateKey(key)
        if index is not None and index > len(self.places):
            raise IndexOutOfRange("", wanted=0, found=0)
        self.age += 1
        item = Item(key, label, ("n", number), self.age)
        self.places.insert(len(self.places) if index is None else index, item)

    def shift(self, key: str, label: str, number: int) -> None:
        self.places = [item for item in self.places if item.key != key]
        if len(self.places) >= SIZE:
            self.places.remove(min(self.places, key=lambda item: item.age))
        self.write(key, label, number, None)

    def get(self, chain: list[tuple[str, Any, Any]], take: bool) -> list[Any]:
        found = sorted(self.places, key=lambda item: item.age)
        for kind, detail, count in chain:
            found = self.choose(found, kind, detail)
            if isinstance(count, int):
                if len(found) < count:
                    raise CountNotMet("", wanted=count, found=len(found))
                found = found[:count]
        if take:
            self.places = [item for item in self.places if item not in found]
        return [item.payload for item in found]

    def choose(self, found: list[Item], kind: str, detail: Any) -> list[Item]:
        if kind == "key":
            return [item for item in found if item.key == detail]
        if kind == "label":
            return [item for item in found if item.label == detail]
        if kind == "linda":
            return [item for item in found if detail is None or item.payload[1] == detail]
        if kind == "vector":
            return [item for item in self.places if item in found][detail:]
        return sorted(found, key=lambda item: item.age, reverse=kind == "lifo")


def selector(kind: str, detail: Any, count: Any) -> Selector:
    if kind == "key":
        return KeySelector(detail, count)
    if kind == "label":
        return LabelSelector(detail, count)
    if kind == "linda":
        return LindaSelector(("n", detail), count=count)
    if kind == "vector":
        return VectorSelector(detail, count)
    return FifoSelector(count) if kind == "fifo" else LifoSelector(count)


STAGES = st.one_of(
    st.tuples(st.just("key"), KEYS, st.sampled_from([1, COUNT_ALL])),
    st.tuples(st.just("label"), LABELS, COUNTS),
    st.tuples(st.just("linda"), st.none() | NUMBERS, COUNTS),
    st.tuples(st.just("vector"), st.integers(0, 3), COUNTS),
    st.tuples(st.sampled_from(["fifo", "lifo"]), st.none(), COUNTS),
)
DEEDS = st.one_of(
    st.tuples(st.just("write"), KEYS, LABELS, NUMBERS, st.none() | st.integers(0, 4)),
    st.tuples(st.just("write"), KEYS, LABELS, NUMBERS, st.none()),
    st.tuples(st.just("shift"), KEYS, LABELS, NUMBERS),
    st.tuples(st.sampled_from(["read", "take"]), st.lists(STAGES, min_size=1, max_size=3)),
)
ERRORS = (SpaceFull, DuplicateKey, IndexOutOfRange, CountNotMet)


def outcome(work: Any) -> Any:
    try:
        return work()
    except ERRORS as error:
        return CountNotMet if isinstance(error, CountNotMet) else type(error)


def do(capi: Capi, cref: Any, tx: Any, deed: tuple[Any, ...]) -> Any:
    verb, *details = deed
    if verb in ("read", "take"):
        return getattr(capi, verb)(cref, 0, tx, *[selector(*stage) for stage in details[0]])
    key, label, number, *place = details
    selectors: list[Selector] = [KeySelector(key), LabelSelector(label)]
    if place and place[0] is not None:
        selectors.append(VectorSelector(place[0]))
    entry = Entry(("n", number), *selectors)
    if verb == "shift":
        capi.shift(cref, tx, entry)
    else:
        capi.write(cref, 0, tx, entry)
    return None


def imagine(model: Model, deed: tuple[Any, ...]) -> Any:
    verb, *details = deed
    if verb in ("read", "take"):
        return model.get(details[0], verb == "take")
    return model.shift(*details) if verb == "shift" else model.write(*details)


Place = tuple[Capi, Callable[[str], Any]]
"""A Capi that programs use, and how a test finds the container of a name."""


@pytest.fixture(scope="module", params=["here", "elsewhere"])
def place(request):
    with Capi() as there:
        look = partial(there.lookup_container, None, None)
        if request.param == "here":
            yield there, look
            return
        with (
            tupelo.Host("site", listen="127.0.0.1:0") as host,
            Capi(site=there.offer(host)) as capi,
        ):
            yield capi, look


def container(capi: Capi) -> Any:
    kinds = (
        *(KeyCoordinator, LabelCoordinator, LindaCoordinator),
        *(FifoCoordinator, LifoCoordinator, VectorCoordinator),
    )
    return capi.create_container(None, None, None, SIZE, *[kind() for kind in kinds])


@settings(max_examples=150)
@given(deeds=st.lists(DEEDS, max_size=25))
def test_a_container_does_what_a_list_would(place, deeds):
    capi, look = place
    cref = container(capi)
    model = Model()
    for deed in deeds:
        real = outcome(partial(do, capi, cref, None, deed))
        twin = outcome(partial(imagine, model, deed))
        assert real == twin, deed
    assert [e[3:] for e in look(cref.name).space.read_all()] == [
        item.payload for item in sorted(model.places, key=lambda item: item.age)
    ]
    capi.destroy_container(None, cref)


@settings(max_examples=100)
@given(before=st.lists(DEEDS, max_size=8), within=st.lists(DEEDS, max_size=8))
def test_what_is_rolled_back_never_was(place, before, within):
    capi, look = place
    cref = container(capi)
    for deed in before:
        outcome(partial(do, capi, cref, None, deed))
    space = look(cref.name).space
    state = space.read_all()
    places = capi.read(cref, 0, None, VectorSelector(0, COUNT_ALL))
    tx = capi.create_transaction(None, None)
    for deed in within:
        outcome(partial(do, capi, cref, tx, deed))
    capi.rollback_transaction(tx)
    assert space.read_all() == state
    assert capi.read(cref, 0, None, VectorSelector(0, COUNT_ALL)) == places
    if len(state) < SIZE:  # The books are as they were, too.
        for key in {entry[0] for entry in state}:
            assert outcome(partial(do, capi, cref, None, ("write", key, "x", 0))) is DuplicateKey
    capi.destroy_container(None, cref)
