"""The epsilon that a run with noise writes, against the mechanism's own formula."""

import jax
import numpy as np
import pytest
from scipy.stats import norm
from small_training import KEY, federation_of, training_of

from jaxfed.algorithms.protofssl import protofssl
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.training.local.batches import Batches

FEDERATION = federation_of([8, 8], num_labeled=6)


def metrics_of(rounds, **changes):
    training = training_of(Batches("joint", size=4, epochs=1))
    task = PrototypeTask(num_classes=3, max_labels=6)
    algorithm = protofssl(training=training, task=task, unlabeled_query=2, **changes)
    state = algorithm.init(KEY, FEDERATION)
    for number in range(rounds):
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, FEDERATION.cohort(), key)
        yield metrics


def test_epsilon_is_that_of_all_rounds_so_far():
    clip, sigma, least, delta = 0.7, 2.0, 2, 1e-4
    seen = list(metrics_of(3, clip=clip, noise=sigma, min_labels=least, delta=delta))
    epsilons = [metrics["prototype_epsilon"] for metrics in seen]
    assert epsilons == sorted(set(epsilons))
    for rounds, epsilon in enumerate(epsilons, start=1):
        a = 2 * clip / least / sigma * np.sqrt(rounds)
        promised = norm.cdf(a / 2 - epsilon / a) - np.exp(epsilon) * norm.cdf(-a / 2 - epsilon / a)
        assert promised == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("given", [{"noise": 0.5}, {}, {"clip": 0.5}])
@pytest.mark.sample(1)
def test_without_noise_or_a_bound_nothing_is_promised(given):
    [metrics] = metrics_of(1, **given)
    assert "prototype_epsilon" not in metrics
