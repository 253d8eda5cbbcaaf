"""A JavaSpaces compute farm: a master writes tasks, and workers execute them.

A task has a method `execute`, so one kind of worker can do every kind of task. A worker takes a
task, executes it and writes the result in one transaction. If a worker dies, its task is back when
the lease of its transaction ends.

python compute_farm.py             in memory
python compute_farm.py farm.tupelo in a file

"""

import sys
import threading
from dataclasses import dataclass

import tupelo
from tupelo.models.javaspaces import Entry, JavaSpace05, TransactionManager

LIMIT, PART = 20_000, 2_500


@dataclass
class Task(Entry):
    """A task. Subclasses define `execute`; the template of a worker matches all of them."""

    job: str | None = None

    def execute(self) -> Entry:
        raise NotImplementedError


@dataclass
class CountPrimes(Task):
    """Count the primes from `start` to `end` - 1."""

    start: int | None = None
    end: int | None = None

    def execute(self) -> Entry:
        assert self.start is not None and self.end is not None
        found = sum(1 for n in range(max(2, self.start), self.end) if is_prime(n))
        return Primes(self.job, self.start, found)


@dataclass
class Primes(Entry):
    job: str | None = None
    start: int | None = None
    found: int | None = None


@dataclass
class Stop(Task):
    """Ends a worker, which first writes it again for the next worker."""


def is_prime(n: int) -> bool:
    return all(n % d for d in range(2, int(n**0.5) + 1))


def worker(space: JavaSpace05, manager: TransactionManager) -> None:
    """Execute tasks until a Stop is taken."""
    any_task = space.snapshot(Task())  # the template, checked and encoded once
    while True:
        with manager.create(lease=30).transaction as txn:
            task = space.take(any_task, txn)
            if isinstance(task, Stop):
                space.write(task, txn)
                return
            space.write(task.execute(), txn)


def dying_worker(space: JavaSpace05, manager: TransactionManager) -> None:
    """Take a task and stop; the task is back when the short lease of the transaction ends."""
    transaction, _ = manager.create(lease=0.2)
    task = space.take(CountPrimes(), transaction)
    print(f"a worker died with the task from {task.start}")


def main(path: str | None = None) -> None:
    space = JavaSpace05(tupelo.Space("farm", path=path))
    manager = TransactionManager()
    starts = range(0, LIMIT, PART)
    space.write([CountPrimes("primes", n, n + PART) for n in starts])
    dying_worker(space, manager)
    workers = [threading.Thread(target=worker, args=(space, manager)) for _ in range(3)]
    for thread in workers:
        thread.start()
    results = [space.take(Primes("primes", start)) for start in starts]
    space.write(Stop())
    for thread in workers:
        thread.join()
    for result in results:
        print(f"from {result.start}: {result.found} primes")
    print(f"{sum(result.found for result in results)} primes below {LIMIT}")
    space.close()
    manager.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
