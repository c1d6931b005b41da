"""Arrays in a file: their names, and what a label may be."""

import numpy as np
import pytest

from jaxfed.data import load
from jaxfed.errors import UsageError


def test_npz(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.random((6, 3)), np.array([3, 5, 3, 8, 5, 8])
    np.savez(tmp_path / "a.npz", x=x, y=y, writer=np.array(list("bbacca")))
    data = load(str(tmp_path / "a.npz"))
    np.testing.assert_allclose(data.x, x, rtol=1e-6)
    np.testing.assert_array_equal(data.y, [0, 1, 0, 2, 1, 2])
    np.testing.assert_array_equal(data.client_id, [1, 1, 0, 2, 2, 0])
    assert data.class_names == ("3", "5", "8")

    images = rng.integers(256, size=(4, 5, 5), dtype=np.uint8)
    np.savez(
        tmp_path / "medmnist.npz",
        train_images=images,
        train_labels=np.array([[1], [0], [1], [0]]),
        test_images=images[:2],
        test_labels=np.array([[0], [1]]),
    )
    data = load(str(tmp_path / "medmnist.npz"))
    assert data.x.shape == (4, 5, 5, 1)
    np.testing.assert_array_equal(data.y_test, [0, 1])


def test_one_feature_without_an_axis(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3.0), y=np.arange(3))
    np.testing.assert_array_equal(load(str(tmp_path / "a.npz")).x, [[0], [1], [2]])


UNLABELED = {  # y and what else the file has -> classes
    "-1": (np.array([3, -1, 5, -1]), {}, [0, -1, 1, -1]),
    "nan": (np.array([3, np.nan, 5, np.nan]), {}, [0, -1, 1, -1]),
    "no name": (np.array(["b", "", "a", ""]), {}, [1, -1, 0, -1]),
    "-1 as a float": (np.array([0, -1, 1, 2.0]), {}, [0, -1, 1, 2]),
    "-1 with class names": (
        np.array([1, -1, 1, 0]),
        {"class_names": np.array(["no", "yes"])},
        [1, -1, 1, 0],
    ),
    "-1 and one other": (np.array([-1, 1, -1, 1]), {}, [0, 1, 0, 1]),
    "-1, one other and nan": (np.array([-1, 1, np.nan, 1]), {}, [0, 1, -1, 1]),
    "-1 and one of several classes": (
        np.array([-1, 1, -1, 1]),
        {"x_test": np.ones((2, 2)), "y_test": np.array([0, 1])},
        [-1, 1, -1, 1],
    ),
    "-1 and one named class": (
        np.array([-1, 1, -1, 1]),
        {"class_names": np.array(["no", "yes"])},
        [-1, 1, -1, 1],
    ),
}


@pytest.mark.parametrize("case", UNLABELED)
def test_what_is_unlabeled(tmp_path, case):
    y, others, classes = UNLABELED[case]
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=y, **others)
    np.testing.assert_array_equal(load(tmp_path / "a.npz").y, classes)


def test_an_array_of_clients_can_be_chosen(tmp_path):
    arrays = {"x": np.ones((3, 2)), "y": np.arange(3), "client_id": np.zeros(3, int)}
    arrays |= {"site": np.array(["b", "a", "b"])}
    np.savez(tmp_path / "a.npz", **arrays)
    np.testing.assert_array_equal(load(tmp_path / "a.npz").client_id, 0)
    np.testing.assert_array_equal(load(tmp_path / "a.npz", client_key="site").client_id, [1, 0, 1])
    arrays |= {"x_test": np.ones((1, 2)), "y_test": np.zeros(1, int)}
    np.savez(tmp_path / "a.npz", **arrays)
    for key in (None, "site"):  # a test set for all clients together
        assert load(tmp_path / "a.npz", client_key=key).client_id_test is None
    np.savez(tmp_path / "a.npz", **arrays, site_test=np.array(["c"]))
    data = load(tmp_path / "a.npz", client_key="site")
    np.testing.assert_array_equal(data.client_id_test, [2])


def test_clients_of_no_name_are_refused(tmp_path):
    ids = np.array([0, np.nan, 1])
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=np.arange(3), client_id=ids)
    with pytest.raises(UsageError, match="client_id has type float64; use integers or names"):
        load(tmp_path / "a.npz")


def test_validation_examples_beside_a_test_split_are_named(tmp_path, caplog):
    splits = {f"{kind}_{split}": np.arange(2) for kind in "xy" for split in ("test", "val")}
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(3), **splits)
    assert len(load(tmp_path / "a.npz").y_test) == 2
    assert "not read: x_validation, y_validation" in caplog.text


def test_subclasses(tmp_path):
    arrays = {"x": np.ones((4, 2)), "y": [0, 0, 1, 1], "subclass": [5, 6, 7, 7]}
    arrays |= {"x_test": np.ones((1, 2)), "y_test": [1], "subclass_test": [7]}
    np.savez(tmp_path / "a.npz", **arrays)
    data = load(tmp_path / "a.npz")
    np.testing.assert_array_equal(data.subclass, [5, 6, 7, 7])
    np.testing.assert_array_equal(data.subclass_test, [7])
