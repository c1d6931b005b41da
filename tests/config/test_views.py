"""`preprocessing.views`: features of changed images, computed once, of which a training step draws one."""

import jax
import numpy as np
import pytest

from jaxfed.config import base
from jaxfed.config.assembly import change_of, make_model, view_rows
from jaxfed.config.check import check
from jaxfed.config.data.simulation import Simulation
from jaxfed.data import Dataset

V = 3


@pytest.fixture
def config():
    config = base.get_config()
    config.dataset.name = "tiny"
    config.algorithm, config.baselines, config.rounds = "fixmatch", ("fedavg",), 2
    config.federation.num_clients, config.federation.test = 4, "central"
    config.federation.num_labeled, config.dataset.validation_fraction = 20, 0.1
    config.preprocessing.kind, config.preprocessing.views = "pretrained", V
    config.model.name, config.model.hidden = "mlp", (8,)
    config.training.batches = "paired"
    config.training.augmentation = ("flip",)
    config.training.strong_augmentation = ("translate:1",)
    return config


@pytest.fixture
def images(monkeypatch):
    """60 gray images, 20 to test on; the "network" returns their pixels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 4, 4, 1)).astype(np.uint8)
    y = np.arange(60, dtype=np.int32) % 3
    data = Dataset("tiny", images[:40], y[:40], images[40:], y[40:], 3, ("a", "b", "c"))

    def features(images, *, progress, **settings):
        progress(len(images))
        return images.reshape(-1, 16).astype(np.float32)

    monkeypatch.setattr("jaxfed.config.data.simulation.load", lambda name, **settings: data)
    monkeypatch.setattr("jaxfed.config.data.preprocessing.pretrained_features", features)
    monkeypatch.setattr(
        "jaxfed.config.data.preprocessing._AT_ONCE", 15
    )  # two whole batches and a rest
    return images


def of_shift(image, down, right):
    padded = np.pad(image[..., 0], 1, mode="reflect")
    return padded[down : down + 4, right : right + 4].reshape(16)


def test_rows_are_the_image_weak_views_and_strong_views(config, images):
    check(config)
    simulation, reports = Simulation(config), []
    simulation.warn()
    x = simulation.federation(0, lambda done, total: reports.append((done, total))).x
    assert x.shape == (60, 1 + 2 * V, 16)
    np.testing.assert_array_equal(x[:, 0], images.reshape(60, 16))
    np.testing.assert_array_equal(x[40:], np.repeat(x[40:, :1], 1 + 2 * V, axis=1))
    is_kept = np.zeros((40, V), bool)
    flipped, shifts = 0, set()
    for number, (image, rows) in enumerate(zip(images[:40], x[:40], strict=True)):
        for view, weak in enumerate(rows[1 : 1 + V]):
            is_kept[number, view] = np.array_equal(weak, image.reshape(16))
            flipped += np.array_equal(weak, image[:, ::-1].reshape(16))
        for strong in rows[1 + V :]:
            found = [
                (down, right)
                for down in range(3)
                for right in range(3)
                if np.array_equal(strong, of_shift(image, down, right))
            ]
            assert found
            shifts.update(found)
    assert is_kept.sum() + flipped == 40 * V
    assert abs(is_kept.sum() - 60) < 4 * np.sqrt(120) / 2  # a fair coin
    assert len(np.unique(is_kept, axis=1).T) == V  # each view and each batch has draws of its own
    assert not np.array_equal(is_kept[:15], is_kept[15:30])
    assert len(shifts) == 9
    assert set(reports) == {(40, 40), (20, 20)}
    config.seed = 1
    assert not np.array_equal(Simulation(config).federation(0).x[:40], x[:40])


def test_a_step_draws_views_of_its_kind_alike(config):
    x = np.arange(2000 * (1 + 2 * V), dtype=np.float32).reshape(2000, 1 + 2 * V, 1)
    for key, rows in view_rows(config).items():
        drawn = change_of(config, key)(jax.random.key(0), x)
        assert drawn.shape == (2000, 1, 1)
        row = np.asarray(drawn)[:, 0, 0] - x[:, 0, 0]
        counts = np.bincount(row.astype(int), minlength=1 + 2 * V)
        assert counts[list(rows)].sum() == 2000
        assert np.abs(counts[list(rows)] - 2000 / V).max() < 5 * np.sqrt(2000 / V)


def test_components_of_images_and_views_are_those_of_the_training_images(config, images):
    whole = Simulation(config).federation(0).x
    config.preprocessing.components = 5
    check(config)
    simulation = Simulation(config)
    simulation.warn()
    federation = simulation.federation(0)
    assert federation.x.shape == (60, 1 + 2 * V, 5)
    own = whole[:40, 0].astype(np.float64)
    _, spread, directions = np.linalg.svd(own - own.mean(axis=0))
    expected = (whole - own.mean(axis=0)) @ directions[:5].T
    signs = np.sign(np.sum(expected * federation.x, axis=(0, 1)))
    np.testing.assert_allclose(federation.x, expected * signs, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(federation.x[:40, 0].var(axis=0), spread[:5] ** 2 / 40, rtol=1e-4)
    # All components have one scale, so that noise does not weigh as much as the first.
    model = make_model(config, federation)
    first = model.features(model.init(jax.random.key(0)), federation.x[:1])
    plain = make_mlp_features(model.init(jax.random.key(0)), federation)
    np.testing.assert_allclose(first, plain[:1], rtol=1e-4, atol=1e-5)


def make_mlp_features(state, federation):
    """relu(W z + b) of all examples' first rows; z: centered, divided by the root of the mean variance."""
    mean, deviation = federation.normalization
    z = (federation.x[:, 0] - mean) / np.sqrt(np.mean(deviation**2))
    leaves = {leaf.ndim: np.asarray(leaf) for leaf in jax.tree.leaves(state) if leaf.shape[-1] == 8}
    return np.maximum(z @ leaves[2] + leaves[1], 0)
