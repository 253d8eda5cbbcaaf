"""A host of a recording: a process of its own, which may be killed at any moment.

Its argument encodes its `HostOrder`. It prints its address, and then answers every line on standard
input: "count" with the number of changes in its logs, "doubts" with the deliveries in doubt, and
"stop" by leaving. It ends when its input is closed."""

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
"""Longer than a recording: deliveries in doubt are settled by their takers, not by a timeout."""


class HostOrder(msgspec.Struct):
    """The options of a host. It seals its logs into its own folder every `sealed_each` changes, if
    that is given, and otherwise keeps no more than `log_keep` of them."""

    name: str
    folder: str
    listen: str
    peers: list[str]
    heartbeat: float
    log_reads: bool = False
    log_keep: LogKeep = "all"
    sealed_each: int = 0


class PrintedDoubts(msgspec.Struct):
    """How many hosts are engaged, and the deliveries in doubt between hosts and with clients."""

    engaged: int
    under_way: list[str]


def main() -> None:
    logging.getLogger("tupelo").setLevel(logging.ERROR)  # Lost hosts are expected.
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
