"""The shapes of the entries of a space, which are numbered in its database."""

from __future__ import annotations

import threading
from datetime import datetime
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from tupelo.values.entry import Shape, Typed, shape_of
from tupelo.values.kind import kind_named

if TYPE_CHECKING:
    from tupelo.postgres.space import PostgresSpace

_TYPES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        *(NoneType, bool, int, float, str, bytes, datetime, UUID, Decimal),
        *(tuple, list, dict, Typed),
    )
}

LOAD = """
    SELECT number, signature FROM tupelo.shapes
    WHERE space = %(space)s AND number > %(known)s ORDER BY number
"""
LOCK = "SELECT FROM tupelo.spaces WHERE id = %(space)s FOR NO KEY UPDATE"
REGISTER = """
    WITH new AS (
        INSERT INTO tupelo.shapes (space, number, signature)
        SELECT id, shapes + 1, %(signature)s FROM tupelo.spaces WHERE id = %(space)s
        ON CONFLICT DO NOTHING RETURNING number
    )
    UPDATE tupelo.spaces SET shapes = shapes + 1
    WHERE id = %(space)s AND EXISTS (SELECT FROM new)
"""


class ShapeTable:
    """The shapes of a space that this program knows; the first has the number 1."""

    def __init__(self, space: PostgresSpace) -> None:
        self._space = space
        self._lock = threading.Lock()
        self.known: list[Shape] = []  # replaced, never changed: searches hold it
        self.numbers: dict[Shape, int] = {}

    async def load(self, link: Any) -> None:
        """Get the shapes that are new."""
        rows = await self._space.run(link, LOAD, known=len(self.known))
        found = [(number, read_signature(signature)) for number, signature in rows]
        with self._lock:
            for number, shape in found:
                if number == len(self.known) + 1:  # Another operation may have loaded it.
                    self.known = [*self.known, shape]
                    self.numbers[shape] = number

    async def register(self, shape: Shape) -> int:
        """The number of a new shape. It has its own transaction: an entry is never visible before
        its shape."""
        space = self._space

        async def register(link: Any) -> tuple[None, bool]:
            await space.run(link, LOCK)
            await space.run(link, REGISTER, signature=signature_of(shape))
            return None, True

        await space.atomic(register)
        await space.reading(self.load)  # Only what is committed keeps its number.
        return self.numbers[shape]


def signature_of(shape: Shape) -> bytes:
    """A shape in bytes."""
    kind = shape.kind and (shape.kind.name, shape.kind.names, shape.kind.lineage)
    return msgspec.msgpack.encode((kind, [cls.__name__ for cls in shape.types]))


def read_signature(signature: bytes) -> Shape:
    kind, types = msgspec.msgpack.decode(signature)
    found = kind and kind_named(kind[0], tuple(kind[1]), tuple(kind[2]))
    return shape_of(found, tuple(_TYPES[name] for name in types))
