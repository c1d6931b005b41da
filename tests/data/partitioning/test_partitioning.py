import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfed.data import FEDMATCH_TABLE, class_counts, partition
from jaxfed.errors import UsageError

NUM_CLASSES = 10
SCHEMES = {
    "iid": {},
    "dirichlet": {"dirichlet_alpha": 0.3},
    "dirichlet, tiny": {"scheme": "dirichlet", "dirichlet_alpha": 1e-3},
    "dirichlet, equal": {"scheme": "dirichlet", "dirichlet_alpha": 0.3, "quantity": "equal"},
    "dirichlet, min_size": {"scheme": "dirichlet", "dirichlet_alpha": 1e-3, "min_size": 3},
    "dirichlet_mixture": {"dirichlet_alpha": 0.1, "dirichlet_share": 0.5},
    "mixture, equal": {
        "scheme": "dirichlet_mixture",
        "dirichlet_alpha": 1e-3,
        "quantity": "equal",
    },
    "classes_per_client": {"classes_per_client": 3},
    "rotated": {"scheme": "classes_per_client", "classes_per_client": 3, "assignment": "rotated"},
    "table": {},
    "power law": {"scheme": "iid", "quantity": "power_law", "quantity_parameter": 1.5},
    "lognormal": {"scheme": "table", "quantity": "lognormal"},
    "dirichlet sizes": {"scheme": "iid", "quantity": "dirichlet", "quantity_parameter": 0.1},
    "natural": {},
    "natural, grouped": {"scheme": "natural", "num_clients": 4},
}


def labels(n, seed=0):
    return np.random.default_rng(seed).integers(NUM_CLASSES, size=n)


def arguments(name, y, new_y):
    """Keywords of `partition` for one of the `SCHEMES`."""
    keywords = {"scheme": name, "num_clients": 12, **SCHEMES[name]}
    if keywords["scheme"] == "natural":
        rng = np.random.default_rng(5)
        keywords |= {
            "num_clients": SCHEMES[name].get("num_clients"),
            "client_id": rng.integers(9, size=len(y)),
            "new_client_id": rng.integers(11, size=len(new_y)),
        }
    return keywords


def counts(part, y):
    return np.array([class_counts(y, indices, NUM_CLASSES) for indices in part])


@pytest.mark.parametrize("skew", ["both", "labeled", "unlabeled"])
@pytest.mark.parametrize("name", SCHEMES)
@given(
    n=st.integers(60, 400),
    num_new=st.integers(0, 50),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_every_example_is_used_once(name, skew, n, num_new, fraction, seed):
    y, new_y = labels(n, seed), labels(num_new, seed + 1)
    keywords = arguments(name, y, new_y)
    if keywords["scheme"] == "natural":
        skew = "both"
    part = partition(y, new_y=new_y, labeled_fraction=fraction, skew=skew, seed=seed, **keywords)
    every = np.concatenate([*part.labeled, *part.unlabeled, *part.new])
    np.testing.assert_array_equal(np.sort(every), np.arange(n + num_new))
    assert all((indices >= n).all() for indices in part.new)
    num_labeled = sum(map(len, part.labeled))
    assert num_labeled == (max(round(fraction * n), 1) if fraction > 0 else 0)
    for labeled, unlabeled in zip(part.labeled, part.unlabeled, strict=True):
        if skew == "both":
            assert abs(len(labeled) - fraction * (len(labeled) + len(unlabeled))) <= 1
        assert labeled.dtype == unlabeled.dtype == np.int64


@pytest.mark.parametrize("skew", ["both", "labeled", "unlabeled"])
@pytest.mark.parametrize("name", SCHEMES)
@settings(max_examples=20)
@given(
    unknown=st.floats(0, 0.95),
    fraction=st.floats(0, 1),
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
    if keywords["scheme"] == "natural":
        del keywords["new_client_id"]
        skew = "both"
    number = round(fraction * num_known)
    amount = {"num_labeled": number} if is_number else {"labeled_fraction": fraction}
    part = partition(y, skew=skew, seed=seed, **amount, **keywords)
    every = np.concatenate([*part.labeled, *part.unlabeled])
    np.testing.assert_array_equal(np.sort(every), np.arange(400))
    labeled = np.concatenate(part.labeled)
    assert is_known[labeled].all()
    assert len(labeled) == (number if is_number else max(number, fraction > 0))
    if keywords["scheme"] == "iid" and "quantity" not in keywords:
        sizes = [len(a) + len(b) for a, b in zip(part.labeled, part.unlabeled, strict=True)]
        assert max(sizes) - min(sizes) <= 1
    part = partition(y, new_fraction=fraction / 2, seed=seed, **keywords)
    new = np.concatenate(part.new)
    assert len(new) == round(fraction / 2 * num_known)
    assert is_known[new].all()


def test_labels_are_asked_of_known_classes_only():
    y = np.where(np.arange(100) < 30, np.arange(100) % 3, -1)
    dealt = partition(y, num_clients=10, num_labeled=30, num_labeled_clients=3)
    assert list(map(len, dealt.labeled)) == [10] * 3 + [0] * 7
    for scheme in ("iid", "dirichlet"):
        with pytest.raises(UsageError, match="num_labeled=31: allowed are 0 to 30"):
            partition(y, num_clients=10, scheme=scheme, dirichlet_alpha=1.0, num_labeled=31)
    with pytest.raises(
        UsageError, match="class -2: classes count from 0, and -1 is an unknown one"
    ):
        partition(y - 1, num_clients=10)
    with pytest.raises(UsageError, match=r"new_y has class -1: classes count from 0$"):
        partition(y[:30], num_clients=10, new_y=y)


@pytest.mark.parametrize("name", SCHEMES)
def test_same_seed_same_partition(name):
    y, new_y = labels(300), labels(40)
    parts = [
        partition(y, new_y=new_y, labeled_fraction=0.2, seed=seed, **arguments(name, y, new_y))
        for seed in (1, 1, 2)
    ]
    flat = [np.concatenate([np.concatenate(p) for p in part]) for part in parts]
    np.testing.assert_array_equal(flat[0], flat[1])
    assert (flat[0] != flat[2]).any()


def test_iid_is_shuffled_and_labels_are_even():
    y = np.repeat(np.arange(NUM_CLASSES), 100)  # sorted by class, as image folders are
    part = partition(y, num_clients=10, num_labeled=100)
    labeled, unlabeled, _ = counts(part, y)
    np.testing.assert_array_equal(labeled, np.ones((10, 10)))
    np.testing.assert_array_equal(unlabeled.sum(axis=1), 90)
    assert len(np.unique(unlabeled)) > 3
    assert (np.diff(part.unlabeled[0]) < 0).any()


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    y = np.repeat(np.arange(NUM_CLASSES), 2000)
    shares = []
    for seed in range(30):
        held = counts(
            partition(y, num_clients=5, scheme="dirichlet", dirichlet_alpha=0.5, seed=seed), y
        )
        shares.append(held.sum(axis=0) / 2000)
    # Dir(a 1_M): variance of a share is (1/M)(1 - 1/M) / (M a + 1).
    assert np.var(shares) == pytest.approx(0.2 * 0.8 / (5 * 0.5 + 1), rel=0.15)


def test_classes_per_client_holds_that_many():
    y = labels(2000)
    for assignment in ("random", "rotated"):
        held = counts(
            partition(
                y,
                num_clients=20,
                scheme="classes_per_client",
                classes_per_client=2,
                assignment=assignment,
            ),
            y,
        ).sum(axis=0)
        np.testing.assert_array_equal((held > 0).sum(axis=1), 2)
        holders = (held > 0).sum(axis=0)
        assert holders.max() - holders.min() <= 1


def test_fedmatch_table_rotates_and_balances():
    table = np.array(FEDMATCH_TABLE)
    np.testing.assert_allclose(table.sum(axis=0), 1)
    np.testing.assert_allclose(table.sum(axis=1), 1)
    y = np.repeat(np.arange(NUM_CLASSES), 1000)
    held = counts(partition(y, num_clients=20, scheme="table"), y).sum(axis=0)
    np.testing.assert_allclose(held, 500 * np.tile(table, (2, 1)), atol=2)


@pytest.mark.parametrize("skew", ["labeled", "unlabeled"])
def test_skew_says_which_part_follows_the_scheme(skew):
    y = np.repeat(np.arange(NUM_CLASSES), 1000)
    part = partition(y, num_clients=10, scheme="table", num_labeled=1000, skew=skew)
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
    y = labels(1000)
    part = partition(y, num_clients=10, num_labeled=100, num_labeled_clients=5)
    assert [len(indices) for indices in part.labeled] == [20] * 5 + [0] * 5
    assert [len(indices) for indices in part.unlabeled] == [80] * 5 + [100] * 5


def test_labels_per_client_and_class():
    y = np.repeat(np.arange(NUM_CLASSES), 100)
    labeled = counts(partition(y, num_clients=10, labeled_per_class=2), y)[0]
    np.testing.assert_array_equal(labeled, np.full((10, 10), 2))
    exact = np.zeros((10, 10), int)
    exact[3, 4] = 7
    labeled = counts(partition(y, num_clients=10, labeled_per_class=exact), y)[0]
    np.testing.assert_array_equal(labeled, exact)


def test_new_points_follow_the_clients_classes():
    y, new_y = np.repeat(np.arange(NUM_CLASSES), 300), np.repeat(np.arange(NUM_CLASSES), 100)
    part = partition(
        y,
        num_clients=10,
        scheme="dirichlet",
        dirichlet_alpha=0.2,
        new_y=new_y,
        labeled_fraction=0.1,
    )
    joint = np.concatenate([y, new_y])
    labeled, unlabeled, new = counts(part, joint)
    np.testing.assert_allclose(new / 100, (labeled + unlabeled) / 300, atol=0.03)


def test_new_fraction_holds_out_of_each_class():
    y = np.repeat(np.arange(NUM_CLASSES), 100)
    part = partition(y, num_clients=5, new_fraction=0.2, labeled_fraction=0.5)
    np.testing.assert_array_equal(counts(part, y)[2].sum(axis=0), np.full(10, 20))
    every = np.concatenate([*part.labeled, *part.unlabeled, *part.new])
    np.testing.assert_array_equal(np.sort(every), np.arange(1000))


def test_natural_clients_keep_their_examples():
    y, clients = labels(100), np.arange(100) % 7
    part = partition(y, scheme="natural", client_id=clients, labeled_fraction=0.5)
    for client in range(7):
        held = np.concatenate([part.labeled[client], part.unlabeled[client]])
        np.testing.assert_array_equal(np.sort(held), np.flatnonzero(clients == client))


@pytest.mark.parametrize("skew", ["both", "labeled", "unlabeled"])
def test_min_size_is_met(skew):
    y = labels(500)
    part = partition(
        y,
        num_clients=50,
        scheme="dirichlet",
        dirichlet_alpha=1e-3,
        min_size=4,
        labeled_fraction=0.2,
        skew=skew,
    )
    sizes = counts(part, y).sum(axis=(0, 2))
    assert sizes.min() >= 4


def test_natural_ids_are_compared_whole():
    """`new_client_id` may hold longer names than `client_id`: they are other clients."""
    part = partition(
        np.zeros(3, int),
        scheme="natural",
        client_id=["a", "b", "a"],
        new_y=[0, 0],
        new_client_id=["bb", "a"],
    )
    assert [sorted(indices.tolist()) for indices in part.labeled] == [[0, 2], [1], []]
    assert [indices.tolist() for indices in part.new] == [[4], [], [3]]


@pytest.mark.parametrize("skew", ["labeled", "unlabeled"])
def test_a_client_with_more_labels_than_its_share_leaves_the_rest_to_the_others(skew):
    y = np.repeat(np.arange(NUM_CLASSES), 100)
    table = np.zeros((10, 10), int)
    table[0] = 90
    part = partition(y, num_clients=10, scheme="table", labeled_per_class=table, skew=skew)
    assert [len(indices) for indices in part.labeled] == [900] + [0] * 9
    rest = np.array([len(indices) for indices in part.unlabeled])
    assert rest[0] == 0
    np.testing.assert_allclose(rest[1:], 100 / 9, atol=1.5)


@pytest.mark.parametrize("quantity", ["lognormal", "power_law", "dirichlet"])
@pytest.mark.parametrize("parameter", [1e-9, 1e-3, 1e4])
def test_extreme_quantities_are_dealt(quantity, parameter):
    part = partition(labels(300), num_clients=7, quantity=quantity, quantity_parameter=parameter)
    assert sum(map(len, part.labeled)) == 300


@pytest.mark.parametrize("skew", ["both", "unlabeled"])
@pytest.mark.parametrize("quantity", [None, "equal"])
@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1e-3, 5e-3, 1e9])
def test_extreme_dirichlet_alphas_are_dealt(skew, quantity, alpha):
    for seed in range(20):
        part = partition(
            labels(300),
            num_clients=31,
            scheme="dirichlet",
            dirichlet_alpha=alpha,
            quantity=quantity,
            num_labeled=150,
            skew=skew,
            min_size=1,
            seed=seed,
        )
        every = np.concatenate([*part.labeled, *part.unlabeled])
        np.testing.assert_array_equal(np.sort(every), np.arange(300))


def test_labels_of_classes_nobody_has_are_not_asked_for():
    """Two classes a client: five labels of each of them, however few clients hold a class."""
    y = np.repeat(np.arange(NUM_CLASSES), 20)
    part = partition(
        y, num_clients=10, scheme="classes_per_client", classes_per_client=2, labeled_per_class=5
    )
    labeled, unlabeled, _ = counts(part, y)
    np.testing.assert_array_equal(labeled, 5 * (labeled + unlabeled > 0))


MISTAKES = {
    "scheme": ({"scheme": "random"}, "'iid'.*'natural'"),
    "no clients": ({"num_clients": 0}, "num_clients=0"),
    "alpha": ({"scheme": "dirichlet", "dirichlet_alpha": 0}, "dirichlet_alpha=0"),
    "too many labels": ({"num_labeled": 101}, "num_labeled=101.*0 to 100"),
    "too many per class": ({"labeled_per_class": np.full((4, 10), 30)}, "labeled_per_class"),
    "two ways": ({"num_labeled": 1, "labeled_fraction": 0.1}, "at most one"),
    "fraction": ({"labeled_fraction": 1.5}, "labeled_fraction=1.5.*0 to 1"),
    "uncovered classes": (
        {"scheme": "classes_per_client", "classes_per_client": 2},
        "covers 8 of 10",
    ),
    "too many classes": (
        {"scheme": "classes_per_client", "classes_per_client": 11},
        "classes_per_client=11.*1 to 10",
    ),
    "no client ids": ({"scheme": "natural"}, "client_id"),
    "min_size": ({"min_size": 26}, "104 examples, there are 100"),
    "min_size, held out": ({"min_size": 25, "new_fraction": 0.1}, "100 examples, there are 90"),
    "too many of a class each": ({"labeled_per_class": 3}, "12 labels of class 0.*there are 10"),
    "more than a client holds": (
        {"scheme": "table", "labeled_per_class": np.eye(4, 10, dtype=int) * 9},
        "9 labels of class 0 at client 0, which holds",
    ),
    "labels of some classes": ({"labeled_per_class": [1, 2, 3]}, r"shape \[3\]"),
    "half a label": ({"labeled_per_class": 2.5}, "integers"),
    "half a label in all": ({"num_labeled": 2.5}, "num_labeled=2.5"),
    "half a client": ({"num_clients": 2.5}, "num_clients=2.5"),
    "natural, no clients": (
        {"scheme": "natural", "client_id": np.arange(100) % 4, "num_clients": 0},
        "num_clients=0",
    ),
    "natural, labeled clients": (
        {
            "scheme": "natural",
            "client_id": np.arange(100) % 4,
            "num_clients": None,
            "num_labeled_clients": 9,
        },
        "num_labeled_clients=9.*0 to 4",
    ),
    "table of nan": ({"scheme": "table", "table": np.full((2, 10), np.nan)}, "numbers from 0 on"),
    "infinite alpha": ({"scheme": "dirichlet", "dirichlet_alpha": np.inf}, "dirichlet_alpha=inf"),
    "alpha of the rest": (
        {"scheme": "dirichlet_mixture", "dirichlet_alpha": 1.0, "dirichlet_alpha_rest": 0.0},
        "dirichlet_alpha_rest=0.0: allowed are numbers above 0",
    ),
    "share": (
        {"scheme": "dirichlet_mixture", "dirichlet_alpha": 1.0, "dirichlet_share": 1.1},
        "dirichlet_share=1.1: allowed are 0 to 1",
    ),
    "no subclasses": ({"scheme": "subclasses"}, "needs subclass"),
    "subclasses of some": (
        {"scheme": "subclasses", "subclass": np.arange(99)},
        "one number an example",
    ),
    "a subclass of two classes": (
        {"scheme": "subclasses", "subclass": np.arange(100) // 20},
        "subclass 0 has examples of several classes",
    ),
    "more subclasses than clients": (
        {"scheme": "subclasses", "subclass": np.arange(100) // 2},
        "num_clients=4: .* 5 or more are needed",
    ),
    "subclasses and quantity": (
        {"scheme": "subclasses", "subclass": np.arange(100) // 10, "quantity": "equal"},
        "scheme='subclasses' says who holds what",
    ),
    "infinite skew": (
        {"quantity": "dirichlet", "quantity_parameter": np.inf},
        "quantity_parameter=inf",
    ),
    "labels leave too few to fill up": (
        {
            "scheme": "table",
            "skew": "labeled",
            "min_size": 5,
            "labeled_per_class": np.eye(4, 1, dtype=int) * np.full((1, 10), 10),
        },
        "leave 0 examples.*15 are needed",
    ),
    "skew": ({"skew": "none"}, "'both', 'labeled', 'unlabeled'"),
    "labeled clients": ({"num_labeled_clients": 5}, "num_labeled_clients=5.*0 to 4"),
}


@pytest.mark.parametrize(("keywords", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_in_one_line(keywords, message):
    y = np.repeat(np.arange(NUM_CLASSES), 10)
    with pytest.raises(UsageError, match=message) as error:
        partition(y, **{"num_clients": 4, **keywords})
    assert "\n" not in str(error.value)
