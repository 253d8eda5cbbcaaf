"""Worker processes take jobs from a host over TCP. One of them is killed during a job: the host
aborts its transaction as soon as the connection is lost, and another worker does the job."""

import subprocess
import sys

import tupelo

JOB = ("job", int)
WORKER = """
import sys, tupelo
space = tupelo.connect(sys.argv[1])
while True:
    with space.transaction(lease=30) as txn:
        _, number = space.take(("job", int), txn=txn)
        if sys.argv[2] == "clumsy":
            space.write(("holding", number))  # outside the transaction, so visible at once
            sys.stdin.read()  # blocks until the process is killed
        space.write(("done", number, number**2), txn=txn)
"""


def start(url: str, name: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", WORKER, url, name], stdin=subprocess.PIPE)


def main() -> None:
    with tupelo.Host("office", listen="127.0.0.1:0") as host:
        space = host.space("jobs")
        for number in range(6):
            space.write(("job", number))
        clumsy = start(host.url + "jobs", "clumsy")
        _, held = space.take(("holding", int))
        clumsy.kill()
        clumsy.communicate()
        print(f"a worker died with job {held}")
        workers = [start(host.url + "jobs", name) for name in ("ada", "ben")]
        for number in range(6):
            print(*space.take(("done", number, int)))
        for worker in workers:
            worker.kill()
            worker.communicate()
        print(space.count(JOB), "jobs left")


if __name__ == "__main__":
    main()
