"""Run all experiments in virtual time for some seconds, with durable hosts in a folder, and print
for each the digests of its messages, of its records and of the files of its hosts."""

from __future__ import annotations

import logging
import sqlite3
import sys
from hashlib import sha256
from pathlib import Path

from tupelo.lab.experiment import Experiment, experiments

SHORT = {"duration": 20.0, "hosts": 4, "updates": 10, "messages": 50, "collects": 3, "loss": 0.1}
MEASURED = "local"
"""An experiment whose records are measured times of this machine."""


def print_digests(experiment: Experiment, folder: Path) -> None:
    defaults, hosts = experiment.defaults, folder / experiment.name
    known = {*defaults.values, *(("loss",) if defaults.network == "radio" else ())}
    known |= {name for name in ("hosts", "duration") if defaults[name] > 7 * SHORT[name] / 4}
    if defaults.duration < 200:  # Its programs need it.
        known -= {"duration"}
    changes = {key: value for key, value in SHORT.items() if key in known}
    settings = defaults.with_changes({**changes, "seed": 5, "folder": str(hosts)})
    result, _ = experiment.measure(settings)
    logs = sha256()
    files = sorted(hosts.rglob("*.tupelo"))
    assert files
    for file in files:
        logs.update(str(file.relative_to(folder)).encode())
        database = sqlite3.connect(file)
        logs.update("\n".join(database.iterdump()).encode())
        database.close()
    records = sha256(repr(result.rows).encode())
    print(experiment.name, result.digest, records.hexdigest(), logs.hexdigest())


if __name__ == "__main__":
    logging.getLogger("tupelo").setLevel(logging.CRITICAL)
    for one in experiments():
        if one.name != MEASURED:
            print_digests(one, Path(sys.argv[1]))
