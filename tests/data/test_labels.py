"""What is unlabeled is so in every source: tables, arrays, LEAF's JSON and clients' own arrays."""

import json

import numpy as np
import pytest

from jaxfed import Federation
from jaxfed.data import load
from jaxfed.data.labels import read_labels
from jaxfed.errors import UsageError

NOTHING = [
    "",
    "-1",
    "-1.0",
    "NA",
    "N/A",
    "n/a",
    "<NA>",
    "NaN",
    "nan",
    "None",
    "null",
    "NULL",
    "?",
    " ",
]


def of_a_table(labels, folder):
    rows = "".join(f"{row},{label}\n" for row, label in enumerate(labels))
    (folder / "a.csv").write_text(f"f,label\n{rows}")
    return load(folder / "a.csv")


def of_texts(labels, folder):
    np.savez(folder / "a.npz", x=np.arange(len(labels))[:, None], y=np.array(labels))
    return load(folder / "a.npz")


def of_bytes(labels, folder):
    np.savez(folder / "a.npz", x=np.arange(len(labels))[:, None], y=np.array(labels, "S"))
    return load(folder / "a.npz")


def of_leaf(labels, folder):
    for split, own in (
        ("train", labels),
        ("test", [label for label in labels if label in ("a", "b", "c")]),
    ):
        (folder / split).mkdir()
        x = [[float(row), 0.5] for row in range(len(own))]
        content = {
            "users": ["u"],
            "num_samples": [len(own)],
            "user_data": {"u": {"x": x, "y": own}},
        }
        (folder / split / "a.json").write_text(json.dumps(content))
    return load(str(folder))


SOURCES = {"table": of_a_table, "texts": of_texts, "bytes": of_bytes, "leaf": of_leaf}


@pytest.mark.parametrize("source", SOURCES)
def test_every_word_for_nothing_is_no_class(source, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    data = SOURCES[source](["b", *NOTHING, "a", "c", "a"], folder)
    assert data.class_names == ("a", "b", "c")
    np.testing.assert_array_equal(data.y, [1, *[-1] * len(NOTHING), 0, 2, 0])


NUMBERS = {
    "NaN": ([0.0, np.nan, 2, 1], [0, -1, 2, 1]),
    "-1": ([0, -1, 2, 1], [0, -1, 2, 1]),
    "-1.0": ([0.0, -1, 2, 1], [0, -1, 2, 1]),
    "two signs": ([-1, 1, -1, 1], [-1, 1, -1, 1]),
    "masked": (np.ma.masked_array([0, 3, 2, 1], [0, 1, 0, 0]), [0, -1, 2, 1]),
    "objects": (np.array(["0", None, 2, 1.0], object), [0, -1, 2, 1]),
    "truth": (np.array([True, False]), [1, 0]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    given, expected = NUMBERS[name]
    y = np.ma.asarray(given) if name == "masked" else np.asarray(given)
    values, is_labeled = read_labels(y, "here")
    assert np.where(is_labeled, values, -1).tolist() == expected


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "two signs"])
def test_clients_own_arrays_follow_the_same_rule(name):
    given, expected = NUMBERS[name]
    x = np.ones((len(expected), 2), np.float32)
    federation = Federation.from_clients([(x, given)], num_classes=3)
    np.testing.assert_array_equal(federation.y, expected)


def test_of_clients_arrays_minus_one_is_unlabeled_whatever_else_there_is():
    federation = Federation.from_clients([(np.ones((4, 2)), [-1, 1, -1, 1])])
    np.testing.assert_array_equal(federation.y, [-1, 1, -1, 1])
    assert [len(part) for part in federation.partition.labeled] == [2]


def test_a_user_of_the_test_split_alone_counts():
    from jaxfed.data import Dataset

    x, y = np.ones((2, 1), np.float32), np.array([0, 1], np.int32)
    ids = np.array([0, 0], np.int32), np.array([1, 1], np.int32)
    data = Dataset("d", x, y, x, y, 2, ("a", "b"), client_id=ids[0], client_id_test=ids[1])
    assert "2 clients" in repr(data)


@pytest.mark.parametrize("odd", [np.inf, 2.0**60])
def test_numbers_without_a_class_are_refused(odd):
    with pytest.raises(UsageError, match=r"labels are a quantity, .* is no integer"):
        read_labels(np.array([0, 1, odd]), "here")
