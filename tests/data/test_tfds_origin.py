"""A set whose images were written as JPEG says so, up to the tables of its runs."""

import io

import numpy as np
import pytest
from PIL import Image
from tfds_files import prepared_tfds

import jaxfed
from jaxfed.data import load
from jaxfed.experiment.store.records import read_run
from jaxfed.reports.provenance import provenance


def write(root, kind):
    """40 random images of two classes and 10 to test on."""
    import tensorflow_datasets as tfds

    rng = np.random.default_rng(0)

    def image():
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(file, kind)
        file.seek(0)
        return file

    features = {
        "image": tfds.features.Image(shape=(8, 8, 3), encoding_format=kind),
        "label": tfds.features.ClassLabel(num_classes=2),
    }
    splits = {
        split: [{"image": image(), "label": number % 2} for number in range(size)]
        for split, size in (("train", 40), ("test", 10))
    }
    prepared_tfds(root, "cifar10", "3.0.2", features, splits)


@pytest.mark.parametrize(("kind", "words"), [("jpeg", "cifar10 is a copy in JPEG"), ("png", "")])
@pytest.mark.slow
def test_a_copy_in_jpeg_is_said(tmp_path, monkeypatch, kind, words):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    write(tmp_path, kind)
    for _ in ("decoded", "from the cache"):
        origin = load("cifar10", root=tmp_path).origin
        assert origin.startswith(words)
        assert bool(origin) == bool(words)
    if not words:
        return
    jaxfed.run(
        "xclp_digits:smoke",
        workdir=tmp_path / "w",
        progress=False,
        dataset__name="cifar10",
        dataset__root=str(tmp_path),
        dataset__train_size=30,
        dataset__test_size=0,
        federation__num_clients=2,
        federation__labeled_fraction=0.5,
        execution__compilation_cache="off",
    )
    facts = dict(provenance([read_run(tmp_path / "w")]))
    assert facts["data"] == origin
