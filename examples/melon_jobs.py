"""A job queue on MELON. Any number of producers add jobs, and any number of workers take them. Each
job is done once, and the jobs of one producer are started in their order."""

from threading import Thread

from tupelo import Host
from tupelo.models.melon import Melon

JOBS = 6


class Producer:
    def __init__(self, host: Host) -> None:
        self._melon = Melon(host, "jobs")

    def add_job(self, number: int) -> None:
        self._melon.store(("job", number))

    def collect(self) -> dict[int, int]:
        """Wait for all results."""
        results: dict[int, int] = {}
        while len(results) < JOBS:
            results |= {n: square for _, n, square in self._melon.take_all(("done", int, int))}
        return results

    @property
    def left(self) -> int:
        return len(self._melon.take_all(("job", int), wait=0))

    def close_down(self, workers: int) -> None:
        for _ in range(workers):
            self._melon.store(("job", -1))


class Worker(Thread):
    """A worker that ends when no job is left."""

    def __init__(self, host: Host) -> None:
        super().__init__(daemon=True)
        self._melon = Melon(host, "jobs")
        self.begun: list[int] = []

    def run(self) -> None:
        while (job := self._melon.take(("job", int))[1]) >= 0:
            self.begun.append(job)
            self._melon.store(("done", job, job * job))


def main() -> None:
    with (
        Host("office", listen="127.0.0.1:0") as office,
        Host("hall", listen="127.0.0.1:0", peers=[office.address]) as hall,
        Host("attic", peers=[office.address, hall.address]) as attic,
    ):
        producer = Producer(office)
        workers = [Worker(hall), Worker(hall), Worker(attic)]
        for worker in workers:
            worker.start()
        for number in range(JOBS):
            producer.add_job(number)
        for number, square in sorted(producer.collect().items()):
            print(f"job {number}: {square}")
        producer.close_down(len(workers))
        for worker in workers:
            worker.join()
        begun = [worker.begun for worker in workers]
        print("done once each:", sorted(n for jobs in begun for n in jobs) == list(range(JOBS)))
        print("in order at each:", all(jobs == sorted(jobs) for jobs in begun))
        print("jobs left:", producer.left)


if __name__ == "__main__":
    main()
