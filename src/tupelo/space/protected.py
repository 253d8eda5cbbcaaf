"""Lasting: the entries by which a space remembers, for whoever wrote to it, what was written.

Such an entry does not give way to others in a bounded space, and no lease policy shortens its life:
whoever relied on it would write once more what was written before. It goes when it is taken.
"""

from __future__ import annotations

from tupelo.values.entry import Shape

SUNK = "tupelo.sunk"
"""Written by the pipeline's sink, with each part of a batch."""


def is_protected(shape: Shape) -> bool:
    return shape.kind is not None and shape.kind.name == SUNK
