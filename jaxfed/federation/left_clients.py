"""Rounds that lack the clients that left them: a simulation of what has happened on a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from jaxfed.data.dataset import UNLABELED
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.cohort import Cohort


def without(
    algorithm: FederatedAlgorithm, left: Mapping[int, Collection[int]]
) -> FederatedAlgorithm:
    """Return the method whose rounds are played as if these clients had not been drawn.

    Args:
        algorithm: its state counts rounds in `round`; a state without one is of a one-shot method.
        left: {round, from 1: clients}.
    """

    def played(state: Any, cohort: Cohort, key: jax.Array) -> tuple[Any, Metrics]:
        number = int(getattr(state, "round", 0)) + 1
        gone = np.isin(cohort.client_id, list(left.get(number, ())))
        mask = np.asarray(cohort.mask) & ~gone[:, None]
        there = cohort._replace(
            client_id=np.where(gone, -1, cohort.client_id).astype(np.int32),
            y=np.where(mask, cohort.y, UNLABELED).astype(np.int32),
            mask=mask,
        )
        return algorithm.round(state, there, key)

    return algorithm._replace(round=played)
