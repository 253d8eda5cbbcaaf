"""Letters, and the record of those that were taken: it is kept for good, in few bytes, and each
take writes only the new numbers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.models.melon.test_directed import carried
from tests.models.melon.world import MelonWorld, play
from tupelo.errors import DiskFull
from tupelo.models.melon import private as private_module
from tupelo.models.melon.private import PrivateRecords, TakenNumbers, TakenRecord
from tupelo.models.melon.sealed import Letter, Letters
from tupelo.values.entry import freeze


def letter_of(number: int, sender: str = "ada", host: str = "a") -> Letter:
    shape, fields = freeze(("n", number))
    return Letter(fields, shape, f"{host}/1>>b", number, number, sender=sender, after=0)


def records_of(private: PrivateRecords) -> list[TakenRecord]:
    return [record for record, _ in private.all(TakenRecord)]


def test_what_is_written_with_a_take_does_not_grow_with_what_was_taken() -> None:
    async def scene(world: MelonWorld) -> None:
        private = PrivateRecords(world["a"].core, "other")
        taken = TakenNumbers(private)
        for number in range(private_module.DELTAS_MAX):
            taken.add([letter_of(number * 100_000)])
        sizes = [len(record.numbers) for record in records_of(private)]
        assert len(sizes) == private_module.DELTAS_MAX
        assert max(sizes) < 64
        taken.add([letter_of(7)])  # They become one.
        (record,) = records_of(private)
        assert len(record.numbers) > 64
        assert all(letter_of(n * 100_000) in taken for n in range(private_module.DELTAS_MAX))
        assert letter_of(7) in taken
        assert letter_of(8) not in taken

    play(scene, names="a")


def test_numbers_that_follow_each_other_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: MelonWorld) -> None:
        private = PrivateRecords(world["a"].core, "other")
        taken = TakenNumbers(private)
        taken.add([letter_of(10**15 + number) for number in range(50_000)])
        taken.add([letter_of(10**15 + 50_000)])
        (record,) = records_of(private)
        assert len(record.numbers) < 64

    monkeypatch.setattr(private_module, "DELTAS_MAX", 1)
    play(scene, names="a")


@pytest.mark.parametrize("folds", [False, True], ids=["apart", "folded"])
def test_a_number_is_that_of_one_sender_at_one_host(
    folds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: MelonWorld) -> None:
        private = PrivateRecords(world["a"].core, "other")
        taken = TakenNumbers(private)
        first, second = letter_of(1), letter_of(2)
        other, elsewhere = letter_of(2, sender="eve"), letter_of(2, host="c")
        taken.add([first])
        taken.add([second])
        for known in (taken, TakenNumbers(private)):  # as it is, and as it is read again
            assert all(one in known for one in (first, second))
            assert not any(one in known for one in (other, elsewhere))

    if folds:
        monkeypatch.setattr(private_module, "DELTAS_MAX", 1)
    play(scene, names="a")


def test_nothing_comes_twice_in_another_life_however_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        for number in range(9):
            await a.store(("n", number), to=b.key)
        for number in range(7):
            assert await b.take(("n", int), 10) == ("n", number)
        await world.until(lambda: len(carried(a)) == 2, "confirmed")
        await b.crash()
        await b.start()
        await world.met("ab")
        assert await b.take(("n", int), 10) == ("n", 7)
        assert await b.take(("n", int), 10) == ("n", 8)
        assert await b.take(("n", int), 3) is None

    monkeypatch.setattr(private_module, "DELTAS_MAX", 3)
    play(scene, "ab", identities=True, folder=tmp_path)


@pytest.mark.parametrize("many", [False, True], ids=["take", "take_all"])
def test_without_room_for_the_record_nothing_is_taken(tmp_path: Path, many: bool) -> None:
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await a.store(("n", 1), ("n", 2), to=b.key)
        assert await b.take(("n", int), 10) == ("n", 1)
        await world.until(lambda: len(carried(a)) == 1, "confirmed")
        b.fill_disk()
        for _ in range(2):
            with pytest.raises(DiskFull, match="nothing was done"):
                await (b.take_all if many else b.take)(("n", int), 10)
        b.disk.full = False
        assert await b.take(("n", int), 10) == ("n", 2)
        await world.until(lambda: not carried(a), "confirmed")
        await b.crash()
        await b.start()
        await world.met("ab")
        assert await b.take(("n", int), 3) is None

    play(scene, "ab", identities=True, folder=tmp_path)


def test_a_record_that_found_no_room_is_made_before_another_letter_is_taken(tmp_path: Path) -> None:
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await a.store(("n", 1), ("n", 2), to=b.key)
        await world.until(lambda: len(b.message_store.directed.letters) == 2, "here")
        taking = b.take(("n", int))
        taking.add_done_callback(lambda done: b.fill_disk())  # before the take is confirmed
        assert await taking == ("n", 1)
        with pytest.raises(DiskFull, match="nothing was done"):
            await b.take(("n", int))
        b.disk.full = False
        assert await b.take(("n", int)) == ("n", 2)
        await b.crash()
        await b.start()
        await world.met("ab")
        assert ("n", 1) not in await b.take_all(("n", int), 3)

    play(scene, "ab", identities=True, folder=tmp_path)


# Letters that wait to be taken


def letter(host: str, number: int, sender: str = "ada") -> Letter:
    shape, fields = freeze((host, number))
    return Letter(fields, shape, f"{host}/1", number, number, sender=sender, after=0)


def test_those_of_a_host_come_in_the_order_of_their_numbers():
    letters, rng = Letters(), Random(3)
    numbers = rng.sample(range(1_000), 50)
    for number in numbers:
        letters.add([letter("a", number)])
    assert [one.n for one in letters.matching((str, int))] == sorted(numbers)
    some = [one for one in letters if one.n % 3 == 0]
    letters.remove(some)
    assert len(letters) == 50 - len(some)
    assert not any(one in letters for one in some)
    letters.add(rng.sample(some, len(some)))
    assert [one.n for one in letters] == sorted(numbers)


def test_the_hosts_take_turns():
    letters = Letters()
    letters.add([letter(host, number) for host in "abc" for number in (1, 2)])
    taken = []
    while len(letters):
        one = next(letters.matching((str, int)))
        letters.remove([one])
        taken.append(one.fields)
    assert taken == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("c", 2)]


def test_what_is_here_stays_as_it_is():
    letters, first = Letters(), letter("a", 1)
    letters.add([first, letter("a", 1), letter("a", 1, "ben")])
    assert first in letters
    assert [one.sender for one in letters] == ["ada", "ben"]
    assert [one.sender for one in letters.matching((str, int), "ben")] == ["ben"]
    assert list(letters.matching((str, str))) == []
