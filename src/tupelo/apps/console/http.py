"""The HTTP API of a host, and the pages of the console: an ASGI application.

Every request but those for the pages and for `/healthz` and `/readyz` needs the token, as
`Authorization: Bearer TOKEN`, or a client certificate. There are no cookies, and a request by
certificate must not come from another site, so another web site cannot make a browser act here; the
Host header is checked, so another name cannot be pointed at this address. A waiting request ends
when its client disconnects.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tupelo.apps.console import openapi as api
from tupelo.apps.console.feeds import KEEPALIVE_SECONDS, STILL_HERE, change_to_json, event
from tupelo.apps.console.gateway import PAGE_MAX, TRANSACTION_SECONDS, Gateway, error_to_json
from tupelo.apps.console.jigsaw import SERVICE as JIGSAW
from tupelo.apps.console.jigsaw import check_cells
from tupelo.apps.console.json_values import entry_from_json, entry_to_json, template_from_json
from tupelo.apps.console.openapi import ApiOperation, describe_api
from tupelo.apps.console.report import ADDRESS as REPORT
from tupelo.apps.console.report import HEADERS as REPORT_HEADERS
from tupelo.apps.console.report import ReportPage
from tupelo.apps.console.whiteboard import SERVICE as WHITEBOARD
from tupelo.apps.console.whiteboard import stroke
from tupelo.apps.jigsaw import check_sides
from tupelo.errors import (
    AccessError,
    AnswerTooLarge,
    BadArgument,
    BadInput,
    CannotReach,
    CannotSend,
    DiskFull,
    HostClosed,
    LeaseLost,
    LimitReached,
    LogTrimmed,
    PeerLost,
    Refused,
    TransactionError,
    TupeloError,
    UnknownSpace,
    WrongPassword,
)
from tupelo.federation.links.wire import BULK_MAX
from tupelo.values.checks import is_int, is_number
from tupelo.values.entry import About, freeze
from tupelo.values.lease import check_lease

BODY_MAX = 8 * 1024 * 1024
WAIT_MAX = 3_600.0
"""The longest wait of one HTTP request, in seconds."""
IDENTITIES_MAX = 100
"""So many identities have a connection to the host; that of the least recently used is closed."""
READY_SECONDS = 5.0
"""A host that does not answer within this time is not ready."""
WATCH_AFTER_SECONDS = 0.01
"""A request that takes longer ends when its client disconnects."""

SPACE = "/api/spaces/{space}"
STATIC = Path(__file__).parent / "static"
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

API_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
JSON = b"application/json; charset=utf-8"
PAGE_KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
}


def _encoded(headers: dict[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name.lower().encode(), value.encode()) for name, value in headers.items())


_API_HEADERS, _PAGE_HEADERS = _encoded(API_HEADERS), _encoded(PAGE_HEADERS)
_REPORT_HEADERS = _encoded(REPORT_HEADERS)

# The first class that an error is an instance of decides.
STATUS: tuple[tuple[type[TupeloError], int], ...] = (
    (WrongPassword, 401),
    (UnknownSpace, 404),
    (AccessError, 403),
    (LimitReached, 429),
    (LogTrimmed, 410),
    (LeaseLost, 410),
    (Refused, 409),
    (TransactionError, 409),
    (AnswerTooLarge, 413),
    (CannotSend, 400),
    (BadInput, 400),
    (DiskFull, 507),
    (CannotReach, 503),
    (HostClosed, 503),
    (PeerLost, 503),
)


def status_of(error: TupeloError) -> int:
    """The HTTP status of an error; 500 for an unexpected one."""
    return next((status for cls, status in STATUS if isinstance(error, cls)), 500)


class HttpResponse(NamedTuple):
    """A response: a body, with `events` the first of a stream of server-sent events."""

    status: int
    body: bytes = b""
    kind: bytes = JSON
    events: AsyncGenerator[bytes] | None = None
    headers: tuple[tuple[bytes, bytes], ...] = _API_HEADERS


class Call(NamedTuple):
    """One request: the name in its path, of a space, transaction or lease, its body, and the
    connection to the host with the rights of its caller."""

    name: str
    body: dict[str, Any]
    gateway: Gateway


OPERATIONS: list[ApiOperation] = []
"""The endpoints, in the order of the methods of HttpApi."""
Handler = Callable[["HttpApi", Call], Awaitable[HttpResponse]]


def endpoint(
    route: str,
    keys: dict[str, Any] | None = None,
    *,
    needed: tuple[str, ...] = (),
    answer: dict[str, Any] | None = None,
    status: int = 200,
    is_open: bool = False,
) -> Callable[[Handler], Handler]:
    """Decorator: a method of HttpApi answers these requests. `keys` and `answer` are the schemas of
    the keys of the body and of the answer; with `is_open` no token is needed."""
    method, path = route.split()

    def add(handler: Handler) -> Handler:
        OPERATIONS.append(
            ApiOperation(method, path, handler, keys or {}, needed, answer or {}, status, is_open)
        )
        return handler

    return add


Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def reply(value: Any, status: int = 200) -> HttpResponse:
    """A JSON response."""
    return HttpResponse(status, msgspec.json.encode(value))


def refuse(status: int, error: str, message: str, *more: tuple[bytes, bytes]) -> HttpResponse:
    """An error that is not one of Tupelo's."""
    said = msgspec.json.encode({"error": error, "message": message})
    return HttpResponse(status, said, headers=(*_API_HEADERS, *more))


class HttpApi:
    """The endpoints, as an ASGI application. `connect` makes a gateway to the host for an identity,
    or "" for the console itself; the server calls `open` and `close`. `report` is the folder with
    the report of the pipeline."""

    def __init__(
        self,
        connect: Callable[[str], Awaitable[Gateway]],
        token: str,
        hosts: frozenset[str],
        report: Path | None = None,
    ) -> None:
        self._connect = connect
        self._token = token.encode()
        self._hosts = hosts
        self._report = ReportPage(report)
        self._gateway: Gateway
        self._gateways: dict[str, Gateway] = {}  # by identity, the last used last
        self._opening = asyncio.Lock()
        self._operations = {
            f"{one.method} {re.sub('{.*?}', '*', one.path)}": one for one in OPERATIONS
        }
        """By method and path; * is the name in it, which may have slashes."""
        self._pages = {
            f"/{file.name}".removesuffix("index.html"): HttpResponse(
                200, file.read_bytes(), PAGE_KINDS[file.suffix], headers=_PAGE_HEADERS
            )
            for file in STATIC.iterdir()
        }

    async def open(self) -> None:
        """Connect to the host. Raises its errors."""
        self._gateway = await self._connect("")
        await self._gateway.inspect("host")  # From now on the host notes comings and goings.

    async def close(self) -> None:
        """End the connection to the host."""
        for gateway in (self._gateway, *self._gateways.values()):
            await gateway.close()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return  # There are no web sockets: the server refuses.
        method, path = scope["method"], scope["path"]
        operation, name = self._find(method, path)
        if operation is None:
            await _send(self._page(method, path), send)
            return
        caller = "" if operation.is_open else self._recognise(scope)
        if isinstance(caller, HttpResponse):
            await _send(caller, send)
            return

        async def answer(raw: bytes) -> HttpResponse:
            body = _body(raw, operation.keys) if method == "POST" else {}
            call = Call(name, body, await self._gateway_of(caller))
            answered: HttpResponse = await operation.handler(self, call)
            return answered

        await _serve(answer, receive, send)

    def _find(self, method: str, path: str) -> tuple[ApiOperation | None, str]:
        """The operation of this request, and the name in its path."""
        operations = self._operations
        found = operations.get(f"{method} {path}")
        if found is not None or not path.startswith("/api/"):
            return found, ""
        what, _, rest = path[len("/api/") :].partition("/")
        name, _, operation = rest.rpartition("/")
        if name:
            found = operations.get(f"{method} /api/{what}/*/{operation}")
            if found is not None:
                return found, name
        return (operations.get(f"{method} /api/{what}/*") if rest else None), rest

    def _page(self, method: str, path: str) -> HttpResponse:
        """A file of the console, which needs no token: it holds nothing of the host."""
        page = self._pages.get(path)
        reads = ("GET", "HEAD")
        if path.startswith(REPORT) and method in reads:
            report = self._report.page(path)
            if report is not None:
                return HttpResponse(200, report, PAGE_KINDS[".html"], headers=_REPORT_HEADERS)
        allowed = (
            reads
            if page is not None
            else tuple(other for other in ("GET", "POST") if self._find(other, path)[0] is not None)
        )
        if page is not None and method in reads:
            return page
        if not allowed:
            return refuse(404, "HTTP", "Not Found")
        allow = (b"allow", ", ".join(allowed).encode())
        return refuse(405, "HTTP", "Method Not Allowed", allow)

    def _recognise(self, scope: dict[str, Any]) -> str | HttpResponse:
        """The identity of the caller, "" if it has the token; or why it is refused: it has neither
        token nor certificate, or another Host header."""
        host = given = origin = b""
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
            elif name == b"authorization":
                given = value
            elif name == b"origin":
                origin = value
        if host.decode("latin-1").rpartition(":")[0].strip("[]") not in self._hosts:
            return refuse(421, "BadHost", "The Host header names another host.")
        identity: str = scope.get("state", {}).get("identity", "")
        if identity and not given:
            # A browser shows its certificate for every site that makes it send a request.
            if origin and origin != b"https://" + host:
                return refuse(403, "CrossSite", "Another site has made this request.")
            return identity
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            challenge = (b"www-authenticate", b"Bearer")
            needed = "A valid token is needed: Authorization: Bearer TOKEN."
            return refuse(401, "WrongToken", needed, challenge)
        return ""

    async def _gateway_of(self, identity: str) -> Gateway:
        """The connection with the rights of this identity; "" is the console's own."""
        if not identity:
            return self._gateway
        async with self._opening:
            found = self._gateways.pop(identity, None)
            if found is None:
                found = await self._connect(identity)
                if len(self._gateways) >= IDENTITIES_MAX:
                    await self._gateways.pop(next(iter(self._gateways))).close()
            self._gateways[identity] = found  # as the last that was used
            return found

    # About the host

    @endpoint("GET /healthz", answer={"status": api.TEXT}, is_open=True)
    async def healthz(self, call: Call) -> HttpResponse:
        """200 as long as the console runs."""
        return reply({"status": "ok"})

    @endpoint("GET /readyz", answer={"status": api.TEXT}, is_open=True)
    async def readyz(self, call: Call) -> HttpResponse:
        """200 if the host answers and its disk can be written; 503 if not."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                spaces = await call.gateway.inspect("spaces")
        except (TupeloError, TimeoutError) as error:
            return reply({"status": "unreachable", "message": str(error)}, 503)
        ill = {one["name"]: one["health"] for one in spaces if one.get("health", "ok") != "ok"}
        return reply({"status": "degraded" if ill else "ok", "spaces": ill}, 503 if ill else 200)

    @endpoint("GET /metrics")
    async def metrics(self, call: Call) -> HttpResponse:
        """The numbers of `spaces`, for Prometheus."""
        spaces = [one for one in await call.gateway.inspect("spaces") if "entries" in one]
        host = await call.gateway.inspect("host")
        lines = [
            "# TYPE tupelo_peers gauge",
            f"tupelo_peers {len(host['peers'])}",
            "# TYPE tupelo_clients gauge",
            f"tupelo_clients {len(host['clients'])}",
        ]
        for field, name, kind in (
            ("entries", "tupelo_entries", "gauge"),
            ("waiting", "tupelo_waiting_operations", "gauge"),
            ("transactions", "tupelo_open_transactions", "gauge"),
            ("in_doubt", "tupelo_deliveries_in_doubt", "gauge"),
            ("position", "tupelo_changes_total", "counter"),
        ):
            lines.append(f"# TYPE {name} {kind}")
            lines += [f"{name}{{space={_label(one['name'])}}} {one[field]}" for one in spaces]
        return HttpResponse(200, "\n".join([*lines, ""]).encode(), b"text/plain; version=0.0.4")

    @endpoint("GET /api/openapi.json")
    async def openapi(self, call: Call) -> HttpResponse:
        """The OpenAPI description of this API."""
        return reply(describe_api(OPERATIONS))

    @endpoint("GET /api/host")
    async def host(self, call: Call) -> HttpResponse:
        """The host, its peers and its clients."""
        return reply(await call.gateway.inspect("host"))

    @endpoint("GET /api/report", answer={"report": {"type": ["object", "null"]}})
    async def report(self, call: Call) -> HttpResponse:
        """Where the report of the pipeline is, for who has the token: it covers all spaces."""
        if call.gateway is not self._gateway:
            return refuse(403, "NotAllowed", "The report covers all spaces: use the token.")
        return reply({"report": await asyncio.to_thread(self._report.address)})

    @endpoint("POST /api/host/disengage", answer={"disengaged": api.FLAG})
    async def disengage(self, call: Call) -> HttpResponse:
        """Part the host from all other hosts, until `engage`."""
        await call.gateway.inspect("disengage")
        return reply({"disengaged": True})

    @endpoint("POST /api/host/engage", answer={"disengaged": api.FLAG})
    async def engage(self, call: Call) -> HttpResponse:
        """Let the host meet the others again."""
        await call.gateway.inspect("reengage")
        return reply({"disengaged": False})

    @endpoint("GET /api/spaces", answer={"spaces": api.ARRAY})
    async def spaces(self, call: Call) -> HttpResponse:
        """Every space with its numbers; with "refused" if it may not be read."""
        return reply({"spaces": await call.gateway.inspect("spaces")})

    @endpoint("GET /api/spaces/{space}")
    async def space(self, call: Call) -> HttpResponse:
        """One space with its waiting operations, transactions and deliveries in doubt."""
        return reply(await call.gateway.inspect("space", call.name))

    # Entries

    @endpoint(
        f"POST {SPACE}/write",
        api.WRITING,
        answer={"written": api.NUMBER, "leases": {"type": "array", "items": api.TEXT}},
        status=201,
    )
    async def write(self, call: Call) -> HttpResponse:
        """Write one `entry` or several `entries` in one step."""
        body = call.body
        if ("entry" in body) == ("entries" in body):
            raise BadArgument("entry", "given, or else entries", body.get("entry"))
        said = [body["entry"]] if "entry" in body else body["entries"]
        if not isinstance(said, list) or len(said) > BULK_MAX:
            raise BadArgument("entries", f"an array of at most {BULK_MAX:,} entries", said)
        entries = [entry_from_json(one) for one in said]
        lease = check_lease(body.get("lease"))
        options = {"lease": lease, "to": body.get("to"), "wait": _wait(body)}
        options["delay"] = body.get("delay")
        space, txn = await self._target(call, body, create=True)
        wanted = options["lease"] is not None
        leases = await space.write_items(
            [freeze(entry) for entry in entries], txn=txn, at=None, leases=wanted, **options
        )
        answer: dict[str, Any] = {"written": len(entries)}
        if wanted:
            answer["leases"] = [call.gateway.leases.add(lease)[0] for lease in leases]
        return reply(answer, 201)

    @endpoint(f"POST {SPACE}/read", api.GETTING, answer=api.FOUND)
    async def read(self, call: Call) -> HttpResponse:
        """Read an entry, or with limit several."""
        return await self._get("read", call)

    @endpoint(f"POST {SPACE}/take", api.GETTING, answer=api.FOUND)
    async def take(self, call: Call) -> HttpResponse:
        """Take an entry, or with limit several."""
        return await self._get("take", call)

    async def _get(self, operation: str, call: Call) -> HttpResponse:
        body = call.body
        template, seconds, about = (
            template_from_json(body.get("template")),
            _wait(body),
            _about(body),
        )
        space, txn = await self._target(call, body)
        if "limit" not in body:
            one = getattr(space, operation)
            found = await one(template, wait=seconds, txn=txn, about=about)
            said = {"entry": None if found is None else entry_to_json(found)}
            return reply(said if about is None else said | {"about": about[0] if about else None})
        many = getattr(space, f"{operation}_all")
        entries = await many(template, wait=seconds, limit=_limit(body), txn=txn, about=about)
        said = {"entries": [entry_to_json(entry) for entry in entries]}
        return reply(said if about is None else said | {"about": about})

    @endpoint(
        f"POST {SPACE}/count",
        {"template": api.TEMPLATE, "txn": api.TXN},
        answer={"count": api.NUMBER},
    )
    async def count(self, call: Call) -> HttpResponse:
        """How many entries match."""
        body = call.body
        template = template_from_json(body.get("template"))
        space, txn = await self._target(call, body)
        return reply({"count": await space.count(template, txn=txn)})

    @endpoint(
        f"POST {SPACE}/entries",
        {"template": api.TEMPLATE, "limit": api.LIMIT, "cursor": api.CURSOR, "about": api.ABOUT},
        answer={"entries": api.ENTRIES, "cursor": api.CURSOR, "about": {}},
    )
    async def entries(self, call: Call) -> HttpResponse:
        """A page of the entries at this host, and the cursor of the next page."""
        body = call.body
        cursor, about = body.get("cursor"), _about(body)
        if cursor is not None and not isinstance(cursor, str):
            raise BadArgument("cursor", "the text of a page before", cursor)
        found, cursor = await call.gateway.page(
            call.name,
            template_from_json(body.get("template")),
            _limit(body),
            cursor,
            about,
        )
        said = {"entries": found, "cursor": cursor}
        return reply(said if about is None else said | {"about": about})

    # Events

    @endpoint(f"POST {SPACE}/subscribe", {"template": api.TEMPLATE})
    async def subscribe(self, call: Call) -> HttpResponse:
        """A stream of the entries that are written from now on."""
        said = call.body.get("template")
        key, template = msgspec.json.encode(said), template_from_json(said)
        return await _stream(call.gateway.notices(call.name, key, template).events())

    @endpoint(
        f"POST {SPACE}/changes",
        {"since": api.SINCE, "limit": api.LIMIT},
        answer={"changes": api.ARRAY},
    )
    async def changes(self, call: Call) -> HttpResponse:
        """Changes of the log after the position `since`, oldest first."""
        body = call.body
        space = await call.gateway.space(call.name)
        found = await space.changes(since=body.get("since", 0), limit=_limit(body))
        return reply({"changes": [change_to_json(change) for change in found]})

    @endpoint(
        f"POST {SPACE}/history",
        {"template": api.TEMPLATE},
        answer={"changes": api.NUMBER, "lives": api.ARRAY, "chart": {"type": "object"}},
    )
    async def history(self, call: Call) -> HttpResponse:
        """The lives of the entries that changed last, and the rates and latencies of the space."""
        body = call.body
        template = template_from_json(body["template"]) if body.get("template") else None
        return reply(await call.gateway.history(call.name, template))

    @endpoint(
        f"POST {SPACE}/watch",
        {"since": api.SINCE_OR_NOW, "kinds": api.KINDS, "template": api.TEMPLATE},
    )
    async def watch(self, call: Call) -> HttpResponse:
        """A stream of batches of changes, at most two a second."""
        body = call.body
        since, kinds = body.get("since"), body.get("kinds")
        if since is not None and not is_int(since):
            raise BadArgument("since", "a position, or null", since)
        if kinds is not None and not isinstance(kinds, list):
            raise BadArgument("kinds", "an array of kinds of changes", kinds)
        template = template_from_json(body["template"]) if body.get("template") else None
        key = msgspec.json.encode([kinds, body.get("template")])
        feed = call.gateway.changes(call.name)
        return await _stream(feed.events(since, key, lambda item: item.is_wanted(kinds, template)))

    # Boards

    @endpoint("POST /api/whiteboard/watch")
    async def watch_whiteboard(self, call: Call) -> HttpResponse:
        """Server-sent events: the picture."""
        return await self._watch_board(WHITEBOARD, "picture", call)

    @endpoint("POST /api/jigsaw/watch")
    async def watch_jigsaw(self, call: Call) -> HttpResponse:
        """Server-sent events: the tray."""
        return await self._watch_board(JIGSAW, "tray", call)

    async def _watch_board(self, service: str, method: str, call: Call) -> HttpResponse:
        """A stream of what is on a board: the whole of it, and then its changes."""

        async def events() -> AsyncGenerator[bytes]:
            known: tuple[str, bool | None] = "", None
            wait = 0.0
            while True:
                said = await call.gateway.board(service, method, known[0], wait=wait)
                now, wait = (said["mark"], said.get("cloned")), KEEPALIVE_SECONDS
                yield STILL_HERE if now == known else event(said)
                known = now

        return await _stream(events())

    @endpoint(
        "POST /api/whiteboard/draw",
        {"colour": api.COLOUR, "width": api.WIDTH, "points": api.POINTS},
        needed=("colour", "width", "points"),
        answer={"id": api.TEXT},
        status=201,
    )
    async def draw(self, call: Call) -> HttpResponse:
        """Draw a line on the whiteboard."""
        body = call.body
        args = [body.get(key) for key in ("colour", "width", "points")]
        stroke("", *args)  # Numbers that cannot be sent to the host are refused here.
        return reply({"id": await call.gateway.board(WHITEBOARD, "draw", *args)}, 201)

    @endpoint("POST /api/whiteboard/wipe", answer={"id": api.TEXT}, status=201)
    async def wipe(self, call: Call) -> HttpResponse:
        """Wipe the whiteboard."""
        return reply({"id": await call.gateway.board(WHITEBOARD, "wipe")}, 201)

    @endpoint(
        "POST /api/jigsaw/new",
        {"columns": api.SIDE, "rows": api.SIDE},
        needed=("columns", "rows"),
        answer={"puzzle": api.PUZZLE},
        status=201,
    )
    async def new_puzzle(self, call: Call) -> HttpResponse:
        """Begin a new jigsaw puzzle."""
        body = call.body
        sides = body.get("columns"), body.get("rows")
        check_sides(*sides)
        return reply({"puzzle": await call.gateway.board(JIGSAW, "new_puzzle", *sides)}, 201)

    @endpoint(
        "POST /api/jigsaw/select",
        {"puzzle": api.PUZZLE, "cells": api.CELLS},
        needed=("puzzle", "cells"),
        answer={"selected": api.FLAG},
    )
    async def select(self, call: Call) -> HttpResponse:
        """Make a piece of a puzzle the player's own."""
        body = call.body
        cells = check_cells("cells", body.get("cells"))
        done = await call.gateway.board(JIGSAW, "select", _puzzle(body), cells)
        return reply({"selected": done})

    @endpoint(
        "POST /api/jigsaw/assemble",
        {"puzzle": api.PUZZLE, "one": api.CELLS, "other": api.CELLS},
        needed=("puzzle", "one", "other"),
        answer={"assembled": api.FLAG},
    )
    async def assemble(self, call: Call) -> HttpResponse:
        """Join two of the player's pieces."""
        body = call.body
        pieces = [check_cells(name, body.get(name)) for name in ("one", "other")]
        done = await call.gateway.board(JIGSAW, "assemble", _puzzle(body), *pieces)
        return reply({"assembled": done})

    @endpoint("POST /api/jigsaw/away", {"puzzle": api.PUZZLE}, needed=("puzzle",))
    async def put_away(self, call: Call) -> HttpResponse:
        """Put a puzzle away, at all hosts."""
        await call.gateway.board(JIGSAW, "put_away", _puzzle(call.body))
        return reply({})

    # Transactions

    @endpoint(
        "POST /api/transactions",
        {"space": api.TEXT, "lease": api.LEASE},
        needed=("space",),
        answer={"txn": api.TEXT},
        status=201,
    )
    async def begin(self, call: Call) -> HttpResponse:
        """Begin a transaction in the space `space`, with a lease in seconds."""
        body = call.body
        name = body.get("space")
        if not isinstance(name, str):
            raise BadArgument("space", "the name of a space", name)
        space = await call.gateway.space(name, create=True)
        txn = await space.transaction(lease=body.get("lease", TRANSACTION_SECONDS))
        try:
            key, dropped = call.gateway.transactions.add((name, txn))
        except LimitReached:
            await txn.abort()
            raise
        for _, old in dropped:
            with suppress(TupeloError):
                await old.abort()
        return reply({"txn": key}, 201)

    @endpoint("POST /api/transactions/{txn}/commit", answer={"state": api.TEXT})
    async def commit(self, call: Call) -> HttpResponse:
        """Commit a transaction."""
        _, txn = call.gateway.transactions.pop(call.name)
        await txn.commit()
        return reply({"state": "committed"})

    @endpoint("POST /api/transactions/{txn}/abort", answer={"state": api.TEXT})
    async def abort(self, call: Call) -> HttpResponse:
        """Abort a transaction; entries that it has taken return."""
        _, txn = call.gateway.transactions.pop(call.name)
        await txn.abort()
        return reply({"state": "aborted"})

    # Leases

    @endpoint(
        "POST /api/leases/{lease}/renew",
        {"lease": api.LEASE},
        needed=("lease",),
        answer={"state": api.TEXT},
    )
    async def renew(self, call: Call) -> HttpResponse:
        """Renew the lease of an entry that was written over HTTP, for `lease` seconds from now."""
        body = call.body
        if "lease" not in body:
            raise BadArgument("lease", "a number of seconds above 0, or null for ever")
        await call.gateway.leases.get(call.name).renew(body["lease"])
        return reply({"state": "renewed"})

    @endpoint("POST /api/leases/{lease}/cancel", answer={"state": api.TEXT})
    async def cancel(self, call: Call) -> HttpResponse:
        """Cancel the lease of an entry that was written over HTTP: the entry is removed."""
        await call.gateway.leases.pop(call.name).cancel()
        return reply({"state": "cancelled"})

    async def _target(
        self, call: Call, body: dict[str, Any], create: bool = False
    ) -> tuple[Any, Any]:
        """The space of the request, and its transaction if it names one."""
        name = call.name
        space = await call.gateway.space(name, create=create)
        key = body.get("txn")
        if key is None:
            return space, None
        if not isinstance(key, str):
            raise BadArgument("txn", "the id of a transaction", key)
        of, txn = call.gateway.transactions.get(key)
        if of != name:
            raise BadArgument("txn", f"a transaction of the space {name!r}", key)
        return space, txn


async def _serve(
    handler: Callable[[bytes], Awaitable[HttpResponse]], receive: Receive, send: Send
) -> None:
    """Answer a request. Its handler is cancelled when the client disconnects: then an entry that it
    has taken returns to the space."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    watching: asyncio.Task[None] | None = None
    is_gone = False

    async def until_gone() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    def watch() -> None:
        nonlocal watching
        watching = loop.create_task(until_gone())

    try:
        raw = await _raw_body(receive)
        # Most requests are answered before it is worth a task to look whether the client is there.
        timer = loop.call_later(WATCH_AFTER_SECONDS, watch)
        try:
            await _send(await handler(raw), send)
        finally:
            timer.cancel()
            if watching is not None:
                watching.cancel()
    except asyncio.CancelledError:
        if not is_gone:
            raise
        task.uncancel()
    except TupeloError as error:
        await _send(reply(error_to_json(error), status_of(error)), send)


async def _send(answer: HttpResponse, send: Send) -> None:
    headers = [*answer.headers, (b"content-type", answer.kind)]
    start = {"type": "http.response.start", "status": answer.status, "headers": headers}
    if answer.events is None:
        headers.append((b"content-length", b"%d" % len(answer.body)))
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})
        return
    async with aclosing(answer.events):
        await send(start)
        await _send_part(answer.body, send)
        try:
            async for one in answer.events:
                await _send_part(one, send)
        except TupeloError as error:
            await _send_part(event(error_to_json(error), "error"), send)
    await send({"type": "http.response.body", "body": b""})


async def _send_part(body: bytes, send: Send) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _raw_body(receive: Receive) -> bytes:
    message = await receive()
    read: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return read
    parts = bytearray(read)
    while message.get("more_body"):
        message = await receive()
        parts += message.get("body", b"")
        if len(parts) > BODY_MAX:
            raise BadArgument("body", f"at most {BODY_MAX:,} bytes")
    return bytes(parts)


def _body(raw: bytes, known: Iterable[str]) -> dict[str, Any]:
    """The JSON object that was sent. BadArgument if it is none, or has other keys."""
    try:
        body = msgspec.json.decode(raw) if raw else {}
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise BadArgument("body", f"a JSON object ({error})") from error
    if not isinstance(body, dict):
        raise BadArgument("body", "a JSON object", body)
    for key in body:
        if key not in known:
            keys = f"the keys are {', '.join(known)}" if known else "there are no keys"
            raise BadArgument(key, f"left out: {keys}")
    return body


def _wait(body: dict[str, Any]) -> float:
    seconds = body.get("wait", 0)
    if not is_number(seconds) or not 0 <= seconds <= WAIT_MAX:
        raise BadArgument("wait", f"a number of seconds from 0 to {WAIT_MAX:.0f}", seconds)
    return float(seconds)


def _about(body: dict[str, Any]) -> list[About] | None:
    """A list for the argument `about=`, if the request asks for it."""
    wanted = body.get("about", False)
    if not isinstance(wanted, bool):
        raise BadArgument("about", "true or false", wanted)
    return [] if wanted else None


def _puzzle(body: dict[str, Any]) -> str:
    puzzle = body.get("puzzle")
    if not isinstance(puzzle, str) or not puzzle:
        raise BadArgument("puzzle", "the id of a puzzle", puzzle)
    return puzzle


def _limit(body: dict[str, Any]) -> int:
    limit = body.get("limit", 100)
    if not is_int(limit) or not 1 <= limit <= PAGE_MAX:
        raise BadArgument("limit", f"a whole number from 1 to {PAGE_MAX}", limit)
    return limit


async def _stream(events: AsyncGenerator[bytes]) -> HttpResponse:
    """Server-sent events. The first is awaited here, so that its error has a status of its own."""
    first = await anext(events)
    return HttpResponse(200, first, b"text/event-stream; charset=utf-8", events)


def _label(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return f'"{escaped}"'


LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""The Host headers that are accepted on a loopback address."""
