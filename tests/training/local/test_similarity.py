"""Losses of features against loops over examples; rows that are not in use do not count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.training.local.losses import (
    instance_discrimination,
    neighborhood_difference,
    unit,
)

RNG = np.random.default_rng(0)
USED = np.array([True, False, True, True])
HEAT = 0.4


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_a_view_is_told_from_all_others():
    z = RNG.standard_normal((8, 3))
    used = np.concatenate([USED, USED])
    losses = []
    for i in np.flatnonzero(used):
        others = [j for j in np.flatnonzero(used) if j != i]
        score = {j: np.exp(cosine(z[i], z[j]) / HEAT) for j in others}
        losses.append(-np.log(score[(i + 4) % 8] / sum(score.values())))
    found = instance_discrimination(jnp.asarray(z, jnp.float32), jnp.asarray(USED), HEAT)
    np.testing.assert_allclose(found, np.mean(losses), rtol=1e-5)


def test_neighborhoods_differ_by_their_cosines():
    a, b = RNG.standard_normal((4, 3)), RNG.standard_normal((4, 5))
    rows = np.flatnonzero(USED)
    pairs = [(cosine(a[i], a[j]) - cosine(b[i], b[j])) ** 2 for i in rows for j in rows]
    given = (jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32))
    found = neighborhood_difference(*given, jnp.asarray(USED))
    np.testing.assert_allclose(found, np.mean(pairs), rtol=1e-5)
    turned, _ = np.linalg.qr(RNG.standard_normal((5, 5)))
    same = neighborhood_difference(given[1], given[1] @ jnp.asarray(turned, jnp.float32) * 3, USED)
    assert same < 1e-10


@pytest.mark.slow
def test_one_row_none_and_features_of_zero_have_finite_slopes():
    z = jnp.zeros((8, 3)).at[1].set(1.0)
    for used in ([True, False, False, False], [False] * 4, [True] * 4):
        member = jnp.asarray(used)

        def both(z, member=member):
            near, far = jnp.split(z, 2)
            return instance_discrimination(z, member, HEAT) + neighborhood_difference(
                near, far, member
            )

        value, slope = jax.value_and_grad(both)(z)
        assert np.isfinite(value)
        assert np.isfinite(slope).all()
    np.testing.assert_allclose(unit(jnp.array([[3.0, 4.0], [0.001, 0.0]])), [[0.6, 0.8], [0.1, 0]])
