"""A network, clients and ingredients small enough to follow by hand: what tests of training share."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.data import Partition
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution import ClientExecution, client_map
from jaxfed.models.model import from_module
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.round.client_round import ClientRound, Shared
from jaxfed.training.specification import Training

KEY = jax.random.key(0)
RATE = 0.3


def double(key, x):
    """An augmentation without chance."""
    del key
    return 2 * x


def shifted(key, x):
    """Another one."""
    del key
    return x + 0.5


def clients_with(labels):
    """(x [n, 4], y) of clients that have these labels, and so many examples without: [(labels, number)]."""
    rng = np.random.default_rng(0)
    made = []
    for given, unlabeled in labels:
        y = np.array([*given, *[-1] * unlabeled], np.int32)
        made.append((rng.standard_normal((len(y), 4)).astype(np.float32) + y[:, None], y))
    return made


def federation_with(labels):
    """`clients_with`, and their federation."""
    test = np.zeros((2, 4), np.float32), np.zeros(2, np.int32)
    held = clients_with(labels)
    return held, Federation.from_clients(held, test=test, num_classes=3)


def clients_and_server(held_of):
    """Unlabeled clients, `held_of` 20 examples, and their federation with ten labels at the server."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((40, 4)).astype(np.float32)
    held, y = held_of(x[:20]), (x @ rng.standard_normal((4, 3))).argmax(axis=1)
    return held, Federation.from_clients(
        [(own, np.full(len(own), -1)) for own in held],
        server=(x[20:30], y[20:30]),
        test=(x[30:], y[30:]),
        num_classes=3,
    )


class Net(nnx.Module):
    def __init__(self, rngs, batch_norm):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.9, rngs=rngs) if batch_norm else None
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def features(self, x, rngs=None):
        x = self.first(x)
        if self.norm is not None:
            x = self.norm(x, use_running_average=rngs is None)
        return jnp.tanh(x)

    def head(self, features):
        return self.last(features)


def federation_of(sizes, num_labeled=None, seed=0):
    """Clients of these sizes, all or `num_labeled` of each with labels, and 30 points to test on."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    x = rng.standard_normal((n + 60, 4)).astype(np.float32)
    y = (x @ rng.standard_normal((4, 3))).argmax(axis=1).astype(np.int32)
    points = np.split(np.arange(n), np.cumsum(sizes)[:-1])
    cut = [len(own) if num_labeled is None else min(num_labeled, len(own)) for own in points]
    partition = Partition(
        tuple(own[:k] for own, k in zip(points, cut, strict=True)),
        tuple(own[k:] for own, k in zip(points, cut, strict=True)),
        tuple(own[:0] for own in points),
    )
    held_out = np.arange(n, n + 60)
    return Federation(x, y, partition, 3, validation=held_out[:30], test=held_out[30:])


def training_of(batches, *, batch_norm=False, strategy="map", **changes):
    model = from_module(partial(Net, batch_norm=batch_norm))
    map_clients = partial(client_map, strategy=strategy)
    training = Training(
        model=model,
        local=LocalTraining(
            learning_rate=lambda count: RATE / (1 + count), batches=batches, labeled_batches=batches
        ),
        execution=ClientExecution(
            map_clients=map_clients, clients_multiple=2 if strategy == "shard_map" else 1
        ),
    )
    return changed(training, **changes)


def client_of(training, state, data, key=KEY):
    """The first round of a client that receives this model."""
    shared = Shared(state, (), jnp.float32(RATE), jnp.int32(0))
    return ClientRound(training, shared, key, training.local.batches, data, (), ())


FIELDS = {
    **{field.name: ("local", field.name) for field in dataclasses.fields(LocalTraining)},
    **{field.name: ("execution", field.name) for field in dataclasses.fields(ClientExecution)},
    **{name: ("server", name) for name in ("aggregate", "weighting")},
    **{f"server_{name}": ("server", name) for name in ("examples", "batches")},
}


def changed(training, **changes):
    """The training with other values of its own fields, and of its parts' (`FIELDS`)."""
    for name in FIELDS.keys() & changes:
        part, field = FIELDS[name]
        own = dataclasses.replace(getattr(training, part), **{field: changes.pop(name)})
        training = dataclasses.replace(training, **{part: own})
    return dataclasses.replace(training, **changes)


def with_sources(training, **sources):
    """The training with further sources of labels."""
    sources = {**training.pseudo_labels, **sources}
    return dataclasses.replace(training, labels=lambda model, execution: sources)


def rounds_of(algorithm, federation, num_rounds, cohorts=None, sent=None):
    """All states from the start on; `sent` is a list that gets each round's communication."""
    states, sent = [algorithm.init(KEY, federation)], [] if sent is None else sent
    for number in range(num_rounds):
        cohort = federation.cohort(cohorts[number] if cohorts else None)
        state, metrics = algorithm.round(states[-1], cohort, jax.random.fold_in(KEY, number))
        states.append(state)
        sent.append(metrics.get("communication"))
    return states


def assert_close(a, b, rtol=2e-5, atol=2e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)
