"""Plans: which shapes of a store can match a template, and what remains to be tested there.

Most templates are flat tuples, or dataclasses with flat fields, that differ only in their values.
Templates with values, types and wildcards at the same places share one plan, so that a repeated
query costs a look-up instead of a compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from operator import itemgetter
from types import NoneType
from typing import Any, TypeVar

from tupelo.values.entry import Shape, types_of
from tupelo.values.kind import is_typed, kind_of, values_of
from tupelo.values.parts import ANY, INDEXABLE, AnyPart, as_part, is_kind
from tupelo.values.template import Binding, Check, Template, as_template

ShapeTarget = tuple[Shape, tuple[int, ...], tuple[Any, ...] | None, Check | None]
"""A shape that can match; the positions of values; the values, if the plan and not the question has
them; and a further check."""

Question = tuple["QueryPlan", tuple[Any, ...]]
"""A plan, and the values for its positions."""

Picker = Callable[[tuple[Any, ...]], tuple[Any, ...]]

K = TypeVar("K")
V = TypeVar("V")
_PLANS_MAX = 512
EVERYTHING = Template(ANY)


class QueryPlan:
    """The targets of a template among the shapes known so far; `all_targets` adds later shapes."""

    __slots__ = ("_bind", "_shapes", "_shapes_met", "targets")

    def __init__(
        self, bind: Callable[[Shape], ShapeTarget | None], shapes: dict[Shape, None]
    ) -> None:
        self._bind = bind
        self._shapes = shapes
        self._shapes_met = 0
        self.targets: list[ShapeTarget] = []

    def all_targets(self) -> list[ShapeTarget]:
        if self._shapes_met != len(self._shapes):
            for shape in islice(self._shapes, self._shapes_met, None):
                target = self._bind(shape)
                if target is not None:
                    self.targets.append(target)
            self._shapes_met = len(self._shapes)
        return self.targets


class _Skeleton:
    """The common part of flat tuple templates with the same kinds of fields."""

    __slots__ = ("classes", "plans", "positions", "values")

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self.positions = tuple([i for i, kind in enumerate(kinds) if kind in INDEXABLE])
        self.values = _picker(self.positions)
        self.classes = _picker(tuple([i for i, kind in enumerate(kinds) if kind is type]))
        self.plans: dict[tuple[Any, ...], QueryPlan] = {}


class QueryPlanner:
    """Finds or makes the plan of a template, for the shapes of one store."""

    def __init__(self) -> None:
        self.shapes: dict[Shape, None] = {}
        self._skeletons: dict[tuple[type, ...], _Skeleton] = {}
        self._typed: dict[tuple[type, tuple[type, ...]], tuple[QueryPlan, Picker]] = {}
        self._compiled: dict[Template, QueryPlan] = {}

    def question(self, raw: Any) -> Question:
        return self.plain_question(raw) or self._compiled_question(as_template(raw))

    def plain_question(self, raw: Any) -> Question | None:
        """The question for a flat template with values, types and wildcards only."""
        if type(raw) is tuple:
            kinds = types_of(raw)
            skeleton = self._skeletons.get(kinds)
            if skeleton is None:
                if not all(k is type or k is AnyPart or k in INDEXABLE for k in kinds):
                    return None
                skeleton = _remember(self._skeletons, kinds, _Skeleton(kinds))
            plan = skeleton.plans.get(skeleton.classes(raw))
            if plan is None:
                plan = self._flat_plan(skeleton, raw)
            return plan, skeleton.values(raw)
        if raw is ANY:
            return self._compiled_question(EVERYTHING)
        if type(raw) is Template:
            return self._compiled_question(raw)
        if is_typed(raw):
            held = values_of(raw)
            kinds = tuple(map(type, held))
            known = self._typed.get((type(raw), kinds))
            if known is None:
                if not INDEXABLE.issuperset(kinds):
                    return None
                known = self._typed_plan(type(raw), kinds)
            plan, picker = known
            return plan, picker(held)
        return None

    def _compiled_question(self, template: Template) -> Question:
        plan = self._compiled.get(template)
        if plan is None:

            def bind(shape: Shape) -> ShapeTarget | None:
                found = template.bind(shape)
                if found is None:
                    return None
                return shape, found.positions, found.values, found.check

            plan = _remember(self._compiled, template, QueryPlan(bind, self.shapes))
        return plan, ()

    def _flat_plan(self, skeleton: _Skeleton, raw: tuple[Any, ...]) -> QueryPlan:
        """The plan for the types of this template, with any values at its positions."""
        fixed = [(p, type(raw[p])) for p in skeleton.positions]
        rest = Template(tuple([ANY if type(r) in INDEXABLE else as_part(r, "field") for r in raw]))

        def bind(shape: Shape) -> ShapeTarget | None:
            found: Binding | None = rest.bind(shape)
            if found is None or any(shape.types[p] is not cls for p, cls in fixed):
                return None
            return shape, skeleton.positions, None, found.check

        return _remember(skeleton.plans, skeleton.classes(raw), QueryPlan(bind, self.shapes))

    def _typed_plan(self, cls: type, kinds: tuple[type, ...]) -> tuple[QueryPlan, Picker]:
        """The plan for a dataclass with values in these fields; None is a wildcard."""
        fixed = [(i, kind) for i, kind in enumerate(kinds) if kind is not NoneType]
        names = kind_of(cls).names

        def bind(shape: Shape) -> ShapeTarget | None:
            if shape.kind is None or not is_kind(shape.kind, cls):
                return None
            places = {name: i for i, name in enumerate(shape.kind.names)}
            if not all(names[i] in places for i, _ in fixed):
                return None
            positions = tuple([places[names[i]] for i, _ in fixed])
            if any(
                shape.types[p] is not kind for p, (_, kind) in zip(positions, fixed, strict=True)
            ):
                return None
            return shape, positions, None, None

        known = QueryPlan(bind, self.shapes), _picker(tuple([i for i, _ in fixed]))
        return _remember(self._typed, (cls, kinds), known)


def _remember(memory: dict[K, V], key: K, value: V) -> V:
    if len(memory) >= _PLANS_MAX:
        memory.clear()
    memory[key] = value
    return value


def _picker(positions: tuple[int, ...]) -> Picker:
    """A function that picks these positions out of a tuple, as a tuple."""
    if not positions:
        return lambda raw: ()
    if len(positions) == 1:
        only = positions[0]
        return lambda raw: (raw[only],)
    return itemgetter(*positions)
