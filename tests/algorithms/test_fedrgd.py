"""FedRGD: groups, the diversity of gradients, and rounds in NumPy with every division into groups."""

from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from float64_training import (
    affine,
    cross_entropy,
    gradient,
    logits,
    softmax,
    the_one_that_fits,
    weights_of,
)
from scipy import stats
from small_training import KEY, RATE, assert_close, assert_same, double, training_of

from jaxfed.algorithms.fedrgd import Groups, _memberships, fedrgd
from jaxfed.federation.clients import Federation
from jaxfed.models.mlp import mlp
from jaxfed.training import aggregate
from jaxfed.training.local.batches import Batches

LINEAR = mlp((4,), 3, hidden=())


def test_groups_are_equal_random_and_by_the_clients_own_numbers():
    state = LINEAR.init(KEY)
    models = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1, leaf + 2]), state)
    groups = Groups(models, KEY, jnp.float32(0))
    ids, number = np.array([4, 8, 1, 0, 9, 6, 3], np.int32), jnp.int32(5)
    mail = _memberships(groups, number, ids)
    members = np.asarray(mail.member).argmax(axis=1)
    assert sorted(np.bincount(members, minlength=3)) == [2, 2, 3]
    bias = np.asarray(mail.model["head"]["bias"][...])
    np.testing.assert_allclose(bias[:, 0] - np.asarray(state["head"]["bias"][...])[0], members)
    other = _memberships(groups, number, np.array([3, -1, 9, 4, 0, -1, 1, 6, 8], np.int32))
    again = np.asarray(other.member).argmax(axis=1)[[3, 8, 6, 4, 2, 7, 0]]
    np.testing.assert_array_equal(again, members)


def test_all_divisions_are_equally_likely_and_one_round_tells_nothing_of_the_next():
    """Four clients and a padding row in two groups, six ways to divide them; 36 of two rounds together."""
    state = LINEAR.init(KEY)
    groups = Groups(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state), KEY, jnp.float32(0))
    ids = np.array([6, 0, -1, 3, 2], np.int32)
    divided = jax.vmap(lambda number: _memberships(groups, number, ids).member[:, 1])
    second = np.asarray(divided(jnp.arange(7200)))[:, ids >= 0].astype(int)
    ways = [sum(1 << k for k in pair) for pair in combinations(range(4), 2)]
    found = [ways.index(way) for way in second @ [1, 2, 4, 8]]
    pairs = 6 * np.array(found[::2]) + found[1::2]
    assert stats.chisquare(np.bincount(pairs, minlength=36)).pvalue > 1e-6


def test_a_group_in_which_nobody_counts_keeps_its_model():
    _, federation = five_clients(at_server=False)
    batches = Batches("joint", 6, 1)  # cohorts of five, one and no client share a program
    training = training_of(batches, model=LINEAR, strong_augment=double, clients_multiple=5)
    algorithm = fedrgd(training=training, num_groups=3)
    # After a round groups' models are no longer their mean, which an empty one must not be given.
    start, _ = algorithm.round(algorithm.init(KEY, federation), federation.cohort(), KEY)
    after, _ = algorithm.round(start, federation.cohort([2]), KEY)
    changed = np.any(affine(after.optimizer.model) != affine(start.optimizer.model), axis=(1, 2))
    assert changed.sum() == 1
    assert_close(affine(after.model), affine(after.optimizer.model)[changed][0])
    nobody, _ = algorithm.round(start, federation.cohort([]), KEY)
    assert_same(nobody.model, start.model)
    assert_same(nobody.optimizer.model, start.optimizer.model)


THRESHOLD, STEPS, MOMENTUM = 0.6, 3, 0.9


def five_clients(at_server):
    """Five clients: one unsure of everything, one without examples; labels at the server or two at each."""
    rng = np.random.default_rng(2)
    w = rng.standard_normal((4, 3))
    x = rng.standard_normal((6, 6, 4)).astype(np.float32)
    x[3] *= 1e-3
    y = (x @ w).argmax(axis=-1)
    clients = []
    for k, size in enumerate([6, 4, 5, 6, 0]):
        known = np.full(size, -1)
        if not at_server and k != 3:
            known[:2] = y[k, : min(2, size)]
        clients.append((3 * x[k, :size], known))
    return clients, Federation.from_clients(
        clients, server=(x[5], y[5]) if at_server else None, test=(x[5], y[5]), num_classes=3
    )


def stepped(w, loss_at, rate):
    """SGD with Nesterov's momentum, v <- m v + g, w <- w - rate (g + m v), on losses made anew each step."""
    velocity = 0
    for _ in range(STEPS):
        slope = gradient(loss_at(w), w)
        velocity = MOMENTUM * velocity + slope
        w = w - rate * (slope + MOMENTUM * velocity)
    return w


def client_loss(x, y):
    """At weights: FixMatch's term of what has no label, and cross-entropy of what has one.

    The labeled view is twice the one that labels it.
    """
    x = x.astype(np.float64)

    def at(w):
        p = softmax(logits(w, x))
        open_rows, given = y < 0, y >= 0
        sure, label = open_rows & (p.max(axis=1) >= THRESHOLD), p.argmax(axis=1)

        def loss(v):
            value = 0 * v[0]
            if sure.any():
                value = value + cross_entropy(v, 2 * x[sure], label[sure]) * np.mean(
                    sure[open_rows]
                )
            if given.any():
                value = value + cross_entropy(v, x[given], y[given])
            return value

        return loss

    return at


def mean_of(members, sizes, weighting):
    """Of models by client, the server's among them."""
    weights = None if weighting == "uniform" else [sizes[k] for k in members]
    return np.average(list(members.values()), axis=0, weights=weights)


@pytest.mark.parametrize(
    ("at_server", "weighting"), [(True, "examples"), (False, "uniform"), (False, "examples")]
)
@pytest.mark.sample(1)
def test_rounds_are_those_of_one_division_into_groups(at_server, weighting):
    held, federation = five_clients(at_server)
    training = training_of(
        Batches("joint", 6, 1, steps=STEPS),
        optimizer=partial(optax.sgd, momentum=MOMENTUM, nesterov=True),
        strong_augment=double,
        clients_multiple=5,  # cohorts of four and five clients share a program
        weighting=aggregate.WEIGHTINGS[weighting],
        server_examples=federation.server_examples,
        server_batches=Batches("joint", 6, 1, steps=STEPS),
    )
    algorithm = fedrgd(training=training, num_groups=2, threshold=THRESHOLD)
    state = algorithm.init(KEY, federation)
    w = weights_of(state.model)
    groups = np.stack([w, w])
    sizes = {k: len(y) for k, (_, y) in enumerate(held)} | {"server": 6}
    for number, taking_part in enumerate([[0, 1, 2, 3, 4], [0, 2, 3, 4], [0, 1, 2, 3]]):
        rate = RATE / (1 + number)
        state, metrics = algorithm.round(
            state, federation.cohort(taking_part), jax.random.fold_in(KEY, number)
        )
        trained = {
            (k, i): stepped(groups[i], client_loss(*held[k]), rate)
            for k in taking_part
            for i in (0, 1)
            if len(held[k][0])
        }
        own = {}
        if at_server:
            x, y = federation.server_examples
            own = {"server": stepped(w, client_loss(x, y), rate)}
        candidates = []
        half = len(taking_part) // 2
        for size in {half, len(taking_part) - half}:
            for first in combinations(taking_part, size):
                members = [
                    own
                    | {
                        k: trained[k, i]
                        for k in taking_part
                        if (k in first) != i and (k, i) in trained
                    }
                    for i in (0, 1)
                ]
                if not all(members):
                    continue
                means = np.stack([mean_of(group, sizes, weighting) for group in members])
                changes = np.stack(list((members[0] | members[1]).values())) - w
                diversity = np.sum(changes**2) / np.sum(changes.sum(axis=0) ** 2)
                candidates.append((means, means.mean(axis=0), diversity))
        found = (weights_of(state.optimizer.model), weights_of(state.model))
        groups, w, diversity = the_one_that_fits(candidates, found, atol=1e-4)
        assert float(metrics["gradient_diversity"]) == pytest.approx(diversity, rel=1e-3)
        sent = metrics["communication"]
        assert sent["upload_bytes"] == sent["download_bytes"] == len(taking_part) * 4 * w.size
