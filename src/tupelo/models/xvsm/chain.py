"""A chain of selectors as one query to the core.

Conditions on content become one template, which the core's index answers. The rest is one order
whose stages choose in turn, each from the entries that the one before has chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tupelo.errors import BadArgument, CountNotMet, TupeloError
from tupelo.models.xvsm.coordinators import Coordinator
from tupelo.models.xvsm.selectors import Selector
from tupelo.space.order import Order
from tupelo.space.port import Port
from tupelo.space.query import Query
from tupelo.space.shared import SharedTransaction
from tupelo.space.transaction import Txn
from tupelo.values.entry import Entry, Shape, Typed, shape_of, types_of
from tupelo.values.parts import ANY
from tupelo.values.template import Binding, Check, Template, as_template


class PayloadTemplate(Template):
    """A template for entries with coordinators' fields in front: these values there, and this
    payload."""

    __slots__ = ("_kept", "_payload", "_width")

    def __init__(self, width: int, kept: dict[int, Any], payload: Template | None) -> None:
        self.raw = (kept, payload)
        self._width = width
        self._kept = kept
        self._payload = payload
        self._bind_shape = self._behind
        self._bindings: dict[Shape, Binding | None] = {}

    def _behind(self, shape: Shape) -> Binding | None:
        width = self._width
        if shape.kind is not None or len(shape.types) < width:
            return None
        for place, value in self._kept.items():
            if shape.types[place] is not type(value):
                return None
        places, values = list(self._kept), list(self._kept.values())
        check: Check | None = None
        payload, rest = self._payload, shape.types[width:]
        if payload is not None and rest == (Typed,):
            check = lambda fields: _typed_matches(payload, fields[width])  # noqa: E731
        elif payload is not None:
            inner = payload.bind(shape_of(None, rest))
            if inner is None:
                return None
            places += [place + width for place in inner.positions]
            values += inner.values
            ask = inner.check
            if ask is not None:
                check = lambda fields: ask(fields[width:])  # noqa: E731
        return Binding(tuple(places), tuple(values), check)


def _typed_matches(template: Template, value: Typed) -> bool:
    return template.admits(shape_of(value.kind, types_of(value.values)), value.values)


def template_for(width: int, arity: int | None, kept: dict[int, Any], payloads: list[Any]) -> Any:
    """One template: these values in the fields in front, and all of these payloads.

    It is a flat tuple where possible, which the core answers fastest. `arity` is the length of all
    payloads, if it is the same for all; only for a query that does not wait, because later entries
    may differ.
    """
    if not width:
        return payloads[0] if len(payloads) == 1 else _all_of(payloads) or ANY
    if not kept and not payloads:
        return ANY
    front = tuple([kept.get(place, ANY) for place in range(width)])
    if not payloads and arity is not None:
        return front + (ANY,) * arity
    # A payload that is no tuple is stored as one field; a tuple of one would match it too.
    if len(payloads) == 1 and type(payloads[0]) is tuple and len(payloads[0]) != 1:
        return front + payloads[0]
    return PayloadTemplate(width, kept, _all_of(payloads))


def _all_of(payloads: list[Any]) -> Template | None:
    if not payloads:
        return None
    combined = as_template(payloads[0])
    for payload in payloads[1:]:
        combined = combined & as_template(payload)
    return combined


class Stage(NamedTuple):
    """One selector of a chain, with the content condition that the template does not cover."""

    coordinator: Coordinator
    selector: Selector
    template: Template | None

    def choose(self, found: list[Entry]) -> list[Entry]:
        if self.template is not None:
            admits = self.template.admits
            found = [entry for entry in found if admits(entry.shape, entry.fields)]
        if self.coordinator.optional:
            found = [entry for entry in found if self.coordinator.registered(entry)]
        try:
            return self.coordinator.choose(found, self.selector)
        except TupeloError:
            raise
        except Exception as error:  # raised by a user's function
            raise BadArgument(
                "selector", f"one that does not raise ({error!r})", self.selector
            ) from error


class Chain(Order):
    """A chain of selectors as an order. `short` is the error of the stage that found too few
    entries."""

    def __init__(self, stages: list[Stage], enough: int | None, backwards: bool) -> None:
        self._stages = stages
        self._enough = enough
        self.chooses = enough != 1
        self.backwards = backwards
        self.short: CountNotMet | None = None

    def needs(self, limit: int | None) -> int | None:
        return self._enough

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        self.short = None
        if self.backwards:  # They come in the order of the last stage, and no other stage is left.
            return self._cut(self._stages[-1], found)
        return self._through(self._stages, found)

    def select(self, txn: Txn | None, locked: Iterable[Entry]) -> list[Entry] | None:
        first, *rest = self._stages
        found = first.coordinator.select_by(first.selector, txn, locked)
        if found is None:
            return None
        self.short = None
        return self._through(rest, self._cut(first, found))

    def _through(self, stages: list[Stage], found: list[Entry]) -> list[Entry]:
        for stage in stages:
            if self.short is not None:
                return []
            found = self._cut(stage, stage.choose(found))
        return found

    def _cut(self, stage: Stage, found: list[Entry]) -> list[Entry]:
        selector = stage.selector
        if len(found) < selector.low:
            self.short = stage.coordinator.not_met(selector, len(found))
            return []
        return found[: selector.high]

    def __repr__(self) -> str:
        return f"the chain {', '.join([repr(stage.selector) for stage in self._stages])}"


class ChainQuery:
    """A chain as a query of the space: a template, and an order if one is needed.

    `first`, if set, is another template, which the core answers faster, for entries that are there
    now; if it finds nothing, or to wait, `template` is used.
    """

    __slots__ = ("_content", "chain", "first", "one", "stages")

    def __init__(
        self,
        width: int,
        arity: int | None,
        kept: dict[int, Any],
        payloads: list[Any],
        stages: list[Stage],
    ) -> None:
        self._content = (width, kept, payloads)
        self.first: Any = None
        if kept and not payloads and arity is not None:
            self.first = template_for(width, arity, kept, [])
        self.stages = stages
        *before, last = stages
        ready = last.template is None and all(
            stage.template is None
            and stage.selector.unlimited
            and not stage.coordinator.needs_all(stage.selector)
            for stage in before
        )
        simple = ready and not last.coordinator.needs_all(last.selector)
        # The last stage that sorts decides: those after it keep the order.
        ways = [c.backwards for c in [s.coordinator for s in stages] if c.sorts or c.backwards]
        backwards = simple and bool(ways) and ways[-1]
        high, low = last.selector.high, last.selector.low
        self.one = simple and not backwards and low == high == 1
        self.chain: Chain | None = None
        if not (self.one or (simple and not backwards and last.selector.unlimited)):
            enough = high if simple and not last.selector.unlimited else None
            self.chain = Chain(stages, enough, backwards)

    @property
    def template(self) -> Any:
        width, kept, payloads = self._content
        return template_for(width, None, kept, payloads)

    def query(
        self, port: Port, take: bool, wait: float | None, txn: SharedTransaction | None, **how: bool
    ) -> Query:
        """The query for the space of a container. `how` are further fields of the Query, such as
        `committed` and `test`."""
        if self.one:
            query = port.query(self.template, take, wait, False, 1, txn, None, False)
        else:
            # It reads committed entries: no open transaction is waited for.
            waits = self.waits and not (self.optional and how.get("committed"))
            chosen = (txn, self.chain, self.optional)
            query = port.query(self.template, take, wait if waits else 0, True, None, *chosen)
        return query.replace(**how) if how else query

    def queries(
        self, port: Port, take: bool, wait: float | None, txn: SharedTransaction | None, **how: bool
    ) -> Iterator[Query]:
        """The queries to make one after the other until one has a result; `how` as in `query`."""
        if self.one and self.first is not None and how.keys() <= {"known"}:
            first = port.query(self.first, take, 0, False, 1, txn, None, False)
            yield first.replace(**how)
        yield self.query(port, take, wait, txn, **how)

    @property
    def optional(self) -> bool:
        """Whether an empty result is valid, so that there is nothing to wait for."""
        return all(stage.selector.low == 0 for stage in self.stages)

    @property
    def waits(self) -> bool:
        """Whether the query waits: not if it takes what is available."""
        return not self.optional or any(stage.selector.is_all for stage in self.stages)

    def not_met(self) -> CountNotMet | None:
        """The error for an empty result; None if an empty result is valid."""
        if self.chain is not None:
            return self.chain.short
        for stage in self.stages:
            if stage.selector.low:
                return stage.coordinator.not_met(stage.selector, 0)
        return None


def chain_query(
    width: int, arity: int | None, pairs: list[tuple[Coordinator, Selector]]
) -> ChainQuery:
    """The query of these selectors. Until a selector limits the number of entries, the content
    conditions of the following ones can be part of the template."""
    kept: dict[int, Any] = {}
    payloads: list[Any] = []
    stages = []
    ahead = True
    for coordinator, selector in pairs:
        value, templates = coordinator.content(selector)
        if value is None and coordinator.optional and not coordinator.keeps:
            value = True  # The entry was written for it.
        own = {} if value is None else {coordinator.position or 0: value}
        left: Template | None = None
        if ahead and not (own.keys() & kept.keys()):
            kept.update(own)
            payloads.extend(templates)
        elif own or templates:
            left = as_template(template_for(width, None, own, list(templates)))
        stages.append(Stage(coordinator, selector, left))
        ahead = ahead and coordinator.commutes and selector.unlimited
    return ChainQuery(width, arity, kept, payloads, stages)
