"""MixMatch: what is mixed with what, what has no part in it, and whole rounds."""

import sys
from functools import partial
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import cross_entropy, gradient, logits, softmax, weights_of
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from small_training import KEY, RATE, Net, assert_same, double, training_of

from jaxfed.algorithms.mixmatch import mixed_up, mixmatch, mixmatch_loss
from jaxfed.federation.clients import Federation
from jaxfed.models.mlp import mlp
from jaxfed.models.model import from_module
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.losses import Batch
from jaxfed.training.specification import Training

MODEL = mlp((4,), 3, hidden=())
TRAINING = Training(MODEL)
STATE = MODEL.init(KEY)
SHIFTS = (0.3, -0.2)  # of the two views
SHARE = 0.7
MIXED_UP = jax.jit(mixed_up)


def batch_of(labeled, unlabeled, unused=1):
    rng = np.random.default_rng(3)
    n = labeled + unlabeled + unused
    is_labeled = np.arange(n) < labeled
    used = np.arange(n) < labeled + unlabeled
    return Batch(
        x=rng.standard_normal((n, 4)).astype(np.float32),
        label=np.where(is_labeled, rng.integers(0, 3, n), 0).astype(np.int32),
        weight=is_labeled.astype(np.float32),
        used=used,
        is_labeled=is_labeled,
    )


@pytest.fixture
def one_share(monkeypatch):
    """For tests that no share matters to: draws of Beta take seconds of compilation."""
    monkeypatch.setattr(
        jax.random, "beta", lambda key, a, b, shape: jnp.full(shape, SHARE, jnp.float32)
    )


def test_labels_and_all_views_are_mixed_together(monkeypatch):
    """Each label once, the others in both views towards the sharpened mean guess; padding has no part."""
    seen, draws, batch = [], iter(SHIFTS), batch_of(2, 3)

    def noted(key, *given):
        seen.extend(given)
        return given[:2]

    monkeypatch.setattr(sys.modules[mixed_up.__module__], "mixed_up", noted)
    training = TRAINING.with_local(augment=lambda key, x: x + next(draws))
    loss = mixmatch_loss(
        training, num_augmentations=2, temperature=0.5, alpha=0.75, unlabeled_weight=5.0
    )

    def mixed(batch):
        loss(STATE, STATE, batch, KEY)
        return seen[:3]

    x, targets, member = jax.jit(mixed)(Batch(*map(jnp.asarray, batch)))
    views = [batch.x + np.float32(shift) for shift in SHIFTS]
    guess = np.mean([softmax(np.asarray(MODEL.apply(STATE, x))) for x in views], axis=0) ** 2
    guess = guess / guess.sum(axis=1, keepdims=True)
    target = np.where(batch.is_labeled[:, None], np.eye(3)[batch.label], guess)
    np.testing.assert_allclose(x, np.concatenate(views), rtol=1e-6)
    np.testing.assert_allclose(targets, np.tile(target, (2, 1)), rtol=1e-5)
    again = batch.used & ~batch.is_labeled
    np.testing.assert_array_equal(member, np.concatenate([batch.used, again]))
    assert seen[3] == 0.75


def test_every_view_is_drawn_apart(one_share):
    seen = []

    def seeing(key, x):
        seen.append(jax.random.key_data(key))
        return x

    loss = mixmatch_loss(
        TRAINING.with_local(augment=seeing),
        num_augmentations=3,
        temperature=0.5,
        alpha=1,
        unlabeled_weight=1.0,
    )

    def keys(batch):
        loss(STATE, STATE, batch, KEY)
        return jnp.stack(seen)

    keys = jax.jit(keys)(Batch(*map(jnp.asarray, batch_of(2, 3))))
    assert len(np.unique(keys, axis=0)) == len(keys) == 3


def test_guessing_does_not_move_running_statistics(monkeypatch):
    """They go on from where they were by the one pass over all rows."""
    module = sys.modules[mixed_up.__module__]
    monkeypatch.setattr(module, "mixed_up", lambda key, x, target, member, alpha: (x, target))
    model = from_module(partial(Net, batch_norm=True))
    state, batch = model.init(KEY), Batch(*map(jnp.asarray, batch_of(2, 3)))
    loss = mixmatch_loss(
        Training(model), num_augmentations=1, temperature=0.5, alpha=1, unlabeled_weight=1.0
    )
    _, moved = loss(state, state, batch, KEY)
    _, once = model.train_apply(state, batch.x, KEY)
    assert_same(moved["norm"], once["norm"])


@given(member=st.lists(st.booleans(), min_size=9, max_size=9), seed=st.integers(0, 99))
def test_members_are_mixed_with_a_permutation_of_themselves(member, seed):
    member = np.array(member)
    x = np.eye(9, dtype=np.float32)
    mixed, target = MIXED_UP(jax.random.key(seed), x, x[:, :3], member, 0.75)
    mixed = np.array(mixed)
    np.testing.assert_allclose(target, mixed[:, :3])  # one share for both
    np.testing.assert_allclose(mixed.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(mixed[~member], x[~member])
    assert not mixed[member][:, ~member].any()
    own = np.diag(mixed).copy()
    assert (own >= 0.5 - 1e-6).all()
    np.fill_diagonal(mixed, 0)
    assert (np.count_nonzero(mixed, axis=0) <= 1).all()  # nobody is a partner twice
    assert (np.count_nonzero(mixed, axis=1) <= 1).all()


@pytest.mark.parametrize("alpha", [0.75, 2.0])
def test_shares_are_the_greater_ones_of_beta_draws(alpha):
    """P(max(g, 1 - g) <= t) = F(t) - F(1 - t), F of Beta(alpha, alpha), in a test that fails by chance less
    than once in 10^6 times; each row has its own."""
    x = np.eye(1200, dtype=np.float32)
    mixed, _ = MIXED_UP(KEY, x, x, np.ones(1200, bool), alpha)
    share = np.diag(mixed)
    share = share[np.count_nonzero(mixed, axis=1) > 1]  # who is not its own partner
    law = stats.beta(alpha, alpha)
    assert stats.kstest(share, lambda t: law.cdf(t) - law.cdf(1 - t)).pvalue > 1e-6


def test_all_permutations_are_equally_likely(one_share):
    """Of four members among six rows."""
    x, member = jnp.eye(6), jnp.array([True, False, True, True, False, True])
    mix = jax.jit(jax.vmap(lambda key: mixed_up(key, x, x, member, 2.0)[0]))
    rows = np.flatnonzero(member)
    others = (np.asarray(mix(jax.random.split(KEY, 4800))) * (1 - np.eye(6)))[:, rows]
    partner = np.where(others.any(axis=2), others.argmax(axis=2), rows)
    found = list(map(tuple, partner.tolist()))
    counts = [found.count(order) for order in permutations(rows.tolist())]
    assert sum(counts) == 4800
    assert stats.chisquare(counts).pvalue > 1e-6


TEMPERATURE, WEIGHT, EPOCHS = 0.5, 8.0, 2


def clients():
    """Two labels and four other examples; labels only; no label; nothing."""
    rng = np.random.default_rng(0)
    made = []
    for labels, unlabeled in (([0, 2], 4), ([1, 2], 0), ([], 6), ([], 0)):
        y = np.array([*labels, *[-1] * unlabeled], np.int32)
        made.append((rng.standard_normal((len(y), 4)).astype(np.float32), y))
    return made


def trained(w, x, y, rate, weight):
    x = 2 * x.astype(np.float64)
    given, others = y >= 0, y < 0
    for _ in range(EPOCHS):
        guess = softmax(logits(w, x[others])) ** (1 / TEMPERATURE)
        guess /= guess.sum(axis=1, keepdims=True)

        def loss(v, guess=guess):
            value = 0
            if given.any():
                value = value + cross_entropy(v, x[given], y[given])
            if others.any():
                value = value + weight * np.mean((guess - softmax(logits(v, x[others]))) ** 2)
            return value

        w = w - rate * gradient(loss, w)
    return w


@pytest.mark.parametrize("rampup", [2, 0])
@pytest.mark.sample(1)
def test_rounds_are_those_of_the_transcription(rampup):
    held = clients()
    federation = Federation.from_clients(held, test=(held[0][0], np.zeros(6, int)), num_classes=3)
    training = training_of(Batches("paired", 2, EPOCHS, unlabeled_ratio=2), augment=double)
    algorithm = mixmatch(
        training=training,
        temperature=TEMPERATURE,
        alpha=1e-4,
        unlabeled_weight=WEIGHT,
        rampup_rounds=rampup,
    )
    state = algorithm.init(KEY, federation)
    w = weights_of(state.model)
    for number in range(3):
        weight = WEIGHT * min(1, (1 + number) / rampup) if rampup else WEIGHT
        models = [trained(w, x, y, RATE / (1 + number), weight) for x, y in held[:3]]
        w = np.average(models, axis=0, weights=[len(y) for _, y in held[:3]])
        state, _ = algorithm.round(state, federation.cohort(), jax.random.fold_in(KEY, number))
        np.testing.assert_allclose(weights_of(state.model), w, rtol=1e-4, atol=2e-5)
