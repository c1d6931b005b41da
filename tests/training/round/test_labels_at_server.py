"""Labels at the server: its turn, who takes part, what is sent, and what it is in a labeling."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import cross_entropy, gradient, weights_of
from small_training import (
    KEY,
    RATE,
    assert_close,
    assert_same,
    federation_of,
    rounds_of,
    training_of,
    with_sources,
)

from jaxfed import xclp
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.fedsem import fedsem
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import Communication
from jaxfed.federation.rounds import needs_labels_in
from jaxfed.training import aggregate
from jaxfed.training.local import losses
from jaxfed.training.local.batches import Batches
from jaxfed.training.pseudo_labels import propagated_labels
from jaxfed.training.pseudo_labels.propagated_labels import all_examples
from jaxfed.training.pseudo_labels.pseudo_label import embedding
from jaxfed.training.round import labels_at_server
from jaxfed.training.server_state import client_keys

SIZES, NUM_AT_SERVER = [12, 7, 0, 20], 21


def apart(sizes=SIZES, number=NUM_AT_SERVER):
    """Clients without labels, and a server that has all of one more's."""
    whole = federation_of([*sizes, number])
    clients = [
        (whole.x[points], np.full(len(points), -1, np.int32))
        for points in (whole.points(k) for k in range(len(sizes)))
    ]
    held = whole.partition.labeled[-1]
    return Federation.from_clients(
        clients,
        test=(whole.x[whole.test], whole.y[whole.test]),
        server=(whole.x[held], whole.y[held]),
        num_classes=3,
    )


def training_at(federation, **changes):
    batches = changes.pop("batches", Batches("joint", 8, 1))
    defaults = {
        "server_examples": federation.server_examples,
        "server_batches": Batches("joint", NUM_AT_SERVER, 1),
        "weighting": aggregate.uniformly,
    }
    return training_of(batches, **defaults | changes)


def gradient_step(training, model, federation, rate=RATE):
    """One full-batch step on the server's labels."""
    x, y = federation.server_examples

    def loss(state):
        logits = training.model.apply(state, x)
        return losses.softmax_cross_entropy(logits, jnp.asarray(y)).mean()

    return jax.tree.map(lambda w, g: w - rate * g, model, jax.jit(jax.grad(loss))(model))


def numbers_after_a_step(model, federation):
    """The network's numbers in one vector after `gradient_step`, without a program."""
    w, (x, y) = weights_of(model), federation.server_examples
    return w - RATE * gradient(lambda u: cross_entropy(u, x.astype(np.float64), y), w)


@cache
def alone():
    """FedAvg, which trains at the server only, and its federation."""
    federation = apart()
    return fedavg(training=training_at(federation)), federation


def test_fedavg_is_the_server_alone_and_sends_nothing():
    algorithm, federation = alone()
    start = algorithm.init(KEY, federation)
    after, metrics = algorithm.round(start, federation.cohort(), KEY)
    assert_close(weights_of(after.model), numbers_after_a_step(start.model, federation))
    assert metrics["communication"]["upload_bytes"] == 0
    assert metrics["communication"]["download_bytes"] == 0
    assert metrics["clients"] == 0
    assert float(metrics["train_loss"]) == float(metrics["server_train_loss"]) > 0
    assert metrics["server_local_steps"] == 1
    assert needs_labels_in(algorithm, 1)  # so that no client takes time (jaxfed.federation.clock)


def test_stage_1_is_the_servers_and_the_teacher_is_what_stage_2_hands_out():
    algorithm, federation = alone()
    by_server = rounds_of(algorithm, federation, 2)
    training = training_at(federation, labeled_only_rounds=2)
    sem = rounds_of(fedsem(training=training), federation, 4)
    assert_same(sem[2].model, by_server[2].model)
    expected = numbers_after_a_step(by_server[2].model, federation)
    assert_close(weights_of(sem[3].teacher.model), expected, atol=1e-5)
    assert_same(sem[4].teacher.model, sem[3].teacher.model)


def xclp_training(federation, **changes):
    training = training_at(federation, **changes)
    embed = embedding(training.model, training.execution.map_clients)
    p = xclp.Parameters(num_classes=3, num_bits=64, num_neighbors=3)
    source = propagated_labels.XclpLabels(all_examples(embed), p)
    return with_sources(training, xclp=source)


def test_xclp_labels_are_those_of_one_more_party():
    """As a client that holds the server's labels would give them; its messages are not counted."""
    federation = apart()
    training = xclp_training(federation, clients_multiple=2)
    state = fedavg(training=training, pseudo_label="xclp").init(KEY, federation)
    cohort = federation.cohort()
    own = labels_at_server.server_of(training, len, "xclp", joins=False).examples
    parties = labels_at_server.beside(cohort, own, 2)
    assert parties.x.shape == (6, 20, 4)  # two rows for 21 examples
    assert (np.asarray(parties.y)[~np.asarray(parties.mask)] == -1).all()
    assert parties.client_id.tolist() == [0, 1, 2, 3, -2, -3]
    assert parties.mask.sum() == sum(SIZES) + NUM_AT_SERVER
    keys = jax.random.key_data(client_keys(KEY, parties.client_id))
    assert len(np.unique(keys, axis=0)) == 6
    sent = Communication()
    labels = training.pseudo_labels["xclp"](state, parties, KEY, sent)

    x, y = federation.server_examples
    clients = [(federation.x[federation.points(k)], np.full(n, -1)) for k, n in enumerate(SIZES)]
    at_client = [(x[:20], y[:20]), (x[20:], y[20:])]  # two rows here, too: one program labels both
    joined = Federation.from_clients([*clients, *at_client], num_classes=3)
    told = Communication()
    expected = training.pseudo_labels["xclp"](state, joined.cohort(), KEY, told)
    for row, size in enumerate(SIZES):
        np.testing.assert_array_equal(labels.label[row, :size], expected.label[row, :size])
        np.testing.assert_allclose(
            labels.weight[row, :size], expected.weight[row, :size], atol=1e-4
        )
    n, remote = sum(SIZES) + NUM_AT_SERVER, sum(SIZES)
    assert sent.upload == {
        "positions": 0,
        "codes": remote * 64 // 8,
        "contributions": 4 * 3 * n * 3,
    }
    assert sent.download == {"influence_columns": 0, "row_sums": 4 * remote * 3}
    assert told.upload["codes"] == n * 64 // 8


def test_with_static_statistics_clients_label_by_those_of_what_the_server_has_come_to():
    federation = apart([16, 16], 16)

    class Labeling(Exception):  # what follows it is not compiled
        pass

    def labels(state, cohort, key, communication):
        raise Labeling(state.model)

    training = training_at(
        federation,
        server_batches=Batches("joint", 16, 1),
        batch_norm=True,
        batch_statistics="static",
    )
    algorithm = fedavg(training=with_sources(training, network=labels), pseudo_label="network")
    with pytest.raises(Labeling) as caught:
        rounds_of(algorithm, federation, 1)
    [model] = caught.value.args
    kernel, bias = (np.asarray(model["first"][name][...]) for name in ("kernel", "bias"))
    expected = (federation.server_examples[0] @ kernel + bias).mean(axis=0)
    np.testing.assert_allclose(model["norm"]["mean"][...], expected, atol=1e-5)
