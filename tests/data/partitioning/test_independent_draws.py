"""Labeled and unlabeled examples of two draws: by `skew="independent"`, and by the splitter of pairs."""

import hashlib

import numpy as np
import pytest

from jaxfed.data import (
    Classes,
    Dirichlet,
    DirichletMixture,
    DirichletPairs,
    Iid,
    Labels,
    Table,
    class_counts,
    partition,
)

CIFAR = np.repeat(np.arange(10), 5000)


def shares(counts):
    return counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)


def distance(one, other):
    """Total variation distance of class shares."""
    return np.abs(shares(one) - shares(other)).sum(axis=-1) / 2


def dealt(scheme, seeds=5, num_clients=20, **keywords):
    """Counts [seeds, 2, M, C] of labeled and unlabeled examples; 10 % of CIFAR-10 are labeled."""
    parts = [
        partition(
            CIFAR,
            num_clients=num_clients,
            scheme=scheme,
            labels=Labels(fraction=0.1),
            seed=seed,
            **keywords,
        )
        for seed in range(seeds)
    ]
    return np.array([[class_counts(CIFAR, role, 10) for role in part[:2]] for part in parts])


def inside(tables):
    """Mean distance of a client's labeled from its unlabeled examples, over clients with both."""
    labeled, unlabeled = tables.swapaxes(0, 1)
    has_both = (labeled.sum(axis=2) > 0) & (unlabeled.sum(axis=2) > 0)
    return distance(labeled, unlabeled)[has_both].mean()


def from_all(tables):
    """Mean distance of a client's examples from all clients'."""
    held = tables.sum(axis=1)
    return distance(held, held.sum(axis=1, keepdims=True)).mean()


def test_two_draws_are_far_apart_inside_a_client():
    both = dealt(Dirichlet(0.1), skew="both")
    independent = dealt(Dirichlet(0.1), skew="independent")
    assert inside(both) < 0.1 < 0.7 < inside(independent)
    # By chance: the labels of one client beside the unlabeled examples of another.
    others = independent.copy()
    others[:, 1] = np.roll(others[:, 1], 1, axis=1)
    assert inside(independent) == pytest.approx(inside(others), abs=0.05)
    assert from_all(independent) == pytest.approx(from_all(both), abs=0.1)
    # Sizes and numbers of labels are those of one draw.
    np.testing.assert_allclose(independent.sum(axis=(1, 3)), both.sum(axis=(1, 3)), atol=2)
    sizes = independent.sum(axis=(1, 3))
    assert np.abs(independent[:, 0].sum(axis=2) - 0.1 * sizes).max() < 1.5
    np.testing.assert_allclose(independent[:, 0].sum(axis=1), 500, atol=1)
    np.testing.assert_array_equal(independent.sum(axis=(1, 2)), 5000)


@pytest.mark.parametrize("scheme", [DirichletMixture(0.1), Classes(3)])
def test_every_random_scheme_is_drawn_twice(scheme):
    assert inside(dealt(scheme, seeds=2, skew="both")) < 0.1
    assert inside(dealt(scheme, seeds=2, skew="independent")) > 0.4


def test_iid_clients_are_the_same_with_any_skew():
    np.testing.assert_array_equal(dealt(Iid(), 1, skew="both"), dealt(Iid(), 1, skew="independent"))


def test_new_points_follow_the_draw_of_the_unlabeled():
    part = partition(
        CIFAR[::5],
        num_clients=20,
        scheme=Dirichlet(0.1),
        labels=Labels(fraction=0.1),
        new_y=CIFAR[::10],
        skew="independent",
    )
    y = np.concatenate([CIFAR[::5], CIFAR[::10]])
    labeled, unlabeled, new = (class_counts(y, role, 10) for role in part)
    assert distance(unlabeled, new).mean() < 0.1 < 0.6 < distance(labeled, new).mean()


@pytest.mark.parametrize(
    ("skew", "digest"),
    [
        ("both", "0cbabac2de3e70fc"),
        ("labeled", "e3a5fe98563d6104"),
        ("unlabeled", "fd6951c7eea28d80"),
    ],
)
def test_one_draw_deals_the_same_bits_as_ever(skew, digest):
    y, new_y = np.arange(700) % 7, np.arange(90) % 7
    y = np.where(np.arange(700) % 11 == 0, -1, y)
    found = hashlib.sha256()
    for scheme in (Iid(), Dirichlet(0.2), DirichletMixture(0.1), Classes(3), Table()):
        part = partition(
            y,
            num_clients=6,
            scheme=scheme,
            labels=Labels(fraction=0.2),
            skew=skew,
            new_y=new_y,
            seed=3,
        )
        for role in part:
            for indices in role:
                found.update(indices.tobytes() + b"|")
    assert found.hexdigest()[:16] == digest


# alpha: labeled from unlabeled inside a client, unlabeled of a client from all. Means of SAGE's code over
# seeds 0 to 99, and the single deal of its seed 0.
SAGE = {0.1: ((0.495, 0.433), (0.473, 0.433)), 0.5: ((0.419, 0.333), (0.425, 0.322))}
SAGE[1.0] = ((0.360, 0.272), (0.387, 0.296))


@pytest.mark.sample(1)
@pytest.mark.parametrize("alpha", SAGE)
def test_pairs_are_as_far_apart_as_in_the_released_code(alpha):
    tables = dealt(DirichletPairs(alpha), seeds=60)
    labeled, unlabeled = tables.swapaxes(0, 1)
    found = np.array(
        [
            distance(labeled, unlabeled).mean(axis=1),
            distance(unlabeled, unlabeled.sum(axis=1, keepdims=True)).mean(axis=1),
        ]
    )
    mean_of_code, deal_of_code = SAGE[alpha]
    np.testing.assert_allclose(found.mean(axis=1), mean_of_code, atol=0.03)
    assert np.abs((found.mean(axis=1) - deal_of_code) / found.std(axis=1)).max() < 2
    np.testing.assert_array_equal(labeled.sum(axis=2), 250)
    np.testing.assert_array_equal(unlabeled.sum(axis=2), 2250)
    np.testing.assert_array_equal(labeled.sum(axis=1), 500)


def test_pairs_deal_labeled_and_unlabeled_separately_unless_one_part_is_iid():
    scheme = DirichletPairs(0.1)
    both, independent, labeled, unlabeled = (
        dealt(scheme, 2, skew=skew) for skew in ("both", "independent", "labeled", "unlabeled")
    )
    np.testing.assert_array_equal(both, independent)
    even = np.ones(10)
    assert distance(labeled[:, 1], even).max() < 0.1 < 0.3 < distance(labeled[:, 0], even).mean()
    assert (
        distance(unlabeled[:, 0], even).max() < 0.15 < 0.3 < distance(unlabeled[:, 1], even).mean()
    )


def test_a_client_of_a_pair_that_is_full_gets_no_more():
    """Whole classes of 100 go to one client each; after five it is full."""
    for seed in range(20):
        rest = DirichletPairs(1e-9)._split(np.full(10, 100), np.random.default_rng(seed))
        assert sorted(rest) == [0] * 5 + [100] * 5


def test_a_pair_is_drawn_again_while_a_client_has_less_than_half_of_its_share():
    rng = np.random.default_rng(0)
    rests = [DirichletPairs(0.1)._split(np.full(2, 100), rng).sum() for _ in range(200)]
    assert min(rests) >= 50
    assert max(rests) <= 150


def test_a_pair_that_no_draw_makes_even_takes_the_most_even_draw():
    whole = 10**6
    rests = [
        int(DirichletPairs(1e-4)._split(np.array([whole]), np.random.default_rng(seed)).sum())
        for seed in range(10)
    ]
    assert sum(0 < rest < whole for rest in rests) > 5


@pytest.mark.parametrize("alpha", [2e-38, 1e-3, 1e38])
@pytest.mark.parametrize(("num_clients", "num_classes"), [(1, 1), (2, 1), (7, 2), (31, 10)])
def test_pairs_of_any_data_are_dealt(alpha, num_clients, num_classes):
    """One class of a tiny alpha goes to one client in every draw: the draws end."""
    y = np.random.default_rng(0).integers(num_classes, size=300)
    part = partition(y, num_clients=num_clients, scheme=DirichletPairs(alpha), seed=1)
    sizes = np.array([len(indices) for indices in part.labeled])
    assert sizes.sum() == 300
    assert np.ptp(sizes) <= 1
