"""Speed of local operations against a linear store, in PROCESSOR time (MELON, 7.1.1)

One host writes `messages` messages, reads each of them once, stores as many and takes them: MELON,
or a list that is searched from its beginning, as LighTS and the dissertation's MELON do it. As
there, the list is read by consecutive numbers. Half of the messages are read before the reads are
timed, and `operations` reads and takes are timed; those of the list are spread over all of it.

Unlike all other figures, these are microseconds of this machine: they differ from run to run. A
busy machine prolongs them by what its programs take of the caches. `messages` may go up to
1,000,000.
"""

from time import process_time

from tupelo import lab
from tupelo.errors import BadArgument
from tupelo.lab.experiment import Claim, Settings
from tupelo.models.melon import Melon

DEFAULTS = {
    "hosts": 1,
    "duration": 1_000.0,
    "network": "wired",
    "heartbeat": 1_000.0,
    "store": "melon",
    "messages": 10_000,
    "operations": 500,
}
SOURCE = "MELON 7.1 and 7.2"
SWEEP = {"store": ["melon", "linear"], "messages": [1_000, 10_000, 100_000]}
PAPER = [
    Claim(
        SOURCE,
        {"store": "melon", "messages": 100_000},
        "read_us",
        600.0,
        "a minute for 100,000",
        "<",
    ),
    Claim(SOURCE, {"store": "melon"}, "take_us", 8_000.0, relation="<"),
    Claim(SOURCE, {"store": "melon"}, "write_us", 10_000.0, "usually 4 ms", "<"),
]
MESSAGE = ("message", int, str)


class LinearStore:
    """A list of tuples, searched from its beginning."""

    def __init__(self):
        self.tuples = []

    async def write(self, message):
        self.tuples.append(message)

    store = write

    async def read(self, template):
        return next(one for one in self.tuples if _matches(template, one))

    async def take(self, template):
        place = next(n for n, one in enumerate(self.tuples) if _matches(template, one))
        return self.tuples.pop(place)


def _matches(template, message):
    return len(template) == len(message) and all(
        isinstance(value, wanted) if isinstance(wanted, type) else value == wanted
        for wanted, value in zip(template, message, strict=True)
    )


def run(settings: Settings) -> lab.Result:
    count, operations = settings["messages"], min(settings["operations"], settings["messages"] // 2)
    if settings["store"] not in ("melon", "linear"):
        raise BadArgument("store", "melon or linear", settings["store"])
    if operations < 1:
        raise BadArgument("operations", "1 or more, with 2 messages or more", operations)

    async def measure(host):
        is_linear = settings["store"] == "linear"
        store: LinearStore | Melon = LinearStore() if is_linear else Melon(host)
        messages = [("message", number, "x" * 100) for number in range(count)]
        half = count // 2

        began = process_time()
        for message in messages[:half]:
            await store.write(message)
        writing = process_time() - began
        if isinstance(store, Melon):
            await store.read_all(MESSAGE)
        for message in messages[half:]:
            await store.write(message)
        lab.record("write", microseconds=1e6 * writing / half)

        step = count // operations
        asked = [
            ("message", number * step, str) if is_linear else MESSAGE
            for number in range(operations)
        ]
        await _timed("read", store.read, asked)

        for message in messages if not is_linear else ():
            await store.store(message)
        await _timed("take", store.take, [MESSAGE] * operations)

    return settings.world().run(measure, seconds=settings.duration)


async def _timed(name, operation, templates):
    began = process_time()
    for template in templates:
        await operation(template)
    seconds = process_time() - began
    lab.record(name, microseconds=1e6 * seconds / len(templates))


def figures(result: lab.Result) -> dict[str, float]:
    return {f"{row['name']}_us": row["microseconds"] for row in result.rows}
