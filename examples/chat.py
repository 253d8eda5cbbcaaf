"""A chat with subscriptions: members subscribe to the lines of a room, and need no addresses."""

from threading import Thread

import tupelo
from tupelo import ANY, Not

LINE = ("line", str, str, str)  # room, who, what


def listen(subscription: tupelo.Subscription, name: str, pages: list[str]) -> None:
    """Add each line to the screen of a member, until the subscription is closed."""
    for notice in subscription:
        _, room, who, text = notice.entry
        pages.append(f"{name}'s screen | #{room} {notice.sequence} {who}: {text}")


def main() -> None:
    with tupelo.Space("chat") as space:
        # Ada follows the room "garden". Ben follows all rooms, without his own lines.
        screens: dict[str, list[str]] = {"ada": [], "ben": []}
        templates = {
            "ada": ("line", "garden", ANY, ANY),
            "ben": ("line", ANY, Not("ben"), ANY),
        }
        subscriptions = {name: space.subscribe(t) for name, t in templates.items()}
        listeners = [
            Thread(target=listen, args=(subscription, name, screens[name]))
            for name, subscription in subscriptions.items()
        ]
        for listener in listeners:
            listener.start()

        space.write(("line", "garden", "ada", "The tulips are out."), lease=3600)
        space.write(("line", "kitchen", "cleo", "Soup is ready."), lease=3600)
        space.write(("line", "garden", "ben", "I saw them!"), lease=3600)

        for subscription in subscriptions.values():
            subscription.close()  # Lines written before this still arrive.
        for listener in listeners:
            listener.join()
        for screen in screens.values():
            print(*screen, sep="\n")

        # Dora joins later. A session returns each line once: the history, then new lines only.
        dora = space.session()
        print(f"dora reads {len(dora.read_all(LINE))} lines of history")
        space.write(("line", "garden", "dora", "Hello!"), lease=3600)
        print("then only", dora.read(LINE)[3])


if __name__ == "__main__":
    main()
