"""A job queue. Workers take jobs in transactions: no job is lost, and none is done twice.

python job_queue.py              in memory
python job_queue.py jobs.tupelo  in a file; a second run adds ten more jobs

"""

import sys
from concurrent.futures import ThreadPoolExecutor

import tupelo
from tupelo.errors import TransactionEnded

JOB = ("job", int, str)
DONE = ("done", int, str, str)


def worker(space: tupelo.Space, name: str) -> None:
    """Do jobs until none is left, not even in an open transaction (`if_exists`)."""
    while True:
        try:
            with space.transaction(lease=5) as txn:  # If the worker dies, the job is back in 5 s.
                job = space.take(JOB, txn=txn, if_exists=True)
                if job is None:
                    return
                _, number, text = job
                space.write(("done", number, text.upper(), name), txn=txn)
        except TransactionEnded:
            continue  # The lease has ended: the job is back in the space.


def clumsy(space: tupelo.Space) -> None:
    """Fail during a job: the error aborts the transaction, and the job is back at once."""
    try:
        with space.transaction(lease=5) as txn:
            _, number, _ = space.take(JOB, txn=txn)
            raise RuntimeError(f"job {number} was dropped")
    except RuntimeError as error:
        print(f"clumsy: {error}")


def silent(space: tupelo.Space) -> None:
    """Stop during a job: the job is back when the lease of the transaction ends."""
    txn = space.transaction(lease=0.5)
    _, number, _ = space.take(JOB, txn=txn)
    print(f"silent: holds job {number} and is gone")


def main(path: str | None = None) -> None:
    with tupelo.Space("queue", path=path) as space:
        before = space.count(DONE)
        space.write_all([("job", n, f"task {n}") for n in range(before + 1, before + 11)])
        clumsy(space)
        silent(space)
        with ThreadPoolExecutor() as threads:
            list(threads.map(worker, [space] * 3, ["ada", "ben", "cleo"]))
        for _, number, text, _ in sorted(space.read_all(DONE))[before:]:
            print(f"{number}: {text}")
        print(f"{space.count(JOB)} jobs left, {space.count(DONE)} done")


if __name__ == "__main__":
    main(*sys.argv[1:])
