"""The commands that use one space: read, take, write, count, watch, show and log; and those that
describe a host: spaces and peers.

A space is named by its file, or by the URL at which a host keeps it. On a terminal the commands
print text, in a pipe one JSON object per line; `--json` and `--text` override that.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

import tupelo
from tupelo.apps.hosting import trust_of
from tupelo.errors import ForeignFile, JournalFailed, LogTrimmed, TupeloError
from tupelo.values.change import Change
from tupelo.values.entry import Typed, freeze
from tupelo.values.kind import always_stand_in
from tupelo.values.text import as_json, entry_text, read_entry, read_template, shape_text


def open_space(path: Path) -> tupelo.Space:
    """Open the space of an existing file. Reading its log trims nothing from it."""
    check_file(path)
    from tupelo.store.sqlite import SqliteJournal

    journal = SqliteJournal(path, "", "", "full", None)
    name = journal.name
    journal.stop()
    return tupelo.Space(name, path=path)


def check_file(path: Path) -> None:
    """Raise an error if the file does not exist or cannot be a journal."""
    if not path.exists():
        raise JournalFailed(f"{path} does not exist")
    if not path.is_file():
        raise ForeignFile(f"{path} is not a file")
    if not path.stat().st_size:
        raise ForeignFile(f"{path} is empty, and not a Tupelo journal")


PAGE = 500
SHOWN = 5
FOLLOW_SECONDS = 0.5
CLIENT_NAME = "tupelo command"
NO_MATCH = 3
"""Exit code of `read` and `take` if there is no match."""

Where = Annotated[
    str,
    typer.Argument(metavar="SPACE", help="A file, or a URL: tupelo://127.0.0.1:7700/jobs."),
]
HostUrl = Annotated[str, typer.Argument(metavar="URL", help="A host: tupelo://127.0.0.1:7700.")]
What = Annotated[
    str,
    typer.Argument(
        metavar="TEMPLATE", help="Which entries: '(\"job\", int, ANY)', 'job(size=Between(1, 9))'."
    ),
]
Json = Annotated[
    bool | None,
    typer.Option("--json/--text", help="One JSON object a line, as in a pipe; or text."),
]
Wait = Annotated[
    float, typer.Option(metavar="SECONDS", help="Wait so long for a match; -1 waits for ever.")
]
All = Annotated[bool, typer.Option("--all", help="All entries that match, not only one.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="At most N.")]
TrustHow = Annotated[
    str | None,
    typer.Option(
        "--trust",
        metavar="HOW",
        help="Which hosts to believe beyond this machine:"
        ' "first-use", "anyone", or a file of identities.',
    ),
]


def read(
    space: Where,
    template: What = "ANY",
    wait: Wait = 0,
    all_: All = False,
    limit: Limit = None,
    json: Json = None,
    trust: TrustHow = None,
) -> None:
    """Print an entry that matches, or with --all every one, and leave it there.

    Exit code 3: there is no match.

    Example: tupelo read tupelo://127.0.0.1:7700/jobs '("job", int, ANY)' --all
    """
    _get(space, template, wait, all_, limit, json, trust, take=False)


def take(
    space: Where,
    template: What,
    wait: Wait = 0,
    all_: All = False,
    limit: Limit = None,
    json: Json = None,
    trust: TrustHow = None,
) -> None:
    """Remove an entry that matches, or with --all every one, and print it.

    Exit code 3: there is no match.

    Example: tupelo take tupelo://127.0.0.1:7700/jobs '("job", int, ANY)' --wait 10
    """
    _get(space, template, wait, all_, limit, json, trust, take=True)


def write(
    space: Where,
    entry: Annotated[
        list[str],
        typer.Argument(
            metavar="ENTRY...",
            help="'(\"job\", 7)', '[\"job\", 7]' or 'job(number=7)'; - reads one from each line.",
        ),
    ],
    lease: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Remove it after so long.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="AGENT", help="The agent that it is for.")
    ] = None,
    trust: TrustHow = None,
) -> None:
    """Write entries, all of them or none.

    Example: tupelo write tupelo://127.0.0.1:7700/jobs '("job", 7, "resize")' --lease 3600
    """
    with clear_errors(), opened(space, trust) as target:
        texts = (line for one in entry for line in (sys.stdin if one == "-" else [one]))
        entries = [read_entry(text) for text in texts if text.strip()]
        target.write_all(entries, lease=lease, to=to)
        say(f"{len(entries)} written")


def count(space: Where, template: What = "ANY", trust: TrustHow = None) -> None:
    """Print how many entries match.

    Example: tupelo count tupelo://127.0.0.1:7700/jobs '("job", int, ANY)'
    """
    with clear_errors(), opened(space, trust) as target:
        print(target.count(read_template(template)))


def watch(
    space: Where,
    template: What = "ANY",
    limit: Limit = None,
    json: Json = None,
    trust: TrustHow = None,
) -> None:
    """Print every entry that is written from now on, until Ctrl-C.

    Example: tupelo watch tupelo://127.0.0.1:7700/jobs '("job", int, ANY)'
    """
    with (
        clear_errors(),
        opened(space, trust) as target,
        suppress(KeyboardInterrupt),
        target.subscribe(read_template(template)) as notices,
    ):
        for notice in islice(notices, limit):
            if notice.missed:
                complain(f"{notice.missed} were missed")
            print_entries([notice.entry], json)


def show(
    space: Where,
    all_: Annotated[bool, typer.Option("--all", help="Every entry, not only the first.")] = False,
    json: Json = None,
    trust: TrustHow = None,
) -> None:
    """Print what a space holds: how many entries of each shape, and the first of them.

    Example: tupelo show jobs.tupelo
    """
    with clear_errors(), opened(space, trust) as target:
        name, in_doubt, in_hand = target.name, len(target.in_doubt()), target.in_hand()
        found = entries_of(target)
        if in_json(json):
            print_entries(found, True)
            return
        shapes: Counter[str] = Counter()
        first: list[str] = []
        for one in found:
            shape, fields = freeze(one)
            shapes[shape_text(shape)] += 1
            if all_ or len(first) < SHOWN:
                first.append(entry_text(shape, fields))
        print(f"space    {name!r}\nentries  {shapes.total()}")
        if in_doubt:
            print(f"in doubt {in_doubt} prepared transactions")
        for held in in_hand:
            print(f"in hand  {held.entries} of {held.agent_name or held.agent}")
        for text, number in shapes.most_common():
            print(f"{number:>9}  {text}")
        if first:
            print("all" if all_ else "first")
        for text in first:
            print(f"           {text}")


def log(
    space: Where,
    since: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only changes after position N.")
    ] = None,
    limit: Limit = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only these: written, taken, expired...; repeatable."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens next, until Ctrl-C.")
    ] = False,
    json: Json = None,
    trust: TrustHow = None,
) -> None:
    """Print what has happened in a space, oldest first.

    Example: tupelo log tupelo://127.0.0.1:7700/jobs --follow --kind taken
    """
    with clear_errors(), opened(space, trust) as target, suppress(KeyboardInterrupt):
        as_lines = in_json(json)
        if not as_lines:
            print(f"{'position':>8}  {'time':23}  {'kind':9}  {'waited':>8}  {'txn':8}  entry")
        wanted = (one for one in changes(target, since, follow) if not kind or one.kind in kind)
        for change in islice(wanted, limit):
            print(change_json(change) if as_lines else change_text(change), flush=follow)


def spaces(url: HostUrl, json: Json = None, trust: TrustHow = None) -> None:
    """Print the spaces of a host, and how many entries each has.

    Example: tupelo spaces tupelo://127.0.0.1:7700
    """
    with clear_errors():
        about = _about_host(url, trust)
        base = url.rstrip("/")
        rows = []
        for name in about["spaces"]:
            try:
                with opened(f"{base}/{name}", trust) as target:
                    rows.append({"space": name, "entries": target.count(scope=tupelo.HERE)})
            except TupeloError as error:  # It may have a password, or access rules.
                rows.append({"space": name, "entries": None, "refused": str(error)})
        for row in rows:
            print_row(row, json)


def peers(url: HostUrl, json: Json = None, trust: TrustHow = None) -> None:
    """Print the hosts that a host is engaged with, and the programs that are connected to it.

    Example: tupelo peers tupelo://127.0.0.1:7700
    """
    with clear_errors():
        about = _about_host(url, trust)
        for name, id_ in sorted(about["hosts"].items()):
            print_row({"host": name, "id": id_}, json)
        for agent, name in sorted(about["clients"].items(), key=lambda item: item[1]):
            if name != CLIENT_NAME:
                print_row({"client": name or None, "id": agent}, json)


def _get(
    space: str,
    template: str,
    wait: float,
    all_: bool,
    limit: int | None,
    json: bool | None,
    trust: str | None,
    *,
    take: bool,
) -> None:
    seconds = None if wait == -1 else wait
    with clear_errors(), opened(space, trust) as target:
        wanted = read_template(template)
        about: list[tupelo.About] = []
        if all_ or limit is not None:
            get_all = target.take_all if take else target.read_all
            found = get_all(wanted, wait=seconds, limit=limit, about=about)
        else:
            get = target.take if take else target.read
            one = get(wanted, wait=seconds, about=about)
            found = [] if one is None else [one]
        print_entries(found, json, about)
        if not found:
            raise typer.Exit(NO_MATCH)


def _about_host(url: str, trust: str | None) -> dict[str, Any]:
    """The spaces of a host, the hosts that it is engaged with, and its clients."""
    from tupelo.federation.client.services import connect_to_host
    from tupelo.space.dual_api import run_sync

    with connect_to_host(url, **credentials(trust)) as host:
        about: dict[str, Any] = run_sync(host.describe_host)
        return about


@contextmanager
def opened(space: str, trust: str | None = None) -> Iterator[tupelo.SpaceLike]:
    """Open the space of a file or a URL. The password is in the environment: TUPELO_PASSWORD."""
    always_stand_in()
    if space.startswith("tupelo://"):
        with tupelo.connect(space, **credentials(trust)) as remote:
            yield remote
    else:
        with open_space(Path(space)) as local:
            yield local


def credentials(trust: str | None) -> dict[str, Any]:
    """Arguments to connect: fail at once if the host is not there."""
    given: dict[str, Any] = {"name": CLIENT_NAME, "reconnect": 0}
    if password := os.environ.get("TUPELO_PASSWORD"):
        given["password"] = password
    if trust is not None:
        given["trust"] = trust_of(trust)
    return given


def entries_of(space: tupelo.SpaceLike) -> Iterator[Any]:
    """Every entry of a space, page by page. The session returns each once, whatever changes."""
    with space.session() as session:
        while page := session.read_all(limit=PAGE, wait=0):
            yield from page


def changes(space: tupelo.SpaceLike, since: int | None, follow: bool = False) -> Iterator[Change]:
    """The changes of a space, page by page; from the oldest one if `since` is None."""
    try:
        page = space.changes(since=since or 0, limit=PAGE)
    except LogTrimmed as trimmed:
        if since is not None or trimmed.first <= 1:  # It keeps no log at all.
            raise
        complain(f"changes before position {trimmed.first} are not kept")
        since = trimmed.first - 1
        page = space.changes(since=since, limit=PAGE)
    last = since or 0
    while page or follow:
        yield from page
        if page:
            last = page[-1].position
        else:
            time.sleep(FOLLOW_SECONDS)
        page = space.changes(since=last, limit=PAGE)


def in_json(choice: bool | None) -> bool:
    return not sys.stdout.isatty() if choice is None else choice


def print_entries(
    entries: Iterable[Any], json: bool | None, about: Iterable[tupelo.About] = ()
) -> None:
    """Print entries; with `about`, JSON also says how often each came back, if it did."""
    as_lines = in_json(json)
    of_each = iter(about)
    for entry in entries:
        shape, fields = freeze(entry)
        one = next(of_each, None)
        said = {"deliveries": one.deliveries} if one is not None and one.deliveries else {}
        if not as_lines:
            print(entry_text(shape, fields, None), flush=True)
        elif shape.kind is None:
            print(_json({"fields": as_json(fields), **said}), flush=True)
        else:
            named = as_json(Typed(shape.kind, fields))
            print(_json({"kind": shape.kind.name, "fields": named, **said}), flush=True)


def print_row(row: dict[str, Any], json: bool | None) -> None:
    if in_json(json):
        print(_json(row))
    else:
        print("  ".join("-" if value is None else str(value) for value in row.values()))


def change_json(change: Change) -> str:
    record: dict[str, Any] = {
        "position": change.position,
        "time": change.time,
        "kind": change.kind,
        "agent": change.agent,
        "agent_name": change.agent_name,
        "txn": change.txn,
        "waited": change.waited,
        "deliveries": change.deliveries,
    }
    if change.shape is not None and change.fields is not None:
        kind, fields = change.shape.kind, change.fields
        record["entry"] = as_json(fields if kind is None else Typed(kind, fields))
        record["entry_kind"] = None if kind is None else kind.name
    return _json(record)


def change_text(change: Change) -> str:
    try:
        moment = datetime.fromtimestamp(change.time).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):  # A clock may be set to any time.
        moment = f"{change.time:<23g}"
    waited = f"{change.waited:.3f} s" if change.waited else "-"
    entry = "-"
    if change.shape is not None and change.fields is not None:
        entry = entry_text(change.shape, change.fields)
    txn = (change.txn or "-")[:8]
    return f"{change.position:>8}  {moment}  {change.kind:9}  {waited:>8}  {txn:8}  {entry}"


def _json(record: Any) -> str:
    return msgspec.json.encode(record).decode()


def say(what: object) -> None:
    if sys.stdout.isatty():
        print(what)


def complain(what: object) -> None:
    print(f"tupelo: {what}", file=sys.stderr)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Print errors as one line instead of a traceback."""
    try:
        yield
    except (TupeloError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise  # The pipe was closed, as in `tupelo log FILE | head`.
        complain(error)
        raise typer.Exit(1) from error
