"""SVHN and STL-10 as TFDS prepares them: their splits, their labels, and what becomes of both."""

import sys
from dataclasses import astuple

import numpy as np
import pytest
from tfds_files import prepared_tfds

from jaxfed.config import base
from jaxfed.config.data.simulation import Simulation
from jaxfed.data import Subclasses, load, partition
from jaxfed.errors import UsageError

STL_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))


def filled(size, number):
    return np.full((size, size, 3), number, np.uint8)


def write_stl10(root, num_train=20, num_test=30, num_unlabeled=45):
    """Train, test and unlabelled images are filled with numbers from 0, 100 and 200 on."""
    import tensorflow_datasets as tfds

    features = {
        "image": tfds.features.Image(shape=(96, 96, 3)),
        "label": tfds.features.ClassLabel(names=list(STL_CLASSES)),
    }
    splits = {
        "train": [{"image": filled(96, i), "label": i % 10} for i in range(num_train)],
        "test": [{"image": filled(96, 100 + i), "label": i % 10} for i in range(num_test)],
        "unlabelled": [{"image": filled(96, 200 + i), "label": -1} for i in range(num_unlabeled)],
    }
    return prepared_tfds(root, "stl10", "1.0.0", features, splits)


def test_a_set_that_is_kept_is_read_without_tfds(tmp_path, monkeypatch):
    write_stl10(tmp_path)
    made = load("stl10", root=str(tmp_path))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    kept = load("stl10", root=str(tmp_path))
    assert kept.class_names == made.class_names == STL_CLASSES
    for of_made, of_kept in zip(astuple(made), astuple(kept), strict=True):
        np.testing.assert_array_equal(of_made, of_kept)


def test_unlabelled_examples_are_dealt_evenly_beside_the_labels(tmp_path):
    """ProtoFSSL's split in small: of 50 pooled labels 20 for two clients, and 40 of 45 unlabelled."""
    write_stl10(tmp_path)
    config = base.get_config()
    config.dataset.name, config.dataset.root = "stl10", str(tmp_path)
    config.dataset.pooled = True
    config.dataset.test_size, config.dataset.validation_fraction = 20, 1 / 3
    config.dataset.unlabeled_size = 40
    config.preprocessing.kind = "images"
    config.federation.num_clients = 2
    config.federation.labeled_per_class = 1
    config.federation.test = "central"
    ours = Simulation(config)
    ours.warn()
    dealt = []
    for repeat in range(2):
        federation = ours.federation(repeat)
        assert (len(federation.test), len(federation.validation)) == (20, 10)
        np.testing.assert_array_equal(np.bincount(federation.y[federation.test]), 2)
        for labeled, unlabeled in zip(
            federation.partition.labeled, federation.partition.unlabeled, strict=True
        ):
            np.testing.assert_array_equal(np.sort(federation.y[labeled]), np.arange(10))
            assert len(unlabeled) == 20
            assert (federation.y[unlabeled] == -1).all()
            assert (federation.x[unlabeled] >= 200).all()
        dealt.append(np.sort(federation.partition.unlabeled[0]))
    assert (dealt[0] != dealt[1]).any()  # by chance, anew in each repeat


def write_coarse(root, *, nested):
    """CIFAR-100 in small: six classes in three pairs, or across them."""
    import tensorflow_datasets as tfds

    features = {
        "image": tfds.features.Image(shape=(4, 4, 3)),
        "label": tfds.features.ClassLabel(num_classes=6),
        "coarse_label": tfds.features.ClassLabel(num_classes=3),
    }
    examples = [
        {
            "image": filled(4, i),
            "label": i % 6,
            "coarse_label": (i % 6 if nested else i // 2) // 2 % 3,
        }
        for i in range(24)
    ]
    prepared_tfds(
        root, "pairs", "1.0.0", features, {"train": examples, "test": examples[:12][::-1]}
    )


@pytest.mark.parametrize("nested", [True, False])
def test_the_usual_labels_are_subclasses_of_coarser_ones(tmp_path, nested):
    write_coarse(tmp_path, nested=nested)
    assert load("pairs", root=str(tmp_path)).subclass is None
    data = load("pairs", root=str(tmp_path), label_key="coarse_label")
    assert data.num_classes == 3
    np.testing.assert_array_equal(data.subclass, np.arange(24) % 6)
    np.testing.assert_array_equal(data.subclass_test, np.arange(12)[::-1] % 6)
    assert data.subclass.dtype == data.subclass_test.dtype == np.int32
    if nested:
        np.testing.assert_array_equal(data.y, np.arange(24) % 6 // 2)
        return
    with pytest.raises(UsageError, match="has examples of several classes"):
        partition(data.y, num_clients=3, scheme=Subclasses(data.subclass))


@pytest.mark.parametrize(
    "keys",
    [
        {"federation.test": "central"},
        {"federation.test": "clients"},
        {"dataset.pooled": True, "dataset.test_fraction": 1 / 3},
        {"federation.public_size": 6},
    ],
    ids=repr,
)
def test_clients_of_one_subclass_of_each_class(tmp_path, keys):
    """All that a client has, its new points too; FedMD's other examples are public."""
    write_coarse(tmp_path, nested=True)
    config = base.get_config()
    config.dataset.name, config.dataset.root = "pairs", str(tmp_path)
    config.dataset.label_key = "coarse_label"
    config.preprocessing.kind = "images"
    config.federation.num_clients = 2
    config.federation.partition = "subclasses"
    config.federation.labeled_fraction = 1.0
    config.update_from_flattened_dict(keys)
    simulation = Simulation(config)
    simulation.warn()
    federation = simulation.federation(0)
    held = []
    for client in range(2):
        points = federation.points(client)
        images = federation.x[points][:, 0, 0, 0]
        held.append(set(images % 6))
        np.testing.assert_array_equal(images % 6 // 2, federation.y[points])
        assert sorted(number // 2 for number in held[-1]) == [0, 1, 2]
    assert not held[0] & held[1]


def test_subclasses_of_a_set_without_them(tmp_path):
    write_coarse(tmp_path, nested=True)
    config = base.get_config()
    config.dataset.name, config.dataset.root = "pairs", str(tmp_path)
    config.preprocessing.kind = "images"
    config.federation.partition = "subclasses"
    with pytest.raises(UsageError, match=r"'subclasses': needs subclass.*'coarse_label'"):
        Simulation(config).warn()
    config.dataset.label_key = "coarse_label"
    config.federation.num_clients = 1
    with pytest.raises(UsageError, match=r"config\.federation\.num_clients=1: .* from 2 on"):
        Simulation(config).warn()
