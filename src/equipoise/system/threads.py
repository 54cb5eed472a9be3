"""Work spread over threads that each use one processor core, so that results never depend on how many there are."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2  # tasks begun or done per thread: results that nobody has taken fill no memory

_allowed: ContextVar[int] = ContextVar("allowed", default=0)


@contextmanager
def allow(n: int) -> Iterator[None]:
    """Let :func:`allowed` return ``n`` inside."""
    before = _allowed.set(n)
    try:
        yield
    finally:
        _allowed.reset(before)


def allowed() -> int:
    """How many threads share work: the workers of a federation, otherwise the threads that torch uses inside operations."""
    return _allowed.get() or torch.get_num_threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let operations of the calling thread use one core inside, because several cores change the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_unordered(
    tasks: Sequence[Item], make: Callable[[], Callable[[Item], Result]], n: int
) -> Iterator[tuple[int, Result]]:
    """Do ``tasks`` in ``n`` threads, started in their order; yields the number and result of each as soon as it is done.

    ``make()`` gives every thread its own function that does a task. Operations use one core per thread. The error of a task
    is raised here, and tasks that have not started are dropped. Few are started before results are taken.
    """
    with one_thread():
        if n == 1 or len(tasks) < 2:
            do = make()
            yield from ((k, do(task)) for k, task in enumerate(tasks))
            return
        local = threading.local()

        def one(task: Item) -> Result:
            if not hasattr(local, "do"):  # the first of this thread; an initializer's error would be lost
                torch.set_num_threads(1)  # this setting belongs to a thread
                local.do = make()
            done: Result = local.do(task)
            return done

        pool = ThreadPoolExecutor(min(n, len(tasks)))
        try:
            waiting, numbers = iter(enumerate(tasks)), dict[Future[Result], int]()
            for k, task in islice(waiting, AHEAD * n):
                numbers[pool.submit(one, task)] = k
            while numbers:
                ready = wait(numbers, return_when=FIRST_COMPLETED).done
                while ready:
                    for k, task in islice(waiting, 1):
                        numbers[pool.submit(one, task)] = k
                    done = ready.pop()
                    yield numbers.pop(done), done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def run_in_order(tasks: Sequence[Item], make: Callable[[], Callable[[Item], Result]], n: int) -> list[Result]:
    """What :func:`run_unordered` gives, in the order of the tasks."""
    done = dict(run_unordered(tasks, make, n))
    return [done[k] for k in range(len(tasks))]
