"""The scenario of the paper: four whiteboards draw together, two leave, restore, go on and meet the
others again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.models.event_heap.world import HeapHost, HeapWorld, meet
from tupelo.models.event_heap import View, ViewCloned


@dataclass
class Stroke:
    who: str | None = None
    colour: str | None = None


class Whiteboard:
    """What is drawn later covers what was drawn before: so all must draw in one order."""

    def __init__(self, member: HeapHost, view: View) -> None:
        self.member = member
        self.view = view
        self.strokes: list[Stroke] = []
        self.told: list[ViewCloned] = []

    @classmethod
    async def open(cls, member: HeapHost, view: str | None = None) -> Whiteboard:
        told: list[ViewCloned] = []
        opened = member.heap.view(view, wait=30.0, on_clone=told.append)
        board = cls(member, await member.do(opened))
        board.told = told
        board.strokes = await member.do(board.view.get_all(Stroke))  # a complete replay
        return board

    async def draw(self, *colours: str) -> None:
        for colour in colours:
            stroke = Stroke(self.member.citizen.name, colour)
            await self.member.do(self.view.put(stroke))

    async def look(self) -> list[Stroke]:
        self.strokes += await self.member.do(self.view.get_all(Stroke))
        return self.strokes


ALICE, BOB, JOE, SUE = "abjs"
LUNCH = ("ba", "ja", "sa", "jb", "sb", "sj")


def test_four_whiteboards_at_lunch(tmp_path):
    async def scene(world: HeapWorld) -> None:
        # Lunch.
        first = await Whiteboard.open(world[BOB])
        boards = {BOB: first}
        for name in (ALICE, JOE, SUE):
            boards[name] = await Whiteboard.open(world[name], first.view.id)
        view = first.view.id
        await asyncio.gather(
            boards[ALICE].draw("red", "green"),
            boards[BOB].draw("blue", "black"),
            boards[JOE].draw("white"),
            boards[SUE].draw("pink", "grey"),
        )
        await boards[BOB].draw("gold")  # So Bob owns the view when they part.
        await world.together()
        pictures = [await board.look() for board in boards.values()]
        assert len(pictures[0]) == 8
        assert all(picture == pictures[0] for picture in pictures)
        lunch = list(pictures[0])

        # Alice and Joe leave; at their office they begin with new whiteboards.
        world.network.partition([ALICE, JOE], [BOB, SUE])
        for name in (ALICE, JOE):
            await world[name].citizen.leave()
        for name in (ALICE, JOE):
            await world[name].citizen.start()
            world[name].begin()
            boards[name] = await Whiteboard.open(world[name], view)
            assert boards[name].strokes == lunch

        # They go on. Neither owned the view, so it is cloned, and they are told.
        await boards[JOE].draw("orange")
        await boards[ALICE].draw("violet")
        await boards[JOE].draw("brown")
        await world.alike(ALICE + JOE)
        later = [Stroke(JOE, "orange"), Stroke(ALICE, "violet"), Stroke(JOE, "brown")]
        office = [*lunch, *later]
        for name in (ALICE, JOE):
            assert await boards[name].look() == office
            assert boards[name].told == [ViewCloned(view, boards[name].view.id)]
        clone = boards[JOE].view.id
        assert clone == boards[ALICE].view.id != view

        # Bob and Sue have gone on as well, in the view that is theirs.
        await boards[SUE].draw("cyan")
        assert boards[SUE].told == []
        await world.alike(BOB + SUE)
        assert await boards[BOB].look() == [*lunch, Stroke(SUE, "cyan")]

        # They meet again: everyone has everything, and Alice and Joe, who are told, go back to the
        # first view. Each has kept the picture that it has drawn so far.
        world.network.heal()
        await boards[BOB].draw("silver")
        await asyncio.sleep(10)
        await world.together()
        pictures = [await boards[name].look() for name in (ALICE, JOE, BOB, SUE)]
        assert pictures[0][: len(office)] == pictures[1][: len(office)] == office
        assert pictures[2] == pictures[3] and pictures[2][:9] == [*lunch, Stroke(SUE, "cyan")]
        everything = sorted(map(repr, pictures[0]))
        assert everything == sorted(map(repr, pictures[2])) and len(everything) == 13
        for name in (ALICE, JOE):
            assert boards[name].told == [ViewCloned(view, clone), ViewCloned(clone, view)]
        assert {board.view.id for board in boards.values()} == {view}

        # Those who draw it anew have one picture.
        for name in (ALICE, JOE, BOB, SUE):
            boards[name] = await Whiteboard.open(world[name], view)
            assert boards[name].strokes == pictures[2]

    meet(scene, *LUNCH, folder=tmp_path)
