"""A real host on a loop in a thread, whose links can be cut."""

from typing import Any

import tupelo
from tests.kinds import start_host
from tests.laws.doors import LoopThread
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.links.tcp import LinkSecurity


class Hosting:
    """One host that keeps the space `jobs`."""

    def __init__(self, security: LinkSecurity | None = None, **options: Any) -> None:
        self._loop = LoopThread()
        clock = tupelo.space.clock.SystemClock()
        self.core: HostCore = self._loop.call(start_host, "h", clock, security, **options)
        self.space: tupelo.Space = self._loop.call(self.core.make_space, "jobs").space

    @property
    def url(self) -> str:
        return f"tupelo://{self.core.address}/jobs"

    def cut(self) -> None:
        """Cut the links of all clients."""

        def abort() -> None:
            for serving in list(self.core.servings.values()):
                serving.talk.link.abort()

        self._loop.call(abort)

    def close(self) -> None:
        self._loop.call(self.core.stop)
        self._loop.close()
