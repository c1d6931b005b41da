"""UCI's sets from their original files: small ones in their layout, and the real ones where they are."""

import gzip

import numpy as np
import pytest
from absl import logging
from data_roots import needs_data, root_of

from jaxfed.data import load
from jaxfed.data.readers import uci
from jaxfed.errors import UsageError

PUBLISHED = uci.PUBLISHED


@pytest.fixture(autouse=True)
def small_files(monkeypatch, request):
    """Files of a few rows count as whole, but for the real ones."""
    if "real" not in request.node.name:
        monkeypatch.setattr(uci, "PUBLISHED", {})


WINES = (
    '"fixed acidity";"volatile acidity";"citric acid";"residual sugar";"chlorides";'
    '"free sulfur dioxide";"total sulfur dioxide";"density";"pH";"sulphates";"alcohol";"quality"\n'
)


def write_wines(root, red=(1, 2, 1), white=(2, 3, 3, 4)):
    """Wines whose values are all the same number; a number that comes again is a repeated row."""
    folder = root / "wine_quality"
    folder.mkdir(parents=True)
    for kind, values in (("red", red), ("white", white)):
        rows = "".join(";".join([f"{value}"] * 12) + "\n" for value in values)
        (folder / f"winequality-{kind}.csv").write_text(WINES + rows)
    return folder


def test_wines_are_told_by_type_and_each_row_counts_once(tmp_path):
    write_wines(tmp_path)
    data = load("wine_quality", root=tmp_path)
    np.testing.assert_array_equal(data.x, np.repeat([[1], [2], [2], [3], [4]], 12, axis=1))
    np.testing.assert_array_equal(data.y, [0, 0, 1, 1, 1])  # a red one may be as a white one
    assert data.class_names == ("red", "white")
    assert data.x.dtype == np.float32
    assert len(data.y_test) == 0


PERSON = {
    "age": "39",
    "workclass": "State-gov",
    "fnlwgt": "77516",
    "education": "Bachelors",
    "education-num": "13",
    "marital-status": "Never-married",
    "occupation": "Adm-clerical",
    "relationship": "Not-in-family",
    "race": "White",
    "sex": "Male",
    "capital-gain": "2174",
    "capital-loss": "0",
    "hours-per-week": "40",
    "native-country": "United-States",
    "income": "<=50K",
}


def write_adult(root, train, test=({},)):
    """The person above, changed in some columns, a row each."""
    folder = root / "adult"
    folder.mkdir(parents=True)
    rows = [
        [", ".join((PERSON | change).values()) + end for change in split]
        for split, end in ((train, ""), (test, "."))
    ]
    (folder / "adult.data").write_text("\n".join(rows[0]) + "\n\n")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + "\n".join(rows[1]) + "\n\n")
    return folder


def test_adults_are_coded(tmp_path):
    write_adult(
        tmp_path,
        train=[
            {},
            {"relationship": "Wife", "sex": "Female", "income": ">50K", "race": "Black"},
            {"workclass": "?", "occupation": "?", "native-country": "?", "race": "Other"},
            {"capital-gain": "99999", "hours-per-week": "99", "native-country": "Cuba"},
        ],
        test=[{"income": ">50K", "capital-gain": "99999"}, {"occupation": "Transport-moving"}],
    )
    data = load("adult", root=tmp_path)
    occupation = np.eye(14)
    plain = [39, 2, 77516, 13, 3, 0, 0, 1, 2174, 0, 40, 1]
    gain = (3 * 2174 + 99999) / 4
    expected = [
        [*plain, *occupation[0]],
        [39, 2, 77516, 13, 3, 1, 1, 0, 2174, 0, 40, 1, *occupation[0]],
        [39, 1, 77516, 13, 3, 0, 0, 1, 2174, 0, 40, 1, *occupation[9]],
        [39, 2, 77516, 13, 3, 0, 0, 1, gain, 0, (3 * 40 + 99) / 4, 0, *occupation[0]],
    ]
    np.testing.assert_allclose(data.x, expected)
    np.testing.assert_array_equal(data.y, [0, 1, 0, 0])
    np.testing.assert_array_equal(data.y_test, [1, 0])
    np.testing.assert_allclose(data.x_test[0, 8], gain)  # the training file's
    np.testing.assert_array_equal(data.x_test[1, 12:], occupation[13])


def write_mushrooms(root, rows):
    folder = root / "mushroom"
    folder.mkdir(parents=True)
    (folder / "agaricus-lepiota.data").write_text("".join(",".join(row) + "\n" for row in rows))
    return folder


def test_mushrooms_letters_are_ranks_and_the_veils_type_goes(tmp_path):
    first, second, third = list("p" + "x" * 22), list("e" + "?" * 22), list("e" + "b" * 22)
    for row in (first, second, third):
        row[16] = "p"
    write_mushrooms(tmp_path, [first, second, third])
    data = load("mushroom", root=tmp_path)
    np.testing.assert_array_equal(data.x, np.repeat([[2], [0], [1]], 21, axis=1))
    np.testing.assert_array_equal(data.y, [1, 0, 0])


def write_forests(root, name="covtype.data.gz", classes=(1, 7, 2), width=55):
    folder = root / "covertype"
    folder.mkdir(parents=True)
    rows = "".join(",".join([str(c + 10)] * (width - 1) + [str(c)]) + "\n" for c in classes)
    content = rows.encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


@pytest.mark.parametrize("name", ["covtype.data.gz", "covtype.data", "covtype.part.data.gz"])
def test_forests_classes_count_from_0(tmp_path, monkeypatch, name):
    said = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: said.append(text % values))
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    write_forests(tmp_path, name)
    data = load("covertype", root=tmp_path)
    np.testing.assert_array_equal(data.x, np.repeat([[11], [17], [12]], 54, axis=1))
    np.testing.assert_array_equal(data.y, [0, 6, 1])
    assert data.num_classes == 7
    assert said == [f"{tmp_path / 'covertype' / name}: 3 rows of Covertype's 581012"]


@pytest.mark.parametrize("name", ["wine_quality", "adult", "mushroom", "covertype"])
def test_what_is_missing_and_where_it_is_to_be_had(tmp_path, name):
    """No folder, then one without files."""
    for _ in range(2):
        with pytest.raises(UsageError, match=r"archive\.ics\.uci\.edu/dataset/") as error:
            load(name, root=tmp_path)
        assert "\n" not in str(error.value)
        (tmp_path / name).mkdir(exist_ok=True)
    with pytest.raises(UsageError, match="image_size=3: does not apply"):
        load(name, root=tmp_path, image_size=3)


BAD = {
    "wine: text": (write_wines, {"red": (1, "x")}, r"red\.csv: cannot be read.*'x'"),
    "adult: code": (
        write_adult,
        {"train": [{"sex": "male"}]},
        r"adult\.data: column 'sex' has 'male'; choose one of 'Female'",
    ),
    "adult: width": (
        write_adult,
        {"train": [{}, {"age": "39, 3"}]},
        r"adult\.data: cannot be read, it is damaged",
    ),
    "mushroom: class": (write_mushrooms, {"rows": ["x" * 23]}, r"column 'class' has 'x'"),
    "covertype: class": (write_forests, {"classes": (1, 8)}, "label 7 is not a class"),
}


@pytest.mark.parametrize(("write", "content", "told"), BAD.values(), ids=BAD)
def test_other_files_are_refused_in_one_line(tmp_path, monkeypatch, write, content, told):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    folder = write(tmp_path, **content)
    with pytest.raises(UsageError, match=told) as error:
        load(folder.name, root=tmp_path)
    assert "\n" not in str(error.value)


def test_wines_in_another_order_are_refused(tmp_path):
    folder = write_wines(tmp_path)
    table = folder / "winequality-red.csv"
    table.write_text(table.read_text().replace('"pH"', '"ph"'))
    with pytest.raises(UsageError, match=r"its columns are not fixed acidity"):
        load("wine_quality", root=tmp_path)


@pytest.mark.parametrize(
    ("write", "name", "published"),
    [
        (lambda root: write_adult(root, [{}]), "adult.data", 32_561),
        (lambda root: write_mushrooms(root, ["e" * 23]), "agaricus-lepiota.data", 8_124),
        (write_wines, "winequality-red.csv", 1_599),
        (write_forests, "covtype.data.gz", 581_012),
    ],
)
def test_a_file_that_was_cut_at_a_lines_end_is_refused(
    write, name, published, tmp_path, monkeypatch
):
    monkeypatch.setattr(uci, "PUBLISHED", PUBLISHED)
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    folder = write(tmp_path)
    with pytest.raises(
        UsageError, match=rf"{name}: \d rows, but the published file has {published};"
    ):
        load(folder.name, root=tmp_path)


@needs_data("wine_quality", "adult", "mushroom", "covertype")
@pytest.mark.parametrize(
    ("name", "features", "counts", "test_counts"),
    [
        ("wine_quality", 12, [1359, 3961], []),
        ("adult", 26, [24720, 7841], [12435, 3846]),
        ("mushroom", 21, [4208, 3916], []),
        ("covertype", 54, [2942, 6022, 2160, 2160, 2396, 2160, 2160], []),
    ],
)
def test_the_real_files(name, features, counts, test_counts):
    data = load(name, root=root_of(name))
    assert data.x.shape == (sum(counts), features)
    np.testing.assert_array_equal(np.bincount(data.y), counts)
    np.testing.assert_array_equal(np.bincount(data.y_test), test_counts)
