"""How a computation is carried out: what changes its speed and what is seen of it, never its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxfed.errors import UsageError
from jaxfed.federation.memory import Memory

Progress = Callable[[str, int, int], None]  # (what is counted, how many are done, of how many)


@dataclass(frozen=True)
class Execution:
    """Processes, progress and memory of long computations on the host.

    Attributes:
        workers: processes that `hamming="phe"` computes in, or clients' estimators are fitted in, beside this
            one; 0 = none. A script that asks for some has to guard its entry by
            `if __name__ == "__main__":`, for they import it.
        progress: told now and then how much is done.
        memory: keeps what will be asked for again; None: nothing is kept.

    Raises:
        UsageError: a negative number of processes.
    """

    workers: int = 0
    progress: Progress | None = None
    memory: Memory | None = None

    def __post_init__(self) -> None:
        """Reject what has no meaning, with one line that names it."""
        if self.workers < 0:
            raise UsageError(f"execution.workers={self.workers}: allowed are 0 (none) and more")

    def counting(self, what: str) -> Callable[[int, int], None] | None:
        """Progress of one thing: a function of (done, total), or None where nobody listens."""
        progress = self.progress
        if progress is None:
            return None
        return lambda done, total: progress(what, done, total)

    def once(self, compute: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """`compute(*arguments, **keywords)`, out of the memory where there is one that has it."""
        if self.memory is None:
            return compute(*arguments, **keywords)
        return self.memory.once(compute, *arguments, **keywords)


HERE = Execution()  # in this process, silently
