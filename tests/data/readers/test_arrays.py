"""Arrays beside a table of their labels."""

import numpy as np
import pytest

from jaxfed.data import load
from jaxfed.data.encoding import encoder_of
from jaxfed.data.mapped_rows import is_mapped

X = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
TABLE = ["label,hospital,age", *(f"{'ab'[row % 2]},{'sn'[row // 4]},{row}" for row in range(8))]


def write_embeddings(folder, kind, dtype="f4"):
    """Row i of the arrays is row i of the table."""
    folder.mkdir()
    x = X.astype(dtype)
    test = (folder / "test-a.csv", TABLE[:1] + TABLE[7:])
    if kind == "one file":
        np.save(folder / "features.npy", x)
        tables = [(folder / "labels.csv", TABLE)]
    elif kind == "several files":
        np.save(folder / "part-1.npy", x[:3])
        np.savez(folder / "part-2.npz", x[3:7])
        np.savez(folder / "part-10.npz", x=x[7:], ids=np.arange(1))
        tables = [(folder / "a.csv", TABLE[:5]), (folder / "b.csv", TABLE[:1] + TABLE[5:])]
    else:
        np.save(folder / "train.npy", x[:6])
        np.save(folder / "Test.npy", x[6:])
        tables = [(folder / "train.csv", TABLE[:7]), test]
    for file, lines in tables:
        file.write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1"])
@pytest.mark.parametrize("kind", ["one file", "several files", "splits"])
def test_arrays_beside_a_table(tmp_path, kind, dtype, caplog):
    folder = write_embeddings(tmp_path / "e", kind, dtype)
    with caplog.at_level("WARNING"):
        data = load(folder, client_key="hospital")
    train = 6 if kind == "splits" else 8
    expected = X.astype(dtype).astype(np.uint8 if dtype == "u1" else np.float32)
    assert data.x.dtype == expected.dtype
    np.testing.assert_array_equal(data.x, expected[:train])
    np.testing.assert_array_equal(data.x_test, expected[train:])
    np.testing.assert_array_equal(data.y, np.arange(train) % 2)
    np.testing.assert_array_equal(data.client_id, np.arange(train) // 4 == 0)
    assert (data.class_names, data.client_names) == (("a", "b"), ("n", "s"))
    assert "columns beside the arrays are no features: 'age'" in caplog.text
    np.testing.assert_array_equal(encoder_of(data)(X.astype(dtype)[:2]), data.x[:2])


def test_an_array_of_float32_stays_on_disk(tmp_path):
    data = load(write_embeddings(tmp_path / "e", "one file"))
    assert is_mapped(data.x)
