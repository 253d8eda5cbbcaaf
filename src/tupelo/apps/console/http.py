"""The HTTP API of a host, and the pages of the console: a Starlette application.

Every request but those for the pages and for `/healthz` and `/readyz` needs the token, as
`Authorization: Bearer TOKEN`. There are no cookies, so another web site cannot make a browser act
here; the Host header is checked, so another name cannot be pointed at this address. A waiting
request ends when its client disconnects.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tupelo.apps.console.gateway import (
    NOTICES_MAX,
    PAGE_MAX,
    TRANSACTION_SECONDS,
    Gateway,
    change_to_json,
    error_to_json,
)
from tupelo.apps.console.json_values import entry_from_json, entry_to_json, template_from_json
from tupelo.apps.console.openapi import describe_api
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
    WrongPassword,
)
from tupelo.values.template import Template

BODY_MAX = 8 * 1024 * 1024
WAIT_MAX = 3_600.0
"""The longest wait of one HTTP request, in seconds."""
KEEPALIVE_SECONDS = 15.0

STATIC = Path(__file__).parent / "static"
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# The first class that an error is an instance of decides.
STATUS: tuple[tuple[type[TupeloError], int], ...] = (
    (WrongPassword, 401),
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


def reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(
        msgspec.json.encode(value), status, headers, media_type="application/json; charset=utf-8"
    )


def event(value: Any, name: str = "message") -> bytes:
    """One server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


class HttpApi:
    """The endpoints. `connect` makes the gateway to the host, once, when the server starts."""

    def __init__(
        self, connect: Callable[[], Awaitable[Gateway]], token: str, hosts: frozenset[str]
    ) -> None:
        self._connect = connect
        self._token = token
        self._hosts = hosts
        self._gateway: Gateway

    def application(self) -> Starlette:
        """The ASGI application: API, pages and checks."""
        post, get = ["POST"], ["GET"]
        of_space = "/api/spaces/{space:path}"
        routes = [
            Route("/healthz", self.healthz, methods=get),
            Route("/readyz", self.readyz, methods=get),
            Route("/metrics", self.guarded(self.metrics), methods=get),
            Route("/api/openapi.json", self.guarded(self.openapi), methods=get),
            Route("/api/host", self.guarded(self.host), methods=get),
            Route("/api/host/disengage", self.guarded(self.disengage), methods=post),
            Route("/api/host/engage", self.guarded(self.engage), methods=post),
            Route("/api/whiteboard/draw", self.guarded(self.draw), methods=post),
            Route("/api/whiteboard/wipe", self.guarded(self.wipe), methods=post),
            Route("/api/whiteboard/watch", self.guarded(self.picture), methods=post),
            Route("/api/spaces", self.guarded(self.spaces), methods=get),
            Route("/api/transactions", self.guarded(self.begin), methods=post),
            Route("/api/transactions/{txn}/commit", self.guarded(self.commit), methods=post),
            Route("/api/transactions/{txn}/abort", self.guarded(self.abort), methods=post),
            Route("/api/leases/{lease}/renew", self.guarded(self.renew), methods=post),
            Route("/api/leases/{lease}/cancel", self.guarded(self.cancel), methods=post),
            Route(f"{of_space}/write", self.guarded(self.write), methods=post),
            Route(f"{of_space}/read", self.guarded(partial(self.get, "read")), methods=post),
            Route(f"{of_space}/take", self.guarded(partial(self.get, "take")), methods=post),
            Route(f"{of_space}/count", self.guarded(self.count), methods=post),
            Route(f"{of_space}/entries", self.guarded(self.entries), methods=post),
            Route(f"{of_space}/subscribe", self.guarded(self.subscribe), methods=post),
            Route(f"{of_space}/changes", self.guarded(self.changes), methods=post),
            Route(f"{of_space}/history", self.guarded(self.history), methods=post),
            Route(f"{of_space}/watch", self.guarded(self.watch), methods=post),
            Route(of_space, self.guarded(self.space), methods=get),
            Mount("/", _Pages(directory=STATIC, html=True)),
        ]
        return Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _plain_error},
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._gateway = await self._connect()
        try:
            yield
        finally:
            await self._gateway.close()

    def guarded(
        self, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The handler behind the checks of token and Host header, with its errors as JSON."""

        async def checked(request: Request) -> Response:
            headers = dict(SECURITY_HEADERS)
            if request.headers.get("host", "").rpartition(":")[0].strip("[]") not in self._hosts:
                answer = reply(
                    {"error": "BadHost", "message": "The Host header names another host."}, 421
                )
            elif not self._has_token(request):
                headers["WWW-Authenticate"] = "Bearer"
                answer = reply({"error": "WrongToken", "message": "A valid token is needed."}, 401)
            else:
                try:
                    answer = await _until_gone(request, handler)
                except TupeloError as error:
                    answer = reply(error_to_json(error), status_of(error))
            answer.headers.update(headers)
            return answer

        return checked

    def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode(), self._token.encode()
        )

    # About the host

    async def healthz(self, request: Request) -> Response:
        """200 as long as the console runs."""
        return reply({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """200 if the host answers and its disk can be written; 503 if not."""
        try:
            async with asyncio.timeout(5):
                spaces = await self._gateway.inspect("spaces")
        except (TupeloError, TimeoutError) as error:
            return reply({"status": "unreachable", "message": str(error)}, 503)
        ill = {one["name"]: one["health"] for one in spaces if one.get("health", "ok") != "ok"}
        return reply({"status": "degraded" if ill else "ok", "spaces": ill}, 503 if ill else 200)

    async def metrics(self, request: Request) -> Response:
        """The numbers of `spaces`, for Prometheus."""
        spaces = [one for one in await self._gateway.inspect("spaces") if "entries" in one]
        host = await self._gateway.inspect("host")
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
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI description of this API."""
        return reply(describe_api())

    async def host(self, request: Request) -> Response:
        """The host, its peers and its clients."""
        return reply(await self._gateway.inspect("host"))

    async def disengage(self, request: Request) -> Response:
        """Part the host from all other hosts, until `engage`."""
        await _body(request)
        await self._gateway.inspect("disengage")
        return reply({"disengaged": True})

    async def engage(self, request: Request) -> Response:
        """Let the host meet the others again."""
        await _body(request)
        await self._gateway.inspect("reengage")
        return reply({"disengaged": False})

    async def spaces(self, request: Request) -> Response:
        """Every space with its numbers; with "refused" if it may not be read."""
        return reply({"spaces": await self._gateway.inspect("spaces")})

    async def space(self, request: Request) -> Response:
        """One space with its waiting operations, transactions and deliveries in doubt."""
        return reply(await self._gateway.inspect("space", request.path_params["space"]))

    # Entries

    async def write(self, request: Request) -> Response:
        """Write one `entry` or several `entries` in one step."""
        body = await _body(request, "entry", "entries", "lease", "to", "txn", "wait")
        if ("entry" in body) == ("entries" in body):
            raise BadArgument("entry", "given, or else entries", body.get("entry"))
        said = [body["entry"]] if "entry" in body else body["entries"]
        if not isinstance(said, list):
            raise BadArgument("entries", "an array of entries", said)
        entries = [entry_from_json(one) for one in said]
        options = {"lease": body.get("lease"), "to": body.get("to"), "wait": _wait(body)}
        space, txn = await self._target(request, body)
        leases = await space.write_all(entries, txn=txn, **options)
        answer: dict[str, Any] = {"written": len(entries)}
        if options["lease"] is not None:
            answer["leases"] = [self._gateway.leases.add(lease)[0] for lease in leases]
        return reply(answer, 201)

    async def get(self, operation: str, request: Request) -> Response:
        """Read or take one entry, or with `limit` several."""
        body = await _body(request, "template", "wait", "limit", "txn")
        template, seconds = template_from_json(body.get("template")), _wait(body)
        space, txn = await self._target(request, body)
        if "limit" not in body:
            found = await getattr(space, operation)(template, wait=seconds, txn=txn)
            return reply({"entry": None if found is None else entry_to_json(found)})
        many = getattr(space, f"{operation}_all")
        entries = await many(template, wait=seconds, limit=_limit(body), txn=txn)
        return reply({"entries": [entry_to_json(entry) for entry in entries]})

    async def count(self, request: Request) -> Response:
        """How many entries match."""
        body = await _body(request, "template", "txn")
        template = template_from_json(body.get("template"))
        space, txn = await self._target(request, body)
        return reply({"count": await space.count(template, txn=txn)})

    async def entries(self, request: Request) -> Response:
        """A page of the entries at this host, and the cursor of the next page."""
        body = await _body(request, "template", "limit", "cursor")
        cursor = body.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise BadArgument("cursor", "the text of a page before", cursor)
        found, cursor = await self._gateway.page(
            request.path_params["space"],
            template_from_json(body.get("template")),
            _limit(body),
            cursor,
        )
        return reply({"entries": found, "cursor": cursor})

    # Events

    async def subscribe(self, request: Request) -> Response:
        """A stream of the entries that are written from now on."""
        body = await _body(request, "template")
        space = await self._gateway.space(request.path_params["space"])
        subscription = await space.subscribe(
            template_from_json(body.get("template")), backlog_max=NOTICES_MAX
        )

        async def events() -> AsyncIterator[bytes]:
            try:
                yield event({}, "ready")
                while True:
                    notice = await subscription.get(wait=KEEPALIVE_SECONDS)
                    if notice is None:
                        yield b": still here\n\n"
                    else:
                        yield event({"entry": entry_to_json(notice.entry), "missed": notice.missed})
            finally:
                self._gateway.end(subscription)

        return _stream(events())

    async def changes(self, request: Request) -> Response:
        """Changes of the log after the position `since`, oldest first."""
        body = await _body(request, "since", "limit")
        space = await self._gateway.space(request.path_params["space"])
        found = await space.changes(since=body.get("since", 0), limit=_limit(body))
        return reply({"changes": [change_to_json(change) for change in found]})

    async def history(self, request: Request) -> Response:
        """The lives of the entries that changed last, and the rates and latencies of the space."""
        body = await _body(request, "template")
        template = template_from_json(body["template"]) if body.get("template") else None
        return reply(await self._gateway.history(request.path_params["space"], template))

    async def watch(self, request: Request) -> Response:
        """A stream of batches of changes, at most two a second."""
        body = await _body(request, "since", "kinds", "template")
        since, kinds = body.get("since"), body.get("kinds")
        if since is not None and (not isinstance(since, int) or isinstance(since, bool)):
            raise BadArgument("since", "a position, or null", since)
        if kinds is not None and not isinstance(kinds, list):
            raise BadArgument("kinds", "an array of kinds of changes", kinds)
        template = template_from_json(body["template"]) if body.get("template") else None
        feed = self._gateway.feed(request.path_params["space"])
        now = await feed.start()
        first = now if since is None else min(since, now)

        async def events() -> AsyncIterator[bytes]:
            last = first
            yield event({"position": first}, "ready")
            async for changes, position in feed.watch(first):
                skipped = max(0, position - last - len(changes))
                last = position
                shown = [one for one in changes if _wanted(one, kinds, template)]
                yield event({"changes": shown, "position": position, "skipped": skipped})

        return _stream(events())

    # The whiteboard

    async def draw(self, request: Request) -> Response:
        """Draw a line on the whiteboard."""
        body = await _body(request, "colour", "width", "points")
        args = [body.get(key) for key in ("colour", "width", "points")]
        return reply({"id": await self._gateway.whiteboard("draw", *args)}, 201)

    async def wipe(self, request: Request) -> Response:
        """Wipe the whiteboard."""
        await _body(request)
        return reply({"id": await self._gateway.whiteboard("wipe")}, 201)

    async def picture(self, request: Request) -> Response:
        """A stream of changes of the picture: how many strokes stay, and those after them."""
        await _body(request)
        first = await self._gateway.whiteboard("picture", "")

        async def events() -> AsyncIterator[bytes]:
            said, known = first, ("", None)
            while True:
                if (said["mark"], said["cloned"]) == known:
                    yield b": still here\n\n"
                else:
                    known = said["mark"], said["cloned"]
                    yield event(said)
                said = await self._gateway.whiteboard("picture", known[0], wait=KEEPALIVE_SECONDS)

        return _stream(events())

    # Transactions

    async def begin(self, request: Request) -> Response:
        """Begin a transaction in the space `space`, with a lease in seconds."""
        body = await _body(request, "space", "lease")
        name = body.get("space")
        if not isinstance(name, str):
            raise BadArgument("space", "the name of a space", name)
        space = await self._gateway.space(name)
        txn = await space.transaction(lease=body.get("lease", TRANSACTION_SECONDS))
        try:
            key, dropped = self._gateway.transactions.add((name, txn))
        except LimitReached:
            await txn.abort()
            raise
        for _, old in dropped:
            with suppress(TupeloError):
                await old.abort()
        return reply({"txn": key}, 201)

    async def commit(self, request: Request) -> Response:
        """Commit a transaction."""
        _, txn = self._gateway.transactions.pop(request.path_params["txn"])
        await txn.commit()
        return reply({"state": "committed"})

    async def abort(self, request: Request) -> Response:
        """Abort a transaction; entries that it has taken return."""
        _, txn = self._gateway.transactions.pop(request.path_params["txn"])
        await txn.abort()
        return reply({"state": "aborted"})

    # Leases

    async def renew(self, request: Request) -> Response:
        """Renew the lease of an entry that was written over HTTP, for `lease` seconds from now."""
        body = await _body(request, "lease")
        if "lease" not in body:
            raise BadArgument("lease", "a number of seconds above 0, or null for ever", "missing")
        await self._gateway.leases.get(request.path_params["lease"]).renew(body["lease"])
        return reply({"state": "renewed"})

    async def cancel(self, request: Request) -> Response:
        """Cancel the lease of an entry that was written over HTTP: the entry is removed."""
        await _body(request)
        await self._gateway.leases.pop(request.path_params["lease"]).cancel()
        return reply({"state": "cancelled"})

    async def _target(self, request: Request, body: dict[str, Any]) -> tuple[Any, Any]:
        """The space of the request, and its transaction if it names one."""
        name = request.path_params["space"]
        space = await self._gateway.space(name)
        key = body.get("txn")
        if key is None:
            return space, None
        if not isinstance(key, str):
            raise BadArgument("txn", "the id of a transaction", key)
        of, txn = self._gateway.transactions.get(key)
        if of != name:
            raise BadArgument("txn", f"a transaction of the space {name!r}", key)
        return space, txn


class _Pages(StaticFiles):
    """The files of the console, which need no token: they hold nothing of the host."""

    async def get_response(self, path: str, scope: Any) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update(SECURITY_HEADERS)
        return answer


async def _until_gone(
    request: Request, handler: Callable[[Request], Awaitable[Response]]
) -> Response:
    """The answer of the handler, which is cancelled when the client disconnects: then an entry that
    it has taken returns to the space."""
    body = await _raw_body(request)
    request.state.body = body
    work = asyncio.ensure_future(handler(request))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        return reply({"error": "Disconnected", "message": "the client has gone"}, 499)
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _raw_body(request: Request) -> bytes:
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > BODY_MAX:
            raise BadArgument("body", f"at most {BODY_MAX:,} bytes", "more")
    return bytes(read)


async def _body(request: Request, *known: str) -> dict[str, Any]:
    """The JSON object that was sent. BadArgument if it is none, or has other keys."""
    raw = request.state.body
    try:
        body = msgspec.json.decode(raw) if raw else {}
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise BadArgument("body", f"a JSON object ({error})", "something else") from error
    if not isinstance(body, dict):
        raise BadArgument("body", "a JSON object", body)
    for key in body:
        if key not in known:
            raise BadArgument(key, f"left out: the keys are {', '.join(known)}", "given")
    return body


def _wait(body: dict[str, Any]) -> float:
    seconds = body.get("wait", 0)
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= WAIT_MAX
    ):
        raise BadArgument("wait", f"a number of seconds from 0 to {WAIT_MAX:.0f}", seconds)
    return float(seconds)


def _limit(body: dict[str, Any]) -> int:
    limit = body.get("limit", 100)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise BadArgument("limit", f"a whole number from 1 to {PAGE_MAX}", limit)
    return limit


def _wanted(change: dict[str, Any], kinds: list[str] | None, template: Template | None) -> bool:
    if kinds and change["kind"] not in kinds:
        return False
    if template is None:
        return True
    return "entry" in change and template.matches(entry_from_json(change["entry"]))


def _stream(events: AsyncIterator[bytes]) -> Response:
    """Server-sent events. An error of the host ends the stream with an event "error"."""

    async def guarded() -> AsyncIterator[bytes]:
        try:
            async for one in events:
                yield one
        except TupeloError as error:
            yield event(error_to_json(error), "error")

    return StreamingResponse(guarded(), media_type="text/event-stream")


async def _plain_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else "an internal error"
    return reply({"error": "HTTP", "message": detail}, status, dict(SECURITY_HEADERS))


def _label(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return f'"{escaped}"'


LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""The Host headers that are accepted on a loopback address."""
