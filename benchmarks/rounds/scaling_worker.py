"""One worker process of `benchmarks.rounds.scaling`.

    python -m benchmarks.rounds.scaling_worker HOST:PORT NUM_PROCESSES PROCESS_ID PARENT

It reads lines "CLIENTS EXAMPLES" and prints for each a line of JSON with the seconds of a round and its loss.
Compiled programs and memory of a case are kept for its next round. It ends with its input or its parent.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import jax

from benchmarks.rounds.scaling import federation_of, round_of
from jaxfed.host.interruption import end_with
from jaxfed.host.parallel import processes


def main(address: str, num_processes: int, process_id: int, parent: int) -> None:
    """Answer until there is no further line."""
    end_with(parent)
    if num_processes > 1:
        processes.connect(address, num_processes, process_id)
    strategy = "shard_map" if jax.device_count() > 1 else "auto"
    rounds: dict[tuple[int, int], Callable[[], float]] = {}
    for line in sys.stdin:
        clients, examples = map(int, line.split())
        if (clients, examples) not in rounds:
            advance = round_of("fedavg", federation_of([examples] * clients), strategy=strategy)
            advance()
            rounds[clients, examples] = advance
        start = time.perf_counter()
        loss = rounds[clients, examples]()
        print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
