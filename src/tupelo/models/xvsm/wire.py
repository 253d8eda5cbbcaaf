"""How entries, selectors and coordinators are encoded between a Capi and a site elsewhere.

Only values are sent. A user's class, function or generator is refused with an error that says so.
The receiver checks everything again, because any program may have sent it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from tupelo.errors import BadArgument, BadEntry, BadFrame, BadSelector
from tupelo.federation.client.arguments import NUMBER_MAX, listed, parts
from tupelo.federation.links.address import Address, parse_url
from tupelo.federation.links.encoding import encode_any, read_encoded_entry
from tupelo.models.xvsm import coordinators, selectors
from tupelo.models.xvsm.active import ActiveCoordinator
from tupelo.models.xvsm.container import Entry
from tupelo.models.xvsm.coordinators import (
    Coordinator,
    LindaCoordinator,
    TypeCoordinator,
    found_by,
    name_of,
    stored_form,
)
from tupelo.models.xvsm.selectors import (
    AtomicEntry,
    EntryCount,
    IsolationLevel,
    KeySelector,
    LabelSelector,
    LindaSelector,
    Query,
    QuerySelector,
    Selector,
    TypeSelector,
    VectorSelector,
    check_selectors,
    name_of_type,
)
from tupelo.values.codec import BadBytes, encode_entry, entry_to_wire, read_value
from tupelo.values.entry import Shape, freeze, thaw, thaw_value
from tupelo.values.kind import is_typed
from tupelo.values.lease import Leased
from tupelo.values.template_encoding import template_from_wire, template_to_wire

SERVICE = "xvsm"
GATE = "tupelo.xvsm"
"""The hidden space of a host whose access rules are those of the offered containers."""
WORKERS_MAX = 64
"""How many workers an ActiveCoordinator may have that a client creates."""

_SELECTORS: dict[str, type[Selector]] = {
    cls.default_name: cls
    for cls in vars(selectors).values()
    if isinstance(cls, type) and issubclass(cls, Selector)
}
_COORDINATORS: dict[str, type[Coordinator]] = {
    cls.default_name: cls
    for cls in [*vars(coordinators).values(), ActiveCoordinator]
    if isinstance(cls, type) and issubclass(cls, Coordinator) and cls.default_name
}
_COUNTS = ("name", "low", "high", "_rule")
"""The attributes that all selectors have."""
_NOT_SENT = "at a site elsewhere: code is not sent"


# Methods


class CapiMethod(NamedTuple):
    """A method of the Capi at a site elsewhere: the permissions that it needs, and the kinds of its
    arguments in order. A method with `again` is repeated after a lost link, outside
    transactions."""

    rules: tuple[str, ...]
    arguments: tuple[str, ...]
    again: bool = False

    @property
    def sent(self) -> int:
        """The number of arguments in a message. The site is the receiver, and the timeout is part
        of every message."""
        return sum(kind not in ("site", "timeout") for kind in self.arguments)


METHODS = {
    "lookup_container": CapiMethod(("read",), ("tx", "site", "name"), again=True),
    "create_container": CapiMethod(
        ("write",), ("tx", "site", "name", "size", "coordinators", "optional")
    ),
    "destroy_container": CapiMethod(("write", "take"), ("tx", "cref")),
    "clear_space": CapiMethod(("administer",), ("site",)),
    "shutdown": CapiMethod(("administer",), ("site", "flag")),
    "create_transaction": CapiMethod(("read",), ("site", "seconds"), again=True),
    "commit_transaction": CapiMethod(("read",), ("tx",)),
    "rollback_transaction": CapiMethod(("read",), ("tx",)),
    "write": CapiMethod(("write",), ("cref", "timeout", "tx", "entries")),
    "shift": CapiMethod(("write", "take"), ("cref", "timeout", "tx", "entries")),
    "read": CapiMethod(("read",), ("cref", "timeout", "tx", "selectors", "isolation"), again=True),
    "test": CapiMethod(
        ("read",), ("cref", "timeout", "tx", "selectors", "isolation", "operation"), again=True
    ),
    "take": CapiMethod(("take",), ("cref", "timeout", "tx", "selectors"), again=True),
    "destroy": CapiMethod(("take",), ("cref", "timeout", "tx", "selectors")),
    "next_task": CapiMethod(("take", "write"), ("cref", "timeout", "names"), again=True),
    "finish_task": CapiMethod(("take", "write"), ("id", "flag", "value")),
    "lease": CapiMethod((), ("name", "token", "how", "seconds")),
    "watch": CapiMethod(("subscribe",), ("cref", "operations", "flag"), again=True),
    "next": CapiMethod(("subscribe",), ("id", "timeout")),
    "unwatch": CapiMethod((), ("id",)),
    "add_aspect": CapiMethod(("administer",), ("cref", "points", "name")),
    "remove_aspect": CapiMethod(("administer",), ("cref", "points", "id")),
}


# Sites and containers


def parse_uri(uri: object, argument: str) -> tuple[Address, str | None]:
    """The address of a site, and the name of a container there if the URI has one."""
    expected = "a URI such as xvsm://host:7700, or xvsm://host:7700/container"
    if not isinstance(uri, str):
        raise BadArgument(argument, expected, uri)
    scheme, colon, rest = uri.partition("://")
    if not colon or scheme.lower() not in ("xvsm", "tupelo"):
        raise BadArgument(argument, expected, uri)
    try:
        return parse_url(f"tupelo://{rest}")
    except BadArgument as error:
        raise BadArgument(argument, f"{expected} ({error})", uri) from None


def is_uri(name: object) -> bool:
    return isinstance(name, str) and name.lower().startswith("xvsm://")


def uri_of(site: object, name: str | None = None) -> str:
    return f"xvsm://{site}" + ("" if name is None else f"/{quote(name, safe='')}")


# Entries


def payload_to_wire(value: Any) -> Any:
    """The payload of an entry, encoded: a tuple, a dataclass or any other value."""
    shape, fields = freeze(stored_form(value))
    return entry_to_wire(shape, fields)


def payload_from_wire(encoded: Any, stand_ins: bool = False) -> Any:
    """The payload of an entry. BadFrame if it cannot be decoded. UnknownType for a class that is
    unknown here, unless `stand_ins` are wanted: see `values.kind.stand_in`."""
    return payload_of(*read_encoded_entry(encoded), stand_ins)


def payloads_from_wire(encoded: Any) -> list[Any]:
    return [payload_from_wire(one) for one in listed(encoded)]


def payload_of(shape: Shape, fields: tuple[Any, ...], stand_ins: bool = False) -> Any:
    if shape.plain:
        return fields
    value = thaw(shape, fields, stand_ins)
    return value.value if type(value) is AtomicEntry else value


def entries_to_wire(entries: list[Any]) -> list[Any]:
    """The payloads, and the selectors of each; None if there are no selectors."""
    payloads = [entry.value if type(entry) is Entry else entry for entry in entries]
    selector_lists = [entry.selectors if type(entry) is Entry else () for entry in entries]
    return [
        [payload_to_wire(payload) for payload in payloads],
        [selectors_to_wire(selectors) for selectors in selector_lists]
        if any(selector_lists)
        else None,
    ]


def entries_from_wire(encoded: Any) -> list[Any]:
    payloads, selector_lists = parts(encoded, 2)
    values = [payload_from_wire(one, True) for one in listed(payloads)]
    if selector_lists is None:
        return values
    return [
        Entry(value, *selectors_from_wire(selectors)) if selectors else value
        for value, selectors in zip(values, parts(selector_lists, len(values)), strict=True)
    ]


def require_unicode(entries: list[Any]) -> None:
    """BadEntry, naming the field, if a text in one of these entries is not valid Unicode."""
    for entry in entries:
        encode_entry(*freeze(stored_form(entry.value if type(entry) is Entry else entry)))


# Selectors


def selectors_to_wire(selectors: Any) -> list[Any]:
    check_selectors(selectors)
    return [_selector_to_wire(selector) for selector in selectors]


def selectors_from_wire(encoded: Any) -> list[Selector]:
    return [_selector_from_wire(*parts(one, 6)) for one in listed(encoded)]


def _selector_to_wire(selector: Selector) -> list[Any]:
    cls = type(selector)
    kind, detail = cls.default_name, None
    if _SELECTORS.get(kind) is not cls:
        kind, detail = name_of(cls), _attributes_to_wire(selector)
    elif cls in _DETAILS:
        detail = _DETAILS[cls][0](selector)
    rule = selector.rule
    high = min(selector.high, NUMBER_MAX)
    return [kind, selector.name, None if rule is None else rule.value, selector.low, high, detail]


def _attributes_to_wire(selector: Selector) -> Any:
    """The attributes of a selector of a user's class, which the program at the site must have
    too."""
    attributes = {name: value for name, value in vars(selector).items() if name not in _COUNTS}
    try:
        return encode_any(attributes, "selectors")
    except BadEntry as error:
        raise BadArgument("selectors", f"such that hold values, {_NOT_SENT}", selector) from error


def _selector_of_class(where: str, detail: Any) -> Selector:
    cls = found_by(where)
    attributes = _value_from_wire(detail)
    if not (isinstance(cls, type) and issubclass(cls, Selector) and type(attributes) is dict):
        raise BadSelector(f"no class of selectors named {where!r} is known at the site")
    made: Selector = cls.__new__(cls)
    vars(made).update(attributes)
    return made


def _selector_from_wire(
    kind: Any, name: Any, rule: Any, low: Any, high: Any, detail: Any
) -> Selector:
    if type(kind) is not str or type(name) is not str:
        raise BadFrame(f"{kind!r} is no selector")
    cls = _SELECTORS.get(kind)
    if cls is None:
        made = _selector_of_class(kind, detail)
    else:
        made = _DETAILS[cls][1](detail) if cls in _DETAILS else cls()
    if rule not in (None, "all", "max"):
        raise BadFrame(f"{rule!r} is no count")
    made.restrict(low, high, None if rule is None else EntryCount(rule))
    made.name = name
    return made


def _linda_to_wire(selector: Any) -> list[Any]:
    templates = [template_to_wire(template) for template in selector.templates]
    lease = None if selector.entry is None else _lease_to_wire(selector.entry)
    given = [
        None if type(sent) is list else _entry_to_wire(one)
        for sent, one in zip(templates, selector.given, strict=True)
    ]
    return [templates, lease, given if any(given) else None]


def _entry_to_wire(template: Any) -> Any:
    """A template encoded as an entry, for a coordinator with `reverse_matching`, which needs the
    classes and not only their names. None if it is no entry."""
    if type(template) is tuple or is_typed(template):
        with suppress(BadEntry):
            return payload_to_wire(template)
    return None


def _linda_from_wire(detail: Any) -> LindaSelector:
    templates, lease, given = parts(detail, 3)
    made = LindaSelector(*[template_from_wire(template) for template in listed(templates)])
    if given is not None:
        made.given = tuple(
            [
                template if one is None else payload_from_wire(one, True)
                for template, one in zip(made.given, parts(given, len(made.given)), strict=True)
            ]
        )
    made.wanted = None if lease is None else token_from_wire(lease)
    return made


def _query_to_wire(selector: Any) -> list[Any]:
    return [_step_to_wire(selector, *step) for step in selector.query.steps]


def _step_to_wire(selector: Selector, step: str, detail: Any) -> list[Any]:
    if step == "filter":
        return [step, template_to_wire(detail)]
    if callable(detail):
        raise BadArgument("selectors", f"queries by positions and names, {_NOT_SENT}", selector)
    return [step, detail]


def _query_from_wire(encoded: Any) -> QuerySelector:
    query = Query()
    for one in listed(encoded):
        step, detail = parts(one, 2)
        match step:
            case "filter":
                query = query.filter(template_from_wire(detail))
            case "sort_by":
                query = query.sort_by(detail)
            case "reverse":
                query = query.reverse()
            case "limit":
                query = query.limit(detail)
            case "distinct" if type(detail) in (int, str, type(None)):
                query = query.distinct(detail)
            case _:
                raise BadFrame(f"{step!r} is no step of a query")
    return QuerySelector(query)


def _value_to_wire(value: Any, name: str) -> Any:
    try:
        return encode_any(value, name)
    except BadEntry as error:
        raise BadArgument(name, "a value", value) from error


def _value_from_wire(encoded: Any) -> Any:
    try:
        return thaw_value(read_value(encoded), True)
    except BadBytes as error:
        raise BadFrame(str(error)) from error


def _text(value: Any) -> str:
    if type(value) is not str:
        raise BadFrame(f"{value!r} is no name")
    return value


_DETAILS: dict[type[Selector], tuple[Callable[[Any], Any], Callable[[Any], Selector]]] = {
    KeySelector: (
        lambda selector: _value_to_wire(selector.key, "key"),
        lambda detail: KeySelector(_value_from_wire(detail)),
    ),
    LabelSelector: (
        lambda selector: _value_to_wire(selector.label, "label"),
        lambda detail: LabelSelector(_value_from_wire(detail)),
    ),
    VectorSelector: (lambda selector: selector.index, VectorSelector),
    TypeSelector: (
        lambda selector: name_of_type(selector.type, "type"),
        lambda detail: TypeSelector(_text(detail)),
    ),
    LindaSelector: (_linda_to_wire, _linda_from_wire),
    QuerySelector: (_query_to_wire, _query_from_wire),
}
"""For each selector class: how its arguments besides the count are encoded, and decoded."""


# Leases: how a site knows an entry that was written there

LeaseToken = tuple[str, bool, int, int]
"""The id of the container; whether the entry is work of its ActiveCoordinator; n and arrival."""


def _lease_to_wire(lease: Leased) -> list[Any]:
    token = getattr(lease.thing, "token", None)
    if token is None:
        raise BadSelector(f"{lease!r} is no lease of an entry at a site elsewhere")
    return list(token)


def token_from_wire(encoded: Any) -> LeaseToken:
    container, work, n, arrival = parts(encoded, 4)
    if [type(part) for part in encoded] != [str, bool, int, int]:
        raise BadFrame("this is no lease of an entry")
    return container, work, n, arrival


# Coordinators


def coordinators_to_wire(coordinators: Any, argument: str) -> list[Any]:
    described = []
    for coordinator in coordinators:
        if not isinstance(coordinator, Coordinator):
            raise BadArgument(argument, "coordinators such as FifoCoordinator()", coordinator)
        kind = coordinator.default_name
        if _COORDINATORS.get(kind) is not type(coordinator):
            raise BadArgument(argument, f"coordinators of this module, {_NOT_SENT}", coordinator)
        described.append([kind, coordinator.name, list(coordinator.options())])
    return described


def coordinators_from_wire(described: Any) -> list[Coordinator]:
    made: list[Coordinator] = []
    for one in listed(described):
        kind, name, options = parts(one, 3)
        cls = _COORDINATORS.get(kind) if type(kind) is str else None
        if cls is ActiveCoordinator:
            (workers,) = parts(options, 1)
            if type(workers) is int and workers > WORKERS_MAX:
                raise BadArgument("workers", f"at most {WORKERS_MAX}, for a client", workers)
            made.append(ActiveCoordinator(workers, name=name))
        elif cls is LindaCoordinator:
            made.append(LindaCoordinator(*listed(options)[:2], name=name))
        elif cls is TypeCoordinator:
            made.append(TypeCoordinator(*map(_text, listed(options)), name=name))
        elif cls is not None:
            made.append(cls(name=name))
        else:
            raise BadFrame(f"{kind!r} is no coordinator")
    return made


def isolation_from_wire(sent: Any) -> IsolationLevel:
    try:
        return IsolationLevel(sent)
    except ValueError:
        raise BadFrame(f"{sent!r} is no isolation level") from None


# The aspect context


def context_to_wire(context: dict[str, Any]) -> Any:
    """The aspect context, encoded; None if it is empty."""
    if not context:
        return None
    try:
        return encode_any(context, "properties")
    except BadEntry as error:
        raise BadArgument("properties", f"values, {_NOT_SENT}", context) from error


def context_from_wire(encoded: Any) -> dict[str, Any]:
    context = _value_from_wire(encoded)
    if type(context) is not dict:
        raise BadFrame("the aspect context is a dict")
    return context


# Arguments, by their kinds

TO_WIRE: dict[str, Callable[[Any], Any]] = {
    "cref": lambda cref: None if cref is None else [cref.id, cref.name],
    "entries": entries_to_wire,
    "selectors": selectors_to_wire,
    "coordinators": partial(coordinators_to_wire, argument="coordinators"),
    "optional": partial(coordinators_to_wire, argument="optional"),
    "points": lambda points: [point.value for point in points],
    "isolation": lambda isolation: isolation.value,
    "value": lambda value: _value_to_wire(value, "value"),
}
"""Arguments of other kinds are sent unchanged; transactions are sent by their ids."""
FROM_WIRE: dict[str, Callable[[Any], Any]] = {
    "entries": entries_from_wire,
    "selectors": selectors_from_wire,
    "coordinators": coordinators_from_wire,
    "optional": coordinators_from_wire,
    "isolation": isolation_from_wire,
    "value": _value_from_wire,
}
