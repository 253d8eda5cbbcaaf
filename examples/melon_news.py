"""A news server and its readers on MELON. Each reader gets each headline once, and no reader can
remove it. The village is never connected to the agency: the bus is, and holds copies for it."""

from tupelo import Host
from tupelo.models.melon import Copies, Melon


class NewsServer:
    def __init__(self, host: Host) -> None:
        self._melon = Melon(host, "news", copies=Copies(hosts=1))

    def report(self, category: str, headline: str) -> None:
        self._melon.write((category, headline))


class NewsReader:
    def __init__(self, host: Host) -> None:
        self._melon = Melon(host, "news", copies=Copies(hosts=1))

    def fetch(self, category: str, least: int = 1) -> list[str]:
        """The unread headlines of a category; waits until there are at least `least`."""
        headlines: list[str] = []
        while len(headlines) < least:
            headlines += [headline for _, headline in self._melon.read_all((category, str))]
        return headlines

    def look(self, category: str) -> list[str]:
        """The unread headlines that are available now."""
        return [headline for _, headline in self._melon.read_all((category, str), wait=0)]


def main() -> None:
    with (
        Host("agency", listen="127.0.0.1:0") as agency,
        Host("bus", listen="127.0.0.1:0", peers=[agency.address]) as bus,
        Host("village", peers=[bus.address]) as village,
    ):
        server, driver, ada = NewsServer(agency), NewsReader(bus), NewsReader(village)
        server.report("sports", "Home team wins")
        server.report("weather", "Rain")
        server.report("sports", "Coach resigns")
        print("the driver reads", driver.fetch("sports", least=2))
        print("the driver reads", driver.look("sports"))
        print("ada reads", ada.fetch("sports", least=2))
        server.report("sports", "Coach is back")
        print("ada reads", ada.fetch("sports"))
        print("ada reads", ada.fetch("weather"))

        agency.close()
        ben = NewsReader(village)
        print("the agency is gone; ben reads", ben.fetch("sports", least=3))
        print("ada reads", ada.look("sports"))


if __name__ == "__main__":
    main()
