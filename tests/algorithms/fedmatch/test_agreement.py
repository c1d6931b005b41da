"""Votes and divergences by hand."""

import jax.numpy as jnp
import numpy as np

from jaxfed.algorithms.fedmatch import majority, mean_divergence


def test_votes_and_divergence_by_hand():
    own = jnp.log(jnp.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]]))
    first = jnp.log(jnp.array([[0.1, 0.6, 0.3], [0.6, 0.2, 0.2]]))
    second = jnp.log(jnp.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]))
    helped = jnp.stack([first, second])
    votes = {(True, True): [1, 0], (True, False): [0, 0], (False, False): [0, 1]}
    for there, expected in votes.items():
        np.testing.assert_array_equal(majority(helped, own, jnp.array(there)), expected)

    def kl(p, q):
        return np.sum(np.exp(p) * (p - q), axis=-1)

    own, first, second = map(np.asarray, (own, first, second))
    for there, expected in (
        ((True, True), (kl(first, own) + kl(second, own)) / 2),
        ((False, True), kl(second, own)),
        ((False, False), np.zeros(2)),
    ):
        value = mean_divergence(helped, jnp.asarray(own), jnp.array(there))
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)
