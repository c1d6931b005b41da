"""Partitions are random: over many seeds, what is not promised is as a shuffle would have it."""

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits

from jaxfed.data import (
    Classes,
    Dirichlet,
    Iid,
    Labels,
    Natural,
    Partition,
    Table,
    class_counts,
    partition,
)
from jaxfed.data.partitioning.controlled_rounding import (
    apportion,
    expected,
    filled,
    round_at_random,
    stratified,
)

DIGITS = load_digits()
EVEN = np.repeat(np.arange(10), 60)
SETTINGS = {  # examples of digits, clients, labeled fraction, seeds
    "10 examples a client": (500, 50, 0.3, 100),
    "1,000 clients": (len(DIGITS.target), 1000, 0.1, 40),
    "10 clients": (len(DIGITS.target), 10, 0.05, 100),
}


def partition_with_new(y, new_fraction, seed, **keywords):
    """A partition in which this share of each class is new; its indices are those of `y`."""
    is_new = stratified(y, round(new_fraction * len(y)), np.random.default_rng([seed, 1]))
    part = partition(y[~is_new], new_y=y[is_new], seed=seed, **keywords)
    places = np.concatenate([np.flatnonzero(~is_new), np.flatnonzero(is_new)])
    return Partition(*([places[indices] for indices in role] for role in part))


@cache
def dealt(setting):
    """One partition a seed, with a fifth of the examples new."""
    n, num_clients, fraction, seeds = SETTINGS[setting]
    return [
        partition_with_new(
            DIGITS.target[:n],
            num_clients=num_clients,
            labels=Labels(fraction=fraction),
            new_fraction=0.2,
            seed=seed,
        )
        for seed in range(seeds)
    ]


def counts(part, y, num_classes=10):
    """int [3, M, C]: labeled, unlabeled, new."""
    return np.array([class_counts(y, indices, num_classes) for indices in part])


def assert_mean(values, mean, what="", sigmas=4.0):
    """The mean of these independent values is `mean`, as far as so many can tell."""
    error = np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
    off = np.abs(np.mean(values, axis=0) - mean) / np.maximum(error, 1e-9)
    assert np.max(off) < sigmas, f"{what}: {np.mean(values, axis=0)}, by chance {mean}"


def chi_square(table):
    """Pearson's statistic, over its mean in random splits with the same sums."""
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    n = table.sum()
    fitted = np.outer(table.sum(axis=1), table.sum(axis=0)) / n
    degrees = (table.shape[0] - 1) * (table.shape[1] - 1)
    return (np.square(table - fitted) / fitted).sum() / (degrees * n / (n - 1))


def overlap(a, b):
    """How many of `b` have a class that their client has in `a`, over the mean if `b` is shuffled."""
    has = a > 0
    return (has * b).sum() / (b.sum(axis=1) @ has @ b.sum(axis=0) / b.sum())


@pytest.mark.parametrize("setting", SETTINGS)
def test_iid_is_a_random_split(setting):
    tables = [counts(part, DIGITS.target) for part in dealt(setting)]
    for role, name in enumerate(("labeled", "unlabeled", "new")):
        assert_mean([chi_square(table[role]) for table in tables], 1, name)
    assert_mean([chi_square(table[:2].sum(axis=0)) for table in tables], 1, "held")
    assert_mean([chi_square(table.sum(axis=0)) for table in tables], 1, "all")


@pytest.mark.parametrize("setting", SETTINGS)
def test_iid_labels_tell_nothing_of_the_clients_other_points(setting):
    tables = [counts(part, DIGITS.target) for part in dealt(setting)]
    assert_mean([overlap(labeled, new) for labeled, _, new in tables], 1, "new points")
    assert_mean([overlap(labeled, others) for labeled, others, _ in tables], 1, "unlabeled")
    assert_mean([overlap(others, new) for _, others, new in tables], 1, "new by unlabeled")


@pytest.mark.parametrize("setting", SETTINGS)
def test_over_all_iid_clients_classes_have_the_same_share_of_labels(setting):
    for part in dealt(setting)[:10]:
        labeled, unlabeled, _ = counts(part, DIGITS.target).sum(axis=1)
        wanted = (labeled + unlabeled) * labeled.sum() / (labeled + unlabeled).sum()
        assert np.abs(labeled - wanted).max() < 1


def client_1nn(labeled, new):
    """Accuracy of the nearest label of the same client; without a label, none is right."""
    owner = [np.repeat(np.arange(len(part)), list(map(len, part))) for part in (labeled, new)]
    labeled, new = np.concatenate(labeled), np.concatenate(new)
    x, norms = DIGITS.data, np.square(DIGITS.data).sum(axis=1)
    distances = norms[labeled] - 2 * x[new] @ x[labeled].T
    distances[owner[1][:, None] != owner[0]] = np.inf
    nearest = labeled[distances.argmin(axis=1)]
    found = np.isfinite(distances.min(axis=1))
    return (found & (DIGITS.target[nearest] == DIGITS.target[new])).mean()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.sample(1)
def test_a_clients_nearest_label_is_as_good_as_on_a_random_split(setting):
    gains = []
    for seed, part in enumerate(dealt(setting)):
        ends = [np.cumsum(list(map(len, indices)))[:-1] for indices in part]
        pool = np.random.default_rng(seed).permutation(
            np.concatenate([np.concatenate(indices) for indices in part])
        )
        cuts = np.cumsum([sum(map(len, indices)) for indices in part])[:-1]
        labeled, _, new = map(np.split, np.split(pool, cuts), ends)
        gains.append(client_1nn(part.labeled, part.new) - client_1nn(labeled, new))
    assert_mean(gains, 0)


def test_number_of_iid_labels_is_equal_for_every_client_and_class():
    """XCLP, A.2: CIFAR-100 on 50 clients with 5,000 labels is one of each class, however dealt the rest."""
    y = np.random.default_rng(0).integers(100, size=11_000)
    for skew in ("both", "unlabeled"):
        part = partition(y, num_clients=50, labels=Labels(number=5000), skew=skew)
        labeled, unlabeled, _ = counts(part, y, 100)
        np.testing.assert_array_equal(labeled, 1)
        np.testing.assert_array_equal(unlabeled.sum(axis=1), 120)
    part = partition(y, num_clients=50, labels=Labels(number=5250, clients=35))
    labeled = counts(part, y, 100)[0]
    np.testing.assert_array_equal(labeled.sum(axis=1), [150] * 35 + [0] * 15)
    assert set(labeled[:35].ravel()) == {1, 2}
    assert set(labeled.sum(axis=0)) <= {52, 53}


def test_labels_fewer_than_classes_have_random_classes():
    """Three labels a client: no class twice, each class as often; which, independent over clients."""
    tables = []
    for seed in range(250):
        labels = Labels(number=60)
        part = partition_with_new(EVEN, num_clients=20, labels=labels, new_fraction=0.2, seed=seed)
        tables.append(counts(part, EVEN))
        labeled = tables[-1][0]
        np.testing.assert_array_equal(labeled.sum(axis=0), 6)
        np.testing.assert_array_equal(labeled.sum(axis=1), 3)
        assert labeled.max() == 1
    labels = np.array([table[0] for table in tables])
    assert_mean(labels, 0.3, "classes")
    pairs = np.einsum("smc,smd->scd", labels, labels)[:, ~np.eye(10, dtype=bool)] / 20
    assert_mean(pairs, 0.3 * 2 / 9, "two classes of a client")
    shared = np.einsum("smc,snc->smn", labels, labels)[:, ~np.eye(20, dtype=bool)]
    assert_mean(shared, 10 * 6 * 5 / (20 * 19), "classes that two clients share")
    triples = np.einsum("sc,sc,sc->s", *labels[:, :3].swapaxes(0, 1))
    assert_mean(triples, 10 * 6 * 5 * 4 / (20 * 19 * 18), "classes that three clients share")
    assert_mean([overlap(labeled, new) for labeled, _, new in tables], 1, "new points")
    assert_mean([overlap(labeled, others) for labeled, others, _ in tables], 1, "unlabeled")


ROLES = {  # schemes whose weights no seed changes
    "iid": {"labels": Labels(fraction=0.25)},
    "iid, number": {"labels": Labels(number=100)},
    "iid, per class": {"labels": Labels(per_class=1)},
    "table": {"scheme": Table(), "labels": Labels(fraction=0.25)},
    "table, labeled": {"scheme": Table(), "skew": "labeled", "labels": Labels(number=100)},
    "table, unlabeled": {"scheme": Table(), "skew": "unlabeled", "labels": Labels(number=100)},
    "table, unlabeled, fraction": {
        "scheme": Table(),
        "skew": "unlabeled",
        "labels": Labels(fraction=0.25),
    },
}


@pytest.mark.parametrize("name", ROLES)
@pytest.mark.sample(4)
def test_roles_are_independent_and_have_the_expected_counts(name):
    """20 clients of 24 examples and 6 new ones."""
    keywords = ROLES[name]
    tables = np.array(
        [
            counts(
                partition_with_new(EVEN, num_clients=20, new_fraction=0.2, seed=s, **keywords), EVEN
            )
            for s in range(120)
        ]
    )
    off = tables - tables.mean(axis=0)
    labeled, unlabeled, new = off.swapaxes(0, 1)
    assert_mean((labeled * new).sum(axis=(1, 2)), 0, "labeled and new")
    assert_mean((unlabeled * new).sum(axis=(1, 2)), 0, "unlabeled and new")
    if "scheme" not in keywords or "skew" in keywords:  # else drawn from what is held
        assert_mean((labeled * unlabeled).sum(axis=(1, 2)), 0, "labeled and unlabeled")
    # Clients whose weights are alike, and classes by how they stand to them, have the same means.
    types = np.arange(20) % 10 if "scheme" in keywords else np.zeros(20, int)
    step = (
        (np.arange(10) - types[:, None]) % 10 if "scheme" in keywords else np.zeros((20, 10), int)
    )
    for role in range(3):
        for value in np.unique(step):
            places = step == value
            means = tables[:, role].mean(axis=0)[places]
            error = tables[:, role].std(axis=0)[places].max() / np.sqrt(len(tables))
            assert np.ptp(means) < 8 * error + 1e-9


@pytest.mark.parametrize(
    "labels", [Labels(fraction=0.5), Labels(number=450)], ids=["fraction", "number"]
)
@pytest.mark.parametrize("skew", ["both", "labeled", "unlabeled", "independent"])
def test_three_examples_a_client_of_five_classes(skew, labels):
    """All classes have as many labels, though no client can have its share of a class."""
    y = np.repeat(np.arange(10), 90)
    for seed in range(10):
        part = partition(
            y,
            num_clients=300,
            scheme=Classes(5),
            labels=labels,
            skew=skew,
            seed=seed,
        )
        labeled, unlabeled, _ = counts(part, y)
        assert set(labeled.sum(axis=1)) == {1, 2}
        np.testing.assert_allclose(labeled.sum(axis=0), 45, atol=1)
        if skew == "both":
            np.testing.assert_allclose((labeled + unlabeled).sum(axis=1), 3, atol=1)


@pytest.mark.sample(12)
@pytest.mark.parametrize("scheme", [Iid(), Dirichlet(1e6), Table(np.ones((1, 10)))])
@pytest.mark.parametrize("skew", ["both", "labeled", "unlabeled", "independent"])
def test_weights_that_are_alike_tell_nothing_of_new_points(scheme, skew):
    tables = [
        counts(
            partition_with_new(
                EVEN,
                num_clients=30,
                scheme=scheme,
                skew=skew,
                labels=Labels(fraction=0.2),
                new_fraction=0.2,
                seed=seed,
            ),
            EVEN,
        )
        for seed in range(25)
    ]
    assert_mean([overlap(labeled, new) for labeled, _, new in tables], 1, "by labels")
    assert_mean([overlap(others, new) for _, others, new in tables], 1, "by unlabeled")


def test_which_classes_clients_hold_is_random():
    """Half of the classes each: the next client does not hold just the others."""
    held = []
    for seed in range(100):
        part = partition(EVEN, num_clients=20, scheme=Classes(5), seed=seed)
        held.append(counts(part, EVEN)[0] > 0)
        np.testing.assert_array_equal(held[-1].sum(axis=0), 10)
    shared = np.einsum("smc,snc->smn", held, held, dtype=float)[:, ~np.eye(20, dtype=bool)]
    assert_mean(shared, 10 * 10 * 9 / (20 * 19))


def test_labels_of_natural_clients_are_drawn_from_what_they_hold():
    rng = np.random.default_rng(0)
    owner = rng.choice(8, size=600, p=np.arange(1, 9) / 36)
    held = np.array([np.bincount(EVEN[owner == m], minlength=10) for m in range(8)])
    tables = []
    for seed in range(150):
        part = partition(EVEN, scheme=Natural(owner), labels=Labels(fraction=0.2), seed=seed)
        tables.append(counts(part, EVEN)[0])
        assert np.abs(tables[-1].sum(axis=1) - 0.2 * held.sum(axis=1)).max() < 1
        np.testing.assert_allclose(tables[-1].sum(axis=0), 12, atol=1)
    assert_mean(tables, 0.2 * held, sigmas=5)
    sizes = held.sum(axis=1, keepdims=True)
    variance = 0.2 * 0.8 * held * (1 - held / sizes) * (1 - held / 60)  # both sums are given
    assert np.var(tables, axis=0).sum() / variance.sum() == pytest.approx(1, abs=0.1)


def test_which_clients_get_one_natural_id_more_is_chance():
    """Twelve ids on five clients: it is not those with labels, which come first, that get three."""
    ids = np.arange(60) % 12
    sizes = [
        [
            len(labeled) + len(unlabeled)
            for labeled, unlabeled, _ in zip(
                *partition(EVEN[:60], scheme=Natural(ids), num_clients=5, seed=seed),
                strict=True,
            )
        ]
        for seed in range(200)
    ]
    assert set(np.unique(sizes)) == {10, 15}
    assert_mean(sizes, 12)


def test_classes_that_nobody_is_drawn_to_are_dealt_evenly():
    """None has weight for the second class; of the third, only a client that is to hold nothing."""
    weights, totals = np.array([[1.0, 0, 0], [3, 0, 0], [0, 0, 1]]), np.array([4, 6, 3])
    np.testing.assert_allclose(expected(weights, totals, None), [[1, 2, 0], [3, 2, 0], [0, 2, 3]])
    dealt = expected(weights, totals, np.array([5.0, 8, 0]))
    np.testing.assert_allclose(dealt.sum(axis=0), totals)
    np.testing.assert_allclose(dealt[:, 2], 1)


def test_filling_up_takes_from_the_largest_in_proportion():
    table = filled(np.array([[30.0, 10.0], [0.0, 24.0], [4.0, 4.0], [0.0, 0.0]]), np.full(4, 8))
    np.testing.assert_allclose(table.sum(axis=0), [34, 38])
    np.testing.assert_allclose(table[:3], [[24, 8], [0, 24], [4, 4]])
    np.testing.assert_allclose(table[3], [6, 2])


def test_filling_up_what_roundoff_lacks_changes_nothing():
    table = np.array([[12.0, 12.0], [4.0, 4.0 - 1e-15]])
    np.testing.assert_allclose(filled(table, np.full(2, 8)), table)
    y = np.repeat(np.arange(6), 61)
    for seed in range(20):
        part = partition(
            y,
            num_clients=9,
            scheme=Dirichlet(2),
            min_size=12,
            labels=Labels(per_class=1),
            seed=seed,
        )
        assert counts(part, y, 6).sum(axis=(0, 2)).min() >= 12


@pytest.mark.parametrize("scheme", [Iid(), Table()])
def test_who_gets_one_more_is_chance(scheme):
    tables = []
    for seed in range(150):
        part = partition_with_new(
            EVEN[:590],
            num_clients=12,
            scheme=scheme,
            labels=Labels(number=30),
            new_fraction=0.1,
            seed=seed,
        )
        tables.append([[len(indices) for indices in role] for role in part])
    sizes = np.array(tables)
    assert_mean(sizes[:, 0], 30 / 12, "labels")
    assert_mean(sizes[:, :2].sum(axis=1), 531 / 12, "examples", sigmas=5)
    assert_mean(sizes[:, 2], 59 / 12, "new", sigmas=5)


@pytest.mark.parametrize("num_clients", [6, 40])
def test_rounding_at_random_keeps_sums_and_means(num_clients):
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(num_clients, 0.5), 7).T
    weights[0, :3] = 0
    exact = expected(weights, np.full(7, 30), np.full(num_clients, 210 / num_clients))
    rounded = np.array([round_at_random(exact, rng) for _ in range(500)])
    assert (np.abs(rounded - exact) < 1).all()
    assert (np.abs(rounded.sum(axis=2) - exact.sum(axis=1)) < 1).all()
    np.testing.assert_array_equal(rounded.sum(axis=1), 30)
    fractions = exact % 1
    error = np.sqrt(fractions * (1 - fractions) / len(rounded))
    z = ((rounded.mean(axis=0) - exact) / np.maximum(error, 1e-9))[error > 0.004]
    assert np.abs(z).max() < 4.5
    assert z.std() == pytest.approx(1, abs=0.25)


def test_apportioning_keeps_the_sum_and_means():
    rng = np.random.default_rng(0)
    exact = np.array([0.0, 0.2, 1.5, 2.7, 0.6, 4.0])
    rounded = np.array([apportion(exact / 3, 9, rng) for _ in range(2000)])
    np.testing.assert_array_equal(rounded.sum(axis=1), 9)
    assert (np.abs(rounded - exact) < 1).all()
    assert_mean(rounded, exact)
