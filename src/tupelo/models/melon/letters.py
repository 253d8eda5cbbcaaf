"""Letters: the directed messages that were opened at their addressee's, and not taken yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from tupelo.models.melon.sealed import Letter
from tupelo.values.entry import Shape
from tupelo.values.template import Binding, as_template


class Letters:
    """Those of each host in the order in which it has stored them. The host of which one was taken
    is the last to be looked at again."""

    def __init__(self) -> None:
        self._hosts: dict[str, OrderedDict[tuple[str, int], Letter]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._hosts.values()))

    def __iter__(self) -> Iterator[Letter]:
        for letters in self._hosts.values():
            yield from letters.values()

    def __contains__(self, letter: Letter) -> bool:
        letters = self._hosts.get(letter.host)
        return letters is not None and letters.get((letter.stream, letter.number)) is letter

    def add(self, added: Iterable[Letter]) -> None:
        """What is here already stays as it is."""
        for letter in added:
            letters = self._hosts.setdefault(letter.host, OrderedDict())
            last = next(reversed(letters.values())) if letters else letter
            letters.setdefault((letter.stream, letter.number), letter)
            if letter.number < last.number:
                by_number = sorted(letters.items(), key=lambda item: item[1].number)
                self._hosts[letter.host] = OrderedDict(by_number)

    def remove(self, removed: Iterable[Letter]) -> None:
        for letter in removed:
            letters = self._hosts.pop(letter.host)
            del letters[letter.stream, letter.number]
            if letters:
                self._hosts[letter.host] = letters

    def matching(self, template: Any, sender: str | None = None) -> Iterator[Letter]:
        """Those that match, of one sender if it is given, while none comes or goes."""
        asked = as_template(template)
        bindings: dict[Shape, Binding | None] = {}
        for letter in self:
            shape = letter.entry.shape
            if shape not in bindings:
                bindings[shape] = asked.bind(shape)
            binding = bindings[shape]
            is_from = sender is None or letter.sender == sender
            if is_from and binding is not None and binding.test(letter.entry.fields):
                yield letter
