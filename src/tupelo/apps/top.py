"""The command `tupelo top`: the activity of a host, refreshed."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any

import click

from tupelo.apps.shell import (
    aligned,
    clear_errors,
    credentials,
    examples,
    in_json,
    json_option,
    json_text,
    trust_option,
    url_argument,
)
from tupelo.values.text import one_line

COLUMNS = ("entries", "changes/s", "waiting", "transactions", "in doubt", "watching", "health")
CLEAR = "\x1b[2J\x1b[H"


@click.command(
    epilog=examples(
        "tupelo top tupelo://127.0.0.1:7700",
        "tupelo top tupelo://127.0.0.1:7700 --interval 10 --json >> load.jsonl",
        notes="URL is a host. The columns: `waiting` is the number of calls that wait for a match,"
        " `transactions` of open transactions, `in doubt` of entries whose takers have not"
        " confirmed them, `watching` of subscriptions. In a pipe it prints one line of JSON per"
        " interval.",
    )
)
@url_argument
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 86_400),
    default=2.0,
    show_default=True,
    help="Time between two refreshes.",
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="Stop after N intervals.")
@json_option
@trust_option
def top(url: str, interval: float, count: int | None, json: bool | None, trust: str | None) -> None:
    """Show spaces, rates, waiting calls and open transactions of a host, until Ctrl-C."""
    from tupelo.federation.client.services import connect_to_host, invoke
    from tupelo.space.dual_api import run_sync

    with (
        clear_errors(),
        suppress(KeyboardInterrupt),
        connect_to_host(url, **credentials(trust)) as host,
    ):
        before: dict[str, int] = {}
        since, shown = time.monotonic(), 0
        while True:
            about = run_sync(partial(invoke, host, "inspection", "host", again=True))
            spaces = run_sync(partial(invoke, host, "inspection", "spaces", again=True))
            now = time.monotonic()
            rows = [_row(one, before.get(one["name"]), now - since) for one in spaces]
            _print(about, rows, in_json(json))
            before, since = {one["name"]: one.get("position", 0) for one in spaces}, now
            shown += 1
            if shown == count:
                return
            time.sleep(interval)


def _row(space: dict[str, Any], before: int | None, seconds: float) -> dict[str, Any]:
    if "refused" in space:
        return {"space": space["name"], "refused": space["refused"], "health": "refused"}
    rate = None if before is None or not seconds else (space["position"] - before) / seconds
    return {
        "space": space["name"],
        "entries": space["entries"],
        "changes/s": None if rate is None else round(rate, 1),
        "waiting": space["waiting"],
        "transactions": space["transactions"],
        "in doubt": space["in_doubt"],
        "watching": space["subscriptions"],
        "health": space["health"],
    }


def _print(about: dict[str, Any], rows: list[dict[str, Any]], as_line: bool) -> None:
    if as_line:
        record = {
            "time": time.time(),
            "host": about["name"],
            "peers": len(about["peers"]),
            "clients": len(about["clients"]),
            "spaces": rows,
        }
        print(json_text(record), flush=True)
        return
    lines = [
        f"{about['name']} at {about['address']}: {len(about['peers'])} peers,"
        f" {len(about['clients'])} programs   {time.strftime('%H:%M:%S')}",
    ]
    cells = [
        [one_line(row["space"])[:20]]
        + ["-" if row.get(name) is None else str(row[name]) for name in COLUMNS]
        for row in rows
    ]
    lines += aligned([("space", *COLUMNS), *cells])
    start = CLEAR if sys.stdout.isatty() else ""
    print(start + "\n".join(lines), flush=True)
