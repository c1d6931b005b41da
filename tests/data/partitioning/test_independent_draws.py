"""Labeled and unlabeled examples of two draws: by `skew="independent"`, and by the splitter of pairs."""

import hashlib

import numpy as np
import pytest

from jaxfed.data import (
    Classes,
    Dirichlet,
    DirichletMixture,
    Iid,
    Labels,
    Sizes,
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


@pytest.mark.parametrize("quantity", ["default", "equal"])
def test_two_draws_are_far_apart_inside_a_client(quantity):
    both = dealt(Dirichlet(0.1), skew="both", sizes=Sizes(quantity))
    independent = dealt(Dirichlet(0.1), skew="independent", sizes=Sizes(quantity))
    assert inside(both) < 0.1 < 0.7 < inside(independent)
    # By chance: the labels of one client beside the unlabeled examples of another.
    others = independent.copy()
    others[:, 1] = np.roll(others[:, 1], 1, axis=1)
    assert inside(independent) == pytest.approx(inside(others), abs=0.05)
    assert from_all(independent) == pytest.approx(from_all(both), abs=0.1)
    # Sizes and numbers of labels are those of one draw.
    np.testing.assert_allclose(
        independent.sum(axis=(1, 3)), both.sum(axis=(1, 3)), atol=2 if quantity == "default" else 0
    )
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
