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


BAD_ARRAYS = {
    "one label": ({"y": np.array(1)}, "y has type"),
    "fractions": (
        {"y": np.array([0.5, 1, 2])},
        "labels are a quantity, .* is no integer",
    ),
    "infinite labels": (
        {"y": np.array([np.inf, 1, 2])},
        "labels are a quantity, .* is no integer",
    ),
    "labels in a table": ({"y": np.ones((3, 2), int)}, r"y has shape \(3, 2\)"),
    "no labels": ({"y": np.full(3, -1)}, "none of its 3 training examples has a label"),
    "a test without labels": (
        {"x_test": np.ones((2, 2)), "y_test": np.array([0, -1])},
        "1 test examples have no label",
    ),
    "a validation without labels": (
        {
            **{"x_test": np.ones((2, 2)), "y_test": np.array([0, 1])},
            **{"x_val": np.ones((2, 2)), "y_val": np.array([0, -1])},
        },
        "a validation example has no label",
    ),
    "a validation of others": (
        {
            **{"x_test": np.ones((2, 2)), "y_test": np.array([0, 1])},
            **{"x_val": np.ones((2, 3)), "y_val": np.array([0, 1])},
        },
        r"x_validation is float\d\d\[3\] where x is float\d\d\[2\]",
    ),
    "words": ({"x": np.array(["a", "b", "c"])}, "x has type"),
    "nan": ({"x": np.full((3, 2), np.nan)}, "3 of 3 examples"),
    "too large for float32": ({"x": np.full((3, 2), 1e300)}, "3 of 3 examples"),
    "no features": ({"x": np.ones((3, 0))}, "have no features"),
    "one name": ({"class_names": np.array("a")}, r"class_names has type <U1 and shape \(\)"),
    "names in a table": ({"class_names": np.array([["a", "b"]])}, "class_names has shape"),
    "a label beyond names": (
        {"y": np.array([0, 1, 2**32]), "class_names": np.array(["a", "b"])},
        r"labels 0\.\.4294967296 are not all numbers of the 2 classes",
    ),
    "one client": ({"client_id": np.array(3)}, "client_id has type"),
    "clients in a table": ({"client_id": np.ones((3, 1), int)}, "client_id has shape"),
    "objects": ({"y": np.array(["a", "b", "c"], object)}, r"holds Python objects; .*astype\(str\)"),
    "words to test on": ({"x_test": np.array(["a"]), "y_test": np.array([0])}, "x_test has type"),
}


@pytest.mark.parametrize(("change", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_bad_arrays(tmp_path, change, message):
    np.savez(tmp_path / "a.npz", **{"x": np.ones((3, 2)), "y": np.arange(3), **change})
    with pytest.raises(UsageError, match=message):
        load(str(tmp_path / "a.npz"))


BAD_FILES = {
    "text.npz": (b"no archive", "not an .npz file of plain arrays .it is no zip archive"),
    "npy.npz": (None, "not an .npz file of plain arrays .it holds one array"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path, name):
    content, message = BAD_FILES[name]
    with (tmp_path / name).open("wb") as file:
        np.save(file, np.ones(3)) if content is None else file.write(content)
    with pytest.raises(UsageError, match=message):
        load(tmp_path / name)


def test_x_and_y_are_needed(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.zeros(2))
    with pytest.raises(UsageError, match="has arrays a; use the names x and y"):
        load(tmp_path / "a.npz")


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
    with pytest.raises(
        UsageError, match=r"client_key='place': no array place in .*; there are x, y"
    ):
        load(tmp_path / "a.npz", client_key="place")
    arrays |= {"x_test": np.ones((1, 2)), "y_test": np.zeros(1, int)}
    np.savez(tmp_path / "a.npz", **arrays)
    for key in (None, "site"):  # a test set for all clients together
        assert load(tmp_path / "a.npz", client_key=key).client_id_test is None
    np.savez(tmp_path / "a.npz", **arrays, site_test=np.array(["c"]))
    data = load(tmp_path / "a.npz", client_key="site")
    np.testing.assert_array_equal(data.client_id_test, [2])


def test_half_of_a_test_split_is_refused(tmp_path):
    arrays = {"x": np.ones((3, 2)), "y": np.arange(3)}
    for there, absent in (("x_test", "y_test"), ("y_test", "x_test")):
        np.savez(tmp_path / "a.npz", **arrays, **{there: arrays[there[0]]}, test_labels_of=[1])
        with pytest.raises(UsageError, match=f"{there} without {absent}; .* test_labels_of"):
            load(tmp_path / "a.npz")


def test_subclasses(tmp_path):
    arrays = {"x": np.ones((4, 2)), "y": [0, 0, 1, 1], "subclass": [5, 6, 7, 7]}
    arrays |= {"x_test": np.ones((1, 2)), "y_test": [1], "subclass_test": [7]}
    np.savez(tmp_path / "a.npz", **arrays)
    data = load(tmp_path / "a.npz")
    np.testing.assert_array_equal(data.subclass, [5, 6, 7, 7])
    np.testing.assert_array_equal(data.subclass_test, [7])
    np.savez(tmp_path / "a.npz", **arrays | {"subclass": [5]})
    with pytest.raises(UsageError, match="4 examples but subclasses of shape"):
        load(tmp_path / "a.npz")
