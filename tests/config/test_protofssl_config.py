"""ProtoFSSL's config: the paper's sizes, its tables of clients, its rows, its sweeps."""

import numpy as np
import pytest

from jaxfed.config import check, file
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.methods import all_keywords
from jaxfed.data import FEDMATCH_TABLE
from jaxfed.data.dataset import Dataset
from jaxfed.experiment import sweep as sweep_plan

CONFIG = "ml_collections_configs/protofssl.py"

# Examples of each class in train and test split, and of none.
SIZES = {
    "cifar10": ([5000] * 10, [1000] * 10, 0),
    "svhn_cropped": (
        [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
        [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
        0,
    ),
    "stl10": ([500] * 10, [800] * 10, 100_000),
}


@pytest.fixture
def dealt(monkeypatch):
    """variant -> config and federation of the paper's numbers of examples, each of one pixel."""

    def load(name, **_):
        train, test, num_unlabeled = SIZES[name]
        y = np.repeat(np.arange(10), train)
        y = np.concatenate([y, np.full(num_unlabeled, -1)]).astype(np.int32)
        y_test = np.repeat(np.arange(10), test).astype(np.int32)
        x, x_test = (np.zeros((len(part), 1, 1, 1), np.uint8) for part in (y, y_test))
        return Dataset(name, x, y, x_test, y_test, 10, tuple("0123456789"))

    monkeypatch.setattr("jaxfed.config.data.simulation.load", load)

    def deal(variant):
        config = file.load(f"{CONFIG}:{variant}")
        return config, Simulation(config).federation(0)

    return deal


def counts(federation, clients):
    """int [M, C] of points whose class is known."""
    return np.array(
        [np.bincount(federation.y[p][federation.y[p] >= 0], minlength=10) for p in clients]
    )


@pytest.mark.parametrize(
    ("variant", "held_out", "labels", "unlabeled"),
    [
        ("cifar10_iid", 3000, 5, 490),
        ("cifar10_noniid", 3000, 5, 490),
        ("svhn_iid", 2000, 5, 490),
        ("svhn_noniid", 2000, 5, 490),
        ("stl10", 1500, 10, 980),
    ],
)
def test_the_papers_sizes(dealt, variant, held_out, labels, unlabeled):
    _, federation = dealt(variant)
    part = federation.partition
    for points in (federation.validation, federation.test):
        assert len(points) == held_out
        np.testing.assert_array_equal(np.bincount(federation.y[points]), held_out / 10)
    assert federation.num_clients == 100
    assert {len(points) for points in part.unlabeled} == {unlabeled}
    np.testing.assert_array_equal(counts(federation, part.labeled), labels)
    if variant == "stl10":
        assert (federation.y[np.concatenate(part.unlabeled)] == -1).all()
    else:
        np.testing.assert_array_equal(counts(federation, part.unlabeled).sum(axis=0), 4900)


@pytest.mark.parametrize("variant", ["cifar10_noniid", "svhn_noniid"])
def test_unlabeled_examples_follow_fedmatchs_table(dealt, variant):
    """Within one of its shares of 490, which the code's 243, 73, 15, 10 (489 in all) are nearly."""
    _, federation = dealt(variant)
    found = counts(federation, federation.partition.unlabeled)
    shares = 490 * np.array(FEDMATCH_TABLE)[np.arange(100) % 10]
    assert np.abs(found - shares).max() < 1
    code = {245: 243, 73.5: 73, 14.7: 15, 9.8: 10}
    assert sum(code[round(share, 1)] for share in shares[0]) == 489
    # With all labels 540, as in the code: 249, 78, 20, 15 but for rounding.
    _, revealed = dealt(f"{variant},fully_supervised")
    everything = counts(revealed, revealed.partition.labeled)
    assert not any(map(len, revealed.partition.unlabeled))
    assert {int(n) for n in everything[np.abs(shares - 245) < 1]} <= {249, 250, 251}
    np.testing.assert_array_equal(everything.sum(axis=1), 540)


@pytest.mark.parametrize("variant", ["cifar10_severe", "svhn_severe"])
def test_the_severe_table_leaves_classes_out(dealt, variant):
    config, federation = dealt(variant)
    section = config.protofssl
    assert (config.training.epochs, section.num_helpers) == (15, 15)
    assert (section.unlabeled_query, section.unlabeled_after) == (200, 200)
    labeled = counts(federation, federation.partition.labeled)
    found = labeled + counts(federation, federation.partition.unlabeled)
    np.testing.assert_array_equal(found.sum(axis=1), 540)
    np.testing.assert_array_equal(labeled.sum(axis=1), 50)
    table = np.array(config.federation.table)
    np.testing.assert_array_equal(table[1], [0, 0.5, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0])
    np.testing.assert_array_equal(found, 540 * table[np.arange(100) % 10])


def test_rows_of_table_3_are_methods_of_one_run():
    config = file.load(f"{CONFIG}:svhn_noniid")
    check.check(config)
    assert (config.algorithm, *config.baselines) == (
        *("protofssl", "fedavg", "fedprox", "fixmatch", "fixmatch_fedprox", "fedmatch"),
        "protofssl_fedprox",
    )
    assert (config.fedprox.mu, config.protofssl_fedprox.mu) == (1e-4, 1e-3)
    assert config.fixmatch_fedprox.mu == 1e-4
    supervised = file.load(f"{CONFIG}:svhn_noniid,fully_supervised")
    assert (supervised.algorithm, *supervised.baselines) == ("fedavg", "fedprox")
    assert file.load(f"{CONFIG}:cifar10_iid").fixmatch_fedprox.mu == 1e-2


@pytest.mark.parametrize(
    ("variant", "points"),
    [
        ("", 3),  # of labels: digits has too few for 20 of a class at ten clients
        ("active", 2),  # of ten
        ("fashion_mnist,active", 2),
        ("fashion_mnist,norms", 6),
        ("fashion_mnist,helpers", 4),
        ("fashion_mnist,helpers,active", 4 + 6),
        ("fashion_mnist,helpers,authors", 7),  # of earlier rounds, too
        ("fashion_mnist,epochs,active", 8),
        ("fashion_mnist,interval,smoke", 5),
        ("fashion_mnist,unlabeled_query", 6),
        ("fashion_mnist,noise,batch_norm", 7),
        ("cifar10_iid,labels,smoke", 4),
        ("cifar10_iid,epochs,active", 12),
    ],
)
def test_sweeps(variant, points):
    added = []
    file.load_module(CONFIG).sweep(lambda **point: added.append(point), variant)
    assert len({repr(point) for point in added}) == len(added) == points


def test_noise_is_swept_beside_a_method_that_can_promise_something():
    config = file.load(f"{CONFIG}:fashion_mnist,noise", ["protofssl.noise=10.0"])
    check.check(config)
    assert (config.algorithm, *config.baselines) == ("protofssl", "protofssl_clipped")
    noise, clip, least = (
        [all_keywords(config, name)[key] for name in ("protofssl", "protofssl_clipped")]
        for key in ("noise", "clip", "min_labels")
    )
    assert noise == [10.0, 10.0]
    assert clip == [0.0, 10.0]  # the paper's, and one that is counted
    assert least == [1, 5]  # which each client has of each class
    severe = file.load(f"{CONFIG}:cifar10_severe,noise")
    assert all_keywords(severe, "protofssl_clipped")["min_labels"] == 1


def test_fedmatch_has_as_many_helpers_as_protofssl_in_figure_4():
    plan = sweep_plan.plan(f"{CONFIG}:fashion_mnist,helpers")
    helpers = [
        (point.settings["protofssl"]["num_helpers"], point.settings["fedmatch"]["num_helpers"])
        for point in plan.points
    ]
    assert helpers == [(1, 1), (2, 2), (3, 3), (5, 5)]


@pytest.mark.parametrize(
    ("variant", "options", "statistics"),
    [
        ("batch_norm", {"name": "resnet9", "norm": "batch"}, "averaged"),
        ("static_batch_norm", {"name": "resnet9", "norm": "batch"}, "static"),
        ("last_batch_norm", {"name": "resnet9", "norm": "batch", "momentum": 0.0}, "averaged"),
        (
            "resnet18,group_norm",
            {"name": "resnet18", "stem": "cifar", "pool": "max", "norm": "group"},
            "averaged",
        ),
    ],
)
def test_norms_are_of_the_cells_network(variant, options, statistics):
    config = file.load(f"{CONFIG}:cifar10_iid,{variant}")
    check.check(config)
    assert config.model.to_dict() == options
    assert config.training.batch_statistics == statistics


def test_authors_is_every_switch_of_their_code():
    config = file.load(f"{CONFIG}:cifar10_severe,authors")
    section, training = config.protofssl, config.training
    assert (section.distance, section.missing_class) == ("mean_squared", "mean")
    assert (section.helper_choice, section.num_helpers) == ("newest", 15)
    assert (training.client_optimizer, training.schedule) == ("kept", "constant")
    assert training.weight_decay == section.mu == config.protofssl_fedprox.mu == 0
    for name in ("fedavg", "fedprox"):  # two steps on all labels, at a rate that falls
        assert config[name].training.to_dict() == {
            "local_steps": 2,
            "batch_size": 0,
            "schedule": "cosine",
        }
    paper = file.load(f"{CONFIG}:cifar10_severe")
    assert (paper.protofssl.distance, paper.training.client_optimizer) == ("euclidean", "fresh")
