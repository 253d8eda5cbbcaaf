"""Virtual time, faulty links, and checks of what happened there: a seed decides, and it replays."""
