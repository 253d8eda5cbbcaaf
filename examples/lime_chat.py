"""A chat on LIME. Public lines go to all agents in the group, private lines to one agent. There is
no history: a line is removed as soon as the reactions have seen it, so agents that join later do
not get it."""

from queue import Queue

from tupelo import Not
from tupelo.models import lime
from tupelo.models.lime import ONCE_PER_TUPLE, LimeTupleSpace, LocalizedReaction, UbiquitousReaction


class Chatter:
    """A member of the chat, at a host of its own. Received lines appear on its screen."""

    def __init__(self, host: lime.Host, name: str) -> None:
        self.agent = host.agent(name)
        self.name = name
        self.screen: Queue[str] = Queue()
        self._chat = LimeTupleSpace("chat", self.agent)
        me = self.agent.location
        others = ("line", Not(name), str)
        self._chat.add_weak_reaction(
            UbiquitousReaction(others, self.hear, ONCE_PER_TUPLE),
            LocalizedReaction(me, me, ("whisper", str, str), self.hear, ONCE_PER_TUPLE),
        )
        self._chat.set_shared(True)

    def hear(self, event: lime.ReactionEvent) -> None:
        kind, who, text = event.tuple
        self.screen.put(f"{who} {'whispers' if kind == 'whisper' else 'says'}: {text}")

    def say(self, text: str) -> None:
        """Send a line to all agents in the group, and remove it again."""
        self._chat.out(("line", self.name, text))
        self._chat.inp(("line", self.name, text), current=self.agent.location)

    def whisper(self, other: lime.Agent, text: str) -> None:
        """Send a line to one agent: now, or when that agent joins the group."""
        self._chat.out(("whisper", self.name, text), destination=other.location)

    def show(self, lines: int) -> None:
        for _ in range(lines):
            print(f"{self.name}'s screen | {self.screen.get(timeout=10)}")


def near(host: lime.Host, *names: str) -> None:
    """Wait until these hosts are in the group."""
    for name in names:
        host.system.rd(("host", str, name))


def main() -> None:
    with (
        lime.Host("ada", listen="127.0.0.1:0") as ada_host,
        lime.Host("ben", listen="127.0.0.1:0", peers=[ada_host.host.address]) as ben_host,
        lime.Host("cleo", listen="127.0.0.1:0", peers=[ben_host.host.address]) as cleo_host,
    ):
        ada, ben, cleo = (
            Chatter(ada_host, "ada"),
            Chatter(ben_host, "ben"),
            Chatter(cleo_host, "cleo"),
        )
        near(ada_host, "ben", "cleo")  # cleo is connected through ben

        ada.say("The tulips are out.")
        cleo.say("I can smell them.")
        ben.show(2)
        ada.show(1)
        cleo.show(1)

        ben.whisper(ada.agent, "It is the soup.")
        ada.show(1)

        # Ada is disconnected. She misses public lines; a private line waits until she is back.
        ada_host.disengage()
        ben.say("Is she gone?")
        cleo.show(1)
        cleo.whisper(ada.agent, "Come back!")
        ada_host.engage()
        ada.show(1)
        ada.say("I am back.")
        ben.show(1)
        cleo.show(1)
        print("more lines:", sum(chatter.screen.qsize() for chatter in (ada, ben, cleo)))


if __name__ == "__main__":
    main()
