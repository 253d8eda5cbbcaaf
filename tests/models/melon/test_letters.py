"""Letters that wait to be taken: each host's in its order, and no host's for ever."""

from __future__ import annotations

from random import Random

from tupelo.models.melon.sealed import Letter, Letters, Opened
from tupelo.values.entry import freeze


def letter(host: str, number: int, sender: str = "ada") -> Letter:
    shape, fields = freeze((host, number))
    return Letter.of(Opened(fields, shape, f"{host}/1", number, number, sender=sender, after=0))


def test_those_of_a_host_come_in_the_order_of_their_numbers():
    letters, rng = Letters(), Random(3)
    numbers = rng.sample(range(1_000), 50)
    for number in numbers:
        letters.add([letter("a", number)])
    assert [one.number for one in letters.matching((str, int))] == sorted(numbers)
    some = [one for one in letters if one.number % 3 == 0]
    letters.remove(some)
    assert len(letters) == 50 - len(some)
    assert not any(one in letters for one in some)
    letters.add(rng.sample(some, len(some)))
    assert [one.number for one in letters] == sorted(numbers)


def test_the_hosts_take_turns():
    letters = Letters()
    letters.add([letter(host, number) for host in "abc" for number in (1, 2)])
    taken = []
    while len(letters):
        one = next(letters.matching((str, int)))
        letters.remove([one])
        taken.append(one.entry.fields)
    assert taken == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("c", 2)]


def test_what_is_here_stays_as_it_is():
    letters, first = Letters(), letter("a", 1)
    letters.add([first, letter("a", 1), letter("a", 1, "ben")])
    assert first in letters
    assert [one.sender for one in letters] == ["ada", "ben"]
    assert [one.sender for one in letters.matching((str, int), "ben")] == ["ben"]
    assert list(letters.matching((str, str))) == []
