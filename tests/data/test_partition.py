"""Partitions: what they promise, and over many seeds what is left to chance as a shuffle would have it."""

import hashlib
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from jaxfed.data import (
    FEDMATCH_TABLE,
    Classes,
    Dirichlet,
    DirichletMixture,
    DirichletPairs,
    Iid,
    Labels,
    Natural,
    Partition,
    Subclasses,
    Table,
    class_counts,
    partition,
)
from jaxfed.data.controlled_rounding import (
    apportion,
    expected,
    filled,
    round_at_random,
    stratified,
)
from jaxfed.errors import UsageError

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
    assert_mean([overlap(labeled, new) for labeled, _, new in tables], 1, "new points")


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
        part = partition(y, num_clients=300, scheme=Classes(5), labels=labels, skew=skew, seed=seed)
        labeled, unlabeled, _ = counts(part, y)
        assert set(labeled.sum(axis=1)) == {1, 2}
        np.testing.assert_allclose(labeled.sum(axis=0), 45, atol=1)
        if skew == "both":
            np.testing.assert_allclose((labeled + unlabeled).sum(axis=1), 3, atol=1)


def test_which_classes_clients_hold_is_random():
    """Half of the classes each: the next client does not hold just the others."""
    held = []
    for seed in range(100):
        part = partition(EVEN, num_clients=20, scheme=Classes(5), seed=seed)
        held.append(counts(part, EVEN)[0] > 0)
        np.testing.assert_array_equal(held[-1].sum(axis=0), 10)
        np.testing.assert_array_equal(held[-1].sum(axis=1), 5)
    shared = np.einsum("smc,snc->smn", held, held, dtype=float)[:, ~np.eye(20, dtype=bool)]
    assert_mean(shared, 10 * 10 * 9 / (20 * 19))


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


# Promises.

SCHEMES = {
    "iid": {"scheme": Iid()},
    "dirichlet": {"scheme": Dirichlet(0.3)},
    "dirichlet, tiny": {"scheme": Dirichlet(1e-3)},
    "dirichlet, min_size": {"scheme": Dirichlet(1e-3), "min_size": 3},
    "dirichlet_mixture": {"scheme": DirichletMixture(0.1)},
    "dirichlet_pairs": {"scheme": DirichletPairs(0.1)},
    "classes": {"scheme": Classes(3)},
    "table": {"scheme": Table()},
    "natural": {"num_clients": None},
}


def classes(n, seed=0):
    return np.random.default_rng(seed).integers(10, size=n)


def arguments(name, y, new_y):
    """Keywords of `partition` for one of the `SCHEMES`."""
    keywords = {"num_clients": 12, **SCHEMES[name]}
    if "natural" in name:
        rng = np.random.default_rng(5)
        ids, new_ids = rng.integers(9, size=len(y)), rng.integers(11, size=len(new_y))
        keywords["scheme"] = Natural(ids, new_ids)
    return keywords


@pytest.mark.sample(14)
@pytest.mark.parametrize("skew", ["both", "labeled", "unlabeled", "independent"])
@pytest.mark.parametrize("name", SCHEMES)
@given(
    n=st.integers(60, 400),
    num_new=st.integers(0, 50),
    fraction=st.floats(0, 1, width=32, allow_subnormal=False),
    seed=st.integers(0, 9),
)
def test_every_example_is_used_once(name, skew, n, num_new, fraction, seed):
    y, new_y = classes(n, seed), classes(num_new, seed + 1)
    keywords = arguments(name, y, new_y)
    if "natural" in name:
        skew = "both"
    labels = Labels(fraction=fraction)
    part = partition(y, new_y=new_y, labels=labels, skew=skew, seed=seed, **keywords)
    every = np.concatenate([*part.labeled, *part.unlabeled, *part.new])
    np.testing.assert_array_equal(np.sort(every), np.arange(n + num_new))
    assert all((indices >= n).all() for indices in part.new)
    num_labeled = sum(map(len, part.labeled))
    assert num_labeled == (max(round(fraction * n), 1) if fraction > 0 else 0)
    # Two draws deal a client's labels and its other examples separately.
    is_one_draw = skew == "both" and not keywords.get("scheme", Iid()).is_independent
    for labeled, unlabeled in zip(part.labeled, part.unlabeled, strict=True):
        if is_one_draw:
            assert abs(len(labeled) - fraction * (len(labeled) + len(unlabeled))) <= 1
        assert labeled.dtype == unlabeled.dtype == np.int64


@pytest.mark.sample(14)
@pytest.mark.parametrize("skew", ["both", "labeled", "unlabeled", "independent"])
@pytest.mark.parametrize("name", SCHEMES)
@settings(max_examples=20)
@given(
    unknown=st.floats(0, 0.95),
    fraction=st.floats(0, 1, width=32, allow_subnormal=False),
    is_number=st.booleans(),
    seed=st.integers(0, 9),
)
def test_an_example_of_unknown_class_is_somebodys_and_has_no_label(
    name, skew, unknown, fraction, is_number, seed
):
    y = np.tile(np.arange(10), 40)  # of which every class keeps some
    is_known = np.arange(400) >= unknown * 400
    num_known = np.count_nonzero(is_known)
    y[~is_known] = -1
    keywords = arguments(name, y, y[:0])
    if "natural" in name:
        skew = "both"
    number = round(fraction * num_known)
    labels = Labels(number=number) if is_number else Labels(fraction=fraction)
    part = partition(y, skew=skew, labels=labels, seed=seed, **keywords)
    every = np.concatenate([*part.labeled, *part.unlabeled])
    np.testing.assert_array_equal(np.sort(every), np.arange(400))
    labeled = np.concatenate(part.labeled)
    assert is_known[labeled].all()
    assert len(labeled) == (number if is_number else max(number, fraction > 0))
    if name == "iid":
        sizes = [len(a) + len(b) for a, b in zip(part.labeled, part.unlabeled, strict=True)]
        assert max(sizes) - min(sizes) <= 1


def test_labels_are_asked_of_known_classes_only():
    y = np.where(np.arange(100) < 30, np.arange(100) % 3, -1)
    dealt = partition(y, num_clients=10, labels=Labels(number=30, clients=3))
    assert list(map(len, dealt.labeled)) == [10] * 3 + [0] * 7


@pytest.mark.parametrize("name", SCHEMES)
def test_same_seed_same_partition(name):
    y, new_y = classes(300), classes(40)
    labels = Labels(fraction=0.2)
    parts = [
        partition(y, new_y=new_y, labels=labels, seed=seed, **arguments(name, y, new_y))
        for seed in (1, 1, 2)
    ]
    flat = [np.concatenate([np.concatenate(p) for p in part]) for part in parts]
    np.testing.assert_array_equal(flat[0], flat[1])
    assert (flat[0] != flat[2]).any()


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    y = np.repeat(np.arange(10), 2000)
    shares = []
    for seed in range(30):
        held = counts(partition(y, num_clients=5, scheme=Dirichlet(0.5), seed=seed), y)
        shares.append(held.sum(axis=0) / 2000)
    # Dir(a 1_M): variance of a share is (1/M)(1 - 1/M) / (M a + 1).
    assert np.var(shares) == pytest.approx(0.2 * 0.8 / (5 * 0.5 + 1), rel=0.15)


def test_fedmatch_table_rotates_and_balances():
    table = np.array(FEDMATCH_TABLE)
    np.testing.assert_allclose(table.sum(axis=0), 1)
    np.testing.assert_allclose(table.sum(axis=1), 1)
    y = np.repeat(np.arange(10), 1000)
    held = counts(partition(y, num_clients=20, scheme=Table()), y).sum(axis=0)
    np.testing.assert_allclose(held, 500 * np.tile(table, (2, 1)), atol=2)


@pytest.mark.parametrize("skew", ["labeled", "unlabeled"])
def test_skew_says_which_part_follows_the_scheme(skew):
    y = np.repeat(np.arange(10), 1000)
    part = partition(y, num_clients=10, scheme=Table(), labels=Labels(number=1000), skew=skew)
    labeled, unlabeled, _ = counts(part, y)
    skewed, even = (labeled, unlabeled) if skew == "labeled" else (unlabeled, labeled)
    total = skewed.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(skewed / total, FEDMATCH_TABLE, atol=0.02)
    if (
        skew == "labeled"
    ):  # the rest is as shuffled: 9 in 10 of 100 examples, at most 4.5 deviations off
        np.testing.assert_allclose(even, 90, atol=4.5 * 9)
    else:
        np.testing.assert_array_equal(even, 10)
    np.testing.assert_allclose((labeled + unlabeled).sum(axis=1), 1000, atol=2)


def test_labels_per_client_and_class():
    y = np.repeat(np.arange(10), 100)
    labeled = counts(partition(y, num_clients=10, labels=Labels(per_class=2)), y)[0]
    np.testing.assert_array_equal(labeled, np.full((10, 10), 2))


def test_new_points_follow_the_clients_classes():
    y, new_y = np.repeat(np.arange(10), 300), np.repeat(np.arange(10), 100)
    part = partition(
        y, num_clients=10, scheme=Dirichlet(0.2), new_y=new_y, labels=Labels(fraction=0.1)
    )
    joint = np.concatenate([y, new_y])
    labeled, unlabeled, new = counts(part, joint)
    np.testing.assert_allclose(new / 100, (labeled + unlabeled) / 300, atol=0.03)


def test_natural_ids_are_compared_whole():
    """`new_client_id` may hold longer names than `client_id`: they are other clients."""
    part = partition(np.zeros(3, int), scheme=Natural(["a", "b", "a"], ["bb", "a"]), new_y=[0, 0])
    assert [sorted(indices.tolist()) for indices in part.labeled] == [[0, 2], [1], []]
    assert [indices.tolist() for indices in part.new] == [[4], [], [3]]
    with pytest.raises(UsageError, match="entries do not match the examples"):
        partition(np.zeros(3, int), scheme=Natural(["bb", "a"], ["a", "b", "a"]), new_y=[0, 0])


@pytest.mark.sample(8)
@pytest.mark.parametrize("skew", ["both", "unlabeled", "independent"])
@pytest.mark.parametrize("alpha", [2e-38, 1e-9, 1e-3, 5e-3, 1e9])
def test_extreme_dirichlet_alphas_are_dealt(skew, alpha):
    for seed in range(20):
        part = partition(
            classes(300),
            num_clients=31,
            scheme=Dirichlet(alpha),
            min_size=1,
            labels=Labels(number=150),
            skew=skew,
            seed=seed,
        )
        every = np.concatenate([*part.labeled, *part.unlabeled])
        np.testing.assert_array_equal(np.sort(every), np.arange(300))


# Labeled and unlabeled examples of two draws: by `skew="independent"`, and by the splitter of pairs.

CIFAR = np.repeat(np.arange(10), 5000)


def shares(counts):
    return counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)


def distance(one, other):
    """Total variation distance of class shares."""
    return np.abs(shares(one) - shares(other)).sum(axis=-1) / 2


def dealt_cifar(scheme, seeds=5, **keywords):
    """Counts [seeds, 2, M, C] of labeled and unlabeled examples; 10 % of CIFAR-10 are labeled."""
    parts = [
        partition(
            CIFAR, num_clients=20, scheme=scheme, labels=Labels(fraction=0.1), seed=seed, **keywords
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
    both = dealt_cifar(Dirichlet(0.1), skew="both")
    independent = dealt_cifar(Dirichlet(0.1), skew="independent")
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
    tables = dealt_cifar(DirichletPairs(alpha), seeds=60)
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


def test_a_client_of_a_pair_that_is_full_gets_no_more():
    """Whole classes of 100 go to one client each; after five it is full."""
    for seed in range(20):
        rest = DirichletPairs(1e-9)._split(np.full(10, 100), np.random.default_rng(seed))
        assert sorted(rest) == [0] * 5 + [100] * 5


@pytest.mark.parametrize("alpha", [2e-38, 1e-3, 1e38])
@pytest.mark.parametrize(("num_clients", "num_classes"), [(1, 1), (2, 1), (7, 2), (31, 10)])
def test_pairs_of_any_data_are_dealt(alpha, num_clients, num_classes):
    """One class of a tiny alpha goes to one client in every draw: the draws end."""
    y = np.random.default_rng(0).integers(num_classes, size=300)
    part = partition(y, num_clients=num_clients, scheme=DirichletPairs(alpha), seed=1)
    sizes = np.array([len(indices) for indices in part.labeled])
    assert sizes.sum() == 300
    assert np.ptp(sizes) <= 1


# Mixtures of two Dirichlet draws, and subclasses.

CLIENTS = 5
Y = np.repeat(np.arange(10), 200)


def held(part, y=Y):
    """int [M, C], labeled or not."""
    return sum(class_counts(y, indices, 10) for indices in part[:2])


def mixtures(scheme, seeds=150, **keywords):
    """float [seeds, M, C], of each class the clients' shares."""
    tables = [
        held(partition(Y, num_clients=CLIENTS, scheme=scheme, seed=s, **keywords))
        for s in range(seeds)
    ]
    return np.array(tables) / 200


def dirichlet_variance(alpha):
    return (1 / CLIENTS) * (1 - 1 / CLIENTS) / (CLIENTS * alpha + 1)


@pytest.mark.parametrize("rest", [100.0, 2.0])
def test_mixtures_are_as_far_from_even_as_their_parts(rest):
    """Var(0.9 p + 0.1 q) = 0.9^2 Var(p) + 0.1^2 Var(q), of each client and class."""
    shares = mixtures(DirichletMixture(0.3, rest))
    assert_mean(shares, 1 / CLIENTS, sigmas=5)
    squares = np.square(shares - 1 / CLIENTS).mean(axis=(1, 2))
    rounded = 1 / (12 * 200**2)
    variance = 0.81 * dirichlet_variance(0.3) + 0.01 * dirichlet_variance(rest)
    assert_mean(squares, variance + rounded)


def test_a_class_that_only_new_points_have_is_mixed_too():
    tables = []
    for seed in range(100):
        part = partition(
            Y,
            num_clients=CLIENTS,
            scheme=DirichletMixture(1e-3, 1e6),
            new_y=np.full(1000, 10),
            seed=seed,
        )
        tables.append(sorted(map(len, part.new)))
    np.testing.assert_allclose(np.median(tables, axis=0), [20] * 4 + [920], atol=2)


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


def test_new_points_go_to_who_holds_their_subclass():
    finer, new = np.repeat(np.arange(6), 10), np.repeat(np.arange(6), 4)
    part = partition(finer // 3, num_clients=3, scheme=Subclasses(finer, new), new_y=new // 3)
    for labeled, points in zip(part.labeled, part.new, strict=True):
        assert set(new[points - 60]) == set(finer[labeled])
        assert len(points) == 8
