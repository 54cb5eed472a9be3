"""Work spread over threads that each use one processor core, so that results never depend on how many there are."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    is raised here, and tasks that have not started are dropped.
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
            numbers = {pool.submit(one, task): k for k, task in enumerate(tasks)}
            for done in as_completed(numbers):
                yield numbers.pop(done), done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def run_in_order(tasks: Sequence[Item], make: Callable[[], Callable[[Item], Result]], n: int) -> list[Result]:
    """What :func:`run_unordered` gives, in the order of the tasks."""
    done = dict(run_unordered(tasks, make, n))
    return [done[k] for k in range(len(tasks))]
