"""A round of very unequal clients is the round of the padded array: labels, features, steps, statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import KEY, assert_close, assert_same, client_of, training_of

from jaxfed import xclp
from jaxfed.algorithms.semifl import labeled
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Ragged, apart, joined
from jaxfed.training.local.batches import Batches, ClientData, Episodes, plan_of
from jaxfed.training.round.client_round import plain_update
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import LabelSources

SIZES = (300, 5, 0, 9, 70)
JOINT = Batches("joint", 8, 2)


def federation_of(server=None):
    rng = np.random.default_rng(0)
    clients = []
    for n in SIZES:
        y = rng.integers(3, size=n)
        x = (np.eye(3, 4)[y] * 2 + rng.standard_normal((n, 4))).astype(np.float32)
        clients.append((x, np.where((rng.random(n) < 0.3) & (server is None), y, -1)))
    return Federation.from_clients(clients, num_classes=3, server=server)


def training(strategy="map", **settings):
    sources = LabelSources(
        xclp_parameters=xclp.Parameters(num_classes=3, num_bits=64, num_neighbors=4),
        own_parameters=xclp.Propagation(num_classes=3, num_neighbors=4),
    )
    return training_of(JOINT, strategy=strategy, labels=sources, **settings)


def both(given, source, federation, **keywords):
    """States and labels' metrics after a round by padded and by ragged cohorts."""
    algorithm = federated_training(given, plain_update(given.loss), pseudo_label=source, **keywords)
    start = algorithm.init(KEY, federation)
    for ragged in (False, True):
        cohort = federation.cohort([4, 0, 1, 2, 3], ragged=ragged)
        assert isinstance(cohort.x, Ragged) == ragged
        state, metrics = algorithm.round(start, cohort, KEY)
        yield state, metrics


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("none", {"batch_norm": True, "batch_statistics": "static"}),
        pytest.param("network", {"batch_norm": True}, marks=pytest.mark.slow),
        pytest.param("xclp", {"strategy": "shard_map"}, marks=pytest.mark.slow),
        pytest.param("per_client_lp", {}, marks=pytest.mark.slow),
        pytest.param("xclp_prototypes", {"strategy": "vmap"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_round_of_unequal_clients_is_the_padded_one(source, settings):
    (padded, told), (ragged, told_too) = both(training(**settings), source, federation_of())
    if source == "none":
        assert_same(padded, ragged)
    assert_close(padded, ragged)
    assert told.keys() == told_too.keys()
    for name in ("train_loss", "pseudo_labeled", "pseudo_label_weight"):
        if name in told:
            np.testing.assert_allclose(told[name], told_too[name], rtol=1e-4)
    assert told["communication"] == told_too["communication"]


@pytest.mark.slow
def test_labels_at_the_server():
    """Its examples stand behind the clients', in rows of their own."""
    rng = np.random.default_rng(1)
    y = rng.integers(3, size=310)
    server = ((np.eye(3, 4)[y] * 2).astype(np.float32), y)
    given = training(server_examples=server)
    (padded, told), (ragged, told_too) = both(
        given, "xclp", federation_of(server), server_update=plain_update(given.loss)
    )
    assert_close(padded, ragged)
    np.testing.assert_allclose(told["pseudo_labeled"], told_too["pseudo_labeled"])


def each_way(compute):
    """`compute` of every client's data, padded and ragged, in one program each."""
    federation = federation_of()
    found = []
    for ragged in (False, True):
        cohort = federation.cohort(ragged=ragged)
        shared, own = apart(cohort.x)
        shared = jax.tree.map(jnp.asarray, shared)

        @jax.jit
        def of_one(own, y, mask, shared=shared):
            weight = (jnp.arange(len(y)) % 2).astype(jnp.float32)
            data = ClientData(joined(shared, own), jnp.maximum(y, 0), weight, y >= 0, mask)
            return compute(data)

        clients = own, cohort.y, cohort.mask
        found.append(
            [
                of_one(*jax.tree.map(lambda leaf, row=row: leaf[row], clients))
                for row in range(len(SIZES))
            ]
        )
    return found


@pytest.mark.parametrize(
    "batches",
    [
        Batches("joint", 8, 3),
        Batches("paired", 4, 2),
        Batches("beside_all", 4, 2),
        pytest.param(
            Batches("episodes", 0, 2, episodes=Episodes(3, 2, 2, 5)), marks=pytest.mark.slow
        ),
    ],
    ids=lambda batches: batches.scheme,
)
@pytest.mark.slow
def test_every_step_takes_the_same_rows(batches):
    """To the bit, however many rows were sorted for it."""

    def steps(data):
        plan = plan_of(data, batches, KEY)
        rows = [plan.rows(jnp.int32(step)) for step in range(6)]
        return plan.num_steps, rows

    padded, ragged = each_way(steps)
    for (number, own), (number_too, own_too), size in zip(padded, ragged, SIZES, strict=True):
        assert int(number) == int(number_too)
        for (index, used), (index_too, used_too) in zip(own, own_too, strict=True):
            np.testing.assert_array_equal(used, used_too)
            if number:  # a client without a step has rows of nobody
                np.testing.assert_array_equal(index, index_too)
            assert (np.asarray(index)[np.asarray(used)] < size).all()


def test_semifl_labels_the_same():
    training = training_of(JOINT)
    state = training.model.init(KEY)

    def label(data):
        found, is_sure = labeled(client_of(training, state, data), KEY, 0.4)
        return found.label, is_sure

    padded, ragged = each_way(label)
    assert_same(padded, ragged)
