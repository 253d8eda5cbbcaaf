"""A host of a recording: a process of its own, which may be killed at any moment.

Its one argument encodes its `HostOrder`. It says where it listens, and then answers every line that
it is told: "count" with how many changes its logs have, "doubts" with what is not settled yet, and
"stop" by leaving. If nobody can tell it anything any more, it ends."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import msgspec

import tupelo
from tupelo.store.sqlite import LogKeep

SPACES = ("jobs", "mail")
DOUBT_SECONDS = 3_600.0
"""Longer than a recording: what is in doubt is settled by those who know, not by a clock."""


class HostOrder(msgspec.Struct):
    """What a host is to be. `sealed_each` so many changes it seals its logs into its own folder, if
    it does, and keeps no more than `log_keep` of them otherwise."""

    name: str
    folder: str
    listen: str
    peers: list[str]
    heartbeat: float
    log_reads: bool = False
    log_keep: LogKeep = "all"
    sealed_each: int = 0


class PrintedDoubts(msgspec.Struct):
    """How many hosts are engaged, and what is between two of them, or a host and a client."""

    engaged: int
    under_way: list[str]


def main() -> None:
    logging.getLogger("tupelo").setLevel(logging.ERROR)  # That hosts are lost is known.
    orders = msgspec.json.decode(sys.argv[1], type=HostOrder)
    host = tupelo.Host(
        orders.name,
        listen=orders.listen,
        path=orders.folder,
        peers=orders.peers,
        heartbeat=orders.heartbeat,
        doubt=tupelo.Doubt(DOUBT_SECONDS),
        archive=tupelo.Archiving(orders.folder, changes=orders.sealed_each, seconds=1.0)
        if orders.sealed_each
        else None,
    )
    for name in SPACES:
        host.space(name, durability="process", log_keep=orders.log_keep, log_reads=orders.log_reads)
    say(host.address)
    for line in sys.stdin:
        match line.strip():
            case "count":
                say(count(host))
            case "doubts":
                say(doubts(host))
            case "stop":
                host.close()
                say("gone")
    os._exit(0)


def say(what: Any) -> None:
    os.write(1, msgspec.json.encode(what) + b"\n")


def count(host: tupelo.Host) -> int:
    spaces = list(host.core.spaces.values())
    return sum(saved.durable for hosted in spaces if (saved := hosted.port.saved))


def doubts(host: tupelo.Host) -> PrintedDoubts:
    core = host.core
    under_way = [
        f"{hosted.name}: {txn.id}"
        for hosted in list(core.spaces.values())
        for txn in hosted.port.in_doubt()
    ]
    under_way += core.federation.under_way()["unsettled hand-overs"]
    return PrintedDoubts(len(core.peers), under_way)


if __name__ == "__main__":
    main()
