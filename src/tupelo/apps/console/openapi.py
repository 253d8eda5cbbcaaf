"""The OpenAPI description of the HTTP API, and the schemas that it consists of."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from inspect import getdoc
from typing import Any, NamedTuple

from tupelo import __version__

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
FLAG = {"type": "boolean"}
ARRAY = {"type": "array"}
ENTRY = {
    "description": "An array for a tuple, an object with $kind for a dataclass, or text",
    "oneOf": [{"type": "array", "items": {}}, {"type": "object"}, {"type": "string"}],
}
TEMPLATE = {
    "description": 'Text such as ("job", int, ANY), an array, or null for every entry',
    "oneOf": [{"type": "string"}, {"type": "array", "items": {}}, {"type": "null"}],
}
WAIT = {"type": "number", "minimum": 0, "maximum": 3600, "description": "Seconds to wait"}
LIMIT = {"type": "integer", "minimum": 1, "maximum": 1000}
TXN = {"type": "string", "description": "The id of an open transaction of this space"}
LEASE = {"type": ["number", "null"], "minimum": 0, "description": "Lifetime in seconds"}
SINCE = {"type": "integer", "minimum": 0, "description": "A position of the log"}
SINCE_OR_NOW = {"type": ["integer", "null"], "minimum": 0}
KINDS = {"type": ["array", "null"], "items": TEXT}
CURSOR = {"type": ["string", "null"]}
COLOUR = {"type": "string", "pattern": "^#[0-9a-f]{6}$"}
WIDTH = {"type": "integer", "minimum": 1, "maximum": 60}
POINTS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 1000},
    "minItems": 2,
    "maxItems": 1000,
    "description": "x and y in turns, on a board of 1000 x 600",
}
SIDE = {"type": "integer", "minimum": 1, "maximum": 12}
PUZZLE = {"type": "string", "minLength": 1}
CELLS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 143},
    "minItems": 1,
    "maxItems": 144,
    "description": "The places of a piece in the picture, row by row from 0",
}
ABOUT = {"type": "boolean", "description": "Say also how often entries were taken and came back"}
ENTRIES = {"type": "array", "items": ENTRY}
FOUND = {
    "entry": {"oneOf": [ENTRY, {"type": "null"}]},
    "entries": ENTRIES,
    "about": {"description": "origin, n, expires and deliveries of the entry, or of each"},
}
GETTING = {"template": TEMPLATE, "wait": WAIT, "limit": LIMIT, "txn": TXN, "about": ABOUT}
WRITING = {
    "entry": ENTRY,
    "entries": ENTRIES,
    "lease": LEASE,
    "wait": WAIT,
    "to": {"type": ["string", "null"]},
    "delay": LEASE | {"description": "Seconds until the entries become visible"},
    "txn": TXN,
}


class ApiOperation(NamedTuple):
    """An endpoint: the handler, whose docstring is the summary; the schemas of the keys of its body
    and of its answer; and whether it needs no token."""

    method: str
    path: str
    handler: Callable[[Any, Any], Awaitable[Any]]
    keys: dict[str, Any]
    needed: tuple[str, ...]
    answer: dict[str, Any]
    status: int
    is_open: bool


ERROR = {"$ref": "#/components/schemas/Error"}
STREAMS = ("/subscribe", "/watch")
ERRORS = {
    "400": "Bad input; the message names the argument",
    "401": "A wrong token, or a wrong password",
    "403": "The access rules of the host forbid it",
    "404": "The host has no such space; a write makes it, unless the host makes none",
    "409": "Refused by the space, or the transaction has ended",
    "410": "These changes are not kept any more, or the lease has ended",
    "413": "The answer would be too large; use limit",
    "421": "An unknown Host header",
    "429": "A limit of the host is reached",
    "500": "An unexpected error",
    "503": "The host cannot be reached",
    "507": "The disk of the host is full",
}


def describe_api(operations: Iterable[ApiOperation]) -> dict[str, Any]:
    """The description, as OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for one in operations:
        operation: dict[str, Any] = {
            "summary": (getdoc(one.handler) or "").partition(".")[0].replace("\n", " "),
            "responses": {str(one.status): _answer(one.path, one.answer)}
            | {
                code: {"description": text, "content": _json(ERROR)}
                for code, text in ERRORS.items()
            },
        }
        if one.is_open:
            operation["security"] = []
        if one.method == "POST":
            body = {"type": "object", "properties": one.keys, "additionalProperties": False}
            if one.needed:
                body["required"] = list(one.needed)
            operation["requestBody"] = {"required": bool(one.needed), "content": _json(body)}
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": TEXT}
            for name in re.findall("{(.*?)}", one.path)
        ]
        paths.setdefault(one.path, {})[one.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tupelo", "version": __version__, "license": {"name": "MIT"}},
        "paths": paths,
        "security": [{"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error", "message"],
                    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
                }
            },
        },
    }


def _answer(path: str, keys: dict[str, Any]) -> dict[str, Any]:
    if path.endswith(STREAMS):
        return {"description": "Events", "content": {"text/event-stream": {}}}
    if path == "/metrics":
        return {"description": "Numbers", "content": {"text/plain": {}}}
    return {"description": "Done", "content": _json({"type": "object", "properties": keys})}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
