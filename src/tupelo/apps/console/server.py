"""Running the console: an HTTP server in a thread of its own, beside a host or far from it."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tupelo.apps.console.gateway import Gateway
from tupelo.apps.console.http import LOOPBACK, HttpApi
from tupelo.errors import BadArgument, CannotReach, DiscoveryFailed, Stranger, TupeloError
from tupelo.federation.identity.keys import Identity
from tupelo.federation.identity.tls import key_of, server_context
from tupelo.federation.links.address import is_loopback
from tupelo.values.kind import always_stand_in

START_SECONDS = 60.0


class Console:
    """The console and HTTP API of one host, until it is closed. Use it by `with`.

    `url` is that of the host. `listen` is an address such as "127.0.0.1:7780"; beyond loopback
    it needs `remote=True`, and should stand behind a proxy with TLS. Requests need the `token`,
    which is made if none is given. `options` are those of `tupelo.connect`.

    With `certificates=True` it serves HTTPS, and a request with a client certificate needs no
    token: it has the rights of the key of the certificate, if the host trusts that key. For this,
    `identity` must be that of the host itself.

    `report` is a folder: its page, which `tupelo pipeline report --to FOLDER` writes, is shown.

    Raises BadArgument if `listen` is wrong or in use, and CannotReach if the host is not there.
    """

    def __init__(
        self,
        url: str,
        *,
        listen: str = "127.0.0.1:0",
        token: str | None = None,
        remote: bool = False,
        certificates: bool = False,
        report: str | Path | None = None,
        **options: Any,
    ) -> None:
        name, _, port = listen.rpartition(":")
        name = name.strip("[]") or "127.0.0.1"
        if not port.isdigit() or int(port) > 65_535:
            raise BadArgument("listen", "an address such as 127.0.0.1:7780", listen)
        if not is_loopback(name) and not remote:
            expected = (
                "a loopback address (beyond this machine: `tupelo console URL --remote`,"
                " or remote=True in a program)"
            )
            raise BadArgument("listen", expected, listen)
        if token is not None and (not isinstance(token, str) or len(token) < 16):
            raise BadArgument("token", "a text of 16 characters or more")
        self.token = token or secrets.token_urlsafe(24)
        identity = options.get("identity")
        context = None
        if certificates:
            if not isinstance(identity, Identity):
                raise BadArgument("identity", "that of the host, for certificates=True", identity)
            context = server_context(identity, optional=True)
        self._socket = _listen(name, int(port), listen)
        self.address = f"{name}:{self._socket.getsockname()[1]}"
        hosts = LOOPBACK | {name} if is_loopback(name) else frozenset({name, socket.gethostname()})
        self._failure: BaseException | None = None
        self._started = threading.Event()
        connect = partial(self._connect, url, options)
        api = HttpApi(connect, self.token, hosts, None if report is None else Path(report))
        config = uvicorn.Config(
            api,
            log_config=None,
            log_level="critical",  # Errors reach the caller; the rest is about browsers.
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            interface="asgi3",
            http=_HttpProtocol if certificates else "httptools",
            ws="none",
            proxy_headers=False,
            loop="auto",  # uvloop where it is installed; not on Windows
            timeout_graceful_shutdown=2,
        )
        self._scheme = "https" if certificates else "http"
        if context is not None:
            config.load()
            config.ssl = context
        self._server = _Server(config, api, self._started)
        self._thread = threading.Thread(target=self._run, name="tupelo console", daemon=True)
        self._thread.start()
        if not self._started.wait(START_SECONDS) or self._server.should_exit:
            self.close()
            raise self._failure or CannotReach(url, "the console did not start")

    @property
    def url(self) -> str:
        """The address of the page, with the token in its fragment, which is not sent to servers."""
        return f"{self._scheme}://{self.address}/#token={self.token}"

    async def _connect(self, url: str, options: dict[str, Any], on_behalf: str) -> Gateway:
        if on_behalf:  # A refusal is for the caller, and no failure of the console.
            return await Gateway.connect(url, **options, on_behalf=on_behalf)
        try:
            return await Gateway.connect(url, **options)
        except BaseException as error:
            self._failure = error if isinstance(error, TupeloError) else DiscoveryFailed(str(error))
            raise

    def _run(self) -> None:
        always_stand_in()  # Entries of any class can be shown.
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            self._server.should_exit = True
            self._started.set()

    def close(self) -> None:
        """Stop serving, and end the connection to the host."""
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<the console at {self._scheme}://{self.address}/>"


class _HttpProtocol(HttpToolsProtocol):
    """Notes the identity that the other end of a TLS connection has proved."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        with suppress(Stranger):  # It has shown no certificate, or one of another kind.
            key = key_of(transport.get_extra_info("ssl_object"))
            self.app_state = self.app_state | {"identity": key}


class _Server(uvicorn.Server):
    """Opens the API before it serves, tells when it has started, and closes the API at the end.
    Signals are for the program, not for the server."""

    def __init__(self, config: uvicorn.Config, api: HttpApi, started: threading.Event) -> None:
        super().__init__(config)
        self._api = api
        self._told = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._api.open()
        await super().startup(sockets)
        self._told.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await self._api.close()


def _listen(name: str, port: int, listen: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((name, port))
    except OSError as error:
        listening.close()
        raise BadArgument(
            "listen", f"an address that is free ({error.strerror})", listen
        ) from error
    listening.set_inheritable(False)
    return listening
