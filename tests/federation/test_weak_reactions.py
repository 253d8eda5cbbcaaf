"""Weak reactions: when they end."""

from typing import Any

import tupelo
from tupelo.space.dual_api import run_coroutine
from tupelo.space.fetching import FetchingReaction
from tupelo.values.entry import Entry


async def _no_matches() -> list[Entry]:
    return []


def _reaction(space: Any, notices: Any, called: list[Any], once: bool) -> FetchingReaction:
    def function(entry: Any, step: Any) -> None:
        called.append(entry)

    return FetchingReaction(space, "here", notices, _no_matches, function, once)


def test_a_reaction_that_fires_once_leaves_the_notices_that_already_wait():
    with tupelo.Host("h") as host, host.space("s").subscribe(("job", int)) as notices:
        space = host.space("s")
        space.write_all([("job", 1), ("job", 2)])
        called: list[Any] = []
        reaction = _reaction(space, notices, called, True)
        run_coroutine(reaction.run([]))
        assert called == [("job", 1)]
        assert not (reaction.active or notices.active)


def test_a_reaction_ends_when_its_host_is_closed_after_a_notice_came():
    host = tupelo.Host("h")
    space = host.space("s")

    class ClosesAfterwards:
        """The notices of a host that is closed as soon as there is one."""

        def __init__(self) -> None:
            self._notices: Any = space.subscribe(("job", int))

        @property
        def active(self) -> bool:
            return bool(self._notices.active)

        async def fetch_next(self) -> Any:
            notice = self._notices.get()
            host.close()
            return notice

        async def leave(self, error: object) -> None:
            await self._notices.leave(error)

    notices = ClosesAfterwards()
    space.write(("job", 1))
    called: list[Any] = []
    reaction = _reaction(space, notices, called, False)
    run_coroutine(reaction.run([]))
    assert called == []
    assert not reaction.active
