"""Weak reactions: when they end."""

from typing import Any

import tupelo
from tupelo.space.dual_api import run_coroutine
from tupelo.space.reaction import WeakReaction


def test_a_reaction_that_fires_once_leaves_the_notices_that_already_wait():
    with tupelo.Host("h") as host, host.space("s").subscribe(("job", int)) as notices:
        space = host.space("s")
        space.write_all([("job", 1), ("job", 2)])
        called: list[Any] = []
        reaction = WeakReaction(space, notices, lambda entry, step: called.append(entry), True)
        run_coroutine(reaction.run())
        assert called == [("job", 1)]
        assert not reaction.active


def test_a_reaction_ends_when_its_host_is_closed_after_a_notice_came():
    host = tupelo.Host("h")
    space = host.space("s")

    class ClosesAfterwards:
        """The notices of a host that is closed as soon as there is one."""

        def __init__(self) -> None:
            self._notices = space.subscribe(("job", int))

        def get(self) -> Any:
            notice = self._notices.get()
            host.close()
            return notice

    notices = ClosesAfterwards()
    space.write(("job", 1))
    called: list[Any] = []
    reaction = WeakReaction(space, notices, lambda entry, step: called.append(entry), False)
    run_coroutine(reaction.run())
    assert called == []
