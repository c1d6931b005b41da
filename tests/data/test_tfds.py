"""Sets as TFDS prepares them: splits and labels, damage, JPEG copies, and no TensorFlow."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tfds_files import prepared_tfds

from jaxfed.config import base
from jaxfed.config.data.simulation import Simulation
from jaxfed.data import Subclasses, load, partition
from jaxfed.errors import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(root, name, splits, *, size=4, kind="png", **classes):
    """Write a set of images; `classes` are the numbers of classes by the labels' names."""
    import tensorflow_datasets as tfds

    features = {"image": tfds.features.Image(shape=(size, size, 3), encoding_format=kind)}
    for label, number in classes.items():
        features[label] = tfds.features.ClassLabel(num_classes=number)
    return prepared_tfds(root, name, "1.0.0", features, splits)


def filled(size, number, **labels):
    return {"image": np.full((size, size, 3), number, np.uint8), **labels}


def settings(root, name, **keys):
    config = base.get_config()
    config.dataset.name, config.dataset.root = name, str(root)
    config.preprocessing.kind = "images"
    config.update_from_flattened_dict({key.replace("__", "."): keys[key] for key in keys})
    return config


def test_unlabelled_examples_are_dealt_evenly_beside_the_labels(tmp_path):
    """ProtoFSSL's split of STL-10 in small: of 50 pooled labels 20, and 40 of 45 unlabelled."""
    splits = {
        "train": [filled(96, i, label=i % 10) for i in range(20)],
        "test": [filled(96, 100 + i, label=i % 10) for i in range(30)],
        "unlabelled": [filled(96, 200 + i, label=-1) for i in range(45)],
    }
    write(tmp_path, "stl10", splits, size=96, label=10)
    sizes = {"test_size": 20, "validation_fraction": 1 / 3, "unlabeled_size": 40}
    clients = {"num_clients": 2, "labeled_per_class": 1, "test": "central"}
    config = settings(
        *(tmp_path, "stl10"),
        dataset__pooled=True,
        **{f"dataset__{key}": value for key, value in sizes.items()},
        **{f"federation__{key}": value for key, value in clients.items()},
    )
    ours = Simulation(config)
    ours.warn()
    dealt = []
    for repeat in range(2):
        federation = ours.federation(repeat)
        assert (len(federation.test), len(federation.validation)) == (20, 10)
        np.testing.assert_array_equal(np.bincount(federation.y[federation.test]), 2)
        for labeled, unlabeled in zip(*federation.partition[:2], strict=True):
            np.testing.assert_array_equal(np.sort(federation.y[labeled]), np.arange(10))
            assert len(unlabeled) == 20
            assert (federation.y[unlabeled] == -1).all()
            assert (federation.x[unlabeled] >= 200).all()
        dealt.append(np.sort(federation.partition.unlabeled[0]))
    assert (dealt[0] != dealt[1]).any()  # by chance, anew in each repeat


def write_coarse(root, *, nested=True):
    """CIFAR-100 in small: six classes in three pairs, or across them."""
    examples = [
        filled(4, i, label=i % 6, coarse_label=(i % 6 if nested else i // 2) // 2 % 3)
        for i in range(24)
    ]
    splits = {"train": examples, "test": examples[:12][::-1]}
    write(root, "pairs", splits, label=6, coarse_label=3)


@pytest.mark.parametrize("nested", [True, False])
def test_the_usual_labels_are_subclasses_of_coarser_ones(tmp_path, nested):
    write_coarse(tmp_path, nested=nested)
    assert load("pairs", root=str(tmp_path)).subclass is None
    data = load("pairs", root=str(tmp_path), label_key="coarse_label")
    assert data.num_classes == 3
    np.testing.assert_array_equal(data.subclass, np.arange(24) % 6)
    np.testing.assert_array_equal(data.subclass_test, np.arange(12)[::-1] % 6)
    if nested:
        np.testing.assert_array_equal(data.y, np.arange(24) % 6 // 2)
        return
    with pytest.raises(UsageError, match="has examples of several classes"):
        partition(data.y, num_clients=3, scheme=Subclasses(data.subclass))


def test_subclasses_of_a_set_without_them(tmp_path):
    write_coarse(tmp_path)
    config = settings(tmp_path, "pairs", federation__partition="subclasses")
    with pytest.raises(UsageError, match="'subclasses': needs subclass, which pairs does"):
        Simulation(config).warn()
    config.dataset.label_key, config.federation.num_clients = "coarse_label", 1
    with pytest.raises(UsageError, match=r"config\.federation\.num_clients=1: .* from 2 on"):
        Simulation(config).warn()


def write_tiny(root):
    examples = [filled(4, i, label=i % 2) for i in range(9)]
    return write(root, "tiny", {"train": examples, "test": examples[:3]}, label=2)


def _truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _zero_a_record(file):
    content = file.read_bytes()
    place = content.rindex(b"PNG")
    file.write_bytes(content[:place] + bytes(40) + content[place + 40 :])


@pytest.mark.parametrize("damage", [_truncate, _zero_a_record, Path.unlink])
def test_a_damaged_set_is_named_in_one_line(tmp_path, cache, damage):
    (file,) = write_tiny(tmp_path).glob("*train.array_record*")
    damage(file)
    with pytest.raises(UsageError, match="split 'train': cannot be read") as error:
        load("tiny", root=str(tmp_path))
    assert "\n" not in str(error.value)
    assert not any(cache.iterdir())  # nothing half made stays


def test_tensorflow_is_never_imported(tmp_path):
    """Not even where it is installed: this one raises when it is touched."""
    write_tiny(tmp_path / "root")
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise RuntimeError('touched')")
    script = (
        f"import sys; from jaxfed.data import load; load('tiny', root={str(tmp_path / 'root')!r}); "
    )
    script += "assert 'tensorflow' not in sys.modules"
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": path}
    )


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    write_tiny(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"file: cannot be written .*; set \$JAXFED_CACHE"):
        load("tiny", root=tmp_path)
    monkeypatch.setenv("JAXFED_CACHE", "n" * 300)
    with pytest.raises(UsageError, match=r"^\$JAXFED_CACHE='n*': File name too long"):
        load("tiny", root=tmp_path)


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_a_copy_in_jpeg_says_so(tmp_path, kind):
    def image(number):
        file = io.BytesIO()
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(file, kind)
        file.seek(0)
        return {"image": file, "label": number % 2}

    write(tmp_path, "cifar10", {"train": list(map(image, range(4)))}, kind=kind, label=2)
    for _ in ("decoded", "from the cache"):
        origin = load("cifar10", root=tmp_path).origin
        assert origin.startswith("cifar10 is a copy in JPEG" if kind == "jpeg" else "")
        assert bool(origin) == (kind == "jpeg")
