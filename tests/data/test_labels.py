"""What is unlabeled is so in every source: tables, arrays and clients' own arrays."""

import numpy as np
import pytest

from jaxfed import Federation
from jaxfed.data import load
from jaxfed.data.given_examples import read_labels
from jaxfed.errors import UsageError

NOTHING = [
    "",
    " ",
    *["-1", "-1.0", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "None", "null", "NULL", "?"],
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


SOURCES = {"table": of_a_table, "texts": of_texts, "bytes": of_bytes}


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


@pytest.mark.parametrize("odd", [np.inf, 2.0**60])
def test_numbers_without_a_class_are_refused(odd):
    with pytest.raises(UsageError, match=r"labels are a quantity, .* is no integer"):
        read_labels(np.array([0, 1, odd]), "here")
