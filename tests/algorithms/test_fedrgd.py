"""FedRGD: groups, the diversity of gradients, and rounds in NumPy with every division into groups."""

from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
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
from small_training import KEY, RATE, assert_close, assert_same, double, federation_of, training_of

from jaxfed.algorithms.fedrgd import Groups, _memberships, fedrgd, gradient_diversity
from jaxfed.algorithms.fixmatch import fixmatch
from jaxfed.federation.clients import Federation
from jaxfed.models.mlp import mlp
from jaxfed.training import aggregate
from jaxfed.training.local.batches import Batches

LINEAR = mlp((4,), 3, hidden=())


def apart(at_server):
    """Five clients of six points; the labels of a sixth are the server's, or each has two of its own."""
    whole = federation_of([6] * 6, None if at_server else 2)
    clients = []
    for k in range(5):
        y = np.full(6, -1, np.int32)
        if not at_server:
            y[:2] = whole.y[whole.points(k)[:2]]
        clients.append((whole.x[whole.points(k)], y))
    held = whole.points(5)
    return Federation.from_clients(
        clients,
        test=(whole.x[whole.test], whole.y[whole.test]),
        server=(whole.x[held], whole.y[held]) if at_server else None,
        num_classes=3,
    )


@pytest.mark.parametrize("batch_statistics", [None, "averaged", "static"])
@pytest.mark.slow
def test_one_group_with_labels_at_clients_is_fixmatch(batch_statistics):
    """With running statistics, too."""
    federation = federation_of([12, 7, 0, 20], 3)
    changes = {"batch_norm": True, "batch_statistics": batch_statistics} if batch_statistics else {}
    training = training_of(
        Batches("paired", 3, 2), strong_augment=double, weighting=aggregate.uniformly, **changes
    )
    states = []
    for algorithm in (fedrgd(training=training, num_groups=1), fixmatch(training=training)):
        state = algorithm.init(KEY, federation)
        for number in range(2):
            key = jax.random.fold_in(KEY, number)
            state, _ = algorithm.round(state, federation.cohort(), key)
        states.append(state.model)
    assert_close(*states)


@pytest.mark.slow
def test_groups_are_the_experiments_and_no_clients_statistics_are_mixed_in():
    """At rate 0 nothing moves but statistics: those of a group go on from its own, 0.9 to one of a batch."""
    federation = federation_of([6] * 4, 2)
    training = training_of(
        Batches("joint", 6, 1),
        batch_norm=True,
        batch_statistics="averaged",
        strong_augment=lambda key, x: x,
        learning_rate=lambda count: 0.0,
        weighting=aggregate.uniformly,
    )
    algorithm = fedrgd(training=training)
    state = algorithm.init(KEY, federation)
    other = algorithm.init(jax.random.key(1), federation)
    assert not np.array_equal(*(jax.random.key_data(s.optimizer.key) for s in (state, other)))
    first = state.model["first"]
    kernel, bias = (np.asarray(first[name][...]) for name in ("kernel", "bias"))
    ids = np.arange(4, dtype=np.int32)
    batch = [federation.x[federation.points(k)] @ kernel + bias for k in ids]
    means = np.zeros((2, 8))
    for number in range(2):
        member = np.asarray(_memberships(state.optimizer, state.round, ids).member)
        own = np.stack([rows.mean(axis=0) for rows in batch])
        means = 0.9 * means + 0.1 * member.T @ own / 2
        cohort = federation.cohort()
        state, _ = algorithm.round(state, cohort, jax.random.fold_in(KEY, number))
        found = state.optimizer.model["norm"]["mean"][...]
        np.testing.assert_allclose(found, means, rtol=1e-4, atol=1e-5)


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
    drawn = {
        tuple(np.asarray(_memberships(groups, jnp.int32(r), ids).member).argmax(axis=1))
        for r in range(20)
    }
    assert len(drawn) > 15


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


@pytest.mark.slow
def test_a_group_in_which_nobody_counts_keeps_its_model():
    federation = apart(at_server=False)
    training = training_of(Batches("joint", 6, 1), model=LINEAR, strong_augment=double)
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


def test_gradient_diversity():
    state = LINEAR.init(KEY)
    same = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), state)
    counts = jnp.array([True, True, False, True])
    assert float(gradient_diversity(same, counts)) == pytest.approx(1 / 3)
    statistics = nnx.State({"mean": nnx.BatchStat(jnp.arange(4.0)[:, None])})
    beside = nnx.merge_state(same, statistics)
    assert float(gradient_diversity(beside, counts)) == pytest.approx(1 / 3)
    zeros = jax.tree.map(jnp.zeros_like, same)
    assert float(gradient_diversity(zeros, counts)) == 0


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
        clients,
        server=(x[5], y[5]) if at_server else None,
        test=(x[5], y[5]),
        num_classes=3,
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
    ("at_server", "weighting"),
    [
        pytest.param(True, "uniform", marks=pytest.mark.slow),
        (True, "examples"),
        (False, "uniform"),
        (False, "examples"),
    ],
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
