"""A process of a round: clients of hosts elsewhere, or a program with a host of its own.

Its argument is its `WorkerTask`. A program with a host first prints the address of the host. Every
process begins when it gets the list of hosts (`Go`); "stop" ends its clients, and a program with a
host then drains its spaces at each "drain", until "leave". It ends when its input is closed."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import tupelo
from tupelo.errors import TupeloError
from tupelo.lab.torture.checker import DRAIN
from tupelo.lab.torture.history import HistoryLog
from tupelo.lab.torture.workloads import (
    CLIENTS,
    MEMBERS,
    Node,
    Setting,
    WorkloadClient,
    WorkloadSecurity,
    offer_site,
)
from tupelo.models.lime import Host as LimeHost

STOP_SECONDS = 60.0
"""The longest time that a client needs for its last operation, without faults."""


class HostOrders(msgspec.Struct):
    """The options of the host of a program."""

    listen: str
    peers: list[str]
    heartbeat: float
    path: str | None = None
    site: bool = False


class WorkerTask(msgspec.Struct):
    """The name of a process, which it keeps when it is restarted, and what its clients do."""

    name: str
    seed: int
    folder: str
    models: list[str]
    operations_max: int
    security: WorkloadSecurity
    node: str = ""
    host: HostOrders | None = None


class Born(msgspec.Struct):
    """The address of the host of a program, and its identity."""

    address: str = ""
    identity: str = ""


class Go(msgspec.Struct):
    nodes: list[Node]


class WorkerDone(msgspec.Struct):
    """The report of a process: the clients whose last operation has not ended."""

    stuck: list[str] = []


def main(argument: str) -> None:
    logging.getLogger("tupelo").setLevel(logging.ERROR)  # Lost links are expected.
    task = msgspec.json.decode(argument, type=WorkerTask)
    log = HistoryLog(Path(task.folder) / f"{task.name}.history")
    security = task.security
    setting = Setting(
        Path(task.folder), log, [], security, threading.Event(), task.operations_max, node=task.node
    )
    kinds = CLIENTS
    if task.host is not None:
        kinds = MEMBERS
        setting.host = _start_host(task, task.host)
        if "lime" in task.models:
            setting.lime = LimeHost(setting.host)
        if task.host.site:
            setting.site = offer_site(setting.host, Path(task.folder) / f"{task.node}.site")
        _say(Born(setting.host.address or "", setting.host.identity or ""))
    setting.nodes = msgspec.json.decode(_hear(), type=Go).nodes
    clients = [
        kind(setting, f"{task.name}.{place}", f"{task.seed} {task.name} {place}")
        for place, kind in enumerate(
            kind
            for model in task.models
            for kind in kinds.get(model, ())
            if kind.needs_identity <= security.tls
        )
    ]
    threads = [threading.Thread(target=one.run, name=one.name, daemon=True) for one in clients]
    for thread in threads:
        thread.start()
    _say(WorkerDone())
    rounds = 0
    while (order := _hear()) != b"leave":
        if order == b"stop":
            setting.stop.set()
            _say(WorkerDone(_stuck(clients, threads, log)))
        else:
            rounds += 1
            for number, client in enumerate(clients):
                _drain(type(client), setting, f"{DRAIN}.{task.name}.{rounds}.{number}")
            _say(WorkerDone())
    os._exit(0)


def _start_host(task: WorkerTask, orders: HostOrders) -> tupelo.Host:
    options: dict[str, Any] = {}
    if task.security.tls:
        identity = tupelo.Identity.at(Path(task.security.home) / "identity.pem")
        options = {"identity": identity, "trust": tupelo.Trust.anyone()}
    return tupelo.Host(
        task.node,
        listen=orders.listen,
        path=orders.path,
        peers=orders.peers,
        heartbeat=orders.heartbeat,
        **options,
    )


def _stuck(
    clients: list[WorkloadClient], threads: list[threading.Thread], log: HistoryLog
) -> list[str]:
    """Wait for the clients. Returns those whose last operation has not ended."""
    until = time.monotonic() + STOP_SECONDS
    found = []
    for client, thread in zip(clients, threads, strict=True):
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            log.end(client.name)  # It was not killed: its operation, without an end, is stuck.
            found.append(client.name)
    return found


def _drain(kind: type[WorkloadClient], setting: Setting, name: str) -> None:
    client = kind(setting, name, name)
    with suppress(TupeloError):
        client.drain()
    client.log.end(name)


def _say(what: msgspec.Struct) -> None:
    os.write(1, msgspec.json.encode(what) + b"\n")


def _hear() -> bytes:
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(1)  # The parent is gone.
    return line.rstrip(b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
