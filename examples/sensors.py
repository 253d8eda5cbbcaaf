"""Sensors write readings at one host. A Spark stream computes averages of ten seconds for each
sensor, detects missing, late and hot readings, and writes alerts back as leased entries. A
reaction at another host acts on the alerts: it orders readings to be sent again, a radio to be
reset, a sensor to slow down. At the end a batch query computes the same averages from the log.

It needs Spark: pip install "tupelo[pipeline]", and Java 17 or pip install "tupelo[java]"."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tupelo
from tupelo import pipeline
from tupelo.errors import PipelineError

WINDOW_SECONDS = 10
HOT = 30.0
WAIT_SECONDS = 120
PATIENCE = 2  # a reading is missing when this many later ones have come

# The entries:
# ("reading", sensor, number, time of the measurement, degrees)
# ("alert", sensor, what, first number, last number, degrees); "window" has the same fields
# ("order", sensor, what, first number, last number)
# ("note", sensor, what, text)
ALERT = ("alert", str, str, int, int, float)

ALL = [0, 1, 2, 3, 4, 5]  # the readings of one round


# In the field: sensors, each connected to the host as a client.


class Sensor(threading.Thread):
    """Measures, keeps its readings, and executes orders."""

    def __init__(self, url: str, name: str, degrees: float, order: list[int]) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.name = name
        self.degrees = degrees
        self.order = order  # in which its radio sends the readings of a round; others are lost
        self.seconds = 2.0  # from one reading to the next
        self.kept: list[tuple[Any, ...]] = []

    def run(self) -> None:
        readings = tupelo.connect(self.url + "readings")
        station = tupelo.connect(self.url + "station")
        while True:
            _, _, what, first, last = station.take(("order", self.name, str, int, int))
            match what:
                case "measure":
                    begin = len(self.kept)
                    for _ in ALL:
                        self.measure()
                    for place in self.order:
                        readings.write(self.kept[begin + place])
                case "send again":  # and with more power from now on
                    self.order = ALL
                    for number in range(first, last + 1):
                        readings.write(self.kept[number])
                case "reset":
                    self.order = ALL
                case "slow down":
                    self.seconds = 4.0
                case "stop":
                    break
        readings.close()
        station.close()

    def measure(self) -> None:
        number = len(self.kept)
        at = self.kept[-1][3] + self.seconds if self.kept else 0.0
        self.kept.append(("reading", self.name, number, at, self.degrees + number % 3))


# On Spark: the state of a sensor, from batch to batch.


class Watch:
    """The readings of one sensor, in the order of their arrival.

    Its alerts depend only on the readings and their order, not on the limits of batches. So a batch
    that is read again gives the same alerts.
    """

    def __init__(self, source: str, top: int = -1, missing: Any = (), windows: Any = ()) -> None:
        self.source = source
        self.top = top  # the highest number so far
        self.missing: dict[int, int] = dict(missing)  # by number: how many later ones came
        self.windows: dict[int, tuple[int, float]] = dict(windows)  # count and sum, by begin
        self.said: list[tuple[Any, ...]] = []

    def kept(self) -> str:
        """The state for the next batch."""
        missing, windows = list(self.missing.items()), list(self.windows.items())
        return json.dumps({"top": self.top, "missing": missing, "windows": windows})

    def see(self, number: int, at: float, degrees: float) -> None:
        if number > self.top:
            self.missing.update(dict.fromkeys(range(self.top + 1, number), 0))
            self.top = number
            self.wait_for_the_missing()
        elif number in self.missing:
            overtaken = self.missing.pop(number)
            self.say("alert", "late" if overtaken < PATIENCE else "filled", number, overtaken)
        else:
            return  # a duplicate
        begin = int(at // WINDOW_SECONDS) * WINDOW_SECONDS
        count, total = self.windows.get(begin, (0, 0.0))
        self.windows[begin] = (count + 1, total + degrees)
        self.close_windows()

    def wait_for_the_missing(self) -> None:
        for number in self.missing:
            self.missing[number] += 1
        gone = [number for number, later in self.missing.items() if later == PATIENCE]
        if gone:
            self.say("alert", "gap", gone[0], gone[-1])

    def close_windows(self) -> None:
        """Close windows for which a later one has begun, while no reading is missing."""
        while len(self.windows) > 1 and not self.missing:
            begin = min(self.windows)
            count, total = self.windows.pop(begin)
            self.say("window", "closed", begin, count, total / count)
            if total / count > HOT:
                self.say("alert", "hot", begin, count, total / count)

    def say(self, topic: str, what: str, first: int, last: int, mean: float = 0.0) -> None:
        self.said.append((topic, self.source, what, first, last, mean))


def watch(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    """Process the next readings of one sensor. Rows have no order; sort them by `position`."""
    import pandas

    seen = Watch(key[0], **json.loads(state.get[0])) if state.exists else Watch(key[0])
    for row in pandas.concat(list(frames)).sort_values("position").itertuples():
        seen.see(row.n, row.at, row.degrees)
    state.update((seen.kept(),))
    if seen.said:
        yield pandas.DataFrame(seen.said, columns=SAID, dtype=object)


SAID = ["topic", "source", "what", "first", "last", "mean"]
SAID_TYPES = "topic string, source string, what string, first long, last long, mean double"
FIELDS = "topic string, source string, n long, at double, degrees double"


def start(spark: Any, url: str, checkpoint: Path) -> Any:
    """Start the stream from the space "readings" to the space "station"."""
    return (
        spark.readStream.format("tupelo")
        .options(kinds="written", entry=FIELDS, columns="position,f")
        .load(url + "readings")
        .select("position", "f.*")
        .groupBy("source")
        .applyInPandasWithState(watch, SAID_TYPES, "known string", "append", "NoTimeout")
        .writeStream.format("tupelo")
        .option("checkpointLocation", str(checkpoint))
        .option("lease", 600)  # An alert expires after ten minutes.
        .start(url + "station")
    )


# At the office: a reaction to alerts that are written in the field.


def act(alert: tuple[Any, ...], step: Any) -> None:
    """Runs in a transaction: order and note are written together, or not at all."""
    _, source, what, first, last, mean = alert
    match what:
        case "gap":
            step.write(("order", source, "send again", first, last))
            step.write(("note", source, what, f"{first} to {last} are missing: send them again"))
        case "filled":
            step.write(("note", source, f"{what} {first}", f"{first} is there after all"))
        case "late":
            step.write(("order", source, "reset", 0, 0))
            step.write(("note", source, what, f"{first} was overtaken by {last}: reset the radio"))
        case "hot":
            step.write(("order", source, "slow down", 0, 0))
            step.write(("note", source, what, f"{mean:.1f} degrees: slow down"))


def main() -> None:
    try:
        spark = pipeline.session("local[2]", **{"spark.sql.shuffle.partitions": 2})
    except PipelineError as error:
        sys.exit(str(error))
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        tupelo.Host("field", listen="127.0.0.1:0", path=Path(folder, "field")) as field,
        tupelo.Host("office", listen="127.0.0.1:0", peers=[field.address]) as office,
    ):
        office.presence.read(tupelo.HostPresence(name="field", state="engaged"))
        field.space("readings")
        station = field.space("station")
        notes = office.space("station")
        notes.react(ALERT, act)
        query = start(spark, field.url, Path(folder, "checkpoint"))

        sensors = [
            Sensor(field.url, "north", 20.0, [0, 1, 2, 4, 3, 5]),
            Sensor(field.url, "south", 24.0, [0, 1, 4, 5]),
            Sensor(field.url, "west", 33.0, ALL),
        ]
        for sensor in sensors:
            sensor.start()
            notes.write(("order", sensor.name, "measure", 0, 0))
        for source, what in (
            ("north", "late"),
            ("south", "gap"),
            ("south", "filled 2"),
            ("south", "filled 3"),
            ("west", "hot"),
        ):
            note = notes.take(("note", source, what, str), wait=WAIT_SECONDS)
            if note is None:
                sys.exit(f"nothing is heard of {source}: {query.exception()}")
            print(f"{source}: {note[3]}")

        for sensor in sensors:
            notes.write(("order", sensor.name, "measure", 0, 0))
            notes.write(("order", sensor.name, "stop", 0, 0))
        for sensor in sensors:
            sensor.join()
        query.processAllAvailable()
        query.stop()
        alerts = station.count(ALERT, scope=tupelo.HERE)
        windows = station.read_all(("window", str, "closed", int, int, float), scope=tupelo.HERE)
        print(f"{alerts} alerts, {len(windows)} windows closed by the stream")
        show(spark, field.url + "readings", {(w[1], w[3]): w[4:] for w in windows})
    spark.stop()


def show(spark: Any, url: str, closed: dict[tuple[str, int], tuple[int, float]]) -> None:
    """Print all windows from the log, including those that the stream has not closed yet."""
    readings = spark.read.format("tupelo").options(kinds="written", entry=FIELDS).load(url)
    readings.select("f.*").createOrReplaceTempView("readings")
    figures = spark.sql(f"""
        select source, int(at / {WINDOW_SECONDS}) * {WINDOW_SECONDS} as begin,
               count(*) as count, avg(degrees) as mean
        from readings group by source, begin order by source, begin
    """)
    for source, begin, count, mean in figures.collect():
        same = closed.get((source, begin)) == (count, mean)
        note = "as in the stream" if same else "open in the stream"
        print(f"{source:5} from {begin:2} s: {mean:.1f} degrees in {count} readings, {note}")


if __name__ == "__main__":
    main()
