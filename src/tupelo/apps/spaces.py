"""The commands that use one space: read, take, write, count, watch, show and log; and those that
describe a host: spaces and peers.

A space is given by its file, or by its URL at a host or in a database.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

import tupelo
from tupelo.apps.shell import (
    CLIENT_NAME,
    DATABASES,
    NO_MATCH,
    PASSWORD_HELP,
    SPACE_HELP,
    TEMPLATE_HELP,
    any_template,
    clear_errors,
    combined,
    complain,
    credentials,
    examples,
    in_json,
    json_option,
    json_text,
    limit_option,
    print_rows,
    say,
    space_argument,
    template_argument,
    trust_option,
    url_argument,
)
from tupelo.errors import (
    BadArgument,
    BadEntry,
    CannotSend,
    ForeignFile,
    JournalFailed,
    LogTrimmed,
    TupeloError,
)
from tupelo.store.format import KINDS
from tupelo.store.tail import changes_in
from tupelo.values.change import Change, change_record
from tupelo.values.entry import Typed, freeze
from tupelo.values.kind import always_stand_in
from tupelo.values.text import (
    as_json,
    entry_json,
    entry_text,
    one_line,
    read_entry,
    read_template,
    shape_text,
)

PAGE = 500
SHOWN = 5
FOLLOW_SECONDS = 0.5
NAME_WIDTH = 14
"""Longer names of programs are cut in a log that is printed as text."""
URL = "tupelo://127.0.0.1:7700"
NOTES = f"{SPACE_HELP} {PASSWORD_HELP}"
WITH_TEMPLATE = f"{SPACE_HELP} {TEMPLATE_HELP} {PASSWORD_HELP}"

getting = combined(
    click.option(
        "--wait",
        type=float,
        default=0,
        metavar="SECONDS",
        help="Wait at most SECONDS for a match; -1 waits without a limit.",
    ),
    click.option("--all", "all_", is_flag=True, help="All matching entries, not only one."),
    limit_option,
    json_option,
    trust_option,
)


@click.command(
    epilog=examples(
        f"tupelo read {URL}/jobs '(\"job\", int, ANY)' --all",
        "tupelo read jobs.tupelo 'job(size=Between(1, 9))' --json",
        notes=f"{WITH_TEMPLATE} Exit code 3: no match.",
    )
)
@space_argument
@any_template
@getting
def read(**given: Any) -> None:
    """Print a matching entry, or with --all every matching entry, without removing it."""
    _get(**given, take=False)


@click.command(
    epilog=examples(
        f"tupelo take {URL}/jobs '(\"job\", int, ANY)' --wait 10",
        notes=f"{WITH_TEMPLATE} Exit code 3: no match.",
    )
)
@space_argument
@template_argument
@getting
def take(**given: Any) -> None:
    """Remove a matching entry, or with --all every matching entry, and print it."""
    _get(**given, take=True)


@click.command(
    epilog=examples(
        f'tupelo write {URL}/jobs \'("job", 7, "resize")\' --lease 3600',
        "tupelo write jobs.tupelo 'job(number=7)' --create",
        f"tupelo read {URL}/jobs --all | tupelo write jobs.tupelo -",
        notes=f"{SPACE_HELP} ENTRY is '(\"job\", 7)', '[\"job\", 7]' or 'job(number=7)';"
        " - reads one entry from each line of standard input. A line can also be a JSON object"
        f" that read or take has printed; it keeps the exact types. {PASSWORD_HELP}",
    )
)
@space_argument
@click.argument("entry", metavar="ENTRY...", nargs=-1, required=True)
@click.option("--create", is_flag=True, help="Create the file if it does not exist.")
@click.option("--lease", type=float, metavar="SECONDS", help="Lifetime of the entries.")
@click.option(
    "--delay", type=float, metavar="SECONDS", help="Time until the entries become visible."
)
@click.option("--to", metavar="AGENT", help="Agent that the entries are for.")
@trust_option
def write(
    space: str,
    entry: tuple[str, ...],
    create: bool,
    lease: float | None,
    delay: float | None,
    to: str | None,
    trust: str | None,
) -> None:
    """Write entries: all of them or none. A host creates a missing space."""
    if space == "-":
        raise click.UsageError("SPACE comes first: tupelo write SPACE -")
    with clear_errors(), ExitStack() as stack:
        is_missing = not is_url(space) and not Path(space).exists()
        if is_missing and not create:
            raise JournalFailed(f"{space} does not exist: --create makes it")
        always_stand_in()
        entries = [read_entry(text) for text in _lines(entry) if text.strip()]
        if is_missing:
            target: tupelo.SpaceLike = tupelo.Space(Path(space).stem, path=space)
            stack.callback(target.close)
        else:
            target = stack.enter_context(opened(space, trust, create=True))
        target.write_all(entries, lease=lease, to=to, delay=delay)
        say(f"{len(entries)} written")


@click.command(
    epilog=examples(f"tupelo count {URL}/jobs '(\"job\", int, ANY)'", notes=WITH_TEMPLATE)
)
@space_argument
@any_template
@click.option("--delayed", is_flag=True, help="Count the entries that are not visible yet instead.")
@trust_option
def count(space: str, template: str, delayed: bool, trust: str | None) -> None:
    """Print the number of matching entries."""
    with clear_errors(), opened(space, trust) as target:
        wanted = read_template(template)
        if delayed:
            print(target.delayed(wanted, limit=1).count)
            return
        number = target.count(wanted)
        print(number)
        if not number:
            explain_no_match(template)
        if sys.stdout.isatty() and (hidden := hidden_in(target, wanted)).count:
            print(f"and {hidden.count} that are not visible yet (--delayed)")


@click.command(
    epilog=examples(f"tupelo watch {URL}/jobs '(\"job\", int, ANY)'", notes=WITH_TEMPLATE)
)
@space_argument
@any_template
@limit_option
@json_option
@trust_option
def watch(
    space: str, template: str, limit: int | None, json: bool | None, trust: str | None
) -> None:
    """Print new entries as they are written, until Ctrl-C."""
    with (
        clear_errors(),
        opened(space, trust) as target,
        suppress(KeyboardInterrupt),
        target.subscribe(read_template(template)) as notices,
    ):
        say("New entries are shown as they are written, until Ctrl-C.")
        for notice in islice(notices, limit):
            if notice.missed:
                complain(f"{notice.missed} were missed")
            print_entries([notice.entry], json)


@click.command(
    epilog=examples(
        "tupelo show jobs.tupelo",
        f"tupelo show {URL}/jobs --all",
        notes=f"{NOTES} A shape is the kind of an entry with the types of its fields.",
    )
)
@space_argument
@click.option("--all", "all_", is_flag=True, help="Print every entry, not only the first ones.")
@json_option
@trust_option
def show(space: str, all_: bool, json: bool | None, trust: str | None) -> None:
    """Print the contents of a space: the number of entries of each shape, and the first entries."""
    with clear_errors(), opened(space, trust) as target:
        name, in_doubt, in_hand = target.name, len(target.in_doubt()), target.in_hand()
        delayed = hidden_in(target)
        found = entries_of(target)
        if in_json(json):
            for one, about in found:
                print_entries([one], True, [about])
            return
        shapes: Counter[str] = Counter()
        first: list[str] = []
        for one, about in found:
            shape, fields = freeze(one)
            shapes[shape_text(shape)] += 1
            if all_ or len(first) < SHOWN:
                first.append(entry_text(shape, fields) + returned_text(about.deliveries))
        print(f"space    {name!r}\nentries  {shapes.total()}")
        if in_doubt:
            print(f"in doubt {in_doubt} prepared transactions")
        if delayed.count:
            print(f"delayed  {delayed.count}, the first until {moment_text(delayed.entries[0][0])}")
        for held in in_hand:
            print(f"in hand  {held.entries} of {held.agent_name or held.agent}")
        for text, number in shapes.most_common():
            print(f"{number:>9}  {text}")
        if first:
            print("all" if all_ else "first")
        for text in first:
            print(f"           {text}")


@click.command(
    epilog=examples(
        f"tupelo log {URL}/jobs --follow --kind taken",
        "tupelo log jobs.tupelo --since 100 --limit 20",
        notes=NOTES,
    )
)
@space_argument
@click.option("--since", type=click.IntRange(0), metavar="N", help="Only changes after position N.")
@limit_option
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    type=click.Choice(KINDS),
    help=f"Only changes of this kind; repeatable: {', '.join(KINDS)}.",
)
@click.option("--follow", "-f", is_flag=True, help="Continue with new changes, until Ctrl-C.")
@json_option
@trust_option
def log(
    space: str,
    since: int | None,
    limit: int | None,
    kinds: tuple[str, ...],
    follow: bool,
    json: bool | None,
    trust: str | None,
) -> None:
    """Print the changes of a space, oldest first."""
    with clear_errors(), log_of(space, follow, trust) as page, suppress(KeyboardInterrupt):
        as_lines = in_json(json)
        if not as_lines:
            print(
                f"{'position':>8}  {'time':23}  {'kind':9}  {'by':{NAME_WIDTH}}  {'waited':>8}"
                f"  {'txn':8}  entry"
            )
        wanted = (one for one in changes(page, since, follow) if not kinds or one.kind in kinds)
        for change in islice(wanted, limit):
            print(change_json(change) if as_lines else change_text(change), flush=follow)


@click.command(
    epilog=examples(f"tupelo spaces {URL}", notes=f"URL is a host: {URL}. {PASSWORD_HELP}")
)
@url_argument
@click.option("--all", "all_", is_flag=True, help="Also the internal spaces of the host.")
@json_option
@trust_option
def spaces(url: str, all_: bool, json: bool | None, trust: str | None) -> None:
    """Print the spaces of a host, and the number of entries of each space."""
    from tupelo.federation.links.address import parse_url
    from tupelo.federation.names import RESERVED

    with clear_errors():
        about = describe_host(url, credentials(trust))
        address, _ = parse_url(url)  # A space in the URL is ignored, as by the other commands.
        rows = []
        for name in about["spaces"]:
            if name.startswith(RESERVED) and not all_:
                continue
            try:
                with opened(f"tupelo://{address}/{quote(name, safe='')}", trust) as target:
                    rows.append({"space": name, "entries": target.count(scope=tupelo.HERE)})
            except TupeloError as error:  # It may have a password, or access rules.
                rows.append({"space": name, "entries": None, "refused": str(error)})
        rows.sort(key=lambda row: "refused" in row)
        print_rows(rows, json)


@click.command(epilog=examples(f"tupelo peers {URL}", notes=f"URL is a host: {URL}."))
@url_argument
@json_option
@trust_option
def peers(url: str, json: bool | None, trust: str | None) -> None:
    """Print the hosts and programs that are connected to a host."""
    with clear_errors():
        about = describe_host(url, credentials(trust))
        rows = [{"host": name, "id": id_} for name, id_ in sorted(about["hosts"].items())]
        for agent, name in sorted(about["clients"].items(), key=lambda item: item[1]):
            if name != CLIENT_NAME:
                rows.append({"client": name or None, "id": agent})
        print_rows(rows, json)
        if not rows:
            say("No other host and no program is connected.")


def _lines(given: Iterable[str]) -> Iterator[str]:
    """These texts; or for "-" the lines of standard input."""
    for one in given:
        try:
            yield from sys.stdin if one == "-" else [one]
        except UnicodeDecodeError as error:
            raise BadEntry(f"standard input cannot be read: {error}") from error


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
            say("No entry matches.")
            explain_no_match(template)
            sys.exit(NO_MATCH)


def explain_no_match(template: str) -> None:
    """A hint for a template that is only a name: it means a dataclass, not a text."""
    if template.isidentifier() and template != "ANY":
        complain(f'no {template} is here: it is read as a dataclass; a text is ("{template}",)')


def describe_host(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """The spaces of a host, the hosts connected to it, and its clients."""
    from tupelo.federation.client.services import connect_to_host
    from tupelo.space.dual_api import run_sync

    with connect_to_host(url, **options) as host:
        return run_sync(host.describe_host)


@contextmanager
def opened(
    space: str, trust: str | None = None, *, create: bool = False
) -> Iterator[tupelo.SpaceLike]:
    """Open the space of a file or a URL. The password of a space at a host is in the environment:
    TUPELO_PASSWORD. A space that a host or a database does not have is made if `create`; else
    UnknownSpace is raised."""
    always_stand_in()
    if is_url(space):
        options = credentials(trust)
        if space.startswith(DATABASES):
            options.pop("password", None)  # Its password is in its URL, or in PGPASSWORD.
        with tupelo.connect(space, create=create, **options) as remote:
            yield remote
    else:
        with open_space(Path(space)) as local:
            yield local


def is_url(space: str) -> bool:
    """Whether the text is a URL of a space. Raises BadArgument for a URL of another kind."""
    if space.startswith(("tupelo://", *DATABASES)):
        return True
    if re.match(r"[a-z][a-z0-9+.-]*://", space, re.IGNORECASE):
        expected = "a file, tupelo://host:7700/space or postgresql://host/database?space=name"
        raise BadArgument("space", expected, space)
    return False


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
        like_url = re.fullmatch(r"[^/]+:\d+/.+", str(path))
        hint = f"; a space at a host is tupelo://{path}" if like_url else ""
        raise JournalFailed(f"{path} does not exist{hint}")
    if not path.is_file():
        raise ForeignFile(f"{path} is not a file")
    if not path.stat().st_size:
        raise ForeignFile(f"{path} is empty, and not a Tupelo journal")


def hidden_in(space: tupelo.SpaceLike, template: Any = tupelo.ANY) -> tupelo.Delayed:
    """The entries that are not visible yet; none at a host that is too old for delays."""
    try:
        return space.delayed(template, limit=1)
    except CannotSend:
        return tupelo.Delayed(0, [])


def entries_of(space: tupelo.SpaceLike) -> Iterator[tuple[Any, tupelo.About]]:
    """Every entry of a space, page by page. The session returns each entry only once."""
    with space.session() as session:
        about: list[tupelo.About] = []
        while page := session.read_all(limit=PAGE, wait=0, about=about):
            yield from zip(page, about, strict=True)
            about.clear()


Page = Callable[[int], list[Change]]
"""Returns some changes after a position."""


@contextmanager
def log_of(space: str, follow: bool, trust: str | None) -> Iterator[Page]:
    """The log of a space. With `follow`, a file is only read, so its space may be in use."""
    if follow and not is_url(space):
        always_stand_in()
        check_file(Path(space))
        path = Path(space).absolute()
        yield lambda since: changes_in(path, since, PAGE)
    else:
        with opened(space, trust) as target:
            yield lambda since: target.changes(since=since, limit=PAGE)


def changes(after: Page, since: int | None, follow: bool = False) -> Iterator[Change]:
    """The changes of a log, page by page; from the oldest one if `since` is None."""
    try:
        page = after(since or 0)
    except LogTrimmed as trimmed:
        if since is not None or trimmed.first <= 1:  # It keeps no log at all.
            raise
        complain(f"changes before position {trimmed.first} are not kept")
        since = trimmed.first - 1
        page = after(since)
    last = since or 0
    while page or follow:
        yield from page
        if page:
            last = page[-1].position
        else:
            time.sleep(FOLLOW_SECONDS)
        page = after(last)


def returned_text(deliveries: int) -> str:
    """The number of times that an entry was taken and came back, as text."""
    times = "once" if deliveries == 1 else f"{deliveries} times"
    return f"  (came back {times})" if deliveries else ""


def print_entries(
    entries: Iterable[Any], json: bool | None, about: Iterable[tupelo.About] = ()
) -> None:
    """Print entries; with `about`, JSON also has the number of times that an entry came back."""
    as_lines = in_json(json)
    of_each = iter(about)
    for entry in entries:
        shape, fields = freeze(entry)
        one = next(of_each, None)
        said = {"deliveries": one.deliveries} if one is not None and one.deliveries else {}
        if not as_lines:
            print(entry_text(shape, fields, None), flush=True)
        else:
            print(json_text(entry_json(shape, fields) | said), flush=True)


def change_json(change: Change) -> str:
    record = change_record(change)
    if change.shape is not None and change.fields is not None:
        kind, fields = change.shape.kind, change.fields
        record["entry"] = as_json(fields if kind is None else Typed(kind, fields))
        record["entry_kind"] = None if kind is None else kind.name
    return json_text(record)


def change_text(change: Change) -> str:
    waited = f"{change.waited:.3f} s" if change.waited else "-"
    entry = "-"
    if change.shape is not None and change.fields is not None:
        entry = entry_text(change.shape, change.fields)
    txn, moment = (change.txn or "-")[:8], moment_text(change.time)
    by = one_line(change.agent_name or (change.agent or "-").removeprefix("local:")[:8])
    if len(by) > NAME_WIDTH:
        by = by[: NAME_WIDTH - 1] + "…"
    return (
        f"{change.position:>8}  {moment}  {change.kind:9}  {by:{NAME_WIDTH}}  {waited:>8}"
        f"  {txn:8}  {entry}"
    )


def moment_text(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):  # A clock may be set to any time.
        return f"{seconds:<23g}"
