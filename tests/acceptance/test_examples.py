"""The examples run, and print what their readers are promised."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

JOB_QUEUE = """\
clumsy: job 1 was dropped
silent: holds job 1 and is gone
1: TASK 1
2: TASK 2
3: TASK 3
4: TASK 4
5: TASK 5
6: TASK 6
7: TASK 7
8: TASK 8
9: TASK 9
10: TASK 10
0 jobs left, 10 done
"""

CHAT = """\
ada's screen | #garden 1 ada: The tulips are out.
ada's screen | #garden 2 ben: I saw them!
ben's screen | #garden 1 ada: The tulips are out.
ben's screen | #kitchen 2 cleo: Soup is ready.
dora reads 3 lines of history
then only Hello!
"""

ASYNC_WORKERS = """\
/: 2 words
/about: 12 words
/news: 10 words
/news/today: 22 words
0 requests left
"""

COMPUTE_FARM = """\
a worker died with the task from 0
from 0: 367 primes
from 2500: 302 primes
from 5000: 281 primes
from 7500: 279 primes
from 10000: 263 primes
from 12500: 262 primes
from 15000: 260 primes
from 17500: 248 primes
2262 primes below 20000
"""

COMMAND_QUEUE = """\
1. ada has an account
2. ben has an account
3. ada has 5
4. cleo has no account
5. ada has 12
6. ben has 2
"""

REMOTE_WORKERS = """\
a worker died with job 0
done 0 0
done 1 1
done 2 4
done 3 9
done 4 16
done 5 25
0 jobs left
"""

CAFE = """\
ada sees ('note', 'ben', 'soup at one')
ben sees [('note', 'ada', 'the tulips are out'), ('note', 'ben', 'soup at one')]
ben takes ('note', 'ada', 'the tulips are out')
alone, ada sees []
ben has departed with a goodbye
cleo has ('note', 'ada', 'for cleo only') and ada 0
"""

PRINTERS = """\
the laptop sees artist painter workhorse
artist prints poster.pdf
the laptop is told of poster.pdf artist
the attic has left; the laptop sees painter workhorse
in colour on the fourth floor: None
waiting for artist: 1 job
artist prints map.pdf
the laptop is told of map.pdf artist
"""

LIME_CHAT = """\
ben's screen | ada says: The tulips are out.
ben's screen | cleo says: I can smell them.
ada's screen | cleo says: I can smell them.
cleo's screen | ada says: The tulips are out.
ada's screen | ben whispers: It is the soup.
cleo's screen | ben says: Is she gone?
ada's screen | cleo whispers: Come back!
ben's screen | ada says: I am back.
cleo's screen | ada says: I am back.
more lines: 0
"""

RED_ROVER = """\
the game begins
  ann's device: ann 1,1; bob 2,2; kim 9,9
  bob's device: ann 1,1; bob 2,2; kim 9,9
  kim's device: ann 1,1; bob 2,2; kim 9,9
  ann sees bob as <bob> and kim's icon is not to be had
bob walks out of range, and on
  ann's device: ann 1,1; bob(ghost) 2,2; kim 9,9
  bob's device: ann(ghost) 1,1; bob 5,5; kim(ghost) 9,9
bob is back
  ann's device: ann 1,1; bob 5,5; kim 9,9
  bob's device: ann 1,1; bob 5,5; kim 9,9
  kim's device: ann 1,1; bob 5,5; kim 9,9
bob finds the flag: his team is told
  ann's device: ann 1,1; bob 5,5; kim 9,9; bob has the flag
  kim's device: ann 1,1; bob 5,5; kim 9,9
"""

JIGSAW = """\
a new puzzle
  black's tray A:black B:black C:black D:black
  white's tray A:black B:black C:black D:black
white selects two pieces
  black's tray A:black B:black C:white D:white
  white's tray A:black B:black C:white D:white
they part
  black beeps: C is not to be had
  white beeps: CD and A are not both mine
each has assembled what was theirs
  black's tray AB:black C:white D:white
  white's tray A:black B:black CD:white
they meet again
  black's tray AB:black CD:white
  white's tray AB:black CD:white
black assembles the rest
  black's tray ABCD:black
  white's tray ABCD:black
"""

MELON_NEWS = """\
the driver reads ['Home team wins', 'Coach resigns']
the driver reads []
ada reads ['Home team wins', 'Coach resigns']
ada reads ['Coach is back']
ada reads ['Rain']
the agency is gone; ben reads ['Home team wins', 'Coach resigns', 'Coach is back']
ada reads []
"""

MELON_CHAT = """\
ben's screen | ada says: The tulips are out.
ben's screen | ada says: And it does not rain.
ada's screen | ben says: I saw them!
cleo's screen | ben says: I saw them!
cleo's screen | ada whispers: Ben picked one.
ada's screen | cleo whispers: I know.
unread: 0 0 0
"""

WHITEBOARDS = """\
alice at lunch: red green blue black
bob at lunch: red green blue black
joe at lunch: red green blue black
sue at lunch: red green blue black
alice at the office: red green blue black
alice at the office: red green blue black orange violet
alice was told of a clone of the view: True
joe at the office: red green blue black orange violet
joe was told of a clone of the view: True
bob goes on: red green blue black white
alice goes back to the first view: True
joe goes back to the first view: True
bob and sue see the same: True
all see the same strokes: True
drawn anew, there is one picture: True
"""

WHITEBOARD = """\
publish/subscribe keeps nothing
  ada and ben: green red = green red
  cyd comes:   blue green red = blue green red
  and sees:    blue
  they go on:  black blue green red ; cyd: black blue
  ada is gone: black blue green red white
  dora sees:   white
RPC keeps nothing
  ada and ben: green red = green red
  cyd comes:   blue green red = blue green red
  and sees:    blue
  they go on:  black blue green red ; cyd: black blue
  ada is gone: black blue green red white
  dora sees:   white
tuple space keeps of those who are here
  ada and ben: green red = green red
  cyd comes:   blue green red = blue green red
  and sees:    blue green red
  they go on:  black blue green red ; cyd: black blue green red
  ada is gone: black blue green red white
  dora sees:   blue green white
MELON keeps all
  ada and ben: green red = green red
  cyd comes:   blue green red = blue green red
  and sees:    blue green red
  they go on:  black blue green red ; cyd: black blue green red
  ada is gone: black blue green red white
  dora sees:   black blue green red white
"""

MELON_JOBS = """\
job 0: 0
job 1: 1
job 2: 4
job 3: 9
job 4: 16
job 5: 25
done once each: True
in order at each: True
jobs left: 0
"""

SENSORS = """\
north: 3 was overtaken by 1: reset the radio
south: 2 to 3 are missing: send them again
south: 2 is there after all
south: 3 is there after all
west: 33.8 degrees: slow down
7 alerts, 7 windows closed by the stream
north from  0 s: 20.8 degrees in 5 readings, as in the stream
north from 10 s: 21.0 degrees in 5 readings, as in the stream
north from 20 s: 21.5 degrees in 2 readings, open in the stream
south from  0 s: 24.8 degrees in 5 readings, as in the stream
south from 10 s: 25.0 degrees in 5 readings, as in the stream
south from 20 s: 25.5 degrees in 2 readings, open in the stream
west  from  0 s: 33.8 degrees in 5 readings, as in the stream
west  from 10 s: 34.0 degrees in 3 readings, as in the stream
west  from 20 s: 34.0 degrees in 2 readings, as in the stream
west  from 30 s: 34.5 degrees in 2 readings, open in the stream
"""

OUTPUT = {
    "job_queue.py": JOB_QUEUE,
    "chat.py": CHAT,
    "async_workers.py": ASYNC_WORKERS,
    "compute_farm.py": COMPUTE_FARM,
    "command_queue.py": COMMAND_QUEUE,
    "remote_workers.py": REMOTE_WORKERS,
    "cafe.py": CAFE,
    "printers.py": PRINTERS,
    "lime_chat.py": LIME_CHAT,
    "jigsaw.py": JIGSAW,
    "red_rover.py": RED_ROVER,
    "melon_news.py": MELON_NEWS,
    "melon_chat.py": MELON_CHAT,
    "melon_jobs.py": MELON_JOBS,
    "sensors.py": SENSORS,
    "whiteboard.py": WHITEBOARD,
    "whiteboards.py": WHITEBOARDS,
}


def test_no_example_is_forgotten():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(OUTPUT)


@pytest.mark.parametrize("name", OUTPUT)
def test_an_example_prints_what_it_should(name, run):
    result = run("-W", "error", EXAMPLES / name)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == OUTPUT[name]


def test_an_example_on_spark_says_what_to_install(run):
    program = (
        "import sys, runpy; sys.modules['pyspark'] = None; runpy.run_path(sys.argv[1], {}, %r)"
    )
    result = run("-c", program % "__main__", EXAMPLES / "sensors.py")
    assert result.returncode == 1
    assert result.stderr == 'the pipeline needs pyspark: pip install "tupelo[pipeline]"\n'


def test_the_job_queue_goes_on_where_its_file_ends(run):
    for done in (10, 20):
        result = run(EXAMPLES / "job_queue.py", "jobs.tupelo")
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.endswith(f"\n{done}: TASK {done}\n0 jobs left, {done} done\n")
