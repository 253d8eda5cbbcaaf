"""Helpers: programs that compute tasks of an ActiveCoordinator elsewhere (thesis, section 8.3).

A helper takes a task when one of its workers is free, so that programs share the work by their
capacity. It says which functions it computes, and nothing else is ever run here, whatever the site
asks. A task is held for it at the site until its result is there: if the helper is closed, killed
or cut off, another program gets the task. So a task may be computed twice, and has one result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tupelo.errors import (
    BadArgument,
    LeaseLost,
    PeerLost,
    SpaceClosed,
    TupeloError,
    UnknownType,
)
from tupelo.federation.client.arguments import parts
from tupelo.models.xvsm.active import Workers, computed, described, name_of_task
from tupelo.models.xvsm.site import RemoteContainer, Sites
from tupelo.models.xvsm.wire import payload_from_wire
from tupelo.space.checks import check_count
from tupelo.space.dual_api import Closing, dual_api, run_sync

if TYPE_CHECKING:
    from tupelo.models.xvsm.capi import Capi

logger = logging.getLogger("tupelo")


class Helper(Closing):
    """Computes tasks of a container elsewhere until it is closed.

    `done` counts the results that the site has recorded. `unconfirmed` counts the results that were
    computed here while the link was lost: the site may have recorded them, or gives the tasks to
    another program. `error` says why the helper has ended, if it was not closed.
    """

    def __init__(
        self,
        sites: Sites,
        is_async: bool,
        cref: RemoteContainer,
        functions: tuple[Callable[..., Any], ...],
        workers: int,
    ) -> None:
        from tupelo.models.xvsm.capi import Capi

        if not functions:
            raise BadArgument("functions", "one function or more that is computed here", functions)
        self.is_async = is_async
        self.container = cref
        self.done = 0
        self.unconfirmed = 0
        self.error: TupeloError | None = None
        self._functions = {name_of_task(function, "functions"): function for function in functions}
        self._workers = Workers(check_count(workers, "workers"), self._take, self._do)
        self._outer = sites
        self._capi = Capi()
        self._capi.sites = sites.for_threads()
        sites.endings[self._close] = None
        self._workers.hire()

    @property
    def active(self) -> bool:
        """Does it still help?"""
        return not self._workers.closed

    @dual_api
    async def close(self) -> None:
        """Help no more: what is being computed here is given to others."""
        await asyncio.to_thread(self._close) if self.is_async else self._close()

    def _close(self) -> None:
        self._workers.closed = True
        self._outer.endings.pop(self._close, None)
        self._capi.close()

    def _place(self) -> tuple[Capi, RemoteContainer]:
        return self._capi, self.container

    def _call(self, name: str, *args: Any) -> Any:
        site = run_sync(partial(self._capi.sites.at, self.container.address))
        return run_sync(partial(site.call, name, {}, *args))

    def _take(self) -> Any:
        try:
            return self._call("next_task", self.container, None, list(self._functions))
        except TupeloError as error:
            if self.active:
                self.error = error
                logger.warning("%r is helped no more: %s", self.container, error)
            raise SpaceClosed("this helper has ended") from error

    def _do(self, found: Any) -> None:
        task, name, encoded = parts(found, 3)
        try:
            arguments = payload_from_wire(encoded)
        except UnknownType as error:
            logger.warning("%s is not computed here any more: %s", name, error)
            self._functions.pop(name, None)
            self._finish(task, None, None)
            return
        ok, value = computed(self._functions.__getitem__, name, arguments, self._place)
        try:
            self._finish(task, ok, value)
        except SpaceClosed:
            raise
        except TupeloError as error:  # It cannot be sent.
            self._finish(task, False, described(error))

    def _finish(self, task: int, ok: bool | None, value: Any) -> None:
        try:
            self._call("finish_task", task, ok, value)
        except (LeaseLost, PeerLost) as error:
            if ok is not None:
                self.unconfirmed += 1
                logger.warning("a result for %r may be computed again: %s", self.container, error)
            return
        self.done += ok is not None
