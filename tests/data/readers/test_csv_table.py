"""Tables as people have them: with gaps, texts and clients."""

import gzip

import numpy as np
import pandas
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
        file.write("\nf|g|label\n1|2|b\n3|4|a\n\n")
    data = load(str(tmp_path / "plain.data.gz"))
    np.testing.assert_array_equal(data.y, [1, 0])


def test_a_header_may_have_numbers_for_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("0,1,label\n1,2,b\n3,4,a\n")  # as pandas writes an array and its labels
    data = load(path)
    np.testing.assert_array_equal(data.x, [[1, 2], [3, 4]])


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
    assert data.client_names == ("north", "south")
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


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_missing_texts_are_one_text_however_they_are_spelled(tmp_path, caplog, ending):
    path = tmp_path / f"a.{ending}"
    colors = ["red", "", "NA", "None", "?", "red"]
    table = pandas.DataFrame({"size": range(6), "color": colors, "label": list("ababab")})
    table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
    data = load(path)
    assert data.names["features"] == ["size", "color=", "color=red"]
    np.testing.assert_array_equal(data.x[:, 1], [0, 1, 1, 1, 1, 0])
    assert "column 'color': '', '?', 'NA', 'None' are one text, for a missing value" in caplog.text
    rows = [{"size": 1, "color": color} for color in (None, "n/a", "red")]
    np.testing.assert_array_equal(data.encoder(rows)[:, 1], [1, 1, 0])
    table["color"] = table["color"].replace({"": "?", "NA": "?", "None": "?"})
    table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
    assert load(path).names["features"] == ["size", "color=?", "color=red"]


@pytest.mark.parametrize("label_key", [None, "target"])
def test_a_second_column_of_labels_is_named(tmp_path, caplog, label_key):
    """It is a feature, from which a model would read off the label."""
    (tmp_path / "a.csv").write_text("f,Class,target\n1,7,0\n2,8,1\n2,9,1\n")
    load(tmp_path / "a.csv", label_key=label_key)
    label, other = ("target", "Class") if label_key else ("Class", "target")
    assert f"column {label!r} is the label, and {other!r} a feature" in caplog.text
    caplog.clear()
    load(tmp_path / "a.csv", label_key=label_key, drop=[other])
    assert not caplog.messages


COLUMNS = {  # cells -> features of each row
    "integers": (["12", "-3"], [12, -3]),
    "exponents": (["1e3", "-.5", "2."], [1000, -0.5, 2]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_quantities_is_one_feature(name, tmp_path):
    cells, expected = COLUMNS[name]
    rows = "".join(f"{cell};{row % 2}\n" for row, cell in enumerate(cells))
    (tmp_path / "a.csv").write_text(f"f;label\n{rows}")
    data = load(tmp_path / "a.csv")
    np.testing.assert_allclose(data.x[:, 0], expected, rtol=1e-6)
    assert data.x.shape == (len(cells), 1)


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ("id,f,label\n1,5,a\n2,5,b\n", 1),
        ("Patient ID,f,label\nP7,5,a\nP9,6,b\n", 1),
        (",f,label\n0,5,a\n1,6,b\n", 1),  # pandas' index
        ("f,label,,\n5,a,,\n6,b,,\n", 1),  # a spreadsheet's empty columns
        ("f,g,label\n,5,a\n,6,b\n", 1),
        ("id,f,label\n1,5,a\n1,6,b\n", 2),  # it tells no rows apart
        ("age,f,label\n1,5,a\n2,6,b\n", 2),
    ],
)
def test_columns_that_are_no_features_are_left_out_and_named(lines, kept, tmp_path, caplog):
    (tmp_path / "a.csv").write_text(lines)
    with caplog.at_level("WARNING"):
        assert load(tmp_path / "a.csv").x.shape == (2, kept)
    assert ("columns that are no features: '" in caplog.text) == (
        kept < lines.partition("\n")[0].count(",")
    )


def test_columns_can_be_dropped(tmp_path):
    (tmp_path / "a.csv").write_text("f,note,label\n1,1.5,a\n2,x,b\n")
    np.testing.assert_array_equal(load(tmp_path / "a.csv", drop=["note"]).x, [[1], [2]])


def test_gaps_become_medians_of_rows_to_train_on_and_indicators(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("f,g,h,label\n1,2,5,a\n?,3,5,b\n2,NA,5,a\n900,4,5,b\n9, ,5,a\n")
    with caplog.at_level("WARNING"):
        data = load(tmp_path / "a.csv")
    assert "3 of 5 rows miss a value" in caplog.text
    assert data.has_gaps
    assert np.isnan(data.x).sum() == 3
    gaps = data.gaps(np.array([True, True, True, False, True]))
    expected = [
        [1, 2, 5, 0, 0],
        [2, 3, 5, 1, 0],
        [2, 2.5, 5, 0, 1],
        [900, 4, 5, 0, 0],
        [9, 2.5, 5, 0, 1],
    ]
    np.testing.assert_array_equal(gaps.filled(data.x), expected)
    with pytest.raises(UsageError, match="feature 2 has no value in the rows to train on"):
        data.gaps(np.array([False, False, True, False, True]))


def test_two_spellings_of_one_name_in_unicode_are_one(tmp_path):
    (tmp_path / "a.csv").write_text(
        "f,label,client\n1,caf\u00e9,\u00e9\n2,cafe\u0301,e\u0301\n3,tea,x\n"
    )
    data = load(tmp_path / "a.csv")
    assert data.class_names == ("caf\u00e9", "tea")
    assert data.client_id.max() == 1


@pytest.mark.parametrize(
    ("labels", "names"), [(("01", "1"), 2), (("-0", "0"), 2), (("3.0", "3"), 1)]
)
def test_no_two_labels_become_one_but_for_equal_numbers(labels, names, tmp_path):
    rows = "".join(f"{row},{label}\n" for row, label in enumerate((*labels, "7")))
    (tmp_path / "a.csv").write_text(f"f,label\n{rows}")
    assert load(tmp_path / "a.csv").num_classes == names + 1
