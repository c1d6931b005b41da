"""Images out of prototypes: found where f can be inverted, not under noise; docs/threat-model.md's table."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threat_model import table

from examples import invert_prototypes as attack
from jaxfed.models import MODELS

KEY, SHAPE = jax.random.key(0), (6, 6, 1)


def images(number, seed=0):
    """Smooth ones, pixels from 0 to 1."""
    rng = np.random.default_rng(seed)
    phases = rng.uniform(0, 2 * np.pi, (number, 2, 1, 1))
    rows, columns = np.mgrid[:6, :6] / 3
    x = 0.5 + 0.25 * (np.sin(rows + phases[:, 0]) + np.sin(columns + phases[:, 1]))
    return x[..., None].astype(np.float32)


def identity(x):
    return x.reshape(len(x), -1)


WEIGHTS = jax.random.normal(jax.random.key(1), (36, 50)) / 6


def linear(x):
    return identity(x) @ WEIGHTS


@pytest.mark.parametrize("features", [identity, linear])
def test_an_image_behind_an_invertible_network_is_found(features):
    x = images(5)
    found = attack.inverted(features, features(x), SHAPE, KEY, total_variation=0.0, steps=400)
    assert attack.psnr(found, x).min() > 25
    public = images(200, seed=1)
    by_decoder = attack.decoded(
        np.asarray(features(x)), np.asarray(features(public)), public, ridge=1e-9
    )
    assert attack.psnr(by_decoder, x).min() > 35


@pytest.mark.slow
def test_any_models_embeddings_are_attacked():
    """Of a CNN before any training: both attacks come nearer than a guess."""
    model = MODELS["cnn"](SHAPE, None, channels=(8,), hidden=64)
    features = partial(model.features, model.init(KEY))
    x, public = images(4), images(200, seed=1)
    guess = attack.psnr(np.repeat(public.mean(axis=0)[None], 4, axis=0), x).mean()
    z = features(x)
    found = attack.inverted(features, z, SHAPE, KEY, steps=200)
    by_decoder = attack.decoded(np.asarray(z), np.asarray(features(public)), public)
    assert attack.psnr(np.asarray(found), x).mean() > guess + 3
    assert attack.psnr(by_decoder, x).mean() > guess + 10


def test_the_mean_of_several_is_all_that_a_linear_network_tells():
    x = images(4)
    prototype = jnp.mean(linear(x), axis=0)[None]
    found = attack.inverted(linear, prototype, SHAPE, KEY, total_variation=0.0, steps=400)
    assert attack.psnr(found, x.mean(axis=0)[None])[0] > 35
    assert attack.psnr(np.repeat(found, 4, axis=0), x).max() < 25


@pytest.mark.parametrize("sigma", [0.0, 20.0])
def test_noise_hides_it(sigma):
    x, rng = images(20), np.random.default_rng(2)
    z = np.asarray(linear(x))
    z = z + sigma * rng.standard_normal(z.shape).astype(np.float32)
    public = images(200, seed=1)
    guess = attack.psnr(np.repeat(public.mean(axis=0)[None], 20, axis=0), x).mean()
    found = attack.inverted(linear, jnp.asarray(z), SHAPE, KEY, steps=200)
    by_decoder = attack.decoded(z, np.asarray(linear(public)), public, noise=sigma)
    gains = [attack.psnr(one, x).mean() - guess for one in (found, by_decoder)]
    assert min(gains) > 5 if sigma == 0 else max(gains) < 1


def test_measures_by_hand():
    x = np.zeros((2, 2, 2, 1))
    np.testing.assert_allclose(attack.psnr(x + 0.1, x), [20, 20])
    assert float(attack.roughness(jnp.array([[[0.0], [1.0]], [[0.0], [3.0]]]))) == (4 + 1 + 9) / 4
    gallery = np.array([0.0, 0.5, 1.0]).reshape(3, 1, 1, 1)
    own = np.array([[True, False, False], [False, False, True]])
    found = np.array([0.1, 0.6]).reshape(2, 1, 1, 1)
    assert attack.identified(found, gallery, own).tolist() == [True, False]


@pytest.mark.slow
def test_figures_of_the_threat_model():
    assert_measured("inversion", attack.table())


@pytest.mark.slow
def test_figures_of_convolutions():
    cases = [(1, 0.0), (2, 0.0), (5, 0.0)]
    assert_measured("inversion_cnn", attack.table(attack.CONVOLUTIONS, cases))


def assert_measured(name, found):
    rows = [[float(figure) for figure in row] for row in table(name)]
    measured = [[n, sigma, *figures] for n, sigma, figures in found]
    assert [row[:2] for row in rows] == [row[:2] for row in measured]
    decibels, shares = (
        [np.array([row[part] for row in each]) for each in (rows, measured)]
        for part in (slice(2, 6), slice(6, 8))
    )
    np.testing.assert_allclose(*decibels, atol=0.6)
    np.testing.assert_allclose(*shares, atol=10)
