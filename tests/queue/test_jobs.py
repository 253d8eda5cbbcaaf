"""The job queue: results, retries, priorities, delays, dead letters, workers that stop or die."""

import asyncio
import signal
import sys
import threading
from typing import Any, cast

import pytest

import tupelo
from tests.conftest import Program
from tupelo.errors import BadArgument
from tupelo.queue import (
    JobCancelled,
    JobFailed,
    JobQueue,
    QueueExecutor,
    QueueStatus,
    queue_names,
)
from tupelo.queue.jobs import WaitingJob

PATIENCE_SECONDS = 60.0


@pytest.fixture
def queue(space):
    return JobQueue(space, "pictures")


@pytest.fixture
def in_background():
    """Work in a thread until the test ends."""
    queues: list[JobQueue] = []
    threads: list[threading.Thread] = []

    def start(queue: JobQueue, threads_of_it: int = 1) -> None:
        thread = threading.Thread(target=queue.work, args=[threads_of_it])
        queues.append(queue)
        threads.append(thread)
        thread.start()

    yield start
    for queue in queues:
        queue.stop()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_a_job_is_done_and_its_result_is_found(queue, in_background):
    @queue.task
    def add(a, b, *, plus=0):
        return a + b + plus

    in_background(queue, 2)
    jobs = [queue.submit(add, n, 1, plus=100) for n in range(20)]
    assert [job.result(PATIENCE_SECONDS) for job in jobs] == [101 + n for n in range(20)]
    assert all(job.done() for job in jobs)
    assert len(queue) == 0


def test_a_job_is_submitted_by_the_name_of_a_task_that_is_elsewhere(space, queue):
    job = queue.submit("resize", "a.png")
    assert len(queue) == 1 and not job.done()
    elsewhere = JobQueue(space, "pictures")
    elsewhere.task(name="resize")(str.upper)
    elsewhere.work(until_empty=True)
    assert job.result(0) == "A.PNG"


def test_a_worker_leaves_the_jobs_of_other_queues_and_tasks(space, queue):
    queue.task(name="mine")(str.upper)
    others = [queue.submit("other", "a"), JobQueue(space, "sounds").submit("mine", "a")]
    mine = queue.submit("mine", "a")
    queue.work(until_empty=True)
    assert mine.result(0) == "A"
    assert not any(job.done() for job in others)


def test_higher_priorities_come_first_and_equals_in_order(queue):
    begun: list[object] = []
    queue.task(name="note")(begun.append)
    for n, priority in enumerate([0, 5, -1, 5, 0]):
        queue.submit("note", n, priority=priority)
    queue.work(until_empty=True)
    assert begun == [1, 3, 0, 4, 2]


def test_a_delayed_job_is_not_begun_before_its_time(queue, in_background):
    begun: list[object] = []
    queue.task(name="note")(begun.append)
    later = queue.submit("note", "later", delay=1.0)
    queue.submit("note", "now")
    assert len(queue) == 1
    in_background(queue)
    later.result(PATIENCE_SECONDS)
    assert begun == ["now", "later"]


def test_a_job_that_fails_is_tried_again(queue, in_background):
    attempts = []

    @queue.task(retries=3, backoff=0.01)
    def stumble(name):
        attempts.append(name)
        if len(attempts) < 3:
            raise OSError("the disk is busy")
        return len(attempts)

    in_background(queue)
    assert queue.submit(stumble, "a").result(PATIENCE_SECONDS) == 3
    assert queue.dead() == []


def test_a_failed_job_is_tried_again_before_the_queue_is_empty(queue):
    attempts: list[str] = []

    @queue.task(retries=1, backoff=0.01)
    def stumble(name):
        attempts.append(name)
        raise OSError(name)

    job = queue.submit(stumble, "a")
    queue.submit("later", delay=3600)  # of another worker
    queue.work(until_empty=True)
    assert len(attempts) == 2
    with pytest.raises(JobFailed):
        job.result(0)


def test_work_until_empty_waits_for_delayed_jobs_unless_told(queue):
    queue.task(name="upper")(str.upper)
    later, tomorrow = queue.submit("upper", "a", delay=0.3), queue.submit("upper", "b", delay=3600)
    queue.work(until_empty=True, leave_delayed=True)
    assert tomorrow.cancel()
    queue.work(until_empty=True)
    assert later.result(0) == "A"


def test_a_delayed_job_is_cancelled_by_its_id(queue):
    queue.task(name="fail", retries=1, backoff=3600)(divmod)
    delayed, failed = queue.submit("later", delay=3600), queue.submit("fail", 1, 0)
    queue.work(until_empty=True, leave_delayed=True)
    for job in (delayed, failed):  # The second waits for another attempt.
        assert queue.job(job.id).cancel() and not queue.job(job.id).cancel()
        with pytest.raises(JobCancelled):
            job.result(0)
    assert queue.status().delayed == 0


def test_the_status_tells_of_every_job(space, queue):
    assert queue_names(space) == []
    queue.task(name="upper")(str.upper)
    queue.task(name="divide", retries=0)(divmod)
    done = queue.submit("upper", "a")
    queue.submit("divide", 1, 0)
    queue.work(until_empty=True)
    queue.submit("upper", "b").cancel()
    queue.submit("upper", "c")
    queue.submit("upper", "d")
    JobQueue(space, "sounds").submit("play", delay=3600)
    queue.submit("upper", "e", delay=3600)
    with space.transaction() as txn:
        space.take(txn=txn, order=tupelo.Lifo())
        status = queue.status()
    held = [one.entries for one in status.in_hand]
    assert (status.ready, status.delayed, held, status.done, status.dead) == (1, 1, [1], 1, 1)
    assert status.oldest is not None and status.next is not None
    assert status.oldest < status.next
    assert done.result(0) == "A" and queue_names(space) == ["pictures", "sounds"]
    assert JobQueue(space, "other").status() == QueueStatus("other", 0, 0, [], 0, 0, None, None)


def test_arguments_that_the_function_does_not_take_are_refused_at_once(space, queue):
    @queue.task
    def resize(name, *, width=100):
        return name

    wrong: list[tuple[Any, list[str], dict[str, int], str]] = [
        (resize, [], {}, "missing a required argument: 'name'"),
        ("resize", ["a", "b"], {}, "too many positional arguments"),
        (resize, ["a"], {"height": 1}, "unexpected keyword argument 'height'"),
    ]
    for task, arguments, options, said in wrong:
        with pytest.raises(BadArgument, match=f"^arguments=.*resize.*{said}"):
            queue.submit(task, *arguments, **options)
    with pytest.raises(tupelo.errors.BadEntry, match=r"'arguments'\[0\] is a builtins.object"):
        queue.submit(resize, object())
    with pytest.raises(tupelo.errors.BadEntry, match=r"'options'\['width'\] is a builtins.set"):
        queue.submit(resize, "a", width={1})
    assert space.count() == 0
    queue.submit("elsewhere", 1, 2, 3)
    queue.task(name="upper")(str.upper)
    queue.submit("upper", "a")


def test_a_job_that_fails_too_often_is_a_dead_letter_and_can_be_retried(queue, in_background):
    healthy = threading.Event()

    @queue.task(retries=2, backoff=0.01)
    def fail(name):
        if not healthy.is_set():
            raise OSError(f"no {name}")
        return name

    in_background(queue)
    job = queue.submit(fail, "disk", priority=3)
    with pytest.raises(JobFailed, match="OSError: no disk"):
        job.result(PATIENCE_SECONDS)
    [dead] = queue.dead()
    assert (dead.id, dead.task, dead.arguments, dead.failures) == (job.id, "fail", ["disk"], 3)
    assert "OSError: no disk" in dead.error

    healthy.set()
    assert queue.retry(job.id)
    assert job.result(PATIENCE_SECONDS) == "disk"
    assert queue.dead() == []
    assert not queue.retry(job.id)


def test_a_job_whose_workers_are_lost_is_a_dead_letter(space):
    queue = JobQueue(space, losses_max=2)
    queue.task(name="upper")(str.upper)
    job = queue.submit("upper", "a")
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), space.transaction() as txn:
            assert space.take(txn=txn) is not None
            raise ZeroDivisionError
    queue.work(until_empty=True)
    with pytest.raises(JobFailed, match="its worker was lost 3 times"):
        job.result(0)
    assert [dead.id for dead in queue.dead()] == [job.id]


def test_a_result_that_cannot_be_an_entry_fails_the_job(queue):
    queue.task(name="make", retries=0)(object)
    job = queue.submit("make")
    queue.work(until_empty=True)
    with pytest.raises(JobFailed, match="the result of make cannot be an entry"):
        job.result(0)


def test_a_job_that_has_not_begun_can_be_cancelled(queue):
    queue.task(name="upper")(str.upper)
    job, other = queue.submit("upper", "a"), queue.submit("upper", "b", delay=3600)
    assert job.cancel() and other.cancel()
    assert not job.cancel() and not other.cancel()
    queue.work(until_empty=True)
    for cancelled in (job, other):
        with pytest.raises(JobCancelled, match="the job was cancelled"):
            cancelled.result(0)
    with pytest.raises(TimeoutError, match="job nothing has no result"):
        queue.job("nothing").result(0)


def test_a_job_of_a_transaction_is_there_when_it_commits(space, queue):
    with space.transaction() as txn:
        queue.submit("upper", "a", txn=txn)
        assert len(queue) == 0
    assert len(queue) == 1


def test_stop_lets_a_worker_finish_its_job(queue):
    begun, go = threading.Event(), threading.Event()

    @queue.task
    def slow():
        begun.set()
        assert go.wait(PATIENCE_SECONDS)
        return "finished"

    jobs = [queue.submit(slow), queue.submit(slow)]
    worker = threading.Thread(target=queue.work)
    worker.start()
    assert begun.wait(PATIENCE_SECONDS)
    queue.stop()
    go.set()
    worker.join(PATIENCE_SECONDS)
    assert [job.done() for job in jobs] == [True, False]


def test_stop_ends_a_worker_that_waits_for_a_job_in_hand(space, queue):
    queue.task(name="upper")(str.upper)
    queue.submit("upper", "a")
    with space.transaction() as txn:
        assert space.take(txn=txn) is not None
        worker = threading.Thread(target=queue.work, kwargs={"until_empty": True})
        worker.start()
        worker.join(1.5)  # longer than one wait
        assert worker.is_alive()
        queue.stop()
        worker.join(PATIENCE_SECONDS)
        assert not worker.is_alive()


def test_a_task_that_exits_has_failed(queue, caplog):
    queue.task(name="leave", retries=0)(sys.exit)
    job = queue.submit("leave", 3)
    queue.work(until_empty=True)
    with pytest.raises(JobFailed, match="SystemExit: 3"):
        job.result(0)


def test_a_text_that_cannot_be_encoded_does_not_end_the_worker(queue):
    def fail(text):
        raise ValueError(text.replace("?", "\udcff"))

    queue.task(name="fail", retries=0)(fail)
    job = queue.submit("fail", "what?")
    queue.work(until_empty=True)
    with pytest.raises(JobFailed, match=r"what\\udcff"):
        job.result(0)


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_a_task_that_raises_what_is_no_exception_has_failed(queue, error):
    @queue.task(retries=0)
    def give_up():
        raise error

    job = queue.submit(give_up)
    queue.work(until_empty=True)
    with pytest.raises(JobFailed, match=error.__name__):
        job.result(0)


def test_many_failures_do_not_end_the_worker(space, queue):
    @queue.task(retries=1_100, backoff=0.0)
    def fail():
        raise ValueError

    space.write(WaitingJob(queue.name, "1", "fail", [], {}, 0, failures=1_098))
    queue.work(until_empty=True)
    assert [letter.failures for letter in queue.dead()] == [1_101]


def test_a_long_error_is_kept_in_part(queue):
    @queue.task(retries=0)
    def fail():
        raise ValueError("x" * 1_000_000)

    job = queue.submit(fail)
    queue.work(until_empty=True)
    with pytest.raises(JobFailed, match="xxx") as told:
        job.result(0)
    assert len(str(told.value)) < 200_000


def test_another_attempt_is_made_within_a_day(clock):
    with tupelo.Space(clock=clock) as space:
        queue = JobQueue(space)

        @queue.task(retries=100, backoff=3_600.0)
        def fail():
            raise ValueError

        queue.submit(fail)
        for _ in range(101):
            queue.work(until_empty=True, leave_delayed=True)
            clock.advance(86_400)
        assert len(queue.dead()) == 1


def test_a_result_that_is_too_long_to_be_sent_fails_the_job():
    with (
        tupelo.Host("here", listen="127.0.0.1:0") as host,
        tupelo.connect(host.url + "jobs") as space,
    ):
        queue = JobQueue(space)

        @queue.task(retries=0)
        def produce():
            return bytes(70 * 2**20)

        job = queue.submit(produce)
        queue.work(until_empty=True)
        with pytest.raises(JobFailed, match="cannot be an entry"):
            job.result(0)


@pytest.mark.parametrize(
    "wrong", [{"priority": None}, {"priority": "high"}, {"arguments": None}, {"failures": None}]
)
def test_an_entry_that_is_no_job_does_not_end_the_worker(space, queue, wrong):
    @queue.task
    def work():
        return "done"

    right = {"id": "1", "task": "work", "arguments": [], "options": {}, "priority": 0}
    space.write(WaitingJob(**{"queue": queue.name, "failures": 0, **right, **wrong}))
    job = queue.submit(work)
    queue.work(until_empty=True)
    assert job.result(0) == "done" and len(queue) == 1


def test_a_worker_and_an_executor_go_on_after_a_restart_of_the_host(tmp_path):
    host = tupelo.Host("office", listen="127.0.0.1:0", path=tmp_path)
    address, url = host.address, f"{host.url}jobs"
    with tupelo.connect(url, reconnect=60) as space, tupelo.connect(url, reconnect=60) as other:
        queue = JobQueue(space)
        queue.task(name="upper")(str.upper)
        worker = threading.Thread(target=queue.work)
        worker.start()
        elsewhere = JobQueue(other)
        elsewhere.task(name="upper")(str.upper)
        executor = QueueExecutor(elsewhere)
        assert executor.submit(str.upper, "a").result(PATIENCE_SECONDS) == "A"
        host.close()
        with tupelo.Host("office", listen=address, path=tmp_path):
            assert executor.submit(str.upper, "b").result(PATIENCE_SECONDS) == "B"
            executor.shutdown()
            queue.stop()
            worker.join(PATIENCE_SECONDS)
            assert not worker.is_alive()


def test_the_lease_of_a_long_job_is_renewed(space, caplog):
    queue = JobQueue(space, lease=2.1)
    renewed = threading.Event()
    attempts = []

    @queue.task
    def long(seconds):
        attempts.append(1)
        return renewed.wait(seconds)  # nothing sets it

    job = queue.submit(long, 1.3 * queue.lease)
    queue.work(until_empty=True)
    assert job.result(0) is False
    assert len(attempts) == 1
    queue.submit("long", 0.8)
    queue.work(until_empty=True)  # renews no lease of the first job
    assert caplog.messages == []


WORKER = """
import sys, time
import tupelo
from tupelo.queue import JobQueue
queue = JobQueue(tupelo.connect(sys.argv[1]), "pictures")
@queue.task
def sleep(seconds):
    print("begun", flush=True)
    time.sleep(seconds)
    return "slept"
queue.work()
print("stopped", flush=True)
"""


def test_the_job_of_a_killed_worker_is_done_by_another():
    with tupelo.Host("office", listen=0) as host:
        url = f"{host.url}jobs"
        with tupelo.connect(url) as space, Program(WORKER, url) as doomed:
            queue = JobQueue(space, "pictures")
            job = queue.submit("sleep", 3600)
            assert doomed.line() == "begun"
            doomed.kill()
            queue.task(name="sleep")(lambda seconds: f"not for {seconds} s")
            worker = threading.Thread(target=queue.work)
            worker.start()
            assert job.result(PATIENCE_SECONDS) == "not for 3600 s"
            queue.stop()
            worker.join(PATIENCE_SECONDS)


def test_sigterm_lets_a_worker_finish_its_job():
    with tupelo.Host("office", listen=0) as host:
        url = f"{host.url}jobs"
        with tupelo.connect(url) as space, Program(WORKER, url) as worker:
            job = JobQueue(space, "pictures").submit("sleep", 0.5)
            assert worker.line() == "begun"
            worker.send_signal(signal.SIGTERM)
            assert worker.line() == "stopped"
            assert worker.wait(PATIENCE_SECONDS) == 0
            assert job.result(0) == "slept"


def test_jobs_outlive_the_process(tmp_path):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path) as space:
        job = JobQueue(space).submit("upper", "a")
    with tupelo.Space("jobs", path=path) as space:
        queue = JobQueue(space)
        queue.task(name="upper")(str.upper)
        queue.work(until_empty=True)
        assert queue.job(job.id).result(0) == "A"


def test_an_error_of_the_space_ends_the_work():
    space = tupelo.Space()
    queue = JobQueue(space)
    queue.task(name="upper")(str.upper)
    space.close()
    with pytest.raises(tupelo.errors.SpaceClosed):
        queue.work(2)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda queue: JobQueue(queue.space, ""), "name"),
        (lambda queue: JobQueue(queue.space, lease=0), "lease"),
        (lambda queue: JobQueue(cast(Any, "tupelo://127.0.0.1:7700/jobs")), "space"),
        (lambda queue: queue.task(asyncio.sleep), "function"),
        (lambda queue: queue.task(backoff=-0.5)(print), "backoff"),
        (lambda queue: queue.submit("a", delay=float("inf")), "delay"),
        (lambda queue: JobQueue(queue.space, losses_max=-1), "losses_max"),
        (lambda queue: JobQueue(queue.space, keep_results=-1), "keep_results"),
        (lambda queue: queue.submit(print), "task"),
        (lambda queue: queue.submit(""), "task"),
        (lambda queue: queue.submit("a", priority="high"), "priority"),
        (lambda queue: queue.submit("a", delay=-1), "delay"),
        (lambda queue: queue.submit("a", delay=True), "delay"),
        (lambda queue: queue.task(retries=-1)(print), "retries"),
        (lambda queue: queue.task(backoff="slow")(print), "backoff"),
        (lambda queue: queue.task(backoff=1e6)(print), "backoff"),
        (lambda queue: queue.task(name="twice")(queue.task(name="twice")(print)), "name"),
        (lambda queue: queue.task(7), "function"),
        (lambda queue: queue.work(), "work"),
        (lambda queue: queue.job(None), "id"),
        (lambda queue: queue.retry(None), "id"),
        (lambda queue: (queue.task(print), queue.work(0)), "threads"),
    ],
)
def test_a_bad_argument_is_named(call, argument):
    with tupelo.Space() as space:
        queue = JobQueue(space)
        with pytest.raises(BadArgument, match=f"^{argument}"):
            call(queue)
        assert space.count() == 0
