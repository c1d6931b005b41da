"""STAPLE against its equations in slow loops, and on votes whose makers are known."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.training.consensus.consensus import (
    largest_share,
    staple,
    staple_performance,
    vote_histogram,
)


def drawn_votes(accuracies, num_examples, num_classes, seed=0, missing=0.1):
    """Votes of clients that are right this often, and else anything; the truth."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(num_classes, size=num_examples)
    shape = len(accuracies), num_examples
    others = (truth + rng.integers(1, num_classes, size=shape)) % num_classes
    votes = np.where(rng.random(shape) < np.reshape(accuracies, (-1, 1)), truth, others)
    return np.where(rng.random(shape) < missing, -1, votes).astype(np.int32), truth


def slow_staple(votes, num_classes, steps, initial=0.9):
    """The equations of the docstring, one example, client, class after another, in double precision."""
    num_clients, num_examples = votes.shape
    classes = range(num_classes)
    prior = [np.sum(votes == s) / np.sum(votes >= 0) for s in classes]
    other = (1 - initial) / (num_classes - 1)
    theta = np.full((num_clients, num_classes, num_classes), other)
    for k in range(num_clients):
        np.fill_diagonal(theta[k], initial)
    w = np.zeros((num_examples, num_classes))
    likelihoods = []
    for step in range(steps + 1):
        if step:
            for k in range(num_clients):
                for s in classes:
                    mass = sum(w[u, s] for u in range(num_examples) if votes[k, u] >= 0)
                    for v in classes if mass > 0 else ():
                        hits = sum(w[u, s] for u in range(num_examples) if votes[k, u] == v)
                        theta[k, s, v] = hits / mass
        likelihoods.append(0.0)
        for u in range(num_examples):
            joint = [
                prior[s]
                * math.prod(
                    theta[k, s, votes[k, u]] for k in range(num_clients) if votes[k, u] >= 0
                )
                for s in classes
            ]
            w[u] = np.array(joint) / sum(joint)
            likelihoods[-1] += math.log(sum(joint))
    return w, theta, likelihoods


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("steps", [1, 4])
def test_against_slow_loops(num_classes, steps):
    votes, _ = drawn_votes([0.9, 0.7, 0.6, 0.8], 30, num_classes)
    fast = staple_performance(votes, num_classes, tolerance=1e-30, max_steps=steps)
    posterior, confusion, likelihoods = slow_staple(votes, num_classes, steps)
    assert fast.steps == steps
    np.testing.assert_allclose(fast.posterior, posterior, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(fast.confusion, confusion, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(fast.log_likelihood, likelihoods[-1], rtol=1e-5)


def test_it_converges_and_the_likelihood_never_falls():
    votes, _ = drawn_votes([0.9, 0.6, 0.6, 0.5, 0.7], 400, 3)
    likelihoods = [
        float(staple_performance(votes, 3, tolerance=1e-30, max_steps=n).log_likelihood)
        for n in (1, 2, 5, 10, 30)
    ]
    assert np.all(np.diff(likelihoods) > -1e-6 * abs(likelihoods[0]))
    done = staple_performance(votes, 3)
    assert done.steps < 100
    assert done.change <= 1e-5
    again = staple_performance(votes, 3)
    for ours, theirs in zip(done, again, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_it_finds_how_good_clients_are_and_beats_the_majority():
    """One good client among four that guess: the majority follows these, STAPLE does not."""
    accuracies = [0.95, 0.45, 0.45, 0.45, 0.45]
    votes, truth = drawn_votes(accuracies, 3000, 3)
    done = staple_performance(votes, 3, max_steps=500)
    diagonal = np.diagonal(np.asarray(done.confusion), axis1=1, axis2=2).mean(axis=1)
    np.testing.assert_allclose(diagonal, accuracies, atol=0.05)
    majority = largest_share(vote_histogram(votes, np.arange(5, dtype=np.int32), 3))
    ours, theirs = (
        np.mean(np.asarray(agreed.label) == truth) for agreed in (staple(votes, 3), majority)
    )
    assert ours > theirs + 0.1


def test_one_who_is_always_wrong_in_the_same_way_helps():
    """A confusion matrix is more than an accuracy: labels that are shifted say as much."""
    votes, truth = drawn_votes([0.8, 0.8, 0.8, 0.8], 2000, 3, missing=0.0)
    votes[3] = (truth + 1) % 3
    done = staple_performance(votes, 3)
    assert np.mean(np.asarray(jnp.argmax(done.posterior, axis=1)) == truth) > 0.99
    np.testing.assert_allclose(done.confusion[3], np.roll(np.eye(3), 1, axis=1), atol=0.02)


def test_what_was_never_said_and_who_never_votes():
    votes, _ = drawn_votes([0.9, 0.9, 0.8], 60, 3)
    votes[:, 5] = -1
    silent = np.concatenate([votes, np.full((2, 60), -1, np.int32)])
    ours, theirs = staple_performance(silent, 5), staple_performance(votes, 5)
    np.testing.assert_array_equal(ours.posterior, theirs.posterior)
    assert np.isfinite(np.asarray(ours.posterior)).all()
    assert np.asarray(ours.posterior)[:, 3:].max() < 1e-20
    np.testing.assert_allclose(ours.posterior[5], ours.prior, atol=1e-6)
    label, weight, soft = staple(silent, 5)
    assert label[5] == -1
    assert weight[5] == 0
    assert not np.asarray(soft[5]).any()
    nobody = staple_performance(np.full((2, 4), -1, np.int32), 3)
    assert np.isfinite(np.asarray(nobody.posterior)).all()
