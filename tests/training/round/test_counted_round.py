"""Rounds in which clients do not compute cost what rounds cost in which they do."""

import jax
import numpy as np
import pytest
from small_training import KEY, changed, federation_of

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.federation.communication import num_bytes_of
from jaxfed.models import MODELS
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.round.counted_round import CountingClients, round_costs
from jaxfed.training.specification import Training

NUM_LABELED, NUM_UNLABELED = 6, 10
FEDERATION = federation_of([NUM_LABELED + NUM_UNLABELED] * 3, num_labeled=NUM_LABELED)
MODEL = MODELS["mlp"]((4,), 3, hidden=(5,))
OWN = {
    "protofssl": {
        "task": PrototypeTask(num_classes=3, max_labels=NUM_LABELED),
        "unlabeled_query": 4,
        "num_helpers": 2,
    },
    "fedmatch": {"helper_interval": 2},
}


def algorithm(name, **changes):
    training = Training(
        MODEL,
        local=LocalTraining(
            batches=Batches("paired", size=2, epochs=2),
            strong_augment=lambda key, x: x + 0.1 * jax.random.normal(key, x.shape),
        ),
    )
    if name not in ("fixmatch", "fedmatch"):
        training = training.with_local(strong_augment=None)
    training = changed(training, **changes)
    return ALGORITHMS[name](training=training, **OWN.get(name, {}))


def counted(name, rounds=2, **changes):
    clients = CountingClients()
    return round_costs(
        algorithm(name, map_clients=clients, **changes), clients, FEDERATION, KEY, rounds=rounds
    )


def real_rounds(name):
    """Mean bytes up and down of rounds 2 and 3, a client, and its steps."""
    method = algorithm(name)
    state, up, down = method.init(KEY, FEDERATION), [], []
    for number in range(3):
        state, metrics = method.round(state, FEDERATION.cohort(), jax.random.fold_in(KEY, number))
        up.append(metrics["communication"]["upload_bytes"] / 3)
        down.append(metrics["communication"]["download_bytes"] / 3)
    return np.mean(up[1:]), np.mean(down[1:]), float(metrics["local_steps"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["fedavg", "fixmatch", "scaffold", "protofssl", "fedproto"])
def test_bytes_and_steps_are_those_of_real_rounds(name):
    costs = counted(name)
    assert (costs.upload_bytes, costs.download_bytes, costs.steps) == real_rounds(name)


@pytest.mark.slow
def test_what_may_be_sent_sparse_counts_whole():
    """FedMatch: sigma and psi both ways, and two helpers' psi in every second round."""
    whole = num_bytes_of(jax.eval_shape(MODEL.init, KEY))
    costs, (up, down, steps) = counted("fedmatch"), real_rounds("fedmatch")
    assert (costs.upload_bytes, costs.steps) == (2 * whole, steps)
    assert costs.download_bytes >= down
    assert costs.upload_bytes >= up > costs.upload_bytes / 2
    # Biases begin as 0, and zeros of psi are not sent; helpers' psi is what a client sent.
    assert 2 * whole < costs.download_bytes <= 3 * whole


def test_operations_of_a_local_update_by_hand():
    """Both passes of two dense layers over all rows of all steps; of the first's input no gradient."""
    model, rows, epochs = MODELS["mlp"]((4,), 3, hidden=(2000,)), 16, 3
    batches = Batches("joint", size=rows, epochs=epochs)
    of_batches = {"batches": batches, "labeled_batches": batches}
    costs = counted("fedavg", model=model, **of_batches)
    # FedAvg trains on labels alone, in a batch with room for all examples.
    assert costs.steps == epochs
    into, out = 2 * 4 * 2000, 2 * 2000 * 3
    expected = epochs * rows * (2 * into + 3 * out)
    elementwise = epochs * (rows * 2000 * 12 + 4 * (4 + 3 + 2) * 2000)
    assert expected < costs.operations < expected + elementwise


@pytest.mark.slow
def test_operations_grow_with_steps_and_with_passes():
    def total(name, epochs):
        return counted(name, 1, batches=Batches("paired", size=2, epochs=epochs)).operations

    once, thrice = (total("fixmatch", epochs) for epochs in (1, 3))
    assert 2.5 < thrice / once <= 3
    assert once > total("fedavg", 1)
