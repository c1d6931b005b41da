"""RSCFed against its equations, in NumPy."""

from functools import cache
from itertools import combinations, product

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from float64_training import cross_entropy, gradient, logits, softmax, the_one_that_fits, weights_of
from small_training import KEY, RATE, assert_same, double, federation_with, rounds_of, training_of

from jaxfed.algorithms.rscfed import distance_weights, group, rscfed, sub_consensus
from jaxfed.training.local.batches import Batches
from jaxfed.training.round.round import server_optimizer

BETA, WEIGHT, T, AVERAGE = 6.0, 0.7, 0.5, 0.6
WHOLE = Batches("joint", size=64, epochs=2)  # every batch is all that a client has
SETTINGS = {"beta": BETA, "unlabeled_weight": WEIGHT, "temperature": T, "average": AVERAGE}


def consensus_by_hand(models, sizes):
    """v, of a group's models [K, P] and numbers of examples."""
    mean = sum(n * w for n, w in zip(sizes, models, strict=True)) / sum(sizes)
    raised = [
        n * np.exp(-BETA * np.sqrt(sum((w - mean) ** 2)) / n)
        for n, w in zip(sizes, models, strict=True)
    ]
    return sum(a * w for a, w in zip(raised, models, strict=True)) / sum(raised)


def client_loss(x, y, teacher):
    p = softmax(logits(teacher, 2 * x))
    target = np.array([row ** (1 / T) / sum(row ** (1 / T)) for row in p])
    known, unknown = y >= 0, y < 0

    def loss(w):
        value = cross_entropy(w, 2 * x[known], y[known]) if known.any() else 0
        if unknown.any():
            apart = softmax(logits(w, 2 * x[unknown])) - target[unknown]
            value = value + WEIGHT * (apart**2).sum(axis=1).mean()
        return value

    return loss


def test_two_rounds_are_the_equations():
    """All clients are in each group, so that nothing is drawn; they keep teachers and momentum."""
    held, federation = federation_with([([0, 1], 4), ([2, 0, 1], 0), ([], 6), ([], 0)])
    training = training_of(
        WHOLE,
        augment=double,
        optimizer=lambda rate: optax.sgd(rate, momentum=0.9),
        client_optimizer="kept",
    )
    algorithm = rscfed(training=training, draw_size=4, **SETTINGS)
    states = rounds_of(algorithm, federation, 2, sent=(sent := []))
    assert sent[0]["upload"] == sent[0]["download"] == {"parameters": 4 * 67 * 4}
    w = weights_of(states[0].model)
    teachers, momentum, steps = [w] * 3, [0 * w] * 3, 0
    for number in range(2):
        ends = []
        for k, (x, y) in enumerate(held[:3]):
            v = w
            for step in range(WHOLE.epochs):
                loss = client_loss(x.astype(np.float64), y, teachers[k])
                momentum[k] = 0.9 * momentum[k] + gradient(loss, v)
                v = v - RATE / (1 + number) * momentum[k]
                alpha = min(1 - 1 / (steps + step + 1), AVERAGE)
                teachers[k] = alpha * teachers[k] + (1 - alpha) * v
            ends.append(v)
        steps += WHOLE.epochs
        plain = np.average(ends, axis=0, weights=[6, 3, 6])
        w = consensus_by_hand(ends, [6, 3, 6])
        found = states[number + 1]
        np.testing.assert_allclose(weights_of(found.model), w, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(
            weights_of(found.clients.model)[:3], teachers, rtol=2e-4, atol=2e-5
        )
        np.testing.assert_array_equal(found.clients.steps, [steps] * 3 + [0])
        assert np.abs(w - plain).max() > 1e-3


@cache
def doubled():
    """The method on doubled examples, compiled once for rounds of one client of at most six."""
    return rscfed(training=training_of(WHOLE, augment=double), **SETTINGS)


def test_a_teacher_begins_as_the_first_model_that_is_received():
    """Client 1 comes in round 2: its labels then are the new model's, not the first one's."""
    held, federation = federation_with([([0, 1, 2], 0), ([], 6)])
    states = rounds_of(doubled(), federation, 2, [[0], [1]])
    w = v = teacher = weights_of(states[1].model)
    x, y = held[1]
    for step in range(WHOLE.epochs):
        v = v - RATE / 2 * gradient(client_loss(x.astype(np.float64), y, teacher), v)
        alpha = min(1 - 1 / (step + 1), AVERAGE)
        teacher = alpha * teacher + (1 - alpha) * v
    np.testing.assert_allclose(weights_of(states[2].model), v, rtol=2e-4, atol=2e-5)
    assert np.abs(v - w).max() > 1e-4
    assert_same(states[1].clients.steps, jnp.array([WHOLE.epochs, 0]))


def stacked(rows):
    return nnx.State({"w": nnx.Param(jnp.asarray(rows, jnp.float32))})


def test_the_mean_of_two_groups_of_two():
    """Of all ways in which they may be drawn one fits; a client without examples is never drawn."""
    rng = np.random.default_rng(0)
    sizes, models = np.array([4, 0, 7, 3, 5]), rng.standard_normal((5, 6))
    aggregate = sub_consensus(server_optimizer(optax.sgd(1.0)), 2, 2, BETA)
    model = stacked(np.zeros(6))
    state, seen = aggregate.init(model, KEY), set()
    pairs = list(combinations([0, 2, 3, 4], 2))
    for _ in range(4):
        after, state = aggregate.apply(
            model, stacked(models), jnp.asarray(sizes, jnp.float32), state
        )
        each = {pair: consensus_by_hand(models[list(pair)], sizes[list(pair)]) for pair in pairs}
        ways = [((each[a] + each[b]) / 2, (a, b)) for a, b in product(pairs, pairs) if a <= b]
        candidates = [(way,) for way, _ in ways]
        (found,) = the_one_that_fits(candidates, (np.asarray(after["w"][...]),))
        seen.add(next(names for way, names in ways if np.array_equal(way, found)))
    assert len(seen) > 1
    assert any(a != b for a, b in seen)


def test_groups_are_of_all_sets_alike():
    weights = jnp.array([2.0, 0.0, 1.0, 9.0, 1.0])
    drawn = jax.jit(jax.vmap(lambda key: group(key, weights, 2)))(jax.random.split(KEY, 2000))
    assert np.all(np.sum(drawn, axis=1) == 2)
    np.testing.assert_allclose(np.mean(drawn, axis=0), [0.5, 0, 0.5, 0.5, 0.5], atol=0.05)
    np.testing.assert_array_equal(group(KEY, weights, 9), weights > 0)
    without = group(jax.random.key(5), weights[jnp.array([0, 2, 3, 4])], 2)
    np.testing.assert_array_equal(np.delete(group(jax.random.key(5), weights, 2), 1), without)


def test_groups_are_of_the_runs_seed():
    _, federation = federation_with([([0, 1], 4)])
    algorithm = rscfed(training=training_of(WHOLE))
    keys = [algorithm.init(jax.random.key(seed), federation).optimizer.key for seed in range(2)]
    assert keys[0] != keys[1]


def test_weights_stay_a_mean_where_all_exponentials_are_0():
    deltas = stacked([[0.0, 1], [3, 0], [9, 9], [0, 0]])
    found = distance_weights(deltas, jnp.array([5.0, 5, 5, 0]), 1e4)
    np.testing.assert_array_equal(found, [0, 1, 0, 0])
    np.testing.assert_array_equal(distance_weights(deltas, jnp.zeros(4), 1e4), np.zeros(4))


def test_running_statistics_are_outside_of_distances_and_teachers():
    deltas = stacked([[0.0, 1], [3, 0]])
    statistics = nnx.State({"mean": nnx.BatchStat(jnp.array([[0.0], [50.0]]))})
    weights = jnp.array([5.0, 4.0])
    np.testing.assert_array_equal(
        distance_weights(nnx.merge_state(deltas, statistics), weights, BETA),
        distance_weights(deltas, weights, BETA),
    )
    _, federation = federation_with([([0, 1], 4)])
    state = rscfed(training=training_of(WHOLE, batch_norm=True)).init(KEY, federation)
    assert not jax.tree.leaves(nnx.filter_state(state.clients.model, nnx.BatchStat))
