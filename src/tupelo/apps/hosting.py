"""The command `tupelo host`: runs a host until it is stopped, and prints engaged and lost peers."""

from __future__ import annotations

import errno
import logging
import math
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import tupelo
from tupelo.apps.shell import clear_errors, credentials, examples, trust_option, url_argument
from tupelo.errors import BadArgument, BadInput, CannotReach, SpaceInUse, without_password
from tupelo.values.text import one_line

if TYPE_CHECKING:
    from tupelo.apps.console import Console

LISTEN = "127.0.0.1:7700"
"""The default address of a host."""
CONSOLE = "127.0.0.1:7780"
"""The default address of a console."""
TRUST_FILE = "known_hosts"
INTERVAL_SECONDS = 30.0
IN_INTERVAL = 5
"""The largest number of logged warnings of one kind in each interval."""

directory = click.Path(path_type=Path)


@click.command(
    epilog=examples(
        "tupelo host kitchen --path kitchen --console 127.0.0.1:7780",
        "tupelo host kitchen --listen 0.0.0.0:7700 --trust known_hosts --peer 192.0.2.7:7700",
        "tupelo host --config /etc/tupelo/host.toml",
        notes="NAME is the name of the host for other hosts. Options of the command override the"
        " file of --config; docs/HOSTS.md lists its keys. SIGTERM and Ctrl-C stop the host. After"
        " SIGHUP it reads the file of --trust again. TUPELO_CONSOLE_TOKEN is the token of the"
        " console.",
    )
)
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--config",
    metavar="FILE",
    type=directory,
    help="Read name, options and spaces of the host from this TOML file.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default=LISTEN,
    show_default=True,
    help="Address of the host; port 0 means any free port.",
)
@click.option("--path", metavar="DIR", type=directory, help="Keep the spaces in this directory.")
@click.option(
    "--store",
    metavar="URL",
    help="Keep the spaces in this database: postgresql://host/database. Other users of this machine"
    " can read a password in the URL; use PGPASSWORD or ~/.pgpass.",
)
@click.option(
    "--peer",
    "peers",
    metavar="ADDRESS",
    multiple=True,
    help="Another host to connect to; repeatable.",
)
@click.option(
    "--discover", is_flag=True, help="Find hosts in the local network, and let them find this host."
)
@click.option(
    "--trust",
    metavar="HOW",
    help='Trusted hosts and programs on other machines: "first-use", "anyone", or a file with an'
    " identity on each line and, optionally, the time at which the trust ends. Default: none.",
)
@click.option(
    "--local-trust/--no-local-trust",
    default=True,
    show_default=True,
    help="Let programs on this machine connect without an identity. Use --no-local-trust behind a"
    " tunnel or a proxy: there every program seems to be on this machine.",
)
@click.option(
    "--heartbeat",
    metavar="SECONDS",
    type=float,
    default=1.0,
    show_default=True,
    help="Heartbeat interval; a host is dropped after three missed heartbeats.",
)
@click.option(
    "--archive",
    metavar="DIR",
    type=directory,
    help="Copy (seal) the logs of the spaces to this archive before they are trimmed.",
)
@click.option(
    "--console",
    metavar="ADDRESS",
    help="Serve the console and the HTTP API at this address, such as 127.0.0.1:7780.",
)
@click.option(
    "--console-tls",
    is_flag=True,
    help="Serve the console by HTTPS; accept certificates of trusted identities as well as the"
    " token.",
)
@click.option(
    "--report",
    metavar="DIR",
    type=directory,
    help="The console shows the report that `tupelo pipeline report --to DIR` writes.",
)
@click.option(
    "--create/--no-create",
    default=True,
    show_default=True,
    help="Let programs create spaces, or let them open existing spaces only.",
)
@click.option(
    "--verbose", "-v", is_flag=True, help="Also log hosts and programs that connect and disconnect."
)
@click.pass_context
def host(context: click.Context, /, config: Path | None, **given: Any) -> None:
    """Run a host: a server that keeps spaces for programs and shares them with other hosts."""
    with clear_errors():
        if config is not None:
            from tupelo.apps.hostfile import read_hostfile

            typed = {
                key: value
                for key, value in given.items()
                if context.get_parameter_source(key) is not ParameterSource.DEFAULT
            }
            given |= read_hostfile(config) | typed
        if given["name"] is None:
            raise click.UsageError("Missing argument 'NAME', or name in the file of --config.")
        run_host(**given)


@click.command(
    epilog=examples(
        "tupelo console tupelo://127.0.0.1:7700",
        notes="URL is a host: tupelo://127.0.0.1:7700. TUPELO_CONSOLE_TOKEN is the token of the"
        " console. Default: a new token, which is printed.",
    )
)
@url_argument
@click.option(
    "--listen",
    metavar="ADDRESS",
    default=CONSOLE,
    show_default=True,
    help="Address of the console; port 0 means any free port.",
)
@click.option(
    "--remote",
    is_flag=True,
    help="Allow an address that other machines can reach. Use a proxy with TLS in front.",
)
@click.option(
    "--report",
    metavar="DIR",
    type=directory,
    help="Show the report that `tupelo pipeline report --to DIR` writes.",
)
@trust_option
def console(url: str, listen: str, remote: bool, report: Path | None, trust: str | None) -> None:
    """Serve the console and the HTTP API of a running host, until Ctrl-C."""
    with clear_errors():
        options = credentials(trust) | {"name": "console", "reconnect": 30.0, "report": report}
        with opened_console(url, listen, remote, **options) as page:
            print(f"console {page.url}", flush=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()


def trust_of(text: str | None) -> tupelo.Trust | None:
    """The trust for "first-use", "anyone", or a file with an identity on each line, optionally with
    the time at which the trust ends."""
    if text is None:
        return None
    if text == "anyone":
        return tupelo.Trust.anyone()
    if text == "first-use":
        from tupelo.federation.identity.keys import default_folder

        return tupelo.Trust.on_first_use(default_folder() / TRUST_FILE)
    file = Path(text)
    if not file.is_file():
        raise BadArgument("trust", '"first-use", "anyone" or a file of known identities', text)
    until: dict[str, float] = {}
    keys: list[str] = []
    for line in file.read_text().splitlines():
        key, _, moment = line.partition("#")[0].strip().partition(" ")
        if key:
            keys.append(key)
        if moment.strip():
            until[key] = _moment(moment.strip(), file)
    return tupelo.Trust.known(keys, until=until)


def _moment(text: str, file: Path) -> float:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        expected = f'in {file}, after an identity, a moment such as "2027-01-31T12:00+01:00"'
        raise BadArgument("trust", expected, text) from None


def run_host(
    name: str,
    *,
    listen: str,
    path: Path | None,
    discover: bool,
    peers: Iterable[str],
    trust: str | None,
    heartbeat: float,
    archive: Path | None,
    local_trust: bool = True,
    console: str | None = None,
    console_tls: bool = False,
    report: Path | None = None,
    verbose: bool = False,
    limits: tupelo.Limits | None = None,
    access: tupelo.Access | None = None,
    spaces: Mapping[str, Mapping[str, Any]] | None = None,
    create: bool = True,
    store: str | None = None,
) -> None:
    """Run a host until SIGINT or SIGTERM. On SIGHUP the file of known identities is read again, and
    the connections of identities that were removed end. The limit of open files is raised to the
    system's maximum."""
    from tupelo.federation.hosts.doors import own_identity
    from tupelo.federation.hosts.limits import raise_descriptors_max

    log_to_stderr(verbose)
    raise_descriptors_max()
    stop, reload, wake = threading.Event(), threading.Event(), threading.Event()

    def on(number: int, event: threading.Event) -> None:
        def on_signal(*_: object) -> None:
            event.set()
            wake.set()

        signal.signal(number, on_signal)

    on(signal.SIGINT, stop)
    on(signal.SIGTERM, stop)
    if hasattr(signal, "SIGHUP"):  # not on Windows
        on(signal.SIGHUP, reload)
    try:
        started = tupelo.Host(
            name,
            listen=listen,
            path=path,
            identity=own_identity(name, path) if console_tls else None,
            discover=discover,
            peers=peers,
            trust=trust_of(trust),
            heartbeat=heartbeat,
            archive=archive,
            local_trust=local_trust,
            limits=limits,
            access=access,
            spaces=spaces,
            create_spaces=create,
            store=store,
        )
    except CannotReach as error:
        cause = error.__cause__
        busy = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
        why = cause.strerror if isinstance(cause, OSError) else cause
        if busy:
            why = "another program uses it: stop it, or choose another --listen"
        raise BadInput(f"cannot listen at {error.address}: {why}") from error
    except SpaceInUse as error:
        told = "another program uses it, perhaps a host: stop it, or choose another --path"
        raise BadInput(f"{path}: {told}") from error
    with started as host:
        print(f"{host.name} listens at {host.url}SPACE", flush=True)
        if host.identity is not None:
            print(f"identity {host.identity}", flush=True)
        peer_lines = _PeerLines(host.id)
        host.presence.subscribe(
            tupelo.HostPresence(), lambda notice: peer_lines.print(notice.entry)
        )
        for seen in host.presence.read_all(tupelo.HostPresence()):
            peer_lines.print(seen)  # It may have come before the subscription.
        with ExitStack() as beside, suppress(KeyboardInterrupt):
            if console is not None:
                try:
                    own_url, options = _own_connection(host, local_trust and not console_tls)
                    options |= {"certificates": console_tls, "report": report}
                    page = beside.enter_context(opened_console(own_url, console, **options))
                except BadArgument as error:
                    error.argument = "console"  # It is the listen= of the console.
                    raise
                print(f"console {page.url}", flush=True)
            while not stop.is_set():
                wake.wait()
                wake.clear()
                if reload.is_set():
                    reload.clear()
                    _reload(host, trust)
    print(f"{name} has left", flush=True)


def opened_console(url: str, listen: str, remote: bool = False, **options: Any) -> Console:
    """The console of the host at this URL. TUPELO_CONSOLE_TOKEN sets its token.

    Raises BadInput if the packages of the console are not installed.
    """
    try:
        from tupelo.apps.console import Console
    except ModuleNotFoundError as error:
        text = f'the console needs {error.name}: pip install "tupelo[console]"'
        raise BadInput(text) from error
    token = os.environ.get("TUPELO_CONSOLE_TOKEN")
    return Console(url, listen=listen, token=token, remote=remote, **options)


def _own_connection(host: tupelo.Host, local_trust: bool) -> tuple[str, dict[str, Any]]:
    """The URL and options with which the console connects to its host: as a program on this
    machine, or, without local trust, with the identity of the host itself."""
    from tupelo.federation.links.address import Address, is_loopback

    place = Address.parse(host.address)
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(place.host, place.host)
    url = f"tupelo://{Address(here, place.port)}/"
    identity = host.core.identity
    if identity is None or (local_trust and is_loopback(here)):
        return url, {}
    host.trust(identity.key)
    return url, {"identity": identity, "trust": tupelo.Trust.known([identity.key])}


def _reload(host: tupelo.Host, text: str | None) -> None:
    """Read the trusted identities again. On an error nothing changes."""
    try:
        trust = trust_of(text)
    except (BadArgument, OSError, ValueError) as error:
        logging.getLogger("tupelo").error("who is trusted stays as it was: %s", error)
        return
    if trust is not None:
        # Its own console may have its identity: see `_own_connection`.
        host.set_trust(trust if host.identity is None else trust.plus(host.identity, None))
        print("who is trusted was read again", flush=True)


class _PeerLines:
    """Prints a line when another host is engaged or has departed, once for each such change."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._states: dict[str | None, str | None] = {}
        self._lock = threading.Lock()

    def print(self, seen: tupelo.HostPresence) -> None:
        with self._lock:
            if seen.id == self._own_id or self._states.get(seen.id) == seen.state:
                return
            self._states[seen.id] = seen.state
            how = f" ({seen.how})" if seen.how else ""
            line = f"{seen.state:8} {seen.name} at {seen.address or '-'}{how}"
            print(one_line(line), flush=True)


class OneLine(logging.Formatter):
    """Formats each message as one line, whatever names other programs choose; tracebacks are
    indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return without_password(one_line(super().formatMessage(record)))

    def formatException(self, error: Any) -> str:  # noqa: N802
        lines = without_password(super().formatException(error)).splitlines()
        return "\n".join(f"    {one_line(line)}" for line in lines)


class RateLimit(logging.Filter):
    """Logs only the first warnings of a kind in each interval, such as the refusals of a program
    that tries again and again. The next logged warning has the number of omitted warnings."""

    def __init__(self) -> None:
        super().__init__()
        self._sorts: dict[str, tuple[float, int]] = {}
        """By format of the message: the start of the interval, and its number of warnings."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        began, count = self._sorts.get(record.msg, (-math.inf, 0))
        if record.created - began < INTERVAL_SECONDS:
            self._sorts[record.msg] = began, count + 1
            return count < IN_INTERVAL
        self._sorts[record.msg] = record.created, 1
        if count > IN_INTERVAL:
            record.msg = f"{record.getMessage()} ({count - IN_INTERVAL} more like this before)"
            record.args = ()
        return True


def log_to_stderr(verbose: bool = False) -> None:
    """Log the warnings of Tupelo to stderr, and with `verbose` also its other messages, unless the
    program has configured a handler."""
    root = logging.getLogger("tupelo")
    if verbose:
        root.setLevel(logging.INFO)
    if not root.hasHandlers():
        handler = logging.StreamHandler()
        handler.addFilter(RateLimit())
        handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
