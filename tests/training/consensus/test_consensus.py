"""Consensus against NumPy, one example after another; what must not matter to it; STAPLE in its own file."""

import inspect
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from jaxfed.training.consensus.consensus import CONSENSUS, mean

C = 4
WAYS = {
    "majority": {},
    "qualified_majority": {"threshold": 0.6},
    "confidence_weighted": {},
    "soft_mean": {},
    "mean": {},
    "staple": {},
}
BY_NAME = pytest.mark.parametrize("name", WAYS)


def consensus(name, **keywords):
    return CONSENSUS[name](C, **{**WAYS[name], **keywords})


def answers_of(kind, num_clients=5, num_examples=40, seed=0):
    """Answers that mostly agree, some of them missing, and clients' ids."""
    rng = np.random.default_rng(seed)
    shape = (num_clients, num_examples)
    is_there = rng.random(shape) < 0.85
    truth = rng.integers(C, size=num_examples)
    if kind == "labels":
        votes = np.where(rng.random(shape) < 0.5, truth, rng.integers(C, size=shape))
        given = np.where(is_there, votes, -1).astype(np.int32)
    elif kind == "numbers":
        given = np.where(is_there, rng.normal(size=shape), np.nan).astype(np.float32)
    else:
        given = rng.dirichlet(np.ones(C), size=shape) * is_there[..., None]
        given = given.astype(np.float32)
    return given, np.arange(num_clients, dtype=np.int32)


def of_one_example(name, answers):
    """(label, weight, soft) of one example's answers, K of them, those missing left out."""
    if name == "mean":
        there = answers[~np.isnan(answers)]
        number = there.mean() if there.size else 0
        return number, float(there.size > 0), [number]
    if name in ("majority", "qualified_majority"):
        tally = np.bincount(answers[answers >= 0], minlength=C)
    elif name == "confidence_weighted":
        tally = np.zeros(C)
        for p in answers:
            tally[p.argmax()] += p.max()
    else:
        tally = answers.sum(axis=0)
    if not tally.any():
        return -1, 0.0, np.zeros(C)
    share = tally / tally.sum()
    if share.max() < WAYS[name].get("threshold", 0) - 1e-9:
        return -1, 0.0, share
    return tally.argmax(), 1.0, share


@pytest.mark.parametrize("name", [name for name in WAYS if name != "staple"])
def test_example_after_example(name):
    way = consensus(name)
    answers, clients = answers_of(way.answers)
    answers[:, 3] = {"labels": -1, "numbers": np.nan, "probabilities": 0}[way.answers]
    label, weight, soft = way.agree(answers, clients)
    for u in range(answers.shape[1]):
        expected = of_one_example(name, answers[:, u])
        np.testing.assert_allclose(label[u], expected[0], rtol=1e-6)
        assert weight[u] == expected[1]
        np.testing.assert_allclose(soft[u], expected[2], rtol=1e-6, atol=1e-7)
    assert label.dtype == (np.float32 if name == "mean" else np.int32)
    if name != "mean":
        assert label[3] == -1


@BY_NAME
def test_a_tally_is_a_sum_over_clients_and_enough(name):
    """Whoever adds up the tallies of single clients needs no more; the sum of integers is exact."""
    way = consensus(name)
    answers, clients = answers_of(way.answers)
    if name == "staple":
        assert way.tally is None is way.from_tally
        return
    tally = way.tally(answers, clients)
    parts = [np.asarray(way.tally(answers[k : k + 1], clients[k : k + 1])) for k in clients]
    if way.answers == "labels":
        np.testing.assert_array_equal(tally, sum(parts))
        assert tally.dtype == np.int32
    np.testing.assert_allclose(tally, sum(parts), rtol=1e-6, atol=1e-6)
    for ours, agreed in zip(way.from_tally(tally), way.agree(answers, clients), strict=True):
        np.testing.assert_array_equal(ours, agreed)


@BY_NAME
@given(seed=st.integers(0, 2**31))
def test_order_and_padding_of_clients_are_inert(name, seed):
    """Padding rows may hold anything."""
    way = consensus(name)
    answers, clients = answers_of(way.answers, seed=seed)
    expected = way.agree(answers, clients)
    rng = np.random.default_rng(seed)
    padded = np.concatenate([answers, answers[rng.integers(5, size=3)]])
    order = rng.permutation(8)
    ids = np.concatenate([clients, np.full(3, -1, np.int32)])[order]
    for ours, theirs in zip(way.agree(padded[order], ids), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in WAYS if name != "mean"])
@given(seed=st.integers(0, 2**31))
def test_classes_have_no_order_but_in_ties(name, seed):
    way = consensus(name)
    answers, clients = answers_of(way.answers, seed=seed)
    permutation = np.random.default_rng(seed).permutation(C).astype(np.int32)
    if way.answers == "labels":
        permuted = np.where(answers >= 0, permutation[answers], -1).astype(np.int32)
    else:
        permuted = answers[..., np.argsort(permutation)]
    label, weight, soft = map(np.asarray, way.agree(answers, clients))
    other_label, other_weight, other_soft = map(np.asarray, way.agree(permuted, clients))
    np.testing.assert_allclose(other_soft[:, permutation], soft, rtol=1e-3, atol=1e-4)
    ordered = np.sort(soft, axis=1)
    is_clear = ordered[:, -1] - ordered[:, -2] > 1e-3
    expected = np.where(label >= 0, permutation[label], -1)
    np.testing.assert_array_equal(other_label[is_clear], expected[is_clear])
    np.testing.assert_array_equal(other_weight, weight)


def test_ties_go_to_the_smallest_class():
    votes, clients = np.int32([[2], [0], [2], [0]]), np.arange(4, dtype=np.int32)
    assert consensus("majority").agree(votes, clients).label == 0
    assert consensus("majority").agree(votes[:3], clients[:3]).label == 2


@pytest.mark.parametrize("num_clients", range(2, 60, 3))
def test_a_share_that_is_the_threshold_is_enough(num_clients):
    """k of K votes at threshold k / K, whatever the rounding; k - 1 are too few."""
    for k in range(num_clients // 2 + 1, num_clients + 1):
        votes = np.full((num_clients, 2), 1, np.int32)
        votes[k:, 0] = 0
        votes[k - 1 :, 1] = 0
        way = CONSENSUS["qualified_majority"](2, threshold=k / num_clients)
        label = np.asarray(way.agree(votes, np.arange(num_clients, dtype=np.int32)).label)
        assert label[0] == 1
        assert label[1] != 1


def test_of_one_hot_probabilities_all_are_the_majority():
    votes, clients = answers_of("labels")
    one_hot = (votes[..., None] == np.arange(C)).astype(np.float32)
    expected = consensus("majority").agree(votes, clients)
    for name in ("confidence_weighted", "soft_mean"):
        for ours, theirs in zip(consensus(name).agree(one_hot, clients), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_estimates_below_zero_count_as_zero():
    tally = np.float32([[-3, 4, 1, 0], [-1, -2, -3, -4]])
    agreed = consensus("majority").from_tally(tally)
    np.testing.assert_array_equal(agreed.label, [1, -1])
    np.testing.assert_allclose(agreed.soft, [[0, 0.8, 0.2, 0], [0, 0, 0, 0]])


def test_regressors_co_train_by_the_mean():
    """The rounds that its docstring shows: nearer to the truth than regressors that learn alone."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (460, 1))
    z = np.sin(x[:, 0])
    clients = [(x[n : n + 20], z[n : n + 20] + 0.5 * rng.normal(size=20)) for n in (0, 20, 40)]
    lines = inspect.cleandoc(mean.__doc__).splitlines()
    start = next(n for n, line in enumerate(lines) if "taught =" in line)
    run = compile(textwrap.dedent("\n".join(lines[start:])), "mean", "exec")
    known = {"np": np, "mean": mean, "DecisionTreeRegressor": DecisionTreeRegressor}
    errors = []
    for rounds in (1, 5):
        known |= {"clients": clients, "public": x[60:260], "rounds": rounds}
        exec(run, known)
        told = [each.predict(x[260:]) for each in known["learned"]]
        errors.append(np.mean((told - z[260:]) ** 2))
    assert errors[1] < 0.8 * errors[0]
