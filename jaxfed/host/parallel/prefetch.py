"""Prefetch: make the next item while the current one is in use."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")


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
