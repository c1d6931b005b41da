"""Tasks in worker processes, and prefetching in a thread."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from jaxfed.host.interruption import end_with

_OF_TERMINAL = (signal.SIGINT, signal.SIGHUP)  # sent to all processes of the terminal

Key = TypeVar("Key")
Item = TypeVar("Item")
Mapped = Callable[..., Iterable[Any]]  # `map`, or a function with the same results


@contextmanager
def worker_processes(count: int) -> Iterator[Mapped]:
    """Yield a `map` that runs in `count` new processes, one or more; they end with the context.

    Processes are spawned, not forked, because the parent may run JAX's threads. Each repeats the imports.
    Only the parent handles the terminal's signals: after Ctrl-C it still needs the workers to complete
    its round before it saves. Workers end with the parent, also if it is killed.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        count, mp_context=context, initializer=end_with, initargs=(os.getpid(),)
    ) as executor:

        def mapped(function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterable[Any]:
            tasks = list(tasks)
            # Processes start here, with these signals blocked from the first instruction.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINAL)
            try:
                return executor.map(function, tasks)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

        yield mapped


def prefetched(make: Callable[[Key], Item], keys: Iterable[Key]) -> Generator[Item]:
    """Yield make(key) for every key in order; a thread makes one item ahead.

    An exception in `make` is raised when its item is requested. Two items exist at a time. Close the
    generator to end the thread.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as executor:
        ahead: Future[Item] | None = None
        for key in keys:
            current, ahead = ahead, executor.submit(make, key)
            if current is not None:
                yield current.result()
        if ahead is not None:
            yield ahead.result()
