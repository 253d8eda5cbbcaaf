"""Items, templates and attributes of services, and how they match.

Attributes are stored frozen, as in a space. So attributes of classes that are unknown here, sent by
programs elsewhere, can still be matched and passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tupelo.errors import BadArgument, UnknownType
from tupelo.models.javaspaces.space import check_template, require_fields
from tupelo.values.checks import is_int
from tupelo.values.entry import Typed, freeze_value, same, shape_of, thaw_value, types_of
from tupelo.values.kind import is_typed, kind_of
from tupelo.values.template import Template, as_template

Attributes = tuple[Typed, ...]


@dataclass(frozen=True)
class ServiceItem:
    """A service: its id (None: a new one is given), the live object, and entries that describe
    it."""

    service_id: str | UUID | None
    service: Any
    attributes: Sequence[Any] = ()


@dataclass(frozen=True)
class ServiceTemplate:
    """Selects services: of this id, of all these classes, and with a matching attribute for each of
    these attribute templates. An argument that is left out matches any service."""

    service_id: str | UUID | None = None
    types: Sequence[type | str] = ()
    attributes: Sequence[Any] = ()


@dataclass(frozen=True)
class ServiceMatches:
    """The result of `lookup_all`: `total_matches` may be more than there are `items`."""

    items: list[ServiceItem]
    total_matches: int


Types = Mapping[str, frozenset[str]]
"""The names of a class and of all its base classes, each with the names of its own base classes."""


@dataclass(frozen=True)
class Description:
    """The data of a registered service. Its attributes are frozen copies."""

    service_id: str
    service: Any
    types: Types
    attributes: Attributes

    def copies(self) -> tuple[Any, ...]:
        """Copies of the attributes, without those of unknown classes."""
        return tuple(known_here(self.attributes))

    def live(self) -> Any:
        """The service. UnknownType if it was registered from elsewhere and its class is unknown
        here."""
        return self.service.value if isinstance(self.service, SentService) else self.service

    def item(self) -> ServiceItem:
        """The service as a ServiceItem; the service in it is None if its class is unknown here."""
        try:
            service = self.live()
        except UnknownType:
            service = None
        return ServiceItem(self.service_id, service, self.copies())


class SentService:
    """A service, which is a frozen value, that a program elsewhere has registered."""

    def __init__(self, frozen_value: Any) -> None:
        self.frozen = frozen_value

    @property
    def value(self) -> Any:
        """The service. UnknownType if its class is unknown here."""
        return thaw_value(self.frozen)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SentService) and same(self.frozen, other.frozen)

    __hash__ = None  # type: ignore[assignment]


def description_of(item: ServiceItem) -> Description:
    """The description of an item. BadArgument if it is no ServiceItem."""
    if not isinstance(item, ServiceItem):
        raise BadArgument("item", "a ServiceItem", item)
    if item.service is None or isinstance(item.service, type):
        raise BadArgument("service", "a live object", item.service)
    service, service_id = item.service, id_of(item.service_id) or ""
    return Description(service_id, service, types_of_service(service), frozen(item.attributes))


def types_of_service(service: object) -> Types:
    """The types of a service; for a value such as a ServiceLocation, also those of the service that
    it stands for."""
    stands_for: tuple[type, ...] = getattr(service, "stands_for", ())
    return {
        type_name(cls): frozenset(map(type_name, cls.__mro__[1:]))
        for kind in (type(service), *stands_for)
        for cls in kind.__mro__
    }


@dataclass(frozen=True)
class CompiledTemplate:
    """A ServiceTemplate, compiled. `kinds` are the names of the classes of its attributes."""

    service_id: str | None
    types: frozenset[str]
    attributes: list[Template]
    kinds: list[str | None]

    def matches(self, description: Description | None) -> bool:
        """Whether a service matches."""
        return (
            description is not None
            and self.service_id in (None, description.service_id)
            and self.types <= description.types.keys()
            and all(
                any(_matches(template, attribute) for attribute in description.attributes)
                for template in self.attributes
            )
        )

    def more_specific_types(self, description: Description, prefix: str) -> list[str]:
        """The most specific types, with this prefix, of a service, without those that the template
        implies."""
        types = description.types
        implied = self.types.union(*(types[name] for name in self.types if name in types))
        left = [name for name in types if name not in implied and name.startswith(prefix)]
        return [name for name in left if not any(name in types[other] for other in left)]

    def further_attributes(self, description: Description) -> list[Typed]:
        """The attributes that match no template, or are of a subclass of one that they match."""
        further = []
        for attribute in description.attributes:
            matched = [
                kind
                for kind, template in zip(self.kinds, self.attributes, strict=True)
                if _matches(template, attribute)
            ]
            if not matched or any(kind not in (None, attribute.kind.name) for kind in matched):
                further.append(attribute)
        return further

    def field_values(self, description: Description, index: int, field: str) -> list[Any]:
        """The values of a field in those attributes that match the template of this index."""
        template = self.attributes[index]
        return [
            attribute.values[attribute.kind.names.index(field)]
            for attribute in description.attributes
            if field in attribute.kind.names and _matches(template, attribute)
        ]


def wanted_by(template: ServiceTemplate | None) -> CompiledTemplate:
    """The compiled template. BadArgument if this is no template."""
    if template is None:
        template = ServiceTemplate()
    if not isinstance(template, ServiceTemplate):
        raise BadArgument("template", "a ServiceTemplate", template)
    service_id = id_of(template.service_id)
    types = frozenset(map(_type, _listed("types", template.types)))
    raws = _listed("attributes", template.attributes)
    return CompiledTemplate(
        service_id,
        types,
        [as_template(check_template(raw)) for raw in raws],
        [kind_of(type(raw)).name if is_typed(raw) else None for raw in raws],
    )


def check_field(template: ServiceTemplate, index: object, field: object) -> None:
    """BadArgument unless the attribute of the template at this index has such a field."""
    raws = list(template.attributes)
    if not is_int(index) or not 0 <= index < len(raws):
        raise BadArgument("index", f"the place of one of {len(raws)} attributes", index)
    names = kind_of(type(raws[index])).names if is_typed(raws[index]) else ()
    if field not in names:
        raise BadArgument("field", f"a field of that attribute ({', '.join(names)})", field)


def type_name(cls: type) -> str:
    """The name under which a class is looked up."""
    return f"{cls.__module__}.{cls.__qualname__}"


# Attributes


def known_here(values: Iterable[Any]) -> list[Any]:
    """Copies of frozen values, without those of unknown classes."""
    known = []
    for value in values:
        try:
            known.append(thaw_value(value))
        except UnknownType:
            continue
    return known


def frozen(attributes: object) -> Attributes:
    """Frozen copies of entries, without duplicates. BadArgument if they are no entries."""
    return merged((), [_frozen(one, "attributes") for one in _listed("attributes", attributes)])


def _frozen(attribute: object, name: str) -> Typed:
    if not is_typed(attribute):
        raise BadArgument(name, "entries: instances of dataclasses", attribute)
    require_fields(attribute)
    checked: Typed = freeze_value(attribute, name, 0)
    return checked


def merged(there: Attributes, added: Iterable[Typed]) -> Attributes:
    """The attributes, and the added ones that are not among them."""
    result = list(there)
    for attribute in added:
        if not any(same(attribute, other) for other in result):
            result.append(attribute)
    return tuple(result)


AttributeChange = dict[str, Any] | None
"""New values for some fields of an attribute; None removes the attribute."""


def changes_of(templates: object, changes: object) -> tuple[list[Template], list[AttributeChange]]:
    """Attribute templates, and the change for the attributes that match each: the fields that are
    not None replace those of the attribute; None removes the attribute."""
    raws, news = _listed("templates", templates), _listed("attributes", changes)
    if len(raws) != len(news):
        raise BadArgument("attributes", f"{len(raws)} entries or Nones, as templates=", changes)
    checked: list[AttributeChange] = []
    for raw, new in zip(raws, news, strict=True):
        if not is_typed(raw):
            raise BadArgument("templates", "entries: instances of dataclasses", raw)
        if new is not None and not (is_typed(new) and isinstance(raw, type(new))):
            raise BadArgument(
                "attributes", f"a {type(raw).__name__}, or of a class above, or None", new
            )
        fields = {} if new is None else _named(_frozen(new, "attributes"))
        values = {name: value for name, value in fields.items() if value is not None}
        checked.append(None if new is None else values)
    return [as_template(check_template(raw)) for raw in raws], checked


def modified(
    there: Attributes, templates: list[Template], changes: list[AttributeChange]
) -> Attributes:
    """The attributes after these changes, without duplicates."""
    result = []
    for attribute in there:
        kept: Typed | None = attribute
        for template, change in zip(templates, changes, strict=True):
            if kept is not None and _matches(template, attribute):
                kept = None if change is None else _updated(kept, change)
        if kept is not None:
            result.append(kept)
    return merged((), result)


def _named(attribute: Typed) -> dict[str, Any]:
    return dict(zip(attribute.kind.names, attribute.values, strict=True))


def _updated(attribute: Typed, change: dict[str, Any]) -> Typed:
    values = [change.get(name, value) for name, value in _named(attribute).items()]
    return Typed(attribute.kind, tuple(values))


def _matches(template: Template, attribute: Typed) -> bool:
    binding = template.bind(shape_of(attribute.kind, types_of(attribute.values)))
    return binding is not None and binding.test(attribute.values)


# Checks


def id_of(service_id: object) -> str | None:
    """The checked argument `service_id`, as text; None for None."""
    if service_id is None:
        return None
    if isinstance(service_id, UUID):
        return str(service_id)
    if not isinstance(service_id, str) or not service_id:
        raise BadArgument("service_id", "a UUID or a text that is not empty", service_id)
    return service_id


def check_groups(groups: object) -> tuple[str, ...]:
    """The checked argument `groups`."""
    names = _listed("groups", groups)
    if not all(isinstance(name, str) and name and name.isprintable() for name in names):
        raise BadArgument("groups", "a list of names", groups)
    return tuple(dict.fromkeys(names))


def _type(cls: object) -> str:
    if isinstance(cls, type):
        return type_name(cls)
    if isinstance(cls, str) and cls:
        return cls
    raise BadArgument("types", "classes, or their qualified names", cls)


def _listed(name: str, values: object) -> list[Any]:
    if isinstance(values, (str, bytes, dict)) or not isinstance(values, Iterable):
        raise BadArgument(name, "a list", values)
    return list(values)
