"""A host in a process of its own, whose program takes jobs wherever they are and says each at once.

Its one argument is a JSON object of options; what it says are lines of JSON, as `host_child` does:

    ["ready", address, id]          it listens
    ["took", number]                its program has got this job
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from tupelo.federation.hosts.doors import AsyncHost


def say(*words: Any) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


async def main(options: dict[str, Any]) -> None:
    host = AsyncHost(
        options["name"],
        listen=0,
        path=options["path"],
        peers=options["peers"],
        heartbeat=0.2,
    )
    async with host:
        space = host.space("jobs")
        say("ready", host.address, host.id)
        while True:
            taken = await space.take(("job", int))
            assert taken is not None
            say("took", taken[1])


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
