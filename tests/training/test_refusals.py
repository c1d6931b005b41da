"""What training refuses: its parts, users' own functions, labels at the wrong side."""

import dataclasses
import math
from functools import partial
from types import SimpleNamespace
from unittest import mock

import jax.numpy as jnp
import network_in_process
import numpy as np
import optax
import refusals
from flax import nnx
from small_training import KEY, clients_and_server, federation_of, training_of, with_sources

import jaxfed
from jaxfed import xclp
from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.client_knn import client_knn
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.fixmatch import fixmatch
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.algorithms.scaffold import scaffold
from jaxfed.experiment.run.simulate import simulate
from jaxfed.federation.method import method
from jaxfed.testing.method_checks import SEED, arranged
from jaxfed.training.consensus import change_probability, rounds_needed
from jaxfed.training.local import augmentation, losses
from jaxfed.training.pseudo_labels import propagated_labels
from jaxfed.training.pseudo_labels.propagated_labels import all_examples
from jaxfed.training.pseudo_labels.pseudo_label import (
    completed,
    embedding,
)
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import rows_for
from jaxfed.training.specification import PSEUDO_LABELS

MODEL = jaxfed.from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,))
BATCHES = jaxfed.Batches("joint", size=4, epochs=2)


PARTS = {
    "LocalTraining.optimizer='adam': use a function such as optax.adam": partial(
        jaxfed.LocalTraining, optimizer="adam"
    ),
    "...learning_rate=...gives no rate for a traced": partial(
        jaxfed.LocalTraining, learning_rate=lambda t: 0.1 if t < 3 else 0.01
    ),
    "LocalTraining.learning_rate=...gives no rate": partial(
        jaxfed.LocalTraining, learning_rate=lambda t: "fast"
    ),
    "LocalTraining.strong_augment=None: 'fixmatch' compares two views ...; give a strong": (
        lambda: fixmatch(training=jaxfed.Training(MODEL))
    ),
    "Batches.scheme='mixed': choose one of 'joint',": partial(jaxfed.Batches, "mixed", 4, 1),
    "Batches.steps=-1: use integers from 0": partial(jaxfed.Batches, "joint", 4, 1, -1),
    "ServerTraining.aggregate=...: use an Aggregate, such as": partial(
        jaxfed.ServerTraining, aggregate=optax.sgd(1.0)
    ),
    "ServerTraining.examples ...a pair": partial(jaxfed.ServerTraining, examples=np.zeros(3)),
    "fedavg: training is a Model; use ": lambda: jaxfed.algorithms.fedavg(training=MODEL),
    "Training...initial_model={'w': 1}: use a state of": partial(
        jaxfed.Training, MODEL, initial_model={"w": 1}
    ),
}


CONSENSUSES = {
    "...num_clients=2": partial(change_probability, 2, 1, 10, 1),
    "...rounds=2: use integers from 2 c - 1 on": partial(change_probability, 3, 1, 2, 2),
    "...delta=1.0": partial(rounds_needed, 3, 1, 1, 1.0),
    "...rate=inf": partial(rounds_needed, 3, 1, math.inf, 0.5),
}


def levels(name, *ends):
    return lambda: augmentation.check_levels(
        SimpleNamespace(levels=ends), augmentation.compose((name,))
    )


def viewed(augment):
    return lambda: losses.view(augment, KEY, jnp.ones((4, 2)))


NAMES = ("flop", "flip:1", "translate:x", "translate:-1", "crop:-1", "randaugment:2:31")
NAMES += ("flip_axes:2", "drop:1.5", "rotate:10:-0.5", "holes:0", "holes:16:0", "holes:16:8:1.5")
VIEWS = {f"...augmentation='{name}'": partial(augmentation.compose, (name,)) for name in NAMES} | {
    "...augmentation='cutout:2': needs pixels from 0 to 1": levels("cutout:2", -0.1, 1.0),
    "...augmentation='randaugment:2:10': needs pix": levels("randaugment:2:10", 0.0, 1.1),
    "...augmentation=('flip',): ... examples have shape [9]": partial(
        augmentation.compose(["flip"]), KEY, jnp.zeros((2, 9))
    ),
    "augmentation: returns float32[3, 2] for float32[4, 2]": viewed(lambda key, x: x[1:]),
    "augmentation: returns bool[4, 2] for float32[4, 2]": viewed(lambda key, x: x > 0),
}

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4)).astype(np.float32)
Y = np.where(np.arange(30) % 3 == 0, -1, np.arange(30) % 3)
FEDERATION = jaxfed.Federation.from_clients([(X[:15], Y[:15]), (X[15:], Y[15:])], num_classes=3)


def own_labels(found):
    """A round on labels that a user's source gives: `found` (cohort, labels, weights)."""

    def mine(parts):
        def source(state, cohort, key, communication):
            y = jnp.zeros(cohort.y.shape, jnp.int32)
            return found(cohort, y, y.astype(jnp.float32) + 1)

        return source

    def call():
        given = jaxfed.LabelSources(own_parameters=xclp.Propagation(num_classes=3))
        with mock.patch.dict(PSEUDO_LABELS, mine=mine):
            method = fedavg(training=jaxfed.Training(MODEL, labels=given), pseudo_label="mine")
            simulate(method, FEDERATION)

    return call


def own_states(first, after):
    own = jaxfed.Training(MODEL)

    def local_update(client):
        return client.update(client.steps(own.loss), client_state=after(client.state))

    def init(model, federation, key):
        return first

    made = partial(federated_training, own, local_update, pseudo_label="none", init_client=init)
    return lambda: simulate(made(), FEDERATION)


def own_round(change):
    plain = fedavg(training=jaxfed.Training(MODEL))
    method = plain._replace(round=lambda *given: change(*plain.round(*given)))
    return lambda: simulate(method, FEDERATION)


def weighed(weight, **given):
    own = jaxfed.ServerTraining(weighting=lambda data: jnp.float32(weight), **given)
    return lambda: simulate(fedavg(training=jaxfed.Training(MODEL, server=own)), FEDERATION)


def no_method():
    declare = method(title="Mine", leaves="nothing")
    with mock.patch.dict(ALGORITHMS, mine=declare(lambda *, training: None)):
        jaxfed.run("fedavg_xclp:smoke", algorithm="mine", baselines=(), progress=False)


OWN = {
    "...labels of shape (2, 1) for examples": own_labels(lambda c, y, w: completed(c, y[:, :1], w)),
    "...weights of shape (15,) for": own_labels(lambda c, y, w: completed(c, y, w[0])),
    "...labels of type float32; use int32": own_labels(lambda c, y, w: completed(c, w, w)),
    "...client_state: float32[3] in place of": own_states(jnp.zeros(2), lambda old: jnp.zeros(3)),
    "...its structure differs from that of `init_": own_states(jnp.zeros(2), lambda old: ()),
    "...returned ServerState; return (state, metrics), m": own_round(lambda after, metrics: after),
    "...metric 'note' is text": own_round(lambda after, metrics: (after, {**metrics, "note": "a"})),
    "ServerTraining.weighting: a client's weight is neg": weighed(-1.0),
    "ServerTraining.weighting: ...or not finite; return finite numbers": weighed(np.nan),
    "ServerTraining.weighting: a client  under masks": weighed(-1.0, sums="masked_resilient"),
    "...factory of 'mine' returned NoneType; return a Fed": no_method,
}

PLAIN = training_of(BATCHES)
SERVED = clients_and_server(lambda x: [x[:10], x[10:]])[1]
AT_SERVER = PLAIN.with_server(examples=SERVED.server_examples, batches=BATCHES)


def trains_by(source):
    within = with_sources(AT_SERVER, **{source: AT_SERVER.pseudo_labels["none"]})
    return lambda: fedavg(training=within, pseudo_label=source)


def noisy_labels_at_the_server():
    embed = embedding(AT_SERVER.model, AT_SERVER.execution.map_clients)
    noisy = xclp.Parameters(num_classes=3, num_bits=64, num_neighbors=3, bit_epsilon=1.0)
    source = propagated_labels.XclpLabels(all_examples(embed), noisy)
    method = fedavg(training=with_sources(AT_SERVER, xclp=source), pseudo_label="xclp")
    simulate(method, SERVED)


def points_to_test_without():
    one = federation_of([20])
    one = dataclasses.replace(one, partition=one.partition._replace(new=one.partition.labeled))
    fedavg(training=PLAIN).init(KEY, one)


def frozen_network():
    config, federation, _ = arranged("fedavg", settings=("fedavg.pseudo_label=teacher",))
    network_in_process.Network(config, "fedavg", federation, [2], seed=SEED)


def labeled_on_a_network(*settings):
    settings = ("xclp.num_bits=64", "training.labeled_only_rounds=0", *settings)
    return lambda: network_in_process.both("fedavg_xclp", [2, 3], settings, rounds=0)


def population(number):
    one = {"w": jnp.float32([1, 2]), "n": jnp.int32(3)}
    little = mock.patch("jaxfed.training.server_state.host_bytes", return_value=10**6)
    return little(lambda _: rows_for(number, one))


SIDES = {
    "ServerTraining.examples: this method needs labels at": lambda: scaffold(training=AT_SERVER),
    "ServerTraining.examples: ... by its own labels": trains_by("per_client_lp"),
    "...the server has labels...no noise": noisy_labels_at_the_server,
    "...this method needs labels at the cl": lambda: simulate(client_knn(num_classes=3), SERVED),
    "...examples=federation.server_examples": lambda: simulate(fedavg(training=PLAIN), SERVED),
    "...pseudo_label='xclpp'...'none'": lambda: fedavg(training=PLAIN, pseudo_label="xclpp"),
    "...federation.test='central'": points_to_test_without,
    "...num_classes=0: use the number of classes": lambda: PrototypeTask(num_classes=0),
    "...on a network clients label their own examples": frozen_network,
    "...hamming=...does not run on a network; use 'masked'": labeled_on_a_network(
        "xclp.hamming=plaintext", "xclp.influence=columns", "xclp.row_sums=masked"
    ),
    "LocalTraining.batch_statistics='static': nothing is measured under masks; use": lambda: fedavg(
        training=training_of(BATCHES, batch_statistics="static").with_server(
            sums="masked_resilient"
        )
    ),
    "...batch_statistics='static': nothing is measured on a network; use": labeled_on_a_network(
        "training.batch_statistics=static"
    ),
    "the states of 1,000,000 clients take 12 MB, the host's memory is 1 MB; use a": population(
        10**6
    ),
}

test_parts = refusals.table(PARTS | CONSENSUSES | VIEWS)
test_users_own = refusals.table(OWN)
test_sides = refusals.table(SIDES)
