"""Orders: which of several matches comes first. An order is given to a space or to an operation.

To write one, subclass Order and define `arrange`. It may also leave out matches: these are not
found, and an empty result means no match yet. `admit` and `forget` are called once for every entry
that enters and leaves the space, for orders that keep books; `admit` may refuse an entry. See
docs/ORDERS.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument, TupeloError
from tupelo.space.ranking import Ranking
from tupelo.values.entry import Entry, Shape, thaw_value

if TYPE_CHECKING:
    import random

    from tupelo.space.transaction import Txn


class Order:
    """Which of several matches comes first."""

    keeps_books = False
    by_arrival = False
    """As the order of a space: the order only keeps books, and the oldest match comes first."""
    backwards = False
    """Whether `arrange` gets the newest match first."""
    chooses = True
    """Whether `arrange` may leave out a match. Waiting operations are then tried again whenever an
    entry leaves the space, and with books also whenever one comes. True for a subclass that defines
    `arrange`, unless it sets this itself."""
    head_only = False
    """Whether only the first entry of the space can match: `arrange` gets all entries that the
    operation can see, whatever its template, and the operation finds the first one or nothing."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "arrange" in vars(cls) and "chooses" not in vars(cls):
            cls.chooses = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        """Return the matches, which come in order of arrival, with the first choice first."""
        raise NotImplementedError

    def needs(self, limit: int | None) -> int | None:
        """The number of matches that `arrange` needs for `limit` results; None for all."""
        return None

    def walk(self) -> Iterable[Entry] | None:
        """All entries of the space, the first choice first, so that the first matches are found
        without searching for all. None if the order cannot provide that."""
        return None

    def select(self, txn: Txn | None, locked: Iterable[Entry]) -> list[Entry] | None:
        """What `arrange` would choose of all entries that a transaction sees, without the `locked`
        ones, which others hold; None if the order must be given the matches."""
        return None

    def admit(self, entry: Entry, at: Any) -> None:
        """The entry enters the space, written `at` a place if one was given.

        Raise Refused if that is not possible now, which makes a waiting write wait, or any other
        error. `entry.txn` is the writing transaction.
        """

    def readmit(self, entry: Entry) -> None:
        """The entry was returned, or read from a file; it cannot be refused."""
        self.admit(entry, None)

    def taken(self, entry: Entry) -> None:
        """The entry was taken, and may come back: its transaction may abort, or its taker vanish.
        If it does not, `forget` follows."""

    def forget(self, entry: Entry) -> None:
        """The entry has left the space."""


class Fifo(Order):
    """The oldest match first: the default."""

    chooses = False

    def needs(self, limit: int | None) -> int | None:
        return limit

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        return found


class Lifo(Order):
    """The newest match first. See Stack, where only the newest entry can match."""

    backwards = True
    chooses = False

    def needs(self, limit: int | None) -> int | None:
        return limit

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        return found


class Queue(Fifo):
    """Only the oldest entry of the space can be read or taken, whatever the template; after it has
    left, the next one."""

    head_only = True


class Stack(Lifo):
    """Only the newest entry of the space can be read or taken, whatever the template; after it has
    left, the one below."""

    head_only = True


class Random(Order):
    """A random match, by the given generator: `Random(random.Random(7))`."""

    chooses = False

    def __init__(self, generator: random.Random) -> None:
        if not hasattr(generator, "sample"):
            raise BadArgument("generator", "a random.Random", generator)
        self._generator = generator

    def __repr__(self) -> str:
        return f"Random({self._generator!r})"

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        return self._generator.sample(found, len(found))


class Key(Order):
    """The smallest key first, with `reverse` the largest. The key is a field, by position or name,
    or a function of the entry.

    Entries without the key, and those with NaN, come last, in order of arrival. The first matches
    by a field are found by a sorted index; a function is called for every match.
    """

    chooses = False

    def __init__(self, of: int | str | Callable[[Any], Any], *, reverse: bool = False) -> None:
        if isinstance(of, bool) or not (isinstance(of, (int, str)) or callable(of)):
            raise BadArgument("of", "a field's position or name, or a function of the entry", of)
        self.of = of
        self.reverse = reverse

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        ranked, others = self.keyed(found)
        with self.comparing():  # The sort is stable.
            ranked.sort(key=itemgetter(0), reverse=self.reverse)
        return [entry for _, entry in ranked] + others

    def rank(self, found: list[Entry]) -> tuple[list[tuple[Any, Entry]], list[Entry]]:
        """The entries with their ranks, in order, and the entries without a key. Ranks of several
        lists can be compared; entries with equal keys are ranked by arrival."""
        sign = -1 if self.reverse else 1  # Of equal keys, the oldest comes first.
        keyed, others = self.keyed(found)
        ranked = [((key, sign * entry.arrival), entry) for key, entry in keyed]
        with self.comparing():
            ranked.sort(key=itemgetter(0), reverse=self.reverse)
        return ranked, others

    def keyed(self, found: list[Entry]) -> tuple[list[tuple[Any, Entry]], list[Entry]]:
        """The entries with their keys, and the entries without a key."""
        keyed, others = [], []
        for entry in found:
            try:
                key = self._key(entry)
                if is_nan(key):
                    others.append(entry)
                else:
                    keyed.append((key, entry))
            except (LookupError, AttributeError):
                others.append(entry)
            except Exception as error:
                raise BadArgument(
                    "order", f"a key that does not raise ({error!r})", self
                ) from error
        return keyed, others

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Raises BadArgument for keys that cannot be compared."""
        try:
            yield
        except TypeError as error:
            raise BadArgument("order", f"a key that can be compared ({error})", self) from error

    def __repr__(self) -> str:
        of = getattr(self.of, "__name__", self.of)
        return f"Key({of!r}, reverse=True)" if self.reverse else f"Key({of!r})"

    def _key(self, entry: Entry) -> Any:
        if callable(self.of):
            return self.of(entry.value)
        position = self.position_in(entry.shape)
        if position is None:
            raise LookupError(self.of)
        return thaw_value(entry.fields[position])

    def position_in(self, shape: Shape) -> int | None:
        """The position of the field in entries of this shape; None if they do not have it."""
        if isinstance(self.of, str):
            names = () if shape.kind is None else shape.kind.names
            return names.index(self.of) if self.of in names else None
        assert isinstance(self.of, int)
        count = len(shape.types)
        return self.of % count if -count <= self.of < count else None


def is_nan(key: Any) -> bool:
    """Whether a key is a NaN, which has no place among other numbers."""
    return key.is_nan() if type(key) is Decimal else type(key) is float and key != key


def by_field(order: Order | None) -> Key | None:
    """The order, if it sorts by a field and no subclass arranges the matches differently."""
    if isinstance(order, Key) and type(order).arrange is Key.arrange and not callable(order.of):
        return order
    return None


class Vector(Order):
    """A list: `write(entry, at=index)` inserts the entry, and later ones move up. Indexes count the
    entries that the writer can see.

    The sequence is kept in memory; a reopened space starts in order of arrival.
    """

    keeps_books = True
    chooses = False

    def __init__(self) -> None:
        self._list = Ranking()

    def walk(self) -> Iterable[Entry] | None:
        return self._list.entries

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        return sorted(found, key=self._list.rank_of)

    def admit(self, entry: Entry, at: Any) -> None:
        is_index = at is None or (type(at) is int and at >= 0)
        rank = self._list.rank_at(at if is_index else sys.maxsize, entry.txn)
        if isinstance(rank, int):
            raise BadArgument("at", f"an index from 0 to {rank}", at)
        self._list.add(entry, rank)

    def taken(self, entry: Entry) -> None:
        self._list.hide(entry)

    def forget(self, entry: Entry) -> None:
        self._list.remove(entry)


def hides(order: Order | None) -> bool:
    """Whether this order may leave out a match, even the only one."""
    return order is not None and (order.chooses or order.head_only)


def needed(order: Order, limit: int | None) -> int | None:
    """The number of matches the order needs. BadArgument if it raises or returns no number."""
    try:
        enough = order.needs(limit)
    except Exception as error:
        raise BadArgument("order", f"one that does not raise ({error!r})", order) from error
    if enough is not None and (type(enough) is not int or enough < 1):
        raise BadArgument("order", f"one that needs 1 or more, or None, not {enough!r}", order)
    return enough


def arranged(order: Order, found: list[Entry], limit: int | None) -> list[Entry]:
    """The first choices of an order, at most `limit`. Raises BadArgument if the order raises, or
    returns anything but some of the given entries."""
    try:
        chosen = list(order.arrange(found))[:limit]
    except TupeloError:
        raise
    except Exception as error:
        raise BadArgument("order", f"one that does not raise ({error!r})", order) from error
    if order.chooses and not _is_part(chosen, found):
        raise BadArgument("order", "one that answers with entries that it is given", order)
    return chosen


def _is_part(chosen: list[Entry], found: list[Entry]) -> bool:
    """Whether these are some of those, each once."""
    if len(chosen) == 1:
        return chosen[0] in found
    return len(set(chosen)) == len(chosen) and set(chosen) <= set(found)
