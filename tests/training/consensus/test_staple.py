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
    for step in range(steps + 1):
        if step:
            for k in range(num_clients):
                for s in classes:
                    mass = sum(w[u, s] for u in range(num_examples) if votes[k, u] >= 0)
                    for v in classes if mass > 0 else ():
                        hits = sum(w[u, s] for u in range(num_examples) if votes[k, u] == v)
                        theta[k, s, v] = hits / mass
        for u in range(num_examples):
            joint = [
                prior[s]
                * math.prod(
                    theta[k, s, votes[k, u]] for k in range(num_clients) if votes[k, u] >= 0
                )
                for s in classes
            ]
            w[u] = np.array(joint) / sum(joint)
    return w, theta


def log_likelihood(votes, theta):
    """Sum over examples of log sum_s prior_s prod_k theta_k[s, v_ku], in double precision."""
    classes = theta.shape[1]
    joint = np.array([np.mean(votes[votes >= 0] == s) for s in range(classes)])[None]
    for own, vote in zip(np.asarray(theta, np.float64), votes, strict=True):
        joint = joint * np.where((vote >= 0)[:, None], own[:, np.maximum(vote, 0)].T, 1)
    return np.log(joint.sum(axis=1)).sum()


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("steps", [1, 4])
def test_against_slow_loops(num_classes, steps):
    votes, _ = drawn_votes([0.9, 0.7, 0.6, 0.8], 30, num_classes)
    fast = staple_performance(votes, num_classes, tolerance=1e-30, max_steps=steps)
    for ours, slow in zip(fast, slow_staple(votes, num_classes, steps), strict=True):
        np.testing.assert_allclose(ours, slow, rtol=1e-3, atol=1e-5)


def test_it_converges_and_the_likelihood_never_falls():
    votes, _ = drawn_votes([0.9, 0.6, 0.6, 0.5, 0.7], 400, 3)
    likelihoods = [
        log_likelihood(votes, staple_performance(votes, 3, tolerance=1e-30, max_steps=n)[1])
        for n in (1, 2, 5, 10, 30)
    ]
    assert np.all(np.diff(likelihoods) > -1e-6 * abs(likelihoods[0]))
    for others in ({}, {"max_steps": 99}, {"max_steps": 1000}):  # it ends by the tolerance
        for ours, theirs in zip(
            staple_performance(votes, 3), staple_performance(votes, 3, **others), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_it_finds_how_good_clients_are_and_beats_the_majority():
    """One good client among four that guess: the majority follows these, STAPLE does not."""
    accuracies = [0.95, 0.45, 0.45, 0.45, 0.45]
    votes, truth = drawn_votes(accuracies, 3000, 3)
    _, confusion = staple_performance(votes, 3, max_steps=500)
    diagonal = np.diagonal(np.asarray(confusion), axis1=1, axis2=2).mean(axis=1)
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
    posterior, confusion = staple_performance(votes, 3)
    assert np.mean(np.asarray(jnp.argmax(posterior, axis=1)) == truth) > 0.99
    np.testing.assert_allclose(confusion[3], np.roll(np.eye(3), 1, axis=1), atol=0.02)


def test_what_was_never_said_and_who_never_votes():
    votes, _ = drawn_votes([0.9, 0.9, 0.8], 60, 3)
    votes[:, 5] = -1
    silent = np.concatenate([votes, np.full((2, 60), -1, np.int32)])
    (ours, _), (theirs, _) = staple_performance(silent, 5), staple_performance(votes, 5)
    np.testing.assert_array_equal(ours, theirs)
    assert np.isfinite(np.asarray(ours)).all()
    assert np.asarray(ours)[:, 3:].max() < 1e-20
    prior = np.bincount(votes[votes >= 0], minlength=5) / np.sum(votes >= 0)
    np.testing.assert_allclose(ours[5], prior, atol=1e-6)
    label, weight, soft = staple(silent, 5)
    assert label[5] == -1
    assert weight[5] == 0
    assert not np.asarray(soft[5]).any()
    nobody, _ = staple_performance(np.full((2, 4), -1, np.int32), 3)
    assert np.isfinite(np.asarray(nobody)).all()
