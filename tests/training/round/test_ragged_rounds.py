"""A round of very unequal clients is the round of the padded array: labels, features, steps, statistics."""

import numpy as np
import pytest
from small_training import KEY, assert_close, assert_same, training_of

from jaxfed import xclp
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Ragged
from jaxfed.training.local.batches import Batches
from jaxfed.training.round.client_round import plain_update
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import LabelSources

SIZES = (300, 5, 0, 9, 70)
JOINT = Batches("joint", 8, 2)


def training(batches=JOINT, strategy="map", **settings):
    sources = LabelSources(
        xclp_parameters=xclp.Parameters(num_classes=3, num_bits=64, num_neighbors=4),
        own_parameters=xclp.Propagation(num_classes=3, num_neighbors=4),
    )
    return training_of(batches, strategy=strategy, labels=sources, **settings)


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("none", {"batch_norm": True, "batch_statistics": "static"}),
        pytest.param("unlabeled", {"batches": Batches("paired", 4, 2)}, marks=pytest.mark.slow),
        pytest.param("unlabeled", {"batches": Batches("beside_all", 4, 2)}, marks=pytest.mark.slow),
        pytest.param("network", {"batch_norm": True}, marks=pytest.mark.slow),
        pytest.param("xclp", {"strategy": "shard_map"}, marks=pytest.mark.slow),
        pytest.param("per_client_lp", {}, marks=pytest.mark.slow),
        pytest.param("xclp_prototypes", {"strategy": "vmap"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_round_of_unequal_clients_is_the_padded_one(source, settings):
    rng = np.random.default_rng(0)
    clients = []
    for n in SIZES:
        y = rng.integers(3, size=n)
        x = (np.eye(3, 4)[y] * 2 + rng.standard_normal((n, 4))).astype(np.float32)
        clients.append((x, np.where(rng.random(n) < 0.3, y, -1)))
    federation, given = Federation.from_clients(clients, num_classes=3), training(**settings)
    algorithm = federated_training(given, plain_update(given.loss), pseudo_label=source)
    start, order = algorithm.init(KEY, federation), [4, 0, 1, 2, 3]
    cohorts = [federation.cohort(order, ragged=ragged) for ragged in (False, True)]
    assert [isinstance(cohort.x, Ragged) for cohort in cohorts] == [False, True]
    (padded, told), (ragged, told_too) = (algorithm.round(start, one, KEY) for one in cohorts)
    if source in ("none", "unlabeled"):
        assert_same(padded, ragged)
    assert_close(padded, ragged)
    assert told.keys() == told_too.keys()
    for name in ("train_loss", "pseudo_labeled", "pseudo_label_weight"):
        if name in told:
            np.testing.assert_allclose(told[name], told_too[name], rtol=1e-4)
    assert told["communication"] == told_too["communication"]
