import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfed.data import (
    FEDMATCH_TABLE,
    Classes,
    Dirichlet,
    DirichletMixture,
    DirichletPairs,
    Iid,
    Labels,
    Natural,
    Table,
    class_counts,
    partition,
)
from jaxfed.errors import UsageError

NUM_CLASSES = 10
SCHEMES = {
    "iid": {"scheme": Iid()},
    "dirichlet": {"scheme": Dirichlet(0.3)},
    "dirichlet, tiny": {"scheme": Dirichlet(1e-3)},
    "dirichlet, min_size": {"scheme": Dirichlet(1e-3), "min_size": 3},
    "dirichlet_mixture": {"scheme": DirichletMixture(0.1, share=0.5)},
    "dirichlet_pairs": {"scheme": DirichletPairs(0.1)},
    "classes": {"scheme": Classes(3)},
    "table": {"scheme": Table()},
    "natural": {"num_clients": None},
    "natural, grouped": {"num_clients": 4},
}


def classes(n, seed=0):
    return np.random.default_rng(seed).integers(NUM_CLASSES, size=n)


def arguments(name, y, new_y):
    """Keywords of `partition` for one of the `SCHEMES`."""
    keywords = {"num_clients": 12, **SCHEMES[name]}
    if "natural" in name:
        rng = np.random.default_rng(5)
        ids, new_ids = rng.integers(9, size=len(y)), rng.integers(11, size=len(new_y))
        keywords["scheme"] = Natural(ids, new_ids)
    return keywords


def counts(part, y):
    return np.array([class_counts(y, indices, NUM_CLASSES) for indices in part])


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
    y = np.tile(np.arange(NUM_CLASSES), 40)  # of which every class keeps some
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


def test_iid_is_shuffled_and_labels_are_even():
    y = np.repeat(np.arange(NUM_CLASSES), 100)  # sorted by class, as image folders are
    part = partition(y, num_clients=10, labels=Labels(number=100))
    labeled, unlabeled, _ = counts(part, y)
    np.testing.assert_array_equal(labeled, np.ones((10, 10)))
    np.testing.assert_array_equal(unlabeled.sum(axis=1), 90)
    assert len(np.unique(unlabeled)) > 3
    assert (np.diff(part.unlabeled[0]) < 0).any()


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    y = np.repeat(np.arange(NUM_CLASSES), 2000)
    shares = []
    for seed in range(30):
        held = counts(partition(y, num_clients=5, scheme=Dirichlet(0.5), seed=seed), y)
        shares.append(held.sum(axis=0) / 2000)
    # Dir(a 1_M): variance of a share is (1/M)(1 - 1/M) / (M a + 1).
    assert np.var(shares) == pytest.approx(0.2 * 0.8 / (5 * 0.5 + 1), rel=0.15)


def test_classes_per_client_holds_that_many():
    y = classes(2000)
    part = partition(y, num_clients=20, scheme=Classes(2))
    held = counts(part, y).sum(axis=0)
    np.testing.assert_array_equal((held > 0).sum(axis=1), 2)
    holders = (held > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1


def test_fedmatch_table_rotates_and_balances():
    table = np.array(FEDMATCH_TABLE)
    np.testing.assert_allclose(table.sum(axis=0), 1)
    np.testing.assert_allclose(table.sum(axis=1), 1)
    y = np.repeat(np.arange(NUM_CLASSES), 1000)
    held = counts(partition(y, num_clients=20, scheme=Table()), y).sum(axis=0)
    np.testing.assert_allclose(held, 500 * np.tile(table, (2, 1)), atol=2)


@pytest.mark.parametrize("skew", ["labeled", "unlabeled"])
def test_skew_says_which_part_follows_the_scheme(skew):
    y = np.repeat(np.arange(NUM_CLASSES), 1000)
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


def test_labels_by_number_and_clients():
    """XCLP, A.2: n_L labels on m_L clients, n_L / m_L each."""
    y = classes(1000)
    part = partition(y, num_clients=10, labels=Labels(number=100, clients=5))
    assert [len(indices) for indices in part.labeled] == [20] * 5 + [0] * 5
    assert [len(indices) for indices in part.unlabeled] == [80] * 5 + [100] * 5


def test_labels_per_client_and_class():
    y = np.repeat(np.arange(NUM_CLASSES), 100)
    labeled = counts(partition(y, num_clients=10, labels=Labels(per_class=2)), y)[0]
    np.testing.assert_array_equal(labeled, np.full((10, 10), 2))


def test_new_points_follow_the_clients_classes():
    y, new_y = np.repeat(np.arange(NUM_CLASSES), 300), np.repeat(np.arange(NUM_CLASSES), 100)
    part = partition(
        y,
        num_clients=10,
        scheme=Dirichlet(0.2),
        new_y=new_y,
        labels=Labels(fraction=0.1),
    )
    joint = np.concatenate([y, new_y])
    labeled, unlabeled, new = counts(part, joint)
    np.testing.assert_allclose(new / 100, (labeled + unlabeled) / 300, atol=0.03)


def test_natural_clients_keep_their_examples():
    y, clients = classes(100), np.arange(100) % 7
    part = partition(y, scheme=Natural(clients), labels=Labels(fraction=0.5))
    for client in range(7):
        held = np.concatenate([part.labeled[client], part.unlabeled[client]])
        np.testing.assert_array_equal(np.sort(held), np.flatnonzero(clients == client))


@pytest.mark.parametrize("skew", ["both", "labeled", "unlabeled", "independent"])
def test_min_size_is_met(skew):
    y = classes(500)
    part = partition(
        y,
        num_clients=50,
        scheme=Dirichlet(1e-3),
        min_size=4,
        labels=Labels(fraction=0.2),
        skew=skew,
    )
    sizes = counts(part, y).sum(axis=(0, 2))
    assert sizes.min() >= 4


def test_natural_ids_are_compared_whole():
    """`new_client_id` may hold longer names than `client_id`: they are other clients."""
    part = partition(
        np.zeros(3, int),
        scheme=Natural(["a", "b", "a"], ["bb", "a"]),
        new_y=[0, 0],
    )
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


def test_labels_of_classes_nobody_has_are_not_asked_for():
    """Two classes a client: five labels of each of them, however few clients hold a class."""
    y = np.repeat(np.arange(NUM_CLASSES), 20)
    part = partition(y, num_clients=10, scheme=Classes(2), labels=Labels(per_class=5))
    labeled, unlabeled, _ = counts(part, y)
    np.testing.assert_array_equal(labeled, 5 * (labeled + unlabeled > 0))
