"""A host in a process of its own, whose program takes what is directed to it and says each at once.

Its arguments are how many take at a time, a folder, an address to dial, and the identities that it
trusts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread

import tupelo
from tupelo.models.melon import Melon


def take(host: tupelo.Host) -> None:
    with Melon(host) as melon:
        while True:
            message = melon.take(("n", int))
            os.write(1, f"{message[1]}\n".encode())


def main(takers: str, folder: Path, address: str, *keys: str) -> None:
    identity = tupelo.Identity.at(folder / "identity")
    trust = tupelo.Trust.known(keys)
    with (
        tupelo.Host("ben", path=folder, peers=[address], identity=identity, trust=trust) as host,
    ):
        others = [Thread(target=take, args=[host], daemon=True) for _ in range(int(takers) - 1)]
        for other in others:
            other.start()
        take(host)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
