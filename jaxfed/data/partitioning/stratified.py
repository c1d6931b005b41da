"""Random choices with a given number from each group."""

from __future__ import annotations

import numpy as np

from jaxfed.data.partitioning.controlled_rounding import apportion


def stratified(strata: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """bool [n]: `number` of the examples at random, the same share of each stratum to within one."""
    sizes = np.bincount(strata)
    return chosen_of_each(strata, apportion(sizes, number, rng), rng)


def chosen_of_each(groups: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """bool [n]: counts[g] of the members of each group g at random, all where it has fewer."""
    order = rng.permutation(len(groups))
    chosen = np.empty(len(groups), bool)
    chosen[order] = first_of_each(groups[order], counts)
    return chosen


def first_of_each(groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """bool [n]: the first counts[g] members of each group g."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups, minlength=len(counts))
    rank = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.empty(len(groups), bool)
    chosen[order] = rank < counts[groups[order]]
    return chosen
