"""The OpenAPI description of the HTTP API, made from one table of its operations."""

from __future__ import annotations

from typing import Any

from tupelo import __version__

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
_SPACE = "/api/spaces/{space}"

ApiOperation = tuple[str, str, str, dict[str, Any], list[str], int, dict[str, Any]]
# method, path, summary, keys of the body, keys that are needed, status, keys of the answer
OPERATIONS: list[ApiOperation] = [
    ("get", "/healthz", "Does the console run?", {}, [], 200, {"status": {"type": "string"}}),
    ("get", "/readyz", "Does the host answer?", {}, [], 200, {"status": {"type": "string"}}),
    ("get", "/metrics", "Numbers for Prometheus", {}, [], 200, {}),
    ("get", "/api/openapi.json", "This description", {}, [], 200, {}),
    ("get", "/api/host", "The host, its peers and its clients", {}, [], 200, {}),
    (
        *("get", "/api/report", "Where the page with the report of the pipeline is, if any"),
        *({}, [], 200, {"report": {"type": ["object", "null"]}}),
    ),
    (
        *("post", "/api/host/disengage", "Part the host from all others"),
        *({}, [], 200, {"disengaged": {"type": "boolean"}}),
    ),
    (
        *("post", "/api/host/engage", "Let the host meet the others again"),
        *({}, [], 200, {"disengaged": {"type": "boolean"}}),
    ),
    (
        *("post", "/api/whiteboard/draw", "Draw a line on the whiteboard"),
        {
            "colour": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
            "width": {"type": "integer", "minimum": 1, "maximum": 60},
            "points": {
                "type": "array",
                "items": {"type": "integer", "minimum": 0, "maximum": 1000},
                "minItems": 2,
                "maxItems": 1000,
                "description": "x and y in turns, on a board of 1000 x 600",
            },
        },
        *(["colour", "width", "points"], 201, {"id": {"type": "string"}}),
    ),
    (
        *("post", "/api/whiteboard/wipe", "Wipe the whiteboard"),
        *({}, [], 201, {"id": {"type": "string"}}),
    ),
    ("post", "/api/whiteboard/watch", "Server-sent events: the picture", {}, [], 200, {}),
    (
        *("post", "/api/jigsaw/new", "Begin a jigsaw puzzle"),
        *({"columns": SIDE, "rows": SIDE}, ["columns", "rows"], 201, {"puzzle": PUZZLE}),
    ),
    (
        *("post", "/api/jigsaw/select", "Make a piece the player's own"),
        {"puzzle": PUZZLE, "cells": CELLS},
        *(["puzzle", "cells"], 200, {"selected": {"type": "boolean"}}),
    ),
    (
        *("post", "/api/jigsaw/assemble", "Join two of the player's pieces"),
        {"puzzle": PUZZLE, "one": CELLS, "other": CELLS},
        *(["puzzle", "one", "other"], 200, {"assembled": {"type": "boolean"}}),
    ),
    (
        *("post", "/api/jigsaw/away", "Put a puzzle away, at all hosts"),
        *({"puzzle": PUZZLE}, ["puzzle"], 200, {}),
    ),
    ("post", "/api/jigsaw/watch", "Server-sent events: the tray", {}, [], 200, {}),
    ("get", "/api/spaces", "The spaces of the host", {}, [], 200, {"spaces": {"type": "array"}}),
    ("get", _SPACE, "One space: waiting operations and transactions", {}, [], 200, {}),
    (
        *("post", f"{_SPACE}/write", "Write entries, all or none"),
        {
            "entry": ENTRY,
            "entries": ENTRIES,
            "lease": LEASE,
            "wait": WAIT,
            "to": {"type": ["string", "null"]},
            "delay": {
                "type": ["number", "null"],
                "minimum": 0,
                "description": "Seconds until the entries become visible",
            },
            "txn": TXN,
        },
        *(
            [],
            201,
            {
                "written": {"type": "integer"},
                "leases": {"type": "array", "items": {"type": "string"}},
            },
        ),
    ),
    (
        *("post", f"{_SPACE}/read", "Read an entry, or with limit several"),
        {"template": TEMPLATE, "wait": WAIT, "limit": LIMIT, "txn": TXN, "about": ABOUT},
        *([], 200, FOUND),
    ),
    (
        *("post", f"{_SPACE}/take", "Take an entry, or with limit several"),
        {"template": TEMPLATE, "wait": WAIT, "limit": LIMIT, "txn": TXN, "about": ABOUT},
        *([], 200, FOUND),
    ),
    (
        *("post", f"{_SPACE}/count", "How many entries match"),
        {"template": TEMPLATE, "txn": TXN},
        *([], 200, {"count": {"type": "integer"}}),
    ),
    (
        *("post", f"{_SPACE}/entries", "A page of entries"),
        {
            "template": TEMPLATE,
            "limit": LIMIT,
            "cursor": {"type": ["string", "null"]},
            "about": ABOUT,
        },
        *([], 200, {"entries": ENTRIES, "cursor": {"type": ["string", "null"]}, "about": {}}),
    ),
    (
        *("post", f"{_SPACE}/changes", "Changes of the log, oldest first"),
        {"since": SINCE, "limit": LIMIT},
        *([], 200, {"changes": {"type": "array"}}),
    ),
    (
        *("post", f"{_SPACE}/history", "Lives of entries, rates and latencies, by the log"),
        {"template": TEMPLATE},
        *(
            [],
            200,
            {
                "changes": {"type": "integer"},
                "lives": {"type": "array"},
                "chart": {"type": "object"},
            },
        ),
    ),
    (
        *("post", f"{_SPACE}/subscribe", "Server-sent events: entries as they are written"),
        {"template": TEMPLATE},
        *([], 200, {}),
    ),
    (
        *("post", f"{_SPACE}/watch", "Server-sent events: batches of changes"),
        {
            "since": {"type": ["integer", "null"], "minimum": 0},
            "kinds": {"type": ["array", "null"], "items": {"type": "string"}},
            "template": TEMPLATE,
        },
        *([], 200, {}),
    ),
    (
        *("post", "/api/transactions", "Begin a transaction"),
        {"space": {"type": "string"}, "lease": LEASE},
        *(["space"], 201, {"txn": {"type": "string"}}),
    ),
    *(
        (
            *("post", f"/api/transactions/{{txn}}/{word}", f"{word.capitalize()} a transaction"),
            *({}, [], 200, {"state": {"type": "string"}}),
        )
        for word in ("commit", "abort")
    ),
    (
        *("post", "/api/leases/{lease}/renew", "Renew the lease of a written entry"),
        *({"lease": LEASE}, ["lease"], 200, {"state": {"type": "string"}}),
    ),
    (
        *("post", "/api/leases/{lease}/cancel", "Cancel the lease of a written entry: it goes"),
        *({}, [], 200, {"state": {"type": "string"}}),
    ),
]
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


def describe_api() -> dict[str, Any]:
    """The description, as OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for method, path, summary, keys, needed, status, answer in OPERATIONS:
        operation: dict[str, Any] = {
            "summary": summary,
            "responses": {str(status): _answer(path, answer)}
            | {
                code: {"description": text, "content": _json(ERROR)}
                for code, text in ERRORS.items()
            },
        }
        if path in ("/healthz", "/readyz"):
            operation["security"] = []
        if method == "post":
            body = {"type": "object", "properties": keys, "additionalProperties": False}
            if needed:
                body["required"] = needed
            operation["requestBody"] = {"required": bool(needed), "content": _json(body)}
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
        paths.setdefault(path, {})[method] = operation
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
