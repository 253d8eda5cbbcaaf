"""The name and the options of a space, kept in its row so that all programs agree."""

from __future__ import annotations

import msgspec

from tupelo.errors import BadArgument, CannotSend
from tupelo.space.capacity import Capacity
from tupelo.space.order import Fifo, Key, Lifo, Order, by_field
from tupelo.values.checks import is_int

LOG_KEEP = 100_000
"""So many changes a log keeps at least, unless the space is made with another number."""

NAME_BYTES_MAX = 2_000
"""The index of the names of spaces takes longer ones only by chance."""

_ORDERS: dict[str, type[Order]] = {cls.__name__: cls for cls in (Fifo, Lifo)}


class SpaceOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """`order` is a name, or the field of a Key; `log_keep` None for all."""

    order: str = "Fifo"
    key: int | str | None = None
    reverse: bool = False
    entries: int | None = None
    size_bytes: int | None = None
    evict: str | None = None
    log_keep: int | None = LOG_KEEP

    @property
    def bounded(self) -> bool:
        return self.entries is not None or self.size_bytes is not None

    def fits(self, count: int, size: int) -> bool:
        """Whether the space may have so many entries, of so many bytes together."""
        return (self.entries is None or count <= self.entries) and (
            self.size_bytes is None or size <= self.size_bytes
        )

    def make_order(self) -> Order:
        if self.key is not None:
            return Key(self.key, reverse=self.reverse)
        return _ORDERS[self.order]()

    @property
    def needs_removals(self) -> bool:
        """Whether those who wait must be told that an entry left."""
        return self.bounded


def options_of(
    order: Order | None, capacity: Capacity | None, log_keep: int | str | None
) -> SpaceOptions:
    """Check the options of a new space. An order that is code, or keeps books, is refused."""
    if order is not None and not isinstance(order, Order):
        raise BadArgument("order", "an order such as Fifo() or Lifo()", order)
    if capacity is not None and not isinstance(capacity, Capacity):
        raise BadArgument("capacity", "a Capacity, or None", capacity)
    key = by_field(order)
    name = "Fifo" if order is None else type(order).__name__
    if key is None and _ORDERS.get(name) is not (Fifo if order is None else type(order)):
        raise CannotSend(
            f"a space in a database cannot have the order {order!r}: "
            "Fifo, Lifo, or Key with a field"
        )
    if capacity is not None and capacity.evict == "lru":
        raise CannotSend(
            "a space in a database does not know which entries were read last: "
            'evict="fifo", or None'
        )
    if log_keep not in (None, "all") and (not is_int(log_keep) or log_keep < 0):
        raise BadArgument("log_keep", 'a number of changes, or "all"', log_keep)
    bounds = capacity or Capacity()
    keep = LOG_KEEP if log_keep is None else None if log_keep == "all" else int(log_keep)
    return SpaceOptions(
        order=name if key is None else "Key",
        key=None if key is None else key.of,  # type: ignore[arg-type]
        reverse=key is not None and key.reverse,
        entries=bounds.entries,
        size_bytes=bounds.size_bytes,
        evict=bounds.evict,
        log_keep=keep,
    )


def check_name(name: object) -> str:
    """The name of a space."""
    if not isinstance(name, str) or not name:
        raise BadArgument("name", "the name of a space", name)
    check_text("name", "the name of a space", name)
    if len(name.encode()) > NAME_BYTES_MAX:
        found = f"{name[:20]!r}… of {len(name.encode())} bytes"
        raise BadArgument("name", f"the name of a space, of at most {NAME_BYTES_MAX} bytes", found)
    return name


def check_text(argument: str, what: str, text: str) -> str:
    """PostgreSQL keeps no text with the character 0, nor half a character."""
    if "\0" in text:
        raise BadArgument(argument, f"{what}, without the character 0", text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadArgument(argument, "valid Unicode", text) from None
    return text
