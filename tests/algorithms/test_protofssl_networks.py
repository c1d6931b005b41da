"""Table 4's networks, ResNet-8, 9, 17 and 18, with every norm: one round of one step by the config."""

import jax
import numpy as np
import pytest
from flax import nnx

from jaxfed.config import file
from jaxfed.config.assembly import make_algorithm
from jaxfed.data import Partition
from jaxfed.federation.clients import Federation

KEY = jax.random.key(0)
NORMS = {
    "none": (),
    "batch": ("model.norm=batch",),
    "group": ("model.norm=group",),
    "static": ("model.norm=batch", "training.batch_statistics=static"),
    "last": ("model.norm=batch", "model.momentum=0"),
}
NETWORKS = {
    "resnet9": ("model.name=resnet9", "model.pools=(2, 2, 2, 1)"),
    "resnet18": ("model.name=resnet18", "model.stem=cifar", "model.pool=max", "model.norm=none"),
}
SMALL = ("training.epochs=1", "training.batch_size=0", "protofssl.unlabeled_query=2")


def federation_of_images():
    """Two clients with three labeled and two unlabeled images of each of two classes; four to test on."""
    rng = np.random.default_rng(0)
    y = np.tile([0, 1], 12).astype(np.int32)
    x = (rng.integers(0, 100, (24, 8, 8, 3)) + 100 * y[:, None, None, None]).astype(np.uint8)
    clients = np.arange(10), np.arange(10, 20)
    partition = Partition(
        tuple(points[:6] for points in clients),
        tuple(points[6:] for points in clients),
        tuple(points[:0] for points in clients),
    )
    return Federation(x, y, partition, 2, test=np.arange(20, 24))


def combinations():
    """ProtoFSSL has the networks without their last layer."""
    for method in ("protofssl", "fedavg"):
        for network in NETWORKS:
            for norm in NORMS:
                yield method, network, norm


@pytest.mark.slow
@pytest.mark.parametrize(("method", "network", "norm"), list(combinations()))
def test_every_network_takes_a_step_with_every_norm(method, network, norm):
    overrides = (*NETWORKS[network], *SMALL, *NORMS[norm])
    config = file.load("ml_collections_configs/protofssl.py", overrides)
    federation = federation_of_images()
    algorithm = make_algorithm(config, method, federation)
    before = jax.jit(lambda: algorithm.init(KEY, federation))()
    after, metrics = algorithm.round(before, federation.cohort(), KEY)
    assert np.isfinite(metrics["train_loss"])
    parameters, statistics = nnx.split_state(before.model, nnx.Param, ...)
    trained, moved = nnx.split_state(after.model, nnx.Param, ...)
    changed = [
        not np.array_equal(old, new)
        for old, new in zip(jax.tree.leaves(parameters), jax.tree.leaves(trained), strict=True)
    ]
    assert np.mean(changed) > 0.9
    has_head = any("head" in path for path, _ in nnx.to_flat_state(after.model))
    assert has_head == (method == "fedavg")
    assert bool(jax.tree.leaves(statistics)) == (norm in ("batch", "static", "last"))
    for old, new in zip(jax.tree.leaves(statistics), jax.tree.leaves(moved), strict=True):
        assert np.all(np.isfinite(new))
        assert np.any(old != new)
