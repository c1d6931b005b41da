"""One rule over readers: pandas' index, dates and large numbers, transparent pixels, names of arrays."""

import io

import numpy as np
import pandas
import pytest
from PIL import Image

from jaxfed.data import load
from jaxfed.data.encoding import RowEncoding, encoder_of
from jaxfed.data.transforms import standardization
from jaxfed.errors import UsageError

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
def test_transparent_pixels_are_white(reader, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    images, shown = pictures()
    data = reader(images, tmp_path)
    np.testing.assert_allclose(data.x.astype(int), [shown, shown], atol=1)
    np.testing.assert_array_equal(encoder_of(data)(images), data.x)
    palette = [image.convert("P") for image in images]
    for image in palette:
        image.info["transparency"] = image.getpixel((0, 0))
    assert (encoder_of(data)(palette)[:, :2] == 255).all()
