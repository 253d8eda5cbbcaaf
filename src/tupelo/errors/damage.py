"""What is wrong with the file of a durable space."""

from __future__ import annotations

from typing import NamedTuple


class Damage(NamedTuple):
    """One thing that is wrong with a journal. `lost` is what is lost with it: "entry", "change",
    "promise", "description" or, if no more than the order of the file is disturbed, "nothing".
    `first` and `last` are the positions that are meant, 0 if there are none."""

    lost: str
    first: int
    last: int
    text: str

    def __str__(self) -> str:
        return self.text
