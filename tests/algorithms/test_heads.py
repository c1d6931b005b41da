"""Heads of one round: against NumPy, refits and a case by hand; split and masks change nothing."""

import jax
import numpy as np
import pytest

from jaxfed.algorithms import fed3r, fedcof, fedncm
from jaxfed.errors import UsageError
from jaxfed.federation import execution
from jaxfed.federation.clients import Federation
from jaxfed.xclp.one_shot.linear_heads import STRENGTHS

C, D = 3, 6
HEADS = {"fedncm": fedncm, "fed3r": fed3r, "fedcof": fedcof}


def blobs(n=60, labeled=18, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % C
    x = rng.normal(size=(C, D))[y] + rng.normal(size=(n, D)) + 2
    return x.astype(np.float32), np.where(np.arange(n) < labeled, y, -1)


def played(name, x, y, owner, **keywords):
    """Head, round metrics and algorithm, of one round of clients that have the points `owner` says."""
    clients = [(x[owner == j], y[owner == j]) for j in range(owner.max() + 1)]
    federation = Federation.from_clients(clients, num_classes=C)
    algorithm, key = HEADS[name](num_classes=C, **keywords), jax.random.key(0)
    state, metrics = algorithm.round(algorithm.init(key, federation), federation.cohort(), key)
    return state, metrics, algorithm


def unit(x, mean=0.0):
    z = np.asarray(x, np.float64) - mean
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def twin(name, z, y, owner, strength):
    """The head's columns in float64, from all points at once, line by line as the papers have them."""
    one_hot = (y[:, None] == np.arange(C)).astype(float)
    gram, by_class = z[y >= 0].T @ z[y >= 0], z.T @ one_hot
    if name == "fedncm":
        w = by_class
    elif name == "fed3r":
        w = np.linalg.inv(gram + strength * np.eye(D)) @ by_class
    else:
        gram = np.zeros((D, D))
        for c in range(C):
            mean, spread, clients = z[y == c].mean(axis=0), np.zeros((D, D)), 0
            for j in range(owner.max() + 1):
                own = z[(y == c) & (owner == j)]
                if len(own):
                    away = own.mean(axis=0) - mean
                    spread, clients = spread + len(own) * np.outer(away, away), clients + 1
            gram += ((y == c).sum() - 1) * spread / (clients - 1)
        w = np.linalg.inv(gram + strength * np.eye(D)) @ by_class
    return w / np.linalg.norm(w, axis=0)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("center", [False, True])
def test_head_is_that_of_float64(name, center):
    (x, y), owner = blobs(), np.arange(60) % 4
    keywords = {} if name == "fedncm" else {"regularization": 0.3}
    state, _, algorithm = played(name, x, y, owner, center=center, **keywords)
    z = unit(x, x.astype(np.float64).mean(axis=0) if center else 0)
    expected = twin(name, z, y, owner, 0.3)
    w = np.asarray(state.head.weights)
    np.testing.assert_allclose(w / np.linalg.norm(w, axis=0), expected, atol=2e-6)
    answers = algorithm.predict(state, x)
    np.testing.assert_array_equal(answers.argmax(axis=1), (z @ expected).argmax(axis=1))
    np.testing.assert_allclose(answers.sum(axis=1), 1, rtol=1e-6)


def test_ridge_by_hand():
    """Two unit vectors of two classes: G = I, so W = I / 2 and its columns are the vectors."""
    x, y = np.eye(2, dtype=np.float32), np.array([0, 1])
    state, metrics, _ = played("fed3r", x, y, np.array([0, 1]), regularization=1.0)
    # Scores of the class means are 1 and 0, of root mean square sqrt(1 / 2).
    logits = 10 / 3 * np.sqrt(2) * np.eye(2, C)
    np.testing.assert_allclose(state.head.weights, logits, rtol=1e-6)
    assert state.head.known.tolist() == [True, True, False]
    assert metrics["communication"]["upload"] == {
        "second_moments": 2 * 4 * 2 * 3 // 2,  # of each client 4 d (d + 1) / 2
        "class_sums": 2 * 4 * (2 * C + C),  # 4 (d C + C)
    }
    assert metrics["communication"]["download"] == {"weights": 2 * 4 * 2 * C}


@pytest.mark.parametrize("measure", ["accuracy", "balanced_accuracy"])
def test_leave_one_out_is_that_of_refits(measure):
    """Hits by closed form are those of heads fitted without the point, with columns of equal length."""
    (x, y), owner = blobs(labeled=24, seed=3), np.arange(60) % 4
    _, metrics, _ = played("fed3r", x, y, owner, select_measure=measure)
    z = unit(x)
    hits = {}
    for strength in STRENGTHS:
        norms = np.linalg.norm(
            np.linalg.inv(z[y >= 0].T @ z[y >= 0] + strength * np.eye(D))
            @ (z.T @ (y[:, None] == np.arange(C))),
            axis=0,
        )
        found = []
        for i in np.flatnonzero(y >= 0):
            rest = (y >= 0) & (np.arange(len(y)) != i)
            one_hot = (y[rest][:, None] == np.arange(C)).astype(float)
            w = np.linalg.inv(z[rest].T @ z[rest] + strength * np.eye(D)) @ (z[rest].T @ one_hot)
            found.append((z[i] @ (w / norms)).argmax() == y[i])
        hits[strength] = np.mean(found)  # classes have equal numbers of labels
    assert metrics["leave_one_out"]["accuracy"] == pytest.approx(hits[metrics["regularization"]])
    best = max(hits.values())
    assert hits[metrics["regularization"]] == best or metrics["regularization"] == STRENGTHS[0]


@pytest.mark.parametrize("name", ["fedncm", "fed3r"])
@pytest.mark.parametrize("sums", ["masked", "masked_resilient"])
def test_masked_sums_give_the_same(name, sums):
    (x, y), owner = blobs(), np.arange(60) % 4
    plain, there, _ = played(name, x, y, owner, center=True)
    hidden, metrics, _ = played(name, x, y, owner, center=True, sums=sums)
    np.testing.assert_allclose(hidden.head.weights, plain.head.weights, atol=1e-5)
    assert metrics.get("regularization") == there.get("regularization")
    assert not {"class_sums", "feature_sums"} & metrics["communication"]["upload"].keys()


def test_masked_sum_of_one_client_is_none():
    """It would be the client's own; so there is no label anywhere."""
    x, y = blobs()
    state, *_ = played("fed3r", x, y, np.zeros(60, int), sums="masked")
    assert (state.label == -1).all()
    assert not state.head.known.any()


def test_class_without_a_label_gets_no_answer():
    (x, y), owner = blobs(), np.arange(60) % 4
    for name in HEADS:
        state, _, algorithm = played(name, x, np.where(y == 1, -1, y), owner)
        assert (algorithm.predict(state, x)[:, 1] == 0).all()
        assert 1 not in state.label
        state, metrics, _ = played(name, x, np.full(60, -1), owner)
        assert (state.label == -1).all()
        assert metrics["unreached"] == 60


def test_covariance_of_single_labels_is_no_more_than_class_means():
    """One label of each class: no spread to estimate from, so the head is FedNCM's."""
    (x, y), owner = blobs(labeled=C), np.arange(60) % 4
    ours, theirs = (played(name, x, y, owner)[0].head.weights for name in ("fedcof", "fedncm"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_matrices_that_do_not_fit_are_refused(monkeypatch):
    (x, y), owner = blobs(), np.arange(60) % 4
    monkeypatch.setattr(execution, "available_bytes", lambda: 100)
    with pytest.raises(UsageError, match=r"fed3r.*matrices of 6 x 6 features would take"):
        played("fed3r", x, y, owner)
