"""Privacy accounting for noise on shared prototypes: epsilon so far, in the metrics of every round.

A client that takes part in every round releases its prototypes R times. Given the network f, replacing one
example by another of its class moves one prototype, a mean of n_k embeddings of length up to B, by
Delta = 2 B / n_k. Here n_k >= `min_labels` is the number of labels of a class that is shown. So R releases
with N(0, sigma^2) on every number are together (epsilon, delta)-private, with the epsilon of
`jaxfed.privacy.gaussian`.

The guarantee rests on the condition "given the network". It covers what prototypes reveal to somebody who has
all networks, including the client's own, which was trained on that example and is sent without noise.
Without this condition the example moves f, hence every embedding, and Delta is 2 B sqrt(C). Nothing is
guaranteed about the network itself. Nor does the guarantee hold against anyone who knows the noise's seed.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import jax

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.cohort import Cohort
from jaxfed.privacy.gaussian import epsilon_of, mean_sensitivity


def with_epsilon(
    algorithm: FederatedAlgorithm, *, clip: float, noise: float, min_labels: int, delta: float
) -> FederatedAlgorithm:
    """Add `prototype_epsilon`, after all rounds so far, to the metrics of an algorithm's rounds.

    Args:
        algorithm: its states have a field `round`.
        clip: B, above 0.
        noise: sigma, above 0.
        min_labels: the least n_k of a class that is shown.
        delta: of the guarantee.
    """
    sensitivity = mean_sensitivity(clip, min_labels)

    @wraps(algorithm.round)
    def round(state: Any, cohort: Cohort, key: jax.Array) -> tuple[Any, Metrics]:
        after, metrics = algorithm.round(state, cohort, key)
        epsilon = epsilon_of(delta, sensitivity, noise, releases=int(after.round))
        return after, {**metrics, "prototype_epsilon": epsilon}

    return algorithm._replace(round=round, sides=None)
