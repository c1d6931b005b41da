"""ProtoFSSL: its loss transcribed to NumPy, who helps whom, and what is sent.

Whole rounds, the prototypes after them and what a state predicts: test_protofssl_rounds.
"""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_round_checks import check_rounds
from small_training import KEY, Net, assert_same, federation_of, rounds_of, training_of

from jaxfed import xclp
from jaxfed.algorithms.protofssl import protofssl
from jaxfed.algorithms.protofssl.method import prototype_loss
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.models.model import from_module
from jaxfed.training.local.batches import Batches, Episodes
from jaxfed.training.local.losses import Batch
from jaxfed.training.pseudo_labels.label_sources import LabelSources
from jaxfed.training.pseudo_labels.prototypes import Prototypes, completed

MODEL = from_module(partial(Net, batch_norm=False))
TASK = PrototypeTask(num_classes=3, max_labels=12)
SIZES = Episodes(num_classes=3, support=2, query=2, unlabeled=5)
STATE = MODEL.init(KEY)


def training(**changes):
    return training_of(Batches("joint", size=4, epochs=3), **changes)


@cache
def made(**settings):
    """A method, compiled once for several tests; cohorts are padded to four clients."""
    settings = {"num_helpers": 2, "min_labels": 2} | settings
    return protofssl(
        training=training(clients_multiple=4), task=TASK, unlabeled_query=4, **settings
    )


@cache
def loss_of(*, fills=False, **settings):
    """One program for all batches and helpers: the loss, and its gradient by the network."""
    settings = {"unlabeled_weight": 0.3, "temperature": 0.5, "distance": "euclidean"} | settings

    def value(state, batch, helpers):
        helpers = completed(helpers) if fills else helpers
        return prototype_loss(MODEL, helpers, SIZES, **settings)(state, STATE, batch, KEY)[0]

    return jax.jit(jax.value_and_grad(value))


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


def filled(helpers):
    """What a helper lacks as the mean of those that have it; who has nothing stays as he is."""
    center, is_there = helpers.center.copy(), helpers.is_there.copy()
    for j, k in np.argwhere(~helpers.is_there):
        have = helpers.is_there[:, k]
        if have.any() and helpers.is_there[j].any():
            center[j, k], is_there[j, k] = helpers.center[have, k].mean(axis=0), True
    return Prototypes(center, is_there)


def transcribed(
    batch, helpers, weight, temperature, *, use_global=False, mean=False, by_labels=False
):
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
    queries = [i for i in range(6, 12) if batch.used[i] and is_there[batch.label[i]]]
    p = by_prototypes(z[queries], c, is_there)
    value = -np.mean([np.log(p[n, batch.label[i]]) for n, i in enumerate(queries)])
    terms = []
    for i in range(12, 17):
        if not batch.used[i]:
            continue
        own = by_prototypes(z[i : i + 1], c, is_there)[0]
        if by_labels:
            k = batch.label[i]
            if is_there[k]:
                terms.append(-batch.weight[i] * np.log(own[k]))
            continue
        each = [
            by_prototypes(z[i : i + 1], helpers.center[j], helpers.is_there[j])[0]
            for j in range(len(helpers.center))
            if helpers.is_there[j].any()
        ]
        if not each:
            continue
        target = np.mean(each, axis=0) * (is_there | mean)
        if target.sum() == 0:
            continue
        target = target ** (1 / temperature)
        target *= is_there / target.sum()
        terms.append(-sum(t * np.log(q) for t, q in zip(target, own, strict=True) if t > 0))
    return value + weight * (np.mean(terms) if terms else 0)


@pytest.mark.parametrize("lacking", [None, 1])
@pytest.mark.parametrize(
    "helpers_lack", [(), [(0, 2)], [(0, 2), (1, 2)], [(0, k) for k in range(3)]]
)
@pytest.mark.parametrize("by_helpers", [False, True])
@pytest.mark.sample(2)
def test_the_loss_is_equation_8(lacking, helpers_lack, by_helpers):
    batch, helpers = batch_of(lacking), helpers_of(helpers_lack)
    value, gradient = loss_of(by_helpers=by_helpers)(STATE, batch, helpers)
    expected = transcribed(batch, helpers, 0.3, 0.5, use_global=by_helpers)
    np.testing.assert_allclose(value, expected, rtol=2e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("lacking", [None, 1])
@pytest.mark.parametrize(
    "helpers_lack", [(), [(0, 2)], [(0, 2), (1, 2)], [(1, k) for k in range(3)]]
)
def test_missing_classes_as_in_the_authors_code(lacking, helpers_lack):
    batch, helpers = batch_of(lacking), helpers_of(helpers_lack)
    whole = jax.jit(completed)(helpers)
    expected = filled(helpers)
    np.testing.assert_array_equal(whole.is_there, expected.is_there)
    np.testing.assert_allclose(whole.center, expected.center, rtol=1e-6)
    value, _ = loss_of(missing_class="mean")(STATE, batch, whole)
    np.testing.assert_allclose(value, transcribed(batch, expected, 0.3, 0.5, mean=True), rtol=2e-5)


@pytest.mark.parametrize("lacking", [None, 1])
def test_labels_of_another_source_are_targets_with_their_weights(lacking):
    rng = np.random.default_rng(5)
    batch = batch_of(lacking)
    batch.label[12:] = [0, 1, 2, 1, 1]  # one of a class that may have no prototype
    batch.weight[12:] = rng.random(5) * batch.used[12:]
    value, _ = loss_of(targets="xclp")(STATE, batch, ())
    expected = transcribed(batch, helpers_of(), 0.3, 0.5, by_labels=True)
    np.testing.assert_allclose(value, expected, rtol=2e-5)


@pytest.mark.parametrize("missing", ["leave_out", "mean"])
@given(seed=st.integers(0, 99))
def test_helpers_order_and_padding_are_inert(missing, seed):
    rng = np.random.default_rng(seed)
    is_there = rng.random((3, 3)) < 0.7
    center = (rng.standard_normal((3, 3, 8)) * is_there[..., None]).astype(np.float32)
    nothing = Prototypes(np.zeros((3, 3, 8), np.float32), np.zeros((3, 3), bool))
    order = rng.permutation(6)
    padded = [np.concatenate(pair)[order] for pair in zip((center, is_there), nothing, strict=True)]
    found, _ = loss_of(fills=missing == "mean", missing_class=missing)(
        STATE, batch_of(), Prototypes(*padded)
    )
    helpers = Prototypes(center, is_there)
    helpers = filled(helpers) if missing == "mean" else helpers
    expected = transcribed(batch_of(), helpers, 0.3, 0.5, mean=missing == "mean")
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_without_helpers_unlabeled_examples_count_for_nothing():
    nobody = helpers_of([(j, k) for j in range(2) for k in range(3)])
    (without, _), (value, gradient) = (
        loss_of(by_helpers=False, unlabeled_weight=w)(STATE, batch_of(), nobody) for w in (0.0, 0.3)
    )
    assert without == value
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_targets_have_no_gradient():
    """Moving u alone: the loss's slope is that of a loss with its targets held fixed."""
    batch, helpers = batch_of(), helpers_of()
    loss = prototype_loss(
        MODEL,
        helpers,
        SIZES,
        unlabeled_weight=1.0,
        temperature=0.5,
        distance="euclidean",
        by_helpers=False,
    )

    @jax.jit
    @jax.value_and_grad
    def slope(x):
        moved = Batch(*map(jnp.asarray, batch._replace(x=x)))
        return loss(STATE, STATE, moved, KEY)[0]

    value, gradient = slope(batch.x)
    gradient = gradient[12]
    step = 1e-2 * np.asarray(gradient) / np.linalg.norm(gradient)
    x = batch.x.copy()
    x[12] += step
    # Both targets and predictions follow u; only the predictions' part is in the gradient.
    whole = (transcribed(batch._replace(x=x), helpers, 1, 0.5) - value) / 1e-2
    assert abs(whole - np.linalg.norm(gradient)) > 1e-3


def test_a_query_on_its_prototype_has_a_slope():
    """The root of a distance of 0 has none."""
    batch = batch_of()
    batch.x[:8] = batch.x[0]  # all of class 0's, and its prototype is the same point

    _, gradient = loss_of(by_helpers=False)(STATE, batch, helpers_of())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_where_nobody_has_labels_nothing_moves():
    before, after = rounds_of(made(), federation_of([8] * 4, num_labeled=0), 1, [[0, 1]])
    assert_same(before.model, after.model)


FOUR = federation_of([8, 8, 8, 8], num_labeled=6)


def test_helpers_are_clients_of_the_round_before():
    states = rounds_of(made(), FOUR, 3, [[0, 1], [2, 3], [1, 2]])
    assert not states[0].memory.helpers.is_there.any()
    for state, cohort in zip(states[1:], [[0, 1], [2, 3], [1, 2]], strict=True):
        store = state.memory
        shown = [np.asarray(store.latest.center[c]) for c in cohort]
        for helper in np.asarray(store.helpers.center):
            assert any(np.array_equal(helper, center) for center in shown)
    assert states[3].memory.round.tolist() == [1, 3, 3, 2]


def test_rounds_are_compiled_once_and_resumed_with_the_same_bits(tmp_path):
    check_rounds(made(), FOUR, [None] * 3, tmp_path)


def test_newest_helpers_are_of_earlier_rounds_where_a_round_has_too_few():
    states = rounds_of(made(helper_choice="newest"), FOUR, 4, [[0], [1], [1], [2]])
    for state, expected in zip(states[1:], [[0], [1, 0], [1, 0], [2, 1]], strict=True):
        store = state.memory
        for row, client in enumerate(expected):
            np.testing.assert_array_equal(store.helpers.center[row], store.latest.center[client])
        assert not store.helpers.is_there[len(expected) :].any()


def with_xclp(**changes):
    made = training(**changes)
    parameters = xclp.Parameters(num_classes=3, num_bits=256, num_neighbors=3)
    return dataclasses.replace(made, labels=LabelSources(xclp_parameters=parameters))


@pytest.mark.slow
def test_xclps_targets_take_the_place_of_helpers():
    """Without an unlabeled term nothing differs; with one it counts from round 1, and no helper is sent."""
    federation = federation_of([8, 8], num_labeled=4)

    def played(**settings):
        algorithm = protofssl(training=with_xclp(), task=TASK, unlabeled_query=4, **settings)
        state, sent = algorithm.init(KEY, federation), None
        for number in range(2):
            key = jax.random.fold_in(KEY, number)
            state, metrics = algorithm.round(state, federation.cohort(), key)
            sent = metrics["communication"]
        return state.model, sent

    (base, _), (same, _) = (played(targets=t, unlabeled_weight=0.0) for t in ("helpers", "xclp"))
    assert_same(base, same)
    model, sent = played(targets="xclp")
    assert sent["upload"]["prototypes"] > 0 < sent["upload"]["codes"]
    assert "prototypes" not in sent["download"]
    _, sent = played(targets="xclp", prototypes="global")
    assert sent["download"]["prototypes"] > 0
    leaves = zip(*map(jax.tree.leaves, (base, model)), strict=True)
    assert not all(np.array_equal(a, b) for a, b in leaves)


@pytest.mark.slow
def test_unlabeled_examples_count_after_as_many_rounds():
    federation = federation_of([8, 8], num_labeled=4)
    late, none, always = (
        rounds_of(
            protofssl(
                training=with_xclp(), task=TASK, unlabeled_query=4, targets="xclp", **settings
            ),
            federation,
            2,
        )
        for settings in ({"unlabeled_after": 1}, {"unlabeled_weight": 0.0}, {})
    )
    assert_same(late[1].model, none[1].model)
    for other in (none[2], always[1]):
        leaves = zip(*map(jax.tree.leaves, (late[2].model, other.model)), strict=True)
        assert not all(np.array_equal(a, b) for a, b in leaves)


def test_with_an_interval_helpers_stay_as_they_were():
    states = rounds_of(made(helper_interval=2), FOUR, 4, [[0], [1], [2], [0]])
    centers = [np.asarray(state.memory.helpers.center) for state in states]
    assert not np.array_equal(centers[0], centers[1])
    np.testing.assert_array_equal(centers[1], centers[2])
    assert not np.array_equal(centers[2], centers[3])
    np.testing.assert_array_equal(centers[3], centers[4])


def test_clipped_prototypes_are_moved_by_one_example_no_more_than_is_said():
    state = rounds_of(made(clip=0.5), FOUR, 1, [[0]])[1]
    clipped = np.asarray(state.memory.latest.center[0])
    points = FOUR.partition.labeled[0]
    free = np.asarray(MODEL.features(state.model, FOUR.x[points]))
    z = free * np.minimum(1, 0.5 / np.linalg.norm(free, axis=1, keepdims=True))
    shown = [k for k in range(3) if np.sum(FOUR.y[points] == k) >= 2]
    assert shown
    for k in shown:
        own = FOUR.y[points] == k
        np.testing.assert_allclose(clipped[k], z[own].mean(axis=0), rtol=1e-5)
        assert np.linalg.norm(clipped[k]) <= 0.5 < np.linalg.norm(free[own].mean(axis=0))


FIVE = federation_of([8, 8, 8, 8], num_labeled=5)  # labels of a client; too few of some classes


@pytest.mark.parametrize("network", ["own", "mean"])
def test_bytes_are_those_of_the_prototypes_that_there_are(network):
    """Of two clients; the other two rows of a cohort are padding."""
    algorithm = made() if network == "own" else made(prototype_network=network)
    state = algorithm.init(KEY, FIVE)
    for number in range(2):
        before = state
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, FIVE.cohort([0, 1]), key)
        shown = int(state.memory.latest.is_there.sum())
        sent = metrics["communication"]
        # A byte with each client's, for three bits that say which there are.
        assert sent["upload"]["prototypes"] == 2 + 4 * 8 * shown
        helpers = before.memory.helpers.is_there
        received = 2 * int(helpers.any(axis=1).sum() + 4 * 8 * helpers.sum())
        assert sent["download"]["prototypes"] == received
        again = {"own": 1, "mean": 2}[network]
        assert sent["download"]["parameters"] == again * sent["upload"]["parameters"]
    counts = [np.bincount(FIVE.y[p], minlength=3) for p in FIVE.partition.labeled[:2]]
    assert shown == sum((c >= 2).sum() for c in counts) < sum((c > 0).sum() for c in counts)


def test_noise_is_on_what_is_shown_and_nothing_else():
    """What is withheld, of fewer than two labels, gets none."""
    quiet, loud = (
        rounds_of(algorithm, FIVE, 1, [[0, 1]])[1] for algorithm in (made(), made(noise=2.0))
    )
    assert_same(quiet.model, loud.model)
    noisy, plain = (np.asarray(state.memory.latest.center) for state in (loud, quiet))
    is_there = np.asarray(loud.memory.latest.is_there)
    labels = [FIVE.y[points] for points in FIVE.partition.labeled[:2]]
    enough = np.array([np.bincount(y, minlength=3) >= 2 for y in labels])
    assert not enough.all()
    np.testing.assert_array_equal(is_there[:2], enough)
    assert not is_there[2:].any()
    assert not noisy[~is_there].any()
    difference = noisy - plain
    assert not difference[~is_there].any()
    assert 1 < difference[is_there].std() < 3
    assert len(np.unique(difference[is_there])) == difference[is_there].size
