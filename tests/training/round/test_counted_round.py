"""Rounds in which clients do not compute cost what rounds cost in which they do."""

import jax
import numpy as np
import pytest
from small_training import KEY, changed, federation_of

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.protofssl.settings import PrototypeTask
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
