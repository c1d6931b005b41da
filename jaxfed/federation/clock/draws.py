"""Per-client random numbers, and random sets of free clients.

A client's draws depend only on its number and the seed, so draws for K clients cost O(K), however many there
are in all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from jaxfed.federation.clock.settings import Clock
from jaxfed.random_streams import Stream

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_TRIES, _MORE = 16, 4  # rounds of further draws, and their number for each client that is missing


def uniform(clients: np.ndarray, seed: int, stream: Stream, number: int) -> np.ndarray:
    """Return a uniform draw from (0, 1) for each client, float64 [K].

    SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) with the client's number as the counter.

    Args:
        clients: int [K], their numbers.
        seed: of the repeat.
        stream: purpose of the draw.
        number: number of the draw, from 0.
    """
    z = _key(seed, stream, number) + (np.asarray(clients).astype(np.uint64) + np.uint64(1)) * _STEP
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54


@cache
def _key(seed: int, stream: Stream, number: int) -> np.ndarray:
    return np.random.SeedSequence((seed, stream, number)).generate_state(1, np.uint64)


def normal(clients: np.ndarray, seed: int, stream: Stream, number: int) -> np.ndarray:
    """Return a standard normal draw for each client, float64 [K]; arguments as for `uniform`."""
    radius, angle = (uniform(clients, seed, stream, 2 * number + i) for i in range(2))
    return np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)


def seconds_of(clock: Clock, seed: int, clients: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Return the simulated seconds of each client's round, float64 [K].

        seconds_per_example exp(sigma z_1) examples + seconds_per_round exp(sigma z_2)

    z_1 and z_2 are fixed for each client, in all rounds.

    Args:
        clock: the settings.
        seed: of the repeat.
        clients: int [K], their numbers.
        examples: [K], the number of examples that each processes.
    """
    slowness = [
        np.exp(clock.speed_spread * normal(clients, seed, Stream.CLOCK_SPEEDS, i)) for i in range(2)
    ]
    messages = clock.seconds_per_round * slowness[1]
    return clock.seconds_per_example * slowness[0] * examples + messages


def draw_free(
    rng: np.random.Generator,
    pool: int | np.ndarray,
    count: int,
    is_free: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Draw `count` distinct free clients from a pool, uniformly; all free clients if there are fewer.

    Args:
        rng: the generator; if every client is free, the draw is `rng.choice(pool, count, replace=False)`.
        pool: numbers of clients, or the number of all clients.
        count: clients wanted.
        is_free: clients int [K] -> bool [K].

    Cost: O(count) if many are free, else one call of `is_free` for the whole pool.
    """
    first = rng.choice(pool, count, replace=False)
    chosen = first[is_free(first)].tolist()
    looked_at = set(first.tolist())
    size = pool if isinstance(pool, int) else len(pool)
    for _ in range(_TRIES):
        if len(chosen) == count or len(looked_at) == size:
            return np.array(chosen, np.int64)
        places = rng.integers(size, size=_MORE * (count - len(chosen)))
        more = places if isinstance(pool, int) else pool[places]
        fresh = np.array([c for c in dict.fromkeys(more.tolist()) if c not in looked_at], np.int64)
        looked_at.update(fresh.tolist())
        chosen += fresh[is_free(fresh)].tolist()[: count - len(chosen)]
    everybody = np.arange(size) if isinstance(pool, int) else pool
    left = everybody[is_free(everybody) & ~np.isin(everybody, chosen)]
    missing = min(count - len(chosen), len(left))
    others = rng.choice(left, missing, replace=False)
    return np.concatenate([np.array(chosen, np.int64), others.astype(np.int64)])
