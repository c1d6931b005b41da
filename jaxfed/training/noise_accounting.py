"""What noise on shared prototypes has promised so far, in the metrics of every round.

A client that takes part in every round releases its prototypes R times. Of a network f that is given, one
example in place of another of its class moves one of them, a mean of n_k embeddings of length up to B, by
Delta = 2 B / n_k, n_k >= `min_labels` the labels of a class that is shown. So R releases with N(0, sigma^2)
on every number are together (epsilon, delta)-private, with the epsilon of `jaxfed.privacy.gaussian`.

"Of a network that is given" is what the promise rests on: it is of what prototypes tell to somebody who has
all networks, the client's own included, which was trained on that example and is sent without noise.
Without this condition the example moves f, hence every embedding, and Delta is 2 B sqrt(C); and nothing is
promised of the network. Nor does it hold against who knows the seed of the noise.
"""

from __future__ import annotations

from typing import Any

import jax

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.cohort import Cohort
from jaxfed.privacy.gaussian import epsilon_of, mean_sensitivity


def with_epsilon(
    algorithm: FederatedAlgorithm, *, clip: float, noise: float, min_labels: int, delta: float
) -> FederatedAlgorithm:
    """The algorithm with `prototype_epsilon` among its rounds' metrics: after all rounds so far.

    Args:
        algorithm: whose states have a `round`.
        clip: B, above 0.
        noise: sigma, above 0.
        min_labels: the least n_k of a class that is shown.
        delta: of the promise.
    """
    sensitivity = mean_sensitivity(clip, min_labels)

    def round(state: Any, cohort: Cohort, key: jax.Array) -> tuple[Any, Metrics]:
        after, metrics = algorithm.round(state, cohort, key)
        epsilon = epsilon_of(delta, sensitivity, noise, releases=int(after.round))
        return after, {**metrics, "prototype_epsilon": epsilon}

    return algorithm._replace(round=round)
