"""Printers announce their features and their floor; a laptop that joins the group finds one,
without any address, and sends it a job. A printer that leaves disappears from the group."""

from tupelo.models import lime
from tupelo.models.lime import ONCE_PER_TUPLE, AgentLocation, LimeTupleSpace, LocalizedReaction

PRINTER = ("printer", str, int, bool)  # id of its agent, floor, whether it prints in colour
JOB = ("job", str, str)  # what to print, id of the agent to inform


class Printer(lime.Agent):
    """A printer: it announces its features, and prints the jobs that are sent to it."""

    def __init__(self, floor: int, colour: bool) -> None:
        self.floor = floor
        self.colour = colour
        self.office = LimeTupleSpace("office")

    def run(self) -> None:
        jobs = LocalizedReaction(self.location, self.location, JOB, self.print, ONCE_PER_TUPLE)
        self.office.add_weak_reaction(jobs)
        self.office.out(("printer", self.id, self.floor, self.colour))
        self.office.set_shared(True)

    def print(self, event: lime.ReactionEvent) -> None:
        job = self.office.inp(event.tuple, current=self.location)
        if job is not None:  # The sender has not taken it back.
            _, what, client = job
            print(f"{self.name} prints {what}")
            self.office.out(("printed", what, self.name), AgentLocation(client))


def name_of(agent_id: str) -> str:
    return agent_id.partition("#")[0]


def main() -> None:
    with (
        lime.Host("hall", listen="127.0.0.1:0") as hall,
        lime.Host("attic", listen="127.0.0.1:0", peers=[hall.host.address]) as attic,
    ):
        hall.load(Printer, 0, False, name="workhorse")
        hall.load(Printer, 0, True, name="painter")
        attic.load(Printer, 4, True, name="artist")

        with lime.Host("laptop", listen="127.0.0.1:0", peers=[hall.host.address]) as laptop:
            me = laptop.agent("laptop")
            office = LimeTupleSpace("office", me)
            office.set_shared(True)
            for floor, colour in ((0, False), (0, True), (4, True)):  # wait until all are there
                office.rd(("printer", str, floor, colour))
            found = sorted(name_of(printer[1]) for printer in office.rdg(PRINTER))
            print("the laptop sees", *found)

            # Find a colour printer on the fourth floor, and send the job to its agent.
            _, artist, _, _ = office.rd(("printer", str, 4, True))
            office.out(("job", "poster.pdf", me.id), destination=AgentLocation(artist))
            print("the laptop is told of", *office.in_(("printed", str, str))[1:])

            attic.disengage()
            found = sorted(name_of(printer[1]) for printer in office.rdg(PRINTER))
            print("the attic has left; the laptop sees", *found)
            print("in colour on the fourth floor:", office.rdp(("printer", str, 4, True)))

            # A job for an absent agent waits here, and moves to the agent when it is back.
            office.out(("job", "map.pdf", me.id), destination=AgentLocation(artist))
            print("waiting for artist:", len(office.rdg(JOB, current=me.location)), "job")
            attic.engage()
            print("the laptop is told of", *office.in_(("printed", str, str))[1:])


if __name__ == "__main__":
    main()
