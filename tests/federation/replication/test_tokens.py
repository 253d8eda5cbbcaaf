"""Tokens: one host has each at a time, whatever becomes of the links."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.conftest import seeds
from tests.federation.replication.town import Citizen, Town, play
from tupelo.errors import DiskFull, TokenAway
from tupelo.federation.replication.tokens import KeptToken, Token, TokenAt, Tokens

ROW = ("ba", "cb")


def tokens_of(one: Citizen) -> Tokens:
    assert one.life is not None
    return one.life.call(Tokens, one.core, one.feed)


async def add(tokens: Tokens, letter: bytes, wait: float | None = 20.0) -> bytes:
    async with tokens.token("t").held(wait) as token:
        token.state += letter
        return token.state


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


def test_it_goes_to_who_asks_with_its_state(folder):
    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "abc"}
        await town["a"].do(all_of["a"].create("t", b"-"))
        for name in "abcacbbca":
            await town[name].do(add(all_of[name], name.encode()))
        assert [all_of[name].token("t").here for name in "abc"] == [True, False, False]
        assert all_of["a"].token("t").state == b"-abcacbbca"

    play(scene, *ROW, folder=folder)


def test_those_who_want_it_at_once_have_it_one_after_another():
    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "abc"}
        await town["a"].do(all_of["a"].create("t"))
        inside = 0

        async def use(name: str) -> None:
            nonlocal inside
            async with all_of[name].token("t").held(60.0) as token:
                inside += 1
                assert inside == 1
                token.state += name.encode()
                await asyncio.sleep(0.3)
                inside -= 1

        await asyncio.gather(*[town[name].do(use(name)) for name in "abcabcabc"])
        states = [one.token("t").state for one in all_of.values() if one.token("t").here]
        assert [sorted(state) for state in states] == [sorted(b"abcabcabc")]

    play(scene, *ROW)


def test_who_cannot_reach_the_holder_is_told_so():
    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "abc"}
        await town["a"].do(all_of["a"].create("t"))
        await town["b"].do(add(all_of["b"], b"b"))
        town.network.partition("ab", "c")
        await asyncio.sleep(5)
        with pytest.raises(TokenAway) as raised:
            await town["c"].do(add(all_of["c"], b"c", wait=3.0))
        assert raised.value.token == "t"
        assert await town["a"].do(add(all_of["a"], b"a")) == b"ba"
        waiting = town["c"].do(add(all_of["c"], b"c", wait=30.0))
        await asyncio.sleep(1)
        town.network.heal()
        assert await waiting == b"bac"

    play(scene, *ROW)


def test_a_holder_with_a_folder_comes_back_with_it(tmp_path):
    async def scene(town: Town) -> None:
        first = tokens_of(town["a"])
        other = tokens_of(town["b"])
        await town["a"].do(first.create("t"))
        await town["a"].do(add(first, b"a"))
        await town["a"].crash()
        with pytest.raises(TokenAway):
            await town["b"].do(add(other, b"b", wait=3.0))
        await town["a"].start()
        tokens_of(town["a"])
        assert await town["b"].do(add(other, b"b")) == b"ab"

    play(scene, "ba", folder=tmp_path)


def test_an_epoch_that_leaves_no_room_is_not_believed(folder):
    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "abc"}
        await town["a"].do(all_of["a"].create("t"))
        for name in "bca":
            await town[name].do(add(all_of[name], name.encode()))
        for epoch in (2**63, 10**50):
            lie = TokenAt("t", epoch, town["a"].core.id)
            await town["c"].do(all_of["c"]._say(lie))
            await asyncio.sleep(5)
        for name in "bcab":
            await town[name].do(add(all_of[name], name.encode()))
        assert all_of["b"].token("t").state == b"bcabcab"

    play(scene, *ROW, folder=folder)


@pytest.mark.parametrize("seed", range(2))
def test_there_are_never_two_through_partings_and_crashes(seed, tmp_path):
    """Everyone wants it all the time, while links break and hosts with folders crash."""
    storm(seed, 1.0, tmp_path)


@pytest.mark.parametrize("seed", seeds(3))
def test_there_are_never_two_through_partings(seed):
    storm(seed, 0.1, None)


def storm(seed: int, pause: float, folder: Path | None) -> None:
    async def scene(town: Town) -> None:
        names = "abcd"
        rng = Random(seed)
        done: list[int] = []
        who: set[str] = set()
        tasks: dict[str, asyncio.Task[None]] = {}

        def begin(name: str) -> Tokens:
            tokens = tokens_of(town[name])
            tasks[name] = town[name].do(work(tokens, name))
            return tokens

        async def work(tokens: Tokens, name: str) -> None:
            while True:
                try:
                    async with tokens.token("t").held(5.0) as token:
                        number = int(token.state or b"0") + 1
                        await asyncio.sleep(0.05)
                        token.state = str(number).encode()
                    assert number not in done  # Else two had it.
                    done.append(number)
                    who.add(name)
                except TokenAway:
                    pass
                await asyncio.sleep(pause)

        first = begin("a")
        await town["a"].do(first.create("t", b"0"))
        for name in names[1:]:
            begin(name)
        for _ in range(4):
            await asyncio.sleep(rng.random() * 5)
            side = [name for name in names if rng.random() < 0.5]
            town.network.partition(side, [name for name in names if name not in side])
            await asyncio.sleep(rng.random() * 6)
            if folder is None:
                town.network.heal()
                continue
            victim = rng.choice(names)
            await town[victim].crash()
            await asyncio.wait([tasks[victim]])
            town.network.heal()
            await asyncio.sleep(rng.random() * 2)
            await town[victim].start()
            begin(victim)
        who.clear()
        await asyncio.sleep(20)
        for task in tasks.values():
            assert not task.done() or task.exception() is None
            task.cancel()
        await asyncio.wait(tasks.values())
        assert who == set(names)

    play(scene, "ba", "cb", "dc", "da", folder=folder, seed=seed)


def test_what_was_given_to_one_who_lost_patience_is_there_when_it_comes():
    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "ab"}
        await town["a"].do(all_of["a"].create("t"))
        await town["b"].do(add(all_of["b"], b"b"))
        town.network.slow("a", "b", 50)
        with pytest.raises(TokenAway):
            await town["a"].do(add(all_of["a"], b"a", wait=0.01))
        await town.until(lambda: all_of["a"].token("t").here, "at a")
        assert not all_of["b"].token("t").here
        assert all_of["a"].token("t").state == b"b"

    play(scene, "ba")


@pytest.mark.parametrize("seed", seeds(3))
def test_a_token_never_stays_between_two(seed, folder):
    """Links are cut while it is handed over; whoever was given it has it in the end."""

    async def scene(town: Town) -> None:
        rng = Random(seed)
        all_of = {name: tokens_of(town[name]) for name in "abc"}
        await town["a"].do(all_of["a"].create("t"))
        for _ in range(6):
            name = rng.choice("abc")
            asking = town[name].do(add(all_of[name], b".", wait=20.0))
            await asyncio.sleep(rng.random() * 0.1)
            town.network.cut(*rng.sample("abc", 2))
            asking.cancel()
            await asyncio.wait([asking])
        tokens = [one.token("t") for one in all_of.values()]
        await town.until(lambda: [token.here for token in tokens].count(True) == 1, "somewhere")

    play(scene, *ROW, "ca", folder=folder, seed=seed)


@pytest.mark.parametrize("first_ends", [True, False])
def test_nobody_is_given_a_token_before_that_is_on_disk(first_ends, tmp_path, monkeypatch):
    """Its disk is slow: whoever asks again meanwhile is not answered sooner, even if the first
    question is taken back. So a giver that crashes never has what another got."""

    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "ab"}
        token = await town["a"].do(all_of["a"].create("t", b"-"))
        slow = asyncio.Event()

        async def keep(tokens: Tokens, token: Token, kept: KeptToken | None = None) -> None:
            await slow.wait()
            await original(tokens, token, kept)

        original = Tokens._keep
        monkeypatch.setattr(Tokens, "_keep", keep)
        first = town["a"].do(token.asked("b", 0, None))
        await asyncio.sleep(1)
        if first_ends:
            first.cancel()
        second = town["a"].do(token.asked("b", 0, None))
        await asyncio.sleep(1)
        assert not second.done()
        slow.set()
        assert await second == ["given", 2, b"-", None, None]
        await town["a"].crash()
        await town["a"].start()
        assert not tokens_of(town["a"]).token("t").here

    play(scene, "ba", folder=tmp_path)


def test_nobody_confirms_a_token_before_it_is_on_disk(tmp_path, monkeypatch):
    """The one who gets it has a slow disk, and crashes; the giver has reminded it meanwhile."""

    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "ab"}
        await town["a"].do(all_of["a"].create("t", b"-"))
        await town.until(lambda: all_of["b"].token("t").holder == "a", "known at b")
        never = asyncio.Event()

        async def keep(tokens: Tokens, token: Token, kept: KeptToken | None = None) -> None:
            if tokens.me == "b":
                await never.wait()
            await original(tokens, token, kept)

        original = Tokens._keep
        monkeypatch.setattr(Tokens, "_keep", keep)
        asking = town["b"].do(add(all_of["b"], b"b"))
        await town.until(lambda: all_of["a"].token("t").given == "b", "given")
        await asyncio.sleep(1)
        town["a"].call(all_of["a"]._remind)
        await asyncio.sleep(1)
        assert all_of["a"].token("t").given == "b"
        monkeypatch.undo()
        await town["b"].crash()
        await asyncio.wait([asking])
        await town["b"].start()
        assert await town["b"].do(add(tokens_of(town["b"]), b"b")) == b"-b"

    play(scene, "ba", folder=tmp_path)


def test_a_token_that_came_while_the_disk_was_full_is_here_when_there_is_room(tmp_path):
    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "ab"}
        await town["a"].do(all_of["a"].create("t", b"-"))
        town["b"].fill_disk()
        with pytest.raises(DiskFull):
            await town["b"].do(add(all_of["b"], b"b"))
        assert not any(one.token("t").here for one in all_of.values())
        town["b"].disk.full = False
        await town.until(lambda: all_of["b"].token("t").here, "at b")
        assert await town["a"].do(add(all_of["a"], b"a")) == b"-a"

    play(scene, "ab", folder=tmp_path)


class Payload:
    """A payload of a token that can be replaced."""

    moves_on_leave = False
    losses = 0

    def __init__(self) -> None:
        self.lost: list[str] = []

    def state(self) -> bytes:
        return b"-"

    def known_here(self) -> None:
        return None

    def can_pack(self, known_there: object) -> bool:
        return True

    def pack(self, known_there: object) -> None:
        return None

    async def unpack(self, packed: object) -> None:
        pass

    async def ready(self) -> None:
        pass

    def revive(self, holder: str | None) -> bytes:
        self.lost.append(holder or "")
        return b"-"


def test_a_token_comes_that_could_not_be_replaced_on_a_full_disk(tmp_path):
    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "ab"}
        await town["a"].do(all_of["a"].create("t", b"-", Payload()))
        token = all_of["b"].token("t")
        token.payload, token.patience = Payload(), 1.0
        asking = town["b"].do(add(all_of["b"], b"b"))
        while all_of["a"].token("t").given != "b":
            await asyncio.sleep(0.0001)
        town.network.partition("a", "b")  # The answer does not arrive.
        await town.until(lambda: "a" not in all_of["b"].membership.members, "apart")
        asking.cancel()
        await asyncio.wait([asking])
        town["b"].fill_disk()
        with pytest.raises((DiskFull, TokenAway)):
            await town["b"].do(replace(token))
        town["b"].disk.full = False
        town.network.heal()
        await town.until(lambda: "a" in all_of["b"].membership.members, "together")
        assert await town["b"].do(add(all_of["b"], b"b")) == b"-b"

    async def replace(token: Token) -> None:
        async with token.held(5.0, replace=True):
            pass

    play(scene, "ab", folder=tmp_path)


def test_a_token_that_was_lost_on_its_way_to_a_full_disk_is_not_waited_for(tmp_path):
    """Its giver had no folder, and is gone."""

    async def scene(town: Town) -> None:
        a, b = town["a"], town["b"]
        await a.crash()
        a.path = None
        await a.start()
        all_of = {name: tokens_of(town[name]) for name in "ab"}
        await a.do(all_of["a"].create("t", b"-"))
        token = all_of["b"].token("t")
        await town.until(lambda: token.holder == a.core.id, "announced")
        b.fill_disk()
        leaving = asyncio.ensure_future(a.leave())
        await town.until(lambda: token.holder == b.core.id, "given")
        assert not token.here and not token.is_away
        await leaving
        await town.until(lambda: a.core.id not in all_of["b"].membership.members, "gone")
        assert token.is_away and not token.here
        await a.start()
        tokens_of(a)
        await town.until(lambda: a.core.id in all_of["b"].membership.members, "back")
        assert token.is_away

    play(scene, "ab", folder=tmp_path)


def test_a_token_that_is_kept_and_cannot_be_announced_is_here(tmp_path, monkeypatch):
    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "ab"}
        await town["a"].do(all_of["a"].create("t", b"-"))

        async def keep(tokens: Tokens, token: Token, kept: KeptToken | None = None) -> None:
            await original(tokens, token, kept)
            town["b"].fill_disk()

        original = Tokens._keep
        monkeypatch.setattr(all_of["b"], "_keep", partial(keep, all_of["b"]))
        async with asyncio.timeout(30):
            await town["b"].do(look(all_of["b"]))
        assert all_of["b"].token("t").here
        town["b"].disk.full = False
        monkeypatch.undo()
        await town.until(lambda: all_of["a"].token("t").holder == "b", "announced")
        assert await town["a"].do(add(all_of["a"], b"a")) == b"-a"

    async def look(tokens: Tokens) -> None:
        async with tokens.token("t").held(20.0):
            pass

    play(scene, "ab", folder=tmp_path)


def test_who_is_cancelled_while_it_is_kept_has_not_changed_it(tmp_path, monkeypatch):
    async def scene(town: Town) -> None:
        all_of = {name: tokens_of(town[name]) for name in "ab"}
        await town["a"].do(all_of["a"].create("t", b"-"))

        async def keep(tokens: Tokens, token: Token, kept: KeptToken | None = None) -> None:
            await asyncio.sleep(1)
            await original(tokens, token, kept)

        original = Tokens._keep
        monkeypatch.setattr(Tokens, "_keep", keep)
        adding = town["a"].do(add(all_of["a"], b"a"))
        other = town["b"].do(add(all_of["b"], b"b", wait=30.0))
        await asyncio.sleep(0.5)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert await other == b"-b"

    play(scene, "ba", folder=tmp_path)
