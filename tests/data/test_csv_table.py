"""Tables as people have them: with and without a header, with gaps, texts and clients."""

import gzip

import numpy as np
import pytest
from absl import logging

from jaxfed.data import load
from jaxfed.errors import UsageError


def test_the_delimiter_and_the_header_are_found_out(tmp_path):
    wine = '"acid";"sugar";"Class"\n1.5;2;5\n2.5;3;6\n3.5;4;5\n'
    (tmp_path / "wine.csv").write_text(wine)
    data = load(str(tmp_path / "wine.csv"))
    np.testing.assert_allclose(data.x, [[1.5, 2], [2.5, 3], [3.5, 4]])
    np.testing.assert_array_equal(data.y, [0, 1, 0])
    assert data.class_names == ("5", "6")

    with gzip.open(tmp_path / "plain.data.gz", "wt") as file:
        file.write("1,2,b\n3,4,a\n\n")
    data = load(str(tmp_path / "plain.data.gz"))
    np.testing.assert_array_equal(data.y, [1, 0])


def test_a_header_may_have_numbers_for_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("0,1,label\n1,2,b\n3,4,a\n")  # as pandas writes an array and its labels
    data = load(path)
    np.testing.assert_array_equal(data.x, [[1, 2], [3, 4]])
    path.write_text("0,1,y\n1,2,y\n3,4,n\n")  # no header: y is a label here
    assert load(path).class_names == ("n", "y")


def test_the_label_of_a_table_can_be_chosen(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("q,f,label\n1,2,3\n2,3,4\n", encoding="utf-8-sig")  # as spreadsheets write it
    data = load(path, label_key="q")
    assert data.class_names == ("1", "2")
    np.testing.assert_array_equal(data.x, [[2, 3], [3, 4]])
    assert load(path).class_names == ("3", "4")


@pytest.mark.parametrize("label", ["--5", "²", str(2**63), str(-(2**64)), "1_0"])
def test_labels_that_are_no_integers_of_64_bits_are_names(tmp_path, label):
    path = tmp_path / "a.csv"
    path.write_text(f"f,label\n1,7\n2,{label}\n3,7\n")
    data = load(path)
    assert data.class_names == tuple(sorted(["7", label]))
    assert data.class_names[data.y[1]] == label


@pytest.mark.parametrize(("first", "second"), [("10", "9"), ("b", "a")])
def test_a_row_without_a_label_is_unlabeled(tmp_path, first, second):
    path = tmp_path / "a.csv"
    path.write_text(f"f,label\n1,{first}\n2,\n3,{second}\n4, \n5,NaN\n")
    data = load(path)
    np.testing.assert_array_equal(data.y, [1, -1, 0, -1, -1])
    assert data.class_names == (second, first)  # integers by their size, names by the alphabet
    assert "3 without a label" in repr(data)


def test_clients_are_a_column(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label,client_id,f\nx,7,1\ny,9,2\nx,7,3\n")
    data = load(path)
    np.testing.assert_array_equal(data.client_id, [0, 1, 0])
    np.testing.assert_array_equal(data.x, [[1], [2], [3]])
    path.write_text("label,hospital,f\nx,south,1\ny,north,2\nx,south,3\n")
    data = load(path, client_key="hospital")
    np.testing.assert_array_equal(data.client_id, [1, 0, 1])
    np.testing.assert_array_equal(data.x, [[1], [2], [3]])


def test_texts_become_features_and_one_line_says_so(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: said.append(text % values))
    path = tmp_path / "a.csv"
    path.write_text("size,color,label\n1,red,a\n2,blue,b\n3,,a\n4,red,b\n")
    np.testing.assert_array_equal(
        load(path).x, [[1, 0, 0, 1], [2, 0, 1, 0], [3, 1, 0, 0], [4, 0, 0, 1]]
    )
    (line,) = said
    assert "color (3)" in line


MANY = "\n".join(f"name{row},{row % 2}" for row in range(101))
BAD_TABLES = {
    "no label": (
        "acid,sugar,quality\n1,2,3\n2,3,4\n",
        {},
        "label_key=.*out of acid, sugar, quality",
    ),
    "label": ("q,f\n1,2\n2,3\n", {"label_key": "z"}, "label_key='z': the columns are q, f"),
    "nearly": (
        "Outcome,f\n1,2\n2,3\n",
        {"label_key": "outcome"},
        "columns are Outcome, f, did you mean 'Outcome'",
    ),
    "client": (
        "label,f\n1,2\n2,3\n",
        {"client_key": "z"},
        "client_key='z': the columns are label, f",
    ),
    "both": ("label,f\n1,2\n2,3\n", {"client_key": "label"}, "is the label's column"),
    "index": (",f,label\n0,1,2\n1,2,3\n", {}, "column 1 has no name.*index=False"),
    "twice": ("n,y,n,y\ny,n,n,y\ny,y,y,y\n", {}, "'n' stands twice in the first line"),
    "none labeled": ("f,label\n1,\n2,\n", {}, "none of its 2 training examples has a label"),
    "gap": ("f,label\n1,0\n,1\n", {}, "column 'f', line 3: '' is not a number.*leave the row"),
    "a text": ("f,label\n1,a\nred,b\n", {}, "column 'f', line 3: 'red' is not a number"),
    "many texts": (f"name,label\n{MANY}\n", {}, "'name' has 101 different texts; up to 100"),
    "no feature": ("label\n1\n2\n", {}, "none of them is a feature"),
    "nan": ("f,label\nnan,0\n1,1\n", {}, "1 of 2 examples.*nan or infinite"),
    "infinite": ("f,label\n1e99,0\n1,1\n", {}, "1 of 2 examples.*nan or infinite"),
    "ragged": ("1,2\n1,2,3\n", {}, "line 2 has 3 columns"),
    "short": ("1,2\n", {}, "1 lines"),
    "image size": ("1,2\n3,4\n", {"image_size": 4}, "image_size=4 does not apply"),
}


@pytest.mark.parametrize(("content", "options", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_bad_tables(tmp_path, content, options, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UsageError, match=message) as error:
        load(tmp_path / "a.csv", **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content", [b"1,2\n3,4\n", gzip.compress(b"1,2\n3,4\n" * 99, mtime=0)[:25]]
)
def test_no_gzip_and_half_of_one(tmp_path, content):
    (tmp_path / "a.csv.gz").write_bytes(content)
    with pytest.raises(UsageError, match="not a CSV file"):
        load(tmp_path / "a.csv.gz")
