"""The jigsaw of the LIME paper: players at hosts in virtual time, which part and meet again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from tests.virtual import VirtualFederation, VirtualLoop, WorldHost
from tests.virtual import play as play_virtually
from tupelo.apps.jigsaw import PUZZLES_MAX, SPACE, Piece, Player, Tray
from tupelo.errors import BadArgument, LimitReached
from tupelo.models import lime
from tupelo.models.lime import AgentLocation, LimeTupleSpace

ADA, BEN = AgentLocation("ada"), AgentLocation("ben")


class Seat(WorldHost):
    """A host with a player."""

    host: lime.Host
    player: Player

    async def open(self) -> None:
        self.host = await lime.Host(self.api).start()
        self.player = await Player.join(self.host)

    async def leave(self) -> None:
        if self.is_up:
            await self.do(self.host.close())
        await super().leave()


class Game(VirtualFederation[Seat]):
    """Players at the hosts a, b and c."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop, Seat, ["ba", "ca", "cb"])

    @property
    def players(self) -> list[Player]:
        return [seat.player for seat in self.members if seat.is_up]

    async def grouped(self, *groups: str) -> None:
        """Until these are the groups of hosts."""
        await self.until(
            lambda: all(
                set(self.hosts[name].host.server.group.membership.members) == set(group)
                for group in groups
                for name in group
            ),
            f"the groups {groups}",
        )

    async def part(self, *groups: str) -> None:
        self.network.partition(*map(list, groups))
        await self.grouped(*groups)

    async def meet(self) -> None:
        self.network.heal()
        await self.grouped("abc")

    async def shown(self, puzzle: str, *pieces: tuple[int, ...], by: str = "abc") -> None:
        """Until the trays at these hosts show these pieces, and the same owners."""

        def is_shown() -> bool:
            trays = [self.hosts[name].player.tray.pieces(puzzle) for name in by]
            return all(tray == trays[0] for tray in trays) and [
                piece.cells for piece in trays[0]
            ] == sorted(pieces)

        await self.until(is_shown, f"{pieces}")

    def cells(self, puzzle: str) -> Counter[int]:
        """How often each cell of a puzzle is in the spaces of all hosts."""
        entries = (
            entry.fields
            for seat in self.members
            if seat.is_up
            for entry in seat.core.spaces[SPACE].port.entries()
        )
        return Counter(cell for one in entries if one[:2] == ("piece", puzzle) for cell in one[4])


def play(scene: Callable[[Game], Awaitable[None]], seed: int = 1) -> None:
    async def together(game: Game) -> None:
        await game.grouped("abc")
        await scene(game)

    play_virtually(Game, together, seed)


def single(count: int) -> list[tuple[int, ...]]:
    return [(cell,) for cell in range(count)]


def test_players_part_go_on_and_see_each_others_assemblies_when_they_meet():
    async def scene(game: Game) -> None:
        ada, ben, _ = game.players
        puzzle = await ada.new_puzzle(2, 2)
        await game.shown(puzzle, *single(4))
        assert await ben.select(puzzle, [2])
        assert await ben.select(puzzle, [3])
        await game.shown(puzzle, *single(4))
        assert [one.cells for one in ben.own(puzzle)] == [(2,), (3,)]

        await game.part("ac", "b")
        assert await ada.assemble(puzzle, [0], [1])
        assert await ben.assemble(puzzle, [3], [2])
        assert not await ada.select(puzzle, [2])  # Ben is away,
        assert not await ben.select(puzzle, [0])  # and so is Ada.
        await game.shown(puzzle, (0, 1), (2,), (3,), by="ac")
        await game.shown(puzzle, (0,), (1,), (2, 3), by="b")

        await game.meet()
        await game.shown(puzzle, (0, 1), (2, 3))
        assert await ada.select(puzzle, [2, 3])
        assert not await ben.assemble(puzzle, [0, 1], [2, 3])
        assert await ada.assemble(puzzle, [0, 1], [2, 3])
        await game.shown(puzzle, (0, 1, 2, 3))
        assert ada.tray.pieces(puzzle)[0].is_whole

    play(scene)


@pytest.mark.parametrize("seed", range(4))
def test_scripted_players_finish_and_no_piece_is_lost_or_doubled(seed):
    async def scene(game: Game) -> None:
        rng = Random(seed)
        puzzle = await game.players[0].new_puzzle(4, 3)

        def is_done() -> bool:
            return all(
                [one.is_whole for one in player.tray.pieces(puzzle)] == [True]
                for player in game.players
            )

        for step in range(10):
            groups = rng.choice([("a", "bc"), ("b", "ac"), ("c", "ab"), ("a", "b", "c")])
            game.network.partition(*map(list, groups))
            for _ in range(2):  # They are missed sooner or later, and some moves fail.
                await asyncio.gather(*(one.move(puzzle, rng) for one in game.players))
                await asyncio.sleep(rng.random())
            if step % 2:
                game.network.heal()
                await asyncio.sleep(rng.random())
        await game.meet()
        for _ in range(100):
            await asyncio.gather(*(one.move(puzzle, rng) for one in game.players))
            await asyncio.sleep(0.1)
            if is_done():
                break
        assert is_done()
        assert game.cells(puzzle) == Counter(range(12))

    play(scene, seed)


@pytest.mark.parametrize("steps", range(1, 10))
def test_a_cancelled_call_leaves_no_piece_in_a_hand(steps):
    async def scene(game: Game) -> None:
        ada, ben, _ = game.players
        puzzle = await ada.new_puzzle(2, 2)
        await game.shown(puzzle, *single(4))
        calls = [ada.assemble(puzzle, [0], [1]), ben.select(puzzle, [2])]
        tasks = [asyncio.ensure_future(call) for call in calls]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await game.shown(puzzle, (0, 1), (2,), (3,))
        await game.until(lambda: [one.cells for one in ben.own(puzzle)] == [(2,)], "it is Ben's")
        assert game.cells(puzzle) == Counter(range(4))

    play(scene)


def test_two_want_one_piece_and_one_gets_it():
    async def scene(game: Game) -> None:
        ada, ben, cyd = game.players
        puzzle = await ada.new_puzzle(2, 1)
        await game.shown(puzzle, *single(2))
        got = await asyncio.gather(ben.select(puzzle, [0]), cyd.select(puzzle, [0]))
        assert sorted(got) == [False, True]
        await game.shown(puzzle, *single(2))
        assert game.cells(puzzle) == Counter(range(2))

    play(scene)


def test_pieces_that_do_not_fit_are_not_joined():
    async def scene(game: Game) -> None:
        ada = game.players[0]
        puzzle = await ada.new_puzzle(3, 2)
        other = await ada.new_puzzle(3, 2)
        for one, two in (([0], [2]), ([2], [3]), ([0], [4]), ([0], [0]), ([0], [9]), ([0, 1], [2])):
            assert not await ada.assemble(puzzle, one, two), (one, two)
        assert not await ada.assemble("none", [0], [1])
        await game.shown(puzzle, *single(6))
        await game.shown(other, *single(6))

    play(scene)


def test_players_who_began_apart_get_colours_of_their_own():
    async def scene(game: Game) -> None:
        await game.part("a", "bc")
        ada = game.players[0]
        await game.hosts["b"].leave()
        await game.hosts["b"].start()  # a new player, who does not know Ada
        await game.grouped("a", "bc")
        ben = game.players[1]
        assert ada.id not in ben.tray.players
        await game.meet()

        def is_settled() -> bool:
            known = [player.tray.players for player in game.players]
            here = [player.id for player in game.players]
            colours = [{one[id] for id in here} for one in known if set(here) <= one.keys()]
            return (
                len(colours) == 3
                and colours[0] == colours[1] == colours[2]
                and len({colour for _, colour in colours[0]}) == 3
            )

        await game.until(is_settled, "three colours")

    play(scene)


def test_a_player_who_leaves_hands_the_pieces_on():
    async def scene(game: Game) -> None:
        puzzle = await game.players[0].new_puzzle(2, 2)
        await game.shown(puzzle, *single(4))
        await game.players[0].leave()
        await game.hosts["a"].leave()
        await game.shown(puzzle, *single(4), by="bc")
        assert game.cells(puzzle) == Counter(range(4))
        ben = game.hosts["b"].player
        assert await ben.assemble(puzzle, [0], [1]) or await ben.select(puzzle, [0])

    play(scene)


def test_a_puzzle_that_was_put_away_is_gone_everywhere_when_all_have_met():
    async def scene(game: Game) -> None:
        ada, ben, _ = game.players
        puzzle = await ada.new_puzzle(2, 2)
        await game.shown(puzzle, *single(4))
        assert await ben.select(puzzle, [3])
        await game.shown(puzzle, *single(4))
        await game.part("ac", "b")
        await ada.put_away(puzzle)
        await game.shown(puzzle, by="ac")
        await game.shown(puzzle, *single(4), by="b")
        await game.meet()
        await game.shown(puzzle)
        await game.until(lambda: not game.cells(puzzle), "no piece is left")
        assert ben.tray.puzzles == []

    play(scene)


def test_what_other_programs_write_is_not_a_piece():
    async def scene(game: Game) -> None:
        ada = game.players[0]

        async def write() -> None:
            space = LimeTupleSpace(SPACE, await game.hosts["b"].host.agent("stranger"))
            await space.set_shared(True)
            for fields in (
                ("x", 2, 2, (), 0),
                ("x", 2, 2, (4,), 0),
                ("x", 2, 2, (1, 0), 0),
                ("x", 2, 2, (0, 0), 0),
                ("x", 2, 2, ("a",), 0),
                ("x", 0, 2, (0,), 0),
                ("x", 2, 99, (0,), 0),
            ):
                await space.out(("piece", *fields))
            await space.out(("player", "x", "x", 99, 0))
            await space.out(("piece", 7))
            await space.out(("piece", "good", 2, 2, (0,), 0))

        await game.hosts["b"].do(write())
        await game.until(lambda: "good" in ada.tray.puzzles, "the good piece")
        assert (ada.tray.puzzles, "x" in ada.tray.players) == (["good"], False)

    play(scene)


def test_a_puzzle_has_a_sensible_size_and_there_are_not_too_many():
    async def scene(game: Game) -> None:
        ada = game.players[0]
        for columns, rows, named in ((0, 2, "columns"), (2, 13, "rows"), (1, 1, "columns")):
            with pytest.raises(BadArgument, match=f"{named}="):
                await ada.new_puzzle(columns, rows)
        for _ in range(PUZZLES_MAX):
            puzzle = await ada.new_puzzle(2, 1)
        with pytest.raises(LimitReached, match="put one away"):
            await ada.new_puzzle(2, 1)
        await ada.put_away(puzzle)
        await ada.new_puzzle(2, 1)

    play(scene)


def test_news_that_come_late_change_nothing():
    tray = Tray()
    tray.put(Piece("p", 2, 2, (0,), 2, BEN))
    tray.put(Piece("p", 2, 2, (0,), 1, ADA))
    assert [one.owner for one in tray.pieces("p")] == [BEN]
    tray.put(Piece("p", 2, 2, (0, 1), 3, BEN))
    tray.put(Piece("p", 2, 2, (1,), 9, ADA))
    assert [one.cells for one in tray.pieces("p")] == [(0, 1)]
    tray.put_away("p")
    tray.put(Piece("p", 2, 2, (2,), 0, ADA))
    assert tray.puzzles == []
    tray.meet("ben", "ben", 3, 1)
    tray.meet("ben", "ben", 0, 0)
    assert tray.players == {"ben": ("ben", 3)}
