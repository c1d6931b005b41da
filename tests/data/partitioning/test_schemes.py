"""Mixtures of two Dirichlet draws, and subclasses: what is promised, and what is left to chance."""

import numpy as np
import pytest

from jaxfed.data import (
    Dirichlet,
    DirichletMixture,
    Labels,
    Subclasses,
    class_counts,
    partition,
)

CLASSES, CLIENTS = 10, 5
Y = np.repeat(np.arange(CLASSES), 200)


def assert_mean(values, mean, sigmas=4.0):
    """The mean of these independent values is `mean`, as far as so many can tell."""
    error = np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
    assert np.max(np.abs(np.mean(values, axis=0) - mean) / np.maximum(error, 1e-9)) < sigmas


def held(part, y=Y):
    """int [M, C], labeled or not."""
    return sum(class_counts(y, indices, CLASSES) for indices in part[:2])


def mixtures(scheme, seeds=150, **keywords):
    """float [seeds, M, C], of each class the clients' shares."""
    tables = [
        held(partition(Y, num_clients=CLIENTS, scheme=scheme, seed=s, **keywords))
        for s in range(seeds)
    ]
    return np.array(tables) / 200


def dirichlet_variance(alpha):
    return (1 / CLIENTS) * (1 - 1 / CLIENTS) / (CLIENTS * alpha + 1)


@pytest.mark.parametrize(("alpha", "rest", "share"), [(0.3, 100.0, 0.5), (0.3, 2.0, 0.9)])
def test_mixtures_are_as_far_from_even_as_their_parts(alpha, rest, share):
    """Var(s p + (1 - s) q) = s^2 Var(p) + (1 - s)^2 Var(q), of each client and class."""
    shares = mixtures(DirichletMixture(alpha, rest, share))
    assert_mean(shares, 1 / CLIENTS, sigmas=5)
    squares = np.square(shares - 1 / CLIENTS).mean(axis=(1, 2))
    rounded = 1 / (12 * 200**2)
    assert_mean(
        squares,
        share**2 * dirichlet_variance(alpha)
        + (1 - share) ** 2 * dirichlet_variance(rest)
        + rounded,
    )


def test_mixtures_are_as_if_two_parts_of_the_examples_were_dealt_one_after_the_other():
    """FedCT's code: the first 9,000 of 10,000 shuffled examples by one draw, the others by another."""
    ours = mixtures(DirichletMixture(0.3, 100.0, 0.9))
    theirs = []
    for seed in range(150):
        order = np.random.default_rng(seed).permutation(len(Y))
        table = sum(
            held(
                partition(Y[points], num_clients=CLIENTS, scheme=Dirichlet(a), seed=seed + k),
                Y[points],
            )
            for k, (points, a) in enumerate(((order[:1800], 0.3), (order[1800:], 100.0)))
        )
        theirs.append(table / 200)
    for moment in (2, 4):
        a, b = (
            np.power(np.array(shares) - 1 / CLIENTS, moment).mean(axis=(1, 2))
            for shares in (ours, theirs)
        )
        error = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 150)
        assert abs(a.mean() - b.mean()) < 4 * error


def test_a_class_that_only_new_points_have_is_mixed_too():
    tables = []
    for seed in range(100):
        part = partition(
            Y,
            num_clients=CLIENTS,
            scheme=DirichletMixture(1e-3, 1e6, 0.5),
            new_y=np.full(1000, CLASSES),
            seed=seed,
        )
        tables.append(sorted(map(len, part.new)))
    np.testing.assert_allclose(np.median(tables, axis=0), [100] * 4 + [600], atol=2)


def subclasses(num_clients, seed, *, per_class=3, each=12, **keywords):
    """Four classes of `per_class` subclasses: bool [clients, 4 * per_class], and the partition."""
    finer = np.random.default_rng(0).permutation(np.repeat(np.arange(4 * per_class), each))
    part = partition(
        finer // per_class,
        num_clients=num_clients,
        scheme=Subclasses(100 + finer),
        seed=seed,
        **keywords,
    )
    return class_counts(
        finer, [np.concatenate(own) for own in zip(*part, strict=True)], 4 * per_class
    ), part


@pytest.mark.parametrize("num_clients", [3, 4, 6, 7])
def test_every_client_holds_one_subclass_of_every_class(num_clients):
    for seed in range(5):
        table, part = subclasses(num_clients, seed, labels=Labels(fraction=0.25))
        by_class = table.reshape(num_clients, 4, 3)
        np.testing.assert_array_equal((by_class > 0).sum(axis=2), 1)
        holders = (by_class > 0).sum(axis=0)
        assert np.ptp(holders, axis=1).max() <= 1
        for c in range(12):
            parts = table[:, c][table[:, c] > 0]
            assert parts.sum() == 12
            assert np.ptp(parts) <= 1
        every = np.concatenate([np.concatenate(own) for own in part])
        np.testing.assert_array_equal(np.sort(every), np.arange(144))
        for labeled, others in zip(part.labeled, part.unlabeled, strict=True):
            assert abs(len(labeled) - 0.25 * (len(labeled) + len(others))) <= 1


def test_who_shares_a_subclass_is_chance_and_each_classs_own():
    """Six clients, two a subclass: any two share one of a class in one of five draws."""
    shared = []
    for seed in range(200):
        table, _ = subclasses(6, seed)
        holds = (table > 0).astype(float).reshape(6, 4, 3)
        shared.append(np.einsum("mcs,ncs->cmn", holds, holds)[:, ~np.eye(6, dtype=bool)])
    shared = np.array(shared)
    assert_mean(shared.reshape(200, -1), 1 / 5, sigmas=5)
    assert_mean((shared[:, 0] * shared[:, 1]).mean(axis=1), 1 / 25)


def test_who_shares_where_some_must_is_chance():
    """Four clients of three subclasses: the first are not those that have one to themselves."""
    alone = []
    for seed in range(200):
        table, _ = subclasses(4, seed)
        alone.append((table == 12).sum(axis=1))
    assert_mean(alone, 2)


def test_new_points_go_to_who_holds_their_subclass():
    finer, new = np.repeat(np.arange(6), 10), np.repeat(np.arange(6), 4)
    part = partition(
        finer // 3,
        num_clients=3,
        scheme=Subclasses(finer, new),
        new_y=new // 3,
    )
    for labeled, points in zip(part.labeled, part.new, strict=True):
        assert set(new[points - 60]) == set(finer[labeled])
        assert len(points) == 8
