"""A chat on MELON. Every member reads the lines of all hosts that it reaches, also when it joins
later. A whisper is encrypted for one member; hosts that carry it cannot read it."""

from tupelo import Host, Identity, Not, Trust
from tupelo.models.melon import Melon


class Chat:
    def __init__(self, host: Host, name: str) -> None:
        self.name = name
        self.identity = host.identity
        self._melon = Melon(host, "chat")

    def say(self, line: str) -> None:
        self._melon.write(("line", self.name, line))

    def whisper(self, other: "Chat", line: str) -> None:
        self._melon.store(("whisper", self.name, line), to=other.identity)

    def show(self, lines: int) -> None:
        """Wait for this many lines of other members, and print them."""
        for _ in range(lines):
            _, who, line = self._melon.read(("line", Not(self.name), str))
            print(f"{self.name}'s screen | {who} says: {line}")

    def hear(self, other: "Chat") -> None:
        """Wait for a whisper from the identity of this member; a name alone proves nothing."""
        _, who, line = self._melon.take(("whisper", str, str), sender=other.identity)
        print(f"{self.name}'s screen | {who} whispers: {line}")

    @property
    def unread(self) -> int:
        lines = self._melon.read_all(("line", Not(self.name), str), wait=0)
        return len(lines + self._melon.take_all(("whisper", str, str), wait=0))


def open_host(name: str, identity: Identity, trust: Trust, *peers: Host) -> Host:
    addresses = [peer.address for peer in peers]
    return Host(name, listen="127.0.0.1:0", identity=identity, trust=trust, peers=addresses)


def main() -> None:
    keys = {name: Identity.new() for name in ("ada", "ben", "cleo")}
    trust = Trust.known(one.key for one in keys.values())
    with (
        open_host("ada", keys["ada"], trust) as first,
        open_host("ben", keys["ben"], trust, first) as second,
    ):
        ada, ben = Chat(first, "ada"), Chat(second, "ben")
        ada.say("The tulips are out.")
        ada.say("And it does not rain.")
        ben.show(2)
        ben.say("I saw them!")
        ada.show(1)

        # Cleo joins later, and is connected to ben only.
        with open_host("cleo", keys["cleo"], trust, second) as third:
            cleo = Chat(third, "cleo")
            cleo.show(1)
            ada.whisper(cleo, "Ben picked one.")
            cleo.hear(ada)
            cleo.whisper(ada, "I know.")
            ada.hear(cleo)
            print("unread:", ada.unread, ben.unread, cleo.unread)


if __name__ == "__main__":
    main()
