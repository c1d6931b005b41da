"""Averages of models are in float32 on every device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.algorithms.fedmatch import mean_divergence
from jaxfed.training.aggregate import weighted_sum
from jaxfed.training.pseudo_labels.prototypes import Prototypes, mean_probabilities
from jaxfed.training.round.round import weighted_mean

VALUES = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 2)), jnp.float32)
WEIGHTS = jnp.array([0.5, 2.0, 0.0])


def test_sum():
    expected = 0.5 * VALUES[0] + 2 * VALUES[1]
    np.testing.assert_allclose(weighted_sum(WEIGHTS, VALUES), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: weighted_mean({"w": VALUES}, WEIGHTS),
        lambda: mean_divergence(VALUES, VALUES[0], WEIGHTS > 0),
        lambda: mean_probabilities(VALUES[0], Prototypes(VALUES, jnp.ones((3, 4), bool))),
    ],
)
def test_gpus_are_told_not_to_round(compute):
    """Their default is TF32, in which a mean of equal models would not be that model."""
    products = [e for e in jax.make_jaxpr(compute)().eqns if e.primitive.name == "dot_general"]
    assert products
    assert {str(p) for e in products for p in e.params["precision"]} == {"HIGHEST"}
