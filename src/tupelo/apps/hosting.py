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
from tupelo.errors import BadArgument, BadInput, CannotReach
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
"""The log has at most so many warnings of one sort in each interval."""

directory = click.Path(path_type=Path)


@click.command(
    epilog=examples(
        "tupelo host kitchen --path kitchen --console 127.0.0.1:7780",
        "tupelo host kitchen --listen 0.0.0.0:7700 --trust known_hosts --peer 192.0.2.7:7700",
        "tupelo host --config /etc/tupelo/host.toml",
        notes="NAME is what other hosts call it. Options given here override those of --config,"
        " whose keys docs/HOSTS.md lists. SIGTERM and Ctrl-C stop it; SIGHUP makes it read"
        " the file of --trust again. TUPELO_CONSOLE_TOKEN sets the token of the console.",
    )
)
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--config",
    metavar="FILE",
    type=directory,
    help="Read its name, options and spaces from this TOML file.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default=LISTEN,
    show_default=True,
    help="Where it can be reached; port 0 is any.",
)
@click.option("--path", metavar="DIR", type=directory, help="Keep its spaces in this directory.")
@click.option(
    "--peer", "peers", metavar="ADDRESS", multiple=True, help="A host to look for; repeatable."
)
@click.option("--discover", is_flag=True, help="Find hosts in the local network, and be found.")
@click.option(
    "--trust",
    metavar="HOW",
    help='Who is let in from beyond this machine: "first-use", "anyone", or a file with an'
    " identity on each line, perhaps with a moment until which it is trusted. Without it nobody"
    " is.",
)
@click.option(
    "--local-trust/--no-local-trust",
    default=True,
    show_default=True,
    help="Whether programs on this machine need no identity. Not behind a tunnel or a proxy, where"
    " everyone seems to be one.",
)
@click.option(
    "--heartbeat",
    metavar="SECONDS",
    type=float,
    default=1.0,
    show_default=True,
    help="Heartbeat interval; a peer is dropped after three misses.",
)
@click.option(
    "--archive",
    metavar="DIR",
    type=directory,
    help="Seal the logs of its spaces here, before they are cut.",
)
@click.option(
    "--console",
    metavar="ADDRESS",
    help="Serve the console and the HTTP API here, such as 127.0.0.1:7780.",
)
@click.option(
    "--console-tls",
    is_flag=True,
    help="Serve the console by HTTPS; certificates of trusted identities are accepted as the token"
    " is.",
)
@click.option(
    "--create/--no-create",
    default=True,
    show_default=True,
    help="Whether programs may make spaces, or only open those that exist.",
)
@click.option("--verbose", "-v", is_flag=True, help="Log also who comes and goes.")
@click.pass_context
def host(context: click.Context, /, config: Path | None, **given: Any) -> None:
    """Run a host: programs connect to its spaces, and it shares them with other hosts."""
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
        notes="URL is a host: tupelo://127.0.0.1:7700. TUPELO_CONSOLE_TOKEN sets the token; else"
        " one is made, and printed.",
    )
)
@url_argument
@click.option(
    "--listen",
    metavar="ADDRESS",
    default=CONSOLE,
    show_default=True,
    help="Where the page is served; port 0 is any.",
)
@click.option(
    "--remote",
    is_flag=True,
    help="Allow an address beyond this machine. Put a proxy with TLS before it.",
)
@trust_option
def console(url: str, listen: str, remote: bool, trust: str | None) -> None:
    """Serve the console and the HTTP API of a host that runs already, until Ctrl-C."""
    with clear_errors():
        options = credentials(trust) | {"name": "console", "reconnect": 30.0}
        with opened_console(url, listen, remote, **options) as page:
            print(f"console {page.url}", flush=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()


def trust_of(text: str | None) -> tupelo.Trust | None:
    """The trust for "first-use", "anyone", or a file with an identity on each line, optionally with
    a moment until which it is trusted."""
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
    verbose: bool = False,
    limits: tupelo.Limits | None = None,
    access: tupelo.Access | None = None,
    spaces: Mapping[str, Mapping[str, Any]] | None = None,
    create: bool = True,
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
        )
    except CannotReach as error:
        cause = error.__cause__
        busy = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
        why = "another program uses it: stop it, or choose another --listen" if busy else cause
        raise BadInput(f"cannot listen at {error.address}: {why}") from error
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
                    options["certificates"] = console_tls
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

    BadInput if the packages that it needs are not installed.
    """
    try:
        from tupelo.apps.console import Console
    except ModuleNotFoundError as error:
        text = f'the console needs {error.name}: pip install "tupelo[console]"'
        raise BadInput(text) from error
    token = os.environ.get("TUPELO_CONSOLE_TOKEN")
    return Console(url, listen=listen, token=token, remote=remote, **options)


def _own_connection(host: tupelo.Host, local_trust: bool) -> tuple[str, dict[str, Any]]:
    """The URL and options by which the console of a host connects to it: as a program on this
    machine, or where there is no trust in those with the identity of the host itself."""
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
        return one_line(super().formatMessage(record))

    def formatException(self, error: Any) -> str:  # noqa: N802
        lines = super().formatException(error).splitlines()
        return "\n".join(f"    {one_line(line)}" for line in lines)


class RateLimit(logging.Filter):
    """Lets only the first warnings of a sort pass in each interval, such as the refusals of a
    program that tries again and again; the next one that passes says how many did not."""

    def __init__(self) -> None:
        super().__init__()
        self._sorts: dict[str, tuple[float, int]] = {}
        """By format: when its interval began, and how many warnings it had."""

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
    """Log Tupelo's warnings to stderr, and with `verbose` also what is normal, unless the program
    has configured a handler."""
    root = logging.getLogger("tupelo")
    if verbose:
        root.setLevel(logging.INFO)
    if not root.hasHandlers():
        handler = logging.StreamHandler()
        handler.addFilter(RateLimit())
        handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
