"""Every format gives the same arrays, and raw rows become what the reader made of them."""

import csv
import io
import json

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hf_files import image_table, png, write_parquet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from jaxfed.data import load
from jaxfed.data.dataset import Dataset
from jaxfed.data.encoding import RowEncoding, encoder_from, encoder_of, standardization
from jaxfed.data.mapped_rows import is_mapped
from jaxfed.errors import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))


NUMBERS = st.floats(-1e30, 1e30) | st.sampled_from([0.1, 1e-40, float("nan")])
COLUMNS = {
    "whole": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-5, 5),
    "real": NUMBERS,
    "switch": st.booleans(),
    "kind": st.sampled_from(["red", " red", "blue", "cafe\u0301", "caf\u00e9", "", "NA", "?"]),
    "mixed": st.sampled_from(["1", "2.5", "", "x", "2024-01-31"]),
    "id": st.integers(0, 20),
}


@st.composite
def tables(draw):
    """Columns of values, None where missing."""
    rows = draw(st.integers(2, 8))

    def cells(values):
        return draw(st.lists(values, min_size=rows, max_size=rows))

    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True))
    found = {name: cells(COLUMNS[name] | st.none()) for name in names}
    found["label"] = cells(draw(st.sampled_from([st.integers(-1, 3), st.sampled_from("ab?")])))
    if draw(st.booleans()):
        found["client"] = cells(st.sampled_from(["x", "y", "NA"] if rows == 3 else [7, 9, 10]))
    return found


def write_csv(path, columns):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def loaded(path):
    """The data set, or its error without the names of files."""
    try:
        return load(path)
    except UsageError as error:
        text = str(error).replace(str(path), "FILE")
        return text.replace(", line ", ", row ").partition(", row ")


def compare(tmp_path, columns, cut):
    """One table as a CSV file, a Parquet file and a folder of two files."""
    expected = loaded(write_csv(tmp_path / "a.csv", columns))
    whole = pa.table(columns)
    write_parquet(tmp_path / "a.parquet", whole, row_group_size=3)
    for row, part in enumerate([whole.slice(0, cut), whole.slice(cut)]):
        write_parquet(tmp_path / "parts" / f"{row}.parquet", part)
    for place in (tmp_path / "a.parquet", tmp_path / "parts"):
        found = loaded(place)
        if isinstance(expected, tuple):
            if place.is_file():
                assert found[0] == expected[0]
            assert isinstance(found, tuple)
            continue
        np.testing.assert_array_equal(found.x, expected.x)
        np.testing.assert_array_equal(found.y, expected.y)
        assert found.class_names == expected.class_names
        np.testing.assert_array_equal(found.client_id, expected.client_id)
        assert found.has_gaps == expected.has_gaps
        assert found.encoder == expected.encoder
        assert found.client_names == expected.client_names
        np.testing.assert_array_equal(found.encoder(whole.to_pylist()), found.x)


SETTINGS = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@given(columns=tables(), cut=st.integers(0, 8))
@settings(max_examples=50, **SETTINGS)
def test_a_parquet_table_gives_the_arrays_of_a_csv_file(tmp_path, columns, cut):
    compare(tmp_path, columns, cut)


# Rows from outside, also after a way through JSON.

TABLE = """size;color;id;note;client;label
1.5;red;7;a;x;no
NA; green ;8;b;x;yes
-2e3;?;9;c;y;no
0.1;red;10;a;y;yes
"""


def encoder(dataset):
    """The data set's encoder, written and read."""
    return encoder_from(
        json.loads(json.dumps(RowEncoding(encoder_of(dataset)).described()["encoder"]))
    )


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TABLE)
    return load(path, drop=("note",))


def test_rows_of_a_table_in_every_form(table):
    encode = encoder(table)
    frame = pandas.read_csv(io.StringIO(TABLE), sep=";", skipinitialspace=True)
    as_dicts = pandas.read_csv(io.StringIO(TABLE), sep=";", dtype=str, na_filter=False)
    forms = [frame, frame[["color", "size"]], as_dicts.to_dict("records")]
    for form in forms:
        np.testing.assert_array_equal(encode(form), table.x)
    np.testing.assert_array_equal(encode(frame.iloc[3]), table.x[3:])
    np.testing.assert_array_equal(encode({"size": 0.1, "color": "red"}), table.x[3:])
    np.testing.assert_array_equal(encode({"size": None, "color": "green"}), table.x[1:2])
    np.testing.assert_array_equal(encode({"size": "-2000", "color": None}), table.x[2:3])
    assert encode.names == ("size", "color=?", "color=green", "color=red")
    assert encode([]).shape == (0, 4)


def arrays(shape, dtype=np.float32):
    x = np.arange(2 * np.prod(shape)).reshape(2, *shape).astype(dtype)
    y = np.array([0, 1], np.int32)
    return Dataset("a", x, y, x[:0], y[:0], 2, ("0", "1"))


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("shape", [(3,), (1,), (4, 4, 1), (4, 4, 3)])
def test_arrays_with_and_without_their_last_axis(shape, dtype):
    data = arrays(shape, dtype)
    encode = encoder(data)
    forms = [data.x, data.x.astype(np.int64), data.x.tolist()]
    forms += [data.x[..., 0]] * (shape[-1] == 1)
    for form in forms if dtype == np.uint8 else [*forms, data.x.astype(np.float64)]:
        found = encode(form)
        np.testing.assert_array_equal(found, data.x)
        assert found.dtype == dtype
    np.testing.assert_array_equal(encode(data.x[1]), data.x[1:])


@pytest.fixture
def images(tmp_path):
    """A folder of images of two sizes, its data set and its files in the data set's order."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(["cat", "cat", "dog", "dog"]):
        (tmp_path / "f" / name).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(256, size=(9 + number, 8, 3), dtype=np.uint8)
        picture = Image.fromarray(pixels)
        exif = picture.getexif()
        exif[0x0112] = 6 if number == 1 else 1  # taken on its side
        picture.save(tmp_path / "f" / name / f"{number}.png", exif=exif)
    return load(tmp_path / "f"), sorted((tmp_path / "f").rglob("*.png"))


def test_image_files_bytes_and_images(images):
    data, files = images
    encode = encoder(data)
    opened = [Image.open(file) for file in files]
    for form in (
        files,
        [str(file) for file in files],
        [file.read_bytes() for file in files],
        opened,
        data.x,
        list(data.x),
    ):
        np.testing.assert_array_equal(encode(form), data.x)
    np.testing.assert_array_equal(encode(files[1]), data.x[1:2])
    assert encode([]).shape == (0, 8, 8, 3)


def test_gaps_of_both_splits_have_the_medians_of_training_rows(tmp_path):
    def split(name, *values, only=(1.0, 2.0)):
        columns = {"f": pa.array(values, pa.float64()), "g": only[: len(values)]}
        columns["label"] = ["a", "b", "a", "b"][: len(values)]
        write_parquet(tmp_path / "set" / f"{name}.parquet", columns)

    split("train", 1, None, 5, 9, only=[1.0, 2.0, 3.0, 4.0])
    split("test", None, 2, only=[None, 8.0])
    data = load(tmp_path / "set")
    gaps = data.gaps(np.array([True, True, True, False]))
    expected = [[1, 1, 0, 0], [3, 2, 1, 0], [5, 3, 0, 0], [9, 4, 0, 0]]
    np.testing.assert_array_equal(gaps.filled(data.x), expected)
    x_test = gaps.filled(data.x_test)
    np.testing.assert_array_equal(x_test, [[3, 2, 1, 1], [2, 8, 0, 0]])
    assert gaps == ((0, 1), (3.0, 2.0))
    encoding = RowEncoding(encoder(data), gaps)
    rows = pandas.read_parquet(tmp_path / "set" / "test.parquet")
    np.testing.assert_array_equal(encoding(rows), x_test)


def test_images_of_a_parquet_table(tmp_path):
    file = write_parquet(tmp_path / "a.parquet", image_table([3, 5], [1, 0], size=(5, 4)))
    data = load(file, image_size=3)
    encode = encoder(data)
    cells = pandas.read_parquet(file)["image"]
    for form in (cells, cells.tolist(), [cell["bytes"] for cell in cells], data.x):
        np.testing.assert_array_equal(encode(form), data.x)
    for one in (png(5, size=(5, 4)), cells[1]):
        np.testing.assert_array_equal(encode(one), data.x[1:])


# pandas' index, dates and large numbers, transparent pixels.

ROWS = 60
SECONDS = 1_700_000_000 + 3 * np.arange(ROWS)
FRAME = pandas.DataFrame({"f": np.arange(ROWS) % 7 / 2, "label": np.arange(ROWS) % 2})
SITES = pandas.concat([FRAME[:30], FRAME[30:].reset_index(drop=True)])  # numbers occur twice


def again(frame, number=1):
    """The frame after to_csv and read_csv, which knows no index."""
    for _ in range(number):
        frame = pandas.read_csv(io.StringIO(frame.to_csv()))
    return frame


def written(frame, path, **options):
    frame.to_csv(path, **options) if path.suffix == ".csv" else frame.to_parquet(path, **options)
    return load(path)


INDEXES = {
    "as it is": SITES,
    "without": SITES.reset_index(drop=True),
    "reset": SITES.reset_index(),
    "of two levels": pandas.concat({"a": SITES[:30], "b": SITES[30:]}).reset_index(),
    "read again": again(SITES),
    "read again twice": again(SITES, 2),
    "named": SITES.rename_axis("index"),
}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("kind", INDEXES)
def test_the_index_of_pandas_is_no_feature(kind, ending, tmp_path):
    data = written(INDEXES[kind], tmp_path / f"a.{ending}")
    assert data.names["features"] == ["f"]
    np.testing.assert_array_equal(data.x[:, 0], SITES["f"])
    row = INDEXES[kind].drop(columns="label")[:1]
    np.testing.assert_array_equal(encoder_of(data)(row), data.x[:1])


TIMES = pandas.to_datetime(SECONDS, unit="s")
WIDE = {
    "seconds": (SECONDS, SECONDS),
    "seconds as floats": (SECONDS + 0.5, SECONDS + 0.5),
    "times": (TIMES, SECONDS / 86400),
    "times with a zone": (TIMES.tz_localize("UTC").tz_convert("Asia/Tokyo"), SECONDS / 86400),
}


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("kind", WIDE)
def test_numbers_that_float32_would_merge_are_standardized_in_float64(kind, ending, tmp_path):
    given, expected = WIDE[kind]
    path = tmp_path / f"a.{ending}"
    if ending == "npz":
        np.savez(path, x=np.stack([FRAME["f"], expected], 1), y=FRAME["label"])
        data = load(path)
        if kind.startswith("times"):
            return  # days, which are numbers there
        rows = np.stack([FRAME["f"], expected], 1)
    else:
        data = written(FRAME.assign(t=given)[["f", "t", "label"]], path, index=False)
        rows = FRAME.assign(t=given)[["f", "t"]]
    np.testing.assert_array_equal(data.x[:, 1], expected)
    scale = standardization(data.x)
    x = scale(data.x)
    assert x.dtype == np.float32
    assert len(np.unique(x[:, 1])) == ROWS
    np.testing.assert_allclose(x[:, 1], (expected - expected.mean()) / expected.std(), rtol=1e-6)
    encode = RowEncoding(encoder_of(data), scaling=scale)
    np.testing.assert_array_equal(encode(rows), x)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_dates_are_days(ending, tmp_path):
    days = ["1970-01-02", "2024-01-31", "1969-12-31"]
    frame = pandas.DataFrame({"d": [*days, None], "f": [1, 2, 3, 4], "label": [0, 1, 0, 1]})
    data = written(frame, tmp_path / f"a.{ending}", index=False)
    np.testing.assert_array_equal(data.x[:, 0], [1, 19753, -1, np.nan])
    assert data.x.dtype == np.float32
    encode = encoder_of(data)
    for day in ("2024-01-31", pandas.Timestamp("2024-01-31"), np.datetime64("2024-01-31")):
        assert encode({"d": day, "f": 1})[0, 0] == 19753
    assert np.isnan(encode({"d": pandas.NaT, "f": 1})[0, 0])
    with pytest.raises(UsageError, match=r"column 'd' has .*; give a date, such as 2024"):
        encode({"d": "31.1.2024", "f": 1})


def pictures():
    """The same picture twice, whose transparent pixels hide other colors."""
    pixels = np.full((4, 4, 4), 200, np.uint8)
    pixels[:2, :, 3] = 0
    other = pixels.copy()
    other[:2, :, :3] = 0
    shown = np.full((4, 4, 3), 200)
    shown[:2] = 255
    shown[2:] = 200 + np.rint(55 * 55 / 255)  # opacity 200 of 255
    return [Image.fromarray(pixels), Image.fromarray(other)], shown


def of_a_folder(images, folder):
    for number, image in enumerate(images):
        (folder / "f" / str(number)).mkdir(parents=True)
        image.save(folder / "f" / str(number) / "a.png")
    return load(folder / "f")


def content(image):
    stream = io.BytesIO()
    image.save(stream, "png")
    return stream.getvalue()


def of_a_table(images, folder):
    frame = pandas.DataFrame({"image": list(map(content, images)), "label": [0, 1]})
    return written(frame, folder / "a.parquet")


@pytest.mark.parametrize("reader", [of_a_folder, of_a_table])
def test_transparent_pixels_are_white(reader, tmp_path):
    images, shown = pictures()
    data = reader(images, tmp_path)
    np.testing.assert_allclose(data.x.astype(int), [shown, shown], atol=1)
    np.testing.assert_array_equal(encoder_of(data)(images), data.x)
    palette = [image.convert("P") for image in images]
    for image in palette:
        image.info["transparency"] = image.getpixel((0, 0))
    assert (encoder_of(data)(palette)[:, :2] == 255).all()


# Arrays beside a table of their labels.

X = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
LINES = ["label,hospital,age", *(f"{'ab'[row % 2]},{'sn'[row // 4]},{row}" for row in range(8))]


def write_embeddings(folder, kind, dtype="f4"):
    """Row i of the arrays is row i of the table."""
    folder.mkdir()
    x = X.astype(dtype)
    test = (folder / "test-a.csv", LINES[:1] + LINES[7:])
    if kind == "one file":
        np.save(folder / "features.npy", x)
        tables = [(folder / "labels.csv", LINES)]
    elif kind == "several files":
        np.save(folder / "part-1.npy", x[:3])
        np.savez(folder / "part-2.npz", x[3:7])
        np.savez(folder / "part-10.npz", x=x[7:], ids=np.arange(1))
        tables = [(folder / "a.csv", LINES[:5]), (folder / "b.csv", LINES[:1] + LINES[5:])]
    else:
        np.save(folder / "train.npy", x[:6])
        np.save(folder / "Test.npy", x[6:])
        tables = [(folder / "train.csv", LINES[:7]), test]
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


def test_a_list_of_arrays_and_tables_has_its_own_order(tmp_path):
    folder = write_embeddings(tmp_path / "e", "several files")
    names = "part-10.npz", "part-1.npy", "part-2.npz", "b.csv", "a.csv"
    data = load([folder / name for name in names], client_key="hospital")
    np.testing.assert_array_equal(data.x, np.concatenate([X[7:], X[:7]]))
