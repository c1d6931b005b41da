"""ProxyFL against its equations: whole rounds in NumPy, and the parts that they do not reach."""

import jax
import jax.numpy as jnp
import numpy as np
from float64_training import features, gradient, log_softmax, logits, softmax, weights_of
from small_training import KEY, RATE, double, federation_of, shifted, training_of

from jaxfed.algorithms.proxyfl import contrast, prior_store, proxy_loss, proxyfl, tuned
from jaxfed.models.mlp import mlp
from jaxfed.training import aggregate
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.losses import Batch
from jaxfed.training.specification import Training

WHOLE = Batches("joint", size=64, epochs=2)  # every batch is all that a client has: no randomness
TAU, LAMBDA, BETA, STEPS, ETA = 0.45, 0.7, 0.6, 4, 0.3
SIZES, LABELED = [14, 9, 12], 4


def rows_of(w):
    """The classifier's rows, [3, 8]."""
    return w[40:64].reshape(8, 3).T


def similar(a, b):
    return (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())


def local_loss(v, received, x, y, prior, seen):
    """L of one batch with its first examples labeled; counts what it comes across."""
    x = x.astype(np.float64)
    p_g, p_l = softmax(logits(received, x + 0.5)), softmax(logits(v.real, x + 0.5))
    log_p, log_strong = log_softmax(logits(v, x + 0.5)), log_softmax(logits(v, 2 * x))
    z, rows, sets = features(v, x + 0.5), rows_of(v), []
    for i, p in enumerate(p_g):
        if i < len(y):
            sets.append({y[i]})
        elif p.max() >= TAU:
            sets.append({int(p.argmax())})
        else:
            sets.append({c for c in range(3) if p[c] > prior[c]})
    pseudo, sure, unsure = [], [], []
    for i in range(len(y), len(x)):
        is_sure = p_g[i].max() >= TAU
        weight = np.ones(3) if is_sure else p_l[i]
        own = sum(weight[c] * similar(z[i], rows[c]) for c in sets[i])
        others = [similar(z[i], z[j]) for j in range(len(x)) if not sets[i] & sets[j]]
        term = np.log(np.exp(own) + sum(map(np.exp, others))) - own
        (sure if is_sure else unsure).append(term)
        seen["several"] += len(sets[i]) > 1
        if is_sure:
            pseudo.append(-log_strong[i, int(p_g[i].argmax())])
    seen["sure"] += len(sure)
    value = -np.mean([log_p[i, label] for i, label in enumerate(y)])
    value += LAMBDA * sum(pseudo) / max(len(pseudo), 1)
    return value + BETA * sum(sum(part) / max(len(part), 1) for part in (sure, unsure))


def shares_of(received, x, y):
    counts = np.bincount(y, minlength=3)
    for p in softmax(logits(received, x[len(y) :].astype(np.float64) + 0.5)):
        counts[p.argmax()] += p.max() >= TAU
    return counts / counts.sum()


def tuning_loss(flat, clients):
    rows, value = flat.reshape(3, 8), 0
    for own in clients:
        for c in range(3):
            distance = np.array([np.sqrt(((rows[c] - other) ** 2).sum()) for other in own])
            value -= log_softmax(-distance)[c] / len(clients)
    return value


def test_two_rounds_are_the_equations():
    federation = federation_of(SIZES, num_labeled=LABELED)
    training = training_of(
        WHOLE, augment=shifted, strong_augment=double, weighting=aggregate.uniformly
    )
    algorithm = proxyfl(
        training=training,
        threshold=TAU,
        unlabeled_weight=LAMBDA,
        contrast_weight=BETA,
        tuning_steps=STEPS,
        tuning_rate=ETA,
    )
    state = algorithm.init(KEY, federation)
    w, prior, seen = weights_of(state.model), np.full(3, 1 / 3), {"sure": 0, "several": 0}
    for number, cohort in enumerate([[0, 1], [1, 2]]):
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, federation.cohort(cohort), key)
        assert metrics["communication"]["upload"]["class_shares"] == 2 * 3 * 4
        assert metrics["communication"]["download"]["class_prior"] == 2 * 3 * 4
        ends, shares = [], []
        for client in cohort:
            points = federation.points(client)
            x, y, v = federation.x[points], federation.y[points][:LABELED], w
            shares.append(shares_of(w, x, y))
            for _ in range(WHOLE.epochs):

                def objective(u, x=x, y=y, w=w, prior=prior):
                    return local_loss(u, w, x, y, prior, seen)

                v = v - RATE / (1 + number) * gradient(objective, v)
            ends.append(v)
        w, prior = np.mean(ends, axis=0), np.mean(shares, axis=0)
        rows, theirs = rows_of(w).ravel(), [rows_of(v) for v in ends]
        for _ in range(STEPS):
            rows = rows - ETA * gradient(lambda u, theirs=theirs: tuning_loss(u, theirs), rows)
        w = np.concatenate([w[:40], rows.reshape(3, 8).T.ravel(), w[64:]])
        np.testing.assert_allclose(weights_of(state.model), w, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(state.memory, prior, rtol=1e-5)
    assert min(seen.values()) > 0


def test_features_near_zero_have_a_bounded_slope():
    """A cosine's slope is 1 over the length, which one step would follow to infinity."""
    rows, used = jnp.eye(2), jnp.ones(2, bool)
    sets = jnp.eye(2, dtype=bool)

    def total(z):
        return jnp.sum(contrast(z, rows, sets, jnp.ones((2, 2)), used))

    slope, tiny = jax.jit(jax.grad(total)), np.float32([[1e-7, 2e-7], [3e-7, 1e-7]])
    assert np.abs(slope(tiny)).max() < 1000
    assert np.abs(slope(np.float32(1e7) * tiny)).max() > 0.1


def test_an_example_without_any_class_does_not_count():
    """A network of zeros finds every class as likely as the first prior does."""
    model = mlp((4,), 3, hidden=(5,))
    state = jax.tree.map(jnp.zeros_like, model.init(KEY))
    training = Training(model).with_local(strong_augment=double)
    loss = proxy_loss(training, ("head", "kernel"), jnp.full(3, 1 / 3), 0.9, (1.0, 1.0))
    labeled = jnp.array([True, False, False])
    batch = Batch(jnp.ones((3, 4)), jnp.zeros(3, jnp.int32), jnp.ones(3), labeled | True, labeled)
    value, _ = jax.jit(loss)(state, state, batch, KEY)
    np.testing.assert_allclose(value, np.log(3), rtol=1e-6)


def test_clients_without_weight_do_not_tune():
    rows, theirs = jax.random.normal(KEY, (3, 4)), 1 - jax.random.normal(KEY, (2, 3, 4))
    alone = tuned(rows, theirs[:1], jnp.ones(1, bool), 5, 0.1)
    beside = tuned(rows, theirs, jnp.array([True, False]), 5, 0.1)
    np.testing.assert_allclose(alone, beside, rtol=1e-6)
    nobody = tuned(rows, theirs, jnp.zeros(2, bool), 5, 0.1)
    np.testing.assert_array_equal(nobody, rows)
    assert np.abs(np.asarray(alone - rows)).max() > 0.1


def test_a_prior_is_of_those_who_counted():
    store = prior_store(2)
    prior = store.create(None, None, None)
    ids, shares = jnp.array([0, 3, -1]), jnp.array([[1.0, 0], [0, 0], [0, 1.0]])
    np.testing.assert_allclose(store.update(prior, ids, shares, 0, KEY, None), [1.0, 0.0])
    np.testing.assert_allclose(store.update(prior, ids[1:], shares[1:], 0, KEY, None), prior)
