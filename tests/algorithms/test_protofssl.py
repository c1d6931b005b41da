"""ProtoFSSL: its equations transcribed to NumPy, who helps whom, and what is sent."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import KEY, Net, federation_of, rounds_of, training_of

from jaxfed.algorithms.protofssl import protofssl, protofssl_loss
from jaxfed.errors import UsageError
from jaxfed.models.model import from_module
from jaxfed.training.episodes import Episodes, draw
from jaxfed.training.local_update import Batches
from jaxfed.training.losses import Batch
from jaxfed.training.prototypes import Prototypes

pytestmark = pytest.mark.usefixtures("shared_programs", "quick_compilation")

MODEL = from_module(partial(Net, batch_norm=False))
SIZES = Episodes(num_classes=3, support=2, query=2, unlabeled=5)
STATE = MODEL.init(KEY)


def training(**changes):
    made = training_of(Batches("joint", size=4, epochs=3), **changes)
    return dataclasses.replace(made, num_classes=3, max_labels=12)


def softmax(logits, is_there):
    powers = np.where(is_there, np.exp(logits - logits.max(axis=-1, keepdims=True)), 0)
    return powers / powers.sum(axis=-1, keepdims=True)


def distances(z, c):
    return np.array([[np.sqrt(sum((a - b) ** 2)) for b in c] for a in z])


def by_prototypes(z, c, is_there):
    return softmax(-distances(z, c), is_there)


def helpers_of(lacking=()):
    rng = np.random.default_rng(1)
    is_there = np.ones((2, 3), bool)
    for helper, k in lacking:
        is_there[helper, k] = False
    center = rng.standard_normal((2, 3, 8)) * is_there[..., None]
    return Prototypes(center.astype(np.float32), is_there)


def batch_of(lacking=None, unlabeled_used=4):
    """An episode in its order: S_1 S_1 S_2 .., Q_1 Q_1 .., Q_U; one class may have no example."""
    rng = np.random.default_rng(2)
    label = np.array([0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2, 0, 0, 0, 0, 0], np.int32)
    used = np.ones(17, bool)
    used[12 + unlabeled_used :] = False
    used[9] = False  # a class with one query
    if lacking is not None:
        used[:12] &= label[:12] != lacking
    is_labeled = np.arange(17) < 12
    x = rng.standard_normal((17, 4)).astype(np.float32)
    return Batch(x, label, np.ones(17, np.float32), used, is_labeled)


def transcribed(batch, helpers, weight, temperature, *, use_global=False):
    z = np.asarray(MODEL.features(STATE, batch.x), np.float64)
    c, is_there = np.zeros((3, 8)), np.zeros(3, bool)
    for k in range(3):
        rows = [i for i in range(6) if batch.label[i] == k and batch.used[i]]
        if use_global:
            have = [j for j in range(2) if helpers.is_there[j, k]]
            rows, source = have, helpers.center[:, k]
        else:
            source = z
        if rows:
            c[k], is_there[k] = source[rows].mean(axis=0), True
    queries = [i for i in range(6, 12) if batch.used[i]]
    p = by_prototypes(z[queries], c, is_there)
    value = -np.mean([np.log(p[n, batch.label[i]]) for n, i in enumerate(queries)])
    terms = []
    for i in range(12, 17):
        if not batch.used[i]:
            continue
        each = [
            by_prototypes(z[i : i + 1], helpers.center[j], helpers.is_there[j])[0]
            for j in range(2)
            if helpers.is_there[j].any()
        ]
        if not each:
            continue
        target = np.mean(each, axis=0) * is_there
        if target.sum() == 0:
            continue
        target = target ** (1 / temperature)
        target /= target.sum()
        own = by_prototypes(z[i : i + 1], c, is_there)[0]
        terms.append(-sum(t * np.log(q) for t, q in zip(target, own, strict=True) if t > 0))
    return value + weight * (np.mean(terms) if terms else 0)


@pytest.mark.parametrize("lacking", [None, 1])
@pytest.mark.parametrize("helpers_lack", [(), [(0, 2)], [(0, k) for k in range(3)]])
@pytest.mark.parametrize("by_helpers", [False, True])
def test_the_loss_is_equation_8(lacking, helpers_lack, by_helpers):
    batch, helpers = batch_of(lacking), helpers_of(helpers_lack)
    loss = protofssl_loss(
        MODEL,
        helpers,
        SIZES,
        unlabeled_weight=0.3,
        temperature=0.5,
        distance="euclidean",
        by_helpers=by_helpers,
    )
    (value, _), gradient = jax.value_and_grad(
        lambda state: loss(state, STATE, Batch(*map(jnp.asarray, batch)), KEY), has_aux=True
    )(STATE)
    expected = transcribed(batch, helpers, 0.3, 0.5, use_global=by_helpers)
    np.testing.assert_allclose(value, expected, rtol=2e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_without_helpers_unlabeled_examples_count_for_nothing():
    nobody = helpers_of([(j, k) for j in range(2) for k in range(3)])
    loss = partial(
        protofssl_loss,
        MODEL,
        nobody,
        SIZES,
        temperature=0.5,
        distance="euclidean",
        by_helpers=False,
    )
    batch = Batch(*map(jnp.asarray, batch_of()))
    values = [loss(unlabeled_weight=w)(STATE, STATE, batch, KEY)[0] for w in (0.0, 1.0)]
    assert values[0] == values[1]
    gradient = jax.grad(lambda s: loss(unlabeled_weight=1.0)(s, STATE, batch, KEY)[0])(STATE)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_targets_have_no_gradient():
    """Moving u alone: the loss's slope is that of a loss with its targets held fixed."""
    batch, helpers = batch_of(), helpers_of()
    loss = protofssl_loss(
        MODEL,
        helpers,
        SIZES,
        unlabeled_weight=1.0,
        temperature=0.5,
        distance="euclidean",
        by_helpers=False,
    )

    def slope(x):
        moved = Batch(*map(jnp.asarray, batch._replace(x=x)))
        return loss(STATE, STATE, moved, KEY)[0]

    gradient = jax.grad(slope)(jnp.asarray(batch.x))[12]
    step = 1e-2 * np.asarray(gradient) / np.linalg.norm(gradient)
    x = batch.x.copy()
    x[12] += step
    # Both targets and predictions follow u; only the predictions' part is in the gradient.
    whole = (transcribed(batch._replace(x=x), helpers, 1, 0.5) - slope(batch.x)) / 1e-2
    assert abs(whole - np.linalg.norm(gradient)) > 1e-3


def test_an_episode_is_drawn_without_replacement_class_by_class():
    label = np.array([2, 0, 0, 0, 0, 1, 2, 2, 2, -1, -1, -1, -1], np.int32)
    is_labeled, is_unlabeled = label >= 0, label < 0
    drawn = jax.jit(partial(draw, sizes=SIZES))
    seen = np.zeros((2, 13))
    for seed in range(300):
        index, used = map(np.asarray, drawn(jax.random.key(seed), label, is_labeled, is_unlabeled))
        support, query, unlabeled = index[:6], index[6:12], index[12:]
        for k in range(3):
            own = [*support[2 * k : 2 * k + 2][used[2 * k : 2 * k + 2]]]
            own += [*query[2 * k : 2 * k + 2][used[6 + 2 * k : 8 + 2 * k]]]
            assert (label[own] == k).all()
            assert len(set(own)) == len(own) == min(4, (label == k).sum())
        assert (label[unlabeled] == -1).all()
        assert used[12:].sum() == 4
        assert len(set(unlabeled[used[12:]])) == 4
        seen[0, support[used[:6]]] += 1
        seen[1, query[used[6:12]]] += 1
    # Four examples of class 0, two places in each part: 150 of 300 times each, give or take 35.
    assert np.abs(seen[:, 1:5] - 150).max() < 36


def test_a_client_of_one_label_a_class_has_no_query_and_one_without_labels_no_step():
    federation = federation_of([6, 6, 8], num_labeled=3)
    algorithm = protofssl(training=training(), support=1, query=2, unlabeled_query=4)
    states = rounds_of(algorithm, federation, 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(states[-1].model))
    nothing = federation_of([6, 6], num_labeled=0)
    before, after = rounds_of(algorithm, nothing, 1)
    for a, b in zip(*map(jax.tree.leaves, (before.model, after.model)), strict=True):
        np.testing.assert_array_equal(a, b)


def prototypes_by_hand(state, federation, client):
    points = federation.partition.labeled[client]
    z = np.asarray(MODEL.features(state, federation.x[points]))
    label = federation.y[points]
    return {k: z[label == k].mean(axis=0) for k in range(3) if (label == k).any()}


def test_helpers_are_clients_of_the_round_before():
    federation = federation_of([8, 8, 8, 8], num_labeled=6)
    algorithm = protofssl(training=training(), num_helpers=1, unlabeled_query=4)
    states = rounds_of(algorithm, federation, 3, [[0, 1], [2, 3], [1, 2]])
    assert not states[0].memory.helpers.is_there.any()
    for state, cohort in zip(states[1:], [[0, 1], [2, 3], [1, 2]], strict=True):
        store = state.memory
        shown = [np.asarray(store.latest.center[c]) for c in cohort]
        assert any(np.array_equal(store.helpers.center[0], center) for center in shown)
    assert states[3].memory.round.tolist() == [1, 3, 3, 2]


def test_with_an_interval_helpers_stay_as_they_were():
    federation = federation_of([8, 8, 8], num_labeled=6)
    algorithm = protofssl(training=training(), helper_interval=2, num_helpers=2, unlabeled_query=4)
    states = rounds_of(algorithm, federation, 4)
    centers = [np.asarray(state.memory.helpers.center) for state in states]
    assert not np.array_equal(centers[0], centers[1])
    np.testing.assert_array_equal(centers[1], centers[2])
    assert not np.array_equal(centers[2], centers[3])
    np.testing.assert_array_equal(centers[3], centers[4])


def test_prototypes_are_of_all_labels_after_training():
    """With one client its network is the server's, so that its prototypes can be made again."""
    federation = federation_of([14], num_labeled=9)
    algorithm = protofssl(training=training(), unlabeled_query=4)
    state = rounds_of(algorithm, federation, 1)[1]
    expected = prototypes_by_hand(state.model, federation, 0)
    store = state.memory.latest
    assert set(np.flatnonzero(store.is_there[0])) == expected.keys()
    for k, center in expected.items():
        np.testing.assert_allclose(store.center[0, k], center, rtol=1e-5, atol=1e-6)


def test_clipped_prototypes_are_moved_by_one_example_no_more_than_is_said():
    federation = federation_of([14], num_labeled=9)
    states = [
        rounds_of(protofssl(training=training(), unlabeled_query=4, clip=c), federation, 1)[1]
        for c in (0.0, 0.5)
    ]
    free, clipped = (np.asarray(s.memory.latest.center[0]) for s in states)
    points = federation.partition.labeled[0]
    z = np.asarray(MODEL.features(states[1].model, federation.x[points]))
    z = z * np.minimum(1, 0.5 / np.linalg.norm(z, axis=1, keepdims=True))
    for k in np.unique(federation.y[points]):
        np.testing.assert_allclose(clipped[k], z[federation.y[points] == k].mean(axis=0), rtol=1e-5)
    assert np.linalg.norm(clipped, axis=1).max() <= 0.5 < np.linalg.norm(free, axis=1).max()


def test_a_state_classifies_by_the_last_rounds_prototypes():
    federation = federation_of([9, 9, 9], num_labeled=6)
    algorithm = protofssl(training=training(), unlabeled_query=4)
    states = rounds_of(algorithm, federation, 2, [[0, 2], [0, 1]])
    x = federation.x[federation.test]
    np.testing.assert_allclose(algorithm.predict(states[0], x), 1 / 3, rtol=1e-6)
    z = np.asarray(MODEL.features(states[2].model, x), np.float64)
    latest = states[2].memory.latest
    each = [by_prototypes(z, latest.center[c], np.asarray(latest.is_there[c])) for c in (0, 1)]
    np.testing.assert_allclose(algorithm.predict(states[2], x), np.mean(each, axis=0), rtol=1e-4)
    predicted = np.mean(each, axis=0).argmax(axis=1)
    quality = algorithm.evaluate(states[2], federation)
    assert quality["test_accuracy"] == np.mean(predicted == federation.y[federation.test])


def test_bytes_are_those_of_the_prototypes_that_there_are():
    federation = federation_of([8, 8], num_labeled=4)
    algorithm = protofssl(training=training(), num_helpers=5, unlabeled_query=4, min_labels=2)
    state = algorithm.init(KEY, federation)
    for number in range(2):
        before = state
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, federation.cohort(), key)
        shown = int(state.memory.latest.is_there.sum())
        sent = metrics["communication"]
        assert sent["upload"]["prototypes"] == 4 * 8 * shown
        received = 2 * 4 * 8 * int(before.memory.helpers.is_there.sum())
        assert sent["download"]["prototypes"] == received
    counts = [np.bincount(federation.y[p], minlength=3) for p in federation.partition.labeled]
    assert shown == sum((c >= 2).sum() for c in counts)


def test_noise_is_on_what_is_shown_and_nothing_else():
    federation = federation_of([9, 9], num_labeled=6)
    quiet, loud = (
        rounds_of(protofssl(training=training(), noise=s, unlabeled_query=4), federation, 1)[1]
        for s in (0.0, 2.0)
    )
    for a, b in zip(*map(jax.tree.leaves, (quiet.model, loud.model)), strict=True):
        np.testing.assert_array_equal(a, b)
    is_there = np.asarray(quiet.memory.latest.is_there)
    difference = np.asarray(loud.memory.latest.center - quiet.memory.latest.center)
    assert not difference[~is_there].any()
    assert 1 < difference[is_there].std() < 3
    assert len(np.unique(difference[is_there])) == difference[is_there].size


def test_the_proximal_term_holds_the_network_back():
    federation = federation_of([9, 9], num_labeled=6)

    def travelled(mu):
        algorithm = protofssl(training=training(), mu=mu, unlabeled_query=4)
        before, after = rounds_of(algorithm, federation, 1)
        leaves = zip(*map(jax.tree.leaves, (before.model, after.model)), strict=True)
        return sum(float(jnp.sum(jnp.square(a - b))) for a, b in leaves)

    assert travelled(1.0) < 0.9 * travelled(0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"support": 0}, r"protofssl\.support=0: allowed are integers from 1 on"),
        ({"temperature": 0}, r"protofssl\.temperature=0: allowed are numbers above 0"),
        ({"distance": "cosine"}, r"protofssl\.distance='cosine': allowed are 'euclidean'"),
        ({"prototypes": "mine"}, r"protofssl\.prototypes='mine'"),
        ({"noise": -1}, r"protofssl\.noise=-1"),
    ],
)
def test_values_that_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        protofssl(training=training(), **settings)
