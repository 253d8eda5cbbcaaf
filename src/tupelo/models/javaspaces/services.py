"""Services as a lookup service knows them: items, templates, attributes, and what matches what."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from tupelo.errors import BadArgument
from tupelo.values.entry import Shape, freeze, same, thaw
from tupelo.values.kind import is_typed, kind_of, values_of
from tupelo.values.template import Template

Attributes = tuple[tuple[Shape, tuple[Any, ...]], ...]


@dataclass(frozen=True)
class ServiceItem:
    """A service: its id (None: it gets one), the live object, and entries that describe it."""

    service_id: str | UUID | None
    service: Any
    attributes: Sequence[Any] = ()


@dataclass(frozen=True)
class ServiceTemplate:
    """What a service must be: of this id, of all these classes, and for each template of an
    attribute it must have one that matches. What is left out does not matter."""

    service_id: str | UUID | None = None
    types: Sequence[type | str] = ()
    attributes: Sequence[Any] = ()


@dataclass(frozen=True)
class ServiceMatches:
    """What was found: `total_matches` may be more than there are `items`."""

    items: list[ServiceItem]
    total_matches: int


@dataclass(frozen=True)
class Description:
    """What is known of a service at one time. Attributes are copies, as a space keeps them."""

    service_id: str
    service: Any
    types: frozenset[str]
    attributes: Attributes

    def copies(self) -> tuple[Any, ...]:
        return tuple([thaw(shape, fields) for shape, fields in self.attributes])

    def item(self) -> ServiceItem:
        return ServiceItem(self.service_id, self.service, self.copies())


def description_of(item: ServiceItem) -> Description:
    if not isinstance(item, ServiceItem):
        raise BadArgument("item", "a ServiceItem", item)
    if item.service is None or isinstance(item.service, type):
        raise BadArgument("service", "a live object", item.service)
    service_id = id_of(item.service_id) or str(uuid4())
    types = frozenset(map(type_name, type(item.service).__mro__))
    return Description(service_id, item.service, types, frozen(item.attributes))


class Wanted:
    """A ServiceTemplate, compiled."""

    def __init__(self, template: ServiceTemplate | None) -> None:
        if template is None:
            template = ServiceTemplate()
        if not isinstance(template, ServiceTemplate):
            raise BadArgument("template", "a ServiceTemplate", template)
        self.service_id = id_of(template.service_id)
        self.types = frozenset(map(_type, _listed("types", template.types)))
        self.attributes = [Template(raw) for raw in _listed("attributes", template.attributes)]

    def matches(self, description: Description | None) -> bool:
        return (
            description is not None
            and self.service_id in (None, description.service_id)
            and self.types <= description.types
            and all(
                any(_matches(template, *attribute) for attribute in description.attributes)
                for template in self.attributes
            )
        )


def type_name(cls: type) -> str:
    """By which name a class is looked up."""
    return f"{cls.__module__}.{cls.__qualname__}"


# Attributes


def frozen(attributes: object) -> Attributes:
    """Checked copies of entries; the same one twice is one."""
    return merged((), attributes)


def merged(there: Attributes, added: object) -> Attributes:
    """Attributes, and those of the others that are not among them."""
    all_of_them = list(there)
    for attribute in _listed("attributes", added):
        if not is_typed(attribute):
            raise BadArgument("attributes", "entries: instances of dataclasses", attribute)
        shape, fields = freeze(attribute)
        if not any(shape is other and same(fields, values) for other, values in all_of_them):
            all_of_them.append((shape, fields))
    return tuple(all_of_them)


def modified(description: Description, templates: object, changes: object) -> list[Any]:
    """The attributes, after each that matches a template has got the values of the change's
    fields that are not None; where the change itself is None, it is gone."""
    raws, news = _listed("templates", templates), _listed("attributes", changes)
    if len(raws) != len(news):
        raise BadArgument("attributes", f"{len(raws)} entries or Nones, as templates=", changes)
    for raw, new in zip(raws, news, strict=True):
        if not is_typed(raw):
            raise BadArgument("templates", "entries: instances of dataclasses", raw)
        if new is not None and not (is_typed(new) and isinstance(raw, type(new))):
            raise BadArgument(
                "attributes", f"a {type(raw).__name__}, or of a class above, or None", new
            )
    compiled = [Template(raw) for raw in raws]
    result = []
    for shape, fields in description.attributes:
        attribute: Any = thaw(shape, fields)
        for template, new in zip(compiled, news, strict=True):
            if _matches(template, shape, fields):
                attribute = None if new is None else _updated(attribute, new)
                if attribute is None:
                    break
        if attribute is not None:
            result.append(attribute)
    return result


def _updated(attribute: Any, new: Any) -> Any:
    changed = copy.copy(attribute)
    for name, value in zip(kind_of(type(new)).names, values_of(new), strict=True):
        if value is not None:
            object.__setattr__(changed, name, value)  # frozen dataclasses too
    return changed


def _matches(template: Template, shape: Shape, fields: tuple[Any, ...]) -> bool:
    binding = template.bind(shape)
    return binding is not None and binding.test(fields)


# Checks


def id_of(service_id: object) -> str | None:
    if service_id is None:
        return None
    if isinstance(service_id, UUID):
        return str(service_id)
    if not isinstance(service_id, str) or not service_id:
        raise BadArgument("service_id", "a UUID or a text that is not empty", service_id)
    return service_id


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
