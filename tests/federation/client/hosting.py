"""A real host on a loop in a thread, whose links can be cut."""

import itertools
import random
from typing import Any

import tupelo
from tests.laws.doors import LoopThread
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.links.tcp import LinkSecurity, TcpNetwork


class Hosting:
    """One host that keeps the space `jobs`."""

    def __init__(self, security: LinkSecurity | None = None, **options: Any) -> None:
        self._loop = LoopThread()
        self.core: HostCore = self._loop.call(self._start, security, options)
        self.space: tupelo.Space = self._loop.call(self.core.make_space, "jobs").space

    async def _start(self, security: LinkSecurity | None, options: dict[str, Any]) -> HostCore:
        ids = itertools.count()
        core = HostCore(
            "host",
            host_id="h",
            network=TcpNetwork(security),
            clock=tupelo.space.clock.SystemClock(),
            rng=random.Random(0),
            new_id=lambda: f"id{next(ids)}",
            listen="127.0.0.1:0",
            **options,
        )
        await core.start()
        return core

    @property
    def url(self) -> str:
        return f"tupelo://{self.core.address}/jobs"

    def cut(self) -> None:
        """Cut the links of all clients."""

        def abort() -> None:
            for serving in list(self.core.servings.values()):
                serving.talk.link._transport.abort()  # type: ignore[attr-defined]

        self._loop.call(abort)

    def close(self) -> None:
        self._loop.call(self.core.stop)
        self._loop.close()
