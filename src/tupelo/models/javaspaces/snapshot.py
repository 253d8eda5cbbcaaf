"""Snapshots: an entry or a template that is checked and compiled once, and used often."""

from __future__ import annotations

from typing import Any

from tupelo.errors import BadArgument
from tupelo.values.entry import freeze, thaw
from tupelo.values.kind import is_typed
from tupelo.values.template import Template


class Snapshot:
    """A copy of an entry, to be used in its place; changes of the entry do not reach it."""

    __slots__ = ("entry", "template")

    def __init__(self, entry: Any) -> None:
        if not is_typed(entry):
            raise BadArgument("entry", "an instance of a dataclass", entry)
        self.entry = thaw(*freeze(entry))
        self.template = Template(self.entry)

    def __repr__(self) -> str:
        return f"Snapshot({self.entry!r})"
